/* SPDX-License-Identifier: MIT */
/*
 * cpu_time.c - reads the kernel's figures of kernel threads and of the process, by system calls alone.
 *
 * CPU time comes from the thread's clock, which needs neither /proc nor a descriptor. The time in the run queue is
 * only in /proc.
 */
#include "obs/cpu_time.h"

#include "obs/file.h"
#include "os/os.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <time.h>

/* The kernel's number for the CPU clock of a thread: CPUCLOCK_PERTHREAD | CPUCLOCK_SCHED, and the tid above. */
#define THREAD_CLOCK(tid) ((int32_t)(~(uint32_t)(tid) << 3 | 6u))

#define HARDLY_NS UINT64_C(1000000) /* CPU time of a thread that has hardly run */
#define REST_NS UINT64_C(100000)    /* in which the time in the run queue does not matter */
#define QUEUES_MOST 1000u /* threads whose time in the run queue is read at the end: 50 ms */

static uint64_t clock_ns(int32_t clock)
{
    struct timespec at = { 0 };
    if (rsi_syscall2(SYS_clock_gettime, clock, &at) != 0)
        return 0;
    return (uint64_t)at.tv_sec * UINT64_C(1000000000) + (uint64_t)at.tv_nsec;
}

/* Read the decimal number at *text, and move on to the next one. */
static uint64_t number(const char **text)
{
    uint64_t value = 0;
    for (; **text >= '0' && **text <= '9'; (*text)++)
        value = 10 * value + (uint64_t)(**text - '0');
    while (**text == ' ')
        (*text)++;
    return value;
}

/* The second number of a thread's schedstat. */
static bool queue_read(int32_t tid, uint64_t *queue_ns)
{
    char path[48], text[96];
    rsi_format(path, sizeof path, "/proc/self/task/%d/schedstat", tid);
    int fd = (int)rsi_syscall4(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0)
        return false;
    long got = rsi_syscall3(SYS_read, fd, text, sizeof text - 1);
    rsi_syscall1(SYS_close, fd);
    if (got <= 0)
        return false;
    const char *at = text;
    text[got] = 0;
    (void)number(&at);
    *queue_ns = number(&at);
    return true;
}

uint64_t rsi_cpu_time_ran(int32_t tid)
{
    return clock_ns(THREAD_CLOCK(tid));
}

struct rsi_cpu_time rsi_cpu_time_begin(int32_t tid)
{
    struct rsi_cpu_time spent = { .cpu_ns = rsi_cpu_time_ran(tid) };
    if (spent.cpu_ns >= HARDLY_NS)
        (void)queue_read(tid, &spent.queue_ns);
    return spent;
}

/* Ticks as ns, by the time that has passed since recording began. */
static uint64_t ns_of(uint64_t ticks)
{
    const struct rsi_store_head *head = rsi_file_head;
    uint64_t passed = rsi_tsc() - head->tsc;
    uint64_t passed_ns = rsi_now_ns() - head->monotonic_ns;
    return passed ? (uint64_t)((unsigned __int128)ticks * passed_ns / passed) : 0;
}

bool rsi_cpu_time_queued(int32_t tid, uint64_t usr_ticks, uint64_t cpu_ns, uint64_t *queue_ns)
{
    *queue_ns = 0;
    return ns_of(usr_ticks) < cpu_ns + REST_NS || queue_read(tid, queue_ns);
}

/*
 * The kernel thread may end meanwhile, and another one continue the entry. A reader sees that by read_tid, which then
 * differs from tid.
 */
static void note(const void *entry, void *left)
{
    struct rsi_store_writer *writer = (struct rsi_store_writer *)(uintptr_t)entry;
    unsigned *queues = left;
    if (!rsi_load_acquire(&writer->is_live)) /* pairs with rsi_writer_take */
        return;
    int32_t tid = rsi_load_relaxed(&writer->tid);
    uint64_t now = rsi_tsc(), cpu_ns = rsi_cpu_time_ran(tid), queue_ns = 0;
    if (cpu_ns == 0)
        return;
    bool has_queue = *queues > 0 && queue_read(tid, &queue_ns);
    *queues -= *queues > 0;
    rsi_store_relaxed(&writer->end_cpu_ns, cpu_ns);
    rsi_store_relaxed(&writer->end_queue_ns, queue_ns);
    rsi_store_relaxed(&writer->has_queue, (uint32_t)has_queue);
    rsi_store_relaxed(&writer->read_tsc, now);
    rsi_store_relaxed(&writer->read_tid, tid);
}

struct rsi_process_time rsi_process_time(void)
{
    struct rsi_process_time used = { .cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) };
    struct rusage parts = { 0 };
    if (rsi_syscall2(SYS_getrusage, RUSAGE_SELF, &parts) == 0)
        used.system_ns = (uint64_t)parts.ru_stime.tv_sec * UINT64_C(1000000000) +
                         (uint64_t)parts.ru_stime.tv_usec * 1000u;
    return used;
}

void rsi_cpu_time_note(void)
{
    unsigned queues = QUEUES_MOST;
    rsi_file_visit(RSI_STORE_WRITERS, note, &queues);
    struct rsi_process_time used = rsi_process_time();
    struct rsi_store_head *head = rsi_file_head;
    rsi_store_relaxed(&head->cpu_ns, used.cpu_ns - head->earlier_cpu_ns);
    rsi_store_relaxed(&head->system_ns, used.system_ns - head->earlier_system_ns);
}
