/* SPDX-License-Identifier: MIT */
/*
 * store.h - the layout of PID.rouse, the shared-memory file in which a process records its waits.
 *
 * Writers   the runtime: src/core/account.c (waits) and contest.c (locks); the interposer:
 *           preload/record/wait.c; both through ledger.h
 * Readers   the command rouse: rouse/store/ reads it while the process runs, from a copy, or after a SIGKILL;
 *           totals.c, in the same process
 * Path      PID.rouse, mode 0600, in $ROUSE_OBS_DIR or /dev/shm/rouse-UID, which must be the user's own with mode
 *           0700. In a PID namespace other than the initial one the name is PID-INODE.rouse.
 *
 *   0        struct rsi_store_head
 *   4,096    the directory: RSI_STORE_CHUNKS_MAX words; word n: the page at which chunk n begins; 0: not yet
 *   69,632   chunks of whole pages: struct rsi_store_chunk, then entries of one kind and size
 *
 * Numbers have the byte order of the machine (little-endian). Times are ticks of the CPU's time-stamp counter (the
 * head says how to convert them). Addresses are those of the process. Each word has one writer at a time, named
 * with its entry, and is written whole. Words that belong together are consistent only where that is said. Counters
 * only grow. A counter that was corrected on another worker than the one that counted can be "negative" there, so
 * readers add modulo 2^64.
 *
 * A reader may assume that the entries below chunk.used are valid. It must check the magic, the version, every
 * offset and size against the file, and every number against its range. RSI_STORE_BYTES_MAX limits the memory;
 * entries that do not fit are counted (lost_* in struct rsi_store_writer).
 *
 * Version: raised if a reader of the old version would misread the file. Entries may grow at their end without that
 * (chunk.entry_bytes is their size), and new kinds of chunks may be added: a reader skips kinds that it does not
 * know.
 */
#ifndef RSI_OBS_STORE_H
#define RSI_OBS_STORE_H

#include "base/base.h"

#define RSI_STORE_MAGIC UINT64_C(0x53424f4553554f52) /* "ROUSEOBS" */
#define RSI_STORE_VERSION 4u
#define RSI_STORE_DIRECTORY 4096u
#define RSI_STORE_CHUNKS_MAX 16384u
#define RSI_STORE_CHUNKS (RSI_STORE_DIRECTORY + 4 * RSI_STORE_CHUNKS_MAX)
#define RSI_STORE_BYTES_MAX ((size_t)256 << 20)
#define RSI_STORE_CHUNK_HEAD 256u
#define RSI_STORE_STAMPS 256u
#define RSI_STORE_INITIAL_PIDS UINT64_C(4026531836) /* the kernel's constant */

