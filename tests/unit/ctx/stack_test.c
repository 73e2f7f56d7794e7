/* SPDX-License-Identifier: MIT */
/*
 * stack_test.c - stacks: reserved, guarded in both ways, coloured, reused, and a hundred thousand
 * at once.
 */
#include "unit/core/core_test.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifdef __x86_64__
#define THIS_ARCH AUDIT_ARCH_X86_64
#else
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif
#define MADV_GUARD 102

static struct rouse_sem gate = ROUSE_SEM_INIT(0);
static int probe[2];

/* Whether the kernel can read the byte. It cannot read a guard, however the guard was made. */
static bool is_readable(const char *address)
{
    char byte;
    long result = rsi_syscall3(SYS_write, probe[1], address, 1);
    CHECK(result == 1 || result == -EFAULT);
    if (result == 1)
        CHECK(read(probe[0], &byte, 1) == 1);
    return result == 1;
}

static void open_probe(void)
{
    CHECK(pipe2(probe, O_CLOEXEC) == 0);
}

static void check_guard(const struct rsi_stack *stack)
{
    CHECK(is_readable(stack->low));
    CHECK(is_readable(stack->high - 1));
    CHECK(!is_readable(stack->low - 1));
    CHECK(!is_readable(stack->low - RSI_PAGE));
}

static void classes_are_powers_of_two(void **state)
{
    (void)state;
    CHECK_EQUAL(rsi_stack_class(1), 0);
    CHECK_EQUAL(rsi_stack_class(RSI_STACK_BYTES_MIN), 0);
    CHECK_EQUAL(rsi_stack_class(RSI_STACK_BYTES_MIN + 1), 1);
    CHECK_EQUAL(rsi_stack_class(RSI_STACK_BYTES_DEFAULT), RSI_STACK_CLASS_DEFAULT);
    CHECK_EQUAL(rsi_stack_class(RSI_STACK_BYTES_MAX), RSI_STACK_CLASSES - 1);
    for (unsigned class = 0; class < RSI_STACK_CLASSES; class ++)
        CHECK_EQUAL(rsi_stack_class(rsi_stack_class_bytes(class)), class);
}

static void a_reserved_stack_can_be_taken(void **state)
{
    (void)state;
    enum { COUNT = 600 };
    struct rsi_stack stacks[COUNT];
    for (unsigned class = 0; class < 6; class ++) {
        CHECK(rsi_stack_reserve(class, COUNT));
        for (int i = 0; i < COUNT; i++) {
            stacks[i] = rsi_stack_take(class);
            char *low = stacks[i].low, *high = stacks[i].high;
            CHECK((uintptr_t)high % 64 == 0 && (uintptr_t)low % RSI_PAGE == 0);
            CHECK((size_t)(high - low) <= rsi_stack_class_bytes(class));
            CHECK((size_t)(high - low) > rsi_stack_class_bytes(class) - RSI_PAGE);
            struct rsi_stack again = rsi_stack_of(class, high);
            CHECK(again.low == low && again.high == high);
            low[0] = high[-1] = 1;
            if (i % 50 == 0)
                check_guard(&stacks[i]);
        }
        for (int i = 0; i < COUNT; i++)
            rsi_stack_give(class, stacks[i]);
        rsi_stack_unreserve(class, COUNT);
        /* Free warm stacks are used first, and no new stack is mapped for as many threads. */
        CHECK(rsi_stack_reserve(class, COUNT));
        CHECK(rsi_stack_take(class).high == stacks[COUNT - 1].high);
        rsi_stack_give(class, stacks[COUNT - 1]);
        rsi_stack_unreserve(class, COUNT);
    }
}

static void neighbours_have_different_colours(void **state)
{
    (void)state;
    enum { CLASS = 3, COUNT = 320 };
    unsigned seen[RSI_PAGE / 64] = { 0 }, colours = 0;
    struct rsi_stack stacks[COUNT];
    CHECK(rsi_stack_reserve(CLASS, COUNT));
    for (int i = 0; i < COUNT; i++) {
        stacks[i] = rsi_stack_take(CLASS);
        unsigned colour = (unsigned)((uintptr_t)stacks[i].high % RSI_PAGE / 64);
        colours += seen[colour]++ == 0;
    }
    CHECK(colours >= 32);
    for (unsigned i = 0; i < LENGTH(seen); i++)
        CHECK(seen[i] <= COUNT / 16);
    for (int i = 0; i < COUNT; i++)
        rsi_stack_give(CLASS, stacks[i]);
    rsi_stack_unreserve(CLASS, COUNT);
}

static void *wait_at_gate(void *arg)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    return arg;
}

/* Create up to count threads that wait. Returns how many there are. */
static size_t crowd_gather(struct rouse_thread **threads, size_t count, int *error)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    *error = 0;
    for (size_t i = 0; i < count; i++) {
        *error = rouse_thread_create(&threads[i], &attr, wait_at_gate, &threads[i]);
        if (*error)
            return i;
    }
    return count;
}

static void crowd_check(struct rouse_thread **threads, size_t count)
{
    for (size_t i = 0; i < count; i++)
        UNTIL(waits(threads[i]));
    for (size_t i = 0; i < count; i += 97)
        check_guard(&threads[i]->stack);
}

static void crowd_leave(struct rouse_thread **threads, size_t count)
{
    for (size_t i = 0; i < count; i++)
        rouse_sem_post(&gate);
    for (size_t i = 0; i < count; i++)
        CHECK(join(threads[i]) == &threads[i]);
}

