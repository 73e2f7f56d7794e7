/* SPDX-License-Identifier: MIT */
/*
 * case_shared_writes.c - the writes of one basic operation to lines that other processors may touch.
 *
 * On many processors, the limit of a scheduler is not its instruction count but the cache lines that processors
 * take from each other. Two processors suffice to count these exactly. Builds with ROUSE_TEST count every
 * atomic write of the library (base.h). Each operation is counted alone and many times. The most frequent count
 * is reported with its share, since an operation occasionally also checks timers or the poller.
 *
 * There is one worker, so that the next thread to run is known. A count may begin in one thread and end in
 * another, at the point where the other continues.
 */
#include "impl.h"

#include "core/core.h"
#include "io/fdtable.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#ifndef ROUSE_TEST
#define RSI_TEST_RANGES 8u
struct rsi_test_range {
    const void *from;
    size_t bytes;
};
struct rsi_test_writes {
    uint32_t locked[RSI_TEST_RANGES + 1], stores[RSI_TEST_RANGES + 1];
    uint32_t lines;
};
static void rsi_test_writes_begin(const struct rsi_test_range *ranges, unsigned count)
{
    (void)ranges;
    (void)count;
}
static void rsi_test_writes_end(struct rsi_test_writes *writes)
{
    memset(writes, 0, sizeof *writes);
}
static const bool can_count = false;
#else
static const bool can_count = true;
#endif

#define KINDS_MAX 64u
#define FALL_ASLEEP_NS 1000000u /* an idle worker is usually asleep by then */
enum range { WORKER, SELF, PARTNER, MADE, OBJECT, ENTRY, RANGES };

struct objects {
    _Alignas(64) struct rouse_sem there;
    _Alignas(64) struct rouse_sem back;
    _Alignas(64) struct rouse_sem free;
    _Alignas(64) struct rouse_mutex mutex;
};

struct state {
    struct bench_run *run;
    struct objects *objects;
    struct rouse_thread *partner, *made;
    int fd;
    bool stop;
    /* wake_across: 1 the kernel thread's turn, 2 done, 3 the thread shall end. */
    _Atomic uint32_t turn;
    struct rsi_test_range ranges[RANGES];
    struct rsi_test_writes writes, kinds[KINDS_MAX];
    uint64_t counts[KINDS_MAX];
    unsigned kind_count;
};

static const char *const op_names[] = { BENCH_OPS };

static void begin_count(struct state *s)
{
    rsi_test_writes_begin(s->ranges, RANGES);
}

static void end_count(struct state *s)
{
    rsi_test_writes_end(&s->writes);
}

static bool is_op(const struct state *s, enum bench_op op)
{
    return s->run->options.op == op;
}

static void *nothing(void *arg)
{
    return arg;
}

/* The other thread. It continues where the measuring thread stopped, and then lets that thread continue. */
static void *partner_main(void *arg)
{
    struct state *s = arg;

    while (!s->stop) {
        if (is_op(s, BENCH_OP_YIELD)) {
            rouse_thread_yield();
            end_count(s);
            continue;
        }
        rouse_sem_wait(&s->objects->there);
        if (is_op(s, BENCH_OP_PARK))
            end_count(s);
        rouse_sem_post(&s->objects->back);
    }
    return NULL;
}

/* A kernel thread that wakes the partner. The partner's worker is busy, or has had time to fall asleep. */
static void *waker_main(void *arg)
{
    struct state *s = arg;
    uint32_t turn;

    /* Acquire and release: the two threads hand `writes` and the semaphores over by turn. */
    while ((turn = atomic_load_explicit(&s->turn, memory_order_acquire)) != 3) {
        if (turn != 1) {
            sched_yield();
            continue;
        }
        if (is_op(s, BENCH_OP_WAKE_IDLE))
            raw_sleep_ns(FALL_ASLEEP_NS);
        begin_count(s);
        rouse_sem_post(&s->objects->there);
        end_count(s);
        atomic_store_explicit(&s->turn, 2, memory_order_release);
    }
    return NULL;
}

