# SPDX-License-Identifier: MIT
"""The tables as Parquet: a folder a table, in it a file a process: folders can be joined.

Of thousands of short processes each is a few rows: files that only a report reads have many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from rouse.tables.schemas import SCHEMAS

PART_ROWS = 100_000  # in memory, before they are written


def file_name(tables: Mapping[str, pa.Table]) -> str:
    """Of the process that the tables are of."""
    names = tables["processes"].column("process").to_pylist()
    return re.sub(r"[^A-Za-z0-9._-]", "_", "+".join(names[:1]) or "empty") + ".parquet"


def write(tables: Mapping[str, pa.Table], folder: Path) -> int:
    """Write a process' tables beneath folder; a file of that process is replaced. How many rows."""
    name, rows = file_name(tables), 0
    for key, table in tables.items():
        place = folder / key
        place.mkdir(parents=True, exist_ok=True)
        partial = place / (name + ".part")
        parquet.write_table(table, partial, compression="zstd")
        partial.replace(place / name)
        rows += table.num_rows
    return rows


class Parts:
    """Tables of one process after the other, written beneath folder when they are many rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gathered: dict[str, list[pa.Table]] = {}
        self.rows = 0
        self.count = 0

    def add(self, tables: Mapping[str, pa.Table]) -> None:
        for key, table in tables.items():
            if table.num_rows:
                self.gathered.setdefault(key, []).append(table)
                self.rows += table.num_rows
        if self.rows >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        for key, tables in self.gathered.items():
            place, schema = self.folder / key, SCHEMAS[key]
            place.mkdir(parents=True, exist_ok=True)
            # A column that is null in all rows of one process has no type of its own there.
            whole = pa.concat_tables(tables, promote_options="permissive")
            whole = whole.select(schema.names).cast(schema).unify_dictionaries()
            parquet.write_table(whole, place / f"{self.count}.parquet", compression="zstd")
        self.gathered, self.rows = {}, 0
        self.count += 1
