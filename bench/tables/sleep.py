# SPDX-License-Identifier: MIT
"""Sleeping threads: rate, lateness and clumping of wake-ups, by timer slack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tables import rounds
from tables.loads import Scale, timed
from tables.programs import Program, command_line
from tables.render import Table, columns, grid
from tables.rounds import Series
from tables.threads import ORIENTATION_ROUNDS

KINDS = ("user", "kernel")
SLACKS = {"1 ns": "1", "50 µs": "50000"}
COLUMNS = columns(
    ("wake-ups/s", "wakeups_per_s"),
    ("ideal", "ideal_per_s"),
    ("late p50, µs", "late_p50_us"),
    ("p99", "late_p99_us"),
    ("most", "late_max_us"),
    ("early", "early"),
    ("wake-ups per instant", "clumping"),
    ("switches per wake-up", "switches_per_wakeup"),
    ("CPU µs per wake-up", "cpu_us_per_wakeup"),
)
CAPTION = (
    "`rouse-bench sleepherd`: threads that sleep 10 ms again and again, on two workers or two "
    "processors; medians of the rounds. Workers set their own slack to 1 ns. The "
    "kernel's default for its threads is 50 µs. An instant is 10 µs "
    "with a wake-up in it: evenly spread, 100 threads have 1 wake-up per instant, 10,000 have 10. "
    "Switches are the kernel's. Early: wake-ups before their time."
)


def tables(programs: Sequence[Program], scale: Scale) -> Iterator[Table]:
    rows: dict[tuple[str, str], Series] = {}
    for threads in (100, scale.sleepers):
        for program in programs:
            if program.key not in KINDS:
                continue
            rounds.say(f"sleep: {threads} x {program.title}")
            few = program.key != "user"
            case = ("sleepherd", "-T", str(threads), "--workers", "2", "--slack-ns")
            commands = {
                (f"{threads:,} x {program.title}", slack): command_line(
                    program, [*case, ns, *timed(scale.sleep_seconds)]
                )
                for slack, ns in SLACKS.items()
            }
            rows |= rounds.run(
                commands, min(scale.rounds, ORIENTATION_ROUNDS) if few else scale.rounds
            )
    reports = {name: one.reports for name, one in rows.items()}
    table = grid("Sleeping threads", ("", "slack"), COLUMNS, reports, CAPTION)
    table.after += rounds.failures({name[0]: one for name, one in rows.items()})
    yield table
