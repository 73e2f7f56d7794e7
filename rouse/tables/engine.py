# SPDX-License-Identifier: MIT
"""Where the queries run: the tables of one or more processes, in DuckDB inside this process.

Tables come as Arrow tables, or as a folder of Parquet files (one subfolder a table), which DuckDB
reads as it goes, so that more than fits in memory can be reported on. Of such a folder the same
queries run on Spark, too: rouse/tables/spark.py.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from queue import PriorityQueue
from typing import Any

import duckdb
import ibis
import pyarrow as pa

from rouse.errors import RouseError

ENGINES = ("duckdb", "pyspark")
END, URGENT, LATER = range(3)
MEMORY_LIMIT = "700MB"  # of DuckDB's own; it spills to disk beyond


class Line:
    """Runs one call after the other in a thread of its own; urgent ones go before the rest."""

    def __init__(self) -> None:
        self.calls: PriorityQueue[tuple[int, int, Callable[[], Any], Future[Any]]] = PriorityQueue()
        self.number = 0
        self.thread: threading.Thread | None = None

    def put(self, call: Callable[[], Any], is_urgent: bool) -> Future[Any]:
        future: Future[Any] = Future()
        self.number += 1
        self.calls.put((URGENT if is_urgent else LATER, self.number, call, future))
        if self.thread is None:
            self.thread = threading.Thread(target=self.work, daemon=True)
            self.thread.start()
        return future

    def work(self) -> None:
        while True:
            order, _, call, future = self.calls.get()
            if order == END:
                return
            try:
                future.set_result(call())
            except BaseException as error:  # it is raised again where the result is wanted
                future.set_exception(error)

    def close(self) -> None:
        if self.thread is not None:
            self.calls.put((END, 0, lambda: None, Future()))
            self.thread.join()


@dataclass(frozen=True)
class Database:
    """The tables by name, and what runs queries over them."""

    backend: Any
    tables: Mapping[str, Any]
    asked: dict[str, Future[Any]] = field(default_factory=dict)
    line: Line = field(default_factory=Line)

    def table(self, query: Any) -> pa.Table:
        sql = self.backend.compile(query)
        return self.line.put(lambda: self.arrow(sql), is_urgent=True).result()

    def rows(self, query: Any) -> list[dict[str, Any]]:
        """Its rows; what is asked once more is not run once more."""
        return self.ask(query, is_urgent=True)()

    def ask(self, query: Any, is_urgent: bool = False) -> Callable[[], list[dict[str, Any]]]:
        """The same, later: it runs while others are made, which takes as long as a small one."""
        sql = self.backend.compile(query)
        if sql not in self.asked:
            self.asked[sql] = self.line.put(lambda: self.run(sql), is_urgent)
        return lambda: [dict(row) for row in self.asked[sql].result()]

    def arrow(self, sql: str) -> pa.Table:
        # ibis' own way to Arrow goes by pandas, whose import takes as long as a small report.
        try:
            return self.backend.con.sql(sql).to_arrow_table()
        except duckdb.OutOfMemoryException as error:
            raise RouseError(
                "there is no memory for the tables", "is there a limit (ulimit -v)?"
            ) from error
        except duckdb.Error as error:
            raise RouseError(f"the tables cannot be read: {first_line(error)}") from error

    def run(self, sql: str) -> list[dict[str, Any]]:
        found = self.arrow(sql)
        columns = {name: found.column(name).to_pylist() for name in found.column_names}
        for kind in found.schema:
            # A sum of 64-bit numbers is one of 128 bits, which Arrow has as a decimal.
            if pa.types.is_decimal(kind.type):
                columns[kind.name] = [None if x is None else int(x) for x in columns[kind.name]]
        names = list(columns)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def close(self) -> None:
        """Queries that have not run yet do not run any more."""
        self.interrupt()
        self.line.close()
        self.disconnect()

    def interrupt(self) -> None:
        self.backend.con.interrupt()

    def disconnect(self) -> None:
        self.backend.disconnect()


def connect() -> Any:
    backend = ibis.duckdb.connect()
    backend.raw_sql(f"SET memory_limit = '{MEMORY_LIMIT}'")
    backend.raw_sql("SET preserve_insertion_order = false")
    backend.raw_sql("SET enable_progress_bar = false")
    return backend


def unbound(schemas: Mapping[str, pa.Schema]) -> dict[str, Any]:
    """The tables as queries see them."""
    return {name: ibis.table(ibis.Schema.from_pyarrow(s), name=name) for name, s in schemas.items()}


def open_tables(tables: Mapping[str, pa.Table]) -> Database:
    """Over tables in memory, which are not copied."""
    backend = connect()
    for name, table in tables.items():
        backend.con.register(name, table)
    return Database(backend, unbound({name: table.schema for name, table in tables.items()}))


def parquet_files(backend: Any, name: str, files: list[str], schema: pa.Schema) -> Any:
    """All rows; columns that files of an older rouse lack are null."""
    try:
        found = backend.con.read_parquet(files, union_by_name=True)
        if set(schema.names) <= set(found.columns):
            return found
        columns = ", ".join(f'"{column}"' for column in schema.names)
        backend.con.register(f"{name} lacks", schema.empty_table())
        return found.query(
            "found", f'SELECT {columns} FROM (FROM found UNION ALL BY NAME FROM "{name} lacks")'
        )
    except duckdb.Error as error:
        raise RouseError(f"{Path(files[0]).parent}: {first_line(error)}") from error


def first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0]


def files_of(folder: Path, table: str) -> list[str]:
    return sorted(str(path) for path in (folder / table).glob("*.parquet"))


def open_parquet(folder: Path, schemas: Mapping[str, pa.Schema]) -> Database:
    """Over folder/NAME/*.parquet; a table of which there is no file is empty."""
    backend = connect()
    for name, schema in schemas.items():
        files = files_of(folder, name)
        backend.con.register(name, schema.empty_table())
        if files:
            backend.con.register(name, parquet_files(backend, name, files, schema))
    return Database(backend, unbound(schemas))
