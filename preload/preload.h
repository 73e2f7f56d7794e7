/* SPDX-License-Identifier: MIT */
/*
 * preload.h - the parts of librouse-preload.so, which records what the threads of a program that knows nothing of
 * rouse wait for. It is named in LD_PRELOAD by `rouse run`, takes the place of libc's calls, and makes them.
 *
 * Rule: what a call returns and does is libc's own. Memory comes from mmap alone, since the program's malloc may hold
 * a lock that our caller waits for.
 */
#ifndef RSI_PRELOAD_PRELOAD_H
#define RSI_PRELOAD_PRELOAD_H

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

#define RSI_EXPORT __attribute__((visibility("default")))
/* A variable of this library: without it each use of one would look its address up. */
#define RSI_OWN __attribute__((visibility("hidden")))

/*
 * The calls that ours stand before: libc's, or those of the next library that has them. All but the first six, which
 * may be called before any constructor has run, are there once rsi_real_find has been called.
 */
/* clang-format off */
#define RSI_REALS(X) \
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

#define RSI_REAL_MEMBER(name) __typeof__(name) *name;
struct rsi_real {
    RSI_REALS(RSI_REAL_MEMBER)
    bool is_found; /* release */
};
#undef RSI_REAL_MEMBER
extern RSI_OWN struct rsi_real rsi_real;

/* libc's: the end of a program whose buffer is too small for what it asks. */
_Noreturn void __chk_fail(void);

/* Find them all; again: no effect. Inline, as is all that stands in the way of a free lock. */
void rsi_real_find_all(void);
RSI_INLINE void rsi_real_find(void)
{
    if (rsi_unlikely(!rsi_load_acquire(&rsi_real.is_found))) /* pairs with rsi_real_find_all */
        rsi_real_find_all();
}

/* Which call ended a wait. */
struct rsi_mark {
    uint64_t tsc; /* 0: nobody's, as far as is known */
    uint64_t waker_id;
    uint64_t site; /* as the file has it */
};

#define RSI_HELD 16u

/* A kernel thread of the program. One that ends leaves it to another; it is never given back. */
struct rsi_party {
    /* The locks it got last and where, by hash: what others know of a holder. Written by it alone, with no order. */
    struct {
        const void *lock, *site;
    } held[RSI_HELD];

    pthread_t thread;
    int32_t tid;
    bool is_busy; /* in a call that waits, or in our own: what it calls meanwhile is not recorded */
    uint64_t begin_tsc;
    struct rsi_writer *writer;              /* NULL until it has something to say */
    struct rsi_store_thread *slot;          /* the same */
    const struct rsi_store_wake *last_wake; /* that its last wait was counted in; NULL: none */

    const struct rsi_wait *wait; /* that it is in; NULL: none, or it was the parent's of a fork */
    bool is_asleep;              /* in it, and not in what we do at its begin and end */

    /* While it waits; under the guard of its object's queue. */
    const void *object;
    struct rsi_party *next, *previous;
    struct rsi_mark mark;

    uint32_t name; /* of what it waits for, or has waited for last: rsi_init_name */

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
    const struct rsi_listener *told; /* its last poll said that a connection is there; NULL: no */

    struct rsi_holds *holds; /* NULL: none yet */

    struct rsi_waits_ring *waits; /* NULL: none */
    bool is_ringless;             /* there was no room for one */

    struct rsi_party *next_free, *next_all;
};

/* Of the calling thread; NULL: it has not come yet, or has gone. */
extern __thread struct rsi_party *rsi_party_self;

/* Not 0: it has no party, and gets none; it enters, has ended, or is the child of a vfork, in its parent's memory. */
#define RSI_PARTY_VFORKED 2 /* the assembler's number */
extern __thread uint8_t rsi_party_is_closed;

/* Of the child of a vfork: its descriptors are its own, and what is known of numbers here is its parent's. */
RSI_INLINE bool rsi_party_is_vforked(void)
{
    return rsi_unlikely(rsi_party_is_closed == RSI_PARTY_VFORKED);
}

