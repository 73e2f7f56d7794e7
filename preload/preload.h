/* SPDX-License-Identifier: MIT */
/*
 * preload.h - the parts of librouse-preload.so, which records what the threads of a program that knows nothing of
 * rouse wait for. It is named in LD_PRELOAD by `rouse run`, takes the place of libc's calls, and makes them.
 *
 * Rule: what a call returns and does is libc's own. Memory comes from mmap alone, since the program's malloc may hold
 * a lock that our caller waits for.
 */
#ifndef RPI_PRELOAD_H
#define RPI_PRELOAD_H

#include "obs/site.h"

#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <rouse/obs.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

#define RPI_EXPORT __attribute__((visibility("default")))
/* A variable of this library: without it each use of one would look its address up. */
#define RPI_HIDDEN __attribute__((visibility("hidden")))

/*
 * The calls that ours stand before: libc's, or those of the next library that has them. All but the first six, which
 * may be called before any constructor has run, are there once rpi_real_find has been called.
 */
/* clang-format off */
#define RPI_REALS(X) \
    X(syscall) X(pthread_mutex_lock) X(pthread_mutex_trylock) X(pthread_mutex_unlock) \
    X(pthread_mutex_init) X(pthread_mutex_destroy) \
    X(pthread_mutex_timedlock) X(pthread_mutex_clocklock) X(pthread_cond_wait) \
    X(pthread_cond_timedwait) X(pthread_cond_clockwait) X(pthread_cond_signal) \
    X(pthread_cond_broadcast) X(pthread_rwlock_rdlock) X(pthread_rwlock_tryrdlock) \
    X(pthread_rwlock_timedrdlock) X(pthread_rwlock_clockrdlock) X(pthread_rwlock_wrlock) \
    X(pthread_rwlock_trywrlock) X(pthread_rwlock_timedwrlock) X(pthread_rwlock_clockwrlock) \
    X(pthread_rwlock_unlock) X(pthread_spin_lock) X(pthread_spin_trylock) \
    X(pthread_spin_unlock) \
    X(pthread_barrier_wait) X(pthread_once) X(pthread_join) X(pthread_tryjoin_np) \
    X(pthread_timedjoin_np) X(pthread_clockjoin_np) X(sem_wait) X(sem_trywait) X(sem_timedwait) \
    X(sem_clockwait) X(sem_post) X(clock_nanosleep) X(sched_yield) X(poll) X(ppoll) X(select) \
    X(pselect) X(epoll_wait) X(epoll_pwait) X(epoll_pwait2) X(epoll_ctl) X(listen) X(accept) X(accept4) X(read) \
    X(readv) X(recv) X(recvfrom) X(recvmsg) X(write) X(writev) X(send) X(sendto) X(sendmsg) \
    X(connect) X(fsync) X(fdatasync) X(close) X(dup2) X(dup3) X(close_range) X(closefrom) \
    X(socket) X(socketpair) X(setsockopt) X(pipe) X(pipe2) X(pthread_setname_np) X(setuid) X(setgid) \
    X(setreuid) X(setregid) X(setresuid) X(setresgid) X(setgroups) X(initgroups) X(chroot) \
    X(pthread_rwlock_init) X(pthread_rwlock_destroy) X(pthread_spin_init) X(pthread_spin_destroy) \
    X(prctl) X(pthread_cond_init) X(pthread_cond_destroy) X(pthread_barrier_init) \
    X(pthread_barrier_destroy) X(sem_init) X(sem_destroy) X(mtx_init) X(mtx_destroy) X(cnd_init) \
    X(cnd_destroy) X(fclose) X(pclose) X(closedir) X(freopen) X(freopen64) \
    X(mlockall) X(recvmmsg) X(sendmmsg)
/* clang-format on */

#define RPI_REAL_MEMBER(name) __typeof__(name) *name;
struct rpi_real {
    RPI_REALS(RPI_REAL_MEMBER)
    bool is_found; /* release */
};
#undef RPI_REAL_MEMBER
extern RPI_HIDDEN struct rpi_real rpi_real;

/* libc's: the end of a program whose buffer is too small for what it asks. */
_Noreturn void __chk_fail(void);

/* Find them all; again: no effect. Inline, as is all that stands in the way of a free lock. */
void rpi_real_find_all(void);
RSI_INLINE void rpi_real_find(void)
{
    if (rsi_unlikely(!rsi_load_acquire(&rpi_real.is_found))) /* pairs with rpi_real_find_all */
        rpi_real_find_all();
}

/* Which call ended a wait. */
struct rpi_mark {
    uint64_t tsc; /* 0: nobody's, as far as is known */
    uint64_t waker_id;
    uint64_t site; /* as the file has it */
};

