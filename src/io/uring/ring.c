/* SPDX-License-Identifier: MIT */
/*
 * ring.c - the workers' rings: fill in entries, submit them, reap completions. setup.c makes a ring.
 *
 * From a completion to the thread that waits for it:
 *   1  rsi_ring_round or rsi_ring_sleep enters the kernel on the ring's worker (enter_and_reap).
 *   2  reap_completions takes each completion; complete_one calls the handler that its tag names:
 *        one operation   rsi_inflight_completed (inflight.c) stores the result and claims the operation's thread
 *        multishot       rsi_multishot_completed (multishot.c) keeps what arrived and reports an edge of the
 *                        descriptor, which claims the oldest thread that waits there (ready.c, rsi_ready_event_locked)
 *   3  A claim ends the thread's wait (fdtable.h, rsi_fdtable_claim). reap_completions publishes all claimed
 *      threads at once (rsi_fdtable_publish), and the workers run them.
 *
 * System calls are made directly. liburing before 2.4 can be built on libc's syscall(), which sets errno. Debian 12 has
 * liburing 2.3, which lacks the wait on a futex (2.6) and rings without a descriptor (io_uring_close_ring_fd, 2.4).
 * Memory shared with the kernel is written by release stores and read by acquire loads, which pair with the kernel's.
 */
#include "io/uring/ring.h"

#include "io/backend.h"
#include "io/ready.h"
#include "io/uring/inflight.h"
#include "io/uring/multishot.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <time.h>

/* Newer than the headers of some systems. */
#define FUTEX_WORD_PRIVATE (2 | 128) /* FUTEX2_SIZE_U32 | FUTEX2_PRIVATE */

static uint32_t rescue_guard; /* one thread rescues at a time */

enum phase { PHASE_NONE, PHASE_LOOKS, PHASE_GIVES }; /* of submit */

/*
 * Before submission: replace entries whose descriptor was closed by a no-op. Looks at all entries that the kernel has
 * not taken, including those that it left the last time for lack of memory.
 */
static void check_entries(struct rsi_ring *ring)
{
    for (uint32_t at = rsi_load_acquire(ring->sq_head); at != ring->tail; at++) {
        struct io_uring_sqe *entry = &ring->entries[at & ring->sq_mask];
        enum rsi_ring_tag tag = (enum rsi_ring_tag)(entry->user_data & RSI_RING_TAGS);
        void *object = (void *)(uintptr_t)(entry->user_data & ~(uint64_t)RSI_RING_TAGS);
        bool is_current = tag == RSI_RING_INFLIGHT    ? rsi_inflight_is_current(object)
                          : tag == RSI_RING_MULTISHOT ? rsi_multishot_is_current(object)
                                                      : true;
        if (rsi_unlikely(!is_current))
            *entry =
                (struct io_uring_sqe){ .opcode = IORING_OP_NOP, .user_data = entry->user_data };
    }
    rsi_store_release(ring->sq_tail, ring->tail);
}

/*
 * Submit all entries. An entry names its descriptor by number, and the kernel looks the number up now. By then the
 * descriptor may have been closed and the number may name another one, so entries of closed descriptors are not
 * submitted. A thread that closes a descriptor with a multishot receive keeps the number until the kernel has
 * looked it up:
 *   worker: S1 phase = LOOKS              full fence   S2 check which are closed   phase = GIVES   kernel takes them
 *   closer: C1 mark closed (multishot.c)  full fence   C2 wait while phase is LOOKS, or GIVES and not all are taken
 * At least one of the two sees the other. Model: tests/model/taken.pml. (A close during another thread's send is not
 * seen after S2. It would not be seen either between the last check of a plain call and the kernel's look-up.)
 */
static void submit(struct rsi_ring *ring, unsigned count, uint32_t flags, const void *argument,
                   size_t bytes)
{
    bool has_entries = rsi_ring_has_entries(ring);
    if (has_entries) {
        rsi_store_relaxed(&ring->phase, PHASE_LOOKS); /* S1 */
        __atomic_thread_fence(__ATOMIC_SEQ_CST);
        check_entries(ring); /* S2 */
        rsi_test_delay();
        rsi_store_release(&ring->phase, PHASE_GIVES); /* with the tail; pairs with is_untaken */
    }
    rsi_syscall6(SYS_io_uring_enter, ring->enter_fd, ring->tail - rsi_load_acquire(ring->sq_head),
                 count, ring->enter_flags | flags, (long)argument, (long)bytes);
    if (has_entries)
        rsi_store_release(&ring->phase, PHASE_NONE); /* pairs with is_untaken */
}

