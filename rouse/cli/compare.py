# SPDX-License-Identifier: MIT
"""`rouse compare`: two recordings of the same work, side by side.

Addresses differ from run to run: locks and sites are matched by their names, and a lock that has
none by the place that initialised it.
"""

from __future__ import annotations

import io
import json
import sys

import click

from rouse.cli.arguments import Name, format_of
from rouse.cli.commands import Command
from rouse.errors import output
from rouse.query import difference
from rouse.query.compare import ROWS, compare
from rouse.query.sections import Report
from rouse.render.links import NONE as NO_LINKS
from rouse.render.report import PAGE_ROWS, STDOUT, Options, Reporter, print_report, put
from rouse.tables.inputs import Input, open_input

FORMATS = ("text", "html", "json")
LIMITS = {"text": ROWS, "html": PAGE_ROWS, "json": 0}


def as_json(report: Report) -> str:
    whole = {
        **dict(report.facts),
        "notes": report.notes,
        "sections": {section.key: section.rows for section in report.sections},
    }
    return json.dumps(whole, ensure_ascii=True, indent=1) + "\n"


def as_page(report: Report, before: Input, after: Input, is_bounded: bool) -> str:
    from rouse.render import page

    sides = [Reporter(opened, Options()).boxes() for opened in (before, after)]
    title = f"rouse compare: {before.source}, {after.source}"
    pictures = page.Pictures(difference.make(*sides))
    return page.render(report, pictures, title, NO_LINKS, is_bounded)


@click.command(cls=Command, short_help="Two recordings of the same work, side by side.")
@click.argument("before", type=Name(), metavar="BEFORE")
@click.argument("after", type=Name(), metavar="AFTER")
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows per section, 0 for all [{ROWS}; page {PAGE_ROWS}; JSON all].",
)
@click.option(
    "--format",
    "-f",
    "chosen_format",
    type=click.Choice(FORMATS),
    metavar="FORMAT",
    help="What to write [by the end of FILE's name, .html or .json, else text]: a page (html), or"
    " everything with times in ns (json).",
)
@click.option("--json", "is_json", is_flag=True, help="The same as --format json.")
@click.option(
    "-o",
    "file",
    type=Name(),
    metavar="FILE",
    default=STDOUT,
    help="Write it there; - is standard output [-].",
)
def command(
    before: str,
    after: str,
    limit: int | None,
    chosen_format: str | None,
    is_json: bool,
    file: str,
) -> None:
    """Show two recordings side by side: files, or folders as rouse run --keep makes them.

    Locks and sites are matched by name, since addresses differ from run to run; locks without one
    by the place that initialised them.
    """
    if is_json and chosen_format not in (None, "json"):
        raise click.UsageError(f"--json and --format {chosen_format} contradict each other")
    name = "json" if is_json else chosen_format or format_of(file)
    rows = LIMITS[name] if limit is None else limit
    with open_input(before) as old, open_input(after) as new:
        report = compare(old, new, rows)
        if name == "html":
            put(file, [as_page(report, old, new, limit is None).encode()])
        elif name == "json":
            put(file, [as_json(report).encode()])
        elif file == STDOUT:
            with output():
                print_report(report, sys.stdout)
        else:
            text = io.StringIO()
            print_report(report, text)
            put(file, [text.getvalue().encode()])
