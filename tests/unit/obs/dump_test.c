/* SPDX-License-Identifier: MIT */
/*
 * dump_test.c - the dump of all threads: its text for each state; that it works while every worker
 * is stuck, while threads run as fast as they can, from handlers, and into descriptors that break.
 */
#include "obs_test.h"

#include <sys/mman.h>

static char text[4 << 20];

/* Dump into text. */
static void dump(void)
{
    int fd = memfd_create("dump", MFD_CLOEXEC);
    CHECK(fd >= 0);
    rouse_obs_dump(fd);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    CHECK(length > 0);
    text[length] = 0;
    close(fd);
    CHECK(strstr(text, "\nrouse: end of the threads\n"));
}

/* The part of text about t, or NULL. */
static const char *part_of(const struct rouse_thread *t)
{
    static char part[16384];
    char head[64], name[ROUSE_NAME_BYTES];
    rouse_thread_name(t, name, sizeof name);
    rsi_format(head, sizeof head, name[0] ? "\nthread %lu \"%s\", " : "\nthread %lu, ", t->id,
               name);
    const char *begin = strstr(text, head);
    if (!begin)
        return NULL;
    const char *end = strstr(begin + 1, "\nthread ");
    if (!end)
        end = strstr(begin + 1, "\nrouse: ");
    size_t length = (size_t)(end - begin);
    CHECK(length < sizeof part);
    memcpy(part, begin, length);
    part[length] = 0;
    return part;
}

static void check_has(const struct rouse_thread *t, const char *wanted, int line)
{
    const char *part = part_of(t);
    if (part && strstr(part, wanted))
        return;
    fprintf(stderr, "%s:%d: no \"%s\" in:%s\n", __FILE__, line, wanted, part ? part : " nothing");
    check_failed("the dump says what it should", __FILE__, line);
}

#define CHECK_HAS(t, wanted) check_has((t), (wanted), __LINE__)

/* TSan delivers signals late, so that a thread that must be asked does not answer there. */
#if defined(RSI_TSAN)
#define CHECK_HAS_FRAME(t, kind, function) \
    ((kind) == ROUSE_KIND_USER ? CHECK_HAS((t), (function)) : (void)0)
#else
#define CHECK_HAS_FRAME(t, kind, function) CHECK_HAS((t), (function))
#endif

/* A named thread of that kind. */
static struct rouse_thread *start_named(const char *name, enum rouse_kind kind, void *(*fn)(void *),
                                        void *arg)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    attr.name = name;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, fn, arg), 0);
    return t;
}

/* --- waits */

static struct rouse_mutex mutex = ROUSE_MUTEX_INIT_NAMED("accounts");
static struct rouse_rwlock rwlock = ROUSE_RWLOCK_INIT;
static struct rouse_mutex cond_mutex;
static struct rouse_cond cond = ROUSE_COND_INIT_NAMED("more work\n");
static struct rouse_sem never;
static struct rouse_thread *target;
static int pipe_ends[2];

static FRAME void *lock_mutex(void *unused)
{
    rouse_mutex_lock(&mutex);
    rouse_mutex_unlock(&mutex);
    KEEP_FRAME();
    return unused;
}

static FRAME void *lock_for_reading(void *unused)
{
    rouse_rwlock_read_lock(&rwlock);
    rouse_rwlock_read_unlock(&rwlock);
    KEEP_FRAME();
    return unused;
}

static FRAME void *wait_for_cond(void *unused)
{
    rouse_mutex_lock(&cond_mutex);
    rouse_cond_wait(&cond, &cond_mutex);
    rouse_mutex_unlock(&cond_mutex);
    return unused;
}

static FRAME void *wait_for_never(void *unused)
{
    rouse_sem_wait(&never);
    KEEP_FRAME();
    return unused;
}

static FRAME void *sleep_long(void *unused)
{
    rouse_sleep(1000 * SECOND);
    KEEP_FRAME();
    return unused;
}

static FRAME void *join_target(void *unused)
{
    rouse_thread_join(target, NULL);
    KEEP_FRAME();
    return unused;
}

static FRAME void *read_pipe(void *unused)
{
    char byte;
    rouse_read(pipe_ends[0], &byte, 1);
    KEEP_FRAME();
    return unused;
}

static void *read_plainly(void *unused)
{
    char byte;
    CHECK(read(pipe_ends[0], &byte, 1) == 1);
    return unused;
}

static FRAME void *call_blocking(void *unused)
{
    rouse_blocking(read_plainly, NULL, NULL);
    KEEP_FRAME();
    return unused;
}

