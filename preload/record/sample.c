/* SPDX-License-Identifier: MIT */
/* sample.c - chooses which acquisitions of free locks are timed. */
#include "record/sample.h"

#include "os/os.h"
#include "record/hold.h"

#define RARITY_MOST 12u
/* The time between two samples of a place, if the lock is acquired more often than that. */
#define OFTEN_NS 125000u
#define SELDOM_NS 1000000u
/* How long a thread runs from one sample to the next, over PERIOD samples. */
#define PERIOD 32u
#define DEAR_NS 25000u /* less: a sample takes 0.1 to 0.2 us where the cache is cold */
#define CHEAP_NS 100000u

/* xorshift64*, by G. Marsaglia and S. Vigna. */
static uint64_t random_next(struct rpi_thread *self)
{
    uint64_t x = self->random;
    if (x == 0)
        x = ((uint64_t)(uint32_t)self->tid << 32) ^ self->begin_tsc ^ UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    self->random = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

/* -ln(u) for u evenly distributed in (0, 1), with an error below 2e-5. We are loaded without libm. */
static double exponential(uint64_t random)
{
    uint64_t bits = random | 1;
    int zeros = __builtin_clzll(bits);
    double m = (double)(bits << zeros >> 11) * 0x1p-52; /* u = m / 2^(zeros + 1), 1 <= m < 2 */
    double s = (m - 1) / (m + 1), ss = s * s;
    double ln_m = 2 * s * (1 + ss * (1.0 / 3 + ss * (1.0 / 5 + ss * (1.0 / 7))));
    return (zeros + 1) * 0.6931471805599453 - ln_m;
}

/* How many acquisitions until the next chosen one, if each has the chance 1 / 2^rarity. */
static int32_t gap_of(struct rpi_thread *self, uint32_t rarity)
{
    /* -1 / ln(1 - 1 / 2^rarity) */
    static const double scale[RARITY_MOST + 1] = {
        0,          1.442695,   3.476059,   7.488876,    15.494622,   31.497354,  63.498688,
        127.499346, 255.499674, 511.499837, 1023.499919, 2047.499959, 4095.49998,
    };
    return rarity == 0 ? 1 : 1 + (int32_t)(exponential(random_next(self)) * scale[rarity]);
}

/*
 * Limit what samples cost the thread. Without a system call, since the thread holds the lock: it could lose its processor
 * there. The time that it was runnable but did not run counts as running.
 */
static void keep_cheap(struct rpi_thread *self, uint64_t now_ns)
{
    const struct rsi_store_thread *slot = self->slot;
    struct rpi_samples *last = &self->samples;
    if (++last->count < PERIOD)
        return;
    uint64_t tsc = rsi_tsc(), usr = slot ? slot->ticks[RSI_IN_USR] + tsc - slot->run_tsc : tsc;
    double part = (double)(usr - last->usr_ticks) / (double)(tsc - last->tsc + 1);
    double each = part * (double)(now_ns - last->ns) / PERIOD;
    bool is_first = last->tsc == 0;
    last->count = 0;
    last->ns = now_ns;
    last->tsc = tsc;
    last->usr_ticks = usr;
    if (is_first)
        return;
    if (each < DEAR_NS && last->thrift < RARITY_MOST)
        last->thrift++;
    else if (each > CHEAP_NS && last->thrift > 0)
        last->thrift--;
}

uint32_t rpi_sample_next(struct rpi_thread *self, struct rpi_held *held)
{
    uint32_t rarity = held->rarity;
    if (!rpi_recording_is_on()) { /* reading a clock may be forbidden */
        held->gap = INT32_MAX;
        return 0;
    }
    if (!rpi_hold_takes_all) {
        uint64_t now = rsi_now_ns(), passed = now - held->sampled_ns;
        if (passed < OFTEN_NS && rarity < RARITY_MOST)
            rarity++;
        else if (passed > SELDOM_NS && rarity > 0)
            rarity--;
        held->sampled_ns = now;
        keep_cheap(self, now);
    }
    uint32_t next = rarity + self->samples.thrift < RARITY_MOST ? rarity + self->samples.thrift
                                                                : RARITY_MOST;
    uint32_t weight = held->weight != 0 ? held->weight : 1; /* 0: the first acquisition of all */
    held->rarity = (uint8_t)rarity;
    held->weight = (uint16_t)(1u << next);
    held->gap = gap_of(self, next);
    return weight;
}
