/* SPDX-License-Identifier: MIT */
/*
 * ring.c - the rings: made, filled, entered, emptied.
 *
 * System calls are made by hand: liburing speaks by errno in places, and Debian 12's lacks half of what is
 * used here. The memory that is shared with the kernel is written by stores with release and read by loads
 * with acquire; the kernel has the other half of each.
 */
#include "io/ring.h"

#include "io/ahead.h"
#include "io/backend.h"
#include "io/flight.h"
#include "io/ready.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <valgrind/valgrind.h>

/* Younger than the headers of some systems. */
#define SETUP_NO_SQARRAY (1u << 16)
#define OP_FUTEX_WAIT 51
#define FUTEX_WORD_PRIVATE (2 | 128) /* FUTEX2_SIZE_U32 | FUTEX2_PRIVATE */

#define PR_FUTEX_HASH_NUMBER 78
#define PR_FUTEX_HASH_SET_SLOTS_NUMBER 1
#define FUTEX_SLOTS 64

#define ENTRIES 256
#define COMPLETIONS 4096
#define PROBED_OPS 256

/* Each is written by its worker; release, and acquire. A ring that was refused is not asked for again. */
static struct rsi_ring *rings[RSI_WORKERS_MAX];
static bool is_refused[RSI_WORKERS_MAX];
static uint32_t ring_end; /* one past the highest worker that has had a ring */

static long ring_register(int fd, unsigned what, void *value, unsigned count)
{
    return rsi_syscall4(SYS_io_uring_register, fd, what, value, count);
}

/* Whether the kernel has the youngest operation that is used here (Linux 6.7). */
static bool has_operations(int fd)
{
    union {
        char room[sizeof(struct io_uring_probe) + PROBED_OPS * sizeof(struct io_uring_probe_op)];
        struct io_uring_probe head;
    } probe = { { 0 } };
    /* A filter may refuse this call alone. */
    if (rsi_syscall6(SYS_io_uring_enter, fd, 0, 0, IORING_ENTER_GETEVENTS, 0, 0) < 0)
        return false;
    return ring_register(fd, IORING_REGISTER_PROBE, &probe, PROBED_OPS) == 0 &&
           probe.head.last_op >= OP_FUTEX_WAIT &&
           (probe.head.ops[OP_FUTEX_WAIT].flags & IO_URING_OP_SUPPORTED) != 0;
}

/* By the kernel's own call: libc's tells the thread sanitizer of a descriptor whose end it would not see. */
static void *map_part(const struct rsi_ring *ring, size_t bytes, long offset)
{
    long result = rsi_syscall6(SYS_mmap, 0, (long)bytes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_POPULATE, ring->fd, offset);
    return result < 0 && result >= -4095 ? NULL : (void *)result;
}

static bool map(struct rsi_ring *ring, const struct io_uring_params *params)
{
    size_t bytes = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    size_t entries_bytes = params->sq_entries * sizeof(struct io_uring_sqe);
    void *memory = map_part(ring, bytes, IORING_OFF_SQ_RING);
    if (memory == NULL)
        return false;
    ring->memory = memory;
    ring->memory_bytes = bytes;
    void *entries = map_part(ring, entries_bytes, IORING_OFF_SQES);
    if (entries == NULL)
        return false;
    ring->entries = ring->entries_memory = entries;
    ring->entries_bytes = entries_bytes;
    char *base = memory;
    ring->sq_head = (uint32_t *)(base + params->sq_off.head);
    ring->sq_tail = (uint32_t *)(base + params->sq_off.tail);
    ring->sq_flags = (uint32_t *)(base + params->sq_off.flags);
    ring->sq_mask = params->sq_entries - 1;
    ring->cq_head = (uint32_t *)(base + params->cq_off.head);
    ring->cq_tail = (uint32_t *)(base + params->cq_off.tail);
    ring->cq_mask = params->cq_entries - 1;
    ring->completions = (struct io_uring_cqe *)(base + params->cq_off.cqes);
    return true;
}

static bool make_buffers(struct rsi_ring *ring)
{
    ring->buffer_ring = rsi_map(RSI_RING_BUFFERS * sizeof(struct io_uring_buf));
    ring->buffer_memory = rsi_map((size_t)RSI_RING_BUFFERS * RSI_RING_BUFFER_BYTES);
    if (ring->buffer_ring == NULL || ring->buffer_memory == NULL)
        return false;
    struct io_uring_buf_reg reg = { .ring_addr = (uintptr_t)ring->buffer_ring,
                                    .ring_entries = RSI_RING_BUFFERS };
    if (ring_register(ring->fd, IORING_REGISTER_PBUF_RING, &reg, 1) != 0)
        return false;
    rsi_ring_buffers_more(ring);
    return true;
}

