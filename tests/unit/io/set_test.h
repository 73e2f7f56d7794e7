/* SPDX-License-Identifier: MIT */
/*
 * set_test.h - helpers of the tests of sets: a set with some members, and which threads sleep in
 * it.
 */
#ifndef SET_TEST_H
#define SET_TEST_H

#include "poll_test.h"

#define HERD 6

static struct crew crew;

static MAYBE_UNUSED struct rouse_set *set_new(void)
{
    struct rouse_set *set = NULL;
    EQUALS(rouse_set_create(&set), 0);
    CHECK(set);
    return set;
}

/* One check without a wait. */
static MAYBE_UNUSED int look(struct rouse_set *set, struct rouse_set_event *events, unsigned count)
{
    int told = rouse_set_wait_until(set, events, count, 0);
    return told == -ETIMEDOUT ? 0 : told;
}

static struct {
    struct rouse_set *set;
    int ends[HERD][2];
    uint32_t told, left, useless;
    void (*turn_away)(void);
} scene;

static MAYBE_UNUSED void scene_open(unsigned flags)
{
    memset(&scene, 0, sizeof scene);
    scene.set = set_new();
    for (unsigned i = 0; i < HERD; i++) {
        wire_open(i % 2 == 0 ? WIRE_UNIX : WIRE_PIPE, scene.ends[i]);
        EQUALS(rouse_set_add(scene.set, scene.ends[i][0], POLLIN, flags, i), 0);
    }
}

static MAYBE_UNUSED void scene_close(void)
{
    for (unsigned i = 0; i < HERD; i++)
        wire_close(scene.ends[i]);
    rouse_set_destroy(scene.set);
}

static MAYBE_UNUSED unsigned sleepers(struct rouse_set *set)
{
    unsigned count = 0;
    rsi_guard_lock(&set->guard);
    for (struct rsi_set_sleeper *s = set->first; s; s = s->next)
        count++;
    rsi_guard_unlock(&set->guard);
    return count;
}

#endif
