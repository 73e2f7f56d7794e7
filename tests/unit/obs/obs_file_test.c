/* SPDX-License-Identifier: MIT */
/*
 * obs_file_test.c - the shared file: when it exists and when it does not, which user owns it, and
 * what happens to it when its process forks, ends or is killed.
 */
#include "ledger_read.h"
#include "obs_test.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define KEPT 8 /* files of processes that were killed */

static char folder[] = "/tmp/rouse-obs-XXXXXX";

static void path_of(char *path, size_t bytes, pid_t pid)
{
    struct stat status;
    char space[32] = "";
    if (stat("/proc/self/ns/pid", &status) == 0 && status.st_ino != RSI_STORE_INITIAL_PIDS)
        snprintf(space, sizeof space, "-%llu", (unsigned long long)status.st_ino);
    snprintf(path, bytes, "%s/%d%s.rouse", getenv("ROUSE_OBS_DIR"), (int)pid, space);
}

static bool has_file(pid_t pid)
{
    char path[128];
    path_of(path, sizeof path, pid);
    return access(path, F_OK) == 0;
}

static void *take_unit(void *sem)
{
    CHECK_EQUAL(rouse_sem_wait(sem), 0);
    return NULL;
}

/* Make that many waits, each ended by a post. */
static void wait_often(unsigned times)
{
    static struct rouse_sem sem;
    for (unsigned i = 0; i < times; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, take_unit, &sem);
        UNTIL(waits(t));
        CHECK_EQUAL(rouse_sem_post(&sem), 0);
        join(t);
    }
}

static uint64_t sem_waits(void)
{
    return wakes_of(ROUSE_WAIT_SEM, NULL).all;
}

/* --- separate programs */

static void end_in_order(void)
{
    struct stat status;
    char path[128];
    wait_often(1);
    path_of(path, sizeof path, getpid());
    CHECK(stat(path, &status) == 0);
    CHECK_EQUAL(status.st_mode & 07777, 0600);
    CHECK_EQUAL(status.st_uid, geteuid());
    CHECK_EQUAL(sem_waits(), 1);
    printf("pid %d\n", (int)getpid());
}

static void be_killed(void)
{
    wait_often(1);
    printf("pid %d\n", (int)getpid());
    fflush(stdout);
    kill(getpid(), SIGKILL);
}

/* Recording is refused, and the program runs on without it. */
static void go_on_without(void)
{
    wait_often(2);
    CHECK(rsi_file_head == NULL);
    CHECK_EQUAL(rsi_obs_mode, ROUSE_OBS_OFF);
}

static void go_on_with_short_files(void)
{
    const struct rlimit limit = { 1 << 20, 1 << 20 };
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    go_on_without();
}

static void count_descriptors(void)
{
    struct rouse_wait_record record;
    int before = dup(0);
    close(before);
    rouse_obs_last_wait(&record);
    (void)rouse_sleep(1);
    int after = dup(0);
    CHECK(rsi_file_head != NULL);
    CHECK_EQUAL(after, before);
}

static void fork_a_child(void)
{
    wait_often(3);
    uint64_t before = sem_waits();
    pid_t pid = fork();
    if (pid == 0) {
        bool is_fresh = rsi_file_head == NULL && !has_file(getpid());
        wait_often(2);
        bool has_its_own = has_file(getpid()) && has_file(getppid()) && sem_waits() == 2;
        exit(is_fresh && has_its_own ? 0 : 1);
    }
    CHECK(child_passed(pid));
    CHECK(!has_file(pid));
    CHECK_EQUAL(sem_waits(), before);
    wait_often(1);
    CHECK_EQUAL(sem_waits(), before + 1);
}

/* --- the tests */

static struct outcome outcome;

static pid_t pid_of_outcome(void)
{
    const char *line = strstr(outcome.output, "pid ");
    CHECK(line != NULL);
    return atoi(line + 4);
}

static void the_file_goes_with_the_process_unless_it_is_killed(void **state)
{
    (void)state;
    scenario_run("end_in_order", NULL, &outcome);
    if (outcome.status != 0)
        scenario_show("end_in_order", &outcome);
    CHECK_EQUAL(outcome.status, 0);
    CHECK(!has_file(pid_of_outcome()));
    scenario_run("be_killed", NULL, &outcome);
    CHECK(WIFSIGNALED(outcome.status) && WTERMSIG(outcome.status) == SIGKILL);
    CHECK(has_file(pid_of_outcome()));
}

