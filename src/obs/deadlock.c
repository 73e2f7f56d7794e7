/* SPDX-License-Identifier: MIT */
/*
 * deadlock.c - tells when every thread waits for another.
 *
 * Problem: a run that hangs should say so; one that merely waits for the outside must never be accused.
 * When a worker or a kernel thread is about to sleep without a limit and core's counters say that nothing
 * runs, nothing is timed and no descriptor is waited for, it sleeps for SETTLE_NS first. If it still
 * looks so then, the thing is looked at closely:
 *   - every thread waits without a deadline for something that only another thread can do: not for
 *     time, and not for the world;
 *   - that was so at one instant: claim words never repeat, so two passes over all threads that find the
 *     same words have seen waits that lasted from the one to the other;
 *   - the process has no kernel thread that rouse does not know: it could wake one of ours.
 * The last is asked once more after a second: a kernel thread may have been about to end.
 * A program that is idle for good is looked at twice, then never again.
 */
#include "obs/dump.h"
#include "obs/look.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define SETTLE_NS 50000000u
#define AGAIN_NS 1000000000u
#define LOOKS_MAX 2

#define THREADS_FIELD 20 /* of /proc/self/stat */

static uint32_t guard;          /* one at a time looks closely */
static uint64_t reported_state; /* what was reported last; under guard */

static bool is_timed(void)
{
    for (uint32_t i = 0; i < rsi_worker_count(); i++)
        if (rsi_load_relaxed(&rsi_rt.workers[i]->timer_next_ns) != UINT64_MAX)
            return true;
    return false;
}

/* By the counters alone; a few loads, for it is asked whenever the last worker falls asleep. */
static bool nothing_runs(void)
{
    const struct rsi_poller *poller = rsi_load_acquire(&rsi_rt.poller);
    return rsi_load_seq_cst(&rsi_rt.idle_count) == rsi_worker_count() &&
           rsi_load_seq_cst(&rsi_rt.kernel_parked) == rsi_load_seq_cst(&rsi_rt.kernel_known) &&
           rsi_load_relaxed(&rsi_rt.helpers_busy) == 0 && !is_timed() &&
           !(poller && poller->has_waiters());
}

struct census {
    uint64_t state; /* a hash of who waits in which wait */
    uint32_t count;
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
    census->all_wait = (claim & 3) != 0 &&
                       rsi_load_relaxed(&t->waiter.deadline_ns) == ROUSE_FOREVER &&
                       for_another(rsi_load_relaxed(&t->waiter.record.kind));
    census->state = (census->state ^ claim ^ rsi_load_relaxed(&t->id) << 32) *
                    UINT64_C(0x9e3779b97f4a7c15);
    census->count++;
    return census->all_wait;
}

static struct census take_census(void)
{
    struct census census = { .state = 1 };
    rsi_blocks_visit(count_one, &census);
    return census;
}

/* Kernel threads of this process that have not ended, or 0. */
static uint32_t kernel_threads(void)
{
    char text[512];
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, "/proc/self/stat", O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    long length = rsi_syscall3(SYS_read, fd, text, sizeof text - 1);
    rsi_syscall1(SYS_close, fd);
    text[length > 0 ? length : 0] = 0;
    const char *at = strrchr(text, ')'); /* the second field's end: the name may hold anything */
    /* A main thread that has ended stays as a zombie while others run, and is counted by the kernel. */
    bool is_main_dead = at && at[1] == ' ' && at[2] == 'Z';
    for (unsigned field = 2; at && field < THREADS_FIELD; field++)
        at = strchr(at + 1, ' ');
    uint32_t count = 0;
    for (at = at ? at + 1 : ""; *at >= '0' && *at <= '9'; at++)
        count = count * 10 + (uint32_t)(*at - '0');
    return count - is_main_dead;
}

static bool all_are_known(void)
{
    return kernel_threads() ==
           rsi_worker_count() + rsi_helper_count() + rsi_load_relaxed(&rsi_rt.kernel_known);
}

/* Look closely, and report. False: it could not be told because of unknown kernel threads. */
static bool look(void)
{
    struct census first = take_census(), second = take_census();
    if (!first.all_wait || !second.all_wait || first.state != second.state)
        return true;
    if (!all_are_known())
        return false;
    if (!nothing_runs() || first.state == reported_state)
        return true;
    reported_state = first.state;
    rsi_dump(STDERR_FILENO, "every thread waits for another: none can ever run again");
    return true;
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
    bool is_known = true;
    if (rsi_guard_try(&guard)) {
        is_known = look();
        rsi_guard_unlock(&guard);
    }
    quiet->looks = is_known ? LOOKS_MAX : quiet->looks + 1;
    quiet->look_ns = now_ns + AGAIN_NS;
    return quiet->looks == LOOKS_MAX ? ROUSE_FOREVER : quiet->look_ns;
}

void rsi_deadlock_child(void)
{
    guard = 0;
}
