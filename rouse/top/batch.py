# SPDX-License-Identifier: MIT
"""`rouse top --batch`: the rows of each interval as text or JSON."""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from rouse.errors import EXIT_ENDED, output
from rouse.top import rowtext
from rouse.top.intervals import COLUMNS, Interval
from rouse.top.watched import Watched, intervals, tell


def as_json(found: Sequence[Interval], picture: rowtext.Picture, shown: Sequence[int]) -> str:
    threads = []
    for row in shown:
        pid, number, tid = picture.key(row)
        values = [round(v, 3) for v in picture.values[row].tolist()]
        known = {n: None if np.isnan(v) else v for n, v in zip(COLUMNS, values, strict=True)}
        name = picture.name(row)
        threads.append(
            {"pid": pid, "id": number or None, "tid": tid or None, "name": name, **known}
        )
    processes = [
        {
            "pid": interval.pid,
            "process": interval.process,
            "user": interval.user,
            "interval_s": interval.seconds,
            "threads": interval.threads,
            "workers": interval.workers,
            "ended_threads": interval.ended_threads,
            "problems": interval.problems,
        }
        for interval in found
    ]
    return json.dumps({"unix_s": time.time(), "processes": processes, "threads": threads})


def width() -> int | None:
    """Return the terminal's width. None: the output is a file or a program, and is not cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_batch(
    found: Sequence[Interval], wanted: rowtext.Wanted, limit: int, is_json: bool
) -> None:
    picture = rowtext.Picture(found)
    shown = picture.rows(wanted)[: limit or None]
    if is_json:
        put(as_json(found, picture, shown))
        return
    columns = rowtext.columns_for(wanted.split, width())
    lines = [rowtext.header(columns), *(picture.line(row, columns, width()) for row in shown)]
    if not shown and len(picture):
        lines.append(f"All {len(picture)} threads waited for work; --all shows them.")
    put("\n".join([*lines, picture.total()]))


def put(text: str) -> None:
    with output():
        print(text)


def batch(watched: Watched, wanted: rowtext.Wanted, options: dict[str, Any]) -> int:
    seconds, count = options["batch"]
    shown: set[str] = set()
    for found in intervals(watched, seconds, count):
        tell(watched.take_messages())
        if found:
            print_batch(found, wanted, options["limit"], options["json"])
            problems = [f"process {i.pid}: {text}" for i in found for text in i.problems]
            tell([text for text in dict.fromkeys(problems) if text not in shown])
            shown.update(problems)
    return EXIT_ENDED if watched.ended and not watched.watches else 0
