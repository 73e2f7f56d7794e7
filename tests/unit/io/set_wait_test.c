/* SPDX-License-Identifier: MIT */
/*
 * set_wait_test.c - threads that wait for one set: an event wakes one waiter, and none is lost. An
 * event that a thread does not handle is reported to another.
 */
#include "set_test.h"

static struct rouse_sem gate;

static void wait_and_take(void *arg, unsigned index)
{
    struct rouse_set_event events[HERD];
    struct rouse_wait_record record;
    char byte;
    (void)arg;
    (void)index;
    EQUALS(rouse_set_wait(scene.set, events, HERD), 1);
    rouse_obs_last_wait(&record);
    rsi_fetch_add_relaxed(&scene.useless, (uint32_t)record.useless_count);
    EQUALS(events[0].events, POLLIN);
    EQUALS(rouse_read(events[0].fd, &byte, 1), 1);
    /*
     * The thread parks, which settles its events before more may come. Otherwise another thread
     * could receive both.
     */
    EQUALS(rouse_sleep(1), 0);
    rsi_fetch_add_relaxed(&scene.told, 1u);
    rouse_sem_wait(&gate);
}

/* Events that come together wake one thread each. No wake-up is spurious. */
static void each_event_wakes_one(void **state)
{
    (void)state;
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    for (unsigned flags = 0; flags < 4; flags++)
        for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
            scene_open(flags);
            DOING("flags %u, %s threads", flags, kind_names[kind]);
            crew_add_many(&crew, kind, 2 * HERD, wait_and_take, NULL);
            UNTIL(sleepers(scene.set) == 2 * HERD);
            for (unsigned round = 1; round <= 2; round++) {
                for (unsigned i = 0; i < HERD; i++)
                    put_bytes(scene.ends[i][1], 1);
                UNTIL(rsi_load_relaxed(&scene.told) == round * HERD);
                EQUALS(sleepers(scene.set), (2 - round) * HERD);
                for (unsigned i = 0; i < HERD && (flags & ROUSE_SET_ONESHOT) != 0; i++)
                    EQUALS(rouse_set_modify(scene.set, scene.ends[i][0], POLLIN, flags, i), 0);
            }
            for (unsigned i = 0; i < 2 * HERD; i++)
                rouse_sem_post(&gate);
            crew_join(&crew);
            EQUALS(scene.useless, 0);
            scene_close();
        }
    rouse_obs_set_mode(ROUSE_OBS_OFF);
}

/* One event for both sides of a member, which finds nothing there: one thread wakes, not two. */
static void an_event_for_both_sides_wakes_one(void **state)
{
    (void)state;
    struct rsi_fd_batch batch = { NULL, NULL };
    rouse_obs_set_mode(ROUSE_OBS_COUNTED);
    scene_open(0);
    fill(scene.ends[0][0]);
    EQUALS(rouse_set_modify(scene.set, scene.ends[0][0], POLLIN | POLLOUT, 0, 0), 0);
    crew_add_many(&crew, CREW_USER, 2, wait_and_take, NULL);
    UNTIL(sleepers(scene.set) == 2);
    struct rsi_fd *entry = entry_of(scene.ends[0][0]);
    (void)rsi_ready_event(entry, entry->generation, EPOLLIN | EPOLLOUT, &batch);
    EQUALS(sleepers(scene.set), 1);
    rsi_fdtable_publish(&batch);
    UNTIL(sleepers(scene.set) == 2);
    put_bytes(scene.ends[1][1], 1);
    put_bytes(scene.ends[2][1], 1);
    rouse_sem_post(&gate);
    rouse_sem_post(&gate);
    crew_join(&crew);
    EQUALS(scene.useless, 1);
    rouse_obs_set_mode(ROUSE_OBS_OFF);
    scene_close();
}

#define TOKENS (4000 / SCALE)

/* Events between a thread's last check and its sleep. No other thread is there to see them. */
struct pair {
    int ends[2];
    struct rouse_sem wanted;
};

static void wait_alone(void *arg, unsigned index)
{
    struct rouse_set *set = set_new();
    struct rouse_set_event event;
    struct pair *pair = arg;
    char byte;
    EQUALS(rouse_set_add(set, pair->ends[0], POLLIN, index % 4 == 0 ? ROUSE_SET_EDGE : 0, 0), 0);
    for (int i = 0; i < TOKENS; i++) {
        rouse_sem_post(&pair->wanted);
        while (rouse_read_until(pair->ends[0], &byte, 1, 0) != 1)
            EQUALS(rouse_set_wait(set, &event, 1), 1);
    }
    rouse_set_destroy(set);
}

