/* SPDX-License-Identifier: MIT */
/* namespace.bpf.h - numbers of tasks as the reader of a BPF program sees them. Included after vmlinux.h. */
#ifndef RSI_KERNEL_NAMESPACE_BPF_H
#define RSI_KERNEL_NAMESPACE_BPF_H

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define LEVELS_MOST 33u /* of namespaces: the initial one and MAX_PID_NS_LEVEL of the kernel */

/*
 * The inode of the PID namespace whose numbers the reader uses. 0: those of the initial one, which are also the keys of
 * the maps here.
 */
const volatile __u32 pid_namespace = 0;

/* The number of a task for the reader. 0: it is in another namespace, or has been released. */
static __always_inline __u32 number_of(struct task_struct *task)
{
    if (pid_namespace == 0)
        return (__u32)task->pid;
    struct pid *pid = task->thread_pid;
    if (!pid)
        return 0;
    __u32 level = BPF_CORE_READ(pid, level);
    const char *numbers = (const char *)__builtin_preserve_access_index(&pid->numbers[0]);
    for (__u32 i = 0; i < LEVELS_MOST && i <= level; i++) {
        struct upid number;
        if (bpf_probe_read_kernel(&number, sizeof(number), numbers + i * sizeof(number)) == 0 &&
            BPF_CORE_READ(number.ns, ns.inum) == pid_namespace)
            return (__u32)number.nr;
    }
    return 0;
}

static __always_inline __u32 process_of(struct task_struct *task)
{
    return pid_namespace == 0 ? (__u32)task->tgid : number_of(task->group_leader);
}

#endif
