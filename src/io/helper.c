/* SPDX-License-Identifier: MIT */
/* helper.c - blocking calls on helper threads: files, terminals, name look-ups. */
#include "io/helper.h"

#include "core/blocking.h"
#include "io/uring/inflight.h"

#include <rouse/io.h>

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <time.h>

struct job {
    const struct rsi_io_op *op;
    long result;
};

static void run_job(void *arg)
{
    struct job *job = arg;
    const struct rsi_io_op *op = job->op;
    do {
        job->result = rsi_syscall6(op->number, op->arg[0], op->arg[1], op->arg[2], op->arg[3],
                                   op->arg[4], op->arg[5]);
    } while (job->result == -EINTR);
}

/* Run op on a helper. Returns 0 and *result, or -EAGAIN if there is no helper. */
static int run_elsewhere(const struct rsi_io_op *op, long *result)
{
    struct job job = { .op = op };
    int error = rsi_blocking_run(run_job, &job, op->site);
    *result = job.result;
    return error;
}

long rsi_helper_run(struct rsi_io_op *op)
{
    long result;
    if (rsi_backend_has_rings() && rsi_inflight_run_file(op, &result))
        return result;
    int error = run_elsewhere(op, &result);
    return error != 0 ? error : result;
}

long rsi_helper_run_ready(const struct rsi_io_op *op)
{
    struct pollfd one = { .fd = op->fd, .events = op->side == RSI_FD_READ ? POLLIN : POLLOUT };
    const struct timespec zero = { 0, 0 };
    struct rsi_io_op probe = *op;
    int error;
    long result;
    probe.number = SYS_ppoll;
    probe.arg[0] = (long)&one;
    probe.arg[1] = 1;
    probe.arg[2] = (long)&zero;
    probe.arg[3] = probe.arg[4] = 0;
    probe.rules = RSI_IO_PROBE | RSI_IO_KEEPS;
    do {
        result = rsi_backend_run(&probe);
        if (result < 0)
            return result;
        error = run_elsewhere(op, &result);
        /* EAGAIN: the descriptor was made non-blocking, and another reader was faster. */
    } while (error == 0 && result == -EAGAIN);
    return error != 0 ? error : result;
}

static long run_file_call(long number, int fd, long b, long c, long d, const void *site)
{
    struct rsi_io_op op = {
        .fd = fd, .number = number, .arg = { fd, b, c, d }, .site = site, .deadline_ns = UINT64_MAX
    };
    return rsi_helper_run(&op);
}

RSI_NOINLINE ssize_t rouse_pread(int fd, void *buffer, size_t bytes, off_t offset)
{
    return run_file_call(SYS_pread64, fd, (long)buffer, (long)bytes, offset, RSI_CALLER());
}

RSI_NOINLINE ssize_t rouse_pwrite(int fd, const void *buffer, size_t bytes, off_t offset)
{
    return run_file_call(SYS_pwrite64, fd, (long)buffer, (long)bytes, offset, RSI_CALLER());
}

RSI_NOINLINE int rouse_fsync(int fd)
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

RSI_NOINLINE int rouse_getaddrinfo(const char *node, const char *service,
                                   const struct addrinfo *hints, struct addrinfo **result)
{
    struct lookup lookup = { node, service, hints, result, EAI_AGAIN };
    if (rsi_blocking_run(run_lookup, &lookup, RSI_CALLER()) < 0)
        return EAI_AGAIN;
    return lookup.code;
}