static void count_pair(struct state *s)
{
    struct objects *o = s->objects;

    switch (s->run->options.op) {
    case BENCH_OP_PARK:
        rouse_sem_post(&o->there);
        begin_count(s);
        rouse_sem_wait(&o->back); /* the partner ends the count */
        break;
    case BENCH_OP_UNPARK:
        begin_count(s);
        rouse_sem_post(&o->there);
        end_count(s);
        rouse_sem_wait(&o->back);
        break;
    default: /* wake_across, wake_idle */
        atomic_store_explicit(&s->turn, 1, memory_order_release);
        while (is_op(s, BENCH_OP_WAKE_ACROSS) &&
               atomic_load_explicit(&s->turn, memory_order_acquire) != 2)
            ; /* no yield, so that the worker stays busy */
        rouse_sem_wait(&o->back);
        while (atomic_load_explicit(&s->turn, memory_order_acquire) != 2)
            ; /* the kernel thread is still finishing */
        break;
    }
}

static void count_thread(struct state *s)
{
    const struct rouse_thread_attr attr = { .kind = ROUSE_KIND_USER };
    struct rouse_thread *t = NULL;

    if (is_op(s, BENCH_OP_CREATE))
        begin_count(s);
    const int error = rouse_thread_create(&t, &attr, nothing, NULL);
    if (is_op(s, BENCH_OP_CREATE))
        end_count(s);
    if (error) {
        bench_fail(s->run, error, "creating a thread");
        return;
    }
    /* Blocks are reused in LIFO order, so the next thread has the same block. */
    s->ranges[MADE] = (struct rsi_test_range){ t, sizeof *t };
    if (is_op(s, BENCH_OP_JOIN))
        begin_count(s);
    rouse_thread_join(t, NULL);
    if (is_op(s, BENCH_OP_JOIN))
        end_count(s);
}

static void count_io(struct state *s)
{
    uint64_t value = 1;
    if (is_op(s, BENCH_OP_WRITE))
        begin_count(s);
    rouse_write(s->fd, &value, sizeof value);
    if (is_op(s, BENCH_OP_WRITE))
        end_count(s);
    else
        begin_count(s);
    rouse_read(s->fd, &value, sizeof value);
    if (is_op(s, BENCH_OP_READ))
        end_count(s);
}

static void count_lock(struct state *s)
{
    if (is_op(s, BENCH_OP_LOCK))
        begin_count(s);
    rouse_mutex_lock(&s->objects->mutex);
    if (is_op(s, BENCH_OP_LOCK))
        end_count(s);
    else
        begin_count(s);
    rouse_mutex_unlock(&s->objects->mutex);
    if (is_op(s, BENCH_OP_UNLOCK))
        end_count(s);
}

static void count_semaphore(struct state *s)
{
    if (is_op(s, BENCH_OP_POST))
        begin_count(s);
    rouse_sem_post(&s->objects->free);
    if (is_op(s, BENCH_OP_POST))
        end_count(s);
    else
        begin_count(s);
    rouse_sem_wait(&s->objects->free);
    if (is_op(s, BENCH_OP_WAIT))
        end_count(s);
}

static void count_once(struct state *s)
{
    switch (s->run->options.op) {
    case BENCH_OP_YIELD:
        begin_count(s);
        rouse_thread_yield(); /* the partner ends the count */
        break;
    case BENCH_OP_CREATE:
    case BENCH_OP_JOIN: count_thread(s); break;
    case BENCH_OP_LOCK:
    case BENCH_OP_UNLOCK: count_lock(s); break;
    case BENCH_OP_POST:
    case BENCH_OP_WAIT: count_semaphore(s); break;
    case BENCH_OP_READ:
    case BENCH_OP_WRITE: count_io(s); break;
    default: count_pair(s); break;
    }
}

static void note(struct state *s)
{
    unsigned i = 0;
    while (i < s->kind_count && memcmp(&s->kinds[i], &s->writes, sizeof s->writes) != 0)
        i++;
    if (i == KINDS_MAX)
        return;
    if (i == s->kind_count)
        s->kinds[s->kind_count++] = s->writes;
    s->counts[i]++;
}

static int prepare(struct bench_run *run)
{
    struct state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->run = run;
    s->fd = -1;
    if (!can_count)
        return bench_fail(run, -ENOTSUP, "counting writes (it requires a build with ROUSE_TEST)");
    if (!run->user || run->workers != 1)
        return bench_fail(run, -EINVAL, "counting (it requires --threads user --workers 1)");
    s->objects = aligned_alloc(64, sizeof *s->objects);
    s->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!s->objects || s->fd < 0)
        return -ENOMEM;
    rouse_sem_init(&s->objects->there, 0, NULL);
    rouse_sem_init(&s->objects->back, 0, NULL);
    rouse_sem_init(&s->objects->free, 0, NULL);
    rouse_mutex_init(&s->objects->mutex, NULL);
    return 0;
}

