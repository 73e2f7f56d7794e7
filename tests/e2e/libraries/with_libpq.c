/* SPDX-License-Identifier: MIT */
/*
 * with_libpq.c - libpq with a connection per thread and its asynchronous calls: rouse_poll does the waiting.
 *
 * usage: with_libpq CONNECTION THREADS
 * Every thread but the last asks for a lock that the last one holds until all others wait for it.
 */
#include "threads.h"

#include <libpq-fe.h>
#include <stdbool.h>
#include <string.h>

enum { WAIT_MS = 60000 };

static const char *target;
static unsigned threads;
static struct rouse_sem holds = ROUSE_SEM_INIT_NAMED(0, "holds");

static void wait_for(PGconn *own, short events)
{
    struct pollfd entry = { .fd = PQsocket(own), .events = events };

    CHECK(rouse_poll(&entry, 1, WAIT_MS) == 1, "no answer came");
}

static PGconn *connected(void)
{
    PGconn *own = PQconnectStart(target);
    PostgresPollingStatusType state = PGRES_POLLING_WRITING;

    CHECK(own && PQstatus(own) != CONNECTION_BAD, PQerrorMessage(own));
    while (state != PGRES_POLLING_OK) {
        wait_for(own, state == PGRES_POLLING_READING ? POLLIN : POLLOUT);
        state = PQconnectPoll(own);
        CHECK(state != PGRES_POLLING_FAILED, PQerrorMessage(own));
    }
    CHECK(PQsetnonblocking(own, 1) == 0, PQerrorMessage(own));
    return own;
}

/* Run a query, and return the number in its first row. */
static int ask(PGconn *own, const char *sql)
{
    int left, number = 0;
    PGresult *result;

    CHECK(PQsendQuery(own, sql) == 1, PQerrorMessage(own));
    while ((left = PQflush(own)) == 1) {
        wait_for(own, POLLIN | POLLOUT);
        CHECK(PQconsumeInput(own) == 1, PQerrorMessage(own));
    }
    CHECK(left == 0, PQerrorMessage(own));
    for (;;) {
        while (PQisBusy(own)) {
            wait_for(own, POLLIN);
            CHECK(PQconsumeInput(own) == 1, PQerrorMessage(own));
        }
        result = PQgetResult(own); /* does not block now */
        if (!result)
            return number;
        CHECK(PQresultStatus(result) == PGRES_TUPLES_OK, PQerrorMessage(own));
        number = atoi(PQgetvalue(result, 0, 0));
        PQclear(result);
    }
}

static void *work(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg;
    PGconn *own = connected();
    char sql[80];

    if (number == threads - 1) {
        ask(own, "SELECT 1 FROM pg_advisory_lock(1)");
        for (unsigned i = 0; i < threads - 1; i++)
            rouse_sem_post(&holds);
        while (
            ask(own, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") <
            (int)threads - 1)
            rouse_sleep(MS);
        ask(own, "SELECT 1 FROM pg_advisory_unlock(1)");
    } else {
        rouse_sem_wait(&holds);
        ask(own, "SELECT 1 FROM pg_advisory_lock(1)");
        snprintf(sql, sizeof(sql), "SELECT %u", number);
        CHECK(ask(own, sql) == (int)number, "the answer to another query");
    }
    PQfinish(own);
    return NULL;
}

int main(int argc, char **argv)
{
    CHECK(argc == 3, "usage: with_libpq CONNECTION THREADS");
    target = argv[1];
    threads = (unsigned)atoi(argv[2]);
    run_all(threads, work);
    puts("right");
    return 0;
}
