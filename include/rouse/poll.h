/* SPDX-License-Identifier: MIT */
/*
 * rouse/poll.h - wait for any of many descriptors, stopping only the calling thread.
 *
 * rouse_poll has the meaning and the arguments of poll(2), but returns -errno, is never interrupted by a signal,
 * and does not round times. A thread is woken only by a descriptor of its current call, and only for an event
 * that the call asked for, or for an error or hang-up, which are always reported. Every thread that polls a
 * descriptor may return when it is ready. Nothing is kept between calls, and descriptors and their O_NONBLOCK
 * flag are not changed.
 *
 * A descriptor that rouse_close closes while it is polled is reported with POLLNVAL, even if a new descriptor
 * has its number by then. Negative descriptors are ignored. Regular files are always ready, as in poll(2).
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
 * count        0: the call only sleeps.
 * timeout_ms   0: check once; negative: no limit.
 * deadline_ns  absolute CLOCK_MONOTONIC, ns; a past value: check once.
 * Returns      how many descriptors have revents; 0 on timeout; -ECANCELED; -EINVAL (count exceeds the limit of open
 *              descriptors); -EFAULT; -ENOMEM; -ENOSPC (the user's limit of watched descriptors). After an error
 *              revents are undefined.
 * Blocks       the calling thread only. A kernel or foreign thread blocks itself: in ppoll(2), or on a futex if an
 *              io_uring receives ahead for one of the descriptors.
 */
int rouse_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
int rouse_poll_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns);

/*
 * As rouse_poll, but an event wakes only one of the threads that wait for it, whether in these calls or in reads
 * and writes of the descriptor: the thread that has waited longest. Use it where many threads poll the same
 * descriptors, such as the listeners of a server.
 *
 * Events that the woken thread does not handle are not lost. If the descriptor is still ready when that thread
 * polls again, blocks in any call or ends, the next thread is woken. The next thread is also woken at once if a
 * read, write or accept of rouse on the descriptor left something. A descriptor that is ready when the call begins
 * ends it at once, whichever other threads poll.
 */
int rouse_poll_exclusive(struct pollfd *fds, nfds_t count, int timeout_ms);
int rouse_poll_exclusive_until(struct pollfd *fds, nfds_t count, uint64_t deadline_ns);

/*
 * As rouse_poll, with the sets of select(2): checks the first nfds bits of each set, and leaves the ready ones set.
 * A set may be longer than an fd_set, in the caller's memory, with nfds rounded up to a whole long.
 *
 * timeout      NULL: no limit. It is not changed.
 * Returns      how many bits are set in all sets; 0 on timeout; -EBADF (a number is not an open descriptor, or
 *              rouse_close closed it meanwhile); -EINVAL (nfds or the timeout is negative); otherwise as rouse_poll.
 *              After an error the sets are unchanged.
 */
int rouse_select(int nfds, fd_set *in, fd_set *out, fd_set *except, const struct timeval *timeout);
int rouse_select_until(int nfds, fd_set *in, fd_set *out, fd_set *except, uint64_t deadline_ns);

/*
 * A set of descriptors that threads wait for repeatedly. Each member carries 64 bits of user data.
 *
 * A member is reported as long as it is ready (level-triggered). With ROUSE_SET_EDGE it is reported only after
 * each new event, and with ROUSE_SET_ONESHOT once, until rouse_set_modify.
 *
 * Several threads may wait for one set. Each event wakes one of them: the one that has waited longest. A member
 * that was reported to a thread and is still ready when that thread waits again is reported again, to that thread
 * or another. If the thread blocks elsewhere or ends first, and others wait, the member is reported to one of them
 * then. Until then another thread gets the member only on a new event, or if its own deadline has passed when it
 * begins to wait. Use ROUSE_SET_ONESHOT to exclude that.
 *
 * rouse_close removes a descriptor from its sets. A child of fork has no sets: there, every call except
 * rouse_set_destroy returns -EBADF.
 */
#define ROUSE_SET_EDGE 1u
#define ROUSE_SET_ONESHOT 2u

struct rouse_set;

struct rouse_set_event {
    uint64_t data;
    int fd;
    short events; /* as revents of poll(2) */
};

/* Returns 0, -EINVAL (set is NULL), -ENOMEM, or -EMFILE (there are 65,536 sets already). */
int rouse_set_create(struct rouse_set **set);

/* Destroy the set. No thread may use it any more. If one still waits for it, the program ends with a message. */
void rouse_set_destroy(struct rouse_set *set);

/*
 * Add fd to the set, change its events, or remove it. They never block, and may be called while threads wait.
 *
 * events   as in poll(2). Errors and hang-ups are always reported.
 * Returns  0; add: -EEXIST, -EPERM (cannot be waited for, as a regular file), -ENOMEM, -ENOSPC; modify and
 *          remove: -ENOENT (not in the set); add and modify: -EINVAL (unknown flags); all: -EBADF.
 * Ordering after add and modify the next wait checks the descriptor, even if it was reported before.
 */
int rouse_set_add(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data);
int rouse_set_modify(struct rouse_set *set, int fd, short events, unsigned flags, uint64_t data);
int rouse_set_remove(struct rouse_set *set, int fd);

/*
 * Wait until a member is ready, and write at most count events, and at most 64.
 *
 * Returns  how many; _until: -ETIMEDOUT (a past deadline: checks every member once); -ECANCELED; -EINVAL (count is
 *          0); -EBADF (the set belongs to the parent process); -ENOMEM.
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
