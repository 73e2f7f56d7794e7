/* SPDX-License-Identifier: MIT */
/*
 * calls.c - the cases of libMicro whose operation is one call, or a call and its counterpart.
 *
 * Each checks every result. User threads use rouse's calls where it has one, kernel threads the C library's.
 */
#include "micro/micro.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#define BATCH 64u

/* Of each case: its operation, its loop, its description. */
#define CASE(id, text, ...) \
    static const struct micro_kind id##_kind = { .loop = id##_loop, __VA_ARGS__ }; \
    const struct bench_case BENCH_NAME(case_##id) = { MICRO_CASE(#id, text, 1), \
                                                      .micro = &id##_kind }

/* getpid, gettimeofday, clock_gettime */

static int getpid_enter(struct micro_member *m)
{
    char text[32] = "";
    if (readlink("/proc/self", text, sizeof text - 1) < 0)
        return micro_fail(m, -errno, "reading /proc/self");
    m->last = strtoul(text, NULL, 10);
    return 0;
}

static inline int getpid_call(struct micro_member *m, unsigned i)
{
    (void)i;
    return micro_check(m, getpid() == (pid_t)m->last, 0, "getpid");
}
MICRO_LOOP(getpid)
CASE(getpid, "getpid(2)", .enter = getpid_enter);

static inline int gettimeofday_call(struct micro_member *m, unsigned i)
{
    struct timeval now = { .tv_usec = -1 };
    (void)i;
    const int status = gettimeofday(&now, NULL);
    return micro_check(m, status == 0 && now.tv_usec >= 0 && now.tv_usec < 1000000, 0,
                       "gettimeofday");
}
MICRO_LOOP(gettimeofday)
CASE(gettimeofday, "gettimeofday(2)", );

static inline int clock_gettime_call(struct micro_member *m, unsigned i)
{
    struct timespec now = { 0 };
    (void)i;
    const int status = clock_gettime(CLOCK_MONOTONIC, &now);
    const uint64_t now_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    const bool right = status == 0 && now_ns >= m->last;
    m->last = now_ns;
    return micro_check(m, right, 0, "clock_gettime, which must not go back,");
}
MICRO_LOOP(clock_gettime)
CASE(clock_gettime, "clock_gettime(2) of CLOCK_MONOTONIC", );

/* read, write */

static int open_device(struct micro_member *m, const char *path, int flags)
{
    m->fd[0] = open(path, flags | O_CLOEXEC);
    if (m->fd[0] < 0)
        return micro_fail(m, -errno, path);
    return micro_allocate(m, m->micro->run->options.bytes);
}

static int read_enter(struct micro_member *m)
{
    return open_device(m, "/dev/zero", O_RDONLY);
}

static inline int read_call(struct micro_member *m, unsigned i)
{
    const size_t bytes = m->micro->run->options.bytes;
    (void)i;
    m->bytes[0] = m->bytes[bytes - 1] = 1;
    const long n = micro_read(m, m->fd[0], m->bytes, bytes);
    return micro_check(m, n == (long)bytes && m->bytes[0] == 0 && m->bytes[bytes - 1] == 0, n,
                       "read");
}
MICRO_LOOP(read)
CASE(read, "read(2) of --bytes from /dev/zero", .enter = read_enter, .leave = micro_leave_files);

static int write_enter(struct micro_member *m)
{
    return open_device(m, "/dev/null", O_WRONLY);
}

static inline int write_call(struct micro_member *m, unsigned i)
{
    const size_t bytes = m->micro->run->options.bytes;
    (void)i;
    const long n = micro_write(m, m->fd[0], m->bytes, bytes);
    return micro_check(m, n == (long)bytes, n, "write");
}
MICRO_LOOP(write)
CASE(write, "write(2) of --bytes to /dev/null", .enter = write_enter, .leave = micro_leave_files);

/* poll, select: on socket pairs that all members share, as in libMicro */

static void unshare_fds(const struct micro *micro)
{
    const int *fds = micro->own;
    for (unsigned i = 0; fds && i < micro->run->options.fds; i++)
        if (fds[i] > 0)
            close(fds[i]);
}

/* The first --ready descriptors are readable. */
static int share_fds(struct micro *micro)
{
    const unsigned count = micro->run->options.fds;

    micro->own_bytes = count * sizeof(int);
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own)
        return -ENOMEM;
    int *fds = micro->own;
    for (unsigned i = 0; i < count; i += 2) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds + i) < 0)
            return bench_fail(micro->run, -errno, "making --fds descriptors");
        if (fds[i + 1] >= FD_SETSIZE)
            return bench_fail(micro->run, -EMFILE, "making --fds descriptors that select takes");
    }
    for (unsigned i = 0; i < micro->run->options.ready; i++)
        if (write(fds[i ^ 1], "", 1) != 1)
            return bench_fail(micro->run, -errno, "making --ready descriptors readable");
    return 0;
}

