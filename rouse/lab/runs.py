# SPDX-License-Identifier: MIT
"""Runs the rows of an experiment by rouse-bench, in rounds, and keeps their figures."""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import struct
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rouse.errors import RouseError
from rouse.lab.experiments import PROGRAM, Experiment, Run, Step
from rouse.lab.processes import ancestors
from rouse.lab.quiet import Reading
from rouse.text import printable

LOCK = "\0rouse-lab"  # an abstract socket: it is gone with the process that has it
CREDENTIALS = "3i"  # process, user, group
LIMIT_S = 60  # beyond what a row was asked to take


@dataclass
class Result:
    step: Step
    reports: list[dict[str, Any]] = field(default_factory=list)  # one of each round
    error: str = ""

    def values(self, key: str) -> list[float]:
        found = [report.get(key) for report in self.reports]
        return [float(value) for value in found if value is not None]

    def median(self, key: str) -> float | None:
        values = self.values(key)
        return statistics.median(values) if values else None

    @property
    def remark(self) -> str:
        """Return what the last round says about its figures."""
        return str(self.reports[-1].get("remark", "")) if self.reports else ""


@dataclass(frozen=True)
class Study:
    """An experiment on this machine: all that its page shows."""

    experiment: Experiment
    results: Sequence[Result]
    readings: Sequence[Reading]
    seconds: float  # of each row and round
    rounds: int
    machine: str
    date: str
    versions: Sequence[str] = ()  # of the programs that it runs


def find(name: str) -> Path | None:
    """Find a program: of the installed command, of the source tree, or of PATH."""
    here = Path(__file__).resolve().parents[2]  # PREFIX/lib/rouse, or the source tree
    built = here / "build" / "release"
    folders = (here.parent.parent / "bin", here / "programs", built / "bench", built / "serve")
    for folder in folders:
        if os.access(folder / name, os.X_OK):
            return folder / name
    found = shutil.which(name)
    return Path(found) if found else None


def program(name: str = PROGRAM) -> Path:
    if path := find(name):
        return path
    raise RouseError(f"{name}: is not installed", "make install installs it")


def only_one(lock: str = LOCK) -> socket.socket:
    """Return what keeps a second laboratory from this machine, while it is open.

    A laboratory that another one has started, as `rouse lab quiet --set` does, runs within it.
    """
    holder = socket.socket(socket.AF_UNIX)
    try:
        holder.bind(lock)
        holder.listen()
    except OSError as error:
        holder.close()
        pid = holder_of(lock)
        if pid in ancestors(os.getpid()):
            return only_one(f"{lock} in {pid}")
        who = f"another rouse lab (process {pid})" if pid else "another rouse lab"
        raise RouseError(f"{who} runs on this machine; wait for its end") from error
    return holder


def holder_of(lock: str) -> int:
    """Return the process that holds the lock, as the kernel knows it. 0: it ends just now."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.setblocking(False)
        try:
            asked.connect(lock)
            size = struct.calcsize(CREDENTIALS)
            found = asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        except OSError:
            return 0
    pid, _, _ = struct.unpack(CREDENTIALS, found)
    return int(pid)


def run_row(bench: Path, step: Step, seconds: float) -> tuple[dict[str, Any], str]:
    """Run a row. Returns its report, or why there is none."""
    words = [str(bench), *step.words.split(), "--seconds", f"{seconds:g}", "--json"]
    settings = dict(each.split("=", 1) for each in step.settings.split())
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=seconds * 4 + LIMIT_S,
            env={**os.environ, **settings},
        )
    except subprocess.TimeoutExpired:
        return {}, f"it did not end within {seconds * 4 + LIMIT_S:g} s"
    except OSError as error:
        return {}, str(error.strerror)
    said = printable((done.stderr.strip().splitlines() or [""])[-1])
    if done.returncode:
        return {}, said or f"status {done.returncode}"
    try:
        report: dict[str, Any] = json.loads(done.stdout.splitlines()[0])
    except (IndexError, ValueError):
        return {}, "its output is no JSON"
    calls, voluntary = report.get("total_ops"), report.get("voluntary_switches")
    if calls and voluntary is not None:
        report["voluntary_per_op"] = voluntary / calls
    return report, ""


def by_bench(bench: Path) -> Run:
    return lambda step, seconds: run_row(bench, step, seconds)


def run(
    experiment: Experiment, seconds: float, rounds: int, tell: Callable[[str], None]
) -> Sequence[Result]:
    """Run the rows in turn, round after round, so that all of them see the same disturbances."""
    measure = experiment.run or by_bench(program())
    results = [Result(step) for step in experiment.steps]
    count = rounds * len(results)
    for number in range(rounds):
        for place, result in enumerate(results):
            at = number * len(results) + place + 1
            tell(f"{experiment.name}: {at} of {count}: {result.step.label}")
            if result.error:
                continue
            report, result.error = measure(result.step, seconds)
            if report:
                result.reports.append(report)
    return results
