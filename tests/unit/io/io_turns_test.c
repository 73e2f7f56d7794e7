/* SPDX-License-Identifier: MIT */
/*
 * io_turns_test.c - processes that share a listener: the turns are strict and fair. A process that
 * dies, stops or leaves in its turn does not block the others. An exclusive listener wakes a
 * process that waits.
 */
#include "core/core.h"
#include "io_test.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define MOST 8
#define LOG 4096
/* values of results that are not errors */
#define GONE 1 /* it has left */
#define BUSY 2 /* it is busy, as requested */

/* Shared by all processes. */
static struct {
    uint32_t taken, served; /* connections; served: those whose process is known */
    uint32_t order[LOG];
    int32_t results[MOST]; /* of an accept that failed */
    uint32_t busy[MOST];   /* while not 0, this child accepts no more */
    uint32_t leaves[MOST];
} * all;

static int listener;
static struct sockaddr_in address;
static pid_t children[MOST];

static void *accept_all(void *arg)
{
    uint32_t me = *(uint32_t *)arg;
    for (;;) {
        int fd = rouse_accept(listener, NULL, NULL);
        if (fd < 0) {
            rsi_store_relaxed(&all->results[me], fd);
            return NULL;
        }
        uint32_t at = rsi_fetch_add_relaxed(&all->taken, 1u);
        rsi_store_relaxed(&all->order[at % LOG], me);
        rsi_fetch_add_acq_rel(&all->served, 1u); /* pairs with connect_once's load */
        EQUALS(rouse_close(fd), 0);
        while (rsi_load_relaxed(&all->busy[me]) != 0) {
            rsi_store_relaxed(&all->results[me], BUSY);
            EQUALS(rouse_sleep(MS), 0);
        }
        if (rsi_load_relaxed(&all->leaves[me]) != 0) {
            EQUALS(rouse_close(listener), 0);
            rsi_store_relaxed(&all->results[me], GONE);
            return NULL;
        }
    }
}

static void child_start(uint32_t index, unsigned threads)
{
    fflush(NULL);
    children[index] = fork();
    CHECK(children[index] >= 0);
    if (children[index] != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    static struct rouse_thread *t[MOST];
    for (unsigned i = 0; i < threads; i++)
        EQUALS(rouse_thread_create(&t[i], NULL, accept_all, &index), 0);
    for (unsigned i = 0; i < threads; i++)
        EQUALS(rouse_thread_join(t[i], NULL), 0);
    pause();
    _exit(0);
}

static void port_open(void)
{
    memset(all, 0, sizeof *all);
    listener = tcp_listen(512, &address);
}

static void child_end(uint32_t index)
{
    EQUALS(kill(children[index], SIGKILL), 0);
    EQUALS(waitpid(children[index], NULL, 0), children[index]);
    children[index] = 0;
}

static void port_close(void)
{
    for (uint32_t i = 0; i < MOST; i++)
        if (children[i] != 0)
            child_end(i);
    EQUALS(rouse_close(listener), 0);
}

static void children_start(unsigned count, unsigned threads)
{
    for (uint32_t i = 0; i < count; i++)
        child_start(i, threads);
}

/* Connect once. Returns the process that took the connection. */
static uint32_t connect_once(void)
{
    uint32_t before = rsi_load_acquire(&all->served); /* pairs with accept_all's addition */
    close(tcp_connect(&address));
    UNTIL(rsi_load_acquire(&all->served) == before + 1);
    return rsi_load_relaxed(&all->order[before % LOG]);
}

/* Connect until each of the children in mask has had a connection, so that all take part. */
static void wait_for_all(uint32_t mask)
{
    for (uint32_t seen = 0; (seen & mask) != mask;)
        seen |= 1u << connect_once();
}

/*
 * Whether connections go round in one order. They need not where the machine stops a process for
 * long.
 */
static bool goes_round(unsigned count, unsigned rounds)
{
    uint32_t order[MOST];
    bool is_strict = true;
    for (unsigned i = 0; i < count * rounds; i++) {
        uint32_t who = connect_once();
        if (i < count)
            order[i] = who;
        else if (who != order[i % count])
            is_strict = false;
    }
    for (unsigned i = 0; i < count; i++)
        for (unsigned j = 0; j < i; j++)
            is_strict &= order[i] != order[j];
    return is_strict;
}

static void expect_round(unsigned count)
{
    for (int i = 0; i < 20; i++)
        if (goes_round(count, 10))
            return;
    check_failed("the turns go round", __FILE__, __LINE__);
}

static void turns_are_strict(void **state)
{
    (void)state;
    for (unsigned threads = 1; threads <= 3; threads += 2) {
        port_open();
        EQUALS(rouse_listener_turns(listener, 4), 0);
        children_start(4, threads);
        wait_for_all(0xf);
        expect_round(4);
        port_close();
    }
}

static void *connect_many(void *arg)
{
    for (uint32_t i = 0; i < *(uint32_t *)arg; i++)
        close(tcp_connect(&address));
    return NULL;
}

static double jain_of_many(void)
{
    uint32_t each = 1000 / SCALE, before = rsi_load_acquire(&all->served), by[MOST] = { 0 };
    double sum = 0, squares = 0;
    pthread_t clients[2];
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&clients[i], NULL, connect_many, &each) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(clients[i], NULL) == 0);
    UNTIL(rsi_load_acquire(&all->served) == before + 2 * each);
    for (uint32_t i = 0; i < 2 * each; i++)
        by[rsi_load_relaxed(&all->order[(before + i) % LOG])]++;
    for (int i = 0; i < 3; i++) {
        sum += by[i];
        squares += (double)by[i] * by[i];
    }
    return sum * sum / (3 * squares);
}

