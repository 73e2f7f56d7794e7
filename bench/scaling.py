#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Simulate the scheduler on up to 256 processors, for docs/scale.md, and compare with real runs.

--measure runs rouse-bench steal on one and two workers. Without it only the simulation runs.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from scale import study
from scale.simulator import Costs
from tables import machine, render, rounds
from tables.render import Table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scale.md"
ROUNDS = 5


def validated(build: Path, costs: Costs) -> Table:
    commands = {
        (threads, workers): rounds.bench(build, *study.steal_words(threads, workers))
        for threads in study.BURSTS
        for workers in (1, 2)
    }
    series = rounds.run(commands, ROUNDS)
    if failed := [one.failure for one in series.values() if one.failure]:
        raise RuntimeError(failed[0])
    return study.validation({key: one.reports for key, one in series.items()}, costs)


def written(page: str, name: str, tables: list[Table]) -> str:
    # The page has the headings of the level above.
    text = "\n\n".join("#" + render.text(table).strip() for table in tables)
    block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    return block.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--measure", action="store_true", help="compare with real runs, too")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    machine.add_anyway(parser)
    options = parser.parse_args()
    machine.check_quiet(options.write and options.measure, options.anyway)
    costs = Costs()
    found: dict[str, list[Table]] = {}
    try:
        if options.measure:
            found["validation"] = [validated(options.build, costs)]
    except (OSError, RuntimeError) as reason:
        print(f"scaling.py: {reason}", file=sys.stderr)
        return 1
    found["requests"] = study.request_tables(costs)
    found["bursts"] = study.burst_tables(costs)
    found["sensitivity"] = [study.sensitivity(costs)]
    page = PAGE.read_text(encoding="utf-8")
    for name, tables in found.items():
        print("\n\n".join(map(render.text, tables)), end="\n\n")
        page = written(page, name, tables)
    if options.write:
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
