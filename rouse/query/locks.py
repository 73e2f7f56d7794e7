# SPDX-License-Identifier: MIT
"""Queries for locks: who acquired, held, waited for and spun on them; see measures.py."""

from __future__ import annotations

from typing import Any

import ibis

from rouse.query.measures import (
    NOT_KNOWN,
    UNTOLD,
    Cut,
    Tables,
    by_place,
    complete,
    known_site,
    labelled,
    locks_now,
    null_if_empty,
    ratio,
    sums,
    waited_for,
    whole,
)

LOCK_SUMS = (
    *("hold_ns", "wait_ns", "holds", "acquired", "contested", "given_up", "spin_ns", "spun"),
    *("waiting", "waiting_ns"),
)
LOCK_MOSTS = ("hold_most_ns", "wait_most_ns")
# Which lock it is: memory that another place initialises anew is another lock.
LOCK = ("process", "lock", "init_site")


def with_complete(t: Tables, rows: Any) -> Any:
    """rows and whether their process recorded every acquisition, not the contested ones only."""
    joined = rows.left_join(complete(t), ["process"])
    kept = {column: joined[column] for column in rows.columns}
    return joined.select(**kept, is_complete=joined.free.fill_null(0) > 0)


def first_sums(t: Tables) -> Any:
    """By lock and acquisition site, the sums that tell which rows of the lock table come first."""
    keys = (*LOCK, "site")
    nothing = ibis.literal(0, "int64")
    own, others = t["locks"], waited_for(t["locks"])
    own = own.group_by("process", "lock", "site", init_site=known_site(own.init_site)).agg(
        wait_total_ns=own.wait_ns.sum(), cnt_hold=nothing
    )
    others = others.filter(others.holder_site != NOT_KNOWN)
    others = others.group_by(
        "process", "lock", site=others.holder_site, init_site=known_site(others.init_site)
    ).agg(wait_total_ns=nothing, cnt_hold=others.contested.sum())
    rows = by_place(t, own.union(others), "site")
    return rows.group_by(*keys).agg(**sums(rows, ("wait_total_ns", "cnt_hold")))


def all_sums(t: Tables, locks: Any) -> Any:
    """What is recorded of these locks by lock and acquisition site: LOCK_SUMS and the like."""
    locks = by_place(t, locks, "site", "holder_site")
    nothing = ibis.literal(0, "int64")
    keys = (*LOCK, "lock_name", "kind", "site")
    got = locks.select(
        *(*keys, *LOCK_SUMS, *LOCK_MOSTS), kept_waiting=nothing, own_rows=nothing + 1
    )
    held = waited_for(locks.filter(locks.holder_site != NOT_KNOWN))
    held = held.mutate(
        site=held.holder_site,
        # The kind is the waiter's; of a reader-writer lock it does not tell how the holder had it.
        kind=ibis.ifelse(held.kind == "mutex", "mutex", "rwlock"),
        kept_waiting=held.waiting,
        own_rows=nothing,
    )
    held = held.mutate(**dict.fromkeys((*LOCK_SUMS, *LOCK_MOSTS), nothing))
    rows = got.union(held.select(*got.columns))
    own_kind = ibis.ifelse(rows.own_rows > 0, rows.kind, ibis.null("string"))
    rows = rows.group_by(*LOCK, "site").agg(
        kind=ibis.coalesce(own_kind.max(), rows.kind.max()),
        lock_name=null_if_empty(rows.lock_name).max(),
        kept_waiting=rows.kept_waiting.sum(),
        **sums(rows, LOCK_SUMS),
        **{name: rows[name].max() for name in LOCK_MOSTS},
    )
    return with_complete(t, rows)


