/* SPDX-License-Identifier: MIT */
/*
 * store.h - the shared file in which a process keeps what it records, as it lies in memory. The runtime writes
 * it; so does the interposer; `rouse` reads it while they run, from a copy, or after a SIGKILL. It has one place:
 * $ROUSE_OBS_DIR, or /dev/shm/rouse-UID, mode 0700 and the user's own; PID.rouse in it, mode 0600. Numbers of
 * processes are of a PID namespace: in others than the initial one the name is PID-INODE.rouse.
 *
 *   0        struct rsi_store_head
 *   4,096    the directory: RSI_STORE_CHUNKS_MAX words; word n: where chunk n begins, in pages; 0: not yet
 *   69,632   chunks, each of whole pages: struct rsi_store_chunk, then entries of one kind and size
 *
 * Numbers are of the machine's own byte order (little), times are ticks of the CPU's time stamp (head: how to
 * convert them), addresses are the process's. A word has one writer at a time, named with its entry, and is
 * written whole; words that belong together are of one moment only where that is said. Counters only grow; one
 * that was corrected on another worker than it was counted on can be "negative" there: sum modulo 2^64.
 *
 * A reader takes for granted: what chunk.used says is there. It checks: magic, version, every offset and size
 * against the file, every number against its range. Memory is bounded by RSI_STORE_BYTES_MAX; what does not fit is
 * counted (struct rsi_store_writer, lost_*).
 *
 * Version: raised when a reader of the old one would misread. Entries may grow at their end without that
 * (chunk.entry_bytes says their size), and kinds of chunks may be added: a reader skips what it does not know.
 */
#ifndef RSI_OBS_STORE_H
#define RSI_OBS_STORE_H

#include "base/base.h"

#define RSI_STORE_MAGIC UINT64_C(0x53424f4553554f52) /* "ROUSEOBS" */
#define RSI_STORE_VERSION 1u
#define RSI_STORE_DIRECTORY 4096u
#define RSI_STORE_CHUNKS_MAX 16384u
#define RSI_STORE_CHUNKS (RSI_STORE_DIRECTORY + 4 * RSI_STORE_CHUNKS_MAX)
#define RSI_STORE_BYTES_MAX ((size_t)256 << 20)
#define RSI_STORE_CHUNK_HEAD 256u
#define RSI_STORE_STAMPS 256u
#define RSI_STORE_INITIAL_PIDS UINT64_C(4026531836) /* the kernel's constant */

/* Written once by rsi_store_open, but for what is said otherwise. */
struct rsi_store_head {
    uint64_t magic;
    uint32_t version;
    uint32_t machine; /* EM_X86_64 or EM_AARCH64, of <elf.h> */
    int32_t pid;
    uint32_t uid;
    uint64_t
        start_ticks; /* of the process, field 22 of /proc/PID/stat: tells it from another with its number */
    uint64_t tsc, monotonic_ns, realtime_ns; /* one moment, when recording began */
    /* Another moment: what lies between tells how fast the time stamp runs. By whoever has tick_guard. */
    uint64_t tick_seq; /* odd: being written */
    uint64_t tick_tsc, tick_monotonic_ns;
    uint32_t tick_guard;
    uint32_t mode;        /* enum rouse_obs_mode; by whoever sets it */
    uint32_t ended;       /* 1: the process ended in good order; by whoever ends it */
    uint32_t chunk_count; /* words of the directory in use; any thread adds */
    uint64_t page_count;  /* of the file, in use; any thread adds */
    uint64_t
        lost_chunks; /* kinds of chunks of which one found no room, and no other after it; any thread adds */
    uint32_t site_depth; /* frames that a site has at most */
    uint32_t spare;
    uint8_t boot_id[16];
    char program[256]; /* /proc/self/exe, ended by 0 */
    char command[512]; /* words of /proc/self/cmdline, each ended by 0, cut to size */
    char host[64];
    uint64_t
        trace_until_ns; /* CLOCK_MONOTONIC: events are asked for until then; 0: not. By `rouse record` */
    uint64_t lost_events; /* that had no ring to go to; any thread adds */
    uint64_t
        stamps_ticks; /* RSI_STORE_STAMPS time stamps, one after the other, took so many ticks */
    uint64_t pid_namespace; /* inode of /proc/self/ns/pid, which pid is of; 0: not known */
    uint32_t
        is_locked; /* 1: a lock of flock(2) lies on the file for as long as its process has it mapped */
    uint32_t recorder; /* enum rsi_store_recorder */
    /* What the interposer has changed in the program; 0: nothing. */
    uint64_t slack_ns;     /* of the timers of its threads */
    uint64_t spin_ns;      /* that its plain mutexes are spun for, at most */
    uint64_t accept_order; /* of who waits for a listener: 1 fifo, 2 lifo, 3 scatter */
    uint64_t scatter_ns;   /* at most, before an accept */
    uint64_t
        lost_origins; /* times that something was initialised at a place that is not kept; any thread raises */
    uint64_t is_confined; /* 1: it asked for seccomp, and was recorded until then */
};
_Static_assert(sizeof(struct rsi_store_head) <= RSI_STORE_DIRECTORY, "the head is a page");

