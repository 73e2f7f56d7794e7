# SPDX-License-Identifier: MIT
"""Runs of several commands, taken in turns, so that a drift of the machine meets all alike."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TIME_LIMIT = 180.0


@dataclass
class Series:
    """The reports of one command, a round each; ended by its first failure."""

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
    """Every other round backwards, so that nobody always follows the same one."""
    for number in range(max((one.rounds for one in series), default=0)):
        for one in series if number % 2 == 0 else reversed(series):
            if number < one.rounds and not one.failure:
                one.take()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
