# SPDX-License-Identifier: MIT
"""`rouse record`: keep what a process records, in a file that can be read anywhere."""

from __future__ import annotations

from pathlib import Path

import click

from rouse.cli.arguments import Name, Seconds
from rouse.cli.commands import Command
from rouse.run.recorder import SECONDS_MOST, run


@click.command(cls=Command, short_help="Keep what a process records in a file.")
@click.argument("pid", required=False, type=click.IntRange(min=1))
@click.option(
    "-o",
    "--output",
    required=True,
    type=Name(),
    metavar="FILE",
    help="The file to write.",
)
@click.option(
    "--seconds",
    type=Seconds(min=0, max=SECONDS_MOST),
    default=SECONDS_MOST,
    metavar="N",
    help="Stop after that long [when the process ends, or at SIGINT].",
)
@click.option(
    "--interval",
    type=Seconds(min=0.01),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between snapshots: what a SIGKILL of rouse may cost.",
)
@click.option("--force", is_flag=True, help="Write over FILE if it is there.")
@click.option("--trace", is_flag=True, help="Have each event recorded too, and keep them all.")
def command(
    output: str, pid: int | None, seconds: float, interval: float, force: bool, trace: bool
) -> None:
    """Record the process PID, or the only one of yours that records, until it ends.

    FILE can be read by `rouse report` at any time, here or on another machine.
    """
    run(Path(output), pid, seconds, interval, force, trace)
