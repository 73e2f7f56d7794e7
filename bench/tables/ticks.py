# SPDX-License-Identifier: MIT
"""poll(0, 0, t) from many threads at a clock's ticks: expected and measured rates.

The model is that of `rouse model tick`, in rouse/model/ticks.py.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from tables import rounds, select
from tables.render import NOTHING, Table, number, of
from tables.select import Data, Reports, Scale

sys.path.append(str(Path(__file__).resolve().parents[2]))

from rouse.model.ticks import TICK_MS, expected, timeline

__all__ = ["expected", "timeline"]
TIMEOUTS_MS = (9, 10, 11)
SOURCE_LONG = 0.2  # in the source, about a fifth of the gaps exceed 10 ms
HEAD = ("calls/s", "wake-ups/s", "switches/s", "late p50 µs", "late p99 µs", "wake-ups per instant")
WAYS = {
    "tick": (*select.LAYER, "--timer", "tick"),
    "exact": (*select.LAYER, "--timer", "exact"),
    **select.BESIDE,
}


def measure(build: Path, scale: Scale) -> Data:
    data: Data = {}
    for timeout in TIMEOUTS_MS:
        rounds.say(f"select: poll(0, 0, {timeout}) from {scale.sleepers} threads")
        options = ("-T", str(scale.sleepers), "--sets", "0", "--timeout-us", f"{timeout}000")
        seconds = ("--seconds", str(max(scale.seconds, 0.2)))
        commands = {
            name: rounds.bench(build, "selectherd", *words, *options, *seconds)
            for name, words in WAYS.items()
        }
        data[f"poll {timeout}"] = rounds.reports_of(commands, scale.rounds)
    return data


def long_share(reports: Reports) -> float:
    """The share of calls whose first due tick came late enough."""
    return 1 - min(1.0, of(reports, "early", "total_ops"))


def measured(reports: Reports) -> list[str]:
    calls = of(reports, "calls_per_s")
    early = of(reports, "early", "total_ops")
    figures = ("late_p50_us", "late_p99_us", "clumping")
    switches = calls * of(reports, "switches_per_call")
    cells = [number(calls), number(calls * (1 + early)), number(switches)]
    return cells + [number(of(reports, figure)) for figure in figures]


def tables_of(data: Data, scale: Scale) -> Iterator[Table]:
    table = Table(
        f"poll(0, 0, t) from {scale.sleepers} threads, ticks of {TICK_MS} ms",
        ["t, and the timer", *HEAD],
        before=[
            "Expected at ticks: by the rule that time-outs are counted in ticks, rounded up. For "
            "10 ms it needs how often a gap between ticks is longer than 10 ms: the "
            "source says a fifth; `as here` uses the share measured in the row below "
            "it. An early wake-up completes no call. Switches are all switches of the "
            "process, including involuntary ones."
        ],
    )
    for timeout in TIMEOUTS_MS:
        part = data[f"poll {timeout}"]
        shares = {"": SOURCE_LONG}
        if timeout % TICK_MS == 0:
            here = long_share(part["tick"])
            shares = {", a fifth of gaps long": SOURCE_LONG, f", {100 * here:.0f} % as here": here}
        for words, share in shares.items():
            e = expected(timeout, scale.sleepers, share)
            cells = [number(e.calls), number(e.wake_ups), *[NOTHING] * 4]
            table.rows.append([f"{timeout} ms, expected at ticks{words}", *cells])
        for name, reports in part.items():
            who = f"measured, {name}" if name in ("tick", "exact") else name
            table.rows.append([f"{timeout} ms, {who}", *measured(reports)])
    yield table


def tables(build: Path, scale: Scale) -> Iterator[Table]:
    yield from tables_of(measure(build, scale), scale)
