#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draw the README's chart docs/pictures/threads.svg from the table "Threads" of benchmarks.md.

Each group of bars is one row of that table. The scale is logarithmic: pthreads and rouse lie three
powers of ten apart. A test compares the file with what this script draws.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# A row of the table, and the words for it.
ROWS = (
    ("spawn+join one at a time, w=1", "create a thread and join it"),
    ("ping-pong, per round trip, w=2", "wake another thread and be woken by it"),
    ("ring of 10,000, per hop, w=2", "wake the next of 10,000 threads"),
)
# A column of the table, and the colour of its bars.
LIBRARIES = (("pthread", "#8a8f98"), ("Go", "#4c9ac0"), ("rouse", "#c2410c"))
LEFT, RIGHT, BAR, GAP, TITLE, HEAD = 80, 90, 16, 26, 20, 34
WIDTH = 720
LEAST_NS, MOST_NS = 10, 100_000


def table(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The rows of the table below a heading, by their first cell and the column's name."""
    found = re.search(rf"^## {heading}\n(.*?)^## ", text, re.DOTALL | re.MULTILINE)
    assert found
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    head, _, *rows = cells
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in reversed(rows)}


def x_of(ns: float) -> float:
    span = math.log(MOST_NS / LEAST_NS)
    return LEFT + (WIDTH - LEFT - RIGHT) * math.log(ns / LEAST_NS) / span


def drawing(rows: dict[str, dict[str, str]]) -> str:
    height = HEAD + len(ROWS) * (TITLE + len(LIBRARIES) * BAR + GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" font-family="sans-serif" font-size="13" role="img">',
        "<title>Nanoseconds per operation of pthreads, Go and rouse</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        '<text x="10" y="18" font-weight="bold" fill="#1f2328">'
        "Nanoseconds per operation, less is better (logarithmic)</text>",
    ]
    tick = LEAST_NS
    while tick <= MOST_NS:
        x = f"{x_of(tick):.1f}"
        out += [
            f'<line x1="{x}" y1="{HEAD}" x2="{x}" y2="{height - 18}" stroke="#d8dbe0"/>',
            f'<text x="{x}" y="{height - 5}" text-anchor="middle" fill="#59636e">{tick:,}</text>',
        ]
        tick *= 10
    y = HEAD
    for row, words in ROWS:
        out.append(f'<text x="{LEFT}" y="{y + 13}" fill="#1f2328">{words}</text>')
        y += TITLE
        for library, colour in LIBRARIES:
            figure = rows[row][library]
            end = x_of(float(figure.replace(",", "")))
            out += [
                f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end" fill="#1f2328">',
                f"{library}</text>",
                f'<rect x="{LEFT}" y="{y + 2}" width="{end - LEFT:.1f}" height="{BAR - 4}"'
                f' fill="{colour}"/>',
                f'<text x="{end + 6:.1f}" y="{y + 12}" fill="#1f2328">{figure} ns</text>',
            ]
            y += BAR
        y += GAP - 8
    return "\n".join([*out, "</svg>", ""])


def chart() -> str:
    text = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
    return drawing(table(text, "Threads"))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    place = ROOT / "docs" / "pictures" / "threads.svg"
    parser.add_argument("--to", type=Path, default=place, metavar="FILE")
    parser.parse_args().to.write_text(chart(), encoding="utf-8")


if __name__ == "__main__":
    main()