static int poll_enter(struct micro_member *m)
{
    const unsigned count = m->micro->run->options.fds;
    const int *fds = m->micro->own;
    const int error = micro_allocate(m, count * sizeof(struct pollfd));
    struct pollfd *polled = (struct pollfd *)(void *)m->bytes;

    for (unsigned i = 0; i < count && error == 0; i++)
        polled[i] = (struct pollfd){ .fd = fds[i], .events = POLLIN };
    return error;
}

static inline int poll_call(struct micro_member *m, unsigned i)
{
    struct pollfd *polled = (struct pollfd *)(void *)m->bytes;
    const unsigned count = m->micro->run->options.fds, ready = m->micro->run->options.ready;
    int n;

    (void)i;
    if (m->user)
        n = rouse_poll(polled, count, 0);
    else if ((n = poll(polled, count, 0)) < 0)
        n = -errno;
    return micro_check(m, n == (int)ready && (ready == 0 || polled[ready - 1].revents == POLLIN), n,
                       "poll");
}
MICRO_LOOP(poll)
CASE(poll, "poll(2) of --fds descriptors, which does not wait", .share = share_fds,
     .enter = poll_enter, .leave = micro_leave_files, .unshare = unshare_fds);

static int select_enter(struct micro_member *m)
{
    const int *fds = m->micro->own;
    const int error = micro_allocate(m, 2 * sizeof(fd_set));
    fd_set *all = (fd_set *)(void *)m->bytes;

    for (unsigned i = 0; i < m->micro->run->options.fds && error == 0; i++) {
        FD_SET(fds[i], all);
        if ((uint64_t)fds[i] >= m->last)
            m->last = (uint64_t)fds[i] + 1;
    }
    return error;
}

static inline int select_call(struct micro_member *m, unsigned i)
{
    fd_set *all = (fd_set *)(void *)m->bytes, *asked = all + 1;
    const unsigned ready = m->micro->run->options.ready;
    struct timeval at_once = { 0 };
    int n;

    (void)i;
    *asked = *all;
    if (m->user)
        n = rouse_select((int)m->last, asked, NULL, NULL, &at_once);
    else if ((n = select((int)m->last, asked, NULL, NULL, &at_once)) < 0)
        n = -errno;
    const int *fds = m->micro->own;
    return micro_check(m, n == (int)ready && (ready == 0 || FD_ISSET(fds[ready - 1], asked)), n,
                       "select");
}
MICRO_LOOP(select)
CASE(select, "select(2) of --fds descriptors, which does not wait", .share = share_fds,
     .enter = select_enter, .leave = micro_leave_files, .unshare = unshare_fds);

/* socketpair, connection, close_tcp */

struct pairs {
    int fd[BATCH][2];
    struct sockaddr_in peer[BATCH];
};

static struct pairs *pairs_of(const struct micro_member *m)
{
    return (struct pairs *)(void *)m->bytes;
}

static int pairs_enter(struct micro_member *m)
{
    return micro_allocate(m, sizeof(struct pairs));
}

/* An operation's two descriptors carry a byte, and are closed. Not measured. */
static int pairs_after(struct micro_member *m)
{
    struct pairs *pairs = pairs_of(m);
    int error = 0;

    for (unsigned i = 0; i < m->made; i++) {
        const unsigned char sent = (unsigned char)(i + 1);
        unsigned char got = 0;
        if (error == 0)
            error = micro_check(m,
                                micro_write(m, pairs->fd[i][0], &sent, 1) == 1 &&
                                    micro_read(m, pairs->fd[i][1], &got, 1) == 1 && got == sent,
                                0, "sending a byte");
        micro_close(m, pairs->fd[i][0]);
        micro_close(m, pairs->fd[i][1]);
    }
    m->made = 0;
    return error;
}

static inline int socketpair_call(struct micro_member *m, unsigned i)
{
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs_of(m)->fd[i]) < 0)
        return micro_check(m, false, -errno, "socketpair");
    m->made++;
    return 0;
}
MICRO_LOOP(socketpair)
CASE(socketpair, "socketpair(2)", .batch = BATCH, .enter = pairs_enter, .after = pairs_after,
     .leave = micro_leave_files);

