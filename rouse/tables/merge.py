# SPDX-License-Identifier: MIT
"""Processes of one program in sum: their tables, made those of one process.

A site is an address, and stands for another place in another process. Here it is named by what it
is in: file, build and offset of each of its frames. Addresses of locks and other objects stay: of
memory that processes share, or have from the parent that forked them, they are the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from rouse.tables.parquet import Parts
from rouse.tables.schemas import CONFINED, FAREWELL, RUNS, SCHEMAS

SITE_COLUMNS = ("site", "wait_site", "wake_site", "holder_site", "init_site")
NUMBER_COLUMNS = ("writer", "index")  # of a process' own
NUMBERS = 1 << 32  # for each process
LOST = tuple(name for name in SCHEMAS["processes"].names if name.startswith("lost_"))
Row = dict[str, Any]


def frame_of(row: Row) -> str:
    return f"{row['module']}+{row['offset']:#x}@{row['build_id']}"


def with_addresses(sites: pa.Table) -> pa.Table:
    """One and the same for a frame in all processes."""
    words = []
    for row in sites.select(["address", "module", "build_id", "offset"]).to_pylist():
        if not row["module"]:
            words.append(row["address"])
            continue
        digest = hashlib.sha256(frame_of(row).encode()).digest()
        words.append(int.from_bytes(digest[:7]))
    at = sites.column_names.index("address")
    return sites.set_column(at, "address", pa.array(words, pa.int64()))


def frames_of(sites: pa.Table) -> dict[str, str]:
    """What the sites are called here, by what they are called there."""
    rows = sites.select(["site", "frame", "module", "build_id", "offset"]).to_pylist()
    named: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: row["frame"]):
        if row["module"]:
            named.setdefault(row["site"], []).append(frame_of(row))
    return {site: ";".join(frames) for site, frames in named.items()}


def renamed(table: pa.Table, name: str, names: Mapping[str, str]) -> pa.Table:
    words = [names.get(word, word) for word in table.column(name).to_pylist()]
    at = table.column_names.index(name)
    return table.set_column(at, name, pa.array(words, pa.string()))


class Sums:
    """Tables come one process after the other, and go into parts one after the other."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.count = 0
        self.sites: set[tuple[str, str]] = set()
        self.processes: dict[str, list[Row]] = {}

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        """Those of one process."""
        (row,) = tables["processes"].to_pylist()
        name = row["program"]
        self.processes.setdefault(name, []).append(row)
        names = frames_of(tables["sites"])
        self.parts.add(
            {
                key: self.joined(key, table, name, names)
                for key, table in tables.items()
                if key not in ("processes", "events")
            }
        )
        self.count += 1

    def joined(self, key: str, table: pa.Table, process: str, names: Mapping[str, str]) -> pa.Table:
        for column in table.column_names:
            at = table.column_names.index(column)
            if column == "process":
                whole = pa.array([process] * table.num_rows, pa.string())
                table = table.set_column(at, column, whole)
            elif column in SITE_COLUMNS:
                table = renamed(table, column, names)
            elif column in NUMBER_COLUMNS:
                moved = pc.add(table.column(column), self.count * NUMBERS)
                table = table.set_column(at, column, moved)
        if key == "sites":
            table = with_addresses(table)
            sites = table.column("site").to_pylist()
            is_new = [(process, site) not in self.sites for site in sites]
            table = table.filter(pa.array(is_new, pa.bool_()))
            self.sites |= {(process, site) for site in sites}
        return table

    def finish(self) -> None:
        """What the programs' processes were."""
        rows = [summed(name, rows) for name, rows in self.processes.items()]
        self.parts.add({"processes": pa.Table.from_pylist(rows, SCHEMAS["processes"])})


def end_of(ends: set[str]) -> str:
    return RUNS if RUNS in ends else CONFINED if CONFINED in ends else FAREWELL


def summed(name: str, rows: list[Row]) -> Row:
    """The first, for as long as any was there."""
    first = min(rows, key=lambda row: row["started_unix_ns"])
    taken = max(row["taken_unix_ns"] for row in rows)
    words = re.sub(r"\s+", " ", first["command"] or name)
    command = f"{words}, and {len(rows) - 1} processes more" if len(rows) > 1 else words
    return {
        **first,
        **{lost: sum(row[lost] or 0 for row in rows) for lost in LOST},
        "process": name,
        "command": command,
        "taken_unix_ns": taken,
        "duration_ns": taken - first["started_unix_ns"],
        "ended": all(row["ended"] for row in rows),
        "end": end_of({row["end"] for row in rows}),
    }
