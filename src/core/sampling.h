/* SPDX-License-Identifier: MIT */
/*
 * sampling.h - which switches of a busy worker get a time stamp.
 *
 * Problem: a time stamp takes 10 to 20 ns, more than a switch. With turns of 30 ns, recording would be most of what a
 * worker does.
 *
 * Counts are always exact. Times are exact as long as the mean turn of the worker is RSI_SAMPLING_TURN_NS or longer. With
 * shorter turns the worker times one switch in `mean`, at random, and one of two times that begin there, which then counts
 * 2 * mean times:
 *   the turn of the thread that is entered, until its end
 *   the wait of the thread that is left, or its time in the queue, until it runs again, on whatever worker
 * The coin is tossed before the length is known, and each time has the same chance. So the expected value of each sum is
 * the sum (the estimator of Horvitz and Thompson). The gaps between timed switches are random: every n-th switch could
 * always be the same thread's. Timing takes longer than a short turn, and only what is timed would contain it. So a time
 * begins when its first stamp has been recorded, and the cost of a stamp is subtracted. That is also why not both times of
 * a switch are taken: the end of the turn is in the wait.
 *
 * A long wait is always timed, and counts once, whether the coin chose it or not: otherwise one sleep of a second would
 * count as two minutes, or not at all. It is measured from `now_tsc`, the stamp that the worker took last for any reason: at
 * a look, about every 20 us, or because something was chosen. Such a stamp is old after a long turn that was not chosen:
 * then the gap to the next stamp is subtracted. Stamps of times that are not timed are odd, others even, since only the
 * former may be old.
 *
 * Long turns, and times for which the kernel gives the processor to others, would make a sample worthless. Only turns that
 * contain a look of the watcher or the monitor are noticed at their end. So a worker times all switches for
 * RSI_SAMPLING_REST times as long as a gap between two of its stamps, if that is RSI_SAMPLING_GAP_NS or more. At most
 * 1 / RSI_SAMPLING_REST of its time is missing.
 *
 * Modes other than ROUSE_OBS_COUNTED time every switch.
 */
#ifndef RSI_CORE_SAMPLING_H
#define RSI_CORE_SAMPLING_H

#include "base/base.h"

#define RSI_SAMPLING_TURN_NS 2000u /* turns this long are all timed */
#define RSI_SAMPLING_MEAN_MOST 64u /* a byte in the thread has the weight */
#define RSI_SAMPLING_LONG_NS 1000000u
#define RSI_SAMPLING_GAP_NS 200000u
#define RSI_SAMPLING_REST 25u

/* Of one worker; only its kernel thread writes it. */
struct rsi_sampling {
    uint64_t now_tsc;   /* its last time stamp */
    uint64_t old_tsc;   /* what began before is long */
    uint64_t stale_tsc; /* the stamp before the last long gap; others read both */
    uint64_t stale_gap;
    uint64_t exact_tsc; /* until then it times all switches */
    uint64_t random;
    uint32_t mean;        /* one switch in so many is timed; 0 or 1: all are */
    uint32_t left;        /* switches until one is timed, with it; 0: all are */
    uint32_t weight;      /* of its turn or its wait */
    uint32_t turn_weight; /* of the present turn; 0: it is not timed */
    uint32_t era;         /* rsi_sampling_era at its last time stamp */
    uint32_t turn_era;    /* and when the present turn began */
    uint64_t check_tsc;   /* of the last check of its pace: rsi_sampling_check */
    uint64_t check_turns;
};

/*
 * Grows when the mode changes, and at each look of the watcher or the monitor, every 0.2 to 10 ms while workers are busy: all
 * workers take a time stamp at the end of the present turn.
 */
extern uint32_t rsi_sampling_era;

/* In ticks, set before a worker's mean is more than 1: RSI_SAMPLING_LONG_NS, and the cost of a time stamp. */
extern uint64_t rsi_sampling_long, rsi_sampling_cost;

/* w looks at its timers, and its turns take turn_ns in the mean. is_exact: time all switches. */
void rsi_sampling_look(struct rsi_sampling *s, uint32_t turn_ns, bool is_exact);

