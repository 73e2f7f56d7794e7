/* SPDX-License-Identifier: MIT */
/*
 * shared.h - the contents of the BPF maps that switches.bpf.c fills and rouse-kernel reads. The types
 * are those of vmlinux.h or of <linux/types.h>, whichever was included before. Times are ns of
 * CLOCK_MONOTONIC.
 */
#ifndef RSI_KERNEL_SHARED_H
#define RSI_KERNEL_SHARED_H

#define RSI_BPF_NAME 16

/*
 * Limits. Entries for which there is no room are counted and reported. All memory, some 15 MB, is allocated
 * when the maps are created.
 */
enum {
    RSI_BPF_PROCESSES = 1024, /* requested ones; processes that they fork do not count */
    RSI_BPF_THREADS = 16384,  /* alive at once; and the same number of ended ones */
    RSI_BPF_SLEEPS = 32768,   /* threads x system calls x wait sites x wakers */
    RSI_BPF_LOCKS = 8192,     /* locks x ways to them */
    RSI_BPF_STACKS = 2048,
    RSI_BPF_FRAMES = 16,
    RSI_BPF_PLACES = 4096, /* call paths of programs, each with a copy of its stack: 17 MB more */
    RSI_BPF_STACK_BYTES = 4096, /* of that copy */
    RSI_BPF_STACK_CHUNK = 512,  /* the copy ends where one of these cannot be read */
    RSI_BPF_NEWS_BYTES = 4096,  /* as long as nobody reads, one of them wakes the reader */
    RSI_BPF_HASH_WORDS = 64,    /* of the stack, that distinguish call paths */
};

enum rsi_bpf_state { RSI_BPF_RUNS, RSI_BPF_SLEEPS_NOW, RSI_BPF_QUEUED, RSI_BPF_ENDED };

/* The relation of a sleep to the current wait that librouse-preload.so has recorded. */
enum rsi_bpf_join {
    RSI_BPF_ALONE,   /* the process is not recorded */
    RSI_BPF_OUTSIDE, /* it is in no recorded wait */
    RSI_BPF_JOINED,  /* it is in the wait of this kind and site */
    RSI_BPF_RELOCK,  /* the same, for a condition; it was woken and now sleeps for the mutex */
    RSI_BPF_UNREAD   /* its memory could not be read */
};

/*
 * A call path of a program to a system call: where a thread slept, or woke another. Threads of one process
 * share a path if they are in the same instruction, at the same depth of their stacks, and the last words of
 * the stack have the same addresses of the program's code.
 */
struct rsi_bpf_place_key {
    __u32 tgid, spare;
    __u64 program; /* where its code begins: another place after it has executed another program */
    __u64 ip, depth, hash;
};

/* The registers and the stack, as they were when the path was first seen. */
struct rsi_bpf_place {
    __u32 id; /* counted from 1 */
    __u32 bytes;
    __u64 sp, bp, link; /* link: the register with the return address; 0: there is none */
    unsigned char stack[RSI_BPF_STACK_BYTES];
};

/*
 * One kind of sleep of one thread. The processor that the thread is switched to writes it, so only one at a
 * time.
 */
struct rsi_bpf_sleep_key {
    __u32 thread; /* its id */
    __u32 waker;  /* number of a kernel thread; 0: an interrupt, or unknown */
    __s32 call;   /* number of the system call; -1: none, for example a page fault */
    __u16 join, kind;
    __u64 site;
    __u64 object;             /* the address of the futex; 0: another call */
    __u32 place, waker_place; /* ids of call paths; 0: unknown */
};

struct rsi_bpf_sleep {
    __u64 count;
    __u64 asleep_ns, asleep_most_ns; /* until it was woken */
    __u64 queued_ns, queued_most_ns; /* from then until it had a processor */
    char waker_name[RSI_BPF_NAME];
};

/* A lock inside the kernel that was held on arrival, and the path to it. */
struct rsi_bpf_lock_key {
    __u64 lock;
    __s32 stack; /* key of its stack; < 0: there was no room */
    __u32 flags; /* LCB_F_... of the kernel's contention_begin */
};

struct rsi_bpf_lock {
    __u64 count, wait_ns, wait_most_ns;
};

/* A thread's current wait for such a lock. lock 0: none. */
struct rsi_bpf_contest {
    struct rsi_bpf_lock_key key;
    __u64 since_ns;
};

/*
 * A thread. Its waker writes the words of the wake-up; the processor that switches the thread writes the
 * others. A waker may come between the check of the thread's state and the switch away. Then woken_ns is
 * before since_ns, and the thread has not slept at all.
 */
struct rsi_bpf_thread {
    __u32 id; /* counted from 1, because the kernel reuses its numbers */
    __u32 tid, tgid;
    __u32 state; /* enum rsi_bpf_state */
    __u64 first_ns, since_ns;
    __u64 voluntary, involuntary;
    __u64 cpu_ns;
    __u64 queued_ns, queued_most_ns; /* after an involuntary switch, or when it was new */
    struct rsi_bpf_sleep_key key;    /* of its last sleep; its waker is still unknown */

    /*
     * Written by the thread itself: one lock for which it sleeps, and one for which it spins, perhaps on the
     * way to the first.
     */
    struct rsi_bpf_contest contests[2];

    __u64 woken_ns;
    __u32 waker, waker_place;
    char waker_name[RSI_BPF_NAME];

    char name[RSI_BPF_NAME];
};

/* As preload/record/kernel_join.c stores them in the process. */
struct rsi_bpf_recorder_words {
    __u32 slot, doing, kind, object, wait_site;
    __u32 does_wait, condition;
};

/* How to read the slots of a process, by process number. */
struct rsi_bpf_recorder {
    __u64 party; /* its offset from the thread pointer */
    struct rsi_bpf_recorder_words words;
    __u32 spare;
};

/* The meaning of a number in the map of processes. */
enum rsi_bpf_wanted {
    RSI_BPF_PROCESS, /* a process: watch its threads */
    RSI_BPF_CHILD    /* a thread: watch the next process that it creates */
};

enum rsi_bpf_lost {
    RSI_BPF_LOST_THREADS,
    RSI_BPF_LOST_SLEEPS,
    RSI_BPF_LOST_RECORDERS,
    RSI_BPF_LOST_LOCKS,
    RSI_BPF_LOST_PLACES,
    RSI_BPF_LOST_KINDS
};

/* Counts of a thread by counts.bpf.c, from when its process is counted on. */
struct rsi_bpf_counts {
    __u32 tid, tgid; /* by the reader's numbers */
    __u64 calls, signals;
};

#endif
