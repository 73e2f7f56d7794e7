/* SPDX-License-Identifier: MIT */
/*
 * plain_answers.c - as plain.c: calls with arguments that are hardly any, each with what it says and what it leaves,
 * which is the same with the library and without. No call waits.
 */
#include "plain.h"

#include <fcntl.h>
#include <poll.h>
#include <semaphore.h>
#include <stdbool.h>
#include <sys/select.h>

static const struct timespec times[] = { { 0, 0 }, { -1, 0 }, { 0, -1 }, { 0, 2000000000 } };
static const clockid_t clocks[] = { CLOCK_REALTIME, CLOCK_MONOTONIC, CLOCK_PROCESS_CPUTIME_ID, 77 };
enum {
    WRONG = 2, /* and above: times that are none */
    TIMES = sizeof times / sizeof *times,
    CLOCKS = sizeof clocks / sizeof *clocks,
    NO_CLOCK = CLOCKS, /* the call that takes none */
};

static int may_end;

/* Each takes an object that is free or not, and tells of it afterwards. */
typedef int answer(bool is_free, int clock, const struct timespec *until, int *after);

static int of_mutex(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    if (!is_free)
        pthread_mutex_lock(&mutex);
    int result = clock == NO_CLOCK ? pthread_mutex_timedlock(&mutex, until)
                                   : pthread_mutex_clocklock(&mutex, clocks[clock], until);
    *after = pthread_mutex_trylock(&mutex);
    return result;
}

static int of_reader(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    if (!is_free)
        pthread_rwlock_wrlock(&lock);
    int result = clock == NO_CLOCK ? pthread_rwlock_timedrdlock(&lock, until)
                                   : pthread_rwlock_clockrdlock(&lock, clocks[clock], until);
    *after = pthread_rwlock_trywrlock(&lock);
    return result;
}

static int of_writer(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
    if (!is_free)
        pthread_rwlock_rdlock(&lock);
    int result = clock == NO_CLOCK ? pthread_rwlock_timedwrlock(&lock, until)
                                   : pthread_rwlock_clockwrlock(&lock, clocks[clock], until);
    *after = pthread_rwlock_tryrdlock(&lock);
    return result;
}

static int of_semaphore(bool is_free, int clock, const struct timespec *until, int *after)
{
    sem_t sem;
    sem_init(&sem, 0, is_free);
    int result = clock == NO_CLOCK ? sem_timedwait(&sem, until)
                                   : sem_clockwait(&sem, clocks[clock], until);
    result = result == 0 ? 0 : errno;
    sem_getvalue(&sem, after);
    return result;
}

static void *ends_when_told(void *unused)
{
    here(0);
    while (!__atomic_load_n(&may_end, __ATOMIC_ACQUIRE))
        nap();
    return unused;
}

/* Free: it has ended, as the kernel says, which has told libc before. */
static int of_join(bool is_free, int clock, const struct timespec *until, int *after)
{
    pthread_t thread;
    __atomic_store_n(&may_end, is_free, __ATOMIC_RELEASE);
    start(&thread, 1, ends_when_told);
    pid_t tid;
    while ((tid = __atomic_load_n(&tids[0], __ATOMIC_ACQUIRE)) == 0)
        nap();
    while (is_free && syscall(SYS_tgkill, getpid(), tid, 0) == 0)
        nap();
    int result = clock == NO_CLOCK ? pthread_timedjoin_np(thread, NULL, until)
                                   : pthread_clockjoin_np(thread, NULL, clocks[clock], until);
    *after = result != 0;
    __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
    if (result != 0)
        join(&thread, 1);
    return result;
}

static void all_times(void)
{
    static const struct {
        const char *name;
        answer *fn;
    } rows[] = { { "mutex", of_mutex },
                 { "reader", of_reader },
                 { "writer", of_writer },
                 { "semaphore", of_semaphore },
                 { "join", of_join } };
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        for (int is_free = 0; is_free < 2; is_free++)
            for (int clock = 0; clock <= NO_CLOCK; clock++)
                for (int time = 0; time < TIMES; time++) {
                    if (rows[row].fn == of_join && !is_free && time >= WRONG)
                        continue; /* for which libc tries again, for ever */
                    int after = 0, said = rows[row].fn(is_free, clock, &times[time], &after);
                    printf("%s %s clock %d time %d: %s, %d after\n", rows[row].name,
                           is_free ? "free" : "held", clock, time,
                           said ? strerrorname_np(said) : "0", after);
                }
}

static void says(const char *name, int result)
{
    printf("%s: %d %s\n", name, result, result < 0 ? strerrorname_np(errno) : "");
}

/* Also by a thread that has found nothing on a descriptor, whose polls are another case. */
static void all_memory(void)
{
    void *volatile nowhere = (void *)8;
    int ends[2];
    char byte;
    check(pipe2(ends, O_NONBLOCK) == 0);
    for (int i = 0; i < 2; i++) {
        struct timeval time = { 1, 0 };
        const struct timespec second = { 1, 0 };
        says("poll", poll(nowhere, 1, 100));
        says("polls", poll(nowhere, 2, 100));
        says("ppoll", ppoll(nowhere, 1, &second, NULL));
        says("select", select(5, nowhere, NULL, NULL, &time));
        says("pselect", pselect(5, NULL, NULL, nowhere, &second, NULL));
        check(read(ends[0], &byte, 1) == -1 && errno == EAGAIN);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "times", all_times }, { "memory", all_memory } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
