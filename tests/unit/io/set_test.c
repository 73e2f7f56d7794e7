/* SPDX-License-Identifier: MIT */
/*
 * set_test.c - sets of descriptors: members, level, edge and one-shot; closes, deadlines, cancels, forks,
 * misuse.
 */
#include "set_test.h"

#include <sys/mman.h>

static void members_come_and_go(void **state)
{
    (void)state;
    struct rouse_set *set = set_new(), *other = set_new();
    struct rouse_set_event event;
    int ends[2], file = memfd_create("file", MFD_CLOEXEC);
    wire_open(WIRE_UNIX, ends);
    EQUALS(rouse_set_remove(set, ends[0]), -ENOENT);
    EQUALS(rouse_set_modify(set, ends[0], POLLIN, 0, 0), -ENOENT);
    EQUALS(rouse_set_add(set, -1, POLLIN, 0, 0), -EBADF);
    EQUALS(rouse_set_add(set, 1000000, POLLIN, 0, 0), -EBADF);
    EQUALS(rouse_set_add(set, ends[0], POLLIN, 4, 0), -EINVAL);
    EQUALS(rouse_set_add(set, file, POLLIN, 0, 0), -EPERM);
    EQUALS(rouse_set_remove(set, file), -ENOENT);
    EQUALS(rouse_set_wait(set, &event, 0), -EINVAL);
    EQUALS(rouse_set_add(set, ends[0], POLLIN | POLLOUT, 0, UINT64_MAX - 7), 0);
    EQUALS(rouse_set_add(set, ends[0], POLLIN, 0, 0), -EEXIST);
    EQUALS(rouse_set_add(other, ends[0], POLLIN, 0, 0), 0);
    EQUALS(look(set, &event, 1), 1);
    CHECK(event.data == UINT64_MAX - 7 && event.fd == ends[0] && event.events == POLLOUT);
    EQUALS(look(other, &event, 1), 0);
    EQUALS(rouse_set_modify(set, ends[0], POLLIN, 0, 5), 0);
    EQUALS(look(set, &event, 1), 0);
    put_bytes(ends[1], 1);
    EQUALS(look(set, &event, 1), 1);
    CHECK(event.data == 5 && event.events == POLLIN);
    EQUALS(look(other, &event, 1), 1);
    EQUALS(rouse_set_remove(set, ends[0]), 0);
    EQUALS(look(set, &event, 1), 0);
    EQUALS(look(other, &event, 1), 1);
    EQUALS(rouse_close(ends[0]), 0);
    EQUALS(look(other, &event, 1), 0);
    EQUALS(rouse_set_remove(other, ends[0]), -ENOENT);
    rouse_set_destroy(set);
    rouse_set_destroy(other);
    close(ends[1]);
    close(file);
}

static void level_edge_and_once(void **state)
{
    (void)state;
    static const unsigned flags[] = { 0, ROUSE_SET_EDGE, ROUSE_SET_ONESHOT,
                                      ROUSE_SET_EDGE | ROUSE_SET_ONESHOT };
    for (size_t i = 0; i < LENGTH(flags); i++) {
        struct rouse_set *set = set_new();
        struct rouse_set_event event;
        int ends[2];
        bool is_level = flags[i] == 0, is_once = (flags[i] & ROUSE_SET_ONESHOT) != 0;
        wire_open(WIRE_UNIX, ends);
        DOING("flags %u", flags[i]);
        EQUALS(rouse_set_add(set, ends[0], POLLIN, flags[i], i), 0);
        UNTIL((rsi_load_relaxed(&entry_of(ends[0])->armed) & 1) != 0);
        EQUALS(look(set, &event, 1), 0);
        put_bytes(ends[1], 2);
        EQUALS(rouse_set_wait(set, &event, 1), 1);
        EQUALS(look(set, &event, 1), is_level);
        drain(ends[0]);
        EQUALS(look(set, &event, 1), 0);
        put_bytes(ends[1], 1);
        uint64_t deadline_ns = is_once ? rouse_now_ns() + 2 * MS : ROUSE_FOREVER;
        EQUALS(rouse_set_wait_until(set, &event, 1, deadline_ns), is_once ? -ETIMEDOUT : 1);
        EQUALS(rouse_set_modify(set, ends[0], POLLIN, flags[i], 77), 0);
        EQUALS(look(set, &event, 1), 1);
        EQUALS(event.data, 77);
        EQUALS(look(set, &event, 1), is_level);
        EQUALS(rouse_set_remove(set, ends[0]), 0);
        rouse_set_destroy(set);
        wire_close(ends);
    }
}

#define READY 100
static void everyone_s_turn_comes(void **state)
{
    (void)state;
    struct rouse_set *set = set_new();
    struct rouse_set_event events[READY];
    unsigned told[READY] = { 0 };
    int fds[READY], count;
    for (unsigned i = 0; i < READY; i++) {
        fds[i] = eventfd(1, EFD_CLOEXEC);
        EQUALS(rouse_set_add(set, fds[i], POLLIN, 0, i), 0);
    }
    for (unsigned sum = 0; sum < READY; sum += (unsigned)count) {
        count = look(set, events, 7);
        CHECK(count > 0 && count <= 7);
        for (int i = 0; i < count; i++)
            told[events[i].data]++;
    }
    for (unsigned i = 0; i < READY; i++)
        CHECK(told[i] <= 2 && (told[i] >= 1 || i >= READY - 7));
    EQUALS(look(set, events, READY), 64);
    for (unsigned i = 0; i < READY; i++)
        EQUALS(rouse_close(fds[i]), 0);
    EQUALS(look(set, events, READY), 0);
    rouse_set_destroy(set);
}

