# SPDX-License-Identifier: MIT
"""Run the same queries on Spark, over a folder of Parquet files (`--engine pyspark`)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rouse.errors import RouseError, how_to_install
from rouse.tables.engine import Database, files_of, first_line, flattened
from rouse.tables.schemas import COLUMNS, REAL, TEXT, TRUTH, WHOLE, WORD
from rouse.tables.views import VIEWS

OPTION = "--engine pyspark"
SETTINGS = {
    "spark.app.name": "rouse report",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Most tables have a few thousand rows: the default of 200 partitions costs seconds per query.
    "spark.sql.shuffle.partitions": "8",
    # Our SQL text quotes names as the standard does.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.doubleQuotedIdentifiers": "true",
}
TYPES = {TEXT: "STRING", WORD: "STRING", WHOLE: "BIGINT", REAL: "DOUBLE", TRUTH: "BOOLEAN"}


class SparkDatabase(Database):
    def __init__(self, session: Any) -> None:
        super().__init__()
        self.session = session

    def run(self, sql: str) -> tuple[list[str], Iterable[tuple[Any, ...]]]:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            found = self.session.sql(sql)
            return list(found.columns), [tuple(row) for row in found.collect()]
        except (PySparkException, Py4JError) as error:
            raise RouseError(f"Spark cannot read the tables: {first_line(error)}") from error

    def close(self) -> None:
        self.session.stop()


def check() -> None:
    """Report what is missing, before Spark fills a page with it."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise RouseError(
            f"{OPTION}: there is no Python package pyspark ({first_line(error)})",
            how_to_install("spark", "pyspark", "pyarrow"),
        ) from error
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if not (java.exists() if java else shutil.which("java")):
        where = f"JAVA_HOME has no {java}" if java else "there is no java in PATH"
        raise RouseError(f"{OPTION}: {where}", "install Java, Debian's default-jre-headless")


@contextmanager
def stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Send standard error to file; processes started meanwhile keep it."""
    own = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(own, 2)
        os.close(own)


def session() -> Any:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    # Spark runs on this machine alone, so that no other machine has to reach it.
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    with tempfile.TemporaryFile() as said:
        try:
            with stderr_to(said):
                return builder.getOrCreate()
        except (PySparkException, OSError, RuntimeError) as error:
            said.seek(0)
            lines = said.read().decode(errors="replace").splitlines()
            reason = next((line for line in lines if "Error" in line or "Exception" in line), "")
            raise RouseError(f"{OPTION}: Spark does not start: {reason or error}") from error


def open_parquet(folder: Path) -> Database:
    """Open folder/NAME/*.parquet. A table without a file is empty."""
    check()
    running = session()
    for name, columns in COLUMNS.items():
        # Columns that files of an older rouse lack are null.
        schema = ", ".join(f"`{key}` {TYPES[sort]}" for key, sort in columns.items())
        files = files_of(folder, name)
        reader = running.read.schema(schema)
        table = reader.parquet(*files) if files else running.createDataFrame([], schema)
        table.createOrReplaceTempView(name)
    database = SparkDatabase(running)
    for name, sql in VIEWS.items():
        database.run(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {flattened(sql)}")
    return database