/* Who writes it. */
enum rsi_store_recorder {
    RSI_STORE_RUNTIME, /* librouse */
    RSI_STORE_PRELOAD, /* librouse-preload.so: wakers of waits for a mutex are inferred */
};

enum rsi_store_kind {
    RSI_STORE_NONE,
    RSI_STORE_WRITERS,   /* struct rsi_store_writer */
    RSI_STORE_THREADS,   /* struct rsi_store_thread */
    RSI_STORE_WAKES,     /* struct rsi_store_wake */
    RSI_STORE_LOCKS,     /* struct rsi_store_lock */
    RSI_STORE_NAMES,     /* struct rsi_store_name */
    RSI_STORE_STACKS,    /* struct rsi_store_stack */
    RSI_STORE_MODULES,   /* struct rsi_store_module */
    RSI_STORE_EVENTS,    /* struct rsi_store_event: a ring, of which written tells and not used */
    RSI_STORE_LISTENERS, /* struct rsi_store_listener */
};

/* The first RSI_STORE_CHUNK_HEAD bytes of a chunk. */
struct rsi_store_chunk {
    uint32_t kind;  /* enum rsi_store_kind */
    uint32_t bytes; /* of the chunk, this head included */
    uint32_t entry_bytes;
    uint32_t capacity; /* entries */
    uint32_t used;     /* entries that are valid: release by the writer of the chunk */
    uint32_t writer; /* whose it is: index of its struct rsi_store_writer, in all chunks of them */
    uint64_t
        written; /* of a ring: events so far; event n lies in entry n modulo capacity; release */
};

/*
 * Where a thread's time goes. The states of prstat -m, LCK and SLP split by what was waited for. Those of the
 * kernel (SYS, TRP, TFL, DFL) are not here: the reader asks the kernel about kernel threads.
 */
enum rsi_micro {
    RSI_IN_USR,
    RSI_IN_LAT, /* could run, and did not */
    RSI_IN_MUTEX,
    RSI_IN_RWLOCK,
    RSI_IN_COND,
    RSI_IN_SEM,
    RSI_IN_JOIN, /* and barrier, once */
    RSI_IN_IO,   /* read, write, connect, a blocking call on a helper */
    RSI_IN_POLL, /* poll, select, set */
    RSI_IN_ACCEPT,
    RSI_IN_SLEEP,
    RSI_IN_COUNT
};

/* What a thread is at this moment; struct rsi_store_thread.doing. */
enum rsi_doing {
    RSI_DOES_NOTHING, /* the entry is free */
    RSI_DOES_RUN,     /* since run_tsc; its last wait is in the words beside */
    RSI_DOES_WAIT, /* since since_tsc; woken if wake_tsc >= since_tsc, and then runnable since wake_tsc */
    RSI_DOES_QUEUE, /* runnable since since_tsc, by a yield or because it is new */
};

/*
 * A thread, or none (id 0): 256 bytes. Writer: the thread itself while it runs, or the worker that takes it
 * on or off its CPU; the words of the wake-up: whoever ended the wait. seq is odd while the thread's words
 * change, so that a reader can get them all of one moment.
 */
struct rsi_store_thread {
    uint32_t seq;
    uint16_t doing; /* enum rsi_doing */
    uint16_t kind;  /* enum rouse_wait_kind: of the present wait or the last */
    uint64_t since_tsc;
    uint64_t run_tsc;
    uint64_t object;    /* lock, descriptor */
    uint64_t wait_site; /* a site: see struct rsi_store_stack */
    uint64_t waits;     /* ended so far */
    uint32_t worker;    /* index of its struct rsi_store_writer: where it runs or ran last */
    uint32_t verdict;   /* enum rouse_verdict of the last wait */
    uint64_t begin_tsc;

    uint64_t wake_tsc; /* by whoever ended the present wait or the last, as the next two */
    uint64_t wake_site;
    uint64_t waker_id;
    uint64_t id;       /* rouse_thread_id */
    uint64_t useless;  /* waits that ended in vain: lost-race, false, early */
    uint64_t yields;   /* times it let others go first */
    uint64_t accepted; /* connections */
    int32_t tid;       /* kernel and foreign threads, else 0 */
    uint32_t origin;   /* 0 user, 1 kernel, 2 foreign */