/* 0 in the child of a fork that no handler was told of: nothing of it is recorded. */
extern volatile const uint32_t *rsi_party_here;

/* The caller's, made if need be; NULL: nothing of it is recorded. errno is left alone. */
struct rsi_party *rsi_party_enter(void);

/* Whether self's present call is to be recorded; if so it is busy from now on, and has its slot. */
bool rsi_party_begin(struct rsi_party *self);

/* The process is about to lose what it needs to make its file: it is made now, if it is not there. errno is left alone. */
void rsi_party_settle(void);

/*
 * The program is about to confine itself (confine.c): what the kernel may end a thread for is not called any more by
 * any thread but as the program calls it, and nothing more is recorded of this process and of those that it forks. Set
 * once, before the filter; relaxed: the thread that sets it is the first that the filter holds for.
 */
extern RSI_OWN bool rsi_is_confined;
RSI_INLINE bool rsi_party_is_confined(void)
{
    return rsi_unlikely(rsi_load_relaxed(&rsi_is_confined));
}
void rsi_party_confine(void);

/* Where the thread tid got lock last; NULL: not known. */
const void *rsi_party_holder_site(int32_t tid, const void *lock);

/* Whether the thread tid is known to wait for something: a guess, which may be old. */
bool rsi_party_waits(int32_t tid);

RSI_INLINE unsigned rsi_held_at(const void *lock)
{
    return (unsigned)((uintptr_t)lock >> 5) % RSI_HELD;
}

RSI_INLINE void rsi_held_put(struct rsi_party *self, const void *lock, const void *site)
{
    unsigned at = rsi_held_at(lock);
    rsi_store_relaxed(&self->held[at].lock, lock);
    rsi_store_relaxed(&self->held[at].site, site);
}

#define RSI_QUEUES 1024u
struct rsi_queue {
    uint32_t guard;
    struct rsi_party *first, *last;
};
extern RSI_OWN struct rsi_queue rsi_queues[RSI_QUEUES];

RSI_INLINE struct rsi_queue *rsi_queue_of(const void *object)
{
    return &rsi_queues[rsi_hash((uintptr_t)object, 0, 0) % RSI_QUEUES];
}

/*
 * Who waits for what (queue.c). join: self is about to wait for object. leave: it waits no more; is_got: it has what
 * it waited for, and then who gave it is in *mark. has: whether anybody waits for object, or for another whose hash is
 * the same; a guess, which costs one load. move: so many of those that wait for from and have not been woken wait
 * for to from now on.
 */
void rsi_queue_join(struct rsi_party *self, const void *object);
void rsi_queue_move(const void *from, const void *to, size_t most);
void rsi_queue_leave(struct rsi_party *self, bool is_got, struct rsi_mark *mark);
RSI_INLINE bool rsi_queue_has(const void *object)
{
    return rsi_load_relaxed(&rsi_queue_of(object)->first) != NULL;
}

/* Whom of those that wait for object a call of self, which is busy, from site wakes. Returns how many had not been woken before. */
enum rsi_wakes {
    RSI_WAKES_ONE, /* the first that has not been woken yet */
    RSI_WAKES_HOLDER, /* as ONE; if all have been woken, the first is so anew: it has not got it so far */
    RSI_WAKES_ALL,      /* all that have not been woken yet */
    RSI_WAKES_ALL_ANEW, /* all: each has what it waits for by the last such call before it came back */
    RSI_WAKES_WRITERS_ANEW /* the same of those that wait to write */
};
size_t rsi_queue_wake(const struct rsi_party *self, const void *object, enum rsi_wakes whom,
                      const void *site);
/*
 * self, which has joined, is the last of count to come: the others are woken from where it waits, and it has left the
 * queue. Returns how many there are with it, or 0: it is not the last.
 */
