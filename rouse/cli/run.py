# SPDX-License-Identifier: MIT
"""`rouse run`: run an unmodified program with the interposer, and report on it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from rouse.cli.arguments import (
    SCATTER_MS,
    Accept,
    LockChange,
    Microseconds,
    Name,
    Timers,
    files,
    format_of,
)
from rouse.cli.commands import Command
from rouse.run import delay as delays
from rouse.run.launch import (
    ACCEPT,
    MEMORY,
    PAIRS_MOST,
    SPIN_NS,
    TRACE,
    Wanted,
    distort,
    find_program,
    run,
)
from rouse.store import layout

DEPTH_NAME, DEPTH = "ROUSE_OBS_DEPTH", 6
TRACE_KIB = 1024  # per thread
FORMATS = ("text", "json", "html", "perfetto")


class RunCommand(Command):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give --trace its size, since the word that follows it may be PROGRAM."""
        options = [option for option in self.params if isinstance(option, click.Option)]
        with_value = {name for option in options if not option.is_flag for name in option.opts}
        args, at = list(args), 0
        while at < len(args) and args[at].startswith("-") and args[at] != "--":
            if args[at] == "--trace":
                args[at] = f"--trace={TRACE_KIB}"
            at += 2 if args[at] in with_value else 1
        return super().parse_args(ctx, args)


def delay_of(program: str, lock: str, amount: str) -> str:
    us = Microseconds("--delay").convert(amount, None, None)
    return delays.value(find_program(program), lock, us)


@click.command(
    cls=RunCommand,
    short_help="Run a program and report what its threads waited for.",
    context_settings={"allow_interspersed_args": False},
)
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    metavar="[--] PROGRAM [ARGS]...",
    shell_complete=files,
)
@click.option(
    "-o", "--output", type=Name(), metavar="FILE", help="Where the report goes [standard error]."
)
@click.option(
    "--format",
    "chosen_format",
    type=click.Choice(FORMATS),
    help="What to write [by the end of FILE's name, .html or .json, else text]: the report as JSON"
    " with times in ns (json) or as a page (html), or, with --trace, the events as trace JSON"
    " (perfetto).",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.option(
    "--full",
    is_flag=True,
    help="All tables and notes, not only the first screen; --kernel implies it.",
)
@click.option("--sum", "in_sum", is_flag=True, help="Processes of one program in sum.")
@click.option(
    "--keep",
    type=Name(),
    metavar="DIR",
    help="Make this folder, and leave what was recorded in it, for rouse report DIR.",
)
@click.option(
    "--distortion",
    "pairs",
    type=click.IntRange(1, PAIRS_MOST),
    metavar="N",
    help="Run PROGRAM N times without recording and N times with it, after one of each that does"
    " not count, and report what recording costs.",
)
@click.option(
    "--depth",
    type=click.IntRange(1, layout.SITE_FRAMES),
    metavar="N",
    help=f"How many calls are recorded of where a thread waits or wakes: 1 to 8 [{DEPTH}].",
)
@click.option(
    "--stacks",
    "in_stacks",
    is_flag=True,
    help="One row of the report per call stack, with its calls below.",
)
@click.option(
    "--holds",
    is_flag=True,
    help="Also record every acquisition of a lock, and how long it is held.",
)
@click.option(
    "--trace",
    "trace_kib",
    type=click.IntRange(4, layout.RINGS_MAX >> 10),
    metavar="[=KIB]",
    help="Also record each wait by itself, in a ring of so many KiB for each thread that keeps the"
    f" latest ones [{TRACE_KIB}]; --format perfetto shows them.",
)
@click.option(
    "--kernel",
    "with_kernel",
    is_flag=True,
    help="Also what the kernel's scheduler does: for how long each thread runs, sleeps and waits"
    " for a processor; as root, who wakes it, and what of each wait is the way to a processor.",
)
@click.option(
    "--memory",
    type=click.IntRange(1, layout.BYTES_MAX >> 20),
    metavar="MIB",
    help="What the record of each process may take at most; what does not fit is counted"
    f" [{layout.BYTES_MAX >> 20}].",
)
@click.option(
    "--timers",
    type=Timers(),
    help="precise: the kernel ends the program's sleeps at once; coalesce:US: it may end those"
    " together that lie US microseconds apart [the program's own, usually 50].",
)
@click.option(
    "--locks",
    type=click.Choice(["adaptive"]),
    help="adaptive: who finds a plain mutex held tries for a little while before it sleeps.",
)
@click.option(
    "--delay",
    type=LockChange(),
    metavar="LOCK=US",
    help="Let each holder of this mutex, a static variable of the program, compute for so many"
    " microseconds more before it releases it.",
)
@click.option(
    "--accept",
    type=Accept(),
    help="Who gets the next connection of a listener, over all threads and processes: fifo, who"
    " has waited longest; lifo, who came last; scatter:MS, anybody, after a random delay of up to"
    f" MS milliseconds [as the kernel does it; scatter alone: {SCATTER_MS}].",
)
def command(
    words: tuple[str, ...],
    output: str | None,
    chosen_format: str | None,
    as_json: bool,
    full: bool,
    in_sum: bool,
    keep: str | None,
    pairs: int | None,
    depth: int | None,
    in_stacks: bool,
    holds: bool,
    trace_kib: int | None,
    with_kernel: bool,
    memory: int | None,
    timers: int | None,
    locks: str | None,
    delay: tuple[str, str] | None,
    accept: str | None,
) -> int:
    """Run PROGRAM, and report on the waits of its threads when it has ended.

    The program is not rebuilt. Its exit status is that of rouse.
    """
    if as_json and chosen_format not in (None, "json"):
        raise click.UsageError(f"--json and --format {chosen_format} contradict each other")
    name = "json" if as_json else chosen_format or format_of(output)
    in_trace = name == "perfetto"
    if name == "html" and not output:
        raise click.UsageError("--format html writes a file: name it with -o FILE")
    if in_trace and trace_kib is None:
        raise click.UsageError("--format perfetto shows events: add --trace")
    if in_trace and not output:
        raise click.UsageError("--format perfetto writes a file: name it with -o FILE")
    if in_trace and in_sum:
        raise click.UsageError("--sum has no events, which --format perfetto shows")
    asked = {
        "ROUSE_OBS": "locks" if holds else None,
        TRACE: trace_kib,
        DEPTH_NAME: depth or (None if DEPTH_NAME in os.environ else DEPTH),
        MEMORY: memory,
        "ROUSE_RUN_SLACK_NS": timers,
        "ROUSE_RUN_SPIN_NS": SPIN_NS if locks else None,
        ACCEPT: accept,
        delays.VARIABLE: delay and delay_of(words[0], *delay),
    }
    variables = {name: str(value) for name, value in asked.items() if value is not None}
    place = Path(keep) if keep else None
    wanted = Wanted(
        *(output, name, place, in_sum, variables, with_kernel, in_stacks, full),
        delayed="=".join(delay or ()),
    )
    if pairs is None:
        return run(words, wanted)
    if in_trace:
        raise click.UsageError("--distortion has no events: leave --format perfetto out")
    if name == "html":
        raise click.UsageError("--distortion has no page: name a FILE that does not end in .html")
    if keep:
        raise click.UsageError("--distortion keeps nothing: leave --keep out")
    if with_kernel:
        raise click.UsageError("--distortion is of the library: leave --kernel out")
    return distort(words, wanted, pairs)
