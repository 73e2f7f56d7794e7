# SPDX-License-Identifier: MIT
"""Every figure of a report as a query over the tables of rouse/tables.py, written once with ibis.

A function takes the tables by name and returns an expression that no engine has run yet. Times are
nanoseconds. A null means: what was recorded cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

import ibis

from rouse.schemas import MICROSTATES

Tables = Mapping[str, Any]

LCK = ("mutex", "rwlock", "cond", "sem", "join")
SLP = ("io", "poll", "accept", "sleep")
VERDICTS = ("useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded")
LOCK_KINDS = ("mutex", "read lock", "write lock")
NOT_KNOWN = "0x0"  # the site of what is not known, or is the runtime itself
UNKNOWN, RUNTIME = "-", "runtime"  # what it is called


# Puts rows into an order and takes what is wanted of them, before they are named. Order and limit
# belong together: what is done with rows in between need not keep their order.
Cut = Callable[[Any, list[Any]], Any]


def whole(rows: Any, order: list[Any]) -> Any:
    return rows.order_by(order)


def total(table: Any, names: tuple[str, ...]) -> Any:
    return reduce(add, (table[name] for name in names))


def sums(table: Any, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: table[name].sum() for name in names}


def ratio(part: Any, whole: Any) -> Any:
    """part / whole; null where there is no whole."""
    return ibis.ifelse(whole > 0, part / whole, ibis.null("float64"))


def null_if_empty(text: Any) -> Any:
    return text.nullif("")


def labels(t: Tables) -> Any:
    """The innermost frame of each site, by name."""
    inner = t["sites"].filter(lambda s: s.frame == 0)
    return inner.group_by("process", "site").agg(label=inner.label.max())


def labelled(t: Tables, table: Any, nobody: str = UNKNOWN, **columns: str) -> Any:
    """table with a column of labels for each column of site ids; nobody: what site 0 is called."""
    for name, site in columns.items():
        names = labels(t)
        names = names.select(**{"process": names.process, site: names.site, name: names.label})
        known = table.left_join(names, ["process", site])
        kept = {column: known[column] for column in table.columns}
        label = ibis.coalesce(known[name], known[site])
        table = known.select(**kept, **{name: ibis.ifelse(known[site] == NOT_KNOWN, nobody, label)})
    return table


def idle_sites(t: Tables) -> Any:
    """Where threads wait that nothing is asked of: idle pools and listeners."""
    threads = t["threads"].filter(lambda x: x.is_idle)
    return threads.select("process", "kind", "wait_site").distinct()


def with_idle(t: Tables, table: Any) -> Any:
    """table (process, kind, wait_site, ...) and whether its waits are those of idle threads."""
    idle = idle_sites(t).mutate(here=True)
    joined = table.left_join(idle, ["process", "kind", "wait_site"])
    kept = {column: joined[column] for column in table.columns}
    is_idle = joined.here.fill_null(False) | (joined.kind == "accept")
    return joined.select(**kept, is_idle=is_idle & ~joined.kind.isin(LOCK_KINDS))


def complete(t: Tables) -> Any:
    """By process, how many rows have acquisitions of a free lock; 0: these are not recorded."""
    locks = t["locks"]
    free = (locks.acquired + locks.given_up > locks.contested).cast("int64")
    return locks.group_by("process").agg(free=free.sum())


def with_complete(t: Tables, table: Any) -> Any:
    """table and whether its process recorded every acquisition, not the contested ones only."""
    joined = table.left_join(complete(t), ["process"])
    kept = {column: joined[column] for column in table.columns}
    return joined.select(**kept, is_complete=joined.free.fill_null(0) > 0)


LOCK_SUMS = ("hold_ns", "wait_ns", "holds", "acquired", "contested", "given_up", "spin_ns", "spun")
LOCK_MOSTS = ("hold_most_ns", "wait_most_ns")


def lock_table(t: Tables, cut: Cut = whole) -> Any:
    """FreeBSD's columns by lock and acquisition site.

    A site at which the lock was got and never waited for has a row too: others waited for it there.
    """
    locks = t["locks"]
    nothing = ibis.literal(0, "int64")
    keys = ("process", "lock", "lock_name", "kind", "site")
    got = locks.select(*keys, *LOCK_SUMS, *LOCK_MOSTS, cnt_hold=nothing, own_rows=nothing + 1)
    held = locks.filter((locks.holder_site != NOT_KNOWN) & (locks.contested > 0))
    held = held.mutate(
        site=held.holder_site,
        # The kind is the waiter's; of a reader-writer lock it does not tell how the holder had it.
        kind=ibis.ifelse(held.kind == "mutex", "mutex", "rwlock"),
        cnt_hold=held.contested,
        own_rows=nothing,
    )
    held = held.mutate(**dict.fromkeys((*LOCK_SUMS, *LOCK_MOSTS), nothing))
    rows = got.union(held.select(*got.columns))
    own_kind = ibis.ifelse(rows.own_rows > 0, rows.kind, ibis.null("string"))
    rows = rows.group_by("process", "lock", "site").agg(
        kind=ibis.coalesce(own_kind.max(), rows.kind.max()),
        lock_name=null_if_empty(rows.lock_name).max(),
        cnt_hold=rows.cnt_hold.sum(),
        **sums(rows, LOCK_SUMS),
        **{name: rows[name].max() for name in LOCK_MOSTS},
    )
    rows = with_complete(t, rows)
    known, held_known = rows.is_complete, rows.holds > 0
    no_time, no_average = ibis.null("int64"), ibis.null("float64")
    rows = rows.select(
        *("process", "lock", "lock_name", "kind", "site"),
        max_ns=ibis.ifelse(held_known, rows.hold_most_ns, no_time),
        wait_max_ns=rows.wait_most_ns,
        total_ns=ibis.ifelse(held_known, rows.hold_ns, no_time),
        wait_total_ns=rows.wait_ns,
        count=ibis.ifelse(known, rows.acquired, no_time),
        avg_ns=ratio(rows.hold_ns, rows.holds),
        wait_avg_ns=ibis.ifelse(known, ratio(rows.wait_ns, rows.acquired), no_average),
        cnt_hold=rows.cnt_hold,
        cnt_lock=rows.contested,
        given_up=rows.given_up,
        spin_ns=rows.spin_ns,
        spun=rows.spun,
    )
    order = [ibis.desc("wait_total_ns"), ibis.desc("cnt_hold"), "process", "lock", "site"]
    return labelled(t, cut(rows, order), site_label="site").order_by(order)


def lock_sides(t: Tables, cut: Cut = whole) -> Any:
    """By lock: who waited, and who held it when they came. Rows are what the decoder summed up."""
    locks = t["locks"].filter(lambda x: x.contested > 0)
    rows = locks.select(
        *("process", "lock", "kind", "site", "holder_site", "contested", "given_up"),
        *("wait_ns", "wait_most_ns", "spin_ns", "spun"),
        lock_name=null_if_empty(locks.lock_name),
        wait_each_ns=ratio(locks.wait_ns, locks.contested),
    )
    order = [ibis.desc("wait_ns"), "process", "lock", "site", "holder_site"]
    rows = cut(rows, order)
    rows = labelled(t, rows, site_label="site", holder_label="holder_site")
    return rows.order_by(order)


def spins(t: Tables, cut: Cut = whole) -> Any:
    """By lock and acquisition site: the time spun before it was got or given up."""
    locks = t["locks"].filter(lambda x: x.spin_ns > 0)
    rows = locks.group_by("process", "lock", "kind", "site").agg(
        lock_name=null_if_empty(locks.lock_name).max(),
        spin_ns=locks.spin_ns.sum(),
        spun=locks.spun.sum(),
        contested=locks.contested.sum(),
        wait_ns=locks.wait_ns.sum(),
    )
    order = [ibis.desc("spin_ns"), "process", "lock", "site"]
    return labelled(t, cut(rows, order), site_label="site").order_by(order)


def wake_ledger(t: Tables, cut: Cut = whole) -> Any:
    """Wake-ups by kind, wait site and wake site, with their verdicts."""
    wakes = t["wakes"]
    rows = wakes.group_by("process", "kind", "wait_site", "wake_site").agg(
        objects=wakes.count(),  # the decoder makes one row a key, of which the object is a part
        object=wakes.object.max(),
        object_name=null_if_empty(wakes.object_name).max(),
        names=null_if_empty(wakes.object_name).nunique(),
        **sums(wakes, (*VERDICTS, "wait_ns", "late_ns", "waste_ns")),
        wait_most_ns=wakes.wait_most_ns.max(),
        late_most_ns=wakes.late_most_ns.max(),
    )
    rows = rows.mutate(count=total(rows, VERDICTS))
    rows = rows.mutate(
        wait_each_ns=ratio(rows.wait_ns, rows["count"]),
        late_each_ns=ratio(rows.late_ns, rows["count"]),
    )
    order = [ibis.desc("count"), "process", "kind", "wait_site", "wake_site"]
    rows = cut(with_idle(t, rows), order)
    rows = labelled(t, rows, wait_label="wait_site")
    return labelled(t, rows, RUNTIME, wake_label="wake_site").order_by(order)


def woken(t: Tables) -> Any:
    """Waits that someone ended, by wait site and wake site; those for locks are in held."""
    wakes = t["wakes"].filter(lambda x: ~x.kind.isin(LOCK_KINDS))
    rows = wakes.group_by(
        "process",
        "kind",
        "wait_site",
        other_site=wakes.wake_site,
        object_name=wakes.object_name.fill_null(""),
    ).agg(
        role=ibis.literal("woke"),
        objects=wakes.count(),  # the decoder makes one row a key, of which the object is a part
        object=wakes.object.max(),
        count=total(wakes, VERDICTS).sum(),
        useless=(wakes.lost_race + wakes.false_ + wakes.early).sum(),
        wait_ns=wakes.wait_ns.sum(),
        wait_most_ns=wakes.wait_most_ns.max(),
        late_ns=wakes.late_ns.sum(),
        waste_ns=wakes.waste_ns.sum(),
    )
    return with_idle(t, rows)


def held(t: Tables) -> Any:
    """Waits for locks, by acquisition site and the holder's; columns as those of woken."""
    locks = t["locks"].filter(lambda x: x.contested > 0)
    nothing = ibis.literal(0, "int64")
    return locks.group_by(
        "process",
        "kind",
        wait_site=locks.site,
        other_site=locks.holder_site,
        object_name=locks.lock_name.fill_null(""),
    ).agg(
        role=ibis.literal("held"),
        objects=locks.count(),
        object=locks.lock.max(),
        count=locks.contested.sum(),
        useless=nothing,
        wait_ns=locks.wait_ns.sum(),
        wait_most_ns=locks.wait_most_ns.max(),
        late_ns=nothing,
        waste_ns=nothing,
        is_idle=ibis.literal(False),
    )


