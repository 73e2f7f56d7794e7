# SPDX-License-Identifier: MIT
"""The tables of a program that findings are made of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rouse.query.finding import Row

UNEXPLAINED = "unexplained"
# The parts of the threads' time in order, each with the microstates that it sums up.
PARTS = (
    ("running", ("usr",)),
    ("queued", ("lat",)),
    ("locks", ("mutex", "rwlock")),
    ("conditions", ("cond", "sem")),
    ("joins", ("join",)),
    ("I/O", ("io", "poll")),
    ("clients", ("accept",)),
    ("timers", ("sleep",)),
    (UNEXPLAINED, ("in_call", "missing")),
)
STATES = tuple(state for _, states in PARTS for state in states)


@dataclass(frozen=True)
class Program:
    """The tables that the findings are made of."""

    threads: list[Row]
    locks: list[Row]
    sides: list[Row]
    wakes: list[Row]
    polls: list[Row]
    herd_wakes: int  # threads that were woken together with others
    herd_calls: int  # calls that woke several
    wall_ns: int  # how long the program was recorded
    processors: int
    ran_ns: float  # the CPU time of the program
    in_kernel: float  # the part of it in the kernel
    others_ran_ns: float  # the CPU time of other programs on its processors

    def has_herds(self, useless: int) -> bool:
        """Whether calls that woke several threads can have caused so many useless wake-ups."""
        return 2 * self.herd_wakes >= useless

    def sum(self, *states: str, rows: Iterable[Row] | None = None) -> float:
        chosen = self.threads if rows is None else rows
        return float(sum(max(row[state] or 0, 0) for row in chosen for state in states))