#define RPI_THREAD_HELD 16u

/* A kernel thread of the program. One that ends leaves it to another; it is never given back. */
struct rpi_thread {
    /* The locks it got last and where, by hash: what others know of a holder. Written by it alone, with no order. */
    struct {
        const void *lock, *site;
    } held[RPI_THREAD_HELD];

    pthread_t handle;
    int32_t tid;
    bool is_busy; /* in a call that waits, or in our own: what it calls meanwhile is not recorded */
    uint64_t begin_tsc;
    struct rsi_writer *writer;              /* NULL until it has something to say */
    struct rsi_store_thread *slot;          /* the same */
    const struct rsi_store_wake *last_wake; /* that its last wait was counted in; NULL: none */

    const struct rpi_wait *wait; /* that it is in; NULL: none, or it was the parent's of a fork */
    bool is_asleep;              /* in it, and not in what we do at its begin and end */

    /* While it waits; under the guard of its object's queue. */
    const void *object;
    struct rpi_thread *next, *previous;
    struct rpi_mark mark;

    uint32_t name; /* of what it waits for, or has waited for last: rpi_init_site_name */

    /* Its last wait for a condition, if that was ended by somebody. */
    struct rsi_wake_key again;
    const void *again_site;
    pthread_mutex_t *again_mutex;
    bool
        is_ready; /* its last wait was a poll that found something, and it has tried nothing since */
    int dry_fd;   /* on which it has just found nothing to read; -1: none */
    struct rsi_store_listener *order_row; /* of the listener whose queue it entered last */
    int turn_fd;                          /* the socket that it is told by; 0: none */
    uint16_t place;                       /* in the queues of --accept, from 1 on; 0: none */
    bool is_put_off;                      /* it has been put off since it last waited */
    const struct rpi_listener *told; /* its last poll said that a connection is there; NULL: no */

    struct rpi_holds *holds; /* NULL: none yet */

    struct rsi_waits_ring *waits; /* NULL: none */
    bool is_ringless;             /* there was no room for one */

    struct rpi_thread *next_free, *next_all;
};

/* Of the calling thread; NULL: it has not come yet, or has gone. */
extern __thread struct rpi_thread *rpi_self;

/* Not 0: it has no thread, and gets none; it enters, has ended, or is the child of a vfork, in its parent's memory. */
#define RPI_SELF_VFORKED 2 /* the assembler's number */
extern __thread uint8_t rpi_self_is_closed;

/* Of the child of a vfork: its descriptors are its own, and what is known of numbers here is its parent's. */
RSI_INLINE bool rpi_self_is_vforked(void)
{
    return rsi_unlikely(rpi_self_is_closed == RPI_SELF_VFORKED);
}

/* 0 in the child of a fork that no handler was told of: nothing of it is recorded. */
extern volatile const uint32_t *rpi_recording_here;

/* The caller's, made if need be; NULL: nothing of it is recorded. errno is left alone. */
struct rpi_thread *rpi_thread_enter(void);

/* Whether self's present call is to be recorded; if so it is busy from now on, and has its slot. */
bool rpi_thread_begin(struct rpi_thread *self);

/* The process is about to lose what it needs to make its file: it is made now, if it is not there. errno is left alone. */
void rpi_recording_settle(void);

/*
 * The program is about to confine itself (confine.c): what the kernel may end a thread for is not called any more by
 * any thread but as the program calls it, and nothing more is recorded of this process and of those that it forks. Set
 * once, before the filter; relaxed: the thread that sets it is the first that the filter holds for.
 */
extern RPI_HIDDEN bool rpi_recording_confined;
RSI_INLINE bool rpi_recording_is_confined(void)
{
    return rsi_unlikely(rsi_load_relaxed(&rpi_recording_confined));
}
void rpi_recording_confine(void);

/* Where the thread tid got lock last; NULL: not known. */
const void *rpi_thread_holder_site(int32_t tid, const void *lock);

/* Whether the thread tid is known to wait for something: a guess, which may be old. */
bool rpi_thread_waits(int32_t tid);

RSI_INLINE unsigned rpi_thread_held_at(const void *lock)
{
    return (unsigned)((uintptr_t)lock >> 5) % RPI_THREAD_HELD;
}

RSI_INLINE void rpi_thread_held_put(struct rpi_thread *self, const void *lock, const void *site)
{
    unsigned at = rpi_thread_held_at(lock);
    rsi_store_relaxed(&self->held[at].lock, lock);
    rsi_store_relaxed(&self->held[at].site, site);
}