def wait_sites(t: Tables, cut: Cut = whole) -> Any:
    """Where threads waited, for what, and the other side: who held it, or who woke them."""
    names = ("process", "kind", "wait_site", "other_site", "object_name", "role", "is_idle")
    numbers = (
        *("objects", "object", "count", "useless"),
        *("wait_ns", "wait_most_ns", "late_ns", "waste_ns"),
    )
    sides = [
        part.select(*names, **{name: part[name].cast("int64") for name in numbers})
        for part in (woken(t), held(t))
    ]
    rows = sides[0].union(sides[1])
    rows = rows.filter(rows["count"] > 0)
    rows = rows.mutate(wait_each_ns=ratio(rows.wait_ns, rows["count"]))
    order = [ibis.desc("wait_ns"), "process", "kind", "wait_site", "other_site", "object_name"]
    rows = cut(rows, order)
    rows = labelled(t, rows, wait_label="wait_site", other_label="other_site")
    is_runtime = (rows.role == "woke") & (rows.other_site == NOT_KNOWN)
    rows = rows.mutate(other_label=ibis.ifelse(is_runtime, RUNTIME, rows.other_label))
    return rows.order_by(order)


def totals(t: Tables, cut: Cut = whole) -> Any:
    """A row a process: what its waits and wake-ups came to."""
    rows = t["processes"].select("process", "duration_ns")
    calls, workers, wakes, locks = t["calls"], t["workers"], t["wakes"], t["locks"]
    own = ("switches", "steals", "signals_unheard", "broadcasts_unheard")
    parts = (
        calls.group_by("process").agg(calls=calls.completed.sum()),
        workers.group_by("process").agg(**sums(workers, own)),
        wakes.group_by("process").agg(**sums(wakes, (*VERDICTS, "late_ns", "waste_ns"))),
        locks.group_by("process").agg(
            lock_waits=locks.contested.sum(),
            lock_wait_ns=locks.wait_ns.sum(),
            lock_spin_ns=locks.spin_ns.sum(),
        ),
    )
    for part in parts:
        joined = rows.left_join(part, ["process"])
        kept = {name: joined[name] for name in rows.columns}
        new = {name: joined[name].fill_null(0) for name in part.columns if name != "process"}
        rows = joined.select(**kept, **new)
    return cut(rows.mutate(wakes=total(rows, VERDICTS)), ["process"])


