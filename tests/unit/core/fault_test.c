/* SPDX-License-Identifier: MIT */
/*
 * fault_test.c - a stack overflow ends the program with one line that names the thread. The program
 * may handle all other faults.
 */
#include "core_test.h"

#include <linux/close_range.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static struct rouse_thread *start_named(enum rouse_kind kind, void *(*fn)(void *), size_t bytes)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    attr.name = "Icarus";
    attr.stack_bytes = bytes;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, fn, NULL), 0);
    return t;
}

static void *nothing(void *unused)
{
    return unused;
}

/* Overflows. */

static volatile char sink;

static __attribute__((noinline)) int fall(int depth)
{
    volatile char frame[200];
    frame[0] = (char)depth;
    if (depth < 0)
        return frame[0];
    int below = fall(depth + 1);
    sink = frame[0];
    return below + 1;
}

static void *fall_down(void *unused)
{
    (void)unused;
    return (void *)(intptr_t)fall(0);
}

/*
 * Frames larger than the guard: the compiler makes the code touch each page on the way (stack clash
 * protection).
 */
static __attribute__((noinline)) int leap(int depth, size_t bytes)
{
    volatile char *frame = __builtin_alloca(bytes);
    frame[0] = (char)depth;
    if (depth > 1000000)
        return frame[0];
    int below = leap(depth + 1, bytes);
    sink = frame[0];
    return below + 1;
}

static void *leap_down(void *unused)
{
    (void)unused;
    return (void *)(intptr_t)leap(0, 40000);
}

static void user_thread_overflows(void)
{
    join(start_named(ROUSE_KIND_USER, fall_down, 0));
}

static void small_user_thread_overflows(void)
{
    join(start_named(ROUSE_KIND_USER, fall_down, 16384));
}

static void large_user_thread_overflows(void)
{
    join(start_named(ROUSE_KIND_USER, fall_down, 1 << 22));
}

static void user_thread_leaps(void)
{
    join(start_named(ROUSE_KIND_USER, leap_down, 0));
}

static void kernel_thread_overflows(void)
{
    join(start_named(ROUSE_KIND_KERNEL, fall_down, 0));
}

static void small_kernel_thread_overflows(void)
{
    join(start_named(ROUSE_KIND_KERNEL, fall_down, 65536));
}

static void kernel_thread_leaps(void)
{
    join(start_named(ROUSE_KIND_KERNEL, leap_down, 1 << 20));
}

static void *overflow_on_a_helper(void *unused)
{
    CHECK_EQUAL(rouse_blocking(fall_down, unused, NULL), 0);
    return unused;
}

static void helper_overflows(void)
{
    join(start_named(ROUSE_KIND_USER, overflow_on_a_helper, 0));
}

static void *overflow_after_moves(void *unused)
{
    for (int i = 0; i < 100; i++)
        rouse_sleep(20 * US);
    return fall_down(unused);
}

static void moved_thread_overflows(void)
{
    for (int i = 0; i < 50; i++)
        start(ROUSE_KIND_USER, overflow_after_moves, NULL);
    join(start_named(ROUSE_KIND_USER, overflow_after_moves, 0));
}

static void an_overflow_is_reported_and_ends_the_program(void **state)
{
    (void)state;
    static const char text[] = "stack overflow", name[] = "\"Icarus\"";
    static const char *const names[] = {
        "user_thread_overflows",       "small_user_thread_overflows",
        "large_user_thread_overflows", "user_thread_leaps",
        "kernel_thread_overflows",     "small_kernel_thread_overflows",
        "kernel_thread_leaps",         "helper_overflows",
    };
    for (size_t i = 0; i < LENGTH(names); i++) {
        scenario_dies(names[i], NULL, SIGSEGV, text);
        scenario_dies(names[i], "ROUSE_WORKERS=1", SIGSEGV, name);
    }
    scenario_dies("moved_thread_overflows", "ROUSE_WORKERS=4", SIGSEGV, text);
}

/* A thread like the monitor, without descriptors. */
static void *die_without_descriptors(void *unused)
{
    CHECK_EQUAL(syscall(SYS_close_range, 0, ~0u, CLOSE_RANGE_UNSHARE), 0);
    rsi_fatal("heard from afar");
    return unused;
}

