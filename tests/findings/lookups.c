/* SPDX-License-Identifier: MIT */
/*
 * lookups.c - names that are looked up in batches of eight. Fault: a thread for each name, which has little to do.
 *
 * Repair: a call for each name.
 */
#include "findings.h"

enum { BATCH = 8, NAME_BYTES = 2000 };

static uint64_t answers[BATCH];

static void *look_up(void *name)
{
    uintptr_t i = (uintptr_t)name;
    answers[i] = digest(answers[i] + i, NAME_BYTES);
    return NULL;
}

static void answer_batch(void)
{
    pthread_t threads[BATCH];
    for (uintptr_t i = 0; i < BATCH; i++)
        if (is_fixed)
            look_up((void *)i);
        else
            check(pthread_create(&threads[i], NULL, look_up, (void *)i) == 0);
    for (unsigned i = 0; i < BATCH && !is_fixed; i++)
        pthread_join(threads[i], NULL);
}

int main(int argc, char **argv)
{
    unsigned long ops = 0;
    begin(argc, argv);
    for (; !is_over(); ops += BATCH)
        answer_batch();
    finish(ops);
}