/* C2: whether the kernel still has to look up entries that the worker has checked. */
static bool is_untaken(const struct rsi_ring *ring)
{
    uint32_t phase = rsi_load_acquire(&ring->phase);
    return phase == PHASE_LOOKS || (phase == PHASE_GIVES && rsi_load_acquire(ring->sq_head) !=
                                                                rsi_load_relaxed(ring->sq_tail));
}

void rsi_ring_await_taken(const struct rsi_ring *ring)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* C1 is before C2 */
    for (unsigned spins = 0; rsi_unlikely(is_untaken(ring)); spins++) {
        if (spins < 64)
            rsi_cpu_relax();
        else
            rsi_syscall0(SYS_sched_yield);
    }
}

/*
 * Submit all entries, wait for count completions until deadline_ns (count 0: do not wait), and make the kernel post
 * completions for what has happened. Entries that the kernel did not take stay for the next time.
 */
static void enter(struct rsi_ring *ring, unsigned count, uint64_t deadline_ns)
{
    struct __kernel_timespec left;
    struct io_uring_getevents_arg wait = { 0 };
    if (count == 0) {
        /* The kernel has nothing to post unless it says so here: any other call that enters it has done it already. */
        bool has_work =
            (rsi_load_relaxed(ring->sq_flags) & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
        if (has_work || rsi_ring_has_entries(ring))
            submit(ring, 0, has_work ? IORING_ENTER_GETEVENTS : 0, NULL, 0);
        return;
    }
    if (deadline_ns == UINT64_MAX) {
        submit(ring, count, IORING_ENTER_GETEVENTS, NULL, 0);
        return;
    }
    uint64_t now_ns = rsi_now_ns(), ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    left = (struct __kernel_timespec){ .tv_sec = (long long)(ns / 1000000000u),
                                       .tv_nsec = (long long)(ns % 1000000000u) };
    wait.ts = (uintptr_t)&left;
    submit(ring, count, IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG, &wait, sizeof wait);
}

struct io_uring_sqe *rsi_ring_entry(struct rsi_ring *ring, const void *object,
                                    enum rsi_ring_tag tag)
{
    if (rsi_unlikely(ring->tail - rsi_load_acquire(ring->sq_head) > ring->sq_mask)) {
        if (rsi_ring_mine() != ring)
            return NULL;
        submit(ring, 0, 0, NULL, 0);
        if (ring->tail - rsi_load_acquire(ring->sq_head) > ring->sq_mask)
            return NULL;
    }
    struct io_uring_sqe *entry = &ring->entries[ring->tail & ring->sq_mask];
    rsi_store_relaxed(&ring->tail, ring->tail + 1);
    *entry = (struct io_uring_sqe){ .user_data = (uintptr_t)object | (uint64_t)tag };
    return entry;
}

bool rsi_ring_cancel(struct rsi_ring *ring, const void *object, enum rsi_ring_tag tag,
                     enum rsi_ring_tag answer_tag)
{
    bool wants_completion = answer_tag != RSI_RING_CANCEL;
    struct io_uring_sqe *entry = rsi_ring_entry(ring, wants_completion ? object : NULL, answer_tag);
    if (entry == NULL)
        return false;
    entry->opcode = IORING_OP_ASYNC_CANCEL;
    entry->fd = -1;
    entry->addr = (uintptr_t)object | (uint64_t)(rsi_test_overlooks() ? RSI_RING_TAGS : tag);
    entry->flags = wants_completion ? 0 : IOSQE_CQE_SKIP_SUCCESS;
    return true;
}

static void complete_one(struct rsi_ring *ring, const struct io_uring_cqe *completion,
                         struct rsi_fd_batch *batch)
{
    enum rsi_ring_tag tag = (enum rsi_ring_tag)(completion->user_data & RSI_RING_TAGS);
    void *object = (void *)(uintptr_t)(completion->user_data & ~(uint64_t)RSI_RING_TAGS);
    switch (tag) {
    case RSI_RING_INFLIGHT: rsi_inflight_completed(object, completion->res, batch); break;
    case RSI_RING_MULTISHOT: rsi_multishot_completed(ring, object, completion, batch); break;
    case RSI_RING_WAKE: ring->has_wake_wait = false; break;
    case RSI_RING_SET: rsi_store_relaxed(&ring->has_set_wait, false); break;
    case RSI_RING_CANCEL: break;
    case RSI_RING_INFLIGHT_CANCEL:
        rsi_inflight_cancel_answered(object, completion->res, batch);
        break;
    case RSI_RING_MULTISHOT_CANCEL:
        rsi_multishot_cancel_answered(object, completion->res, batch);
        break;
    }
}

/* Handle all completions. Returns whether the epoll set has events. */
static bool complete_all(struct rsi_ring *ring, struct rsi_fd_batch *batch)
{
    bool had_set_wait = ring->has_set_wait;
    uint32_t head = rsi_load_relaxed(ring->cq_head), tail = rsi_load_acquire(ring->cq_tail);
    for (; head != tail; head++) {
        complete_one(ring, &ring->completions[head & ring->cq_mask], batch);
        rsi_store_release(ring->cq_head, head + 1);
    }
    return had_set_wait && !ring->has_set_wait;
}

/* Handle all completions, then publish the threads that they claimed. Returns whether the epoll set has events. */
static bool reap_completions(struct rsi_ring *ring)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    bool has_events = complete_all(ring, &batch);
    if (rsi_unlikely(ring->is_short))
        rsi_ring_buffers_more(ring); /* once, however many receives lacked one */
    ring->is_short = false;
    rsi_fdtable_publish(&batch);
    return has_events;
}