static unsigned file_count(void)
{
    unsigned count = 0;
    DIR *list = opendir(folder);
    CHECK(list != NULL);
    for (const struct dirent *entry; (entry = readdir(list));)
        count += strstr(entry->d_name, ".rouse") != NULL;
    closedir(list);
    return count;
}

static void only_the_newest_of_the_killed_are_kept(void **state)
{
    (void)state;
    pid_t last = 0, first = 0;
    for (unsigned i = 0; i < KEPT + 3; i++) {
        scenario_run("be_killed", NULL, &outcome);
        last = pid_of_outcome();
        first = first ? first : last;
    }
    CHECK(has_file(last) && !has_file(first));
    /* each process counts the others' files before its own exists */
    CHECK_EQUAL(file_count(), KEPT + 1);
}

/* The program must go on. It prints one line only if recording was requested by name. */
static void is_refused(const char *scenario, const char *variable, const char *text)
{
    scenario_run(scenario, variable, &outcome);
    bool is_right = outcome.status == 0 && strstr(outcome.output, "rouse: nothing is recorded: ") &&
                    strstr(outcome.output, text);
    if (!is_right)
        scenario_show(scenario, &outcome);
    CHECK(is_right);
}

static void a_folder_that_others_may_use_is_refused(void **state)
{
    (void)state;
    char path[128], variable[160];
    snprintf(path, sizeof path, "%s/open", folder);
    snprintf(variable, sizeof variable, "ROUSE_OBS_DIR=%s", path);
    CHECK(mkdir(path, 0755) == 0);
    is_refused("go_on_without", variable, "must belong to this user");
    CHECK(rmdir(path) == 0);
    CHECK(symlink(folder, path) == 0);
    is_refused("go_on_without", variable, "is a symbolic link, made by user");
    CHECK(unlink(path) == 0);
    int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    CHECK(fd >= 0 && close(fd) == 0);
    is_refused("go_on_without", variable, "cannot open");
    CHECK(unlink(path) == 0);
    is_refused("go_on_without", "ROUSE_OBS_DIR=/proc/nothing", "cannot make");
    is_refused("go_on_with_short_files", NULL, "ulimit -f");
    CHECK(mkdir(path, 0700) == 0);
    if (chown(path, 12345, 12345) != 0) {
        puts("not run: only root, in a namespace that has the user, can make a folder another's");
        CHECK(rmdir(path) == 0);
        return;
    }
    is_refused("go_on_without", variable, "must belong to this user");
    CHECK(rmdir(path) == 0);
}

static void without_a_request_a_refusal_is_not_reported(void **state)
{
    (void)state;
    unsetenv("ROUSE_OBS");
    scenario_run("go_on_without", "ROUSE_OBS_DIR=/proc/nothing", &outcome);
    setenv("ROUSE_OBS", "counted", 1);
    CHECK_EQUAL(outcome.status, 0);
    CHECK(strstr(outcome.output, "rouse:") == NULL);
}

static void no_descriptor_is_kept(void **state)
{
    (void)state;
    scenario_exits("count_descriptors", "ROUSE_IO=epoll", 0);
}

static void a_child_has_its_own(void **state)
{
    (void)state;
#if defined(RSI_ASAN) || defined(RSI_TSAN)
    puts("not run: the locks of a sanitizer stay in a child as the fork found them");
#else
    scenario_exits("fork_a_child", NULL, 0);
#endif
}

static void remove_folder(void)
{
    char command[64];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(system(command) == 0);
}

int main(int argc, char **argv)
{
    static const struct scenario scenarios[] = {
        { "end_in_order", end_in_order },
        { "be_killed", be_killed },
        { "go_on_without", go_on_without },
        { "go_on_with_short_files", go_on_with_short_files },
        { "count_descriptors", count_descriptors },
        { "fork_a_child", fork_a_child },
    };
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_goes_with_the_process_unless_it_is_killed),
        cmocka_unit_test(only_the_newest_of_the_killed_are_kept),
        cmocka_unit_test(a_folder_that_others_may_use_is_refused),
        cmocka_unit_test(without_a_request_a_refusal_is_not_reported),
        cmocka_unit_test(no_descriptor_is_kept),
        cmocka_unit_test(a_child_has_its_own),
    };
    const struct program program = { .limit_s = 60,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    if (argc > 1)
        return program_run(&program, argc, argv);
    setenv("ROUSE_OBS", "counted", 1);
    CHECK(mkdtemp(folder) != NULL);
    setenv("ROUSE_OBS_DIR", folder, 1);
    int status = program_run(&program, argc, argv);
    remove_folder();
    return status;
}
