/* SPDX-License-Identifier: MIT */
/*
 * plain.c - a program of POSIX threads alone, which waits in known ways: as often as the enumeration says, in the
 * scene that is its argument. It checks what its calls return, and ends with 1 where that is not what POSIX has.
 *
 * A waiter is there when the kernel says that its thread sleeps.
 */
#include "plain.h"

#include <signal.h>
#include <sys/wait.h>

enum {
    HOLD_MS = 30, /* a lock is held for so long when WAITERS sleep */
    TIMED = 4,    /* give up a lock by pthread_mutex_timedlock, */
    CLOCKED = 3,  /* by pthread_mutex_clocklock */
    HERD = 8,     /* wait for one broadcast, */
    ROUNDS = 5,   /* so often */
    SIGNALS = 7,  /* of a condition that nobody waits for */
    BROADCASTS = 3,
    POSTS = 12,   /* signals that a thread waits for, */
    VAIN = 5,     /* of which so many are for nothing */
    TIMEOUTS = 4, /* of waits for a condition */
};

static pthread_mutex_t hot = PTHREAD_MUTEX_INITIALIZER, gate = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER, nobody = PTHREAD_COND_INITIALIZER;
static unsigned generation, posted; /* under gate */

static void *want(void *i)
{
    here((unsigned)(uintptr_t)i);
    pthread_mutex_lock(&hot);
    pthread_mutex_unlock(&hot); /* by a waiter */
    return NULL;
}

static void mutex(void)
{
    pthread_t threads[WAITERS];
    struct timespec held = { 0, HOLD_MS * 1000000L };
    pthread_mutex_lock(&hot); /* by the holder */
    start(threads, WAITERS, want);
    until_all_sleep(WAITERS);
    syscall(SYS_nanosleep, &held, NULL);
    pthread_mutex_unlock(&hot); /* by the holder */
    join(threads, WAITERS);
}

