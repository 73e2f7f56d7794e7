/* SPDX-License-Identifier: MIT */
/*
 * sync_stress.c - all sync objects at once, between threads of every kind, under deadlines, cancels
 * and recording that is switched on and off. At the end every count must be exact.
 *
 * Members have roles: put and take (condition variables), transfer (mutexes), read or write
 * (reader-writer lock), pass tokens round (semaphores), meet (barrier), call once, spawn and join.
 * Each does its rounds whatever ends its waits in between, and much of the waiting has no deadline:
 * a lost wake-up is a hang, which the watchdog reports.
 *
 * The environment sets ROUSE_SEED (printed) and ROUSE_SCALE (rounds in percent). Runs with 1, 2 and
 * 4 workers, or with ROUSE_WORKERS.
 */
#include "unit/sync/sync_test.h"

#define ACCOUNTS 5
#define TOKENS 3
#define RING 6
#define MEETERS 4
#define TASKS_MOST 4096
#define MEMBERS_MOST 64

struct queue {
    struct rouse_mutex m;
    struct rouse_cond not_empty, not_full;
    unsigned items[6], first, count;
    uint64_t sum_in, sum_out;
};

struct account {
    struct rouse_mutex m;
    int64_t money;
};

struct table {
    struct rouse_rwlock l;
    uint64_t a, b;
    uint32_t readers, writers, written;
};

struct task {
    struct rouse_once o;
    uint32_t runs;
    uint64_t value;
};

static struct town {
    struct queue queue;
    struct account accounts[ACCOUNTS];
    struct table table;
    struct rouse_sem stations[RING], pool;
    struct rouse_barrier meeting;
    struct task tasks[TASKS_MOST];
    struct rouse_sem exit;
    uint32_t pooled, met, spawned, finished;
    uint32_t rounds;
    uint32_t cancels[MEMBERS_MOST]; /* sent, by member */
    bool is_over;
} town = {
    .pool = ROUSE_SEM_INIT_NAMED(3, "pool"),
    .meeting = ROUSE_BARRIER_INIT_NAMED(MEETERS, "meeting"),
};

struct person {
    uint64_t random;
    unsigned number;    /* among those of its role */
    uint32_t cancelled; /* times that -ECANCELED was returned */
};

static uint64_t draw(struct person *p, uint64_t below)
{
    return (rsi_random_next(&p->random) >> 11) % below;
}

/* Mostly none, otherwise anything from the past to 50 us. */
static uint64_t some_deadline(struct person *p)
{
    if (draw(p, 2))
        return ROUSE_FOREVER;
    return draw(p, 8) == 0 ? 0 : rouse_now_ns() + draw(p, 50000);
}

static bool is_interrupted(struct person *p, int result)
{
    CHECK(result >= 0 || result == -ETIMEDOUT || result == -ECANCELED);
    p->cancelled += result == -ECANCELED;
    return result < 0;
}

static void linger(struct person *p)
{
    switch (draw(p, 16)) {
    case 0: (void)is_interrupted(p, rouse_sleep(draw(p, 20000))); break;
    case 1:
    case 2: rouse_thread_yield(); break;
    default: break;
    }
}

static void lock_somehow(struct person *p, struct rouse_mutex *m)
{
    if (draw(p, 2)) {
        rouse_mutex_lock(m);
        return;
    }
    if (draw(p, 4) == 0 && rouse_mutex_lock_try(m) == 0)
        return;
    while (is_interrupted(p, rouse_mutex_lock_until(m, some_deadline(p))))
        continue;
}

static bool is_full(void *arg)
{
    return ((struct queue *)arg)->count == LENGTH(((struct queue *)arg)->items);
}

static bool is_empty(void *arg)
{
    return ((struct queue *)arg)->count == 0;
}

