/* SPDX-License-Identifier: MIT */
/* setup.c - the set-up of rings: make one for each worker, enable it on that worker, drop it after fork. */
#include "io/backend.h"
#include "io/uring/ring.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <valgrind/valgrind.h>

#define SETUP_NO_SQARRAY (1u << 16) /* newer than the headers of some systems */

#define ENTRIES 256
#define COMPLETIONS 4096
#define PROBED_OPS 256

#define PR_FUTEX_HASH_NUMBER 78
#define PR_FUTEX_HASH_SET_SLOTS_NUMBER 1
#define FUTEX_SLOTS 64

/* Each is written by its worker; release, and acquire. */
struct rsi_ring *rsi_rings[RSI_WORKERS_MAX];
/* Made by another thread, for the worker to enable. Written by release, read by acquire. */
static struct rsi_ring *fresh_rings[RSI_WORKERS_MAX];
static uint32_t ring_end; /* one past the highest worker that ever had a ring */

static long ring_register(int fd, unsigned what, void *value, unsigned count)
{
    return rsi_syscall4(SYS_io_uring_register, fd, what, value, count);
}

/* Whether the kernel has the newest operation used here (Linux 6.7). */
static bool has_operations(int fd)
{
    union {
        char room[sizeof(struct io_uring_probe) + PROBED_OPS * sizeof(struct io_uring_probe_op)];
        struct io_uring_probe head;
    } probe = { { 0 } };
    /* A seccomp filter may refuse just this call. Unfiltered, a ring that is not enabled yet gives EBADFD. */
    if (rsi_syscall6(SYS_io_uring_enter, fd, 0, 0, IORING_ENTER_GETEVENTS, 0, 0) != -EBADFD)
        return false;
    return ring_register(fd, IORING_REGISTER_PROBE, &probe, PROBED_OPS) == 0 &&
           probe.head.last_op >= RSI_RING_OP_FUTEX_WAIT &&
           (probe.head.ops[RSI_RING_OP_FUTEX_WAIT].flags & IO_URING_OP_SUPPORTED) != 0;
}

/*
 * mmap by direct system call: libc's would announce the descriptor to ThreadSanitizer, which would never see its
 * close.
 */
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
 * A registered ring needs no descriptor and saves the kernel a look-up per call. It takes no number from the
 * program, and a number that was just closed cannot become a ring under code that still uses it. If the kernel
 * refuses, the descriptor stays.
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

static bool ring_enable(struct rsi_ring *ring)
{
    if (ring_register(ring->fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0) != 0)
        return false;
    register_fd(ring);
    return true;
}

static void ring_destroy(struct rsi_ring *ring)
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

static struct rsi_ring *ring_new(unsigned index, const char **why)
{
    struct io_uring_params params = {
        .flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN |
                 IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_CQSIZE |
                 IORING_SETUP_R_DISABLED | SETUP_NO_SQARRAY,
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
    ring_destroy(ring);
    return NULL;
}

/* Returns NULL, or why there is no ring. */
static const char *make_fresh(unsigned index)
{
    const char *why = NULL;
    if (rsi_load_acquire(&rsi_rings[index]) != NULL ||
        rsi_load_acquire(&fresh_rings[index]) != NULL)
        return NULL; /* of an earlier worker on the same kernel thread */
    struct rsi_ring *ring = ring_new(index, &why);
    rsi_store_release(&fresh_rings[index], ring); /* pairs with enable_own */
    return ring != NULL ? NULL : why;
}

void rsi_ring_make(unsigned index)
{
    (void)make_fresh(index); /* without a ring the worker uses readiness */
}

const char *rsi_ring_make_all(void)
{
    if (RUNNING_ON_VALGRIND)
        return "Valgrind lets no other thread run while one waits in io_uring_enter";
    const char *why = make_fresh(0);
    for (unsigned i = 1; why == NULL && i < rouse_worker_count(); i++)
        rsi_ring_make(i);
    return why;
}

static RSI_COLD struct rsi_ring *enable_own(unsigned index)
{
    struct rsi_ring *ring = rsi_load_acquire(&fresh_rings[index]); /* pairs with make_fresh */
    if (ring == NULL)
        return NULL;
    rsi_store_relaxed(&fresh_rings[index], NULL);
    if (!ring_enable(ring)) {
        ring_destroy(ring);
        return NULL;
    }
    uint32_t end = rsi_load_relaxed(&ring_end);
    while (end <= index && !rsi_cas_relaxed(&ring_end, &end, index + 1)) {
    }
    rsi_store_release(&rsi_rings[index], ring); /* pairs with rsi_ring_has_inflight */
    return ring;
}

struct rsi_ring *rsi_ring_self(void)
{
    int index = rouse_worker_index();
    if (index < 0 || !rsi_backend_has_rings())
        return NULL;
    struct rsi_ring *ring = rsi_load_relaxed(&rsi_rings[index]);
    return rsi_likely(ring != NULL) ? ring : enable_own((unsigned)index);
}

static void enable_mine(struct rsi_mail *mail)
{
    (void)rsi_ring_self();
    free(mail);
}

void rsi_ring_enable_all(void)
{
    for (unsigned i = 0; i < rouse_worker_count() && i < rsi_mail_boxes(); i++) {
        struct rsi_mail *mail = malloc(sizeof *mail);
        if (mail == NULL)
            return; /* each worker enables its ring at its first use */
        mail->take = enable_mine;
        rsi_mail_send(i, mail);
    }
}

bool rsi_ring_has_inflight(void)
{
    for (uint32_t i = 0; i < rsi_load_relaxed(&ring_end); i++) {
        const struct rsi_ring *ring = rsi_load_acquire(&rsi_rings[i]); /* pairs with enable_own */
        if (ring != NULL && rsi_load_relaxed(&ring->begun) != rsi_load_relaxed(&ring->ended))
            return true;
    }
    return false;
}

/*
 * Linux 6.16 gives a process its own futex hash when it creates its second thread, and a wait that a ring started
 * before that is never found again. A child of fork has one thread, which may be a worker, so create the hash now.
 * In other processes workers are never the first threads. Kernels without such a hash refuse, and do not need it.
 */
static void settle_futexes(void)
{
    rsi_syscall5(SYS_prctl, PR_FUTEX_HASH_NUMBER, PR_FUTEX_HASH_SET_SLOTS_NUMBER, FUTEX_SLOTS, 0,
                 0);
}

void rsi_ring_child(void)
{
    settle_futexes();
    for (unsigned i = 0; i < RSI_WORKERS_MAX; i++) {
        if (rsi_rings[i] != NULL)
            ring_destroy(rsi_rings[i]);
        if (fresh_rings[i] != NULL)
            ring_destroy(fresh_rings[i]);
        rsi_rings[i] = fresh_rings[i] = NULL;
    }
}
