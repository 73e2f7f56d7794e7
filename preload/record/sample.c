/* SPDX-License-Identifier: MIT */
/* sample.c - chooses which acquisitions of free locks are timed. */
#include "record/sample.h"

#include "os/os.h"
#include "record/hold.h"

#define RARITY_MOST 12u
/* The time between two samples of a place, if the lock is acquired more often than that. */
#define OFTEN_NS 125000u
#define SELDOM_NS 1000000u

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

uint32_t rpi_sample_next(struct rpi_thread *self, struct rpi_held *held)
{
    uint32_t rarity = held->rarity, weight = 1u << rarity;
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
    }
    held->rarity = rarity;
    held->gap = gap_of(self, rarity);
    return weight;
}
