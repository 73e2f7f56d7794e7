/* SPDX-License-Identifier: MIT */
/*
 * park_storm.c - waits and everything that ends them at once: wakers, deadlines and cancels, from
 * user, kernel and foreign threads, against waiters of every kind.
 *
 * Every claim that succeeded must be one return of one wait with its result, no more and no less:
 * both sides keep counts, which are compared. Most waits can only be ended by a waker, so that a
 * lost wake-up is a hang, which the watchdog reports. The environment sets ROUSE_SEED and
 * ROUSE_SCALE (rounds in percent).
 */
#include "unit/core/core_test.h"

#include <pthread.h>

#define WAITERS 48
#define WAKERS 6
#define BATCH 8

/* The place where a waiter stands to be woken. */
struct slot {
    uint32_t guard;
    struct rouse_thread *thread; /* NULL: it does not wait */
    uint64_t ticket;
};

/* The counts of one side. The sums of both must be the same. */
struct book {
    uint64_t wakes, wake_sum, cancels;
};

struct player {
    uint64_t random;
    struct slot slot;
    struct book book;
    uint64_t timeouts, abandoned;
    struct rouse_thread *handle; /* for cancels; set before it waits */
    uint32_t is_done;
};

static struct player waiters[WAITERS], wakers[WAKERS];
static unsigned rounds;
static uint32_t done; /* waiters that need no more wake-ups */
static uint64_t serial;

static uint64_t draw(struct player *player, uint64_t below)
{
    return rsi_random_next(&player->random) % below;
}

static uint64_t some_deadline(struct player *player)
{
    switch (draw(player, 6)) {
    case 0: return 0;
    case 1: return rouse_now_ns() + draw(player, 50 * US);
    case 2: return rouse_now_ns() + 1000 * SECOND;
    default: return ROUSE_FOREVER;
    }
}

static void stand(struct slot *slot, struct rouse_thread *self, uint64_t ticket)
{
    rsi_guard_lock(&slot->guard);
    slot->thread = self;
    slot->ticket = ticket;
    rsi_guard_unlock(&slot->guard);
}

/* Results of wakers are positive. */
static void note_end(struct player *player, uint64_t deadline_ns, unsigned flags, int result)
{
    if (result > 0) {
        player->book.wakes++;
        player->book.wake_sum += (uint64_t)result;
    } else if (result == -ECANCELED) {
        CHECK(flags == RSI_PARK_CANCELLABLE);
        player->book.cancels++;
    } else {
        CHECK_EQUAL(result, -ETIMEDOUT);
        CHECK(rouse_now_ns() >= deadline_ns);
        player->timeouts++;
    }
}

static void wait_once(struct player *player, struct rouse_thread *self)
{
    uint64_t deadline_ns = some_deadline(player);
    unsigned flags = draw(player, 3) ? RSI_PARK_CANCELLABLE : 0;
    uint64_t ticket =
        rsi_park_prepare(self, ROUSE_WAIT_SEM, &player->slot, NULL, deadline_ns, flags);
    rsi_test_delay();
    stand(&player->slot, self, ticket);
    if (draw(player, 10) == 0 && rsi_park_abandon(self, ticket)) {
        player->abandoned++;
        return;
    }
    int result = rsi_park_commit(self, ticket);
    CHECK_EQUAL(rsi_load_relaxed(&rsi_waiter(self)->claim) & 3, 0);
    note_end(player, deadline_ns, flags, result);
}

static void *wait_many_times(void *arg)
{
    struct player *player = arg;
    struct rouse_thread *self = rouse_thread_self();
    rsi_store_release(&player->handle, self);
    for (unsigned i = 0; i < rounds; i++) {
        wait_once(player, self);
        if (draw(player, 16) == 0)
            rouse_thread_yield();
    }
    rsi_fetch_add_seq_cst(&done, 1u);
    rsi_store_release(&player->is_done, 1u);
    /* No thread cancels from here on, but requests may be left. */
    while (rsi_load_acquire(&done) < WAITERS + WAKERS)
        rouse_thread_yield();
    while (rouse_thread_cancel_pending()) {
        CHECK_EQUAL(rouse_sleep(0), -ECANCELED);
        player->book.cancels++;
    }
    return NULL;
}

static int next_result(struct player *player)
{
    return (int)((rsi_fetch_add_relaxed(&serial, 1u) + draw(player, 3)) % 1000000) + 1;
}

/*
 * Try to end the wait of the thread that stands there. The claim may be made under the guard or
 * after it.
 */
