/* SPDX-License-Identifier: MIT */
/*
 * timer_clock_test.c - deadlines use CLOCK_MONOTONIC only, and workers sleep without timer slack.
 *
 * Only root can set the wall clock, and doing so would affect the whole machine. This program
 * therefore replaces libc's functions that read it by ones that jump back and forth by years at
 * each call. A timer that bypasses these functions makes a system call: a seccomp filter kills the
 * process at each system call that reads the wall clock or waits for it.
 */
#include "core_test.h"

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>

#ifdef __x86_64__
#define ARCH AUDIT_ARCH_X86_64
#else
#define ARCH AUDIT_ARCH_AARCH64
#endif

static uint32_t jumps;

static int wall_clock_jumps(struct timespec *time)
{
    uint32_t n = rsi_fetch_add_relaxed(&jumps, 1u) + 1;
    *time = (struct timespec){ .tv_sec = (time_t)(n % 7 * 40000000u + n % 2) };
    return 0;
}

/* Replaces libc's function, for the library too. */
int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI)
        return wall_clock_jumps(time);
    return (int)syscall(SYS_clock_gettime, clock, time);
}

int gettimeofday(struct timeval *restrict time, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    wall_clock_jumps(&now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = 0;
    return 0;
}

time_t time(time_t *out)
{
    struct timespec now;
    wall_clock_jumps(&now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

#define LOAD(field) \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
#define KILL BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
/*
 * Kill at a call whose first argument is the wall clock. The call number stays intact because it is
 * loaded again.
 */
#define KILL_WALL(call) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(call), 0, 4), LOAD(args[0]), \
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, CLOCK_REALTIME, 0, 1), KILL, LOAD(nr)

/* Install the filter. Returns whether the kernel allowed it. */
static bool forbid_the_wall_clock(void)
{
    struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        LOAD(nr),
        KILL_WALL(SYS_clock_gettime),
        KILL_WALL(SYS_clock_nanosleep),
        KILL_WALL(SYS_timerfd_create),
        KILL_WALL(SYS_timer_create),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)SYS_gettimeofday, 0, 1),
        KILL,
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)SYS_futex, 0, 3),
        LOAD(args[1]),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, FUTEX_CLOCK_REALTIME, 0, 1),
        KILL,
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { LENGTH(code), code };
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

static struct rouse_sem bell = ROUSE_SEM_INIT(0);
static struct rouse_mutex mutex = ROUSE_MUTEX_INIT;
static struct rouse_cond cond = ROUSE_COND_INIT;

static void *wait_in_every_way(void *unused)
{
    for (int i = 0; i < 20; i++) {
        uint64_t deadline = rouse_now_ns() + MS;
        CHECK_EQUAL(rouse_sleep_until(deadline), 0);
        CHECK(rouse_now_ns() >= deadline);
        CHECK_EQUAL(rouse_sleep(MS / 2), 0);
        deadline = rouse_now_ns() + MS;
        CHECK_EQUAL(rouse_sem_wait_until(&bell, deadline), -ETIMEDOUT);
        CHECK(rouse_now_ns() >= deadline);
        rouse_mutex_lock(&mutex);
        deadline = rouse_now_ns() + MS;
        CHECK_EQUAL(rouse_cond_wait_until(&cond, &mutex, deadline), -ETIMEDOUT);
        CHECK(rouse_now_ns() >= deadline);
        rouse_mutex_unlock(&mutex);
    }
    return unused;
}

static void deadlines_while_the_wall_clock_jumps(void)
{
    if (!forbid_the_wall_clock())
        exit(77);
    uint64_t begin = rouse_now_ns();
    struct timespec before, after;
    clock_gettime(CLOCK_REALTIME, &before);
    in_every_kind(wait_in_every_way, NULL);
    clock_gettime(CLOCK_REALTIME, &after);
    CHECK(before.tv_sec != after.tv_sec);
    CHECK(rouse_now_ns() - begin < PATIENCE_S * SECOND);
}

static void wall_clock_jumps_do_not_matter(void **state)
{
    (void)state;
    struct outcome outcome;
    scenario_run("deadlines_while_the_wall_clock_jumps", NULL, &outcome);
    if (WIFEXITED(outcome.status) && WEXITSTATUS(outcome.status) == 77) {
        printf("not run: no system call filter can be had here\n");
        return;
    }
    scenario_exits("deadlines_while_the_wall_clock_jumps", NULL, 0);
}