/* fd[0] is the member's own listener. */
static int listen_enter(struct micro_member *m)
{
    const struct sockaddr_in loopback = { .sin_family = AF_INET,
                                          .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    const struct linger abort_at_once = { .l_onoff = 1 }; /* otherwise ports run out in TIME_WAIT */
    const int fd = m->fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)&loopback, sizeof loopback) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort_at_once, sizeof abort_at_once) < 0 ||
        listen(fd, BATCH) < 0)
        return micro_fail(m, -errno, "making a listener");
    return pairs_enter(m);
}

static int connect_one(const struct micro_member *m, int fd, const struct sockaddr_in *to)
{
    if (m->user)
        return rouse_connect(fd, (const struct sockaddr *)to, sizeof *to);
    return connect(fd, (const struct sockaddr *)to, sizeof *to) < 0 ? -errno : 0;
}

static int accept_one(const struct micro_member *m, struct sockaddr_in *peer)
{
    socklen_t length = sizeof *peer;
    if (m->user)
        return rouse_accept(m->fd[0], (struct sockaddr *)peer, &length);
    const int fd = accept4(m->fd[0], (struct sockaddr *)peer, &length, SOCK_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static inline int connection_call(struct micro_member *m, unsigned i)
{
    struct pairs *pairs = pairs_of(m);
    struct sockaddr_in listener;
    socklen_t length = sizeof listener;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0)
        return micro_check(m, false, -errno, "making a socket");
    getsockname(m->fd[0], (struct sockaddr *)&listener, &length);
    const int error = connect_one(m, fd, &listener);
    const int accepted = error ? error : accept_one(m, &pairs->peer[i]);
    if (accepted < 0) {
        micro_close(m, fd);
        return micro_check(m, false, accepted, error ? "connect" : "accept");
    }
    pairs->fd[i][0] = fd;
    pairs->fd[i][1] = accepted;
    m->made++;
    return 0;
}
MICRO_LOOP(connection)

/* Each accepted connection must be that of the socket beside it. */
static int connection_after(struct micro_member *m)
{
    const struct linger abort_at_once = { .l_onoff = 1 };
    struct pairs *pairs = pairs_of(m);
    int error = 0;

    for (unsigned i = 0; i < m->made; i++) {
        struct sockaddr_in own = { 0 };
        socklen_t length = sizeof own;
        getsockname(pairs->fd[i][0], (struct sockaddr *)&own, &length);
        if (error == 0)
            error = micro_check(m, own.sin_port == pairs->peer[i].sin_port, 0, "comparing ports");
        setsockopt(pairs->fd[i][0], SOL_SOCKET, SO_LINGER, &abort_at_once, sizeof abort_at_once);
    }
    const int undone = pairs_after(m);
    return error ? error : undone;
}
CASE(connection, "make a TCP connection: socket(2), connect(2) and accept(2)", .batch = BATCH,
     .enter = listen_enter, .after = connection_after, .leave = micro_leave_files);

static int close_tcp_before(struct micro_member *m, unsigned count)
{
    return connection_loop(m, count);
}

static inline int close_tcp_call(struct micro_member *m, unsigned i)
{
    const int error = micro_close(m, pairs_of(m)->fd[i][0]);
    if (error)
        return micro_fail(m, error, "close");
    pairs_of(m)->fd[i][0] = -1;
    return 0;
}
MICRO_LOOP(close_tcp)

/* The other end must see the end of the stream. It then resets the connection, which leaves no TIME_WAIT. */
static int close_tcp_after(struct micro_member *m)
{
    struct pairs *pairs = pairs_of(m);
    int error = 0;

    for (unsigned i = 0; i < m->made; i++) {
        unsigned char got;
        if (error == 0 && pairs->fd[i][0] < 0) {
            const long n = micro_read(m, pairs->fd[i][1], &got, 1);
            error = micro_check(m, n == 0, n, "reading the end of a closed connection");
        }
        micro_close(m, pairs->fd[i][0]);
        micro_close(m, pairs->fd[i][1]);
    }
    m->made = 0;
    return error;
}
CASE(close_tcp, "close(2) of a TCP connection", .batch = BATCH, .enter = listen_enter,
     .before = close_tcp_before, .after = close_tcp_after, .leave = micro_leave_files);

/* pthread_create */

struct threads {
    pthread_attr_t attr;
    union {
        pthread_t kernel;
        struct rouse_thread *user;
    } thread[BATCH];
};

static struct threads *threads_of(const struct micro_member *m)
{
    return (struct threads *)(void *)m->bytes;
}

static int threads_enter(struct micro_member *m)
{
    const int error = micro_allocate(m, sizeof(struct threads));
    if (error)
        return error;
    pthread_attr_init(&threads_of(m)->attr);
    pthread_attr_setstacksize(&threads_of(m)->attr, BENCH_STACK_BYTES);
    return 0;
}

static void *return_argument(void *arg)
{
    return arg;
}

static inline int pthread_create_call(struct micro_member *m, unsigned i)
{
    const struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER,
                                            .stack_bytes = BENCH_STACK_BYTES };
    struct threads *threads = threads_of(m);
    void *arg = &threads->thread[i];
    const int error =
        m->user ? rouse_thread_create(&threads->thread[i].user, &attr, return_argument, arg)
                : -pthread_create(&threads->thread[i].kernel, &threads->attr, return_argument, arg);

    if (error)
        return micro_check(m, false, error, "creating a thread");
    m->made++;
    return 0;
}
MICRO_LOOP(pthread_create)

