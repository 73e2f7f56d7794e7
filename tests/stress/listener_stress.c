/* SPDX-License-Identifier: MIT */
/*
 * listener_stress.c - threads that accept in an order, with deadlines that pass, cancels and
 * closes: each connection is served although any thread chosen for it may give up, and no thread
 * sleeps for ever.
 */
#include "unit/io/io_test.h"

#define SERVERS 12
#define CLIENTS 2

static struct {
    int fd;
    struct sockaddr_in address;
    uint32_t served, made, is_over, ended;
    struct rouse_thread *threads[SERVERS];
} port;

/* Serves until the listener is closed, whatever ends its waits meanwhile. */
static void serve(void *arg, unsigned index)
{
    uint64_t random = seed_of_run() + (index + 1) * UINT64_C(0x9e3779b97f4a7c15);
    (void)arg;
    for (;;) {
        uint64_t dice = rsi_random_next(&random) >> 32, deadline_ns = ROUSE_FOREVER;
        if (dice % 3 == 0)
            deadline_ns = rouse_now_ns() + dice % 200000;
        int fd = rouse_accept_until(port.fd, NULL, NULL, deadline_ns);
        if (fd == -EBADF || fd == -EINVAL) /* the number may be a connection's by now */
            break;
        CHECK(fd >= 0 || fd == -ETIMEDOUT || fd == -ECANCELED);
        if (fd < 0)
            continue;
        EQUALS(rouse_close(fd), 0);
        rsi_fetch_add_relaxed(&port.served, 1u);
        if (dice % 5 == 0)
            rouse_thread_yield();
    }
    rsi_fetch_add_relaxed(&port.ended, 1u);
}

static void cancel_some(void *arg, unsigned index)
{
    uint64_t random = seed_of_run() + index;
    (void)arg;
    while (rsi_load_relaxed(&port.is_over) == 0) {
        uint64_t dice = rsi_random_next(&random) >> 32;
        EQUALS(rouse_thread_cancel(port.threads[dice % SERVERS]), 0);
        EQUALS(rouse_sleep(dice % 100000), 0);
    }
}

/* The client waits for each connection to be served: its server hangs up. */
static void *connect_some(void *arg)
{
    for (uint32_t i = 0; i < *(uint32_t *)arg; i++) {
        char byte;
        int fd = tcp_connect(&port.address);
        if (i % 4 == 0)
            CHECK(read(fd, &byte, 1) <= 0);
        close(fd);
    }
    return NULL;
}

static void round_of(enum rouse_accept_order order, uint32_t each)
{
    static struct crew servers, cancellers;
    pthread_t clients[CLIENTS];
    memset(&port, 0, sizeof port);
    port.fd = tcp_listen(512, &port.address);
    EQUALS(rouse_listener_order(port.fd, order), 0);
    for (unsigned i = 0; i < SERVERS; i++)
        port.threads[i] = crew_add(&servers, CREW_USER, serve, NULL);
    (void)crew_add(&cancellers, CREW_USER, cancel_some, NULL);
    for (int i = 0; i < CLIENTS; i++)
        CHECK(pthread_create(&clients[i], NULL, connect_some, &each) == 0);
    for (int i = 0; i < CLIENTS; i++)
        CHECK(pthread_join(clients[i], NULL) == 0);
    UNTIL(rsi_load_relaxed(&port.served) == CLIENTS * each);
    rsi_store_relaxed(&port.is_over, 1);
    crew_join(&cancellers);
    EQUALS(rouse_close(port.fd), 0);
    crew_join(&servers);
    EQUALS(port.ended, SERVERS);
}

static void no_connection_waits_for_ever(void **state)
{
    (void)state;
    for (enum rouse_accept_order order = 0; order <= ROUSE_ACCEPT_SCATTER; order++) {
        DOING("order %d", (int)order);
        round_of(order, 600 / SCALE);
    }
}

/*
 * The listener is closed while connections arrive and are announced. Every waiter receives -EBADF,
 * and the next listener has its own waiters.
 */
static void closes_amid_connections(void **state)
{
    (void)state;
    static struct crew servers;
    for (int round = 0; round < 150 / SCALE; round++) {
        int clients[8];
        memset(&port, 0, sizeof port);
        port.fd = tcp_listen(512, &port.address);
        EQUALS(rouse_listener_order(port.fd, (enum rouse_accept_order)(round % 3)), 0);
        crew_add_many(&servers, CREW_USER, SERVERS, serve, NULL);
        for (size_t i = 0; i < LENGTH(clients); i++)
            clients[i] = tcp_connect(&port.address);
        EQUALS(rouse_close(port.fd), 0);
        crew_join(&servers);
        CHECK(port.served <= LENGTH(clients));
        for (size_t i = 0; i < LENGTH(clients); i++)
            close(clients[i]);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_connection_waits_for_ever),
        cmocka_unit_test(closes_amid_connections),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
