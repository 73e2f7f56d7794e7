# SPDX-License-Identifier: MIT
"""Shared by the commands that write pages: progress, their end, tables, and the folder."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import click

from rouse.cli.arguments import Name
from rouse.cli.param_type import ParamType
from rouse.errors import RouseError, how_to_install
from rouse.lab.quiet import Machine, Reading, disturbances
from rouse.render import charts
from rouse.text import printable


class Counts(ParamType[list[int]]):
    name = "counts"

    def __init__(self, most: int) -> None:
        self.most = most

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[int]:
        if isinstance(value, list):
            return value
        words = str(value).split(",")
        if not all(w.isascii() and w.isdigit() and 1 <= int(w[:9]) <= self.most for w in words):
            self.fail(f"{value!r} is no list of numbers from 1 to {self.most:,}", param, ctx)
        return sorted({int(word) for word in words})


def end_in_order() -> None:
    """Let signals that end this program also end what it has started, and restore settings."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)


def tell(text: str) -> None:
    print(f"rouse: {text}", file=sys.stderr)


def as_text(rows: Sequence[Sequence[str]], words: Collection[str] = ()) -> list[str]:
    """Return the lines of a table. words: the heads of columns that have no figures."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    are_words = [not place or head in words for place, head in enumerate(rows[0])]
    return [
        "  ".join(
            cell.ljust(width) if is_word else cell.rjust(width)
            for cell, width, is_word in zip(row, widths, are_words, strict=True)
        ).rstrip()
        for row in rows
    ]


anyway_option = click.option(
    "--anyway", is_flag=True, help="With --output: write pages though other programs run."
)


install_option = click.option(
    "--install",
    is_flag=True,
    help="First install the servers and clients that are missing, by apt-get.",
)


def output_option(what: str) -> Callable[[Any], Any]:
    return click.option("-o", "--output", "place", type=Name(), metavar="FOLDER", help=what)


def restored() -> Machine:
    """Return this machine. Settings that a crashed laboratory has left are restored before."""
    machine = Machine()
    if os.geteuid() == 0:
        machine.restore()
    return machine


def check_quiet(readings: Sequence[Reading], is_anyway: bool) -> None:
    """Refuse to write a page from a machine that others use."""
    if not is_anyway and (found := disturbances(readings)):
        raise RouseError(
            f"no page is written, since this machine is not quiet: {found}",
            "wait until other programs end, or give --anyway",
        )


def usable(name: str) -> Path:
    """Make the folder if necessary, and try to write to it before anything is measured."""
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RouseError(f"{name}: cannot be written to: {error.strerror}") from error
    if not charts.has_png():
        tell(f"no PNG: matplotlib is missing; {how_to_install('lab', 'matplotlib')}")
    return folder