    uint64_t ticks
        [RSI_IN_COUNT]; /* time spent so far, by enum rsi_micro, the present state not counted in */
    char name[24];
    /*
     * While it waits for a lock: since it came, which is before since_tsc if it was woken in vain meanwhile, and
     * where the holder had got it. 0: none, or from before recording began. Stale while it has not slept since.
     */
    uint64_t contest_tsc, contest_holder;
};
_Static_assert(sizeof(struct rsi_store_thread) == 256, "four lines");

/*
 * A site is an address of code (the return address of the call), or, with this bit, the number of a struct
 * rsi_store_stack, counted over all chunks of them. 0: the runtime itself, or not known.
 */
#define RSI_SITE_STACK (UINT64_C(1) << 63)

/*
 * Wake-ups by (kind, wait site, wake site, object), each writer its own: 128 bytes. object is 0 but for locks,
 * conditions, semaphores and barriers. Ticks are of the waits counted in count[].
 */
struct rsi_store_wake {
    uint32_t kind; /* enum rouse_wait_kind */
    uint32_t name; /* number of a struct rsi_store_name + 1; 0: none */
    uint64_t wait_site;
    uint64_t wake_site;
    uint64_t object;
    uint64_t count
        [7]; /* by enum rouse_verdict; [0], none: whatever left its stack and was not recorded whole */
    uint64_t wait_ticks, wait_most; /* from the wait's begin to its end */
    uint64_t late_ticks, late_most; /* from its end until the thread ran */
    uint64_t waste_ticks;           /* run until the next wait after a lost-race or false one */
};
_Static_assert(sizeof(struct rsi_store_wake) == 128, "two lines");

/*
 * Locks by (acquisition site, lock, holder's acquisition site), each writer its own: 128 bytes. Contested ones
 * only, unless every acquisition is recorded (mode); the row with holder_site 0 then has those that were free.
 * A hold is counted where its acquisition was, by whoever unlocks. A reader's hold is known if the thread that
 * unlocks is the one that locked; a thread that locks for reading again while it reads is counted once.
 */
struct rsi_store_lock {
    uint32_t kind; /* enum rouse_wait_kind: mutex, read lock, write lock */
    uint32_t name;
    uint64_t site;
    uint64_t holder_site;
    uint64_t lock;
    uint64_t acquired; /* times that it was got, contested ones included */
    uint64_t holds;    /* times it was held to the end, where hold times are recorded */
    uint64_t hold_ticks, hold_most;

    uint64_t contested; /* times that it was held on arrival */
    uint64_t given_up;  /* of these: time-outs, cancelled */
    uint64_t wait_ticks,
        wait_most;       /* from the arrival until it was got or given up, spinning included */
    uint64_t spin_ticks; /* of wait_ticks */
    uint64_t spun;       /* times that spinning was enough */
    uint64_t spare[2];
};
_Static_assert(sizeof(struct rsi_store_lock) == 128 &&
                   offsetof(struct rsi_store_lock, contested) == 64,
               "two lines, the first is all that a lock which was free needs");

#define RSI_STORE_HERDS 16u
#define RSI_STORE_LATENESS 32u
#define RSI_STORE_WAIT_KINDS 24u
#define RSI_STORE_WAIT_FUTEX 17u /* after those of enum rouse_wait_kind: of the interposer alone */

/*
 * What one kernel thread that runs rouse threads, or is one, has counted. Writer: that kernel thread; a later
 * one goes on with the entry of one that has ended.
 */
struct rsi_store_writer {
    uint32_t index;
    uint32_t is_worker; /* 1: a worker; 0: a kernel or foreign thread */
    uint32_t is_live;   /* it has not ended */
    int32_t tid;
    uint32_t worker; /* rouse_worker_index, of a worker */
    uint32_t cluster;
    uint64_t begin_tsc, end_tsc;
    uint64_t idle_since_tsc; /* 0: it is not idle */
    uint64_t idle_ticks;     /* without a thread to run, the present spell not counted in */
    uint64_t idle_count;     /* times it went to its idle loop */
    uint64_t switches;       /* threads put on the CPU */
    uint64_t steals, stolen;
    uint64_t calls
        [RSI_STORE_WAIT_KINDS]; /* blocking calls that completed, by enum rouse_wait_kind; I/O and sleep */
    uint64_t signals_unheard; /* signals of a condition that nobody waited for */
    uint64_t broadcasts_unheard;
    uint64_t herds
        [RSI_STORE_HERDS]; /* broadcasts and the like by the threads woken at once: [n] 2^n and more */
    uint64_t lateness
        [RSI_STORE_LATENESS]; /* timers by how late they were fired: [n] 2^n ns and more; [0] also 0 */
    uint64_t lateness_ns;     /* ns, all of them */
    uint64_t lateness_most_ns; /* ns */
    /* Of threads that have ended here: */
    uint64_t ended, ended_waits, ended_useless, ended_yields, ended_accepted;
    uint64_t ended_ticks[RSI_IN_COUNT];
    /* What did not fit, and how often: */
    uint64_t
        lost_threads; /* that have no slot, each once; what they do is not counted, but for switches */
    uint64_t lost_wakes;   /* wake-ups that no entry counts, those of lost threads too */
    uint64_t lost_locks;   /* times that a lock was got, or given up, that no entry counts */
    uint64_t lost_names;   /* entries whose object has a name, and that have none */
    uint64_t lost_stacks;  /* sites that are an address, for want of room for their stack */
    uint64_t lost_modules; /* addresses met whose file of code is not noted */
    uint64_t lost_holds;   /* holds of locks that no entry counts */
    uint64_t spare[15];
};

