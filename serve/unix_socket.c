/* SPDX-License-Identifier: MIT */
/*
 * unix_socket.c - a listening socket with a path in place of an address.
 *
 * A server that was killed leaves its socket's file behind. It is removed if nobody listens there any more, and never if it
 * is another kind of file.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve.h"

#define PREFIX "unix:"

static struct {
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)];
    dev_t device;
    ino_t inode;
} made;

const char *unix_socket_path(const char *address)
{
    return strncmp(address, PREFIX, strlen(PREFIX)) == 0 ? address + strlen(PREFIX) : NULL;
}

/* Remove the file of a server that has ended. Returns 0, or -EADDRINUSE if another one listens, or it is no socket. */
static int remove_stale(const struct sockaddr_un *at)
{
    struct stat found;
    int fd, result;

    if (lstat(at->sun_path, &found) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(found.st_mode))
        return -EADDRINUSE;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    result = connect(fd, (const struct sockaddr *)at, sizeof(*at)) == 0 ? 0 : errno;
    close(fd);
    if (result != ECONNREFUSED)
        return -EADDRINUSE;
    return unlink(at->sun_path) < 0 && errno != ENOENT ? -errno : 0;
}

int unix_socket_listen(const char *path, int backlog)
{
    struct sockaddr_un at = { .sun_family = AF_UNIX };
    struct stat file;
    size_t size = strlen(path) + 1;
    int fd, result;

    if (*path == 0)
        return -EINVAL;
    if (size > sizeof(at.sun_path))
        return -ENAMETOOLONG;
    memcpy(at.sun_path, path, size);
    if ((result = remove_stale(&at)) < 0)
        return result;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (bind(fd, (const struct sockaddr *)&at, sizeof(at)) < 0 || listen(fd, backlog) < 0 ||
        stat(path, &file) < 0) {
        result = -errno;
        close(fd);
        return result;
    }
    memcpy(made.path, path, size);
    made.device = file.st_dev;
    made.inode = file.st_ino;
    return fd;
}

void unix_socket_remove(void)
{
    struct stat file;

    if (*made.path && lstat(made.path, &file) == 0 && file.st_dev == made.device &&
        file.st_ino == made.inode)
        unlink(made.path);
}
