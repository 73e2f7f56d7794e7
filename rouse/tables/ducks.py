# SPDX-License-Identifier: MIT
"""The same queries in DuckDB, over a folder of Parquet files; needs the extra rouse[query]."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rouse.errors import RouseError, how_to_install
from rouse.tables.engine import Database, files_of, first_line, flattened, quoted
from rouse.tables.schemas import COLUMNS, REAL, TEXT, TRUTH, WHOLE, WORD
from rouse.tables.views import VIEWS

MEMORY_LIMIT = "700MB"  # of DuckDB's own; it spills to disk beyond
TYPES = {TEXT: "VARCHAR", WORD: "VARCHAR", WHOLE: "BIGINT", REAL: "DOUBLE", TRUTH: "BOOLEAN"}


class Ducks(Database):
    def __init__(self) -> None:
        super().__init__()
        try:
            import duckdb
        except ImportError as error:
            raise RouseError(
                f"there is no Python package duckdb ({first_line(error)})",
                how_to_install("query", "duckdb", "pyarrow"),
            ) from error
        self.duckdb = duckdb
        self.connection = duckdb.connect()
        for setting in (
            f"memory_limit = '{MEMORY_LIMIT}'",
            "preserve_insertion_order = false",
            "enable_progress_bar = false",
        ):
            self.connection.execute(f"SET {setting}")

    def run(self, sql: str) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        try:
            found = self.connection.execute(sql)
            return [column[0] for column in found.description], found.fetchall()
        except self.duckdb.OutOfMemoryException as error:
            raise RouseError(
                "there is no memory for the tables", "is there a limit (ulimit -v)?"
            ) from error
        except self.duckdb.Error as error:
            raise RouseError(f"the tables cannot be read: {first_line(error)}") from error

    def add(self, name: str, files: list[str]) -> None:
        """Add all rows. A column that files of an older rouse lack is null."""
        listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        source = f"read_parquet([{listed}], union_by_name = true)"
        try:
            known: set[str] = set()
            if files:
                described = self.connection.execute(f"DESCRIBE FROM {source}")
                known = {row[0] for row in described.fetchall()}
            columns = ", ".join(
                f'CAST({quoted([key]) if key in known else "NULL"} AS {TYPES[sort]}) AS "{key}"'
                for key, sort in COLUMNS[name].items()
            )
            end = f"FROM {source}" if files else "WHERE false"
            self.connection.execute(f"CREATE VIEW {name} AS SELECT {columns} {end}")
        except self.duckdb.Error as error:
            where = Path(files[0]).parent if files else name
            raise RouseError(f"{where}: {first_line(error)}") from error

    def close(self) -> None:
        self.connection.close()


def open_parquet(folder: Path) -> Ducks:
    """Open folder/NAME/*.parquet. A table without a file is empty."""
    database = Ducks()
    for name in COLUMNS:
        database.add(name, files_of(folder, name))
    for name, sql in VIEWS.items():
        database.run(f"CREATE VIEW {name} AS {flattened(sql)}")
    return database
