/* SPDX-License-Identifier: MIT */
/*
 * switches.bpf.c - measures what the kernel's scheduler does with the threads of a process and of those that
 * it forks: how long each sleeps, in which system call, who wakes it, and how long it then waits for a
 * processor. It runs in the kernel at each switch and wake-up of the machine, and when a thread meets a held
 * lock inside the kernel. For threads that nobody asked for, it only looks that up.
 *
 * Everything is added up here, in maps of a fixed size. Nothing is sent for each event, and the reader cannot
 * influence the result.
 */
#include "vmlinux.h"
#include "shared.h"

#include "namespace.bpf.h"

#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

#define EEXIST 17

/* Bits of a thread's flags (include/linux/sched.h). */
#define PF_IO_WORKER 0x00000010u
#define PF_USER_WORKER 0x00004000u
#define PF_KTHREAD 0x00200000u

/* Bits of a state: those that are no flags; the one for an ended thread (include/linux/sched.h). */
#define STATE_MASK 0xffu
#define STATE_DEAD 0x80u

/* The requested processes and threads: enum rsi_bpf_wanted by the reader's number. Written before begin runs. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_PROCESSES);
    __type(key, __u32);
    __type(value, __u32);
} processes SEC(".maps");

/* Processes that librouse-preload.so records. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_PROCESSES);
    __type(key, __u32);
    __type(value, struct rsi_bpf_recorder);
} recorders SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_THREADS);
    __type(key, __u32); /* the thread's number in the initial PID namespace */
    __type(value, struct rsi_bpf_thread);
} threads SEC(".maps");

/* Ended threads, by id. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_THREADS);
    __type(key, __u32);
    __type(value, struct rsi_bpf_thread);
} ended SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_SLEEPS);
    __type(key, struct rsi_bpf_sleep_key);
    __type(value, struct rsi_bpf_sleep);
} sleeps SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_LOCKS);
    __type(key, struct rsi_bpf_lock_key);
    __type(value, struct rsi_bpf_lock);
} locks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_STACK_TRACE);
    __uint(max_entries, RSI_BPF_STACKS);
    __uint(key_size, sizeof(__u32));
    __uint(value_size, RSI_BPF_FRAMES * sizeof(__u64));
} stacks SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_PLACES);
    __type(key, struct rsi_bpf_place_key);
    __type(value, struct rsi_bpf_place);
} places SEC(".maps");

/* Where a place is made: [0] by the scheduler's events, [1] by begin, which they may interrupt. */
struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 2);
    __type(key, __u32);
    __type(value, struct rsi_bpf_place);
} new_places SEC(".maps");

/* Wakes rouse-kernel when there is a new place, so that it lists the process's memory. */
struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, RSI_BPF_NEWS_BYTES);
} news SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, RSI_BPF_LOST_KINDS);
    __type(key, __u32);
    __type(value, __u64);
} lost SEC(".maps");

__u32 last_id, last_place;

static void lose(__u32 kind)
{
    __u64 *count = bpf_map_lookup_elem(&lost, &kind);
    if (count)
        __sync_fetch_and_add(count, 1);
}

#if defined(__TARGET_ARCH_x86)
#define CALL_FUTEX 202
#else
#define CALL_FUTEX 98
#endif
#define CONDITION_BYTES 48 /* in glibc's pthread_cond_t */

static __s32 last_call_of(struct task_struct *task)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
#if defined(__TARGET_ARCH_x86)
    return (__s32)regs->orig_ax;
#else
    return regs->syscallno;
#endif
}

/* Kernel threads, including those that the kernel creates in a process, have no user registers. */
static __s32 call_of(struct task_struct *task)
{
    return task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) ? -1 : last_call_of(task);
}

/*
 * Whether this runs in an interrupt, during some thread's time, or in a page fault. Interrupts have a stack
 * of their own, and the context of a BPF program is on the current stack. Only the low halves of addresses
 * may be compared, and a thread's stack is a few pages. An interrupt that arrives in user code does use the
 * thread's stack, but the thread is in no system call then. The kernel's own count of interrupts has no name
 * in many kernels.
 */
static bool is_interrupt(const void *given)
{
    struct task_struct *self = bpf_get_current_task_btf();
    __u32 bottom = (__u32)(unsigned long)self->stack;
    __u32 top = (__u32)bpf_task_pt_regs(self); /* the program's registers are stored there */
    return (__u32)(unsigned long)given - bottom >= top - bottom || last_call_of(self) < 0;
}

