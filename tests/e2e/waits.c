/* SPDX-License-Identifier: MIT */
/*
 * waits.c - a program whose threads wait in the way that its argument names, for the tests of dumps,
 * of the deadlock report, of gdb and of Valgrind. It prints "ready" when all threads wait, and ends
 * when its standard input does, if it can.
 */
#include <rouse/rouse.h>

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Keeps the caller's frame: it must follow a call at the end of a function. */
#define KEEP_FRAME() __asm__ volatile("" ::: "memory")
#define FRAME __attribute__((noinline))

static struct rouse_mutex accounts = ROUSE_MUTEX_INIT_NAMED("accounts");
static struct rouse_mutex orders = ROUSE_MUTEX_INIT_NAMED("orders");
static struct rouse_barrier both = ROUSE_BARRIER_INIT(2);
static struct rouse_sem ready = ROUSE_SEM_INIT(0);
static struct rouse_sem never = ROUSE_SEM_INIT_NAMED(0, "never");
static int ends[2];

static struct rouse_thread *start(const char *name, enum rouse_kind kind, void *(*fn)(void *))
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.name = name;
    attr.kind = kind;
    if (rouse_thread_create(&t, &attr, fn, NULL) != 0)
        abort();
    return t;
}

static void say_ready(void)
{
    puts("ready");
    fflush(stdout);
}

static void wait_for_end_of_input(void)
{
    char byte;
    ssize_t got;
    do
        got = read(STDIN_FILENO, &byte, 1);
    while (got > 0 || (got < 0 && errno == EINTR));
}

static FRAME void *lock_accounts(void *unused)
{
    rouse_sem_post(&ready);
    rouse_mutex_lock(&accounts);
    KEEP_FRAME();
    return unused;
}

static FRAME void *sleep_long(void *unused)
{
    rouse_sem_post(&ready);
    rouse_sleep(UINT64_C(1000000000000));
    KEEP_FRAME();
    return unused;
}

static FRAME void *sleep_for_ever(void *unused)
{
    rouse_sleep_until(ROUSE_FOREVER);
    KEEP_FRAME();
    return unused;
}

static FRAME void *read_pipe(void *unused)
{
    char byte;
    rouse_sem_post(&ready);
    rouse_read(ends[0], &byte, 1);
    KEEP_FRAME();
    return unused;
}

static void *read_plainly(void *unused)
{
    wait_for_end_of_input();
    return unused;
}

static FRAME void *block(void *unused)
{
    rouse_blocking(read_plainly, NULL, NULL);
    KEEP_FRAME();
    return unused;
}

static FRAME void *wait_for_never(void *unused)
{
    rouse_sem_wait(&never);
    KEEP_FRAME();
    return unused;
}

static FRAME void *spin(void *unused)
{
    rouse_sem_post(&ready);
    for (;;)
        KEEP_FRAME();
    return unused;
}

/* Whether all kernel threads except the calling one sleep. */
static bool others_sleep(void)
{
    char path[300], text[300];
    bool all = true;
    DIR *folder = opendir("/proc/self/task");
    if (!folder)
        abort();
    for (struct dirent *entry; (entry = readdir(folder)) != NULL;) {
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == gettid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/stat", entry->d_name);
        FILE *file = fopen(path, "re");
        if (file && fgets(text, sizeof text, file)) {
            const char *state = strrchr(text, ')');
            all = all && state && state[2] == 'S';
        }
        if (file)
            fclose(file);
    }
    closedir(folder);
    return all;
}

/* Waits of several kinds, and one thread that runs. */
static void wait_variously(void)
{
    if (pipe(ends) != 0)
        abort();
    rouse_mutex_lock(&accounts);
    start("locker", ROUSE_KIND_USER, lock_accounts);
    start("sleeper", ROUSE_KIND_USER, sleep_long);
    start("reader", ROUSE_KIND_USER, read_pipe);
    start("kernel sleeper", ROUSE_KIND_KERNEL, sleep_long);
    for (int i = 0; i < 4; i++)
        rouse_sem_wait(&ready);
    for (int seen = 0; seen < 3; usleep(1000)) /* they are about to sleep */
        seen = others_sleep() ? seen + 1 : 0;
    start("busy", ROUSE_KIND_USER, spin);
    rouse_sem_wait(&ready);
    say_ready();
    wait_for_end_of_input();
}

static void get_stuck(void)
{
    unsigned count = rouse_worker_count();
    for (unsigned i = 0; i < count; i++)
        start("stuck", ROUSE_KIND_USER, spin);
    for (unsigned i = 0; i < count; i++)
        rouse_sem_wait(&ready);
    say_ready();
    wait_for_end_of_input();
}

