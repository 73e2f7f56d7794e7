# SPDX-License-Identifier: MIT
"""A user's own query: the views that it may use besides the tables, and how it is kept in bounds.

The query may only read. Views with names of functions and places are made for it, so that it needs
no joins of sites.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rouse.errors import RouseError
from rouse.query import locks, measures
from rouse.query.ran import Running
from rouse.tables.engine import Database, Sqlite, first_line, flattened
from rouse.tables.schemas import COLUMNS

VALUE_BYTES_MOST = 64 << 20  # of one value: longer than any in a recording
STEPS = 20_000  # of SQLite's machine, between two looks whether a signal came
READS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION)
RECURSIVE = 33  # SQLITE_RECURSIVE, which Python does not name
STACK_SEPARATOR = " < "
# The name and verdict of a wait, as its thread's next events tell: perhaps a wake-up, then a run,
# perhaps a better verdict.
TRACED = """
SELECT s.process, s.thread_id, s.kind, s.object, s.site AS wait_site, s.at_ns AS begin_ns,
    CASE WHEN s.t1 = 'run' THEN s.a1 WHEN s.t2 = 'run' THEN s.a2 END AS end_ns,
    CASE WHEN s.t1 IN ('wake', 'io') THEN s.a1 WHEN s.t1 = 'run' AND s.v1 > 0 THEN s.v1 END
        AS woken_ns,
    CASE WHEN s.t1 IN ('wake', 'io') THEN s.s1 WHEN s.t1 = 'run' THEN s.s1 END AS wake_site,
    CASE WHEN s.t1 = 'wake' THEN s.o1 END AS waker_id,
    CASE WHEN s.t1 = 'run' AND s.t2 = 'verdict' THEN s.d2 WHEN s.t2 = 'run' AND s.t3 = 'verdict'
        THEN s.d3 WHEN s.t1 = 'run' THEN s.d1 WHEN s.t2 = 'run' THEN s.d2 END AS verdict
FROM (
    SELECT process, thread_id, type, kind, object, site, at_ns,
        LEAD(type, 1) OVER w AS t1, LEAD(type, 2) OVER w AS t2, LEAD(type, 3) OVER w AS t3,
        LEAD(at_ns, 1) OVER w AS a1, LEAD(at_ns, 2) OVER w AS a2, LEAD("value", 1) OVER w AS v1,
        LEAD(site, 1) OVER w AS s1, LEAD(other_id, 1) OVER w AS o1,
        LEAD(verdict, 1) OVER w AS d1, LEAD(verdict, 2) OVER w AS d2, LEAD(verdict, 3) OVER w AS d3
    FROM events
    WHERE thread_id <> 0 AND type IN ('wait', 'yield', 'wake', 'io', 'run', 'verdict', 'end')
    WINDOW w AS (PARTITION BY process, thread_id ORDER BY at_ns, CASE type WHEN 'wait' THEN 1
        WHEN 'yield' THEN 1 WHEN 'io' THEN 2 WHEN 'wake' THEN 2 WHEN 'run' THEN 3 ELSE 4 END)
) s WHERE s.type = 'wait'
"""
TRACE_WAITS = f"""
SELECT t.process, t.thread_id, COALESCE(NULLIF(n.name, ''), e.name, '') AS thread, t.kind,
    t.object, COALESCE(o.label, '') AS object_name, t.begin_ns, t.end_ns,
    COALESCE(t.woken_ns, t.end_ns) - t.begin_ns AS wait_ns,
    t.end_ns - COALESCE(t.woken_ns, t.end_ns) AS to_run_ns, t.verdict,
    t.wait_site, COALESCE(w.label, t.wait_site) AS wait_label, COALESCE(c.stack, '') AS stack,
    t.waker_id, COALESCE(k.label, t.wake_site) AS wake_label