static void most(__u64 *of, __u64 ns)
{
    if (ns > *of)
        *of = ns;
}

static __u64 pointer_of(struct task_struct *task)
{
#if defined(__TARGET_ARCH_x86)
    return task->thread.fsbase;
#else
    return task->thread.uw.tp_value;
#endif
}

/* The first argument of the system call that it is in. */
static __u64 argument_of(struct task_struct *task)
{
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
#if defined(__TARGET_ARCH_x86)
    return regs->di;
#else
    return regs->orig_x0;
#endif
}

/* Read memory of a program. is_other: of a task that is not running, from a program that may sleep. */
static __always_inline bool read_user(void *to, __u32 bytes, __u64 from, struct task_struct *task,
                                      bool is_other)
{
    if (is_other)
        return bpf_copy_from_user_task(to, bytes, (const void *)from, task, 0) == 0;
    return bpf_probe_read_user(to, bytes, (const void *)from) == 0;
}

/*
 * The call path of a task in the program. 0: unknown. The stack is copied when a path is new; else only its
 * last words are read. Words of the stack that are addresses of the program's code are return addresses, or
 * remain of earlier calls. Addresses of libraries are not compared, since their range is not known here.
 */
static __always_inline __u32 place_of(struct task_struct *task, bool is_other)
{
    struct rsi_bpf_place_key key = { .tgid = process_of(task) };
    struct pt_regs *regs = (struct pt_regs *)bpf_task_pt_regs(task);
    __u32 slot = is_other;
    if (task->flags & (PF_KTHREAD | PF_IO_WORKER | PF_USER_WORKER) || !task->mm)
        return 0;
    struct rsi_bpf_place *new = bpf_map_lookup_elem(&new_places, &slot);
    if (!new)
        return 0;
#if defined(__TARGET_ARCH_x86)
    key.ip = regs->ip;
    new->sp = regs->sp;
    new->bp = regs->bp;
    new->link = 0;
#else
    key.ip = regs->pc;
    new->sp = regs->sp;
    new->bp = regs->regs[29];
    new->link = regs->regs[30];
#endif
    /* A thread's own memory lies at the top of its stack, so its distance is the depth of the call. */
    key.depth = pointer_of(task) - new->sp;
    key.program = task->mm->start_code;
    new->bytes = 0;
    if (read_user(new->stack, RSI_BPF_STACK_CHUNK, new->sp, task, is_other)) {
        const __u64 *words = (const __u64 *)new->stack;
        __u64 size = task->mm->end_code - key.program;
        for (int i = 0; i < RSI_BPF_HASH_WORDS; i++)
            if (words[i] - key.program < size)
                key.hash = (key.hash ^ words[i]) * 0x9e3779b97f4a7c15;
        new->bytes = RSI_BPF_STACK_CHUNK;
    }
    struct rsi_bpf_place *known = bpf_map_lookup_elem(&places, &key);
    if (known)
        return known->id;
    for (__u32 at = RSI_BPF_STACK_CHUNK; at < RSI_BPF_STACK_BYTES; at += RSI_BPF_STACK_CHUNK) {
        if (new->bytes != at ||
            !read_user(new->stack + at, RSI_BPF_STACK_CHUNK, new->sp + at, task, is_other))
            break;
        new->bytes = at + RSI_BPF_STACK_CHUNK;
    }
    new->id = __sync_fetch_and_add(&last_place, 1) + 1;
    __u32 id = new->id;
    long error = bpf_map_update_elem(&places, &key, new, BPF_NOEXIST);
    if (error == 0) {
        bpf_ringbuf_output(&news, &id, sizeof(id), 0); /* there may be no room: then it is awake */
        return id;
    }
    known = error == -EEXIST ? bpf_map_lookup_elem(&places, &key)
                             : 0; /* another processor was faster */
    if (!known)
        lose(RSI_BPF_LOST_PLACES);
    return known ? known->id : 0;
}

/* The futex that it sleeps for. 0: it is in another call. */
static __u64 object_of(struct task_struct *task, __s32 call)
{
    return call == CALL_FUTEX ? argument_of(task) : 0;
}

