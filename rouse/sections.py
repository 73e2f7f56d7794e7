# SPDX-License-Identifier: MIT
"""What a report says: its sections in order, with their columns, rows, and why one is empty.

Everything that renders a report takes it from here, so that all formats say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    query = plan.query(database.tables)
    idle = 0
    if plan.split_idle and not wanted.show_idle:
        idle = counted(database, query.filter(query.is_idle))
        query = query.filter(~query.is_idle)
    more = 0
    if wanted.limit:
        rows = database.rows(query.limit(wanted.limit + 1))
        if len(rows) > wanted.limit:
            more = counted(database, query) - wanted.limit
            del rows[wanted.limit :]
    else:
        rows = database.rows(query)
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
