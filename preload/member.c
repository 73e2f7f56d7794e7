/* SPDX-License-Identifier: MIT */
/*
 * member.c - the listeners in the program's epoll sets, and what an event of theirs says.
 *
 * An event has no descriptor but what the program put there as data, so what it put there is kept. Not seen: what a
 * program that is run by exec has been left, and sets that are filled by other means than libc.
 */
#include "preload.h"

#define MEMBERS 64u /* in a process; those beyond are not seen */

static struct rsi_member members[MEMBERS]; /* under the guard; free: set is -1 */
static unsigned used;                      /* places that were ever taken; relaxed: a hint */
static uint32_t guard;

static struct rsi_member *find_locked(int set, int fd)
{
    for (unsigned i = 0; i < used; i++)
        if (members[i].set == set && members[i].fd == fd)
            return &members[i];
    return NULL;
}

static void put_locked(const struct rsi_member *member)
{
    struct rsi_member *place = find_locked(member->set, member->fd);
    if (!place)
        place = find_locked(-1, -1);
    if (!place && used < MEMBERS) {
        place = &members[used];
        rsi_store_relaxed(&used, used + 1);
    }
    if (place)
        *place = *member;
}

void rsi_member_forget(int fd)
{
    if (rsi_likely(rsi_load_relaxed(&used) == 0))
        return;
    rsi_guard_lock(&guard);
    for (unsigned i = 0; i < used; i++)
        if (members[i].set == fd || members[i].fd == fd)
            members[i] = (struct rsi_member){ .set = -1, .fd = -1 };
    rsi_guard_unlock(&guard);
}

unsigned rsi_member_of(int set, struct rsi_member *found)
{
    unsigned count = 0;
    if (rsi_likely(rsi_load_relaxed(&used) == 0))
        return 0;
    rsi_guard_lock(&guard);
    for (unsigned i = 0; i < used; i++)
        if (members[i].set == set && count++ == 0)
            *found = members[i];
    rsi_guard_unlock(&guard);
    return count;
}

void rsi_members_child(void)
{
    guard = 0;
}

RSI_EXPORT RSI_NOINLINE int epoll_ctl(int set, int what, int fd, struct epoll_event *event)
{
    rsi_real_find();
    int result = rsi_real.epoll_ctl(set, what, fd, event);
    if (result != 0 || !rsi_listener_of(fd))
        return result;
    rsi_guard_lock(&guard);
    if (what == EPOLL_CTL_DEL) {
        struct rsi_member *member = find_locked(set, fd);
        if (member)
            *member = (struct rsi_member){ .set = -1, .fd = -1 };
    } else {
        struct rsi_member member = { set, fd, *event, (int32_t)getpid() };
        put_locked(&member);
    }
    rsi_guard_unlock(&guard);
    return result;
}