#define RPI_WAITERS_LISTS 1024u
struct rpi_waiters {
    uint32_t guard;
    struct rpi_thread *first, *last;
};
extern RPI_HIDDEN struct rpi_waiters rpi_waiters_lists[RPI_WAITERS_LISTS];

RSI_INLINE struct rpi_waiters *rpi_waiters_of(const void *object)
{
    return &rpi_waiters_lists[rsi_hash((uintptr_t)object, 0, 0) % RPI_WAITERS_LISTS];
}

/*
 * Who waits for what (queue.c). join: self is about to wait for object. leave: it waits no more; is_got: it has what
 * it waited for, and then who gave it is in *mark. has: whether anybody waits for object, or for another whose hash is
 * the same; a guess, which costs one load. move: so many of those that wait for from and have not been woken wait
 * for to from now on.
 */
void rpi_waiters_join(struct rpi_thread *self, const void *object);
void rpi_waiters_move(const void *from, const void *to, size_t most);
void rpi_waiters_leave(struct rpi_thread *self, bool is_got, struct rpi_mark *mark);
RSI_INLINE bool rpi_waiters_has(const void *object)
{
    return rsi_load_relaxed(&rpi_waiters_of(object)->first) != NULL;
}

/* Whom of those that wait for object a call of self, which is busy, from site wakes. Returns how many had not been woken before. */
enum rpi_wakes {
    RPI_WAKES_ONE, /* the first that has not been woken yet */
    RPI_WAKES_HOLDER, /* as ONE; if all have been woken, the first is so anew: it has not got it so far */
    RPI_WAKES_ALL,      /* all that have not been woken yet */
    RPI_WAKES_ALL_ANEW, /* all: each has what it waits for by the last such call before it came back */
    RPI_WAKES_WRITERS_ANEW /* the same of those that wait to write */
};
size_t rpi_waiters_wake(const struct rpi_thread *self, const void *object, enum rpi_wakes whom,
                        const void *site);
/*
 * self, which has joined, is the last of count to come: the others are woken from where it waits, and it has left the
 * queue. Returns how many there are with it, or 0: it is not the last.
 */
size_t rpi_waiters_gather(struct rpi_thread *self, const void *object, size_t count);
/* So many of those that self has marked since then have not been woken after all. */
void rpi_waiters_unmark(const struct rpi_thread *self, const void *object, uint64_t since,
                        size_t most);
void rpi_waiters_child(void);

/* The microstates and the ledger (record.c). The wait that self counted under key was in vain: it ran until now. */
void rpi_wait_was_useless(struct rpi_thread *self, const struct rsi_wake_key *key,
                          enum rouse_verdict verdict, uint64_t now);

/* The calling thread's I/O of a kind is complete; or there was nothing to be had, though it had just been woken for it. */
void rpi_wait_count_call(enum rouse_wait_kind kind);
void rpi_wait_found_nothing(int fd);

/* A lock that was held on arrival. */
struct rpi_contest {
    struct rsi_lock_key key; /* its site and name are set by whoever records it */
    uint64_t since;
    uint64_t spin_ticks; /* from then on, before the thread slept */
};

/* It was got, or given up, as of now, by self, which is busy; is_spun: without a sleep. */
void rpi_contest_end(struct rpi_thread *self, const struct rpi_contest *contest, bool is_got,
                     uint64_t now, bool is_spun);

/*
 * Every time that a lock is got, and how long it is held (hold.c), if is_on; else none of what follows is called. begin:
 * the caller has just got a lock that was free; is_nesting: it may have had it already, and then the hold goes on.
 * contested: the same after a contest, which has counted it in row; self is busy. end: before the unlock; count: what
 * end has returned, after it. pause: both at once, for a lock that is about to be unlocked unseen; self is busy. warm:
 * self has slept, and may get locks soon.
 */
struct rpi_hold_ended {
    struct rsi_store_lock *row; /* NULL: no hold has ended */
    uint64_t ticks;
};
extern RPI_HIDDEN bool rpi_hold_is_on;
void rpi_hold_setup(void);
void rpi_hold_warm(const struct rpi_thread *self);
void rpi_hold_clear(struct rpi_holds *holds); /* NULL: no effect */
void rpi_hold_begin(const void *lock, enum rouse_wait_kind kind, bool is_nesting, const void *site);
void rpi_hold_contested(struct rpi_thread *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row);
struct rpi_hold_ended rpi_hold_end(struct rpi_thread *self, const void *lock);
void rpi_hold_count(const struct rpi_hold_ended *past);
void rpi_hold_pause(struct rpi_thread *self, const void *lock);
void rpi_mutex_hold(pthread_mutex_t *m, const void *site); /* begin, of a mutex */

