/* SPDX-License-Identifier: MIT */
/* case_selectherd.c - the herd of herd.h as a case: its memory, its threads or processes, its samples. */
#include "herd/herd.h"

#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define LOOK_NS 200000u          /* how often to check whether the tokens have ended */
#define CHILD_LOOK_NS 100000000u /* and whether a forked process has died */

static void *map_shared(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

static void unmap(void *at, size_t bytes)
{
    if (at)
        munmap(at, bytes);
}

static size_t fd_bytes(const struct herd *h)
{
    return (size_t)(h->windows * h->sets + 1) * sizeof *h->fd;
}

static size_t member_bytes(const struct herd *h)
{
    return (h->members + HERD_OTHERS) * sizeof *h->member;
}

static size_t stamp_bytes(const struct herd *h)
{
    return (size_t)h->members * HERD_STAMPS * sizeof(struct herd_stamp);
}

static void prepare_members(struct herd *h, struct herd_stamp *stamps)
{
    for (unsigned i = 0; i < h->members + HERD_OTHERS; i++) {
        struct herd_member *m = &h->member[i];
        m->herd = h;
        m->index = i;
        m->random = i + 1;
        m->stamp = i < h->members ? stamps + (size_t)i * HERD_STAMPS : NULL;
        bench_sem_init(&m->start);
    }
}

/* Create the eventfds, which poll(2) and rouse_poll use instead of the layer. */
static int prepare_eventfds(struct bench_run *run, struct herd *h)
{
    const unsigned count = h->windows * h->sets;

    h->eventfd = calloc(count + 1, sizeof *h->eventfd);
    struct pollfd *polled = calloc((size_t)h->members * h->sets + 1, sizeof *polled);
    if (!h->eventfd || !polled) {
        free(polled);
        return -ENOMEM;
    }
    h->member[0].polled = polled;
    for (unsigned i = 0; i < count; i++) {
        h->eventfd[i] = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE);
        if (h->eventfd[i] < 0)
            return bench_fail(run, -errno,
                              "making the descriptors (members / share * sets of them)");
    }
    for (unsigned i = 0; i < h->members; i++) {
        h->member[i].polled = polled + (size_t)i * h->sets;
        for (unsigned at = 0; at < h->sets; at++)
            h->member[i].polled[at] = (struct pollfd){
                .fd = h->eventfd[herd_window(h, i) + at],
                .events = POLLIN,
            };
    }
    return 0;
}

static int prepare_processes(struct bench_run *run, struct herd *h)
{
    for (unsigned i = 0; i < h->members; i++) {
        const int pid = fork();
        if (pid == 0)
            herd_process_main(&h->member[i]);
        if (pid < 0)
            return bench_fail(run, -errno, "forking");
        h->member[i].pid = pid;
    }
    return 0;
}

static int prepare(struct bench_run *run)
{
    struct herd *h = map_shared(sizeof *h);
    if (!h)
        return -ENOMEM;
    run->state = h;
    h->run = run;
    h->options = &run->options;
    h->members = run->threads;
    h->sets = run->options.sets;
    h->windows = (h->members + run->options.share - 1) / run->options.share;
    h->active = (h->members + 1) / 2;
    h->futex_private = run->options.forked ? 0 : FUTEX_PRIVATE_FLAG;
    h->fd = map_shared(fd_bytes(h));
    h->member = map_shared(member_bytes(h));
    struct herd_stamp *stamps = map_shared(stamp_bytes(h));
    if (!h->fd || !h->member || !stamps)
        return -ENOMEM;
    prepare_members(h, stamps);
    bench_sem_init(&h->done);
    int error = run->options.via == BENCH_VIA_LAYER ? 0 : prepare_eventfds(run, h);
    return error || !run->options.forked ? error : prepare_processes(run, h);
}

static void end_processes(struct herd *h)
{
    for (unsigned i = 0; i < h->members; i++)
        if (h->member[i].pid) {
            kill(h->member[i].pid, SIGKILL);
            waitpid(h->member[i].pid, NULL, 0);
            h->member[i].pid = 0;
        }
}

static void *member_main(void *arg)
{
    struct herd_member *m = arg;
    struct herd *h = m->herd;

    herd_member_enter(m);
    for (;;) {
        bench_sem_post(&h->done);
        bench_sem_wait(&m->start);
        if (atomic_load_explicit(&h->quit, memory_order_relaxed))
            return NULL;
        herd_member_run(m);
    }
}

