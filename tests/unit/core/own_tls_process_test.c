/* SPDX-License-Identifier: MIT */
/*
 * own_tls_process_test.c - threads with thread-local storage of their own, and what concerns the whole process: fork,
 * libraries loaded later, limits, signals, and how such threads end.
 */
#include "core_test.h"

#include "core/tls.h"

#include <dirent.h>
#include <dlfcn.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>

#ifdef __x86_64__
#define THIS_ARCH AUDIT_ARCH_X86_64
#else
#define THIS_ARCH AUDIT_ARCH_AARCH64
#endif
#define THREADS 8

static _Thread_local int mine = 7;
static struct rouse_sem gate = ROUSE_SEM_INIT(0);

static int try_start(struct rouse_thread **out, void *(*fn)(void *), void *arg)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.own_tls = true;
    return rouse_thread_create(out, &attr, fn, arg);
}

static struct rouse_thread *start_own(void *(*fn)(void *), void *arg)
{
    struct rouse_thread *t = NULL;
    CHECK_EQUAL(try_start(&t, fn, arg), 0);
    return t;
}

static void *give_back(void *arg)
{
    return arg;
}

static void *waits_at_the_gate(void *arg)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    return arg;
}

/* Calls fn on a thread with own storage, and returns its result. */
static void *in_own(void *(*fn)(void *), void *arg)
{
    return join(start_own(fn, arg));
}

/* Threads of every kind, each created and joined by the caller. */
static void create_every_kind(void)
{
    for (int i = 0; i < 20; i++) {
        pthread_t pthread;
        CHECK_EQUAL(pthread_create(&pthread, NULL, give_back, NULL), 0);
        CHECK_EQUAL(pthread_join(pthread, NULL), 0);
        CHECK(join(start(ROUSE_KIND_USER, give_back, &mine)) == &mine);
        CHECK(join(start(ROUSE_KIND_KERNEL, give_back, &mine)) == &mine);
        CHECK(in_own(give_back, &mine) == &mine);
    }
}

static void *creates_every_kind(void *arg)
{
    create_every_kind();
    return arg;
}

static void threads_with_own_storage_create_threads(void **state)
{
    (void)state;
    in_own(creates_every_kind, NULL);
}

/* In the child, too, the thread has its values, can switch, and can create threads. */
static void *forks(void *arg)
{
    pthread_t self = pthread_self();
    char *kept = malloc(100);
    mine = 11;
    pid_t pid = fork();
    if (pid == 0) {
        for (int i = 0; i < 10; i++)
            rouse_thread_yield();
        CHECK_EQUAL(mine, 11);
        CHECK(pthread_equal(pthread_self(), self));
        create_every_kind();
        CHECK_EQUAL(mine, 11);
        free(kept);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            CHECK_EQUAL(mine, 11);
            create_every_kind();
            _exit(0);
        }
        CHECK(child_passed(grandchild));
        if (arg)
            return NULL; /* the child ends with its thread */
        _exit(0);
    }
    free(kept);
    CHECK(child_passed(pid));
    CHECK_EQUAL(mine, 11);
    rouse_thread_yield();
    CHECK_EQUAL(mine, 11);
    return NULL;
}

static void a_forked_child_keeps_the_storage(void **state)
{
    (void)state;
    if (is_emulated()) {
        puts("not run: the emulator's own locks stay in a child as the fork found them");
        skip();
    }
    for (int i = 0; i < 3; i++) {
        struct rouse_thread *other = start_own(waits_at_the_gate, NULL);
        in_own(forks, NULL);
        in_own(forks, &mine);
        CHECK_EQUAL(rouse_sem_post(&gate), 0);
        join(other);
    }
}

/* This program is linked with librouse.a, so that setuid is libc's, which would leave out the caller's lender. */
static void *sets_its_user(void *arg)
{
    (void)setuid(getuid());
    return arg;
}

