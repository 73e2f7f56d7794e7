/* SPDX-License-Identifier: MIT */
/*
 * sums.c - adds up for how long each thread runs, sleeps and waits for a processor. Each record moves a thread from one
 * of these states to another.
 *
 * The switch away from a thread shows whether it sleeps or waits for a processor: either it was blocked or it
 * could have continued. The records do not show when a sleeper is woken, so it counts as asleep until it runs
 * again.
 */
#include "sums.h"

#include <string.h>

#define BUCKETS 16384u

struct rsi_sums rsi_sums;
static __u32 alive[BUCKETS]; /* the first thread's id; 0: none */

static __u32 *bucket_of(__u32 tid)
{
    return &alive[tid % BUCKETS];
}

static struct rsi_sums_thread *by_id(__u32 id)
{
    return id ? &rsi_sums.threads[id - 1] : NULL;
}

static struct rsi_sums_thread *find(__u32 tid)
{
    struct rsi_sums_thread *thread = by_id(*bucket_of(tid));
    while (thread && thread->tid != tid)
        thread = by_id(thread->next);
    return thread;
}

/* NULL: there is no room. */
static struct rsi_sums_thread *make(const struct rsi_record *record, enum rsi_bpf_state state)
{
    __u32 *bucket = bucket_of(record->tid);
    if (rsi_sums.count == 2 * RSI_BPF_THREADS)
        return NULL;
    struct rsi_sums_thread *thread = &rsi_sums.threads[rsi_sums.count++];
    *thread = (struct rsi_sums_thread){
        .id = rsi_sums.count,
        .tid = record->tid,
        .pid = record->pid,
        .state = state,
        .first_ns = record->time_ns,
        .since_ns = record->time_ns,
        .next = *bucket,
    };
    *bucket = thread->id;
    return thread;
}

/* End the current state. Returns how long it has lasted. */
static __u64 change(struct rsi_sums_thread *thread, __u64 now_ns, enum rsi_bpf_state state)
{
    __u64 passed_ns = now_ns > thread->since_ns ? now_ns - thread->since_ns : 0;
    thread->since_ns = now_ns;
    thread->state = state;
    return passed_ns;
}

/* The entry for the wait that it was in last. NULL: there is no room. */
static struct rsi_sums_sleep *sleep_of(const struct rsi_sums_thread *thread)
{
    const struct rsi_joins_wait *wait = &thread->wait;
    __u64 hash = (wait->site * 8 + wait->kind * 4 + wait->join) * 0x9e3779b97f4a7c15 + thread->id;
    for (__u32 i = 0; i < RSI_BPF_SLEEPS; i++) {
        struct rsi_sums_sleep *sleep = &rsi_sums.sleeps[(hash + i) % RSI_BPF_SLEEPS];
        if (sleep->thread == 0)
            *sleep = (struct rsi_sums_sleep){ .thread = thread->id, .wait = *wait };
        if (sleep->thread == thread->id && sleep->wait.site == wait->site &&
            sleep->wait.kind == wait->kind && sleep->wait.join == wait->join)
            return sleep;
    }
    return NULL;
}

static void put_on(struct rsi_sums_thread *thread, __u64 now_ns)
{
    enum rsi_bpf_state before = thread->state;
    __u64 passed_ns = change(thread, now_ns, RSI_BPF_RUNS);
    if (before == RSI_BPF_QUEUED) {
        thread->queued_ns += passed_ns;
        if (passed_ns > thread->queued_most_ns)
            thread->queued_most_ns = passed_ns;
    } else if (before == RSI_BPF_SLEEPS_NOW) {
        struct rsi_sums_sleep *sleep = sleep_of(thread);
        if (!sleep) {
            rsi_sums.lost_sleeps++;
            return;
        }
        sleep->count++;
        sleep->ns += passed_ns;
        if (passed_ns > sleep->most_ns)
            sleep->most_ns = passed_ns;
    }
}

static void take_off(struct rsi_sums_thread *thread, __u64 now_ns, bool is_preempted)
{
    bool has_run = thread->state == RSI_BPF_RUNS; /* otherwise a record is missing */
    __u64 passed_ns = change(thread, now_ns, is_preempted ? RSI_BPF_QUEUED : RSI_BPF_SLEEPS_NOW);
    thread->cpu_ns += has_run ? passed_ns : 0;
    if (!is_preempted)
        thread->wait = rsi_joins_find(&thread->place, thread->tid, now_ns);
    thread->involuntary += is_preempted;
    thread->voluntary += !is_preempted;
}

static void end(struct rsi_sums_thread *thread, __u64 now_ns)
{
    bool has_run = thread->state == RSI_BPF_RUNS;
    __u64 passed_ns = change(thread, now_ns, RSI_BPF_ENDED);
    thread->cpu_ns += has_run ? passed_ns : 0;
    __u32 *link = bucket_of(thread->tid);
    while (*link != thread->id)
        link = &rsi_sums.threads[*link - 1].next;
    *link = thread->next;
    thread->has_all_queued = rsi_joins_end(&thread->place, thread->tid, &thread->all_queued_ns);
}

/* It is new, and has the name of its creator. */
static void born(const struct rsi_record *record)
{
    struct rsi_sums_thread *thread = make(record, RSI_BPF_QUEUED);
    const struct rsi_sums_thread *parent = find(record->parent);
    if (!thread)
        rsi_sums.lost_threads++;
    else if (parent)
        memcpy(thread->name, parent->name, sizeof(thread->name));
}

/* The thread may be unknown so far: the first thread, which has just executed the program and runs. */
static void named(const struct rsi_record *record)
{
    struct rsi_sums_thread *thread = find(record->tid);
    if (!thread)
        thread = make(record, RSI_BPF_RUNS);
    if (thread)
        memcpy(thread->name, record->name, sizeof(thread->name));
}

static void switched(const struct rsi_record *record)
{
    struct rsi_sums_thread *thread = find(record->tid);
    if (!thread) /* the record of its creation was lost */
        thread = make(record, RSI_BPF_RUNS);
    if (!thread)
        return;
    if (record->misc & PERF_RECORD_MISC_SWITCH_OUT)
        take_off(thread, record->time_ns, record->misc & PERF_RECORD_MISC_SWITCH_OUT_PREEMPT);
    else
        put_on(thread, record->time_ns);
}

void rsi_sums_add(const struct rsi_record *record)
{
    struct rsi_sums_thread *thread;
    if (record->type == PERF_RECORD_LOST)
        rsi_sums.lost_records += record->lost;
    if (record->tid == 0) /* it belongs to a process outside this PID namespace */
        return;
    switch (record->type) {
    case PERF_RECORD_FORK: born(record); break;
    case PERF_RECORD_COMM: named(record); break;
    case PERF_RECORD_SWITCH: switched(record); break;
    case PERF_RECORD_EXIT:
        thread = find(record->tid);
        if (thread)
            end(thread, record->time_ns);
        break;
    default: break;
    }
}