def calls(t: Tables, cut: Cut = whole) -> Any:
    """Blocking calls that completed, by kind."""
    table = t["calls"].filter(lambda x: x.completed > 0)
    rows = table.group_by("process", "kind").agg(completed=table.completed.sum())
    return cut(rows, ["process", ibis.desc("completed"), "kind"])


def herds(t: Tables, cut: Cut = whole) -> Any:
    """Broadcasts and the like by how many threads each woke at once, in powers of two."""
    table = t["herds"].filter(lambda x: x["count"] > 0)
    rows = table.group_by("process", "size_from").agg(count=table["count"].sum())
    return cut(rows, ["process", "size_from"])


def lateness(t: Tables, cut: Cut = whole) -> Any:
    """Timers by how late they were fired, in powers of two of nanoseconds."""
    table = t["lateness"].filter(lambda x: x["count"] > 0)
    rows = table.group_by("process", "late_from_ns").agg(count=table["count"].sum())
    return cut(rows, ["process", "late_from_ns"])


def lateness_totals(t: Tables) -> Any:
    workers = t["workers"]
    return (
        workers.group_by("process")
        .agg(late_ns=workers.lateness_ns.sum(), late_most_ns=workers.lateness_most_ns.max())
        .order_by("process")
    )


def accepts(t: Tables, cut: Cut = whole) -> Any:
    """Threads that accepted connections, or wait to."""
    threads = t["threads"]
    rows = threads.filter((threads.accepted > 0) | (threads.state == "accept"))
    rows = rows.select("process", "thread_id", "name", "accepted")
    return cut(rows, [ibis.desc("accepted"), "process", "thread_id"])


