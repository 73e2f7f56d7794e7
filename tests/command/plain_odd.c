/* SPDX-License-Identifier: MIT */
/*
 * plain_odd.c - as plain.c: processes that come and go in every way, descriptors and libraries that are taken away, and
 * mutexes of every kind. To wait is to wait for one lock in FEW threads.
 */
#include "plain.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
    FEW = 3,      /* threads wait for a lock that is held */
    OPENINGS = 2, /* of the library */
    KINDS = 7,    /* of mutexes */
};

extern char **environ;
static pthread_mutex_t hot = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t *wanted;
static void (*lock_it)(void), (*unlock_it)(void);

static void lock_wanted(void)
{
    int result = pthread_mutex_lock(wanted); /* which is held */
    check(result == 0 || result == EOWNERDEAD);
}

static void unlock_wanted(void)
{
    check(pthread_mutex_unlock(wanted) == 0);
}

static void *want(void *i)
{
    here((unsigned)(uintptr_t)i);
    lock_it();
    unlock_it();
    return NULL;
}

static void contend(void (*lock)(void), void (*unlock)(void))
{
    pthread_t threads[FEW];
    lock_it = lock;
    unlock_it = unlock;
    lock();
    start(threads, FEW, want);
    until_all_sleep(FEW);
    unlock();
    join(threads, FEW);
}

static void waits(void)
{
    wanted = &hot;
    contend(lock_wanted, unlock_wanted);
}

static void reap(pid_t pid, int status)
{
    int found;
    check(pid > 0 && waitpid(pid, &found, 0) == pid && found == status << 8);
}

static char self[256];
static char *const again[] = { self, (char *)"waits", NULL };