static int pthread_create_after(struct micro_member *m)
{
    struct threads *threads = threads_of(m);
    int error = 0;

    for (unsigned i = 0; i < m->made; i++) {
        void *result = NULL;
        if (m->user)
            rouse_thread_join(threads->thread[i].user, &result);
        else
            pthread_join(threads->thread[i].kernel, &result);
        if (error == 0)
            error = micro_check(m, result == &threads->thread[i], 0, "joining a thread");
    }
    m->made = 0;
    return error;
}
CASE(pthread_create, "create a thread; it is joined outside of the measurement", .batch = BATCH,
     .enter = threads_enter, .after = pthread_create_after, .leave = micro_leave_files);

/* fork, exec, system */

static const char *only_kernel(const struct bench_options *o, unsigned threads)
{
    (void)threads;
    return o->kind->user
               ? "a fork copies only the worker that calls it, and the wait for the child "
                 "would hold up that worker's other threads"
               : NULL;
}

/* The children of a batch. */
static pid_t *pids_of(const struct micro_member *m)
{
    return (pid_t *)(void *)m->bytes;
}

static int pids_enter(struct micro_member *m)
{
    return micro_allocate(m, BATCH * sizeof(pid_t));
}

static inline int fork_call(struct micro_member *m, unsigned i)
{
    const pid_t pid = fork();
    if (pid == 0)
        _exit((int)i);
    if (pid < 0)
        return micro_check(m, false, -errno, "fork");
    pids_of(m)[i] = pid;
    m->made++;
    return 0;
}
MICRO_LOOP(fork)

static int reap(const struct micro_member *m, pid_t pid, int status, const char *what)
{
    int got = -1;
    pid_t reaped;
    while ((reaped = waitpid(pid, &got, 0)) < 0 && errno == EINTR)
        ;
    return micro_check(m, reaped == pid && WIFEXITED(got) && WEXITSTATUS(got) == status, 0, what);
}

static int fork_after(struct micro_member *m)
{
    int error = 0;
    for (unsigned i = 0; i < m->made; i++) {
        const int undone = reap(m, pids_of(m)[i], (int)i, "the end of a forked process");
        error = error ? error : undone;
    }
    m->made = 0;
    return error;
}

static inline int exec_call(struct micro_member *m, unsigned i)
{
    (void)i;
    const pid_t pid = fork();
    if (pid == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(127);
    }
    return pid < 0 ? micro_check(m, false, -errno, "fork") : reap(m, pid, 0, "executing /bin/true");
}
MICRO_LOOP(exec)

static inline int system_call(struct micro_member *m, unsigned i)
{
    (void)i;
    const int status = system("A=$$"); /* NOLINT(cert-env33-c): what the case measures */
    return micro_check(m, status == 0, status < 0 ? -errno : 0, "system(\"A=$$\")");
}
MICRO_LOOP(system)