static struct rouse_thread *crowd[100000];

static void a_hundred_thousand_at_once(void)
{
    open_probe();
    int error;
    size_t count = LENGTH(crowd) / SLOWER / SLOWER;
    CHECK(rsi_stack_guards_are_light());
    CHECK_EQUAL(crowd_gather(crowd, count, &error), count);
    crowd_check(crowd, count);
    crowd_leave(crowd, count);
    CHECK_EQUAL(crowd_gather(crowd, count, &error), count); /* on the same stacks */
    crowd_leave(crowd, count);
}

static void a_hundred_thousand_threads_have_guarded_stacks(void **state)
{
    (void)state;
    if (!rsi_stack_guards_are_light()) {
        printf("not run: this kernel has no MADV_GUARD_INSTALL\n");
        return;
    }
    scenario_exits("a_hundred_thousand_at_once", NULL, 0);
}

/* A kernel without light guards: madvise fails, or returns 0 without effect, as emulators do. */
static void forbid_light_guards(unsigned errno_value)
{
    const unsigned advice = offsetof(struct seccomp_data, args[2]);
    const unsigned advice_of_process = offsetof(struct seccomp_data, args[3]);
    const unsigned refuse = SECCOMP_RET_ERRNO | errno_value;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 2),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, advice),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_GUARD, 3, 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, advice_of_process),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_GUARD, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, refuse),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { LENGTH(filter), filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        printf("not run: no system call filter can be installed here\n");
        exit(NOT_RUN);
    }
}

static void guard_by_mprotect(unsigned errno_value)
{
    forbid_light_guards(errno_value);
    open_probe();
    int error;
    size_t count = 2000;
    CHECK_EQUAL(crowd_gather(crowd, count, &error), count);
    CHECK(!rsi_stack_guards_are_light());
    crowd_check(crowd, count);
    crowd_leave(crowd, count);
}

static void guards_where_madvise_fails(void)
{
    guard_by_mprotect(EINVAL);
}

static void guards_where_madvise_lies(void)
{
    guard_by_mprotect(0);
}

static void *fall_down(void *arg)
{
    volatile char frame[1000];
    frame[0] = 1;
    void *below = arg ? fall_down(arg) : arg;
    return frame[0] ? below : NULL;
}

static void check_that_filters_work(void)
{
    forbid_light_guards(EINVAL);
}

static void overflow_of_an_mprotect_guard(void)
{
    forbid_light_guards(EINVAL);
    join(start(ROUSE_KIND_USER, fall_down, &gate));
}

/* The limit is 65,530 mappings, and each stack uses two. */
static void more_stacks_than_mappings(void)
{
    forbid_light_guards(EINVAL);
    open_probe();
    int error;
    size_t count = crowd_gather(crowd, LENGTH(crowd), &error);
    printf("%zu threads\n", count);
    CHECK_EQUAL(error, -ENOMEM);
    CHECK(count > 10000);
    crowd_check(crowd, count);
    struct rouse_thread *t;
    CHECK_EQUAL(rouse_thread_create(&t, NULL, wait_at_gate, NULL), -ENOMEM);
    crowd_leave(crowd, count);
    /* No stack was lost, except those that workers keep ready for threads that they create. */
    size_t again = crowd_gather(crowd, count, &error);
    CHECK(again + 128 * (size_t)rouse_worker_count() >= count);
    crowd_leave(crowd, again);
}

/* False: it was not run. */
static bool scenario_exits_or_is_not_run(const char *name)
{
    static struct outcome outcome;
    scenario_run(name, NULL, &outcome);
    bool is_not_run = WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == NOT_RUN;
    if (is_not_run || outcome.status != 0)
        scenario_show(name, &outcome);
    CHECK(is_not_run || outcome.status == 0);
    return !is_not_run;
}

static void guards_without_light_ones(void **state)
{
    (void)state;
    scenario_exits_or_is_not_run("guards_where_madvise_fails");
    scenario_exits_or_is_not_run("guards_where_madvise_lies");
    if (scenario_exits_or_is_not_run("check_that_filters_work"))
        scenario_dies("overflow_of_an_mprotect_guard", NULL, SIGSEGV, "stack overflow");
}

static void creation_fails_where_mappings_run_out(void **state)
{
    (void)state;
#if defined(RSI_ASAN) || defined(RSI_TSAN)
    printf("not run: the sanitizer itself needs mappings, and ends the program without them\n");
    return;
#endif
    scenario_exits_or_is_not_run("more_stacks_than_mappings");
}

int main(int argc, char **argv)
{
#define SCENARIO(name) \
    { \
#name, name \
    }
    static const struct scenario scenarios[] = {
        SCENARIO(a_hundred_thousand_at_once), SCENARIO(guards_where_madvise_fails),
        SCENARIO(guards_where_madvise_lies),  SCENARIO(overflow_of_an_mprotect_guard),
        SCENARIO(more_stacks_than_mappings),  SCENARIO(check_that_filters_work),
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_are_powers_of_two),
        cmocka_unit_test(a_reserved_stack_can_be_taken),
        cmocka_unit_test(neighbours_have_different_colours),
        cmocka_unit_test(a_hundred_thousand_threads_have_guarded_stacks),
        cmocka_unit_test(guards_without_light_ones),
        cmocka_unit_test(creation_fails_where_mappings_run_out),
    };
    static const struct program program = { 100,           false,     tests,
                                            LENGTH(tests), scenarios, LENGTH(scenarios) };
    open_probe();
    return program_run(&program, argc, argv);
}
