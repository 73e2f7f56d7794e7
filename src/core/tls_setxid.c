/* SPDX-License-Identifier: MIT */
/*
 * tls_setxid.c - setuid, setgid, setgroups and their like in a thread with thread-local storage of its own.
 *
 * Problem: in Linux each kernel thread has a user and groups of its own. libc's setuid sends SIGSETXID to every other
 * kernel thread, whose handler makes the same system call and confirms it in its own thread block. libc takes the block
 * that the thread pointer names for the calling kernel thread. In a thread that borrows a block, two things go wrong:
 * the worker confirms in the borrowed block, so that setuid waits for ever; and the lender of the caller's block gets no
 * signal, so that one kernel thread keeps the old rights.
 *
 * Solution: a handler around libc's. On a worker it moves the thread pointer to the worker's own block while libc's
 * handler runs. Then it hands the worker's user and groups to the lender of its current thread, wakes it by SIGSETXID
 * with si_code SI_QUEUE, which libc's handler ignores, and waits. The lender's handler makes the system calls for what
 * differs. Setting twice what libc's own signal sets as well does no harm: a thread may always set what it has.
 *
 * Protocol: the worker stores tls->ids (release), sends the signal, and waits for ids->is_done. The lender, which only
 * sleeps in a futex call while its block is borrowed, takes tls->ids (acquire), sets, and stores is_done (release). The
 * signal is only a bell: the lender finds its own ids, so that a signal that somebody else sends does nothing.
 */
#include "core/core.h"
#include "core/tls.h"

#include <grp.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { REAL, EFFECTIVE, SAVED, IDS };

struct rsi_tls_ids {
    uint32_t users[IDS], groups[IDS];
    uint32_t *others; /* the supplementary groups */
    long other_count;
    uint32_t is_done; /* futex */
};

struct kernel_action {
    void (*handler)(int number, siginfo_t *info, void *context);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
};

__thread struct rsi_tls *rsi_tls_lent; /* on a lender while it lends its block */
static void (*libc_on_setxid)(int number, siginfo_t *info, void *context);
static uint32_t wrap_guard;

static long ids_size(const struct rsi_tls_ids *ids)
{
    return (long)rsi_round_up((size_t)ids->other_count * sizeof *ids->others + 1, RSI_PAGE);
}

/* Of the calling kernel thread. libc's calls would do, but this file depends on them being plain system calls. */
static void ids_read(struct rsi_tls_ids *ids)
{
    rsi_syscall3(SYS_getresuid, &ids->users[REAL], &ids->users[EFFECTIVE], &ids->users[SAVED]);
    rsi_syscall3(SYS_getresgid, &ids->groups[REAL], &ids->groups[EFFECTIVE], &ids->groups[SAVED]);
    ids->other_count = rsi_syscall2(SYS_getgroups, 0, NULL);
    long at = rsi_syscall6(SYS_mmap, 0, ids_size(ids), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at < 0 && at > -4096)
        rsi_fatal("setuid in a thread with own_tls: no memory to read the groups");
    ids->others = (uint32_t *)at;
    ids->other_count = rsi_syscall2(SYS_getgroups, ids->other_count, ids->others);
}

static void ids_free(struct rsi_tls_ids *ids)
{
    rsi_syscall2(SYS_munmap, ids->others, ids_size(ids));
}

static bool set(long number, const uint32_t wanted[IDS], const uint32_t had[IDS])
{
    return memcmp(wanted, had, IDS * sizeof *wanted) == 0 ||
           rsi_syscall3(number, wanted[REAL], wanted[EFFECTIVE], wanted[SAVED]) == 0;
}

