# SPDX-License-Identifier: MIT
"""Tables as Markdown that reads well in a terminal too. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tables.paired import Ratio, Spread

NOTHING = "-"


@dataclass
class Table:
    title: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # paragraphs
    after: list[str] = field(default_factory=list)  # remarks, a list


def number(value: float | None) -> str:
    """Three digits that count, and thousands apart."""
    if value is None:
        return NOTHING
    size = abs(value)
    if size < 0.005:
        return "0"
    digits = 0 if size >= 100 else 1 if size >= 10 else 2
    return f"{value:,.{digits}f}"


def numbers(spread: Spread | None) -> str:
    return NOTHING if spread is None else f"{number(spread.least)}..{number(spread.most)}"


def interval(ratio: Ratio | None) -> str:
    if ratio is None:
        return NOTHING
    return f"{ratio.mean:.3g} [{ratio.low:.3g}, {ratio.high:.3g}]"


def share(counts: Sequence[int]) -> str:
    """How operations divide among workers, in percent."""
    total = sum(counts)
    return " : ".join(f"{100 * count / total:.0f}" for count in counts) if total else NOTHING


def lines(table: Table) -> Iterator[str]:
    yield f"## {table.title}"
    yield ""
    for paragraph in table.before:
        yield paragraph
        yield ""
    grid = [table.head, *table.rows]
    widths = [max(len(row[i]) for row in grid) for i in range(len(table.head))]
    for index, row in enumerate(grid):
        first = row[0].ljust(widths[0])
        rest = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        yield "| " + " | ".join([first, *rest]) + " |"
        if index == 0:
            bars = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
            yield "| " + " | ".join(bars) + " |"
    yield ""
    for remark in table.after:
        yield f"- {remark}"
    if table.after:
        yield ""


def text(table: Table) -> str:
    return "\n".join(lines(table))
