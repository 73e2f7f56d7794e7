# SPDX-License-Identifier: MIT
"""The programs of tests/findings: what is wrong with each, its rate of work, and the verdict on it.

findings_test.py and bench/findings.py share this module.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "findings"
OUTPUT = re.compile(r"ops (\d+) seconds (\d+\.\d+)\n")
LIMIT_S = 60
NOISY = 1.25  # ratio of the greatest measured gain to the least
Finding = Mapping[str, Any]


@dataclass(frozen=True)
class Planted:
    """A program, and the first finding about it. Empty: not compared."""

    name: str
    fault: str = "-"
    kind: str = ""
    waiter: str = ""
    holder: str = ""
    object: str = ""
    predicts: bool = False
    healthy: bool = False
    allowed: tuple[str, ...] = ()

    def differences(self, findings: Sequence[Finding]) -> list[str]:
        """Compare the verdict's findings with what is known. Returns a line per difference."""
        if self.healthy:
            return [f"{f['kind']}: {f['text']}" for f in findings if f["kind"] not in self.allowed]
        if not self.kind:
            return []
        if not findings:
            return [f"no finding instead of {self.kind}"]
        first = findings[0]
        wrong = []
        for key in ("kind", "object"):
            expected = getattr(self, key)
            if expected and first[key] != expected:
                wrong.append(f"{key} {first[key]!r} instead of {expected!r}")
        for key in ("waiter", "holder"):
            expected = getattr(self, key)
            if expected and not is_in(expected, first[key]):
                wrong.append(f"{key} {first[key]!r} instead of {expected!r}")
        return wrong


def is_in(function: str, label: str) -> bool:
    """Whether the label of a site, `function file:line`, is in this function.

    A function that was inlined has no class in its label, so only the last name is compared.
    """
    return label.rpartition(" ")[0].rpartition("::")[2] == function.rpartition("::")[2]


def programs() -> list[Planted]:
    with (FOLDER / "expected.toml").open("rb") as file:
        known = tomllib.load(file)
    return [
        Planted(name, **{**keys, "allowed": tuple(keys.get("allowed", ()))})
        for name, keys in known.items()
    ]


def rate_of(printed: str) -> float:
    """Operations per second, from what a program printed."""
    found = OUTPUT.fullmatch(printed)
    if not found:
        raise AssertionError(f"not a line of figures: {printed!r}")
    return int(found[1]) / float(found[2])


def rate(program: Path, *words: str, scratch: Path) -> float:
    """Run a program as it is. scratch: a folder for its files."""
    done = subprocess.run(
        [program, *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode or done.stderr:
        raise AssertionError(f"{program.name}: status {done.returncode}: {done.stderr}")
    return rate_of(done.stdout)


@dataclass(frozen=True)
class Gain:
    """The ratios of the repaired program's rate to the faulty one's, one per pair of runs."""

    ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    @property
    def is_noisy(self) -> bool:
        return max(self.ratios) > NOISY * min(self.ratios)

    def __str__(self) -> str:
        return f"{self.median:.2f} [{min(self.ratios):.2f}, {max(self.ratios):.2f}]"


def gain(program: Path, seconds: float, rounds: int, scratch: Path) -> Gain:
    """Run the faulty and the repaired program alternately."""
    ratios = []
    for _ in range(rounds):
        faulty = rate(program, str(seconds), scratch=scratch)
        fixed = rate(program, "fixed", str(seconds), scratch=scratch)
        ratios.append(fixed / faulty)
    return Gain(tuple(ratios))


def report(
    command: Sequence[str], program: Path, *words: str, scratch: Path, **variables: str
) -> dict[str, Any]:
    """Run a program under `rouse run`. Returns the report. command: the words that start rouse."""
    file = scratch / f"{program.name}.json"
    done = subprocess.run(
        [*command, "run", "--json", "-o", file, "--", program, *words],
        env={**os.environ, "TMPDIR": str(scratch), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode or done.stderr:
        raise AssertionError(f"{program.name}: status {done.returncode}: {done.stderr}")
    rate_of(done.stdout)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def findings(report: Mapping[str, Any]) -> list[Finding] | None:
    """The verdict's findings, the first one first. None: this rouse makes no verdict."""
    if "verdict" not in report:
        return None
    found: list[Finding] = report["verdict"]["findings"]
    return found
