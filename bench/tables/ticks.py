# SPDX-License-Identifier: MIT
"""poll(0, 0, t) from many threads at a clock's ticks: expected and measured rates.

The kernel counts a time-out in ticks, rounded up, from the last tick. A thread that a tick woke
calls again at once, so it is woken n = ceil(t / tick) ticks later. If t is not a multiple of the
tick, the time-out has passed by then. If t is a multiple, the time-out has passed only if those n
gaps between ticks together were longer than t. Otherwise the wake-up is early, the thread sleeps
for one more tick, and the call takes n + 1 ticks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import rounds, select
from tables.render import NOTHING, Table, number, of
from tables.select import Data, Reports, Scale

TICK_MS = 10
TIMEOUTS_MS = (9, 10, 11)
SOURCE_LONG = 0.2  # in the source, about a fifth of the gaps exceed 10 ms
HEAD = ("calls/s", "wake-ups/s", "switches/s", "late p50 µs", "late p99 µs", "wake-ups per instant")
WAYS = {
    "tick": (*select.LAYER, "--timer", "tick"),
    "exact": (*select.LAYER, "--timer", "exact"),
    **select.BESIDE,
}


@dataclass(frozen=True)
class Expected:
    """Calls and wake-ups per second. Each wake-up is a switch to the thread and one away."""

    calls: float
    wake_ups: float


def expected(timeout_ms: float, threads: int, long: float, tick_ms: float = TICK_MS) -> Expected:
    """The expected rates. long: the share of gaps that are longer than the nominal tick."""
    ticks = max(1, math.ceil(timeout_ms / tick_ms))
    early = 1 - long if timeout_ms == ticks * tick_ms else 0.0
    calls = threads * 1000 / tick_ms / (ticks + early)
    return Expected(calls, calls * (1 + early))


def timeline(timeout_ms: float, gaps_ms: Sequence[float]) -> list[tuple[int, bool]]:
    """The ticks that wake one thread, and whether its call ends there. It calls first at tick 0."""
    at = [0.0]
    for gap in gaps_ms:
        at.append(at[-1] + gap)
    woken, began, due = [], 0, max(1, math.ceil(timeout_ms / TICK_MS))
    for tick in range(1, len(at)):
        if tick < due:
            continue
        over = at[tick] - at[began] >= timeout_ms
        woken.append((tick, over))
        if over:
            began = tick
        left_ms = timeout_ms if over else timeout_ms - (at[tick] - at[began])
        due = tick + max(1, math.ceil(left_ms / TICK_MS))
    return woken


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
