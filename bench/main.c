/* SPDX-License-Identifier: MIT */
/* main.c - set up one run, measure it and report it. */
#include "bench.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

void bench_find_cpus(struct bench_run *run)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        for (unsigned cpu = 0; cpu < CPU_SETSIZE && run->cpu_count < BENCH_CPUS_MAX; cpu++)
            if (CPU_ISSET(cpu, &set))
                run->cpus[run->cpu_count++] = cpu;
    if (run->cpu_count == 0)
        run->cpu_count = 1;
}

int bench_keep_to_cpus(struct bench_run *run)
{
    const unsigned count = run->options.workers;
    /* All processes of a run come here, and cpu_count is common to them. */
    if (count > 0 && count <= run->cpu_count) {
        cpu_set_t set;
        CPU_ZERO(&set);
        for (unsigned i = 0; i < count; i++)
            CPU_SET(run->cpus[i], &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0)
            return -errno;
        run->cpu_count = count;
    }
    run->workers = run->cpu_count;
    run->pinned = run->options.pin ? run->cpu_count : 0;
    return 0;
}

static int prepare(struct bench_run *run)
{
    struct rlimit files;

    run->page_bytes = (unsigned)sysconf(_SC_PAGESIZE);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    bench_find_cpus(run);
    run->error = run->test->fork ? run->test->fork(run) : 0;
    if (run->error) {
        if (!run->error_what)
            run->error_what = "preparing";
        return run->error;
    }
    run->error = run->options.kind->set_up(run);
    if (run->error) {
        run->error_what = "starting the threads' library";
        return run->error;
    }
    run->error = run->test->prepare ? run->test->prepare(run) : 0;
    if (run->error && !run->error_what)
        run->error_what = "preparing";
    return run->error;
}

static int report(struct bench_run *run)
{
    if (run->test->report)
        run->test->report(run);
    if (run->options.json)
        bench_report_json(run);
    else
        bench_report_text(run);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "%s: writing the report failed: %s\n", bench_program, strerror(errno));
        return 1;
    }
    return 0;
}

static struct bench_run *make_run(const struct bench_options *options,
                                  const struct bench_case *test)
{
    /* All processes of a case of libMicro count their operations in it, and record their errors. */
    struct bench_run *run =
        mmap(NULL, sizeof *run, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (run == MAP_FAILED)
        return NULL;
    run->options = *options;
    run->test = test;
    run->user = options->kind->user;
    run->threads = options->threads ? options->threads : test->threads;
    run->processes = options->processes ? options->processes : 1;
    if ((test->flags & BENCH_FIXED_OPS) && options->ops)
        run->threads = (unsigned)options->ops;
    if (options->samples == 0)
        run->options.samples = test->samples ? test->samples : 11;
    return run;
}

int bench_run_case(const struct bench_options *options, const struct bench_case *test)
{
    int status;
    struct bench_run *run = make_run(options, test);
    if (!run) {
        fprintf(stderr, "%s: out of memory\n", bench_program);
        return 1;
    }
    if (prepare(run) == 0 && options->kind->measure(run) == 0) {
        status = report(run);
    } else {
        fprintf(stderr, "%s: %s: %s failed: %s\n", bench_program, test->name, run->error_what,
                strerror(-run->error));
        status = 1;
    }
    if (test->release && run->state)
        test->release(run);
    if (options->kind->tear_down)
        options->kind->tear_down(run);
    munmap(run, sizeof *run);
    return status;
}

int main(int argc, char **argv)
{
    struct bench_options options;
    const struct bench_case *test;

    if (argc > 1 && strcmp(argv[1], "compare") == 0)
        return bench_compare(argc - 2, argv + 2);
    int status = bench_options_parse(&options, &test, argc, argv);
    if (status > 0)
        return status;
    if (status < 0)
        return fflush(stdout) == 0 ? 0 : 1;
    return test ? bench_run_case(&options, test) : bench_suite(&options);
}
