# SPDX-License-Identifier: MIT
"""Measure the cost of recording a program: run it in pairs, without the interposer and with it."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rouse.errors import RouseError
from rouse.text import duration

NS = 1_000_000_000


@dataclass(frozen=True)
class Cost:
    """The cost of one run with all processes that it waited for, in ns."""

    cpu_ns: int
    elapsed_ns: int


def once(words: Sequence[str], environment: Mapping[str, str]) -> Cost:
    begin = time.monotonic_ns()
    try:
        program = subprocess.Popen(words, env=environment, close_fds=False)
    except OSError as error:
        raise RouseError(f"{words[0]}: {error.strerror}", status=126) from error
    _, status, used = os.wait4(program.pid, 0)
    elapsed = time.monotonic_ns() - begin
    program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        how = f"with {program.returncode}" if program.returncode > 0 else "by a signal"
        raise RouseError(f"{words[0]}: a run ended {how}: nothing is compared", status=1)
    return Cost(round((used.ru_utime + used.ru_stime) * NS), elapsed)


def pairs(
    count: int, plain: Callable[[], Cost], recorded: Callable[[], Cost]
) -> list[tuple[Cost, Cost]]:
    """Run in pairs whose order alternates, because a machine drifts.

    The first runs read cold files from the disk, and are not counted.
    """
    plain()
    recorded()
    found = []
    for number in range(count):
        if number % 2:
            second = recorded()
            found.append((plain(), second))
        else:
            first = plain()
            found.append((first, recorded()))
    return found


def summary(found: Sequence[tuple[Cost, Cost]]) -> dict[str, dict[str, Any]]:
    """Return both medians of each measure, and the median and extremes of the pairs' ratios."""
    made = {}
    for name in ("cpu_ns", "elapsed_ns"):
        both = [(getattr(plain, name), getattr(with_it, name)) for plain, with_it in found]
        ratios = [with_it / plain for plain, with_it in both if plain > 0]
        made[name] = {
            "without": round(statistics.median(plain for plain, _ in both)),
            "with": round(statistics.median(with_it for _, with_it in both)),
            "ratio": statistics.median(ratios) if ratios else None,
            "least": min(ratios, default=None),
            "most": max(ratios, default=None),
        }
    return made


def lines(count: int, made: Mapping[str, Mapping[str, Any]]) -> list[str]:
    found = []
    of = "1 pair" if count == 1 else f"{count} pairs"
    for name, title in (("cpu_ns", "CPU time"), ("elapsed_ns", "elapsed")):
        row = made[name]
        ratio = "not known: there is too little of it"
        if row["ratio"] is not None:
            ratio = f"{row['ratio']:.3f} [{row['least']:.3f}, {row['most']:.3f}]"
        found.append(
            f"{title}, {of}: {duration(row['without'])} without recording,"
            f" {duration(row['with'])} with it: {ratio}"
        )
    return found
