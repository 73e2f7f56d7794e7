/* SPDX-License-Identifier: MIT */
/*
 * wait_record_test.c - the wait record: the fields that a waiter and a waker write, for each object
 * that a thread can wait for, by user and kernel threads; and that no stamp is written while
 * recording is off.
 */
#include "obs_test.h"
#include "obs/store.h"

#include <sys/socket.h>

static struct {
    struct rouse_mutex mutex;
    struct rouse_rwlock rwlock;
    struct rouse_cond cond;
    struct rouse_mutex cond_mutex;
    struct rouse_sem sem;
    struct rouse_barrier barrier;
    struct rouse_once once;
    struct rouse_thread *joined;
    int fds[2];
} scene;

static int wait_result;
static uint64_t joined_id;

static FRAME void wait_mutex(void)
{
    rouse_mutex_lock(&scene.mutex);
    rouse_mutex_unlock(&scene.mutex);
    KEEP_FRAME();
}

static FRAME void wait_read_lock(void)
{
    rouse_rwlock_read_lock(&scene.rwlock);
    rouse_rwlock_read_unlock(&scene.rwlock);
    KEEP_FRAME();
}

static FRAME void wait_write_lock(void)
{
    rouse_rwlock_write_lock(&scene.rwlock);
    rouse_rwlock_write_unlock(&scene.rwlock);
    KEEP_FRAME();
}

static FRAME void wait_cond(void)
{
    rouse_mutex_lock(&scene.cond_mutex);
    rouse_cond_wait(&scene.cond, &scene.cond_mutex);
    rouse_mutex_unlock(&scene.cond_mutex);
    KEEP_FRAME();
}

static FRAME void wait_sem(void)
{
    wait_result = rouse_sem_wait(&scene.sem);
    KEEP_FRAME();
}

static FRAME void wait_sem_until(void)
{
    wait_result = rouse_sem_wait_until(&scene.sem, rouse_now_ns() + MS);
    KEEP_FRAME();
}

static FRAME void wait_barrier(void)
{
    rouse_barrier_wait(&scene.barrier);
    KEEP_FRAME();
}

static void once_nothing(void *unused)
{
    (void)unused;
}

static FRAME void wait_once(void)
{
    rouse_once_call(&scene.once, once_nothing, NULL);
    KEEP_FRAME();
}

static FRAME void wait_join(void)
{
    rouse_thread_join(scene.joined, NULL);
    KEEP_FRAME();
}

static FRAME void wait_sleep(void)
{
    rouse_sleep(MS);
    KEEP_FRAME();
}

static FRAME void wait_read(void)
{
    char byte;
    wait_result = (int)rouse_read(scene.fds[0], &byte, 1);
    KEEP_FRAME();
}

static FRAME void wait_write(void)
{
    wait_result = (int)rouse_write(scene.fds[1], "x", 1);
    KEEP_FRAME();
}

static FRAME void wait_accept(void)
{
    wait_result = rouse_accept(scene.fds[0], NULL, NULL);
    KEEP_FRAME();
}

static void *read_plainly(void *unused)
{
    char byte;
    CHECK(read(scene.fds[0], &byte, 1) == 1);
    return unused;
}

static FRAME void wait_blocking(void)
{
    wait_result = rouse_blocking(read_plainly, NULL, NULL);
    KEEP_FRAME();
}

/* --- main()'s actions before the wait, and to end it */

static void hold_mutex(void)
{
    rouse_mutex_lock(&scene.mutex);
}

static FRAME void wake_mutex(MAYBE_UNUSED struct rouse_thread *t)
{
    rouse_mutex_unlock(&scene.mutex);
    KEEP_FRAME();
}

static void hold_rwlock(void)
{
    rouse_rwlock_write_lock(&scene.rwlock);
}

static FRAME void wake_rwlock(MAYBE_UNUSED struct rouse_thread *t)
{
    rouse_rwlock_write_unlock(&scene.rwlock);
    KEEP_FRAME();
}

static FRAME void wake_cond(MAYBE_UNUSED struct rouse_thread *t)
{
    rouse_cond_signal(&scene.cond);
    KEEP_FRAME();
}

static FRAME void wake_sem(MAYBE_UNUSED struct rouse_thread *t)
{
    rouse_sem_post(&scene.sem);
    KEEP_FRAME();
}

static FRAME void wake_barrier(MAYBE_UNUSED struct rouse_thread *t)
{
    rouse_barrier_wait(&scene.barrier);
    KEEP_FRAME();
}

