# SPDX-License-Identifier: MIT
"""Threads that serve many connections, and none of them while they wait for a file or the time."""

from __future__ import annotations

from rouse.query import measures
from rouse.query.finding import LEAST_NS, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.tables.views import quoted, texts
from rouse.text import duration, share

BLOCKED_LOOP = "blocked-loop"
ACCEPTED_LEAST = 2  # connections
LEAST = 0.1  # of the thread's time
BUSY = 0.75  # of its time, from which on the thread limits the throughput
NEARLY = 1.05  # waits of one thread in sum, as a part of the time that its states add up to
# The kinds of waits that stop a thread, and the microstate that each is in.
STOPS = {
    "io": ("read", "write", "sync", "connect", "message"),
    "sleep": ("sleep",),
}


def stops(process: str) -> str:
    kinds = [kind for some in STOPS.values() for kind in some]
    return measures.labelled(
        f"SELECT process, kind, wait_site, SUM(wait_ns) AS wait_ns,"
        f' SUM({measures.total(measures.VERDICTS)}) AS "count" FROM wakes'
        f" WHERE process = {quoted(process)} AND kind IN ({texts(kinds)})"
        " GROUP BY process, kind, wait_site",
        ("wait_ns DESC", "kind", "wait_site"),
        label="wait_site",
    )


def find(database: Database, program: Program) -> list[Finding]:
    found = []
    for thread in program.threads:
        if thread.get("threads") != 1 or thread.get("is_user") or not thread.get("accepted"):
            continue
        clients = program.sum("accept", "poll", rows=[thread])
        stopped = program.sum(*STOPS, rows=[thread])
        if (
            thread["accepted"] < ACCEPTED_LEAST
            or clients == 0
            or stopped < max(LEAST * thread["wall_ns"], LEAST_NS)
        ):
            continue
        # Other threads of the process may wait too, and longer than this one does.
        own = [
            row
            for row in database.rows(stops(thread["process"]))
            for state, kinds in STOPS.items()
            if row["kind"] in kinds and row["wait_ns"] <= NEARLY * program.sum(state, rows=[thread])
        ]
        if own:
            found.append(finding(thread, own[0], stopped, program))
    return found


def finding(thread: Row, stop: Row, stopped: float, program: Program) -> Finding:
    """stop: the place where the thread waits longest. stopped: the ns of all such waits."""
    wall = thread["wall_ns"] or 1
    idle = program.sum("accept", "poll", rows=[thread])
    name = f"thread {thread['name']}" if thread.get("name") else "a thread"
    each = duration(stop["wait_ns"] / max(stop["count"], 1))
    text = (
        f"{name} serves {thread['accepted']:,} connections, and none of them for"
        f" {share(stopped / wall)} % of its time: it waits at {stop['label']}, {stop['count']:,}"
        f" times for {each}"
    )
    most = None
    if idle < (1 - BUSY) * wall:
        # The cost of the calls that stop it is not known.
        ran = program.sum("usr", rows=[thread]) * min(1 - program.in_kernel, 0.5)
        rest = wall - stopped - program.sum("usr", "lat", "accept", "poll", rows=[thread])
        most = wall / max(ran + max(rest, 0.0), 1.0)
        text += f". If another thread did that, at most {most:.2f}x the throughput [{BLOCKED_LOOP}]"
    else:
        text += (
            ". The throughput stays, since the thread is free at times, but what arrives meanwhile"
            f" is late by up to as much. Another thread can do that [{BLOCKED_LOOP}]"
        )
    return Finding(
        *(BLOCKED_LOOP, name, "clients", stop["label"], round(stopped), most, None, text)
    )
