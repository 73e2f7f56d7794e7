/* SPDX-License-Identifier: MIT */
/*
 * counts.bpf.c - counts system calls and signals of the threads of some processes. It runs at each system call and
 * signal of the machine. The time of page faults is not counted: the kernel has no event at their end, and programs that
 * run when a function of its ends (fexit) are not allowed by every kernel.
 */
#include "vmlinux.h"
#include "shared.h"

#include "namespace.bpf.h"

#include <bpf/bpf_tracing.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

/* The watched processes, by the reader's number. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_PROCESSES);
    __type(key, __u32);
    __type(value, __u32);
} processes SEC(".maps");

/* By the thread's number in the initial PID namespace. Only the thread itself writes its entry. */
struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, RSI_BPF_THREADS);
    __type(key, __u32);
    __type(value, struct rsi_bpf_counts);
} counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u64);
} lost SEC(".maps");

/* The entry of the calling thread. NULL: nobody watches its process, or there is no room. */
static __always_inline struct rsi_bpf_counts *own(void)
{
    struct task_struct *self = bpf_get_current_task_btf();
    __u32 tid = (__u32)self->pid, none = 0;
    struct rsi_bpf_counts *entry = bpf_map_lookup_elem(&counts, &tid);
    if (entry)
        return entry;
    __u32 process = process_of(self);
    if (!bpf_map_lookup_elem(&processes, &process))
        return NULL;
    struct rsi_bpf_counts new = { .tid = number_of(self), .tgid = process };
    if (bpf_map_update_elem(&counts, &tid, &new, BPF_NOEXIST) == 0)
        return bpf_map_lookup_elem(&counts, &tid);
    __u64 *count = bpf_map_lookup_elem(&lost, &none);
    if (count)
        __sync_fetch_and_add(count, 1);
    return NULL;
}

SEC("tp_btf/sys_enter")
int BPF_PROG(called, struct pt_regs *regs, long number)
{
    struct rsi_bpf_counts *entry = own();
    if (entry)
        entry->calls++;
    return 0;
}

SEC("tp_btf/signal_deliver")
int BPF_PROG(delivered, int number)
{
    struct rsi_bpf_counts *entry = own();
    if (entry)
        entry->signals++;
    return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(ended, struct task_struct *task)
{
    __u32 tid = (__u32)task->pid, process = process_of(task);
    bpf_map_delete_elem(&counts, &tid);
    if (task->pid == task->tgid) /* if other threads go on, the reader asks for it again */
        bpf_map_delete_elem(&processes, &process);
    return 0;
}
