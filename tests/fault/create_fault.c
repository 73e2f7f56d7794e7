/* SPDX-License-Identifier: MIT */
/*
 * create_fault.c - makes the nth system call of each kind fail, for every n and every error that it may
 * return, while the runtime starts and threads are created. The caller receives the error or does not
 * notice it, the same call made again succeeds, nothing leaks, and no thread hangs.
 *
 * A runtime that cannot start does not end the program either. The creation of the first thread
 * returns the error, and the next creation starts the runtime. Futex calls return early with EINTR
 * and EAGAIN, as they may at any time, and the caller does not notice it.
 */
#include "unit/core/blocks.h"
#include "nth_call.h"

#include "core/core.h"

#include <dirent.h>
#include <linux/membarrier.h>
#include <sys/resource.h>

#define BLOCKS_BYTES ((uint32_t)256 * 1024)
#define SLAB_BYTES ((uint32_t)16 * 1024 * 1024)
#define SIGNAL_STACK_BYTES ((uint32_t)64 * 1024)
#define HEAP_BYTES ((uint32_t)RSI_HEAP_BYTES)
#define FUTEX_WAITS 137u /* FUTEX_WAIT_BITSET | FUTEX_PRIVATE_FLAG */
#define MADV_GUARD 102u
#define CALLS_MOST (SCALE > 1 ? 16 : 60)

/* A mapping of that many bytes for stacks. */
#define STACKS(bytes) \
    ((uint32_t)(RSI_PAGE + SLAB_BYTES / ((bytes) + RSI_PAGE) * ((bytes) + RSI_PAGE)))

static const struct fault starting[] = {
    { "mmap of a timer heap: ENOMEM", SYS_mmap, ENOMEM, 1, HEAP_BYTES },
    { "mmap of timer lanes: ENOMEM", SYS_mmap, ENOMEM, 1, (uint32_t)RSI_LANES_BYTES },
    { "mmap of a signal stack: ENOMEM", SYS_mmap, ENOMEM, 1, SIGNAL_STACK_BYTES },
    { "mmap of blocks: ENOMEM", SYS_mmap, ENOMEM, 1, BLOCKS_BYTES },
    { "mmap of a page: ENOMEM", SYS_mmap, ENOMEM, 1, RSI_PAGE },
    { "clone3: EAGAIN", SYS_clone3, EAGAIN, -1, 0 },
    { "clone3: ENOSYS", SYS_clone3, ENOSYS, -1, 0 },
    { "membarrier's query: ENOSYS", SYS_membarrier, ENOSYS, 0, MEMBARRIER_CMD_QUERY },
    { "membarrier's registration: EPERM", SYS_membarrier, EPERM, 0,
      MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED },
    { "sched_getaffinity: EINVAL", SYS_sched_getaffinity, EINVAL, -1, 0 },
    { "openat: EMFILE", SYS_openat, EMFILE, -1, 0 },
    { "openat: ENOENT", SYS_openat, ENOENT, -1, 0 },
    { "pipe2: EMFILE", SYS_pipe2, EMFILE, -1, 0 },
    { "prctl: EINVAL", SYS_prctl, EINVAL, -1, 0 },
    { "sigaltstack: ENOMEM", SYS_sigaltstack, ENOMEM, -1, 0 },
    { "a guard: EINVAL", SYS_madvise, EINVAL, 2, MADV_GUARD },
    { "futex: EINTR", SYS_futex, EINTR, 1, FUTEX_WAITS },
    { "futex: EAGAIN", SYS_futex, EAGAIN, 1, FUTEX_WAITS },
};

