# SPDX-License-Identifier: MIT
"""Every figure of a report as a query over the tables of tables/build.py, written with ibis.

A function takes the tables by name and returns an expression that no engine has run yet. Times are
nanoseconds. A null means: what was recorded cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from operator import add
from typing import Any

import ibis

from rouse.query import oncpu
from rouse.tables.schemas import MICROSTATES, PRELOAD

Tables = Mapping[str, Any]

LCK = ("mutex", "rwlock", "cond", "sem", "join")
SLP = ("io", "poll", "accept", "sleep")
VERDICTS = ("useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded")
LOCK_KINDS = ("mutex", "read lock", "write lock")
NOT_KNOWN = "0x0"  # the site of what is not known, or is the runtime itself
UNKNOWN, RUNTIME, UNTOLD = "-", "runtime", "not known"  # what it is called
# What a thread ends, if it is no deadline.
BY_THREADS = (*LOCK_KINDS, "condition", "semaphore", "barrier", "once", "futex")


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


def known_site(site: Any) -> Any:
    """A site that an older rouse did not record, or left empty, is not known."""
    return ibis.coalesce(site.nullif(""), NOT_KNOWN)


def the_only(site: Any) -> Any:
    """Of a group: the site that all its rows have; NOT_KNOWN: they have several, or none."""
    known = known_site(site)
    return ibis.ifelse(known.min() == known.max(), known.max(), NOT_KNOWN)


def objects_of(rows: Any) -> Any:
    """Of a group: of how many objects. The decoder makes a row a key, with the object in it."""
    return ibis.ifelse(rows.object.min() == rows.object.max(), 1, rows.count())


def common_name(rows: Any) -> Any:
    """Of a group: the name of all its objects; null: they have several, or some have none."""
    name = rows.object_name.fill_null("")
    return null_if_empty(ibis.ifelse(name.min() == name.max(), name.max(), ""))


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


def places(t: Tables) -> Any:
    """Sites that stand for others with the same innermost frame, and which one stands for them.

    A holder's site is one address; a waiter's is a stack where these are recorded. One place in the
    program is then several sites, of which the least, the address itself, stands for all.
    """
    inner = t["sites"].filter(lambda s: (s.frame == 0) & (s.address != 0))
    same = ibis.window(group_by=[inner.process, inner.address])
    inner = inner.mutate(place=inner.site.min().over(same))
    return inner.filter(inner.place != inner.site).select("process", "site", "place").distinct()


def by_place(t: Tables, table: Any, *columns: str) -> Any:
    """table with the sites in these columns replaced by those that stand for them."""
    for column in columns:
        known = places(t)
        known = known.select(process=known.process, place=known.place, **{column: known.site})
        joined = table.left_join(known, ["process", column])
        kept = {name: joined[name] for name in table.columns}
        table = joined.select(**{**kept, column: ibis.coalesce(joined.place, joined[column])})
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


def locks_now(t: Tables) -> Any:
    """The locks' table. Recordings of an older rouse do not tell of all."""
    locks = t["locks"]
    return locks.mutate(
        waiting=locks.waiting.fill_null(0),
        waiting_ns=locks.waiting_ns.fill_null(0),
        init_site=known_site(locks.init_site),
    )


def waited_for(locks: Any) -> Any:
    """Of these, the rows of which some thread found the lock held."""
    return locks.filter((locks.contested > 0) | (locks.waiting > 0))


def with_names(t: Tables, rows: Any, keys: tuple[str, ...]) -> Any:
    """rows of wake-ups by these keys and how many names their objects have.

    Asked for apart: together with sums, what differs is counted over a copy of all records.
    """
    named = t["wakes"].filter(lambda w: w.object_name.notnull() & (w.object_name != ""))
    named = named.select(*keys, "object_name").distinct()
    named = named.group_by(*keys).agg(names=named.count())
    joined = rows.left_join(named, list(keys))
    kept = {column: joined[column] for column in rows.columns}
    return joined.select(**kept, names=joined.names.fill_null(0))


def with_nobody(t: Tables, rows: Any) -> Any:
    """rows of wake-ups, of which so many (woken) were no deadline's: what is who ended them called
    where no site is known of him.

    Outside of librouse it is no runtime that wakes whom a thread has to wake: that thread was not
    seen, as of another process, or it was a signal.
    """
    ran = t["processes"].filter(lambda p: p.recorder == PRELOAD)
    ran = ran.select("process", is_preloaded=ibis.literal(True))
    joined = rows.left_join(ran, ["process"])
    is_untold = joined.is_preloaded.fill_null(False) & joined.kind.isin(BY_THREADS)
    nobody = ibis.ifelse(is_untold & (joined.woken > 0), UNTOLD, RUNTIME)
    return joined.select(**{name: joined[name] for name in rows.columns}, nobody=nobody)


