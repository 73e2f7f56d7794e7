/* SPDX-License-Identifier: MIT */
/*
 * plain_many.c COUNT - forks so many children, one after the other. The nth waits for the time nth % 4 times, and
 * each ends by exit() or, if nth / 4 is odd, by _exit().
 */
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KINDS 4

static _Noreturn void be_child(long nth)
{
    for (long waits = nth % KINDS; waits > 0; waits--)
        if (nanosleep(&(struct timespec){ 0, 1000 }, NULL) != 0) /* waits */
            _exit(2);
    if (nth / KINDS % 2)
        _exit(0);
    exit(0);
}

int main(int argc, char **argv)
{
    long count = argc == 2 ? strtol(argv[1], NULL, 10) : 0;
    for (long nth = 0; nth < count; nth++) {
        int status;
        pid_t child = fork();
        if (child == 0)
            be_child(nth);
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            return 1;
    }
    return count < 1;
}
