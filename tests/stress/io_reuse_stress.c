/* SPDX-License-Identifier: MIT */
/*
 * io_reuse_stress.c - descriptors are closed and their numbers given out again, all the time and
 * while other threads use them. A thread that waits for a closed number receives an error sooner or
 * later.
 *
 * Users call, mostly without a deadline, on whatever number a slot holds; openers replace the
 * slots' descriptors. The result of a call cannot be predicted here, but the call ends, at the
 * latest when every slot has been closed. A lost wake-up is a hang, which the watchdog reports. The
 * environment sets ROUSE_SEED (printed) and ROUSE_SCALE (rounds in percent). Runs with 1, 2 and 4
 * workers, or with ROUSE_WORKERS.
 */
#include "unit/io/io_test.h"

#define SLOTS 12
#define USERS 32
#define OPENERS 4

static struct {
    int fds[SLOTS]; /* -1: closed for good */
    uint32_t is_taken[SLOTS];
    uint32_t rounds, openers_left;
    uint32_t calls, closed;
} town;

static enum crew_kind some_kind(unsigned index)
{
    return index % 8 == 7 ? CREW_KERNEL : index % 8 == 6 ? CREW_FOREIGN : CREW_USER;
}

static ssize_t call_somehow(int fd, uint64_t *random)
{
    char bytes[512] = { 1 };
    uint64_t roll = rsi_random_next(random);
    uint64_t deadline_ns = roll % 4 ? ROUSE_FOREVER : rouse_now_ns() + roll / 4 % 300000;
    size_t count = 8 + roll / 64 % 500;
    switch (roll / 16 % 4) {
    case 0: return rouse_read_until(fd, bytes, count, deadline_ns);
    case 1: return rouse_recv_until(fd, bytes, count, 0, deadline_ns);
    case 2: return rouse_write_until(fd, bytes, count, deadline_ns);
    default: return rouse_send_until(fd, bytes, count, 0, deadline_ns);
    }
}

static void use(void *arg, unsigned index)
{
    uint64_t random = seed_of_run() * (2 * index + 1);
    (void)arg;
    for (;;) {
        int fd = rsi_load_acquire(&town.fds[rsi_random_next(&random) % SLOTS]);
        if (fd >= 0) {
            ssize_t result = call_somehow(fd, &random);
            rsi_fetch_add_relaxed(&town.calls, 1u);
            rsi_fetch_add_relaxed(&town.closed, result == -EBADF);
        } else if (rsi_load_acquire(&town.openers_left) == 0) {
            return;
        }
        rouse_thread_yield();
    }
}

/* Two slots hold the ends of a wire. */
static void replace(unsigned pair, uint64_t *random, bool is_last)
{
    static const struct linger reset = { .l_onoff = 1, .l_linger = 0 };
    static const enum wire wires[] = { WIRE_TCP, WIRE_UNIX, WIRE_SEQPACKET, WIRE_PIPE };
    int ends[2] = { -1, -1 };
    for (int i = 0; i < 2; i++) {
        int *slot = &town.fds[2 * pair + (unsigned)i];
        if (*slot < 0)
            continue;
        /*
         * Close most TCP connections with a reset. Otherwise each of their ports would stay in use
         * for a minute.
         */
        if (rsi_random_next(random) % 8 != 0)
            (void)setsockopt(*slot, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        EQUALS(rouse_close(*slot), 0);
    }
    if (!is_last)
        wire_open(wires[rsi_random_next(random) % LENGTH(wires)], ends);
    for (int i = 0; i < 2; i++)
        rsi_store_release(&town.fds[2 * pair + (unsigned)i], ends[i]);
}

static void open_and_close(void *arg, unsigned index)
{
    uint64_t random = seed_of_run() + 7 * index + 1;
    (void)arg;
    for (uint32_t round = 0; round < town.rounds; round++) {
        unsigned pair = (unsigned)(rsi_random_next(&random) % (SLOTS / 2));
        if (!rsi_guard_try(&town.is_taken[pair]))
            continue;
        replace(pair, &random, false);
        rsi_guard_unlock(&town.is_taken[pair]);
        (void)rouse_sleep(rsi_random_next(&random) % 100000);
    }
    if (rsi_fetch_add_acq_rel(&town.openers_left, -1u) == 1)
        for (unsigned pair = 0; pair < SLOTS / 2; pair++)
            replace(pair, &random, true);
}

static void every_waiter_is_notified(void **state)
{
    (void)state;
    static struct crew users, openers;
    const char *scale = getenv("ROUSE_SCALE");
    town.rounds = (uint32_t)(3000 * (scale ? strtoul(scale, NULL, 10) : 100) / 100 / SCALE) + 1;
    town.openers_left = OPENERS;
    make_epoll_set();
    memset(town.fds, -1, sizeof town.fds);
    for (unsigned i = 0; i < OPENERS; i++)
        (void)crew_add(&openers, some_kind(i * 2), open_and_close, NULL);
    for (unsigned i = 0; i < USERS; i++)
        (void)crew_add(&users, some_kind(i), use, NULL);
    crew_join(&openers);
    crew_join(&users);
    CHECK(!rsi_fdtable_has_waiters());
    printf("%u calls, %u of them ended by a close\n", town.calls, town.closed);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_waiter_is_notified) };
    signal(SIGPIPE, SIG_IGN); /* for the pipes */
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
