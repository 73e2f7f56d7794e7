/* SPDX-License-Identifier: MIT */
/*
 * plain_broken.c - as plain.c: threads whose waits end as few do, and threads that there is no room for.
 */
#include "plain.h"

#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum {
    MANY = 200, /* threads, for which 1 MiB has no room */
    HERD = 4,   /* threads that wait for one word */
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

static uint32_t word;
static sem_t item;
static __thread sigjmp_buf out;

static void jump(int number)
{
    (void)number;
    siglongjmp(out, 1);
}

static void go(int number)
{
    (void)number;
    pthread_exit(NULL);
}

static void *waits_for_word(void *i)
{
    here((unsigned)(uintptr_t)i);
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0)
        syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0); /* in a herd */
    return NULL;
}

static void *waits_for_cancel(void *unused)
{
    check(pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL) == 0);
    return waits_for_word(unused);
}

static void *jumps_from_word(void *unused)
{
    return sigsetjmp(out, 1) == 0 ? waits_for_word(unused) : NULL;
}

static void *jumps_from_item(void *unused)
{
    here(0);
    if (sigsetjmp(out, 1) == 0)
        sem_wait(&item);
    return unused;
}

static void catch_it(int number, void (*handler)(int))
{
    struct sigaction action = { .sa_handler = handler };
    check(sigaction(number, &action, NULL) == 0);
}

/* A thread ends in the middle of its wait; those that come after it find the queue whole. */
static void ends(void)
{
    void *(*const each[])(void *) = { waits_for_cancel, jumps_from_word, waits_for_word,
                                      jumps_from_item };
    const int by[] = { 0, SIGUSR1, SIGUSR2, SIGUSR1 };
    pthread_t thread, herd[HERD];
    catch_it(SIGUSR1, jump);
    catch_it(SIGUSR2, go);
    check(sem_init(&item, 0, 0) == 0);
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++) {
        start(&thread, 1, each[i]);
        until_sleeps(&tids[0]);
        check((by[i] ? pthread_kill(thread, by[i]) : pthread_cancel(thread)) == 0);
        join(&thread, 1);
        start(herd, HERD, waits_for_word);
        until_all_sleep(HERD);
        __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
        check(syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) >= 0);
        join(herd, HERD);
        __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
    }
}

static pthread_mutex_t hot = PTHREAD_MUTEX_INITIALIZER;

static void *locks(void *is_cancelled)
{
    while (is_cancelled && __atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0) {
    }
    here(0);
    check(pthread_mutex_lock(&hot) == 0); /* which is no place to be cancelled at */
    check(pthread_mutex_unlock(&hot) == 0);
    pthread_testcancel();
    return NULL;
}

/* The first wait of a process is that of a thread which has been cancelled, and has not heard of it. */
static void cancels(void)
{
    for (unsigned i = 0; i < 2; i++) {
        pthread_t thread;
        check(pthread_mutex_lock(&hot) == 0);
        check(pthread_create(&thread, NULL, locks, i == 0 ? &hot : NULL) == 0);
        if (i == 0)
            check(pthread_cancel(thread) == 0);
        __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
        until_sleeps(&tids[0]);
        check(pthread_mutex_unlock(&hot) == 0);
        join(&thread, 1);
        tids[0] = 0;
    }
}

static void reap(pid_t pid, int status)
{
    int found;
    check(pid > 0 && waitpid(pid, &found, 0) == pid && found == status << 8);
}

static void forks_and_cancels(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        cancels();
        exit(6);
    }
    reap(pid, 6);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "fills", fills },
        { "ends", ends },
        { "cancels", forks_and_cancels },
    };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