/* A forked process has died. It may have held any lock, so end the others too. */
static bool has_died(struct bench_run *run, struct herd *h)
{
    const int pid = run->options.forked ? waitpid(-1, NULL, WNOHANG) : 0;

    if (pid <= 0)
        return run->error != 0;
    for (unsigned i = 0; i < h->members; i++)
        if (h->member[i].pid == pid)
            h->member[i].pid = 0;
    end_processes(h);
    bench_fail(run, -ECHILD, "a forked process");
    return true;
}

/* Wait until all members rest. Returns 0, or -ECHILD when a forked process has died. */
static int wait_all(struct bench_run *run, struct herd *h)
{
    uint32_t finished;

    if (!run->options.forked) {
        for (unsigned i = 0; i < h->members; i++)
            bench_sem_wait(&h->done);
        return 0;
    }
    /* Acquire: pairs with the addition in herd_process_main. */
    while ((finished = atomic_load_explicit(&h->finished, memory_order_acquire)) < h->members) {
        if (herd_futex_wait(h, &h->finished, finished, herd_now_ns() + CHILD_LOOK_NS))
            continue;
        if (has_died(run, h))
            return run->error;
    }
    return 0;
}

static void start_all(struct bench_run *run, struct herd *h)
{
    if (!run->options.forked) {
        for (unsigned i = 0; i < h->members; i++)
            bench_sem_post(&h->member[i].start);
        return;
    }
    atomic_store_explicit(&h->finished, 0, memory_order_relaxed);
    /* Release: pairs with the load in herd_process_main. */
    atomic_fetch_add_explicit(&h->round, 1, memory_order_release);
    herd_futex_wake(h, &h->round, INT32_MAX);
}

static int begin(struct bench_run *run)
{
    struct herd *h = run->state;
    int error = 0;

    for (unsigned i = 0; i < h->members && !run->options.forked && !error; i++) {
        error = bench_thread_create(run, &h->member[i].thread, member_main, &h->member[i]);
        h->created += !error;
    }
    if (!error && run->options.via == BENCH_VIA_LAYER && run->options.tick) {
        error = bench_thread_create(run, &h->clock, herd_layer_tick, h);
        h->has_clock = !error;
    }
    if (error)
        return bench_fail(run, error, "creating a thread");
    return wait_all(run, h);
}

/* Reset the state: no member has an event, and all tokens are available. */
static void reset(struct herd *h)
{
    struct herd_member *control = &h->member[h->members + HERD_CONTROL];
    const uint64_t most = h->options->ops ? h->options->ops : UINT64_MAX;
    unsigned tokens = h->sets == 0 || h->options->stepped ? 0 : (h->active + 3) / 4;
    uint64_t value;

    if (tokens > most)
        tokens = (unsigned)most;

    for (unsigned i = 0; i < h->members; i++)
        h->member[i].cause = 0;
    for (uint32_t at = 0; at < h->windows * h->sets; at++) {
        h->fd[at].pending = 0;
        while (h->eventfd &&
               raw6(SYS_read, h->eventfd[at], (long)&value, sizeof value, 0, 0, 0) > 0)
            ;
    }
    atomic_store_explicit(&h->hops, 0, memory_order_relaxed);
    /* From there on each token ends at its next hop, so there are `most` events in all. */
    atomic_store_explicit(&h->hops_most, most - tokens + 1, memory_order_relaxed);
    atomic_store_explicit(&h->tokens, tokens, memory_order_relaxed);
    for (unsigned i = 0; i < tokens; i++)
        herd_post(control, herd_window(h, i * h->active / tokens));
    atomic_store_explicit(&h->stop, false, memory_order_relaxed);
}

/* Post one event at a time while all members sleep, and wait until all sleep again. */
static void step(struct bench_run *run, struct herd *h, uint64_t deadline_ns)
{
    struct herd_member *control = &h->member[h->members + HERD_CONTROL];
    const uint64_t most = h->options->ops ? h->options->ops : UINT64_MAX;

    for (uint64_t posted = 0;; posted++) {
        while (atomic_load_explicit(&h->hops, memory_order_relaxed) < posted ||
               atomic_load_explicit(&h->asleep, memory_order_relaxed) < h->members) {
            if (has_died(run, h))
                return;
            bench_thread_yield();
        }
        if (posted == most || (!h->options->ops && herd_now_ns() >= deadline_ns))
            return;
        const unsigned to = (unsigned)(posted % h->active);
        herd_post(control, herd_window(h, to) + (uint32_t)(posted / h->active % h->sets));
    }
}

