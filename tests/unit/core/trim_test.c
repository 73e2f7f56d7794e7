/* SPDX-License-Identifier: MIT */
/*
 * trim_test.c - the memory of parked threads' stacks and of free stacks, and no other memory, is
 * returned to the kernel.
 */
#include "core_test.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define DEEP_BYTES (40 * 1024)
#define DEEP_PAGES (DEEP_BYTES / RSI_PAGE)

static struct rouse_sem gate = ROUSE_SEM_INIT(0), again = ROUSE_SEM_INIT(0);
static uint32_t stop;

/* Touch that many bytes of stack below the caller. */
static RSI_NOINLINE void dive(void)
{
    volatile char frame[DEEP_BYTES];
    for (size_t i = 0; i < sizeof frame; i += 512)
        frame[i] = 1;
}

static RSI_NOINLINE void wait_with_data(struct rouse_sem *sem)
{
    volatile unsigned char kept[3000];
    for (size_t i = 0; i < sizeof kept; i++)
        kept[i] = (unsigned char)(i * 7);
    CHECK_EQUAL(rouse_sem_wait(sem), 0);
    for (size_t i = 0; i < sizeof kept; i++)
        CHECK_EQUAL(kept[i], (unsigned char)(i * 7));
}

static void *dive_and_wait(void *arg)
{
    dive();
    wait_with_data(arg);
    return NULL;
}

static size_t resident(struct rouse_thread *t)
{
    char *end = (char *)rsi_round_up((uintptr_t)t->stack.high, RSI_PAGE);
    return rsi_stack_resident(t->stack.low, end);
}

static struct rouse_thread *start_deep(struct rouse_sem *sem)
{
    struct rouse_thread *t = start(ROUSE_KIND_USER, dive_and_wait, sem);
    UNTIL(waits(t));
    CHECK(resident(t) >= DEEP_BYTES);
    return t;
}

static void end_deep(struct rouse_thread *t, struct rouse_sem *sem)
{
    rouse_sem_post(sem);
    join(t);
}

static void a_parked_thread_keeps_the_stack_that_it_uses(void **state)
{
    (void)state;
    rouse_stacks_trim(0);
    struct rouse_thread *t = start_deep(&gate);
    size_t before = resident(t);
    size_t given = rouse_stacks_trim(0);
    CHECK_EQUAL(before - resident(t), given);
    CHECK(resident(t) <= 3 * RSI_PAGE);
    CHECK_EQUAL(rouse_stacks_trim(0), 0);
    end_deep(t, &gate);
}

static void *dive_twice(void *arg)
{
    dive_and_wait(arg);
    return dive_and_wait(&again);
}

static void only_old_waits_are_trimmed_when_an_age_is_given(void **state)
{
    (void)state;
    struct rouse_thread *old = start_deep(&gate);
    struct rouse_thread *renewed = start(ROUSE_KIND_USER, dive_twice, &gate);
    UNTIL(waits(renewed));
    rouse_stacks_trim(1); /* whatever was marked before */
    rouse_stacks_trim(1);
    CHECK(resident(old) <= 3 * RSI_PAGE && resident(renewed) <= 3 * RSI_PAGE);
    CHECK_EQUAL(rouse_sem_wait_until(&again, 0), -ETIMEDOUT);
    /*
     * The gate is first in, first out: the old threads go. Nothing is trimmed at first from the
     * threads that wait again.
     */
    end_deep(old, &gate);
    rouse_sem_post(&gate);
    UNTIL(waits(renewed) &&
          rsi_load_relaxed((uintptr_t *)&renewed->waiter.record.object) == (uintptr_t)&again);
    CHECK(resident(renewed) >= DEEP_BYTES);
    size_t deep = resident(renewed);
    rouse_stacks_trim(3600 * SECOND); /* too early: no stack is checked */
    CHECK_EQUAL(resident(renewed), deep);
    rouse_stacks_trim(1); /* sees this wait for the first time */
    CHECK_EQUAL(resident(renewed), deep);
    rouse_stacks_trim(1);
    CHECK(resident(renewed) <= 3 * RSI_PAGE);
    end_deep(renewed, &again);
}

static void *run_deep(void *arg)
{
    uint32_t *runs = arg;
    volatile char frame[DEEP_BYTES];
    for (size_t i = 0; i < sizeof frame; i += 512)
        frame[i] = 1;
    rsi_store_release(runs, 1u);
    while (!rsi_load_acquire(&stop))
        for (size_t i = 0; i < sizeof frame; i += 512)
            CHECK_EQUAL(frame[i], 1);
    return NULL;
}

