# SPDX-License-Identifier: MIT
"""The tables of three cases of rouse-bench: sleep, fdtable and steal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from tables import loads, rounds, select
from tables.programs import Program, command_line
from tables.render import Table, columns, grid
from tables.threads import rounds_of

# Sleeping threads: rate, lateness and clumping of wake-ups, by timer slack.
SLEEPERS = ("user", "kernel")
SLACKS = {"1 ns": "1", "50 µs": "50000"}
WAKE_UPS = columns(
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
ABOUT_WAKE_UPS = (
    "`rouse-bench sleepherd`: threads that sleep 10 ms again and again, on two workers or two "
    "processors; medians of the rounds. Workers set their own slack to 1 ns. The "
    "kernel's default for its threads is 50 µs. An instant is 10 µs "
    "with a wake-up in it: evenly spread, 100 threads have 1 wake-up per instant, 10,000 have 10. "
    "Switches are the kernel's. Early: wake-ups before their time."
)


def sleep(programs: Sequence[Program], scale: loads.Scale) -> Iterator[Table]:
    rows: dict[tuple[str, str], rounds.Series] = {}
    time = loads.timed(scale.sleep_seconds)
    for threads in (100, scale.sleepers):
        for program in programs:
            if program.key not in SLEEPERS:
                continue
            rounds.say(f"sleep: {threads} x {program.title}")
            case = ("sleepherd", "-T", str(threads), "--workers", "2", "--slack-ns")
            commands = {
                (f"{threads:,} x {program.title}", slack): command_line(program, [*case, ns, *time])
                for slack, ns in SLACKS.items()
            }
            rows |= rounds.run(commands, rounds_of(program, scale))
    reports = {name: one.reports for name, one in rows.items()}
    failures = rounds.failures({name[0]: one for name, one in rows.items()})
    head = ("", "slack")
    yield grid("Sleeping threads", head, WAKE_UPS, reports, ABOUT_WAKE_UPS, failures)


# Descriptor tables: the cost of a look-up, and the delay of look-ups while a table grows.
FD_TABLES = {
    "array under a reader-writer lock": "rwlock",
    "Solaris: lock the file, look again": "recheck",
    "rouse: chunks": "chunks",
}
LOOK_UPS = columns(
    ("CPU ns per look-up", "cpu_ns_per_op"),
    ("growth µs in total", "growth_us"),
    ("longest step µs", "longest_step_us"),
    ("worst look-up µs", "worst_lookup_us"),
    ("worst without growth", "worst_calm_lookup_us"),
)
ABOUT_LOOK_UPS = (
    "`rouse-bench fdtable`: look-up and release of one of 1,024 descriptors; then the "
    "table grows to 1,048,576 while the threads go on. The first two double; rouse's adds "
    "1,023 chunks one by one, each a step. A worst look-up includes time for which the "
    "kernel ran something else, as does the last column."
)


def fdtable(build: Path, scale: select.Scale) -> Iterator[Table]:
    rounds.say("fdtable")
    options = ("--threads", "kernel", "--seconds", str(scale.seconds / 3))
    commands = {
        f"{title}, {n}": rounds.bench(build, "fdtable", "--table", kind, "-T", str(n), *options)
        for title, kind in FD_TABLES.items()
        for n in (1, 2)
    }
    rows = rounds.reports_of(commands, scale.rounds)
    head = "table, threads that look up"
    yield grid("Descriptor tables: look-up and growth", head, LOOK_UPS, rows, ABOUT_LOOK_UPS)


# Steal affinity and placement: throughput, steals and waits in the run queue.
FOOTPRINTS = {"none": 0, "32 KiB": 32768, "256 KiB": 262144}
PLACES = {
    **{f"steal, affinity {level}": ("--affinity", str(level)) for level in range(1, 7)},
    "shortest queue": ("--place", "shortest"),
}
TURNS = columns(
    ("µs per turn", "ns_per_op", "", 1e-3),
    ("CPU µs per turn", "cpu_ns_per_op", "", 1e-3),
    ("steals per 1,000 turns", "steals_per_1000"),
    ("stolen per 1,000 turns", "stolen_per_1000"),
    ("wait p50 µs", "wait_p50_us"),
    ("wait p99 µs", "wait_p99_us"),
)
WORKERS = 2
ABOUT_TURNS = (
    f"`rouse-bench steal`: 64 threads at a time are created on one of {WORKERS} workers; "
    "each has 1 to 16 turns. In a turn it reads its own bytes or, if it has none, "
    "computes. The wait is from creation or yield to the turn."
)


def steal(build: Path, scale: select.Scale) -> Iterator[Table]:
    size = ("--workers", str(WORKERS), "--seconds", str(scale.seconds / 3))
    for title, footprint in FOOTPRINTS.items():
        rounds.say(f"steal, footprint {title}")
        commands = {
            name: rounds.bench(build, "steal", *words, "--footprint", str(footprint), *size)
            for name, words in PLACES.items()
        }
        rows = rounds.reports_of(commands, scale.rounds)
        yield grid(f"Steal affinity: footprint {title}", "placement", TURNS, rows, ABOUT_TURNS)