static void set_user(void)
{
    in_own(sets_its_user, NULL);
}

/* It reaches the lenders of other threads, and the workers that run them. */
static void set_user_beside_others(void)
{
    struct rouse_thread *threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_own(i % 2 ? waits_at_the_gate : creates_every_kind, NULL);
    for (int i = 0; i < 200; i++)
        CHECK_EQUAL(setuid(getuid()), 0);
    for (int i = 0; i < THREADS / 2; i++)
        CHECK_EQUAL(rouse_sem_post(&gate), 0);
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
}

static void setuid_by_the_static_library_is_refused(void **state)
{
    (void)state;
    scenario_dies("set_user", NULL, SIGABRT, "own_tls: link the program with librouse.so");
    scenario_exits("set_user_beside_others", NULL, 0);
}

/* The destructors of a thread run on a stack of the size that the thread asked for. */
static void uses_much_stack(void *arg)
{
    volatile char large[512 * 1024];
    for (size_t i = 0; i < sizeof large; i += 4096)
        large[sizeof large - 1 - i] = 1;
    *(int *)arg = 1;
}

static pthread_key_t large_key;

static void *leaves_a_large_destructor(void *arg)
{
    CHECK_EQUAL(pthread_setspecific(large_key, arg), 0);
    return arg;
}

static void destructors_have_the_stack_of_their_thread(void **state)
{
    (void)state;
    int is_done = 0;
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_USER;
    attr.own_tls = true;
    attr.stack_bytes = (size_t)4 << 20;
    CHECK_EQUAL(pthread_key_create(&large_key, uses_much_stack), 0);
    CHECK_EQUAL(rouse_thread_create(&t, &attr, leaves_a_large_destructor, &is_done), 0);
    join(t);
    CHECK_EQUAL(is_done, 1);
    CHECK_EQUAL(pthread_key_delete(large_key), 0);
}

/* Handlers of fork run on the thread's own storage, also those that were registered before the runtime started. */
static pthread_mutex_t recursive = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void lock_again(void)
{
    CHECK_EQUAL(pthread_mutex_lock(&recursive), 0);
}

static void unlock_again(void)
{
    CHECK_EQUAL(pthread_mutex_unlock(&recursive), 0);
}

static void *forks_with_a_recursive_mutex(void *arg)
{
    lock_again();
    pid_t pid = fork();
    if (pid == 0) {
        unlock_again();
        _exit(0);
    }
    CHECK(child_passed(pid));
    unlock_again();
    return arg;
}

static void lock_around_fork(void)
{
    CHECK_EQUAL(pthread_atfork(lock_again, unlock_again, unlock_again), 0);
    in_own(forks_with_a_recursive_mutex, NULL);
}

static void handlers_of_fork_run_on_the_storage_of_the_thread(void **state)
{
    (void)state;
    if (is_emulated()) {
        puts("not run: the emulator's own locks stay in a child as the fork found them");
        skip();
    }
    scenario_exits("lock_around_fork", NULL, 0);
}

static pthread_mutex_t robust;

static void *ends_with_a_lock(void *arg)
{
    CHECK_EQUAL(pthread_mutex_lock(&robust), 0);
    return arg;
}

static void the_end_of_a_thread_releases_its_robust_mutexes(void **state)
{
    (void)state;
    if (is_emulated()) {
        puts("not run: the emulator has no robust lists");
        skip();
    }
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attr);
    for (int i = 0; i < 3; i++) {
        in_own(ends_with_a_lock, NULL);
        CHECK_EQUAL(pthread_mutex_lock(&robust), EOWNERDEAD);
        CHECK_EQUAL(pthread_mutex_consistent(&robust), 0);
        CHECK_EQUAL(pthread_mutex_unlock(&robust), 0);
    }
}

/* libstdc++ is loaded after the threads were created. It keeps exceptions in flight in thread-local storage. */
static void *(*exceptions)(void);

