/* SPDX-License-Identifier: MIT */
/*
 * rouse/poll.h - waiting for any of many descriptors, stopping the calling thread only.
 *
 * rouse_poll has the meaning and the arguments of poll(2), but returns -errno, is never ended by a signal,
 * and rounds no time. A thread is woken only by an event of a descriptor that its present call has, and
 * only if the call asked for that event (or by an error or a hang-up, which nobody can leave out). Every
 * thread that polls a descriptor may return when it is ready. Nothing is kept from one call to the next,
 * nothing is set on the descriptors, and O_NONBLOCK is left alone.
 *
 * A descriptor that is closed by rouse_close while it is polled is reported with POLLNVAL, also when its
 * number has been given out again meanwhile. Negative descriptors are passed over. Regular files are
 * always ready, as in poll(2).
 */
#ifndef ROUSE_POLL_H
#define ROUSE_POLL_H

#include <poll.h>
#include <sys/select.h>

#include <rouse/thread.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/*
 * Wait until one of count descriptors has an event, and fill in revents.
 *
 * timeout_ms   0: one look; negative: no limit. count 0 sleeps.
 * deadline_ns  absolute; a past value: one look.
 * Returns      how many descriptors have revents; 0 when the time is over; -ECANCELED; -EINVAL (count is
 *              above the limit of open descriptors); -EFAULT; -ENOMEM; -ENOSPC (the user's limit of watched
 *              descriptors). After an error revents mean nothing.
 * Blocks       the calling thread only. On a kernel or foreign thread, that thread: in ppoll(2), or, if a ring
 *              receives ahead for one of the descriptors, on a futex.
 */
int rouse_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int rouse_poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns);

/*
 * The same, but an event wakes one thread only of those that wait for it by these calls or by reads and
 * writes of that descriptor: the one that has waited longest. What it does not see to is not lost: when it
 * polls again, blocks in any call, or ends, and the descriptor is still ready, the next thread is woken; and
 * at once after its read, write or accept of that descriptor by rouse's calls, if that has left something.
 * For sets that many threads share, as the listeners of a server. A descriptor that is ready when the call
 * begins ends it at once, whoever else polls.
 */
int rouse_poll_exclusive(struct pollfd *fds, nfds_t count, int timeout_ms);
int rouse_poll_exclusive_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns);

/*
 * The same with the sets of select(2): the first nfds bits of each are looked at, and what is ready is left
 * in them. A set may be longer than an fd_set, in memory of the caller's, nfds rounded up to a whole long.
 *
 * timeout      NULL: no limit. It is not changed.
 * Returns      how many bits are left in all sets; 0 when the time is over; -EBADF if a descriptor is none,
 *              or is closed by rouse_close meanwhile; -EINVAL (nfds or the timeout is negative); or as
 *              rouse_poll. After an error the sets are as they were.
 */
int rouse_select(int nfds, fd_set *in, fd_set *out, fd_set *except, const struct timeval *timeout);
int rouse_select_until(int nfds, fd_set *in, fd_set *out, fd_set *except, uint64_t deadline_ns);

/*
 * A set of descriptors that threads wait for, over and over, each descriptor with 64 bits of the user's.
 *
 * A member is told of as long as it is ready (level-triggered). ROUSE_SET_EDGE: only after each event.
 * ROUSE_SET_ONESHOT: once, until rouse_set_modify. Several threads may wait for one set: each event wakes
 * one of them, the one that has waited longest. What a thread was told of, and is still ready when it waits
 * again, it or another is told of again; if it blocks elsewhere or ends before, and others wait, one of them
 * is told then. Another is told meanwhile only when a new event comes, or if its deadline is past when it
 * begins to wait; those who must not have that use ROUSE_SET_ONESHOT.
 *
 * A descriptor that is closed by rouse_close leaves its sets. A child after fork has no sets: calls return
 * -EBADF there, but for rouse_set_destroy.
 */
#define ROUSE_SET_EDGE 1u
#define ROUSE_SET_ONESHOT 2u

struct rouse_set;

struct rouse_set_event {
    uint64_t data;
    int fd;
    short events; /* as poll's revents */
};

/* Returns 0, -EINVAL (set is NULL), -ENOMEM, or -EMFILE (65,536 sets). */
int rouse_set_create(struct rouse_set **set);

/* Release the set. Nobody may wait for it or use it: a thread that does wait ends the program. */
void rouse_set_destroy(struct rouse_set *set);

/*
 * Put fd into the set, change what is asked of it, take it out. events as poll's; an error and a hang-up are
 * told of unasked. add and modify have the next wait look, whatever has been told. They block never, and may
 * be called while others wait.
 *
 * Returns  0; add: -EEXIST, -EPERM (not to be waited for, as a regular file), -ENOMEM, -ENOSPC; modify and
 *          remove: -ENOENT (not in the set); add and modify: -EINVAL (unknown flags); all: -EBADF.
 */
int rouse_set_add(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data);
int rouse_set_modify(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data);
int rouse_set_remove(struct rouse_set *set, int fd);

/*
 * Wait until a member is ready, and write at most count events (and at most 64).
 *
 * Returns  how many; _until: -ETIMEDOUT (a past deadline: one look, at every member); -ECANCELED; -EINVAL (count is 0);
 *          -EBADF (a parent's set); -ENOMEM.
 * Blocks   the calling thread only, of any kind.
 */
int rouse_set_wait(struct rouse_set *set, struct rouse_set_event *events, unsigned count);
int rouse_set_wait_until(struct rouse_set *set, struct rouse_set_event *events, unsigned count,
                         uint64_t deadline_ns);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