static void wait_in_queue(struct person *p, struct rouse_cond *c, bool (*predicate)(void *))
{
    struct queue *q = &town.queue;
    while (predicate(q)) {
        if (draw(p, 2))
            (void)is_interrupted(
                p, rouse_cond_wait_while_until(c, &q->m, predicate, q, some_deadline(p)));
        else
            (void)is_interrupted(p, rouse_cond_wait_until(c, &q->m, some_deadline(p)));
    }
}

static void tell_queue(struct person *p, struct rouse_cond *c)
{
    if (draw(p, 8) == 0)
        rouse_cond_broadcast(c);
    else
        rouse_cond_signal(c);
}

static void put(struct person *p)
{
    struct queue *q = &town.queue;
    unsigned item = (unsigned)draw(p, 1000);
    lock_somehow(p, &q->m);
    wait_in_queue(p, &q->not_full, is_full);
    q->items[(q->first + q->count++) % LENGTH(q->items)] = item;
    q->sum_in += item;
    bool is_early = draw(p, 2);
    if (is_early)
        tell_queue(p, &q->not_empty);
    rouse_mutex_unlock(&q->m);
    if (!is_early)
        tell_queue(p, &q->not_empty);
}

static void take(struct person *p)
{
    struct queue *q = &town.queue;
    lock_somehow(p, &q->m);
    wait_in_queue(p, &q->not_empty, is_empty);
    q->sum_out += q->items[q->first++ % LENGTH(q->items)];
    q->count--;
    tell_queue(p, &q->not_full);
    rouse_mutex_unlock(&q->m);
}

static void put_or_take(struct person *p)
{
    if (p->number % 2)
        take(p);
    else
        put(p);
}

static void transfer(struct person *p)
{
    uint64_t from = draw(p, ACCOUNTS), to = (from + 1 + draw(p, ACCOUNTS - 1)) % ACCOUNTS;
    struct account *low = &town.accounts[from < to ? from : to];
    struct account *high = &town.accounts[from < to ? to : from];
    lock_somehow(p, &low->m);
    linger(p);
    lock_somehow(p, &high->m);
    int64_t money = (int64_t)draw(p, 100);
    town.accounts[from].money -= money;
    linger(p);
    town.accounts[to].money += money;
    bool is_low_first = draw(p, 2);
    rouse_mutex_unlock(is_low_first ? &low->m : &high->m);
    rouse_mutex_unlock(is_low_first ? &high->m : &low->m);
}

static void read_table(struct person *p)
{
    struct table *t = &town.table;
    if (draw(p, 2))
        rouse_rwlock_read_lock(&t->l);
    else
        while (is_interrupted(p, rouse_rwlock_read_lock_until(&t->l, some_deadline(p))))
            continue;
    rsi_fetch_add_relaxed(&t->readers, 1u);
    CHECK(rsi_load_relaxed(&t->writers) == 0);
    uint64_t a = t->a;
    linger(p);
    CHECK(t->b == a);
    rsi_fetch_add_relaxed(&t->readers, -1u);
    rouse_rwlock_read_unlock(&t->l);
}

static void write_table(struct person *p)
{
    struct table *t = &town.table;
    if (draw(p, 2))
        rouse_rwlock_write_lock(&t->l);
    else
        while (is_interrupted(p, rouse_rwlock_write_lock_until(&t->l, some_deadline(p))))
            continue;
    CHECK(rsi_fetch_add_relaxed(&t->writers, 1u) == 0);
    CHECK(rsi_load_relaxed(&t->readers) == 0);
    t->a++;
    linger(p);
    t->b++;
    t->written++;
    CHECK(rsi_fetch_add_relaxed(&t->writers, -1u) == 1);
    rouse_rwlock_write_unlock(&t->l);
}

static void read_or_write(struct person *p)
{
    if (draw(p, 4))
        read_table(p);
    else
        write_table(p);
}

