/* SPDX-License-Identifier: MIT */
/*
 * shared.h - what switches.bpf.c, in the kernel, leaves in its maps for rouse-kernel. The types are those of
 * vmlinux.h or of <linux/types.h>, whichever was included before. Times are ns of CLOCK_MONOTONIC.
 */
#ifndef RSI_KERNEL_SHARED_H
#define RSI_KERNEL_SHARED_H

#define RSI_BPF_NAME 16

/* What finds no room is counted, and told. All is made when the maps are: some 15 MB, and no more later. */
enum {
    RSI_BPF_PROCESSES = 1024, /* asked for; what they fork is not counted */
    RSI_BPF_THREADS = 16384,  /* alive at once; and as many that have ended */
    RSI_BPF_SLEEPS = 32768,   /* threads x system calls x wait sites x wakers */
    RSI_BPF_LOCKS = 8192,     /* locks x ways to them */
    RSI_BPF_STACKS = 2048,
    RSI_BPF_FRAMES = 16,
};

enum rsi_bpf_state { RSI_BPF_RUNS, RSI_BPF_SLEEPS_NOW, RSI_BPF_QUEUED, RSI_BPF_ENDED };

/* What is known of a sleep from the wait that librouse-preload.so has recorded as under way. */
enum rsi_bpf_join {
    RSI_BPF_ALONE,   /* nothing records there */
    RSI_BPF_OUTSIDE, /* it is in no wait that is recorded */
    RSI_BPF_JOINED,  /* in the wait of that kind and site */
    RSI_BPF_RELOCK, /* the same, for a condition, and has been woken: it sleeps for the mutex again */
    RSI_BPF_UNREAD /* its memory could not be read */
};

/* Of one way to sleep, of one thread. Written by the processor that the thread is switched to: by one at a time. */
struct rsi_bpf_sleep_key {
    __u32 thread; /* its id */
    __u32 waker;  /* number of a kernel thread; 0: an interrupt, or nobody that was seen */
    __s32 call;   /* number of the system call; -1: none, as in a page fault */
    __u16 join, kind;
    __u64 site;
};

struct rsi_bpf_sleep {
    __u64 count;
    __u64 asleep_ns, asleep_most_ns; /* until it was woken */
    __u64 queued_ns, queued_most_ns; /* from then until it had a processor */
    char waker_name[RSI_BPF_NAME];
};

/* A lock of the kernel's own that was held on arrival, and how it was come to. */
struct rsi_bpf_lock_key {
    __u64 lock;
    __s32 stack; /* key of the stacks; < 0: it found no room */
    __u32 flags; /* LCB_F_... of the kernel's contention_begin */
};

struct rsi_bpf_lock {
    __u64 count, wait_ns, wait_most_ns;
};

/* While a thread waits for one; lock 0: it does not. */
struct rsi_bpf_contest {
    struct rsi_bpf_lock_key key;
    __u64 since_ns;
};

/*
 * A thread. The words of its wake-up are its waker's, the others of who switches it. A waker may come between the look
 * at the thread's state and the switch away: then woken_ns is before since_ns, and the thread has not slept at all.
 */
struct rsi_bpf_thread {
    __u32 id; /* counted from 1; numbers of the kernel are used again */
    __u32 tid, tgid;
    __u32 state; /* enum rsi_bpf_state */
    __u64 first_ns, since_ns;
    __u64 voluntary, involuntary;
    __u64 cpu_ns;
    __u64 queued_ns, queued_most_ns; /* after an involuntary switch, or when it was new */
    struct rsi_bpf_sleep_key key;    /* of its last sleep; its waker is not known yet */

    /* Its own: one for which it sleeps, and one for which it spins, perhaps on the way to the other. */
    struct rsi_bpf_contest contests[2];

    __u64 woken_ns;
    __u32 waker, spare;
    char waker_name[RSI_BPF_NAME];

    char name[RSI_BPF_NAME];
};

/* preload/record/kernel_join.c, as the process has it. */
struct rsi_bpf_recorder_words {
    __u32 slot, doing, kind, object, wait_site;
    __u32 does_wait, condition;
};

/* How to read the slots of a process: by its number. */
struct rsi_bpf_recorder {
    __u64 party; /* its distance from the thread's own pointer */
    struct rsi_bpf_recorder_words words;
    __u32 spare;
};

/* What a number in the map of processes asks for. */
enum rsi_bpf_wanted {
    RSI_BPF_PROCESS, /* of a process: its threads */
    RSI_BPF_CHILD    /* of a thread: the next process that it makes */
};

enum rsi_bpf_lost {
    RSI_BPF_LOST_THREADS,
    RSI_BPF_LOST_SLEEPS,
    RSI_BPF_LOST_RECORDERS,
    RSI_BPF_LOST_LOCKS,
    RSI_BPF_LOST_KINDS
};

#endif
