# SPDX-License-Identifier: MIT
"""What of the threads' USR was on a processor, as queries: top/busy.py's account, over a life.

USR is recorded as the time outside of waits. A user thread has a worker then, a kernel or foreign
thread may be anywhere outside of rouse's calls; neither need be on a processor. Of a worker the
kernel's figures are carried over to its threads, in proportion to their USR; of another kernel
thread they are its own. Where they are not known, USR of a user thread stays as it is recorded, and
that of another thread is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ibis

USER = "user"  # the origin of a thread that runs on workers


def shares(t: Mapping[str, Any]) -> Any:
    """By writer: the shares of a worker's busy time, or the sums of another kernel thread."""
    w = t["workers"]
    busy = w.kernel_wall_ns - w.kernel_idle_ns
    whole = ibis.ifelse(w.is_worker & (busy > 0), busy, ibis.null("int64")).cast("float64")
    rows = w.select(
        "process",
        *("is_worker", "asleep", "cpu_ns", "run_queue_ns"),
        writer=w["index"],
        on_cpu=at_most(w.cpu_ns / whole, ibis.literal(1.0)),
        queue=w.run_queue_ns / whole,
        # The store goes on after the last that the kernel was asked.
        untold_ns=w.wall_ns - w.kernel_wall_ns,
    )
    return rows.mutate(queued=at_most(rows.queue, 1.0 - rows.on_cpu)).drop("queue")


def at_most(value: Any, most: Any) -> Any:
    """The least of both; null if the value is."""
    return ibis.ifelse(value > most, most, value)


def ns(value: Any) -> Any:
    return value.round().cast("int64")


def split(rows: Any, is_user: Any, usr: Any) -> Any:
    """rows, joined with shares, with usr as it was on a processor, queued and in a call.

    usr: a column of ns outside of waits. in_call: asleep in a system call that rouse does not see.
    """
    nothing = ibis.literal(0, "int64")
    is_told = rows.on_cpu.notnull() & rows.queued.notnull()
    own = at_most(rows.cpu_ns, usr)
    on_cpu = ibis.ifelse(is_user, ibis.ifelse(is_told, ns(usr * rows.on_cpu), usr), own)
    queued = ibis.ifelse(
        is_user,
        ibis.ifelse(is_told, ns(usr * rows.queued), nothing),
        at_most(rows.run_queue_ns, usr - own),
    )
    rows = rows.mutate(usr_cpu=on_cpu, usr_queued=queued.fill_null(0), usr_told=is_told)
    late = ibis.ifelse(is_user | (rows.untold_ns < 0), nothing, rows.untold_ns.fill_null(0))
    rest = usr - rows.usr_cpu - rows.usr_queued - late
    return rows.mutate(in_call=ibis.ifelse(rest > 0, rest, nothing))


def threads(t: Mapping[str, Any]) -> Any:
    """The threads, usr and lat as they were on a processor and not, and in_call beside them."""
    table = t["threads"]
    both = table.left_join(shares(t), ["process", "writer"])
    kept = {name: both[name] for name in table.columns}
    more = ("asleep", "on_cpu", "queued", "cpu_ns", "run_queue_ns", "untold_ns")
    rows = both.select(**kept, **{name: both[name] for name in more})
    is_user = rows.origin == USER
    rows = split(rows, is_user, rows.usr)
    unknown = ibis.ifelse(is_user, "USR", "-")
    now = ibis.ifelse(rows.asleep == 1, "SLP", ibis.ifelse(rows.asleep == 0, "USR", unknown))
    return rows.mutate(
        had_usr=rows.usr,
        usr=rows.usr_cpu,
        lat=rows.lat + rows.usr_queued,
        state=ibis.ifelse(rows.state == "USR", ibis.coalesce(now, unknown), rows.state),
        is_told=ibis.ifelse(is_user, rows.usr_told, rows.usr_cpu.notnull()),
    )


def ended(t: Mapping[str, Any]) -> Any:
    """The writers, with the same of the threads that have ended on each.

    A kernel thread that has ended is one that the kernel tells nothing of: in ended_unknown.
    """
    table = t["workers"]
    parts = shares(t).select("process", "on_cpu", "queued", "untold_ns", index="writer")
    both = table.left_join(parts, ["process", "index"])
    kept = {name: both[name] for name in table.columns}
    more = ("on_cpu", "queued", "untold_ns")
    rows = both.select(**kept, **{name: both[name] for name in more})
    rows = split(rows, ibis.literal(True), rows.ended_usr)
    nothing = ibis.literal(0, "int64")
    return rows.mutate(
        ended_usr=ibis.ifelse(rows.is_worker, rows.usr_cpu, ibis.null("int64")),
        ended_lat=rows.ended_lat + ibis.ifelse(rows.is_worker, rows.usr_queued, nothing),
        ended_in_call=ibis.ifelse(rows.is_worker, rows.in_call, nothing),
        ended_unknown=ibis.ifelse(rows.is_worker, nothing, rows.ended_usr),
        ended_untold=ibis.ifelse(rows.is_worker & ~rows.usr_told, rows.ended_usr, nothing),
    )