static void thread_without_descriptors_dies(void)
{
    join(start_named(ROUSE_KIND_KERNEL, die_without_descriptors, 0));
}

static void an_overflow_is_reported_from_a_thread_without_descriptors(void **state)
{
    (void)state;
    scenario_dies("thread_without_descriptors_dies", NULL, SIGABRT, "rouse: heard from afar");
}

/* Other faults. */

static void *fault_at_once(void *unused)
{
    *(volatile char *)(uintptr_t)4096 = 1;
    return unused;
}

static void user_thread_faults(void)
{
    join(start_named(ROUSE_KIND_USER, fault_at_once, 0));
}

static void kernel_thread_faults(void)
{
    join(start_named(ROUSE_KIND_KERNEL, fault_at_once, 0));
}

static void main_faults(void)
{
    join(start_named(ROUSE_KIND_USER, nothing, 0));
    fault_at_once(NULL);
}

static void someone_sends_the_signal(void)
{
    rouse_sleep(1000);
    kill(getpid(), SIGSEGV);
    rouse_sleep(ROUSE_FOREVER);
}

static void ignored_signal_is_sent(void)
{
    signal(SIGSEGV, SIG_IGN);
    rouse_sleep(1000);
    kill(getpid(), SIGSEGV);
    rouse_sleep(1000);
    kill(getpid(), SIGSEGV);
    rouse_sleep(1000);
}

static void ignored_signal_is_a_fault(void)
{
    signal(SIGSEGV, SIG_IGN);
    user_thread_faults();
}

static void a_fault_without_a_handler_ends_the_program(void **state)
{
    (void)state;
    static const char *const names[] = { "user_thread_faults", "kernel_thread_faults",
                                         "main_faults", "someone_sends_the_signal",
                                         "ignored_signal_is_a_fault" };
    static struct outcome outcome;
#if defined(RSI_ASAN) || defined(RSI_TSAN)
    printf("not run: the sanitizer has a handler of its own\n");
    return;
#endif
    for (size_t i = 0; i < LENGTH(names); i++) {
        scenario_run(names[i], NULL, &outcome);
        bool is_right = WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGSEGV &&
                        strstr(outcome.output, "overflow") == NULL;
        if (!is_right)
            scenario_show(names[i], &outcome);
        CHECK(is_right);
    }
    scenario_exits("ignored_signal_is_sent", NULL, 0);
}

/* The program's own handler, installed before the first call of rouse. */

static __thread int own_word; /* belongs to the kernel thread; the handler may read it */
static volatile sig_atomic_t handled;
static void *volatile fault_address;
static sigjmp_buf way_out;

static void handle_and_jump(int number, siginfo_t *info, void *context)
{
    sigset_t mask;
    (void)context;
    CHECK(number == SIGSEGV || number == SIGBUS);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    CHECK(sigismember(&mask, SIGUSR2) && sigismember(&mask, number));
    fault_address = info->si_addr;
    handled++;
    own_word++;
    siglongjmp(way_out, 1);
}

static void set_handler(int number, int flags)
{
    struct sigaction action = { .sa_sigaction = handle_and_jump, .sa_flags = flags | SA_SIGINFO };
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGUSR2);
    CHECK(sigaction(number, &action, NULL) == 0);
}

static void *fault_many_times(void *address)
{
    sigset_t mask;
    for (volatile int i = 0; i < 10; i = i + 1) {
        if (sigsetjmp(way_out, 1) == 0) {
            *(volatile char *)address = 1;
            CHECK(false);
        }
        CHECK(fault_address == address);
        pthread_sigmask(SIG_BLOCK, NULL, &mask);
        CHECK(!sigismember(&mask, SIGUSR2) && !sigismember(&mask, SIGSEGV));
        rouse_thread_yield();
    }
    return NULL;
}

static void handler_jumps(void)
{
    set_handler(SIGSEGV, 0);
    in_every_kind(fault_many_times, (void *)(uintptr_t)4096);
    CHECK_EQUAL(handled, 30);
}

static void handler_on_signal_stack_jumps(void)
{
    set_handler(SIGSEGV, SA_ONSTACK);
    in_every_kind(fault_many_times, (void *)(uintptr_t)4096);
    CHECK_EQUAL(handled, 30);
}