/* is_other: from a program that may sleep, for a task that is not the current one. */
static __always_inline void add(struct task_struct *task, __u32 state, __u64 now, bool is_other)
{
    __u32 tid = (__u32)task->pid;
    struct rsi_bpf_thread new = {
        .id = __sync_fetch_and_add(&last_id, 1) + 1,
        .tid = number_of(task),
        .tgid = process_of(task),
        .state = state,
        .first_ns = now,
        .since_ns = now,
    };
    __builtin_memcpy(new.name, task->comm, sizeof(new.name));
    if (state == RSI_BPF_SLEEPS_NOW) {
        new.key.call = call_of(task);
        new.key.object = object_of(task, new.key.call);
        new.key.place = is_other ? place_of(task, true) : 0;
    }
    long error = bpf_map_update_elem(&threads, &tid, &new, BPF_NOEXIST);
    if (error < 0 && error != -EEXIST) /* begin and forked may find the same thread */
        lose(RSI_BPF_LOST_THREADS);
}

/* The threads that exist when the other programs here begin. */
SEC("iter.s/task")
int begin(struct bpf_iter__task *context)
{
    struct task_struct *task = context->task;
    if (!task)
        return 0;
    __u32 number = process_of(task);
    __u32 *wanted = bpf_map_lookup_elem(&processes, &number);
    if (!wanted || *wanted != RSI_BPF_PROCESS)
        return 0;
    __u32 tid = (__u32)task->pid;
    if (bpf_map_lookup_elem(&threads, &tid))
        return 0;
    add(task, task->__state & STATE_MASK ? RSI_BPF_SLEEPS_NOW : RSI_BPF_RUNS, bpf_ktime_get_ns(),
        true);
    return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(forked, struct task_struct *parent, struct task_struct *child)
{
    __u32 tid = (__u32)parent->pid, of = (__u32)parent->tgid, tgid = (__u32)child->tgid;
    if (bpf_map_lookup_elem(&threads, &tid)) {
        struct rsi_bpf_recorder *recorder = bpf_map_lookup_elem(&recorders, &of);
        if (recorder && of != tgid && bpf_map_update_elem(&recorders, &tgid, recorder, BPF_ANY) < 0)
            lose(RSI_BPF_LOST_RECORDERS);
        add(child, RSI_BPF_QUEUED, bpf_ktime_get_ns(), false);
        return 0;
    }
    __u32 number = number_of(parent);
    __u32 *wanted = bpf_map_lookup_elem(&processes, &number);
    if (wanted && *wanted == RSI_BPF_CHILD && bpf_map_delete_elem(&processes, &number) == 0)
        add(child, RSI_BPF_QUEUED, bpf_ktime_get_ns(), false);
    return 0;
}

SEC("tp_btf/sched_process_exec")
int BPF_PROG(executed, struct task_struct *task, int before)
{
    __u32 tid = (__u32)task->pid, was = (__u32)before;
    struct rsi_bpf_thread *thread = bpf_map_lookup_elem(&threads, &was);
    if (!thread)
        return 0;
    __u32 tgid = (__u32)task->tgid;
    bpf_map_delete_elem(&recorders, &tgid); /* the new program reports itself */
    if (was != tid) { /* it takes over the number of the first thread, which has ended */
        thread->tid = number_of(task);
        bpf_map_update_elem(&threads, &tid, thread, BPF_ANY);
        bpf_map_delete_elem(&threads, &was);
    }
    return 0;
}

static void end(struct rsi_bpf_thread *thread, __u32 tid)
{
    __u32 id = thread->id;
    if (bpf_map_update_elem(&ended, &id, thread, BPF_ANY) < 0)
        lose(RSI_BPF_LOST_THREADS);
    bpf_map_delete_elem(&threads, &tid);
}

/* librouse-preload.so begins to record a process and reports its layout here. */
SEC("uprobe")
int note_recorder(struct pt_regs *regs)
{
    __u32 tid = (__u32)bpf_get_current_pid_tgid(), tgid = (__u32)(bpf_get_current_pid_tgid() >> 32);
    struct task_struct *self = bpf_get_current_task_btf();
    struct rsi_bpf_recorder recorder = { 0 };
#if defined(__TARGET_ARCH_x86)
    __u64 party = regs->di, words = regs->si;
#else
    __u64 party = regs->regs[0], words = regs->regs[1];
#endif
    if (!bpf_map_lookup_elem(&threads, &tid))
        return 0;
    recorder.party = party - pointer_of(self);
    if (bpf_probe_read_user(&recorder.words, sizeof(recorder.words), (void *)words) < 0 ||
        bpf_map_update_elem(&recorders, &tgid, &recorder, BPF_ANY) < 0)
        lose(RSI_BPF_LOST_RECORDERS);
    return 0;
}

#define READ(to, from) (bpf_probe_read_user(&(to), sizeof(to), (const void *)(from)) == 0)

/* Find the recorded wait in which the thread being switched away sleeps. */
static void join(struct rsi_bpf_sleep_key *key, struct task_struct *task)
{
    __u32 tgid = (__u32)task->tgid;
    struct rsi_bpf_recorder *recorder = bpf_map_lookup_elem(&recorders, &tgid);
    __u64 party, slot, object;
    __u16 doing, kind;
    key->join = RSI_BPF_ALONE;
    key->kind = 0;
    key->site = 0;
    if (!recorder)
        return;
    const struct rsi_bpf_recorder_words *words = &recorder->words;
    key->join = RSI_BPF_UNREAD;
    if (!READ(party, pointer_of(task) + recorder->party))
        return;
    slot = 0;
    if (party && !READ(slot, party + words->slot))
        return;
    key->join = RSI_BPF_OUTSIDE;
    if (!slot)
        return;
    if (!READ(doing, slot + words->doing) || doing != words->does_wait ||
        !READ(kind, slot + words->kind) || !READ(object, slot + words->object) ||
        !READ(key->site, slot + words->wait_site))
        return;
    key->kind = kind;
    key->join = RSI_BPF_JOINED;
    if (kind == words->condition && key->call == CALL_FUTEX &&
        argument_of(task) - object >= CONDITION_BYTES)
        key->join = RSI_BPF_RELOCK;
}

/* Its last sleep was in a recorded wait, whose place is known. */
static bool is_recorded(const struct rsi_bpf_thread *thread)
{
    return thread->key.join == RSI_BPF_JOINED || thread->key.join == RSI_BPF_RELOCK;
}

static void count_sleep(struct rsi_bpf_thread *thread, __u64 now)
{
    __u64 since = thread->since_ns, woken = thread->woken_ns;
    bool is_known = woken != 0;
    if (woken < since)
        woken = since;
    if (woken > now)
        woken = now;
    struct rsi_bpf_sleep_key key = thread->key;
    key.thread = thread->id;
    key.waker = is_known ? thread->waker : 0;
    key.waker_place = is_known ? thread->waker_place : 0;
    struct rsi_bpf_sleep *sum = bpf_map_lookup_elem(&sleeps, &key);
    if (!sum) {
        struct rsi_bpf_sleep none = { 0 };
        __builtin_memcpy(none.waker_name, thread->waker_name, sizeof(none.waker_name));
        bpf_map_update_elem(&sleeps, &key, &none, BPF_NOEXIST);
        sum = bpf_map_lookup_elem(&sleeps, &key);
    }
    if (!sum) {
        lose(RSI_BPF_LOST_SLEEPS);
        return;
    }
    sum->count++;
    sum->asleep_ns += woken - since;
    most(&sum->asleep_most_ns, woken - since);
    sum->queued_ns += now - woken;
    most(&sum->queued_most_ns, now - woken);
}

static void leave(struct rsi_bpf_thread *thread, struct task_struct *task, bool is_sleep, __u64 now)
{
    if (thread->state == RSI_BPF_RUNS)
        thread->cpu_ns += now - thread->since_ns;
    else if (thread->state == RSI_BPF_SLEEPS_NOW)
        /*
         * On a busy machine the kernel runs no program for one switch in thousands, and does not count that as missed
         * (seen on Linux 6.18). The thread leaves again, so it has run since. How long it was queued before, and ran,
         * is not known.
         */
        count_sleep(thread,
                    thread->woken_ns > thread->since_ns ? thread->woken_ns : thread->since_ns);
    thread->since_ns = now;
    __builtin_memcpy(thread->name, task->comm, sizeof(thread->name)); /* it may have a new name */
    if (!is_sleep) {
        thread->involuntary++;
        thread->state = RSI_BPF_QUEUED;
        return;
    }
    thread->voluntary++;
    thread->state = RSI_BPF_SLEEPS_NOW;
    thread->key.call = call_of(task);
    thread->key.object = object_of(task, thread->key.call);
    join(&thread->key, task);
    thread->key.place = is_recorded(thread) ? 0 : place_of(task, false);
}

static void enter(struct rsi_bpf_thread *thread, __u64 now)
{
    if (thread->state == RSI_BPF_SLEEPS_NOW) {
        count_sleep(thread, now);
    } else if (thread->state == RSI_BPF_QUEUED) {
        thread->queued_ns += now - thread->since_ns;
        most(&thread->queued_most_ns, now - thread->since_ns);
    }
    thread->state = RSI_BPF_RUNS;
    thread->since_ns = now;
}

SEC("tp_btf/sched_switch")
int BPF_PROG(switched, bool is_preempted, struct task_struct *before, struct task_struct *after,
             unsigned int state)
{
    __u32 from = (__u32)before->pid, to = (__u32)after->pid;
    struct rsi_bpf_thread *thread;
    __u64 now = 0;
    thread = from ? bpf_map_lookup_elem(&threads, &from) : 0;
    if (thread) {
        now = bpf_ktime_get_ns();
        leave(thread, before, !is_preempted && (state & STATE_MASK) != 0, now);
        if (!is_preempted && (state & STATE_DEAD)) {
            thread->state = RSI_BPF_ENDED;
            end(thread, from);
        }
    }
    thread = to ? bpf_map_lookup_elem(&threads, &to) : 0;
    if (thread)
        enter(thread, now ? now : bpf_ktime_get_ns());
    return 0;
}

SEC("tp_btf/sched_waking")
int BPF_PROG(waking, struct task_struct *task)
{
    __u32 tid = (__u32)task->pid;
    struct rsi_bpf_thread *thread = bpf_map_lookup_elem(&threads, &tid);
    if (!thread)
        return 0;
    bool is_irq = is_interrupt(ctx);
    thread->woken_ns = bpf_ktime_get_ns();
    thread->waker = is_irq ? 0 : number_of(bpf_get_current_task_btf());
    thread->waker_place =
        is_irq || is_recorded(thread) ? 0 : place_of(bpf_get_current_task_btf(), false);
    if (is_irq)
        thread->waker_name[0] = 0;
    else
        bpf_get_current_comm(thread->waker_name, sizeof(thread->waker_name));
    return 0;
}

/* Flags of contention_begin (include/trace/events/lock.h). */
#define FLAG_SPIN 1u
#define FLAG_MUTEX 32u

/*
 * The calling thread's entry, if it is watched. Locks that interrupts wait for during its time do not count
 * for it.
 */
static struct rsi_bpf_thread *own(const void *given)
{
    __u32 tid = (__u32)bpf_get_current_pid_tgid();
    struct rsi_bpf_thread *thread = bpf_map_lookup_elem(&threads, &tid);
    return thread && !is_interrupt(given) ? thread : 0;
}

SEC("tp_btf/contention_begin")
int BPF_PROG(contended, void *lock, unsigned int flags)
{
    struct rsi_bpf_thread *thread = own(ctx);
    if (!thread)
        return 0;
    if (flags & FLAG_MUTEX) /* it may spin first; both are one wait */
        flags &= ~FLAG_SPIN;
    struct rsi_bpf_contest *contest = &thread->contests[flags & FLAG_SPIN];
    if (contest->key.lock == (__u64)lock)
        return 0;
    contest->key.lock = (__u64)lock;
    contest->key.flags = flags;
    contest->key.stack = (__s32)bpf_get_stackid(ctx, &stacks, 0);
    contest->since_ns = bpf_ktime_get_ns();
    return 0;
}

static void count_lock(struct rsi_bpf_contest *contest)
{
    __u64 ns = bpf_ktime_get_ns() - contest->since_ns;
    struct rsi_bpf_lock *sum = bpf_map_lookup_elem(&locks, &contest->key);
    if (!sum) {
        const struct rsi_bpf_lock none = { 0 };
        bpf_map_update_elem(&locks, &contest->key, &none, BPF_NOEXIST);
        sum = bpf_map_lookup_elem(&locks, &contest->key);
    }
    contest->key.lock = 0;
    if (!sum) {
        lose(RSI_BPF_LOST_LOCKS);
        return;
    }
    __sync_fetch_and_add(&sum->count, 1);
    __sync_fetch_and_add(&sum->wait_ns, ns);
    most(&sum->wait_most_ns, ns); /* two at once may store the shorter one */
}

SEC("tp_btf/contention_end")
int BPF_PROG(settled, void *lock, int error)
{
    struct rsi_bpf_thread *thread = own(ctx);
    if (!thread)
        return 0;
    if (thread->contests[0].key.lock == (__u64)lock)
        count_lock(&thread->contests[0]);
    else if (thread->contests[1].key.lock == (__u64)lock)
        count_lock(&thread->contests[1]);
    return 0;
}