/* Written once by rsi_file_open, except where noted. */
struct rsi_store_head {
    uint64_t magic;
    uint32_t version;
    uint32_t machine; /* EM_X86_64 or EM_AARCH64, of <elf.h> */
    int32_t pid;
    uint32_t uid;
    /*
     * Start time of the process, field 22 of /proc/PID/stat: distinguishes processes that reuse a PID.
     */
    uint64_t start_ticks;
    uint64_t tsc, monotonic_ns, realtime_ns; /* one instant, when recording began */
    /*
     * A later instant; both together give the rate of the time-stamp counter. Written by the holder of tick_guard.
     */
    uint64_t tick_seq; /* odd: being written */
    uint64_t tick_tsc, tick_monotonic_ns;
    uint32_t tick_guard;
    uint32_t mode;        /* enum rouse_obs_mode; by the thread that sets it */
    uint32_t ended;       /* 1: the process exited normally; written at exit */
    uint32_t chunk_count; /* words of the directory in use; any thread adds */
    uint64_t page_count;  /* pages of the file in use; any thread adds */
    /*
     * Kinds of chunks that found no room, after which no more chunks of the kind are made. Any thread adds.
     */
    uint64_t lost_chunks;
    uint32_t site_depth; /* most frames of a site */
    uint32_t cpus;       /* that the process might use when recording began */
    uint8_t boot_id[16];
    char program[256]; /* /proc/self/exe, ended by 0 */
    char command[512]; /* words of /proc/self/cmdline, each ended by 0; truncated */
    char host[64];
    /*
     * CLOCK_MONOTONIC: until when `rouse record` requests events. 0: not requested. Written by `rouse record`.
     */
    uint64_t trace_until_ns;
    uint64_t lost_events; /* events that had no ring; any thread adds */
    /* Least ticks that RSI_STORE_STAMPS consecutive reads of the time-stamp counter took. Any thread writes it. */
    uint64_t stamps_ticks;
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid, the namespace of pid; 0: unknown */
    /* 1: the file has a lock of flock(2) for as long as its process has it mapped. */
    uint32_t is_locked;
    uint32_t recorder; /* enum rsi_store_recorder */
    /* Changes that the interposer made to the program; 0: none. */
    uint64_t slack_ns;     /* timer slack of its threads */
    uint64_t spin_ns;      /* longest spin on its default mutexes */
    uint64_t accept_order; /* accept order: 1 fifo, 2 lifo, 3 scatter */
    uint64_t scatter_ns;   /* longest delay before an accept */
    /* How often an object was initialized at a site that is not recorded. Any thread adds. */
    uint64_t lost_origins;
    uint64_t is_confined; /* 1: the process enabled seccomp, and was recorded until then */
    /* CPU time of the process, and the part of it in the kernel, written when it ends; 0: not known. */
    uint64_t cpu_ns, system_ns;
    /*
     * CLOCK_MONOTONIC: when `rouse run` last saw that the process ran, for a process that does not close its
     * recording. 0: it was not watched. Written by `rouse run`.
     */
    uint64_t alive_ns;
    uint64_t is_marked; /* 1: there are events MARK; any thread sets it */
    uint64_t
        is_sampled; /* 1: times of waits and states are estimates, in part; any thread sets it */
    /* Programs that this process ran before exec and whose files were kept, and what it had used by then. */
    uint64_t earlier_programs, earlier_cpu_ns, earlier_system_ns;
};
_Static_assert(sizeof(struct rsi_store_head) <= RSI_STORE_DIRECTORY, "the head is a page");

/* The library that writes the file. */
enum rsi_store_recorder {
    RSI_STORE_RUNTIME, /* librouse */
    RSI_STORE_PRELOAD, /* librouse-preload.so; the wakers of mutex waits are inferred */
};

enum rsi_store_kind {
    RSI_STORE_NONE,
    RSI_STORE_WRITERS, /* struct rsi_store_writer */
    RSI_STORE_THREADS, /* struct rsi_store_thread */
    RSI_STORE_WAKES,   /* struct rsi_store_wake */
    RSI_STORE_LOCKS,   /* struct rsi_store_lock */
    RSI_STORE_NAMES,   /* struct rsi_store_name */
    RSI_STORE_STACKS,  /* struct rsi_store_stack */
    RSI_STORE_MODULES, /* struct rsi_store_module */
    /* struct rsi_store_event: a ring, filled as `written` says; `used` is not used */
    RSI_STORE_EVENTS,
    RSI_STORE_LISTENERS, /* struct rsi_store_listener */
    RSI_STORE_GROUPS,    /* struct rsi_store_group */
};

/* The first RSI_STORE_CHUNK_HEAD bytes of a chunk. */
struct rsi_store_chunk {
    uint32_t kind;  /* enum rsi_store_kind */
    uint32_t bytes; /* size of the chunk, including this head */
    uint32_t entry_bytes;
    uint32_t capacity; /* entries */
    uint32_t used;     /* valid entries; release by the writer of the chunk */
    uint32_t writer;   /* its owner: index of a struct rsi_store_writer, counted over all chunks */
    /* For a ring: events so far. Event n is in entry n modulo capacity. Release. */
    uint64_t written;
};

/*
 * The states that a thread's time is split into: the microstates of prstat -m, with LCK and SLP split by the
 * reason. The kernel's states (SYS, TRP, TFL, DFL) are absent: the reader takes them from /proc, per kernel thread.
 */
enum rsi_micro {
    RSI_IN_USR,
    RSI_IN_LAT, /* runnable, but not running */
    RSI_IN_MUTEX,
    RSI_IN_RWLOCK,
    RSI_IN_COND,
    RSI_IN_SEM,
    RSI_IN_JOIN, /* also barrier and once */
    RSI_IN_IO,   /* read, write, connect, blocking calls on helper threads */
    RSI_IN_POLL, /* poll, select, set */
    RSI_IN_ACCEPT,
    RSI_IN_SLEEP,
    RSI_IN_COUNT
};

