/* SPDX-License-Identifier: MIT */
/*
 * plain_churn.c SEED - as plain.c: threads that come and go, and do all that is waited for at once, in an order that
 * the seed gives. It ends if no wake-up is lost, with 0 if what the locks protect is as it has to be.
 */
#include "plain.h"

#include <poll.h>
#include <semaphore.h>
#include <sys/wait.h>

enum {
    GANGS = 12,    /* one after the other */
    MEMBERS = 16,  /* threads of a gang */
    STEPS = 300,   /* that each takes */
    SHARED = 5,    /* objects of each kind */
    TOGETHER = 50, /* steps from one barrier to the next */
};

static pthread_mutex_t mutexes[SHARED], nested;
static unsigned long counts[SHARED], nested_count; /* under them */
static pthread_rwlock_t rwlocks[SHARED];
static unsigned long written[SHARED];
static sem_t sems[SHARED];
static pthread_cond_t conds[SHARED];
static unsigned tickets[SHARED]; /* under the mutex of the same number */
static pthread_barrier_t barrier;
static unsigned long seed;

struct member {
    uint64_t random;
    unsigned long nested, written[SHARED];
};

static unsigned next(struct member *m, unsigned below)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(m->random >> 33) % below;
}

static void count_one(struct member *m)
{
    unsigned i = next(m, SHARED);
    check(pthread_mutex_lock(&mutexes[i]) == 0); /* counted */
    counts[i]++;
    check(pthread_mutex_unlock(&mutexes[i]) == 0);
}

static void nest(struct member *m)
{
    unsigned depth = 1 + next(m, 3);
    for (unsigned i = 0; i < depth; i++) {
        check(pthread_mutex_lock(&nested) == 0);
        nested_count++;
    }
    m->nested += depth;
    for (unsigned i = 0; i < depth; i++)
        check(pthread_mutex_unlock(&nested) == 0);
}

static void read_or_write(struct member *m)
{
    unsigned i = next(m, SHARED);
    if (next(m, 4) == 0) {
        check(pthread_rwlock_wrlock(&rwlocks[i]) == 0);
        written[i]++;
        m->written[i]++;
    } else {
        check(pthread_rwlock_rdlock(&rwlocks[i]) == 0);
    }
    check(pthread_rwlock_unlock(&rwlocks[i]) == 0);
}

/* There are never fewer posts than waits, so that each ends. */
static void post_and_wait(struct member *m)
{
    unsigned i = next(m, SHARED);
    check(sem_post(&sems[i]) == 0);
    check(sem_wait(&sems[i]) == 0);
}

/* Who finds a ticket takes it and wakes one that waits; who finds none leaves one, and waits until it is gone. */
static void meet(struct member *m)
{
    unsigned i = next(m, SHARED);
    const struct timespec past = { 0, 0 };
    check(pthread_mutex_lock(&mutexes[i]) == 0);
    if (next(m, 3) == 0) {
        int result = pthread_cond_timedwait(&conds[i], &mutexes[i], &past);
        check(result == 0 || result == ETIMEDOUT);
    }
    if (tickets[i] > 0) {
        tickets[i]--;
        check((next(m, 2) ? pthread_cond_signal(&conds[i]) : pthread_cond_broadcast(&conds[i])) ==
              0);
    } else {
        struct timespec soon = after(CLOCK_REALTIME, 2);
        tickets[i]++;
        int result = pthread_cond_timedwait(&conds[i], &mutexes[i], &soon);
        check(result == 0 || result == ETIMEDOUT);
    }
    check(pthread_mutex_unlock(&mutexes[i]) == 0);
}

/* What is of a thread's own, and gone with its frame. */
static void use_own(struct member *m)
{
    pthread_mutex_t mutex;
    sem_t sem;
    check(pthread_mutex_init(&mutex, NULL) == 0 && sem_init(&sem, 0, 0) == 0);
    check(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_trylock(&mutex) == EBUSY);
    check(pthread_mutex_unlock(&mutex) == 0);
    const struct timespec past = { 0, 0 };
    check(sem_timedwait(&sem, &past) == -1 && errno == ETIMEDOUT);
    check(sem_destroy(&sem) == 0 && pthread_mutex_destroy(&mutex) == 0);
    if (next(m, 2))
        check(poll(NULL, 0, 0) == 0);
}

static void *count_in(void *member)
{
    nest(member);
    return NULL;
}

static void have_done(struct member *m)
{
    struct member other = { .random = m->random };
    pthread_t thread;
    check(pthread_create(&thread, NULL, count_in, &other) == 0);
    check(pthread_join(thread, NULL) == 0);
    m->nested += other.nested;
}

static void *take_part(void *number)
{
    static void (*const acts[])(struct member *) = { nest,          read_or_write, read_or_write,
                                                     post_and_wait, post_and_wait, meet,
                                                     use_own };
    struct member m = { .random = seed * 1000003 + (uintptr_t)number };
    for (unsigned step = 0; step < STEPS; step++) {
        count_one(&m);
        acts[next(&m, sizeof acts / sizeof *acts)](&m);
        if (next(&m, STEPS) == 0)
            have_done(&m);
        if (step % TOGETHER == 0)
            check(pthread_barrier_wait(&barrier) <= 0);
    }
    struct member *result = malloc(sizeof *result);
    check(result != NULL);
    *result = m;
    return result;
}

static void begin(void)
{
    pthread_mutexattr_t recursive;
    check(pthread_mutexattr_init(&recursive) == 0);
    check(pthread_mutexattr_settype(&recursive, PTHREAD_MUTEX_RECURSIVE) == 0);
    check(pthread_mutex_init(&nested, &recursive) == 0);
    check(pthread_barrier_init(&barrier, NULL, MEMBERS) == 0);
    for (unsigned i = 0; i < SHARED; i++) {
        check(pthread_mutex_init(&mutexes[i], NULL) == 0);
        check(pthread_rwlock_init(&rwlocks[i], NULL) == 0);
        check(pthread_cond_init(&conds[i], NULL) == 0);
        check(sem_init(&sems[i], 0, 0) == 0);
    }
}

static void end(unsigned long nests, const unsigned long writes[SHARED])
{
    unsigned long counted = 0;
    for (unsigned i = 0; i < SHARED; i++) {
        int left = -1;
        counted += counts[i];
        check(written[i] == writes[i]);
        check(sem_getvalue(&sems[i], &left) == 0 && left == 0);
    }
    check(counted == (unsigned long)GANGS * MEMBERS * STEPS);
    check(nested_count == nests);
}

int main(int argc, char **argv)
{
    unsigned long nests = 0, writes[SHARED] = { 0 };
    if (argc != 2)
        return 2;
    seed = strtoul(argv[1], NULL, 10);
    begin();
    for (unsigned gang = 0; gang < GANGS; gang++) {
        pthread_t threads[MEMBERS];
        for (uintptr_t i = 0; i < MEMBERS; i++)
            check(pthread_create(&threads[i], NULL, take_part,
                                 (void *)(gang * (uintptr_t)MEMBERS + i)) == 0);
        for (unsigned i = 0; i < MEMBERS; i++) {
            void *result;
            check(pthread_join(threads[i], &result) == 0);
            const struct member *m = result;
            nests += m->nested;
            for (unsigned k = 0; k < SHARED; k++)
                writes[k] += m->written[k];
            free(result);
        }
        pid_t pid = fork(); /* and one that goes on alone, with threads of its own */
        if (pid == 0) {
            struct member alone = { .random = seed };
            have_done(&alone);
            _exit(0);
        }
        int status;
        check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0);
    }
    end(nests, writes);
    return 0;
}
