/* SPDX-License-Identifier: MIT */
/*
 * plain_sites.c - as plain.c: threads that wait by way of functions which others call, on stacks of several kinds. No
 * frame has a frame pointer but for that of middle().
 */
#include "plain.h"

#include <signal.h>
#include <sys/wait.h>
#include <ucontext.h>

enum {
    FIRST = 3,  /* so many threads wait the first way, */
    SECOND = 2, /* so many the second */
    DEEP = 12,  /* calls, of which the 8 innermost are recorded */
    NAP_NS = 1000000,
};

/* A call that is no tail call, from a function that is not inlined. */
#define FRAME __attribute__((noinline))
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t bell = PTHREAD_COND_INITIALIZER;
static int rung; /* under lock */

static FRAME void take(void)
{
    check(pthread_mutex_lock(&lock) == 0);
    KEEP_FRAME();
}

static FRAME void middle(size_t bytes)
{
    char *room = __builtin_alloca(bytes);
    memset(room, 0, bytes);
    __asm__ volatile("" ::"r"(room) : "memory");
    take(); /* of middle */
    KEEP_FRAME();
}

static FRAME void first_way(void)
{
    middle(200); /* the first way */
    check(pthread_mutex_unlock(&lock) == 0);
}

static FRAME void second_way(void)
{
    middle(3000); /* the second way */
    check(pthread_mutex_unlock(&lock) == 0);
}

static void *use(void *i)
{
    here((unsigned)(uintptr_t)i);
    if ((uintptr_t)i < FIRST)
        first_way();
    else
        second_way();
    return NULL;
}

static void wrapped(void)
{
    pthread_t threads[FIRST + SECOND];
    check(pthread_mutex_lock(&lock) == 0);
    start(threads, FIRST + SECOND, use);
    until_all_sleep(FIRST + SECOND);
    check(pthread_mutex_unlock(&lock) == 0);
    join(threads, FIRST + SECOND);
}

static FRAME void ring(void)
{
    check(pthread_cond_signal(&bell) == 0);
    KEEP_FRAME();
}

static void *listen_for(void *unused)
{
    check(pthread_mutex_lock(&lock) == 0);
    here(0);
    while (!rung)
        check(pthread_cond_wait(&bell, &lock) == 0);
    check(pthread_mutex_unlock(&lock) == 0);
    return unused;
}

static void woken(void)
{
    pthread_t thread;
    start(&thread, 1, listen_for);
    until_sleeps(&tids[0]);
    check(pthread_mutex_lock(&lock) == 0);
    rung = 1;
    check(pthread_mutex_unlock(&lock) == 0);
    ring(); /* by main */
    join(&thread, 1);
}

static FRAME void sleep_a_little(void)
{
    const struct timespec moment = { 0, NAP_NS };
    check(nanosleep(&moment, NULL) == 0);
    KEEP_FRAME();
}

static FRAME void sleep_below(unsigned more)
{
    if (more)
        sleep_below(more - 1); /* deeper */
    else
        sleep_a_little(); /* at the bottom */
    KEEP_FRAME();
}

static void deep(void)
{
    sleep_below(DEEP);
}

/* A child has files and stacks of its own, on the thread that called fork. */
static void *fork_there(void *unused)
{
    sleep_a_little(); /* before the fork */
    pid_t child = fork();
    if (child == 0) {
        sleep_a_little(); /* in the child */
        _exit(0);
    }
    int status;
    check(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    return unused;
}

static void child(void)
{
    pthread_t thread;
    start(&thread, 1, fork_there);
    join(&thread, 1);
}

static ucontext_t main_context, own_context;

static void on_own_stack(void)
{
    sleep_a_little(); /* on a stack of its own */
}

static void on_signal(int number)
{
    (void)number;
    sleep_a_little(); /* in a handler */
}

/* Stacks that the program has made may go at any time. */
static void *use_own_stacks(void *unused)
{
    static char memory[2][65536];
    const stack_t other = { .ss_sp = memory[1], .ss_size = sizeof memory[1] };
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
    check(getcontext(&own_context) == 0);
    own_context.uc_stack.ss_sp = memory[0];
    own_context.uc_stack.ss_size = sizeof memory[0];
    own_context.uc_link = &main_context;
    makecontext(&own_context, on_own_stack, 0);
    check(swapcontext(&main_context, &own_context) == 0);
    check(sigaltstack(&other, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    check(pthread_kill(pthread_self(), SIGUSR1) == 0);
    sleep_a_little(); /* on the thread's */
    return unused;
}

static void own(void)
{
    pthread_t thread;
    use_own_stacks(NULL); /* by main */
    start(&thread, 1, use_own_stacks);
    join(&thread, 1);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "wrapped", wrapped },
                                           { "woken", woken },
                                           { "deep", deep },
                                           { "child", child },
                                           { "own", own } };
    return argc == 2 && PLAY(scenes, argv[1]) ? 0 : 2;
}
