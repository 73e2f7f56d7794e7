# SPDX-License-Identifier: MIT
"""A report on the terminal: tables where they fit, otherwise one block per row.

Colours appear only on request. A line is never wider than the terminal, except for a single word
that is. Output to a pipe is not cut.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from rouse.query.sections import Report, Section, sites_of
from rouse.query.specs import Column, Row
from rouse.text import UNKNOWN, cell, counted, printable

GAP = 2
# Columns that a name keeps while empty ones can go, while others can go, and at the end.
LABEL_WHOLE, LABEL_GOOD, LABEL_LEAST = 10_000, 24, 14
TITLE, HEAD, FIGURE, FAINT = "bold", "underline", "cyan", "dim"


def is_number(column: Column) -> bool:
    return column.kind != "text"


def cut(text: str, width: int) -> str:
    """Return text without its middle if it is too wide: both ends of a path or symbol say most."""
    if cell_len(text) <= width:
        return text
    tail = (width - 1) // 2
    head = width - 1 - tail
    end = text[len(text) - tail :] if tail else ""
    while cell_len(end) > tail:
        end = end[1:]
    return set_cell_size(text, head).rstrip() + "…" + end


def padded(text: str, width: int, right: bool) -> str:
    space = " " * max(width - cell_len(text), 0)
    return space + text if right else text + space


def shrink(widths: list[int], columns: Sequence[Column], room: int, least: int) -> bool:
    """Make names narrower, down to least, until all columns fit. Return whether they do."""
    texts = [i for i, column in enumerate(columns) if not is_number(column)]
    over = sum(widths) + GAP * (len(widths) - 1) - room
    while over > 0:
        widest = max(texts, key=lambda i: widths[i], default=None)
        if widest is None or widths[widest] <= least:
            return False
        widths[widest] -= 1
        over -= 1
    return True


def spared(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[int]
) -> tuple[int | None, int]:
    """Return the column to leave out next, and how narrow names may become before that.

    Columns without content go first, to keep names whole; then extra ones, from the right.
    """
    figures = [i for i in shown if is_number(columns[i])]
    unknown = [i for i in figures if all(row[i] == UNKNOWN for row in rows)]
    extra = [i for i in shown if columns[i].is_extra]
    nothing = [i for i in extra if all(row[i] in ("0", "0.0", UNKNOWN) for row in rows)]
    if unknown:
        return unknown[-1], LABEL_WHOLE
    if extra:
        return (nothing or extra)[-1], LABEL_GOOD
    return None, LABEL_LEAST


class Terminal:
    def __init__(self, console: Console, width: int | None) -> None:
        """width: columns of a line. None: no limit."""
        self.console = console
        self.width = width
        self.frames: Mapping[str, list[str]] = {}

    def line(self, *parts: tuple[str, str]) -> None:
        text = Text()
        for part, style in parts:
            text.append(part, style)
        text.rstrip()
        self.console.print(text, soft_wrap=True)

    def paragraph(self, text: str, style: str = "", indent: str = "") -> None:
        text = printable(text)
        if self.width is None:
            self.line((indent + text, style))
            return
        for line in textwrap.wrap(
            text, max(self.width, 20), subsequent_indent=indent, break_on_hyphens=False
        ):
            self.line((line, style))

    def report(self, report: Report) -> None:
        self.frames = report.frames
        if report.verdict:
            self.line(("Verdict", TITLE))
            for text in report.verdict.lines():
                self.paragraph(text, indent="   ")
            self.line()
        for name, text in report.facts:
            self.paragraph(f"{name}: {text}", indent="  ")
        for note in report.notes:
            self.paragraph(f"note: {note}", FAINT, indent="  ")
        for section in report.sections:
            if section.rows or section.idle:
                self.line()
                self.section(section)
        empty = [s for s in report.sections if not s.rows and not s.idle]
        if empty:
            self.line()
            self.line(("Empty sections", TITLE))
        for section in empty:
            self.paragraph(f"{section.title}: {section.empty}.", indent="  ")

    def section(self, section: Section) -> None:
        self.line((section.title, TITLE))
        if not section.rows and section.idle:
            self.paragraph("This section has only idle threads: --all shows them.")
        elif not section.rows:
            self.paragraph(f"None: {section.empty}.")
        elif section.is_summary:
            for row in self.cells(section):
                self.block(section.columns, row)
        else:
            self.paragraph(section.about, FAINT)
            self.rows(section)
        for text in left_out(section):
            self.paragraph(text, FAINT)

    @staticmethod
    def cells(section: Section) -> list[list[str]]:
        return [[cell(c.kind, row[c.key]) for c in section.columns] for row in section.rows]

    def rows(self, section: Section) -> None:
        rows = self.cells(section)
        shown = list(range(len(section.columns)))
        while True:
            columns = [section.columns[i] for i in shown]
            widths = [
                max(cell_len(section.columns[i].title), *(cell_len(row[i]) for row in rows))
                for i in shown
            ]
            spare, least = spared(section.columns, rows, shown)
            if self.width is None or shrink(widths, columns, self.width, least):
                break
            if spare is None:
                for row, of in zip(rows, section.rows, strict=True):
                    self.block(section.columns, row)
                    self.calls(section, of)
                return
            shown.remove(spare)
        self.table(columns, [[row[i] for i in shown] for row in rows], widths, section)
        hidden = [c.title for i, c in enumerate(section.columns) if i not in shown]
        if hidden:
            self.paragraph(f"For want of room without: {', '.join(hidden)}.", FAINT)

    def table(
        self,
        columns: Sequence[Column],
        rows: list[list[str]],
        widths: Sequence[int],
        section: Section,
    ) -> None:
        titles = [cut(column.title, width) for column, width in zip(columns, widths, strict=True)]
        self.cells_line(columns, titles, widths, HEAD)
        for row, values in zip(rows, section.rows, strict=True):
            self.cells_line(columns, row, widths, "")
            self.calls(section, values)

    def calls(self, section: Section, row: Row) -> None:
        """Yield the callers of the sites of a row, below it."""
        for role, site in sites_of(row):
            if site in self.frames and not section.is_by_place:
                text = printable(f"{role} {' from '.join(self.frames[site])}")
                for line in textwrap.wrap(
                    text,
                    max(self.width or 10_000, 20),
                    initial_indent="    ",
                    subsequent_indent="      ",
                    break_on_hyphens=False,
                ):
                    self.line((line, FAINT))

    def cells_line(
        self, columns: Sequence[Column], row: Sequence[str], widths: Sequence[int], style: str
    ) -> None:
        parts = []
        for column, text, width in zip(columns, row, widths, strict=True):
            shown = padded(cut(text, width), width, is_number(column))
            parts.append((shown, style or (FIGURE if is_number(column) else "")))
            parts.append((" " * GAP, ""))
        self.line(*parts[:-1])

    def block(self, columns: Sequence[Column], row: Sequence[str]) -> None:
        """Return a row that is too wide as a name with its figures below."""
        width = self.width or 80
        names = [(c, text) for c, text in zip(columns, row, strict=True) if not is_number(c)]
        for column, text in names:
            for line in wrapped(f"{column.title}: {text}", width):
                self.line((line, ""))
        figures = [
            f"{c.title} {text}" for c, text in zip(columns, row, strict=True) if is_number(c)
        ]
        for line in filled(figures, width - 2):
            self.line(("  " + line, FIGURE))


def wrapped(text: str, width: int) -> Iterator[str]:
    """Break text into lines of at most so many columns, anywhere."""
    while cell_len(text) > width:
        head = text
        while cell_len(head) > width:
            head = head[:-1]
        yield head
        text = "  " + text[len(head) :]
    yield text


def filled(words: Sequence[str], width: int) -> Iterator[str]:
    """Join words by commas, as many per line as fit."""
    line = ""
    for word in words:
        if line and cell_len(line) + 3 + cell_len(word) > width:
            yield line + ","
            line = word
        else:
            line = f"{line}, {word}" if line else word
    if line:
        yield line


def left_out(section: Section) -> Iterator[str]:
    if section.more:
        yield f"{counted(section.more, 'more row')}: --limit 0 shows all."
    if section.idle:
        verb, them = ("is", "it") if section.idle == 1 else ("are", "them")
        rows = counted(section.idle, "row")
        yield f"{rows} of idle waits {verb} not shown: --all shows {them}."