/*
 * A registered ring needs no descriptor, and saves the kernel a look-up at each call: no number of the
 * program's is taken, and none that was just closed becomes a ring under those who still use it. Where that
 * is refused the descriptor stays.
 */
static void register_fd(struct rsi_ring *ring)
{
    struct io_uring_rsrc_update update = { .offset = -1U, .data = (uint64_t)ring->fd };
    ring->enter_fd = ring->fd;
    if (ring_register(ring->fd, IORING_REGISTER_RING_FDS, &update, 1) != 1)
        return;
    ring->enter_fd = (int)update.offset;
    ring->enter_flags = IORING_ENTER_REGISTERED_RING;
    rsi_syscall1(SYS_close, ring->fd);
    ring->fd = -1;
}

static void destroy(struct rsi_ring *ring)
{
    if (ring->buffer_ring != NULL)
        rsi_unmap(ring->buffer_ring, RSI_RING_BUFFERS * sizeof(struct io_uring_buf));
    if (ring->buffer_memory != NULL)
        rsi_unmap(ring->buffer_memory, (size_t)RSI_RING_BUFFERS * RSI_RING_BUFFER_BYTES);
    if (ring->entries_memory != NULL)
        rsi_unmap(ring->entries_memory, ring->entries_bytes);
    if (ring->memory != NULL)
        rsi_unmap(ring->memory, ring->memory_bytes);
    if (ring->fd >= 0)
        rsi_syscall1(SYS_close, ring->fd);
    rsi_unmap(ring, sizeof *ring);
}

/* Make a ring for worker index. NULL: *why says what was refused. */
static struct rsi_ring *make(unsigned index, const char **why)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL |
                 IORING_SETUP_CQSIZE | SETUP_NO_SQARRAY,
        .cq_entries = COMPLETIONS,
    };
    struct rsi_ring *ring = rsi_map(sizeof *ring);
    *why = "no memory for the ring";
    if (ring == NULL)
        return NULL;
    ring->index = index;
    ring->fd = (int)rsi_syscall2(SYS_io_uring_setup, ENTRIES, &params);
    if (ring->fd < 0)
        *why = ring->fd == -EPERM    ? "io_uring_setup is refused: EPERM"
               : ring->fd == -ENOSYS ? "the kernel has no io_uring"
               : ring->fd == -EINVAL ? "the kernel is older than 6.7"
                                     : "io_uring_setup failed: no memory or descriptors";
    else if (!has_operations(ring->fd))
        *why = "the kernel is older than 6.7, or refuses io_uring_enter";
    else if (map(ring, &params) && make_buffers(ring))
        return ring;
    destroy(ring);
    return NULL;
}

const char *rsi_ring_probe(void)
{
    const char *why;
    if (RUNNING_ON_VALGRIND)
        return "Valgrind lets no other thread run while one waits in io_uring_enter";
    struct rsi_ring *ring = make(0, &why);
    if (ring == NULL)
        return why;
    destroy(ring);
    return NULL;
}

static RSI_COLD struct rsi_ring *make_own(unsigned index)
{
    const char *why;
    struct rsi_ring *ring = is_refused[index] ? NULL : make(index, &why);
    is_refused[index] = ring == NULL;
    if (ring == NULL)
        return NULL;
    register_fd(ring);
    uint32_t end = rsi_load_relaxed(&ring_end);
    while (end <= index && !rsi_cas_relaxed(&ring_end, &end, index + 1)) {
    }
    rsi_store_release(&rings[index], ring); /* pairs with rsi_ring_any_flies */
    return ring;
}

struct rsi_ring *rsi_ring_self(void)
{
    int index = rouse_worker_index();
    if (index < 0 || !rsi_backend_has_rings())
        return NULL;
    struct rsi_ring *ring = rsi_load_relaxed(&rings[index]);
    return rsi_likely(ring != NULL) ? ring : make_own((unsigned)index);
}

static void make_mine(struct rsi_mail *mail)
{
    (void)rsi_ring_self();
    free(mail);
}

void rsi_ring_make_all(void)
{
    for (unsigned i = 0; i < rouse_worker_count(); i++) {
        struct rsi_mail *mail = malloc(sizeof *mail);
        if (mail == NULL)
            return; /* it will be made when it is needed */
        mail->take = make_mine;
        rsi_mail_send(i, mail);
    }
}

