# SPDX-License-Identifier: MIT
"""The same queries on Spark, over a folder of Parquet files: what `--engine pyspark` asks for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import ibis
import pyarrow as pa

from rouse.errors import RouseError
from rouse.tables.engine import Database, files_of, first_line, unbound

OPTION = "--engine pyspark"
SETTINGS = {
    "spark.app.name": "rouse report",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Tables of a few thousand rows, mostly: the default of 200 pieces costs seconds a query.
    "spark.sql.shuffle.partitions": "8",
}


class SparkDatabase(Database):
    """Spark's tables by name, and the session that runs queries over them."""

    def arrow(self, sql: str) -> pa.Table:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            return self.backend._session.sql(sql).toArrow()
        except (PySparkException, Py4JError) as error:
            raise RouseError(f"Spark cannot read the tables: {first_line(error)}") from error

    def interrupt(self) -> None:
        """There is nothing to be done: what runs, runs to its end."""

    def disconnect(self) -> None:
        self.backend._session.stop()


def check() -> None:
    """Say what is missing, before Spark does it in a page of text."""
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise RouseError(
            f"{OPTION}: there is no Python package pyspark ({first_line(error)})",
            "pip install 'rouse[spark]' brings it",
        ) from error
    home = os.environ.get("JAVA_HOME")
    java = Path(home, "bin", "java") if home else None
    if not (java.exists() if java else shutil.which("java")):
        where = f"JAVA_HOME has no {java}" if java else "there is no java in PATH"
        raise RouseError(f"{OPTION}: {where}", "install Java, Debian's default-jre-headless")


@contextmanager
def stderr_to(file: IO[bytes]) -> Iterator[None]:
    """Send what is written to standard error into file, by processes begun meanwhile for good."""
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

    # Nobody but this machine has to talk to it, as long as it runs here alone.
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


def open_parquet(folder: Path, schemas: Mapping[str, pa.Schema]) -> Database:
    """Over folder/NAME/*.parquet; a table of which there is no file is empty."""
    check()
    from ibis.backends.pyspark.datatypes import PySparkSchema

    running = session()
    for name, schema in schemas.items():
        # Columns that files of an older rouse lack are null.
        columns = PySparkSchema.from_ibis(ibis.Schema.from_pyarrow(schema))
        files = files_of(folder, name)
        reader = running.read.schema(columns)
        table = reader.parquet(*files) if files else running.createDataFrame([], columns)
        table.createOrReplaceTempView(name)
    return SparkDatabase(ibis.pyspark.connect(running), unbound(schemas))
