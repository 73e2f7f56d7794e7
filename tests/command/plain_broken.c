/* SPDX-License-Identifier: MIT */
/*
 * plain_broken.c - as plain.c: threads whose waits end as few do, and threads that there is no room for.
 */
#include "plain.h"

#include <netinet/in.h>
#include <sys/socket.h>

enum {
    MANY = 200, /* threads, for which 1 MiB has no room */
};

static struct sockaddr_in address;
static unsigned done;
static int listener;

static void listens(void)
{
    socklen_t bytes = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&address, bytes) == 0 && listen(listener, 8) == 0);
    check(getsockname(listener, (struct sockaddr *)&address, &bytes) == 0);
}

static void *sleeps_and_accepts(void *unused)
{
    int ours = socket(AF_INET, SOCK_STREAM, 0), theirs;
    (void)unused;
    check(usleep(1) == 0);
    check(connect(ours, (struct sockaddr *)&address, sizeof address) == 0);
    check((theirs = accept(listener, NULL, NULL)) >= 0);
    close(ours);
    close(theirs);
    __atomic_fetch_add(&done, 1, __ATOMIC_RELEASE);
    pause();
    return NULL;
}

/* One after the other, so that each finds less room than the last; they end with the process. */
static void fills(void)
{
    pthread_attr_t attr;
    pthread_t thread;
    listens();
    check(pthread_attr_init(&attr) == 0 && pthread_attr_setstacksize(&attr, 65536) == 0);
    for (unsigned i = 1; i <= MANY; i++) {
        check(pthread_create(&thread, &attr, sleeps_and_accepts, NULL) == 0);
        while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < i)
            nap();
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "fills", fills },
    };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
