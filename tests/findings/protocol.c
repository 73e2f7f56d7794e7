/* SPDX-License-Identifier: MIT */
/*
 * protocol.c - a server whose one thread has all connections, in an epoll set, and writes a line to a file for each
 * request. Fault: it syncs the file each time, and serves nobody meanwhile.
 *
 * Repair: another thread syncs the file, again and again.
 */
#include "findings.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

enum { CLIENTS = 8, EVENTS = 16, SYNC_US = 20000, REQUEST_BYTES = 10000 };

static int listener, file;
static struct sockaddr_un place = { .sun_family = AF_UNIX };
static socklen_t place_bytes = sizeof place;
static atomic_bool is_ended;

static void listens(void)
{
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    /* The kernel chooses a name of its own. */
    check(listener >= 0 && bind(listener, (struct sockaddr *)&place, sizeof(sa_family_t)) == 0);
    check(getsockname(listener, (struct sockaddr *)&place, &place_bytes) == 0);
    check(listen(listener, CLIENTS) == 0);
}

static void opens_file(void)
{
    char path[PATH_MAX];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/protocol-XXXXXX", folder ? folder : "/tmp");
    file = mkstemp(path);
    check(file >= 0 && unlink(path) == 0);
}

static void write_line(uint64_t request)
{
    check(pwrite(file, &request, sizeof request, 0) == WHOLE(request));
    if (!is_fixed)
        check(fdatasync(file) == 0);
}

static void watch(int set, int fd)
{
    struct epoll_event event = { .events = EPOLLIN, .data.fd = fd };
    check(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
}

/* Returns whether the client is still there. */
static bool answer(int fd)
{
    uint64_t request;
    if (recv(fd, &request, sizeof request, 0) != WHOLE(request))
        return false;
    request = digest(request, REQUEST_BYTES);
    write_line(request);
    check(send(fd, &request, sizeof request, 0) == WHOLE(request));
    return true;
}

static void serve(void)
{
    int set = epoll_create1(EPOLL_CLOEXEC);
    check(set >= 0);
    watch(set, listener);
    for (unsigned clients = CLIENTS; clients > 0;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(set, events, EVENTS, -1);
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int client = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
                check(client >= 0);
                watch(set, client);
            } else if (!answer(fd)) {
                close(fd);
                clients--;
            }
        }
    }
    close(set);
    atomic_store(&is_ended, true);
}

static void *sync_file(void *arg)
{
    while (!atomic_load(&is_ended)) {
        check(fdatasync(file) == 0);
        usleep(SYNC_US);
    }
    return arg;
}

static void *send_requests(void *arg)
{
    struct worker *self = arg;
    unsigned long ops = 0;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    check(fd >= 0 && connect(fd, (struct sockaddr *)&place, place_bytes) == 0);
    for (uint64_t request = self->seed; !is_over(); ops++) {
        check(send(fd, &request, sizeof request, 0) == WHOLE(request));
        check(recv(fd, &request, sizeof request, 0) == WHOLE(request));
    }
    close(fd);
    self->ops = ops;
    return NULL;
}

static void *drive(void *ops)
{
    *(unsigned long *)ops = run_threads(CLIENTS, send_requests);
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t clients, syncer;
    unsigned long ops;
    listens();
    opens_file();
    begin(argc, argv);
    check(pthread_create(&clients, NULL, drive, &ops) == 0);
    if (is_fixed)
        check(pthread_create(&syncer, NULL, sync_file, NULL) == 0);
    serve();
    pthread_join(clients, NULL);
    if (is_fixed)
        pthread_join(syncer, NULL);
    finish(ops);
    return 0;
}