/*
 * Where an object was initialised (init.c). name: the number that entries of writer's process have for that; 0: it is
 * not known. note: what is to be told of it in the file, which has just been made.
 */
uint32_t rpi_init_site_name(struct rsi_writer *writer, const void *object);
void rpi_init_site_note(void);
void rpi_init_site_child(void);

/* What `rouse run` is asked to change in the program (repair.c): begin with it, and note it in the file. */
void rpi_tuning_setup(void);
void rpi_tuning_note(void);

/*
 * Whether m, which another thread held as of contest->since, has been got by trying for a bounded time; then it is
 * counted. If not, spin_ticks are in *contest.
 */
bool rpi_tuning_spin(struct rpi_thread *self, pthread_mutex_t *m, struct rpi_contest *contest,
                     const void *site);

/*
 * A call that sleeps, or may: begin before, end after it. The thread is busy in between. begin: false if it is not to
 * be recorded, and then there is no end. end: NONE: it was no wait; contest: if the wait was for a lock that was held on
 * arrival, else NULL; false: the wait was of another process, which a signal handler has forked. errno is left alone.
 */
struct rpi_wait {
    struct rpi_thread *self;
    uint64_t since;
    bool is_queued; /* some call of the program's may end it */
};
bool rpi_wait_begin(struct rpi_wait *wait, enum rouse_wait_kind kind, const void *object,
                    const void *site);
bool rpi_wait_end(struct rpi_wait *wait, enum rouse_verdict verdict, struct rpi_contest *contest);

/* Whether the thread is still in it, which has begun. */
RSI_INLINE bool rpi_wait_goes_on(const struct rpi_wait *wait)
{
    return wait->self->wait == wait && *rpi_recording_here;
}

/* The end of one whose thread is cancelled: for pthread_cleanup_push. */
void rpi_wait_cancelled(void *wait);

/* A call that wakes is about to be made: before it, since whom it wakes may be back before we are. */
void rpi_waiters_note_wake_slow(const void *object, enum rpi_wakes whom, const void *site);
RSI_INLINE void rpi_waiters_note_wake(const void *object, enum rpi_wakes whom, const void *site)
{
    if (rsi_unlikely(rpi_waiters_has(object)))
        rpi_waiters_note_wake_slow(object, whom, site);
}

/*
 * Which wait the calling thread is in, for who learns of its switches later (waits.c). Asked for if rpi_wait_rings is not NULL;
 * else none of the others is called, but for child and tell. put: the wait begins; close: the last one that was put has
 * ended; tell: the thread of thread is about to end.
 */
extern RPI_HIDDEN struct rsi_waits *rpi_wait_rings;
void rpi_wait_ring_setup(void);
void rpi_wait_ring_child(void);
void rpi_wait_ring_put(struct rpi_thread *self, enum rouse_wait_kind kind, uint64_t site);
void rpi_wait_ring_close(const struct rpi_thread *self);
void rpi_wait_ring_tell(const struct rpi_thread *thread);

/* For rsi_sites_setup (stack.c). */
rsi_stack_end_of rpi_stack_end;

/* Who watches the kernel's scheduler learns how to read the slots of this process's threads (join.c). */
void rpi_kernel_join_begin(void);

/* What a descriptor is (fds.c). None of these sets errno. */
enum rpi_fd_class {
    RPI_FD_UNKNOWN,
    RPI_FD_SOCKET,
    RPI_FD_WHOLE,   /* a socket that takes what is little at once and whole, or nothing of it */
    RPI_FD_MESSAGE, /* and one that does so with all that is sent */
    RPI_FD_FILE,    /* no call on it waits for another thread */
    RPI_FD_OTHER,   /* a pipe, a terminal, an eventfd and the like */
    RPI_FD_OURS     /* the program has not made it, and cannot close it */
};
enum rpi_fd_class rpi_fd_class_of(int fd);
RSI_INLINE bool rpi_fd_is_socket(int fd)
{
    enum rpi_fd_class class = rpi_fd_class_of(fd);
    return class == RPI_FD_SOCKET || class == RPI_FD_WHOLE || class == RPI_FD_MESSAGE;
}
void rpi_descriptor_made(int fd, enum rpi_fd_class class); /* fd < 0: no effect */
void rpi_descriptor_closed(
    int fd); /* libc is about to close it by itself (stream.c); fd < 0: no effect */
bool rpi_fd_is_nonblock(int fd);
void rpi_fd_class_child(void);
bool rpi_fd_is_ready(int fd, short events);
bool rpi_fd_wants_more(int fd); /* a read of it may wait although something is there */