/* The current state of a thread; struct rsi_store_thread.doing. */
enum rsi_doing {
    RSI_DOES_NOTHING, /* the entry is free */
    RSI_DOES_RUN,     /* since run_tsc; the other words describe its latest wait */
    /* Since since_tsc. Woken if wake_tsc >= since_tsc, and then runnable since wake_tsc. */
    RSI_DOES_WAIT,
    RSI_DOES_QUEUE, /* runnable since since_tsc: it yielded or is new */
};

/*
 * One thread, or none (id 0): 256 bytes.
 *
 * Written by the thread itself while it runs, or by the worker that starts or stops running it. The words of the
 * wake-up are written by the thread that ended the wait. seq is odd while the thread's words change, so that a
 * reader can get a consistent copy.
 */
struct rsi_store_thread {
    uint32_t seq;
    uint16_t doing; /* enum rsi_doing */
    uint16_t kind;  /* enum rouse_wait_kind of the current or latest wait */
    uint64_t since_tsc;
    uint64_t run_tsc;
    uint64_t object;    /* lock, descriptor */
    uint64_t wait_site; /* a site; see RSI_SITE_STACK */
    uint64_t waits;     /* ended so far */
    uint32_t worker;    /* struct rsi_store_writer of the worker that runs or ran it */
    /* As contest_holder: the thread of this process that has the lock. 0: not known. */
    int32_t holder_tid;
    uint64_t begin_tsc;

    uint64_t wake_tsc; /* by the thread that ended the current or latest wait, with the next two */
    uint64_t wake_site;
    uint64_t waker_id;
    uint64_t id;       /* rouse_thread_id */
    uint64_t useless;  /* waits with the verdict lost-race, false or early */
    uint64_t yields;   /* rouse_thread_yield calls of a user thread */
    uint64_t accepted; /* connections */
    int32_t tid;       /* kernel and foreign threads, else 0 */
    uint16_t verdict;  /* enum rouse_verdict of the last wait */
    uint8_t origin;    /* 0 user, 1 kernel, 2 foreign */
    /* The current or latest wait is for clients: to connect, or to send on a connection that was accepted. */
    uint8_t is_for_clients;

    /* Time in each state of enum rsi_micro so far, except the current stay in a state. */
    uint64_t ticks[RSI_IN_COUNT];
    /* The thread that gives the name writes it, without a change of seq: it may be half written. */
    char name[24];
    /*
     * While it waits for a lock: when it arrived, which is before since_tsc if it was woken without acquiring the
     * lock, and the site where the holder acquired it. 0: none, or before recording began. Stale if it has not
     * slept since.
     */
    uint64_t contest_tsc, contest_holder;
};
_Static_assert(sizeof(struct rsi_store_thread) == 256, "four cache lines");

/*
 * A site is a code address (the return address of the call) or, with this bit set, the number of a struct
 * rsi_store_stack, counted over all chunks of them. 0: the runtime itself, or unknown.
 */
#define RSI_SITE_STACK (UINT64_C(1) << 63)

/*
 * Wake-ups by (kind, wait site, wake site, object), per writer: 192 bytes. object is 0 except for locks,
 * conditions, semaphores and barriers. Ticks are sums over the waits in count[].
 *
 * Counts are exact. A worker with very short turns times only some of its waits, at random, and multiplies their
 * times with the inverse of the chance that they had: then the ticks are estimates, and `sampled` is not 0
 * (src/core/sampling.h). The longest wait is then that of those that were timed. The same holds for struct
 * rsi_store_thread and rsi_store_group, whose states then need not add up to the thread's life; a reader scales them.
 */
struct rsi_store_wake {
    uint32_t kind; /* enum rouse_wait_kind */
    uint32_t name; /* number of a struct rsi_store_name + 1; 0: none */
    uint64_t wait_site;
    uint64_t wake_site;
    uint64_t object;
    /* By enum rouse_verdict. [0], none: wake-ups of waits that were not recorded completely. */
    uint64_t count[7];
    uint64_t wait_ticks, wait_most; /* from a wait's begin to its end */
    uint64_t late_ticks, late_most; /* from the end until the thread ran */
    uint64_t waste_ticks;           /* run time until the next wait, after lost-race and false */

    uint64_t sampled; /* waits whose times were multiplied; 0: every wait was timed */
    /* Of wait_ticks and late_ticks, from the sampling, in ticks squared; the bits of a double. */
    uint64_t wait_variance, late_variance;
    uint64_t spare[5];
};
_Static_assert(sizeof(struct rsi_store_wake) == 192, "three cache lines");

