# SPDX-License-Identifier: MIT
"""Compare two recordings of the same work."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rouse.query import facts, listeners, locks, measures
from rouse.query.sections import Report, Section
from rouse.query.specs import (
    BALANCE,
    INIT,
    LISTENERS,
    TOTALS,
    Column,
    Row,
    init_text,
    seldom,
)
from rouse.tables.inputs import Input

ROWS = 20
SIDES = ("before", "after")
# Sums of `totals` over the processes, after what follows from other tables.
FIGURES = tuple((column.key, column.title, column.kind) for column in TOTALS.columns)
QUANTILES = (0.5, 0.99)
LOCK_SUMS = ("wait_total_ns", "cnt_lock")
LOCK_KEYS = ("lock_name", "origin", "kind")  # of a lock; several may have the same
FIGURE_COLUMNS = (
    Column("figure", "figure"),
    Column("before", "before", "text"),
    Column("after", "after", "text"),
    Column("ratio", "ratio", "index"),
)
RANK = seldom("rank", "rank", "count", "of locks of one name or origin, by their waits")
OF_LISTENERS = (
    *("accepted", "jain_processes", "jain_threads", "woken_each", "lost", "overdue"),
    "queue_delay_ns",
)


@dataclass(frozen=True)
class Figure:
    title: str
    kind: str  # of a column
    before: Any
    after: Any


def ratio(row: Row, name: str) -> float | None:
    """Return after / before. None: before was 0."""
    before, after = row[f"before_{name}"], row[f"after_{name}"]
    return None if not before or after is None else float(after / before)


def quantile(rows: Sequence[Row], part: float) -> int | None:
    """Return the lower bound, in ns, of the bucket with this quantile. None: no timer fired."""
    left = sum(row["count"] for row in rows) * part
    for row in rows:
        left -= row["count"]
        if left <= 0:
            return int(row["late_from_ns"])
    return None


def figures_of(opened: Input) -> dict[str, tuple[str, Any]]:
    """Return the figures of one recording: for each title, its kind and value."""
    database = opened.database
    totals = database.rows(measures.totals())
    longest = max((row["duration_ns"] for row in totals), default=0)
    found: dict[str, tuple[str, Any]] = {
        "processes": ("count", len(totals)),
        "recorded for": ("ns", longest),
    }
    found |= {title: (kind, sum(row[key] for row in totals)) for key, title, kind in FIGURES}
    late = sorted(database.rows(measures.lateness()), key=lambda row: int(row["late_from_ns"]))
    for part in QUANTILES:
        found[f"timers late from, p{part * 100:g}"] = ("ns", quantile(late, part))
    balances = database.rows(measures.accept_balance())
    by_key = {column.key: column for column in BALANCE.columns}
    if len(balances) == 1:
        for key in ("threads", "accepted", "jain"):
            found[f"accept: {by_key[key].title}"] = (by_key[key].kind, balances[0][key])
    return found


def figures(before: Input, after: Input) -> list[Figure]:
    old, new = figures_of(before), figures_of(after)
    nothing = ("count", None)
    every = [
        Figure(
            title,
            (old.get(title) or new[title])[0],
            *(f.get(title, nothing)[1] for f in (old, new)),
        )
        for title in {**old, **new}
    ]
    return [figure for figure in every if figure.before or figure.after]


def matched(sides: Iterable[Iterable[Row]], keys: Sequence[str], sums: Sequence[str]) -> list[Row]:
    """Return one row for each key with the sums of both sides, the largest first sum first."""
    found: dict[tuple[Any, ...], Row] = {}
    for side, rows in zip(SIDES, sides, strict=True):
        for row in rows:
            key = tuple(row[name] or "" for name in keys)
            empty = {f"{which}_{name}": 0 for which in SIDES for name in sums}
            into = found.setdefault(key, dict(zip(keys, key, strict=True)) | empty)
            for name in sums:
                into[f"{side}_{name}"] += row[name] or 0
    worst = sums[0]
    return sorted(
        found.values(),
        key=lambda row: (-max(row[f"{side}_{worst}"] for side in SIDES), *map(str, row.values())),
    )


def place_of(label: str | None) -> str:
    """Return a site's function and file, without its line, which any change of the file moves."""
    match = re.fullmatch(r"(.* .*):[0-9]+", label or "", re.DOTALL)
    return match[1] if match else label or ""