#define KERNEL_CASE(id, text, ...) \
    static const struct micro_kind id##_kind = { .loop = id##_loop, __VA_ARGS__ }; \
    const struct bench_case BENCH_NAME(case_##id) = { MICRO_CASE(#id, text, 1), \
                                                      .micro = &id##_kind, .excuse = only_kernel }
KERNEL_CASE(fork, "fork(2); the child is awaited outside of the measurement", .batch = 16,
            .enter = pids_enter, .after = fork_after, .leave = micro_leave_files);
KERNEL_CASE(exec, "fork(2), execve(2) of /bin/true, and waitpid(2)", );
KERNEL_CASE(system, "system(3) of A=$$, which ends a shell", );

/* semop: each member has a semaphore of one set */

static const struct micro *semaphores; /* for remove_semaphores */

static void unshare_semaphores(const struct micro *micro)
{
    if (micro->own) /* the bare call is safe in a handler of a signal */
        raw6(SYS_semctl, *(const int *)micro->own, 0, IPC_RMID, 0, 0, 0);
}

/* A set of semaphores outlives its processes. */
static void remove_semaphores(int number)
{
    unshare_semaphores(semaphores);
    signal(number, SIG_DFL);
    raise(number);
}

static int share_semaphores(struct micro *micro)
{
    static const int ends[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    const int id = semget(IPC_PRIVATE, (int)micro->members, 0600);

    if (id < 0)
        return bench_fail(micro->run, -errno, "making semaphores");
    micro->own_bytes = sizeof id;
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own) {
        semctl(id, 0, IPC_RMID);
        return -ENOMEM;
    }
    *(int *)micro->own = id;
    semaphores = micro;
    for (unsigned i = 0; i < sizeof ends / sizeof *ends; i++)
        signal(ends[i], remove_semaphores);
    for (unsigned i = 0; i < micro->members; i++)
        if (semctl(id, (int)i, SETVAL, 1) < 0)
            return bench_fail(micro->run, -errno, "setting a semaphore");
    return 0;
}

static inline int semop_call(struct micro_member *m, unsigned i)
{
    const int id = *(const int *)m->micro->own;
    struct sembuf take = { .sem_num = (unsigned short)m->index, .sem_op = -1 };
    struct sembuf give = { .sem_num = (unsigned short)m->index, .sem_op = 1 };

    (void)i;
    if (semop(id, &take, 1) < 0 || semop(id, &give, 1) < 0)
        return micro_check(m, false, -errno, "semop");
    return 0;
}
MICRO_LOOP(semop)

static void semop_leave(struct micro_member *m)
{
    const int value = semctl(*(const int *)m->micro->own, (int)m->index, GETVAL);
    if (value != 1)
        micro_fail(m, -EPROTO, "counting a semaphore's units");
}
CASE(semop, "semop(2) that takes a unit, and one that gives it back", .share = share_semaphores,
     .leave = semop_leave, .unshare = unshare_semaphores);

/* sched_yield, nanosleep, clock_nanosleep */

static inline int sched_yield_call(struct micro_member *m, unsigned i)
{
    (void)i;
    if (m->user) {
        rouse_thread_yield();
        return 0;
    }
    return micro_check(m, sched_yield() == 0, 0, "sched_yield");
}
MICRO_LOOP(sched_yield)
CASE(sched_yield, "sched_yield(2), or a user thread's yield", );

static struct timespec timespec_of(uint64_t ns)
{
    return (struct timespec){ .tv_sec = (time_t)(ns / 1000000000u),
                              .tv_nsec = (long)(ns % 1000000000u) };
}

static int sleep_for(const struct micro_member *m, uint64_t ns)
{
    const struct timespec time = timespec_of(ns);
    if (m->user)
        return rouse_sleep(ns);
    return nanosleep(&time, NULL) < 0 ? -errno : 0;
}

static int sleep_until(const struct micro_member *m, uint64_t deadline_ns)
{
    const struct timespec time = timespec_of(deadline_ns);
    if (m->user)
        return rouse_sleep_until(deadline_ns);
    return -clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

/* No sleep may end early. Each reads the clock before and after it, in about 50 ns. */
static inline int nanosleep_call(struct micro_member *m, unsigned i)
{
    const uint64_t due_ns = rouse_now_ns() + m->micro->run->options.sleep_ns;
    (void)i;
    const int error = sleep_for(m, m->micro->run->options.sleep_ns);
    return micro_check(m, error == 0 && rouse_now_ns() >= due_ns, error, "nanosleep");
}
MICRO_LOOP(nanosleep)
CASE(nanosleep, "nanosleep(2) of --sleep-us", );

static inline int clock_nanosleep_call(struct micro_member *m, unsigned i)
{
    const uint64_t due_ns = rouse_now_ns() + m->micro->run->options.sleep_ns;
    (void)i;
    const int error = sleep_until(m, due_ns);
    return micro_check(m, error == 0 && rouse_now_ns() >= due_ns, error, "clock_nanosleep");
}
MICRO_LOOP(clock_nanosleep)
CASE(clock_nanosleep, "clock_nanosleep(2) until a deadline --sleep-us ahead", );
