/* SPDX-License-Identifier: MIT */
/*
 * clone_threads.h - a thread library on clone(2), to read beside docs/threads-on-linux.md. x86-64 and glibc only.
 *
 * A thread has a mapping of CT_BYTES, which begins at a multiple of it: its control block, a guard page, and the stack,
 * growing down from the end. The control block of the running thread is therefore found from the stack pointer, without
 * thread-local storage.
 */
#ifndef CLONE_THREADS_H
#define CLONE_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CT_BYTES ((uintptr_t)1 << 20)

struct ct_thread {
    _Atomic uint32_t tid; /* cleared and woken as a futex by the kernel when the thread has ended */
    int start_tid;        /* the same, for ct_signal; stays */
    void *(*fn)(void *);
    void *arg;
    void *result;
};

/*
 * CT_OWN_BLOCK: the thread gets a libc thread block of its own, so that it may call malloc and printf. Without it all
 * threads share one, as the library did that this one is modelled on, and two of them in malloc crash.
 */
enum ct_block { CT_SHARED_BLOCK, CT_OWN_BLOCK };

/* Returns 0, or a negative error number: -ENOMEM, -EAGAIN (too many threads), -ENOTSUP (libc has no blocks to give). */
int ct_create(struct ct_thread **out, enum ct_block block, void *(*fn)(void *), void *arg);

/* Wait for the end of a thread, store its result, and unmap its stack. Returns 0, or -EDEADLK for the caller itself. */
int ct_join(struct ct_thread *t, void **result);

/* End the calling thread. */
_Noreturn void ct_exit(void *result);

struct ct_thread *ct_self(void);

/* Send a signal to one thread, as pthread_kill does. Returns 0, or a negative error number. */
int ct_signal(struct ct_thread *t, int number);

/* 0 free, 1 held. Waits by spinning. */
struct ct_spin {
    _Atomic uint32_t held;
};
void ct_spin_lock(struct ct_spin *s);
void ct_spin_unlock(struct ct_spin *s);

/* 0 free, 1 held, 2 held and perhaps waited for. Source: Drepper, "Futexes Are Tricky", mutex2. */
struct ct_mutex {
    _Atomic uint32_t state;
};
void ct_mutex_lock(struct ct_mutex *m);
void ct_mutex_unlock(struct ct_mutex *m);

#endif
