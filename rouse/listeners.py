# SPDX-License-Identifier: MIT
"""Queries, as those of rouse/queries.py, of listeners: who got their connections, over processes.

A listener is the kernel's: processes that share one are told of together.
"""

from __future__ import annotations

from typing import Any

import ibis

from rouse.queries import Cut, Tables, ratio, sums, whole

COUNTS = (
    *("accepted", "woken", "in_vain", "lost", "samples", "backlog"),
    *("ordered", "turns", "promoted", "overdue", "put_off", "delays", "delay_ns"),
)


def jain(rows: Any, key: str) -> dict[str, Any]:
    """What Jain's index of the connections of each of them is made from."""
    accepted = rows.accepted.cast("float64")
    return {f"{key}_squares": (accepted * accepted).sum(), key: rows.count()}


def listeners(t: Tables, cut: Cut = whole) -> Any:
    """A row a listener. Its wake-ups a connection: 1 where none is woken in vain."""
    table = t["listeners"]
    threads = table.group_by("listener", "process", "writer").agg(
        name=table.name.max(), backlog_most=table.backlog_most.max(), **sums(table, COUNTS)
    )
    processes = threads.group_by("listener", "process").agg(
        name=threads.name.max(),
        backlog_most=threads.backlog_most.max(),
        **sums(threads, COUNTS),
        **jain(threads, "threads"),
    )
    rows = processes.group_by("listener").agg(
        name=processes.name.max(),
        backlog_most=processes.backlog_most.max(),
        least=processes.accepted.min(),
        most=processes.accepted.max(),
        **sums(processes, (*COUNTS, "threads", "threads_squares")),
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
    rows = rows.drop("threads_squares", "processes_squares", "samples", "backlog")
    return cut(rows, [ibis.desc("accepted"), "listener"])
