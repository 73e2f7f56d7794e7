/* SPDX-License-Identifier: MIT */
/*
 * sampling.h - which switches of a busy worker get a time stamp.
 *
 * Problem: a time stamp takes 10 ns, more than a switch. With turns of 30 ns, recording would be most of what a worker
 * does.
 *
 * Counts are always exact. Times are exact as long as the mean turn of the worker is 1 us or longer. With shorter turns
 * the worker times one switch in `mean`, at random, and of that one of two times, which then counts 2 * mean times:
 *   the turn of the thread that is entered, until its end
 *   the wait of the thread that is left, or its time in the queue, until it runs again, on whatever worker
 * The coin is tossed before the length is known, and each has the same chance. So the expected value
 * of each sum is the sum (the estimator of Horvitz and Thompson). The gaps between timed switches are random:
 * every n-th switch could always be the same thread's. Timing itself takes longer than a short turn, but only what is timed would
 * contain it: so a time begins when its first stamp has been recorded, and the cost of a stamp is subtracted. That is also why not
 * both times of a switch are taken: the end of the turn is in the wait.
 *
 * A long time is always taken, and counts once, whether the coin chose it or not: otherwise one sleep of a second would
 * count as a minute, or not at all. It is long if it takes RSI_SAMPLING_LONG_NS and contains two ticks. The watcher or the
 * monitor ticks while a worker samples, every 0.2 to 2 ms. The time is measured from `now_tsc`, the stamp that the worker
 * took last for any reason: at a look, about every 20 us, at the first switch after a tick, or because something was chosen.
 * Such a stamp may be old, after a turn that took long and was not chosen. Thousands of short waits could then
 * begin at it. The ticks tell these from long ones, as every switch reads their number anew.
 *
 * Modes other than ROUSE_OBS_COUNTED time every switch.
 */
#ifndef RSI_CORE_SAMPLING_H
#define RSI_CORE_SAMPLING_H

#include "base/base.h"

#define RSI_SAMPLING_TURN_NS 2000u   /* turns this long are all timed */
#define RSI_SAMPLING_MEAN_MOST 64u   /* a byte in the thread has the weight */
#define RSI_SAMPLING_CHECK_NS 50000u /* least time between two checks of the pace */
#define RSI_SAMPLING_LONG_NS 5000000u
#define RSI_SAMPLING_SURELY 40u /* times that long: it is long, however few ticks there were */

/* Of one worker; only its kernel thread uses it. */
struct rsi_sampling {
    uint64_t now_tsc; /* its last time stamp */
    uint64_t old_tsc; /* what began before is long */
    uint64_t random;
    uint32_t mean;        /* one switch in so many is timed; 0 or 1: all are */
    uint32_t left;        /* switches until one is timed, with it; 0: all are */
    uint32_t weight;      /* of its turn or its wait */
    uint32_t turn_weight; /* of the present turn; 0: it is not timed */
    uint32_t tick;        /* rsi_sampling_tick at its last time stamp */
    uint32_t turn_tick;   /* and when the present turn began */
    uint64_t check_tsc;   /* of the last check of its pace: rsi_sampling_check */
    uint64_t check_turns;
};

/* Grows when all workers shall take a time stamp. */
extern uint32_t rsi_sampling_tick;

/* In ticks, set before a worker's mean is more than 1: RSI_SAMPLING_LONG_NS, and what a time stamp takes. */
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
    uint64_t now = rsi_tsc(), most = rsi_load_relaxed(&rsi_sampling_long);
    s->tick = rsi_load_relaxed(&rsi_sampling_tick);
    s->now_tsc = now;
    s->old_tsc = now > most ? now - most : 0;
    return now;
}

/* Whether the worker times only some of its switches. Any thread may ask. */
RSI_INLINE bool rsi_sampling_is_on(const struct rsi_sampling *s)
{
    return rsi_load_relaxed(&s->mean) > 1;
}

/* Whether now_tsc is recent enough for a stay that is not timed. */
RSI_INLINE bool rsi_sampling_is_fresh(const struct rsi_sampling *s)
{
    return s->left != 0 && s->tick == rsi_load_relaxed(&rsi_sampling_tick);
}

/* Whether the present turn needs no time stamp at its end: it was not chosen, and no tick says that it may be long. */
RSI_INLINE bool rsi_sampling_is_short(const struct rsi_sampling *s)
{
    return s->turn_weight == 0 && s->turn_tick == rsi_load_relaxed(&rsi_sampling_tick);
}

/* Whether the next switch is not chosen, and then pass it. */
RSI_INLINE bool rsi_sampling_pass(struct rsi_sampling *s)
{
    bool is_passed = s->left > 1;
    s->left -= is_passed;
    return is_passed;
}

/* A turn begins. weight: of its time. */
RSI_INLINE void rsi_sampling_turn(struct rsi_sampling *s, uint32_t weight)
{
    s->turn_weight = weight;
    s->turn_tick = s->tick;
}

/* Whether a time is long that began at since, in this tick, and ends now. */
RSI_INLINE bool rsi_sampling_is_long(uint64_t since, uint8_t tick, uint64_t now)
{
    uint64_t most = rsi_load_relaxed(&rsi_sampling_long);
    if (rsi_likely(now < since || now - since < most))
        return false;
    uint8_t ticks = (uint8_t)(rsi_load_relaxed(&rsi_sampling_tick) - tick);
    return ticks >= 2 || now - since >= RSI_SAMPLING_SURELY * most;
}

RSI_INLINE void rsi_sampling_make_tick(void)
{
    rsi_store_relaxed(&rsi_sampling_tick, rsi_load_relaxed(&rsi_sampling_tick) + 1);
}

#endif
