/* SPDX-License-Identifier: MIT */
/*
 * with_sqlite.c - SQLite with a connection per thread, without SQLite's own locks, and waits between its calls.
 *
 * usage: with_sqlite FILE
 */
#include "threads.h"

#include <sqlite3.h>

enum { THREADS = 32, ROWS = 20 };

static const char *path;

static sqlite3 *opened(void)
{
    sqlite3 *own = NULL;

    CHECK(sqlite3_open_v2(path, &own,
                          SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX,
                          NULL) == SQLITE_OK,
          "open");
    return own;
}

/* Run a statement. If another connection has the lock, the thread sleeps here and not inside SQLite. */
static void run_one(sqlite3 *own, const char *sql)
{
    int result;

    while ((result = sqlite3_exec(own, sql, NULL, NULL, NULL)) == SQLITE_BUSY)
        rouse_sleep(MS);
    CHECK(result == SQLITE_OK, sqlite3_errmsg(own));
}

static void *work(void *arg)
{
    sqlite3 *own = opened();
    char sql[80];

    for (unsigned i = 0; i < ROWS; i++) {
        run_one(own, "BEGIN IMMEDIATE");
        snprintf(sql, sizeof(sql), "INSERT INTO rows VALUES (%u, %u)", (unsigned)(uintptr_t)arg, i);
        run_one(own, sql);
        rouse_thread_yield(); /* others find the file locked */
        run_one(own, "COMMIT");
    }
    CHECK(sqlite3_close(own) == SQLITE_OK, "close");
    return NULL;
}

static int put_number(void *into, int columns, char **values, char **names)
{
    (void)columns;
    (void)names;
    *(int *)into = atoi(values[0]);
    return 0;
}

int main(int argc, char **argv)
{
    const char *counted = "SELECT count(DISTINCT thread * 1000 + number) FROM rows";
    sqlite3 *own;
    int count = 0;

    CHECK(argc == 2, "usage: with_sqlite FILE");
    path = argv[1];
    own = opened();
    CHECK(sqlite3_exec(own, "PRAGMA journal_mode = WAL; CREATE TABLE rows (thread, number)", NULL,
                       NULL, NULL) == SQLITE_OK,
          sqlite3_errmsg(own));
    run_all(THREADS, work);
    CHECK(sqlite3_exec(own, counted, put_number, &count, NULL) == SQLITE_OK, sqlite3_errmsg(own));
    CHECK(count == THREADS * ROWS, "rows are missing");
    CHECK(sqlite3_close(own) == SQLITE_OK, "close");
    puts("right");
    return 0;
}