static const struct fault creating[] = {
    { "mmap of blocks: ENOMEM", SYS_mmap, ENOMEM, 1, BLOCKS_BYTES },
    { "mmap of stacks: ENOMEM", SYS_mmap, ENOMEM, 1, STACKS(65536) },
    { "mmap of small stacks: ENOMEM", SYS_mmap, ENOMEM, 1, STACKS(16384) },
    { "mmap of a signal stack: ENOMEM", SYS_mmap, ENOMEM, 1, SIGNAL_STACK_BYTES },
    { "a guard: ENOMEM", SYS_madvise, ENOMEM, 2, MADV_GUARD },
    { "guards: ENOSYS", SYS_process_madvise, ENOSYS, 3, MADV_GUARD },
    { "guards: ENOMEM", SYS_process_madvise, ENOMEM, 3, MADV_GUARD },
    { "mprotect: ENOMEM", SYS_mprotect, ENOMEM, -1, 0 },
    { "clone3: EAGAIN", SYS_clone3, EAGAIN, -1, 0 },
    { "clone3: ENOMEM", SYS_clone3, ENOMEM, -1, 0 },
    { "clone3: ENOSYS", SYS_clone3, ENOSYS, -1, 0 },
    { "sigaltstack: ENOMEM", SYS_sigaltstack, ENOMEM, -1, 0 },
    { "futex: EINTR", SYS_futex, EINTR, 1, FUTEX_WAITS },
    { "futex: EAGAIN", SYS_futex, EAGAIN, 1, FUTEX_WAITS },
};

static unsigned error_returns; /* how often a call returned an error */

/* Make the call. It may fail once, and is then made again. */
#define AT_SECOND(call) at_second((call), #call) || at_second_again((call), #call)

static bool at_second(int error, const char *call)
{
    if (error == 0)
        return true;
    if (error != -ENOMEM && error != -EAGAIN)
        fprintf(stderr, "%s: %d\n", call, error);
    CHECK(error == -ENOMEM || error == -EAGAIN);
    error_returns++;
    return false;
}

static bool at_second_again(int error, const char *call)
{
    if (error != 0)
        fprintf(stderr, "%s, again: %d\n", call, error);
    CHECK(error == 0);
    return true;
}

static void *sleep_a_little(void *arg)
{
    CHECK(rouse_sleep(100000) == 0);
    return arg;
}

static struct rouse_thread *create(enum rouse_kind kind, size_t stack_bytes, void *(*fn)(void *),
                                   void *arg)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = { .kind = kind, .stack_bytes = stack_bytes };
    (void)(AT_SECOND(rouse_thread_create(&t, &attr, fn, arg)));
    return t;
}

static void join(struct rouse_thread *t, void *result)
{
    void *got = NULL;
    CHECK(rouse_thread_join(t, &got) == 0);
    CHECK(got == result);
}

static struct rouse_sem sem = ROUSE_SEM_INIT(0);

static void *wait_for_unit(void *arg)
{
    CHECK(rouse_sem_wait(&sem) == 0);
    return arg;
}

static void *nothing(void *arg)
{
    return arg;
}

static void *use_a_helper(void *arg)
{
    void *result = NULL;
    (void)(AT_SECOND(rouse_blocking(nothing, arg, &result)));
    CHECK(result == arg);
    return arg;
}

/* The calls that programs make with threads. */
static void *live(void *arg)
{
    struct rouse_thread *threads[40];
    for (size_t i = 0; i < LENGTH(threads); i++) {
        enum rouse_kind kind = i % 8 == 7 ? ROUSE_KIND_KERNEL : ROUSE_KIND_USER;
        threads[i] = create(kind, i % 3 ? 0 : 16384, i % 2 ? sleep_a_little : wait_for_unit, &sem);
    }
    for (size_t i = 0; i < LENGTH(threads); i += 2)
        CHECK(rouse_sem_post(&sem) == 0);
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i], &sem);
    use_a_helper(arg);
    return arg;
}

static unsigned kernel_threads(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;)
        count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void live_twice(void)
{
    live(&error_returns);
    join(create(ROUSE_KIND_USER, 0, live, &error_returns), &error_returns);
    nth_call_arm(false);
    CHECK(rsi_load_relaxed(&error_returns) <= 1);
    join(create(ROUSE_KIND_USER, 0, live, &error_returns),
         &error_returns);        /* as if no error had occurred */
    UNTIL(blocks_in_use() == 1); /* main's */
    /* The monitor may have added a spare worker beside a stuck one, which may have ended again. */
    UNTIL(kernel_threads() ==
          1 + rsi_worker_live_count() + rsi_helper_count() + rsi_monitor_threads());
}

