# SPDX-License-Identifier: MIT
"""The rows of `rouse top`: selection, order, and text in prstat's columns."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size

from rouse.top.intervals import COLUMN, COUNTS, LCK_PARTS, SLP_PARTS, Floats, Interval

NAME_LEAST = 16  # columns for a thread's name before others are given up for it
# Sort keys that are not columns.
SORTS = ("cpu", "name", "pid", "id")

TITLES = {
    "mutex": "MTX",
    "rwlock": "RWL",
    "cond": "CND",
    "sem": "SEM",
    "join": "JOI",
    "io": "IO",
    "poll": "POL",
    "accept": "ACC",
    "sleep": "SLE",
}
BEFORE = ("pid", "user")
WHOLE = ("usr", "sys", "trp", "tfl", "dfl", "lck", "slp", "lat", *COUNTS)
SPLIT = ("usr", "sys", "trp", "tfl", "dfl", *LCK_PARTS, *SLP_PARTS, "lat", *COUNTS)
# Columns that a narrow terminal leaves out, the first first.
DROPPED = (
    *("sig", "scl", "trp", "tfl", "dfl", "user", "icx", "pid", "vcx", "sys"),
    *("join", "sem", "accept", "poll", "rwlock"),
)
WIDTHS = {"pid": 6, "user": 8}


def printable(text: str) -> str:
    """Return text without characters that control a terminal or hide text."""
    return "".join(c if c.isprintable() else "?" for c in text)


def percent(value: float) -> str:
    if np.isnan(value):
        return "-"
    return f"{value:.1f}" if value < 9.95 else f"{value:.0f}"


def count(value: float) -> str:
    """Return a count in at most three characters, as prstat prints it: 999, 99K, .9M."""
    if np.isnan(value):
        return "-"
    for suffix in ("", "K", "M", "G", "T"):
        if value < (999.5 if not suffix else 99.5):
            return f"{value:.0f}{suffix}"
        if suffix and value < 999.5 and suffix != "T":
            return f".{min(max(value / 100, 1), 9):.0f}" + {"K": "M", "M": "G", "G": "T"}[suffix]
        value /= 1000
    return "big"


@dataclass(frozen=True)
class Wanted:
    """The selection of rows and columns to show."""

    sort: str = "cpu"
    reverse: bool = False
    filter: str = ""
    all: bool = False
    split: bool = False


def title(column: str) -> str:
    return {"pid": "PID", "user": "USERNAME"}.get(column, TITLES.get(column, column.upper()))


def columns_for(split: bool, width: int | None) -> list[str]:
    """Return the columns that leave room for a name. None: all of them."""
    columns = [*BEFORE, *(SPLIT if split else WHOLE)]
    for name in DROPPED:
        if width is None or width_of(columns) + NAME_LEAST <= width:
            break
        if name in columns:
            columns.remove(name)
    return columns


def width_of(columns: Sequence[str]) -> int:
    return sum(WIDTHS.get(name, 3) + 1 for name in columns)


def header(columns: Sequence[str]) -> str:
    cells = [f"{title(c):<8}" if c == "user" else title(c).rjust(WIDTHS.get(c, 3)) for c in columns]
    return " ".join([*cells, "PROCESS/LWP"])


class Picture:
    """All rows of some intervals. The text of a row is made on request."""

    def __init__(self, intervals: Sequence[Interval]) -> None:
        self.intervals = list(intervals)
        self.sizes = [len(interval.rows) for interval in intervals]
        self.starts = np.concatenate([[0], np.cumsum(self.sizes)])
        parts = [interval.rows.values for interval in intervals]
        self.values: Floats = np.concatenate(parts) if parts else np.zeros((0, len(COLUMN)))

    def __len__(self) -> int:
        return len(self.values)

    def place(self, row: int) -> tuple[Interval, int]:
        number = int(np.searchsorted(self.starts, row, "right")) - 1
        return self.intervals[number], row - int(self.starts[number])

    def key(self, row: int) -> tuple[int, int, int]:
        """Return the key that identifies a row in the next picture too."""
        interval, at = self.place(row)
        return interval.pid, int(interval.rows.ids[at]), int(interval.rows.tids[at])

    def name(self, row: int) -> str:
        interval, at = self.place(row)
        text = interval.rows.names[at].split(b"\0", 1)[0].decode("utf-8", "replace")
        number = int(interval.rows.ids[at])
        if number:
            text = f"{number}:{text}" if text else str(number)
        return printable(f"{interval.process}/{text}")

    def rows(self, wanted: Wanted) -> list[int]:
        """Return the wanted rows, in order."""
        idle = [interval.rows.idle for interval in self.intervals]
        shown = np.arange(len(self))
        if not wanted.all and idle:
            shown = shown[~np.concatenate(idle)]
        if wanted.filter:
            text = wanted.filter.lower()
            shown = np.array([i for i in shown.tolist() if text in self.name(i).lower()], np.intp)
        return self.sorted(shown, wanted)

    def sorted(self, shown: np.ndarray[tuple[int], np.dtype[np.intp]], wanted: Wanted) -> list[int]:
        if wanted.sort == "name":
            return sorted(shown.tolist(), key=self.name, reverse=wanted.reverse)
        if wanted.sort in ("pid", "id"):
            return sorted(shown.tolist(), key=self.key, reverse=wanted.reverse)
        if wanted.sort == "cpu":
            keys = np.nansum(self.values[:, [COLUMN["usr"], COLUMN["sys"]]], axis=1)
        else:
            keys = np.nan_to_num(self.values[:, COLUMN[wanted.sort]], nan=-1.0)
        keys = keys[shown]
        order = np.argsort(keys if wanted.reverse else -keys, kind="stable")
        return [int(i) for i in shown[order]]

    def cells(self, row: int, columns: Sequence[str]) -> list[str]:
        interval, _ = self.place(row)
        found = []
        for name in columns:
            if name == "pid":
                found.append(f"{interval.pid:6}")
            elif name == "user":
                found.append(set_cell_size(printable(interval.user), WIDTHS["user"]))
            else:
                value = float(self.values[row, COLUMN[name]])
                found.append((count if name in COUNTS else percent)(value).rjust(3))
        return found

    def line(self, row: int, columns: Sequence[str], width: int | None = None) -> str:
        """Return the text of a row. width: columns of the terminal."""
        text = " ".join([*self.cells(row, columns), self.name(row)])
        if width is not None and cell_len(text) > width:
            text = set_cell_size(text, max(width, 0))
        return text

    def total(self) -> str:
        """Return prstat's last line."""
        threads = sum(interval.threads for interval in self.intervals)
        workers = sum(interval.workers for interval in self.intervals)
        ended = sum(interval.ended_threads for interval in self.intervals)
        idle = sum(int(interval.rows.idle.sum()) for interval in self.intervals)
        loads = ", ".join(f"{load:.2f}" for load in os.getloadavg())
        return (
            f"Total: {plural(len(self.intervals), 'process', 'processes')}, "
            f"{plural(threads, 'thread', 'threads')}, {plural(workers, 'worker', 'workers')}, "
            f"{idle} idle, {ended} ended, load averages: {loads}"
        )


def plural(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