size_t rsi_queue_gather(struct rsi_party *self, const void *object, size_t count);
/* So many of those that self has marked since then have not been woken after all. */
void rsi_queue_unmark(const struct rsi_party *self, const void *object, uint64_t since,
                      size_t most);
void rsi_queues_child(void);

/* The microstates and the ledger (record.c). The wait that self counted under key was in vain: it ran until now. */
void rsi_record_vain(struct rsi_party *self, const struct rsi_wake_key *key,
                     enum rouse_verdict verdict, uint64_t now);

/* The calling thread's I/O of a kind is complete; or there was nothing to be had, though it had just been woken for it. */
void rsi_record_call(enum rouse_wait_kind kind);
void rsi_record_lost(int fd);

/* A lock that was held on arrival. */
struct rsi_contest {
    struct rsi_lock_key key; /* its site and name are set by whoever records it */
    uint64_t since;
    uint64_t spin_ticks; /* from then on, before the thread slept */
};

/* It was got, or given up, as of now, by self, which is busy; is_spun: without a sleep. */
void rsi_record_contest(struct rsi_party *self, const struct rsi_contest *contest, bool is_got,
                        uint64_t now, bool is_spun);

/*
 * Every time that a lock is got, and how long it is held (hold.c), if is_on; else none of what follows is called. begin:
 * the caller has just got a lock that was free; is_nesting: it may have had it already, and then the hold goes on.
 * contested: the same after a contest, which has counted it in row; self is busy. end: before the unlock; count: what
 * end has returned, after it. pause: both at once, for a lock that is about to be unlocked unseen; self is busy. warm:
 * self has slept, and may get locks soon.
 */
struct rsi_past {
    struct rsi_store_lock *row; /* NULL: no hold has ended */
    uint64_t ticks;
};
extern RSI_OWN bool rsi_holds_are_on;
void rsi_holds_begin(void);
void rsi_holds_warm(const struct rsi_party *self);
void rsi_holds_clear(struct rsi_holds *holds); /* NULL: no effect */
void rsi_hold_begin(const void *lock, enum rouse_wait_kind kind, bool is_nesting, const void *site);
void rsi_hold_contested(struct rsi_party *self, const struct rsi_lock_key *key,
                        struct rsi_store_lock *row);
struct rsi_past rsi_hold_end(struct rsi_party *self, const void *lock);
void rsi_hold_count(const struct rsi_past *past);
void rsi_hold_pause(struct rsi_party *self, const void *lock);
void rsi_mutex_hold(pthread_mutex_t *m, const void *site); /* begin, of a mutex */

/*
 * Where an object was initialised (init.c). name: the number that entries of writer's process have for that; 0: it is
 * not known. note: what is to be told of it in the file, which has just been made.
 */
uint32_t rsi_init_name(struct rsi_writer *writer, const void *object);
void rsi_init_note(void);
void rsi_inits_child(void);

/* What `rouse run` is asked to change in the program (repair.c): begin with it, and note it in the file. */
void rsi_repair_begin(void);
void rsi_repair_note(void);

/*
 * Whether m, which another thread held as of contest->since, has been got by trying for a bounded time; then it is
 * counted. If not, spin_ticks are in *contest.
 */
bool rsi_repair_spin(struct rsi_party *self, pthread_mutex_t *m, struct rsi_contest *contest,
                     const void *site);

/*
 * A call that sleeps, or may: begin before, end after it. The thread is busy in between. begin: false if it is not to
 * be recorded, and then there is no end. end: NONE: it was no wait; contest: if the wait was for a lock that was held on
 * arrival, else NULL; false: the wait was of another process, which a signal handler has forked. errno is left alone.
 */
struct rsi_wait {
    struct rsi_party *self;
    uint64_t since;
    bool is_queued; /* some call of the program's may end it */
};
bool rsi_wait_begin(struct rsi_wait *wait, enum rouse_wait_kind kind, const void *object,
                    const void *site);
