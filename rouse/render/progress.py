# SPDX-License-Identifier: MIT
"""A line on the terminal about work that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

EACH_S = 1.0  # the first line appears after that time, and each next one


@contextlib.contextmanager
def line(what: str) -> Iterator[None]:
    """Show on standard error, if it is a terminal, that this goes on and for how long.

    The line is gone at the end. Nothing else may be printed meanwhile.
    """
    if not sys.stderr.isatty():
        yield
        return
    over = threading.Event()

    def show() -> None:
        seconds, shown = 0.0, ""
        while not over.wait(EACH_S):
            seconds += EACH_S
            shown = f"rouse: {what}, {seconds:.0f} s"
            print(f"\r{shown}", end="", file=sys.stderr, flush=True)
        if shown:  # else the last line is another program's; blanks, since colours may be off
            print(f"\r{' ' * len(shown)}\r", end="", file=sys.stderr, flush=True)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        over.set()
        shower.join()
