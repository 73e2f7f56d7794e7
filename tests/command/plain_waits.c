/* SPDX-License-Identifier: MIT */
/*
 * plain_waits.c - as plain.c, for all but mutexes and conditions: threads that wait for locks, semaphores, each other and
 * the time, as often as the enumeration says.
 */
#include "plain.h"

#include <poll.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/select.h>
#include <threads.h>

enum {
    READERS = 5, /* and */
    WRITERS = 2, /* wait for a lock that is held for writing */
    POSTS = 9,   /* of a semaphore that a thread waits for */
    PARTIES = 6, /* of a barrier, */
    TURNS = 4,   /* so often */
    CALLERS = 4, /* of pthread_once */
    SLEEPS = 5,  /* of each sort */
    NAP_MS = 3,
};

static pthread_rwlock_t book = PTHREAD_RWLOCK_INITIALIZER;
static pthread_barrier_t meeting;
static pthread_once_t first = PTHREAD_ONCE_INIT;
static pthread_spinlock_t spun;
static sem_t items, never;
static mtx_t c11_lock;
static cnd_t c11_cond;
static int is_open, is_there; /* is_open: under c11_lock */

static void *read_it(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(pthread_rwlock_rdlock(&book) == 0);
    check(pthread_rwlock_unlock(&book) == 0); /* by a reader */
    return NULL;
}

static void *write_it(void *i)
{
    here(READERS + (unsigned)(uintptr_t)i);
    check(pthread_rwlock_wrlock(&book) == 0);
    check(pthread_rwlock_unlock(&book) == 0); /* by a writer */
    return NULL;
}

static void rwlock(void)
{
    pthread_t readers[READERS], writers[WRITERS];
    struct timespec until;
    check(pthread_rwlock_wrlock(&book) == 0); /* by the holder */
    start(readers, READERS, read_it);
    for (unsigned i = 0; i < WRITERS; i++)
        check(pthread_create(&writers[i], NULL, write_it, (void *)(uintptr_t)i) == 0);
    until_all_sleep(READERS + WRITERS);
    check(pthread_rwlock_unlock(&book) == 0); /* by the holder */
    join(readers, READERS);
    join(writers, WRITERS);
    check(pthread_rwlock_rdlock(&book) == 0);
    until = after(CLOCK_REALTIME, NAP_MS);
    check(pthread_rwlock_timedwrlock(&book, &until) == ETIMEDOUT);
    until = after(CLOCK_MONOTONIC, NAP_MS);
    check(pthread_rwlock_clockwrlock(&book, CLOCK_MONOTONIC, &until) == ETIMEDOUT);
    check(pthread_rwlock_trywrlock(&book) == EBUSY && pthread_rwlock_tryrdlock(&book) == 0);
    check(pthread_rwlock_unlock(&book) == 0 && pthread_rwlock_unlock(&book) == 0);
    check(pthread_rwlock_wrlock(&book) == 0 && pthread_rwlock_wrlock(&book) == EDEADLK);
    check(pthread_rwlock_unlock(&book) == 0);
}

static void *take(void *unused)
{
    for (unsigned i = 0; i < POSTS; i++) {
        here(0);
        check(sem_wait(&items) == 0);
    }
    return unused;
}

static void sem(void)
{
    pthread_t thread;
    check(sem_init(&items, 0, 0) == 0);
    start(&thread, 1, take);
    for (unsigned i = 0; i < POSTS; i++) {
        until_sleeps(&tids[0]);
        tids[0] = 0;
        check(sem_post(&items) == 0); /* to who waits */
    }
    join(&thread, 1);
    struct timespec until = after(CLOCK_REALTIME, NAP_MS);
    check(sem_timedwait(&items, &until) == -1 && errno == ETIMEDOUT);
    until = after(CLOCK_MONOTONIC, NAP_MS);
    check(sem_clockwait(&items, CLOCK_MONOTONIC, &until) == -1 && errno == ETIMEDOUT);
    errno = 77;
    check(sem_post(&items) == 0 && sem_wait(&items) == 0 && errno == 77);
}

static void *meet(void *unused)
{
    for (unsigned i = 0; i < TURNS; i++) {
        int result = pthread_barrier_wait(&meeting); /* all of them */
        check(result == 0 || result == PTHREAD_BARRIER_SERIAL_THREAD);
    }
    return unused;
}

