/* SPDX-License-Identifier: MIT */
/*
 * files.c - from a request target to an open file beneath the root.
 *
 * Problem: a target may name anything: "..", links that lead out of the root, pipes, directories. Checking only the
 * text does not suffice, because links may change between check and open.
 * Answer: the kernel resolves the path and refuses to leave the root (openat2 with RESOLVE_BENEATH). If it cannot,
 * files_walk opens one component after the other, each relative to the descriptor of the previous one and none
 * through a link, so no change of the tree can redirect it.
 *
 * No function here calls one that parks the thread, so errno is safe to read.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/openat2.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "serve.h"

/* O_NONBLOCK: opening a pipe must not wait for a writer. */
#define READ_FLAGS (O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK)

#define WALK_DEPTH 64
#define WALK_LINKS 40

static bool kernel_resolves;

static int open_beneath(int root, const char *path, uint64_t flags)
{
    struct open_how how = { .flags = flags, .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS };
    long fd;

    /* EAGAIN: a rename happened while ".." was resolved. */
    for (int attempt = 0; attempt < 8; attempt++) {
        fd = syscall(SYS_openat2, root, path, &how, sizeof(how));
        if (fd >= 0 || (errno != EAGAIN && errno != EINTR))
            break;
    }
    return fd >= 0 ? (int)fd : -errno;
}

int files_init(const char *directory)
{
    int probe;

    settings.root = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (settings.root < 0)
        return -errno;
    /* Test the effect: the call may be missing, forbidden, or emulated without its restrictions. */
    probe = open_beneath(settings.root, "..", O_PATH | O_CLOEXEC);
    kernel_resolves = probe == -EXDEV;
    if (probe >= 0)
        close(probe);
    return 0;
}

/*
 * State of files_walk: the directories opened so far, the root first, and the unresolved rest of the path.
 */
struct walk {
    int directories[WALK_DEPTH];
    int depth; /* index of the directory that rest is relative to */
    int links;
    char rest[PATH_MAX];
    char link[PATH_MAX];
};

/* Replace a link's name by its target. after is the text behind the name in rest. */
static int walk_link(struct walk *w, const char *name, const char *after, int why)
{
    ssize_t bytes = readlinkat(w->directories[w->depth], name, w->link, sizeof(w->link));
    size_t tail = strlen(after);

    if (bytes < 0)
        return errno == EINVAL ? why : -errno; /* not a link */
    if (w->link[0] == '/')
        return -EXDEV;
    if (++w->links > WALK_LINKS)
        return -ELOOP;
    if ((size_t)bytes + tail >= sizeof(w->rest))
        return -ENAMETOOLONG;
    memmove(w->rest + bytes, after, tail + 1);
    memcpy(w->rest, w->link, (size_t)bytes);
    return -EAGAIN;
}

/*
 * Resolve one component of rest. Returns the file's descriptor at the end of the path; -EAGAIN to continue.
 */
