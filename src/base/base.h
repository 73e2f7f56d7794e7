/* SPDX-License-Identifier: MIT */
/*
 * base.h - used by every other file: atomics with their memory order in the name, a spin guard, fatal errors,
 * small arithmetic. Nothing here depends on threads.
 */
#ifndef RSI_BASE_BASE_H
#define RSI_BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RSI_CACHE_LINE 64
#define RSI_PAGE 4096

#define rsi_likely(x) __builtin_expect(!!(x), 1)
#define rsi_unlikely(x) __builtin_expect(!!(x), 0)
#define RSI_NOINLINE __attribute__((noinline))
#define RSI_INLINE static inline __attribute__((always_inline))
#define RSI_COLD __attribute__((cold, noinline))
#define RSI_PRINTF(at, first) __attribute__((format(printf, at, first)))
/*
 * The site of a call. Use it only in a function that is RSI_NOINLINE, since link-time optimisation would
 * inline others.
 */
#define RSI_CALLER() __builtin_return_address(0)

#define rsi_container_of(pointer, type, member) ((type *)((char *)(pointer)-offsetof(type, member)))

/*
 * ROUSE_TEST builds count the writes to cache lines that other threads may use: every atomic that stores
 * contains rsi_wrote. In other builds it does nothing. is_locked: a read-modify-write, or a sequentially
 * consistent store, which is one on x86-64.
 */
#ifdef ROUSE_TEST
#define rsi_wrote(p, is_locked) \
    (rsi_unlikely(__atomic_load_n(&rsi_test_writer, __ATOMIC_RELAXED) != 0) \
         ? rsi_test_wrote((p), (is_locked)) \
         : (void)0)
extern int rsi_test_writer; /* the kernel thread whose writes are counted; 0: none */
void rsi_test_wrote(const volatile void *at, bool is_locked);
#else
#define rsi_wrote(p, is_locked) ((void)0)
#endif

/* The public headers have plain fields, so that C++ can use them. Every access goes through these macros. */
#define rsi_load_relaxed(p) __atomic_load_n((p), __ATOMIC_RELAXED)
#define rsi_load_acquire(p) __atomic_load_n((p), __ATOMIC_ACQUIRE)
#define rsi_load_seq_cst(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define rsi_store_relaxed(p, v) \
    (rsi_wrote((p), false), __atomic_store_n((p), (v), __ATOMIC_RELAXED))
#define rsi_store_release(p, v) \
    (rsi_wrote((p), false), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define rsi_store_seq_cst(p, v) (rsi_wrote((p), true), __atomic_store_n((p), (v), __ATOMIC_SEQ_CST))
#define rsi_exchange_acquire(p, v) \
    (rsi_wrote((p), true), __atomic_exchange_n((p), (v), __ATOMIC_ACQUIRE))
#define rsi_exchange_acq_rel(p, v) \
    (rsi_wrote((p), true), __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL))
#define rsi_exchange_seq_cst(p, v) \
    (rsi_wrote((p), true), __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST))
#define rsi_fetch_add_relaxed(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_add((p), (v), __ATOMIC_RELAXED))
#define rsi_fetch_or_relaxed(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_or((p), (v), __ATOMIC_RELAXED))
#define rsi_fetch_and_relaxed(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_and((p), (v), __ATOMIC_RELAXED))
#define rsi_fetch_add_acq_rel(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_add((p), (v), __ATOMIC_ACQ_REL))
#define rsi_fetch_add_seq_cst(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_add((p), (v), __ATOMIC_SEQ_CST))
#define rsi_fetch_sub_release(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_sub((p), (v), __ATOMIC_RELEASE))
#define rsi_fetch_sub_seq_cst(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_sub((p), (v), __ATOMIC_SEQ_CST))
#define rsi_fetch_or_acq_rel(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_or((p), (v), __ATOMIC_ACQ_REL))
#define rsi_fetch_or_seq_cst(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_or((p), (v), __ATOMIC_SEQ_CST))
#define rsi_fetch_and_acq_rel(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_and((p), (v), __ATOMIC_ACQ_REL))
#define rsi_fetch_and_release(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_and((p), (v), __ATOMIC_RELEASE))
#define rsi_fetch_and_seq_cst(p, v) \
    (rsi_wrote((p), true), __atomic_fetch_and((p), (v), __ATOMIC_SEQ_CST))
/* expected is a pointer, and holds the old value after a failure. A failure has relaxed order. */
#define rsi_cas_relaxed(p, expected, v) \
    (rsi_wrote((p), true), \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
#define rsi_cas_acquire(p, expected, v) \
    (rsi_wrote((p), true), \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
#define rsi_cas_release(p, expected, v) \
    (rsi_wrote((p), true), \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_RELEASE, __ATOMIC_RELAXED))
#define rsi_cas_acq_rel(p, expected, v) \
    (rsi_wrote((p), true), \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED))
