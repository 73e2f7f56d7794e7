# SPDX-License-Identifier: MIT
"""Queries for listeners: which threads accepted their connections, over processes; see measures.py.

A listener is the kernel's: processes that share one are told of together.
"""

from __future__ import annotations

from typing import Any

import ibis

from rouse.query.measures import Cut, Tables, ratio, sums, whole

COUNTS = (
    *("accepted", "woken", "in_vain", "lost", "samples", "backlog"),
    *("ordered", "turns", "promoted", "overdue", "put_off", "delays", "delay_ns"),
)


def jain(rows: Any, key: str) -> dict[str, Any]:
    """What Jain's index of the connections of each of them is made from."""
    accepted = rows.accepted.cast("float64")
    return {f"{key}_squares": (accepted * accepted).sum(), key: rows.count()}


def ends(rows: Any) -> dict[str, Any]:
    """When the first and the last connection was taken."""
    return {"first_ns": rows.first_ns.nullif(0).min(), "last_ns": rows.last_ns.nullif(0).max()}


def listeners(t: Tables, cut: Cut = whole) -> Any:
    """A row a listener. Its wake-ups a connection: 1 where none is woken in vain.

    queue_delay_ns: by Little's law, how long a connection was in the queue: those that were left
    there when one was taken, by how many were taken in the time from the first to the last.
    """
    table = t["listeners"]
    threads = table.group_by("listener", "process", "writer").agg(
        name=table.name.max(),
        backlog_most=table.backlog_most.max(),
        **sums(table, COUNTS),
        **ends(table),
    )
    processes = threads.group_by("listener", "process").agg(
        name=threads.name.max(),
        backlog_most=threads.backlog_most.max(),
        **sums(threads, COUNTS),
        **ends(threads),
        **jain(threads, "threads"),
    )
    rows = processes.group_by("listener").agg(
        name=processes.name.max(),
        backlog_most=processes.backlog_most.max(),
        least=processes.accepted.min(),
        most=processes.accepted.max(),
        **sums(processes, (*COUNTS, "threads", "threads_squares")),
        **ends(processes),
        **jain(processes, "processes"),
    )
    square = rows.accepted.cast("float64") * rows.accepted.cast("float64")
    rows = rows.mutate(
        jain_threads=ratio(square, rows.threads * rows.threads_squares),
        jain_processes=ratio(square, rows.processes * rows.processes_squares),
        woken_each=ratio(rows.woken + rows.in_vain, rows.accepted),
        backlog_mean=ratio(rows.backlog, rows.samples),
        backlog_most=ibis.ifelse(rows.samples > 0, rows.backlog_most, ibis.null("int64")),
    )
    between_ns = ratio(rows.last_ns - rows.first_ns, rows.accepted - 1)
    rows = rows.mutate(queue_delay_ns=(rows.backlog_mean * between_ns).round().cast("int64"))
    rows = rows.drop("threads_squares", "processes_squares", "samples", "backlog")
    rows = rows.drop("first_ns", "last_ns")
    return cut(rows, [ibis.desc("accepted"), "listener"])