FROM ({TRACED}) t
LEFT JOIN labels w ON w.process = t.process AND w.site = t.wait_site
LEFT JOIN labels k ON k.process = t.process AND k.site = t.wake_site
LEFT JOIN stacks c ON c.process = t.process AND c.site = t.wait_site
LEFT JOIN threads n ON n.process = t.process AND n.thread_id = t.thread_id
LEFT JOIN (
    SELECT process, thread_id, MAX(name) AS name FROM events WHERE type = 'end' AND name <> ''
    GROUP BY process, thread_id
) e ON e.process = t.process AND e.thread_id = t.thread_id
LEFT JOIN (
    SELECT process, object, MAX(object_name) AS label FROM wakes
    WHERE object <> 0 AND object_name <> '' GROUP BY process, object
) o ON o.process = t.process AND o.object = t.object
"""
# By name, what each is.
VIEWS = {
    "wait_sites": "where threads waited, for what, and the other side: who held it, or woke them",
    "lock_table": "locks by the place that acquired them, with holds and waits",
    "thread_groups": "where the time of threads went, by process and name",
    "trace_waits": "each wait by itself, of a trace (rouse run --trace)",
    "run_samples": "where threads ran, by samples of rouse run",
    "stacks": "the calls of each site, the innermost first",
}
STACKS = (("process", "TEXT"), ("site", "TEXT"), ("stack", "TEXT"))
RUNS = (
    *(("process", "TEXT"), ("thread", "TEXT"), ("tid", "BIGINT"), ("samples", "BIGINT")),
    *(("cpu_ns", "BIGINT"), ("function", "TEXT"), ("inner", "TEXT"), ("stack", "TEXT")),
)
Columns = Sequence[tuple[str, str]]


def quantize(number: object) -> int | None:
    """Return the greatest power of two that is no greater, as DTrace's quantize() does. 0: none.

    None: it is no number.
    """
    if not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return 1 << (int(number).bit_length() - 1) if number >= 1 else 0


def logarithm(number: object) -> float | None:
    return math.log2(number) if isinstance(number, int | float) and number > 0 else None


class Asker:
    """Runs queries over the tables of a recording, and the views of this module."""

    def __init__(self, database: Database, running: Running | None) -> None:
        if not isinstance(database, Sqlite):
            raise RouseError(
                "a folder of Parquet files is read by DuckDB itself", "or name the recordings"
            )
        self.database = database
        self.connection = database.connection
        self.running = running

    def prepare(self, sql: str) -> None:
        """Make the views that the query names. Those of events and samples take time."""
        self.connection.create_function("quantize", 1, quantize, deterministic=True)
        self.connection.create_function("log2", 1, logarithm, deterministic=True)
        self.database.run("SELECT 1")  # the tables are complete then
        words = set(re.findall(r"\w+", sql.lower())) & set(VIEWS)
        if "trace_waits" in words:
            words.add("stacks")
        for name in sorted(words, key=list(VIEWS).index, reverse=True):
            self.make(name)

    def make(self, name: str) -> None:
        if name == "stacks":
            self.fill(name, STACKS, self.stacks())
        elif name == "run_samples":
            self.fill(name, RUNS, self.runs())
        else:
            made = {
                "wait_sites": measures.wait_sites(),
                "lock_table": locks.table(),
                "thread_groups": measures.thread_groups(),
                "trace_waits": TRACE_WAITS,
            }[name]
            self.connection.execute(f"CREATE TEMP TABLE {name} AS {flattened(made)}")

    def fill(self, name: str, columns: Columns, rows: Iterable[Sequence[Any]]) -> None:
        made = ", ".join(f'"{column}" {sort}' for column, sort in columns)
        marks = ", ".join("?" * len(columns))
        self.connection.execute(f"CREATE TEMP TABLE {name} ({made})")
        self.connection.executemany(f"INSERT INTO {name} VALUES ({marks})", rows)
        if name == "stacks":
            self.connection.execute("CREATE INDEX temp.stacks_key ON stacks (process, site)")

    def stacks(self) -> Iterator[tuple[str, str, str]]:
        calls: dict[tuple[str, str], list[str]] = {}
        for row in self.database.rows(measures.site_frames()):
            calls.setdefault((row["process"], row["site"]), []).append(row["label"])
        for (process, site), labels in calls.items():
            yield process, site, STACK_SEPARATOR.join(labels)

    def runs(self) -> Iterator[tuple[Any, ...]]:
        for one in self.running.stacks if self.running else ():
            stack = STACK_SEPARATOR.join(frame.label for frame in one.frames)
            head = (one.process, one.thread, one.tid, one.samples, round(one.ns))
            yield (*head, one.function, one.inner, stack)

    def ask(self, sql: str) -> tuple[list[str], Iterator[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows one by one. Raise RouseError."""
        try:
            self.prepare(sql)
            self.connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES_MOST)
            self.connection.set_authorizer(may)
            self.connection.set_progress_handler(lambda: 0, STEPS)  # a signal is handled there
            cursor = self.connection.execute(sql)
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise refused(error) from error
        if cursor.description is None:
            raise RouseError("the query selects nothing", "begin it with SELECT or WITH")
        return [column[0] for column in cursor.description], read(cursor)

    def columns(self) -> dict[str, list[str]]:
        """Return the columns of all tables and views, by name."""
        self.prepare(" ".join(VIEWS))
        found = {name: list(columns) for name, columns in COLUMNS.items()}
        for name in VIEWS:
            cursor = self.connection.execute(f"SELECT * FROM {name} LIMIT 0")
            found[name] = [column[0] for column in cursor.description]
        return found


def may(action: int, *_about: str | None) -> int:
    is_read = action in (*READS, RECURSIVE)
    return sqlite3.SQLITE_OK if is_read else sqlite3.SQLITE_DENY


def read(cursor: sqlite3.Cursor) -> Iterator[tuple[Any, ...]]:
    try:
        yield from cursor
    except sqlite3.Error as error:
        raise refused(error) from error


def refused(error: Exception) -> BaseException:
    """Return what to raise: the reason of a refused query, or that Ctrl-C ended it."""
    text = first_line(error)
    if text == "interrupted":
        return KeyboardInterrupt()
    if text in ("not authorized", "authorization denied"):
        return RouseError("the query changes something", "a recording is only read: use SELECT")
    return RouseError(f"the query: {text}", "rouse query --tables lists tables and columns")
