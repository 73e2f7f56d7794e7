# SPDX-License-Identifier: MIT
"""The programs of tests/findings: what is wrong with each, its rate of work, and the verdict on it.

findings_test.py and bench/findings.py share this module.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "findings"
OUTPUT = re.compile(r"ops (\d+) seconds (\d+\.\d+)\n")
KIND = re.compile(r"\[([a-z-]+)\]")
NUMBERED = re.compile(r"\d+\. ")  # the line of a finding
LIMIT_S = 60
SUFFIXES = (".c", ".cpp", ".java", ".py", ".rs")
NOISY = 1.25  # ratio of the greatest measured gain to the least
Finding = Mapping[str, Any]
Command = Sequence[str | Path]


@dataclass(frozen=True)
class Verdict:
    """The findings of a report, the first one first, and the words where there is none."""

    findings: Sequence[Finding]
    summary: str

    @property
    def first(self) -> Finding | None:
        return self.findings[0] if self.findings else None

    def missing(self, text: Sequence[str]) -> list[str]:
        """The parts of the verdict that a text, by lines, does not have, and findings of its own.

        Findings after the first one may have few words.
        """
        numbered = [line for line in text if NUMBERED.match(line)]
        pairs = itertools.zip_longest(self.findings, numbered)
        wanted = [
            f"{number}: {finding and finding['kind']} is {line!r}"
            for number, (finding, line) in enumerate(pairs, 1)
            if not finding or not line or finding["kind"] not in line
        ]
        if self.first and not wanted and self.first["text"] not in numbered[0]:
            wanted.append(f"1: {self.first['text']!r} is {numbered[0]!r}")
        return wanted + ([self.summary] if self.summary not in "\n".join(text) else [])

    def kinds(self) -> list[str]:
        """The kinds of the findings, and those that the summary has in brackets."""
        in_words = KIND.findall(self.summary)
        return [*(str(finding["kind"]) for finding in self.findings), *in_words]


@dataclass(frozen=True)
class Planted:
    """A program, and the first finding about it. Empty: not compared."""

    name: str
    fault: str = "-"
    kind: str = ""
    waiter: str = ""
    holder: str = ""
    object: str = ""
    predicts: str = ""  # "bound", or "estimate": both
    healthy: bool = False
    allowed: tuple[str, ...] = ()
    # Other objects that may come first, since they are about as bad: each with the function of its
    # waiter and holder.
    alike: tuple[tuple[str, str], ...] = ()
    cured: bool = False
    recorded_s: float = 0.0  # the least duration of a recording in which functions have names

    def differences(self, verdict: Verdict) -> list[str]:
        """Compare the verdict with what is known. Returns a line per difference."""
        kinds, first = verdict.kinds(), verdict.first
        if self.kind and self.kind not in kinds[:1]:
            return [f"{kinds or 'nothing'} instead of {self.kind}"]
        known = (self.kind, *self.allowed)
        wrong = [f"a finding of kind {kind}" for kind in kinds if kind not in known]
        if not self.kind or not first:
            return wrong
        function = dict(self.alike).get(first["object"], "")
        if self.object and not function and first["object"] != self.object:
            wrong.append(f"object {first['object']!r} instead of {self.object!r}")
        for key in ("waiter", "holder"):
            expected = function or getattr(self, key)
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
    for keys in known.values():
        keys["allowed"] = tuple(keys.get("allowed", ()))
        keys["alike"] = tuple(keys.get("alike", {}).items())
    return [Planted(name, **keys) for name, keys in known.items()]


def sources() -> list[Path]:
    return [path for path in FOLDER.iterdir() if path.suffix in SUFFIXES]


def rate_of(printed: str) -> float:
    """Operations per second, from what a program printed."""
    found = OUTPUT.fullmatch(printed)
    if not found:
        raise AssertionError(f"not a line of figures: {printed!r}")
    return int(found[1]) / float(found[2])


def command(name: str, folder: Path) -> Command:
    """The words that start a program. folder: where programs were compiled to."""
    for interpreter, suffix in ((sys.executable, ".py"), ("java", ".java")):
        if (script := FOLDER / f"{name}{suffix}").exists():
            return (interpreter, script)
    return (folder / name,)


def why_not(program: Command) -> str:
    """Why the program cannot run here. Empty: it can."""
    if program[0] == "java" and not shutil.which("javac"):
        return "there is no Java compiler"
    return "" if Path(program[-1]).exists() else f"{program[-1]} was not compiled"


def rate(program: Command, *words: str, scratch: Path) -> float:
    """Run a program as it is. scratch: a folder for its files."""
    done = subprocess.run(
        [*program, *words],
        env={**os.environ, "TMPDIR": str(scratch)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    if done.returncode or done.stderr:
        raise AssertionError(f"{program[-1]}: status {done.returncode}: {done.stderr}")
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


def gain(program: Command, seconds: float, rounds: int, scratch: Path) -> Gain:
    """Run the faulty and the repaired program alternately."""
    ratios = []
    for _ in range(rounds):
        faulty = rate(program, str(seconds), scratch=scratch)
        fixed = rate(program, "fixed", str(seconds), scratch=scratch)
        ratios.append(fixed / faulty)
    return Gain(tuple(ratios))


# Runs `rouse` with those words and environment variables.
Run = Callable[[Sequence[str | Path], Mapping[str, str]], subprocess.CompletedProcess[str]]


def runs(command: Sequence[str]) -> Run:
    """Run `rouse` as a process. command: the words that start it."""

    def run(
        words: Sequence[str | Path], variables: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *words],
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )

    return run


def report(
    run: Run, program: Command, *words: str, scratch: Path, **variables: str
) -> dict[str, Any]:
    """Run a program under `rouse run`. Returns the report.

    The recording is left in scratch/kept.
    """
    file, kept = scratch / "report.json", scratch / "kept"
    shutil.rmtree(kept, ignore_errors=True)
    line = ("run", "--json", "-o", file, "--keep", kept, "--", *program, *words)
    done = run(line, {"TMPDIR": str(scratch), **variables})
    if done.returncode or done.stderr:
        raise AssertionError(f"{program[-1]}: status {done.returncode}: {done.stderr}")
    rate_of(done.stdout)
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def printed(run: Run, scratch: Path, **variables: str) -> list[str]:
    """The lines of the text about the recording that report() has left."""
    done = run(("report", scratch / "kept"), variables)
    if done.returncode:
        raise AssertionError(f"rouse report: status {done.returncode}: {done.stderr}")
    lines: list[str] = done.stdout.splitlines()
    return lines


def verdict(report: Mapping[str, Any]) -> Verdict | None:
    """None: this rouse makes no verdict."""
    made = report.get("verdict")
    return Verdict(made["findings"], made.get("summary", "")) if made else None
