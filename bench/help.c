/* SPDX-License-Identifier: MIT */
/* help.c - the text of --help. */
#include "bench.h"

#include <stdio.h>

static const char help_options[] =
    "  --workers N        user threads: workers; others: use the first N processors only\n"
    "                     (default: one per usable processor, or all of them)\n"
    "  -T N               threads that take part (default: the case's own)\n"
    "  -n N               operations per sample (default: as many as last 10 ms);\n"
    "                     spawn_many, memory: the same as -T\n"
    "  --seconds S        begin no sample after S seconds (default 2)\n"
    "  --samples N        samples, at most 1000 (default 11; sleepherd 3; memory always 1)\n"
    "  --pin              bind each worker or kernel thread to a processor, in turn\n"
    "  --obs MODE         recording of waits: counted (default), exact, locks, trace or off\n"
    "  --json             print one JSON object per line\n"
    "  --sleep-us N       sleepherd: duration of a sleep (default 10000); nanosleep,\n"
    "                     clock_nanosleep: the same (default 1)\n"
    "  --slack-ns N       sleepherd: timer slack of the kernel threads (default: as it is,\n"
    "                     1 on workers of user threads, elsewhere the system's, mostly 50000)\n"
    "  --bytes N          echo: size of a message (default 1); pipe, read, write: bytes per\n"
    "                     call (default 1024)\n"
    "  --socket KIND      echo: unix (default) or tcp\n"
    "  --lock KIND        mutex: mutex (default), or spin with --threads clone\n"
    "  --hold-us N        mutex: time that the lock is held (default 0)\n"
    "  --yield-every N    mutex: operations between two yields, 0 for none\n"
    "                     (default 64 for user threads, which are not pre-empted, else 0)\n"
    "  --table KIND       fdtable: chunks (rouse's own; default), rwlock or recheck\n"
    "  --op NAME          shared_writes: yield (default), create, join, park, unpark, wake_across,\n"
    "                     wake_idle, lock, unlock, post, wait, read, write\n"
    "  --affinity N       steal: steal affinity, 1 (steals at once) to 6 (default: the library's)\n"
    "  --place KIND       steal: steal (default), or shortest: place on the shortest queue\n"
    "  --footprint BYTES  steal: memory each thread reads per turn (default 0: it computes)\n"
    "  selectherd:\n"
    "  --via WHAT         layer: a select() of the benchmark's own (default for kernel threads);\n"
    "                     poll: poll(2); rouse: rouse_poll (default for user threads)\n"
    "  --wake MODE        precise (default) or broadcast\n"
    "  --sched-lock ONE   thread (default) or process\n"
    "  --select-lock ONE  fine (default) or global\n"
    "  --timer KIND       exact (default) or tick\n"
    "  --hz N             ticks per second (default 100)\n"
    "  --load KIND        free (default): tokens go round; stepped: one event when all sleep\n"
    "  --sets N           descriptors per call, 0 to 1024 (default 16)\n"
    "  --share N          threads that select on the same descriptors (default 1)\n"
    "  --timeout-us N     time-out of a call (default 5000), 0 for none\n"
    "  --processes        forked processes instead of threads\n"
    "  libMicro's cases:\n"
    "  --processes N      processes with -T threads each (default 1)\n"
    "  --fds N            poll, select: descriptors (default 256)\n"
    "  --ready N          poll, select: how many of them are readable (default 0)\n"
    "  --mode MODE        pipe: the reader is the same thread, st (default), another thread, mt, or\n"
    "                     another process, mp, which writes the bytes back\n"
    "  --transport KIND   pipe: pipe (default), sock, a pair of Unix sockets, or tcp\n"
    "  acceptherd:\n"
    "  --order NAME       user threads: plain, fifo (default), lifo, scatter; kernel threads: accept\n"
    "                     (default), poll, prioritised, promoted\n"
    "  --shared-by WAY    herd (default), exclusive, reuseport; user threads also: turns\n"
    "  --servers N        processes (default 1)\n"
    "  --burst N          connections at once (default 1)\n"
    "  --gap-us N         pause between bursts (default 0)\n"
    "\n"
    "Operations are counted per worker that ran them; for kernel threads, per processor.\n"
    "Exit status: 0, 1 if the case failed, 2 for wrong arguments.\n";

void bench_help(void)
{
    printf("usage: %s list\n"
           "       %s CASE [options]\n"
           "       %s libmicro [options]\n"
           "       %s compare A B\n"
           "\n"
           "Measure one thing on one kind of threads; the same source runs on all kinds.\n"
           "libmicro runs all cases of libMicro, a row each. compare shows two files of results\n"
           "of --json side by side.\n"
           "\n"
           "  --threads KIND     ",
           bench_program, bench_program, bench_program, bench_program);
    for (const struct bench_kind *kind = bench_kinds; kind->name; kind++)
        printf("%s%-7s %s%s\n", kind == bench_kinds ? "" : "                     ", kind->name,
               kind->summary, kind == bench_kinds ? " (default)" : "");
    fputs(help_options, stdout);
}
