# SPDX-License-Identifier: MIT
"""Steal affinity and placement: throughput, steals and waits in the run queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import rounds, select
from tables.render import Table, columns, grid

FOOTPRINTS = {"none": 0, "32 KiB": 32768, "256 KiB": 262144}
PLACES = {
    **{f"steal, affinity {level}": ("--affinity", str(level)) for level in range(1, 7)},
    "shortest queue": ("--place", "shortest"),
}
COLUMNS = columns(
    ("µs per turn", "ns_per_op", "", 1e-3),
    ("CPU µs per turn", "cpu_ns_per_op", "", 1e-3),
    ("steals per 1,000 turns", "steals_per_1000"),
    ("stolen per 1,000 turns", "stolen_per_1000"),
    ("wait p50 µs", "wait_p50_us"),
    ("wait p99 µs", "wait_p99_us"),
)
WORKERS = 2
ABOUT = (
    f"`rouse-bench steal`: 64 threads at a time are created on one of {WORKERS} workers; "
    "each has 1 to 16 turns. In a turn it reads its own bytes or, if it has none, "
    "computes. The wait is from creation or yield to the turn."
)


def tables(build: Path, scale: select.Scale) -> Iterator[Table]:
    size = ("--workers", str(WORKERS), "--seconds", str(scale.seconds / 3))
    for title, footprint in FOOTPRINTS.items():
        rounds.say(f"steal, footprint {title}")
        commands = {
            name: rounds.bench(build, "steal", *words, "--footprint", str(footprint), *size)
            for name, words in PLACES.items()
        }
        rows = rounds.reports_of(commands, scale.rounds)
        yield grid(f"Steal affinity: footprint {title}", "placement", COLUMNS, rows, ABOUT)
