/* SPDX-License-Identifier: MIT */
/* helper.c - files, terminals and name look-ups: calls that block a kernel thread, on helpers. */
#include "io/helper.h"

#include <rouse/io.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <time.h>

struct job {
    struct rsi_io_op *op;
    bool must_poll;
    long result;
};

/* Until the descriptor is ready, ended, or the deadline has come. Returns 0 or -errno. */
static long wait_by_ppoll(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = op->side == RSI_FD_READ ? POLLIN : POLLOUT };
    for (;;) {
        struct timespec left, *limit = NULL;
        if (op->deadline_ns != UINT64_MAX) {
            uint64_t now_ns = rsi_now_ns();
            left = rsi_timespec(op->deadline_ns > now_ns ? op->deadline_ns - now_ns : 0);
            limit = &left;
        }
        long count = rsi_syscall5(SYS_ppoll, &one, 1, limit, 0, 0);
        if (count != -EINTR)
            return count > 0 ? 0 : count == 0 ? -ETIMEDOUT : count;
    }
}

static void run_job(void *arg)
{
    struct job *job = arg;
    const struct rsi_io_op *op = job->op;
    do {
        job->result = job->must_poll ? wait_by_ppoll(op) : 0;
        if (job->result < 0)
            return;
        job->result = rsi_syscall6(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3],
                                   op->arg[4], op->arg[5]);
        /* EAGAIN: somebody set O_NONBLOCK, and another was faster. */
    } while (job->result == -EINTR || (job->result == -EAGAIN && job->must_poll));
}

long rsi_helper_run(struct rsi_io_op *op, int type)
{
    struct job job = { .op = op, .must_poll = type != RSI_FD_FILE };
    int result = rsi_blocking_run(run_job, &job, op->site);
    return result < 0 ? result : job.result;
}

static long run_file_call(long number, int fd, long b, long c, long d, const void *site)
{
    struct rsi_io_op op = {
        .fd = fd, .number = number, .arg = { fd, b, c, d }, .site = site, .deadline_ns = UINT64_MAX
    };
    return rsi_helper_run(&op, RSI_FD_FILE);
}

ssize_t rouse_pread(int fd, void *buffer, size_t bytes, off_t offset)
{
    return run_file_call(SYS_pread64, fd, (long)buffer, (long)bytes, offset, RSI_CALLER());
}

ssize_t rouse_pwrite(int fd, const void *buffer, size_t bytes, off_t offset)
{
    return run_file_call(SYS_pwrite64, fd, (long)buffer, (long)bytes, offset, RSI_CALLER());
}

int rouse_fsync(int fd)
{
    return (int)run_file_call(SYS_fsync, fd, 0, 0, 0, RSI_CALLER());
}

struct lookup {
    const char *node, *service;
    const struct addrinfo *hints;
    struct addrinfo **result;
    int code;
};

static void run_lookup(void *arg)
{
    struct lookup *lookup = arg;
    lookup->code = getaddrinfo(lookup->node, lookup->service, lookup->hints, lookup->result);
}

int rouse_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                      struct addrinfo **result)
{
    struct lookup lookup = { node, service, hints, result, EAI_AGAIN };
    if (rsi_blocking_run(run_lookup, &lookup, RSI_CALLER()) < 0)
        return EAI_AGAIN;
    return lookup.code;
}