static void produce(void *arg, unsigned index)
{
    struct pair *pair = arg;
    (void)index;
    for (int i = 0; i < TOKENS; i++) {
        EQUALS(rouse_sem_wait(&pair->wanted), 0);
        put_bytes(pair->ends[1], 1);
    }
}

static void nothing_is_lost_before_the_sleep(void **state)
{
    (void)state;
    struct pair pairs[HERD] = { 0 };
    for (int i = 0; i < HERD; i++) {
        wire_open(WIRE_UNIX, pairs[i].ends);
        (void)crew_add(&crew, (enum crew_kind)(i % KINDS), wait_alone, &pairs[i]);
        (void)crew_add(&crew, i % 2 == 0 ? CREW_USER : CREW_KERNEL, produce, &pairs[i]);
    }
    crew_join(&crew);
    for (int i = 0; i < HERD; i++)
        wire_close(pairs[i].ends);
}

static void parks(void)
{
    rouse_sem_wait(&gate);
}

static void ends_itself(void)
{
}

static void waits_for_another_set(void)
{
    struct rouse_set *other = set_new();
    struct rouse_set_event event;
    EQUALS(rouse_set_wait_until(other, &event, 1, 0), -ETIMEDOUT);
    rouse_set_destroy(other);
    UNTIL(rsi_load_relaxed(&scene.told) == HERD);
}

static void polls(void)
{
    struct pollfd none = { .fd = -1 };
    EQUALS(rouse_poll(&none, 1, 0), 0);
    UNTIL(rsi_load_relaxed(&scene.told) == HERD);
}

static void waits_for_it_again(void)
{
    struct rouse_set_event event;
    EQUALS(rouse_set_wait(scene.set, &event, 1), 1);
    UNTIL(rsi_load_relaxed(&scene.told) == HERD);
}

static void wait_and_turn_away(void *arg, unsigned index)
{
    struct rouse_set_event events[HERD];
    (void)arg;
    (void)index;
    EQUALS(rouse_set_wait(scene.set, events, HERD), 1);
    rsi_fetch_add_relaxed(&scene.told, 1u);
    scene.turn_away();
    rsi_fetch_add_relaxed(&scene.left, 1u);
}

/* No thread reads: an event that one waiter leaves is reported to the next. */
static void an_event_that_is_left_is_reported_to_another(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        void (*turn_away)(void);
    } ways[] = {
        { "parks", parks },
        { "ends", ends_itself },
        { "waits for another set", waits_for_another_set },
        { "polls", polls },
    };
    for (size_t way = 0; way < LENGTH(ways); way++)
        for (enum crew_kind kind = 0; kind < CREW_KINDS; kind++) {
            scene_open(0);
            scene.turn_away = ways[way].turn_away;
            DOING("one waiter per event %s, %s threads", ways[way].name, kind_names[kind]);
            crew_add_many(&crew, kind, HERD, wait_and_turn_away, NULL);
            UNTIL(sleepers(scene.set) == HERD);
            put_bytes(scene.ends[1][1], 1);
            UNTIL(rsi_load_relaxed(&scene.told) == HERD);
            for (unsigned i = 0; i < HERD; i++)
                rouse_sem_post(&gate);
            crew_join(&crew);
            while (rouse_sem_wait_try(&gate) == 0)
                ;
            scene_close();
        }
}

/*
 * The notified thread computes on. No other thread receives the same event, but new events go to
 * others.
 */
static void spin(void)
{
    UNTIL(rsi_load_relaxed(&scene.told) == 2);
}

static void only_a_new_event_is_reported_to_another(void **state)
{
    (void)state;
    for (int again = 0; again < 2; again++) {
        scene_open(0);
        scene.turn_away = again ? waits_for_it_again : spin;
        crew_add_many(&crew, CREW_USER, 2, wait_and_turn_away, NULL);
        UNTIL(sleepers(scene.set) == 2);
        put_bytes(scene.ends[0][1], 1);
        UNTIL(rsi_load_relaxed(&scene.told) == 1);
        if (again) {
            rsi_store_relaxed(&scene.told,
                              HERD - 1); /* it is notified again at once, and not the other */
            UNTIL(rsi_load_relaxed(&scene.left) == 0 && sleepers(scene.set) == 1);
        }
        for (int i = 0; i < 100; i++)
            rouse_thread_yield();
        EQUALS(sleepers(scene.set), 1);
        put_bytes(scene.ends[again ? 2 : 0][1], 1);
        UNTIL(sleepers(scene.set) == 0);
        crew_join(&crew);
        scene_close();
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_wakes_one),
        cmocka_unit_test(an_event_for_both_sides_wakes_one),
        cmocka_unit_test(nothing_is_lost_before_the_sleep),
        cmocka_unit_test(an_event_that_is_left_is_reported_to_another),
        cmocka_unit_test(only_a_new_event_is_reported_to_another),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
