/* SPDX-License-Identifier: MIT */
/*
 * pipe.c - libMicro's pipe: bytes through a channel and back, to the thread itself or by way of a partner.
 *
 * A member's descriptors are in and out, and the partner's in and out. A partner thread is of the member's kind, and
 * ends when the member shuts its side. A partner process is forked before any thread exists. It is killed at
 * the end, and dies with the run.
 */
#include "micro/micro.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum { IN, OUT, PARTNER_IN, PARTNER_OUT };

/* m->bytes: this, and after it the bytes to write, those read, and the partner thread's. */
struct state {
    struct micro_member *member;
    struct bench_thread partner;
    bool has_partner;
    unsigned char buffers[];
};

static struct state *state_of(const struct micro_member *m)
{
    return (struct state *)(void *)m->bytes;
}

static size_t size_of(const struct micro_member *m)
{
    return m->micro->run->options.bytes;
}

/* Returns 0, a negative error, or 1 at the end of the stream. */
static int read_all(const struct micro_member *m, int fd, unsigned char *buffer, size_t bytes)
{
    for (size_t got = 0; got < bytes;) {
        const long n = micro_read(m, fd, buffer + got, bytes - got);
        if (n <= 0)
            return n < 0 ? (int)n : 1;
        got += (size_t)n;
    }
    return 0;
}

static int write_all(const struct micro_member *m, int fd, const unsigned char *buffer,
                     size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        const long n = micro_write(m, fd, buffer + done, bytes - done);
        if (n < 0)
            return (int)n;
        done += (size_t)n;
    }
    return 0;
}

