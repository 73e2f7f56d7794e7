/* SPDX-License-Identifier: MIT */
/*
 * monitor_test.c - when all workers are stuck, spare workers run the other threads, and the report
 * names the stuck workers.
 */
#include "core_test.h"

#include <dirent.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define WORKERS 2
#define SPARES 2
#define CROWD 300

static int pipes[2];
static uint32_t go, began, others;

static struct rouse_monitor_figures figures(void)
{
    struct rouse_monitor_figures now;
    rouse_obs_monitor(&now);
    return now;
}

static void *sit_in_read(void *unused)
{
    char byte;
    rsi_fetch_add_seq_cst(&began, 1u);
    CHECK(read(pipes[0], &byte, 1) == 1);
    return unused;
}

static void *compute(void *unused)
{
    rsi_fetch_add_seq_cst(&began, 1u);
    while (!rsi_load_acquire(&go))
        ;
    return unused;
}

static void *yield_and_end(void *unused)
{
    for (int i = 0; i < 10; i++)
        rouse_thread_yield();
    rsi_fetch_add_seq_cst(&others, 1u);
    return unused;
}

static struct rouse_thread *start_named(void *(*fn)(void *), const char *name)
{
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    struct rouse_thread *t;
    attr.kind = ROUSE_KIND_USER;
    attr.name = name;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, fn, NULL), 0);
    return t;
}

/* Each worker runs one of these threads. No spare does. */
static void stick_all(void *(*fn)(void *), struct rouse_thread *stuck[WORKERS])
{
    rsi_store_seq_cst(&began, 0u);
    rsi_store_seq_cst(&go, 0u);
    for (uint32_t i = 0; i < WORKERS; i++) {
        stuck[i] = start_named(fn, "stuck one");
        UNTIL(rsi_load_seq_cst(&began) == i + 1);
    }
}

static void all_are_stuck(void *(*fn)(void *), struct rouse_thread *stuck[WORKERS])
{
    CHECK(pipe(pipes) == 0);
    stick_all(fn, stuck);
}

static void let_go(struct rouse_thread *stuck[WORKERS])
{
    rsi_store_release(&go, 1u);
    CHECK(write(pipes[1], "12", WORKERS) == WORKERS);
    for (int i = 0; i < WORKERS; i++)
        join(stuck[i]);
    close(pipes[0]);
    close(pipes[1]);
}

static void others_run(void)
{
    struct rouse_thread *t[10];
    rsi_store_seq_cst(&others, 0u);
    for (size_t i = 0; i < LENGTH(t); i++)
        t[i] = start(ROUSE_KIND_USER, yield_and_end, NULL);
    UNTIL(rsi_load_seq_cst(&others) == LENGTH(t));
    for (size_t i = 0; i < LENGTH(t); i++)
        join(t[i]);
}

/* The records of both stuck threads must be the current ones. */
static bool both_are_told(bool computes, const uint64_t ids[WORKERS])
{
    struct rouse_stuck records[WORKERS] = { 0 };
    if (rouse_obs_stuck(records, WORKERS) != WORKERS)
        return false;
    for (int i = 0; i < WORKERS; i++) {
        const struct rouse_stuck *r = &records[i];
        if (!r->is_now || (r->thread_id != ids[0] && r->thread_id != ids[1]))
            return false;
        CHECK_EQUAL(strcmp(r->name, "stuck one"), 0);
        CHECK_EQUAL(r->computes, computes);
        CHECK(r->worker < WORKERS + SPARES);
        CHECK(r->since_ns + r->lasted_ns <= rouse_now_ns());
        CHECK(r->call == -1 || (!computes && r->site && (r->call == SYS_read || is_emulated())));
    }
    return records[0].thread_id != records[1].thread_id;
}