static int walk_step(struct walk *w)
{
    int directory = w->directories[w->depth];
    char name[NAME_MAX + 1];
    const char *from = w->rest + strspn(w->rest, "/");
    size_t bytes = strcspn(from, "/");
    bool last = from[bytes] == 0;
    int fd;

    if (bytes > NAME_MAX)
        return -ENAMETOOLONG;
    if (bytes == 0 || (bytes == 1 && from[0] == '.')) {
        fd = last ? openat(directory, ".", READ_FLAGS) : -1;
        memmove(w->rest, from + bytes, strlen(from + bytes) + 1);
        return !last ? -EAGAIN : fd >= 0 ? fd : -errno;
    }
    memcpy(name, from, bytes);
    name[bytes] = 0;
    if (strcmp(name, "..") == 0) {
        if (w->depth == 0)
            return -EXDEV;
        close(w->directories[w->depth--]);
        memmove(w->rest, from + bytes, strlen(from + bytes) + 1);
        return -EAGAIN;
    }
    fd = openat(directory, name,
                O_NOFOLLOW | (last ? READ_FLAGS : O_PATH | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0)
        return errno == ELOOP || errno == ENOTDIR ? walk_link(w, name, from + bytes, -errno)
                                                  : -errno;
    if (last)
        return fd;
    if (w->depth + 1 == WALK_DEPTH) {
        close(fd);
        return -ENAMETOOLONG;
    }
    w->directories[++w->depth] = fd;
    memmove(w->rest, from + bytes, strlen(from + bytes) + 1);
    return -EAGAIN;
}

int files_walk(int root, const char *path)
{
    size_t bytes = strlen(path);
    struct walk *w;
    int fd;

    if (bytes == 0)
        return -ENOENT;
    if (path[0] == '/')
        return -EXDEV;
    if (bytes >= PATH_MAX)
        return -ENAMETOOLONG;
    w = malloc(sizeof(*w));
    if (w == NULL)
        return -ENOMEM;
    w->directories[0] = root;
    w->depth = w->links = 0;
    memcpy(w->rest, path, bytes + 1);
    do
        fd = walk_step(w);
    while (fd == -EAGAIN);
    while (w->depth > 0)
        close(w->directories[w->depth--]);
    free(w);
    return fd;
}

static int hex(char digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

char *files_path(char *target, size_t bytes)
{
    char *end = target + bytes, *from = target, *to = target;

    if (bytes > 7 && strncasecmp(target, "http://", 7) == 0) {
        from += 7;
        while (from < end && *from != '/' && *from != '?')
            from++;
    } else if (bytes == 0 || *target != '/') {
        return NULL;
    }
    while (from < end && *from == '/')
        from++;
    for (; from < end && *from != '?' && *from != '#'; from++) {
        if (*from == '%') {
            int high = end - from > 2 ? hex(from[1]) : -1;
            int low = end - from > 2 ? hex(from[2]) : -1;

            if (high < 0 || low < 0 || high + low == 0)
                return NULL;
            *to++ = (char)(high * 16 + low);
            from += 2;
        } else if ((unsigned char)*from <= ' ' || *from == 127) {
            return NULL;
        } else {
            *to++ = *from;
        }
    }
    *to = 0;
    return target + strspn(target, "/");
}

/* Whether a component of the path begins with a dot, and is neither "." nor "..". */
static bool has_dot_name(const char *path)
{
    bool at_name = true;

    for (; *path; path++) {
        if (at_name && path[0] == '.' && path[1] && path[1] != '/' &&
            (path[1] != '.' || (path[2] && path[2] != '/')))
            return true;
        at_name = *path == '/';
    }
    return false;
}

int files_open(int root, char *path, struct file *file)
{
    size_t bytes = strlen(path);
    bool is_index = bytes == 0 || path[bytes - 1] == '/';
    struct stat status;
    int fd;

    if (!settings.dot_files && has_dot_name(path))
        return -ENOENT;
    if (is_index)
        memcpy(path + bytes, "index.html", sizeof("index.html"));
    fd = kernel_resolves ? open_beneath(root, path, READ_FLAGS) : files_walk(root, path);
    if (fd < 0)
        return fd;
    if (fstat(fd, &status) < 0)
        status.st_mode = 0;
    if (!S_ISREG(status.st_mode)) {
        close(fd);
        return S_ISDIR(status.st_mode) && !is_index ? -EISDIR : -ENOENT;
    }
    file->fd = fd;
    file->bytes = status.st_size;
    file->modified = status.st_mtim.tv_sec;
    file->modified_ns = status.st_mtim.tv_nsec;
    file->inode = status.st_ino;
    return 0;
}

ssize_t files_read(int fd, void *buffer, size_t bytes, off_t at)
{
    struct iovec part = { buffer, bytes };
    ssize_t n = preadv2(fd, &part, 1, at, RWF_NOWAIT);

    /* A file system that cannot say is read normally; sendfile would do no better. */
    if (n < 0 && errno == EOPNOTSUPP)
        n = pread(fd, buffer, bytes, at);
    return n >= 0 ? n : -errno;
}

const char *files_type(const char *path)
{
    static const struct {
        const char *extension, *type;
    } types[] = {
        { "html", "text/html; charset=utf-8" },
        { "htm", "text/html; charset=utf-8" },
        { "css", "text/css; charset=utf-8" },
        { "js", "text/javascript; charset=utf-8" },
        { "mjs", "text/javascript; charset=utf-8" },
        { "txt", "text/plain; charset=utf-8" },
        { "md", "text/markdown; charset=utf-8" },
        { "csv", "text/csv; charset=utf-8" },
        { "xml", "text/xml; charset=utf-8" },
        { "c", "text/plain; charset=utf-8" },
        { "h", "text/plain; charset=utf-8" },
        { "json", "application/json" },
        { "pdf", "application/pdf" },
        { "wasm", "application/wasm" },
        { "gz", "application/gzip" },
        { "zip", "application/zip" },
        { "svg", "image/svg+xml" },
        { "png", "image/png" },
        { "jpg", "image/jpeg" },
        { "jpeg", "image/jpeg" },
        { "gif", "image/gif" },
        { "webp", "image/webp" },
        { "ico", "image/x-icon" },
        { "mp4", "video/mp4" },
        { "mp3", "audio/mpeg" },
        { "woff2", "font/woff2" },
    };
    const char *slash = strrchr(path, '/');
    const char *dot = strrchr(slash ? slash : path, '.');

    /* Most differ in the first letter, and a call costs more than that comparison. */
    for (size_t i = 0; dot && i < sizeof(types) / sizeof(types[0]); i++)
        if ((dot[1] | 0x20) == types[i].extension[0] &&
            strcasecmp(dot + 1, types[i].extension) == 0)
            return types[i].type;
    return "application/octet-stream";
}
