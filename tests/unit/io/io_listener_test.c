/* SPDX-License-Identifier: MIT */
/*
 * io_listener_test.c - which of the threads that wait in accept receives the next connection: the
 * orders, that no thread jumps the queue, promotion, and that no connection is lost on a thread
 * that does not take it.
 */
#include "io_test.h"

#include <sys/epoll.h>

#define MOST 16
static struct {
    int fd;
    struct sockaddr_in address;
    uint32_t taken, served; /* connections; served: those whose thread is known */
    uint32_t by[MOST];      /* connections of each thread */
    uint32_t order[100000]; /* the thread that took each connection */
    long results[MOST];     /* how each thread ended */
    uint32_t quota;         /* connections that each thread takes */
} port;

static struct crew crew;

static void port_open(enum rouse_accept_order order)
{
    memset(&port, 0, sizeof port);
    port.quota = UINT32_MAX;
    port.fd = tcp_listen(512, &port.address);
    EQUALS(rouse_listener_order(port.fd, order), 0);
}

/* Accept, record which thread it was, and hang up. */
static void serve(void *arg, unsigned index)
{
    (void)arg;
    for (uint32_t i = 0; i < port.quota; i++) {
        int fd = rouse_accept(port.fd, NULL, NULL);
        rsi_store_relaxed(&port.results[index], fd);
        if (fd < 0)
            return;
        EQUALS(rouse_close(fd), 0);
        rsi_fetch_add_relaxed(&port.by[index], 1u);
        uint32_t at = rsi_fetch_add_relaxed(&port.taken, 1u);
        if (at < LENGTH(port.order))
            rsi_store_relaxed(&port.order[at], index);
        rsi_fetch_add_acq_rel(&port.served, 1u); /* pairs with connect_once's load */
    }
}

static bool all_in_accept(void)
{
    for (unsigned i = 0; i < crew.count; i++)
        if (!is_in_accept(crew.members[i].thread))
            return false;
    return true;
}

/* One after the other, so that the index is the order in which they began to wait. */
static void servers_start(unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        struct rouse_thread *t = crew_add(&crew, CREW_USER, serve, NULL);
        UNTIL(is_in_accept(t));
    }
}

static void port_close(void)
{
    EQUALS(rouse_close(port.fd), 0);
    crew_join(&crew);
}

/*
 * Connect once while all threads wait. Returns which thread took the connection. On return all wait
 * again, that one last.
 */
static unsigned connect_once(void)
{
    uint32_t before = rsi_load_acquire(&port.served); /* pairs with serve's addition */
    close(tcp_connect(&port.address));
    UNTIL(rsi_load_acquire(&port.served) == before + 1 && all_in_accept());
    return rsi_load_relaxed(&port.order[before]);
}

static void fifo_serves_each_in_turn(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_FIFO);
    servers_start(8);
    for (unsigned i = 0; i < 24; i++)
        EQUALS(connect_once(), i % 8);
    port_close();
}

static void lifo_serves_the_one_that_came_last(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_LIFO);
    servers_start(8);
    uint64_t start_ns = rouse_now_ns();
    for (unsigned i = 0; i < 24; i++) {
        unsigned who = connect_once();
        /* threads that came later go first, as they should */
        CHECK(who == 7 || rouse_now_ns() - start_ns >= 100 * MS);
    }
    port_close();
}

static void scatter_serves_everyone(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_SCATTER);
    servers_start(8);
    unsigned in_turn = 0, rounds = 400;
    for (unsigned i = 0, last = 0; i < rounds; i++) {
        unsigned who = connect_once();
        in_turn += who == (last + 1) % 8;
        last = who;
    }
    for (unsigned i = 0; i < 8; i++)
        CHECK(rsi_load_relaxed(&port.by[i]) >= rounds / 8 / 4);
    CHECK(in_turn < rounds / 2); /* an eighth by chance */
    port_close();
}

/*
 * However fast connections come, each sleeper is served after it has been passed over for 100 ms.
 */