/* polls: the caller is the polling worker (core/idle.c), so it may poll the epoll set itself. */
static void enter_and_reap(struct rsi_ring *ring, unsigned count, uint64_t deadline_ns, bool polls)
{
    if (rsi_unlikely(rsi_load_relaxed(&ring->returned) != 0))
        rsi_ring_buffers_more(ring);
    do {
        enter(ring, count, deadline_ns);
        if (reap_completions(ring)) {
            if (polls)
                rsi_epoll_poller.poll(0);
            else
                rsi_poller_try();
        }
        count = 0;
        /* Completions that overflowed the queue are posted at the next call. */
    } while (rsi_unlikely((rsi_load_relaxed(ring->sq_flags) & IORING_SQ_CQ_OVERFLOW) != 0));
}

bool rsi_ring_watches_set(void)
{
    const struct rsi_ring *ring = rsi_ring_mine();
    return ring != NULL && rsi_load_relaxed(&ring->has_set_wait);
}

static void watch_set(struct rsi_ring *ring)
{
    struct io_uring_sqe *entry;
    if (ring->has_set_wait || (entry = rsi_ring_entry(ring, NULL, RSI_RING_SET)) == NULL)
        return;
    entry->opcode = IORING_OP_POLL_ADD;
    entry->fd = rsi_epoll_fd();
    entry->poll32_events = POLLIN;
    rsi_store_relaxed(&ring->has_set_wait, true);
}

void rsi_ring_round(bool is_due)
{
    struct rsi_ring *ring = rsi_ring_mine();
    if (ring == NULL || (!is_due && !rsi_ring_has_entries(ring)))
        return;
    rsi_ring_enter(ring);
    if (is_due)
        watch_set(ring);
    enter_and_reap(ring, 0, 0, false);
    rsi_ring_leave(ring);
}

static bool watch_wake_word(struct rsi_ring *ring, const uint32_t *wake_word)
{
    struct io_uring_sqe *entry;
    if (ring->has_wake_wait)
        return true;
    if ((entry = rsi_ring_entry(ring, NULL, RSI_RING_WAKE)) == NULL)
        return false;
    entry->opcode = RSI_RING_OP_FUTEX_WAIT;
    entry->fd = FUTEX_WORD_PRIVATE;
    entry->addr = (uintptr_t)wake_word;
    entry->addr3 = FUTEX_BITSET_MATCH_ANY;
    ring->has_wake_wait = true;
    return true;
}

bool rsi_ring_sleep(uint32_t *wake_word, uint64_t deadline_ns, bool watches_set)
{
    struct rsi_ring *ring = rsi_ring_mine();
    if (ring == NULL)
        return false;
    rsi_ring_enter(ring);
    if (watches_set)
        watch_set(ring);
    bool sleeps = watch_wake_word(ring, wake_word);
    if (sleeps)
        enter_and_reap(ring, 1, deadline_ns, watches_set);
    rsi_ring_leave(ring);
    return sleeps;
}

/*
 * End the waits of all entries that the kernel has not seen. A thread repeats its operation, or arms its descriptor
 * anew, on the worker that runs it next. The worker submits the rest: its own waits, and requests to stop operations.
 */
