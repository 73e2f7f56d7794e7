/* SPDX-License-Identifier: MIT */
/*
 * uring_start_stop_test.c - rings take their descriptor numbers at a known time, and requests that
 * the kernel overlooked still end.
 */
#include "io_test.h"

#include "io/uring/ring.h"

#include <sys/resource.h>

static uint32_t workers_seen;

/* Wait until every worker has been seen with a ring. */
static void see_rings(void *arg, unsigned index)
{
    (void)arg, (void)index;
    uint32_t all = (1u << rouse_worker_count()) - 1;
    while (rsi_load_acquire(&workers_seen) != all) {
        CHECK(rsi_ring_self() != NULL);
        rsi_fetch_or_acq_rel(&workers_seen, 1u << rouse_worker_index());
        rouse_thread_yield();
    }
}

/*
 * The rings take their numbers when the program first uses a descriptor, and none later: the limit
 * leaves no number.
 */
static void rings_take_no_number_later(void **state)
{
    (void)state;
    static struct crew crew;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    EQUALS(strcmp(rouse_io_backend(NULL), "io_uring"), 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, limit.rlim_max }) == 0);
    for (unsigned i = 0; i < 4 * rouse_worker_count(); i++)
        (void)crew_add(&crew, CREW_USER, see_rings, NULL);
    crew_join(&crew);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static void *need_a_ring(void *unused)
{
    UNTIL(rsi_ring_self() != NULL); /* a worker may begin before the call that makes it returns */
    return unused;
}

/*
 * A cluster's workers have rings too, which take their numbers when the program creates the
 * cluster.
 */
static void a_cluster_has_rings(void **state)
{
    (void)state;
    struct rlimit limit;
    struct rouse_cluster_attr attr = ROUSE_CLUSTER_ATTR_INIT;
    struct rouse_thread_attr thread_attr = ROUSE_THREAD_ATTR_INIT;
    struct rouse_cluster *cluster;
    struct rouse_thread *t;
    attr.workers = 1;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    EQUALS(rouse_cluster_create(&cluster, &attr), 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 0, limit.rlim_max }) == 0);
    thread_attr.cluster = cluster;
    EQUALS(rouse_thread_create(&t, &thread_attr, need_a_ring, NULL), 0);
    EQUALS(rouse_thread_join(t, NULL), 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    EQUALS(rouse_cluster_destroy(cluster), 0);
}

#ifdef ROUSE_TEST /* otherwise the kernel does not overlook a request */
#define SENDERS 24

static int wires[SENDERS][2];
static uint32_t go;

/* All at once, so that rings make the sends. */
static void send_in_vain(void *arg, unsigned index)
{
    char bytes[1000] = { 0 };
    (void)arg;
    while (!rsi_load_acquire(&go))
        rouse_thread_yield();
    ssize_t sent;
    do {
        sent = rouse_send_until(wires[index][0], bytes, sizeof bytes, 0, rouse_now_ns() + 20 * MS);
    } while (sent > 0);
    EQUALS(sent, -ETIMEDOUT);
}

/* A cancel that the kernel overlooked is submitted again: a send ends at its deadline. */
static void an_overlooked_send_ends(void **state)
{
    (void)state;
    static struct crew crew;
    const uint32_t overlooked = 6;
    for (unsigned i = 0; i < SENDERS; i++) {
        wire_open(WIRE_TCP, wires[i]);
        set_buffers(wires[i][0], 4096);
        (void)crew_add(&crew, CREW_USER, send_in_vain, NULL);
    }
    rsi_store_seq_cst(&rsi_test_overlooked, overlooked);
    rsi_store_release(&go, 1u);
    crew_join(&crew);
    CHECK(rsi_load_seq_cst(&rsi_test_overlooked) < overlooked);
    rsi_store_seq_cst(&rsi_test_overlooked, 0u);
    rsi_store_relaxed(&go, 0u);
    for (unsigned i = 0; i < SENDERS; i++)
        wire_close(wires[i]);
}

static void read_until_closed(void *arg, unsigned index)
{
    char byte;
    (void)index;
    EQUALS(rouse_read(*(int *)arg, &byte, 1), 1); /* the kernel has the receive by then */
    rsi_store_release(&go, 1u);
    EQUALS(rouse_read(*(int *)arg, &byte, 1), -EBADF);
}

/*
 * The same for a receive that a ring has submitted ahead, so that the connection ends with its
 * number.
 */
static void an_overlooked_receive_ends(void **state)
{
    (void)state;
    static struct crew crew;
    int ends[2];
    char byte;
    wire_open(WIRE_TCP, ends);
    (void)crew_add(&crew, CREW_USER, read_until_closed, &ends[0]);
    UNTIL(is_awaited(ends[0], RSI_FD_READ));
    UNTIL((rsi_load_relaxed(&rsi_fdtable_peek(ends[0])->flags) & RSI_FD_IS_MULTISHOT) != 0);
    EQUALS(send(ends[1], "1", 1, 0), 1);
    UNTIL(rsi_load_acquire(&go) && is_awaited(ends[0], RSI_FD_READ));
    rsi_store_relaxed(&go, 0u);
    rsi_store_seq_cst(&rsi_test_overlooked, 2u);
    EQUALS(rouse_close(ends[0]), 0);
    crew_join(&crew);
    UNTIL(recv(ends[1], &byte, 1, MSG_DONTWAIT) == 0);
    EQUALS(rsi_load_seq_cst(&rsi_test_overlooked), 0);
    EQUALS(rouse_close(ends[1]), 0);
}

#endif

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rings_take_no_number_later), /* first: the back end is not chosen yet */
        cmocka_unit_test(a_cluster_has_rings),
#ifdef ROUSE_TEST
        cmocka_unit_test(an_overlooked_send_ends),
        cmocka_unit_test(an_overlooked_receive_ends),
#endif
    };
    CHECK(setenv("ROUSE_IO", "uring", 1) == 0);
    CHECK(setenv("ROUSE_SPARES", "0", 1) == 0); /* they have no rings */
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