def wake_ledger(t: Tables, cut: Cut = whole) -> Any:
    """Wake-ups by kind, wait site and wake site, with their verdicts."""
    wakes = t["wakes"]
    keys = ("process", "kind", "wait_site", "wake_site")
    rows = wakes.group_by(*keys).agg(
        objects=objects_of(wakes),
        object=wakes.object.max(),
        object_name=common_name(wakes),
        init_site=the_only(wakes.init_site),
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
    rows = cut(with_idle(t, with_names(t, rows, keys)), order)
    rows = labelled(t, rows, wait_label="wait_site", init_label="init_site", wake_label="wake_site")
    rows = with_nobody(t, rows.mutate(woken=rows["count"] - rows.timeout))
    is_nobody = rows.wake_site == NOT_KNOWN
    rows = rows.mutate(wake_label=ibis.ifelse(is_nobody, rows.nobody, rows.wake_label))
    return rows.drop("nobody", "woken").order_by(order)


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
        objects=objects_of(wakes),
        object=wakes.object.max(),
        init_site=the_only(wakes.init_site),
        count=total(wakes, VERDICTS).sum(),
        woken=(total(wakes, VERDICTS) - wakes.timeout).sum(),
        useless=(wakes.lost_race + wakes.false_ + wakes.early).sum(),
        wait_ns=wakes.wait_ns.sum(),
        wait_most_ns=wakes.wait_most_ns.max(),
        late_ns=wakes.late_ns.sum(),
        waste_ns=wakes.waste_ns.sum(),
        waiting=ibis.literal(0, "int64"),
    )
    return with_idle(t, rows)


def not_woken(t: Tables) -> Any:
    """Waits under way, which nobody has ended yet; columns as those of woken, without zeros."""
    waits = t["open_waits"].filter(lambda x: ~x.kind.isin(LOCK_KINDS))
    rows = waits.group_by(
        "process", "kind", "wait_site", object_name=waits.object_name.fill_null("")
    ).agg(
        other_site=ibis.literal(NOT_KNOWN),
        role=ibis.literal("not yet"),
        objects=objects_of(waits),
        object=waits.object.max(),
        init_site=the_only(waits.init_site),
        wait_ns=waits.wait_ns.sum(),
        wait_most_ns=waits.wait_most_ns.max(),
        waiting=waits.waiting.sum(),
    )
    return with_idle(t, rows)


def held(t: Tables) -> Any:
    """Waits for locks, by acquisition site and the holder's; columns as those of not_woken."""
    locks = waited_for(locks_now(t))
    return locks.group_by(
        "process",
        "kind",
        wait_site=locks.site,
        other_site=locks.holder_site,
        object_name=locks.lock_name.fill_null(""),
    ).agg(
        role=ibis.literal("held"),
        objects=ibis.ifelse(locks.lock.min() == locks.lock.max(), 1, locks.count()),
        object=locks.lock.max(),
        init_site=the_only(locks.init_site),
        count=locks.contested.sum(),
        wait_ns=locks.wait_ns.sum(),
        wait_most_ns=locks.wait_most_ns.max(),
        waiting=locks.waiting.sum(),
        is_idle=ibis.literal(False),
    )


def wait_sites(t: Tables, cut: Cut = whole) -> Any:
    """Where threads waited, for what, and the other side: who held it, or who woke them."""
    names = (
        *("process", "kind", "wait_site", "other_site", "object_name", "init_site"),
        *("role", "is_idle"),
    )
    numbers = (
        *("objects", "object", "count", "woken", "useless", "waiting"),
        *("wait_ns", "wait_most_ns", "late_ns", "waste_ns"),
    )
    nothing = ibis.literal(0, "int64")
    sides = [
        part.select(*names, **{n: part[n].cast("int64") if n in part else nothing for n in numbers})
        for part in (woken(t), not_woken(t), held(t))
    ]
    rows = sides[0].union(sides[1], sides[2])
    rows = rows.filter((rows["count"] > 0) | (rows.waiting > 0))
    rows = rows.mutate(wait_each_ns=ratio(rows.wait_ns, rows["count"] + rows.waiting))
    order = [ibis.desc("wait_ns"), "process", "kind", "wait_site", "other_site", "object_name"]
    rows = cut(rows, order)
    rows = labelled(
        t, rows, wait_label="wait_site", other_label="other_site", init_label="init_site"
    )
    rows = with_nobody(t, rows)
    is_nobody = rows.other_site == NOT_KNOWN
    label = ibis.ifelse(is_nobody & (rows.role == "woke"), rows.nobody, rows.other_label)
    label = ibis.ifelse(is_nobody & (rows.role == "held"), UNTOLD, label)
    return rows.mutate(other_label=label).drop("nobody", "woken").order_by(order)


