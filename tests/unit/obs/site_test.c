/* SPDX-License-Identifier: MIT */
/*
 * site_test.c - call stacks of known depth and calls as the file records them: of waits, of
 * wake-ups and of locks, on user and kernel threads. Functions have no frame pointers where the
 * compiler leaves them out, as it does by default.
 */
#include "ledger_read.h"
#include "obs/site.h"
#include "obs/walk.h"
#include "obs_test.h"

/* Each case uses its own objects, so that one entry of the file belongs to it. */
static struct {
    struct rouse_mutex mutex;
    struct rouse_sem sem;
} scenes[16], *scene = scenes;

/*
 * The frame of this function can only be found through its frame pointer. The frames of the others
 * can only be found through the stack pointer.
 */
static FRAME void wait_inner(unsigned rooms)
{
    char *room = __builtin_alloca(64 * rooms);
    memset(room, 0, 64 * rooms);
    __asm__ volatile("" ::"r"(room) : "memory");
    (void)rouse_sem_wait(&scene->sem);
    KEEP_FRAME();
}

static FRAME void wait_middle(void)
{
    wait_inner(3);
    KEEP_FRAME();
}

static FRAME void *wait_outer(void *unused)
{
    wait_middle();
    KEEP_FRAME();
    return unused;
}

static FRAME void wake_inner(void)
{
    CHECK_EQUAL(rouse_sem_post(&scene->sem), 0);
    KEEP_FRAME();
}

static FRAME void *wake_outer(void *unused)
{
    wake_inner();
    KEEP_FRAME();
    return unused;
}

static FRAME void lock_inner(void)
{
    rouse_mutex_lock(&scene->mutex);
    KEEP_FRAME();
}

static FRAME void *lock_outer(void *unused)
{
    lock_inner();
    rouse_mutex_unlock(&scene->mutex);
    KEEP_FRAME();
    return unused;
}

struct found {
    uint64_t object, wait_site, wake_site, lock_site;
};

static void wake_find(const void *entry, void *sum)
{
    const struct rsi_store_wake *wake = entry;
    struct found *found = sum;
    if (wake->object == found->object) {
        found->wait_site = wake->wait_site;
        found->wake_site = wake->wake_site;
    }
}

static void lock_find(const void *entry, void *sum)
{
    const struct rsi_store_lock *lock = entry;
    struct found *found = sum;
    if (lock->lock == found->object && lock->contested)
        found->lock_site = lock->site;
}

struct stacks {
    uint64_t number, next;
    struct rsi_store_stack stack;
};

static void stack_find(const void *entry, void *sum)
{
    struct stacks *stacks = sum;
    if (stacks->next++ == stacks->number)
        stacks->stack = *(const struct rsi_store_stack *)entry;
}

/*
 * The stack of a site begins with these functions. It has depth frames, or fewer if there were
 * fewer calls.
 */
static void check_site(uint64_t site, const char *const *functions, unsigned count)
{
    unsigned depth = rsi_site_depth;
    if (depth == 1 || !SITES_ARE_KEPT) {
        CHECK_EQUAL(site & RSI_SITE_STACK, 0);
        CHECK(is_site_in((const void *)(uintptr_t)site, functions[0]));
        return;
    }
    struct stacks stacks = { .number = site & ~RSI_SITE_STACK };
    CHECK(site & RSI_SITE_STACK);
    entries_visit(RSI_STORE_STACKS, stack_find, &stacks);
    CHECK(stacks.stack.depth <= depth);
    CHECK(stacks.stack.depth >= (depth < count ? depth : count));
    for (unsigned i = 0; i < count && i < depth; i++)
        CHECK(is_site_in((const void *)(uintptr_t)stacks.stack.frames[i], functions[i]));
    CHECK(rsi_site_address(site) == (const void *)(uintptr_t)stacks.stack.frames[0]);
}

static void check_calls(enum rouse_kind kind)
{
    static const char *const waiting[] = { "wait_inner", "wait_middle", "wait_outer" };
    static const char *const waking[] = { "wake_inner", "wake_outer" };
    static const char *const locking[] = { "lock_inner", "lock_outer" };
    scene++;
    struct rouse_thread *t = start(kind, wait_outer, NULL);
    UNTIL(waits(t));
    join(start(kind, wake_outer, NULL));
    join(t);
    struct found found = { .object = (uintptr_t)&scene->sem };
    entries_visit(RSI_STORE_WAKES, wake_find, &found);
    check_site(found.wait_site, waiting, 3);
    check_site(found.wake_site, waking, 2);
    rouse_mutex_lock(&scene->mutex);
    t = start(kind, lock_outer, NULL);
    UNTIL(waits(t));
    rouse_mutex_unlock(&scene->mutex);
    join(t);
    found.object = (uintptr_t)&scene->mutex;
    entries_visit(RSI_STORE_LOCKS, lock_find, &found);
    check_site(found.lock_site, locking, 2);
}

static void known_calls_give_known_stacks(void **state)
{
    static const uint32_t depths[] = { 1, 3, 8 };
    (void)state;
    for (unsigned i = 0; i < LENGTH(depths); i++) {
        rsi_store_relaxed(&rsi_site_depth, depths[i]);
        check_calls(ROUSE_KIND_USER);
        check_calls(ROUSE_KIND_KERNEL);
    }
}

/* However often, on any worker. */
static void a_stack_is_kept_once(void **state)
{
    struct stacks before = { .number = UINT64_MAX }, after = before;
    (void)state;
    rsi_store_relaxed(&rsi_site_depth, 8u);
    check_calls(ROUSE_KIND_USER);
    entries_visit(RSI_STORE_STACKS, stack_find, &before);
    for (int i = 0; i < 20; i++) {
        struct rouse_thread *t = start(ROUSE_KIND_USER, wait_outer, NULL);
        UNTIL(waits(t));
        join(start(ROUSE_KIND_USER, wake_outer, NULL));
        join(t);
    }
    entries_visit(RSI_STORE_STACKS, stack_find, &after);
    CHECK(after.next <= before.next + 2); /* main's own, if it had to wait for a thread to end */
}