/* SIGQUIT's dump has one line for each. */
static void the_dump_tells(const uint64_t ids[WORKERS])
{
    static char text[65536];
    char line[128];
    int ends[2];
    CHECK(pipe(ends) == 0);
    CHECK(fcntl(ends[1], F_SETPIPE_SZ, (int)sizeof text) >= 0);
    rouse_obs_dump(ends[1]);
    close(ends[1]);
    read_all(ends[0], text, sizeof text);
    close(ends[0]);
    CHECK(strstr(text, "rouse: workers were stuck "));
    for (int i = 0; i < WORKERS; i++) {
        snprintf(line, sizeof line, " us: thread %lu \"stuck one\" in ", (unsigned long)ids[i]);
        CHECK(strstr(text, line));
    }
}

static void stuck_and_others(void *(*fn)(void *), bool computes)
{
    struct rouse_thread *stuck[WORKERS];
    uint64_t before = figures().stuck_count;
    all_are_stuck(fn, stuck);
    uint64_t ids[WORKERS] = { rouse_thread_id(stuck[0]), rouse_thread_id(stuck[1]) };
    others_run();
    UNTIL(both_are_told(computes, ids));
    UNTIL(figures().spares >= 1 && figures().spares <= SPARES); /* counted when it begins */
    CHECK(figures().stuck_count > before);
    if (!computes)
        the_dump_tells(ids);
    others_run();
    let_go(stuck);
    UNTIL(figures().spares == 0); /* one that has returned is enough */
    struct rouse_stuck record;
    CHECK_EQUAL(rouse_obs_stuck(&record, 1), 1);
    CHECK(!record.is_now);
}

static void others_run_though_every_worker_sits_in_a_system_call(void **state)
{
    (void)state;
    stuck_and_others(sit_in_read, false);
}

static void others_run_though_every_worker_computes(void **state)
{
    (void)state;
    stuck_and_others(compute, true);
}

static void *yield_until_go(void *unused)
{
    while (!rsi_load_acquire(&go))
        rouse_thread_yield();
    return unused;
}

/* It would use the processor of the worker that it replaced, which is back. */
static void a_spare_leaves_though_threads_keep_it_busy(void **state)
{
    (void)state;
    struct rouse_thread *stuck[WORKERS], *busy[8];
    all_are_stuck(sit_in_read, stuck);
    for (size_t i = 0; i < LENGTH(busy); i++)
        busy[i] = start(ROUSE_KIND_USER, yield_until_go, NULL);
    UNTIL(figures().spares != 0);
    CHECK(write(pipes[1], "12", WORKERS) == WORKERS);
    for (int i = 0; i < WORKERS; i++)
        join(stuck[i]);
    UNTIL(figures().spares == 0);
    rsi_store_release(&go, 1u);
    for (size_t i = 0; i < LENGTH(busy); i++)
        join(busy[i]);
    close(pipes[0]);
    close(pipes[1]);
}

/*
 * The monitor reads /proc without using a descriptor number of the program: the only one that is
 * allowed, 0, is in use.
 */
static void others_run_though_no_descriptor_number_is_free(void **state)
{
    (void)state;
    struct rouse_thread *stuck[WORKERS];
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && pipe(pipes) == 0);
    CHECK(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ 1, limit.rlim_max }) == 0);
    stick_all(sit_in_read, stuck);
    others_run();
    let_go(stuck);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
}

static struct rouse_sem bell = ROUSE_SEM_INIT(0);

static void *sleep_and_ring(void *unused)
{
    CHECK_EQUAL(rouse_sleep(30 * MS), 0);
    rouse_sem_post(&bell);
    return unused;
}

static void deadlines_are_met_though_every_worker_is_stuck(void **state)
{
    (void)state;
    struct rouse_thread *stuck[WORKERS], *sleeper = start(ROUSE_KIND_USER, sleep_and_ring, NULL);
    UNTIL(waits(sleeper));
    all_are_stuck(sit_in_read, stuck);
    CHECK_EQUAL(rouse_sem_wait(&bell), 0);
    let_go(stuck);
    join(sleeper);
}

static void *sleep_and_sit(void *unused)
{
    CHECK_EQUAL(rouse_sleep(500 * MS), 0);
    return sit_in_read(unused);
}

