# SPDX-License-Identifier: MIT
"""A page of the laboratory: one HTML file that needs no other, the same in Markdown, and pictures.

A page is a list of blocks, from which both forms are made.
"""

from __future__ import annotations

import html
import os
import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rouse import whole_file
from rouse.render import charts
from rouse.render.page import asset, filled
from rouse.text import printable

Rows = Sequence[Sequence[str]]


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Words:
    text: str


@dataclass(frozen=True)
class Items:
    lines: Sequence[str]


@dataclass(frozen=True)
class Grid:
    """A table. The first row is its head, the first column has names."""

    rows: Rows
    are_figures: bool = True


@dataclass(frozen=True)
class Picture:
    name: str  # the end of the names of its files
    chart: charts.Chart


Block = Heading | Words | Items | Grid | Picture


@dataclass(frozen=True)
class Page:
    name: str  # of its files
    title: str
    blocks: Sequence[Block]


# Markdown


def escaped(text: str) -> str:
    return re.sub(r"([\\`*<\[|])", r"\\\1", printable(text))


def as_markdown(rows: Rows, are_figures: bool = True) -> list[str]:
    lines = [f"| {' | '.join(printable(cell).replace('|', '/') for cell in row)} |" for row in rows]
    mark = " ---: |" if are_figures else " --- |"
    return [lines[0], f"| --- |{mark * (len(rows[0]) - 1)}", *lines[1:]]


def markdown(page: Page) -> str:
    lines = [f"# {escaped(page.title)}", ""]
    for block in page.blocks:
        if isinstance(block, Heading):
            lines.append(f"## {escaped(block.text)}")
        elif isinstance(block, Words):
            lines.append(escaped(block.text))
        elif isinstance(block, Items):
            lines += [f"- {escaped(line)}" for line in block.lines]
        elif isinstance(block, Grid):
            lines += as_markdown(block.rows, block.are_figures)
        else:
            lines.append(f"![{escaped(block.chart.title)}]({file_of(page, block)}.svg)")
        lines.append("")
    return "\n".join(lines)


# HTML


def element(name: str, text: str, more: str = "") -> str:
    return f"<{name}{more}>{html.escape(printable(text))}</{name}>"


def table(block: Grid) -> str:
    mark = ' class="figure"' if block.are_figures else ""
    head, *rows = block.rows
    lines = ["".join(element("th", cell, mark if i else "") for i, cell in enumerate(head))]
    for row in rows:
        lines.append("".join(element("td", cell, mark if i else "") for i, cell in enumerate(row)))
    body = "".join(f"<tr>{line}</tr>\n" for line in lines[1:])
    return (
        f'<div class="scroll"><table><thead><tr>{lines[0]}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>"
    )


def body(page: Page) -> Iterator[str]:
    for block in page.blocks:
        if isinstance(block, Heading):
            yield element("h2", block.text)
        elif isinstance(block, Words):
            yield element("p", block.text)
        elif isinstance(block, Items):
            yield f"<ul>{''.join(element('li', line) for line in block.lines)}</ul>"
        elif isinstance(block, Grid):
            yield table(block)
        else:
            yield f"<figure>{charts.svg(block.chart)}</figure>"


def as_html(page: Page) -> str:
    parts = {
        "TITLE": html.escape(printable(page.title)),
        "STYLE": asset("page.css"),
        "BODY": "\n".join(body(page)),
    }
    return filled("study.html", parts)


# Files


def file_of(page: Page, picture: Picture) -> str:
    name = picture.name.lower().replace("µ", "u")
    words = re.sub(r"[^a-z0-9]+", "-", name).strip("-")
    return f"{page.name}-{words}"


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Hold back Ctrl-C, and the signal that asks a process to end, until the end of the block.

    Masking them would not do: libraries have threads of their own, which would get them.
    """
    came: list[int] = []
    held = (signal.SIGINT, signal.SIGTERM)
    before = {
        number: signal.signal(number, lambda number, _: came.append(number)) for number in held
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            os.kill(os.getpid(), first)


def write(folder: Path, page: Page) -> Path:
    """Write all files of a page, or none if an interrupt comes before. Returns the page's path."""
    files: dict[Path, bytes] = {}
    for block in page.blocks:
        if isinstance(block, Picture):
            place = folder / file_of(page, block)
            files[place.with_suffix(".svg")] = charts.svg(block.chart).encode()
            if charts.has_png():
                files[place.with_suffix(".png")] = charts.png(block.chart)
    path = folder / f"{page.name}.html"
    files[folder / f"{page.name}.md"] = markdown(page).encode()
    files[path] = as_html(page).encode()
    with without_interrupts():
        for file, content in files.items():
            whole_file.replace(file, [content])
    return path