static FRAME void wake_by_cancel(struct rouse_thread *t)
{
    rouse_thread_cancel(t);
    KEEP_FRAME();
}

static void *return_when_told(void *unused)
{
    rouse_sem_wait(&scene.sem);
    return unused;
}

static void start_joined(void)
{
    scene.joined = start(ROUSE_KIND_USER, return_when_told, NULL);
    joined_id = rouse_thread_id(scene.joined);
}

static void open_pipe(void)
{
    CHECK(pipe2(scene.fds, O_CLOEXEC) == 0);
}

static void wake_reader(MAYBE_UNUSED struct rouse_thread *t)
{
    CHECK(write(scene.fds[1], "x", 1) == 1);
}

static char pipe_full[1 << 16];

static void fill_pipe(void)
{
    open_pipe();
    CHECK(fcntl(scene.fds[1], F_SETPIPE_SZ, sizeof pipe_full) == sizeof pipe_full);
    CHECK(write(scene.fds[1], pipe_full, sizeof pipe_full) == sizeof pipe_full);
}

static void wake_writer(MAYBE_UNUSED struct rouse_thread *t)
{
    CHECK(read(scene.fds[0], pipe_full, sizeof pipe_full) == sizeof pipe_full);
}

static void listen_on_loopback(void)
{
    scene.fds[0] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    scene.fds[1] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(scene.fds[0] >= 0 && scene.fds[1] >= 0);
    sa_family_t family = AF_UNIX; /* only the family: the kernel picks a name */
    CHECK(bind(scene.fds[0], (struct sockaddr *)&family, sizeof family) == 0);
    CHECK(listen(scene.fds[0], 1) == 0);
}

static void wake_acceptor(MAYBE_UNUSED struct rouse_thread *t)
{
    struct sockaddr_storage address;
    socklen_t bytes = sizeof address;
    CHECK(getsockname(scene.fds[0], (struct sockaddr *)&address, &bytes) == 0);
    CHECK(connect(scene.fds[1], (struct sockaddr *)&address, bytes) == 0);
}

static void leave_alone(MAYBE_UNUSED struct rouse_thread *t)
{
    /* its deadline passes */
}

/* --- the cases */

#define AN_OBJECT(member) offsetof(__typeof__(scene), member)
#define A_THREAD ((size_t)-1)
#define A_DESCRIPTOR(side) ((size_t)-2 - (side))
#define A_FUNCTION ((size_t)-4)
#define NOTHING ((size_t)-5)

static const struct wait_case {
    const char *wait_name;
    void (*wait)(void);
    void (*before)(void);
    void (*wake)(struct rouse_thread *t);
    const char *wake_name; /* NULL: the runtime itself wakes, or a thread that was not asked to */
    size_t object;
    enum rouse_wait_kind kind;
    enum rouse_verdict verdict;
    bool user_only;
} cases[] = {
    { "wait_mutex", wait_mutex, hold_mutex, wake_mutex, "wake_mutex", AN_OBJECT(mutex),
      ROUSE_WAIT_MUTEX, ROUSE_VERDICT_USEFUL, false },
    { "wait_read_lock", wait_read_lock, hold_rwlock, wake_rwlock, "wake_rwlock", AN_OBJECT(rwlock),
      ROUSE_WAIT_READ_LOCK, ROUSE_VERDICT_USEFUL, false },
    { "wait_write_lock", wait_write_lock, hold_rwlock, wake_rwlock, "wake_rwlock",
      AN_OBJECT(rwlock), ROUSE_WAIT_WRITE_LOCK, ROUSE_VERDICT_USEFUL, false },
    { "wait_cond", wait_cond, NULL, wake_cond, "wake_cond", AN_OBJECT(cond), ROUSE_WAIT_COND,
      ROUSE_VERDICT_USEFUL, false },
    { "wait_sem", wait_sem, NULL, wake_sem, "wake_sem", AN_OBJECT(sem), ROUSE_WAIT_SEM,
      ROUSE_VERDICT_USEFUL, false },
    { "wait_sem", wait_sem, NULL, wake_by_cancel, "wake_by_cancel", AN_OBJECT(sem), ROUSE_WAIT_SEM,
      ROUSE_VERDICT_CANCELLED, false },
    { "wait_sem_until", wait_sem_until, NULL, leave_alone, NULL, AN_OBJECT(sem), ROUSE_WAIT_SEM,
      ROUSE_VERDICT_TIMEOUT, false },
    { "wait_barrier", wait_barrier, NULL, wake_barrier, "wake_barrier", AN_OBJECT(barrier),
      ROUSE_WAIT_BARRIER, ROUSE_VERDICT_USEFUL, false },
    { "wait_join", wait_join, start_joined, wake_sem, "thread_main", A_THREAD, ROUSE_WAIT_JOIN,
      ROUSE_VERDICT_USEFUL, false },
    { "wait_sleep", wait_sleep, NULL, leave_alone, NULL, NOTHING, ROUSE_WAIT_SLEEP,
      ROUSE_VERDICT_TIMEOUT, false },
    { "wait_read", wait_read, open_pipe, wake_reader, NULL, A_DESCRIPTOR(0), ROUSE_WAIT_READ,
      ROUSE_VERDICT_USEFUL, false },
    { "wait_read", wait_read, open_pipe, wake_by_cancel, "wake_by_cancel", A_DESCRIPTOR(0),
      ROUSE_WAIT_READ, ROUSE_VERDICT_CANCELLED, false },
    { "wait_write", wait_write, fill_pipe, wake_writer, NULL, A_DESCRIPTOR(1), ROUSE_WAIT_WRITE,
      ROUSE_VERDICT_USEFUL, false },
    { "wait_accept", wait_accept, listen_on_loopback, wake_acceptor, NULL, A_DESCRIPTOR(0),
      ROUSE_WAIT_ACCEPT, ROUSE_VERDICT_USEFUL, false },
    { "wait_blocking", wait_blocking, open_pipe, wake_reader, NULL, A_FUNCTION, ROUSE_WAIT_BLOCKING,
      ROUSE_VERDICT_USEFUL, true },
};

