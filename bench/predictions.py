#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare the predictions of `rouse model whatif` with what the change really gains.

A program runs under `rouse run`, which predicts. The prediction is stored. Then the program runs
without rouse, as it is and with the change made, in turn.

--write puts the table into docs/findings/predictions.md.
"""

from __future__ import annotations

import argparse
import contextlib
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

    def predicted(self, options: argparse.Namespace, kept: Path) -> dict[str, float]:
        words = self.words(False, options.seconds)
        rouse(options, "run", "-o", "/dev/null", "--keep", kept, "--", fixture(options), *words)
        return prediction(options, self.change, kept)

    def rates(self, options: argparse.Namespace) -> tuple[float, float]:
        before = rate(fixture(options), self.words(False, options.seconds))
        words = self.words(True, options.seconds)
        if not self.lengthen:
            return before, rate(fixture(options), words)
        delay = ("--delay", f"{LOCK}={self.lengthen}")
        said = rouse(options, "run", "-o", "/dev/null", *delay, "--", fixture(options), *words)
        return before, rate_of(said)

    @property
    def program(self) -> str:
        return (
            f"{self.threads} threads: {self.hold_us} µs of {self.hold} under the lock,"
            f" {self.outside_us} µs of {self.outside} outside"
        )


@dataclass(frozen=True)
class Server:
    """rouse-serve with a lock that all connections share, under wrk."""

    held_us: int
    shorten: int  # percent
    connections: int = 16
    workers: int = 2

    @property
    def change(self) -> str:
        return f"--shorten shared={self.shorten}%"

    @property
    def program(self) -> str:
        return (
            f"rouse-serve, {self.connections} connections: {self.held_us} µs of cpu under the lock"
            " that they share"
        )

    @contextlib.contextmanager
    def running(
        self, options: argparse.Namespace, is_changed: bool, **variables: str
    ) -> Iterator[int]:
        """Start the server, and give its port."""
        held = self.held_us * (100 - self.shorten) // 100 if is_changed else self.held_us
        words = ("--port", "0", "--workers", str(self.workers), "--per-address", "0")
        program = options.build / "serve" / "rouse-serve"
        process = subprocess.Popen(
            [program, *words, "--respond", "hello", "--shared-lock", str(held)],
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert process.stdout
            found = re.search(r":(\d+)\b", process.stdout.readline())
            assert found
            yield int(found[1])
        finally:
            process.terminate()
            process.communicate()

    def rate(self, port: int, seconds: float) -> float:
        words = ("-t", "1", "-c", str(self.connections), "-d", f"{seconds:g}s")
        said = subprocess.run(
            ["wrk", *words, f"http://127.0.0.1:{port}/"], check=True, capture_output=True, text=True
        ).stdout
        found = re.search(r"Requests/sec: +([\d.]+)", said)
        assert found, said
        return float(found[1])

    def predicted(self, options: argparse.Namespace, kept: Path) -> dict[str, float]:
        kept.mkdir(mode=0o700)
        variables = {"ROUSE_OBS": "locks", "ROUSE_OBS_DIR": str(kept), "ROUSE_OBS_KEEP": "1"}
        with self.running(options, False, **variables) as port:
            self.rate(port, options.seconds)
        return prediction(options, self.change, kept)

    def rates(self, options: argparse.Namespace) -> tuple[float, float]:
        found = []
        for is_changed in (False, True):
            with self.running(options, is_changed) as port:
                found.append(self.rate(port, options.seconds))
        return found[0], found[1]


SLEEPS = (8, 1000, 3000, "sleep", "sleep")
COMPUTES = (6, 100, 500, "cpu", "sleep")
BUSY = (4, 50, 50, "cpu", "cpu")
MIXED = (6, 500, 200, "sleep", "cpu")
CASES: tuple[Case | Server, ...] = (
    *(Case(*SLEEPS, split=2), Case(*SLEEPS, split=4)),
    *(Case(*SLEEPS, shorten=50), Case(*SLEEPS, shorten=75)),
    *(Case(*COMPUTES, split=2), Case(*COMPUTES, split=4), Case(*COMPUTES, shorten=50)),
    *(Case(*BUSY, split=2), Case(*BUSY, shorten=50)),
    *(Case(*MIXED, split=2), Case(*MIXED, split=3), Case(*MIXED, shorten=50)),
    *(Case(*SLEEPS, reads=50), Case(*SLEEPS, reads=90), Case(*MIXED, reads=90)),
    *(Case(*COMPUTES, reads=90), Case(*BUSY, reads=90)),
    *(Case(*SLEEPS, lengthen=500), Case(*COMPUTES, lengthen=50), Case(*BUSY, lengthen=50)),
    *(Server(200, shorten=50), Server(200, shorten=75)),
)


@dataclass(frozen=True)
class Result:
    case: Case | Server
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


def fixture(options: argparse.Namespace) -> Path:
    build: Path = options.build
    return build / "tests" / "command" / "fixtures" / "changed_lock"


def prediction(options: argparse.Namespace, change: str, kept: Path) -> dict[str, float]:
    said = rouse(options, "model", "whatif", "--json", *change.split(), kept)
    found: dict[str, float] = json.loads(said)["predictions"][0]
    return found


def measure(options: argparse.Namespace, folder: Path) -> Iterator[Result]:
    for number, case in enumerate(CASES):
        found = case.predicted(options, folder / str(number))
        ratios = []
        for _ in range(options.rounds):
            before, after = case.rates(options)
            ratios.append(after / before)
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
    load = machine.check_quiet(options.write, options.anyway)
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))
    facts = machine.describe(ROOT, version[1] if version else "?", load)
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
