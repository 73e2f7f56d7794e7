# SPDX-License-Identifier: MIT
"""Descriptor tables: the cost of a look-up, and how long growth delays look-ups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import rounds, select
from tables.render import Table, columns, grid

KINDS = {
    "array under a reader-writer lock": "rwlock",
    "Solaris: lock the file, look again": "recheck",
    "rouse: chunks": "chunks",
}
COLUMNS = columns(
    ("CPU ns per look-up", "cpu_ns_per_op"),
    ("growth µs in total", "growth_us"),
    ("longest step µs", "longest_step_us"),
    ("worst look-up µs", "worst_lookup_us"),
    ("worst without growth", "worst_calm_lookup_us"),
)
ABOUT = (
    "`rouse-bench fdtable`: look-up and release of one of 1,024 descriptors; then the "
    "table grows to 1,048,576 while the threads go on. The first two double; rouse's adds "
    "1,023 chunks one by one, each a step. A worst look-up includes time for which the "
    "kernel ran something else, as does the last column."
)


def tables(build: Path, scale: select.Scale) -> Iterator[Table]:
    rounds.say("fdtable")
    options = ("--threads", "kernel", "--seconds", str(scale.seconds / 3))
    commands = {
        f"{title}, {n}": rounds.bench(build, "fdtable", "--table", kind, "-T", str(n), *options)
        for title, kind in KINDS.items()
        for n in (1, 2)
    }
    rows = rounds.reports_of(commands, scale.rounds)
    head = "table, threads that look up"
    yield grid("Descriptor tables: look-up and growth", head, COLUMNS, rows, ABOUT)