def labels_of(
    sides: Iterable[Iterable[Row]], keys: Sequence[str], name: str, worst: str
) -> dict[tuple[Any, ...], str]:
    """Return a label for each key: that of the later side's row with the largest sum."""
    found: dict[tuple[Any, ...], str] = {}
    for rows in sides:
        for row in sorted(rows, key=lambda row: row[worst] or 0):
            found[tuple(row[key] or "" for key in keys)] = row[name]
    return found


def of_locks(opened: Input) -> list[Row]:
    """Rows by site and lock. Locks of one name, or of one origin, are ranked by their waits."""
    rows = [row for row in opened.database.rows(locks.table()) if row["cnt_lock"] or row["waiting"]]
    waits: dict[tuple[Any, ...], Counter[int]] = {}
    for row in rows:
        row["init_label"] = init_text(row)
        row["place"] = place_of(row["site_label"])
        # A named lock is identified by its name, whichever line initialised it.
        row["origin"] = "" if row["lock_name"] else place_of(row["init_label"])
        same = waits.setdefault(tuple(row[key] or "" for key in LOCK_KEYS), Counter())
        same[row["lock"]] += row["wait_total_ns"] or 0
    ranks = {
        (*key, lock): rank
        for key, same in waits.items()
        for rank, (lock, _) in enumerate(same.most_common(), 1)
    }
    for row in rows:
        row["rank"] = ranks[*(row[key] or "" for key in LOCK_KEYS), row["lock"]]
    return rows


def lock_rows(inputs: Sequence[Input]) -> list[Row]:
    """Return the rows of both. Locks of one name may have several places of initialisation."""
    sides = [of_locks(opened) for opened in inputs]
    keys = ("place", *LOCK_KEYS, "rank")
    rows = matched(sides, keys, LOCK_SUMS)
    labels = labels_of(sides, keys, "site_label", LOCK_SUMS[0])
    places: dict[tuple[Any, ...], set[str]] = {}
    for row in (row for side in sides for row in side if row["init_label"]):
        found = places.setdefault(tuple(row[key] or "" for key in keys), set())
        found.add(row["init_label"])
    most = Counter[tuple[Any, ...]]()
    for row in rows:
        same = tuple(row[key] for key in LOCK_KEYS)
        most[same] = max(most[same], row["rank"])
    for row in rows:
        key = tuple(row[name] for name in keys)
        row["site_label"] = labels[key]
        row["init_label"] = ", ".join(sorted(places.get(key, ())))
        if most[tuple(row[name] for name in LOCK_KEYS)] == 1:
            row["rank"] = None
        del row["origin"], row["place"]
    return rows


def of_sites(opened: Input) -> list[Row]:
    rows = [row for row in opened.database.rows(measures.wait_sites()) if not row["is_idle"]]
    for row in rows:
        row["place"] = place_of(row["wait_label"])
    return rows


def site_rows(inputs: Sequence[Input], sums: tuple[str, str]) -> list[Row]:
    sides = [of_sites(opened) for opened in inputs]
    keys = ("place", "kind")
    labels = labels_of(sides, keys, "wait_label", sums[0])
    rows = matched(sides, keys, sums)
    for row in rows:
        row["wait_label"] = labels[row.pop("place"), row["kind"]]
    return rows


def columns(waited: str, times: str, more: Sequence[Column]) -> tuple[Column, ...]:
    return (
        Column(f"before_{waited}", "waited before", "ns"),
        Column(f"after_{waited}", "after", "ns"),
        Column("ratio", "ratio", "index"),
        Column(f"before_{times}", "times before", "count"),
        Column(f"after_{times}", "after", "count"),
        *more,
    )


