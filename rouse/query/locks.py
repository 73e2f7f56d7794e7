# SPDX-License-Identifier: MIT
"""Queries about locks: which sites acquired, held, waited and spun for them; see measures.py."""

from __future__ import annotations

from collections.abc import Iterable

from rouse.query.measures import (
    UNSEEN,
    Cut,
    aggregates,
    by_place,
    labelled,
    sums,
    waited_for,
    whole,
)
from rouse.tables.schemas import COLUMNS
from rouse.tables.views import FUTEX_LOCK, NOT_KNOWN, SPIN_LOCK, known_site, names, ratio, texts

LOCK_SUMS = (
    *("hold_ns", "wait_ns", "holds", "acquired", "contested", "given_up", "spin_ns", "spun"),
    *("waiting", "waiting_ns"),
)
LOCK_MOSTS = ("hold_most_ns", "wait_most_ns")
# Which lock it is: memory that another place initialises anew is another lock.
LOCK = ("process", "lock", "init_site")
LOCK_SITE = (*LOCK, "site")
NAME = "MAX(NULLIF(lock_name, '')) AS lock_name"
# The kind of a lock, without how a waiter wanted it.
SORT = f"CASE WHEN kind IN ({texts(('mutex', SPIN_LOCK, FUTEX_LOCK))}) THEN kind ELSE 'rwlock' END"


def with_complete(rows: str) -> str:
    """Add to rows whether every acquisition was recorded, or only the contested ones.

    Those of a futex that is a lock make no system call while it is free.
    """
    return (
        f"SELECT c.*, COALESCE(f.free, 0) > 0 AND c.kind <> '{FUTEX_LOCK}' AS is_complete"
        f" FROM ({rows}) c"
        " LEFT JOIN free_locks f ON f.process = c.process"
    )


def same(left: str, right: str, columns: Iterable[str]) -> str:
    return " AND ".join(f'{left}."{name}" = {right}."{name}"' for name in columns)


# Locks that somebody waited for, and all where every acquisition was recorded. The sample may have
# acquisitions of other locks.
SHOWN = f"""
SELECT {names(LOCK)} FROM locks_now GROUP BY {names(LOCK)}
HAVING SUM(contested) + SUM(waiting) > 0 OR SUM(sampled) = 0
"""


def first_sums() -> str:
    """The sums by lock and acquisition site that decide which rows come first."""
    init = known_site("init_site")
    columns = (*LOCK_SITE, "wait_total_ns", "cnt_hold")
    rows = f"""
SELECT process, "lock", {init} AS init_site, site, SUM(wait_ns) AS wait_total_ns, 0 AS cnt_hold
FROM locks GROUP BY process, "lock", {init}, site
UNION ALL
SELECT process, "lock", {init} AS init_site, holder_site AS site, 0 AS wait_total_ns,
    SUM(contested) AS cnt_hold
FROM ({waited_for("SELECT * FROM locks")}) w WHERE holder_site <> '{NOT_KNOWN}'
GROUP BY process, "lock", {init}, holder_site
"""
    return f"""
SELECT s.* FROM (
    SELECT {names(LOCK_SITE)}, {sums(("wait_total_ns", "cnt_hold"))}
    FROM ({by_place(rows, columns, "site")}) p GROUP BY {names(LOCK_SITE)}
) s JOIN ({SHOWN}) w ON {same("w", "s", LOCK)}
"""


def all_sums(locks: str) -> str:
    """All figures of these locks by lock and acquisition site: LOCK_SUMS and others."""
    placed = by_place(locks, COLUMNS["locks"], "site", "holder_site")
    columns = (*LOCK, "lock_name", "kind")
    zeros = ", ".join(f'0 AS "{name}"' for name in (*LOCK_SUMS, *LOCK_MOSTS))
    # The kind is the waiter's. It does not show how the holder had locked a reader-writer lock.
    rows = f"""
SELECT {names(columns)}, site, {names((*LOCK_SUMS, *LOCK_MOSTS))}, 0 AS kept_waiting, 1 AS own_rows
FROM ({placed}) g
UNION ALL
SELECT {names((*LOCK, "lock_name"))},
    {SORT} AS kind, holder_site AS site, {zeros},
    waiting AS kept_waiting, 0 AS own_rows
FROM ({waited_for(placed)}) h WHERE holder_site <> '{NOT_KNOWN}'
"""
    return with_complete(f"""
SELECT {names(LOCK_SITE)},
    COALESCE(MAX(CASE WHEN own_rows > 0 THEN kind END), MAX(kind)) AS kind, {NAME},
    SUM(kept_waiting) AS kept_waiting, {sums(LOCK_SUMS)}, {aggregates("MAX", LOCK_MOSTS)}
FROM ({rows}) u GROUP BY {names(LOCK_SITE)}
""")


