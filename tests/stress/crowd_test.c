/* SPDX-License-Identifier: MIT */
/*
 * crowd_test.c - a million threads parked at once: each uses its guard page and little more, and
 * all are woken.
 *
 * Requires 5 GiB of free memory and a kernel whose guards need no mapping each (Linux 6.13).
 */
#include "unit/core/core_test.h"

#define CROWD 1000000u
#define NEEDED_BYTES (UINT64_C(5) << 30)
#define LOOKS 2000
#define BYTES_MOST 4300

static struct rouse_sem gate = ROUSE_SEM_INIT(0);
static uint32_t woken;
static int probe[2];

static void *wait_at_gate(void *unused)
{
    CHECK_EQUAL(rouse_sem_wait(&gate), 0);
    rsi_fetch_add_relaxed(&woken, 1u);
    return unused;
}

/* The number after a word in one of the kernel's files, or otherwise. */
static uint64_t number_in(const char *path, const char *word, uint64_t otherwise)
{
    char line[256];
    uint64_t found = otherwise;
    FILE *file = fopen(path, "re");
    while (file && found == otherwise && fgets(line, sizeof line, file))
        if (strncmp(line, word, strlen(word)) == 0)
            (void)sscanf(line + strlen(word), " %lu", &found);
    if (file)
        fclose(file);
    return found;
}

static uint64_t resident_bytes(void)
{
    return number_in("/proc/self/status", "VmRSS:", 0) * 1024;
}

static bool has_room(void)
{
    uint64_t available = number_in("/proc/meminfo", "MemAvailable:", 0) * 1024;
    uint64_t limit = number_in("/sys/fs/cgroup/memory.max", "", UINT64_MAX);
    uint64_t used = number_in("/sys/fs/cgroup/memory.current", "", 0);
    return available >= NEEDED_BYTES && limit - (used < limit ? used : limit) >= NEEDED_BYTES;
}

/* Whether the kernel can read the byte. It cannot read a guard. */
static bool is_readable(const char *address)
{
    char byte;
    long result = rsi_syscall3(SYS_write, probe[1], address, 1);
    CHECK(result == 1 || result == -EFAULT);
    if (result == 1)
        CHECK(read(probe[0], &byte, 1) == 1);
    return result == 1;
}

static void check_guards(uint64_t *random)
{
    unsigned looked = 0;
    while (looked < LOOKS) {
        const struct rsi_slab *slab =
            rsi_slab_at((unsigned)(rsi_random_next(random) % rsi_slab_count()));
        uint32_t slot = (uint32_t)(rsi_random_next(random) % slab->slots);
        struct rouse_thread *t = rsi_slab_block(slab, slot);
        if (slot >= rsi_load_acquire(&slab->used) || !rsi_is_user(t) || !waits(t))
            continue;
        CHECK(is_readable(t->stack.high - 1));
        CHECK(is_readable(t->stack.low));
        CHECK(!is_readable(t->stack.low - 1));
        CHECK(!is_readable(t->stack.low - RSI_PAGE));
        looked++;
    }
}

static void a_million_threads_are_guarded_and_all_are_woken(void **state)
{
    (void)state;
    struct rouse_thread_attr attr = { .detached = true, .kind = ROUSE_KIND_USER };
    uint64_t random = seed_of_run();
    CHECK(pipe2(probe, O_CLOEXEC) == 0);
    CHECK_EQUAL(rouse_obs_set_mode(ROUSE_OBS_OFF), 0);
    /* The memory that a program needs once is there already. */
    CHECK_EQUAL(rouse_thread_create(NULL, &attr, wait_at_gate, NULL), 0);
    UNTIL(rsi_load_relaxed((uintptr_t *)&gate.waiters.first) != 0);
    uint64_t before = resident_bytes();
    for (unsigned i = 1; i < CROWD; i++)
        CHECK_EQUAL(rouse_thread_create(NULL, &attr, wait_at_gate, NULL), 0);
    UNTIL(rsi_idle_all_sleep()); /* spare workers that have ended are not counted */
    uint64_t each = (resident_bytes() - before) / CROWD;
    printf("%lu bytes each\n", (unsigned long)each);
    CHECK(each <= BYTES_MOST);
    check_guards(&random);
    CHECK_EQUAL(rsi_load_relaxed(&woken), 0);
    for (unsigned i = 0; i < CROWD; i++)
        CHECK_EQUAL(rouse_sem_post(&gate), 0);
    UNTIL(rsi_load_relaxed(&woken) == CROWD);
    UNTIL(rsi_idle_all_sleep());
    CHECK_EQUAL(rouse_sem_value(&gate), 0);
    /*
     * One page in 257 of their stacks stays, and those that workers keep. All of their control
     * blocks stay.
     */
    rouse_stacks_trim(0);
    each = (resident_bytes() - before) / CROWD;
    printf("%lu bytes each when they are gone\n", (unsigned long)each);
    CHECK(each <= 240);
}

int main(int argc, char **argv)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_million_threads_are_guarded_and_all_are_woken),
    };
    static const struct program program = { 200, false, tests, LENGTH(tests), NULL, 0 };
#if defined(RSI_ASAN) || defined(RSI_TSAN)
    puts("not run: a sanitizer has no room for a million stacks");
    return NOT_RUN;
#endif
    if (!rsi_stack_guards_are_light()) {
        puts("not run: this kernel has no MADV_GUARD_INSTALL, and there are 65,530 mappings");
        return NOT_RUN;
    }
    if (!has_room()) {
        puts("not run: it wants 5 GiB of free memory");
        return NOT_RUN;
    }
    return program_run(&program, argc, argv);
}
