# SPDX-License-Identifier: MIT
"""`rouse compare`: two recordings of the same work, side by side.

Addresses differ from run to run: locks and sites are matched by their names, and a lock that has
none by the place that initialised it.
"""

from __future__ import annotations

import json
import sys

import click

from rouse.cli.arguments import Name
from rouse.cli.commands import Command
from rouse.errors import output
from rouse.query.compare import ROWS, compare
from rouse.query.sections import Report
from rouse.render.report import print_report
from rouse.tables.inputs import open_input


def as_json(report: Report) -> str:
    whole = {
        **dict(report.facts),
        "notes": report.notes,
        "sections": {section.key: section.rows for section in report.sections},
    }
    return json.dumps(whole, ensure_ascii=True, indent=1) + "\n"


@click.command(cls=Command, short_help="Two recordings of the same work, side by side.")
@click.argument("before", type=Name(), metavar="BEFORE")
@click.argument("after", type=Name(), metavar="AFTER")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows per section, 0 for all [{ROWS}; JSON all].",
)
@click.option("--json", "is_json", is_flag=True, help="Print everything as JSON; times in ns.")
def command(before: str, after: str, limit: int | None, is_json: bool) -> None:
    """Show two recordings side by side: files, or folders as rouse run --keep makes them.

    Locks and sites are matched by name, since addresses differ from run to run; locks without one
    by the place that initialised them.
    """
    rows = (0 if is_json else ROWS) if limit is None else limit
    with open_input(before) as old, open_input(after) as new, output():
        report = compare(old, new, rows)
        if is_json:
            sys.stdout.write(as_json(report))
        else:
            print_report(report, sys.stdout)