static void turns_are_fair_under_load(void **state)
{
    (void)state;
    double jain = 0;
    port_open();
    EQUALS(rouse_listener_turns(listener, 3), 0);
    children_start(3, 2);
    wait_for_all(7);
    for (int i = 0; i < 5 && jain < 0.99; i++)
        jain = jain_of_many();
    DOING("Jain's index %.4f", jain);
    CHECK(jain >= 0.99);
    port_close();
}

static void dead_process_stops_nobody(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_turns(listener, 4), 0);
    children_start(4, 1);
    wait_for_all(0xf);
    child_end(1);
    wait_for_all(0xd);
    expect_round(3);
    child_end(0); /* two at once */
    child_end(3);
    wait_for_all(0x4);
    expect_round(1);
    children_start(2, 1); /* there is room for new ones */
    child_start(3, 1);
    wait_for_all(0xf);
    expect_round(4);
    port_close();
}

static void wait_for_stop(pid_t pid)
{
    int status;
    EQUALS(kill(pid, SIGSTOP), 0);
    EQUALS(waitpid(pid, &status, WUNTRACED), pid);
    CHECK(WIFSTOPPED(status));
}

static void stopped_process_loses_its_turn_only(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_turns(listener, 3), 0);
    children_start(3, 2);
    wait_for_all(7);
    wait_for_stop(children[2]);
    wait_for_all(3);
    expect_round(2);
    EQUALS(kill(children[2], SIGCONT), 0);
    wait_for_all(7);
    expect_round(3);
    port_close();
}

static void busy_process_loses_its_turn_only(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_turns(listener, 2), 0);
    children_start(2, 1);
    wait_for_all(3);
    rsi_store_relaxed(&all->busy[0], 1);
    while (rsi_load_relaxed(&all->results[0]) != BUSY)
        (void)connect_once();
    for (int i = 0; i < 20; i++)
        EQUALS(connect_once(), 1);
    rsi_store_relaxed(&all->busy[0], 0);
    wait_for_all(3);
    expect_round(2);
    port_close();
}

static void a_process_that_closes_leaves_the_turns(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_turns(listener, 3), 0);
    children_start(3, 1);
    wait_for_all(7);
    rsi_store_relaxed(&all->leaves[0], 1);
    while (rsi_load_relaxed(&all->results[0]) != GONE)
        (void)connect_once();
    expect_round(2);
    port_close();
}

static void one_process_too_many_is_refused(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_turns(listener, 2), 0);
    children_start(2, 1);
    wait_for_all(3);
    child_start(2, 1);
    UNTIL(rsi_load_relaxed(&all->results[2]) == -EUSERS);
    expect_round(2);
    port_close();
}

/* A busy process's connection goes to another process, which waits. */
static void exclusive_wakes_a_process_that_waits(void **state)
{
    (void)state;
    port_open();
    EQUALS(rouse_listener_exclusive(listener), 0);
    EQUALS(rouse_listener_exclusive(listener), -EBUSY);
    children_start(2, 1);
    for (uint32_t busy = 0; busy < 2; busy++) {
        rsi_store_relaxed(&all->busy[busy], 1);
        /*
         * The busy process takes one connection and no more. Each of the others must reach the
         * waiting process.
         */
        for (int i = 0; i < 40; i++)
            (void)connect_once();
        rsi_store_relaxed(&all->busy[busy], 0);
    }
    port_close();
}

static void bad_input_is_answered(void **state)
{
    (void)state;
    int ends[2], fd = out_of_reach(tcp_socket());
    EQUALS(rouse_listener_turns(fd, 2), -EINVAL); /* does not listen */
    EQUALS(rouse_listener_exclusive(fd), -EINVAL);
    UNTIL(rsi_idle_all_sleep()); /* their rings are there: none takes a number below */
    EQUALS(rouse_close(fd), 0);
    EQUALS(rouse_listener_turns(fd, 2), -EBADF);
    EQUALS(rouse_listener_exclusive(fd), -EBADF);
    wire_open(WIRE_PIPE, ends);
    EQUALS(rouse_listener_turns(ends[0], 2), -ENOTSOCK);
    EQUALS(rouse_listener_exclusive(ends[0]), -ENOTSOCK);
    wire_close(ends);
    port_open();
    EQUALS(rouse_listener_turns(listener, 0), -EINVAL);
    EQUALS(rouse_listener_turns(listener, 257), -EINVAL);
    EQUALS(rouse_listener_turns(listener, 256), 0);
    EQUALS(rouse_listener_turns(listener, 2), -EBUSY);
    EQUALS(rouse_listener_exclusive(listener), -EBUSY);
    EQUALS(rouse_listener_order(listener, ROUSE_ACCEPT_LIFO), 0);
    EQUALS(rouse_close(listener), 0);
    int next = dup(0);
    close(next);
    port_open(); /* and no descriptor of it is left */
    CHECK(listener <= next);
    EQUALS(rouse_close(listener), 0);
}

