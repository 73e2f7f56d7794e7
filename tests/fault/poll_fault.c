/* SPDX-License-Identifier: MIT */
/*
 * poll_fault.c - makes the nth system call of each kind that poll, select and sets use fail, for every
 * n. The caller receives that error or does not notice it, the same call made again succeeds, nothing
 * leaks, no waiter stays listed, and no thread hangs.
 */
#include "nth_call.h"

#include "unit/io/poll_test.h"

#include <sys/select.h>

#define PIPES 20 /* more entries than a call can keep on its stack */

static const struct fault faults[] = {
    { "epoll_create1: EMFILE", SYS_epoll_create1, EMFILE, -1, 0 },
    { "eventfd2: ENOMEM", SYS_eventfd2, ENOMEM, -1, 0 },
    { "epoll_ctl: ENOMEM", SYS_epoll_ctl, ENOMEM, -1, 0 },
    { "epoll_ctl: ENOSPC", SYS_epoll_ctl, ENOSPC, -1, 0 },
    { "ppoll: EINTR", SYS_ppoll, EINTR, -1, 0 },
    { "ppoll: ENOMEM", SYS_ppoll, ENOMEM, -1, 0 },
    { "epoll_pwait2: EINTR", SYS_epoll_pwait2, EINTR, -1, 0 },
};

static struct {
    const struct fault *fault;
    int pipes[PIPES][2];
    uint32_t error_returns, asks;
} scene;

/* Whether the call returned the injected error, so that it must be made again. */
static bool has_failed(long result)
{
    if (result >= 0)
        return false;
    EQUALS(result, -scene.fault->error);
    rsi_fetch_add_relaxed(&scene.error_returns, 1u);
    return true;
}

static void take(int fd)
{
    char byte;
    EQUALS(read(fd, &byte, 1), 1);
}

static void ask(void)
{
    rsi_fetch_add_acq_rel(&scene.asks, 1u);
}

static void poll_all(bool is_exclusive)
{
    struct pollfd fds[PIPES];
    int ready;
    for (int i = 0; i < PIPES; i++)
        fds[i] = (struct pollfd){ .fd = scene.pipes[i][0], .events = POLLIN };
    ask();
    do
        ready = is_exclusive ? rouse_poll_exclusive(fds, PIPES, -1) : rouse_poll(fds, PIPES, -1);
    while (has_failed(ready));
    EQUALS(ready, 1);
    for (int i = 0; i < PIPES; i++)
        if (fds[i].revents != 0)
            take(fds[i].fd);
}

static void select_all(void)
{
    fd_set in;
    int ready;
    ask();
    do {
        FD_ZERO(&in);
        for (int i = 0; i < PIPES; i++)
            FD_SET(scene.pipes[i][0], &in);
        ready = rouse_select(FD_SETSIZE, &in, NULL, NULL, NULL);
    } while (has_failed(ready));
    EQUALS(ready, 1);
    for (int i = 0; i < PIPES; i++)
        if (FD_ISSET(scene.pipes[i][0], &in))
            take(scene.pipes[i][0]);
}

static void wait_for_set(void)
{
    struct rouse_set *set = NULL;
    struct rouse_set_event event;
    EQUALS(rouse_set_create(&set), 0);
    for (int i = 0; i < PIPES; i++)
        while (has_failed(rouse_set_add(set, scene.pipes[i][0], POLLIN, 0, 0)))
            ;
    ask();
    EQUALS(rouse_set_wait(set, &event, 1), 1);
    take(event.fd);
    rouse_set_destroy(set);
}

static void waiter(void *arg, unsigned index)
{
    (void)arg;
    (void)index;
    poll_all(false);
    poll_all(true);
    select_all();
    wait_for_set();
}

static void in_child(const struct fault *fault)
{
    static struct crew crew;
    scene.fault = fault;
    (void)rouse_thread_self(); /* other tests cover failures of the runtime's start */
    for (int i = 0; i < PIPES; i++)
        wire_open(WIRE_PIPE, scene.pipes[i]);
    nth_call_arm(true);
    for (enum crew_kind kind = 0; kind < KINDS; kind++) {
        (void)crew_add(&crew, kind, waiter, NULL);
        for (uint32_t i = 1; i <= 4; i++) {
            UNTIL(rsi_load_acquire(&scene.asks) == kind * 4 + i); /* pairs with ask */
            put_bytes(scene.pipes[i * 3][1], 1);
        }
        crew_join(&crew);
    }
    nth_call_arm(false);
    CHECK(scene.error_returns <= 1);
    for (int i = 0; i < PIPES; i++) {
        CHECK(!is_awaited(scene.pipes[i][0], RSI_FD_READ));
        wire_close(scene.pipes[i]);
    }
}

static void each_call_fails_once(void **state)
{
    (void)state;
    nth_call_each(faults, LENGTH(faults), in_child);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(each_call_fails_once) };
    if (nth_call_is_refused(&faults[0]))
        return 77;
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
