/* SPDX-License-Identifier: MIT */
/*
 * shared.h - what switches.bpf.c, in the kernel, leaves in its maps for rouse-kernel. The types are those of
 * vmlinux.h or of <linux/types.h>, whichever was included before. Times are ns of CLOCK_MONOTONIC.
 */
#ifndef RSI_KERNEL_SHARED_H
#define RSI_KERNEL_SHARED_H

#define RSI_KERNEL_NAME 16

/* What finds no room is counted, and told. All is made when the maps are: some 15 MB, and no more later. */
enum {
    RSI_KERNEL_PROCESSES = 1024, /* asked for; what they fork is not counted */
    RSI_KERNEL_THREADS = 16384,  /* alive at once; and as many that have ended */
    RSI_KERNEL_SLEEPS = 32768,   /* threads x system calls x wait sites x wakers */
    RSI_KERNEL_LOCKS = 8192,     /* locks x ways to them */
    RSI_KERNEL_STACKS = 2048,
    RSI_KERNEL_FRAMES = 16,
};

enum rsi_kernel_state {
    RSI_KERNEL_RUNS,
    RSI_KERNEL_SLEEPS_NOW,
    RSI_KERNEL_QUEUED,
    RSI_KERNEL_ENDED
};

/* What is known of a sleep from the wait that librouse-preload.so has recorded as under way. */
enum rsi_kernel_join {
    RSI_KERNEL_ALONE,   /* nothing records there */
    RSI_KERNEL_OUTSIDE, /* it is in no wait that is recorded */
    RSI_KERNEL_JOINED,  /* in the wait of that kind and site */
    RSI_KERNEL_RELOCK, /* the same, for a condition, and has been woken: it sleeps for the mutex again */
    RSI_KERNEL_UNREAD /* its memory could not be read */
};

/* Of one way to sleep, of one thread. Written by the processor that the thread is switched to: by one at a time. */
struct rsi_kernel_sleep_key {
    __u32 thread; /* its id */
    __u32 waker;  /* number of a kernel thread; 0: an interrupt, or nobody that was seen */
    __s32 call;   /* number of the system call; -1: none, as in a page fault */
    __u16 join, kind;
    __u64 site;
};

struct rsi_kernel_sleep {
    __u64 count;
    __u64 asleep_ns, asleep_most_ns; /* until it was woken */
    __u64 queued_ns, queued_most_ns; /* from then until it had a processor */
    char waker_name[RSI_KERNEL_NAME];
};

/* A lock of the kernel's own that was held on arrival, and how it was come to. */
struct rsi_kernel_lock_key {
    __u64 lock;
    __s32 stack; /* key of the stacks; < 0: it found no room */
    __u32 flags; /* LCB_F_... of the kernel's contention_begin */
};

struct rsi_kernel_lock {
    __u64 count, wait_ns, wait_most_ns;
};

/* While a thread waits for one; lock 0: it does not. */
struct rsi_kernel_contest {
    struct rsi_kernel_lock_key key;
    __u64 since_ns;
};

/*
 * A thread. The words of its wake-up are its waker's, the others of who switches it. A waker may come between the look
 * at the thread's state and the switch away: then woken_ns is before since_ns, and the thread has not slept at all.
 */
struct rsi_kernel_thread {
    __u32 id; /* counted from 1; numbers of the kernel are used again */
    __u32 tid, tgid;
    __u32 state; /* enum rsi_kernel_state */
    __u64 first_ns, since_ns;
    __u64 voluntary, involuntary;
    __u64 cpu_ns;
    __u64 queued_ns, queued_most_ns; /* after an involuntary switch, or when it was new */
    struct rsi_kernel_sleep_key key; /* of its last sleep; its waker is not known yet */

    /* Its own: one for which it sleeps, and one for which it spins, perhaps on the way to the other. */
    struct rsi_kernel_contest contests[2];

    __u64 woken_ns;
    __u32 waker, spare;
    char waker_name[RSI_KERNEL_NAME];

    char name[RSI_KERNEL_NAME];
};

/* preload/record/kernel_join.c, as the process has it. */
struct rsi_kernel_recorder_words {
    __u32 slot, doing, kind, object, wait_site;
    __u32 does_wait, condition;
};

/* How to read the slots of a process: by its number. */
struct rsi_kernel_recorder {
    __u64 party; /* its distance from the thread's own pointer */
    struct rsi_kernel_recorder_words words;
    __u32 spare;
};

/* What a number in the map of processes asks for. */
enum rsi_kernel_wanted {
    RSI_KERNEL_PROCESS, /* of a process: its threads */
    RSI_KERNEL_CHILD    /* of a thread: the next process that it makes */
};

enum rsi_kernel_lost {
    RSI_KERNEL_LOST_THREADS,
    RSI_KERNEL_LOST_SLEEPS,
    RSI_KERNEL_LOST_RECORDERS,
    RSI_KERNEL_LOST_LOCKS,
    RSI_KERNEL_LOST_KINDS
};

#endif
