/* SPDX-License-Identifier: MIT */
/*
 * sleep_lead.c - a worker that has nothing to do until its next deadline: how long it sleeps, when it stays awake.
 *
 * Problem: the kernel wakes a sleeper late (its timer, a halted CPU, the switch: 15 to 60 us here), and to
 * sleep for however short costs as much CPU time. So a worker asks to be woken earlier than its deadline, by as
 * much as the kernel is late as often as not: lead_ns, which goes up a step when it was later and down a step when
 * it was not. And it waits awake for a deadline that is nearer than that. Threads are never woken early: their
 * deadlines are compared with the clock as ever.
 *
 * Waiting awake is bounded: a SHARE'th of the time, and MOST_NS saved up. A worker with a deadline each
 * microsecond has soon spent it, sleeps, and finds some dozens due at once, which costs less; one with a
 * deadline each millisecond can afford to be punctual.
 * Rejected: waiting awake whenever it costs less than a sleep (100 % of a CPU with a deadline each microsecond,
 * against half of one); a fixed lead (a virtual machine's is ten times a bare one's).
 */
#include "core/core.h"

#define LEAD_STEP_NS 500
#define LEAD_MAX_NS 60000
#define SHARE 16
#define MOST_NS 200000

/* Whether w may stay awake for so long. */
static bool affords(struct rsi_worker *w, uint64_t now_ns, uint64_t ns)
{
    uint64_t credit = w->spin_credit_ns + (now_ns - w->spin_seen_ns) / SHARE;
    w->spin_credit_ns = credit < MOST_NS ? credit : MOST_NS;
    w->spin_seen_ns = now_ns;
    return w->spin_credit_ns >= ns;
}

/*
 * Wait awake if the next deadline is near. Ends early when w is given something to do. True: some time was
 * waited so.
 */
bool rsi_sleep_lead_spin(struct rsi_worker *w)
{
    uint64_t next = rsi_load_relaxed(&w->timer_next_ns);
    if (next == UINT64_MAX)
        return false;
    uint64_t begin = rsi_now_ns(), now = begin;
    if (begin >= next || next - begin > w->lead_ns || !affords(w, begin, next - begin))
        return false;
    while (now < next && rsi_load_relaxed(&w->inbox) == NULL &&
           rsi_load_relaxed(&w->wake_word) == 0) {
        rsi_cpu_relax();
        now = rsi_now_ns();
    }
    uint64_t spent = now - begin;
    w->spin_credit_ns -= spent < w->spin_credit_ns ? spent : w->spin_credit_ns;
    return true;
}

/* What to ask of the kernel in order to be awake at deadline_ns. */
uint64_t rsi_sleep_lead_deadline(const struct rsi_worker *w, uint64_t deadline_ns)
{
    return deadline_ns != UINT64_MAX && deadline_ns - w->lead_ns > rsi_now_ns()
               ? deadline_ns - w->lead_ns
               : deadline_ns;
}

/* A sleep until asked_ns has ended, for whatever reason. */
void rsi_sleep_lead_ended(struct rsi_worker *w, uint64_t asked_ns)
{
    uint64_t now = asked_ns == UINT64_MAX ? 0 : rsi_now_ns();
    if (now < asked_ns)
        return;
    if (now - asked_ns <= w->lead_ns)
        w->lead_ns -= w->lead_ns < LEAD_STEP_NS ? w->lead_ns : LEAD_STEP_NS;
    else if (w->lead_ns < LEAD_MAX_NS)
        w->lead_ns += LEAD_STEP_NS;
}
