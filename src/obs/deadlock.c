/* SPDX-License-Identifier: MIT */
/*
 * deadlock.c - detects and reports that every thread waits for another.
 *
 * Problem: a program that hangs should say so. A program that only waits for external events must never be
 * reported.
 * When a worker or a kernel thread is about to sleep without a limit, and core's counters say that no thread runs,
 * no timer is set and no thread waits for a descriptor, it first sleeps for SETTLE_NS. If the counters are
 * unchanged then, the state is examined closely, by two passes over all threads. A deadlock is reported if:
 * - every thread is parked without a deadline for something that only another thread can do, so not for time and
 *   not for I/O;
 * - that was true at one instant. Claim words never repeat, so two passes that read the same words have seen waits
 *   that lasted from one pass to the other; and no worker has run a thread meanwhile;
 * - between the passes, the kernel's number of threads of this process equals the number of threads seen in both
 *   passes plus the workers and helpers. So no other kernel thread exists that could wake one of them. core's own
 *   count of kernel threads does not suffice: a thread that begins later would stand for one that is unknown.
 * If only the last condition fails, it is checked again after a second, since a kernel thread may have been about
 * to end.
 * A program that is idle permanently is examined twice, then never again.
 *
 * A program whose main() has left by pthread_exit ends with its last thread, as POSIX requires. The same holds for
 * a child that a user thread forked. The C library counts the workers as threads, so the end is detected here: no
 * rouse thread is left, and no kernel threads except workers and helpers. While another kernel thread exists, this
 * is checked once per second.
 */
#include "obs/dump.h"
#include "obs/inspect.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SETTLE_NS 50000000u
#define AGAIN_NS 1000000000u
#define LOOKS_MAX 2

#define THREADS_FIELD 20 /* num_threads in /proc/self/stat */

static uint32_t guard;          /* one thread at a time examines */
static uint64_t reported_state; /* the state reported last; under guard */

static bool is_timed(void)
{
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        if (rsi_load_relaxed(&rsi_rt.workers[i]->timer_next_ns) != UINT64_MAX)
            return true;
    return false;
}

/*
 * Checks only the counters: a few loads, since it is called whenever the last worker is about to sleep.
 */
static bool nothing_runs(void)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    return rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_live_count() &&
           rsi_load_seq_cst(&rsi_rt.kernel_parked) == rsi_load_seq_cst(&rsi_rt.kernel_known) &&
           rsi_load_relaxed(&rsi_rt.helpers_busy) == 0 && !is_timed() &&
           !(poller && poller->has_waiters());
}

struct census {
    uint64_t state; /* a hash of all threads and their waits */
    uint32_t count;
    uint32_t kernel_count; /* those of them that are kernel threads */
    bool all_wait;
};

static bool for_another(uint32_t kind)
{
    return kind >= ROUSE_WAIT_MUTEX && kind <= ROUSE_WAIT_JOIN;
}

static bool count_one(struct rouse_thread *t, void *context)
{
    struct census *census = context;
    if (rsi_load_acquire(&t->waiter.life) != RSI_LIFE_LIVE)
        return true;
    uint64_t claim = rsi_load_acquire(&t->waiter.claim); /* pairs with rsi_park_prepare */
    /* on_cpu is read after the claim word: it is still set in a wait that is only prepared. */
    census->all_wait = (claim & 3) != 0 && rsi_load_acquire(&t->waiter.on_cpu) != RSI_CPU_RUNS &&
                       rsi_load_relaxed(&t->waiter.deadline_ns) == ROUSE_FOREVER &&
                       for_another(rsi_load_relaxed(&t->waiter.record.kind));
    census->state = (census->state ^ claim ^ rsi_load_relaxed(&t->id) << 32) *
                    UINT64_C(0x9e3779b97f4a7c15);
    census->count++;
    census->kernel_count += t->waiter.origin != RSI_ORIGIN_USER;
    return census->all_wait;
}

static struct census take_census(void)
{
    struct census census = { .state = 1, .all_wait = true };
    rsi_blocks_visit(count_one, &census);
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* these reads stay before later ones */
    return census;
}

