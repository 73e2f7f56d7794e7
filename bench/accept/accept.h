/* SPDX-License-Identifier: MIT */
/*
 * accept.h - acceptherd: processes with threads that accept from one port, and what they note of it.
 *
 * The measuring thread connects, in bursts; forked servers accept and hang up. A connection's start stands by
 * its port in memory that all share, so that whoever accepts it can tell how long it took.
 */
#ifndef BENCH_ACCEPT_H
#define BENCH_ACCEPT_H

#include "impl.h"

#include <netinet/in.h>

#define ACCEPT_CLASSES 512u /* of latency: eight an octave */
#define ACCEPT_PROMOTE_NS 100000000u

struct accept_thread {
    _Alignas(64) _Atomic uint64_t taken; /* connections */
    _Atomic uint64_t since_ns;           /* waits since; 0: does not wait */
    _Atomic uint64_t worst_ns;           /* longest wait that has ended */
    _Atomic uint64_t wasted;             /* woken, and nothing was there */
};

struct accept_shared {
    _Atomic uint32_t served;   /* connections of all; futex */
    _Atomic uint32_t target;   /* wake the client when so many are served */
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
    uint64_t switches; /* voluntary ones of the servers when the samples began */
    uint64_t end_ns;
};

/* In a server, forked: runs for ever. */
_Noreturn void accept_serve(struct bench_run *run, unsigned server);

/* A listener for the address; 0 or -errno. is_listening: else it only keeps the port. */
int accept_listen(struct accept_state *s, const struct bench_options *o, bool is_listening);

/* A connection was taken by t. */
void accept_note(struct accept_state *s, struct accept_thread *t, const struct sockaddr_in *peer);

/* Kernel threads in a queue of priorities; t is the index-th of its server. */
void accept_in_queue(struct accept_state *s, struct accept_thread *t, unsigned index);
int accept_queue_start(const struct bench_run *run, struct accept_state *s);

void accept_report(struct bench_run *run);

static inline void accept_begin_wait(struct accept_thread *t)
{
    atomic_store_explicit(&t->since_ns, bench_now_ns(), memory_order_relaxed);
}

#endif
