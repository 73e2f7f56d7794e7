/* SPDX-License-Identifier: MIT */
/*
 * dump.c - prints every thread with its state and backtrace, on SIGQUIT or on call.
 *
 * The dump is made where it is requested: on SIGQUIT, in the signal handler on whichever kernel thread receives the
 * signal. So it works even if every worker is stuck in the program's code, and costs nothing otherwise. All of it
 * is therefore async-signal-safe, and no thread waits for another except for its backtrace (signal_unwind.h). Memory is
 * mapped only during the dump.
 * Rejected: a kernel thread that waits for requests. It would be one more thread in each process, to be recreated
 * after a fork, for something that most runs never need.
 */
#include "obs/dump.h"

#include "obs/signal_unwind.h"
#include "obs/dump_text.h"

#include <limits.h>
#include <signal.h>
#include <ucontext.h>
#include <unistd.h>

#define STUCK_MOST 4 /* stuck workers that a dump lists */
/* for kernel threads that do not answer; in total about twice this */
#define PATIENCE_NS 1000000000u

static struct {
    uint32_t owner; /* futex: tid of the kernel thread that dumps, one at a time; 0: none */
    uint64_t ns_base, tsc_base;
} state;

struct dump {
    struct rsi_inspector inspector;
    struct rsi_inspected seen;
    struct rsi_dump_text text;
    uint64_t live_count;
};

static bool count_live(struct rouse_thread *t, void *context)
{
    struct dump *dump = context;
    dump->live_count += rsi_load_relaxed(&t->waiter.life) == RSI_LIFE_LIVE;
    return true;
}

static bool print_one(struct rouse_thread *t, void *context)
{
    struct dump *dump = context;
    if (rsi_inspect(&dump->inspector, t, &dump->seen))
        rsi_dump_text_thread(&dump->text, &dump->seen);
    return !dump->text.is_broken;
}

/* List the threads that occupy, or occupied, a worker for too long; nothing if there were none. */
static void print_monitor(struct rsi_dump_text *text)
{
    struct rouse_monitor_figures figures;
    struct rouse_stuck stuck[STUCK_MOST];
    rouse_obs_monitor(&figures);
    if (figures.stuck_count == 0)
        return;
    rsi_dump_text_add(text, "rouse: workers were stuck %lu times; %u of %u spare workers in use",
                      figures.stuck_count, figures.spares, figures.spares_bound);
    rsi_dump_text_end_line(text);
    unsigned count = rouse_obs_stuck(stuck, STUCK_MOST);
    for (unsigned i = 0; i < count; i++) {
        const struct rouse_stuck *s = &stuck[i];
        rsi_dump_text_add(text, "rouse: worker %u %s stuck for %lu us: thread %lu", s->worker,
                          s->is_now ? "is" : "was", s->lasted_ns / 1000, s->thread_id);
        if (s->name[0])
            rsi_dump_text_add(text, " \"%s\"", s->name);
        if (s->computes)
            rsi_dump_text_add(text, " computed");
        else if (s->call >= 0)
            rsi_dump_text_add(text, " in system call %d", (int)s->call);
        else
            rsi_dump_text_add(text, " in a system call");
        rsi_dump_text_end_line(text);
    }
}

static void print_all(struct dump *dump, const char *reason)
{
    struct rsi_dump_text *text = &dump->text;
    text->now_ns = rsi_now_ns();
    text->now_tsc = rsi_tsc();
    text->ns_base = state.ns_base;
    text->tsc_base = state.tsc_base;
    rsi_blocks_visit(count_live, dump);
    if (reason) {
        rsi_dump_text_add(text, "rouse: %s", reason);
        rsi_dump_text_end_line(text);
    }
    rsi_dump_text_add(text, "rouse: %lu threads, %u workers, %u of them idle", dump->live_count,
                      rsi_worker_live_count(), rsi_load_relaxed(&rsi_rt.idle_count));
    rsi_dump_text_end_line(text);
    print_monitor(text);
    rsi_blocks_visit(print_one, dump);
    rsi_dump_text_add(text, "rouse: end of the threads");
    rsi_dump_text_end_line(text);
    rsi_dump_text_end(text);
}

/* If the reader of the descriptor has gone away, the dump ends, not the program. */
static void print_without_sigpipe(struct dump *dump, const char *reason)
{
    const uint64_t sigpipe = UINT64_C(1) << (SIGPIPE - 1);
    const struct timespec zero = { 0, 0 };
    uint64_t before = 0, pending = 0;
    rsi_syscall4(SYS_rt_sigprocmask, SIG_BLOCK, &sigpipe, &before, sizeof sigpipe);
    rsi_syscall2(SYS_rt_sigpending, &pending, sizeof pending);
    print_all(dump, reason);
    if (!(pending & sigpipe))
        rsi_syscall4(SYS_rt_sigtimedwait, &sigpipe, 0, &zero, sizeof sigpipe);
    rsi_syscall4(SYS_rt_sigprocmask, SIG_SETMASK, &before, 0, sizeof before);
}

/* Whether the calling kernel thread may dump now. may_wait: wait for another dump to finish. */
static bool dump_begin(bool may_wait)
{
    uint32_t self = (uint32_t)rsi_gettid(), owner = 0;
    while (!rsi_cas_acquire(&state.owner, &owner, self)) { /* pairs with dump_end */
        /* The signal interrupted this thread's own dump, which will be finished. */
        if (!may_wait || owner == self)
            return false;
        rsi_futex_wait(&state.owner, owner, ROUSE_FOREVER);
        owner = 0;
    }
    return true;
}

static void dump_end(void)
{
    rsi_store_release(&state.owner, 0u);
    rsi_futex_wake(&state.owner, INT_MAX);
}

static void dump(int fd, const char *reason, const void *context, bool may_wait)
{
    static const char no_memory[] = "rouse: not enough memory to print the threads\n";
    if (!dump_begin(may_wait))
        return;
    struct dump *dump = rsi_map(sizeof *dump);
    if (dump) {
        dump->text.fd = fd;
        dump->inspector =
            (struct rsi_inspector){ .tid = (int32_t)rsi_gettid(), .patience_ns = PATIENCE_NS };
        rsi_regs_from_context(&dump->inspector.regs, context);
        print_without_sigpipe(dump, reason);
        rsi_unmap(dump, sizeof *dump);
    } else {
        rsi_syscall3(SYS_write, fd, no_memory, sizeof no_memory - 1);
    }
    dump_end();
}

void rouse_obs_dump(int fd)
{
    rsi_dump(fd, NULL);
}

void rsi_dump(int fd, const char *reason)
{
    ucontext_t context;
    getcontext(&context);
    dump(fd, reason, &context, true);
}

static void on_quit(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)info;
    dump(STDERR_FILENO, NULL, context, false);
}

/* In a child after fork, where the thread that dumped does not exist. */
static void on_child(void)
{
    state.owner = 0;
    rsi_signal_unwind_child();
    rsi_deadlock_child();
}

void rsi_dump_setup(void)
{
    struct sigaction old,
        action = { .sa_sigaction = on_quit, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK };
    sigemptyset(&action.sa_mask);
    state.ns_base = rsi_now_ns();
    state.tsc_base = rsi_tsc();
    rsi_signal_unwind_setup();
    if (pthread_atfork(NULL, NULL, on_child) != 0)
        rsi_fatal("no memory for the fork handlers");
    if (sigaction(SIGQUIT, NULL, &old) == 0 && old.sa_handler == SIG_DFL)
        sigaction(SIGQUIT, &action, NULL);
}