static const void *expected_object(const struct wait_case *c)
{
    switch (c->object) {
    case A_THREAD: return scene.joined;
    case A_DESCRIPTOR(0): return (const void *)(intptr_t)scene.fds[0];
    case A_DESCRIPTOR(1): return (const void *)(intptr_t)scene.fds[1];
    case A_FUNCTION: return (const void *)(uintptr_t)read_plainly;
    case NOTHING: return NULL;
    default: return (const char *)&scene + c->object;
    }
}

struct run {
    const struct wait_case *of;
    struct rouse_wait_record record;
    uint64_t began_tsc, ended_tsc;
};

static void *waiter_main(void *value)
{
    struct run *run = value;
    run->began_tsc = rsi_tsc();
    run->of->wait();
    run->ended_tsc = rsi_tsc();
    rouse_obs_last_wait(&run->record);
    return NULL;
}

static void run_case(const struct wait_case *c, enum rouse_kind kind, struct run *run)
{
    memset(&scene, 0, sizeof scene);
    scene.barrier.parties = 2;
    scene.fds[0] = scene.fds[1] = -1;
    if (c->before)
        c->before();
    *run = (struct run){ .of = c };
    struct rouse_thread *t = start(kind, waiter_main, run);
    if (c->verdict != ROUSE_VERDICT_TIMEOUT)
        UNTIL(waits(t) && rsi_load_relaxed(&rsi_waiter(t)->record.kind) == c->kind);
    c->wake(t);
    join(t);
    for (int side = 0; side < 2; side++)
        if (scene.fds[side] >= 0)
            rouse_close(scene.fds[side]);
    if (c->verdict == ROUSE_VERDICT_CANCELLED)
        CHECK_EQUAL(wait_result, -ECANCELED);
}

static void check_first_half(const struct run *run)
{
    const struct rouse_wait_record *r = &run->record;
    CHECK_EQUAL(r->kind, run->of->kind);
    CHECK(r->object == expected_object(run->of));
    CHECK(is_site_in(r->wait_site, run->of->wait_name));
}

static void check_recorded(const struct run *run)
{
    const struct rouse_wait_record *r = &run->record;
    check_first_half(run);
    CHECK_EQUAL(r->verdict, run->of->verdict);
    CHECK(run->began_tsc <= r->since_tsc && r->since_tsc <= r->wake_tsc);
    CHECK(r->wake_tsc <= run->ended_tsc);
    CHECK(r->wait_count >= 1);
    if (run->of->wake_name) {
        uint64_t waker_id = run->of->kind == ROUSE_WAIT_JOIN ? joined_id
                                                             : rouse_thread_id(rouse_thread_self());
        CHECK_EQUAL(r->waker_id, waker_id);
        CHECK(is_site_in(r->wake_site, run->of->wake_name));
    } else {
        CHECK(!r->wake_site);
        CHECK_EQUAL(r->waker_id, 0);
    }
}