static void find_self(void)
{
    check(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
}

/* Forked, or not even that. */
static void execs(void)
{
    pid_t pid;
    posix_spawn_file_actions_t actions;
    char line[300];
    find_self();
    waits();
    if ((pid = fork()) == 0) {
        execve(self, again, environ);
        _exit(1);
    }
    reap(pid, 0);
    if ((pid = vfork()) == 0) {
        execv(self, again);
        _exit(1);
    }
    reap(pid, 0);
    check(posix_spawn_file_actions_init(&actions) == 0);
    check(posix_spawn_file_actions_addclose(&actions, 0) == 0);
    check(posix_spawn(&pid, self, &actions, NULL, again, environ) == 0);
    reap(pid, 0);
    check(posix_spawn_file_actions_destroy(&actions) == 0);
    snprintf(line, sizeof line, "%s waits", self);
    check(system(line) == 0);
    FILE *stream = popen(line, "r");
    check(stream && pclose(stream) == 0);
}

/* What the child of a vfork does until its end is nobody's: its memory is the parent's. */
static void vforks(void)
{
    const struct timespec little = { 0, 3000000 };
    volatile int is_once = 0;
    int ends[2];
    char byte = 0;
    waits();
    check(pipe(ends) == 0);
    for (int status = 3; status < 5; status++) {
        pid_t pid = vfork();
        if (pid == 0) {
            is_once++;
            nanosleep(&little, NULL);
            pthread_mutex_lock(&hot);
            pthread_mutex_unlock(&hot);
            _exit(write(ends[1], "x", 1) == 1 ? status : 1);
        }
        reap(pid, status);
        check(read(ends[0], &byte, 1) == 1 && byte == 'x');
    }
    check(is_once == 2);
    waits();
}

/* A fork that no handler is told of. */
static void raw_forks(void)
{
    waits();
    for (int status = 3; status < 5; status++) {
        pid_t pid = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
        if (pid == 0) {
            waits();
            if (status == 3)
                exit(status);
            _exit(status);
        }
        reap(pid, status);
    }
    waits();
}

/* The first process ends at once; the test waits for the end of its standard output. */
static void daemons(void)
{
    waits();
    check(daemon(1, 1) == 0);
    waits();
}

/* A server that leaves its workers no environment. */
static void empties(void)
{
    waits();
    check(clearenv() == 0);
    pid_t pid = fork();
    if (pid == 0) {
        waits();
        exit(6);
    }
    reap(pid, 6);
}

static void closes(void)
{
    waits();
    check(close_range(3, ~0u, 0) == 0);
    waits();
    closefrom(0);
    check(open("/dev/null", O_RDWR) == 0 && dup(0) == 1 && dup(0) == 2);
    waits();
}

/* There is no /proc to look at. */
static void roots(void)
{
    char place[] = "/tmp/plain_odd.XXXXXX";
    waits();
    check(mkdtemp(place) && chdir(place) == 0 && rmdir(place) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        check(chroot(".") == 0);
        for (unsigned i = 0; i < FEW; i++)
            check(usleep(1000) == 0);
        exit(6);
    }
    reap(pid, 6);
}

/* A program that has its own mind about what is preloaded. */
static void preloads(void)
{
    find_self();
    waits();
    check(setenv("LD_PRELOAD", "libm.so.6", 1) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        execv(self, again);
        _exit(1);
    }
    reap(pid, 0);
}

static void opens(void)
{
    char path[300];
    find_self();
    snprintf(path, sizeof path, "%.*s/libplain_lib.so", (int)(strrchr(self, '/') - self), self);
    for (unsigned i = 0; i < OPENINGS; i++) {
        void *library = dlopen(path, RTLD_NOW);
        check(library != NULL);
        void *found[] = { dlsym(library, "library_lock"), dlsym(library, "library_unlock") };
        void (*calls[2])(void);
        check(found[0] && found[1]);
        memcpy(calls, found, sizeof calls);
        contend(calls[0], calls[1]);
        check(dlclose(library) == 0 && dlopen(path, RTLD_NOW | RTLD_NOLOAD) == NULL);
    }
}

static void *die_with(void *m)
{
    check(pthread_mutex_lock(m) == 0);
    return NULL;
}

/* Of each kind, in memory that another process could see too; what it returns to its owner, and under threads. */
static void kinds(void)
{
    static const struct {
        int type, robust, protocol, shared;
    } all[KINDS] = { { PTHREAD_MUTEX_NORMAL, 0, 0, 0 },
                     { PTHREAD_MUTEX_RECURSIVE, 0, 0, 0 },
                     { PTHREAD_MUTEX_ERRORCHECK, 0, 0, 0 },
                     { PTHREAD_MUTEX_ADAPTIVE_NP, 0, 0, 0 },
                     { PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ROBUST, 0, 0 },
                     { PTHREAD_MUTEX_NORMAL, 0, PTHREAD_PRIO_INHERIT, 0 },
                     { PTHREAD_MUTEX_NORMAL, 0, 0, PTHREAD_PROCESS_SHARED } };
    for (unsigned i = 0; i < KINDS; i++) {
        pthread_mutexattr_t attr;
        pthread_t thread;
        wanted = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        check(wanted != MAP_FAILED && pthread_mutexattr_init(&attr) == 0);
        check(pthread_mutexattr_settype(&attr, all[i].type) == 0);
        check(pthread_mutexattr_setrobust(&attr, all[i].robust) == 0);
        check(pthread_mutexattr_setprotocol(&attr, all[i].protocol) == 0);
        check(pthread_mutexattr_setpshared(&attr, all[i].shared) == 0);
        check(pthread_mutex_init(wanted, &attr) == 0);
        contend(lock_wanted, unlock_wanted);
        if (all[i].robust) {
            check(pthread_create(&thread, NULL, die_with, wanted) == 0);
            join(&thread, 1);
            check(pthread_mutex_lock(wanted) == EOWNERDEAD);
            check(pthread_mutex_consistent(wanted) == 0 && pthread_mutex_unlock(wanted) == 0);
        }
        lock_wanted();
        check(all[i].robust ||
              pthread_mutex_destroy(wanted) == EBUSY); /* libc lets robust ones go */
        check(pthread_mutex_trylock(wanted) ==
              (all[i].type == PTHREAD_MUTEX_RECURSIVE ? 0 : EBUSY));
        if (all[i].type == PTHREAD_MUTEX_RECURSIVE)
            unlock_wanted();
        if (all[i].type == PTHREAD_MUTEX_ERRORCHECK)
            check(pthread_mutex_lock(wanted) == EDEADLK);
        unlock_wanted();
        check(pthread_mutex_destroy(wanted) == 0 && munmap(wanted, 4096) == 0);
    }
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = {
        { "waits", waits },    { "exec", execs },   { "vfork", vforks },  { "raw", raw_forks },
        { "daemon", daemons }, { "close", closes }, { "chroot", roots },  { "preload", preloads },
        { "dlopen", opens },   { "kinds", kinds },  { "empty", empties },
    };
    if (argc == 3 && strcmp(argv[1], "signal") == 0) {
        waits();
        signal(atoi(argv[2]), SIG_DFL);
        raise(atoi(argv[2]));
        return 1;
    }
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
