/* SPDX-License-Identifier: MIT */
/* ring_make.c - a ring: set up, mapped, given buffers, enabled, destroyed. */
#include "io/ring.h"

#include <stdlib.h>
#include <sys/mman.h>

#define SETUP_NO_SQARRAY (1u << 16) /* younger than the headers of some systems */

#define ENTRIES 256
#define COMPLETIONS 4096
#define PROBED_OPS 256

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
    /* A filter may refuse this call alone; of a ring that is not enabled yet the kernel says EBADFD. */
    if (rsi_syscall6(SYS_io_uring_enter, fd, 0, 0, IORING_ENTER_GETEVENTS, 0, 0) != -EBADFD)
        return false;
    return ring_register(fd, IORING_REGISTER_PROBE, &probe, PROBED_OPS) == 0 &&
           probe.head.last_op >= RSI_RING_OP_FUTEX_WAIT &&
           (probe.head.ops[RSI_RING_OP_FUTEX_WAIT].flags & IO_URING_OP_SUPPORTED) != 0;
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

bool rsi_ring_enable(struct rsi_ring *ring)
{
    if (ring_register(ring->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) != 0)
        return false;
    register_fd(ring);
    return true;
}

void rsi_ring_destroy(struct rsi_ring *ring)
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

struct rsi_ring *rsi_ring_new(unsigned index, const char **why)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_SUBMIT_ALL |
                 IORING_SETUP_CQSIZE | IORING_SETUP_R_DISABLED | SETUP_NO_SQARRAY,
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
    rsi_ring_destroy(ring);
    return NULL;
}
