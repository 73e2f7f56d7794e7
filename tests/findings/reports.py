#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Ten threads that query a database through a queue of free connections. Fault: it has two.

Usage: reports.py [fixed] [SECONDS]. Repair: it has ten.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

THREADS, FEW = 10, 2
ANSWER_S = 0.003  # of the database


class Connection:
    def query(self) -> int:
        time.sleep(ANSWER_S)
        return 1


class Database:
    def __init__(self, size: int) -> None:
        self.free: queue.LifoQueue[Connection] = queue.LifoQueue()
        for _ in range(size):
            self.free.put(Connection())

    @contextmanager
    def connection(self) -> Iterator[Connection]:
        connection = self.free.get()
        try:
            yield connection
        finally:
            self.free.put(connection)


def make_report(database: Database) -> int:
    with database.connection() as connection:
        return connection.query()


def work(database: Database, until: float, ops: list[int]) -> None:
    count = 0
    while time.monotonic() < until:
        count += make_report(database)
    ops.append(count)


def main() -> None:
    words = sys.argv[1:]
    seconds = next((float(word) for word in words if word != "fixed"), 1.0)
    database, began = Database(THREADS if "fixed" in words else FEW), time.monotonic()
    ops: list[int] = []
    threads = [
        threading.Thread(target=work, args=(database, began + seconds, ops)) for _ in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"ops {sum(ops)} seconds {time.monotonic() - began:.6f}")


if __name__ == "__main__":
    main()