static void take_back(struct rsi_ring *ring, struct rsi_fd_batch *batch)
{
    for (uint32_t at = rsi_load_relaxed(ring->sq_tail); at != ring->tail; at++) {
        struct io_uring_sqe *entry = &ring->entries[at & ring->sq_mask];
        struct io_uring_cqe completion = { .user_data = entry->user_data };
        enum rsi_ring_tag tag = (enum rsi_ring_tag)(entry->user_data & RSI_RING_TAGS);
        if (tag != RSI_RING_INFLIGHT && tag != RSI_RING_MULTISHOT)
            continue;
        completion.res = tag == RSI_RING_INFLIGHT ? -EINTR : -ECANCELED;
        *entry = (struct io_uring_sqe){ .opcode = IORING_OP_NOP,
                                        .flags = IOSQE_CQE_SKIP_SUCCESS,
                                        .user_data = RSI_RING_CANCEL };
        complete_one(ring, &completion, batch);
    }
}

bool rsi_ring_is_inside(unsigned worker_index)
{
    const struct rsi_ring *ring =
        rsi_load_acquire(&rsi_rings[worker_index]); /* pairs with enable_own */
    return ring != NULL && rsi_load_relaxed(&ring->owner_in) != 0;
}

bool rsi_ring_needs_rescue(unsigned worker_index)
{
    const struct rsi_ring *ring =
        rsi_load_acquire(&rsi_rings[worker_index]); /* pairs with enable_own */
    return ring != NULL && rsi_load_relaxed(&ring->owner_in) == 0 &&
           (rsi_load_relaxed(ring->cq_head) != rsi_load_relaxed(ring->cq_tail) ||
            rsi_load_relaxed(ring->sq_tail) != rsi_load_relaxed(&ring->tail));
}

bool rsi_ring_rescue(unsigned worker_index)
{
    struct rsi_ring *ring = rsi_load_acquire(&rsi_rings[worker_index]); /* pairs with enable_own */
    struct rsi_fd_batch batch = { NULL, NULL };
    if (ring == NULL)
        return false;
    if (!rsi_ring_needs_rescue(worker_index) || !rsi_guard_try(&rescue_guard))
        return true;
    if (!rsi_biased_enter_other(&ring->owner_in, &ring->rescuer_in)) {
        rsi_guard_unlock(&rescue_guard);
        return true;
    }
    bool has_events = complete_all(ring, &batch);
    take_back(ring, &batch);
    rsi_biased_leave_other(&ring->rescuer_in);
    rsi_guard_unlock(&rescue_guard);
    rsi_fdtable_publish(&batch);
    if (has_events && rouse_worker_index() >= 0)
        rsi_poller_try(); /* otherwise a worker does, as it does not watch the set by this ring */
    return true;
}

/* Hand one buffer to the kernel. The caller stores the tail. */
static void buffer_give(struct rsi_ring *ring, unsigned number)
{
    struct io_uring_buf *slot =
        &ring->buffer_ring->bufs[ring->buffer_tail++ & (RSI_RING_BUFFERS - 1)];
    slot->addr = (uintptr_t)rsi_ring_buffer(ring, number);
    slot->len = RSI_RING_BUFFER_BYTES;
    slot->bid = (uint16_t)number;
}

static void buffers_give_list(struct rsi_ring *ring, unsigned first)
{
    while (first != 0) {
        unsigned number = first - 1;
        first = ring->buffers[number].next;
        buffer_give(ring, number);
    }
    rsi_store_release(&ring->buffer_ring->tail, ring->buffer_tail);
}

void rsi_ring_buffers_more(struct rsi_ring *ring)
{
    /* Acquire: pairs with the release in rsi_ring_buffers_return. */
    unsigned returned = rsi_exchange_acquire(&ring->returned, 0);
    if (returned != 0) {
        buffers_give_list(ring, returned);
        return;
    }
    unsigned count = ring->buffer_count != 0 ? ring->buffer_count * 2 : RSI_RING_BUFFERS_FIRST;
    for (; ring->buffer_count < count && count <= RSI_RING_BUFFERS; ring->buffer_count++)
        buffer_give(ring, ring->buffer_count);
    rsi_store_release(&ring->buffer_ring->tail, ring->buffer_tail);
}

void rsi_ring_buffers_return(struct rsi_ring *ring, unsigned first)
{
    struct rsi_ring *own = rsi_ring_mine();
    if (own != NULL && ring == own) {
        buffers_give_list(own, first);
        return;
    }
    unsigned last = first;
    while (ring->buffers[last - 1].next != 0)
        last = ring->buffers[last - 1].next;
    uint32_t head = rsi_load_relaxed(&ring->returned);
    do {
        ring->buffers[last - 1].next = (uint16_t)head;
    } while (!rsi_cas_release(&ring->returned, &head, first)); /* pairs with the exchange above */
}
