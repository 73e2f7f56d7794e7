#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure how well the verdict of `rouse run` finds the planted faults of tests/findings.

Each program runs under `rouse run` once, and then without rouse, faulty and repaired in turn. The
gain is the ratio of the two rates. --write puts the tables into docs/findings/validation.md.

Requires the programs: tools/configure.sh check && ninja -C build/check findings_programs.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "command")]

import checkout  # noqa: E402

try:
    import planted
    from planted import Gain, Planted, Verdict
    from tables import machine, render

    import rouse.run.launch  # noqa: F401 `rouse run` needs its packages
except ImportError as missing:
    checkout.enter(missing, "rouse")

PAGE = ROOT / "docs" / "findings" / "validation.md"
BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True)
class Result:
    program: Planted
    verdict: Verdict | None  # None: this rouse makes no verdict
    gain: Gain | None  # None: a healthy program

    def found(self) -> str:
        """Whether the first finding is the planted fault."""
        if self.verdict is None or not (self.program.kind or self.program.healthy):
            return render.NOTHING
        return "no" if self.program.differences(self.verdict) else "yes"

    def predicted(self, key: str) -> str:
        first = self.verdict and self.verdict.first
        if not first or first.get(key) is None:
            return render.NOTHING
        return f"{first[key]:.2f}"

    def kinds(self) -> str:
        if self.verdict is None:
            return render.NOTHING
        return ", ".join(self.verdict.kinds()) or "none"


def measure(options: argparse.Namespace, scratch: Path) -> Iterator[Result]:
    folder = options.build / "tests" / "findings"
    library = options.build / "preload" / "librouse-preload.so"
    run = planted.runs((sys.executable, "-m", "rouse"))
    for program in planted.programs():
        path = planted.command(program.name, folder)
        if why := planted.why_not(path):
            print(f"{program.name}: not run: {why}", file=sys.stderr, flush=True)
            continue
        report = planted.report(
            run,
            path,
            str(max(options.seconds, program.recorded_s)),
            scratch=scratch,
            ROUSE_PRELOAD=str(library),
            PYTHONPATH=str(ROOT),
        )
        measured = None
        if not program.healthy:
            measured = planted.gain(path, options.seconds, options.rounds, scratch)
        print(f"{program.name}: {measured or 'healthy'}", file=sys.stderr, flush=True)
        yield Result(program, planted.verdict(report), measured)


def faults(results: Sequence[Result]) -> render.Table:
    head = ["program", "fault", "finding", "found first", "gain measured", "at most", "estimate"]
    rows = [
        [
            result.program.name,
            result.program.fault,
            result.program.kind or "none yet",
            result.found(),
            str(result.gain),
            result.predicted("gain_most"),
            result.predicted("gain"),
        ]
        for result in results
        if not result.program.healthy
    ]
    return render.Table("Planted faults", head, rows)


def healthy(results: Sequence[Result]) -> render.Table:
    rows = [
        [result.program.name, result.kinds(), result.found()]
        for result in results
        if result.program.healthy
    ]
    return render.Table("Healthy programs", ["program", "findings", "as expected"], rows)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "check")
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs per program")
    parser.add_argument("--seconds", type=float, default=1, help="duration of each run")
    parser.add_argument("--write", action="store_true", help=f"into docs/findings/{PAGE.name}")
    machine.add_anyway(parser)
    return parser.parse_args()


def main() -> int:
    options = parse()
    load = machine.check_quiet(options.write, options.anyway)
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))
    facts = machine.describe(ROOT, version[1] if version else "?", load)
    facts.append(("runs", f"{options.rounds} pairs per program, {options.seconds:g} s each"))
    with tempfile.TemporaryDirectory(dir=options.build) as scratch:  # journal needs a disk
        try:
            results = list(measure(options, Path(scratch)))
        except (OSError, AssertionError) as reason:
            print(f"findings.py: {reason}", file=sys.stderr)
            return 1
    tables = [faults(results), healthy(results), render.pairs("Machine", facts)]
    text = "\n".join(render.text(table) for table in tables).strip()
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        page = BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
