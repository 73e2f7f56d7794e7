# SPDX-License-Identifier: MIT
"""`rouse report`: what threads waited for, who held it or woke them, and what that came to."""

from __future__ import annotations

import click

from rouse.cli.arguments import Name
from rouse.cli.commands import Command
from rouse.query.specs import KEYS
from rouse.render.report import PAGE_ROWS, SERIES_ROWS, TERMINAL_ROWS, Options, run
from rouse.tables.engine import ENGINES


@click.command(cls=Command, short_help="Locks, wake-ups and waits of a process or a recording.")
@click.argument("target", required=False, type=Name(), metavar="[PID|FILE|FOLDER]")
@click.option(
    "--section",
    "-s",
    "chosen",
    multiple=True,
    type=click.Choice(KEYS),
    metavar="NAME",
    help=f"Only this section, may be repeated: {', '.join(KEYS)}.",
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
    help=f"Rows a section, 0 for all [{TERMINAL_ROWS}; page {PAGE_ROWS};"
    f" Prometheus {SERIES_ROWS}; JSON all].",
)
@click.option("--sum", "in_sum", is_flag=True, help="Processes of one program in sum.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; times in ns.")
@click.option(
    "--kernel-style", "kernel_style", is_flag=True, help="Switches, wake-ups and spin in one text."
)
@click.option(
    "--engine",
    type=click.Choice(ENGINES),
    default=ENGINES[0],
    help=f"What runs the queries [{ENGINES[0]}, in this process]; a FOLDER's may run on Spark.",
)
@click.option("--html", type=Name(), metavar="FILE", help="Write one self-contained page.")
@click.option("--pprof", type=Name(), metavar="FILE", help="Write a profile for go tool pprof.")
@click.option(
    "--folded", type=Name(), metavar="FILE", help="Write folded stacks, weighted by ns waited."
)
@click.option("--prometheus", type=Name(), metavar="FILE", help="Write Prometheus' text format.")
@click.option(
    "--perfetto", type=Name(), metavar="FILE", help="Write the events for Perfetto, as trace JSON."
)
@click.option(
    "--parquet", type=Name(), metavar="DIR", help="Write the tables as Parquet beneath DIR."
)
def command(
    target: str | None,
    chosen: tuple[str, ...],
    show_idle: bool,
    limit: int | None,
    in_sum: bool,
    as_json: bool,
    kernel_style: bool,
    engine: str,
    **files: str | None,
) -> None:
    """Report on a running process (PID), a recording or store (FILE), or a FOLDER of them.

    Without an argument: on the only process of yours that records. A FILE of - is standard output.
    """
    wanted = {name: file for name, file in files.items() if file}
    if in_sum and (kernel_style or "perfetto" in wanted):
        raise click.UsageError("--sum has no events: leave --kernel-style and --perfetto out")
    run(target, Options(chosen, limit, show_idle, as_json, wanted, kernel_style, engine, in_sum))