/* A listener, as this process has it (listener.c). Never taken away. */
struct rpi_listener {
    uint64_t cookie; /* the kernel's; the same in all processes */
    bool is_tcp;
    char name[sizeof(((struct rsi_store_listener *)0)->name)];
};

/* NULL: it is none, or the child of a vfork asks. errno is left alone by all of these. */
const struct rpi_listener *rpi_listener_of(int fd);

/* Whether the kernel says that fd is l, and no other that has its number by now. */
bool rpi_listener_is(int fd, const struct rpi_listener *l);

/* What fd is is not known any more, or it is known to be no listener; fd < 0: no effect. */
void rpi_listener_ask_anew(int fd);
void rpi_listener_is_none(int fd);

/* What self, which is busy, has counted of it; NULL: no room. */
struct rsi_store_listener *rpi_listener_row(struct rpi_thread *self, const struct rpi_listener *l);

/*
 * The calling thread: its accept has got a connection, after a sleep or without, or found none; a poll told of one
 * without a sleep; it has waited for l and, maybe, other things, with so many voluntary switches before, and was told of
 * a connection at found, if that is not NULL.
 */
enum rpi_accept { RPI_ACCEPT_NONE, RPI_ACCEPT_GOT, RPI_ACCEPT_WOKEN };
void rpi_listener_accepted(int fd, enum rpi_accept how);
void rpi_listener_told(const struct rpi_listener *l);
void rpi_listener_waited(const struct rpi_listener *l, uint64_t switches,
                         const struct rpi_listener *found);
uint64_t rpi_thread_switches(void);
void rpi_listener_delayed(const struct rpi_listener *l, uint64_t since_tsc); /* before an accept */

/* A listener in an epoll set (member.c): one of the set, with the program's data; -1: none. A guess. */
int rpi_epoll_member_of(int set, uint64_t *data);
void rpi_epoll_member_forget(int fd); /* it is closed: set or listener */

/*
 * A call that may make fd anew is about to be made: until release no thread moves what is known of it, set or listener,
 * and all signals are blocked. False: nothing is, and there is no release. is_gone: it was made anew. errno is left alone.
 */
bool rpi_epoll_member_hold(int fd, sigset_t *before);
void rpi_epoll_member_release(int fd, bool is_gone, const sigset_t *before);

/*
 * A wait of thread tid for set in an order, from begin to end; between them move takes the listener out of the set, or puts it back,
 * and end puts it back. is_edge: of an event it is told once. False: it cannot be waited for in an order, or no more:
 * it is not the only one of the set, or not by this process, or is waited for by another thread. errno is left alone.
 * A set below 0 is none: no effect.
 */
bool rpi_epoll_member_begin(int32_t tid, int set, int fd, bool *is_edge);
void rpi_epoll_member_move(int set, int fd, bool is_out);
void rpi_epoll_member_end(int set, int fd);
void rpi_epoll_member_child(void);
void rpi_epoll_member_restore(void); /* into their sets, for good */
void rpi_listener_child(void);

/* Calls of POSIX by another name, made at site. until: NULL: for ever. */
int rpi_mutex_lock(pthread_mutex_t *m, const struct timespec *until, const void *site);
int rpi_mutex_trylock(pthread_mutex_t *m, const void *site);
int rpi_mutex_unlock(pthread_mutex_t *m, const void *site);
int rpi_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until,
                  const void *site);
int rpi_cond_wake(pthread_cond_t *c, bool is_broadcast, const void *site);
int rpi_join(pthread_t thread, void **value, const void *site);
int rpi_once(pthread_once_t *control, void (*routine)(void), const void *site);

/* From there on so many bytes, at least eight, for the price of a system call a page (reach.c). */
bool rpi_is_readable(const void *from, size_t bytes);

/* libc waits by no other clock, and refuses one before it tries. */
RSI_INLINE bool rpi_deadline_clock_is_wrong(clockid_t clock)
{
    return clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC;
}

RSI_INLINE bool rpi_deadline_is_wrong(clockid_t clock, const struct timespec *until)
{
    return rpi_deadline_clock_is_wrong(clock) || until->tv_nsec < 0 || until->tv_nsec > 999999999;
}

/* The verdict on a wait for a lock, a condition or the like, by the number that its call returned. */
RSI_INLINE enum rouse_verdict rpi_wait_verdict(int error)
{
    return error == 0 || error == EOWNERDEAD ? ROUSE_VERDICT_USEFUL
           : error == ETIMEDOUT              ? ROUSE_VERDICT_TIMEOUT
           : error == EINTR                  ? ROUSE_VERDICT_CANCELLED
                                             : ROUSE_VERDICT_NONE;
}

#endif
