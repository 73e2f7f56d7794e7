# SPDX-License-Identifier: MIT
"""Descriptor tables: what a look-up costs, and how long growth keeps look-ups waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tables import rounds, select
from tables.render import Table, number

KINDS = {
    "array under a reader-writer lock": "rwlock",
    "Solaris: lock the file, look again": "recheck",
    "rouse: chunks": "chunks",
}
THREADS = (1, 2)


def tables(build: Path, scale: select.Scale) -> Iterator[Table]:
    bench = str(build / "bench" / "rouse-bench")
    options = ("--threads", "kernel", "--seconds", str(scale.seconds / 3), "--json")
    rounds.say("fdtable")
    commands = {
        f"{title}, {threads}": [bench, "fdtable", "--table", kind, "-T", str(threads), *options]
        for title, kind in KINDS.items()
        for threads in THREADS
    }
    found = select.take(commands, scale.rounds)
    table = Table(
        "Descriptor tables: look-up and growth",
        [
            "table, threads that look up",
            *("ns a look-up, CPU", "growth µs in all", "longest step µs"),
            *("worst look-up µs", "worst without growth"),
        ],
        before=[
            "`rouse-bench fdtable`: look-up and release of one of 1,024 descriptors; then the "
            "table grows to 1,048,576 while the threads go on. The first two double; rouse's adds "
            "1,023 chunks one by one, each a step. A worst look-up has in it what the kernel took "
            "the processor away for, as the last column has."
        ],
    )
    for name, reports in found.items():
        cells = [number(select.of(reports, "cpu_ns_per_op"))]
        for figure in ("growth_us", "longest_step_us", "worst_lookup_us", "worst_calm_lookup_us"):
            cells.append(number(select.of(reports, figure)))
        table.rows.append([name, *cells])
    yield table
