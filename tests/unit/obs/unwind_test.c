/* SPDX-License-Identifier: MIT */
/*
 * unwind_test.c - backtraces: of the caller's stack, of a parked thread's, from wherever a thread
 * is interrupted, from registers with invalid values; and libgcc's unwinder, which exceptions use,
 * through the switch.
 */
#include "obs_test.h"

#include "obs/signal_unwind.h"
#include "obs/unwind.h"

#include <pthread.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unwind.h>

#define DEPTH 5
static struct rsi_span main_stack;

static struct rsi_span stack_of_this_kernel_thread(void)
{
    pthread_attr_t attr;
    void *low;
    size_t bytes;
    CHECK(pthread_getattr_np(pthread_self(), &attr) == 0);
    CHECK(pthread_attr_getstack(&attr, &low, &bytes) == 0);
    pthread_attr_destroy(&attr);
    return (struct rsi_span){ (uintptr_t)low, (uintptr_t)low + bytes };
}

/* On main() only. */
static FRAME void take(struct rsi_backtrace *backtrace)
{
    struct rsi_span spans[2] = { main_stack, { 0, 0 } };
    ucontext_t context;
    struct rsi_regs regs;
    getcontext(&context);
    rsi_regs_from_context(&regs, &context);
    backtrace->unwound =
        rsi_unwind(&regs, spans, backtrace->frames, RSI_FRAMES_MAX, &backtrace->count);
}

static FRAME void deep(unsigned depth, struct rsi_backtrace *backtrace)
{
    if (depth)
        deep(depth - 1, backtrace);
    else
        take(backtrace);
    KEEP_FRAME();
}

static void test_own_stack(void **unused)
{
    (void)unused;
    struct rsi_backtrace backtrace;
    deep(DEPTH, &backtrace);
    CHECK_EQUAL(backtrace.unwound, RSI_UNWOUND_ALL);
    CHECK(is_in(backtrace.frames[0], "take"));
    for (unsigned i = 1; i <= DEPTH + 1; i++)
        CHECK(is_in(backtrace.frames[i], "deep"));
    CHECK(is_in(backtrace.frames[DEPTH + 2], "test_own_stack"));
    CHECK(is_in(backtrace.frames[backtrace.count - 1], "_start"));
}

static void test_more_frames_than_fit(void **unused)
{
    (void)unused;
    struct rsi_backtrace backtrace;
    deep(2 * RSI_FRAMES_MAX, &backtrace);
    CHECK_EQUAL(backtrace.unwound, RSI_UNWOUND_FULL);
    CHECK_EQUAL(backtrace.count, RSI_FRAMES_MAX);
    CHECK(is_in(backtrace.frames[RSI_FRAMES_MAX - 1], "deep"));
}

/* A name is given only where the symbol's size covers the address. */
static void test_no_name_without_a_symbol(void **unused)
{
    (void)unused;
    const char *in_data = name_of(&symbols_of_test);
    CHECK(strstr(in_data, "+0x") && !strchr(in_data, '('));
    CHECK(strncmp(name_of((const void *)64), "0x40", 5) == 0);
    const char *in_libc = name_of((const char *)(uintptr_t)&getpid + 1);
    CHECK(strstr(in_libc, "getpid+0x1 (libc.so.6+0x"));
}

/* --- a thread that waits */

struct libgcc_walk {
    uintptr_t frames[RSI_FRAMES_MAX];
    size_t count;
};

static _Unwind_Reason_Code on_frame(struct _Unwind_Context *context, void *value)
{
    struct libgcc_walk *walk = value;
    if (walk->count == RSI_FRAMES_MAX)
        return _URC_END_OF_STACK;
    uintptr_t ip = _Unwind_GetIP(context);
    if (ip) /* 0 marks the end */
        walk->frames[walk->count++] = ip;
    return _URC_NO_REASON;
}

static FRAME void walk_by_libgcc(struct libgcc_walk *walk)
{
    walk->count = 0;
    _Unwind_Backtrace(on_frame, walk);
    KEEP_FRAME();
}

static bool is_in_start(uintptr_t ip)
{
    return ip > (uintptr_t)rsi_ctx_start && ip < (uintptr_t)rsi_ctx_start + 64;
}

