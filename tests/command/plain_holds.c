/* SPDX-License-Identifier: MIT */
/*
 * plain_holds.c - as plain.c: locks that are got and held as often as the enumeration says, and for as long.
 */
#include "plain.h"

#include <sys/wait.h>

enum {
    FREE = 40,     /* times that a lock of each kind is got while it is free, */
    TRIED = 7,     /* and tried for */
    NESTED = 5,    /* times, each three deep */
    HELD = 3,      /* times that a lock is held for */
    HOLD_MS = 2,   /* so long */
    PAUSES = 4,    /* waits for a condition */
    MANY = 200,    /* locks at once, which are more than a thread has room for, */
    ROOM = 128,    /* and this is what it has */
    CONTESTED = 5, /* threads that find a lock held */
    ROWS = 60000,  /* locks, each got once */
    ORPHANED = 6,  /* times that a thread ends with a lock, */
};

static pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER, held = PTHREAD_MUTEX_INITIALIZER,
                       many[MANY];
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static pthread_rwlock_t book = PTHREAD_RWLOCK_INITIALIZER;
static pthread_spinlock_t spun;
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;

static void free_ones(void)
{
    check(pthread_spin_init(&spun, PTHREAD_PROCESS_PRIVATE) == 0);
    for (unsigned i = 0; i < FREE; i++) {
        check(pthread_mutex_lock(&plain) == 0); /* free */
        check(pthread_mutex_unlock(&plain) == 0);
        check(pthread_rwlock_rdlock(&book) == 0); /* free */
        check(pthread_rwlock_unlock(&book) == 0);
        check(pthread_rwlock_wrlock(&book) == 0); /* free */
        check(pthread_rwlock_unlock(&book) == 0);
        check(pthread_spin_lock(&spun) == 0); /* free */
        check(pthread_spin_unlock(&spun) == 0);
    }
    for (unsigned i = 0; i < TRIED; i++) {
        check(pthread_mutex_trylock(&plain) == 0); /* tried */
        check(pthread_mutex_trylock(&plain) == EBUSY);
        check(pthread_mutex_unlock(&plain) == 0);
        check(pthread_rwlock_tryrdlock(&book) == 0); /* tried */
        check(pthread_rwlock_trywrlock(&book) == EBUSY);
        check(pthread_rwlock_unlock(&book) == 0);
        check(pthread_rwlock_trywrlock(&book) == 0); /* tried */
        check(pthread_rwlock_unlock(&book) == 0);
        check(pthread_spin_trylock(&spun) == 0); /* tried */
        check(pthread_spin_unlock(&spun) == 0);
    }
}

static void nested(void)
{
    for (unsigned i = 0; i < NESTED; i++) {
        check(pthread_mutex_lock(&recursive) == 0); /* the first */
        check(pthread_mutex_lock(&recursive) == 0); /* once more */
        check(pthread_mutex_trylock(&recursive) == 0);
        for (unsigned n = 0; n < 3; n++)
            check(pthread_mutex_unlock(&recursive) == 0);
        check(pthread_rwlock_rdlock(&book) == 0); /* the first */
        check(pthread_rwlock_rdlock(&book) == 0); /* once more */
        check(pthread_rwlock_tryrdlock(&book) == 0);
        for (unsigned n = 0; n < 3; n++)
            check(pthread_rwlock_unlock(&book) == 0);
    }
}

static void timed(void)
{
    const struct timespec moment = { 0, HOLD_MS * 1000000 };
    for (unsigned i = 0; i < HELD; i++) {
        check(pthread_mutex_lock(&held) == 0); /* for a while */
        check(nanosleep(&moment, NULL) == 0);
        check(pthread_mutex_unlock(&held) == 0);
        check(nanosleep(&moment, NULL) == 0);
    }
}

/* What waits for a condition does not hold the mutex meanwhile. */
static void paused(void)
{
    check(pthread_mutex_lock(&plain) == 0); /* once */
    for (unsigned i = 0; i < PAUSES; i++) {
        struct timespec until = after(CLOCK_REALTIME, HOLD_MS);
        check(pthread_cond_timedwait(&bell, &plain, &until) == ETIMEDOUT);
    }
    check(pthread_mutex_unlock(&plain) == 0);
}

