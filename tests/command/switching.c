/* SPDX-License-Identifier: MIT */
/*
 * switching.c SCENE... - threads that sleep, wake each other and want the same processor in known ways, for those who watch
 * the kernel's scheduler. It says `ready`, does its scenes when told to by a line, says `done`, and ends with its standard
 * input.
 *
 *   wakes     `sleeper` sleeps SLEEPS times in read(2), woken by `waker` each time
 *   many      `wakes`, but MANY times
 *   relock    `visitor` waits for a condition, is woken, and sleeps for its mutex
 *   writes    two `writer` of one file on one processor, until each has slept: for what the kernel locks a file with
 *   crowd     two `spinner` on one processor until each was taken off it TAKEN_OFF times
 *   stays     `sleeper` and two `spinner` do as in `wakes` and `crowd`, and then sleep until the end
 *   forks     a child has a thread that does `wakes`
 *   unseen    `dreamer` sleeps once in usleep(3), and then SLEEPS times in calls that the interposer does not see
 *   endless   `wakes` until the input ends
 */
#include "plain.h"

#include <sched.h>
#include <stdbool.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum {
    SLEEPS = 50,
    MANY = 400,
    TAKEN_OFF = 3,
};

static int events;
static volatile bool is_over;

static void name_self(const char *name)
{
    check(pthread_setname_np(pthread_self(), name) == 0);
}

static long voluntary_of(pid_t tid)
{
    char path[64], line[128];
    long count = -1;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *file = fopen(path, "r");
    check(file != NULL);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "voluntary_ctxt_switches: %ld", &count) == 1)
            break;
    fclose(file);
    return count;
}

/* Of the thread that tids[0] is: the switches that it had before it went to sleep for the nth time, from 1 on. */
static struct {
    long nth, before;
} going;

static void go_to_sleep(long nth)
{
    struct rusage used;
    __atomic_store_n(&tids[0], (pid_t)syscall(SYS_gettid), __ATOMIC_RELAXED);
    check(getrusage(RUSAGE_THREAD, &used) == 0);
    going.before = used.ru_nvcsw;
    __atomic_store_n(&going.nth, nth, __ATOMIC_RELEASE); /* pairs with await_sleep */
}

/* The count rises when a thread is switched away; its state is another before that. */
static void await_sleep(long nth, long sleeps)
{
    while (__atomic_load_n(&going.nth, __ATOMIC_ACQUIRE) < nth &&
           !is_over) /* pairs with go_to_sleep */
        nap();
    while (voluntary_of(tids[0]) < going.before + sleeps || state_of(tids[0]) != 'S')
        nap();
}

/* An eventfd: its reader sleeps for nothing else, as one of a pipe may for the pipe's lock. */
static void *sleeper(void *arg)
{
    uint64_t value = 1;
    name_self("sleeper");
    for (long i = 1; i <= (long)(intptr_t)arg && value == 1; i++) {
        go_to_sleep(i);
        check(read(events, &value, sizeof value) == sizeof value);
    }
    return NULL;
}

static void *waker(void *arg)
{
    const uint64_t one = 1, last = 2;
    name_self("waker");
    nap(); /* once at least */
    for (long i = 1; i <= (long)(intptr_t)arg; i++) {
        const uint64_t *value = is_over ? &last : &one;
        await_sleep(i, 1);
        check(write(events, value, sizeof *value) == sizeof *value);
        if (value == &last)
            break;
    }
    return NULL;
}

static void wakes(long count)
{
    pthread_t threads[2];
    going.nth = 0;
    events = eventfd(0, 0);
    check(events >= 0);
    check(pthread_create(&threads[0], NULL, sleeper, (void *)(intptr_t)count) == 0);
    check(pthread_create(&threads[1], NULL, waker, (void *)(intptr_t)count) == 0);
    for (int i = 0; i < 2; i++)
        check(pthread_join(threads[i], NULL) == 0);
}

static void wakes_some(void)
{
    wakes(SLEEPS);
}

static void many(void)
{
    wakes(MANY);
}

static pthread_mutex_t door = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t opened = PTHREAD_COND_INITIALIZER;
static bool is_open;

static void *visitor(void *arg)
{
    name_self("visitor");
    check(pthread_mutex_lock(&door) == 0);
    go_to_sleep(1);
    while (!is_open)
        check(pthread_cond_wait(&opened, &door) == 0);
    check(pthread_mutex_unlock(&door) == 0);
    return arg;
}

static void relock(void)
{
    pthread_t thread;
    going.nth = 0;
    check(pthread_create(&thread, NULL, visitor, NULL) == 0);
    await_sleep(1, 1);
    check(pthread_mutex_lock(&door) == 0);
    is_open = true;
    check(pthread_cond_signal(&opened) == 0);
    await_sleep(1, 2); /* for the door now */
    check(pthread_mutex_unlock(&door) == 0);
    check(pthread_join(thread, NULL) == 0);
}

static void on_one_processor(void)
{
    cpu_set_t set;
    int cpu = 0;
    CPU_ZERO(&set);
    check(sched_getaffinity(0, sizeof set, &set) == 0);
    while (!CPU_ISSET(cpu, &set))
        cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    check(sched_setaffinity(0, sizeof set, &set) == 0);
}