static void *end_at_once(void *unused)
{
    return unused;
}

static const struct {
    const char *name;
    void *(*fn)(void *);
    const char *state, *site, *frame;
} waiters[] = {
    { "locker", lock_mutex, "waiting for mutex ", " \"accounts\", at lock_mutex+", "lock_mutex+" },
    { "reader of tables", lock_for_reading, "waiting for read lock ", ", at lock_for_reading+",
      "lock_for_reading+" },
    { "", wait_for_cond, "waiting for condition ", " \"more work?\", at wait_for_cond+",
      "wait_for_cond+" },
    { "posted", wait_for_never, "waiting for semaphore ", ", at wait_for_never+",
      "wait_for_never+" },
    { "sleeper", sleep_long, "sleeping", ", at sleep_long+", "sleep_long+" },
    { "descriptor", read_pipe, "waiting for read, descriptor ", ", at read_pipe+", "read_pipe+" },
    { "joiner", join_target, "waiting for join of thread ", " \"target\", at join_target+",
      "join_target+" },
};

static void check_waiters(struct rouse_thread **t, enum rouse_kind kind)
{
    char expected[128];
    for (size_t i = 0; i < LENGTH(waiters); i++) {
        CHECK_HAS(t[i], kind == ROUSE_KIND_USER ? ", user: " : ", kernel, tid ");
        CHECK_HAS(t[i], waiters[i].state);
        CHECK_HAS(t[i], SITES_ARE_KEPT ? waiters[i].site : ", at ");
        CHECK_HAS_FRAME(t[i], kind, waiters[i].frame);
        CHECK_HAS_FRAME(t[i], kind, kind == ROUSE_KIND_USER ? "rsi_ctx_start" : "kernel_main");
    }
    rsi_format(expected, sizeof expected, "mutex %p ", (void *)&mutex);
    CHECK_HAS(t[0], expected);
    rsi_format(expected, sizeof expected, "\n    held by thread %lu, acquired at %s",
               rouse_thread_id(rouse_thread_self()), SITES_ARE_KEPT ? "test_waits+" : "");
    CHECK_HAS(t[0], expected);
    CHECK_HAS(t[1], expected);
    CHECK_HAS(t[4], ", at most 99");
    rsi_format(expected, sizeof expected, "descriptor %d,", pipe_ends[0]);
    CHECK_HAS(t[5], expected);
    rsi_format(expected, sizeof expected, "of thread %lu ", target->id);
    CHECK_HAS(t[6], expected);
}

static void start_waiters(struct rouse_thread **t, enum rouse_kind kind)
{
    target = start_named("target", kind, wait_for_never, NULL);
    UNTIL(waits(target));
    for (size_t i = 0; i < LENGTH(waiters); i++) {
        t[i] = start_named(waiters[i].name, kind, waiters[i].fn, NULL);
        UNTIL(waits(t[i]));
    }
}

static void end_waiters(struct rouse_thread **t)
{
    rouse_mutex_unlock(&mutex);
    rouse_rwlock_write_unlock(&rwlock);
    rouse_cond_signal(&cond);
    rouse_sem_post(&never); /* the target, then t[3] */
    rouse_sem_post(&never);
    rouse_thread_cancel(t[4]);
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    for (size_t i = 0; i < LENGTH(waiters); i++)
        join(t[i]);
}

static FRAME void test_waits(MAYBE_UNUSED void **unused)
{
    for (int kind = ROUSE_KIND_USER; kind <= ROUSE_KIND_KERNEL; kind++) {
        struct rouse_thread *t[LENGTH(waiters)];
        CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
        rouse_mutex_lock(&mutex);
        rouse_rwlock_write_lock(&rwlock);
        start_waiters(t, (enum rouse_kind)kind);
        dump();
        check_waiters(t, (enum rouse_kind)kind);
        end_waiters(t);
        rouse_close(pipe_ends[0]);
        rouse_close(pipe_ends[1]);
    }
}

static void test_blocking_call(MAYBE_UNUSED void **unused)
{
    CHECK(pipe2(pipe_ends, O_CLOEXEC) == 0);
    struct rouse_thread *t = start_named("caller", ROUSE_KIND_USER, call_blocking, NULL);
    UNTIL(waits(t));
    dump();
    CHECK_HAS(t, "waiting for blocking call of read_plainly");
    CHECK_HAS(t, SITES_ARE_KEPT ? "), at call_blocking+" : "), at ");
    CHECK(write(pipe_ends[1], "x", 1) == 1);
    join(t);
    close(pipe_ends[0]);
    close(pipe_ends[1]);
}

