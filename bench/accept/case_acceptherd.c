/* SPDX-License-Identifier: MIT */
/*
 * case_acceptherd.c - how connections divide when --servers processes of T threads accept from one port, for
 * each accept order and each way to share. The measuring thread opens --burst connections at once and waits
 * until all are accepted.
 */
#include "accept.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PORT_FIRST 20000u
#define PORT_COUNT 12000u /* usually below the kernel's ephemeral range */
#define PATIENCE_S 30

static int share(struct accept_state *s, const struct bench_options *o)
{
    int error = accept_listen(s, o, o->accept_share != BENCH_SHARE_REUSEPORT);
    if (error < 0 || !o->kind->user || o->accept_share == BENCH_SHARE_REUSEPORT)
        return error;
    if (o->accept_share == BENCH_SHARE_TURNS)
        error = rouse_listener_turns(s->listener, s->servers);
    if (o->accept_share == BENCH_SHARE_EXCLUSIVE)
        error = rouse_listener_exclusive(s->listener);
    if (error == 0 && o->accept_order != BENCH_ORDER_PLAIN)
        error = rouse_listener_order(s->listener,
                                     (enum rouse_accept_order)(o->accept_order - BENCH_ORDER_FIFO));
    return error;
}

static int start_servers(struct bench_run *run)
{
    struct accept_state *s = run->state;
    const uint64_t until_ns = bench_now_ns() + PATIENCE_S * UINT64_C(1000000000);
    fflush(NULL);
    for (unsigned i = 0; i < s->servers; i++) {
        s->pids[i] = fork();
        if (s->pids[i] < 0)
            return -errno;
        if (s->pids[i] == 0)
            accept_serve(run, i);
    }
    while (atomic_load(&s->shared->ready) < s->servers * run->threads) {
        if (waitpid(-1, NULL, WNOHANG) > 0 || bench_now_ns() > until_ns)
            return -ECHILD;
        usleep(1000);
    }
    usleep(50000); /* by now they are about to wait */
    return 0;
}

static int prepare(struct bench_run *run)
{
    struct accept_state *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    run->state = s;
    s->servers = run->options.servers;
    s->address =
        (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    s->shared_bytes = sizeof *s->shared +
                      (size_t)s->servers * run->threads * sizeof(struct accept_thread);
    s->shared =
        mmap(NULL, s->shared_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s->shared == MAP_FAILED)
        return -ENOMEM;
    int error = share(s, &run->options);
    return error < 0 ? error : start_servers(run);
}

/* Sum the voluntary switches of all server threads, from /proc. */
static uint64_t switches_of(const struct accept_state *s)
{
    uint64_t sum = 0;
    for (unsigned i = 0; i < s->servers; i++) {
        char command[96], line[64];
        snprintf(command, sizeof command,
                 "cat /proc/%d/task/*/status | awk '/^voluntary/ { n += $2 } END { print n }'",
                 s->pids[i]);
        FILE *pipe = popen(command, "r");
        if (pipe && fgets(line, sizeof line, pipe))
            sum += strtoull(line, NULL, 10);
        if (pipe)
            pclose(pipe);
    }
    return sum;
}

static int begin(struct bench_run *run)
{
    struct accept_state *s = run->state;
    s->switches = switches_of(s);
    atomic_store(&s->shared->begin_ns, bench_now_ns());
    return 0;
}

/* Connect from this port. Returns a descriptor or -errno. */
static int connect_from(struct accept_state *s, unsigned port)
{
    const int on = 1;
    const struct linger abort_at_once = { .l_onoff = 1 };
    const struct sockaddr_in own = { .sin_family = AF_INET,
                                     .sin_port = htons((uint16_t)port),
                                     .sin_addr = s->address.sin_addr };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &abort_at_once, sizeof abort_at_once);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)&own, sizeof own) == 0) {
        atomic_store_explicit(&s->shared->start_ns[port], bench_now_ns(), memory_order_relaxed);
        /* A reset means that the server has already accepted the connection and closed it. */
        if (connect(fd, (struct sockaddr *)&s->address, sizeof s->address) == 0 ||
            errno == ECONNRESET)
            return fd;
    }
    const int error = -errno;
    close(fd);
    return error;
}

/* Connect from the next free port. The start time is stored before the connection can be accepted. */
static int connect_once(struct accept_state *s)
{
    int fd = -EADDRINUSE;
    for (unsigned tries = 0; tries < PORT_COUNT && (fd == -EADDRINUSE || fd == -EADDRNOTAVAIL);
         tries++)
        fd = connect_from(s, PORT_FIRST + s->next_port++ % PORT_COUNT);
    return fd;
}

/* Returns 0, or -ETIMEDOUT when the servers have stopped serving. */
static int wait_served(struct accept_shared *shared, uint32_t target)
{
    const struct timespec patience = { .tv_sec = PATIENCE_S };
    for (;;) {
        const uint32_t served = atomic_load(&shared->served);
        if ((int32_t)(target - served) <= 0)
            return 0;
        if (raw6(SYS_futex, (long)&shared->served, FUTEX_WAIT, served, (long)&patience, 0, 0) ==
            -ETIMEDOUT)
            return -ETIMEDOUT;
    }
}

static int burst(struct bench_run *run, unsigned count)
{
    struct accept_state *s = run->state;
    int fds[BENCH_BURST_MOST], error = 0;
    unsigned made = 0;
    const uint32_t target = atomic_load(&s->shared->served) + count;
    atomic_store(&s->shared->target, target);
    while (made < count && error == 0) {
        fds[made] = connect_once(s);
        if (fds[made] < 0)
            error = fds[made];
        else
            made++;
    }
    if (error == 0)
        error = wait_served(s->shared, target);
    while (made > 0)
        close(fds[--made]);
    return error;
}

static int sample(struct bench_run *run, uint64_t ops)
{
    const struct bench_options *o = &run->options;
    uint64_t done = 0;
    bench_start(run);
    while (done < ops) {
        const uint64_t left = ops - done;
        const unsigned count = left < o->burst ? (unsigned)left : o->burst;
        const int error = burst(run, count);
        if (error < 0) {
            run->error = error;
            run->error_what = error == -ETIMEDOUT ? "connections that nobody accepts" : "connect";
            return error;
        }
        done += count;
        bench_count(run, count);
        if (o->gap_ns != 0)
            raw_sleep_ns(o->gap_ns);
    }
    bench_stop(run);
    run->sample_ops = ops;
    return 0;
}

static void end(struct bench_run *run)
{
    ((struct accept_state *)run->state)->end_ns = bench_now_ns();
}

static void report(struct bench_run *run)
{
    struct accept_state *s = run->state;
    const uint64_t switches = switches_of(s);
    s->switches = switches - s->switches;
    accept_report(run);
}

static void release(struct bench_run *run)
{
    struct accept_state *s = run->state;
    if (!s)
        return;
    for (unsigned i = 0; i < s->servers; i++)
        if (s->pids[i] > 0) {
            kill(s->pids[i], SIGKILL);
            waitpid(s->pids[i], NULL, 0);
        }
    if (s->shared && s->shared != MAP_FAILED)
        munmap(s->shared, s->shared_bytes);
    close(s->listener);
    free(s);
}

const struct bench_case BENCH_NAME(case_acceptherd) = {
    .name = "acceptherd",
    .summary = "--servers processes of T threads accept from one port: who gets the connections",
    .threads = 8,
    .samples = 5,
    .prepare = prepare,
    .begin = begin,
    .sample = sample,
    .end = end,
    .report = report,
    .release = release,
};
