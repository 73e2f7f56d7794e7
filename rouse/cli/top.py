# SPDX-License-Identifier: MIT
"""`rouse top`: where each thread's time goes over an interval, as prstat -mL shows it."""

from __future__ import annotations

import sys
from typing import Any

import click

from rouse.cli.commands import Command
from rouse.top import rowtext
from rouse.top.batch import batch
from rouse.top.calls import Calls
from rouse.top.intervals import COLUMNS
from rouse.top.watched import Watched

EPILOG = """\b
Columns, in percent of the interval (- where it is not known):
  USR  on a processor; user threads: their part of what their worker was
  SYS  of it in the kernel; kernel threads, from /proc, in clock ticks
  TRP  not known: the kernel does not report the end of a trap
  TFL  0 without a major page fault, else not known
  DFL  the same, or waiting for disks if kernel.task_delayacct is 1
  LCK  waiting for a lock, condition, semaphore or another's end
  SLP  waiting for I/O, polls, connections or time; a worker: no work;
       or asleep in a system call of its own
  LAT  runnable, and not running, or its worker was
  VCX  waits and yields; kernel threads: voluntary switches
  ICX  involuntary switches of kernel threads
  SCL, SIG  system calls and signals of kernel threads, with --kernel
Idle threads, in one wait for work all the time, are hidden: see --all.
Exit status: 0; 2 wrong arguments; 3 nothing to watch; 4 all has ended.
"""


def check_seconds(_ctx: click.Context, _parameter: click.Parameter, value: Any) -> Any:
    seconds = value[0] if isinstance(value, tuple) else value
    if seconds is not None and not 0.01 <= seconds <= 86400:
        raise click.BadParameter("an interval is 0.01 to 86400 seconds")
    if isinstance(value, tuple) and value[1] < 0:
        raise click.BadParameter("COUNT is 0 or more")
    return value


@click.command(cls=Command, epilog=EPILOG)
@click.argument("wanted", nargs=-1, metavar="[PID|PROGRAM]...")
@click.option(
    "--batch",
    nargs=2,
    type=(float, int),
    metavar="SECONDS COUNT",
    callback=check_seconds,
    help="Print text, COUNT times (0: until it ends).",
)
@click.option(
    "--interval", type=float, default=1.0, callback=check_seconds, help="Seconds between two looks."
)
@click.option(
    "--sort",
    type=click.Choice([*rowtext.SORTS, *COLUMNS]),
    default="cpu",
    metavar="COLUMN",
    help="cpu (usr and sys, the default), name, pid, id or a column.",
)
@click.option("--reverse", is_flag=True, help="The least first.")
@click.option("--filter", "text", default="", help="Only threads whose PROCESS/LWP has TEXT in it.")
@click.option("--all", "everything", is_flag=True, help="Idle threads too.")
@click.option("--split", is_flag=True, help="LCK and SLP by what was waited for.")
@click.option("--kernel", is_flag=True, help="SCL and SIG, as root: BPF counts them.")
@click.option("-n", "--limit", type=click.IntRange(0), default=0, help="At most so many rows.")
@click.option("--json", is_flag=True, help="With --batch: an object a line.")
def command(wanted: tuple[str, ...], **options: Any) -> int:
    """Where each thread's time goes, of all of your processes that record or of some.

    Live on a terminal; with --batch as text.
    """
    choice = rowtext.Wanted(
        sort=options["sort"],
        reverse=options["reverse"],
        filter=options["text"],
        all=options["everything"],
        split=options["split"],
    )
    if options["json"] and not options["batch"]:
        raise click.UsageError("--json needs --batch")
    streams = (sys.stdin, sys.stdout, sys.stderr)  # textual writes to standard error
    if not options["batch"] and not all(stream.isatty() for stream in streams):
        raise click.UsageError("this is no terminal: give --batch SECONDS COUNT")
    calls = Calls() if options["kernel"] else None
    try:
        watched = Watched(wanted, calls)
        if options["batch"]:
            return batch(watched, choice, options)
        from rouse.top import live  # a terminal's library is slow to import

        return live.run(watched, choice, options["interval"])
    finally:
        if calls:
            calls.close()