static void *wait_and_tell(void *record)
{
    wait_middle();
    rouse_obs_last_wait(record);
    return NULL;
}

/* A thread reads the sites of its own wait as addresses. */
static void a_record_has_addresses(void **state)
{
    (void)state;
    struct rouse_wait_record record;
    rsi_store_relaxed(&rsi_site_depth, 8u);
    struct rouse_thread *t = start(ROUSE_KIND_USER, wait_and_tell, &record);
    UNTIL(waits(t));
    join(start(ROUSE_KIND_USER, wake_outer, NULL));
    join(t);
    CHECK(is_site_in(record.wait_site, "wait_inner"));
    CHECK(is_site_in(record.wake_site, "wake_inner"));
}

/*
 * A cached walk is recognised only if every word that it read is unchanged and lies within the
 * stack.
 */
static void known_walks(struct rsi_walker *walker, const struct rsi_here *here, uintptr_t end,
                        uint64_t site, const struct rsi_trail *trail)
{
    struct rsi_trail other = *trail;
    CHECK_EQUAL(rsi_walk_number(walker, here, end, site), RSI_WALK_UNKNOWN);
    for (uint32_t n = 0; n < trail->count; n++) {
        other.values[n] ^= 8;
        rsi_walk_keep(walker, here, site, &other, 5);
        CHECK_EQUAL(rsi_walk_number(walker, here, end, site), RSI_WALK_UNKNOWN);
        other.values[n] ^= 8;
    }
    rsi_walk_keep(walker, here, site, trail, 7);
    /* No walk is kept with frame pointers, which the sanitizers' builds use. */
    uint64_t number = trail->count ? 7 : RSI_WALK_UNKNOWN;
    CHECK_EQUAL(rsi_walk_number(walker, here, end, site), number);
    CHECK_EQUAL(rsi_walk_number(walker, here, end, site + 1), RSI_WALK_UNKNOWN);
    CHECK_EQUAL(rsi_walk_number(walker, here, here->sp, site), RSI_WALK_UNKNOWN);
    for (uintptr_t high = here->sp;
         trail->count && high < here->sp + trail->offsets[trail->count - 1] + 8; high += 8)
        CHECK_EQUAL(rsi_walk_number(walker, here, high, site), RSI_WALK_UNKNOWN);
}

/*
 * A walk that must end at high stops there, wherever that is: it reads nothing beyond it, and its
 * frames are right.
 */
static FRAME void walk_up_to(uintptr_t end)
{
    struct rsi_walker *walker = rsi_walker_new();
    struct rsi_here here = rsi_here();
    uint64_t site = (uintptr_t)__builtin_return_address(0), all[8], some[8];
    struct rsi_trail trail;
    unsigned most = rsi_walk(walker, &here, end, site, all, 8, false, &trail);
    CHECK(most >= 2);
    known_walks(walker, &here, end, site, &trail);
    for (uintptr_t high = here.sp; high < here.sp + 1024 && high < end; high += 8) {
        unsigned count = rsi_walk(walker, &here, high, site, some, 8, false, &trail);
        CHECK(count <= most && memcmp(some, all, count * sizeof *some) == 0);
    }
    CHECK_EQUAL(rsi_walk(walker, &here, here.sp, site, some, 8, false, &trail), 0);
    CHECK_EQUAL(rsi_walk(walker, &here, end, site + 1, some, 8, false, &trail), 0);
    rsi_unmap(walker, RSI_PAGE);
    KEEP_FRAME();
}

static void *walk_here(void *unused)
{
    walk_up_to((uintptr_t)rouse_thread_self()->stack.high);
    KEEP_FRAME();
    return unused;
}

static void a_walk_stays_on_its_stack(void **state)
{
    (void)state;
    join(start(ROUSE_KIND_USER, walk_here, NULL));
}

static void depth_is_read(void)
{
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    exit((int)rsi_site_depth + 10);
}

static const struct scenario scenarios[] = { { "depth_is_read", depth_is_read } };

static void only_valid_depths_are_accepted(void **state)
{
    (void)state;
    scenario_exits("depth_is_read", "ROUSE_OBS_DEPTH=1", 11);
    scenario_exits("depth_is_read", "ROUSE_OBS_DEPTH=", 11);
    scenario_exits("depth_is_read", "ROUSE_OBS_DEPTH=8", 18);
    scenario_dies("depth_is_read", "ROUSE_OBS_DEPTH=0", SIGABRT, "give a number from 1 to 8");
    scenario_dies("depth_is_read", "ROUSE_OBS_DEPTH=9", SIGABRT, "ROUSE_OBS_DEPTH is \"9\"");
    scenario_dies("depth_is_read", "ROUSE_OBS_DEPTH=3x", SIGABRT, "ROUSE_OBS_DEPTH");
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_calls_give_known_stacks),
        cmocka_unit_test(a_stack_is_kept_once),
        cmocka_unit_test(a_record_has_addresses),
        cmocka_unit_test(a_walk_stays_on_its_stack),
        cmocka_unit_test(only_valid_depths_are_accepted),
    };
    const struct program program = { .limit_s = 120,
                                     .every_number = true,
                                     .tests = tests,
                                     .test_count = LENGTH(tests),
                                     .scenarios = scenarios,
                                     .scenario_count = LENGTH(scenarios) };
    setenv("ROUSE_OBS", "counted", 1);
    return program_run(&program, argc, argv);
}