bool rsi_ring_any_flies(void)
{
    for (uint32_t i = 0; i < rsi_load_relaxed(&ring_end); i++) {
        const struct rsi_ring *ring = rsi_load_acquire(&rings[i]); /* pairs with make_own */
        if (ring != NULL && rsi_load_relaxed(&ring->flying) != 0)
            return true;
    }
    return false;
}

/* The calling worker's, if it has been made. */
static struct rsi_ring *mine(void)
{
    int index = rouse_worker_index();
    return index < 0 ? NULL : rsi_load_relaxed(&rings[index]);
}

/*
 * An entry names its descriptor by number, which the kernel looks up when the entry is submitted. By then it
 * may have been closed, and be another's: what was closed is not submitted. (A close after this look goes
 * unseen, as it would between a call's last look and the kernel's.)
 */
static void check_entries(struct rsi_ring *ring)
{
    for (; ring->checked != ring->tail; ring->checked++) {
        struct io_uring_sqe *entry = &ring->entries[ring->checked & ring->sq_mask];
        enum rsi_ring_tag tag = (enum rsi_ring_tag)(entry->user_data & RSI_RING_TAGS);
        void *object = (void *)(uintptr_t)(entry->user_data & ~(uint64_t)RSI_RING_TAGS);
        bool is_current = tag == RSI_RING_FLIGHT  ? rsi_flight_is_current(object)
                          : tag == RSI_RING_AHEAD ? rsi_ahead_is_current(object)
                                                  : true;
        if (rsi_unlikely(!is_current))
            *entry =
                (struct io_uring_sqe){ .opcode = IORING_OP_NOP, .user_data = entry->user_data };
    }
    rsi_store_release(ring->sq_tail, ring->tail);
}

/*
 * Submit what there is, wait for count completions until deadline_ns (0: do not wait), and have the kernel
 * make completions of what has happened. What it did not take stays for the next time.
 */
static void enter(struct rsi_ring *ring, unsigned count, uint64_t deadline_ns)
{
    struct __kernel_timespec left;
    struct io_uring_getevents_arg wait = { 0 };
    uint32_t flags = ring->enter_flags | IORING_ENTER_GETEVENTS;
    const void *argument = NULL;
    size_t bytes = 0;
    if (count != 0 && deadline_ns != UINT64_MAX) {
        uint64_t now_ns = rsi_now_ns(), ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
        left = (struct __kernel_timespec){ .tv_sec = (long long)(ns / 1000000000u),
                                           .tv_nsec = (long long)(ns % 1000000000u) };
        wait.ts = (uintptr_t)&left;
        argument = &wait;
        bytes = sizeof wait;
        flags |= IORING_ENTER_EXT_ARG;
    }
    check_entries(ring);
    rsi_syscall6(SYS_io_uring_enter, ring->enter_fd, ring->tail - rsi_load_acquire(ring->sq_head),
                 count, flags, (long)argument, (long)bytes);
}

struct io_uring_sqe *rsi_ring_entry(struct rsi_ring *ring, const void *object,
                                    enum rsi_ring_tag tag)
{
    if (rsi_unlikely(ring->tail - rsi_load_acquire(ring->sq_head) > ring->sq_mask)) {
        check_entries(ring);
        rsi_syscall6(SYS_io_uring_enter, ring->enter_fd, ring->sq_mask + 1, 0, ring->enter_flags, 0,
                     0);
        if (ring->tail - rsi_load_acquire(ring->sq_head) > ring->sq_mask)
            return NULL;
    }
    struct io_uring_sqe *entry = &ring->entries[ring->tail++ & ring->sq_mask];
    *entry = (struct io_uring_sqe){ .user_data = (uintptr_t)object | (uint64_t)tag };
    return entry;
}

bool rsi_ring_cancel(struct rsi_ring *ring, const void *object, enum rsi_ring_tag tag)
{
    struct io_uring_sqe *entry = rsi_ring_entry(ring, NULL, RSI_RING_CANCEL);
    if (entry == NULL)
        return false;
    entry->opcode = IORING_OP_ASYNC_CANCEL;
    entry->fd = -1;
    entry->addr = (uintptr_t)object | (uint64_t)tag;
    entry->flags = IOSQE_CQE_SKIP_SUCCESS;
    return true;
}

static void dispatch(struct rsi_ring *ring, const struct io_uring_cqe *completion,
                     struct rsi_fd_batch *batch)
{
    enum rsi_ring_tag tag = (enum rsi_ring_tag)(completion->user_data & RSI_RING_TAGS);
    void *object = (void *)(uintptr_t)(completion->user_data & ~(uint64_t)RSI_RING_TAGS);
    switch (tag) {
    case RSI_RING_FLIGHT: rsi_flight_done(object, completion->res, batch); break;
    case RSI_RING_AHEAD: rsi_ahead_done(ring, object, completion, batch); break;
    case RSI_RING_WAKE: ring->has_wake_wait = false; break;
    case RSI_RING_SET: ring->has_set_wait = false; break;
    case RSI_RING_CANCEL: break;
    }
}

