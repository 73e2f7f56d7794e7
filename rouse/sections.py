# SPDX-License-Identifier: MIT
"""What a report says: its sections in order, with their columns, rows, and why one is empty.

Everything that renders a report takes it from here, so that all formats say the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.engine import Database
from rouse.plans import PLANS, PROCESS, Column, Plan, Row


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


@dataclass(frozen=True)
class Report:
    facts: list[tuple[str, str]]
    notes: list[str]
    sections: list[Section]
    frames: Mapping[str, list[str]] = field(default_factory=dict)  # by "process site"


@dataclass(frozen=True)
class Wanted:
    """Which sections, and how much of them."""

    sections: Sequence[str] = ()  # none: all
    limit: int = 0  # rows a section; 0: all
    show_idle: bool = False


def counted(database: Database, query: Any) -> int:
    return int(database.rows(query.aggregate(rows=query.count()))[0]["rows"])


def section(database: Database, plan: Plan, wanted: Wanted, columns: tuple[Column, ...]) -> Section:
    hides = plan.split_idle and not wanted.show_idle

    def cut(rows: Any, order: list[Any]) -> Any:
        # Counted on the way: summing up all records once more would take as long again.
        if wanted.limit and not plan.is_plain:
            rows = rows.mutate(in_all=rows.count().over())
        if hides:
            rows = rows.mutate(idle=rows.is_idle.cast("int64").sum().over())
            rows = rows.filter(~rows.is_idle)
        rows = rows.order_by(order)
        return rows.limit(wanted.limit) if wanted.limit else rows

    def count(is_wanted: Callable[[Any], Any]) -> int:
        return counted(database, plan.query(tables, lambda rows, _: is_wanted(rows)))

    tables = database.tables
    rows = database.rows(plan.query(tables, cut))
    more = idle = 0
    if hides:
        idle = rows[0]["idle"] if rows else count(lambda rows: rows.filter(rows.is_idle))
    if wanted.limit and len(rows) == wanted.limit:
        in_all = count(lambda rows: rows) if plan.is_plain else rows[0]["in_all"]
        more = in_all - idle - len(rows)
    rows = [plan.finish(row) for row in rows]
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
    )


def sections(database: Database, wanted: Wanted) -> list[Section]:
    several = counted(database, database.tables["processes"]) > 1
    made = []
    for plan in PLANS:
        if wanted.sections and plan.key not in wanted.sections:
            continue
        columns = (PROCESS, *plan.columns) if several else plan.columns
        made.append(section(database, plan, wanted, columns))
    return made
