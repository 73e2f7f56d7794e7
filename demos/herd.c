/* SPDX-License-Identifier: MIT */
/*
 * herd.c - an accept server with a thundering herd: all its processes wait for one listener, and each connection wakes
 * them all (except with accept). The program is its own client, and prints how many connections each thread served.
 *
 *     herd WAY PROCESSES THREADS CONNECTIONS AT_ONCE
 *
 * WAY is poll, pipe (poll with an additional pipe), select, epoll or accept. THREADS threads wait in each server
 * process. The program does not use rouse.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 64, AT_ONCE_MOST = 256 };
enum way { POLL, PIPE, SELECT, EPOLL, ACCEPT };
static const char *const ways[] = { "poll", "pipe", "select", "epoll", "accept" };

/* The counts of one server thread, in memory that all processes share. */
struct served {
    unsigned long connections, in_vain;
    pid_t tid; /* written by the thread with release */
};

static struct served *served;
static enum way way;
static int listener, ends[2];
static unsigned processes, threads;
static pthread_barrier_t all; /* of a process: no thread ends before all were asked to */

static void fail(const char *what)
{
    perror(what);
    _exit(1);
}

/* Wait until a connection is reported, which may be spurious. */
static void wait_for_one(int set)
{
    struct pollfd entries[] = { { listener, POLLIN, 0 }, { ends[0], POLLIN, 0 } };
    struct epoll_event event;
    fd_set reads;
    int got = -1;
    FD_ZERO(&reads);
    switch (way) {
    case POLL: got = poll(entries, 1, -1); break;
    case PIPE: got = poll(entries, 2, -1); break;
    case SELECT:
        FD_SET(listener, &reads);
        got = select(listener + 1, &reads, NULL, NULL, NULL);
        break;
    case EPOLL: got = epoll_wait(set, &event, 1, -1); break;
    case ACCEPT: got = 1; break;
    }
    if (got < 0 && errno != EINTR)
        fail("herd: wait");
}

static void *serve(void *arg)
{
    unsigned number = (unsigned)(size_t)arg;
    unsigned char asked = 0, answer = (unsigned char)number;
    struct epoll_event event = { .events = EPOLLIN };
    int set = -1;
    if (way == EPOLL &&
        ((set = epoll_create1(0)) < 0 || epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) < 0))
        fail("herd: epoll");
    __atomic_store_n(&served[number].tid, (pid_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    while (asked != 'q') {
        wait_for_one(set);
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) {
            if (errno != EAGAIN)
                fail("herd: accept");
            served[number].in_vain++;
            continue;
        }
        if (read(fd, &asked, 1) != 1 || write(fd, &answer, 1) != 1)
            fail("herd: serve");
        close(fd);
        served[number].connections += asked != 'q';
    }
    pthread_barrier_wait(&all);
    return NULL;
}

static void serve_all(unsigned process)
{
    pthread_t others[MOST];
    pthread_barrier_init(&all, NULL, threads);
    for (unsigned i = 1; i < threads; i++)
        if (pthread_create(&others[i], NULL, serve, (void *)(size_t)(process * threads + i)) != 0)
            fail("herd: pthread_create");
    serve((void *)(size_t)(process * threads));
    for (unsigned i = 1; i < threads; i++)
        pthread_join(others[i], NULL);
    exit(0);
}