static void promotion_ends_starvation(void **state)
{
    (void)state;
    unsigned promoted = 0;
    port_open(ROUSE_ACCEPT_LIFO);
    servers_start(3);
    EQUALS(connect_once(), 2);
    uint64_t start_ns = rouse_now_ns();
    while (rouse_now_ns() - start_ns < 110 * MS)
        (void)connect_once();
    (void)connect_once();
    (void)connect_once();
    for (unsigned i = 0; i < 3; i++)
        CHECK(rsi_load_relaxed(&port.by[i]) >= 1);
    while (rsi_load_relaxed(&port.order[promoted]) == 2)
        promoted++;
    EQUALS(rsi_load_relaxed(&port.order[promoted]), 0); /* it has waited longest */
    port_close();
}

/*
 * Time without connections counts: the next connection goes to the thread that was passed over
 * before it.
 */
static void a_pause_counts_for_promotion(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_LIFO);
    servers_start(3);
    EQUALS(connect_once(), 2);
    EQUALS(rouse_sleep(110 * MS), 0);
    EQUALS(connect_once(), 0);
    EQUALS(connect_once(), 1);
    port_close();
}

/* Deliver an event whose thread does not run yet. */
static void event_begin(struct rsi_fd_batch *batch)
{
    struct rsi_fd *entry = entry_of(port.fd);
    *batch = (struct rsi_fd_batch){ NULL, NULL };
    CHECK(!rsi_ready_event(entry, entry->generation, EPOLLIN, batch));
    CHECK(batch->first);
}

/*
 * A connection is there and its waiter has been woken for it. A thread that calls accept now waits,
 * and receives the next connection, for which there is no event.
 */
static void newcomer_does_not_jump_the_queue(void **state)
{
    (void)state;
    struct rsi_fd_batch batch;
    port_open(ROUSE_ACCEPT_FIFO);
    port.quota = 1;
    servers_start(1);
    event_begin(&batch);
    servers_start(1); /* it waits although no other thread is listed */
    EQUALS(rsi_load_relaxed(&port.served), 0);
    int first = tcp_connect(&port.address), second = tcp_connect(&port.address);
    UNTIL(rsi_load_acquire(&port.served) == 1); /* the newcomer is listed, and these are events */
    rsi_fdtable_publish(&batch);
    crew_join(&crew);
    EQUALS(port.served, 2);
    close(first);
    close(second);
    port_close();
}

/* One event may announce several connections. */
static void each_connection_of_one_event_is_served(void **state)
{
    (void)state;
    for (enum rouse_accept_order order = 0; order <= ROUSE_ACCEPT_SCATTER; order++)
        for (int round = 0; round < 20; round++) {
            int clients[MOST];
            port_open(order);
            port.quota = 1;
            servers_start(MOST);
            for (int i = 0; i < MOST; i++)
                clients[i] = tcp_connect(&port.address);
            crew_join(&crew);
            EQUALS(port.served, MOST);
            for (int i = 0; i < MOST; i++)
                close(clients[i]);
            port_close();
        }
}

/*
 * A waiter with a spurious wake-up keeps its place: it is served before those that came after it.
 */
static void a_spurious_wake_up_keeps_its_place(void **state)
{
    (void)state;
    struct rsi_fd_batch batch;
    port_open(ROUSE_ACCEPT_FIFO);
    servers_start(3);
    event_begin(&batch);
    rsi_fdtable_publish(&batch);
    UNTIL(all_in_accept());
    for (unsigned i = 0; i < 6; i++)
        EQUALS(connect_once(), i % 3);
    port_close();
}

static void connection_of_a_cancelled_thread_goes_to_the_next(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_FIFO);
    servers_start(3);
    EQUALS(rouse_thread_cancel(crew.members[0].thread), 0);
    close(tcp_connect(&port.address));
    UNTIL(rsi_load_acquire(&port.served) == 1);
    EQUALS(rsi_load_relaxed(&port.order[0]), 1);
    UNTIL(rsi_load_relaxed(&port.results[0]) == -ECANCELED);
    port_close();
}

