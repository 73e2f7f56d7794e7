# SPDX-License-Identifier: MIT
"""Writes to shared lines of each basic operation, exact, from a build with ROUSE_TEST."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tables.render import NOTHING, Table

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
TARGETS = {"worker": "the worker", "block": "threads' blocks", "object": "the object"}
OTHER = "lines of all"
OPS_COUNTED = 300


class NotCountedError(Exception):
    """The build cannot count."""


def measure(build: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for op in OPERATIONS:
        program = str(build / "bench" / "rouse-bench")
        options = ("--workers", "1", "-n", str(OPS_COUNTED), "--samples", "1", "--json")
        done = subprocess.run(
            [program, "shared_writes", "--op", op, *options],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode != 0:
            raise NotCountedError(done.stderr.strip())
        found[op] = json.loads(done.stdout)
    return found


def cell(report: Mapping[str, Any], target: str) -> str:
    locked, stores = int(report[f"{target}_locked"]), int(report[f"{target}_stores"])
    return f"{locked} + {stores}" if locked or stores else NOTHING


def table_of(found: Mapping[str, Mapping[str, Any]]) -> Table:
    table = Table(
        "Writes to shared lines",
        ["operation: locked + plain", *TARGETS.values(), OTHER, "lines"],
    )
    for op, title in OPERATIONS.items():
        report = found[op]
        cells = [cell(report, target) for target in (*TARGETS, "other")]
        table.rows.append([title, *cells, str(report["lines"])])
    return table
