/* SPDX-License-Identifier: MIT */
/* lock.c - clock, futexes and counted locks of the herd, in one process or in several. */
#include "herd/herd.h"

#include <errno.h>
#include <linux/futex.h>
#include <unistd.h>

#define SPINS 128u

uint64_t herd_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

bool herd_futex_wait(const struct herd *h, _Atomic uint32_t *word, uint32_t value,
                     uint64_t deadline_ns)
{
    const struct timespec t = { .tv_sec = (time_t)(deadline_ns / 1000000000u),
                                .tv_nsec = (long)(deadline_ns % 1000000000u) };
    return raw6(SYS_futex, (long)word, FUTEX_WAIT_BITSET | h->futex_private, value,
                deadline_ns == UINT64_MAX ? 0 : (long)&t, 0, FUTEX_BITSET_MATCH_ANY) != -ETIMEDOUT;
}

void herd_futex_wake(const struct herd *h, _Atomic uint32_t *word, int count)
{
    raw6(SYS_futex, (long)word, FUTEX_WAKE | h->futex_private, count, 0, 0, 0);
}

static void relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    __asm__ volatile("isb" ::: "memory");
#endif
}

/* Acquire here and below: pairs with the release in herd_unlock. */
static bool take(struct herd_lock *lock)
{
    uint32_t state = 0;
    return atomic_compare_exchange_strong_explicit(&lock->state, &state, 1, memory_order_acquire,
                                                   memory_order_relaxed);
}

static bool spin(struct herd_lock *lock)
{
    for (unsigned i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&lock->state, memory_order_relaxed) == 0 && take(lock))
            return true;
        relax();
    }
    return false;
}

void herd_lock(const struct herd *h, struct herd_lock *lock, struct herd_waits *waits)
{
    waits->taken++;
    if (take(lock))
        return;
    const uint64_t since_ns = herd_now_ns();
    if (!spin(lock))
        while (atomic_exchange_explicit(&lock->state, 2, memory_order_acquire) != 0)
            herd_futex_wait(h, &lock->state, 2, UINT64_MAX);
    waits->contended++;
    waits->wait_ns += herd_now_ns() - since_ns;
}

void herd_unlock(const struct herd *h, struct herd_lock *lock)
{
    /* Release: pairs with the acquire in herd_lock. */
    if (atomic_exchange_explicit(&lock->state, 0, memory_order_release) == 2)
        herd_futex_wake(h, &lock->state, 1);
}