/* The states other than running of a thread that holds a lock. */
enum rsi_inside {
    RSI_INSIDE_LAT, /* as RSI_IN_LAT */
    RSI_INSIDE_LCK, /* waits for other threads: locks, conditions, semaphores, joins */
    RSI_INSIDE_IO,
    RSI_INSIDE_SLEEP,
    RSI_INSIDE_COUNT
};

/*
 * Locks by (acquisition site, lock, holder's acquisition site), per writer: 192 bytes.
 *
 * The row with holder_site 0 counts the acquisitions of a free lock: all of them where the mode records every
 * acquisition. Else the interposer takes some at random, and counts each with its weight, the inverse of the chance
 * that it had. So acquired, holds, hold_ticks and inside_ticks of such a row are estimates; `sampled` is how many
 * acquisitions they come from. Contended acquisitions are counted one by one.
 *
 * The thread that unlocks adds the hold to the row of the acquisition. A reader's hold is known if the same thread
 * locks and unlocks. A thread that locks for reading again while it holds a read lock is counted once.
 */
struct rsi_store_lock {
    uint32_t kind; /* enum rouse_wait_kind: mutex, read lock, write lock */
    uint32_t name;
    uint64_t site;
    uint64_t holder_site;
    uint64_t lock;
    uint64_t acquired; /* acquisitions, including contended ones */
    uint64_t holds;    /* completed holds, where hold times are recorded */
    uint64_t hold_ticks, hold_most;

    uint64_t contested;             /* acquisitions that found it held */
    uint64_t given_up;              /* of these: timed out or cancelled */
    uint64_t wait_ticks, wait_most; /* from arrival until acquired or given up, with spinning */
    uint64_t spin_ticks;            /* the part of wait_ticks spent spinning */
    uint64_t spun;                  /* acquisitions without sleeping, after spinning */
    /* The arrival of the first thread that found it held, and the end of the last such wait. 0: none. */
    uint64_t first_tsc, last_tsc;

    /* The part of hold_ticks in which the holder itself did not run, by enum rsi_inside. */
    uint64_t inside_ticks[RSI_INSIDE_COUNT];
    uint64_t sampled; /* acquisitions counted with a weight; 0: every acquisition is counted */
    /* Of hold_ticks, from the sampling, in ticks squared; the bits of a double. */
    uint64_t hold_variance;
    uint64_t spare[2];
};
_Static_assert(sizeof(struct rsi_store_lock) == 192 &&
                   offsetof(struct rsi_store_lock, contested) == 64,
               "three cache lines; a free acquisition uses only the first, if all are counted");

#define RSI_STORE_HERDS 16u
#define RSI_STORE_LATENESS 32u
#define RSI_STORE_WAIT_KINDS 24u
/* follow the kinds of enum rouse_wait_kind; written only by the interposer */
#define RSI_STORE_WAIT_FUTEX 17u
#define RSI_STORE_WAIT_CHILD 18u     /* for the end of a child process */
#define RSI_STORE_WAIT_FILE_LOCK 19u /* object is the number of the descriptor */
#define RSI_STORE_WAIT_SIGNAL 20u
#define RSI_STORE_WAIT_SET_OF_SEMS 21u /* System V's; object is its identifier */
#define RSI_STORE_WAIT_MESSAGE 22u /* to send or receive one; object is the number of its queue */
#define RSI_STORE_LOCK_SPIN \
    25u /* of locks only, since nobody sleeps for one; 24 is the reader's own */
#define RSI_STORE_WAIT_SYNC 23u /* until a file is on the disk; object is its descriptor */

/*
 * Counts of one kernel thread that runs rouse threads, or is one. That kernel thread writes it. After its end a
 * later kernel thread continues the entry.
 */
