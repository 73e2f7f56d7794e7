/* SPDX-License-Identifier: MIT */
/*
 * own_tls.c - threads with thread-local storage of their own in a program that uses librouse.so. The first argument says
 * what it does; the last line of its output is "right", or says what went wrong.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <rouse/rouse.h>

#define CHECK(condition) \
    ((condition) ? (void)0 : (printf("line %d: %s\n", __LINE__, #condition), exit(1)))
#define WAITING 8

static struct rouse_sem gate = ROUSE_SEM_INIT(0);
#ifdef LARGE
static _Thread_local char large[LARGE];
#endif

static struct rouse_thread *start(void *(*fn)(void *), void *arg, enum rouse_kind kind, bool own)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;

    attr.kind = kind;
    attr.own_tls = own;
    int error = rouse_thread_create(&t, &attr, fn, arg);
    if (error == -ENOTSUP) {
        puts("not supported");
        exit(0);
    }
    CHECK(error == 0);
    return t;
}

static void *waits(void *arg)
{
    rouse_sem_wait(&gate);
    return arg;
}

static void *yields(void *arg)
{
    while (rouse_sem_wait_try(&gate) != 0)
        rouse_thread_yield();
    return arg;
}

/* Whether a kernel thread is on its way out. libc changes nothing in one that has begun to end. */
static bool ends(const char *path)
{
    uint64_t until = rouse_now_ns() + UINT64_C(5000000000);

    while (access(path, F_OK) == 0)
        if (rouse_now_ns() > until)
            return false;
    return true;
}

/* Whether the line of each kernel thread in /proc has this text. */
static bool all_have(const char *line_name, const char *text)
{
    char path[300], line[512];
    bool found = true;
    struct dirent *entry;
    DIR *tasks = opendir("/proc/self/task");

    CHECK(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && fgets(line, sizeof line, file))
            if (strncmp(line, line_name, strlen(line_name)) == 0 && !strstr(line, text) &&
                !ends(path)) {
                printf("%s: %s", path, line);
                found = false;
            }
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return found;
}

static void *changes_its_user(void *arg)
{
    for (int i = 0; i < 200; i++) {
        CHECK(seteuid(0) == 0);
        rouse_thread_yield();
    }
    return arg;
}

static void *gives_up_rights(void *arg)
{
    const gid_t groups[] = { 5, 6, 7 };

    CHECK(setgroups(3, groups) == 0);
    CHECK(all_have("Groups:", "5 6 7"));
    for (int i = 0; i < 200; i++) {
        CHECK(setegid(i % 2 ? 0 : 1000) == 0);
        CHECK(seteuid(i % 2 ? 0 : 1000) == 0);
        CHECK(all_have("Gid:", i % 2 ? "\t0\t0\t0\t0" : "\t0\t1000\t0\t1000"));
        CHECK(all_have("Uid:", i % 2 ? "\t0\t0\t0\t0" : "\t0\t1000\t0\t1000"));
        rouse_thread_yield();
    }
    CHECK(initgroups("root", 0) == 0);
    CHECK(setregid(0, 0) == 0);
    CHECK(setgid(8) == 0);
    CHECK(setresgid(9, 9, 9) == 0);
    CHECK(all_have("Gid:", "\t9\t9\t9\t9"));
    CHECK(setreuid(0, 0) == 0);
    CHECK(setuid(1000) == 0);
    CHECK(setresuid(1000, 1000, 1000) == 0);
    CHECK(all_have("Uid:", "\t1000\t1000\t1000\t1000"));
    errno = 0;
    CHECK(seteuid(0) == -1 && errno == EPERM);
    return arg;
}

static void give_up_rights(void)
{
    struct rouse_thread *waiting[WAITING];
    struct rouse_thread *others[3];

    for (int i = 0; i < WAITING; i++)
        waiting[i] = start(i % 2 ? waits : yields, NULL, ROUSE_KIND_USER, true);
    others[0] = start(changes_its_user, NULL, ROUSE_KIND_USER, true);
    others[1] = start(changes_its_user, NULL, ROUSE_KIND_USER, false);
    others[2] = start(changes_its_user, NULL, ROUSE_KIND_KERNEL, false);
    for (int i = 0; i < 3; i++)
        CHECK(rouse_thread_join(others[i], NULL) == 0);
    CHECK(rouse_thread_join(start(gives_up_rights, NULL, ROUSE_KIND_USER, true), NULL) == 0);
    for (int i = 0; i < WAITING; i++)
        CHECK(rouse_sem_post(&gate) == 0);
    for (int i = 0; i < WAITING; i++)
        CHECK(rouse_thread_join(waiting[i], NULL) == 0);
}

/* Workers start and end while a kernel thread changes its user. */
static int is_over;

static void *adds_workers(void *cluster)
{
    while (!__atomic_load_n(&is_over, __ATOMIC_RELAXED)) {
        int worker = rouse_cluster_worker_add(cluster);
        if (worker >= 0)
            (void)rouse_cluster_worker_remove(cluster, (unsigned)worker);
    }
    return NULL;
}

static void *nothing(void *arg)
{
    return arg;
}

static void add_workers(void)
{
    struct rouse_cluster *cluster;

    CHECK(rouse_thread_join(start(nothing, NULL, ROUSE_KIND_USER, true), NULL) == 0);
    CHECK(rouse_cluster_create(&cluster, NULL) == 0);
    struct rouse_thread *other = start(adds_workers, cluster, ROUSE_KIND_KERNEL, false);
    for (int i = 0; i < 3000; i++)
        CHECK(setuid(getuid()) == 0);
    __atomic_store_n(&is_over, 1, __ATOMIC_RELAXED);
    CHECK(rouse_thread_join(other, NULL) == 0);
}

static void *uses_large(void *arg)
{
#ifdef LARGE
    large[0] = large[LARGE - 1] = 1;
    rouse_thread_yield();
    CHECK(large[0] == 1 && large[LARGE - 1] == 1 && large[LARGE / 2] == 0);
#endif
    return arg;
}

int main(int argc, char **argv)
{
    pthread_mutex_t plain = PTHREAD_MUTEX_INITIALIZER;

    CHECK(argc == 2);
    CHECK(pthread_mutex_lock(&plain) == 0 && pthread_mutex_unlock(&plain) == 0);
    if (strcmp(argv[1], "rights") == 0)
        give_up_rights();
    else if (strcmp(argv[1], "workers") == 0)
        add_workers();
    else
        for (int i = 0; i < 20; i++)
            CHECK(rouse_thread_join(start(uses_large, NULL, ROUSE_KIND_USER, true), NULL) == 0);
    puts("right");
    return 0;
}
