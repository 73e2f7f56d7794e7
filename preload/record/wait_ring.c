/* SPDX-License-Identifier: MIT */
/*
 * wait_ring.c - writes which waits the program's threads are in, where `rouse run` asks for it (ROUSE_RUN_WAITS). The
 * format is in src/obs/waits.h.
 *
 * A thread takes a ring at its first wait and never returns it, since the reader may not have read it yet.
 */
#include "record/wait_ring.h"

#include "os/os.h"
#include "process/real.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

struct rsi_waits *rpi_wait_rings;

static bool has_same_pids(const struct rsi_waits *waits)
{
    struct stat status;
    return stat("/proc/self/ns/pid", &status) == 0 && waits->pid_namespace == status.st_ino;
}

/* The time that the thread has spent in the run queue so far. False: the kernel does not report it. */
static bool queue_of(uint32_t tid, uint64_t *ns)
{
    char text[96];
    (void)rsi_format(text, sizeof text, "/proc/self/task/%u/schedstat", tid);
    long fd = rsi_syscall4(SYS_openat, AT_FDCWD, text, O_RDONLY | O_CLOEXEC, 0);
    long bytes = fd < 0 ? 0 : rsi_syscall3(SYS_read, fd, text, sizeof text - 1);
    if (fd >= 0)
        (void)rsi_syscall1(SYS_close, fd);
    text[bytes > 0 ? bytes : 0] = 0;
    const char *second = strchr(text, ' '); /* the first number is the time on a processor */
    if (second)
        *ns = strtoull(second, NULL, 10);
    return second != NULL;
}

static void first_put(void)
{
    uint64_t tid = (uint64_t)rsi_gettid(), nobody = 0, ns;
    if (rsi_load_relaxed(&rpi_wait_rings->first_tid) == 0 && queue_of((uint32_t)tid, &ns) &&
        rsi_cas_relaxed(&rpi_wait_rings->first_tid, &nobody, tid))
        rsi_store_relaxed(&rpi_wait_rings->first_queue_ns, ns);
}

void rpi_wait_ring_setup(void)
{
    char path[320];
    struct stat status;
    const char *folder = secure_getenv("ROUSE_RUN_WAITS") ? secure_getenv("ROUSE_OBS_DIR") : NULL;
    if (!folder || rsi_format(path, sizeof path, "%s/waits", folder) >= sizeof path)
        return;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = MAP_FAILED;
    if (fstat(fd, &status) == 0 && status.st_uid == geteuid() &&
        status.st_size == (off_t)sizeof(struct rsi_waits))
        at = mmap(NULL, sizeof(struct rsi_waits), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    rpi_real.close(fd);
    if (at != MAP_FAILED && has_same_pids(at)) {
        rpi_wait_rings = at;
        first_put();
    }
}

void rpi_wait_ring_child(void)
{
    if (rpi_wait_rings && !has_same_pids(rpi_wait_rings))
        rpi_wait_rings = NULL;
}

static RSI_COLD struct rsi_waits_ring *take(uint32_t tid)
{
    for (unsigned i = 0; i < 2 * RSI_WAITS_RINGS; i++) {
        unsigned at = (tid + i) % RSI_WAITS_RINGS;
        uint32_t owner = rsi_load_relaxed(&rpi_wait_rings->owners[at]), nobody = 0;
        if (owner == tid) /* it ran another program before, by exec */
            return &rpi_wait_rings->rings[at];
        if (i >= RSI_WAITS_RINGS && owner == 0 &&
            rsi_cas_acquire(&rpi_wait_rings->owners[at], &nobody,
                            tid)) { /* pairs with the reader's release */
            (void)rsi_fetch_add_acq_rel(&rpi_wait_rings->taken,
                                        UINT64_C(1)); /* pairs with the reader's acquire */
            return &rpi_wait_rings->rings[at];
        }
    }
    (void)rsi_fetch_add_relaxed(&rpi_wait_rings->refused, UINT64_C(1));
    return NULL;
}

void rpi_wait_ring_put(struct rpi_thread *self, enum rouse_wait_kind kind, uint64_t site)
{
    if (!self->waits && !self->is_ringless) {
        self->waits = take((uint32_t)self->tid);
        self->is_ringless = !self->waits;
    }
    struct rsi_waits_ring *ring = self->waits;
    if (!ring)
        return;
    struct rsi_waits_entry *entry = &ring->entries[ring->count % RSI_WAITS_KEPT];
    /* A reader that sees a word of this wait also sees the count before it, and discards the entry's older wait. */
    __atomic_thread_fence(__ATOMIC_RELEASE);
    rsi_store_relaxed(&entry->begin_ns, rsi_now_ns());
    rsi_store_relaxed(&entry->end_ns, UINT64_C(0));
    rsi_store_relaxed(&entry->site, site);
    rsi_store_relaxed(&entry->kind, (uint32_t)kind);
    rsi_store_release(&ring->count, ring->count + 1); /* pairs with the reader's acquire */
}

void rpi_wait_ring_close(const struct rpi_thread *self)
{
    struct rsi_waits_ring *ring = self->waits;
    if (ring)
        rsi_store_relaxed(&ring->entries[(ring->count - 1) % RSI_WAITS_KEPT].end_ns, rsi_now_ns());
}

void rpi_wait_ring_finish(const struct rpi_thread *thread)
{
    struct rsi_waits_ring *ring = thread->waits;
    uint64_t ns;
    if (!ring || !queue_of((uint32_t)thread->tid, &ns))
        return;
    rsi_store_relaxed(&ring->queue_ns, ns);
    rsi_store_release(&ring->has_queue_ns, 1u); /* pairs with the reader's acquire */
}
