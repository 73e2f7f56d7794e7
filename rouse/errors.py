# SPDX-License-Identifier: MIT
"""Errors that a user can correct."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

# Exit statuses of the command. Click itself ends with 2 for wrong arguments.
EXIT_FINDINGS = 1  # the check found a problem
EXIT_NOTHING = 3  # there is nothing to read, or it cannot be read
EXIT_ENDED = 4  # the watched process ended meanwhile


def how_to_install(extra: str, *packages: str) -> str:
    """Return the command that installs an extra where this package looks for it."""
    beside = Path(__file__).parent.parent / "packages"
    if beside.is_dir():
        return f"install it: python3 -m pip install --target {beside} {' '.join(packages)}"
    return f"install it: pip install 'rouse[{extra}]'"


class RouseError(Exception):
    """Printed as one line, `rouse: what: where: what to do`. The process ends with `status`."""

    def __init__(self, what: str, remedy: str = "", status: int = EXIT_NOTHING) -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
        self.status = status


def discard(stream: TextIO) -> None:
    """Drop the buffer. Otherwise the flush at exit would fail again and change our status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def output() -> Iterator[None]:
    """Guard code that writes to standard output, which may be closed, or a file on a full disk."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        discard(sys.stdout)
        raise RouseError(f"standard output: {error.strerror}") from error


def fill_closed() -> None:
    """Give each closed standard stream a descriptor that cannot be written to.

    Otherwise the next file to be opened would get its number, and output would end up in that file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDONLY)
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115
