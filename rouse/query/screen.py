# SPDX-License-Identifier: MIT
"""The first screen of a report: the verdict, the longest waits, and what threads idled for.

Processes are summed up, and so are the call stacks that led to a place. All tables are in
sections.py.
"""

from __future__ import annotations

import posixpath
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.query import facts, measures, places, requests
from rouse.query.measures import UNSEEN
from rouse.query.sections import Section
from rouse.query.specs import Column, Row
from rouse.query.verdict import Verdict
from rouse.symbols.sites import RUNTIME
from rouse.tables.engine import Database
from rouse.text import UNKNOWN, counted, duration

PROGRAMS_SHOWN = 3
UNNAMED = (UNSEEN, UNKNOWN, RUNTIME)  # other sides that name no place of the program
NAMED_LEAST = 0.1  # of the waiting at a place, below which an other side with a name is not the one
LEAST_SHARE = 0.005  # of the threads' time, below which a place has no row
FOLDED = {
    "join": "joins",
    "child process": "child processes",
    "sleep": "sleeps",
}  # kinds of waits that seldom are a fault
IDLE = "idle waits"
ROLES = {"held": "held from", "woke": "woken from", "released": "released at"}
COLUMNS = (
    Column("wait_ns", "waited", "ns"),
    Column("count", "times", "count"),
    Column("wait_each_ns", "each", "ns"),
    Column("what", "for"),
    Column("wait_label", "waits at"),
    Column("role", "other side"),
    Column("other_label", ""),
)


@dataclass(frozen=True)
class Screen:
    head: str  # what ran, and for how long
    verdict: Verdict
    under_way: str  # what threads wait for now. Empty: they do not, or have ended
    waits: Section  # more: places that are left out since their waits are short
    short_ns: int  # the sum of those
    folded: str  # one line for the waits that are in no row. Empty: there are none
    warnings: Sequence[str]  # of what is missing or not to be trusted
    hint: str  # how to see the rest
    requests: Sequence[str] = ()  # how long those took that the program marks, and why


@dataclass
class Place:
    """The waits of all threads and processes for one kind of object at one place."""

    wait_ns: int = 0
    count: int = 0
    objects: int = 0
    names: set[str] = field(default_factory=set)
    sides: Counter[tuple[str, str]] = field(default_factory=Counter)

    def add(self, row: Row) -> None:
        self.wait_ns += row["wait_ns"]
        self.count += row["count"] + row["waiting"]
        self.objects += row["objects"]
        if row["object_name"]:
            self.names.add(row["object_name"])
        self.sides[row["role"], row["other_label"]] += row["wait_ns"]

    def row(self, kind: str, label: str) -> Row:
        """Return the row, with the other side that most of the time was waited for."""
        named = Counter({k: n for k, n in self.sides.items() if k[1] not in UNNAMED})
        is_told = named.total() >= NAMED_LEAST * self.wait_ns
        (role, other), _ = (named if named and is_told else self.sides).most_common(1)[0]
        more = f" and {len(self.sides) - 1} more" if len(self.sides) > 1 else ""
        known = ", ".join(sorted(self.names)) if len(self.names) == 1 else ""
        return {
            "wait_ns": self.wait_ns,
            "count": self.count,
            "wait_each_ns": self.wait_ns // max(self.count, 1),
            "what": f"{kind} {known}".rstrip(),
            "wait_label": label,
            "role": UNKNOWN if other == RUNTIME else ROLES.get(role, role),
            "other_label": UNKNOWN if other == RUNTIME else other + more,
        }


def head(processes: Iterable[Row]) -> str:
    """Return what ran, for how long, and its CPU time. The program that ran longest comes first."""
    rows = list(processes)
    if not rows:
        return "No process was recorded"
    programs: Counter[str] = Counter()
    ran_ns: Counter[str] = Counter()
    for row in rows:
        name = posixpath.basename(row["program"]) or "?"
        programs[name] += 1
        ran_ns[name] += row["cpu_ns"] or 0
    order = sorted(programs, key=lambda name: (-ran_ns[name], -programs[name]))
    named = [f"{name} x{programs[name]}" if programs[name] > 1 else name for name in order]
    if len(rows) == 1:
        is_running = facts.state_of(rows[0], time.time_ns()) == facts.RUNS
        named[0] += f" {rows[0]['pid']}" + (", still running" if is_running else "")
    if len(named) > PROGRAMS_SHOWN:
        named[PROGRAMS_SHOWN:] = [counted(len(named) - PROGRAMS_SHOWN, "other program")]
    parts = [f"{', '.join(named)}: {duration(max(row['duration_ns'] for row in rows))}"]
    if all(row["cpu_ns"] is not None for row in rows):
        cpus = max(row["cpus"] or 0 for row in rows)
        on = f" on {counted(cpus, 'processor')}" if cpus else ""
        parts.append(f"{duration(sum(row['cpu_ns'] for row in rows))} of CPU time{on}")
    return ", ".join(parts)


def fold_of(row: Row, duration_ns: float) -> str:
    """Return what a row of waits is folded into. Empty: it is shown."""
    return IDLE if places.is_idle(row, duration_ns) else FOLDED.get(row["kind"], "")


def folded_line(folded: dict[str, dict[str, int]]) -> str:
    """Return the line for the waits that are folded: their time, and the place or their number."""
    parts = [
        f"{what} {duration(sum(at.values()))} at"
        f" {next(iter(at)) if len(at) == 1 else counted(len(at), 'place')}"
        for what, at in folded.items()
    ]
    return f"Also {', '.join(parts)}" if parts else ""


def make(
    database: Database, verdict: Verdict, warnings: Sequence[str], show_idle: bool, hint: str
) -> Screen:
    processes = database.rows(measures.processes())
    duration_ns = max((row["duration_ns"] for row in processes), default=0)
    shown: dict[tuple[str, str], Place] = {}
    folded: dict[str, dict[str, int]] = {}
    for row in places.rows(database):
        fold = "" if show_idle else fold_of(row, duration_ns)
        if fold:
            at = folded.setdefault(fold, {})
            at[row["wait_label"]] = at.get(row["wait_label"], 0) + row["wait_ns"]
        else:
            shown.setdefault((row["kind"], row["wait_label"]), Place()).add(row)
    rows: list[dict[str, Any]] = [place.row(*key) for key, place in shown.items()]
    rows.sort(key=lambda row: -row["wait_ns"])
    least = LEAST_SHARE * verdict.thread_ns
    long = [row for row in rows if row["wait_ns"] >= least]
    return Screen(
        head(processes),
        verdict,
        facts.waiting(database),
        Section("waits", "Longest waits", "", COLUMNS, long, more=len(rows) - len(long)),
        sum(row["wait_ns"] for row in rows[len(long) :]),
        folded_line(folded),
        [*warnings, *facts.ends(processes)],
        hint,
        requests.lines(database),
    )