static void barrier(void)
{
    pthread_t threads[PARTIES];
    check(pthread_barrier_init(&meeting, NULL, PARTIES) == 0);
    start(threads, PARTIES, meet);
    join(threads, PARTIES);
}

static void do_once(void)
{
    check(!is_there);
    until_all_sleep(CALLERS - 1);
    is_there = 1;
}

static void *call_it(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(pthread_once(&first, do_once) == 0 && is_there);
    return NULL;
}

/* The main thread is the one that does it: the others are made by its routine's caller when it has begun. */
static pthread_t callers[CALLERS - 1];

static void start_and_do(void)
{
    start(callers, CALLERS - 1, call_it);
    do_once();
}

static void once(void)
{
    check(pthread_once(&first, start_and_do) == 0); /* the one that does it */
    join(callers, CALLERS - 1);
}

static void *be_joined(void *main_tid)
{
    pthread_mutex_t mine = PTHREAD_MUTEX_INITIALIZER;
    check(pthread_mutex_lock(&mine) == 0); /* by which it is known */
    until_sleeps(main_tid);
    check(pthread_mutex_unlock(&mine) == 0);
    return main_tid;
}

static void joins(void)
{
    pid_t self = getpid();
    pthread_t thread;
    void *value = NULL;
    check(pthread_create(&thread, NULL, be_joined, &self) == 0);
    check(pthread_join(thread, &value) == 0 && value == &self);
    check(pthread_create(&thread, NULL, be_joined, &self) == 0);
    struct timespec until = after(CLOCK_REALTIME, 60000);
    check(pthread_timedjoin_np(thread, NULL, &until) == 0);
    check(pthread_join(pthread_self(), NULL) == EDEADLK);
}

static void *spin_on_it(void *unused)
{
    __atomic_store_n(&is_there, 1, __ATOMIC_RELEASE);
    check(pthread_spin_lock(&spun) == 0); /* which is held */
    check(pthread_spin_unlock(&spun) == 0);
    return unused;
}

static void spin(void)
{
    pthread_t thread;
    check(pthread_spin_init(&spun, PTHREAD_PROCESS_PRIVATE) == 0 && pthread_spin_lock(&spun) == 0);
    start(&thread, 1, spin_on_it);
    while (!__atomic_load_n(&is_there, __ATOMIC_ACQUIRE))
        sched_yield();
    for (unsigned i = 0; i < 100; i++)
        nap();
    check(pthread_spin_unlock(&spun) == 0);
    join(&thread, 1);
}

static pthread_mutex_t held_by_runner = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t held_by_sleeper = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t inherits;

static void *want_held(void *unused)
{
    pid_t holder = getpid();
    __atomic_store_n(&is_there, 1, __ATOMIC_RELEASE);
    check(pthread_mutex_lock(&held_by_runner) == 0);
    check(pthread_mutex_unlock(&held_by_runner) == 0);
    here(0);
    check(pthread_mutex_lock(&inherits) == 0);
    check(pthread_mutex_unlock(&inherits) == 0);
    while (__atomic_load_n(&is_there, __ATOMIC_ACQUIRE) != 2)
        nap();
    until_sleeps(&holder);
    check(pthread_mutex_lock(&held_by_sleeper) == 0);
    check(pthread_mutex_unlock(&held_by_sleeper) == 0);
    return unused;
}

/* The thread does what it should do, or has been doing the other for long. */
static void until_sleeps_or_tries(void)
{
    while (__atomic_load_n(&tids[0], __ATOMIC_ACQUIRE) == 0)
        nap();
    for (unsigned i = 0; i < 2000 && state_of(tids[0]) != 'S'; i++)
        nap();
}

/* Held by one that runs, by one that runs and inherits priority, and by one that is known to wait. */
static void held(void)
{
    const struct timespec long_enough = { 0, 100000000 };
    pthread_mutexattr_t attr;
    pthread_t thread;
    check(pthread_mutexattr_init(&attr) == 0);
    check(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT) == 0);
    check(pthread_mutex_init(&inherits, &attr) == 0 && pthread_mutex_lock(&inherits) == 0);
    check(pthread_mutex_lock(&held_by_runner) == 0);
    start(&thread, 1, want_held);
    while (!__atomic_load_n(&is_there, __ATOMIC_ACQUIRE))
        sched_yield();
    for (unsigned i = 0; i < 100; i++)
        nap();
    check(pthread_mutex_unlock(&held_by_runner) == 0);
    until_sleeps_or_tries();
    check(pthread_mutex_unlock(&inherits) == 0);
    check(pthread_mutex_lock(&held_by_sleeper) == 0);
    __atomic_store_n(&is_there, 2, __ATOMIC_RELEASE);
    check(nanosleep(&long_enough, NULL) == 0);
    check(pthread_mutex_unlock(&held_by_sleeper) == 0);
    join(&thread, 1);
}