static int begin(struct bench_run *run)
{
    struct state *s = run->state;
    const bool across = is_op(s, BENCH_OP_WAKE_ACROSS) || is_op(s, BENCH_OP_WAKE_IDLE);
    const struct rouse_thread_attr user = { .kind = ROUSE_KIND_USER };
    const struct rouse_thread_attr kernel = { .kind = ROUSE_KIND_KERNEL };
    uint64_t value = 1;

    int error = rouse_thread_create(&s->partner, &user, partner_main, s);
    if (!error && across)
        error = rouse_thread_create(&s->made, &kernel, waker_main, s);
    if (error)
        return bench_fail(run, error, "creating a thread");
    rouse_write(s->fd, &value, sizeof value); /* now the descriptor is known */
    rouse_read(s->fd, &value, sizeof value);
    struct rsi_worker *worker = rsi_exec_self()->worker;
    s->ranges[WORKER] = (struct rsi_test_range){ worker, sizeof *worker };
    s->ranges[SELF] = (struct rsi_test_range){ rouse_thread_self(), sizeof(struct rouse_thread) };
    s->ranges[PARTNER] = (struct rsi_test_range){ s->partner, sizeof(struct rouse_thread) };
    s->ranges[OBJECT] = (struct rsi_test_range){ s->objects, sizeof *s->objects };
    s->ranges[ENTRY] = (struct rsi_test_range){ rsi_fdtable_peek(s->fd), sizeof(struct rsi_fd) };
    rouse_thread_yield(); /* the partner waits */
    return 0;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct state *s = run->state;

    bench_start(run);
    for (uint64_t i = 0; i < ops && !run->error; i++) {
        count_once(s);
        note(s);
    }
    bench_stop(run);
    bench_count(run, ops);
    run->sample_ops = ops;
    return run->error;
}

static void end(struct bench_run *run)
{
    struct state *s = run->state;

    s->stop = true;
    atomic_store_explicit(&s->turn, 3, memory_order_release); /* pairs with waker_main */
    if (s->made)
        rouse_thread_join(s->made, NULL);
    rouse_sem_post(&s->objects->there);
    if (s->partner)
        rouse_thread_join(s->partner, NULL);
}

static void report(struct bench_run *run)
{
    const struct state *s = run->state;
    unsigned most = 0;
    uint64_t total = 0;

    for (unsigned i = 0; i < s->kind_count; i++) {
        total += s->counts[i];
        most = s->counts[i] > s->counts[most] ? i : most;
    }
    const uint32_t *locked = s->kinds[most].locked, *stores = s->kinds[most].stores;
    bench_text(run, "op", op_names[run->options.op]);
    bench_figure(run, "worker_locked", locked[WORKER]);
    bench_figure(run, "worker_stores", stores[WORKER]);
    bench_figure(run, "block_locked", locked[SELF] + locked[PARTNER] + locked[MADE]);
    bench_figure(run, "block_stores", stores[SELF] + stores[PARTNER] + stores[MADE]);
    bench_figure(run, "object_locked", locked[OBJECT] + locked[ENTRY]);
    bench_figure(run, "object_stores", stores[OBJECT] + stores[ENTRY]);
    bench_figure(run, "other_locked", locked[RSI_TEST_RANGES]);
    bench_figure(run, "other_stores", stores[RSI_TEST_RANGES]);
    bench_figure(run, "lines", s->kinds[most].lines);
    bench_figure(run, "share", total ? (double)s->counts[most] / (double)total : 0);
}

static void release(struct bench_run *run)
{
    struct state *s = run->state;

    if (s->fd >= 0)
        close(s->fd);
    free(s->objects);
    free(s);
}

const struct bench_case BENCH_NAME(case_shared_writes) = {
    .name = "shared_writes",
    .summary = "writes to shared lines of one operation, --op; in builds with ROUSE_TEST",
    .threads = 1,
    .samples = 3,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
