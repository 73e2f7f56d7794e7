#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draw the README's chart docs/pictures/threads.svg from the table "Threads" of benchmarks.md.

Each group of bars is one row of that table. The scale is logarithmic: pthreads and rouse lie three
powers of ten apart. A test compares the file with what this script draws.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import plots

ROOT = Path(__file__).resolve().parent.parent
# A row of the table, and the words for it.
ROWS = {
    "spawn+join one at a time, w=1": "create a thread and join it",
    "ping-pong, per round trip, w=2": "wake another thread and be woken by it",
    "ring of 10,000, per hop, w=2": "wake the next of 10,000 threads",
}
# A column of the table, and the colour of its bars.
LIBRARIES = {"pthread": "#8a8f98", "Go": "#4c9ac0", "rouse": "#c2410c"}
LIMITS_NS = (10, 250_000)  # of the axis; the longest bar needs room for its number


def table(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The rows of the table below a heading, by their first cell and the column's name."""
    found = re.search(rf"^## {heading}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert found
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, _, *rows = cells
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in reversed(rows)}


def chart() -> str:
    found = table((ROOT / "docs/benchmarks.md").read_text(encoding="utf-8"), "Threads")
    return plots.groups(
        "Nanoseconds per operation of pthreads, Go and rouse",
        "Nanoseconds per operation, less is better (logarithmic)",
        {words: found[row] for row, words in ROWS.items()},
        LIBRARIES,
        LIMITS_NS,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    place = ROOT / "docs" / "pictures" / "threads.svg"
    parser.add_argument("--to", type=Path, default=place, metavar="FILE")
    parser.parse_args().to.write_text(chart(), encoding="utf-8")


if __name__ == "__main__":
    main()
