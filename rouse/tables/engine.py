# SPDX-License-Identifier: MIT
"""Run the queries: by default in SQLite, inside this process.

The tables of one process are in memory. Those of a folder of recordings are put into a database on
disk, one after the other, so that they need not fit into memory. DuckDB (ducks.py) or Spark
(spark.py) read a folder of Parquet files, one subfolder per table, and run the same SQL text.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rouse.errors import RouseError
from rouse.tables.schemas import COLUMNS, REAL, TEXT, TRUTH, TRUTHS, WHOLE, WORD
from rouse.tables.table import Row, Table
from rouse.tables.views import KEPT, VIEWS

SQLITE, DUCKDB, SPARK = "sqlite", "duckdb", "pyspark"
ENGINES = (SQLITE, DUCKDB, SPARK)
TYPES = {TEXT: "TEXT", WORD: "TEXT", WHOLE: "INTEGER", REAL: "REAL", TRUTH: "INTEGER"}


SUBQUERY = re.compile(r"\b(?:FROM|JOIN) (\()\s*SELECT\b")


def flattened(sql: str) -> str:
    """Move the subqueries of sql to one WITH clause, each different one once.

    Queries are made from queries, ten deep. The parser of SQLite before 3.46 cannot nest so far.
    """
    parts: dict[str, str] = {}

    def hoisted(text: str) -> str:
        out, at = "", 0
        while found := SUBQUERY.search(text, at):
            begin, end, depth = found.start(1), found.end(1), 1
            while depth:
                depth += {"(": 1, ")": -1}.get(text[end], 0)
                end += 1
            inner = hoisted(text[begin + 1 : end - 1].strip())
            name = parts.setdefault(inner, f"q{len(parts)}")
            out, at = out + text[at:begin] + name, end
        return out + text[at:]

    last = hoisted(sql.strip())
    listed = ",\n".join(f"{name} AS ({text})" for text, name in parts.items())
    return f"WITH {listed}\n{last}" if parts else last


class Database(ABC):
    """The tables by name, and the engine that queries them."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Row]] = {}

    @abstractmethod
    def run(self, sql: str) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        """Return the names of the columns, and the rows. Raise RouseError."""

    @abstractmethod
    def close(self) -> None: ...

    def rows(self, sql: str) -> list[Row]:
        """Return the rows. A repeated query is not run again."""
        if sql not in self.asked:
            names, found = self.run(flattened(sql))
            rows = [dict(zip(names, row, strict=True)) for row in found]
            for name in TRUTHS.intersection(names) | {n for n in names if n.startswith("is_")}:
                for row in rows:
                    if row[name] is not None:
                        row[name] = bool(row[name])
            self.asked[sql] = rows
        return [dict(row) for row in self.asked[sql]]

    def count(self, sql: str) -> int:
        """Return the single number of a query's single row."""
        (row,) = self.rows(sql)
        (number,) = row.values()
        return int(number or 0)

    def table(self, name: str) -> Table:
        """Return all rows of a table, in the order in which they were added."""
        _, rows = self.run(f"SELECT {quoted(COLUMNS[name])} FROM {name}")
        columns: dict[str, list[Any]] = {key: [] for key in COLUMNS[name]}
        lists = list(columns.values())
        words: dict[Any, Any] = {}  # one object for each different text
        count = 0
        for row in rows:
            count += 1
            for values, value in zip(lists, row, strict=True):
                values.append(words.setdefault(value, value) if type(value) is str else value)
        for key, sort in COLUMNS[name].items():
            if sort == TRUTH:
                columns[key] = [None if v is None else bool(v) for v in columns[key]]
        return Table(name, count, columns)


def quoted(columns: Iterable[str]) -> str:
    return ", ".join(f'"{column}"' for column in columns)


class Sqlite(Database):
    """path: a file to create. Empty: in memory."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__()
        self.connection = sqlite3.connect(path or ":memory:", isolation_level=None)
        self.is_complete = False
        # Nobody else reads the file, and nobody needs it after a crash.
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "locking_mode = EXCLUSIVE"):
            self.connection.execute(f"PRAGMA {pragma}")
        for name, columns in COLUMNS.items():
            made = ", ".join(f'"{key}" {TYPES[sort]}' for key, sort in columns.items())
            self.connection.execute(f"CREATE TABLE {name} ({made})")

    def add(self, tables: Mapping[str, Table]) -> None:
        """Add rows to tables, before any query."""
        try:
            self.connection.execute("BEGIN")
            for name, table in tables.items():
                if table.rows:
                    marks = ", ".join("?" * len(COLUMNS[name]))
                    self.connection.executemany(
                        f"INSERT INTO {name} VALUES ({marks})", table.tuples()
                    )
            self.connection.execute("COMMIT")
        except (sqlite3.Error, MemoryError) as error:
            raise refused(error) from error

    def finish(self) -> None:
        for name, sql in VIEWS.items():
            if name in KEPT:
                self.connection.execute(f"CREATE TABLE {name} AS {flattened(sql)}")
                self.connection.execute(f"CREATE INDEX {name}_key ON {name} ({quoted(KEPT[name])})")
            else:
                self.connection.execute(f"CREATE VIEW {name} AS {flattened(sql)}")
        self.is_complete = True

    def run(self, sql: str) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        try:
            if not self.is_complete:
                self.finish()
            cursor = self.connection.execute(sql)
            return [column[0] for column in cursor.description], cursor.fetchall()
        except (sqlite3.Error, MemoryError) as error:
            raise refused(error) from error

    def close(self) -> None:
        self.connection.close()


def refused(error: Exception) -> RouseError:
    if isinstance(error, MemoryError):
        return RouseError(
            "there is no memory for the tables", "is there a limit (--memory, or ulimit -v)?"
        )
    return RouseError(f"the tables cannot be read: {first_line(error)}")


def first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def open_tables(tables: Mapping[str, Table]) -> Sqlite:
    """Open tables in memory."""
    database = Sqlite()
    database.add(tables)
    return database


def files_of(folder: Path, table: str) -> list[str]:
    return sorted(str(path) for path in (folder / table).glob("*.parquet"))
