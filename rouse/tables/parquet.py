# SPDX-License-Identifier: MIT
"""The tables as Parquet: one folder per table, one file per process, so that folders can be merged.

Of thousands of short processes, each has a few rows: files for one report combine many.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rouse.errors import RouseError, how_to_install
from rouse.tables.schemas import COLUMNS, REAL, TEXT, TRUTH, WHOLE, WORD
from rouse.tables.table import Coded, Table

try:
    import pyarrow as pa
    from pyarrow import parquet
except ImportError as error:
    raise RouseError(
        f"Parquet: there is no Python package pyarrow ({error})",
        how_to_install("query", "duckdb", "pyarrow"),
    ) from error

TYPES = {
    TEXT: pa.string(),
    WORD: pa.dictionary(pa.int32(), pa.string()),
    WHOLE: pa.int64(),
    REAL: pa.float64(),
    TRUTH: pa.bool_(),
}
SCHEMAS = {
    name: pa.schema([(key, TYPES[sort]) for key, sort in columns.items()])
    for name, columns in COLUMNS.items()
}
PART_ROWS = 100_000  # in memory, before they are written


def arrow(table: Table) -> pa.Table:
    schema = SCHEMAS[table.name]
    columns = []
    for field, column in zip(schema, table.columns.values(), strict=True):
        if column is None:
            columns.append(pa.nulls(table.rows, field.type))
        elif isinstance(column, Coded):
            words = pa.array(column.words, pa.string())
            codes = pa.array(column.codes.astype("int32"))
            coded = pa.DictionaryArray.from_arrays(codes, words)
            columns.append(coded if pa.types.is_dictionary(field.type) else coded.cast(field.type))
        elif isinstance(column, list) and pa.types.is_dictionary(field.type):
            columns.append(pa.array(column, pa.string()).dictionary_encode())
        else:
            columns.append(pa.array(column, field.type))
    return pa.table(columns, schema=schema)


def file_name(tables: Mapping[str, Table]) -> str:
    """Return the name of the process of the tables."""
    names = tables["processes"].column("process")
    return re.sub(r"[^A-Za-z0-9._-]", "_", "+".join(names[:1]) or "empty") + ".parquet"


def write(tables: Mapping[str, Table], folder: Path) -> int:
    """Write a process's tables beneath folder, replacing older ones. Return the number of rows."""
    name, rows = file_name(tables), 0
    for key, table in tables.items():
        place = folder / key
        place.mkdir(parents=True, exist_ok=True)
        partial = place / (name + ".part")
        parquet.write_table(arrow(table), partial, compression="zstd")
        partial.replace(place / name)
        rows += table.rows
    return rows


class Parts:
    """Collects tables of processes, and writes them beneath folder when they have many rows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.gathered: dict[str, list[pa.Table]] = {}
        self.rows = 0
        self.count = 0

    def add(self, tables: Mapping[str, Table]) -> None:
        for key, table in tables.items():
            if table.rows:
                self.gathered.setdefault(key, []).append(arrow(table))
                self.rows += table.rows
        if self.rows >= PART_ROWS:
            self.flush()

    def flush(self) -> None:
        for key, tables in self.gathered.items():
            place = self.folder / key
            place.mkdir(parents=True, exist_ok=True)
            whole = pa.concat_tables(tables).unify_dictionaries()
            parquet.write_table(whole, place / f"{self.count}.parquet", compression="zstd")
        self.gathered, self.rows = {}, 0
        self.count += 1