static void *uses_a_library_loaded_later(void *arg)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    unsigned *counter = (unsigned *)exceptions() + 2;
    CHECK_EQUAL(*counter, 0);
    for (int i = 0; i < 100; i++) {
        ++*counter;
        rouse_thread_yield();
        CHECK((unsigned *)exceptions() + 2 == counter);
        CHECK_EQUAL(*counter, i + 1);
    }
    *counter = 0;
    return arg;
}

static void a_library_may_be_loaded_later(void **state)
{
    (void)state;
    struct rouse_thread *threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_own(uses_a_library_loaded_later, NULL);
    void *library = dlopen("libstdc++.so.6", RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, "__cxa_get_globals") : NULL;
    CHECK(found != NULL);
    memcpy(&exceptions, &found, sizeof found);
    for (int i = 0; i < THREADS; i++)
        CHECK_EQUAL(rouse_sem_post(&gate), 0);
    for (int i = 0; i < THREADS; i++)
        join(threads[i]);
}

static void forbid_new_kernel_threads(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, THIS_ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { LENGTH(filter), filter };
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        puts("not run: too_many_kernel_threads: no system call filter can be installed here");
        exit(0);
    }
}

static void *creates_without_kernel_threads(void *arg)
{
    struct rouse_thread *t = NULL;
    forbid_new_kernel_threads();
    for (int i = 0; i < 1000; i++) {
        CHECK_EQUAL(try_start(&t, give_back, NULL), -EAGAIN);
        CHECK(t == NULL);
        CHECK(join(start(ROUSE_KIND_USER, give_back, &mine)) == &mine);
    }
    return arg;
}

static void too_many_kernel_threads(void)
{
    join(start(ROUSE_KIND_USER, give_back, NULL));
    in_own(give_back, NULL);
    creates_without_kernel_threads(NULL);
}

static void create_returns_eagain_without_kernel_threads(void **state)
{
    (void)state;
    scenario_exits("too_many_kernel_threads", NULL, 0);
}

static int arrived;
static struct rouse_thread *interrupted;

static void on_signal(int number)
{
    (void)number;
    arrived++;
    interrupted = rouse_thread_self();
}

static void *signals_itself(void *arg)
{
    arrived = 0;
    signal(SIGUSR1, on_signal);
    for (int i = 0; i < 10; i++) {
        interrupted = NULL;
        CHECK_EQUAL(i % 2 ? raise(SIGUSR1) : pthread_kill(pthread_self(), SIGUSR1), 0);
        CHECK(interrupted == rouse_thread_self());
        rouse_thread_yield();
    }
    CHECK_EQUAL(arrived, 10);
    return arg;
}

static void a_thread_gets_the_signals_that_it_sends_itself(void **state)
{
    (void)state;
    in_own(signals_itself, NULL);
}

static unsigned kernel_threads(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    while (readdir(tasks) != NULL)
        count++;
    closedir(tasks);
    return count;
}

static size_t mapped_pages(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages;
}

/* Lenders and their stacks are used up by as many threads as there are at once, not by all that there ever were. */
static void ended_threads_leave_nothing(void **state)
{
    (void)state;
    struct rouse_thread *threads[THREADS];
    unsigned before = 0;
    size_t pages = 0;
    for (int round = 0; round < 200; round++) {
        for (int i = 0; i < THREADS; i++)
            threads[i] = start_own(give_back, NULL);
        for (int i = 0; i < THREADS; i++)
            join(threads[i]);
        if (round == 20) {
            before = kernel_threads();
            pages = mapped_pages();
        }
    }
    if (is_emulated()) {
        puts("not run: the emulator keeps memory of each kernel thread that has ended");
        return;
    }
    UNTIL(kernel_threads() <= before);
    CHECK(mapped_pages() < pages + 4096); /* spare workers may have started */
}

static void *leaves_by_pthread_exit(void *arg)
{
    pthread_exit(arg);
}