/* Wait until the thread sleeps for some time: then it waits for connections. */
static void until_waits(pid_t pid, const pid_t *tid)
{
    const struct timespec moment = { 0, 200000 };
    char path[64], text[512];
    for (int seen = 0; seen < 10; nanosleep(&moment, NULL)) {
        snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid,
                 __atomic_load_n(tid, __ATOMIC_ACQUIRE));
        FILE *file = fopen(path, "r");
        size_t got = file ? fread(text, 1, sizeof text - 1, file) : 0;
        text[got] = 0;
        const char *at = strrchr(text, ')');
        seen = at && at[1] && at[2] == 'S' ? seen + 1 : 0;
        if (file)
            fclose(file);
    }
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Open count connections at once and send the same request on each. The servers count which thread served it. */
static void ask(const struct sockaddr_in *address, unsigned count, char what, double *us)
{
    int fds[AT_ONCE_MOST];
    double begin[AT_ONCE_MOST];
    char answer;
    for (unsigned i = 0; i < count; i++) {
        fds[i] = socket(AF_INET, SOCK_STREAM, 0);
        begin[i] = now_us();
        if (fds[i] < 0 || connect(fds[i], (const struct sockaddr *)address, sizeof *address) < 0 ||
            write(fds[i], &what, 1) != 1)
            fail("herd: connect");
    }
    for (unsigned i = 0; i < count; i++) {
        if (read(fds[i], &answer, 1) != 1)
            fail("herd: read");
        us[i] = now_us() - begin[i];
        close(fds[i]);
    }
}

static void tell(unsigned connections, double *us)
{
    struct rusage used;
    unsigned long in_vain = 0;
    getrusage(RUSAGE_CHILDREN, &used);
    qsort(us, connections, sizeof *us, by_size);
    printf(
        "{\"way\": \"%s\", \"processes\": %u, \"threads\": %u, \"connections\": %u, \"served\": [",
        ways[way], processes, threads, connections);
    for (unsigned i = 0; i < processes * threads; i++) {
        printf("%s%lu", i ? ", " : "", served[i].connections);
        in_vain += served[i].in_vain;
    }
    printf("], \"in_vain\": %lu, \"voluntary\": %ld, \"p50_us\": %.1f, \"p99_us\": %.1f}\n",
           in_vain, used.ru_nvcsw, us[connections / 2], us[connections * 99 / 100]);
}

static void listen_at(struct sockaddr_in *address)
{
    socklen_t bytes = sizeof *address;
    int type = way == ACCEPT ? SOCK_STREAM : SOCK_STREAM | SOCK_NONBLOCK;
    *address = (struct sockaddr_in){ .sin_family = AF_INET };
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, type, 0);
    if (bind(listener, (struct sockaddr *)address, bytes) < 0 || listen(listener, 1024) < 0 ||
        getsockname(listener, (struct sockaddr *)address, &bytes) < 0 || pipe(ends) < 0)
        fail("herd: listen");
}

int main(int argc, char **argv)
{
    struct sockaddr_in address;
    unsigned counts[4] = { 0 }; /* PROCESSES THREADS CONNECTIONS AT_ONCE */
    for (int i = 0; argc == 6 && i < 4; i++)
        counts[i] = (unsigned)atoi(argv[i + 2]);
    while (argc == 6 && way < ACCEPT && strcmp(ways[way], argv[1]) != 0)
        way++;
    processes = counts[0];
    threads = counts[1];
    if (argc != 6 || strcmp(ways[way], argv[1]) != 0 || processes == 0 || threads == 0 ||
        processes * threads > MOST || counts[3] == 0 || counts[3] > AT_ONCE_MOST ||
        counts[2] < counts[3]) {
        fprintf(
            stderr,
            "usage: herd poll|pipe|select|epoll|accept PROCESSES THREADS CONNECTIONS AT_ONCE\n");
        return 2;
    }
    served = mmap(NULL, MOST * sizeof *served, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                  -1, 0);
    double *us = calloc(counts[2] + counts[3], sizeof *us);
    if (served == MAP_FAILED || !us)
        fail("herd: memory");
    listen_at(&address);
    for (unsigned i = 0; i < processes; i++) {
        pid_t pid = fork();
        if (pid == 0)
            serve_all(i);
        if (pid < 0)
            fail("herd: fork");
        for (unsigned j = 0; j < threads; j++)
            until_waits(pid, &served[i * threads + j].tid);
    }
    unsigned done = 0;
    while (done < counts[2]) {
        unsigned more = counts[2] - done < counts[3] ? counts[2] - done : counts[3];
        ask(&address, more, 'c', us + done);
        done += more;
    }
    for (unsigned i = 0; i < processes * threads; i++)
        ask(&address, 1, 'q', us + done);
    while (wait(NULL) > 0) {
    }
    tell(counts[2], us);
    return 0;
}