bool rsi_wait_end(struct rsi_wait *wait, enum rouse_verdict verdict, struct rsi_contest *contest);

/* Whether the thread is still in it, which has begun. */
RSI_INLINE bool rsi_wait_goes_on(const struct rsi_wait *wait)
{
    return wait->self->wait == wait && *rsi_party_here;
}

/* The end of one whose thread is cancelled: for pthread_cleanup_push. */
void rsi_wait_cancelled(void *wait);

/* A call that wakes is about to be made: before it, since whom it wakes may be back before we are. */
void rsi_wake_note_waited(const void *object, enum rsi_wakes whom, const void *site);
RSI_INLINE void rsi_wake_note(const void *object, enum rsi_wakes whom, const void *site)
{
    if (rsi_unlikely(rsi_queue_has(object)))
        rsi_wake_note_waited(object, whom, site);
}

/*
 * Which wait the calling thread is in, for who learns of its switches later (waits.c). Asked for if rsi_waits is not NULL;
 * else none of the others is called, but for child and tell. put: the wait begins; close: the last one that was put has
 * ended; tell: the thread of party is about to end.
 */
extern RSI_OWN struct rsi_waits *rsi_waits;
void rsi_waits_setup(void);
void rsi_waits_child(void);
void rsi_waits_put(struct rsi_party *self, enum rouse_wait_kind kind, uint64_t site);
void rsi_waits_close(const struct rsi_party *self);
void rsi_waits_tell(const struct rsi_party *party);

/* For rsi_sites_setup (stack.c). */
rsi_stack_end_of rsi_stack_end;

/* Who watches the kernel's scheduler learns how to read the slots of this process's threads (join.c). */
void rsi_join_begin(void);

/* What a descriptor is (fds.c). None of these sets errno. */
enum rsi_fd_class {
    RSI_FD_UNKNOWN,
    RSI_FD_SOCKET,
    RSI_FD_WHOLE,   /* a socket that takes what is little at once and whole, or nothing of it */
    RSI_FD_MESSAGE, /* and one that does so with all that is sent */
    RSI_FD_FILE,    /* no call on it waits for another thread */
    RSI_FD_OTHER,   /* a pipe, a terminal, an eventfd and the like */
    RSI_FD_OURS     /* the program has not made it, and cannot close it */
};
enum rsi_fd_class rsi_fd_class_of(int fd);
RSI_INLINE bool rsi_fd_is_socket(int fd)
{
    enum rsi_fd_class class = rsi_fd_class_of(fd);
    return class == RSI_FD_SOCKET || class == RSI_FD_WHOLE || class == RSI_FD_MESSAGE;
}
void rsi_fd_made(int fd, enum rsi_fd_class class); /* fd < 0: no effect */
void rsi_fd_closed(int fd); /* libc is about to close it by itself (stream.c); fd < 0: no effect */
bool rsi_fd_is_nonblock(int fd);
void rsi_fds_child(void);
bool rsi_fd_is_ready(int fd, short events);
bool rsi_fd_wants_more(int fd); /* a read of it may wait although something is there */

/* A listener, as this process has it (listener.c). Never taken away. */
struct rsi_listener {
    uint64_t cookie; /* the kernel's; the same in all processes */
    bool is_tcp;
    char name[sizeof(((struct rsi_store_listener *)0)->name)];
};

/* NULL: it is none, or the child of a vfork asks. errno is left alone by all of these. */
const struct rsi_listener *rsi_listener_of(int fd);

/* Whether the kernel says that fd is l, and no other that has its number by now. */
bool rsi_listener_is(int fd, const struct rsi_listener *l);

/* What fd is is not known any more, or it is known to be no listener; fd < 0: no effect. */
void rsi_listener_ask_anew(int fd);
void rsi_listener_is_none(int fd);

/* What self, which is busy, has counted of it; NULL: no room. */
struct rsi_store_listener *rsi_listener_row(struct rsi_party *self, const struct rsi_listener *l);