#define rsi_cas_seq_cst(p, expected, v) \
    (rsi_wrote((p), true), \
     __atomic_compare_exchange_n((p), (expected), (v), false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))

#define rsi_compiler_barrier() __asm__ volatile("" ::: "memory")

RSI_INLINE void rsi_cpu_relax(void)
{
#if defined(__x86_64__)
    __asm__ volatile("pause" ::: "memory");
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory");
#else
#error "rouse runs on x86-64 and AArch64"
#endif
}

/* The CPU's time stamp, in its own ticks. */
RSI_INLINE uint64_t rsi_tsc(void)
{
#if defined(__x86_64__)
    uint32_t low, high;
    __asm__ volatile("rdtsc" : "=a"(low), "=d"(high));
    return (uint64_t)high << 32 | low;
#else
    uint64_t ticks;
    __asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
    return ticks;
#endif
}

RSI_INLINE size_t rsi_round_up(size_t n, size_t to)
{
    return (n + to - 1) & ~(to - 1);
}

/* xorshift64*: for victims and injected delays, not for secrets. state is never 0. */
RSI_INLINE uint64_t rsi_random_next(uint64_t *state)
{
    uint64_t x = *state;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    *state = x;
    return x * UINT64_C(2685821657736338717);
}

/*
 * A guard protects a few instructions on an object's own state. It spins, then yields the CPU, because its
 * holder may be preempted. Code that holds a guard neither blocks nor calls out. 0 is free. The acquire in
 * guard_lock pairs with the release in guard_unlock.
 */
void rsi_guard_lock_slow(uint32_t *guard);

RSI_INLINE bool rsi_guard_try(uint32_t *guard)
{
    return rsi_exchange_acquire(guard, 1u) == 0;
}

RSI_INLINE void rsi_guard_lock(uint32_t *guard)
{
    if (rsi_unlikely(!rsi_guard_try(guard)))
        rsi_guard_lock_slow(guard);
}

RSI_INLINE void rsi_guard_unlock(uint32_t *guard)
{
    rsi_store_release(guard, 0u);
}

/*
 * Write one line to standard error, "rouse: " and the text. The hook, if set, names the thread: it appends,
 * for example, " (thread 7 \"accept\")". rsi_fatal then ends the program by SIGABRT.
 */
void rsi_report(const char *format, ...) RSI_PRINTF(1, 2);
_Noreturn void rsi_fatal(const char *format, ...) RSI_PRINTF(1, 2);
extern size_t (*rsi_fatal_describe)(char *buffer, size_t bytes);

/*
 * Format into buffer and always end it with 0. Returns the number of bytes before the 0. Safe in signal
 * handlers. Supports only %s %d %u %lu %zu %lx %p %%.
 */
size_t rsi_format(char *buffer, size_t bytes, const char *format, ...) RSI_PRINTF(3, 4);
size_t rsi_format_list(char *buffer, size_t bytes, const char *format, va_list list)
    RSI_PRINTF(3, 0);

/* From the leak checker. NULL in a program without one. */
extern void __lsan_ignore_object(const void *object) __attribute__((weak));

/*
 * ROUSE_TEST builds delay here for a random time, to widen races. In other builds this does nothing.
 * ROUSE_TEST_SEED is the seed, ROUSE_TEST_DELAY the probability in 1/1024 (default 0).
 */
#ifdef ROUSE_TEST
void rsi_test_delay(void);

/*
 * Count the writes of the calling kernel thread from begin to end, whichever rouse thread runs on it. Only
 * one kernel thread at a time can be counted. Writes are counted by the range of addresses that they fall
 * into; the last entry counts the others. Distinct cache lines are counted too. Not counted: writes without
 * an atomic, and writes by the kernel.
 */
#define RSI_TEST_RANGES 8u
struct rsi_test_range {
    const void *from;
    size_t bytes;
};
struct rsi_test_writes {
    uint32_t locked[RSI_TEST_RANGES + 1], stores[RSI_TEST_RANGES + 1];
    uint32_t lines;
};
void rsi_test_writes_begin(const struct rsi_test_range *ranges, unsigned count);
void rsi_test_writes_end(struct rsi_test_writes *writes);

/*
 * How many requests to a ring to cancel something are ignored from now on, as the kernel may do (io/ring.h).
 */
extern uint32_t rsi_test_overlooked;
bool rsi_test_overlooks(void); /* whether to ignore this one */
#else
#define rsi_test_delay() ((void)0)
#define rsi_test_overlooks() false
#endif

#endif
