# SPDX-License-Identifier: MIT
"""Sum up the processes of one program: their tables become those of one process.

A site is an address, which means another place in another process. Here its name consists of the
file, build and offset of each frame. Addresses of locks and other objects stay: in memory that
processes share or inherit by fork, they are equal.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from rouse.tables.schemas import COLUMNS, CONFINED, FAREWELL, RUNS
from rouse.tables.table import Column, Table, from_rows

SITE_COLUMNS = (
    "site",
    "wait_site",
    "wake_site",
    "holder_site",
    "init_site",
    "repeated_site",
    "yield_site",
)
NUMBER_COLUMNS = ("writer", "index")  # numbers that are unique in one process only
NUMBERS = 1 << 32  # the range of these numbers that each process gets
LOST = tuple(name for name in COLUMNS["processes"] if name.startswith("lost_"))
Row = dict[str, Any]


def frame_of(row: Row) -> str:
    return f"{row['module']}+{row['offset']:#x}@{row['build_id']}"


def with_addresses(sites: Table) -> Table:
    """Give equal frames of all processes one address."""
    words = []
    for row in sites.to_rows():
        if not row["module"]:
            words.append(row["address"])
            continue
        digest = hashlib.sha256(frame_of(row).encode()).digest()
        words.append(int.from_bytes(digest[:7]))
    return sites.replaced(address=words)


def frames_of(sites: Table, in_places: bool) -> dict[str, str]:
    """Return the new names of the sites, by their names in their process.

    in_places: the frames of a place are those of one stack, another one in each process. Only the
    innermost one counts, and the caller that tells apart its waits.
    """
    named: dict[str, list[str]] = {}
    callers: dict[str, int] = {}
    for row in sorted(sites.to_rows(), key=lambda row: int(row["frame"])):
        if row["frame"] == 0:
            callers[row["site"]] = row["caller"] or 0
        if row["module"] and (not in_places or row["frame"] in (0, callers.get(row["site"]))):
            named.setdefault(row["site"], []).append(frame_of(row))
    return {site: ";".join(frames) for site, frames in named.items()}


class Sums:
    """Receives the tables of one process after the other, and passes them on in parts."""

    def __init__(self, sink: Any, in_places: bool) -> None:
        self.sink = sink
        self.in_places = in_places
        self.count = 0
        self.sites: dict[tuple[str, str], list[Row]] = {}  # the rows of their frames
        self.processes: dict[str, list[Row]] = {}

    def add(self, tables: Mapping[str, Table]) -> None:
        """Add the tables of one process."""
        (row,) = tables["processes"].to_rows()
        name = row["program"]
        self.processes.setdefault(name, []).append(row)
        names = frames_of(tables["sites"], self.in_places)
        self.put_sites(self.joined("sites", tables["sites"], name, names))
        self.sink.add(
            {
                key: self.joined(key, table, name, names)
                for key, table in tables.items()
                if key not in ("processes", "events", "sites")
            }
        )
        self.count += 1

    def joined(self, key: str, table: Table, process: str, names: Mapping[str, str]) -> Table:
        changed: dict[str, Column] = {"process": [process] * table.rows}
        for column in COLUMNS[key]:
            if column in SITE_COLUMNS:
                changed[column] = [names.get(word, word) for word in table.column(column)]
            elif column in NUMBER_COLUMNS:
                changed[column] = [n + self.count * NUMBERS for n in table.column(column)]
        return table.replaced(**changed)

    def put_sites(self, table: Table) -> None:
        """Keep each site once. Of equal ones of two processes, one that names a caller is kept."""
        found: dict[tuple[str, str], list[Row]] = {}
        for row in with_addresses(table).to_rows():
            found.setdefault((row["process"], row["site"]), []).append(row)
        for key, rows in found.items():
            if key not in self.sites or any(row["caller"] for row in rows):
                self.sites[key] = rows

    def finish(self) -> None:
        """Add the rows of sites, and of the programs' processes."""
        sites = [row for rows in self.sites.values() for row in rows]
        rows = [summed(name, rows) for name, rows in self.processes.items()]
        self.sink.add(
            {"sites": from_rows("sites", sites), "processes": from_rows("processes", rows)}
        )


def end_of(ends: set[str]) -> str:
    return RUNS if RUNS in ends else CONFINED if CONFINED in ends else FAREWELL


def summed(name: str, rows: list[Row]) -> Row:
    """Return the row of the first process, with the duration and losses of all."""
    first = min(rows, key=lambda row: row["started_unix_ns"])
    taken = max(row["taken_unix_ns"] for row in rows)
    words = re.sub(r"\s+", " ", first["command"] or name)
    others = len(rows) - 1
    spent = [row["cpu_ns"] for row in rows]
    if others:
        words += f", and {others} other process{'es' if others > 1 else ''}"
    return {
        **first,
        **{lost: sum(row[lost] or 0 for row in rows) for lost in LOST},
        "cpu_ns": None if None in spent else sum(spent),
        "system_ns": sum(row["system_ns"] or 0 for row in rows) or None,
        "process": name,
        "command": words,
        "taken_unix_ns": taken,
        "duration_ns": taken - first["started_unix_ns"],
        "ended": all(row["ended"] for row in rows),
        "end": end_of({row["end"] for row in rows}),
    }