/*
 * The calling thread: its accept has got a connection, after a sleep or without, or found none; a poll told of one
 * without a sleep; it has waited for l and, maybe, other things, with so many voluntary switches before, and was told of
 * a connection at found, if that is not NULL.
 */
enum rsi_accept { RSI_ACCEPT_NONE, RSI_ACCEPT_GOT, RSI_ACCEPT_WOKEN };
void rsi_listener_accepted(int fd, enum rsi_accept how);
void rsi_listener_told(const struct rsi_listener *l);
void rsi_listener_waited(const struct rsi_listener *l, uint64_t switches,
                         const struct rsi_listener *found);
uint64_t rsi_listener_switches(void);
void rsi_listener_delayed(const struct rsi_listener *l, uint64_t since_tsc); /* before an accept */

/* A listener in an epoll set (member.c): one of the set, with the program's data; -1: none. A guess. */
int rsi_member_of(int set, uint64_t *data);
void rsi_member_forget(int fd); /* it is closed: set or listener */

/*
 * A call that may make fd anew is about to be made: until release no thread moves what is known of it, set or listener,
 * and all signals are blocked. False: nothing is, and there is no release. is_gone: it was made anew. errno is left alone.
 */
bool rsi_member_hold(int fd, sigset_t *before);
void rsi_member_release(int fd, bool is_gone, const sigset_t *before);

/*
 * A wait of thread tid for set in an order, from begin to end; between them move takes the listener out of the set, or puts it back,
 * and end puts it back. is_edge: of an event it is told once. False: it cannot be waited for in an order, or no more:
 * it is not the only one of the set, or not by this process, or is waited for by another thread. errno is left alone.
 * A set below 0 is none: no effect.
 */
bool rsi_member_begin(int32_t tid, int set, int fd, bool *is_edge);
void rsi_member_move(int set, int fd, bool is_out);
void rsi_member_end(int set, int fd);
void rsi_members_child(void);
void rsi_members_restore(void); /* into their sets, for good */
void rsi_listeners_child(void);

/* Calls of POSIX by another name, made at site. until: NULL: for ever. */
int rsi_mutex_lock(pthread_mutex_t *m, const struct timespec *until, const void *site);
int rsi_mutex_trylock(pthread_mutex_t *m, const void *site);
int rsi_mutex_unlock(pthread_mutex_t *m, const void *site);
int rsi_cond_wait(pthread_cond_t *c, pthread_mutex_t *m, const struct timespec *until,
                  const void *site);
int rsi_cond_wake(pthread_cond_t *c, bool is_broadcast, const void *site);
int rsi_join(pthread_t thread, void **value, const void *site);
int rsi_once(pthread_once_t *control, void (*routine)(void), const void *site);

/* From there on so many bytes, at least eight, for the price of a system call a page (reach.c). */
bool rsi_can_read(const void *from, size_t bytes);

/* libc waits by no other clock, and refuses one before it tries. */
RSI_INLINE bool rsi_clock_is_wrong(clockid_t clock)
{
    return clock != CLOCK_REALTIME && clock != CLOCK_MONOTONIC;
}

RSI_INLINE bool rsi_time_is_wrong(clockid_t clock, const struct timespec *until)
{
    return rsi_clock_is_wrong(clock) || until->tv_nsec < 0 || until->tv_nsec > 999999999;
}

/* The verdict on a wait for a lock, a condition or the like, by the number that its call returned. */
RSI_INLINE enum rouse_verdict rsi_verdict_of(int error)
{
    return error == 0 || error == EOWNERDEAD ? ROUSE_VERDICT_USEFUL
           : error == ETIMEDOUT              ? ROUSE_VERDICT_TIMEOUT
           : error == EINTR                  ? ROUSE_VERDICT_CANCELLED
                                             : ROUSE_VERDICT_NONE;
}

#endif