/*
 * Between two looks, which are up to 1,024 turns apart: time all switches again if the worker's turns have become long or
 * rare. turns: that it has had.
 */
void rsi_sampling_check(struct rsi_sampling *s, uint64_t turns, uint64_t now_tsc);

/* Time all switches from now on. */
void rsi_sampling_stop(struct rsi_sampling *s);

/* There was a long gap before the stamp that s takes now. */
void rsi_sampling_gap(struct rsi_sampling *s, uint64_t now);

/* The weights of the two times that begin at a switch. 0: it is not timed. */
struct rsi_sampling_chosen {
    uint32_t turn, wait;
};

/* Toss the coin for a switch of a worker that times some. */
struct rsi_sampling_chosen rsi_sampling_choose(struct rsi_sampling *s);

/* The same for any. */
RSI_INLINE struct rsi_sampling_chosen rsi_sampling_toss(struct rsi_sampling *s)
{
    return rsi_likely(s->left == 0) ? (struct rsi_sampling_chosen){ 1, 1 } : rsi_sampling_choose(s);
}

/* Take a time stamp. */
RSI_INLINE uint64_t rsi_sampling_stamp(struct rsi_sampling *s)
{
    uint64_t now = rsi_tsc() & ~UINT64_C(1), most = rsi_load_relaxed(&rsi_sampling_long);
    if (rsi_unlikely(now - s->now_tsc >= most / (RSI_SAMPLING_LONG_NS / RSI_SAMPLING_GAP_NS)))
        rsi_sampling_gap(s, now);
    s->era = rsi_load_relaxed(&rsi_sampling_era);
    s->now_tsc = now;
    s->old_tsc = now > most ? now - most : 0;
    return now;
}

/* The same after the idle loop, where time passes without a stamp. */
RSI_INLINE uint64_t rsi_sampling_wake(struct rsi_sampling *s)
{
    s->now_tsc = rsi_tsc() & ~UINT64_C(1);
    return rsi_sampling_stamp(s);
}

/* Whether now_tsc is recent enough for a stay that is not timed. */
RSI_INLINE bool rsi_sampling_is_fresh(const struct rsi_sampling *s)
{
    return s->left != 0 && s->era == rsi_load_relaxed(&rsi_sampling_era);
}

/* Whether, besides, the present turn needs no time stamp at its end: it was not chosen, and no new era began in it. */
RSI_INLINE bool rsi_sampling_is_short(const struct rsi_sampling *s)
{
    return s->turn_weight == 0 && s->turn_era == rsi_load_relaxed(&rsi_sampling_era);
}

/* A turn begins. weight: of its time. */
RSI_INLINE void rsi_sampling_turn(struct rsi_sampling *s, uint32_t weight)
{
    s->turn_weight = weight;
    s->turn_era = s->era;
}

/* Whether the next switch is not chosen, and then pass it. */
RSI_INLINE bool rsi_sampling_pass(struct rsi_sampling *s)
{
    bool is_passed = s->left > 1;
    s->left -= is_passed;
    return is_passed;
}

/* The stamp of an event that is not timed. */
RSI_INLINE uint64_t rsi_sampling_about_now(const struct rsi_sampling *s)
{
    return s->now_tsc | 1;
}

/* Whether a wait is long that began at since, and on the worker of `begun`, and ends now. */
RSI_INLINE bool rsi_sampling_is_long(uint64_t since, const struct rsi_sampling *begun, uint64_t now)
{
    uint64_t least = rsi_load_relaxed(&rsi_sampling_long);
    if (rsi_likely(now < since || now - since < least))
        return false;
    bool is_stale = since == (rsi_load_relaxed(&begun->stale_tsc) | 1);
    return !is_stale || now - since - least >= rsi_load_relaxed(&begun->stale_gap);
}

RSI_INLINE void rsi_sampling_begin_era(void)
{
    rsi_store_relaxed(&rsi_sampling_era, rsi_load_relaxed(&rsi_sampling_era) + 1);
}

#endif
