/* SPDX-License-Identifier: MIT */
/* main.c - rouse-bench: set the machine up for one run, let it be measured, report it. */
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <rouse/rouse.h>

/* The processors that this process may use. */
static void find_cpus(struct bench_run *run)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (unsigned cpu = 0; cpu < CPU_SETSIZE && run->cpu_count < BENCH_CPUS_MAX; cpu++)
            if (CPU_ISSET(cpu, &set))
                run->cpus[run->cpu_count++] = cpu;
    if (run->cpu_count == 0)
        run->cpu_count = 1;
}

/* Kernel threads: keep to the first `count` processors. Threads made later inherit it. */
static void keep_to_cpus(struct bench_run *run, unsigned count)
{
    cpu_set_t set;
    if (count == 0 || count >= run->cpu_count)
        return;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < count; i++)
        CPU_SET(run->cpus[i], &set);
    if (sched_setaffinity(0, sizeof set, &set) == 0)
        run->cpu_count = count;
}

static void set_up_user(struct bench_run *run)
{
    const struct rouse_config config = { .workers = run->options.workers };
    rouse_configure(&config);
    run->workers = rouse_worker_count();
    if (run->options.pin)
        run->pinned = bench_pin_workers(run);
}

static void set_up(struct bench_run *run)
{
    struct rlimit files;

    run->page_bytes = (unsigned)sysconf(_SC_PAGESIZE);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    find_cpus(run);
    if (run->options.kind == BENCH_KIND_USER) {
        set_up_user(run);
    } else {
        keep_to_cpus(run, run->options.workers);
        run->workers = run->cpu_count;
        run->pinned = run->options.pin ? run->cpu_count : 0;
    }
    if (run->options.obs)
        rouse_obs_set_mode(ROUSE_OBS_COUNTED);
}

static const struct bench_case *find_case(const struct bench_options *options)
{
    const struct bench_case *const *c = options->kind == BENCH_KIND_CLONE ? bench_cases_clone
                                                                          : bench_cases_rouse;
    while (*c && strcmp((*c)->name, options->case_name) != 0)
        c++;
    return *c;
}

static int measure(struct bench_run *run)
{
    int error = run->test->prepare ? run->test->prepare(run) : 0;
    if (error) {
        run->error = run->error ? run->error : error;
        run->error_what = run->error_what ? run->error_what : "preparing";
        return error;
    }
    if (run->options.kind == BENCH_KIND_CLONE)
        return bench_measure_clone(run);
    return bench_measure_rouse(run);
}

int main(int argc, char **argv)
{
    struct bench_options options;
    int status = bench_options_parse(&options, argc, argv);
    if (status)
        return status < 0 ? 0 : status;

    /* Large, and of one cache line's alignment: its tallies are written by every worker. */
    struct bench_run *run = aligned_alloc(64, (sizeof *run + 63) / 64 * 64);
    if (!run) {
        fprintf(stderr, "rouse-bench: out of memory\n");
        return 1;
    }
    memset(run, 0, sizeof *run);
    run->options = options;
    run->test = find_case(&options);
    run->threads = options.threads ? options.threads : run->test->threads;
    if (options.samples == 0)
        run->options.samples = run->test->samples ? run->test->samples : 11;
    set_up(run);
    if (measure(run) != 0) {
        fprintf(stderr, "rouse-bench: %s: %s failed: %s\n", run->test->name, run->error_what,
                strerror(-run->error));
        return 1;
    }
    if (run->test->report)
        run->test->report(run);
    if (options.json)
        bench_report_json(run);
    else
        bench_report_text(run);
    if (run->test->release)
        run->test->release(run);
    free(run);
    return 0;
}
