/* SPDX-License-Identifier: MIT */
/*
 * obs_test.c - the recording switch, names of kinds and verdicts, and fatal lines that name
 * threads.
 */
#include "obs_test.h"

static void test_names(MAYBE_UNUSED void **unused)
{
    for (uint32_t kind = 0; kind < ROUSE_WAIT_KINDS; kind++) {
        CHECK(rouse_wait_kind_name(kind)[0] > ' ');
        for (uint32_t other = 0; other < kind; other++)
            CHECK(strcmp(rouse_wait_kind_name(kind), rouse_wait_kind_name(other)) != 0);
    }
    for (uint32_t verdict = 0; verdict < ROUSE_VERDICTS; verdict++)
        CHECK(rouse_verdict_name(verdict)[0] > ' ');
    CHECK(strcmp(rouse_verdict_name(ROUSE_VERDICT_LOST_RACE), "lost-race") == 0);
    CHECK(strcmp(rouse_wait_kind_name(ROUSE_WAIT_KINDS), "?") == 0);
    CHECK(strcmp(rouse_verdict_name(ROUSE_VERDICTS), "?") == 0);
    CHECK(strcmp(rouse_wait_kind_name(UINT32_MAX), "?") == 0);
    CHECK(strcmp(rouse_verdict_name(UINT32_MAX), "?") == 0);
}

static void test_modes(MAYBE_UNUSED void **unused)
{
    CHECK_EQUAL(rouse_obs_set_mode((enum rouse_obs_mode)5), -EINVAL);
    CHECK_EQUAL(rouse_obs_set_mode((enum rouse_obs_mode) - 1), -EINVAL);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    CHECK_EQUAL(rsi_obs_mode, ROUSE_OBS_OFF);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    CHECK_EQUAL(rsi_obs_mode, ROUSE_OBS_COUNTED);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_EXACT), 0);
    CHECK_EQUAL(rsi_obs_mode, ROUSE_OBS_EXACT);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    CHECK_EQUAL(rsi_obs_mode, ROUSE_OBS_OFF);
}

/* A stamp from before the last time recording was switched on may belong to an earlier wait. */
static void test_current_stamps(MAYBE_UNUSED void **unused)
{
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    uint64_t early = rsi_tsc();
    CHECK(!rsi_obs_is_current(early));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0);
    uint64_t late = rsi_tsc();
    CHECK(!rsi_obs_is_current(0) && !rsi_obs_is_current(early) && rsi_obs_is_current(late));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_COUNTED), 0); /* on already: no change */
    CHECK(rsi_obs_is_current(late));
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    CHECK(!rsi_obs_is_current(late));
}

/* --- the environment and fatal lines, in separate programs */

static void mode_is_read(void)
{
    struct rouse_wait_record record;
    rouse_sleep(1);
    rouse_obs_last_wait(&record);
    scenario_status = record.wait_count == 1 ? 10 : 20;
}

static _Noreturn void *die(void *unused)
{
    (void)unused;
    rsi_fatal("%s %d %u %lx", "text", -5, 7u, 255ul);
}

static void die_in(enum rouse_kind kind, const char *name)
{
    struct rouse_thread *t;
    struct rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.kind = kind;
    attr.name = name;
    CHECK_EQUAL(rouse_thread_create(&t, &attr, die, NULL), 0);
    join(t);
}

static void die_in_user(void)
{
    die_in(ROUSE_KIND_USER, "the\tone");
}

static void die_in_kernel(void)
{
    die_in(ROUSE_KIND_KERNEL, NULL);
}

static void die_in_foreign(void)
{
    rouse_thread_set_name(rouse_thread_self(), "main");
    die(NULL);
}

static void die_before_all(void)
{
    die(NULL);
}

static const struct scenario scenarios[] = {
    { "mode_is_read", mode_is_read },     { "die_in_user", die_in_user },
    { "die_in_kernel", die_in_kernel },   { "die_in_foreign", die_in_foreign },
    { "die_before_all", die_before_all },
};

static void test_mode_from_environment(MAYBE_UNUSED void **unused)
{
    scenario_exits("mode_is_read", "ROUSE_OBS=counted", 10);
    scenario_exits("mode_is_read", "ROUSE_OBS=off", 20);
    scenario_exits("mode_is_read", "ROUSE_OBS=", 10);
    scenario_exits("mode_is_read", NULL, 10);
    scenario_dies("mode_is_read", "ROUSE_OBS=yes", SIGABRT,
                  "rouse: ROUSE_OBS is \"yes\"; give off, counted, exact, locks or trace");
}

static void test_fatal_lines_name_the_thread(MAYBE_UNUSED void **unused)
{
    scenario_dies("die_in_user", NULL, SIGABRT, "rouse: text -5 7 ff (thread 2 \"the?one\")\n");
    scenario_dies("die_in_kernel", NULL, SIGABRT, "rouse: text -5 7 ff (thread 2)\n");
    scenario_dies("die_in_foreign", NULL, SIGABRT, "rouse: text -5 7 ff (thread 1 \"main\")\n");
    scenario_dies("die_before_all", NULL, SIGABRT, "rouse: text -5 7 ff\n");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_current_stamps),
        cmocka_unit_test(test_mode_from_environment),
        cmocka_unit_test(test_fatal_lines_name_the_thread),
    };
    const struct program program = { .limit_s = 60,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    return program_run(&program, argc, argv);
}