struct sleeper {
    struct libgcc_walk before, after;
    struct rouse_sem sem;
};

static FRAME void sleep_deep(unsigned depth, struct sleeper *s)
{
    if (depth) {
        sleep_deep(depth - 1, s);
        KEEP_FRAME();
        return;
    }
    walk_by_libgcc(&s->before);
    CHECK_EQUAL(rouse_sem_wait(&s->sem), 0);
    walk_by_libgcc(&s->after);
    KEEP_FRAME();
}

static void *sleeper_main(void *value)
{
    sleep_deep(DEPTH, value);
    KEEP_FRAME();
    return NULL;
}

/* The outer frames, from the caller of the innermost function that both went through. */
static void check_same_callers(const struct rsi_backtrace *parked,
                               const struct libgcc_walk *running)
{
    const unsigned common = DEPTH +
                            1; /* callers of the innermost sleep_deep, and the frames outside it */
    CHECK(parked->count > common && running->count > common);
    for (unsigned i = 1; i <= common; i++) {
        uintptr_t mine = (uintptr_t)parked->frames[parked->count - i];
        CHECK_EQUAL(mine + 1, running->frames[running->count - i]);
    }
}

static void test_parked_thread(void **unused)
{
    (void)unused;
    struct sleeper s = { .sem = ROUSE_SEM_INIT(0) };
    struct rouse_thread *t = start(ROUSE_KIND_USER, sleeper_main, &s);
    struct rsi_inspector inspector = { .tid = 0 };
    struct rsi_inspected seen;
    UNTIL(waits(t));
    CHECK(rsi_inspect(&inspector, t, &seen));
    CHECK(seen.has_backtrace);
    CHECK_EQUAL(seen.backtrace.unwound, RSI_UNWOUND_ALL);
    const void *const *frames = seen.backtrace.frames;
    size_t last = seen.backtrace.count - 1;
    CHECK(is_in_start((uintptr_t)frames[last]));
    CHECK(is_in(frames[last - 1], "thread_main"));
    CHECK(is_in(frames[last - 2], "sleeper_main"));
    CHECK(is_in(frames[last - 3], "sleep_deep"));
    check_same_callers(&seen.backtrace, &s.before);
    rouse_sem_post(&s.sem);
    join(t);
    CHECK_EQUAL(s.before.count, s.after.count);
    CHECK(is_in_start(s.before.frames[s.before.count - 1]));
    CHECK(is_in_start(s.after.frames[s.after.count - 1]));
}

/* --- threads that run */

struct crowd {
    uint32_t stop;
    struct rouse_mutex mutex;
};

/* Calls through everything that switches, through tables and into libc. */
static void *busy_main(void *value)
{
    struct crowd *crowd = value;
    char text[32];
    for (unsigned i = 0; !rsi_load_relaxed(&crowd->stop); i++) {
        rouse_mutex_lock(&crowd->mutex);
        snprintf(text, sizeof text, "%u", i);
        if (i % 4 == 0)
            rouse_thread_yield();
        rouse_mutex_unlock(&crowd->mutex);
        if (i % 64 == 0)
            rouse_sleep(1);
    }
    return NULL;
}

/*
 * Wherever a thread is interrupted, the walk reaches its first frame. The compilers' tables are
 * exact to the instruction on x86-64. Elsewhere the walk must at least not crash, nor under TSan,
 * which delivers signals late with the registers of an earlier time.
 */
static void test_interrupted_anywhere(void **unused)
{
    (void)unused;
    enum { THREADS = 4, SAMPLES = 3000 / (SLOWER * SLOWER) };
    struct crowd crowd = { 0, ROUSE_MUTEX_INIT };
    struct rouse_thread *threads[THREADS];
    unsigned answered = 0, whole = 0;
    for (unsigned i = 0; i < THREADS; i++)
        threads[i] = start(ROUSE_KIND_USER, busy_main, &crowd);
    for (unsigned i = 0; i < SAMPLES; i++) {
        const struct rouse_thread *whose = NULL;
        struct rsi_backtrace backtrace;
        int32_t tid = rsi_load_relaxed(&rsi_rt.workers[i % rsi_worker_count()]->tid);
        if (!rsi_signal_unwind(tid, SECOND, &whose, &backtrace) || !whose)
            continue;
        answered++;
        bool is_whole = backtrace.unwound == RSI_UNWOUND_ALL &&
                        is_in_start((uintptr_t)backtrace.frames[backtrace.count - 1]);
        whole += is_whole;
        for (size_t at = 0; !is_whole && at < backtrace.count; at++)
            printf("broken off: #%zu %s\n", at, name_of(backtrace.frames[at]));
    }
    rsi_store_relaxed(&crowd.stop, 1u);
    for (unsigned i = 0; i < THREADS; i++)
        join(threads[i]);
    printf("%u answers, %u of them whole\n", answered, whole);
#if defined(__x86_64__) && !defined(RSI_TSAN)
    CHECK_EQUAL(answered, whole);
#endif
}

