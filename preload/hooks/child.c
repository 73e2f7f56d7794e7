/* SPDX-License-Identifier: MIT */
/*
 * child.c - waitpid and its kin, and system: waits for the end of a child process.
 *
 * A process that waits only for its children, such as a shell, is not recorded: it would hide the programs that
 * it starts. So a wait for a child is recorded only if the process has a recording: the thread has acquired a lock, or
 * a thread has waited for something else.
 *
 * A call that waits is first made with WNOHANG. A cancelled thread leaves by unwinding: this file is compiled with
 * -fexceptions.
 */
#include "process/real.h"
#include "record/wait.h"

enum call { WAIT, WAITPID, WAIT3, WAIT4 };

struct asked {
    enum call call;
    pid_t pid;
    int *status, options;
    struct rusage *usage;
};

static bool begin(struct rpi_wait *wait, const void *site)
{
    return (rpi_self || rsi_load_relaxed(&rpi_wait_is_any)) &&
           rpi_wait_begin(wait, RSI_STORE_WAIT_CHILD, NULL, site);
}

static enum rouse_verdict verdict_of(bool is_reaped)
{
    return is_reaped ? ROUSE_VERDICT_USEFUL : rpi_wait_verdict(errno);
}

static pid_t call_real(const struct asked *a)
{
    switch (a->call) {
    case WAIT: return rpi_real.wait(a->status);
    case WAITPID: return rpi_real.waitpid(a->pid, a->status, a->options);
    case WAIT3: return rpi_real.wait3(a->status, a->options, a->usage);
    default: return rpi_real.wait4(a->pid, a->status, a->options, a->usage);
    }
}

static pid_t reap(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    pid_t result;
    rpi_real_find();
    if (a->options & WNOHANG)
        return call_real(a);
    result = rpi_real.wait4(a->pid, a->status, a->options | WNOHANG, a->usage);
    if (result != 0)
        return result;
    if (!begin(&wait, site))
        return call_real(a);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result > 0), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE pid_t wait(int *status)
{
    const struct asked a = { WAIT, -1, status, 0, NULL };
    return reap(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE pid_t waitpid(pid_t pid, int *status, int options)
{
    const struct asked a = { WAITPID, pid, status, options, NULL };
    return reap(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE pid_t wait3(int *status, int options, struct rusage *usage)
{
    const struct asked a = { WAIT3, -1, status, options, usage };
    return reap(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE pid_t wait4(pid_t pid, int *status, int options, struct rusage *usage)
{
    const struct asked a = { WAIT4, pid, status, options, usage };
    return reap(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int waitid(idtype_t type, id_t id, siginfo_t *info, int options)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    siginfo_t first = { .si_pid = 0 };
    int result;
    rpi_real_find();
    if (options & WNOHANG)
        return rpi_real.waitid(type, id, info, options);
    result = rpi_real.waitid(type, id, &first, options | WNOHANG);
    if (result != 0 || first.si_pid != 0) {
        if (result == 0 && info)
            *info = first;
        return result;
    }
    if (!begin(&wait, site))
        return rpi_real.waitid(type, id, info, options);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.waitid(type, id, info, options);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result == 0), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int system(const char *command)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    int result;
    rpi_real_find();
    if (!command || !begin(&wait, site))
        return rpi_real.system(command);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.system(command);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, ROUSE_VERDICT_USEFUL, NULL);
    return result;
}
