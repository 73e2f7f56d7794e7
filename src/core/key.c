/* SPDX-License-Identifier: MIT */
/* key.c - thread-local values. A key that is deleted and created again does not show its old values. */
#include "core/core.h"

#include <errno.h>
#include <stdlib.h>

#define DESTRUCTOR_ROUNDS 4

struct rsi_value {
    uint64_t generation; /* the key's generation when the value was set */
    void *value;
};

/* generation is odd while the key exists. */
static struct {
    uint64_t generation;
    void (*destructor)(void *);
} keys[ROUSE_KEYS_MAX];
static uint32_t keys_guard;

int rouse_key_create(unsigned *key, void (*destructor)(void *))
{
    int result = -EAGAIN;
    rsi_guard_lock(&keys_guard);
    for (unsigned i = 0; i < ROUSE_KEYS_MAX; i++) {
        if (keys[i].generation & 1)
            continue;
        rsi_store_relaxed(&keys[i].destructor, destructor);
        rsi_store_release(&keys[i].generation, keys[i].generation + 1);
        *key = i;
        result = 0;
        break;
    }
    rsi_guard_unlock(&keys_guard);
    return result;
}

static uint64_t generation_of(unsigned key)
{
    return key < ROUSE_KEYS_MAX ? rsi_load_acquire(&keys[key].generation) : 0;
}

int rouse_key_delete(unsigned key)
{
    rsi_guard_lock(&keys_guard);
    bool exists = generation_of(key) & 1;
    if (exists)
        rsi_store_release(&keys[key].generation, keys[key].generation + 1);
    rsi_guard_unlock(&keys_guard);
    return exists ? 0 : -EINVAL;
}

int rouse_key_set(unsigned key, const void *value)
{
    struct rouse_thread *self = rsi_self();
    uint64_t generation = generation_of(key);
    if (!(generation & 1))
        return -EINVAL;
    struct rsi_value *values = self->locals;
    if (!values) {
        if (!value)
            return 0;
        values = calloc(ROUSE_KEYS_MAX, sizeof *values);
        if (!values)
            return -ENOMEM;
        if (__lsan_ignore_object) /* it does not search control blocks for pointers */
            __lsan_ignore_object(values);
        self->locals = values;
    }
    values[key] = (struct rsi_value){ generation, (void *)(uintptr_t)value };
    return 0;
}

void *rouse_key_get(unsigned key)
{
    struct rsi_value *values = rsi_self()->locals;
    uint64_t generation = generation_of(key);
    if (!values || !(generation & 1) || values[key].generation != generation)
        return NULL;
    return values[key].value;
}

void rsi_keys_fork_prepare(void)
{
    rsi_guard_lock(&keys_guard);
}

/* Also called in the child. */
void rsi_keys_fork_parent(void)
{
    rsi_guard_unlock(&keys_guard);
}

void rsi_keys_run_destructors(struct rouse_thread *self)
{
    struct rsi_value *values = self->locals;
    bool again = true;
    for (unsigned round = 0; again && round < DESTRUCTOR_ROUNDS; round++) {
        again = false;
        for (unsigned key = 0; key < ROUSE_KEYS_MAX; key++) {
            void *value = values[key].value;
            uint64_t generation = generation_of(key);
            values[key].value = NULL;
            void (*destructor)(void *) = rsi_load_relaxed(&keys[key].destructor);
            if (!value || !destructor || values[key].generation != generation)
                continue;
            destructor(value);
            again = true;
        }
    }
    self->locals = NULL;
    free(values);
}
