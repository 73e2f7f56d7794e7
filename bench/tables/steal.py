# SPDX-License-Identifier: MIT
"""Steal affinity and placement: throughput, steals and waits in the run queue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import rounds, select
from tables.render import Table, number

FOOTPRINTS = {"none": 0, "32 KiB": 32768, "256 KiB": 262144}
PLACES = {
    **{f"steal, affinity {level}": ("--affinity", str(level)) for level in range(1, 7)},
    "shortest queue": ("--place", "shortest"),
}
WORKERS = 2


def tables(build: Path, scale: select.Scale) -> Iterator[Table]:
    bench = str(build / "bench" / "rouse-bench")
    for title, footprint in FOOTPRINTS.items():
        rounds.say(f"steal, footprint {title}")
        commands = {
            name: [
                *(bench, "steal", *options, "--footprint", str(footprint)),
                *("--workers", str(WORKERS), "--seconds", str(scale.seconds / 3), "--json"),
            ]
            for name, options in PLACES.items()
        }
        found = select.take(commands, scale.rounds)
        table = Table(
            f"Steal affinity: footprint {title}",
            [
                *("placement", "µs a turn", "CPU µs a turn", "steals a 1,000 turns"),
                *("stolen a 1,000 turns", "wait p50 µs", "wait p99 µs"),
            ],
            before=[
                "`rouse-bench steal`: 64 threads at a time are created on one of "
                f"{WORKERS} workers; each has 1 to 16 turns, in which it goes over its own bytes "
                "or, without any, computes. The wait is from creation or yield to the turn."
            ],
        )
        for name, reports in found.items():
            table.rows.append(
                [
                    name,
                    number(select.of(reports, "ns_per_op") / 1000),
                    number(select.of(reports, "cpu_ns_per_op") / 1000),
                    number(select.of(reports, "steals_per_1000")),
                    number(select.of(reports, "stolen_per_1000")),
                    number(select.of(reports, "wait_p50_us")),
                    number(select.of(reports, "wait_p99_us")),
                ]
            )
        yield table