static void wait_for_unit(struct person *p, struct rouse_sem *s)
{
    if (draw(p, 4) == 0 && rouse_sem_wait_try(s) == 0)
        return;
    while (is_interrupted(p, draw(p, 2) ? rouse_sem_wait(s)
                                        : rouse_sem_wait_until(s, some_deadline(p))))
        continue;
}

/* Pass a token on. Then use a unit of a pool that has fewer units than users. */
static void pass_on(struct person *p)
{
    wait_for_unit(p, &town.stations[p->number]);
    CHECK(rouse_sem_post(&town.stations[(p->number + 1) % RING]) == 0);
    wait_for_unit(p, &town.pool);
    CHECK(rsi_fetch_add_relaxed(&town.pooled, 1u) < 3);
    linger(p);
    rsi_fetch_add_relaxed(&town.pooled, -1u);
    CHECK(rouse_sem_post(&town.pool) == 0);
}

static void meet(struct person *p)
{
    int result;
    linger(p);
    while (is_interrupted(
        p, result = draw(p, 2) ? rouse_barrier_wait(&town.meeting)
                               : rouse_barrier_wait_until(&town.meeting, some_deadline(p))))
        continue;
    if (result == 1)
        rsi_fetch_add_relaxed(&town.met, 1u);
}

struct call {
    struct task *task;
    struct person *caller;
};

static void work(void *arg)
{
    struct call *call = arg;
    CHECK(rsi_fetch_add_relaxed(&call->task->runs, 1u) == 0);
    (void)is_interrupted(call->caller, rouse_sleep(1000));
    call->task->value = 42;
}

static void call_once(struct person *p)
{
    struct task *task = &town.tasks[draw(p, town.rounds)];
    struct call call = { task, p };
    if (draw(p, 2))
        rouse_once_call(&task->o, work, &call);
    else
        while (is_interrupted(p, rouse_once_call_until(&task->o, work, &call, some_deadline(p))))
            continue;
    CHECK(task->value == 42);
}

static void *count_spawned(void *arg)
{
    struct rouse_mutex *m = &town.accounts[0].m;
    (void)arg;
    rouse_mutex_lock(m);
    town.spawned++;
    rouse_mutex_unlock(m);
    return NULL;
}

static void spawn(struct person *p)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = draw(p, 8) ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
    int error = rouse_thread_create(&t, &attr, count_spawned, NULL);
    if (error)
        fprintf(stderr, "a thread of kind %d: %s\n", (int)attr.kind, strerror(-error));
    CHECK(error == 0);
    while (is_interrupted(p, rouse_thread_join_until(t, NULL, some_deadline(p))))
        continue;
}

static const struct role {
    void (*play)(struct person *);
    unsigned count;
} roles[] = {
    { put_or_take, 8 }, { transfer, 6 },  { read_or_write, 6 }, { pass_on, RING },
    { meet, MEETERS },  { call_once, 4 }, { spawn, 2 },
};

/*
 * No member leaves before the canceller has ended, since the handle of a thread that has left is no
 * longer valid. By then each cancel request has been reported once or is still pending.
 */
static void live(void *arg, unsigned index)
{
    (void)arg;
    struct person p = { .random = (seed_of_run() + index) * UINT64_C(0x9e3779b97f4a7c15) };
    const struct role *role = roles;
    for (p.number = index; p.number >= role->count; role++)
        p.number -= role->count;
    for (unsigned i = 0; i < town.rounds; i++)
        role->play(&p);
    rsi_fetch_add_relaxed(&town.finished, 1u);
    while (is_interrupted(&p, rouse_sem_wait(&town.exit)))
        continue;
    while (rouse_thread_cancel_pending())
        CHECK(is_interrupted(&p, rouse_sleep(1)));
    CHECK(p.cancelled == town.cancels[index]);
}

struct canceller {
    struct crew *crew;
    uint32_t sent;
};

