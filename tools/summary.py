#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sum up a run of the checks: failures with their last output, and skipped tests with reasons.

Reads the file of steps that tools/check.sh writes (one per line: result, name, seconds, log file,
separated by tabs) and the logs of `meson test` (one JSON object per line). The last line is
`N passed, N failed, N skipped`. A run in which no test was executed has failed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TAIL_LINES = 60
SLOWEST = 10
PASSED, FAILED, SKIPPED = "passed", "failed", "skipped"
MESON_RESULTS = {"OK": PASSED, "EXPECTEDFAIL": PASSED, "SKIP": SKIPPED, "IGNORED": SKIPPED}
# The line of a program that was not run, or of a skipped Python test case.
REASON = re.compile(r"not run: (.*)|\.\.\. skipped ['\"](?:not run: )?(.*)['\"]$")

# A case of cmocka that passed and printed nothing.
PASSED_CASE = re.compile(r"^\[ RUN      \] (.*)\n\[       OK \] \1\n", re.MULTILINE)


@dataclass(frozen=True)
class Outcome:
    name: str
    result: str
    seconds: float
    output: str
    is_test: bool
    detail: str = ""  # how it failed, if known

    def reasons(self) -> list[str]:
        """The reasons for tests that were not run, from its output."""
        found = (REASON.search(line.strip()) for line in self.output.splitlines())
        return [match[1] or match[2] for match in found if match]


def read_steps(path: Path) -> Iterator[Outcome]:
    for line in path.read_text(encoding="utf-8").splitlines():
        result, name, seconds, log = line.split("\t")
        output = Path(log).read_text(encoding="utf-8", errors="replace") if log else ""
        yield Outcome(name, result, float(seconds), output, is_test=False)


def read_testlog(path: Path) -> Iterator[Outcome]:
    """The tests of one run of `meson test`. The folder above meson-logs names the build."""
    build = path.parent.parent.name
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        record: dict[str, Any] = json.loads(line)
        result = MESON_RESULTS.get(record["result"], FAILED)
        output = "\n".join(filter(None, (record.get("stdout"), record.get("stderr"))))
        name = str(record["name"]).removeprefix("rouse:")
        yield Outcome(
            f"{build}: {name}",
            result,
            float(record.get("duration") or 0),
            output,
            is_test=True,
            detail=f"{str(record['result']).lower()}, status {record.get('returncode')}",
        )


def report(outcomes: list[Outcome]) -> Iterator[str]:
    """The lines to print. The last one has the totals."""
    skipped: list[str] = []
    for outcome in outcomes:
        if outcome.result == FAILED:
            yield f"---- failed: {outcome.name} ({outcome.detail or 'see above'})"
            if outcome.is_test:
                yield from PASSED_CASE.sub("", outcome.output).splitlines()[-TAIL_LINES:]
        reasons = outcome.reasons()
        if outcome.result == SKIPPED and not reasons:
            reasons = ["it gave no reason"]
        # A program that passed may still report that one of its cases was not run.
        if outcome.result == SKIPPED or outcome.is_test:
            skipped += [f"{outcome.name}: {reason}" for reason in reasons]
    for line in skipped:
        yield f"---- not run: {line}"
    tests_run = sum(o.is_test and o.result != SKIPPED for o in outcomes)
    failed = sum(o.result == FAILED for o in outcomes)
    if tests_run == 0:
        yield "---- failed: no test was executed"
        failed += 1
    slowest = sorted((o for o in outcomes if o.is_test), key=lambda o: o.seconds, reverse=True)
    yield "slowest tests:"
    yield from (f"    {outcome.seconds:5.1f} s  {outcome.name}" for outcome in slowest[:SLOWEST])
    passed = sum(o.result == PASSED for o in outcomes)
    yield f"{passed} passed, {failed} failed, {len(skipped)} skipped"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--steps", type=Path, help="the steps that check.sh wrote")
    parser.add_argument("testlogs", nargs="*", type=Path, help="logs of meson test (JSON)")
    options = parser.parse_args()
    outcomes = list(read_steps(options.steps)) if options.steps else []
    for path in options.testlogs:
        outcomes += read_testlog(path)
    lines = list(report(outcomes))
    print("\n".join(lines))
    return 0 if " 0 failed," in lines[-1] else 1


if __name__ == "__main__":
    sys.exit(main())