/* --- the caller of a handler was interrupted: its address is no return address */

static struct rsi_backtrace handler_backtrace;
static uintptr_t interrupted_at;

static void on_signal(int number, siginfo_t *info, void *context)
{
    struct rsi_regs regs;
    (void)number;
    (void)info;
    rsi_regs_from_context(&regs, context);
    interrupted_at = regs.ip;
    take(&handler_backtrace);
}

static void test_through_a_signal_frame(MAYBE_UNUSED void **unused)
{
#if defined(__x86_64__) /* AArch64 is tested by an emulator whose signal frames cannot be unwound */
    struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    CHECK(raise(SIGUSR1) == 0);
    CHECK_EQUAL(handler_backtrace.unwound, RSI_UNWOUND_ALL);
    unsigned found = 0;
    for (size_t i = 0; i < handler_backtrace.count; i++)
        found += (uintptr_t)handler_backtrace.frames[i] == interrupted_at;
    CHECK_EQUAL(found, 1);
#else
    (void)on_signal;
#endif
}

/* --- invalid registers */

static void test_invalid_registers(MAYBE_UNUSED void **unused)
{
    enum { WORDS = RSI_PAGE / 8, ROUNDS = 20000 };
    uint64_t random = seed_of_run();
    const void *frames[RSI_FRAMES_MAX];
    uintptr_t code = (uintptr_t)test_invalid_registers;
    /* A stack of one page, with no memory on either side. */
    char *pages = mmap(NULL, 3 * RSI_PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    CHECK(mprotect(pages + RSI_PAGE, RSI_PAGE, PROT_READ | PROT_WRITE) == 0);
    uint64_t *words = (uint64_t *)(void *)(pages + RSI_PAGE);
    uintptr_t low = (uintptr_t)words;
    struct rsi_span spans[2] = { { low, low + RSI_PAGE }, { 0, 0 } };
    for (unsigned round = 0; round < ROUNDS / SLOWER; round++) {
        struct rsi_regs regs = { .ip = code + rsi_random_next(&random) % 65536,
                                 .is_exact = rsi_random_next(&random) % 2,
                                 .known = rsi_random_next(&random) };
        size_t count;
        for (unsigned i = 0; i < RSI_REGS; i++)
            regs.value[i] = low - RSI_PAGE + rsi_random_next(&random) % (3 * RSI_PAGE);
        for (unsigned i = 0; i < WORDS; i++)
            words[i] = rsi_random_next(&random) % 2
                           ? code + rsi_random_next(&random) % 65536
                           : low - RSI_PAGE + rsi_random_next(&random) % (3 * RSI_PAGE);
        rsi_unwind(&regs, spans, frames, RSI_FRAMES_MAX, &count);
        CHECK(count >= 1 && count <= RSI_FRAMES_MAX);
    }
    munmap(pages, 3 * RSI_PAGE);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_own_stack),
        cmocka_unit_test(test_more_frames_than_fit),
        cmocka_unit_test(test_no_name_without_a_symbol),
        cmocka_unit_test(test_parked_thread),
        cmocka_unit_test(test_interrupted_anywhere),
        cmocka_unit_test(test_through_a_signal_frame),
        cmocka_unit_test(test_invalid_registers),
    };
    const struct program program = { .limit_s = 120, .tests = tests, .test_count = LENGTH(tests) };
    main_stack = stack_of_this_kernel_thread();
    return program_run(&program, argc, argv);
}
