# SPDX-License-Identifier: MIT
"""The tables as Parquet: a folder a table, in it a file a process: folders can be joined."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet


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
