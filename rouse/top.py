# SPDX-License-Identifier: MIT
"""`rouse top`: where each thread's time goes over an interval, as prstat -mL shows it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from rouse import find, rowtext
from rouse.commands import Command
from rouse.errors import EXIT_ENDED, RouseError, output
from rouse.intervals import COLUMNS, EndedError, Interval, Watch

EPILOG = """\b
Columns, in percent of the interval (- where it is not known):
  USR  on a processor; user threads: their part of what their worker was
  SYS  of it in the kernel; kernel threads, from /proc, in clock ticks
  TRP  not told by the kernel
  TFL  0 without a major page fault, else not known
  DFL  the same, or waiting for disks if kernel.task_delayacct is 1
  LCK  waiting for a lock, condition, semaphore or another's end
  SLP  waiting for I/O, polls, connections or time; a worker: no work;
       or asleep in a system call of its own
  LAT  runnable, and not running, or its worker was
  VCX  waits and yields; kernel threads: voluntary switches
  ICX  involuntary switches of kernel threads
  SCL, SIG  not told by the kernel
Idle threads, in one wait for work all the time, are hidden: see --all.
Exit status: 0; 2 wrong arguments; 3 nothing to watch; 4 all has ended.
"""


class Watched:
    """The processes that are watched, with what has been told of them."""

    def __init__(self, wanted: Sequence[str]) -> None:
        self.wanted = wanted
        self.watches: dict[Path, Watch] = {}  # a number is of its PID namespace, and no key
        self.known: set[Path] = set()
        self.messages: list[str] = []
        self.begin()
        self.ended = 0

    def begin(self) -> None:
        """Raise RouseError if there is nothing to watch."""
        alive = [found for found in find.processes() if found.is_alive]
        if not self.wanted:
            chosen = [found.path for found in alive]
            if not chosen:
                raise RouseError(
                    f"no process of this user records (none in {find.folder()})",
                    "start a program that uses librouse, without ROUSE_OBS=off",
                )
        else:
            chosen = [path for word in self.wanted for path in self.paths_of(word, alive)]
        for path in dict.fromkeys(chosen):
            self.watches[path] = Watch(path)
        self.known = {found.path for found in alive} | set(chosen)

    @staticmethod
    def paths_of(word: str, alive: Sequence[find.Found]) -> list[Path]:
        """A process number, or the name of a program."""
        if word.isdecimal():
            return [find.of_pid(int(word))]
        named = [f.path for f in alive if f.program == word]
        if not named:
            raise RouseError(
                f"no process records that runs {word}", "rouse top without a name shows all that do"
            )
        return named

    def look_for_new(self) -> None:
        """Those that were forked by a watched one, and, where all are watched, others."""
        place = find.folder()
        names = sorted(os.listdir(place)) if place.is_dir() else []  # noqa: PTH208 names only
        for path in [place / name for name in names if find.NAME.fullmatch(name)]:
            if path in self.known:
                continue
            parent = self.parent_of(path)
            if parent or not self.wanted:
                try:
                    watch = self.watches[path] = Watch(path)
                except RouseError:
                    continue  # it has just begun; the next look sees it
                began = (
                    f"{parent.pid} has forked {watch.pid}" if parent else f"{watch.pid} has begun"
                )
                self.messages.append(f"process {began} ({watch.process}), which is shown too")
            self.known.add(path)

    def parent_of(self, path: Path) -> Watch | None:
        """The watched process that has forked the one of a file."""
        name = find.NAME.fullmatch(path.name)
        if not name or path.name != find.file_name(int(name[1])):
            return None
        number = find.parent_of(int(name[1]))
        return next((w for w in self.watches.values() if w.is_here and w.pid == number), None)

    def step(self) -> list[Interval]:
        """An interval of each process that lives; what became of the others is in messages."""
        self.look_for_new()
        found = []
        for path, watch in list(self.watches.items()):
            try:
                found.append(watch.step())
            except (EndedError, RouseError) as end:
                self.messages.append(f"process {watch.pid} ({watch.process}) {end}")
                watch.close()
                del self.watches[path]
                # Of the same number, after an exec, it is new.
                self.known.discard(watch.path)
                self.ended += 1
        return found

    def take_messages(self) -> list[str]:
        taken, self.messages = self.messages, []
        return [rowtext.printable(text) for text in taken]


def tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"rouse: {line}", file=sys.stderr, flush=True)


def intervals(watched: Watched, seconds: float, count: int) -> Iterator[list[Interval]]:
    """Look every so many seconds, count times (0: without end), as long as there is something."""
    due = time.monotonic()
    number = 0
    while watched.watches and (not count or number < count):
        due += seconds
        time.sleep(max(due - time.monotonic(), 0))
        yield watched.step()
        number += 1


def as_json(found: Sequence[Interval], picture: rowtext.Picture, shown: Sequence[int]) -> str:
    threads = []
    for row in shown:
        pid, number, tid = picture.key(row)
        values = [round(v, 3) for v in picture.values[row].tolist()]
        known = {n: None if np.isnan(v) else v for n, v in zip(COLUMNS, values, strict=True)}
        name = picture.name(row)
        threads.append(
            {"pid": pid, "id": number or None, "tid": tid or None, "name": name, **known}
        )
    processes = [
        {
            "pid": interval.pid,
            "process": interval.process,
            "user": interval.user,
            "interval_s": interval.seconds,
            "threads": interval.threads,
            "workers": interval.workers,
            "ended_threads": interval.ended_threads,
            "problems": interval.problems,
        }
        for interval in found
    ]
    return json.dumps({"unix_s": time.time(), "processes": processes, "threads": threads})


def width() -> int | None:
    """The terminal's; None: output is for a file or a program, which gets all of it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def print_batch(
    found: Sequence[Interval], wanted: rowtext.Wanted, limit: int, is_json: bool
) -> None:
    picture = rowtext.Picture(found)
    shown = picture.rows(wanted)[: limit or None]
    if is_json:
        put(as_json(found, picture, shown))
        return
    columns = rowtext.columns_for(wanted.split, width())
    lines = [rowtext.header(columns), *(picture.line(row, columns, width()) for row in shown)]
    if not shown and len(picture):
        lines.append(f"All {len(picture)} threads waited for work; --all shows them.")
    put("\n".join([*lines, picture.total()]))


def put(text: str) -> None:
    with output():
        print(text)


def batch(watched: Watched, wanted: rowtext.Wanted, options: dict[str, Any]) -> int:
    seconds, count = options["batch"]
    told: set[str] = set()
    for found in intervals(watched, seconds, count):
        tell(watched.take_messages())
        if found:
            print_batch(found, wanted, options["limit"], options["json"])
            problems = [f"process {i.pid}: {text}" for i in found for text in i.problems]
            tell([text for text in dict.fromkeys(problems) if text not in told])
            told.update(problems)
    return EXIT_ENDED if watched.ended and not watched.watches else 0


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
    streams = (sys.stdin, sys.stdout, sys.stderr)  # textual writes to the third
    if not options["batch"] and not all(stream.isatty() for stream in streams):
        raise click.UsageError("this is no terminal: give --batch SECONDS COUNT")
    watched = Watched(wanted)
    if options["batch"]:
        return batch(watched, choice, options)
    from rouse import toplive  # a terminal's library is slow to import

    return toplive.run(watched, choice, options["interval"])
