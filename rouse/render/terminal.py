# SPDX-License-Identifier: MIT
"""A report on the terminal: tables where they fit, otherwise one block per row.

Colours appear only on request. A line is never wider than the terminal, except for a single word
that is. Output to a pipe is not cut.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.style import Style
from rich.text import Text

from rouse.query.screen import Screen
from rouse.query.sections import Report, Section, sites_of
from rouse.query.specs import Column, Row
from rouse.query.verdict import Verdict
from rouse.render.links import NONE, Links
from rouse.text import UNKNOWN, cell, counted, duration, printable

GAP = 2
# Columns that a name keeps while empty ones can go, while others can go, and at the end.
LABEL_WHOLE, LABEL_GOOD, LABEL_LEAST = 10_000, 24, 14
# Lines of the first screen, of the verdict on it, and of its warnings.
SCREEN_MOST, VERDICT_MOST, WARNINGS_MOST = 25, 8, 3
INDENT = "   "
UNIT, NO_BREAK = re.compile(r"(?<=\d) (?=%|[mµn]?s\b)"), "\N{NO-BREAK SPACE}"
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


def ended(text: str, width: int) -> str:
    """Return text without its end if it is too wide."""
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


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
    def __init__(self, console: Console, width: int | None, links: Links = NONE) -> None:
        """width: columns of a line. None: no limit. links: shown if the console is a terminal."""
        self.console = console
        self.width = width
        self.links = links
        self.frames: Mapping[str, list[str]] = {}

    def line(self, *parts: tuple[str, str]) -> None:
        text = Text()
        for part, style in parts:
            text.append(part, style)
        self.print(text)

    def print(self, text: Text) -> None:
        text.rstrip()
        for start, end, uri in self.links.of(text.plain):
            text.stylize(Style(link=uri), start, end)
        self.console.print(text, soft_wrap=True)

    def wrapped(self, text: str, indent: str = "") -> list[str]:
        """Return the lines of a paragraph. All but the first are indented."""
        text = printable(text)
        if self.width is None or not text:
            return [text] if text else []
        whole = UNIT.sub(NO_BREAK, text)  # 29 % is one word
        lines = textwrap.wrap(
            whole, max(self.width, 20), subsequent_indent=indent, break_on_hyphens=False
        )
        return [line.replace(NO_BREAK, " ") for line in lines]

    def paragraph(self, text: str, style: str = "", indent: str = "") -> None:
        lines = self.wrapped(text, indent)
        if self.width is None:
            lines = [indent + line for line in lines]
        for line in lines:
            self.line((line, style))

    def screen(self, screen: Screen, limit: int | None) -> None:
        """Print the first screen. limit: rows of its table; None: those that fit on it."""
        above = [(printable(screen.head), TITLE), *((t, "") for t in self.verdict(screen.verdict))]
        for text in screen.requests:
            above += [(line, "") for line in self.wrapped(text, INDENT)]
        if screen.under_way:
            text = f"Waits under way: {screen.under_way}"
            above += [(line, "") for line in self.wrapped(text, INDENT)]
        below = [(screen.folded, "")] if screen.folded else []
        below += [(text, FAINT) for text in self.warnings(screen.warnings)]
        of_table = len(("a blank line", "titles", "places left out", "a blank line", "the hint"))
        room = SCREEN_MOST - len(above) - len(below) - of_table
        rows, section = screen.waits.rows, screen.waits
        cells = self.cells(section)
        columns = section.columns
        widths = [max(map(cell_len, texts)) for texts in zip(*cells, strict=True)] or [0]
        widths = [max(n, cell_len(c.title)) for n, c in zip(widths, columns, strict=False)]
        is_wide = self.width is None or sum(widths) + GAP * (len(widths) - 1) <= self.width
        shown = room // (1 if is_wide else 2) if limit is None else limit or len(rows)
        self.lines(above)
        if rows:
            self.line()
        if rows and is_wide:
            self.table(columns, cells[:shown], widths, replace(section, rows=rows[:shown]))
        elif rows:
            self.pairs(columns, cells[:shown], widths)
        left = len(rows[shown:]) + section.more
        if left:
            ns = sum(row["wait_ns"] for row in rows[shown:]) + screen.short_ns
            places = counted(left, "more place" if left < len(rows) + section.more else "place")
            self.line((f"{places}, {duration(ns)} in all", FAINT))
        self.lines(below)
        self.line()
        self.lines([(screen.hint, FAINT)])

    def lines(self, lines: Iterable[tuple[str, str]]) -> None:
        """Print lines, without their ends if they are too wide."""
        for text, style in lines:
            self.line((ended(text, self.width or 10_000), style))

    def pairs(
        self, columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int]
    ) -> None:
        """Print each row in two lines: its figures and who waits, then the other side."""
        figures = [i for i, column in enumerate(columns) if is_number(column)]
        places = {c.key: i for i, c in enumerate(columns) if not is_number(c)}
        self.cells_line(
            [columns[i] for i in figures],
            [columns[i].title for i in figures],
            [widths[i] for i in figures],
            HEAD,
        )
        indent = sum(widths[i] + GAP for i in figures)
        room = max((self.width or 10_000) - indent, LABEL_LEAST)
        for row in rows:
            what, at, role, other = (row[i] for i in places.values())
            text = Text()
            for i in figures:
                text.append(padded(row[i], widths[i], True) + " " * GAP, FIGURE)
            who = f"{at} waits for "
            text.append(cut(who + cut(what, max(room - cell_len(who), LABEL_LEAST)), room))
            self.print(text)
            if other != UNKNOWN:
                self.line((" " * indent + cut(f"{role} {other}", room), ""))

    def verdict(self, verdict: Verdict) -> list[str]:
        """Return a verdict in few lines: only the first findings have room for their text."""
        lines = self.wrapped(verdict.head)
        below = self.wrapped(verdict.summary) + self.wrapped(verdict.unexplained)
        for number, finding in enumerate(verdict.findings, 1):
            whole = self.wrapped(f"{number}. {finding.text}", INDENT)
            later = len(verdict.findings) - number
            room = max(VERDICT_MOST - len(lines) - len(below) - later, 1)
            if number > 1 and len(whole) > room:
                whole = [printable(f"{number}. {finding.brief}")]
            if len(whole) > room:
                whole = [*whole[: room - 1], f"{whole[room - 1]} …"]
            lines += whole
        return lines + below

    def warnings(self, warnings: Sequence[str]) -> Iterator[str]:
        for text in warnings[:WARNINGS_MOST]:
            yield printable(f"note: {text}")
        if len(warnings) > WARNINGS_MOST:
            yield f"{counted(len(warnings) - WARNINGS_MOST, 'more note')}"

    def report(self, report: Report) -> None:
        self.frames = report.frames
        if report.verdict:
            self.line(("Verdict", TITLE))
            for text in report.verdict.lines():
                self.paragraph(text, indent=INDENT)
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
