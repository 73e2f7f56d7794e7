/* SPDX-License-Identifier: MIT */
/*
 * thread_life.c - the life of a thread: name, thread-local values, cancellation, joining, blocking foreign code.
 *
 * usage: thread_life
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <rouse/rouse.h>

#define MS UINT64_C(1000000)

static unsigned request_key;
static struct rouse_sem ended = ROUSE_SEM_INIT(0);

/* Works until it is asked to stop, which rouse_sleep_until reports. */
static void *worker(void *arg)
{
    uint64_t next_ns = rouse_now_ns();

    (void)arg;
    while (rouse_sleep_until(next_ns += MS) != -ECANCELED)
        ;
    rouse_thread_exit((void *)"stopped");
}

/* Computes without a blocking call, so it checks for a request to stop, and lets other threads run. */
static void *computation(void *arg)
{
    (void)arg;
    while (!rouse_thread_cancel_pending())
        rouse_thread_yield();
    return (void *)"interrupted";
}

/* Each thread has its own value of a key; the destructor frees it when the thread ends. */
static void *request(void *arg)
{
    char *text = malloc(32);

    if (text)
        snprintf(text, 32, "request %d", *(int *)arg);
    if (rouse_key_set(request_key, text) < 0)
        free(text);
    rouse_thread_set_name(rouse_thread_self(), rouse_key_get(request_key));
    rouse_sem_post(&ended);
    return NULL;
}

/* A call of another library that blocks its kernel thread. */
static void *slow_call(void *arg)
{
    usleep(1000);
    return arg;
}

int main(void)
{
    struct rouse_thread_attr user = ROUSE_THREAD_ATTR_INIT, detached = ROUSE_THREAD_ATTR_INIT;
    struct rouse_thread *t, *busy, *late;
    void *result = NULL;
    char name[ROUSE_NAME_BYTES];
    static int number = 7;

    user.name = "worker";
    detached.detached = true;
    if (rouse_key_create(&request_key, free) < 0 ||
        rouse_thread_create(&t, &user, worker, NULL) < 0 ||
        rouse_thread_create(&busy, NULL, computation, NULL) < 0 ||
        rouse_thread_create(NULL, &detached, request, &number) < 0 ||
        rouse_thread_create(&late, NULL, request, &number) < 0)
        return 1;

    rouse_thread_name(t, name, sizeof(name));
    printf("%s: %s thread, new number: %s\n", name,
           rouse_thread_kind(t) == ROUSE_KIND_USER ? "user" : "kernel",
           rouse_thread_id(t) != rouse_thread_id(rouse_thread_self()) ? "yes" : "no");
    rouse_thread_detach(late); /* as if it had been created detached */

    /* It has not ended: _try reports this at once, and _until at its deadline. */
    printf("join: %s, %s\n", rouse_thread_join_try(t, &result) == -EBUSY ? "busy" : "ended",
           rouse_thread_join_until(t, &result, rouse_now_ns() + MS) == -ETIMEDOUT ? "timed out"
                                                                                  : "ended");
    rouse_thread_cancel(t);
    rouse_thread_join(t, &result);
    printf("worker %s\n", (const char *)result);
    rouse_thread_cancel(busy);
    rouse_thread_join(busy, &result);
    printf("computation %s\n", (const char *)result);

    /* From a user thread, a helper kernel thread would run slow_call while the worker runs others. */
    if (rouse_blocking(slow_call, &number, &result) == 0)
        printf("blocking call returned %d\n", *(int *)result);
    rouse_sem_wait(&ended);
    rouse_sem_wait(&ended);
    rouse_key_delete(request_key);
    return 0;
}
