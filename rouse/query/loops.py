# SPDX-License-Identifier: MIT
"""Threads that serve many connections, and none of them while they wait for a file or the time."""

from __future__ import annotations

from collections import defaultdict

from rouse.query import frames, gain, measures
from rouse.query.finding import DESCRIPTORS, LEAST_NS, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.tables.views import quoted, texts
from rouse.text import duration, share

BLOCKED_LOOP = "blocked-loop"
ACCEPTED_LEAST = 2  # connections
LEAST = 0.1  # of the thread's time
BUSY = 0.75  # of its time, from which on the thread limits the throughput
REST_LEAST = 0.002  # of the time, which the thread's own work takes
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
            found.append(finding(thread, of_loops(own, database)[0], stopped, program))
    return found or unnamed(database, program)


def of_loops(rows: list[Row], database: Database) -> list[Row]:
    """Return the waits of functions that wait for several descriptors besides, or else all."""
    looks = [
        row
        for row in database.rows(measures.waits_and_wakes())
        if row["kind"] in DESCRIPTORS and row["process"] == rows[0]["process"]
    ]
    known = frames.functions(database, {row["wait_site"] for row in (*rows, *looks)})

    def outermost(row: Row) -> str:
        functions = known.get((row["process"], row["wait_site"]))
        return functions[-1].name if functions else ""

    loops = {outermost(row) for row in looks} - {""}
    own = [row for row in rows if outermost(row) in loops] or rows
    outer = frames.without_helpers(known)
    return [{**row, "label": frames.label_of(row, known, outer)} for row in own]


def unnamed(database: Database, program: Program) -> list[Finding]:
    """The same where the loop's thread has the name of others, so that its states are not known.

    Its waits are those of the function that runs from its beginning on.
    """
    rows = database.rows(measures.waits_and_wakes())
    kinds = {*DESCRIPTORS, *(kind for some in STOPS.values() for kind in some)}
    rows = [row for row in rows if row["kind"] in kinds]
    known = frames.functions(database, {row["wait_site"] for row in rows})
    outer = frames.without_helpers(known)
    rows = [{**row, "label": frames.label_of(row, known, outer)} for row in rows]
    waits: defaultdict[tuple[str, frames.Function], list[Row]] = defaultdict(list)
    for row in rows:
        if functions := known.get((row["process"], row["wait_site"])):
            waits[row["process"], functions[-1]].append(row)
    accepted = {
        thread.get("process", ""): (thread.get("accepted") or 0, thread.get("threads") or 0)
        for thread in sorted(program.threads, key=lambda thread: thread.get("accepted") or 0)
    }
    return [
        loop
        for (process, function), own in waits.items()
        if accepted.get(process, (0, 0))[0] >= ACCEPTED_LEAST
        and accepted[process][1] > 1
        and (loop := loop_of(function, accepted[process][0], own, program))
    ]


def loop_of(
    function: frames.Function, accepted: int, waits: list[Row], program: Program
) -> Finding | None:
    wall = program.wall_ns or 1
    looks = [row for row in waits if row["kind"] in DESCRIPTORS]
    stops = [row for row in waits if row["kind"] not in DESCRIPTORS]
    idle, stopped = (sum(row["wait_ns"] for row in some) for some in (looks, stops))
    if not looks or idle + stopped > NEARLY * wall or stopped < max(LEAST * wall, LEAST_NS):
        return None
    most = None
    if idle < (1 - BUSY) * wall:
        # The rest is its own work, and waits for processors. A killed process has no CPU time.
        rest = min(wall - stopped - idle, program.ran_ns or wall)
        most = gain.allowed(wall / max(rest / 2, REST_LEAST * wall))
        most = max(min(most, program.processors * wall / max(program.ran_ns / 2, 1.0)), 1.0)
    return said(f"the thread of {function.label}", accepted, stops[0], stopped, wall, most)


def finding(thread: Row, stop: Row, stopped: float, program: Program) -> Finding:
    """stop: the place where the thread waits longest. stopped: the ns of all such waits."""
    wall = thread["wall_ns"] or 1
    idle = program.sum("accept", "poll", rows=[thread])
    name = f"thread {thread['name']}" if thread.get("name") else "a thread"
    most = None
    if idle < (1 - BUSY) * wall:
        # The cost of the calls that stop it is not known.
        ran = program.sum("usr", rows=[thread]) * min(1 - program.in_kernel, 0.5)
        rest = wall - stopped - program.sum("usr", "lat", "accept", "poll", rows=[thread])
        most = wall / max(ran + max(rest, 0.0), 1.0)
    return said(name, thread["accepted"], stop, stopped, wall, most)


def said(
    name: str, accepted: int, stop: Row, stopped: float, wall: float, most: float | None
) -> Finding:
    """most: None if the thread is free at times."""
    each = duration(stop["wait_ns"] / max(stop["count"], 1))
    text = (
        f"{name} serves {accepted:,} connections, and none of them for {share(stopped / wall)} %"
        f" of its time: it waits at {stop['label']}, {stop['count']:,} times for {each}"
    )
    if most is not None:
        text += f". If another thread did that, at most {most:.2f}x the throughput [{BLOCKED_LOOP}]"
    else:
        text += (
            ". The throughput stays, since the thread is free at times, but what arrives meanwhile"
            f" is late by up to as much. Another thread can do that [{BLOCKED_LOOP}]"
        )
    return Finding(
        *(BLOCKED_LOOP, name, "clients", stop["label"], round(stopped), most, None, text)
    )
