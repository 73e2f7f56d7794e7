#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare the predictions of `rouse model whatif` with what the change really gains.

A program runs under `rouse run`, which predicts. The prediction is stored. Then the program runs
without rouse, as it is and with the change made, in turn.

--write puts the table into docs/findings/predictions.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]

import checkout  # noqa: E402

try:
    from tables import machine, render

    from rouse.run import launch  # noqa: F401 `rouse run` needs its packages
except ImportError as missing:
    checkout.enter(missing, "rouse")

PAGE = ROOT / "docs" / "findings" / "predictions.md"
BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- end -->)", re.DOTALL)
LOCK = "shared_lock"


@dataclass(frozen=True)
class Case:
    threads: int
    hold_us: int
    outside_us: int
    hold: str  # sleep or cpu
    outside: str
    split: int = 1
    shorten: int = 0  # percent
    reads: int = 0  # percent
    lengthen: int = 0  # µs

    def words(self, is_changed: bool, seconds: float) -> list[str]:
        locks = self.split if is_changed else 1
        hold = self.hold_us * (100 - self.shorten) // 100 if is_changed else self.hold_us
        figures = (self.threads, locks, hold, self.outside_us, self.hold, self.outside, seconds)
        reads = (self.reads,) if is_changed and self.reads else ()
        return [str(figure) for figure in (*figures, *reads)]

    @property
    def change(self) -> str:
        if self.lengthen:
            return f"--lengthen {LOCK}={self.lengthen}"
        if self.reads:
            return f"--rwlock {LOCK}={self.reads}%"
        if self.split > 1:
            return f"--split {LOCK}={self.split}"
        return f"--shorten {LOCK}={self.shorten}%"

    @property
    def program(self) -> str:
        return (
            f"{self.threads} threads: {self.hold_us} µs of {self.hold} under the lock,"
            f" {self.outside_us} µs of {self.outside} outside"
        )


SLEEPS = (8, 1000, 3000, "sleep", "sleep")
COMPUTES = (6, 100, 500, "cpu", "sleep")
BUSY = (4, 50, 50, "cpu", "cpu")
MIXED = (6, 500, 200, "sleep", "cpu")
CASES = (
    *(Case(*SLEEPS, split=2), Case(*SLEEPS, split=4)),
    *(Case(*SLEEPS, shorten=50), Case(*SLEEPS, shorten=75)),
    *(Case(*COMPUTES, split=2), Case(*COMPUTES, split=4), Case(*COMPUTES, shorten=50)),
    *(Case(*BUSY, split=2), Case(*BUSY, shorten=50)),
    *(Case(*MIXED, split=2), Case(*MIXED, split=3), Case(*MIXED, shorten=50)),
    *(Case(*SLEEPS, reads=50), Case(*SLEEPS, reads=90), Case(*MIXED, reads=90)),
    *(Case(*COMPUTES, reads=90), Case(*BUSY, reads=90)),
    *(Case(*SLEEPS, lengthen=500), Case(*COMPUTES, lengthen=50), Case(*BUSY, lengthen=50)),
)


@dataclass(frozen=True)
class Result:
    case: Case
    predicted: float
    least: float
    greatest: float
    measured: list[float]

    @property
    def gain(self) -> float:
        return statistics.median(self.measured)

    @property
    def error(self) -> float:
        return self.predicted / self.gain - 1


def rate(program: Path, words: list[str]) -> float:
    said = subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout
    return rate_of(said)


def rate_of(said: str) -> float:
    found = re.match(r"ops (\d+) seconds ([\d.]+)", said)
    assert found, said
    return int(found[1]) / float(found[2])


def rouse(options: argparse.Namespace, *words: str | Path) -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "ROUSE_PRELOAD": str(options.build / "preload" / "librouse-preload.so"),
    }
    return subprocess.run(
        [sys.executable, "-m", "rouse", *words],
        check=True,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout


def predicted(
    program: Path, case: Case, options: argparse.Namespace, kept: Path
) -> dict[str, float]:
    words = case.words(False, options.seconds)
    rouse(options, "run", "-o", "/dev/null", "--keep", kept, "--", program, *words)
    said = rouse(options, "model", "whatif", "--json", *case.change.split(), kept)
    found: dict[str, float] = json.loads(said)["predictions"][0]
    return found


def changed_rate(program: Path, case: Case, options: argparse.Namespace) -> float:
    words = case.words(True, options.seconds)
    if not case.lengthen:
        return rate(program, words)
    delay = f"{LOCK}={case.lengthen}"
    return rate_of(
        rouse(options, "run", "-o", "/dev/null", "--delay", delay, "--", program, *words)
    )


def measure(options: argparse.Namespace, folder: Path) -> Iterator[Result]:
    program = options.build / "tests" / "command" / "fixtures" / "changed_lock"
    for number, case in enumerate(CASES):
        found = predicted(program, case, options, folder / str(number))
        ratios = []
        for _ in range(options.rounds):
            before = rate(program, case.words(False, options.seconds))
            ratios.append(changed_rate(program, case, options) / before)
        result = Result(case, found["gain"], found["least"], found["greatest"], ratios)
        print(f"{case.program}; {case.change}: {result.error:+.1%}", file=sys.stderr, flush=True)
        yield result


def table(results: list[Result]) -> render.Table:
    head = ["program", "change", "predicted", "measured", "error"]
    made = render.Table("Predictions and what came", head)
    for one in results:
        ends = f"[{min(one.measured):.2f}, {max(one.measured):.2f}]"
        made.rows.append(
            [
                one.case.program,
                one.case.change,
                f"{one.predicted:.2f} [{one.least:.2f}, {one.greatest:.2f}]",
                f"{one.gain:.2f} {ends}",
                f"{100 * one.error:+.0f} %",
            ]
        )
    return made


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "check")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs per case")
    parser.add_argument("--seconds", type=float, default=1, help="duration of each run")
    parser.add_argument("--write", action="store_true", help=f"into docs/findings/{PAGE.name}")
    machine.add_anyway(parser)
    options = parser.parse_args()
    machine.check_quiet(options.write, options.anyway)
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))
    facts = machine.describe(ROOT, version[1] if version else "?")
    facts.append(("runs", f"{options.rounds} pairs per case, {options.seconds:g} s each"))
    with tempfile.TemporaryDirectory() as folder:
        results = list(measure(options, Path(folder)))
    errors = [abs(one.error) for one in results]
    facts.append(("median error", f"{100 * statistics.median(errors):.1f} %"))
    facts.append(("largest error", f"{100 * max(errors):.0f} %"))
    tables = [table(results), render.pairs("Machine", facts)]
    text = "\n".join(render.text(one) for one in tables).strip()
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        page = BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
