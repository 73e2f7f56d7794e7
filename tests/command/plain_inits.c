/* SPDX-License-Identifier: MIT */
/*
 * plain_inits.c - as plain.c: locks and the like that are initialised at places which are known, and waited for once
 * each or as often as the enumeration says.
 */
#include "plain.h"

#include <limits.h>
#include <semaphore.h>
#include <sys/wait.h>
#include <threads.h>

enum {
    HERE = 3,      /* of each kind are initialised here, */
    THERE = 2,     /* and there */
    BEFORE = 4,    /* waits for a lock before it is initialised anew */
    AFTER = 2,     /* and after it */
    TURNS = 6,     /* times that one is made, here and there in turns */
    MANY = 70000,  /* locks, which is more than are kept */
    TAKERS = 2,    /* threads that take them, since one has no room for so many */
    FRESH = 100,   /* locks that are made when those are gone */
    MAKERS = 4,    /* threads that make locks, */
    ROUNDS = 5000, /* so often each */
    RACERS = 2,    /* threads that wait at the same time for what */
    NAMED = 1000,  /* places have made, of each the first to do so */
};

#define FRAME __attribute__((noinline))

static struct things {
    pthread_mutex_t mutex;
    pthread_rwlock_t rwlock;
    pthread_spinlock_t spin;
    pthread_cond_t cond;
    pthread_barrier_t barrier;
    sem_t sem;
    mtx_t mtx;
    cnd_t cnd;
} things[HERE + THERE];

static FRAME void make_here(struct things *t)
{
    check(pthread_mutex_init(&t->mutex, NULL) == 0);                  /* mutex here */
    check(pthread_rwlock_init(&t->rwlock, NULL) == 0);                /* rwlock here */
    check(pthread_spin_init(&t->spin, PTHREAD_PROCESS_PRIVATE) == 0); /* spin here */
    check(pthread_cond_init(&t->cond, NULL) == 0);                    /* cond here */
    check(pthread_barrier_init(&t->barrier, NULL, 2) == 0);           /* barrier here */
    check(sem_init(&t->sem, 0, 0) == 0);                              /* sem here */
    check(mtx_init(&t->mtx, mtx_plain) == thrd_success);              /* mtx here */
    check(cnd_init(&t->cnd) == thrd_success);                         /* cnd here */
}

static FRAME void make_there(struct things *t)
{
    check(pthread_mutex_init(&t->mutex, NULL) == 0);                  /* mutex there */
    check(pthread_rwlock_init(&t->rwlock, NULL) == 0);                /* rwlock there */
    check(pthread_spin_init(&t->spin, PTHREAD_PROCESS_PRIVATE) == 0); /* spin there */
    check(pthread_cond_init(&t->cond, NULL) == 0);                    /* cond there */
    check(pthread_barrier_init(&t->barrier, NULL, 2) == 0);           /* barrier there */
    check(sem_init(&t->sem, 0, 0) == 0);                              /* sem there */
    check(mtx_init(&t->mtx, mtx_plain) == thrd_success);              /* mtx there */
    check(cnd_init(&t->cnd) == thrd_success);                         /* cnd there */
}

static FRAME void unmake(struct things *t)
{
    check(pthread_mutex_destroy(&t->mutex) == 0 && pthread_rwlock_destroy(&t->rwlock) == 0);
    check(pthread_spin_destroy(&t->spin) == 0 && pthread_cond_destroy(&t->cond) == 0);
    check(pthread_barrier_destroy(&t->barrier) == 0 && sem_destroy(&t->sem) == 0);
    mtx_destroy(&t->mtx);
    cnd_destroy(&t->cnd);
}

static void make_all(void)
{
    for (unsigned i = 0; i < HERE + THERE; i++)
        (i < HERE ? make_here : make_there)(&things[i]);
}

/* Every lock once, while it is free. */
static void got(void)
{
    make_all();
    for (unsigned i = 0; i < HERE + THERE; i++) {
        struct things *t = &things[i];
        check(pthread_mutex_lock(&t->mutex) == 0 && pthread_mutex_unlock(&t->mutex) == 0);
        check(pthread_rwlock_rdlock(&t->rwlock) == 0 && pthread_rwlock_unlock(&t->rwlock) == 0);
        check(pthread_spin_lock(&t->spin) == 0 && pthread_spin_unlock(&t->spin) == 0);
        check(mtx_lock(&t->mtx) == thrd_success && mtx_unlock(&t->mtx) == thrd_success);
        unmake(t);
    }
}

static int is_open; /* under the lock of the condition that is waited for */

static void *wait_for_mutex(void *thing)
{
    struct things *t = thing;
    here(0);
    check(pthread_mutex_lock(&t->mutex) == 0 && pthread_mutex_unlock(&t->mutex) == 0);
    return NULL;
}