static void start_in_child(const struct fault *fault)
{
    (void)fault;
    nth_call_arm(true);
    join(create(ROUSE_KIND_USER, 0, nothing, &error_returns), &error_returns);
    live_twice();
}

static void create_in_child(const struct fault *fault)
{
    (void)fault;
    (void)rouse_thread_self();
    nth_call_arm(true);
    live_twice();
}

static bool is_fatal_to_sanitizers(long number)
{
    return number == SYS_mmap || number == SYS_mprotect || number == SYS_sigaltstack;
}

static void each_fails_once(const struct fault *faults, size_t count,
                            void (*fn)(const struct fault *))
{
    for (size_t i = 0; i < count; i++) {
        if (SCALE > 1 && is_fatal_to_sanitizers(faults[i].number))
            continue;
        /*
         * Continue until a run makes fewer than n calls. A run that ended early does not show how many
         * calls there are. From the tenth on, n grows in larger steps.
         */
        for (unsigned seen, nth = 1; nth <= CALLS_MOST; nth += 1 + nth / 10) {
            int status = nth_call_run(&faults[i], nth, fn, &seen);
            if (status != 0)
                fprintf(stderr, "%s, call %u of %u: status %#x\n", faults[i].name, nth, seen,
                        (unsigned)status);
            CHECK(status == 0);
            if (seen < nth)
                break;
        }
    }
}

static void the_start_of_the_runtime(void **state)
{
    (void)state;
    each_fails_once(starting, LENGTH(starting), start_in_child);
}

static void the_creation_of_threads(void **state)
{
    (void)state;
    each_fails_once(creating, LENGTH(creating), create_in_child);
}

static unsigned mappings(void)
{
    unsigned count = 0;
    int c;
    FILE *file = fopen("/proc/self/maps", "re");
    CHECK(file);
    while ((c = getc(file)) != EOF)
        count += c == '\n';
    fclose(file);
    return count;
}

static size_t address_space_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    CHECK(file && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * RSI_PAGE;
}

static void fail_to_create(enum rouse_kind kind, size_t stack_bytes)
{
    struct rouse_thread *t = NULL;
    struct rouse_thread_attr attr = { .kind = kind, .name = "refused", .stack_bytes = stack_bytes };
    int error = rouse_thread_create(&t, &attr, nothing, NULL);
    CHECK(error == -ENOMEM || error == -EAGAIN);
    CHECK(t == NULL);
}

/* No address space is left for a long time. */
static void fail_in_child(void)
{
    const size_t large = (size_t)64 << 20;
    struct rlimit limit, none;
    live(&error_returns);
    CHECK(getrlimit(RLIMIT_AS, &none) == 0);
    limit = none;
    limit.rlim_cur = address_space_bytes() + ((size_t)1 << 20);
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    fail_to_create(ROUSE_KIND_KERNEL, large);
    unsigned blocks = blocks_in_use(), before = mappings();
    size_t bytes = address_space_bytes();
    for (int i = 0; i < 3000; i++) {
        fail_to_create(ROUSE_KIND_USER, large);
        fail_to_create(ROUSE_KIND_KERNEL, large);
    }
    CHECK(blocks_in_use() == blocks);
    CHECK(mappings() == before);
    CHECK(address_space_bytes() == bytes);
    CHECK(setrlimit(RLIMIT_AS, &none) == 0);
    join(create(ROUSE_KIND_USER, large, nothing, &error_returns), &error_returns);
    join(create(ROUSE_KIND_KERNEL, large, nothing, &error_returns), &error_returns);
    live(&error_returns);
}

