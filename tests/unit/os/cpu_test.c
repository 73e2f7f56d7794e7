/* SPDX-License-Identifier: MIT */
/*
 * cpu_test.c - how many CPUs the program may use: the affinity mask and cgroup quotas of both
 * versions.
 */
#include "unit/core/core_test.h"

#include <ftw.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char root[64]; /* a folder that looks like /sys/fs/cgroup */

static void write_file(const char *path, const char *text)
{
    char full[256], *slash;
    snprintf(full, sizeof full, "%s%s", root, path);
    for (slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        CHECK(mkdir(full, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    CHECK(file);
    fputs(text, file);
    fclose(file);
}

static int remove_one(const char *path, const struct stat *status, int kind, struct FTW *where)
{
    (void)status;
    (void)kind;
    (void)where;
    return remove(path);
}

static int make_root(void **state)
{
    (void)state;
    strcpy(root, "/tmp/rouse-cpu-test-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static unsigned quota_of(const char *groups)
{
    char path[128];
    write_file("/self", groups);
    snprintf(path, sizeof path, "%s/self", root);
    return rsi_cpu_quota(path, root);
}

static void version_2_rounds_up(void **state)
{
    (void)state;
    write_file("/a/cpu.max", "150000 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), 2);
    write_file("/a/cpu.max", "100000 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), 1);
    write_file("/a/cpu.max", "1000 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), 1);
    write_file("/a/cpu.max", "6400000 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), 64);
    write_file("/a/cpu.max", "max 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), UINT32_MAX);
}

static void the_least_quota_up_to_the_root_binds(void **state)
{
    (void)state;
    write_file("/a/b/c/cpu.max", "800000 100000\n");
    write_file("/a/b/cpu.max", "max 100000\n");
    write_file("/a/cpu.max", "300000 100000\n");
    CHECK_EQUAL(quota_of("0::/a/b/c\n"), 3);
    write_file("/cpu.max", "200000 100000\n"); /* as a container sees its own limit */
    CHECK_EQUAL(quota_of("0::/a/b/c\n"), 2);
    CHECK_EQUAL(quota_of("0::/\n"), 2);
    CHECK_EQUAL(quota_of("0::/not/to/be/seen/from/here\n"), 2);
}

static void version_1_has_two_files(void **state)
{
    (void)state;
    write_file("/cpu/job/cpu.cfs_quota_us", "250000\n");
    write_file("/cpu/job/cpu.cfs_period_us", "100000\n");
    CHECK_EQUAL(quota_of("4:memory:/x\n3:cpu,cpuacct:/job\n2:cpuset:/y\n"), 3);
    CHECK_EQUAL(quota_of("3:cpuset,cpu:/job\n"), 3);
    CHECK_EQUAL(quota_of("3:cpu:/job\n"), 3);
    /* Neither is the controller for CPU time. */
    CHECK_EQUAL(quota_of("3:cpuacct:/job\n2:cpuset:/job\n1:name=cpu:/job\n"), UINT32_MAX);
    write_file("/cpu/job/cpu.cfs_quota_us", "-1\n");
    CHECK_EQUAL(quota_of("3:cpu,cpuacct:/job\n"), UINT32_MAX);
}

static void both_versions_at_once(void **state)
{
    (void)state;
    write_file("/a/cpu.max", "400000 100000\n");
    write_file("/cpu/a/cpu.cfs_quota_us", "200000\n");
    write_file("/cpu/a/cpu.cfs_period_us", "100000\n");
    CHECK_EQUAL(quota_of("1:cpu,cpuacct:/a\n0::/a\n"), 2);
}

static void what_cannot_be_read_is_no_limit(void **state)
{
    (void)state;
    CHECK_EQUAL(rsi_cpu_quota("/nonexistent", "/nonexistent"), UINT32_MAX);
    CHECK_EQUAL(quota_of(""), UINT32_MAX);
    CHECK_EQUAL(quota_of("0::/none\n"), UINT32_MAX);
    CHECK_EQUAL(quota_of("garbage\n::\n0:\n\n"), UINT32_MAX);
    write_file("/a/cpu.max", "");
    CHECK_EQUAL(quota_of("0::/a\n"), UINT32_MAX);
    write_file("/a/cpu.max", "0 100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), UINT32_MAX);
    write_file("/a/cpu.max", "100000 0\n");
    CHECK_EQUAL(quota_of("0::/a\n"), UINT32_MAX);
    write_file("/a/cpu.max", "100000\n");
    CHECK_EQUAL(quota_of("0::/a\n"), UINT32_MAX);
    write_file("/cpu/a/cpu.cfs_quota_us", "100000\n"); /* without its period */
    CHECK_EQUAL(quota_of("1:cpu:/a\n"), UINT32_MAX);
}

static void long_names_do_no_harm(void **state)
{
    (void)state;
    static char line[12000];
    memset(line, 'x', sizeof line - 1);
    memcpy(line, "0::/", 4);
    write_file("/cpu.max", "500000 100000\n");
    line[4000] = 0;
    CHECK_EQUAL(quota_of(line), 5);
    line[4000] = 'x';
    quota_of(line);
}

static void the_affinity_mask_is_a_limit_too(void **state)
{
    (void)state;
    unsigned all = rsi_cpu_count();
    CHECK(all >= 1);
    cpu_set_t set, one;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    CHECK(all <= (unsigned)CPU_COUNT(&set));
    int first = 0;
    while (!CPU_ISSET(first, &set))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK(sched_setaffinity(0, sizeof one, &one) == 0);
    CHECK_EQUAL(rsi_cpu_count(), 1);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    CHECK_EQUAL(rsi_cpu_count(), all);
}

static void no_fence_interrupts_more_than_16_processors(void **state)
{
    (void)state;
    bool was = rsi_fence_light_is_full;
    long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    bool can_interrupt = commands > 0 && commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED;
    rsi_fence_light_is_full = true;
    rsi_fence_setup(17);
    CHECK(rsi_fence_light_is_full);
    rsi_fence_setup(16);
    CHECK(rsi_fence_light_is_full == !can_interrupt);
    rsi_fence_light_is_full = was;
}

int main(int argc, char **argv)
{
#define IN_ROOT(test) cmocka_unit_test_setup_teardown(test, make_root, remove_root)
    static const struct CMUnitTest tests[] = {
        IN_ROOT(version_2_rounds_up),
        IN_ROOT(the_least_quota_up_to_the_root_binds),
        IN_ROOT(version_1_has_two_files),
        IN_ROOT(both_versions_at_once),
        IN_ROOT(what_cannot_be_read_is_no_limit),
        IN_ROOT(long_names_do_no_harm),
        cmocka_unit_test(the_affinity_mask_is_a_limit_too),
        cmocka_unit_test(no_fence_interrupts_more_than_16_processors),
    };
    static const struct program program = { 30, false, tests, LENGTH(tests), NULL, 0 };
    return program_run(&program, argc, argv);
}
