# SPDX-License-Identifier: MIT
"""Queries for what threads and workers did while events were kept; see measures.py."""

from __future__ import annotations

from typing import Any

import ibis

from rouse.query.measures import Tables


def thread_events(t: Tables) -> Any:
    """What each thread did while events were kept, the busiest first."""
    e = t["events"]
    e = e.filter(e.thread_id != 0)
    own = e.group_by(["process", "thread_id"]).aggregate(
        runs=(e.type == "run").sum(),
        waits=(e.type == "wait").sum(),
        yields=(e.type == "yield").sum(),
        woken=e.type.isin(["wake", "io"]).sum(),
        contests=(e.type == "got").sum(),
        spun_ns=(e.type == "got").ifelse(e.value, 0).sum(),
        ended_name=e.name.max(),
    )
    wakers = e.filter((e.type == "wake") & (e.other_id != 0))
    wakers = wakers.group_by(["process", "other_id"]).aggregate(wakes=wakers.count())
    wakers = wakers.select(process_w="process", waker="other_id", wakes="wakes")
    names = t["threads"].select(process_n="process", known="thread_id", name="name")
    both = own.left_join(
        wakers, [own.process == wakers.process_w, own.thread_id == wakers.waker]
    ).left_join(names, [own.process == names.process_n, own.thread_id == names.known])
    return both.select(
        *("process", "thread_id", "runs", "waits", "yields", "woken", "contests", "spun_ns"),
        wakes=both.wakes.fill_null(0),
        name=both.name.nullif("").fill_null(both.ended_name),
    ).order_by([ibis.desc("runs"), "process", "thread_id"])


def thread_counters(t: Tables) -> Any:
    """The same of threads that are there, as far as it is counted."""
    threads = t["threads"]
    unknown = ibis.null("int64")
    return threads.select(
        *("process", "thread_id", "name", "waits", "yields"),
        runs=threads.waits + threads.yields + 1,
        woken=threads.waits,
        wakes=unknown,
        contests=unknown,
        spun_ns=unknown,
    ).order_by([ibis.desc("runs"), "process", "thread_id"])


def worker_events(t: Tables) -> Any:
    e = t["events"]
    return e.group_by(["process", "worker"]).aggregate(
        wakes=(e.type == "wake").sum(), polled=(e.type == "io").sum()
    )
