/* SPDX-License-Identifier: MIT */
/* micro.c - see micro.h: the processes, and their rounds. */
#include "micro/micro.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATIENCE_MS 2000u

/* For on_child. */
static struct micro *watched;
static char death_line[128];

void *micro_map(size_t bytes)
{
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

_Noreturn void micro_abort(const struct micro *micro, const char *line)
{
    /* Runs in handlers of signals: only what those may call. */
    _Atomic unsigned *report = &micro->shared->report;
    unsigned none = MICRO_NO_LINE;
    bool is_first = atomic_compare_exchange_strong_explicit(
        report, &none, MICRO_LINE_BEGUN, memory_order_relaxed, memory_order_relaxed);

    if (micro->kind->unshare)
        micro->kind->unshare(micro);
    /* The thread that writes ends with its process, so wait for it. It may be the one that a handler interrupted. */
    for (unsigned i = 0; !is_first && i < PATIENCE_MS; i++) {
        if (atomic_load_explicit(report, memory_order_relaxed) == MICRO_LINE_WRITTEN)
            _exit(1);
        raw_sleep_ns(1000000);
    }
    if (write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(2);
    atomic_store_explicit(report, MICRO_LINE_WRITTEN, memory_order_relaxed);
    _exit(1);
}

int micro_fail(const struct micro_member *m, int error, const char *what)
{
    return bench_fail(m->micro->run, error, what);
}

int micro_allocate(struct micro_member *m, size_t bytes)
{
    m->bytes = calloc(1, bytes);
    return m->bytes ? 0 : micro_fail(m, -ENOMEM, "allocating memory");
}

void micro_leave_files(struct micro_member *m)
{
    for (unsigned i = 0; i < sizeof m->fd / sizeof *m->fd; i++) {
        micro_close(m, m->fd[i]);
        m->fd[i] = -1;
    }
    free(m->bytes);
    m->bytes = NULL;
}

static void wait_for(_Atomic uint32_t *word, uint32_t value)
{
    raw6(SYS_futex, (long)word, FUTEX_WAIT, value, 0, 0, 0);
}

static void wake_all(_Atomic uint32_t *word)
{
    raw6(SYS_futex, (long)word, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}

/* Do ops operations in batches. */
static int run_batches(struct micro_member *m, uint64_t ops)
{
    const struct micro_kind *kind = m->micro->kind;
    const unsigned most = kind->batch ? kind->batch : MICRO_CHUNK;
    uint64_t call_ns = 0;
    int error = 0;

    for (uint64_t done = 0; done < ops && error == 0;) {
        const unsigned count = ops - done < most ? (unsigned)(ops - done) : most;
        uint64_t start_ns = 0;
        error = kind->before ? kind->before(m, count) : 0;
        if (kind->batch)
            start_ns = raw_clock_ns(CLOCK_MONOTONIC);
        if (error == 0)
            error = kind->loop(m, count);
        if (kind->batch)
            call_ns += raw_clock_ns(CLOCK_MONOTONIC) - start_ns;
        const int undone = kind->after ? kind->after(m) : 0;
        error = error ? error : undone;
        done += count;
        bench_count(m->micro->run, count);
    }
    atomic_fetch_add_explicit(&m->micro->shared->call_ns, call_ns, memory_order_relaxed);
    return error;
}

/* A round of a member. A failure is recorded and ends the run after the round. */
static void run_member(struct bench_member *member, uint64_t ops)
{
    struct micro *micro = ((struct micro *)member->team->run->state);
    struct micro_member *m = &micro->member[micro->process * micro->run->threads + member->index];
    int error = 0;

    if (!m->entered) {
        m->entered = true;
        error = micro->kind->enter ? micro->kind->enter(m) : 0;
    }
    if (error == 0)
        error = run_batches(m, ops);
    if (error)
        micro_fail(m, error, "a call");
}

static void set_members(struct micro *micro)
{
    for (unsigned i = 0; i < micro->members; i++) {
        struct micro_member *m = &micro->member[i];
        m->micro = micro;
        m->index = i;
        m->user = micro->run->user;
        for (unsigned at = 0; at < sizeof m->fd / sizeof *m->fd; at++)
            m->fd[at] = -1;
    }
}

/* Run the team's members in one process, and add what the process used. */
static void run_process(struct micro *micro)
{
    struct rusage before = { 0 }, after = { 0 };
    struct micro_shared *shared = micro->shared;

    raw6(SYS_getrusage, RUSAGE_SELF, (long)&before, 0, 0, 0, 0);
    const uint64_t cpu_ns = raw_clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    bench_team_run(&micro->team, shared->each);
    atomic_fetch_add_explicit(&shared->cpu_ns, raw_clock_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu_ns,
                              memory_order_relaxed);
    raw6(SYS_getrusage, RUSAGE_SELF, (long)&after, 0, 0, 0, 0);
    atomic_fetch_add_explicit(&shared->voluntary, (uint64_t)(after.ru_nvcsw - before.ru_nvcsw),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&shared->involuntary, (uint64_t)(after.ru_nivcsw - before.ru_nivcsw),
                              memory_order_relaxed);
}

static void finish_round(struct micro *micro)
{
    /* Release: pairs with the load in wait_round, which then reads this process's figures and errors. */
    atomic_fetch_add_explicit(&micro->shared->finished, 1, memory_order_release);
    wake_all(&micro->shared->finished);
}

/* The first thread of a forked process. */
static void *follow(void *arg)
{
    struct micro *micro = arg;
    struct micro_shared *shared = micro->shared;
    uint32_t seen = 0;

    bench_thread_entered(micro->run, micro->process * micro->run->threads);
    if (bench_team_begin(&micro->team) != 0)
        return NULL;
    for (;;) {
        uint32_t round;
        /* Acquire: pairs with the addition in start_round; `each` and `quit` are of this round. */
        while ((round = atomic_load_explicit(&shared->round, memory_order_acquire)) == seen)
            wait_for(&shared->round, seen);
        seen = round;
        if (atomic_load_explicit(&shared->quit, memory_order_relaxed))
            break;
        run_process(micro);
        finish_round(micro);
    }
    bench_team_end(&micro->team);
    return NULL;
}

static int prepare_team(struct micro *micro)
{
    int error = bench_team_prepare(&micro->team, micro->run, micro->run->threads);
    micro->team.body = run_member;
    return error;
}

/* The main thread of a forked process. It ends with the measuring process, however that ends. */
_Noreturn static void serve(struct micro *micro)
{
    struct bench_run *run = micro->run;
    struct bench_thread leader;

    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != micro->parent)
        _exit(1);
    int error = run->options.kind->set_up(run);
    if (error == 0)
        error = prepare_team(micro);
    if (error == 0)
        error = bench_thread_create(run, &leader, follow, micro);
    if (error)
        bench_fail(run, error, "starting the threads of a process");
    else
        bench_thread_join(&leader);
    if (!atomic_load_explicit(&micro->shared->quit, memory_order_relaxed)) {
        finish_round(micro); /* wait_round finds the error, and the process is killed */
        pause();
    }
    _exit(0);
}

/*
 * End the run if a process has died. The other members may wait for that one for ever, in a lock that it holds, so
 * there is no way to end them one by one.
 */
static void on_child(int number)
{
    struct micro *micro = watched;

    (void)number;
    if (atomic_load_explicit(&micro->shared->quit, memory_order_relaxed))
        return;
    for (unsigned i = 1; i < micro->run->processes; i++) {
        siginfo_t info = { .si_pid = 0 };
        if (micro->pids[i] == 0 ||
            waitid(P_PID, (id_t)micro->pids[i], &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
            info.si_pid == 0)
            continue;
        micro_abort(micro, death_line);
    }
}

static void watch_processes(struct micro *micro)
{
    struct sigaction action = { .sa_handler = on_child, .sa_flags = SA_RESTART | SA_NOCLDSTOP };

    watched = micro;
    snprintf(death_line, sizeof death_line, "%s: %s: a process of the run has died\n",
             bench_program, micro->run->test->name);
    sigaction(SIGCHLD, &action, NULL);
}

static int fork_processes(struct micro *micro)
{
    if (micro->run->processes > 1)
        watch_processes(micro);
    for (unsigned i = 1; i < micro->run->processes; i++) {
        const pid_t pid = fork();
        if (pid < 0)
            return bench_fail(micro->run, -errno, "forking a process");
        if (pid == 0) {
            micro->process = i;
            serve(micro);
        }
        micro->pids[i] = pid;
    }
    return 0;
}

int micro_fork(struct bench_run *run)
{
    struct micro *micro = calloc(1, sizeof *micro);

    if (!micro)
        return -ENOMEM;
    run->state = micro;
    micro->run = run;
    micro->kind = run->test->micro;
    micro->members = run->processes * run->threads;
    micro->parent = getpid();
    micro->fd[0] = micro->fd[1] = -1;
    micro->pids = calloc(run->processes, sizeof *micro->pids);
    micro->shared = micro_map(sizeof *micro->shared);
    micro->member = micro_map(micro->members * sizeof *micro->member);
    if (!micro->pids || !micro->shared || !micro->member)
        return -ENOMEM;
    set_members(micro);
    const int error = micro->kind->share ? micro->kind->share(micro) : 0;
    return error ? error : fork_processes(micro);
}

int micro_prepare(struct bench_run *run)
{
    return prepare_team(run->state);
}

static void start_round(struct micro *micro, uint64_t each)
{
    struct micro_shared *shared = micro->shared;

    shared->each = each;
    atomic_store_explicit(&shared->finished, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->call_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->cpu_ns, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->voluntary, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->involuntary, 0, memory_order_relaxed);
    atomic_store_explicit(&shared->in_round, true, memory_order_relaxed);
    /* Release: pairs with the load in follow. */
    atomic_fetch_add_explicit(&shared->round, 1, memory_order_release);
    if (micro->run->processes > 1)
        wake_all(&shared->round);
}

/* Wait until every process has finished the round. Returns the first error of any of them. */
static int wait_round(struct micro *micro)
{
    const uint32_t others = micro->run->processes - 1;
    uint32_t finished;

    /* Acquire: pairs with the addition in follow. */
    while ((finished = atomic_load_explicit(&micro->shared->finished, memory_order_acquire)) <
           others)
        wait_for(&micro->shared->finished, finished);
    atomic_store_explicit(&micro->shared->in_round, false, memory_order_relaxed);
    return micro->run->error;
}

/* The first round has no operations: its members only enter, each in its own thread. */
int micro_begin(struct bench_run *run)
{
    struct micro *micro = run->state;

    if (bench_team_begin(&micro->team) != 0)
        return run->error;
    start_round(micro, 0);
    bench_team_run(&micro->team, 0);
    if (wait_round(micro) != 0)
        micro_end(run);
    return run->error;
}

int micro_sample(struct bench_run *run, uint64_t ops)
{
    struct micro *micro = run->state;
    const struct micro_shared *shared = micro->shared;
    const uint64_t each = (ops + micro->members - 1) / micro->members;

    bench_start(run);
    start_round(micro, each);
    bench_team_run(&micro->team, each);
    const int error = wait_round(micro);
    bench_stop(run);
    run->sample_ops = each * micro->members;
    if (micro->kind->batch)
        run->taken.wall_ns = atomic_load_explicit(&shared->call_ns, memory_order_relaxed) /
                             micro->members;
    run->taken.cpu_ns += atomic_load_explicit(&shared->cpu_ns, memory_order_relaxed);
    run->taken.voluntary += atomic_load_explicit(&shared->voluntary, memory_order_relaxed);
    run->taken.involuntary += atomic_load_explicit(&shared->involuntary, memory_order_relaxed);
    return error;
}

void micro_end(struct bench_run *run)
{
    struct micro *micro = run->state;

    bench_team_end(&micro->team);
    if (micro->kind->leave)
        for (unsigned i = 0; i < run->threads; i++)
            micro->kind->leave(&micro->member[i]);
}

/* End the processes: by request if all is well, else by force, since one of them may wait for ever. */
static void end_processes(struct micro *micro)
{
    atomic_store_explicit(&micro->shared->quit, true, memory_order_relaxed);
    /* Release: pairs with the load in follow. */
    atomic_fetch_add_explicit(&micro->shared->round, 1, memory_order_release);
    wake_all(&micro->shared->round);
    for (unsigned i = 1; i < micro->run->processes; i++) {
        if (micro->pids[i] == 0)
            continue;
        if (micro->run->error)
            kill(micro->pids[i], SIGKILL);
        waitpid(micro->pids[i], NULL, 0);
    }
}

void micro_release(struct bench_run *run)
{
    struct micro *micro = run->state;

    if (micro->pids && micro->shared)
        end_processes(micro);
    if (micro->kind->unshare)
        micro->kind->unshare(micro);
    for (unsigned i = 0; i < 2; i++)
        if (micro->fd[i] >= 0)
            close(micro->fd[i]);
    if (micro->own)
        munmap(micro->own, micro->own_bytes);
    if (micro->team.member)
        bench_team_release(&micro->team);
    if (micro->member)
        munmap(micro->member, micro->members * sizeof *micro->member);
    if (micro->shared)
        munmap(micro->shared, sizeof *micro->shared);
    free(micro->pids);
    free(micro);
}
