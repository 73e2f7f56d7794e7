/* SPDX-License-Identifier: MIT */
/* hello.c - a program of a project of its own, which finds an installed rouse through its build system. */
#include <stdio.h>
#include <string.h>

#include <rouse/rouse.h>

static void *greet(void *arg)
{
    printf("hello from %s, rouse %s\n", (const char *)arg, ROUSE_VERSION);
    return arg;
}

int main(void)
{
    struct rouse_thread *thread;
    char name[] = "a thread";
    int error = rouse_thread_create(&thread, NULL, greet, name);

    if (error) {
        fprintf(stderr, "hello: creating a thread failed: %s\n", strerror(-error));
        return 1;
    }
    return rouse_thread_join(thread, NULL) ? 1 : 0;
}