static void a_running_thread_is_left_alone(void **state)
{
    (void)state;
    uint32_t runs = 0;
    rsi_store_relaxed(&stop, 0u);
    struct rouse_thread *t = start(ROUSE_KIND_USER, run_deep, &runs);
    UNTIL(rsi_load_acquire(&runs));
    for (int i = 0; i < 100; i++)
        rouse_stacks_trim(0);
    CHECK(resident(t) >= DEEP_BYTES);
    rsi_store_release(&stop, 1u);
    join(t);
}

static int by_address(const void *a, const void *b)
{
    char *const *one = a, *const *other = b;
    return (*one > *other) - (*one < *other);
}

/* Take all free stacks and write on each. The list is sorted. */
static void take_all(unsigned class, char **tops, int count)
{
    for (int i = 0; i < count; i++) {
        struct rsi_stack stack = rsi_stack_take(class);
        tops[i] = stack.high;
        stack.low[0] = stack.high[-64] = 1;
    }
    qsort(tops, (size_t)count, sizeof *tops, by_address);
    for (int i = 1; i < count; i++)
        CHECK(tops[i] != tops[i - 1]);
}

static void free_stacks_have_no_memory_and_are_used_again(void **state)
{
    (void)state;
    enum { CLASS = 1, COUNT = 1500 };
    static char *tops[COUNT], *others[COUNT];
    CHECK(rsi_stack_reserve(CLASS, COUNT));
    take_all(CLASS, tops, COUNT);
    rouse_stacks_trim(0);
    for (int i = 0; i < COUNT; i++)
        rsi_stack_give(CLASS, rsi_stack_of(CLASS, tops[i]));
    size_t given = rouse_stacks_trim(0);
    /*
     * Two pages of each stack were touched. The list of the other stacks stays in one page of 257.
     * TSan's fibers take memory too.
     */
#ifdef RSI_TSAN
    CHECK(given == (size_t)COUNT * RSI_PAGE);
#else
    CHECK(given >= (size_t)(2 * COUNT - COUNT / 257 - 2) * RSI_PAGE);
    CHECK(given < (size_t)2 * COUNT * RSI_PAGE);
#endif
    CHECK_EQUAL(rouse_stacks_trim(0), 0);
    take_all(CLASS, others, COUNT);
    CHECK(memcmp(tops, others, sizeof tops) == 0);
    for (int i = 0; i < COUNT; i++)
        rsi_stack_give(CLASS, rsi_stack_of(CLASS, others[i]));
    rsi_stack_unreserve(CLASS, COUNT);
}

static void *count_one(void *arg)
{
    dive();
    rsi_fetch_add_relaxed((uint32_t *)arg, 1u);
    return NULL;
}

static void threads_start_on_trimmed_stacks(void **state)
{
    (void)state;
    enum { COUNT = 1000 };
    static struct rouse_thread *threads[COUNT];
    for (int round = 0; round < 3; round++) {
        uint32_t count = 0;
        for (int i = 0; i < COUNT; i++)
            threads[i] = start(ROUSE_KIND_USER, count_one, &count);
        for (int i = 0; i < COUNT; i++)
            join(threads[i]);
        CHECK_EQUAL(count, COUNT);
        rouse_stacks_trim(0);
    }
}

static void *trim_once(void *arg)
{
    struct rouse_thread *t = start_deep(&gate);
    (void)arg;
    /* Another thread of this test may be trimming at the same time. */
    UNTIL((rouse_stacks_trim(0), resident(t) <= 3 * RSI_PAGE));
    end_deep(t, &gate);
    return NULL;
}

static void every_kind_of_thread_may_trim(void **state)
{
    (void)state;
    in_every_kind(trim_once, NULL);
}

static void a_forked_child_trims_its_own(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    printf("not run: the thread sanitizer has no threads in a child of a program with threads\n");
    return;
#endif
    if (is_emulated()) {
        puts("not run: the emulator's own locks stay in a child as the fork found them");
        return;
    }
    struct rouse_thread *t = start_deep(&gate);
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        trim_once(NULL);
        _exit(0);
    }
    CHECK(child_passed(pid));
    end_deep(t, &gate);
}

