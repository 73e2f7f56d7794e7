/* SPDX-License-Identifier: MIT */
/* rings.h - skips a test program that is to wait by io_uring on a system without it. */
#ifndef RINGS_H
#define RINGS_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rouse/rouse.h>

/*
 * Whether the tests were asked to wait by io_uring and cannot. Checked in a child, so that the
 * runtime starts there.
 */
static __attribute__((unused)) bool lacks_rings(void)
{
    const char *way = getenv("ROUSE_IO");
    int status = 0;
    if (!way || strcmp(way, "uring") != 0)
        return false;
    pid_t pid = fork();
    if (pid == 0)
        _exit(strcmp(rouse_io_backend(NULL), "io_uring") != 0);
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        abort();
    return status != 0;
}

#endif
