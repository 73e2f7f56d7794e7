# SPDX-License-Identifier: MIT
"""The sections of a report in order, with their columns, rows, and why one is empty.

Everything that renders a report takes it from here, so that all formats say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.query import measures
from rouse.query.specs import PLANS, PROCESS, Column, Plan, Row
from rouse.query.verdict import Verdict
from rouse.tables.engine import Database

# The titles of a row's sites, by the column that has the site's id.
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
    verdict: Verdict | None = None  # None: not asked for, or nothing was recorded


def sites_of(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return, for each site of a row, its title and the key of its frames."""
    return [(role, f"{row['process']} {row[key]}") for key, role in SITES.items() if row.get(key)]


@dataclass(frozen=True)
class Wanted:
    """The sections to make, and the number of rows of each."""

    sections: Sequence[str] = ()  # none: all
    limit: int = 0  # rows per section; 0: all
    show_idle: bool = False


def make(database: Database, plan: Plan, wanted: Wanted, columns: tuple[Column, ...]) -> Section:
    """Query a section's rows, and count those that are not shown."""
    hides = plan.split_idle and not wanted.show_idle
    every = ""  # the query without order and names, which would cost more than the count

    def cut(rows: str, order: Sequence[str]) -> str:
        nonlocal every
        every = rows
        if plan.is_summary:  # one row per process; the head of the report needs all of them
            return measures.whole(rows, order)
        # The same query counts the rows: a second sum over all records would double the time.
        if wanted.limit and not plan.is_plain:
            rows = f"SELECT a.*, COUNT(*) OVER () AS in_all FROM ({rows}) a"
        if hides:
            idle = "SUM(CASE WHEN is_idle THEN 1 ELSE 0 END) OVER () AS idle"
            rows = f"SELECT * FROM (SELECT b.*, {idle} FROM ({rows}) b) c WHERE NOT is_idle"
        rows = measures.whole(rows, order)
        return f"{rows} LIMIT {wanted.limit}" if wanted.limit else rows

    rows = database.rows(plan.query(cut))
    more = idle = 0
    if hides:
        idle = rows[0]["idle"] if rows else database.count(measures.count_of(every, "is_idle"))
    if plan.is_summary and wanted.limit:
        more = max(len(rows) - wanted.limit, 0)
        rows = rows[: wanted.limit]
    elif wanted.limit and len(rows) == wanted.limit:
        in_all = (
            database.count(measures.count_of(every)) if plan.is_plain else int(rows[0]["in_all"])
        )
        more = in_all - idle - len(rows)
    for row in rows:
        row.pop("in_all", None)
        row.pop("idle", None)
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
    """Make all sections that are wanted."""
    several = database.count(measures.count_of("SELECT process FROM processes")) > 1
    made = []
    for plan in PLANS:
        if wanted.sections and plan.key not in wanted.sections:
            continue
        columns = (PROCESS, *plan.columns) if several and not plan.is_joint else plan.columns
        made.append(make(database, plan, wanted, columns))
    return made