/* The event won: the connection is taken, and the cancel ends the next call. */
static void cancel_after_the_wake_up_loses_no_connection(void **state)
{
    (void)state;
    struct rsi_fd_batch batch;
    port_open(ROUSE_ACCEPT_FIFO);
    servers_start(2);
    event_begin(&batch);
    EQUALS(rouse_thread_cancel(crew.members[0].thread), 0);
    int client = tcp_connect(&port.address);
    UNTIL(rsi_load_acquire(&port.served) == 1); /* announced by an event to the second thread */
    rsi_fdtable_publish(&batch);
    UNTIL(rsi_load_relaxed(&port.results[0]) == -ECANCELED);
    close(client);
    close(tcp_connect(&port.address));
    UNTIL(rsi_load_acquire(&port.served) == 2);
    EQUALS(rsi_load_relaxed(&port.by[1]), 2);
    port_close();
}

static void a_woken_thread_of_a_closed_listener_is_notified(void **state)
{
    (void)state;
    struct rsi_fd_batch batch;
    port_open(ROUSE_ACCEPT_LIFO);
    servers_start(4);
    event_begin(&batch);
    EQUALS(rouse_close(port.fd), 0);
    rsi_fdtable_publish(&batch);
    crew_join(&crew);
    for (int i = 0; i < 4; i++)
        EQUALS(port.results[i], -EBADF);
}

static void a_shut_listener_notifies_every_waiter(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_SCATTER);
    servers_start(4);
    EQUALS(rouse_shutdown(port.fd, SHUT_RDWR), 0);
    crew_join(&crew);
    for (int i = 0; i < 4; i++)
        EQUALS(port.results[i], -EINVAL);
    port_close();
}

static void attempt(void *arg, unsigned index)
{
    (void)arg;
    (void)index;
    EQUALS(rouse_accept_until(port.fd, NULL, NULL, rouse_now_ns() + MS), -ETIMEDOUT);
    EQUALS(rouse_accept_until(port.fd, NULL, NULL, 0), -ETIMEDOUT);
    int client = tcp_connect(&port.address), fd = rouse_accept_until(port.fd, NULL, NULL, 0);
    CHECK(fd >= 0 || fd == -ETIMEDOUT); /* another may have been faster */
    if (fd >= 0)
        EQUALS(rouse_close(fd), 0);
    close(client);
}

static void deadlines_hold(void **state)
{
    (void)state;
    static struct crew others;
    port_open(ROUSE_ACCEPT_FIFO);
    (void)crew_add(&others, CREW_USER, attempt, NULL);
    crew_join(&others);
    servers_start(2); /* and in a queue */
    (void)crew_add(&others, CREW_USER, attempt, NULL);
    crew_join(&others);
    port_close();
}

/*
 * Kernel and foreign threads have no place in the queue. They are still served, and notified of the
 * close.
 */
static void other_kinds_accept_too(void **state)
{
    (void)state;
    port_open(ROUSE_ACCEPT_FIFO);
    for (int i = 0; i < 3; i++)
        (void)crew_add(&crew, (enum crew_kind)i, serve, NULL);
    for (unsigned i = 0; i < 200; i++) {
        close(tcp_connect(&port.address));
        UNTIL(rsi_load_acquire(&port.served) == i + 1);
    }
    port_close();
}

/*
 * As many connections as possible. The thread either lets others run before it accepts again or
 * does not.
 */
static void serve_and_yield(void *arg, unsigned index)
{
    int fd;
    while ((fd = rouse_accept(port.fd, NULL, NULL)) >= 0) {
        rsi_fetch_add_relaxed(&port.by[index], 1u);
        rsi_fetch_add_relaxed(&port.served, 1u);
        EQUALS(rouse_close(fd), 0);
        if (*(bool *)arg)
            rouse_thread_yield();
    }
}

static void *connect_many(void *arg)
{
    for (uint32_t i = 0; i < *(uint32_t *)arg; i++)
        close(tcp_connect(&port.address));
    return NULL;
}

