/* SPDX-License-Identifier: MIT */
/*
 * joins.c - finds the recorded wait that belongs to a context switch of the thread.
 *
 * A thread records that it waits before it is switched away. So the wait is there when the switch is known,
 * unless it has been overwritten by then.
 */
#include "joins.h"

#include "obs/waits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct rsi_waits *waits; /* NULL: nothing is recorded */

int rsi_joins_open(const char *path)
{
    struct stat status;
    int fd = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return -errno;
    if (fstat(fd, &status) != 0 || status.st_size != (off_t)sizeof(*waits))
        return -EINVAL;
    void *at = mmap(NULL, sizeof(*waits), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = at == MAP_FAILED ? -errno : 0;
    close(fd);
    if (error == 0 && stat("/proc/self/ns/pid", &status) != 0)
        error = -errno;
    if (error == 0) {
        waits = at;
        waits->pid_namespace = status.st_ino;
    }
    return error;
}

__u64 rsi_joins_refused(void)
{
    return waits ? rsi_load_relaxed(&waits->refused) : 0;
}

static struct rsi_waits_ring *ring_of(struct rsi_joins_place *place, __u32 tid)
{
    if (!place->ring) {
        __u64 taken = rsi_load_acquire(&waits->taken); /* pairs with the thread that takes one */
        for (__u32 i = 0; i < RSI_WAITS_RINGS && taken != place->taken && !place->ring; i++) {
            __u32 at = (tid + i) % RSI_WAITS_RINGS;
            if (rsi_load_relaxed(&waits->owners[at]) == tid)
                place->ring = at + 1;
        }
        place->taken = taken;
    }
    return place->ring ? &waits->rings[place->ring - 1] : NULL;
}

struct rsi_joins_wait rsi_joins_find(struct rsi_joins_place *place, __u32 tid, __u64 at_ns)
{
    struct rsi_joins_wait found = { .join = waits ? RSI_BPF_OUTSIDE : RSI_BPF_ALONE };
    struct rsi_waits_ring *ring = waits ? ring_of(place, tid) : NULL;
    if (!ring)
        return found;
    __u64 count = rsi_load_acquire(&ring->count); /* pairs with its thread */
    __u64 first = count < RSI_WAITS_KEPT ? 0 : count - RSI_WAITS_KEPT + 1, end_ns = 0;
    bool is_found = false;
    for (__u64 n = place->last > first ? place->last : first; n < count; n++) {
        const struct rsi_waits_entry *entry = &ring->entries[n % RSI_WAITS_KEPT];
        if (rsi_load_relaxed(&entry->begin_ns) > at_ns)
            break;
        is_found = true;
        place->last = n;
        end_ns = rsi_load_relaxed(&entry->end_ns);
        found.site = rsi_load_relaxed(&entry->site);
        found.kind = rsi_load_relaxed(&entry->kind);
    }
    __atomic_thread_fence(
        __ATOMIC_ACQUIRE); /* pairs with the thread's store before it writes the next wait */
    if (is_found ? rsi_load_relaxed(&ring->count) >= place->last + RSI_WAITS_KEPT : first > 0)
        return (struct rsi_joins_wait){ .join = RSI_BPF_UNREAD };
    if (is_found && (end_ns == 0 || at_ns < end_ns)) {
        found.join = RSI_BPF_JOINED;
        return found;
    }
    return (struct rsi_joins_wait){ .join = RSI_BPF_OUTSIDE };
}

/* Before its exec, the first thread belonged to the command. */
static __u64 since_begin(__u32 tid, __u64 queue_ns)
{
    __u64 before_ns =
        rsi_load_relaxed(&waits->first_tid) == tid ? rsi_load_relaxed(&waits->first_queue_ns) : 0;
    return queue_ns > before_ns ? queue_ns - before_ns : 0;
}

bool rsi_joins_end(struct rsi_joins_place *place, __u32 tid, __u64 *queue_ns)
{
    struct rsi_waits_ring *ring = waits ? ring_of(place, tid) : NULL;
    if (!ring)
        return false;
    /* pairs with the thread that stores it */
    bool has_queue_ns = rsi_load_acquire(&ring->has_queue_ns) != 0;
    *queue_ns = since_begin(tid, rsi_load_relaxed(&ring->queue_ns));
    rsi_store_relaxed(&ring->has_queue_ns, 0u);
    /* It may have ended in a wait. The next owner of the ring is not in that wait. */
    if (ring->count)
        rsi_store_relaxed(&ring->entries[(ring->count - 1) % RSI_WAITS_KEPT].end_ns, UINT64_C(1));
    rsi_store_release(&waits->owners[place->ring - 1], 0u); /* pairs with who takes it */
    return has_queue_ns;
}

bool rsi_joins_queue(__u32 pid, __u32 tid, __u64 *queue_ns)
{
    char path[64];
    unsigned long long queued_ns = 0;
    (void)snprintf(path, sizeof(path), "/proc/%u/task/%u/schedstat", pid, tid);
    FILE *file = waits ? fopen(path, "r") : NULL;
    bool has_queue_ns = file && fscanf(file, "%*u %llu", &queued_ns) == 1;
    if (file)
        (void)fclose(file);
    if (has_queue_ns)
        *queue_ns = since_begin(tid, queued_ns);
    return has_queue_ns;
}