static pthread_mutex_t robust;

static void *want_robust(void *unused)
{
    here(0);
    check(pthread_mutex_lock(&robust) == 0);
    check(pthread_mutex_unlock(&robust) == 0);
    return unused;
}

static void held_and_robust(void)
{
    pthread_mutexattr_t attr;
    pthread_t thread;
    check(pthread_mutexattr_init(&attr) == 0);
    check(pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST) == 0);
    check(pthread_mutex_init(&robust, &attr) == 0 && pthread_mutex_lock(&robust) == 0);
    start(&thread, 1, want_robust);
    until_sleeps_or_tries();
    check(pthread_mutex_unlock(&robust) == 0);
    join(&thread, 1);
}

static void *want_c11(void *unused)
{
    here(0);
    check(mtx_lock(&c11_lock) == thrd_success); /* which is held */
    check(mtx_unlock(&c11_lock) == thrd_success);
    check(mtx_lock(&c11_lock) == thrd_success);
    here(1);
    while (!is_open)
        check(cnd_wait(&c11_cond, &c11_lock) == thrd_success);
    check(mtx_unlock(&c11_lock) == thrd_success);
    return unused;
}

static void c11(void)
{
    pthread_t thread;
    struct timespec until;
    check(mtx_init(&c11_lock, mtx_timed) == thrd_success && cnd_init(&c11_cond) == thrd_success);
    check(mtx_lock(&c11_lock) == thrd_success);
    start(&thread, 1, want_c11);
    until_sleeps(&tids[0]);
    check(mtx_trylock(&c11_lock) == thrd_busy);
    check(mtx_unlock(&c11_lock) == thrd_success);
    until_sleeps(&tids[1]);
    check(mtx_lock(&c11_lock) == thrd_success);
    is_open = 1;
    check(cnd_signal(&c11_cond) == thrd_success); /* of C11 */
    check(mtx_unlock(&c11_lock) == thrd_success);
    join(&thread, 1);
    check(mtx_lock(&c11_lock) == thrd_success);
    until = after(CLOCK_REALTIME, NAP_MS);
    check(cnd_timedwait(&c11_cond, &c11_lock, &until) == thrd_timedout);
    check(mtx_unlock(&c11_lock) == thrd_success);
}

static void sleeps(void)
{
    const struct timespec little = { 0, NAP_MS * 1000000L }, wrong = { 0, -1 };
    for (unsigned i = 0; i < SLEEPS; i++) {
        struct timeval tv = { 0, NAP_MS * 1000L };
        check(nanosleep(&little, NULL) == 0);
        struct timespec until = after(CLOCK_MONOTONIC, NAP_MS);
        check(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == 0);
        check(usleep(NAP_MS * 1000) == 0);
        check(thrd_sleep(&little, NULL) == 0);
        check(poll(NULL, 0, NAP_MS) == 0);
        check(select(0, NULL, NULL, NULL, &tv) == 0);
        check(sched_yield() == 0);
    }
    check(sleep(0) == 0);
    check(nanosleep(&wrong, NULL) == -1 && errno == EINVAL);
    check(clock_nanosleep(CLOCK_MONOTONIC, 0, &wrong, NULL) == EINVAL);
}

static void *wait_for_nobody(void *unused)
{
    here(0);
    while (sem_wait(&never) != 0)
        ;
    return unused;
}

/* It waits, and goes on waiting, when it gets its name. */
static void names(void)
{
    pthread_t thread;
    check(sem_init(&never, 0, 0) == 0);
    start(&thread, 1, wait_for_nobody);
    until_sleeps(&tids[0]);
    check(pthread_setname_np(thread, "named later") == 0);
    check(pthread_setname_np(thread, "a name of 16 ...") == ERANGE);
    check(pthread_setname_np(pthread_self(), "main") == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "rwlock", rwlock },   { "sem", sem },
                                           { "barrier", barrier }, { "once", once },
                                           { "join", joins },      { "spin", spin },
                                           { "held", held },       { "c11", c11 },
                                           { "sleep", sleeps },    { "robust", held_and_robust },
                                           { "names", names } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