def table(t: Tables, cut: Cut = whole) -> Any:
    """FreeBSD's columns by lock and acquisition site, whichever calls led there: see sides.

    A site at which the lock was got and never waited for has a row too: others waited for it there.
    What is wanted is found by two sums, and all others are made of the locks found only: of many
    records the rows with all columns would not fit into memory.
    """
    order = [ibis.desc("wait_total_ns"), ibis.desc("cnt_hold"), *LOCK, "site"]
    every = first_sums(t)
    first = cut(every, order)
    counted = [name for name in first.columns if name not in every.columns]
    rows = all_sums(t, locks_now(t).semi_join(first, list(LOCK)))
    rows = first.inner_join(rows, [*LOCK, "site"])
    known, held_known = rows.is_complete, rows.holds > 0
    no_time, no_average = ibis.null("int64"), ibis.null("float64")
    rows = rows.select(
        *(*LOCK, "lock_name", "kind", "site"),
        max_ns=ibis.ifelse(held_known, rows.hold_most_ns, no_time),
        wait_max_ns=rows.wait_most_ns,
        total_ns=ibis.ifelse(held_known, rows.hold_ns, no_time),
        wait_total_ns=rows.wait_total_ns,
        count=ibis.ifelse(known, rows.acquired, no_time),
        avg_ns=ratio(rows.hold_ns, rows.holds),
        wait_avg_ns=ibis.ifelse(
            known, ratio(rows.wait_ns - rows.waiting_ns, rows.acquired), no_average
        ),
        cnt_hold=rows.cnt_hold,
        cnt_lock=rows.contested,
        given_up=rows.given_up,
        spin_ns=rows.spin_ns,
        spun=rows.spun,
        waiting=rows.waiting,
        waiting_ns=rows.waiting_ns,
        kept_waiting=rows.kept_waiting,
        **{name: rows[name] for name in counted},
    )
    return labelled(t, rows, site_label="site", init_label="init_site").order_by(order)


def sides(t: Tables, cut: Cut = whole) -> Any:
    """By lock: who waited, and who held it when they came, each by its stack of calls.

    The decoder has summed up each process; a program's processes may be told in sum.
    """
    locks = waited_for(locks_now(t))
    keys = (*LOCK, "kind", "site", "holder_site")
    names = ("contested", "given_up", "wait_ns", "spin_ns", "spun", "waiting")
    rows = locks.group_by(*keys).agg(
        **sums(locks, names),
        wait_most_ns=locks.wait_most_ns.max(),
        lock_name=null_if_empty(locks.lock_name).max(),
    )
    rows = rows.mutate(wait_each_ns=ratio(rows.wait_ns, rows.contested + rows.waiting))
    order = [ibis.desc("wait_ns"), *LOCK, "site", "holder_site"]
    rows = cut(rows, order)
    rows = labelled(t, rows, site_label="site", init_label="init_site")
    return labelled(t, rows, UNTOLD, holder_label="holder_site").order_by(order)


def origins(t: Tables, cut: Cut = whole) -> Any:
    """By the place that initialised them: how many locks, and what all of them came to."""
    found = locks_now(t)
    found = found.filter(found.init_site != NOT_KNOWN)
    kinds = ibis.ifelse(found.kind == "mutex", "mutex", "rwlock")
    each = found.group_by(*LOCK, kind=kinds).agg(
        **sums(found, LOCK_SUMS), **{name: found[name].max() for name in LOCK_MOSTS}
    )
    rows = each.group_by("process", "init_site", "kind").agg(
        locks=each.count(),
        **sums(each, LOCK_SUMS),
        **{name: each[name].max() for name in LOCK_MOSTS},
    )
    rows = with_complete(t, rows)
    held_known, no_time = rows.holds > 0, ibis.null("int64")
    rows = rows.select(
        *("process", "init_site", "kind", "locks"),
        max_ns=ibis.ifelse(held_known, rows.hold_most_ns, no_time),
        wait_max_ns=rows.wait_most_ns,
        total_ns=ibis.ifelse(held_known, rows.hold_ns, no_time),
        wait_total_ns=rows.wait_ns,
        count=ibis.ifelse(rows.is_complete, rows.acquired, no_time),
        avg_ns=ratio(rows.hold_ns, rows.holds),
        cnt_lock=rows.contested,
        given_up=rows.given_up,
        spin_ns=rows.spin_ns,
        spun=rows.spun,
        waiting=rows.waiting,
    )
    order = [ibis.desc("wait_total_ns"), ibis.desc("cnt_lock"), "process", "init_site", "kind"]
    return labelled(t, cut(rows, order), init_label="init_site").order_by(order)


def spins(t: Tables, cut: Cut = whole) -> Any:
    """By lock and acquisition site: the time spun before it was got or given up."""
    locks = by_place(t, t["locks"].filter(lambda x: x.spin_ns > 0), "site")
    rows = locks.group_by("process", "lock", "kind", "site").agg(
        lock_name=null_if_empty(locks.lock_name).max(),
        spin_ns=locks.spin_ns.sum(),
        spun=locks.spun.sum(),
        contested=locks.contested.sum(),
        wait_ns=locks.wait_ns.sum(),
    )
    order = [ibis.desc("spin_ns"), "process", "lock", "site"]
    return labelled(t, cut(rows, order), site_label="site").order_by(order)