def table(cut: Cut = whole) -> str:
    """FreeBSD's columns by lock and acquisition site, whichever calls led there: see sides.

    A site at which the lock was acquired and never waited for has a row too: others waited for it
    there. Two sums find the rows to be shown, and all others are made of the locks found only: with
    many records, the rows with all columns would not fit into memory.
    """
    order = ("wait_total_ns DESC", "cnt_hold DESC", *LOCK_SITE)
    first = cut(first_sums(), order)
    chosen = f"""
SELECT l.* FROM locks_now l JOIN (SELECT DISTINCT {names(LOCK)} FROM ({first}) f) c
    ON {same("c", "l", LOCK)}
"""
    return labelled(
        f"""
SELECT f.*, a.lock_name, a.kind,
    CASE WHEN a.holds > 0 THEN a.hold_most_ns END AS max_ns,
    a.wait_most_ns AS wait_max_ns,
    CASE WHEN a.holds > 0 THEN a.hold_ns END AS total_ns,
    CASE WHEN a.is_complete THEN a.acquired END AS "count",
    {ratio("a.hold_ns", "a.holds")} AS avg_ns,
    CASE WHEN a.is_complete THEN {ratio("(a.wait_ns - a.waiting_ns)", "a.acquired")} END
        AS wait_avg_ns,
    a.contested AS cnt_lock, a.given_up, a.spin_ns, a.spun, a.waiting, a.waiting_ns, a.kept_waiting
FROM ({first}) f JOIN ({all_sums(chosen)}) a ON {same("a", "f", LOCK_SITE)}
""",
        order,
        site_label="site",
        init_label="init_site",
    )


def sides(cut: Cut = whole) -> str:
    """Waits for each lock by the site that waited and the site that held it, with call stacks.

    The decoder has summed up each process. The processes of a program may be shown in sum.
    """
    keys = (*LOCK, "kind", "site", "holder_site")
    counted = ("contested", "given_up", "wait_ns", "spin_ns", "spun", "waiting")
    rows = f"""
SELECT g.*, {ratio("wait_ns", "(contested + waiting)")} AS wait_each_ns FROM (
    SELECT {names(keys)}, {sums(counted)}, MAX(wait_most_ns) AS wait_most_ns, {NAME}
    FROM ({waited_for("SELECT * FROM locks_now")}) l GROUP BY {names(keys)}
) g
"""
    order = ("wait_ns DESC", *LOCK, "site", "holder_site")
    rows = labelled(cut(rows, order), site_label="site", init_label="init_site")
    return labelled(rows, order, UNSEEN, holder_label="holder_site")


INSIDE = ("inside_lat_ns", "inside_lck_ns", "inside_io_ns", "inside_sleep_ns")


def all_locks(most: int) -> str:
    """Locks by all waits for them and all holds of each, the most waits first: at most so many.

    first_ns and last_ns are the times of the first and the last contention. site is where the lock
    is acquired, if there is only one place.
    """
    counted = (
        *("wait_ns", "contested", "acquired", "holds", "hold_ns", "sampled", "hold_variance"),
        *("spin_ns", "waiting", *INSIDE, "apart_ns"),
    )
    is_contended = "contested > 0 OR waiting > 0"
    rows = f"""
SELECT {names(LOCK)}, MAX(kind) AS kind, {NAME}, {sums(counted)},
    CASE WHEN MIN(site) = MAX(site) THEN MIN(site) END AS site,
    MIN(CASE WHEN {is_contended} THEN first_ns END) AS first_ns, MAX(last_ns) AS last_ns
FROM locks_now GROUP BY {names(LOCK)}
"""
    order = ("wait_ns DESC", "hold_ns DESC", *LOCK)
    return labelled(f"{whole(rows, order)} LIMIT {most}", order, init_label="init_site")


def origins(cut: Cut = whole) -> str:
    """The number of locks that each place initialised, and the sums over them."""
    most = aggregates("MAX", LOCK_MOSTS)
    rows = with_complete(f"""
SELECT process, init_site, kind, COUNT(*) AS locks, {sums(LOCK_SUMS)}, {most} FROM (
    SELECT {names(LOCK)}, {SORT} AS kind, {sums(LOCK_SUMS)}, {most}
    FROM locks_now WHERE init_site <> '{NOT_KNOWN}' GROUP BY {names(LOCK)}, {SORT}
    HAVING SUM(contested) + SUM(waiting) > 0 OR SUM(sampled) = 0
) e GROUP BY process, init_site, kind
""")
    rows = f"""
SELECT process, init_site, kind, locks,
    CASE WHEN holds > 0 THEN hold_most_ns END AS max_ns, wait_most_ns AS wait_max_ns,
    CASE WHEN holds > 0 THEN hold_ns END AS total_ns, wait_ns AS wait_total_ns,
    CASE WHEN is_complete THEN acquired END AS "count", {ratio("hold_ns", "holds")} AS avg_ns,
    contested AS cnt_lock, given_up, spin_ns, spun, waiting
FROM ({rows}) r
"""
    order = ("wait_total_ns DESC", "cnt_lock DESC", "process", "init_site", "kind")
    return labelled(cut(rows, order), order, init_label="init_site")


def spins(cut: Cut = whole) -> str:
    """The time spun before a lock was acquired or given up, by lock and acquisition site."""
    spun = by_place("SELECT * FROM locks WHERE spin_ns > 0", COLUMNS["locks"], "site")
    keys = names(("process", "lock", "kind", "site"))
    rows = f"""
SELECT {keys}, {NAME}, {sums(("spin_ns", "spun", "contested", "wait_ns"))}
FROM ({spun}) s GROUP BY {keys}
"""
    order = ("spin_ns DESC", "process", "lock", "site")
    return labelled(cut(rows, order), order, site_label="site")
