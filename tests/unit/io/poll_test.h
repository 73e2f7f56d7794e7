/* SPDX-License-Identifier: MIT */
/*
 * poll_test.h - helpers of the tests of poll, select and the set: a thread that polls, and whose
 * state the test reads.
 */
#ifndef POLL_TEST_H
#define POLL_TEST_H

#include "io/set.h"
#include "io_test.h"

#define WISH_MOST 8

/* One call of rouse_poll_until, made by a thread of its own. */
struct wish {
    struct pollfd fds[WISH_MOST];
    unsigned count;
    uint64_t deadline_ns;
    long result;
    struct rouse_wait_record record; /* written by its thread after the call */
    uint32_t is_done;
};

#define WISH(fd_, events_) \
    { \
        .fds = { { .fd = (fd_), .events = (events_) } }, .count = 1, .deadline_ns = ROUSE_FOREVER, \
        .result = 99 \
    }

static MAYBE_UNUSED void wish_main(void *arg, unsigned index)
{
    struct wish *wish = arg;
    (void)index;
    wish->result = rouse_poll_until(wish->fds, wish->count, wish->deadline_ns);
    rouse_obs_last_wait(&wish->record);
    rsi_store_release(&wish->is_done,
                      1u); /* pairs with the acquire of the thread that waits for it */
}

/* The union of the events for which threads wait on a side. 0: no thread waits. */
static MAYBE_UNUSED uint32_t awaited_events(int fd, enum rsi_fd_side_index side)
{
    uint32_t events = 0;
    struct rsi_fd *entry = rsi_fdtable_peek(fd);
    if (!entry)
        return 0;
    rsi_guard_lock(&entry->guard);
    for (struct rsi_fd_waiter *w = entry->sides[side].first; w; w = w->next)
        events |= w->events;
    rsi_guard_unlock(&entry->guard);
    return events;
}

static MAYBE_UNUSED void put_bytes(int fd, unsigned count)
{
    static const char bytes[64];
    CHECK(count <= sizeof bytes);
    EQUALS(write(fd, bytes, count), count);
}

static MAYBE_UNUSED void eventfd_add(int fd, uint64_t number)
{
    EQUALS(write(fd, &number, sizeof number), sizeof number);
}

static MAYBE_UNUSED void fill(int fd)
{
    static const char bytes[65536];
    size_t unit = sizeof bytes;
    bool was = is_nonblock(fd);
    set_nonblock(fd, true);
    while (unit > 0)
        if (write(fd, bytes, unit) < 0)
            unit = unit > 512 ? 512 : unit > 1 ? 1 : 0;
    set_nonblock(fd, was);
}

static MAYBE_UNUSED void drain(int fd)
{
    static char bytes[65536];
    bool was = is_nonblock(fd);
    set_nonblock(fd, true);
    while (read(fd, bytes, sizeof bytes) > 0)
        ;
    set_nonblock(fd, was);
}

#endif
