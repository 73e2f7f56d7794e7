/* SPDX-License-Identifier: MIT */
/*
 * signal_test.c - signals: handlers on threads' stacks and in the middle of switches, calls that a
 * signal does not cut short, masks, sigwait.
 */
#include "core_test.h"

#include <pthread.h>
#include <sys/time.h>

static const enum rouse_kind kinds[] = { ROUSE_KIND_USER, ROUSE_KIND_KERNEL };

static uint32_t caught; /* by any kernel thread */
static uint32_t stop;

static void count_signal(int number)
{
    (void)number;
    rsi_fetch_add_relaxed(&caught, 1u);
}

static void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = { .sa_handler = handler, .sa_flags = flags };
    sigemptyset(&action.sa_mask);
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void storm(uint64_t period_ns)
{
    struct timeval period = { 0, (suseconds_t)(period_ns / 1000) };
    struct itimerval timer = { period, period };
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
}

static struct rouse_sem sems[2] = { ROUSE_SEM_INIT(0), ROUSE_SEM_INIT(0) };

static void *play(void *arg)
{
    int mine = (int)(intptr_t)arg;
    while (!rsi_load_relaxed(&stop)) {
        CHECK_EQUAL(rouse_sem_wait(&sems[mine]), 0);
        rouse_sem_post(&sems[!mine]);
    }
    rouse_sem_post(&sems[!mine]);
    return NULL;
}

static void *give_back(void *arg)
{
    return arg;
}

static void *yield_and_spawn(void *arg)
{
    volatile double sum = 0; /* state that neither a handler nor a switch may change */
    double kept = 1;
    for (int i = 0; !rsi_load_relaxed(&stop); i++) {
        kept = kept * 1.0000001 + 1;
        sum = kept;
        rouse_thread_yield();
        CHECK(sum == kept);
        if (i % 64 == 0)
            CHECK(join(start(ROUSE_KIND_USER, give_back, &stop)) == &stop);
    }
    return arg;
}

static void *sleep_exactly(void *arg)
{
    while (!rsi_load_relaxed(&stop)) {
        uint64_t deadline = rouse_now_ns() + 300 * US;
        CHECK_EQUAL(rouse_sleep_until(deadline), 0);
        CHECK(rouse_now_ns() >= deadline);
    }
    return arg;
}

static void switch_in_the_storm(int flags)
{
    struct rouse_thread *threads[16];
    rsi_store_relaxed(&caught, 0u);
    rsi_store_relaxed(&stop, 0u);
    handle(SIGALRM, count_signal, flags);
    for (int i = 0; i < 2; i++)
        threads[i] = start(kinds[0], play, (void *)(intptr_t)i);
    rouse_sem_post(&sems[0]);
    for (int i = 2; i < 12; i++)
        threads[i] = start(kinds[0], yield_and_spawn, NULL);
    for (int i = 12; i < 16; i++)
        threads[i] = start(kinds[i % 2], sleep_exactly, NULL);
    storm(50 * US);
    UNTIL(rsi_load_relaxed(&caught) >= 800 / SLOWER);
    storm(0);
    rsi_store_relaxed(&stop, 1u);
    for (int i = 0; i < 16; i++)
        join(threads[i]);
    while (rouse_sem_wait_try(&sems[0]) == 0 || rouse_sem_wait_try(&sems[1]) == 0)
        ;
}

static void handlers_in_the_middle_of_switches(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    printf(
        "not run: the thread sanitizer puts signals off, and takes a thread's errno for another's\n");
    return;
#endif
    switch_in_the_storm(SA_RESTART);
    switch_in_the_storm(0);
    switch_in_the_storm(SA_ONSTACK);
}

static void *wait_undisturbed(void *unused)
{
    uint64_t deadline = rouse_now_ns() + 5 * MS;
    CHECK_EQUAL(rouse_sleep_until(deadline), 0);
    CHECK(rouse_now_ns() >= deadline);
    deadline = rouse_now_ns() + 5 * MS;
    CHECK_EQUAL(rouse_sem_wait_until(&sems[0], deadline), -ETIMEDOUT);
    CHECK(rouse_now_ns() >= deadline);
    join(start(ROUSE_KIND_KERNEL, sleep_exactly, NULL));
    return unused;
}

static void waits_are_not_cut_short(void **state)
{
    (void)state;
    rsi_store_relaxed(&caught, 0u);
    handle(SIGALRM, count_signal, 0); /* without SA_RESTART */
    rsi_store_relaxed(&stop, 1u);     /* sleep_exactly ends at once */
    storm(50 * US);
    in_every_kind(wait_undisturbed, NULL);
    UNTIL(rsi_load_relaxed(&caught) > 10);
    storm(0);
}

