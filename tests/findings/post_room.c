/* SPDX-License-Identifier: MIT */
/*
 * post_room.c - a thread puts letters into a queue, from which three others take them. Fault: each letter wakes a thread,
 * which is done with it sooner than a wake-up takes.
 *
 * Repair: the letters are put into the queue by the hundred. An operation is a letter.
 */
#include "findings.h"

enum { SORTERS = 3, ROOM = 4096, BATCH = 100, WRITE_BYTES = 4000, READ_BYTES = 2000 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t come = PTHREAD_COND_INITIALIZER, gone = PTHREAD_COND_INITIALIZER;
static uint64_t letters[ROOM];
static unsigned first, count;
static bool is_closed;

static void put(const uint64_t *written, unsigned number)
{
    pthread_mutex_lock(&lock);
    while (count + number > ROOM)
        pthread_cond_wait(&gone, &lock);
    for (unsigned i = 0; i < number; i++)
        letters[(first + count++) % ROOM] = written[i];
    pthread_cond_signal(&come);
    pthread_mutex_unlock(&lock);
}

/* Take letters, as many as are there. Returns how many; 0: no more will come. */
static unsigned take(uint64_t *taken)
{
    pthread_mutex_lock(&lock);
    while (count == 0 && !is_closed)
        pthread_cond_wait(&come, &lock);
    unsigned number = count < BATCH ? count : BATCH;
    for (unsigned i = 0; i < number; i++)
        taken[i] = letters[first++ % ROOM];
    count -= number;
    pthread_cond_signal(&gone);
    pthread_mutex_unlock(&lock);
    return number;
}

static void write_letters(void)
{
    uint64_t written[BATCH];
    unsigned most = is_fixed ? BATCH : 1;
    while (!is_over()) {
        for (unsigned i = 0; i < most; i++)
            written[i] = digest(i, WRITE_BYTES);
        put(written, most);
    }
    pthread_mutex_lock(&lock);
    is_closed = true;
    pthread_cond_broadcast(&come);
    pthread_mutex_unlock(&lock);
}

static void *work(void *arg)
{
    struct worker *self = arg;
    uint64_t taken[BATCH];
    if (self->number == SORTERS) {
        write_letters();
        return NULL;
    }
    for (unsigned number; (number = take(taken)) > 0; self->ops += number)
        for (unsigned i = 0; i < number; i++)
            digest(taken[i], READ_BYTES);
    return NULL;
}

int main(int argc, char **argv)
{
    begin(argc, argv);
    finish(run_threads(SORTERS + 1, work));
    return 0;
}
