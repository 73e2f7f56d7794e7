# SPDX-License-Identifier: MIT
"""Render tables as Markdown that also reads well in a terminal. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from tables.paired import Ratio, Spread

NOTHING = "-"
Reports = Sequence[Mapping[str, Any]]


@dataclass
class Table:
    title: str
    head: list[str]
    rows: list[list[str]] = field(default_factory=list)
    before: list[str] = field(default_factory=list)  # paragraphs before the table
    after: list[str] = field(default_factory=list)  # remarks, listed after the table


def number(value: float | None) -> str:
    """Three significant digits, with separators between thousands."""
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


def of(reports: Reports, figure: str, per: str = "", scaled: float = 1) -> float:
    """The median of a figure, or of its ratio to another."""
    values = [float(r[figure]) / float(r[per] or 1) if per else float(r[figure]) for r in reports]
    return scaled * median(values)


@dataclass(frozen=True)
class Column:
    """One column of a table whose rows are the reports of one command each."""

    title: str
    figure: str | Callable[[Any, Any], str]  # a key of the reports, or a cell from name and reports
    per: str = ""  # the figure to divide by
    scaled: float = 1
    part: str = ""  # the reports to use, in a row that has several sets of them
    absent_in: str = ""  # rows whose names contain this text lack the figure

    def cell(self, name: Any, reports: Any) -> str:
        if callable(self.figure):
            return self.figure(name, reports)
        if self.absent_in and self.absent_in in name:
            return NOTHING
        known = [r for r in (reports[self.part] if self.part else reports) if self.figure in r]
        return number(of(known, self.figure, self.per, self.scaled)) if known else NOTHING


def columns(*described: tuple[Any, ...]) -> tuple[Column, ...]:
    return tuple(Column(*some) for some in described)


def grid(
    title: str,
    first: str | tuple[str, ...],
    shown: Sequence[Column],
    rows: Mapping[Any, Any] | Iterable[tuple[Any, Any]],
    before: str = "",
    after: Iterable[str] = (),
) -> Table:
    """Render one row per name and data. A name of several words fills as many first columns."""

    def words(name: str | tuple[str, ...]) -> list[str]:
        return [name] if isinstance(name, str) else list(name)

    named = rows.items() if isinstance(rows, Mapping) else rows
    body = [[*words(name), *(column.cell(name, data) for column in shown)] for name, data in named]
    head = [*words(first), *(column.title for column in shown)]
    return Table(title, head, body, [before] if before else [], list(after))


def pairs(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Render facts: pairs of a name and a value."""
    return grid(title, "what", [Column("which", lambda _, which: which)], rows)


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