static void creation_that_fails_for_long_leaks_nothing(void **state)
{
    (void)state;
    if (SCALE > 1) {
        puts("not run: a sanitizer needs address space");
        return;
    }
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        fail_in_child();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

static struct rouse_mutex mutex = ROUSE_MUTEX_INIT;

static void *lock_and_post(void *arg)
{
    rouse_mutex_lock(&mutex);
    rouse_mutex_unlock(&mutex);
    CHECK(rouse_sem_post(&sem) == 0);
    return arg;
}

struct told {
    uint32_t go; /* pairs with wait_in_child's release */
    int fd;
};

static void *post_when_told(void *value)
{
    struct told *told = value;
    while (rsi_load_acquire(&told->go) == 0)
        rsi_futex_wait(&told->go, 0, UINT64_MAX);
    lock_and_post(value);
    CHECK(rouse_sleep(1000000) == 0);
    CHECK(write(told->fd, "x", 1) == 1);
    return value;
}

static void wait_in_child(int resource)
{
    struct rouse_thread *t = NULL;
    struct rlimit limit, none;
    pthread_t other;
    int pipe_fds[2];
    char byte;
    CHECK(pipe(pipe_fds) == 0);
    struct told told = { 0, pipe_fds[1] };
    CHECK(pthread_create(&other, NULL, post_when_told, &told) == 0);
    CHECK(getrlimit((__rlimit_resource_t)resource, &none) == 0);
    limit = none;
    limit.rlim_cur = resource == RLIMIT_AS ? address_space_bytes() + ((size_t)64 << 10) : 0;
    CHECK(setrlimit((__rlimit_resource_t)resource, &limit) == 0);
    int error = rouse_thread_create(&t, NULL, nothing, NULL);
    if (error == 0 && resource == RLIMIT_NPROC)
        _exit(77); /* a privileged user has no limit */
    CHECK(error == -EAGAIN || error == -ENOMEM);
    uint64_t before_ns = rsi_now_ns();
    CHECK(rouse_sleep(2000000) == 0);
    CHECK(rsi_now_ns() - before_ns >= 2000000);
    rouse_mutex_lock(&mutex);
    CHECK(rouse_sem_wait_until(&sem, rsi_now_ns() + 1000000) == -ETIMEDOUT);
    rsi_store_release(&told.go, 1u); /* pairs with post_when_told */
    rsi_futex_wake(&told.go, 1);
    rouse_mutex_unlock(&mutex);
    CHECK(rouse_sem_wait(&sem) == 0);
    CHECK(rouse_read(pipe_fds[0], &byte, 1) == 1 && byte == 'x');
    CHECK(rouse_thread_create(&t, NULL, nothing, NULL) == error);
    CHECK(setrlimit((__rlimit_resource_t)resource, &none) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    join(create(ROUSE_KIND_USER, 0, nothing, &error_returns), &error_returns);
    live(&error_returns);
}

/* No worker can be started, and there is no room for the control block of a kernel thread. */
static void a_thread_that_runs_can_wait_where_no_worker_can_start(void **state)
{
    static const int limits[] = { RLIMIT_AS, RLIMIT_NPROC };
    (void)state;
    for (size_t i = 0; i < LENGTH(limits); i++) {
        if (SCALE > 1 && limits[i] == RLIMIT_AS)
            continue;
        fflush(NULL);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            if (limits[i] == RLIMIT_NPROC && getuid() == 0)
                CHECK(setgid(65534) == 0 && setuid(65534) == 0);
            wait_in_child(limits[i]);
            _exit(0);
        }
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 0)
            fprintf(stderr, "limit %d: status %#x\n", limits[i], (unsigned)status);
        CHECK(status == 0);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_start_of_the_runtime),
        cmocka_unit_test(the_creation_of_threads),
        cmocka_unit_test(creation_that_fails_for_long_leaks_nothing),
        cmocka_unit_test(a_thread_that_runs_can_wait_where_no_worker_can_start),
    };
#ifdef RSI_TSAN
    puts("not run: the thread sanitizer has no threads in the child of a program that has them");
    return 77;
#endif
    if (nth_call_is_refused(&starting[0]))
        return 77;
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