def totals(t: Tables, cut: Cut = whole) -> Any:
    """A row a process: what its waits and wake-ups came to."""
    rows = t["processes"].select("process", "duration_ns")
    calls, workers, wakes, locks = t["calls"], t["workers"], t["wakes"], locks_now(t)
    waits = t["open_waits"]
    own = ("switches", "steals", "signals_unheard", "broadcasts_unheard")
    parts = (
        calls.group_by("process").agg(calls=calls.completed.sum()),
        workers.group_by("process").agg(**sums(workers, own)),
        wakes.group_by("process").agg(**sums(wakes, (*VERDICTS, "late_ns", "waste_ns"))),
        locks.group_by("process").agg(
            lock_waits=locks.contested.sum(),
            lock_wait_ns=locks.wait_ns.sum(),
            lock_spin_ns=locks.spin_ns.sum(),
            lock_waiting=locks.waiting.sum(),
        ),
        waits.group_by("process").agg(waiting=waits.waiting.sum(), waiting_ns=waits.wait_ns.sum()),
    )
    for part in parts:
        joined = rows.left_join(part, ["process"])
        kept = {name: joined[name] for name in rows.columns}
        new = {name: joined[name].fill_null(0) for name in part.columns if name != "process"}
        rows = joined.select(**kept, **new)
    return cut(rows.mutate(wakes=total(rows, VERDICTS)), ["process"])


def waiting(t: Tables) -> Any:
    """Waits under way, by kind and site."""
    waits = t["open_waits"]
    rows = waits.group_by("process", "kind", "wait_site").agg(
        waiting=waits.waiting.sum(),
        wait_ns=waits.wait_ns.sum(),
        wait_most_ns=waits.wait_most_ns.max(),
    )
    order = [ibis.desc("wait_ns"), "process", "kind", "wait_site"]
    return labelled(t, with_idle(t, rows), wait_label="wait_site").order_by(order)


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
    threads = oncpu.threads(t)
    known = tuple(name for name in MICROSTATES if name != "usr")
    states = total(threads, (*known, "in_call")) + threads.usr.fill_null(0)
    rows = threads.select(
        *("process", "thread_id", "name", "origin", "tid", "state", "kind", "object"),
        *("wait_site", "since_ns", "waits", "useless", "yields", "wall_ns", *MICROSTATES),
        *("is_idle", "is_cut", "in_call", "had_usr", "is_told"),
        lck=total(threads, LCK),
        slp=total(threads, (*SLP, "in_call")),
        missing_ns=threads.wall_ns - states,
    )
    rows = rows.mutate(blocked=rows.lat + rows.lck)
    order = [ibis.desc("blocked"), ibis.desc("had_usr"), "process", "thread_id"]
    return labelled(t, cut(rows, order), wait_label="wait_site").order_by(order)


def ended_threads(t: Tables, cut: Cut = whole) -> Any:
    """What threads that have ended came to, a row a process."""
    workers = oncpu.ended(t)
    names = ("ended_threads", "ended_waits", "ended_useless", "ended_yields", "ended_accepted")
    states = tuple(f"ended_{name}" for name in MICROSTATES)
    more = ("ended_in_call", "ended_unknown", "ended_untold")
    rows = workers.group_by("process").agg(**sums(workers, (*names, *states, *more)))
    rows = rows.mutate(
        ended_lck=total(rows, tuple(f"ended_{name}" for name in LCK)),
        ended_slp=total(rows, (*(f"ended_{name}" for name in SLP), "ended_in_call")),
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


def stack_frames(t: Tables) -> Any:
    """The same of sites that have more than one."""
    outer = t["sites"].filter(lambda s: s.frame == 1).select("process", "site")
    return t["sites"].semi_join(outer, ["process", "site"]).order_by(["process", "site", "frame"])
