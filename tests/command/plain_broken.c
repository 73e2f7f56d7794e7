/* SPDX-License-Identifier: MIT */
/*
 * plain_broken.c - as plain.c: threads whose waits end as few do, and threads that there is no room for.
 */
#include "plain.h"

#include <limits.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <poll.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>

enum {
    MANY = 200, /* threads, for which 1 MiB has no room */
    HERD = 4,   /* threads that wait for one word */
    WAITS = 8,  /* each of another kind, in which a handler forks */
    LONG = 50,  /* seconds, of which a signal leaves most */
    LITTLE_MS = 200,
    MOMENTS = 64, /* at which a handler comes, one after the other */
    STEP_US = 10,
    NAPS = 5, /* sleeps of a thread that has jumped */
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

static void wake(unsigned count)
{
    pthread_t herd[HERD];
    start(herd, count, waits_for_word);
    until_all_sleep(count);
    __atomic_store_n(&word, 1, __ATOMIC_RELEASE);
    check(syscall(SYS_futex, &word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) >= 0);
    join(herd, count);
    __atomic_store_n(&word, 0, __ATOMIC_RELEASE);
}

/* A thread ends in the middle of its wait; those that come after it find the queue whole. */
static void ends(void)
{
    void *(*const each[])(void *) = { waits_for_cancel, jumps_from_word, waits_for_word,
                                      jumps_from_item };
    const int by[] = { 0, SIGUSR1, SIGUSR2, SIGUSR1 };
    pthread_t thread;
    catch_it(SIGUSR1, jump);
    catch_it(SIGUSR2, go);
    check(sem_init(&item, 0, 0) == 0);
    for (unsigned i = 0; i < sizeof each / sizeof *each; i++) {
        start(&thread, 1, each[i]);
        until_sleeps(&tids[0]);
        check((by[i] ? pthread_kill(thread, by[i]) : pthread_cancel(thread)) == 0);
        join(&thread, 1);
        wake(1); /* has the block of the one that ended */
        wake(HERD);
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

static int ends_of_pipe[2];
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static volatile pid_t child;

static void sleeps(void)
{
    (void)sleep(LONG);
}

static void reads(void)
{
    char byte;
    check(read(ends_of_pipe[0], &byte, 1) < 0 && errno == EINTR);
}

static void polls(void)
{
    struct pollfd entry[] = { { listener, POLLIN, 0 }, { ends_of_pipe[0], POLLIN, 0 } };
    check(poll(entry, 2, LONG * 1000) < 0 && errno == EINTR);
}

static void accepts(void)
{
    check(accept(listener, NULL, NULL) < 0 && errno == EINTR);
}

static void takes_item(void)
{
    check(sem_wait(&item) < 0 && errno == EINTR);
}

static void waits_once(void)
{
    check(syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0) < 0 && errno == EINTR);
}

/* These two go on after a signal. */
static void waits_for_signal(void)
{
    struct timespec until = after(CLOCK_REALTIME, LITTLE_MS);
    check(pthread_mutex_lock(&hot) == 0);
    int result = pthread_cond_timedwait(&never, &hot, &until);
    check(result == 0 || result == ETIMEDOUT);
    check(pthread_mutex_unlock(&hot) == 0);
}

static void *holds(void *is_held)
{
    check(pthread_mutex_lock(&hot) == 0);
    __atomic_store_n((uint32_t *)is_held, 1, __ATOMIC_RELEASE);
    pause();
    return NULL;
}

static void *has_the_turn(void *unused)
{
    struct pollfd entry = { listener, POLLIN, 0 };
    here(1);
    (void)poll(&entry, 1, -1);
    return unused;
}

static void locks_in_vain(void)
{
    struct timespec until = after(CLOCK_REALTIME, LITTLE_MS);
    check(pthread_mutex_timedlock(&hot, &until) == ETIMEDOUT);
}

static void fork_it(int number)
{
    (void)number;
    child = fork();
}

static pthread_t first;

static void *signals(void *unused)
{
    until_sleeps(&tids[0]);
    check(pthread_kill(first, SIGUSR1) == 0);
    return unused;
}

/* In the middle of a wait; the child returns from the handler as well, and waits for other things. */
static void forks(void)
{
    void (*const waits[WAITS])(void) = { sleeps,           reads,        polls,
                                         accepts,          takes_item,   waits_once,
                                         waits_for_signal, locks_in_vain };
    uint32_t is_held = 0;
    pthread_t holder, other;
    first = pthread_self();
    catch_it(SIGUSR1, fork_it);
    listens();
    check(sem_init(&item, 0, 0) == 0 && pipe(ends_of_pipe) == 0);
    check(pthread_create(&other, NULL, has_the_turn, NULL) == 0);
    until_sleeps(&tids[1]);
    for (unsigned i = 0; i < WAITS; i++) {
        pthread_t thread;
        if (waits[i] == locks_in_vain) {
            check(pthread_create(&holder, NULL, holds, &is_held) == 0);
            while (!__atomic_load_n(&is_held, __ATOMIC_ACQUIRE))
                nap();
        }
        tids[0] = 0;
        child = -1;
        check(pthread_create(&thread, NULL, signals, NULL) == 0);
        here(0);
        do
            waits[i]();
        while (child < 0);
        if (child == 0) {
            check(usleep(1) == 0); /* of its own */
            exit(7);
        }
        join(&thread, 1);
        reap(child, 7);
    }
}

static volatile sig_atomic_t has_come;

static void wait_in_handler(int number)
{
    (void)number;
    check(poll(NULL, 0, 1) == 0); /* in a handler */
    has_come = 1;
}

/* The file of a process is made before it may be another user's: a handler comes before that, in it and after it. */
static void settles(void)
{
    catch_it(SIGALRM, wait_in_handler);
    for (int i = 1; i <= MOMENTS; i++) {
        const struct itimerval at = { { 0, 0 }, { 0, i * STEP_US } };
        pid_t pid = fork();
        if (pid == 0) {
            check(setitimer(ITIMER_REAL, &at, NULL) == 0 && setuid(getuid()) == 0);
            while (!has_come)
                nap();
            exit(6);
        }
        reap(pid, 6);
    }
}

/* The child of a vfork gives up its rights before its parent, which has forked too, has waited. */
static void borrows(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if ((pid = vfork()) == 0)
            _exit(setuid(getuid()) == 0 ? 3 : 1);
        reap(pid, 3);
        check(usleep(1) == 0);
        exit(6);
    }
    reap(pid, 6);
}

static void *reads_in_vain(void *unused)
{
    char byte;
    int has_jumped;
    here(0);
    has_jumped = sigsetjmp(out, 1);
    if (!has_jumped)
        reads(); /* which does not return */
    check(has_jumped);
    for (unsigned i = 0; i < NAPS; i++)
        check(usleep(1) == 0); /* after a jump */
    __atomic_store_n(&tids[1], tids[0], __ATOMIC_RELEASE);
    check(read(ends_of_pipe[0], &byte, 1) < 0 && errno == EINTR); /* to its end */
    return unused;
}

/* The handlers' own stack lies above what they interrupt. */
static void *has_own_stack_above(void *unused)
{
    char above[65536];
    const stack_t own = { .ss_sp = above, .ss_size = sizeof above };
    check(sigaltstack(&own, NULL) == 0);
    reads_in_vain(unused);
    const stack_t none = { .ss_flags = SS_DISABLE };
    check(sigaltstack(&none, NULL) == 0);
    return unused;
}

static void jumps(void)
{
    const struct sigaction aside = { .sa_handler = wait_in_handler, .sa_flags = SA_ONSTACK };
    pthread_t thread;
    catch_it(SIGUSR1, jump);
    check(sigaction(SIGUSR2, &aside, NULL) == 0 && pipe(ends_of_pipe) == 0);
    start(&thread, 1, has_own_stack_above);
    until_sleeps(&tids[0]);
    check(pthread_kill(thread, SIGUSR1) == 0);
    until_sleeps(&tids[1]);
    check(pthread_kill(thread, SIGUSR2) == 0);
    join(&thread, 1);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "fills", fills },     { "ends", ends },       { "cancels", forks_and_cancels },
        { "forks", forks },     { "settles", settles }, { "jumps", jumps },
        { "borrows", borrows },
    };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
