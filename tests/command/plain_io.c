/* SPDX-License-Identifier: MIT */
/*
 * plain_io.c - as plain.c, for descriptors: threads that wait for what comes, for room, and for events, as often as the
 * enumeration says.
 */
#include "plain.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/un.h>

enum {
    CALLS = 8,      /* that read and wait, each in another way */
    RACERS = 4,     /* woken by what one of them gets */
    CLIENTS = 6,    /* that a thread accepts */
    STREAMS = 5,    /* ways in which libc closes a number by itself */
    MANY = 1048576, /* bytes: more than there is room for */
};

static int ends[2], other[2], listener, set;
static struct sockaddr_un address = { .sun_family = AF_UNIX };

static void *read_all_ways(void *unused)
{
    char bytes[8];
    struct iovec part = { bytes, sizeof bytes };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    at_stage(1);
    check(read(ends[0], bytes, sizeof bytes) == 1); /* of a pipe */
    at_stage(2);
    check(readv(ends[0], &part, 1) == 1); /* of a pipe */
    at_stage(3);
    check(read(other[0], bytes, sizeof bytes) == 1); /* of a socket */
    at_stage(4);
    check(recv(other[0], bytes, sizeof bytes, 0) == 1);
    at_stage(5);
    check(recvfrom(other[0], bytes, sizeof bytes, 0, NULL, NULL) == 1);
    at_stage(6);
    check(recvmsg(other[0], &message, 0) == 1);
    at_stage(7);
    check(recv(other[0], bytes, 2, MSG_WAITALL) == 2); /* all of it */
    at_stage(8);
    check(read(other[0], bytes, sizeof bytes) == 0); /* until the other end goes */
    return unused;
}