static void stop_all(struct herd *h)
{
    struct herd_member *control = &h->member[h->members + HERD_CONTROL];

    atomic_store_explicit(&h->stop, true, memory_order_relaxed);
    if (h->options->via == BENCH_VIA_LAYER)
        herd_layer_stop(control);
    else
        for (unsigned i = 0; i < h->members && h->sets; i++)
            herd_poll_post(control, herd_window(h, i));
}

static uint64_t calls_made(const struct herd *h)
{
    uint64_t calls = 0;
    for (unsigned i = 0; i < h->members; i++)
        calls += h->member[i].counts.calls;
    return calls;
}

/* CPU time and switches of the forked processes so far. */
static struct herd_use children_use(const struct herd *h)
{
    struct herd_use sum = { 0 };
    for (unsigned i = 0; i < h->members; i++) {
        sum.user_ns += h->member[i].used.user_ns;
        sum.system_ns += h->member[i].used.system_ns;
        sum.voluntary += h->member[i].used.voluntary;
        sum.involuntary += h->member[i].used.involuntary;
    }
    return sum;
}

static void add_children(struct bench_run *run, const struct herd_use *before,
                         const struct herd_use *after)
{
    run->taken.cpu_ns += after->user_ns + after->system_ns - before->user_ns - before->system_ns;
    run->taken.voluntary += after->voluntary - before->voluntary;
    run->taken.involuntary += after->involuntary - before->involuntary;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    struct herd *h = run->state;
    const uint64_t calls = calls_made(h), deadline_ns = bench_now_ns() + run->sample_ns;
    const struct herd_use children = children_use(h), own = herd_own_use();

    reset(h);
    bench_start(run);
    start_all(run, h);
    if (h->options->stepped)
        step(run, h, deadline_ns);
    else if (ops && h->sets)
        while (atomic_load_explicit(&h->tokens, memory_order_relaxed) > 0 && !has_died(run, h))
            bench_sleep_ns(LOOK_NS);
    else
        bench_sleep_ns(run->sample_ns);
    if (has_died(run, h))
        return run->error;
    stop_all(h);
    const int error = wait_all(run, h);
    bench_stop(run);
    const struct herd_use children_after = children_use(h), own_after = herd_own_use();
    add_children(run, &children, &children_after);
    h->used.user_ns += own_after.user_ns - own.user_ns + children_after.user_ns - children.user_ns;
    h->used.system_ns += own_after.system_ns - own.system_ns + children_after.system_ns -
                         children.system_ns;
    run->sample_ops = calls_made(h) - calls;
    if (run->options.forked)
        bench_count(run, run->sample_ops);
    return error;
}

static void end(struct bench_run *run)
{
    struct herd *h = run->state;

    atomic_store_explicit(&h->quit, true, memory_order_relaxed);
    for (unsigned i = 0; i < h->created; i++)
        bench_sem_post(&h->member[i].start);
    for (unsigned i = 0; i < h->created; i++)
        bench_thread_join(&h->member[i].thread);
    if (h->has_clock)
        bench_thread_join(&h->clock);
}

static void report(struct bench_run *run)
{
    herd_report(run->state);
}

static void release(struct bench_run *run)
{
    struct herd *h = run->state;

    if (h->member)
        end_processes(h);
    for (unsigned i = 0; h->eventfd && i < h->windows * h->sets && h->eventfd[i] > 0; i++)
        close(h->eventfd[i]);
    free(h->eventfd);
    if (h->member) {
        free(h->member[0].polled);
        unmap(h->member[0].stamp, stamp_bytes(h));
    }
    unmap(h->member, member_bytes(h));
    unmap(h->fd, fd_bytes(h));
    unmap(h, sizeof *h);
}

const struct bench_case BENCH_NAME(case_selectherd) = {
    .name = "selectherd",
    .summary = "T threads select() on sets of descriptors, with the mechanisms of old kernels",
    .threads = 32,
    .samples = 1,
    .flags = BENCH_TIMED,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
