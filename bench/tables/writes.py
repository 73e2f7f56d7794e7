# SPDX-License-Identifier: MIT
"""Writes to shared lines of each basic operation, exact, from a build with ROUSE_TEST."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables import rounds
from tables.render import NOTHING, Column, Table, grid

OPERATIONS = {
    "yield": "yield to another thread",
    "create": "create a thread",
    "join": "join it: it runs, ends, and its joiner goes on",
    "park": "wait for a semaphore, and switch to another thread",
    "unpark": "post that wakes a thread",
    "wake_across": "the same, to another worker, which is busy",
    "wake_idle": "the same, to a worker that sleeps, and is woken",
    "lock": "lock a free mutex",
    "unlock": "unlock it",
    "post": "post, nobody waits",
    "wait": "wait, a unit is there",
    "read": "read of a descriptor that does not block",
    "write": "write of one",
}
TARGETS = {
    "worker": "the worker",
    "block": "threads' blocks",
    "object": "the object",
    "other": "lines of all",
}
OPS_COUNTED = 300


class NotCountedError(Exception):
    """The build cannot count writes."""


def measure(build: Path) -> dict[str, dict[str, Any]]:
    options = ("--workers", "1", "-n", str(OPS_COUNTED), "--samples", "1")
    series = rounds.run(
        {op: rounds.bench(build, "shared_writes", "--op", op, *options) for op in OPERATIONS}, 1
    )
    for one in series.values():
        if one.failure:
            raise NotCountedError(one.failure)
    return {op: one.reports[0] for op, one in series.items()}


def target_column(target: str, title: str) -> Column:
    def cell(_title: str, report: Mapping[str, Any]) -> str:
        locked, stores = int(report[f"{target}_locked"]), int(report[f"{target}_stores"])
        return f"{locked} + {stores}" if locked or stores else NOTHING

    return Column(title, cell)


def table_of(found: Mapping[str, Mapping[str, Any]]) -> Table:
    shown = [target_column(*target) for target in TARGETS.items()]
    lines = Column("lines", lambda _, report: str(report["lines"]))
    rows = {title: found[op] for op, title in OPERATIONS.items()}
    return grid("Writes to shared lines", "operation: locked + plain", [*shown, lines], rows)