static void reads(void)
{
    pthread_t thread;
    char byte = 1;
    check(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    start(&thread, 1, read_all_ways);
    for (unsigned i = 1; i <= 7; i++) {
        until_stage(i);
        check(write(i <= 2 ? ends[1] : other[1], &byte, 1) == 1);
    }
    nap();
    until_sleeps(&tids[0]); /* of two bytes one is there */
    check(send(other[1], &byte, 1, 0) == 1);
    until_stage(8);
    check(close(other[1]) == 0);
    join(&thread, 1);
}

/* What never waits. */
static void *try_all_ways(void *unused)
{
    static char many[16384];
    char bytes[8];
    errno = 0;
    check(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    check(fcntl(other[0], F_SETFL, O_NONBLOCK) == 0);
    check(read(ends[0], bytes, sizeof bytes) == -1 && errno == EAGAIN);
    check(read(other[0], bytes, sizeof bytes) == -1 && errno == EAGAIN);
    check(recv(other[1], bytes, sizeof bytes, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    check(read(-1, bytes, sizeof bytes) == -1 && errno == EBADF);
    check(recv(ends[0], bytes, sizeof bytes, 0) == -1 && errno == ENOTSOCK);
    check(write(other[1], "abc", 3) == 3 && read(other[0], bytes, 2) == 2);
    check(read(other[0], bytes, sizeof bytes) == 1 && bytes[0] == 'c');
    check(write(ends[1], "de", 2) == 2 && read(ends[0], bytes, sizeof bytes) == 2);
    errno = 77;
    check(write(ends[1], "f", 1) == 1 && read(ends[0], bytes, 1) == 1 && errno == 77);
    check(write(other[1], many, sizeof many) == sizeof many && errno == 77); /* there is room */
    check(send(other[1], many, 3, MSG_MORE) == 3 && errno == 77);
    return unused;
}

static void tries(void)
{
    pthread_t thread;
    char text[16];
    check(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    start(&thread, 1, try_all_ways);
    join(&thread, 1);
    /* A number that was a socket's is a file's, and nobody has seen that the socket was closed. */
    for (int writes = 0; writes < 2; writes++) {
        char name[] = "/tmp/plain_io.XXXXXX";
        check(syscall(SYS_close, other[1]) == 0);
        check(mkstemp(name) == other[1] && unlink(name) == 0);
        errno = 77;
        check(writes ? write(other[1], "abc", 3) == 3 : read(other[1], text, sizeof text) == 0);
        check(errno == 77 && close(other[1]) == 0);
        check(close(other[0]) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    }
    int fd = open("/proc/self/comm", O_RDONLY);
    check(fd >= 0 && dup2(fd, other[0]) == other[0] && read(other[0], text, sizeof text) > 0);
}

static void *read_one(void *fd)
{
    char byte;
    here(0);
    check(read(*(int *)fd, &byte, 1) == 1);
    return NULL;
}

/* What comes through the pipe. */
static void is_waited_for(int fd)
{
    pthread_t thread;
    tids[0] = 0;
    check(pthread_create(&thread, NULL, read_one, &fd) == 0);
    until_sleeps(&tids[0]);
    check(write(ends[1], "x", 1) == 1);
    join(&thread, 1);
}

/* It is known as one after this. */
static int as_file(int fd)
{
    char text[16];
    check(fd >= 0 && (read(fd, text, sizeof text) > 0 || errno == EISDIR));
    return fd;
}

/* A number that was a file's is a pipe's, by a call that nobody has seen. */
static void is_made_anew(int fd)
{
    check(fcntl(ends[0], F_DUPFD, fd) == fd);
    is_waited_for(fd);
    check(close(fd) == 0);
}

static void reuses(void)
{
    check(pipe(ends) == 0);
    for (int is_range = 0; is_range < 2; is_range++) {
        int fd = as_file(open("/proc/self/comm", O_RDONLY));
        if (is_range)
            check(close_range((unsigned)fd, (unsigned)fd, 0) == 0);
        else
            closefrom(fd);
        is_made_anew(fd);
    }
}

/* Number 0, that was a file's, is a terminal's in a child: by a dup2 inside libc. */
static void terminal(void)
{
    pid_t *who = mmap(NULL, sizeof *who, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    char text[8];
    int master;
    check(who != MAP_FAILED && close(0) == 0 && as_file(open("/proc/self/comm", O_RDONLY)) == 0);
    pid_t child = forkpty(&master, NULL, NULL, NULL);
    check(child >= 0);
    if (child == 0) {
        __atomic_store_n(who, getpid(), __ATOMIC_RELEASE);
        check(read(0, text, sizeof text) == 2);
        exit(0);
    }
    until_sleeps(who);
    check(write(master, "x\n", 2) == 2);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0);
}

static void reopens(FILE *reopen(const char *, const char *, FILE *))
{
    char path[64];
    FILE *stream = fopen("/proc/self/comm", "r");
    check(stream != NULL);
    int fd = as_file(fileno(stream));
    snprintf(path, sizeof path, "/proc/self/fd/%d", ends[0]);
    check(reopen(path, "r", stream) == stream && fileno(stream) == fd);
    is_waited_for(fd);
    check(fclose(stream) == 0);
}

static void streams(void)
{
    check(pipe(ends) == 0);
    errno = 77;
    FILE *stream = fopen("/proc/self/comm", "r");
    int fd = as_file(stream ? fileno(stream) : -1);
    check(fclose(stream) == 0 && errno == 77);
    is_made_anew(fd);
    check(unsetenv("LD_PRELOAD") == 0); /* an emulated program has no emulated shell */
    stream = popen("exec true", "r");
    int file = open("/proc/self/comm", O_RDONLY);
    check(stream && file >= 0 && dup2(file, fileno(stream)) == fileno(stream));
    fd = as_file(fileno(stream));
    check(pclose(stream) == 0 && close(file) == 0);
    is_made_anew(fd);
    DIR *folder = opendir("/");
    fd = as_file(folder ? dirfd(folder) : -1);
    check(closedir(folder) == 0);
    is_made_anew(fd);
    reopens(freopen);
    reopens(freopen64);
}

/* As soon as the writer, who is the main thread, sleeps. */
static void *drain(void *fd)
{
    static char bytes[65536];
    const pid_t writer = getpid();
    until_sleeps(&writer);
    for (size_t got = 0; got < MANY;) {
        ssize_t more = read(*(int *)fd, bytes, sizeof bytes);
        check(more > 0);
        for (size_t i = 0; i < (size_t)more; i++)
            check(bytes[i] == (char)((got + i) % 251));
        got += (size_t)more;
    }
    return NULL;
}

static void writes(void)
{
    static char bytes[MANY];
    struct iovec part = { bytes, MANY };
    struct msghdr message = { .msg_iov = &part, .msg_iovlen = 1 };
    pthread_t thread;
    for (unsigned i = 0; i < MANY; i++)
        bytes[i] = (char)(i % 251);
    check(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    check(pthread_create(&thread, NULL, drain, &ends[0]) == 0);
    check(write(ends[1], bytes, MANY) == MANY); /* to a pipe */
    join(&thread, 1);
    check(pthread_create(&thread, NULL, drain, &ends[0]) == 0);
    check(writev(ends[1], &part, 1) == MANY);
    join(&thread, 1);
    check(pthread_create(&thread, NULL, drain, &other[0]) == 0);
    check(write(other[1], bytes, MANY) == MANY); /* to a socket */
    join(&thread, 1);
    check(pthread_create(&thread, NULL, drain, &other[0]) == 0);
    check(send(other[1], bytes, MANY, 0) == MANY);
    join(&thread, 1);
    check(pthread_create(&thread, NULL, drain, &other[0]) == 0);
    check(sendmsg(other[1], &message, 0) == MANY);
    join(&thread, 1);
    check(fcntl(other[1], F_SETFL, O_NONBLOCK) == 0);
    ssize_t some = send(other[1], bytes, MANY, 0);
    check(some > 0 && some < MANY && send(other[1], bytes, MANY, 0) == -1 && errno == EAGAIN);
    char name[] = "/tmp/plain_io.XXXXXX";
    int fd = mkstemp(name);
    check(fd >= 0 && write(fd, bytes, MANY) == MANY && fsync(fd) == 0 && fdatasync(fd) == 0);
    check(unlink(name) == 0 && close(fd) == 0);
    check(fsync(fd) == -1 && errno == EBADF);
}

enum way { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT, BY_EPOLL, BY_EPOLL_PWAIT, BY_EPOLL_PWAIT2 };
static enum way way;
static unsigned woken;

/* Where the kernel, or an emulator, has no such call, by the one of milliseconds. */
static int await_exactly(const struct timespec *time)
{
    struct epoll_event event;
    int got = epoll_pwait2(set, &event, 1, time, NULL);
    if (got >= 0 || errno != ENOSYS)
        return got;
    return epoll_pwait(set, &event, 1, time ? (int)(time->tv_nsec / 1000000) : -1, NULL);
}

/* Until ends[0] can be read. Returns what the call does. */
static int await(enum way by, int ms)
{
    struct pollfd entry = { ends[0], POLLIN, 0 };
    struct timespec time = { 0, ms * 1000000L };
    struct timeval tv = { 0, ms * 1000L };
    struct epoll_event event;
    fd_set reads;
    FD_ZERO(&reads);
    FD_SET(ends[0], &reads);
    switch (by) {
    case BY_POLL: return poll(&entry, 1, ms);
    case BY_PPOLL: return ppoll(&entry, 1, ms < 0 ? NULL : &time, NULL);
    case BY_SELECT: return select(ends[0] + 1, &reads, NULL, NULL, ms < 0 ? NULL : &tv);
    case BY_PSELECT: return pselect(ends[0] + 1, &reads, NULL, NULL, ms < 0 ? NULL : &time, NULL);
    case BY_EPOLL: return epoll_wait(set, &event, 1, ms);
    case BY_EPOLL_PWAIT: return epoll_pwait(set, &event, 1, ms, NULL);
    default: return await_exactly(ms < 0 ? NULL : &time);
    }
}

static void *race(void *i)
{
    char byte;
    here((unsigned)(uintptr_t)i);
    check(await(way, -1) == 1);
    __atomic_fetch_add(&woken, 1, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&woken, __ATOMIC_ACQUIRE) < RACERS)
        nap();
    return (void *)(intptr_t)(read(ends[0], &byte, 1) == 1);
}

static void ready_at(enum way by)
{
    struct epoll_event event = { .events = EPOLLIN };
    way = by;
    woken = 0;
    check(pipe(ends) == 0 && fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
    check((set = epoll_create1(0)) >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, ends[0], &event) == 0);
}

static void races(void)
{
    pthread_t threads[RACERS];
    char byte = 1;
    for (enum way by = BY_POLL; by <= BY_EPOLL_PWAIT2; by++) {
        ready_at(by);
        start(threads, RACERS, race);
        until_all_sleep(RACERS);
        check(write(ends[1], &byte, 1) == 1);
        join(threads, RACERS);
        check(await(by, 0) == 0 && await(by, 3) == 0);
        check(write(ends[1], &byte, 1) == 1 && await(by, -1) == 1);
    }
}

static void *accept_all(void *unused)
{
    for (unsigned i = 0; i < CLIENTS; i++) {
        at_stage(i + 1);
        int fd = i % 2 ? accept(listener, NULL, NULL) : accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        check(fd >= 0 && close(fd) == 0);
    }
    return unused;
}

static void accepts(void)
{
    pthread_t thread;
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%cplain_io.%d", 0, getpid());
    check(bind(listener, (struct sockaddr *)&address, sizeof address) == 0);
    check(listen(listener, 1) == 0);
    start(&thread, 1, accept_all);
    for (unsigned i = 0; i < CLIENTS; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        until_stage(i + 1);
        check(connect(fd, (struct sockaddr *)&address, sizeof address) == 0 && close(fd) == 0);
    }
    join(&thread, 1);
    check(fcntl(listener, F_SETFL, O_NONBLOCK) == 0);
    check(accept(listener, NULL, NULL) == -1 && errno == EAGAIN);
}

/* One byte of the four that are asked for is there. */
static void *read_four(void *unused)
{
    char bytes[8];
    here(0);
    check(recv(other[0], bytes, sizeof bytes, 0) == 4); /* until the others come */
    check(fcntl(other[0], F_SETFL, O_NONBLOCK) == 0);
    check(recv(other[0], bytes, sizeof bytes, 0) == -1 && errno == EAGAIN);
    check(fcntl(other[0], F_SETFL, 0) == 0);
    check(write(other[1], "abcd", 4) == 4 && read(other[0], bytes, sizeof bytes) == 4);
    check(write(other[1], "a", 1) == 1 && recv(other[0], bytes, 8, MSG_DONTWAIT) == 1);
    return unused;
}

static void needs_more(void)
{
    pthread_t thread;
    int four = 4;
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    check(setsockopt(other[0], SOL_SOCKET, SO_RCVLOWAT, &four, sizeof four) == 0);
    check(write(other[1], "a", 1) == 1);
    start(&thread, 1, read_four);
    until_sleeps(&tids[0]);
    check(write(other[1], "bcd", 3) == 3);
    join(&thread, 1);
}

static void *be_cancelled(void *unused)
{
    char byte;
    here(0);
    check(read(ends[0], &byte, 1) < 0); /* until cancelled */
    return unused;
}

static void ends_otherwise(void)
{
    struct timeval little = { 0, 3000 };
    pthread_t thread;
    char byte;
    check(pipe(ends) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, other) == 0);
    check(setsockopt(other[0], SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little) == 0);
    check(recv(other[0], &byte, 1, 0) == -1 && errno == EAGAIN); /* in time */
    start(&thread, 1, be_cancelled);
    until_sleeps(&tids[0]);
    check(pthread_cancel(thread) == 0);
    join(&thread, 1);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "read", reads },      { "try", tries },
                                           { "write", writes },    { "race", races },
                                           { "accept", accepts },  { "otherwise", ends_otherwise },
                                           { "reuse", reuses },    { "more", needs_more },
                                           { "streams", streams }, { "terminal", terminal } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
