/* SPDX-License-Identifier: MIT */
/*
 * sync_test.h - helpers of the tests of the sync objects: crews of threads of every kind, waiting
 * for a state instead of sleeping, runs with 1, 2 and 4 workers, and programs that must end by
 * misuse.
 */
#ifndef SYNC_TEST_H
#define SYNC_TEST_H

#include "base/base.h"
#include "core/hold.h"
#include "core/park.h"
#include "unit/io/rings.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <rouse/rouse.h>

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define SCALE 8
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define SCALE 8
#endif
#endif
#ifndef SCALE
#define SCALE 1
#endif

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define PATIENCE_S (30 * SCALE)
#define WATCHDOG_S (60 * SCALE)
#define DELAY_CHANCE "100" /* of 1,024; only builds with ROUSE_TEST know it */
#define CREW_MOST 1024
#define LENGTH(a) (sizeof(a) / sizeof *(a))
#define MAYBE_UNUSED __attribute__((unused))

/* cmocka's own assertions jump, and may be used on the main thread only. */
#define CHECK(condition) ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__))

static MAYBE_UNUSED _Noreturn void check_failed(const char *text, const char *file, int line)
{
    fprintf(stderr, "%s:%d: failed: %s\n", file, line, text);
    raise(SIGQUIT); /* prints every thread */
    abort();
}

/* A run that takes too long shows where every thread is, and ends. */
static MAYBE_UNUSED void watchdog_bark(int signal_number)
{
    (void)signal_number;
    static const char text[] = "the watchdog: this run hangs\n";
    ssize_t written = write(STDERR_FILENO, text, sizeof text - 1);
    (void)written;
    raise(SIGQUIT);
    abort();
}

static MAYBE_UNUSED void watchdog_start(unsigned seconds)
{
    signal(SIGALRM, watchdog_bark);
    alarm(seconds);
}

/* Wait for a state that some other thread brings about. */
#define UNTIL(condition) \
    do { \
        uint64_t until_end_ns = rouse_now_ns() + PATIENCE_S * SECOND; \
        while (!(condition)) { \
            if (rouse_now_ns() > until_end_ns) \
                check_failed("in time: " #condition, __FILE__, __LINE__); \
            rouse_thread_yield(); \
        } \
    } while (0)

static MAYBE_UNUSED unsigned waiter_count(uint32_t *guard, struct rouse_waiters *waiters)
{
    unsigned count = 0;
    rsi_guard_lock(guard);
    for (struct rouse_thread *t = waiters->first; t; t = rsi_waiter(t)->next)
        count++;
    rsi_guard_unlock(guard);
    return count;
}
#define WAITING(object) waiter_count(&(object)->guard, &(object)->waiters)

enum crew_kind { CREW_USER, CREW_KERNEL, CREW_FOREIGN, CREW_MIXED, CREW_KINDS };

struct crew {
    unsigned count;
    struct member {
        enum crew_kind kind;
        struct rouse_thread *thread;
        pthread_t pthread;
        void (*fn)(void *arg, unsigned index);
        void *arg;
        unsigned index;
    } members[CREW_MOST];
};

static MAYBE_UNUSED void *member_main(void *arg)
{
    struct member *member = arg;
    if (member->kind == CREW_FOREIGN)
        rsi_store_release(&member->thread, rouse_thread_self());
    member->fn(member->arg, member->index);
    return NULL;
}

/* Add a member, whose handle can be used at once. */
static MAYBE_UNUSED struct rouse_thread *crew_add(struct crew *crew, enum crew_kind kind,
                                                  void (*fn)(void *, unsigned), void *arg)
{
    CHECK(crew->count < CREW_MOST);
    unsigned index = crew->count++;
    struct member *member = &crew->members[index];
    *member = (struct member){ .kind = kind, .fn = fn, .arg = arg, .index = index };
    if (kind == CREW_MIXED)
        member->kind = (enum crew_kind)(index % CREW_MIXED);
    if (member->kind == CREW_FOREIGN) {
        /* the system may be short of threads for a moment */
        UNTIL(pthread_create(&member->pthread, NULL, member_main, member) == 0);
        UNTIL(rsi_load_acquire(&member->thread));
    } else {
        struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
        attr.kind = member->kind == CREW_USER ? ROUSE_KIND_USER : ROUSE_KIND_KERNEL;
        UNTIL(rouse_thread_create(&member->thread, &attr, member_main, member) == 0);
    }
    return member->thread;
}

static MAYBE_UNUSED void crew_add_many(struct crew *crew, enum crew_kind kind, unsigned count,
                                       void (*fn)(void *, unsigned), void *arg)
{
    for (unsigned i = 0; i < count; i++)
        (void)crew_add(crew, kind, fn, arg);
}

static MAYBE_UNUSED void crew_join(struct crew *crew)
{
    for (unsigned i = 0; i < crew->count; i++) {
        struct member *member = &crew->members[i];
        if (member->kind == CREW_FOREIGN)
            CHECK(pthread_join(member->pthread, NULL) == 0);
        else
            CHECK(rouse_thread_join(member->thread, NULL) == 0);
    }
    crew->count = 0;
}

/* Run count threads and wait for them. */
static MAYBE_UNUSED void crew_run(enum crew_kind kind, unsigned count, void (*fn)(void *, unsigned),
                                  void *arg)
{
    static struct crew crew;
    crew_add_many(&crew, kind, count, fn, arg);
    crew_join(&crew);
}

/*
 * The run's seed: ROUSE_SEED. If it is not set, seed_print chooses one. It is printed and also seeds
 * the injected delays of the runs below.
 */
static MAYBE_UNUSED uint64_t seed_of_run(void)
{
    const char *text = getenv("ROUSE_SEED");
    return text ? strtoull(text, NULL, 10) | 1 : 1;
}

static MAYBE_UNUSED void seed_print(void)
{
    char text[24];
    snprintf(text, sizeof text, "%lu", (unsigned long)(rouse_now_ns() % 1000000007));
    setenv("ROUSE_SEED", text, 0);
    setenv("ROUSE_TEST_SEED", getenv("ROUSE_SEED"), 0);
    printf("ROUSE_SEED=%s\n", getenv("ROUSE_SEED"));
}

/*
 * Memory that is checked after its release: a thread that writes to it then is found at the end,
 * even without AddressSanitizer, which also finds readers.
 */
#define GRAVE_BYTE 0xdb
struct grave {
    uint32_t count, size, most;
    unsigned char **items;
};

static MAYBE_UNUSED void *grave_new(size_t bytes)
{
    void *item = calloc(1, bytes);
    CHECK(item);
    return item;
}

static MAYBE_UNUSED void grave_release(struct grave *grave, void *item, size_t bytes)
{
#if SCALE == 1
    memset(item, GRAVE_BYTE, bytes);
    grave->items[rsi_fetch_add_relaxed(&grave->count, 1u)] = item;
#else
    (void)grave;
    (void)bytes;
    free(item);
#endif
}

static MAYBE_UNUSED void grave_open(struct grave *grave, unsigned most, size_t bytes)
{
    *grave = (struct grave){ 0, (uint32_t)bytes, most, calloc(most, sizeof(void *)) };
    CHECK(grave->items);
}

static MAYBE_UNUSED void grave_check(struct grave *grave)
{
    for (uint32_t i = 0; i < grave->count; i++) {
        for (uint32_t j = 0; j < grave->size; j++)
            CHECK(grave->items[i][j] == GRAVE_BYTE);
        free(grave->items[i]);
    }
    free(grave->items);
}

/* A program that must end with one line on standard error that contains text. */
struct misuse {
    const char *name;
    const char *text;
    void (*run)(void);
};

static MAYBE_UNUSED int child_run(char *const argv[], char *output, size_t bytes)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    close(ends[1]);
    size_t used = 0;
    for (ssize_t got;
         used + 1 < bytes && (got = read(ends[0], output + used, bytes - used - 1)) > 0;)
        used += (size_t)got;
    output[used] = 0;
    char *emulator = strstr(output, "qemu: uncaught target signal"); /* it reports the death too */
    if (emulator)
        *emulator = 0;
    close(ends[0]);
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    return status;
}

