/* SPDX-License-Identifier: MIT */
/*
 * busy.c - a program whose threads have a worker, or are kernel threads, and yet need not be on a processor: "burn"
 * computes without end, "nap" sleeps in a system call that rouse does not see. A thread for each word on the command
 * line. Says "ready" when all have begun; ends with its input.
 */
#include <rouse/rouse.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct rouse_sem begun = ROUSE_SEM_INIT(0);

static void *burn(void *unused)
{
    rouse_sem_post(&begun);
    for (;;) {
        for (volatile unsigned i = 0; i < 100000; i++)
            ;
        rouse_thread_yield();
    }
    return unused;
}

static void *nap(void *unused)
{
    rouse_sem_post(&begun);
    for (;;)
        usleep(100000);
    return unused;
}

int main(int argc, char **argv)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    char letter;

    attr.detached = true;
    for (int i = 1; i < argc; i++) {
        attr.name = argv[i];
        if (rouse_thread_create(NULL, &attr, strcmp(argv[i], "nap") ? burn : nap, NULL) != 0)
            abort();
        rouse_sem_wait(&begun);
    }
    puts("ready");
    fflush(stdout);
    return read(STDIN_FILENO, &letter, 1) == 1;
}