/* If the filter lets this call through, it does not filter. */
static void read_the_wall_clock(void)
{
    struct timespec now;
    if (!forbid_the_wall_clock())
        raise(SIGSYS); /* reported by the parent */
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &now);
}

static void wait_by_the_wall_clock(void)
{
    uint32_t word = 0;
    struct timespec limit = { 0, 1 };
    if (!forbid_the_wall_clock())
        raise(SIGSYS); /* reported by the parent */
    syscall(SYS_futex, &word, FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME, 0,
            &limit, NULL, FUTEX_BITSET_MATCH_ANY);
}

static void use_of_the_wall_clock_is_noticed(void **state)
{
    (void)state;
    struct outcome outcome;
    scenario_run("read_the_wall_clock", NULL, &outcome);
    CHECK(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGSYS);
    scenario_run("wait_by_the_wall_clock", NULL, &outcome);
    CHECK(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGSYS);
}

static uint32_t slack_of_worker[64], workers_seen;

/* Stays on its worker until threads have run on all workers. */
static void *tell_slack(void *unused)
{
    int index = rouse_worker_index();
    uint32_t none = 0, slack = (uint32_t)prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0);
    if (rsi_cas_acq_rel(&slack_of_worker[index], &none, slack))
        rsi_fetch_add_relaxed(&workers_seen, 1u);
    uint64_t end = rouse_now_ns() + PATIENCE_S * SECOND;
    while (rsi_load_relaxed(&workers_seen) < rouse_worker_count())
        CHECK(rouse_now_ns() < end);
    return unused;
}

static void workers_have_no_timer_slack(void **state)
{
    (void)state;
    struct rouse_thread *threads[64];
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, tell_slack, NULL);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    for (unsigned i = 0; i < rouse_worker_count() && i < LENGTH(slack_of_worker); i++)
        CHECK_EQUAL(slack_of_worker[i], 1);
}

struct crowd {
    uint64_t deadline_ns;
    uint32_t late; /* threads that came too late to sleep */
    uint64_t sleeps_least, sleeps_most;
};

/* How often the worker has slept. */
static uint64_t sleeps(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nvcsw;
}

static void *sleep_in_a_crowd(void *arg)
{
    struct crowd *crowd = arg;
    crowd->late += rouse_now_ns() >= crowd->deadline_ns;
    CHECK_EQUAL(rouse_sleep_until(crowd->deadline_ns), 0);
    CHECK(rouse_now_ns() >= crowd->deadline_ns);
    uint64_t now = sleeps();
    crowd->sleeps_least = now < crowd->sleeps_least ? now : crowd->sleeps_least;
    crowd->sleeps_most = now > crowd->sleeps_most ? now : crowd->sleeps_most;
    return NULL;
}

/* The one worker does not sleep between the first of their wake-ups and the last. */
static void threads_of_one_deadline_wake_in_one_pass(void **state)
{
    (void)state;
    struct rouse_thread *threads[500];
    struct crowd crowd = { .late = 1 };
    if (rouse_worker_count() != 1)
        return;
    if (is_emulated()) {
        puts("not run: the emulator sleeps too, on locks of its own, and that is counted");
        return;
    }
    for (uint64_t ahead_ns = 20 * MS; crowd.late != 0; ahead_ns *= 2) {
        crowd = (struct crowd){ rouse_now_ns() + ahead_ns, 0, UINT64_MAX, 0 };
        for (size_t i = 0; i < LENGTH(threads); i++)
            threads[i] = start(ROUSE_KIND_USER, sleep_in_a_crowd, &crowd);
        for (size_t i = 0; i < LENGTH(threads); i++)
            join(threads[i]);
    }
    CHECK_EQUAL(crowd.sleeps_least, crowd.sleeps_most);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(wall_clock_jumps_do_not_matter),
        cmocka_unit_test(use_of_the_wall_clock_is_noticed),
        cmocka_unit_test(workers_have_no_timer_slack),
        cmocka_unit_test(threads_of_one_deadline_wake_in_one_pass),
    };
    static const struct scenario scenarios[] = {
        { "deadlines_while_the_wall_clock_jumps", deadlines_while_the_wall_clock_jumps },
        { "read_the_wall_clock", read_the_wall_clock },
        { "wait_by_the_wall_clock", wait_by_the_wall_clock },
    };
    static const struct program program = { 60,        true,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