static void leave_by_pthread_exit(void)
{
    in_own(leaves_by_pthread_exit, NULL);
}

static void *is_cancelled(void *arg)
{
    pthread_cancel(pthread_self());
    pthread_testcancel();
    return arg;
}

static void cancel_by_pthread(void)
{
    in_own(is_cancelled, NULL);
}

static void *leaves_by_rouse(void *arg)
{
    mine = 1;
    rouse_thread_exit(arg);
}

static void pthread_exit_is_refused(void **state)
{
    (void)state;
    scenario_dies("leave_by_pthread_exit", NULL, SIGABRT, "a thread with own_tls");
    scenario_dies("cancel_by_pthread", NULL, SIGABRT, "a thread with own_tls");
    CHECK(in_own(leaves_by_rouse, &mine) == &mine);
}

/* Whether thread-local storage belongs to the threads of a program that does not ask for it. */
static void *takes_turns(void *arg)
{
    int begun = mine;
    mine = (int)(intptr_t)arg;
    for (int i = 0; i < 10; i++)
        rouse_thread_yield();
    return begun == 7 && mine == (int)(intptr_t)arg ? &mine : NULL;
}

static void tell_storage(void)
{
    struct rouse_thread *threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        threads[i] = start(ROUSE_KIND_USER, takes_turns, (void *)(intptr_t)(100 + i));
    scenario_status = 1;
    for (int i = 0; i < THREADS; i++)
        if (!join(threads[i]))
            scenario_status = 0;
}

static void the_environment_gives_all_threads_own_storage(void **state)
{
    (void)state;
    scenario_exits("tell_storage", NULL, 0);
    scenario_exits("tell_storage", "ROUSE_TLS=", 0);
    scenario_exits("tell_storage", "ROUSE_TLS=shared", 0);
    scenario_exits("tell_storage", "ROUSE_TLS=own", 1);
    scenario_dies("tell_storage", "ROUSE_TLS=mine", SIGABRT, "ROUSE_TLS is \"mine\"");
}

static void kernel_threads_have_their_own_anyway(void **state)
{
    (void)state;
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = ROUSE_KIND_KERNEL;
    attr.own_tls = true;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, give_back, &mine), 0);
    CHECK(join(t) == &mine);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "set_user", set_user },
        { "lock_around_fork", lock_around_fork },
        { "set_user_beside_others", set_user_beside_others },
        { "too_many_kernel_threads", too_many_kernel_threads },
        { "leave_by_pthread_exit", leave_by_pthread_exit },
        { "cancel_by_pthread", cancel_by_pthread },
        { "tell_storage", tell_storage },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_with_own_storage_create_threads),
        cmocka_unit_test(a_forked_child_keeps_the_storage),
        cmocka_unit_test(setuid_by_the_static_library_is_refused),
        cmocka_unit_test(destructors_have_the_stack_of_their_thread),
        cmocka_unit_test(handlers_of_fork_run_on_the_storage_of_the_thread),
        cmocka_unit_test(the_end_of_a_thread_releases_its_robust_mutexes),
        cmocka_unit_test(a_library_may_be_loaded_later),
        cmocka_unit_test(create_returns_eagain_without_kernel_threads),
        cmocka_unit_test(a_thread_gets_the_signals_that_it_sends_itself),
        cmocka_unit_test(ended_threads_leave_nothing),
        cmocka_unit_test(pthread_exit_is_refused),
        cmocka_unit_test(the_environment_gives_all_threads_own_storage),
        cmocka_unit_test(kernel_threads_have_their_own_anyway),
    };
    struct rouse_thread *t;
    if (!rsi_tls_is_supported()) {
        CHECK_EQUAL(try_start(&t, give_back, NULL), -ENOTSUP);
        puts(
            "not run: threads cannot have own thread-local storage under a sanitizer or on this processor");
        return NOT_RUN;
    }
    static const struct program program = { 60,        true,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
