/* SPDX-License-Identifier: MIT */
/*
 * accept.h - acceptherd: processes with threads that accept from one port, and the figures they record.
 *
 * The measuring thread connects in bursts. Forked servers accept and hang up. Shared memory holds each
 * connection's start time, indexed by client port, so that the accepting thread can compute the latency.
 */
#ifndef BENCH_ACCEPT_H
#define BENCH_ACCEPT_H

#include "impl.h"

#include <netinet/in.h>

#define ACCEPT_CLASSES 512u /* classes of latency, eight per doubling */
#define ACCEPT_PROMOTE_NS 100000000u

struct accept_thread {
    _Alignas(64) _Atomic uint64_t taken; /* connections */
    _Atomic uint64_t since_ns;           /* start of the current wait; 0: not waiting */
    _Atomic uint64_t worst_ns;           /* longest wait that has ended */
    _Atomic uint64_t wasted;             /* wake-ups that found no connection */
};

struct accept_shared {
    _Atomic uint32_t served;   /* connections of all servers; a futex */
    _Atomic uint32_t target;   /* the client is woken when served reaches this */
    _Atomic uint32_t ready;    /* threads that are about to accept */
    _Atomic uint64_t begin_ns; /* waits are counted from here */
    _Atomic uint64_t start_ns[65536];
    _Atomic uint64_t late[ACCEPT_CLASSES];
    _Atomic uint64_t worst_late_ns;
    struct accept_thread threads[];
};

struct accept_state {
    struct accept_shared *shared;
    size_t shared_bytes;
    int listener;
    struct sockaddr_in address;
    unsigned servers;
    int pids[BENCH_SERVERS_MOST];
    unsigned next_port;
    uint64_t switches; /* voluntary switches of the servers when the samples began */
    uint64_t end_ns;
};

/* Run a forked server. Never returns. */
_Noreturn void accept_serve(struct bench_run *run, unsigned server);

/* Create a listener for the address. Without is_listening, only reserve the port. Returns 0 or -errno. */
int accept_listen(struct accept_state *s, const struct bench_options *o, bool is_listening);

/* Record that t accepted a connection. */
void accept_note(struct accept_state *s, struct accept_thread *t, const struct sockaddr_in *peer);

/* Accept through a priority queue of kernel threads. t is thread number index of its server. */
void accept_in_queue(struct accept_state *s, struct accept_thread *t, unsigned index);
int accept_queue_start(const struct bench_run *run, struct accept_state *s);

void accept_report(struct bench_run *run);

static inline void accept_begin_wait(struct accept_thread *t)
{
    atomic_store_explicit(&t->since_ns, bench_now_ns(), memory_order_relaxed);
}

#endif
