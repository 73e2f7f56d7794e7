# SPDX-License-Identifier: MIT
"""`rouse report`: what threads waited for, who held it, who woke them, and what that cost."""

from __future__ import annotations

import sys

import click

from rouse import limits
from rouse.cli.arguments import Editor, Name, Seconds, format_of
from rouse.cli.commands import Command
from rouse.errors import output
from rouse.query import requests
from rouse.query.specs import KEYS
from rouse.render.report import FORMATS, PAGE_ROWS, SERIES_ROWS, TERMINAL_ROWS, Options, run
from rouse.tables.engine import ENGINES

SECTIONS = (*KEYS, *requests.COLUMNS_BY_KEY)


@click.command(cls=Command, short_help="Locks, wake-ups and waits of a process or a recording.")
@click.argument("target", required=False, type=Name(), metavar="[PID|FILE|FOLDER]")
@click.option(
    "--section",
    "-s",
    "chosen",
    multiple=True,
    type=click.Choice(SECTIONS),
    metavar="NAME",
    help=f"Only this section, may be repeated: {', '.join(SECTIONS)}.",
)
@click.option(
    "--all",
    "-a",
    "show_idle",
    is_flag=True,
    help="Show idle waits too: of listeners, idle pools and connections.",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows per section, 0 for all [first screen: what fits; --full {TERMINAL_ROWS};"
    f" page {PAGE_ROWS}; Prometheus {SERIES_ROWS}; JSON all].",
)
@click.option("--full", is_flag=True, help="Text: all tables and notes, not only the first screen.")
@click.option("--sum", "in_sum", is_flag=True, help="Processes of one program in sum.")
@click.option(
    "--stacks",
    "in_stacks",
    is_flag=True,
    help="Text: one row per call stack, with its calls below. All other formats have stacks.",
)
@click.option(
    "--format",
    "-f",
    "chosen_format",
    type=click.Choice(FORMATS),
    metavar="FORMAT",
    help="What to write [by the end of FILE's name, .html or .json, else text]: a page (html),"
    " everything with times in ns (json), a profile for go tool pprof (pprof), stacks by ns waited"
    " (folded), events as trace JSON (perfetto), tables (parquet: -o names a folder), Prometheus'"
    " text, or switches and wake-ups (kernel-style).",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of --json, and end.")
@click.option(
    "-o", "file", type=Name(), metavar="FILE", help="Write it there; - is standard output [-]."
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    help=f"What runs the queries [{ENGINES[0]}, in this process]; a FOLDER's may run on Spark.",
)
@click.option(
    "--memory",
    type=click.IntRange(min=1),
    metavar="MIB",
    help=f"What a FILE may take at most [{limits.BASE_MIB} and {limits.TIMES} times the file,"
    f" at most {limits.MOST_MIB}].",
)
@click.option(
    "--cpu",
    type=Seconds(0, min_open=True),
    metavar="SECONDS",
    help=f"Processor time that a FILE may take [{limits.BASE_S} and {limits.PER_MIB_S} per MiB].",
)
@click.option(
    "--editor",
    type=Editor(),
    metavar="URI",
    help="Where places in the source lead to, such as vscode://file{file}:{line}, on a page and in"
    " a terminal that shows links [terminal: the file; page: nowhere].",
)
def command(
    target: str | None,
    chosen: tuple[str, ...],
    show_idle: bool,
    limit: int | None,
    full: bool,
    in_sum: bool,
    in_stacks: bool,
    chosen_format: str | None,
    as_json: bool,
    schema: bool,
    file: str | None,
    engine: str,
    memory: int | None,
    cpu: float | None,
    editor: str | None,
) -> None:
    """Report on a running process (PID), a recording or store (FILE), or a FOLDER of them.

    Without an argument: on the only process of yours that records.
    """
    if schema:
        from rouse.render import document

        with output():
            print(document.text(document.schema()), end="")
        return
    if as_json and chosen_format not in (None, "json"):
        raise click.UsageError(f"--json and --format {chosen_format} contradict each other")
    name = "json" if as_json else chosen_format or format_of(file)
    if name == "parquet" and file in (None, "-"):
        raise click.UsageError("--format parquet writes a folder: name it with -o DIR")
    if name == "pprof" and file is None and sys.stdout.isatty():
        raise click.UsageError("--format pprof is binary: name a file with -o FILE")
    if in_sum and name in ("perfetto", "kernel-style"):
        raise click.UsageError(f"--sum has no events, which --format {name} shows")
    options = Options(
        *(chosen, limit, show_idle, name, file or "-", engine, in_sum, in_stacks),
        full=full,
        memory_mib=memory,
        cpu_s=cpu,
        editor=editor,
    )
    run(target, options)