static void *give_up(void *unused)
{
    for (unsigned i = 0; i < TIMED; i++) {
        struct timespec until = after(CLOCK_REALTIME, 5);
        check(pthread_mutex_timedlock(&hot, &until) == ETIMEDOUT);
    }
    for (unsigned i = 0; i < CLOCKED; i++) {
        struct timespec until = after(CLOCK_MONOTONIC, 5);
        check(pthread_mutex_clocklock(&hot, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
    }
    check(pthread_mutex_trylock(&hot) == EBUSY);
    return unused;
}

static void timed(void)
{
    pthread_t thread;
    pthread_mutex_lock(&hot);
    start(&thread, 1, give_up);
    join(&thread, 1);
    pthread_mutex_unlock(&hot);
}

static void *herd(void *i)
{
    pthread_mutex_lock(&gate);
    for (unsigned round = 0; round < ROUNDS; round++) {
        here((unsigned)(uintptr_t)i);
        while (generation == round)
            pthread_cond_wait(&opened, &gate); /* in a herd */
        pthread_mutex_unlock(&gate);
        pthread_mutex_lock(&gate);
    }
    pthread_mutex_unlock(&gate);
    return NULL;
}

static void broadcasts(void)
{
    pthread_t threads[HERD];
    start(threads, HERD, herd);
    for (unsigned round = 0; round < ROUNDS; round++) {
        until_all_sleep(HERD);
        pthread_mutex_lock(&gate);
        memset(tids, 0, sizeof tids);
        generation++;
        pthread_cond_broadcast(&opened); /* to a herd */
        pthread_mutex_unlock(&gate);
    }
    join(threads, HERD);
    for (unsigned i = 0; i < SIGNALS; i++)
        pthread_cond_signal(&nobody);
    for (unsigned i = 0; i < BROADCASTS; i++)
        pthread_cond_broadcast(&nobody);
}

static void *take(void *unused)
{
    for (unsigned taken = 0; taken < POSTS - VAIN; taken++) {
        pthread_mutex_lock(&gate);
        here(0);
        while (!posted) {
            pthread_cond_wait(&opened, &gate); /* for a post */
            here(0);
        }
        posted--;
        pthread_mutex_unlock(&gate);
    }
    return unused;
}

static void signals(void)
{
    pthread_t thread;
    start(&thread, 1, take);
    for (unsigned i = 0; i < POSTS; i++) {
        until_sleeps(&tids[0]);
        pthread_mutex_lock(&gate);
        tids[0] = 0;
        posted += i >= VAIN;
        pthread_cond_signal(&opened); /* a post */
        pthread_mutex_unlock(&gate);
    }
    join(&thread, 1);
}

static void timeouts(void)
{
    pthread_mutex_lock(&gate);
    for (unsigned i = 0; i < TIMEOUTS; i++) {
        struct timespec until = after(CLOCK_REALTIME, 5);
        check(pthread_cond_timedwait(&nobody, &gate, &until) == ETIMEDOUT);
    }
    struct timespec until = after(CLOCK_MONOTONIC, 5), never = { 0, -1 };
    check(pthread_cond_clockwait(&nobody, &gate, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
    check(pthread_cond_timedwait(&nobody, &gate, &never) == EINVAL);
    pthread_mutex_unlock(&gate);
}

static void let_go(void *unused)
{
    (void)unused;
    check(pthread_mutex_unlock(&gate) == 0);
}

static void *be_cancelled(void *unused)
{
    pthread_mutex_lock(&gate);
    here(0);
    pthread_cleanup_push(let_go, NULL);
    for (;;)
        pthread_cond_wait(&nobody, &gate); /* until cancelled */
    pthread_cleanup_pop(0);
    return unused;
}

static void cancelled(void)
{
    pthread_t thread;
    void *result;
    start(&thread, 1, be_cancelled);
    until_sleeps(&tids[0]);
    check(pthread_cancel(thread) == 0);
    while (pthread_tryjoin_np(thread, &result) != 0)
        nap();
    check(result == PTHREAD_CANCELED);
    pthread_cond_signal(&nobody); /* which has no waiter: it has left the queue */
}

static void *die_with(void *m)
{
    check(pthread_mutex_lock(m) == 0);
    return NULL;
}

/* What the types of mutexes return. */
static void types(void)
{
    pthread_mutexattr_t attr;
    pthread_mutex_t m;
    pthread_t thread;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    check(pthread_mutex_init(&m, &attr) == 0 && pthread_mutex_unlock(&m) == EPERM);
    check(pthread_mutex_lock(&m) == 0 && pthread_mutex_lock(&m) == EDEADLK);
    check(pthread_mutex_unlock(&m) == 0 && pthread_mutex_destroy(&m) == 0);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    check(pthread_mutex_init(&m, &attr) == 0 && pthread_mutex_lock(&m) == 0);
    check(pthread_mutex_lock(&m) == 0 && pthread_mutex_unlock(&m) == 0);
    check(pthread_mutex_unlock(&m) == 0 && pthread_mutex_unlock(&m) == EPERM);
    pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    check(pthread_mutex_init(&m, &attr) == 0 && pthread_mutex_lock(&m) == 0);
    check(pthread_mutex_unlock(&m) == 0);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    check(pthread_mutex_init(&m, &attr) == 0);
    check(pthread_create(&thread, NULL, die_with, &m) == 0);
    join(&thread, 1);
    check(pthread_mutex_lock(&m) == EOWNERDEAD && pthread_mutex_consistent(&m) == 0);
    check(pthread_mutex_unlock(&m) == 0 && pthread_mutex_lock(&m) == 0);
    errno = 77;
    check(pthread_mutex_unlock(&m) == 0 && errno == 77);
}

static void fork_as(uid_t user)
{
    int status;
    mutex();
    pid_t pid = fork();
    if (pid == 0) {
        check(user == getuid() || (setgid(user) == 0 && setuid(user) == 0));
        mutex();
        exit(5);
    }
    check(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 5);
}

static void forks(void)
{
    fork_as(getuid());
}

/* The child is nobody before it waits. */
static void drops(void)
{
    fork_as(65534);
}

static void *wait_for_ever(void *unused)
{
    pthread_mutex_lock(&gate);
    here(0);
    for (;;)
        pthread_cond_wait(&nobody, &gate); /* for ever */
    return unused;
}

/* Its end comes while a thread waits. */
static void at_once(void)
{
    pthread_t thread;
    start(&thread, 1, wait_for_ever);
    until_sleeps(&tids[0]);
}

static void *nothing(void *unused)
{
    return unused;
}

static void many(unsigned long count)
{
    pthread_t thread; /* libc takes short cuts in a process of one thread */
    check(pthread_create(&thread, NULL, nothing, NULL) == 0);
    join(&thread, 1);
    struct timespec begin = after(CLOCK_MONOTONIC, 0), end;
    for (unsigned long i = 0; i < count; i++) {
        pthread_mutex_lock(&hot);
        pthread_mutex_unlock(&hot);
    }
    end = after(CLOCK_MONOTONIC, 0);
    printf("%.2f ns\n",
           ((double)(end.tv_sec - begin.tv_sec) * 1e9 + (double)(end.tv_nsec - begin.tv_nsec)) /
               (double)count);
}

static const struct scene scenes[] = {
    { "mutex", mutex },         { "timed", timed },       { "broadcasts", broadcasts },
    { "signals", signals },     { "timeouts", timeouts }, { "types", types },
    { "cancelled", cancelled }, { "fork", forks },        { "drop", drops }
};

int main(int argc, char **argv)
{
    const char *scene = argc > 1 ? argv[1] : "nothing";
    if (strcmp(scene, "nothing") == 0)
        return argc > 2 ? atoi(argv[2]) : 0;
    if (strcmp(scene, "many") == 0) {
        many(strtoul(argv[2], NULL, 10));
    } else if (strcmp(scene, "exec") == 0) {
        execl("/proc/self/exe", argv[0], "mutex", (char *)NULL);
        check(0);
    } else if (strcmp(scene, "_exit") == 0) {
        mutex();
        at_once();
        _exit(9);
    } else if (strcmp(scene, "kill") == 0) {
        mutex();
        at_once();
        raise(SIGKILL);
    } else if (strcmp(scene, "stuck") == 0) {
        at_once();
        raise(SIGKILL);
    } else if (strcmp(scene, "stdin") == 0) {
        for (int c; (c = getchar()) != EOF;)
            putchar(c);
        fputs("to standard error\n", stderr);
    } else if (strcmp(scene, "sleep") == 0) {
        puts("ready");
        fflush(stdout);
        pause();
    } else {
        check(PLAY(scenes, scene));
    }
    return 0;
}