/*
 * What an event is of, and what its words are. A switch is two, of one time stamp.
 *
 *                     thread                  site             value
 *     RUN             is put on the CPU       -                -
 *     WAIT            leaves it               wait site        object            kind
 *     YIELD           leaves it, runnable     -                -
 *     IDLE            - (nobody has it)       -                -
 *     WAKE            woken                   wake site, or 0  waker's id, or 0  kind, verdict
 *     IO              woken by the poller     -                object            kind
 *     VERDICT         that woke               -                -                 kind, verdict: what it was after all
 *     STEAL           -                       -                threads taken
 *     LOCK            found a lock held       site             lock              kind; of the time it came
 *     GOT             has it, or gave up      holder's site    ticks spun        kind, verdict; follows its LOCK
 *     NEW             was made                -                maker's id, or 0
 *     NAME            ends, and was called    8 bytes          8 bytes           kind: which 16 bytes of the name
 *     END             ends                    -                -
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
    RSI_EVENT_COUNT
};

/*
 * An event: 32 bytes. Each writer has a ring of them, and events of one are in order but for LOCK. The newest
 * stay: of those that a reader has copied, those from before written - capacity + 1, as it is after the
 * copy, may have been overwritten meanwhile and are no good. A reader that copies often enough loses none, and one
 * that does not knows by the numbers how many.
 */
struct rsi_store_event {
    uint64_t tsc;
    uint64_t
        what; /* enum rsi_event, from bit 8 kind, from 16 verdict, from 24 the thread's id (40 bits) */
    uint64_t site;
    uint64_t value;
};
_Static_assert(sizeof(struct rsi_store_event) == 32, "two a line");

/* Of the file, for rings; what finds no room is counted (head: lost_events). */
#define RSI_STORE_RINGS_MAX ((uint64_t)128 << 20)

/*
 * A listener, each writer its own: 192 bytes. By the interposer alone.
 */
struct rsi_store_listener {
    uint64_t cookie;   /* the kernel's: the same in all processes that share it */
    uint64_t accepted; /* connections */
    uint64_t woken;    /* waits that ended since a connection was there */
    uint64_t
        in_vain;   /* wake-ups inside waits, whose connection another took before the thread ran */
    uint64_t lost; /* times that a poll told of a connection, and accept found none */
    uint64_t samples, backlog, backlog_most; /* connections that were left when one was accepted */
    /* What order they were accepted in was changed: */
    uint64_t ordered;  /* in turn */
    uint64_t turns;    /* given to others */
    uint64_t promoted; /* of these, to who had been passed over for too long */
    uint64_t overdue;  /* taken from who did not use them */
    uint64_t put_off;  /* times that accept was told that nothing is there, out of turn */
    uint64_t delays, delay_ticks; /* before an accept */
    uint32_t is_tcp, spare32;
    char name[48];                /* its address, ended by 0, cut to size */
    uint64_t first_tsc, last_tsc; /* connections */
};
_Static_assert(sizeof(struct rsi_store_listener) == 192, "three lines");

/* What a lock or the like is told by: a name, or the site that initialised it. Written once. */
struct rsi_store_name {
    uint64_t key;  /* the address of the text in the process; of the interposer: the site */
    char text[56]; /* ended by 0, cut to size; of the interposer: none */
};

/* A site of more than one frame, the innermost first. Written once. */
struct rsi_store_stack {
    uint64_t hash;
    uint32_t depth, spare;
    uint64_t frames[8];
};

/* A file of code that some site is in. Written once. */
struct rsi_store_module {
    uint64_t start, end; /* of its mapping */
    uint64_t bias;       /* of its addresses over the file's */
    uint32_t build_id_bytes, spare;
    uint8_t build_id[32];
    char path[256];
};

#endif