/* Groups first: a thread that has given up its user may not change them any more. */
static void ids_take(const struct rsi_tls_ids *wanted)
{
    struct rsi_tls_ids had = { 0 };
    ids_read(&had);
    bool same_others =
        had.other_count == wanted->other_count &&
        memcmp(had.others, wanted->others, (size_t)had.other_count * sizeof *had.others) == 0;
    ids_free(&had);
    if (!(same_others || rsi_syscall2(SYS_setgroups, wanted->other_count, wanted->others) == 0) ||
        !set(SYS_setresgid, wanted->groups, had.groups) ||
        !set(SYS_setresuid, wanted->users, had.users))
        rsi_fatal("setuid in a thread with own_tls: its lender keeps other rights");
}

static void on_lender(struct rsi_tls *tls)
{
    struct rsi_tls_ids *ids = rsi_load_acquire(&tls->ids); /* pairs with tell_lender */
    if (!ids)
        return;
    rsi_store_relaxed(&tls->ids, NULL);
    ids_take(ids);
    rsi_store_release(&ids->is_done, 1u); /* pairs with tell_lender */
    rsi_futex_wake(&ids->is_done, 1);
}

/* ids lies on this stack: the lender touches it last when it wakes the futex, which needs no memory. */
static void tell_lender(struct rsi_tls *tls)
{
    struct rsi_tls_ids ids = { 0 };
    siginfo_t info = { 0 };
    info.si_signo = RSI_SIGSETXID;
    info.si_code = SI_QUEUE;
    info.si_pid = getpid();
    ids_read(&ids);
    rsi_store_release(&tls->ids, &ids); /* pairs with on_lender */
    rsi_syscall4(SYS_rt_tgsigqueueinfo, info.si_pid, tls->lender_tid, RSI_SIGSETXID, &info);
    while (!rsi_load_acquire(&ids.is_done)) /* pairs with on_lender */
        rsi_futex_wait(&ids.is_done, 0, ROUSE_FOREVER);
    ids_free(&ids);
}

/* The block at pointer is borrowed by w's current thread, unless w is in the middle of a switch. */
static struct rsi_tls *lender_of(const struct rsi_worker *w, uintptr_t pointer)
{
    const struct rouse_thread *t = rsi_load_relaxed(&w->exec.current);
    struct rsi_tls *tls = t ? t->tls : NULL;
    return tls && tls->is_entered && tls->pointer == pointer && !tls->is_orphan ? tls : NULL;
}

static void on_setxid(int number, siginfo_t *info, void *context)
{
    const struct rsi_worker *w = rsi_exec_self()->worker;
    uintptr_t pointer = rsi_thread_pointer();
    int32_t tid = (int32_t)rsi_gettid();
    struct rsi_tls *lent = rsi_tls_lent;
    if (lent && lent->lender_tid == tid) {
        if (info->si_code == SI_QUEUE)
            on_lender(lent);
        else
            libc_on_setxid(number, info, context);
        return;
    }
    bool is_borrowed = w && pointer != w->thread_pointer;
    if (is_borrowed)
        rsi_thread_pointer_set(w->thread_pointer);
    libc_on_setxid(number, info, context);
    struct rsi_tls *tls = is_borrowed ? lender_of(w, pointer) : NULL;
    if (tls)
        tell_lender(tls);
    if (is_borrowed)
        rsi_thread_pointer_set(pointer);
}

/* libc installs its handler when it makes the first thread, and never again. */
void rsi_tls_setxid_wrap(void)
{
    struct kernel_action action = { 0 };
    rsi_guard_lock(&wrap_guard);
    if (!libc_on_setxid &&
        rsi_syscall4(SYS_rt_sigaction, RSI_SIGSETXID, NULL, &action, RSI_KERNEL_SIGSET_BYTES) ==
            0 &&
        action.handler) {
        libc_on_setxid = action.handler;
        action.handler = on_setxid;
        rsi_syscall4(SYS_rt_sigaction, RSI_SIGSETXID, &action, NULL, RSI_KERNEL_SIGSET_BYTES);
    }
    rsi_guard_unlock(&wrap_guard);
}

void rsi_tls_setxid_child(void)
{
    wrap_guard = 0;
}