static void test_time_is_shown_when_recorded(MAYBE_UNUSED void **unused)
{
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    struct rouse_thread *t = start_named("early", ROUSE_KIND_USER, wait_for_never, NULL);
    UNTIL(waits(t));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    struct rouse_thread *u = start_named("recorded", ROUSE_KIND_USER, wait_for_never, NULL);
    UNTIL(waits(u));
    rouse_sleep(20 * MS);
    dump();
    CHECK(!strstr(part_of(t), ", for "));
    CHECK_HAS(u, ", for ");
    const char *told = strstr(part_of(u), ", for ") + 6;
    CHECK(strtod(told, NULL) >= 0.02 && strtod(told, NULL) < PATIENCE_S);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    dump();
    CHECK(!strstr(part_of(u), ", for "));
    /* Recording is on again: the stamp is from before and may belong to another wait. */
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    dump();
    CHECK(!strstr(part_of(u), ", for "));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    rouse_sem_post(&never);
    rouse_sem_post(&never);
    join(t);
    join(u);
}

/* --- the rest of a dump when a lock disappears */

static void *wait_for_gone(void *value)
{
    rouse_sem_wait(value);
    return NULL;
}

/* A waiter whose object cannot be read, as if it had been unmapped right after a wake-up. */
static void test_object_that_cannot_be_read(MAYBE_UNUSED void **unused)
{
    char *page = mmap(NULL, RSI_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    struct rouse_thread *t = start_named(NULL, ROUSE_KIND_USER, wait_for_gone, page);
    UNTIL(waits(t));
    CHECK(mprotect(page, RSI_PAGE, PROT_NONE) == 0);
    dump();
    CHECK_HAS(t, "waiting for semaphore ");
    CHECK_HAS(t, " rsi_ctx_start+");
    CHECK(mprotect(page, RSI_PAGE, PROT_READ | PROT_WRITE) == 0);
    rouse_sem_post((struct rouse_sem *)(void *)page);
    join(t);
    munmap(page, RSI_PAGE);
}

/* --- threads that do not wait */

static uint32_t stop;

static FRAME void *spin(void *unused)
{
    while (!rsi_load_relaxed(&stop))
        KEEP_FRAME();
    return unused;
}

static void *spin_and_yield(void *unused)
{
    while (!rsi_load_relaxed(&stop))
        rouse_thread_yield();
    return unused;
}

static void test_stuck_workers(MAYBE_UNUSED void **unused)
{
    enum { MOST = 64 };
    struct rouse_thread *t[MOST];
    uint32_t count = rsi_worker_count();
    CHECK(count + 2 <= MOST);
    rsi_store_relaxed(&stop, 0u);
    struct rouse_thread *ended = start_named("ended", ROUSE_KIND_USER, end_at_once, NULL);
    UNTIL(rsi_load_relaxed(&rsi_waiter(ended)->life) == RSI_LIFE_ENDED);
    struct rouse_thread *kernel = start_named("kernel", ROUSE_KIND_KERNEL, spin, NULL);
    for (uint32_t i = 0; i < count; i++) {
        t[i] = start_named("stuck", ROUSE_KIND_USER, spin, NULL);
        UNTIL(rsi_is_running(t[i]));
    }
    t[count] = start_named("hungry", ROUSE_KIND_USER, spin, NULL);
    dump();
    for (uint32_t i = 0; i < count; i++) {
        CHECK_HAS(t[i], ", user: running on worker ");
        CHECK_HAS_FRAME(t[i], ROUSE_KIND_KERNEL, "spin+");
    }
    CHECK_HAS(t[count], ", user: runnable, not started\n    #0 spin+0x0 (");
    CHECK_HAS(kernel, ", kernel, tid ");
    CHECK_HAS(kernel, ": running\n");
    CHECK_HAS(ended, ", user: ended, not joined");
    CHECK_HAS(rouse_thread_self(), ", foreign, tid ");
    CHECK_HAS(rouse_thread_self(), " test_stuck_workers+");
    rsi_store_relaxed(&stop, 1u);
    for (uint32_t i = 0; i <= count; i++)
        join(t[i]);
    join(kernel);
    join(ended);
}

/*
 * Threads of one worker whose turns are too short for a stack walk. The dump must show nearly all
 * of them.
 */
static void take_short_turns(void)
{
    enum { COUNT = 8, ROUNDS = 20 };
    struct rouse_thread *t[COUNT];
    unsigned runnable = 0, missed = 0;
    for (unsigned i = 0; i < COUNT; i++)
        t[i] = start_named("yields", ROUSE_KIND_USER, spin_and_yield, NULL);
    for (unsigned round = 0; round < ROUNDS; round++) {
        dump();
        for (unsigned i = 0; i < COUNT; i++) {
            runnable += strstr(part_of(t[i]), ", user: runnable") != NULL;
            missed += strstr(part_of(t[i]), "the thread runs on too fast") != NULL;
        }
    }
    printf("%u of %u runnable, %u missed\n", runnable, COUNT * ROUNDS, missed);
    scenario_status = runnable > 0 && missed <= COUNT * ROUNDS / 20 ? 0 : 1;
    rsi_store_relaxed(&stop, 1u);
    for (unsigned i = 0; i < COUNT; i++)
        join(t[i]);
}

static void test_short_turns(MAYBE_UNUSED void **unused)
{
#if !defined(RSI_TSAN)
    scenario_exits("take_short_turns", "ROUSE_WORKERS=1", 0);
#endif
}

static FRAME unsigned recurse(unsigned depth)
{
    unsigned result = depth ? recurse(depth - 1) + 1 : (rouse_sem_wait(&never), 0);
    KEEP_FRAME();
    return result;
}

static void *recurse_and_wait(void *unused)
{
    recurse(100);
    return unused;
}

static void test_deep_stack(MAYBE_UNUSED void **unused)
{
    struct rouse_thread *t = start_named(NULL, ROUSE_KIND_USER, recurse_and_wait, NULL);
    UNTIL(waits(t));
    dump();
    CHECK_HAS(t, " recurse+");
    CHECK_HAS(t, "    #63 ");
    CHECK_HAS(t, "\n    ... and more");
    rouse_sem_post(&never);
    join(t);
}

/* --- where the dump goes and which thread requests it */

static void test_reader_that_has_gone(MAYBE_UNUSED void **unused)
{
    int ends[2];
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    close(ends[0]);
    rouse_obs_dump(ends[1]); /* a SIGPIPE would end the test */
    close(ends[1]);
    rouse_obs_dump(-1);
    sigset_t pending;
    CHECK(sigpending(&pending) == 0 && !sigismember(&pending, SIGPIPE));
}

static void *read_slowly(void *value)
{
    int *fd = value;
    size_t length = 0;
    ssize_t got;
    while ((got = read(*fd, text + length, 100)) > 0) {
        length += (size_t)got;
        sched_yield();
    }
    text[length] = 0;
    return NULL;
}

/* More than the pipe holds, to a descriptor that does not block. */
static void test_reader_that_is_slow(MAYBE_UNUSED void **unused)
{
    enum { COUNT = 50 };
    struct rouse_thread *t[COUNT];
    int ends[2];
    for (unsigned i = 0; i < COUNT; i++) {
        t[i] = start_named("one of many", ROUSE_KIND_USER, wait_for_never, NULL);
        UNTIL(waits(t[i]));
    }
    CHECK(pipe2(ends, O_CLOEXEC) == 0);
    CHECK(fcntl(ends[1], F_SETFL, O_NONBLOCK) == 0);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, RSI_PAGE) == RSI_PAGE);
    struct rouse_thread *reader = start(ROUSE_KIND_KERNEL, read_slowly, &ends[0]);
    rouse_obs_dump(ends[1]);
    close(ends[1]);
    join(reader);
    close(ends[0]);
    for (unsigned i = 0; i < COUNT; i++)
        CHECK_HAS(t[i], "waiting for semaphore ");
    for (unsigned i = 0; i < COUNT; i++)
        rouse_sem_post(&never);
    for (unsigned i = 0; i < COUNT; i++)
        join(t[i]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_blocking_call),
        cmocka_unit_test(test_time_is_shown_when_recorded),
        cmocka_unit_test(test_object_that_cannot_be_read),
        cmocka_unit_test(test_stuck_workers),
        cmocka_unit_test(test_short_turns),
        cmocka_unit_test(test_deep_stack),
        cmocka_unit_test(test_reader_that_has_gone),
        cmocka_unit_test(test_reader_that_is_slow),
    };
    static const struct scenario scenarios[] = { { "take_short_turns", take_short_turns } };
    const struct program program = { .limit_s = 120,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    /* A spare worker would start the thread that test_stuck_workers keeps in a queue. */
    CHECK(rouse_configure(&(struct rouse_config){ .spares = -1 }) == 0);
    return program_run(&program, argc, argv);
}