static void wait_for_the_next(void *arg, unsigned index)
{
    struct rouse_set_event event = { .data = 0 };
    (void)index;
    EQUALS(rouse_set_wait(scene.set, &event, 1), 1);
    EQUALS(event.data, *(uint64_t *)arg);
}

/*
 * A close removes the descriptor from the set and wakes no waiter. The number's next descriptor is
 * no member.
 */
static void a_closed_descriptor_leaves(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        uint64_t expected = 1;
        int next[2];
        scene_open(0);
        DOING("%s thread", kind_names[kind]);
        (void)crew_add(&crew, kind, wait_for_the_next, &expected);
        UNTIL(sleepers(scene.set) == 1);
        EQUALS(rouse_close(scene.ends[0][0]), 0);
        wire_open(WIRE_UNIX, next);
        EQUALS(next[0], scene.ends[0][0]);
        put_bytes(next[1], 1);
        struct wish wish = WISH(next[0], POLLIN);
        wish_main(&wish, 0);
        EQUALS(sleepers(scene.set), 1);
        EQUALS(rouse_set_remove(scene.set, next[0]), -ENOENT);
        put_bytes(scene.ends[1][1], 1);
        crew_join(&crew);
        close(next[1]);
        scene_close();
    }
}

static void wait_in_vain(void *arg, unsigned index)
{
    struct rouse_set_event event;
    (void)arg;
    (void)index;
    const uint64_t times_ns[] = { 0, 1, 100000, 2 * MS };
    for (size_t i = 0; i < LENGTH(times_ns); i++) {
        uint64_t deadline_ns = rouse_now_ns() + times_ns[i];
        EQUALS(rouse_set_wait_until(scene.set, &event, 1, deadline_ns), -ETIMEDOUT);
        CHECK(rouse_now_ns() >= deadline_ns);
    }
    EQUALS(rouse_thread_cancel(rouse_thread_self()), 0);
    EQUALS(rouse_set_wait_until(scene.set, &event, 1, 0), -ECANCELED);
    EQUALS(rouse_set_wait(scene.set, &event, 1), -ECANCELED);
}

static void deadlines_and_cancels(void **state)
{
    (void)state;
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        scene_open(0);
        DOING("%s thread", kind_names[kind]);
        struct rouse_thread *t = crew_add(&crew, kind, wait_in_vain, NULL);
        UNTIL(sleepers(scene.set) == 1 &&
              rsi_load_relaxed(&rsi_waiter(t)->deadline_ns) == ROUSE_FOREVER);
        EQUALS(rouse_thread_cancel(t), 0);
        crew_join(&crew);
        EQUALS(sleepers(scene.set), 0);
        scene_close();
    }
}

static void a_child_has_no_sets(void **state)
{
    (void)state;
#ifdef RSI_TSAN
    print_message("not run: ThreadSanitizer starts no threads after fork\n");
    return;
#endif
    scene_open(0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        struct rouse_set *set = NULL;
        struct rouse_set_event event;
        bool is_right = rouse_set_wait_until(scene.set, &event, 1, 0) == -EBADF &&
                        rouse_set_add(scene.set, 0, POLLIN, 0, 0) == -EBADF &&
                        rouse_set_create(&set) == 0 &&
                        rouse_set_add(set, scene.ends[0][0], POLLIN, 0, 3) == 0;
        put_bytes(scene.ends[0][1], 1);
        is_right = is_right && rouse_set_wait(set, &event, 1) == 1 && event.data == 3;
        rouse_set_destroy(scene.set);
        rouse_set_destroy(set);
        _exit(is_right ? 0 : 1);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    scene_close();
}

static void sleep_in_set(void *arg, unsigned index)
{
    struct rouse_set_event event;
    (void)index;
    (void)rouse_set_wait(arg, &event, 1);
}

static void destroy_while_one_waits(void)
{
    struct rouse_set *set = set_new();
    (void)crew_add(&crew, CREW_USER, sleep_in_set, set);
    UNTIL(sleepers(set) == 1);
    rouse_set_destroy(set);
}

int main(int argc, char **argv)
{
    const struct misuse misuses[] = {
        { "destroy", "is destroyed while threads wait for it", destroy_while_one_waits },
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(members_come_and_go),   cmocka_unit_test(level_edge_and_once),
        cmocka_unit_test(everyone_s_turn_comes), cmocka_unit_test(a_closed_descriptor_leaves),
        cmocka_unit_test(deadlines_and_cancels), cmocka_unit_test(a_child_has_no_sets),
    };
    SYNC_TEST_MAIN(argc, argv, tests, misuses);
}
