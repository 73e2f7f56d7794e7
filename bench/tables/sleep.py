# SPDX-License-Identifier: MIT
"""Sleeping threads: how often, how late and how many at once they wake, by the timers' slack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from tables import rounds
from tables.loads import Scale, timed
from tables.programs import Program, command_line
from tables.render import Table, number
from tables.rounds import Series
from tables.threads import ORIENTATION_ROUNDS

KINDS = ("user", "kernel")
SLACKS_NS = (1, 50_000)
FIGURES = (
    ("wakeups_per_s", "wake-ups/s"),
    ("ideal_per_s", "ideal"),
    ("late_p50_us", "late p50, µs"),
    ("late_p99_us", "p99"),
    ("late_max_us", "most"),
    ("early", "early"),
    ("clumping", "wake-ups an instant"),
    ("switches_per_wakeup", "switches a wake-up"),
    ("cpu_us_per_wakeup", "CPU µs a wake-up"),
)
CAPTION = (
    "`rouse-bench sleepherd`: threads that sleep 10 ms again and again, on two workers or two "
    "processors; medians of the rounds. Workers set their slack to 1 ns by themselves; 50 µs is "
    "the kernel's default, and what its threads have unless somebody sets it. An instant is 10 µs "
    "with a wake-up in it: evenly spread, 100 threads have 1 wake-up an instant, 10,000 have 10. "
    "Switches are the kernel's. Early: wake-ups before their time."
)


def measure(program: Program, threads: int, scale: Scale) -> dict[int, Series]:
    count = scale.rounds if program.key == "user" else min(scale.rounds, ORIENTATION_ROUNDS)
    series = {}
    for slack_ns in SLACKS_NS:
        arguments = ["sleepherd", "-T", str(threads), "--workers", "2", "--slack-ns", str(slack_ns)]
        arguments += timed(scale.sleep_seconds)
        series[slack_ns] = Series(command_line(program, arguments), count)
    rounds.take_turns(list(series.values()))
    return series


def row(program: Program, threads: int, slack_ns: int, series: Series) -> list[str]:
    medians = [median(some) if (some := series.values(figure)) else None for figure, _ in FIGURES]
    slack = "1 ns" if slack_ns == 1 else f"{slack_ns // 1000} µs"
    return [f"{threads:,} x {program.title}", slack, *(number(value) for value in medians)]


def tables(programs: Sequence[Program], scale: Scale) -> Iterator[Table]:
    table = Table(
        "Sleeping threads", ["", "slack", *(name for _, name in FIGURES)], before=[CAPTION]
    )
    for threads in (100, scale.sleepers):
        for program in programs:
            if program.key not in KINDS:
                continue
            rounds.say(f"sleep: {threads} x {program.title}")
            few = replace(scale, rounds=min(scale.rounds, ORIENTATION_ROUNDS))
            heavy = program.key == "kernel" and threads > 1_000
            for slack_ns, series in measure(program, threads, few if heavy else scale).items():
                if series.failure:
                    table.after.append(f"{threads:,} x {program.title}: {series.failure}")
                table.rows.append(row(program, threads, slack_ns, series))
    yield table
