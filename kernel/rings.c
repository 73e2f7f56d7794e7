/* SPDX-License-Identifier: MIT */
/*
 * rings.c - rings of records, one for each processor.
 *
 * A thread's records are in the rings of all processors it was on. Problem: they must be returned in order,
 * although each ring is read at a different moment. A record is written while its thread is still on the
 * processor, and its time is taken before that. Let T be a moment before any ring is read. A record of a
 * thread that is written after T either has a time after T, or was being written at T, and then the thread's
 * next records have a time after T. So the records taken are those from before T, in the order of their
 * times.
 */
#include "rings.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/*
 * The memory that the kernel grants each user for each processor: kernel.perf_event_mlock_kb is this plus the
 * first page.
 */
#define RING_BYTES ((size_t)512 << 10)
#define WAKE_BYTES 8192u  /* wakes us after about 340 switches */
#define TAIL_BYTES 16u    /* at the end of each record: pid, tid, time */
#define RECORD_BYTES 512u /* of the longest record that is read */

struct ring {
    struct perf_event_mmap_page *page;
    size_t bytes; /* a power of two */
};

static struct {
    struct ring *all;
    struct pollfd *polls;
    size_t count;
    struct rsi_record *records;
    size_t taken, room;
} rings;

static int event_open(pid_t thread, int cpu)
{
    struct perf_event_attr attr = {
        .type = PERF_TYPE_SOFTWARE,
        .size = sizeof(attr),
        .config = PERF_COUNT_SW_DUMMY,
        .sample_type = PERF_SAMPLE_TID | PERF_SAMPLE_TIME,
        .disabled = 1,
        .enable_on_exec = 1,
        .inherit = 1,
        .exclude_kernel =
            1, /* users may not look at the kernel's own code; its switches are recorded nevertheless */
        .exclude_hv = 1,
        .context_switch = 1,
        .task = 1,
        .comm = 1,
        .sample_id_all = 1,
        .watermark = 1,
        .wakeup_watermark = WAKE_BYTES,
        .use_clockid = 1,
        .clockid = CLOCK_MONOTONIC,
    };
    long fd = syscall(SYS_perf_event_open, &attr, thread, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : (int)fd;
}

/* The largest ring for which there is memory. */
static bool ring_map(struct ring *ring, int fd)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (ring->bytes = RING_BYTES; ring->bytes >= page; ring->bytes /= 2) {
        void *at = mmap(NULL, page + ring->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (at != MAP_FAILED) {
            ring->page = at;
            return true;
        }
    }
    return false;
}

static int ring_add(pid_t thread, int cpu)
{
    int fd = event_open(thread, cpu);
    if (fd == -ENODEV) /* it is disabled */
        return 0;
    if (fd < 0)
        return fd;
    if (!ring_map(&rings.all[rings.count], fd))
        return -errno;
    rings.polls[rings.count++] = (struct pollfd){ fd, POLLIN, 0 };
    return 0;
}

int rsi_rings_open(pid_t thread)
{
    long cpus = sysconf(_SC_NPROCESSORS_CONF);
    struct rlimit files;
    rings.all = calloc((size_t)cpus, sizeof(*rings.all));
    rings.polls = calloc((size_t)cpus, sizeof(*rings.polls));
    if (!rings.all || !rings.polls)
        return -ENOMEM;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        (void)setrlimit(RLIMIT_NOFILE, &files);
    }
    for (int cpu = 0; cpu < cpus; cpu++) {
        int error = ring_add(thread, cpu);
        if (error < 0)
            return error;
    }
    return rings.count ? 0 : -ENODEV;
}

size_t rsi_rings_polls(const struct pollfd **polls)
{
    *polls = rings.polls;
    return rings.count;
}

void rsi_rings_stop(void)
{
    for (size_t i = 0; i < rings.count; i++)
        ioctl(rings.polls[i].fd, PERF_EVENT_IOC_DISABLE, 0); /* including inherited events */
}

static void copy(const struct ring *ring, __u64 from, void *to, size_t bytes)
{
    const char *data = (const char *)ring->page + ring->page->data_offset;
    size_t at = (size_t)from & (ring->bytes - 1), first = ring->bytes - at;
    first = first < bytes ? first : bytes;
    memcpy(to, data + at, first);
    memcpy((char *)to + first, data, bytes - first);
}

/* words: the record after its header; the last ones are pid, tid and time of its writer. */
static void decode(const struct perf_event_header *head, const __u32 *words,
                   struct rsi_record *record)
{
    size_t tail = (head->size - sizeof(*head) - TAIL_BYTES) / sizeof(*words);
    *record = (struct rsi_record){ .type = head->type, .misc = head->misc };
    memcpy(&record->time_ns, &words[tail + 2], sizeof(record->time_ns));
    record->pid = words[tail];
    record->tid = words[tail + 1];
    switch (head->type) {
    case PERF_RECORD_COMM: /* pid, tid, name */
        record->pid = words[0];
        record->tid = words[1];
        memcpy(record->name, &words[2], strnlen((const char *)&words[2], RSI_BPF_NAME - 1));
        break;
    case PERF_RECORD_FORK: /* pid, parent's pid, tid, parent's tid */
    case PERF_RECORD_EXIT:
        record->pid = words[0];
        record->tid = words[2];
        record->parent = words[3];
        break;
    case PERF_RECORD_LOST: /* id, count */
        memcpy(&record->lost, &words[2], sizeof(record->lost));
        break;
    default: break;
    }
}

static bool record_add(const struct rsi_record *record)
{
    if (rings.taken == rings.room) {
        size_t room = rings.room ? 2 * rings.room : 4096;
        struct rsi_record *records = realloc(rings.records, room * sizeof(*records));
        if (!records)
            return false;
        rings.records = records;
        rings.room = room;
    }
    rings.records[rings.taken++] = *record;
    return true;
}

static bool ring_take(const struct ring *ring, __u64 until_ns)
{
    /* Acquire: pairs with the kernel's store, which comes after the records. */
    __u64 end = __atomic_load_n(&ring->page->data_head, __ATOMIC_ACQUIRE);
    __u64 at = ring->page->data_tail;
    while (at < end) {
        struct perf_event_header head;
        struct rsi_record record;
        __u32 words[RECORD_BYTES / sizeof(__u32)];
        copy(ring, at, &head, sizeof(head));
        if (head.size >= sizeof(head) + TAIL_BYTES && head.size <= RECORD_BYTES) {
            copy(ring, at + sizeof(head), words, head.size - sizeof(head));
            decode(&head, words, &record);
            if (record.time_ns > until_ns)
                break;
            if (!record_add(&record))
                return false;
        }
        at += head.size;
    }
    /* Release: pairs with the kernel's load. The kernel overwrites what was read only after that. */
    __atomic_store_n(&ring->page->data_tail, at, __ATOMIC_RELEASE);
    return true;
}

static int by_time(const void *a, const void *b)
{
    const struct rsi_record *one = a, *other = b;
    return (one->time_ns > other->time_ns) - (one->time_ns < other->time_ns);
}

bool rsi_rings_take(bool is_all, struct rsi_records *records)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now); /* before any ring is read */
    __u64 until_ns = is_all ? UINT64_MAX : (__u64)now.tv_sec * 1000000000 + (__u64)now.tv_nsec;
    rings.taken = 0;
    for (size_t i = 0; i < rings.count; i++)
        if (!ring_take(&rings.all[i], until_ns))
            return false;
    if (rings.count > 1 && rings.taken > 1)
        qsort(rings.records, rings.taken, sizeof(*rings.records), by_time);
    *records = (struct rsi_records){ rings.records, rings.taken };
    return true;
}
