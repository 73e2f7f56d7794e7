# SPDX-License-Identifier: MIT
"""What was recorded, and what could not be seen: the head of every report."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import ibis

from rouse import queries
from rouse.engine import Database
from rouse.render.text import duration, share

# What recording costs for a park and its unpark, as measured: DESIGN.md, "Records and dumps".
COST_NS = 26
MISSING_SHARE = 0.01  # of a thread's wall time; beyond that its states do not account for it
MISSING_LEAST_NS = 1_000_000
SHOWN_PROCESSES = 4
LOST = {
    "lost_chunks": "blocks of its file",
    "lost_threads": "threads",
    "lost_wakes": "sorts of wake-ups",
    "lost_locks": "sorts of lock waits",
    "lost_names": "names of locks",
    "lost_stacks": "call stacks",
    "lost_modules": "files of code",
    "lost_holds": "holds of locks",
    "lost_events": "events",
}
Row = dict[str, Any]


def moment(unix_ns: int) -> str:
    try:
        when = datetime.datetime.fromtimestamp(unix_ns // 1_000_000_000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns after 1970"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def distortion(database: Database) -> str:
    """What recording has cost, against what it has recorded; empty if there is nothing."""
    totals = database.rows(queries.totals(database.tables))
    waits = sum(row["wakes"] for row in totals)
    workers = [row for row in database.rows(queries.workers(database.tables)) if row["is_worker"]]
    busy_ns = sum(max(row["wall_ns"] - row["idle_ns"], 0) for row in workers)
    if not waits or not busy_ns:
        return ""
    cost_ns = waits * COST_NS
    return (
        f"about {duration(cost_ns)} of CPU time for {waits:,} waits, as measured {COST_NS} ns each:"
        f" {share(cost_ns / busy_ns)} % of the time that the workers were busy"
    )


def facts(database: Database, source: str) -> list[tuple[str, str]]:
    rows = database.rows(queries.processes(database.tables))
    found = [("source", source)]
    for row in rows[:SHOWN_PROCESSES]:
        state = "has ended" if row["ended"] else "runs"
        found += [
            ("process", f"{row['pid']} on {row['host']}, {row['command'] or row['program']}"),
            (
                "recorded",
                f"for {duration(row['duration_ns'])} from {moment(row['started_unix_ns'])} on;"
                f" it {state}; recording: {row['mode']}",
            ),
        ]
    if len(rows) > SHOWN_PROCESSES:
        found.append(("processes", f"{len(rows)} in all"))
    cost = distortion(database)
    if cost:
        found.append(("cost of recording", cost))
    return found


def notes(database: Database, problems: Sequence[str], show_idle: bool) -> list[str]:
    """What a reader must know so as not to read too much into the figures, or too little."""
    processes = database.rows(queries.processes(database.tables))
    totals = database.rows(queries.totals(database.tables))
    found = list(problems)
    found += empty_notes(database, processes, totals)
    found += lost_notes(processes)
    found += lock_notes(database)
    found += state_notes(database)
    found += site_notes(database)
    unrecorded = sum(row["unrecorded"] for row in totals)
    if unrecorded:
        found.append(f"{unrecorded:,} waits could not be recorded whole; they are counted under ?")
    if show_idle:
        found.append("idle waits (of listeners, pools, idle connections) are shown with the others")
    return found


def empty_notes(database: Database, processes: Sequence[Row], totals: Sequence[Row]) -> list[str]:
    found = []
    if not processes:
        return ["nothing was recorded: there is no process in it"]
    off = [row for row in processes if row["mode"] == "off"]
    if off:
        which = "recording is" if len(processes) == 1 else f"in {len(off)} processes recording is"
        found.append(f"{which} off, since ROUSE_OBS=off or rouse_obs_set_mode() said so")
    if any(row["wakes"] or row["lock_waits"] for row in totals):
        return found
    threads = database.tables["threads"]
    row = database.rows(threads.aggregate(threads=threads.count(), waits=threads.waits.sum()))[0]
    if not row["threads"]:
        found.append("no wait was recorded: the process has no thread of rouse's")
    else:
        found.append(
            f"no wait was recorded: none of its {row['threads']:,} threads has ended one,"
            " after recording began"
        )
    return found


def lost_notes(processes: Sequence[Row]) -> list[str]:
    lost = {name: sum(row[name] or 0 for row in processes) for name in LOST}
    return [
        f"{count:,} {LOST[name]} did not fit into the recording and are in no figure"
        for name, count in lost.items()
        if count
    ]


def lock_notes(database: Database) -> list[str]:
    rows = database.rows(queries.complete(database.tables))
    if not rows or any(row["free"] for row in rows):
        return []
    return [
        "only waits for locks were recorded, not every time one was got, nor how long it was held:"
        " max, total, count, avg and wait_avg are not known (-)"
    ]


def state_notes(database: Database) -> list[str]:
    table = queries.microstates(database.tables)
    limit = (table.wall_ns.cast("float64") * MISSING_SHARE).round().cast("int64")
    is_off = (table.missing_ns.abs() > limit) & (table.missing_ns.abs() > MISSING_LEAST_NS)
    table = table.mutate(off=is_off.cast("int64"), size=table.missing_ns.abs())
    row = database.rows(
        table.aggregate(off=table.off.sum(), rows=table.count(), most=table["size"].max())
    )[0]
    if not row["off"]:
        return []
    return [
        f"of {row['off']:,} of {row['rows']:,} threads the states do not add up to the time they"
        f" lived, by up to {duration(row['most'])}"
    ]


def site_notes(database: Database) -> list[str]:
    sites = database.tables["sites"].filter(
        lambda s: (s.frame == 0) & (s.site != queries.NOT_KNOWN)
    )
    named = ibis.ifelse(ibis.coalesce(sites.function, "") != "", 1, 0)
    row = database.rows(sites.aggregate(rows=sites.count(), named=named.sum()))[0]
    unnamed = row["rows"] - (row["named"] or 0)
    if not unnamed:
        return []
    return [
        f"{unnamed:,} of {row['rows']:,} sites have no symbol; they are told as module+0x..."
        " (a program with symbols, or built with -g, names them)"
    ]