static void *sleep_and_end(void *unused)
{
    CHECK_EQUAL(rouse_sleep(550 * MS), 0);
    return yield_and_end(unused);
}

/* Only its timers wake the one worker. The monitor has been asleep for a long time by then. */
static void one_wakes_by_itself(void)
{
    CHECK(pipe(pipes) == 0);
    struct rouse_thread *stuck = start(ROUSE_KIND_USER, sleep_and_sit, NULL);
    struct rouse_thread *other = start(ROUSE_KIND_USER, sleep_and_end, NULL);
    UNTIL(rsi_load_seq_cst(&others) == 1);
    UNTIL(figures().spares == 1); /* counted by the monitor, perhaps after the spare has begun */
    CHECK(write(pipes[1], "1", 1) == 1);
    join(stuck);
    join(other);
}

static void a_worker_that_wakes_by_itself_wakes_the_monitor(void **state)
{
    (void)state;
    scenario_exits("one_wakes_by_itself", "ROUSE_WORKERS=1", 0);
}

/* One thread is stuck in a cluster of one worker, while all other workers are idle. */
static void a_cluster_gets_a_spare_of_its_own(void **state)
{
    (void)state;
    struct rouse_cluster *cluster;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    struct rouse_thread *stuck, *other;
    CHECK_EQUAL(rouse_cluster_create(&cluster, NULL), 0);
    attr.cluster = cluster;
    rsi_store_seq_cst(&began, 0u);
    rsi_store_seq_cst(&others, 0u);
    CHECK(pipe(pipes) == 0);
    CHECK_EQUAL(rouse_thread_create(&stuck, &attr, sit_in_read, NULL), 0);
    UNTIL(rsi_load_seq_cst(&began) == 1);
    CHECK_EQUAL(rouse_thread_create(&other, &attr, yield_and_end, NULL), 0);
    UNTIL(rsi_load_seq_cst(&others) == 1);
    CHECK(write(pipes[1], "1", 1) == 1);
    join(stuck);
    join(other);
    close(pipes[0]);
    close(pipes[1]);
    UNTIL(figures().spares == 0);
    CHECK_EQUAL(rouse_cluster_destroy(cluster), 0);
}

static void *sit_then_yield(void *unused)
{
    sit_in_read(NULL);
    while (figures().spares != 0)
        if (rouse_worker_index() == 0)
            rouse_thread_yield();
        else
            CHECK_EQUAL(rouse_sleep(MS), 0); /* on the spare, which shall be idle */
    return unused;
}

static void *wait_for_byte(void *fd)
{
    char byte;
    CHECK_EQUAL(rouse_read(*(int *)fd, &byte, 1), 1);
    return NULL;
}

/*
 * A spare is idle while the only other worker runs, so it polls. When it is removed it must leave the poll, and
 * later interrupts of the poll must still arrive.
 */
static void spares_that_poll_are_removed(void)
{
    int ends[2];
    CHECK(pipe(ends) == 0);
    struct rouse_thread *reader = start(ROUSE_KIND_USER, wait_for_byte, &ends[0]);
    for (int round = 0; round < 3; round++) {
        rsi_store_seq_cst(&began, 0u);
        CHECK(pipe(pipes) == 0);
        struct rouse_thread *stuck = start(ROUSE_KIND_USER, sit_then_yield, NULL);
        UNTIL(rsi_load_seq_cst(&began) == 1);
        others_run();
        if (round == 0) /* later, a spare may be stuck that has just been removed */
            UNTIL(figures().spares != 0);
        CHECK(write(pipes[1], "1", 1) == 1);
        join(stuck);
        others_run();
        close(pipes[0]);
        close(pipes[1]);
    }
    CHECK(figures().spares_most != 0);
    CHECK(write(ends[1], "1", 1) == 1);
    join(reader);
}

static void wake_ups_arrive_after_a_spare_has_polled(void **state)
{
    (void)state;
    setenv("ROUSE_WORKERS", "1", 1);
    scenario_exits("spares_that_poll_are_removed", "ROUSE_IO=epoll", 0);
    scenario_exits("spares_that_poll_are_removed", "ROUSE_IO=uring", 0);
    setenv("ROUSE_WORKERS", "2", 1);
}