static double jain_under_load(enum rouse_accept_order order, bool yields)
{
    uint32_t each = 2000;
    double sum = 0, squares = 0;
    pthread_t clients[2];
    port_open(order);
    crew_add_many(&crew, CREW_USER, 8, serve_and_yield, &yields);
    UNTIL(all_in_accept());
    for (int i = 0; i < 2; i++)
        CHECK(pthread_create(&clients[i], NULL, connect_many, &each) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(pthread_join(clients[i], NULL) == 0);
    UNTIL(rsi_load_relaxed(&port.served) == 2 * each);
    for (int i = 0; i < 8; i++) {
        double by = rsi_load_relaxed(&port.by[i]);
        sum += by;
        squares += by * by;
    }
    port_close();
    return sum * sum / (8 * squares);
}

static void fifo_is_fair_under_load(void **state)
{
    (void)state;
    for (int yields = 0; yields < 2; yields++) {
        double jain = 0;
        /*
         * While all threads are busy, the order decides nothing. On a loaded machine that may last
         * for a while.
         */
        for (int i = 0; i < 10 && jain < 0.99; i++)
            jain = jain_under_load(ROUSE_ACCEPT_FIFO, yields != 0);
        DOING("Jain's index %.4f, yields %d", jain, yields);
        CHECK(jain >= 0.99);
    }
}

static void wait_without_order(void *arg, unsigned index)
{
    (void)index;
    int fd = rouse_accept(*(int *)arg, NULL, NULL);
    CHECK(fd >= 0);
    EQUALS(rouse_close(fd), 0);
}

static void bad_input_is_answered(void **state)
{
    (void)state;
    int ends[2], fd = out_of_reach(tcp_socket());
    struct sockaddr_in address;
    EQUALS(rouse_listener_order(fd, ROUSE_ACCEPT_FIFO), -EINVAL); /* does not listen */
    EQUALS(rouse_listener_order(fd, (enum rouse_accept_order)3), -EINVAL);
    EQUALS(rouse_listener_order(fd, (enum rouse_accept_order) - 1), -EINVAL);
    EQUALS(rouse_close(fd), 0);
    EQUALS(rouse_listener_order(fd, ROUSE_ACCEPT_FIFO), -EBADF);
    EQUALS(rouse_listener_order(-1, ROUSE_ACCEPT_FIFO), -EBADF);
    wire_open(WIRE_PIPE, ends);
    EQUALS(rouse_listener_order(ends[0], ROUSE_ACCEPT_FIFO), -ENOTSOCK);
    wire_close(ends);
    fd = tcp_listen(4, &address);
    (void)crew_add(&crew, CREW_USER, wait_without_order, &fd);
    UNTIL(is_awaited(fd, RSI_FD_READ));
    EQUALS(rouse_listener_order(fd, ROUSE_ACCEPT_FIFO), -EBUSY);
    close(tcp_connect(&address));
    crew_join(&crew);
    EQUALS(rouse_listener_order(fd, ROUSE_ACCEPT_FIFO), 0);
    EQUALS(rouse_listener_order(fd, ROUSE_ACCEPT_LIFO), 0);
    EQUALS(rouse_close(fd), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fifo_serves_each_in_turn),
        cmocka_unit_test(lifo_serves_the_one_that_came_last),
        cmocka_unit_test(scatter_serves_everyone),
        cmocka_unit_test(promotion_ends_starvation),
        cmocka_unit_test(a_pause_counts_for_promotion),
        cmocka_unit_test(newcomer_does_not_jump_the_queue),
        cmocka_unit_test(each_connection_of_one_event_is_served),
        cmocka_unit_test(a_spurious_wake_up_keeps_its_place),
        cmocka_unit_test(connection_of_a_cancelled_thread_goes_to_the_next),
        cmocka_unit_test(cancel_after_the_wake_up_loses_no_connection),
        cmocka_unit_test(a_woken_thread_of_a_closed_listener_is_notified),
        cmocka_unit_test(a_shut_listener_notifies_every_waiter),
        cmocka_unit_test(deadlines_hold),
        cmocka_unit_test(other_kinds_accept_too),
        cmocka_unit_test(fifo_is_fair_under_load),
        cmocka_unit_test(bad_input_is_answered),
    };
    return sync_test_main(argc, argv, tests, LENGTH(tests), NULL, 0);
}