/* --- every thread waits for another */

static void *accounts_first(void *unused)
{
    rouse_mutex_lock(&accounts);
    rouse_barrier_wait(&both);
    rouse_mutex_lock(&orders);
    return unused;
}

static void *orders_first(void *unused)
{
    rouse_mutex_lock(&orders);
    rouse_barrier_wait(&both);
    rouse_mutex_lock(&accounts);
    return unused;
}

static void wait_in_a_circle(void)
{
    struct rouse_thread *t = start("left", ROUSE_KIND_DEFAULT, accounts_first);
    start("right", ROUSE_KIND_DEFAULT, orders_first);
    rouse_thread_join(t, NULL);
}

static void *end_with_input(void *unused)
{
    rouse_sem_post(&ready);
    say_ready();
    wait_for_end_of_input();
    return unused;
}

/* A deadlock begins when the last thread that could wake another ends. */
static void wait_for_one_that_ends(void)
{
    start("ends", ROUSE_KIND_KERNEL, end_with_input);
    rouse_sem_wait(&never);
}

static void end_main_by_pthread_exit(void)
{
    start(NULL, ROUSE_KIND_USER, wait_for_never);
    rouse_thread_self();
    say_ready();
    wait_for_end_of_input();
    pthread_exit(NULL);
}

/* --- states that only look like a deadlock */

static void wait_beside_main(void)
{
    start(NULL, ROUSE_KIND_USER, wait_for_never);
    rouse_thread_self(); /* rouse knows main() now, but main() is not in a recorded wait */
    say_ready();
    wait_for_end_of_input();
}

static void *post_with_input(void *unused)
{
    say_ready();
    wait_for_end_of_input();
    rouse_sem_post(&never);
    return unused;
}

/* A kernel thread that rouse has not seen. */
static void wait_for_one_unknown(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, post_with_input, NULL) != 0)
        abort();
    rouse_sem_wait(&never);
    pthread_join(thread, NULL);
}

static void wait_with_another(const char *name, void *(*fn)(void *))
{
    struct rouse_thread *t = start(name, ROUSE_KIND_USER, fn);
    if (fn != sleep_for_ever && fn != block)
        rouse_sem_wait(&ready);
    say_ready();
    rouse_thread_join(t, NULL);
}

static void wait_for_time(void)
{
    wait_with_another(NULL, sleep_long);
}

static void wait_for_input(void)
{
    if (pipe(ends) != 0)
        abort();
    wait_with_another(NULL, read_pipe);
}

static void wait_for_blocking_call(void)
{
    wait_with_another(NULL, block);
}

static void wait_for_ever(void)
{
    wait_with_another(NULL, sleep_for_ever);
}

/* --- many stacks */

static FRAME unsigned deep(unsigned depth)
{
    char bytes[256];
    memset(bytes, (int)depth, sizeof bytes);
    rouse_thread_yield();
    unsigned sum = depth ? deep(depth - 1) : 0;
    return sum + (unsigned char)bytes[depth % sizeof bytes];
}

static void *go_deep(void *unused)
{
    if (deep(20) == 0)
        abort();
    if (rouse_sem_wait(&ready) != 0)
        abort();
    rouse_sem_post(&ready);
    rouse_sleep(1000000);
    return unused;
}

static void use_many_stacks(void)
{
    enum { THREADS = 300, ROUNDS = 3 };
    static struct rouse_thread *t[THREADS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < THREADS; i++)
            t[i] = start(NULL, ROUSE_KIND_USER, go_deep);
        rouse_sem_post(&ready);
        for (int i = 0; i < THREADS; i++)
            rouse_thread_join(t[i], NULL);
        rouse_sem_wait(&ready);
    }
    say_ready();
}

static const struct {
    const char *name;
    void (*run)(void);
} scenes[] = {
    { "variously", wait_variously },
    { "stuck", get_stuck },
    { "circle", wait_in_a_circle },
    { "one-that-ends", wait_for_one_that_ends },
    { "main-exited", end_main_by_pthread_exit },
    { "main-reads", wait_beside_main },
    { "unknown", wait_for_one_unknown },
    { "time", wait_for_time },
    { "input", wait_for_input },
    { "blocking", wait_for_blocking_call },
    { "ever", wait_for_ever },
    { "many", use_many_stacks },
};

int main(int argc, char **argv)
{
    for (size_t i = 0; argc == 2 && i < sizeof scenes / sizeof *scenes; i++)
        if (strcmp(argv[1], scenes[i].name) == 0) {
            scenes[i].run();
            return 0;
        }
    fprintf(stderr, "usage: waits SCENE\n");
    return 2;
}
