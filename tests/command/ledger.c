/* SPDX-License-Identifier: MIT */
/*
 * ledger.c - a program whose waits are known by construction: it does each of the following so often as the
 * enumeration says, prints what it measured itself, says "ready", and ends with its input. A letter on that: y has a
 * thread yield FEW times, Y MANY times; then it says "yielded".
 *
 * Nobody waits before all of a round are there: each counts itself under the lock that its wait lets go, or is
 * given time to arrive by a holder that holds long.
 */
#include <rouse/rouse.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MS UINT64_C(1000000)

enum {
    WAITERS = 100, /* for one lock, */
    HOLD_MS = 50,  /* held for so long when the last has come */
    HERD = 8,      /* threads that wait for one broadcast, */
    ROUNDS = 5,    /* so often */
    SIGNALS = 7,   /* that nobody waits for */
    BROADCASTS = 3,
    TIMEOUTS = 4,  /* waits for a condition that give up */
    POSTS = 20,    /* of a semaphore that a thread waits for */
    FEW = 50000,   /* yields, */
    MANY = 500000, /* and more than a ring has room for */
};

static struct rouse_mutex hot = ROUSE_MUTEX_INIT_NAMED("hot");
static struct rouse_mutex gate = ROUSE_MUTEX_INIT_NAMED("gate");
static struct rouse_cond opened = ROUSE_COND_INIT_NAMED("opened");
static struct rouse_cond arrived = ROUSE_COND_INIT;
static struct rouse_cond nobody = ROUSE_COND_INIT_NAMED("nobody");
static struct rouse_sem ticket = ROUSE_SEM_INIT_NAMED(0, "ticket");
static struct rouse_sem taken = ROUSE_SEM_INIT(0);
static uint32_t coming;             /* to hot; atomic */
static uint64_t waited_ns;          /* for hot, as its waiters measured it; under hot */
static unsigned inside, generation; /* under gate */

static void check(int result)
{
    if (result < 0)
        abort();
}

static void run(struct rouse_thread **threads, unsigned count, void *(*fn)(void *))
{
    for (unsigned i = 0; i < count; i++)
        check(rouse_thread_create(&threads[i], NULL, fn, NULL));
}

static void join(struct rouse_thread **threads, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        check(rouse_thread_join(threads[i], NULL));
}

static void *want(void *unused)
{
    uint64_t begin_ns;

    __atomic_fetch_add(&coming, 1, __ATOMIC_RELAXED);
    begin_ns = rouse_now_ns();
    rouse_mutex_lock(&hot);
    waited_ns += rouse_now_ns() - begin_ns;
    rouse_mutex_unlock(&hot);
    return unused;
}

/* Everybody finds the lock held: it is, from before the first until HOLD_MS after the last. */
static void contend(void)
{
    struct rouse_thread *threads[WAITERS];

    rouse_mutex_lock(&hot);
    run(threads, WAITERS, want);
    while (__atomic_load_n(&coming, __ATOMIC_RELAXED) < WAITERS)
        rouse_thread_yield();
    rouse_sleep(HOLD_MS * MS);
    rouse_mutex_unlock(&hot);
    join(threads, WAITERS);
}

static void *follow(void *unused)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        rouse_mutex_lock(&gate);
        if (++inside == HERD)
            rouse_cond_signal(&arrived);
        while (generation == round)
            rouse_cond_wait(&opened, &gate);
        rouse_mutex_unlock(&gate);
    }
    return unused;
}

/* When the lock is ours and all are inside, each of them waits: it lets the lock go in its wait only. */
static void herd(void)
{
    struct rouse_thread *threads[HERD];

    run(threads, HERD, follow);
    for (unsigned round = 0; round < ROUNDS; round++) {
        rouse_mutex_lock(&gate);
        while (inside < HERD)
            rouse_cond_wait(&arrived, &gate);
        inside = 0;
        generation++;
        rouse_cond_broadcast(&opened);
        rouse_mutex_unlock(&gate);
    }
    join(threads, HERD);
}

static void call_nobody(void)
{
    for (unsigned i = 0; i < SIGNALS; i++)
        rouse_cond_signal(&nobody);
    for (unsigned i = 0; i < BROADCASTS; i++)
        rouse_cond_broadcast(&nobody);
    rouse_mutex_lock(&gate);
    for (unsigned i = 0; i < TIMEOUTS; i++)
        if (rouse_cond_wait_until(&nobody, &gate, rouse_now_ns() + MS) != -ETIMEDOUT)
            abort();
    rouse_mutex_unlock(&gate);
}

static void *take(void *unused)
{
    for (unsigned i = 0; i < POSTS; i++) {
        rouse_sem_post(&taken);
        check(rouse_sem_wait(&ticket));
    }
    return unused;
}

static void post(void)
{
    struct rouse_thread *thread;

    run(&thread, 1, take);
    for (unsigned i = 0; i < POSTS; i++) {
        check(rouse_sem_wait(&taken));
        check(rouse_sem_post(&ticket));
    }
    join(&thread, 1);
}

static void *all(void *unused)
{
    contend();
    herd();
    call_nobody();
    post();
    return unused;
}

static void *yield(void *times)
{
    for (unsigned i = 0; i < *(const unsigned *)times; i++)
        rouse_thread_yield();
    return NULL;
}

static void yield_apart(unsigned times)
{
    struct rouse_thread *thread;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;

    attr.name = "yielder";
    check(rouse_thread_create(&thread, &attr, yield, &times));
    join(&thread, 1);
    puts("yielded");
    fflush(stdout);
}

int main(void)
{
    struct rouse_thread *thread;
    char byte;

    run(&thread, 1, all);
    join(&thread, 1);
    printf("waited_ns %llu\nready\n", (unsigned long long)waited_ns);
    fflush(stdout);
    while (read(STDIN_FILENO, &byte, 1) > 0)
        yield_apart(byte == 'y' ? FEW : MANY);
    return 0;
}