static void *unlock_it(void *unused)
{
    check(pthread_mutex_unlock(&plain) == 0); /* by another thread */
    return unused;
}

/* As libc allows it for a plain mutex. */
static void passed(void)
{
    for (unsigned i = 0; i < HELD; i++) {
        pthread_t thread;
        check(pthread_mutex_lock(&plain) == 0); /* of which nobody sees the end */
        start(&thread, 1, unlock_it);
        join(&thread, 1);
    }
    check(pthread_mutex_lock(&plain) == 0); /* and the next */
    check(pthread_mutex_unlock(&plain) == 0);
}

static void crowd(void)
{
    for (unsigned i = 0; i < MANY; i++) {
        check(pthread_mutex_init(&many[i], NULL) == 0);
        check(pthread_mutex_lock(&many[i]) == 0); /* one of many */
    }
    for (unsigned i = 0; i < MANY; i++)
        check(pthread_mutex_unlock(&many[i]) == 0);
}

static void *end_with(void *m)
{
    check(pthread_mutex_lock(m) == 0); /* until its end */
    return NULL;
}

/* Locked, and then as often tried for. */
static void orphaned(void)
{
    pthread_mutexattr_t robust;
    pthread_mutex_t m;
    void *head;
    size_t bytes;
    if (syscall(SYS_get_robust_list, 0, &head, &bytes) != 0 && errno == ENOSYS)
        not_run("nobody is told here that a lock's owner died, as under qemu-user");
    check(pthread_mutexattr_init(&robust) == 0);
    check(pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST) == 0);
    check(pthread_mutex_init(&m, &robust) == 0);
    for (unsigned i = 0; i < 2 * ORPHANED; i++) {
        pthread_t thread;
        check(pthread_create(&thread, NULL, end_with, &m) == 0);
        join(&thread, 1);
        if (i < ORPHANED)
            check(pthread_mutex_lock(&m) == EOWNERDEAD); /* from the dead */
        else
            check(pthread_mutex_trylock(&m) == EOWNERDEAD); /* from the dead */
        check(pthread_mutex_consistent(&m) == 0);
        check(pthread_mutex_unlock(&m) == 0);
    }
    check(pthread_mutex_destroy(&m) == 0);
}

static void *take(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(pthread_mutex_lock(&plain) == 0); /* which is held */
    check(pthread_mutex_unlock(&plain) == 0);
    return NULL;
}

static void contested(void)
{
    pthread_t threads[CONTESTED];
    check(pthread_mutex_lock(&plain) == 0); /* by the holder */
    start(threads, CONTESTED, take);
    until_all_sleep(CONTESTED);
    check(pthread_mutex_unlock(&plain) == 0);
    join(threads, CONTESTED);
}

/* A row for each, and then one for those that are got again while they are held. */
static void rows(void)
{
    pthread_mutex_t *each = calloc(ROWS, sizeof *each);
    check(each != NULL);
    for (unsigned i = 0; i < ROWS; i++) {
        check(pthread_mutex_lock(&each[i]) == 0); /* of many */
        check(pthread_mutex_unlock(&each[i]) == 0);
    }
    for (unsigned i = 0; i < NESTED; i++) {
        check(pthread_rwlock_rdlock(&book) == 0); /* the last */
        check(pthread_rwlock_rdlock(&book) == 0);
        check(pthread_rwlock_unlock(&book) == 0);
        check(pthread_rwlock_unlock(&book) == 0);
    }
    free(each);
}

/* What is held in the parent when it forks is no hold of the child's. */
static void child(void)
{
    check(pthread_mutex_lock(&plain) == 0); /* over the fork */
    pid_t pid = fork();
    check(pid >= 0);
    check(pthread_mutex_unlock(&plain) == 0);
    if (pid == 0) {
        check(pthread_mutex_lock(&plain) == 0); /* by the child */
        check(pthread_mutex_unlock(&plain) == 0);
        _exit(0);
    }
    int status;
    check(waitpid(pid, &status, 0) == pid && status == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "free", free_ones },    { "nested", nested },
                                           { "timed", timed },       { "paused", paused },
                                           { "passed", passed },     { "crowd", crowd },
                                           { "child", child },       { "contested", contested },
                                           { "orphaned", orphaned }, { "rows", rows } };
    return argc == 2 && PLAY(scenes, argv[1]) ? 0 : 2;
}