/*
 * The two ends of a TCP connection. Urgent data makes poll return POLLPRI, as a pressure trigger of
 * the kernel does.
 */
static void connect_pair(int ends[2])
{
    struct sockaddr_in address = { .sin_family = AF_INET };
    socklen_t length = sizeof address;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    CHECK(connect(ends[0], (struct sockaddr *)&address, length) == 0);
    ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(ends[1] >= 0);
    close(listener);
}

static void a_pressure_event_of_the_kernel_trims(void **state)
{
    (void)state;
    int ends[2];
    char byte;
    struct rouse_thread *t = start_deep(&gate);
    connect_pair(ends);
    CHECK_EQUAL(rsi_pressure_watch(dup(ends[1])), 0);
    CHECK_EQUAL(rsi_pressure_threads(), 1);
    CHECK_EQUAL(rsi_pressure_watch(dup(ends[1])), 0); /* it is so already */
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(send(ends[0], "!", 1, MSG_OOB), 1);
        UNTIL(resident(t) <= 3 * RSI_PAGE);
        CHECK_EQUAL(recv(ends[1], &byte, 1, MSG_OOB), 1);
        end_deep(t, &gate);
        t = start(ROUSE_KIND_USER, dive_and_wait, &gate); /* the last trim may still be running */
        UNTIL(waits(t));
    }
    end_deep(t, &gate);
    shutdown(ends[0], SHUT_RDWR); /* POLLHUP: the watch ends, and another may begin */
    shutdown(ends[1], SHUT_RDWR);
    UNTIL(rsi_pressure_threads() == 0);
    close(ends[0]);
    close(ends[1]);
}

/* The error that the manual page names where pressure cannot be watched, or not by this process. */
static void check_no_pressure_told(int error)
{
    CHECK(error == -ENOENT || error == -EOPNOTSUPP || error == -EACCES || error == -EPERM);
    printf("not run: no pressure stall information here (%d)\n", error);
}

static void a_call_starts_the_watch_for_pressure(void **state)
{
    (void)state;
    int error = rouse_stacks_trim_on_pressure();
    if (error) {
        check_no_pressure_told(error);
        return;
    }
    CHECK_EQUAL(rsi_pressure_threads(), 1);
    CHECK_EQUAL(rouse_stacks_trim_on_pressure(), 0);
#ifdef RSI_TSAN
    printf("not run: the thread sanitizer has no threads in a child of a program with threads\n");
    return;
#endif
    if (is_emulated()) {
        puts("not run: the emulator's own locks stay in a child as the fork found them");
        return;
    }
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        CHECK_EQUAL(rsi_pressure_threads(), 0);
        CHECK_EQUAL(rouse_stacks_trim_on_pressure(), 0);
        CHECK_EQUAL(rsi_pressure_threads(), 1);
        _exit(0);
    }
    CHECK(child_passed(pid));
}

static void start_runtime(void)
{
    trim_once(NULL);
    scenario_status = (int)rsi_pressure_threads();
}

static void the_environment_starts_the_watch_for_pressure(void **state)
{
    (void)state;
    scenario_exits("start", "ROUSE_TRIM=off", 0);
    scenario_dies("start", "ROUSE_TRIM=never", SIGABRT, "give off or pressure");
    int fd = open("/proc/pressure/memory", O_RDWR | O_CLOEXEC);
    if (fd < 0)
        check_no_pressure_told(-errno);
    else
        scenario_exits("start", "ROUSE_TRIM=pressure", 1);
    close(fd);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_parked_thread_keeps_the_stack_that_it_uses),
        cmocka_unit_test(only_old_waits_are_trimmed_when_an_age_is_given),
        cmocka_unit_test(a_running_thread_is_left_alone),
        cmocka_unit_test(free_stacks_have_no_memory_and_are_used_again),
        cmocka_unit_test(threads_start_on_trimmed_stacks),
        cmocka_unit_test(every_kind_of_thread_may_trim),
        cmocka_unit_test(a_forked_child_trims_its_own),
        cmocka_unit_test(a_pressure_event_of_the_kernel_trims),
        cmocka_unit_test(a_call_starts_the_watch_for_pressure),
        cmocka_unit_test(the_environment_starts_the_watch_for_pressure),
    };
    static const struct scenario scenarios[] = { { "start", start_runtime } };
    static const struct program program = { 60,        true,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