static void *on_thread_stack(void *unused)
{
    rsi_store_relaxed(&caught, 0u);
    CHECK(raise(SIGUSR1) == 0); /* handled before raise returns */
    CHECK_EQUAL(rsi_load_relaxed(&caught), 1);
    return unused;
}

static volatile uintptr_t handler_frame;

static void note_frame(int number)
{
    (void)number;
    char here;
    handler_frame = (uintptr_t)&here;
}

static void *compare_frames(void *unused)
{
    struct rouse_thread *self = rouse_thread_self();
    handle(SIGUSR2, note_frame, 0);
    CHECK(raise(SIGUSR2) == 0);
    uintptr_t low = (uintptr_t)self->stack.low, high = (uintptr_t)self->stack.high;
    CHECK(handler_frame >= low && handler_frame < high);
    handle(SIGUSR2, note_frame, SA_ONSTACK); /* the worker's signal stack */
    CHECK(raise(SIGUSR2) == 0);
    CHECK(handler_frame < low || handler_frame >= high);
    return unused;
}

static void handlers_run_on_the_threads_stack_or_the_workers(void **state)
{
    (void)state;
    handle(SIGUSR1, count_signal, 0);
    in_every_kind(on_thread_stack, NULL);
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.stack_bytes = 32768;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, compare_frames, NULL), 0);
    join(t);
}

/*
 * The signal is blocked in main() before the first call of rouse, so only the thread that waits for
 * it receives it.
 */

static void *wait_for_signal(void *arg)
{
    sigset_t set;
    int number = 0;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(sigwait(&set, &number) == 0);
    CHECK_EQUAL(number, SIGTERM);
    return arg;
}

static void *wait_for_signal_on_helper(void *unused)
{
    CHECK_EQUAL(rouse_blocking(wait_for_signal, NULL, NULL), 0);
    return unused;
}

static void *yield_for_ever(void *unused)
{
    while (!rsi_load_relaxed(&stop))
        rouse_thread_yield();
    return unused;
}

static void blocked_signal_is_waited_for(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &set, NULL) == 0);
    struct rouse_thread *busy = start(ROUSE_KIND_USER, yield_for_ever, NULL);
    struct rouse_thread *waiters[] = {
        start(ROUSE_KIND_KERNEL, wait_for_signal, NULL),
        start(ROUSE_KIND_USER, wait_for_signal_on_helper, NULL),
    };
    for (size_t i = 0; i < LENGTH(waiters); i++) {
        CHECK_EQUAL(rouse_sleep(20 * MS), 0);
        CHECK(kill(getpid(), SIGTERM) == 0); /* one of the threads receives it */
        int error = -EBUSY;
        while (error == -EBUSY)
            for (size_t j = 0; j < LENGTH(waiters) && error == -EBUSY; j++)
                if (waiters[j] && (error = rouse_thread_join_try(waiters[j], NULL)) == 0)
                    waiters[j] = NULL;
        CHECK_EQUAL(error, 0);
    }
    rsi_store_relaxed(&stop, 1u);
    join(busy);
}

static void a_blocked_signal_reaches_the_thread_that_waits_for_it(void **state)
{
    (void)state;
    scenario_exits("blocked_signal_is_waited_for", NULL, 0);
}

/*
 * The runtime leaves signal masks unchanged, except for its own signal on threads that it has
 * created.
 */
static void *look_at_mask(void *unused)
{
    sigset_t mask;
    CHECK_EQUAL(rouse_sleep(1000), 0);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    for (int number = 1; number < SIGRTMAX - 2; number++)
        if (number != SIGKILL && number != SIGSTOP && number != 32 && number != 33)
            CHECK_EQUAL(sigismember(&mask, number), number == SIGHUP);
    return unused;
}

static void mask_is_inherited(void)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGHUP);
    CHECK(pthread_sigmask(SIG_SETMASK, &set, NULL) == 0);
    in_every_kind(look_at_mask, NULL);
}

static void workers_inherit_the_mask_of_their_creator(void **state)
{
    (void)state;
    scenario_exits("mask_is_inherited", NULL, 0);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "blocked_signal_is_waited_for", blocked_signal_is_waited_for },
        { "mask_is_inherited", mask_is_inherited },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(handlers_in_the_middle_of_switches),
        cmocka_unit_test(waits_are_not_cut_short),
        cmocka_unit_test(handlers_run_on_the_threads_stack_or_the_workers),
        cmocka_unit_test(a_blocked_signal_reaches_the_thread_that_waits_for_it),
        cmocka_unit_test(workers_inherit_the_mask_of_their_creator),
    };
    static const struct program program = { 60,        true,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