static void *writer(void *arg)
{
    static char block[1 << 22];
    static int done;
    struct rusage first, used;
    bool has_counted = false;
    int file = (int)(intptr_t)arg;
    name_self("writer");
    on_one_processor();
    check(getrusage(RUSAGE_THREAD, &first) == 0);
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) < 2) {
        check(pwrite(file, block, sizeof block, 0) == sizeof block);
        check(getrusage(RUSAGE_THREAD, &used) == 0);
        if (!has_counted && used.ru_nvcsw > first.ru_nvcsw) {
            has_counted = true;
            __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void writes(void)
{
    pthread_t threads[2];
    int file = memfd_create("writes", 0);
    check(file >= 0);
    for (int i = 0; i < 2; i++)
        check(pthread_create(&threads[i], NULL, writer, (void *)(intptr_t)file) == 0);
    for (int i = 0; i < 2; i++)
        check(pthread_join(threads[i], NULL) == 0);
}

static void *spinner(void *arg)
{
    static int done;
    struct rusage used;
    bool has_counted = false;
    (void)arg;
    name_self("spinner");
    on_one_processor();
    while (__atomic_load_n(&done, __ATOMIC_RELAXED) < 2) {
        check(getrusage(RUSAGE_THREAD, &used) == 0);
        if (!has_counted && used.ru_nivcsw >= TAKEN_OFF) {
            has_counted = true;
            __atomic_fetch_add(&done, 1, __ATOMIC_RELAXED);
        }
    }
    return NULL;
}

static void crowd(void)
{
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        check(pthread_create(&threads[i], NULL, spinner, NULL) == 0);
    for (int i = 0; i < 2; i++)
        check(pthread_join(threads[i], NULL) == 0);
}

/* A sleeper and two spinners: what each was before it went to sleep until the end. */
static struct {
    pid_t tid;
    long voluntary;
} staying[3];

static void stay(unsigned i)
{
    struct rusage used;
    check(getrusage(RUSAGE_THREAD, &used) == 0);
    staying[i].voluntary = used.ru_nvcsw;
    __atomic_store_n(&staying[i].tid, (pid_t)syscall(SYS_gettid),
                     __ATOMIC_RELEASE); /* pairs with stays */
    for (;;)
        pause();
}

static void *staying_sleeper(void *arg)
{
    (void)sleeper(arg);
    stay(0);
    return NULL;
}

static void *staying_spinner(void *arg)
{
    (void)spinner(NULL);
    stay((unsigned)(uintptr_t)arg);
    return NULL;
}

static void stays(void)
{
    pthread_t threads[4];
    void *count = (void *)(intptr_t)SLEEPS;
    going.nth = 0;
    events = eventfd(0, 0);
    check(events >= 0);
    check(pthread_create(&threads[0], NULL, staying_sleeper, count) == 0);
    for (uintptr_t i = 1; i <= 2; i++)
        check(pthread_create(&threads[i], NULL, staying_spinner, (void *)i) == 0);
    check(pthread_create(&threads[3], NULL, waker, count) == 0);
    check(pthread_join(threads[3], NULL) == 0);
    for (unsigned i = 0; i < 3; i++) {
        pid_t tid;
        while (!(tid = __atomic_load_n(&staying[i].tid, __ATOMIC_ACQUIRE))) /* pairs with stay */
            nap();
        while (voluntary_of(tid) <= staying[i].voluntary || state_of(tid) != 'S')
            nap();
    }
}

/* nap is a call that the interposer does not look at. */
static void *dreamer(void *arg)
{
    (void)arg;
    name_self("dreamer");
    check(usleep(1000) == 0);
    for (int i = 0; i < SLEEPS; i++)
        nap();
    return NULL;
}

static void unseen(void)
{
    pthread_t thread;
    check(pthread_create(&thread, NULL, dreamer, NULL) == 0);
    check(pthread_join(thread, NULL) == 0);
}

static void *over(void *arg)
{
    char c;
    (void)arg;
    while (read(STDIN_FILENO, &c, 1) > 0)
        ;
    is_over = true;
    return NULL;
}

static void endless(void)
{
    pthread_t thread;
    check(pthread_create(&thread, NULL, over, NULL) == 0);
    wakes(INT32_MAX);
    check(pthread_join(thread, NULL) == 0);
}

static void forks(void)
{
    int status;
    pid_t child = fork();
    check(child >= 0);
    if (child == 0) {
        name_self("child");
        wakes(SLEEPS);
        _exit(0);
    }
    check(waitpid(child, &status, 0) == child && status == 0);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "crowd", crowd },   { "endless", endless },  { "forks", forks },
        { "many", many },     { "relock", relock },    { "stays", stays },
        { "unseen", unseen }, { "wakes", wakes_some }, { "writes", writes },
    };
    char line[16];
    puts("ready");
    fflush(stdout);
    check(fgets(line, sizeof line, stdin) != NULL);
    for (int i = 1; i < argc; i++)
        check(PLAY(scenes, argv[i]));
    puts("done");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}