struct rsi_store_writer {
    uint32_t index;
    uint32_t is_worker; /* 1: a worker; 0: a kernel or foreign thread */
    uint32_t is_live;   /* 1: the kernel thread has not ended */
    int32_t tid;
    uint32_t worker; /* rouse_worker_index, if a worker */
    uint32_t cluster;
    uint64_t begin_tsc, end_tsc;
    uint64_t idle_since_tsc; /* 0: it is not idle */
    uint64_t idle_ticks;     /* time without a thread to run, except the current idle period */
    uint64_t idle_count;     /* how often it entered its idle loop */
    uint64_t switches;       /* threads that it began to run */
    uint64_t steals, stolen;
    /* Completed blocking calls by enum rouse_wait_kind; I/O and sleep only. */
    uint64_t calls[RSI_STORE_WAIT_KINDS];
    uint64_t signals_unheard; /* signals of a condition without waiters */
    uint64_t broadcasts_unheard;
    /* Broadcasts and similar calls by the number of threads woken at once: [n] 2^n and more. */
    uint64_t herds[RSI_STORE_HERDS];
    /* Timers by lateness: [n] 2^n ns and more; [0] also 0. */
    uint64_t lateness[RSI_STORE_LATENESS];
    uint64_t lateness_ns;      /* ns, all of them */
    uint64_t lateness_most_ns; /* ns */
    uint64_t ended;            /* threads that ended here */
    /* Sums of those of them that found no struct rsi_store_group. */
    uint64_t ended_waits, ended_useless, ended_yields, ended_accepted;
    uint64_t ended_ticks[RSI_IN_COUNT];
    /* Records lost for lack of room: */
    /* Threads without a slot, counted once each. Their activity is not counted, except switches. */
    uint64_t lost_threads;
    uint64_t lost_wakes;   /* wake-ups without an entry, including those of lost threads */
    uint64_t lost_locks;   /* acquisitions and given-up attempts without an entry */
    uint64_t lost_names;   /* entries whose object has a name that was not recorded */
    uint64_t lost_stacks;  /* sites reduced to an address, because their stack did not fit */
    uint64_t lost_modules; /* addresses whose file of code was not recorded */
    uint64_t lost_holds;   /* lock holds without an entry */
    uint64_t taken_tsc;    /* when the life of the present kernel thread begins here */
    /*
     * The kernel's figures of the kernel thread: when it was first recorded, and when the process ended. The latter are
     * valid if read_tid is tid.
     */
    uint64_t begin_cpu_ns, begin_queue_ns;
    uint64_t end_cpu_ns, end_queue_ns;
    uint64_t read_tsc; /* when the latter were read */
    int32_t read_tid;
    uint32_t has_queue; /* end_queue_ns is known */
    uint64_t groupless; /* threads that are in the ended_ sums */
    /*
     * Brief sleeps after which the thread slept again for the same time at the same site, without another wait or I/O
     * call in between, and with no lock held. Their time, and the last such site. Written only by the interposer.
     */
    uint64_t repeated_sleeps, repeated_ticks, repeated_site;
    /* Calls of sched_yield, and where some of them were, the last one of these. Written only by the interposer. */
    uint64_t yields, yield_site;
    uint64_t spare[2];
};

/* A writer or, for kernel threads, a process has at most as many groups; another one has is_rest. */
#define RSI_STORE_GROUPS_MAX 1024u

/*
 * Threads that have ended, by name: 192 bytes. A worker has its own groups, of user threads. The kernel threads of the
 * process share theirs, which belong to no writer (UINT32_MAX). A name may have several of these: its threads with waits
 * for locks, and for conditions or semaphores, apart from those without.
 */
struct rsi_store_group {
    char name[24];
    uint32_t is_user; /* user threads */
    uint32_t is_rest; /* threads whose names found no room; name is empty */
    uint64_t threads;
    uint64_t waits, useless, yields, accepted;
    uint64_t ticks[RSI_IN_COUNT];
    uint64_t wall_ticks; /* how long they lived */
    /* Of kernel threads, by the kernel: how long they ran, and were runnable but did not run. */
    uint64_t cpu_ns, queue_ns;
    uint64_t queueless; /* threads whose queue_ns was not known */
};
_Static_assert(sizeof(struct rsi_store_group) == 192, "three cache lines");

