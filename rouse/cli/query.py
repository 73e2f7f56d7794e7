# SPDX-License-Identifier: MIT
"""`rouse query`: a question in SQL to a recording."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

import click

from rouse import limits
from rouse.cli.arguments import Name
from rouse.cli.commands import Command
from rouse.errors import output
from rouse.query import ran
from rouse.query.ask import VIEWS, Asker
from rouse.query.sections import Section
from rouse.query.specs import Column
from rouse.render.report import STDOUT, Options, limited, put, terminal_of
from rouse.tables.build import Forms
from rouse.tables.engine import open_tables
from rouse.tables.inputs import Asked, Input, open_input

FORMATS = ("text", "csv", "json")
ROWS = 1000  # of a text
EPILOG = """\b
Examples:
  rouse query "SELECT kind, SUM(wait_ns) FROM wait_sites GROUP BY 1" 4711
  rouse query "SELECT quantize(wait_ns), COUNT(*) FROM trace_waits GROUP BY 1"
"""
Rows = Iterable[Sequence[Any]]


def kind_of(name: str, values: Iterable[Any]) -> str:
    """How a column is printed: as a duration by its name, or as what its values are."""
    known = [value for value in values if value is not None]
    if not known or not all(isinstance(value, int | float) for value in known):
        return "text"
    return "ns" if name.endswith("_ns") else "count"


def as_text(names: Sequence[str], rows: Rows, limit: int) -> str:
    found = list(islice(rows, limit + 1 if limit else None))
    shown = found[:limit] if limit else found
    if not shown:
        return "no rows\n"
    columns = tuple(
        Column(str(at), name, kind_of(name, [row[at] for row in shown]))
        for at, name in enumerate(names)
    )
    terminal = terminal_of(sys.stdout)  # lines are as wide as there
    terminal.console.file = made = io.StringIO()
    numbered = [{str(at): value for at, value in enumerate(row)} for row in shown]
    terminal.rows(Section("", "", "", columns, numbered))
    more = "there are more rows: --limit\n" if len(found) > len(shown) else ""
    return made.getvalue() + more


def as_csv(names: Sequence[str], rows: Rows) -> Iterator[str]:
    for row in chain([names], rows):
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow(row)
        yield line.getvalue()


def as_json(names: Sequence[str], rows: Rows) -> Iterator[str]:
    """A list of objects, a row a line."""
    between = "[\n"
    for row in rows:
        yield between + json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=True)
        between = ",\n"
    yield "\n]\n" if between != "[\n" else "[]\n"


def listed(opened: Input) -> str:
    lines = []
    for name, columns in Asker(opened.database, None).columns().items():
        about = f" - {VIEWS[name]}" if name in VIEWS else ""
        lines.append(f"{name}{about}\n    {', '.join(columns)}\n")
    return "".join(lines)


@click.command(cls=Command, short_help="A question in SQL to a recording.", epilog=EPILOG)
@click.argument("sql", required=False, metavar="SQL")
@click.argument("target", required=False, type=Name(), metavar="[PID|FILE|FOLDER]")
@click.option(
    "--tables", "with_tables", is_flag=True, help="List the tables and their columns, and end."
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows of a text, 0 for all [{ROWS}]; csv and json have all.",
)
@click.option(
    "--format",
    "-f",
    "chosen_format",
    type=click.Choice(FORMATS),
    default=FORMATS[0],
    metavar="FORMAT",
    help="What to write [text]: csv, or json, a list of objects. Durations are in ns there.",
)
@click.option("-o", "file", type=Name(), metavar="FILE", default=STDOUT, help="Write it there [-].")
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    help=f"What a FILE may take at most [{limits.BASE_MIB} and {limits.TIMES} times the file,"
    f" at most {limits.MOST_MIB}].",
)
def command(
    sql: str | None,
    target: str | None,
    with_tables: bool,
    limit: int | None,
    chosen_format: str,
    file: str,
    memory: int | None,
) -> None:
    """Run a SELECT of SQLite's language over the tables of a running process (PID), a recording or
    store (FILE), or a FOLDER of them.

    Without a target: those of the only process of yours that records.
    """
    if with_tables:
        with output():
            print(listed(Input("", open_tables({}), [], "")), end="")
        return
    if not sql:
        raise click.UsageError("which query? For example 'SELECT * FROM lock_table'")
    with (
        limited(target, Options(memory_mib=memory)),
        open_input(target, Asked(with_events=True, forms=Forms(with_callers=True))) as opened,
    ):
        running = ran.make(opened.ran, opened.database) if opened.ran else None
        names, rows = Asker(opened.database, running).ask(sql)
        if chosen_format == "text":
            parts: Iterable[str] = [as_text(names, rows, ROWS if limit is None else limit)]
        else:
            parts = {"csv": as_csv, "json": as_json}[chosen_format](names, rows)
        put(file, (part.encode() for part in parts))
