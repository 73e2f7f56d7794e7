# SPDX-License-Identifier: MIT
"""A line on the terminal about work that takes long."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator

EACH_S = 1.0  # the first line appears after that time, and each next one
CLEAR = "\r\x1b[K"


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
        seconds = 0.0
        while not over.wait(EACH_S):
            seconds += EACH_S
            print(f"{CLEAR}rouse: {what}, {seconds:.0f} s", end="", file=sys.stderr, flush=True)
        if seconds:  # else the last line is another program's
            print(CLEAR, end="", file=sys.stderr, flush=True)

    shower = threading.Thread(target=show, daemon=True)
    shower.start()
    try:
        yield
    finally:
        over.set()
        shower.join()