static void *be_stuck_in_a_child(void *unused)
{
    stuck_and_others(sit_in_read, false);
    return unused;
}

static void a_child_has_a_monitor_of_its_own(void **state)
{
    (void)state;
    if (SLOWER != 1) {
        printf("not run: a sanitizer does not follow a child of a process with threads\n");
        return;
    }
    struct rouse_thread *stuck[WORKERS];
    all_are_stuck(sit_in_read, stuck);
    others_run(); /* with a spare worker */
    fflush(NULL);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        watchdog_start(PATIENCE_S);
        CHECK_EQUAL(figures().spares, 0);
        be_stuck_in_a_child(NULL);
        _exit(0);
    }
    CHECK(child_passed(pid));
    let_go(stuck);
}

/* The limit: more threads are stuck than there are workers and spares. */

static void spares_are_used_up(void)
{
    struct rouse_thread *stuck[WORKERS], *more[3], *last;
    all_are_stuck(sit_in_read, stuck);
    for (size_t i = 0; i < LENGTH(more); i++)
        more[i] = start_named(sit_in_read, "one more");
    UNTIL(rsi_load_seq_cst(&began) == WORKERS + 1);
    UNTIL(figures().refused_count > 3);
    CHECK_EQUAL(figures().spares, 1);
    CHECK_EQUAL(figures().spares_bound, 1);
    last = start(ROUSE_KIND_USER, yield_and_end, NULL);
    uint64_t refused = figures().refused_count;
    UNTIL(figures().refused_count > refused + 3);
    CHECK_EQUAL(rsi_load_seq_cst(&others), 0);
    CHECK_EQUAL(rsi_load_seq_cst(&began), WORKERS + 1);
    CHECK(write(pipes[1], "345", LENGTH(more)) == LENGTH(more));
    for (size_t i = 0; i < LENGTH(more); i++)
        if (i < WORKERS)
            CHECK(write(pipes[1], "6", 1) == 1);
    UNTIL(rsi_load_seq_cst(&others) == 1);
    for (size_t i = 0; i < LENGTH(more); i++)
        join(more[i]);
    for (int i = 0; i < WORKERS; i++)
        join(stuck[i]);
    join(last);
    CHECK_EQUAL(figures().spares_most, 1);
}

static void there_are_no_more_spares_than_allowed(void **state)
{
    (void)state;
    scenario_exits("spares_are_used_up", "ROUSE_SPARES=1", 0);
}

