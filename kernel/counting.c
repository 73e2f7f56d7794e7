/* SPDX-License-Identifier: MIT */
/*
 * counting.c - `rouse-kernel count`: system calls and signals of the threads of processes.
 *
 * Each line of standard input is the number of a process, which is counted from then on. The answer is a line for each of
 * its threads that had anything to count, and a last one. Words have tabs between them:
 *   count      number of the thread, system calls, signals
 *   end        entries that found no room: threads without a line are not known to have done nothing
 */
#include "counting.h"

#include "loader.h"

#include <errno.h>
#include <linux/types.h>
#include <stdio.h>
#include <stdlib.h>

#include "shared.h"
#include <bpf/bpf.h>
#include <counts.h>

static void print_counts(const struct bpf_object *object, __u32 process)
{
    int map = rsi_bpf_map(object, "counts");
    struct rsi_bpf_counts c;
    for (__u32 key, *at = NULL; bpf_map_get_next_key(map, at, &key) == 0; at = &key)
        if (bpf_map_lookup_elem(map, &key, &c) == 0 && c.tgid == process)
            printf("count\t%u\t%llu\t%llu\n", c.tid, c.calls, c.signals);
    __u32 none = 0;
    __u64 lost = 0;
    (void)bpf_map_lookup_elem(rsi_bpf_map(object, "lost"), &none, &lost);
    printf("end\t%llu\n", lost);
    (void)fflush(stdout);
}

void rsi_bpf_count(void)
{
    struct bpf_object *object = rsi_bpf_open(counts, sizeof(counts));
    int error = bpf_object__load(object);
    if (error < 0)
        rsi_bpf_die("the kernel refused to load the BPF program", error);
    struct bpf_program *program;
    bpf_object__for_each_program(program, object) if (!bpf_program__attach(program))
        rsi_bpf_die("cannot attach to the kernel's events", errno);
    puts("ready");
    (void)fflush(stdout);
    char line[32];
    while (fgets(line, sizeof(line), stdin)) {
        __u32 process = (__u32)strtoul(line, NULL, 10), one = 1;
        if (bpf_map_update_elem(rsi_bpf_map(object, "processes"), &process, &one, BPF_ANY) < 0)
            rsi_bpf_die("too many processes", errno);
        print_counts(object, process);
    }
    bpf_object__close(object);
}