static struct {
    struct sockaddr_in address;
    int fd;
    uint32_t served;
} shared;

static void accept_until_closed(void *arg, unsigned index)
{
    int fd;
    (void)arg, (void)index;
    while ((fd = rouse_accept(shared.fd, NULL, NULL)) >= 0) {
        EQUALS(rouse_close(fd), 0);
        rsi_fetch_add_relaxed(&shared.served, 1u);
    }
    EQUALS(fd, -EBADF);
}

/*
 * Two connections are announced before the worker runs the threads. When the second is announced,
 * no thread waits any more.
 */
static void announce_two(void *arg, unsigned index)
{
    (void)arg, (void)index;
    for (unsigned i = 0; i < 2; i++) {
        close(tcp_connect(&shared.address));
        rsi_poller_try();
    }
}

/*
 * The first thread calls accept again while the other is on its way. It may wait only if a worker
 * watches the listener.
 */
static void exclusive_waits_only_for_a_watched_listener(void **state)
{
    (void)state;
    static struct crew crew;
    for (unsigned i = 0; i < 20; i++) {
        shared.served = 0;
        shared.fd = tcp_listen(8, &shared.address);
        EQUALS(rouse_listener_exclusive(shared.fd), 0);
        struct rouse_thread *first = crew_add(&crew, CREW_USER, accept_until_closed, NULL);
        UNTIL(is_in_accept(first));
        struct rouse_thread *second = crew_add(&crew, CREW_USER, accept_until_closed, NULL);
        UNTIL(is_in_accept(second));
        (void)crew_add(&crew, CREW_USER, announce_two, NULL);
        UNTIL(rsi_load_relaxed(&shared.served) == 2 && is_in_accept(first) && is_in_accept(second));
        close(tcp_connect(&shared.address));
        UNTIL(rsi_load_relaxed(&shared.served) == 3);
        EQUALS(rouse_close(shared.fd), 0);
        crew_join(&crew);
    }
}

/*
 * The events that the runtime's epoll set has registered for fd, as the kernel shows them. 0: fd is
 * not in the set.
 */
static unsigned registered_events(int fd)
{
    char path[64], line[256];
    unsigned found = 0;
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", rsi_epoll_fd());
    FILE *file = fopen(path, "re");
    CHECK(file);
    while (fgets(line, sizeof line, file)) {
        int number;
        unsigned events;
        if (sscanf(line, "tfd: %d events: %x", &number, &events) == 2 && number == fd)
            found = events;
    }
    CHECK(fclose(file) == 0);
    return found;
}

/*
 * A connection must wake one of the processes that share the port and not all, so the kernel is
 * asked for that.
 */
static void exclusive_is_registered_with_the_kernel(void **state)
{
    (void)state;
    static struct crew crew;
    for (int is_exclusive = 0; is_exclusive < 2; is_exclusive++) {
        shared.served = 0;
        shared.fd = tcp_listen(8, &shared.address);
        if (is_exclusive)
            EQUALS(rouse_listener_exclusive(shared.fd), 0);
        else
            EQUALS(rouse_listener_order(shared.fd, ROUSE_ACCEPT_FIFO), 0);
        struct rouse_thread *t = crew_add(&crew, CREW_USER, accept_until_closed, NULL);
        UNTIL(is_in_accept(t));
        UNTIL((registered_events(shared.fd) & EPOLLIN) != 0);
        EQUALS((registered_events(shared.fd) & EPOLLEXCLUSIVE) != 0, is_exclusive);
        EQUALS(rouse_close(shared.fd), 0);
        crew_join(&crew);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns_are_strict),
        cmocka_unit_test(turns_are_fair_under_load),
        cmocka_unit_test(dead_process_stops_nobody),
        cmocka_unit_test(stopped_process_loses_its_turn_only),
        cmocka_unit_test(busy_process_loses_its_turn_only),
        cmocka_unit_test(a_process_that_closes_leaves_the_turns),
        cmocka_unit_test(one_process_too_many_is_refused),
        cmocka_unit_test(exclusive_wakes_a_process_that_waits),
        cmocka_unit_test(exclusive_waits_only_for_a_watched_listener),
        cmocka_unit_test(exclusive_is_registered_with_the_kernel),
        cmocka_unit_test(bad_input_is_answered),
    };
#ifdef RSI_TSAN
    printf("not run: ThreadSanitizer lets no threads start after a fork\n");
    return 77;
#endif
    all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