static void check_not_recorded(const struct run *run)
{
    const struct rouse_wait_record *r = &run->record;
    check_first_half(run);
    CHECK_EQUAL(r->since_tsc, 0);
    CHECK_EQUAL(r->wake_tsc, 0);
    CHECK_EQUAL(r->waker_id, 0);
    CHECK(!r->wake_site);
    CHECK_EQUAL(r->verdict, ROUSE_VERDICT_NONE);
    CHECK_EQUAL(r->wait_count, 0);
    CHECK_EQUAL(r->useless_count, 0);
}

static void run_cases(enum rouse_obs_mode mode, void (*check)(const struct run *run))
{
    CHECK_EQUAL(rouse_obs_set_mode(mode), 0);
    for (size_t i = 0; i < LENGTH(cases); i++)
        for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
            struct run run;
            if (cases[i].user_only && kind != ROUSE_KIND_USER)
                continue;
            printf("%s, %s\n", cases[i].wait_name, kind == ROUSE_KIND_USER ? "user" : "kernel");
            run_case(&cases[i], (enum rouse_kind)kind, &run);
            check(&run);
        }
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
}

static void test_each_kind_of_wait(MAYBE_UNUSED void **unused)
{
    run_cases(ROUSE_OBS_COUNTED, check_recorded);
}

static void test_nothing_is_stamped_while_off(MAYBE_UNUSED void **unused)
{
    run_cases(ROUSE_OBS_OFF, check_not_recorded);
}

/* The first thread starts the other from inside, so that the other has to wait. */
static struct rouse_thread *once_waiter;

static void start_waiter_inside(void *run)
{
    once_waiter = start(ROUSE_KIND_USER, waiter_main, run);
    UNTIL(waits(once_waiter));
}

static FRAME void run_once(struct run *run)
{
    rouse_once_call(&scene.once, start_waiter_inside, run);
    KEEP_FRAME();
}

static void test_once(MAYBE_UNUSED void **unused)
{
    static const struct wait_case c = { .wait_name = "wait_once",
                                        .wait = wait_once,
                                        .wake_name = "run_once",
                                        .object = AN_OBJECT(once),
                                        .kind = ROUSE_WAIT_ONCE,
                                        .verdict = ROUSE_VERDICT_USEFUL };
    struct run run = { .of = &c };
    memset(&scene, 0, sizeof scene);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    run_once(&run);
    join(once_waiter);
    check_recorded(&run);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
}

/* --- switching recording in the middle of a wait */

static const struct wait_case sem_case = { .wait_name = "wait_sem", .wait = wait_sem };

static void test_switched_on_during_a_wait(MAYBE_UNUSED void **unused)
{
    struct run run = { .of = &sem_case };
    memset(&scene, 0, sizeof scene);
    struct rouse_thread *t = start(ROUSE_KIND_USER, waiter_main, &run);
    UNTIL(waits(t));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    wake_sem(t);
    join(t);
    CHECK_EQUAL(run.record.since_tsc, 0); /* the beginning was not recorded and is not made up */
    CHECK_EQUAL(run.record.wait_count, 0);
    CHECK_EQUAL(run.record.wake_tsc, 0);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
}

static void *wait_three_times(void *value)
{
    for (int i = 0; i < 3; i++)
        rouse_sem_wait(&scene.sem);
    rouse_obs_last_wait(value);
    return NULL;
}

/* -1: the record says that it is not waiting. */
static uint64_t waits_recorded(struct rouse_thread *t)
{
    const struct rsi_store_thread *slot = rsi_load_acquire(&rsi_waiter(t)->record.slot);
    return slot && rsi_load_relaxed(&slot->doing) == RSI_DOES_WAIT ? rsi_load_relaxed(&slot->waits)
                                                                   : UINT64_MAX;
}

static void test_waits_are_counted(MAYBE_UNUSED void **unused)
{
    struct rouse_wait_record record;
    memset(&scene, 0, sizeof scene);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_three_times, &record);
    for (uint64_t i = 1; i <= 3; i++) {
        UNTIL(waits(t) && waits_recorded(t) == i - 1);
        rouse_sem_post(&scene.sem);
    }
    join(t);
    CHECK_EQUAL(record.wait_count, 3);
    CHECK_EQUAL(record.useless_count, 0);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_kind_of_wait),
        cmocka_unit_test(test_nothing_is_stamped_while_off),
        cmocka_unit_test(test_once),
        cmocka_unit_test(test_switched_on_during_a_wait),
        cmocka_unit_test(test_waits_are_counted),
    };
    const struct program program = { .limit_s = 120, .tests = tests, .test_count = LENGTH(tests) };
    return program_run(&program, argc, argv);
}
