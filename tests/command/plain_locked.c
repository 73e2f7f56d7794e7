/* SPDX-License-Identifier: MIT */
/*
 * plain_locked.c - as plain.c: programs that lock their memory, as an ordinary user may: up to a limit. With a second
 * argument they tell what each call returned, its error, and how many kB are locked then.
 */
#include "plain.h"

#include <linux/capability.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum {
    NAPS = 3,  /* of a thread, which are recorded */
    MANY = 24, /* threads */
    CHILDREN = 25,
    LITTLE_KB = 64,   /* less than any program has */
    ENOUGH_KB = 8192, /* which is what most may; a record is 256 MiB long */
    STACK_KB = 32,
    WORDS = 4096, /* of a piece of memory */
    PATTERN = 4711,
};

static bool is_telling;
static unsigned done;
static uint64_t *piece;
static pthread_barrier_t all_are_done;

/* root may lock all that there is; so may nobody from here on. */
static void be_limited(rlim_t most_kb)
{
    struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
    struct __user_cap_data_struct none[2] = { { 0 } };
    const struct rlimit limit = { most_kb << 10, most_kb << 10 };
    check(setrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    check(syscall(SYS_capset, &header, none) == 0);
}

static long locked_kb(void)
{
    char line[256];
    long kb = -1;
    FILE *file = fopen("/proc/self/status", "r");
    while (file && kb < 0 && fgets(line, sizeof line, file))
        (void)sscanf(line, "VmLck: %ld", &kb);
    if (file)
        fclose(file);
    return kb;
}

static void tell(long result)
{
    int error = result == 0 ? 0 : errno;
    if (!is_telling)
        return;
    printf("%ld %d %ld\n", result, error, locked_kb());
    fflush(stdout);
}

static void sleeps(void)
{
    for (unsigned i = 0; i < NAPS; i++)
        check(usleep(1000) == 0); /* recorded */
}

static void in_all_ways(void)
{
    be_limited(ENOUGH_KB);
    sleeps();
    tell(mlockall(MCL_CURRENT));
    tell(mlockall(MCL_CURRENT | MCL_ONFAULT));
    tell(munlockall());
    tell(mlockall(MCL_FUTURE));
    tell(munlockall());
    tell(syscall(SYS_mlockall, MCL_CURRENT));
    tell(mlockall(0));
    tell(syscall(SYS_mlockall, MCL_CURRENT | 64));
    tell(mlockall(MCL_CURRENT | MCL_FUTURE));
    tell(mlockall(MCL_CURRENT | MCL_FUTURE));
    sleeps();
}

static void more_than_it_may(void)
{
    be_limited(LITTLE_KB);
    tell(mlockall(MCL_CURRENT));
    tell(syscall(SYS_mlockall, MCL_CURRENT | MCL_FUTURE));
    sleeps();
}

/* Before it has waited for anything. */
static void in_a_child(void)
{
    int status = -1;
    be_limited(ENOUGH_KB);
    pid_t child = fork();
    if (child == 0) {
        tell(mlockall(MCL_CURRENT | MCL_FUTURE));
        sleeps();
        tell(0);
        exit(0);
    }
    check(waitpid(child, &status, 0) == child && status == 0);
}

static void begin(pthread_t *thread, void *(*fn)(void *))
{
    pthread_attr_t attr;
    check(pthread_attr_init(&attr) == 0);
    check(pthread_attr_setstacksize(&attr, STACK_KB << 10) == 0);
    check(pthread_create(thread, &attr, fn, NULL) == 0);
    check(pthread_attr_destroy(&attr) == 0);
}

static void *lock_all(void *arg)
{
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < MANY) /* pairs with wait_first and forks */
        check(mlockall(MCL_CURRENT) == 0);
    return arg;
}

/* They end when all of them have waited, so that none goes on with what another has left. */
static void *wait_first(void *arg)
{
    sleeps();
    __atomic_fetch_add(&done, 1, __ATOMIC_RELEASE); /* pairs with lock_all */
    pthread_barrier_wait(&all_are_done);
    return arg;
}

static void beside_threads(void)
{
    pthread_t threads[MANY], locker;
    be_limited(ENOUGH_KB);
    check(pthread_barrier_init(&all_are_done, NULL, MANY) == 0);
    begin(&locker, lock_all);
    for (unsigned i = 0; i < MANY; i++)
        begin(&threads[i], wait_first);
    lock_all(NULL);
    join(threads, MANY);
    join(&locker, 1);
}

/* Mostly where the record was. */
static void *come_and_go(void *arg)
{
    while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < MANY) { /* pairs with forks */
        uint64_t *mine = mmap(NULL, WORDS * sizeof *mine, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(mine != MAP_FAILED);
        mine[0] = mine[WORDS - 1] = PATTERN;
        __atomic_store_n(&piece, mine, __ATOMIC_RELEASE); /* pairs with the child's look */
        nap();
        check(mine[0] == PATTERN && mine[WORDS - 1] == PATTERN);
        __atomic_store_n(&piece, NULL, __ATOMIC_RELEASE); /* the same */
        check(munmap(mine, WORDS * sizeof *mine) == 0);
    }
    return arg;
}

static void look_and_lock(void)
{
    const uint64_t *its = __atomic_load_n(&piece, __ATOMIC_ACQUIRE); /* pairs with come_and_go */
    check(!its || (its[0] == PATTERN && its[WORDS - 1] == PATTERN));
    check(mlockall(MCL_CURRENT) == 0);
    sleeps();
    exit(0);
}

static void beside_forks(void)
{
    pthread_t locker, other;
    int status = -1;
    be_limited(ENOUGH_KB);
    begin(&locker, lock_all);
    begin(&other, come_and_go);
    for (unsigned i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0)
            look_and_lock();
        check(waitpid(child, &status, 0) == child && status == 0);
    }
    __atomic_store_n(&done, MANY, __ATOMIC_RELEASE); /* pairs with both threads' looks */
    join(&locker, 1);
    join(&other, 1);
    sleeps();
}

int main(int argc, char **argv)
{
    const struct scene scenes[] = {
        { "ways", in_all_ways },       { "refused", more_than_it_may }, { "child", in_a_child },
        { "threads", beside_threads }, { "forks", beside_forks },
    };
    is_telling = argc > 2;
    return argc < 2 || !PLAY(scenes, argv[1]);
}
