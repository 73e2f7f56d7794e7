/* SPDX-License-Identifier: MIT */
/*
 * vmlinux.h - the members of the kernel's structures that the BPF programs here read. libbpf finds their offsets in the
 * running kernel's BTF when it loads the programs. A generated header would be 3 MB and describe one kernel only.
 */
#ifndef RSI_KERNEL_VMLINUX_H
#define RSI_KERNEL_VMLINUX_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef signed char __s8;
typedef short __s16;
typedef int __s32;
typedef long long __s64;
typedef _Bool bool;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;

enum { false, true };
enum { BPF_ANY = 0, BPF_NOEXIST = 1 };
enum {
    BPF_MAP_TYPE_HASH = 1,
    BPF_MAP_TYPE_ARRAY = 2,
    BPF_MAP_TYPE_PERCPU_ARRAY = 6,
    BPF_MAP_TYPE_STACK_TRACE = 7,
    BPF_MAP_TYPE_RINGBUF = 27
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

/* Of the thread's own pointer, to its thread-local memory. */
struct thread_struct {
#if defined(__TARGET_ARCH_x86)
    unsigned long fsbase;
#else
    struct {
        unsigned long tp_value;
    } uw;
#endif
};

/* The program's own code, without its libraries. */
struct mm_struct {
    unsigned long start_code, end_code;
};

struct ns_common {
    unsigned int inum;
};
struct pid_namespace {
    struct ns_common ns;
};

/* A task's number in one PID namespace. */
struct upid {
    int nr;
    struct pid_namespace *ns;
};

/* A task's numbers, from the initial namespace to its own. */
struct pid {
    unsigned int level;
    struct upid numbers[1];
};

struct task_struct {
    int pid; /* of the thread, in the initial namespace; tgid: of the process */
    int tgid;
    struct task_struct *group_leader;
    struct pid *thread_pid; /* NULL: the task has been released */
    char comm[16];
    unsigned int __state;
    unsigned int flags;
    void *stack;
    struct mm_struct *mm;
    struct thread_struct thread;
};

/* On its thread's kernel stack: the registers of the program. */
struct pt_regs {
#if defined(__TARGET_ARCH_x86)
    unsigned long di, si; /* the first two arguments, of calls of the kernel and of functions */
    unsigned long orig_ax;
    unsigned long ip, sp, bp;
#else
    unsigned long regs[31];
    unsigned long sp, pc;
    unsigned long orig_x0;
    int syscallno;
#endif
};

struct linux_binprm;

struct bpf_iter_meta {
    void *seq;
};
struct bpf_iter__task {
    struct bpf_iter_meta *meta;
    struct task_struct *task;
};

#pragma clang attribute pop

#endif