static void *wait_for_rwlock(void *thing)
{
    struct things *t = thing;
    here(0);
    check(pthread_rwlock_wrlock(&t->rwlock) == 0 && pthread_rwlock_unlock(&t->rwlock) == 0);
    return NULL;
}

static void *wait_for_mtx(void *thing)
{
    struct things *t = thing;
    here(0);
    check(mtx_lock(&t->mtx) == thrd_success && mtx_unlock(&t->mtx) == thrd_success);
    return NULL;
}

static void *wait_for_sem(void *thing)
{
    struct things *t = thing;
    here(0);
    check(sem_wait(&t->sem) == 0);
    return NULL;
}

static void *wait_for_barrier(void *thing)
{
    struct things *t = thing;
    here(0);
    check(pthread_barrier_wait(&t->barrier) <= 0);
    return NULL;
}

static void *wait_for_cond(void *thing)
{
    struct things *t = thing;
    check(pthread_mutex_lock(&t->mutex) == 0);
    here(0);
    while (!is_open)
        check(pthread_cond_wait(&t->cond, &t->mutex) == 0);
    check(pthread_mutex_unlock(&t->mutex) == 0);
    return NULL;
}

static void *wait_for_cnd(void *thing)
{
    struct things *t = thing;
    check(mtx_lock(&t->mtx) == thrd_success);
    here(0);
    while (!is_open)
        check(cnd_wait(&t->cnd, &t->mtx) == thrd_success);
    check(mtx_unlock(&t->mtx) == thrd_success);
    return NULL;
}

static pthread_t waiter;

static void until_waits(struct things *t, void *(*wait)(void *))
{
    memset(tids, 0, sizeof tids);
    check(pthread_create(&waiter, NULL, wait, t) == 0);
    until_sleeps(&tids[0]);
}

static void wait_for_locks(struct things *t)
{
    check(pthread_mutex_lock(&t->mutex) == 0);
    until_waits(t, wait_for_mutex);
    check(pthread_mutex_unlock(&t->mutex) == 0);
    join(&waiter, 1);
    check(pthread_rwlock_wrlock(&t->rwlock) == 0);
    until_waits(t, wait_for_rwlock);
    check(pthread_rwlock_unlock(&t->rwlock) == 0);
    join(&waiter, 1);
    check(mtx_lock(&t->mtx) == thrd_success);
    until_waits(t, wait_for_mtx);
    check(mtx_unlock(&t->mtx) == thrd_success);
    join(&waiter, 1);
}

static void wait_for_others(struct things *t)
{
    until_waits(t, wait_for_sem);
    check(sem_post(&t->sem) == 0);
    join(&waiter, 1);
    until_waits(t, wait_for_barrier);
    check(pthread_barrier_wait(&t->barrier) <= 0);
    join(&waiter, 1);
    until_waits(t, wait_for_cond);
    check(pthread_mutex_lock(&t->mutex) == 0);
    is_open = 1;
    check(pthread_cond_signal(&t->cond) == 0);
    check(pthread_mutex_unlock(&t->mutex) == 0);
    join(&waiter, 1);
    is_open = 0;
    until_waits(t, wait_for_cnd);
    check(mtx_lock(&t->mtx) == thrd_success);
    is_open = 1;
    check(cnd_signal(&t->cnd) == thrd_success);
    check(mtx_unlock(&t->mtx) == thrd_success);
    join(&waiter, 1);
    is_open = 0;
}

/* Everything once that a thread can sleep for. */
static void waited(void)
{
    make_all();
    for (unsigned i = 0; i < HERE + THERE; i++) {
        wait_for_locks(&things[i]);
        wait_for_others(&things[i]);
        unmake(&things[i]);
    }
}

static void wait_often(struct things *t, unsigned times)
{
    for (unsigned i = 0; i < times; i++) {
        check(pthread_mutex_lock(&t->mutex) == 0);
        until_waits(t, wait_for_mutex);
        check(pthread_mutex_unlock(&t->mutex) == 0);
        join(&waiter, 1);
        until_waits(t, wait_for_sem);
        check(sem_post(&t->sem) == 0);
        join(&waiter, 1);
    }
}

/* The same memory, time after time. */
static void anew(void)
{
    struct things *t = &things[0];
    make_here(t);
    wait_often(t, BEFORE);
    unmake(t);
    make_there(t);
    wait_often(t, AFTER);
    make_here(t); /* and nobody has destroyed it */
    wait_often(t, 1);
    unmake(t);
    t->mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    check(pthread_mutex_lock(&t->mutex) == 0);
    until_waits(t, wait_for_mutex); /* by no call */
    check(pthread_mutex_unlock(&t->mutex) == 0);
    join(&waiter, 1);
}