static void bus_error_is_handled(void)
{
    char path[] = "/tmp/rouse-fault-test-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && unlink(path) == 0);
    char *beyond = mmap(NULL, RSI_PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(beyond != MAP_FAILED);
    set_handler(SIGBUS, 0);
    in_every_kind(fault_many_times, beyond);
    CHECK_EQUAL(handled, 30);
}

static void handle_plainly(int number)
{
    (void)number;
    handled++;
    siglongjmp(way_out, 1);
}

static void plain_handler_is_called(void)
{
    signal(SIGSEGV, handle_plainly);
    join(start(ROUSE_KIND_USER, nothing, NULL));
    for (int i = 0; i < 3; i++)
        if (sigsetjmp(way_out, 1) == 0)
            fault_at_once(NULL);
    CHECK_EQUAL(handled, 3);
}

static void reset_handler_is_called_once(void)
{
    struct sigaction action = { .sa_handler = handle_plainly, .sa_flags = (int)SA_RESETHAND };
    CHECK(sigaction(SIGSEGV, &action, NULL) == 0);
    rouse_thread_yield();
    join(start(ROUSE_KIND_USER, nothing, NULL));
    if (sigsetjmp(way_out, 1) == 0)
        fault_at_once(NULL);
    CHECK_EQUAL(handled, 1);
    fault_at_once(NULL); /* ends the program */
}

static void overflow_beside_a_handler(void)
{
    set_handler(SIGSEGV, SA_ONSTACK);
    user_thread_overflows();
}

static void handler_set_later_is_called(void)
{
    rouse_sleep(1000);
    set_handler(SIGSEGV, SA_ONSTACK);
    in_every_kind(fault_many_times, (void *)(uintptr_t)4096);
    CHECK_EQUAL(handled, 30);
}

static void the_programs_own_handler_is_called(void **state)
{
    (void)state;
    scenario_exits("handler_jumps", "ROUSE_WORKERS=1", 0);
    scenario_exits("handler_on_signal_stack_jumps", "ROUSE_WORKERS=1", 0);
    scenario_exits("bus_error_is_handled", "ROUSE_WORKERS=1", 0);
    scenario_exits("plain_handler_is_called", NULL, 0);
    scenario_exits("handler_set_later_is_called", "ROUSE_WORKERS=1", 0);
    scenario_dies("overflow_beside_a_handler", NULL, SIGSEGV, "stack overflow");
    static struct outcome outcome;
    scenario_run("reset_handler_is_called_once", NULL, &outcome);
    CHECK(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGSEGV);
}

int main(int argc, char **argv)
{
#define SCENARIO(name) \
    { \
#name, name \
    }
    static const struct scenario scenarios[] = {
        { "thread_without_descriptors_dies", thread_without_descriptors_dies },
        SCENARIO(user_thread_overflows),
        SCENARIO(small_user_thread_overflows),
        SCENARIO(large_user_thread_overflows),
        SCENARIO(user_thread_leaps),
        SCENARIO(kernel_thread_overflows),
        SCENARIO(small_kernel_thread_overflows),
        SCENARIO(kernel_thread_leaps),
        SCENARIO(helper_overflows),
        SCENARIO(moved_thread_overflows),
        SCENARIO(user_thread_faults),
        SCENARIO(kernel_thread_faults),
        SCENARIO(main_faults),
        SCENARIO(someone_sends_the_signal),
        SCENARIO(ignored_signal_is_sent),
        SCENARIO(ignored_signal_is_a_fault),
        SCENARIO(handler_jumps),
        SCENARIO(handler_on_signal_stack_jumps),
        SCENARIO(bus_error_is_handled),
        SCENARIO(plain_handler_is_called),
        SCENARIO(reset_handler_is_called_once),
        SCENARIO(overflow_beside_a_handler),
        SCENARIO(handler_set_later_is_called),
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overflow_is_reported_and_ends_the_program),
        cmocka_unit_test(an_overflow_is_reported_from_a_thread_without_descriptors),
        cmocka_unit_test(a_fault_without_a_handler_ends_the_program),
        cmocka_unit_test(the_programs_own_handler_is_called),
    };
    static const struct program program = { 60,        false,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
