/* SPDX-License-Identifier: MIT */
/*
 * sleep_lead.c - how an idle worker sleeps until its next deadline and still wakes up on time.
 *
 * Problem: the kernel wakes a sleeper late (timer slack, a halted CPU, the switch: 15 to 60 us on our
 * machine), and even the shortest sleep costs as much CPU time. So a worker asks to be woken earlier than its
 * deadline, by the median lateness. This lead, lead_ns, grows by one step after a wake-up later than expected
 * and shrinks by one step after one that was not. A step is large, so that the lead is there after some ten sleeps. For
 * a deadline closer than the lead, the worker spins.
 * Threads are never woken early: their deadlines are still compared with the clock.
 *
 * Spinning is limited to 1/SHARE of the time, of which at most MOST_NS can be saved up. A worker with a
 * deadline every microsecond soon spends that, sleeps, and finds dozens of deadlines due at once, which costs
 * less. A worker with a deadline every millisecond can afford to be punctual. Rejected: spinning whenever it
 * costs less than a sleep (100 % of a CPU with a deadline every microsecond, against half of one); a fixed
 * lead (a virtual machine needs ten times that of a physical one).
 */
#include "core/core.h"

#define LEAD_STEP_NS 5000
#define LEAD_MAX_NS 200000
#define SHARE 16
#define MOST_NS 500000

/* Whether w may spin for this long. */
static bool affords(struct rsi_worker *w, uint64_t now_ns, uint64_t ns)
{
    uint64_t credit = w->spin_credit_ns + (now_ns - w->spin_seen_ns) / SHARE;
    w->spin_credit_ns = credit < MOST_NS ? credit : MOST_NS;
    w->spin_seen_ns = now_ns;
    return w->spin_credit_ns >= ns;
}

/* Spin until the deadline next if it is near. Ends early when w is given work. True: some time was spent. */
bool rsi_sleep_lead_spin(struct rsi_worker *w, uint64_t next)
{
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

/* The time to ask the kernel for in order to be awake at deadline_ns. */
uint64_t rsi_sleep_lead_deadline(const struct rsi_worker *w, uint64_t deadline_ns)
{
    return deadline_ns != UINT64_MAX && deadline_ns - w->lead_ns > rsi_now_ns()
               ? deadline_ns - w->lead_ns
               : deadline_ns;
}

/* A sleep until asked_ns has ended, for whatever reason: adapt the lead. */
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
