/* SPDX-License-Identifier: MIT */
/*
 * epoll_member.c - keeps track of the listeners in the program's epoll sets.
 *
 * An event carries only the program's data, so the data of each listener is kept to recognise its events. Not seen:
 * sets that a program inherits over exec, and sets that are filled by other means than libc.
 *
 * While a thread waits for its turn to accept, its listener is out of the set. epoll_ctl on the listener meanwhile puts
 * it back, makes the program's call, and takes it out again, so the kernel answers as if it had never been out. The
 * guard is held over these calls with all signals blocked, because a handler may close a descriptor.
 */
#include "accept/epoll_member.h"

#include "process/guard.h"
#include "process/real.h"
#include "process/recording.h"
#include "process/self.h"

#include <signal.h>

#define MEMBERS 64u /* per process; others are not seen */

struct rpi_epoll_member {
    int set, fd; /* these three are also read without the guard, and may then be out of date */
    uint64_t data;
    struct epoll_event event;
    int32_t pid;    /* the process that added it */
    int32_t waiter; /* the thread that waits for it in turn; 0: none */
    bool is_out;    /* it is out of the set until that thread has the turn */
    bool is_shared; /* a second thread waited at the same time: never in turn again */
};

static struct rpi_epoll_member members[MEMBERS]; /* protected by the guard; free: set is -1 */
static unsigned used; /* how many places have ever been used; relaxed: a hint */
static uint32_t guard;

static void lock(sigset_t *before)
{
    rpi_guard_enter(&guard, before);
}

static void unlock(const sigset_t *before)
{
    rpi_guard_exit(&guard, before);
}

static struct rpi_epoll_member *find_locked(int set, int fd)
{
    for (unsigned i = 0; i < used; i++)
        if (members[i].set == set && members[i].fd == fd)
            return &members[i];
    return NULL;
}

static void free_locked(struct rpi_epoll_member *member)
{
    *member = (struct rpi_epoll_member){ .set = member->set, .fd = member->fd };
    rsi_store_relaxed(&member->set, -1);
    rsi_store_relaxed(&member->fd, -1);
}

static void put_locked(int set, int fd, const struct epoll_event *event)
{
    struct rpi_epoll_member *place = find_locked(set, fd);
    if (!place && !(place = find_locked(-1, -1)) && used < MEMBERS) {
        place = &members[used];
        rsi_store_relaxed(&used, used + 1);
    }
    if (!place)
        return;
    rsi_store_relaxed(&place->set, set);
    rsi_store_relaxed(&place->fd, fd);
    rsi_store_relaxed(&place->data, event->data.u64);
    place->event = *event;
    place->pid = (int32_t)getpid();
}

/* Whether fd is a known set or listener. May be out of date. */
static bool is_any(int fd)
{
    unsigned count = rsi_load_relaxed(&used), i = 0;
    while (i < count && rsi_load_relaxed(&members[i].set) != fd &&
           rsi_load_relaxed(&members[i].fd) != fd)
        i++;
    return rsi_unlikely(i < count);
}

bool rpi_epoll_member_hold(int fd, sigset_t *before)
{
    if (fd < 0 || rpi_recording_is_confined() || !is_any(fd))
        return false;
    lock(before);
    return true;
}

void rpi_epoll_member_release(int fd, bool is_gone, const sigset_t *before)
{
    for (unsigned i = 0; i < used && is_gone; i++)
        if (members[i].set == fd || members[i].fd == fd)
            free_locked(&members[i]);
    unlock(before);
}

void rpi_epoll_member_forget(int fd)
{
    sigset_t before;
    if (rpi_epoll_member_hold(fd, &before))
        rpi_epoll_member_release(fd, true, &before);
}

int rpi_epoll_member_of(int set, uint64_t *data)
{
    unsigned count = rsi_load_relaxed(&used);
    for (unsigned i = 0; i < count; i++)
        if (rsi_load_relaxed(&members[i].set) == set) {
            *data = rsi_load_relaxed(&members[i].data);
            return rsi_load_relaxed(&members[i].fd);
        }
    return -1;
}

static bool is_one_locked(const struct rpi_epoll_member *member)
{
    unsigned count = 0;
    for (unsigned i = 0; i < used; i++)
        count += members[i].set == member->set;
    return count == 1 && member->pid == getpid() &&
           !(member->event.events & (uint32_t)EPOLLONESHOT);
}

static void move_locked(struct rpi_epoll_member *member, bool is_out)
{
    int what = is_out ? EPOLL_CTL_DEL : EPOLL_CTL_ADD;
    struct epoll_event event = member->event;
    if (member->is_out != is_out &&
        (rpi_real.epoll_ctl(member->set, what, member->fd, &event) == 0 || errno == EEXIST))
        member->is_out = is_out;
}

/* If two threads wait for one set, the listener cannot be in it for one and out of it for the other. */
bool rpi_epoll_member_begin(int32_t tid, int set, int fd, bool *is_edge)
{
    sigset_t before;
    lock(&before);
    struct rpi_epoll_member *member = find_locked(set, fd);
    bool is_one = member && is_one_locked(member);
    if (member && member->waiter == tid) { /* the program has left that wait by longjmp */
        move_locked(member, false);
        member->waiter = 0;
    }
    bool is_free = is_one && !member->waiter && !member->is_shared;
    if (is_free)
        member->waiter = tid;
    else if (is_one)
        member->is_shared = true;
    *is_edge = is_one && member->event.events & (uint32_t)EPOLLET;
    unlock(&before);
    return is_free;
}

/* Take a listener that is waited for out of the set or put it back. is_over: the wait ends too. */
static void step(int set, int fd, bool is_out, bool is_over)
{
    sigset_t before;
    int error = errno;
    if (set < 0 || rpi_recording_is_confined())
        return;
    lock(&before);
    struct rpi_epoll_member *member = find_locked(set, fd);
    if (member && member->waiter) {
        move_locked(member, is_out);
        if (is_over)
            member->waiter = 0;
    }
    unlock(&before);
    errno = error;
}

void rpi_epoll_member_move(int set, int fd, bool is_out)
{
    step(set, fd, is_out, false);
}

void rpi_epoll_member_end(int set, int fd)
{
    step(set, fd, false, true);
}

void rpi_epoll_member_child(void)
{
    guard = 0;
    for (unsigned i = 0; i < used; i++)
        members[i].waiter = 0;
}

void rpi_epoll_member_restore(void)
{
    sigset_t before;
    lock(&before);
    for (unsigned i = 0; i < used; i++)
        if (members[i].waiter)
            move_locked(&members[i], false);
    unlock(&before);
}

int rpi_epoll_member_control(int set, int what, int fd, struct epoll_event *event)
{
    sigset_t before;
    lock(&before);
    struct rpi_epoll_member *member = find_locked(set, fd);
    bool was_out = member && member->is_out;
    if (was_out)
        move_locked(member, false);
    int result = rpi_real.epoll_ctl(set, what, fd, event), error = errno;
    if (result == 0 && what != EPOLL_CTL_DEL)
        put_locked(set, fd, event);
    else if (result == 0 && member)
        free_locked(member);
    if (was_out && member->waiter)
        move_locked(member, true);
    unlock(&before);
    errno = error;
    return result;
}