static struct rouse_thread *claim_one(struct player *player, struct slot *slot)
{
    bool is_inside = draw(player, 2);
    rsi_guard_lock(&slot->guard);
    struct rouse_thread *t = slot->thread;
    uint64_t ticket = slot->ticket;
    int result = next_result(player);
    bool won = t && is_inside && rsi_park_claim(t, ticket, result, NULL);
    rsi_guard_unlock(&slot->guard);
    if (t && !is_inside) /* by now the ticket may be an old one */
        won = rsi_park_claim(t, ticket, result, NULL);
    if (!won)
        return NULL;
    player->book.wakes++;
    player->book.wake_sum += (uint64_t)result;
    return t;
}

static void wake_batch(struct player *player)
{
    struct rouse_thread *first = NULL;
    for (int i = 0; i < BATCH; i++) {
        struct rouse_thread *t = claim_one(player, &waiters[draw(player, WAITERS)].slot);
        if (t) {
            rsi_waiter(t)->next = first;
            first = t;
        }
    }
    rsi_park_publish_list(first);
}

static void cancel_one(struct player *player)
{
    struct player *victim = &waiters[draw(player, WAITERS)];
    struct rouse_thread *t = rsi_load_acquire(&victim->handle);
    if (t && !rsi_load_acquire(&victim->is_done) && rouse_thread_cancel(t) == 0)
        player->book.cancels++;
}

static void *wake_and_cancel(void *arg)
{
    struct player *player = arg;
    while (rsi_load_acquire(&done) < WAITERS) {
        uint64_t what = draw(player, 16);
        if (what == 0) {
            cancel_one(player);
        } else if (what == 1) {
            wake_batch(player);
        } else {
            struct rouse_thread *t = claim_one(player, &waiters[draw(player, WAITERS)].slot);
            rsi_test_delay();
            if (t)
                rsi_park_publish(t);
        }
        if (draw(player, 32) == 0)
            rouse_thread_yield();
    }
    rsi_fetch_add_seq_cst(&done, 1u);
    return NULL;
}

struct runner {
    struct rouse_thread *thread;
    pthread_t pthread;
    bool is_foreign;
};

/* Kinds in turn: user, user, kernel, foreign. */
static struct runner run(unsigned number, void *(*fn)(void *), void *arg)
{
    struct runner runner = { .is_foreign = number % 4 == 3 };
    if (runner.is_foreign)
        CHECK(pthread_create(&runner.pthread, NULL, fn, arg) == 0);
    else
        runner.thread = start(number % 4 == 2 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER, fn, arg);
    return runner;
}

static void end(struct runner *runner)
{
    if (runner->is_foreign)
        CHECK(pthread_join(runner->pthread, NULL) == 0);
    else
        join(runner->thread);
}

static struct book sum(const struct player *players, size_t count)
{
    struct book total = { 0 };
    for (size_t i = 0; i < count; i++) {
        total.wakes += players[i].book.wakes;
        total.wake_sum += players[i].book.wake_sum;
        total.cancels += players[i].book.cancels;
    }
    return total;
}

static void every_claim_ends_exactly_one_wait(void **state)
{
    (void)state;
    struct runner runners[WAITERS + WAKERS];
    uint64_t random = seed_of_run();
    rounds = rounds_of(3000);
    for (unsigned i = 0; i < WAITERS; i++) {
        waiters[i].random = rsi_random_next(&random) | 1;
        runners[i] = run(i, wait_many_times, &waiters[i]);
    }
    for (unsigned i = 0; i < WAKERS; i++) {
        wakers[i].random = rsi_random_next(&random) | 1;
        runners[WAITERS + i] = run(i + 1, wake_and_cancel, &wakers[i]);
    }
    for (size_t i = 0; i < LENGTH(runners); i++)
        end(&runners[i]);
    struct book returns = sum(waiters, WAITERS), claims = sum(wakers, WAKERS);
    uint64_t timeouts = 0, abandoned = 0;
    for (size_t i = 0; i < WAITERS; i++) {
        timeouts += waiters[i].timeouts;
        abandoned += waiters[i].abandoned;
    }
    printf("%lu woken, %lu timed out, %lu cancelled, %lu abandoned\n", (unsigned long)returns.wakes,
           (unsigned long)timeouts, (unsigned long)returns.cancels, (unsigned long)abandoned);
    CHECK_EQUAL(returns.wakes, claims.wakes);
    CHECK_EQUAL(returns.wake_sum, claims.wake_sum);
    CHECK_EQUAL(returns.cancels, claims.cancels);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = { cmocka_unit_test(
        every_claim_ends_exactly_one_wait) };
    static const struct program program = { 150, true, tests, LENGTH(tests), NULL, 0 };
    if (argc == 1)
        stress_set_up();
    return program_run(&program, argc, argv);
}