/* Turns of all workers. If a worker ran and sleeps again, all of its turns are counted. */
static uint64_t count_turns(void)
{
    uint64_t turns = 0;
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        turns += rsi_load_relaxed(&rsi_rt.workers[i]->turns);
    return turns;
}

/* Kernel threads of this process that have not ended; 0: unknown. */
struct kernel_census {
    uint32_t count;
    bool is_main_dead;
};

static struct kernel_census take_kernel_census(void)
{
    struct kernel_census census = { 0, false };
    char text[512];
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return census;
    long length = rsi_syscall3(SYS_read, fd, text, sizeof text - 1);
    rsi_syscall1(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    /* end of the second field, a name that may contain any character */
    const char *at = strrchr(text, ')');
    /* A main thread that has ended stays a zombie while others run, and the kernel counts it. */
    census.is_main_dead = at && at[1] == ' ' && at[2] == 'Z';
    for (unsigned field = 2; at && field < THREADS_FIELD; field++)
        at = strchr(at + 1, ' ');
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
        census.count = census.count * 10 + (uint32_t)(*at - '0');
    census.count -= census.is_main_dead;
    return census;
}

static void *end_program(void *unused)
{
    exit(EXIT_SUCCESS);
    return unused;
}

/* On its own thread, since exit handlers may need every worker. */
static void end_with_last_thread(void)
{
    pthread_t pthread;
    if (pthread_create(&pthread, NULL, end_program, NULL) != 0)
        end_program(NULL);
}

enum look { LOOK_DONE, LOOK_AGAIN, LOOK_ALWAYS };

/* No rouse thread is left. Decide whether the program has ended. */
static enum look look_for_end(const struct kernel_census *kernel, bool all_are_known)
{
    if (!kernel->is_main_dead && !rsi_rt.is_main_worker)
        return LOOK_DONE;
    if (!all_are_known)
        return LOOK_ALWAYS;
    end_with_last_thread();
    return LOOK_DONE;
}

/* Examine the state closely and report a deadlock. Returns whether to examine again later. */
static enum look look(void)
{
    uint64_t turns = count_turns();
    struct census first = take_census();
    struct kernel_census kernel = take_kernel_census();
    /*
     * Read after the kernel's count: a helper is counted after it began, and no longer when it ends.
     */
    uint32_t known = rsi_worker_live_count() + rsi_helper_count() + rsi_pressure_threads() +
                     rsi_monitor_threads() + first.kernel_count;
    struct census second = take_census();
    if (first.state != second.state || !first.all_wait || !second.all_wait || !nothing_runs() ||
        turns != count_turns())
        return LOOK_DONE;
    if (second.count == 0)
        return look_for_end(&kernel, kernel.count == known);
    if (kernel.count != known)
        return LOOK_AGAIN;
    if (first.state == reported_state)
        return LOOK_DONE;
    reported_state = first.state;
    rsi_dump(STDERR_FILENO, "deadlock: every thread waits for another thread");
    return LOOK_DONE;
}

uint64_t rsi_obs_all_wait(struct rsi_quiet *quiet)
{
    if (quiet->looks == LOOKS_MAX || !nothing_runs())
        return ROUSE_FOREVER;
    uint64_t now_ns = rsi_now_ns();
    if (quiet->look_ns == 0)
        quiet->look_ns = now_ns + SETTLE_NS;
    if (now_ns < quiet->look_ns)
        return quiet->look_ns;
    enum look again = LOOK_DONE;
    if (rsi_guard_try(&guard)) {
        again = look();
        rsi_guard_unlock(&guard);
    }
    if (again != LOOK_ALWAYS)
        quiet->looks = again == LOOK_DONE ? LOOKS_MAX : quiet->looks + 1;
    quiet->look_ns = now_ns + AGAIN_NS;
    return quiet->looks == LOOKS_MAX ? ROUSE_FOREVER : quiet->look_ns;
}

void rsi_deadlock_child(void)
{
    guard = 0;
}