/*
 * Kinds of events, and the meaning of an event's words. A context switch is two events with one time stamp.
 *
 *                     thread                  site             value
 *     RUN             begins to run           -                -
 *     WAIT            stops running           wait site        object            kind
 *     YIELD           stops running, runnable -                -
 *     IDLE            - (no thread to run)    -                -
 *     WAKE            woken                   wake site, or 0  waker's id, or 0  kind, verdict
 *     IO              woken by the poller     -                object            kind
 *     VERDICT         was woken               -                -                 kind, verdict: the corrected verdict
 *     STEAL           -                       -                threads stolen
 *     LOCK            found a lock held       site             lock              kind; time of the arrival
 *     GOT             acquired or gave up     holder's site    ticks spun        kind, verdict; follows its LOCK
 *     NEW             was created             -                creator's id, or 0
 *     NAME            ends; its name          8 bytes          8 bytes           kind: which 16 bytes of the name
 *     END             ends                    -                -
 *     MARK            works on a request      where            the request's id  kind, verdict: its name; see below
 *     MARK_END        ends the request        where            the request's id  the same
 *
 * The number kind + 256 * verdict of a request's name is that of a struct rsi_store_name + 1.
 *
 * The interposer writes NEW when the thread is first recorded, then WAIT, WAKE and RUN of each wait together when the
 * wait ends, all into the ring of the thread that waited. WAKE is left out if no recorded thread ended the wait. A
 * wait under way is in the thread's slot alone. RUN has the verdict, and as its value when the thread was woken, or 0.
 */
enum rsi_event {
    RSI_EVENT_NONE,
    RSI_EVENT_RUN,
    RSI_EVENT_WAIT,
    RSI_EVENT_YIELD,
    RSI_EVENT_IDLE,
    RSI_EVENT_WAKE,
    RSI_EVENT_IO,
    RSI_EVENT_VERDICT,
    RSI_EVENT_STEAL,
    RSI_EVENT_LOCK,
    RSI_EVENT_GOT,
    RSI_EVENT_NEW,
    RSI_EVENT_NAME,
    RSI_EVENT_END,
    RSI_EVENT_MARK,
    RSI_EVENT_MARK_END,
    RSI_EVENT_COUNT
};

/*
 * One event: 32 bytes. Each writer has a ring of events, which are in order except LOCK, and NEW of the interposer.
 *
 * The newest events stay. Of the events that a reader has copied, those older than written - capacity + 1, with
 * `written` read after the copy, may have been overwritten meanwhile and are invalid. A reader that copies often
 * enough loses none; otherwise the event numbers show how many were lost.
 */
struct rsi_store_event {
    uint64_t tsc;
    /*
     * Bits: enum rsi_event from 0, kind from 8, verdict from 16, the thread's id from 24 (40 bits).
     */
    uint64_t what;
    uint64_t site;
    uint64_t value;
};
_Static_assert(sizeof(struct rsi_store_event) == 32, "two per cache line");

/*
 * Limit of the bytes of all rings. Events of a ring that found no room are counted in lost_events of the head.
 */
#define RSI_STORE_RINGS_MAX ((uint64_t)128 << 20)

/* One listener, per writer: 192 bytes. Written only by the interposer. */
struct rsi_store_listener {
    uint64_t cookie;   /* SO_COOKIE: the same in all processes that share the listener */
    uint64_t accepted; /* connections */
    uint64_t woken;    /* waits that ended because a connection was there */
    /*
     * Lost races: wake-ups inside waits whose connection another thread took before this one ran.
     */
    uint64_t in_vain;
    uint64_t lost; /* accepts that found none after poll reported a connection */
    uint64_t samples, backlog, backlog_most; /* connections left in the queue after an accept */
    /* Changes to the order of accepting: */
    uint64_t ordered;             /* accepted in turn */
    uint64_t turns;               /* passed to other threads */
    uint64_t promoted;            /* of these, to a thread that had been passed over too long */
    uint64_t overdue;             /* turns withdrawn because they were not used */
    uint64_t put_off;             /* accepts out of turn that were answered with EAGAIN */
    uint64_t delays, delay_ticks; /* delays before an accept */
    uint32_t is_tcp, spare32;
    char name[48];                /* its address, ended by 0; truncated */
    uint64_t first_tsc, last_tsc; /* connections */
};
_Static_assert(sizeof(struct rsi_store_listener) == 192, "three cache lines");

/*
 * The label of a lock or similar object: its name, or the site that initialized it. Written once.
 */
struct rsi_store_name {
    uint64_t key;  /* address of the text in the process; interposer: the site */
    char text[56]; /* ended by 0, truncated; interposer: empty */
};

/* A site of several frames, innermost first. Written once. */
struct rsi_store_stack {
    uint64_t hash;
    uint32_t depth, spare;
    uint64_t frames[8];
};

/* A file of code that contains a site. Written once. */
struct rsi_store_module {
    uint64_t start, end; /* address range of its mapping */
    uint64_t bias;       /* difference of its addresses from the file's */
    uint32_t build_id_bytes, spare;
    uint8_t build_id[32];
    char path[256];
};

#endif