static void cancel_at_random(void *arg, unsigned index)
{
    (void)index;
    struct canceller *c = arg;
    struct person p = { .random = seed_of_run() + 12345 };
    while (!rsi_load_relaxed(&town.is_over)) {
        uint64_t whom = draw(&p, c->crew->count);
        town.cancels[whom]++;
        CHECK(rouse_thread_cancel(c->crew->members[whom].thread) == 0);
        c->sent++;
        if (draw(&p, 16) == 0)
            CHECK(rouse_obs_set_mode(draw(&p, 2) ? ROUSE_OBS_COUNTED : ROUSE_OBS_OFF) == 0);
        if (draw(&p, 4))
            (void)rouse_sleep(draw(&p, 100000));
        else
            rouse_thread_yield();
    }
}

static void check_objects(unsigned meeters)
{
    int64_t money = 0;
    for (unsigned i = 0; i < ACCOUNTS; i++) {
        money += town.accounts[i].money;
        rouse_mutex_destroy(&town.accounts[i].m);
    }
    CHECK(money == 0);
    CHECK(town.queue.count == 0 && town.queue.sum_in == town.queue.sum_out);
    CHECK(town.queue.not_empty.waiting == 0 && town.queue.not_full.waiting == 0);
    rouse_cond_destroy(&town.queue.not_empty);
    rouse_cond_destroy(&town.queue.not_full);
    rouse_mutex_destroy(&town.queue.m);
    CHECK(town.table.a == town.table.written && town.table.b == town.table.written);
    rouse_rwlock_destroy(&town.table.l);
    uint32_t tokens = 0;
    for (unsigned i = 0; i < RING; i++) {
        tokens += rouse_sem_value(&town.stations[i]);
        rouse_sem_destroy(&town.stations[i]);
    }
    CHECK(tokens == TOKENS && rouse_sem_value(&town.pool) == 3);
    rouse_sem_destroy(&town.pool);
    CHECK(town.met == meeters && town.meeting.arrived == 0 && town.meeting.leaving == 0);
    rouse_barrier_destroy(&town.meeting);
    for (unsigned i = 0; i < town.rounds; i++)
        CHECK(town.tasks[i].runs <= 1 && !town.tasks[i].o.waiters.first);
    CHECK(town.spawned == 2 * town.rounds);
}

static enum crew_kind some_kind(struct person *p)
{
    uint64_t r = draw(p, 10);
    return r < 7 ? CREW_USER : r < 9 ? CREW_KERNEL : CREW_FOREIGN;
}

static void all_at_once(void **state)
{
    (void)state;
    static struct crew crew, cancellers;
    struct person p = { .random = seed_of_run() + 99 };
    struct canceller canceller = { .crew = &crew };
    const char *scale = getenv("ROUSE_SCALE");
    unsigned members = 0;
    town.rounds = (unsigned)(1000 * (scale ? strtoul(scale, NULL, 10) : 100) / 100 / SCALE);
    CHECK(town.rounds > 0 && town.rounds <= TASKS_MOST);
    for (unsigned i = 0; i < TOKENS; i++)
        CHECK(rouse_sem_post(&town.stations[i]) == 0);
    for (size_t i = 0; i < LENGTH(roles); i++)
        for (unsigned j = 0; j < roles[i].count; j++, members++)
            (void)crew_add(&crew, some_kind(&p), live, NULL);
    (void)crew_add(&cancellers, some_kind(&p), cancel_at_random, &canceller);
    while (rsi_load_relaxed(&town.finished) < members) /* the watchdog observes it */
        (void)rouse_sleep(10 * MS);
    rsi_store_relaxed(&town.is_over, true);
    crew_join(&cancellers);
    for (unsigned i = 0; i < members; i++)
        CHECK(rouse_sem_post(&town.exit) == 0);
    crew_join(&crew);
    check_objects(town.rounds);
    printf("%u members, %u rounds, %u cancels\n", members, town.rounds, canceller.sent);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(all_at_once) };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