def accept_balance(t: Tables, cut: Cut = whole) -> Any:
    """Jain's index of the connections of a process' threads: 1 if all have the same."""
    rows = accepts(t)
    square = rows.accepted.cast("float64") * rows.accepted.cast("float64")
    rows = rows.group_by("process").agg(
        threads=rows.count(),
        accepted=rows.accepted.sum(),
        least=rows.accepted.min(),
        most=rows.accepted.max(),
        squares=square.sum(),
    )
    whole = rows.accepted.cast("float64")
    rows = rows.mutate(jain=ratio(whole * whole, rows.threads * rows.squares))
    return cut(rows.drop("squares"), ["process"])


def microstates(t: Tables, cut: Cut = whole) -> Any:
    """Where each thread's time went, and what its states' sum lacks of the wall."""
    threads = t["threads"]
    states = total(threads, MICROSTATES)
    rows = threads.select(
        *("process", "thread_id", "name", "origin", "tid", "state", "kind", "object"),
        *("wait_site", "since_ns", "waits", "useless", "yields", "wall_ns", *MICROSTATES),
        "is_idle",
        lck=total(threads, LCK),
        slp=total(threads, SLP),
        missing_ns=threads.wall_ns - states,
    )
    rows = rows.mutate(blocked=rows.lat + rows.lck)
    order = [ibis.desc("blocked"), ibis.desc("usr"), "process", "thread_id"]
    return labelled(t, cut(rows, order), wait_label="wait_site").order_by(order)


def ended_threads(t: Tables, cut: Cut = whole) -> Any:
    """What threads that have ended came to, a row a process."""
    workers = t["workers"]
    names = ("ended_threads", "ended_waits", "ended_useless", "ended_yields", "ended_accepted")
    states = tuple(f"ended_{name}" for name in MICROSTATES)
    rows = workers.group_by("process").agg(**sums(workers, names + states))
    rows = rows.mutate(
        ended_lck=total(rows, tuple(f"ended_{name}" for name in LCK)),
        ended_slp=total(rows, tuple(f"ended_{name}" for name in SLP)),
    )
    return cut(rows.filter(rows.ended_threads > 0), ["process"])


def workers(t: Tables, cut: Cut = whole) -> Any:
    table = t["workers"]
    return cut(table, ["process", ibis.desc("is_worker"), "cluster", "worker", "index"])


def processes(t: Tables) -> Any:
    return t["processes"].order_by("process")


def site_frames(t: Tables) -> Any:
    """Each site's frames, the innermost first."""
    return t["sites"].order_by(["process", "site", "frame"])


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
