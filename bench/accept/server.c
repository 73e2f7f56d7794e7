/* SPDX-License-Identifier: MIT */
/* server.c - the accepting side of acceptherd: every way to wait for a connection. */
#include "accept.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

static unsigned class_of(uint64_t ns)
{
    if (ns < 16)
        return 0;
    const unsigned octave = 63u - (unsigned)__builtin_clzll(ns);
    const unsigned class = (octave - 4) * 8 + (unsigned)(ns >> (octave - 3) & 7);
    return class < ACCEPT_CLASSES ? class : ACCEPT_CLASSES - 1;
}

static void keep_most(_Atomic uint64_t *most, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(most, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(most, &seen, value)) {
    }
}

void accept_note(struct accept_state *s, struct accept_thread *t, const struct sockaddr_in *peer)
{
    struct accept_shared *shared = s->shared;
    const uint64_t now_ns = bench_now_ns();
    const uint64_t start_ns =
        atomic_load_explicit(&shared->start_ns[ntohs(peer->sin_port)], memory_order_relaxed);
    const uint64_t begin_ns = atomic_load_explicit(&shared->begin_ns, memory_order_relaxed);
    uint64_t since_ns = atomic_load_explicit(&t->since_ns, memory_order_relaxed);
    since_ns = since_ns > begin_ns ? since_ns : begin_ns;
    atomic_fetch_add_explicit(&shared->late[class_of(now_ns - start_ns)], 1, memory_order_relaxed);
    keep_most(&shared->worst_late_ns, now_ns - start_ns);
    keep_most(&t->worst_ns, now_ns - since_ns);
    atomic_store_explicit(&t->since_ns, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&t->taken, 1, memory_order_relaxed);
    if (atomic_fetch_add(&shared->served, 1) + 1 == atomic_load(&shared->target))
        raw6(SYS_futex, (long)&shared->served, FUTEX_WAKE, 1, 0, 0, 0);
}

int accept_listen(struct accept_state *s, const struct bench_options *o, bool is_listening)
{
    const int on = 1;
    const struct linger abort_at_once = { .l_onoff = 1 }; /* otherwise ports run out in TIME_WAIT */
    socklen_t length = sizeof s->address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    s->listener = fd;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort_at_once, sizeof abort_at_once);
    if (o->accept_share == BENCH_SHARE_REUSEPORT)
        setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)&s->address, length) < 0 ||
        (is_listening && listen(fd, 4096) < 0) ||
        getsockname(fd, (struct sockaddr *)&s->address, &length) < 0)
        return -errno;
    return 0;
}

/* Accept after a poll, and count spurious wake-ups. Returns a descriptor or -errno. */
static int accept_polled(struct accept_state *s, struct accept_thread *t, int epoll_fd,
                         struct sockaddr_in *peer)
{
    for (;;) {
        socklen_t length = sizeof *peer;
        struct pollfd one = { .fd = s->listener, .events = POLLIN };
        struct epoll_event event;
        const int ready = epoll_fd >= 0 ? epoll_wait(epoll_fd, &event, 1, -1) : poll(&one, 1, -1);
        const int fd = accept4(s->listener, (struct sockaddr *)peer, &length, SOCK_CLOEXEC);
        if (fd >= 0 || errno != EAGAIN)
            return fd >= 0 ? fd : -errno;
        if (ready > 0)
            atomic_fetch_add_explicit(&t->wasted, 1, memory_order_relaxed);
    }
}

static int make_exclusive_set(int listener)
{
    struct epoll_event event = { .events = EPOLLIN | EPOLLEXCLUSIVE };
    const int fd = epoll_create1(EPOLL_CLOEXEC);
    if (fd >= 0 && epoll_ctl(fd, EPOLL_CTL_ADD, listener, &event) < 0)
        return -1;
    return fd;
}

static int accept_rouse(const struct accept_state *s, struct sockaddr_in *peer)
{
    socklen_t length = sizeof *peer;
    return rouse_accept(s->listener, (struct sockaddr *)peer, &length);
}

static int accept_blocking(const struct accept_state *s, struct sockaddr_in *peer)
{
    socklen_t length = sizeof *peer;
    const int fd = accept4(s->listener, (struct sockaddr *)peer, &length, SOCK_CLOEXEC);
    return fd >= 0 ? fd : -errno;
}

struct place {
    struct bench_run *run;
    unsigned server, index;
};

static void *serve(void *arg)
{
    const struct place *place = arg;
    struct bench_run *run = place->run;
    struct accept_state *s = run->state;
    struct accept_thread *t = &s->shared->threads[place->server * run->threads + place->index];
    const enum bench_order order = run->options.accept_order;
    const bool is_exclusive = run->options.accept_share == BENCH_SHARE_EXCLUSIVE;
    const int set = !run->user && is_exclusive ? make_exclusive_set(s->listener) : -1;

    atomic_fetch_add(&s->shared->ready, 1);
    if (order == BENCH_ORDER_PRIORITISED || order == BENCH_ORDER_PROMOTED)
        accept_in_queue(s, t, place->index);
    for (;;) {
        struct sockaddr_in peer = { .sin_port = 0 };
        int fd;
        accept_begin_wait(t);
        if (run->user)
            fd = accept_rouse(s, &peer);
        else if (set >= 0 || order == BENCH_ORDER_POLL)
            fd = accept_polled(s, t, set, &peer);
        else
            fd = accept_blocking(s, &peer);
        if (fd < 0) {
            fprintf(stderr, "%s: accept: error %d\n", bench_program, -fd);
            _exit(1);
        }
        accept_note(s, t, &peer);
        if (run->user)
            rouse_close(fd);
        else
            close(fd);
    }
    return NULL;
}

static int set_up(struct bench_run *run)
{
    struct accept_state *s = run->state;
    const enum bench_order order = run->options.accept_order;
    int error = 0;
    if (run->options.accept_share == BENCH_SHARE_REUSEPORT)
        error = accept_listen(s, &run->options, true);
    if (error == 0 && run->user && run->options.accept_share == BENCH_SHARE_REUSEPORT &&
        order != BENCH_ORDER_PLAIN)
        error =
            rouse_listener_order(s->listener, (enum rouse_accept_order)(order - BENCH_ORDER_FIFO));
    if (error == 0 &&
        (order == BENCH_ORDER_POLL ||
         (!run->user && run->options.accept_share == BENCH_SHARE_EXCLUSIVE)) &&
        fcntl(s->listener, F_SETFL, O_NONBLOCK) < 0)
        error = -errno;
    if (error == 0 && (order == BENCH_ORDER_PRIORITISED || order == BENCH_ORDER_PROMOTED))
        error = accept_queue_start(run, s);
    return error;
}

_Noreturn void accept_serve(struct bench_run *run, unsigned server)
{
    static struct bench_thread threads[BENCH_HERD_MOST];
    static struct place places[BENCH_HERD_MOST];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int error = set_up(run);
    for (unsigned i = 0; i < run->threads && error == 0; i++) {
        places[i] = (struct place){ run, server, i };
        error = bench_thread_create(run, &threads[i], serve, &places[i]);
    }
    if (error < 0) {
        fprintf(stderr, "%s: acceptherd's server: error %d\n", bench_program, -error);
        _exit(1);
    }
    for (;;)
        pause();
}
