# SPDX-License-Identifier: MIT
"""Calls that time out at the ticks of a clock: how many, and how often they wake up for it.

The kernel counts a time-out in ticks, rounded up, from the last tick. A thread that a tick woke
calls again at once, so it is woken n = ceil(t / tick) ticks later. If t is not a multiple of the
tick, the time-out has passed by then. If t is a multiple, the time-out has passed only if those n
gaps between ticks together were longer than t. Otherwise the wake-up is early, the thread sleeps
for one more tick, and the call takes n + 1 ticks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

TICK_MS = 10
LONG, SHORT = 1.001, 0.999  # gaps of a timeline, in ticks: longer than nominal, and shorter


@dataclass(frozen=True)
class Expected:
    """Per second, of all threads. Each wake-up is a switch to the thread, and one away from it."""

    calls: float
    wake_ups: float

    @property
    def early(self) -> float:
        """Wake-ups that ended no call."""
        return self.wake_ups - self.calls

    @property
    def switches(self) -> float:
        """Voluntary switches: a thread gives up its processor once for each wake-up."""
        return self.wake_ups


def ticks_of(timeout_ms: float, tick_ms: float) -> int:
    """The ticks that a time-out takes, rounded up."""
    exact = timeout_ms / tick_ms
    nearest = round(exact)
    return max(1, nearest if math.isclose(exact, nearest, rel_tol=1e-9) else math.ceil(exact))


def is_multiple(timeout_ms: float, tick_ms: float) -> bool:
    return math.isclose(timeout_ms, ticks_of(timeout_ms, tick_ms) * tick_ms, rel_tol=1e-9)


def expected(timeout_ms: float, threads: int, long: float, tick_ms: float = TICK_MS) -> Expected:
    """The expected rates. long: the share of gaps that are longer than the nominal tick."""
    ticks = ticks_of(timeout_ms, tick_ms)
    early = 1 - long if is_multiple(timeout_ms, tick_ms) else 0.0
    calls = threads * 1000 / tick_ms / (ticks + early)
    return Expected(calls, calls * (1 + early))


CLOSE_MOST = 120  # ticks in a line


def timeline(
    timeout_ms: float, gaps_ms: Sequence[float], tick_ms: float = TICK_MS
) -> list[tuple[int, bool]]:
    """The ticks that wake one thread, and whether its call ends there. It calls first at tick 0."""
    at = [0.0]
    for gap in gaps_ms:
        at.append(at[-1] + gap)
    woken, began, due = [], 0, ticks_of(timeout_ms, tick_ms)
    for tick in range(1, len(at)):
        if tick < due:
            continue
        over = at[tick] - at[began] >= timeout_ms
        woken.append((tick, over))
        if over:
            began = tick
        left_ms = timeout_ms if over else timeout_ms - (at[tick] - at[began])
        due = tick + ticks_of(left_ms, tick_ms)
    return woken


def drawing(timeout_ms: float, long: float, tick_ms: float, count: int) -> list[str]:
    """Draw the first ticks of one thread: where it is woken early, and where a call ends.

    Long gaps lie as evenly as their share allows. count: the ticks of short time-outs; a long one
    has as many as two calls take, close together.
    """
    needed = 2 * ticks_of(timeout_ms, tick_ms) + 1
    if needed > CLOSE_MOST:
        return [f"a call takes {ticks_of(timeout_ms, tick_ms):,} ticks: too many to be drawn"]
    is_close = needed > count
    count = needed + 2 if is_close else count  # each call may take a tick more
    gaps, owed = [], 0.0
    for _ in range(count):
        owed += long
        is_long = owed >= 1 - 1e-9
        owed -= is_long
        gaps.append(tick_ms * (LONG if is_long else SHORT))
    woken = dict(timeline(timeout_ms, gaps, tick_ms))
    marks = [{None: "·", True: "●", False: "○"}[woken.get(tick)] for tick in range(1, count + 1)]
    marks.insert(0, "●")
    if is_close:
        drawn = "".join(
            "═" if mark == "·" and tick and gaps[tick - 1] > tick_ms else mark
            for tick, mark in enumerate(marks)
        )
        return [
            drawn,
            "● a call ends, the next begins  ○ woken early  · a tick  ═ after a long gap",
        ]
    lines = "".join("═" if gap > tick_ms else "─" for gap in gaps)
    drawn = marks[0] + "".join(line * 2 + mark for line, mark in zip(lines, marks[1:], strict=True))
    return [drawn, "● a call ends, the next begins  ○ woken early  ═ a gap longer than the tick"]