static bool task_is(const char *tid, const char *name)
{
    char path[300], text[32] = "";
    snprintf(path, sizeof path, "/proc/self/task/%s/comm", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    close(fd);
    return got > 0 && strncmp(text, name, strlen(name)) == 0;
}

/* The number of the monitor's kernel thread, or 0 if there is none. */
static int monitor_tid(void)
{
    DIR *folder = opendir("/proc/self/task");
    int tid = 0;
    CHECK(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        if (task_is(entry->d_name, "rouse-monitor"))
            tid = atoi(entry->d_name);
    closedir(folder);
    return tid;
}

/* How often a kernel thread has gone to sleep (its voluntary context switches). */
static unsigned long sleeps_of(int tid)
{
    char path[64], text[4096] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    const char *at = strstr(text, "\nvoluntary_ctxt_switches:");
    CHECK(at);
    return strtoul(at + sizeof "\nvoluntary_ctxt_switches:" - 1, NULL, 10);
}

/* The monitor goes to sleep only after a check in which no worker had made progress. */
static void an_idle_process_has_an_idle_monitor(void **state)
{
    (void)state;
    others_run();
    UNTIL(figures().spares == 0); /* left over from an earlier test */
    int tid = 0;
    UNTIL((tid = monitor_tid()) != 0);
    unsigned long before = 0, after = sleeps_of(tid);
    while (before != after) {
        usleep(200000);
        before = after;
        after = sleeps_of(tid);
    }
    usleep(500000);
    CHECK_EQUAL(sleeps_of(tid), after);
}

static uint64_t end_ns;

static void *compute_with_yields(void *unused)
{
    while (rouse_now_ns() < rsi_load_relaxed(&end_ns)) {
        for (int i = 0; i < 1000; i++)
            rsi_compiler_barrier();
        rouse_thread_yield();
    }
    return unused;
}

/* More workers than CPUs, all of them computing: most are runnable and do not run. */
static void many_workers_share_one_cpu(void)
{
    struct rouse_thread *threads[32];
    cpu_set_t cpus, one;
    int cpu = 0;
    CHECK(sched_getaffinity(0, sizeof cpus, &cpus) == 0);
    while (!CPU_ISSET(cpu, &cpus))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    rsi_store_relaxed(&end_ns, rouse_now_ns() + SECOND);
    for (size_t i = 0; i < LENGTH(threads); i++)
        threads[i] = start(ROUSE_KIND_USER, compute_with_yields, NULL);
    int tid = 0;
    UNTIL((tid = monitor_tid()) != 0);
    unsigned long sleeps = sleeps_of(tid);
    uint64_t begin = rouse_now_ns();
    for (size_t i = 0; i < LENGTH(threads); i++)
        join(threads[i]);
    /*
     * The monitor wakes up every 10 ms at most, except at the beginning or where it went to sleep
     * in between.
     */
    CHECK(sleeps_of(tid) - sleeps <= (rouse_now_ns() - begin) / (10 * MS) + 50);
    CHECK_EQUAL(figures().stuck_count, 0);
    CHECK_EQUAL(figures().spares_most, 0);
}

static void runnable_is_not_stuck(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    printf("not run: the thread sanitizer has locks of its own, for which workers sleep\n");
    return;
#endif
    scenario_exits("many_workers_share_one_cpu", "ROUSE_WORKERS=8", 0);
}

/* Without spares there is no monitoring, and the threads behind a stuck worker wait. */
static void nobody_looks(void)
{
    struct rouse_thread *stuck[WORKERS], *other;
    all_are_stuck(sit_in_read, stuck);
    CHECK_EQUAL(monitor_tid(), 0);
    CHECK_EQUAL(figures().spares_bound, 0);
    other = start(ROUSE_KIND_USER, yield_and_end, NULL);
    usleep(100000);
    CHECK_EQUAL(rsi_load_seq_cst(&others), 0);
    let_go(stuck);
    join(other);
}

/* Without a limit of the user's, as many spares are added as threads sit in system calls. */
static void a_crowd_sits_in_read(void)
{
    static struct rouse_thread *crowd[CROWD];
    static char bytes[CROWD];
    CHECK(pipe(pipes) == 0);
    rsi_store_seq_cst(&began, 0u);
    for (size_t i = 0; i < CROWD; i++)
        crowd[i] = start_named(sit_in_read, "one of a crowd");
    UNTIL(rsi_load_seq_cst(&began) == CROWD);
    others_run();
    CHECK(figures().spares_most >= CROWD - WORKERS && figures().spares_bound >= CROWD);
    CHECK(write(pipes[1], bytes, CROWD) == CROWD);
    for (size_t i = 0; i < CROWD; i++)
        join(crowd[i]);
    UNTIL(figures().spares == 0);
}

/* More spares than processors would only take processor time from each other. */
static void a_crowd_computes(void)
{
    struct rouse_thread *crowd[4 * WORKERS];
    rsi_store_seq_cst(&began, 0u);
    rsi_store_seq_cst(&go, 0u);
    for (size_t i = 0; i < LENGTH(crowd); i++)
        crowd[i] = start_named(compute, "one of a crowd");
    UNTIL(rsi_load_seq_cst(&began) == 2 * WORKERS);
    UNTIL(figures().refused_count > 3);
    CHECK_EQUAL(figures().spares_most, WORKERS);
    CHECK_EQUAL(rsi_load_seq_cst(&began), 2 * WORKERS);
    rsi_store_release(&go, 1u);
    for (size_t i = 0; i < LENGTH(crowd); i++)
        join(crowd[i]);
}

static void spares_grow_with_the_threads_in_system_calls(void **state)
{
    (void)state;
    scenario_exits("a_crowd_sits_in_read", "ROUSE_SPARES=", 0);
    scenario_exits("a_crowd_computes", "ROUSE_SPARES=", 0);
}

static void configured_to_none(void)
{
    const struct rouse_config config = { .workers = WORKERS, .spares = -1 };
    CHECK_EQUAL(rouse_configure(&config), 0);
    nobody_looks();
}

static void configured_to_one(void)
{
    const struct rouse_config wrong = { .spares = RSI_WORKERS_MAX + 1 };
    const struct rouse_config config = { .workers = WORKERS, .spares = 1 };
    CHECK_EQUAL(rouse_configure(&wrong), -EINVAL);
    CHECK_EQUAL(rouse_configure(&config), 0);
    spares_are_used_up();
}

static void start_the_runtime(void)
{
    rouse_thread_self();
}

static void the_limit_of_spares_is_a_setting(void **state)
{
    (void)state;
    scenario_exits("nobody_looks", "ROUSE_SPARES=0", 0);
    scenario_exits("configured_to_none", "ROUSE_SPARES=2", 0);
    scenario_exits("configured_to_one", "ROUSE_SPARES=2", 0);
    scenario_dies("start_the_runtime", "ROUSE_SPARES=few", SIGABRT,
                  "rouse: ROUSE_SPARES is \"few\"; give a number from 0 to 1024");
    scenario_dies("start_the_runtime", "ROUSE_SPARES=-1", SIGABRT, "ROUSE_SPARES is \"-1\"");
    scenario_dies("start_the_runtime", "ROUSE_SPARES=1025", SIGABRT, "ROUSE_SPARES is \"1025\"");
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_run_though_every_worker_sits_in_a_system_call),
        cmocka_unit_test(others_run_though_every_worker_computes),
        cmocka_unit_test(a_spare_leaves_though_threads_keep_it_busy),
        cmocka_unit_test(others_run_though_no_descriptor_number_is_free),
        cmocka_unit_test(deadlines_are_met_though_every_worker_is_stuck),
        cmocka_unit_test(a_worker_that_wakes_by_itself_wakes_the_monitor),
        cmocka_unit_test(a_cluster_gets_a_spare_of_its_own),
        cmocka_unit_test(wake_ups_arrive_after_a_spare_has_polled),
        cmocka_unit_test(a_child_has_a_monitor_of_its_own),
        cmocka_unit_test(there_are_no_more_spares_than_allowed),
        cmocka_unit_test(spares_grow_with_the_threads_in_system_calls),
        cmocka_unit_test(an_idle_process_has_an_idle_monitor),
        cmocka_unit_test(runnable_is_not_stuck),
        cmocka_unit_test(the_limit_of_spares_is_a_setting),
    };
    static const struct scenario scenarios[] = {
        { "one_wakes_by_itself", one_wakes_by_itself },
        { "spares_that_poll_are_removed", spares_that_poll_are_removed },
        { "spares_are_used_up", spares_are_used_up },
        { "many_workers_share_one_cpu", many_workers_share_one_cpu },
        { "nobody_looks", nobody_looks },
        { "a_crowd_sits_in_read", a_crowd_sits_in_read },
        { "a_crowd_computes", a_crowd_computes },
        { "configured_to_none", configured_to_none },
        { "configured_to_one", configured_to_one },
        { "start_the_runtime", start_the_runtime },
    };
    static const struct program program = { 60,        false,
                                            tests,     LENGTH(tests),
                                            scenarios, LENGTH(scenarios) };
    setenv("ROUSE_WORKERS", "2", argc < 2);
    setenv("ROUSE_SPARES", "2", argc < 2);
    return program_run(&program, argc, argv);
}
