/* SPDX-License-Identifier: MIT */
/*
 * ipc.c - semop and semtimedop, msgsnd and msgrcv, mq_send and mq_receive: waits for semaphores and messages of other
 * processes.
 *
 * A call is first made without waiting: with IPC_NOWAIT, or with a deadline in the past. The other side is not
 * recorded.
 *
 * A cancelled thread leaves by unwinding: this file is compiled with -fexceptions.
 */
#include "process/real.h"
#include "record/wait.h"

#include <string.h>

/* More operations in one call than these are made without a first attempt. */
#define OPERATIONS 16u

static const struct timespec long_ago = { 0, 0 };

static bool begin(struct rpi_wait *wait, enum rouse_wait_kind kind, int object, const void *site)
{
    return rpi_wait_begin(wait, kind, (const void *)(intptr_t)object, site);
}

static enum rouse_verdict verdict_of(bool is_done, int at_end)
{
    return is_done           ? ROUSE_VERDICT_USEFUL
           : errno == at_end ? ROUSE_VERDICT_TIMEOUT
                             : rpi_wait_verdict(errno);
}

/* Whether the call waits: not if the operations are done at once, or fail in another way. */
static bool has_to_wait(int set, struct sembuf *operations, size_t count, int *result)
{
    struct sembuf at_once[OPERATIONS];
    bool may_wait = false;
    if (count > OPERATIONS)
        return true;
    memcpy(at_once, operations, count * sizeof *operations);
    for (size_t i = 0; i < count; i++) {
        may_wait |= !(at_once[i].sem_flg & IPC_NOWAIT) && at_once[i].sem_op <= 0;
        at_once[i].sem_flg |= IPC_NOWAIT;
    }
    int error = errno;
    *result = rpi_real.semop(set, may_wait ? at_once : operations, count);
    if (*result == 0 || errno != EAGAIN || !may_wait)
        return false;
    errno = error;
    return true;
}

/* most: of semtimedop. NULL: semop. */
static int operate(int set, struct sembuf *operations, size_t count, const struct timespec *most,
                   bool is_timed, const void *site)
{
    struct rpi_wait wait;
    int result;
    rpi_real_find();
    if (!has_to_wait(set, operations, count, &result))
        return result;
    if (!begin(&wait, RSI_STORE_WAIT_SET_OF_SEMS, set, site))
        return is_timed ? rpi_real.semtimedop(set, operations, count, most)
                        : rpi_real.semop(set, operations, count);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = is_timed ? rpi_real.semtimedop(set, operations, count, most)
                      : rpi_real.semop(set, operations, count);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result == 0, most ? EAGAIN : 0), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int semop(int set, struct sembuf *operations, size_t count)
{
    return operate(set, operations, count, NULL, false, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int semtimedop(int set, struct sembuf *operations, size_t count,
                                       const struct timespec *most)
{
    return operate(set, operations, count, most, true, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int msgsnd(int queue, const void *message, size_t bytes, int flags)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    int result, error = errno;
    rpi_real_find();
    result = rpi_real.msgsnd(queue, message, bytes, flags | IPC_NOWAIT);
    if (result == 0 || errno != EAGAIN || flags & IPC_NOWAIT)
        return result;
    errno = error;
    if (!begin(&wait, RSI_STORE_WAIT_MESSAGE, queue, site))
        return rpi_real.msgsnd(queue, message, bytes, flags);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.msgsnd(queue, message, bytes, flags);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result == 0, 0), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE ssize_t msgrcv(int queue, void *message, size_t bytes, long type, int flags)
{
    const void *site = RSI_CALLER();
    struct rpi_wait wait;
    ssize_t result;
    int error = errno;
    rpi_real_find();
    result = rpi_real.msgrcv(queue, message, bytes, type, flags | IPC_NOWAIT);
    if (result >= 0 || errno != ENOMSG || flags & IPC_NOWAIT)
        return result;
    errno = error;
    if (!begin(&wait, RSI_STORE_WAIT_MESSAGE, queue, site))
        return rpi_real.msgrcv(queue, message, bytes, type, flags);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = rpi_real.msgrcv(queue, message, bytes, type, flags);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result >= 0, 0), NULL);
    return result;
}

enum call { SEND, TIMED_SEND, RECEIVE, TIMED_RECEIVE };

/* A call on a queue of POSIX. priority: in for a send, out for a receive. */
struct asked {
    enum call call;
    mqd_t queue;
    const char *message;
    char *buffer;
    size_t bytes;
    unsigned priority_in, *priority_out;
    const struct timespec *until;
};

static ssize_t call_real(const struct asked *a)
{
    switch (a->call) {
    case SEND: return rpi_real.mq_send(a->queue, a->message, a->bytes, a->priority_in);
    case TIMED_SEND:
        return rpi_real.mq_timedsend(a->queue, a->message, a->bytes, a->priority_in, a->until);
    case RECEIVE: return rpi_real.mq_receive(a->queue, a->buffer, a->bytes, a->priority_out);
    default:
        return rpi_real.mq_timedreceive(a->queue, a->buffer, a->bytes, a->priority_out, a->until);
    }
}

static ssize_t transfer(const struct asked *a, const void *site)
{
    struct rpi_wait wait;
    ssize_t result;
    int error = errno;
    struct asked at_once = *a;
    rpi_real_find();
    at_once.call = a->call <= TIMED_SEND ? TIMED_SEND : TIMED_RECEIVE;
    at_once.until = &long_ago;
    result = call_real(&at_once);
    if (result >= 0 || errno != ETIMEDOUT)
        return result;
    errno = error;
    if (!begin(&wait, RSI_STORE_WAIT_MESSAGE, a->queue, site))
        return call_real(a);
    pthread_cleanup_push(rpi_wait_cancelled, &wait);
    result = call_real(a);
    pthread_cleanup_pop(0);
    rpi_wait_end(&wait, verdict_of(result >= 0, ETIMEDOUT), NULL);
    return result;
}

RPI_EXPORT RSI_NOINLINE int mq_send(mqd_t queue, const char *message, size_t bytes,
                                    unsigned priority)
{
    const struct asked a = { SEND, queue, message, NULL, bytes, priority, NULL, NULL };
    return (int)transfer(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE int mq_timedsend(mqd_t queue, const char *message, size_t bytes,
                                         unsigned priority, const struct timespec *until)
{
    const struct asked a = { TIMED_SEND, queue, message, NULL, bytes, priority, NULL, until };
    return (int)transfer(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t mq_receive(mqd_t queue, char *buffer, size_t bytes,
                                           unsigned *priority)
{
    const struct asked a = { RECEIVE, queue, NULL, buffer, bytes, 0, priority, NULL };
    return transfer(&a, RSI_CALLER());
}

RPI_EXPORT RSI_NOINLINE ssize_t mq_timedreceive(mqd_t queue, char *restrict buffer, size_t bytes,
                                                unsigned *restrict priority,
                                                const struct timespec *restrict until)
{
    const struct asked a = { TIMED_RECEIVE, queue, NULL, buffer, bytes, 0, priority, until };
    return transfer(&a, RSI_CALLER());
}
