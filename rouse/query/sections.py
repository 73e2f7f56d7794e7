# SPDX-License-Identifier: MIT
"""What a report says: its sections in order, with their columns, rows, and why one is empty.

Everything that renders a report takes it from here, so that all formats say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.query.specs import PLANS, PROCESS, Column, Plan, Row
from rouse.tables.engine import Database

# What a row's sites are called, by the column that has the site's id.
SITES = {
    "site": "waits at",
    "holder_site": "held from",
    "wait_site": "waits at",
    "wake_site": "woken from",
    "other_site": "other side",
    "init_site": "initialised at",
}


@dataclass(frozen=True)
class Section:
    key: str
    title: str
    about: str
    columns: tuple[Column, ...]
    rows: list[Row]
    more: int = 0  # rows that are left out beyond the limit
    idle: int = 0  # rows of idle waits that are left out
    empty: str = ""  # why there are none
    is_summary: bool = False
    is_by_place: bool = False


@dataclass(frozen=True)
class Report:
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[Section]
    frames: Mapping[str, list[str]] = field(default_factory=dict)  # by a site of sites_of


def sites_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What each site of a row is called, and by what its frames are found."""
    return [(role, f"{row['process']} {row[key]}") for key, role in SITES.items() if row.get(key)]


@dataclass(frozen=True)
class Wanted:
    """Which sections, and how much of them."""

    sections: Sequence[str] = ()  # none: all
    limit: int = 0  # rows a section; 0: all
    show_idle: bool = False


def counted(database: Database, query: Any) -> int:
    return int(database.rows(query.aggregate(rows=query.count()))[0]["rows"])


def begin(
    database: Database, plan: Plan, wanted: Wanted, columns: tuple[Column, ...]
) -> Callable[[], Section]:
    """Ask for a section; what is returned waits for it."""
    hides = plan.split_idle and not wanted.show_idle
    uncut: list[Any] = []  # without order and names, which would cost more than the count

    def cut(rows: Any, order: list[Any]) -> Any:
        uncut.append(rows)
        if plan.is_summary:  # a row a process, and the head of the report asks for all
            return rows.order_by(order)
        # Counted on the way: summing up all records once more would take as long again.
        if wanted.limit and not plan.is_plain:
            rows = rows.mutate(in_all=rows.count().over())
        if hides:
            rows = rows.mutate(idle=rows.is_idle.cast("int64").sum().over())
            rows = rows.filter(~rows.is_idle)
        rows = rows.order_by(order)
        return rows.limit(wanted.limit) if wanted.limit else rows

    answer = database.ask(plan.query(database.tables, cut))
    return lambda: finish(database, plan, wanted, columns, uncut[0], answer())


def finish(
    database: Database,
    plan: Plan,
    wanted: Wanted,
    columns: tuple[Column, ...],
    every: Any,
    rows: list[Row],
) -> Section:
    """every: the query of all rows, of which those are shown that were asked for."""
    hides = plan.split_idle and not wanted.show_idle
    more = idle = 0
    if hides:
        idle = rows[0]["idle"] if rows else counted(database, every.filter(every.is_idle))
    if plan.is_summary and wanted.limit:
        more = max(len(rows) - wanted.limit, 0)
        rows = rows[: wanted.limit]
    elif wanted.limit and len(rows) == wanted.limit:
        in_all = counted(database, every) if plan.is_plain else rows[0]["in_all"]
        more = in_all - idle - len(rows)
    rows = [plan.finish(row) for row in rows]
    columns = tuple(c for c in columns if not c.is_seldom or any(row[c.key] for row in rows))
    return Section(
        plan.key,
        plan.title,
        plan.about,
        columns,
        rows,
        more=more,
        idle=idle,
        empty="" if rows else plan.empty,
        is_summary=plan.is_summary,
        is_by_place=plan.is_by_place,
    )


def sections(database: Database, wanted: Wanted) -> list[Section]:
    return ask(database, wanted)()


def ask(database: Database, wanted: Wanted) -> Callable[[], list[Section]]:
    """Ask for all that are wanted; what is returned waits for them."""
    several = counted(database, database.tables["processes"]) > 1
    begun = []
    for plan in PLANS:
        if wanted.sections and plan.key not in wanted.sections:
            continue
        columns = (PROCESS, *plan.columns) if several and not plan.is_joint else plan.columns
        begun.append(begin(database, plan, wanted, columns))
    return lambda: [end() for end in begun]