/* Take all completions. Returns whether the epoll set has events. */
static bool reap(struct rsi_ring *ring)
{
    struct rsi_fd_batch batch = { NULL, NULL };
    bool had_set_wait = ring->has_set_wait;
    uint32_t head = rsi_load_relaxed(ring->cq_head), tail = rsi_load_acquire(ring->cq_tail);
    for (; head != tail; head++) {
        dispatch(ring, &ring->completions[head & ring->cq_mask], &batch);
        rsi_store_release(ring->cq_head, head + 1);
    }
    if (rsi_unlikely(ring->is_short))
        rsi_ring_buffers_more(ring); /* once, however many were in want of one */
    ring->is_short = false;
    rsi_fdtable_publish(&batch);
    return had_set_wait && !ring->has_set_wait;
}

/* has_role: the caller is the one that polls the set. */
static void enter_and_reap(struct rsi_ring *ring, unsigned count, uint64_t deadline_ns,
                           bool has_role)
{
    if (rsi_unlikely(rsi_load_relaxed(&ring->returned) != 0))
        rsi_ring_buffers_more(ring);
    do {
        enter(ring, count, deadline_ns);
        if (reap(ring)) {
            if (has_role)
                rsi_epoll_poller.poll(0);
            else
                rsi_poller_try();
        }
        count = 0;
        /* What did not find room in the queue of completions comes at the next call. */
    } while (rsi_unlikely((rsi_load_relaxed(ring->sq_flags) & IORING_SQ_CQ_OVERFLOW) != 0));
}

bool rsi_ring_watches_set(void)
{
    const struct rsi_ring *ring = mine();
    return ring != NULL && ring->has_set_wait;
}

static void watch_set(struct rsi_ring *ring)
{
    struct io_uring_sqe *entry;
    if (ring->has_set_wait || (entry = rsi_ring_entry(ring, NULL, RSI_RING_SET)) == NULL)
        return;
    entry->opcode = IORING_OP_POLL_ADD;
    entry->fd = rsi_epoll_fd();
    entry->poll32_events = POLLIN;
    ring->has_set_wait = true;
}

void rsi_ring_turn(bool is_due)
{
    struct rsi_ring *ring = mine();
    if (ring == NULL || (!is_due && !rsi_ring_has_entries(ring)))
        return;
    if (is_due)
        watch_set(ring);
    enter_and_reap(ring, 0, 0, false);
}

bool rsi_ring_sleep(uint32_t *wake_word, uint64_t deadline_ns, bool watches_set)
{
    struct rsi_ring *ring = mine();
    if (ring == NULL)
        return false;
    if (watches_set)
        watch_set(ring);
    if (!ring->has_wake_wait) {
        struct io_uring_sqe *entry = rsi_ring_entry(ring, NULL, RSI_RING_WAKE);
        if (entry == NULL)
            return false;
        entry->opcode = OP_FUTEX_WAIT;
        entry->fd = FUTEX_WORD_PRIVATE;
        entry->addr = (uintptr_t)wake_word;
        entry->addr3 = FUTEX_BITSET_MATCH_ANY;
        ring->has_wake_wait = true;
    }
    enter_and_reap(ring, 1, deadline_ns, watches_set);
    return true;
}

/* Into the kernel's hands; the caller makes the tail seen. */
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
    if (ring == mine()) {
        buffers_give_list(ring, first);
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

/*
 * A process gets a hash of futexes of its own with its second thread (Linux 6.16), and a wait that a ring has
 * begun before that is never found again. A child of fork has one thread, which may be a worker: it gets its
 * hash now. Elsewhere workers are not the first threads. Kernels without such a hash refuse, and need none.
 */
static void settle_futexes(void)
{
    rsi_syscall5(SYS_prctl, PR_FUTEX_HASH_NUMBER, PR_FUTEX_HASH_SET_SLOTS_NUMBER, FUTEX_SLOTS, 0,
                 0);
}

void rsi_ring_child(void)
{
    settle_futexes();
    for (unsigned i = 0; i < ring_end; i++) {
        if (rings[i] != NULL)
            destroy(rings[i]);
        rings[i] = NULL;
    }
    memset(is_refused, 0, sizeof is_refused);
}
