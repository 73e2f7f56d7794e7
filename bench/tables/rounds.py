# SPDX-License-Identifier: MIT
"""Alternating runs of several commands, so that drift of the machine affects all alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TIME_LIMIT = 180.0


@dataclass
class Series:
    """The reports of one command, one per round, until its first failure."""

    command: Sequence[str]
    rounds: int
    environment: Mapping[str, str] = field(default_factory=dict)
    reports: list[dict[str, Any]] = field(default_factory=list)
    failure: str = ""

    def take(self) -> None:
        try:
            done = subprocess.run(
                self.command,
                capture_output=True,
                text=True,
                timeout=TIME_LIMIT,
                env={**os.environ, **self.environment},
                check=False,
            )
        except subprocess.TimeoutExpired:
            self.failure = f"no end within {TIME_LIMIT:.0f} s"
            return
        if done.returncode == 0:
            self.reports.append(json.loads(done.stdout.splitlines()[-1]))
            return
        said = done.stderr.strip().splitlines()
        self.failure = said[-1] if said else f"status {done.returncode}"

    def values(self, figure: str) -> list[float]:
        return [float(report[figure]) for report in self.reports if figure in report]


def take_turns(series: Sequence[Series]) -> None:
    """Every other round runs backwards, so that no command always follows the same one."""
    for number in range(max((one.rounds for one in series), default=0)):
        for one in series if number % 2 == 0 else reversed(series):
            if number < one.rounds and not one.failure:
                one.take()


def run(commands: Mapping[Any, Sequence[str]], count: int) -> dict[Any, Series]:
    """Run each command count times, in turns."""
    series = {name: Series(command, count) for name, command in commands.items()}
    take_turns(list(series.values()))
    return series


def reports_of(
    commands: Mapping[str, Sequence[str]], count: int
) -> dict[str, list[dict[str, Any]]]:
    """Run each command in turns and return the reports. Any failure is fatal, because rows are
    compared."""
    series = run(commands, count)
    for name, one in series.items():
        if one.failure:
            raise RuntimeError(f"{one.command[1]}, {name}: {one.failure}")
    return {name: one.reports for name, one in series.items()}


def failures(series: Mapping[str, Series]) -> list[str]:
    return [f"{name}: {one.failure}" for name, one in series.items() if one.failure]


def bench(build: Path, *arguments: str) -> list[str]:
    """The command line of one case of rouse-bench."""
    return [str(build / "bench" / "rouse-bench"), *arguments, "--json"]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