def table(
    title: str,
    about: str,
    rows: list[Row],
    names: Sequence[Column],
    sums: tuple[str, str],
    limit: int,
) -> Section:
    """Make a section. names: the columns besides the sums."""
    for row in rows:
        row["ratio"] = ratio(row, sums[0])
    shown = rows[:limit] if limit else rows
    key = title.lower().replace(" ", "_")
    return Section(
        key,
        title,
        about,
        tuple(c for c in columns(*sums, names) if not c.is_seldom or any(r[c.key] for r in rows)),
        shown,
        more=len(rows) - len(shown),
        empty="" if rows else "neither has any",
    )


def of_listeners(opened: Input) -> list[Row]:
    rows = opened.database.rows(listeners.listeners())
    return [row for row in rows if row["accepted"]]


def paired(before: list[Row], after: list[Row]) -> list[tuple[str, Row, Row]]:
    """Pair listeners by name, and by rank where several have one name.

    Ports change from run to run, so that a single one left over on each side is the same listener.
    """
    found = []
    left = list(after)
    alone = []
    for old in before:
        same = [new for new in left if new["name"] == old["name"]]
        if same:
            left.remove(same[0])
            found.append((old["name"], old, same[0]))
        else:
            alone.append(old)
    if len(alone) == len(left) == 1:
        return [*found, (f"{alone[0]['name']}, {left[0]['name']}", alone[0], left[0])]
    found += [(old["name"], old, {}) for old in alone]
    return found + [(new["name"], {}, new) for new in left]


def figure_rows(found: Sequence[Figure]) -> list[Row]:
    from rouse.text import cell

    rows = []
    for figure in found:
        row: Row = {"figure": figure.title, "kind": figure.kind}
        row |= {"before_value": figure.before, "after_value": figure.after}
        row["ratio"] = ratio(row, "value")
        row |= {side: cell(figure.kind, row[f"{side}_value"]) for side in SIDES}
        rows.append(row)
    return rows


def listener_rows(inputs: Sequence[Input]) -> list[Row]:
    known = {column.key: column for column in LISTENERS.columns}
    rows = []
    for name, old, new in paired(*map(of_listeners, inputs)):
        found = [
            Figure(known[key].title, known[key].kind, old.get(key), new.get(key))
            for key in OF_LISTENERS
            if old.get(key) or new.get(key)
        ]
        rows += [{"name": name, **row} for row in figure_rows(found)]
    return rows


def compare(before: Input, after: Input, limit: int) -> Report:
    inputs = (before, after)
    figures_section = Section(
        "figures",
        "Totals",
        "Both recordings, over all processes of each; ratio: after to before.",
        FIGURE_COLUMNS,
        figure_rows(figures(before, after)),
    )
    of_each = listener_rows(inputs)
    site = Column("site_label", "waits at")
    waited, waits = (Column("wait_label", "waits at"), Column("kind", "kind")), ("wait_ns", "count")
    sections = [
        figures_section,
        table(
            "Locks",
            "By the function that waited and the lock, by its name or else by the place that"
            " initialised it; the longest first.",
            lock_rows(inputs),
            (site, Column("lock_name", "lock"), RANK, INIT, Column("kind", "kind")),
            LOCK_SUMS,
            limit,
        ),
        table(
            "Wait sites",
            "By the function and what was waited for; idle waits are left out.",
            site_rows(inputs, waits),
            waited,
            waits,
            limit,
        ),
        Section(
            "listeners",
            "Listeners",
            "Over all processes that share one; a port that the system chose is another each time.",
            (Column("name", "listener"), *FIGURE_COLUMNS),
            of_each,
            empty="" if of_each else "neither has any whose connections were seen",
        ),
    ]
    sources = [(side, opened.source) for side, opened in zip(SIDES, inputs, strict=True)]
    notes = [
        f"{side}: {problem}"
        for side, opened in zip(SIDES, inputs, strict=True)
        for problem in (
            *facts.repair_notes(opened.database.rows(measures.processes())),
            *opened.notes,
            *opened.problems,
        )
    ]
    return Report(sources, notes, sections)