static int make_tcp(int fds[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof address;
    const int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int error = 0;

    fds[0] = fds[1] = -1;
    if (listener < 0)
        return -errno;
    if (bind(listener, (struct sockaddr *)&address, length) < 0 || listen(listener, 1) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) < 0 ||
        (fds[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0 ||
        connect(fds[0], (struct sockaddr *)&address, length) < 0 ||
        (fds[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC)) < 0)
        error = -errno;
    for (unsigned i = 0; i < 2 && error == 0; i++)
        setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(listener);
    if (error && fds[0] >= 0)
        close(fds[0]);
    return error;
}

/* The sockets are used in both directions, so each has two descriptors: every descriptor is closed once. */
static int make_channel(struct micro_member *m)
{
    const struct bench_options *o = &m->micro->run->options;
    int *fd = m->fd, pair[2], error;

    if (o->transport == BENCH_TRANSPORT_PIPE) {
        const bool is_alone = o->mode == BENCH_MODE_ST;
        if (pipe2(pair, O_CLOEXEC) < 0)
            return micro_fail(m, -errno, "making a pipe");
        fd[IN] = pair[0];
        fd[is_alone ? OUT : PARTNER_OUT] = pair[1];
        if (is_alone)
            return 0;
        if (pipe2(pair, O_CLOEXEC) < 0)
            return micro_fail(m, -errno, "making a pipe");
        fd[PARTNER_IN] = pair[0];
        fd[OUT] = pair[1];
        return 0;
    }
    if (o->transport == BENCH_TRANSPORT_TCP)
        error = make_tcp(pair);
    else
        error = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0 ? -errno : 0;
    if (error)
        return micro_fail(m, error, "making sockets");
    fd[IN] = pair[0];
    if (o->mode == BENCH_MODE_ST) {
        fd[OUT] = pair[1];
        return 0;
    }
    fd[PARTNER_IN] = pair[1];
    fd[OUT] = fcntl(pair[0], F_DUPFD_CLOEXEC, 0);
    fd[PARTNER_OUT] = fcntl(pair[1], F_DUPFD_CLOEXEC, 0);
    return fd[OUT] < 0 || fd[PARTNER_OUT] < 0 ? micro_fail(m, -errno, "making sockets") : 0;
}

/* Write back all that comes, until the end of the stream. The member finds out about errors. */
static void write_back(const struct micro_member *m, unsigned char *buffer)
{
    while (read_all(m, m->fd[PARTNER_IN], buffer, size_of(m)) == 0)
        if (write_all(m, m->fd[PARTNER_OUT], buffer, size_of(m)) != 0)
            return;
}

static void *partner_main(void *arg)
{
    struct state *state = arg;
    const struct micro_member *m = state->member;
    write_back(m, state->buffers + 2 * size_of(m));
    return NULL;
}

/*
 * The partner process. m is a copy from before the fork: the members are in shared memory, and change. It has only
 * its own two descriptors, so that each side notices the other's end.
 */
_Noreturn static void serve(const struct micro_member *m)
{
    unsigned char *buffer = malloc(size_of(m));
    const int in = m->fd[PARTNER_IN], out = m->fd[PARTNER_OUT];

    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != m->micro->parent || !buffer)
        _exit(1);
    for (unsigned i = 0; i < m->micro->members; i++)
        for (unsigned at = 0; at < 4; at++) {
            const int fd = m->micro->member[i].fd[at];
            if (fd >= 0 && fd != in && fd != out)
                close(fd);
        }
    write_back(m, buffer);
    _exit(0);
}

static int fork_partner(struct micro_member *m)
{
    struct micro_member own = *m;
    own.user = false; /* the partner has no workers */
    const pid_t pid = fork();
    if (pid < 0)
        return micro_fail(m, -errno, "forking a partner");
    if (pid == 0)
        serve(&own);
    ((pid_t *)m->micro->own)[m->index] = pid;
    for (unsigned at = PARTNER_IN; at <= PARTNER_OUT; at++) {
        close(m->fd[at]);
        m->fd[at] = -1;
    }
    return 0;
}

static int share(struct micro *micro)
{
    int error = 0;

    signal(SIGPIPE, SIG_IGN); /* a partner that has died is an error of the write */
    if (micro->run->options.mode != BENCH_MODE_MP)
        return 0;
    micro->own_bytes = micro->members * sizeof(pid_t);
    micro->own = micro_map(micro->own_bytes);
    if (!micro->own)
        return -ENOMEM;
    for (unsigned i = 0; i < micro->members && error == 0; i++) {
        error = make_channel(&micro->member[i]);
        if (error == 0)
            error = fork_partner(&micro->member[i]);
    }
    return error;
}

static void unshare_partners(const struct micro *micro)
{
    const pid_t *pids = micro->own;

    for (unsigned i = 0; pids && i < micro->members && getpid() == micro->parent; i++)
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
}

static int enter(struct micro_member *m)
{
    const enum bench_mode mode = m->micro->run->options.mode;
    int error = micro_allocate(m, sizeof(struct state) + 3 * size_of(m));

    if (error == 0 && mode != BENCH_MODE_MP)
        error = make_channel(m);
    if (error || mode != BENCH_MODE_MT)
        return error;
    struct state *state = state_of(m);
    state->member = m;
    error = bench_thread_create(m->micro->run, &state->partner, partner_main, state);
    state->has_partner = error == 0;
    return error ? micro_fail(m, error, "creating a partner") : 0;
}

static void leave(struct micro_member *m)
{
    if (m->bytes && state_of(m)->has_partner) {
        shutdown(m->fd[OUT], SHUT_WR); /* of a socket; a pipe ends by the close */
        micro_close(m, m->fd[OUT]);
        m->fd[OUT] = -1;
        bench_thread_join(&state_of(m)->partner);
    }
    micro_leave_files(m);
}

static inline int pipe_call(struct micro_member *m, unsigned i)
{
    const size_t bytes = size_of(m);
    unsigned char *out = state_of(m)->buffers, *in = out + bytes;

    (void)i;
    out[0] = out[bytes - 1] = (unsigned char)++m->last;
    int error = write_all(m, m->fd[OUT], out, bytes);
    if (error)
        return micro_fail(m, error, "write");
    error = read_all(m, m->fd[IN], in, bytes);
    if (error)
        return micro_fail(m, error < 0 ? error : -EPIPE, "read");
    return micro_check(m, in[0] == out[0] && in[bytes - 1] == out[0], 0, "comparing what came");
}
MICRO_LOOP(pipe)

static const struct micro_kind pipe_kind = {
    .share = share,
    .enter = enter,
    .loop = pipe_loop,
    .leave = leave,
    .unshare = unshare_partners,
};
const struct bench_case BENCH_NAME(case_pipe) = {
    MICRO_CASE("pipe", "write --bytes and read them, alone or from a partner", 1),
    .micro = &pipe_kind,
};