/* It is got at one place, as another lock or as the same one, in no order that repeats. */
static void turns(void)
{
    struct things *t = &things[0];
    for (unsigned i = 0; i < TURNS; i++) {
        ((i + 1) / 2 % 2 ? make_there : make_here)(t);
        check(pthread_mutex_lock(&t->mutex) == 0 && pthread_mutex_unlock(&t->mutex) == 0);
        unmake(t);
    }
}

static void child(void)
{
    struct things *mine = &things[0], *ours = &things[1];
    make_here(mine);
    make_here(ours);
    wait_often(ours, 1);
    pid_t pid = fork();
    if (pid == 0) {
        make_there(mine); /* which is the child's own by now */
        wait_often(mine, AFTER);
        wait_often(ours, 1);
        _exit(0);
    }
    int status;
    check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    wait_often(mine, BEFORE);
}

static pthread_mutex_t *many;

static void *take_many(void *i)
{
    for (uintptr_t at = (uintptr_t)i; at < MANY; at += TAKERS)
        check(pthread_mutex_lock(&many[at]) == 0 && pthread_mutex_unlock(&many[at]) == 0);
    return NULL;
}

static void take_all(unsigned count)
{
    pthread_t threads[TAKERS];
    start(threads, TAKERS, take_many);
    join(threads, TAKERS);
    for (unsigned i = 0; i < MANY; i++)
        check(pthread_mutex_destroy(&many[i]) == 0);
    for (unsigned i = 0; i < count; i++) {
        check(pthread_mutex_init(&many[i], NULL) == 0); /* fresh */
        check(pthread_mutex_lock(&many[i]) == 0 && pthread_mutex_unlock(&many[i]) == 0);
    }
}

static void crowd(void)
{
    check((many = calloc(MANY, sizeof *many)) != NULL);
    for (unsigned i = 0; i < MANY; i++)
        check(pthread_mutex_init(&many[i], NULL) == 0); /* many */
    take_all(FRESH);
}

/* Neighbours in memory are other threads'. */
static void *make_often(void *i)
{
    for (unsigned round = 0; round < ROUNDS; round++) {
        pthread_mutex_t *mutex = &many[round % FRESH * MAKERS + (uintptr_t)i];
        if ((uintptr_t)i % 2)
            check(pthread_mutex_init(mutex, NULL) == 0); /* odd */
        else
            check(pthread_mutex_init(mutex, NULL) == 0); /* even */
        check(pthread_mutex_lock(mutex) == 0 && pthread_mutex_unlock(mutex) == 0);
        if (round % 3)
            check(pthread_mutex_destroy(mutex) == 0);
    }
    return NULL;
}

static void makers(void)
{
    pthread_t threads[MAKERS];
    check((many = calloc((size_t)FRESH * MAKERS, sizeof *many)) != NULL);
    start(threads, MAKERS, make_often);
    join(threads, MAKERS);
}

#define PLACE check(sem_init(&named[place++], 0, 0) == 0);
#define TEN(what) what what what what what what what what what what

static sem_t named[NAMED];
static unsigned arrived;

/* Each at the same moment as the others, and for a time that has passed. */
static void *wait_first(void *unused)
{
    const struct timespec past = { 0, 0 };
    for (unsigned i = 0; i < NAMED; i++) {
        __atomic_add_fetch(&arrived, 1, __ATOMIC_ACQ_REL);
        while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < RACERS * (i + 1))
            ;
        check(sem_timedwait(&named[i], &past) == -1 && errno == ETIMEDOUT);
    }
    return unused;
}

static void race(void)
{
    pthread_t threads[RACERS];
    unsigned place = 0;
    TEN(TEN(TEN(PLACE)))
    check(place == NAMED);
    start(threads, RACERS, wait_first);
    join(threads, RACERS);
}

/* What cannot be initialised, and what is destroyed in use, is what it was. */
static void refused(void)
{
    struct things *t = &things[0];
    make_here(t);
    check(sem_init(&t->sem, 0, (unsigned)SEM_VALUE_MAX + 1) == -1 && errno == EINVAL);
    check(pthread_barrier_init(&t->barrier, NULL, 0) == EINVAL);
    check(pthread_mutex_lock(&t->mutex) == 0);
    check(pthread_mutex_destroy(&t->mutex) == EBUSY);
    until_waits(t, wait_for_mutex);
    check(pthread_mutex_unlock(&t->mutex) == 0);
    join(&waiter, 1);
    until_waits(t, wait_for_sem);
    check(sem_post(&t->sem) == 0);
    join(&waiter, 1);
    unmake(t);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "got", got },         { "waited", waited },
                                           { "anew", anew },       { "child", child },
                                           { "crowd", crowd },     { "makers", makers },
                                           { "refused", refused }, { "turns", turns },
                                           { "race", race } };
    return argc == 2 && PLAY(scenes, argv[1]) ? 0 : 2;
}