static MAYBE_UNUSED int misuses_check(const struct misuse *misuses, size_t count)
{
    int failures = 0;
    for (size_t i = 0; i < count; i++) {
        char output[4096];
        char *const argv[] = { (char *)"test", (char *)"misuse", (char *)misuses[i].name, NULL };
        int status = child_run(argv, output, sizeof output);
        bool is_right = WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT &&
                        strncmp(output, "rouse: ", 7) == 0 && strstr(output, misuses[i].text) &&
                        strchr(output, '\n') == output + strlen(output) - 1;
        printf("[ %s ] misuse: %s\n", is_right ? "      OK" : "  FAILED", misuses[i].name);
        if (!is_right) {
            printf("status %#x, wanted SIGABRT and \"%s\", got: %s\n", (unsigned)status,
                   misuses[i].text, output);
            failures++;
        }
    }
    return failures;
}

static MAYBE_UNUSED int misuse_run(const struct misuse *misuses, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(misuses[i].name, name) == 0)
            misuses[i].run();
    return 0; /* which the caller takes for a failure */
}

static MAYBE_UNUSED int with_workers(const char *workers)
{
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        setenv("ROUSE_WORKERS", workers, 1);
        setenv("ROUSE_TEST_DELAY", DELAY_CHANCE, 0);
        execl("/proc/self/exe", "test", "tests", (char *)NULL);
        _exit(127);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (status != 0)
        printf("failed with %s workers: status %#x\n", workers, (unsigned)status);
    return status != 0;
}

/*
 * The main function of a test program: first the misuses, then all tests with 1, 2 and 4 workers,
 * each in a process of its own, since a process has one runtime. If ROUSE_WORKERS is set, only with
 * that number.
 */
static MAYBE_UNUSED int sync_test_main(int argc, char **argv, const struct CMUnitTest *tests,
                                       size_t test_count, const struct misuse *misuses,
                                       size_t misuse_count)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    bool is_run = argc > 1 || getenv("ROUSE_WORKERS");
    if (!is_run && lacks_rings()) {
        puts("not run: there is no io_uring here");
        return 77;
    }
    if (argc <= 1)
        seed_print();
    if (is_run)
        watchdog_start(WATCHDOG_S);
    if (argc > 2 && strcmp(argv[1], "misuse") == 0)
        return misuse_run(misuses, misuse_count, argv[2]);
    if (is_run)
        return _cmocka_run_group_tests("tests", tests, test_count, NULL, NULL);
    int failures = misuses_check(misuses, misuse_count);
    return failures + with_workers("1") + with_workers("2") + with_workers("4") ? 1 : 0;
}
#define SYNC_TEST_MAIN(argc, argv, tests, misuses) \
    return sync_test_main(argc, argv, tests, LENGTH(tests), misuses, LENGTH(misuses))

#endif
