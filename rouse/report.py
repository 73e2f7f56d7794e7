# SPDX-License-Identifier: MIT
"""`rouse report`: what threads waited for, who held it or woke them, and what that came to."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TextIO

import click
from rich.console import Console

from rouse import activity, asleep, facts, locks, queries
from rouse.arguments import Name
from rouse.commands import Command
from rouse.engine import ENGINES
from rouse.errors import RouseError, output
from rouse.inputs import Input, open_input
from rouse.plans import KEYS
from rouse.render.text import printable
from rouse.sections import Report, Section, Wanted, ask
from rouse.switches import Switches

TERMINAL_ROWS = 20
PAGE_ROWS = 2000
SERIES_ROWS = 1000  # of locks and sites, and as many of wake-ups: each is a few series
STDOUT = "-"


@dataclass(frozen=True)
class Options:
    sections: tuple[str, ...]
    limit: int | None
    show_idle: bool
    as_json: bool
    files: dict[str, str]  # by format
    kernel_style: bool = False
    engine: str = ENGINES[0]
    in_sum: bool = False

    @property
    def with_events(self) -> bool:
        return self.kernel_style or bool({"perfetto", "parquet"} & set(self.files))

    @property
    def is_bare(self) -> bool:
        """Whether something is written that has no place for notes."""
        return self.kernel_style or bool(set(self.files) - {"html"})


class Reporter:
    """Makes each format from one input; what several of them need is asked for once."""

    def __init__(self, opened: Input, options: Options) -> None:
        self.input = opened
        self.database = opened.database
        self.options = options

    def rows(self, query: Callable[[queries.Tables], Any]) -> list[dict[str, Any]]:
        return self.database.rows(query(self.database.tables))

    @cached_property
    def frames(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Each site's frames, the innermost first."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows(queries.site_frames):
            found.setdefault((row["process"], row["site"]), []).append(row)
        return found

    @cached_property
    def stacks(self) -> dict[str, list[str]]:
        """The labels of sites with more than one frame, the innermost first."""
        found: dict[str, list[str]] = {}
        for row in self.rows(queries.stack_frames):
            found.setdefault(f"{row['process']} {row['site']}", []).append(row["label"])
        return found

    @cached_property
    def waits(self) -> list[dict[str, Any]]:
        """Of the wait sites, those that are to be shown."""
        return [
            row
            for row in self.rows(queries.wait_sites)
            if self.options.show_idle or not row["is_idle"]
        ]

    def report(self, limit: int, show_idle: bool) -> Report:
        options = self.options
        wanted = Wanted(
            options.sections, limit if options.limit is None else options.limit, show_idle
        )
        end = ask(self.database, wanted)
        found = facts.facts(self.database, self.input.source)
        if self.input.machine:
            found.append(("machine", self.input.machine))
        notes = facts.notes(
            self.database, self.input.notes + self.input.problems, options.show_idle
        )
        sections = end()
        if self.input.switches and not options.sections:
            found.append(("seen by", asleep.fact(self.input.switches)))
            notes += asleep.notes(self.input.switches)
            sections += self.kernel_sections(self.input.switches, wanted.limit)
        return Report(found, notes, sections, self.stacks)

    def kernel_sections(self, seen: Switches, limit: int) -> list[Section]:
        pids = {row["process"]: int(row["pid"]) for row in self.rows(queries.processes)}
        labels = {
            (pids[process], int(site, 16)): frames[0]["label"]
            for (process, site), frames in self.frames.items()
        }
        waits: dict[tuple[int, str, int], int] = {}
        for row in self.rows(queries.wait_sites):
            key = (pids[row["process"]], row["kind"], int(row["wait_site"], 16))
            waits[key] = waits.get(key, 0) + row["count"]
        return [*asleep.split(seen, labels, waits, limit), *asleep.sections(seen, limit)]

    def json(self) -> str:
        report = self.report(0, self.options.show_idle)
        whole = {
            "source": self.input.source,
            "machine": self.input.machine,
            "facts": report.facts,
            "processes": self.rows(queries.processes),
            "notes": report.notes,
            "sections": {section.key: section.rows for section in report.sections},
            "stacks": report.frames,
            "left_out": {
                section.key: {"rows": section.more, "idle": section.idle}
                for section in report.sections
                if section.more or section.idle
            },
        }
        return json.dumps(whole, ensure_ascii=True, indent=1) + "\n"

    def terminal(self, file: TextIO) -> None:
        print_report(self.report(TERMINAL_ROWS, self.options.show_idle), file)

    # The formats of files

    def html(self) -> bytes:
        from rouse.render import page

        # The page has idle waits in any case, and hides them until asked.
        report = self.report(PAGE_ROWS, True)
        labels = {
            f"{process} {site}": [row["label"] for row in rows]
            for (process, site), rows in self.frames.items()
        }
        named = self.rows(queries.processes)
        what = (
            named[0]["program"].rpartition("/")[2] if len(named) == 1 else f"{len(named)} processes"
        )
        return page.render(replace(report, frames=labels), f"rouse report: {what}").encode()

    def pprof(self) -> bytes:
        from rouse.render import pprof

        return pprof.encode(self.rows(queries.processes), self.waits, self.frames)

    def folded(self) -> bytes:
        from rouse.render import folded

        return "".join(f"{line}\n" for line in folded.lines(self.waits, self.frames)).encode()

    def prometheus(self) -> bytes:
        from rouse.render import prometheus

        late = {row["process"]: row["late_ns"] for row in self.rows(queries.lateness_totals)}
        met, other_locks = self.heaviest(locks.table, prometheus.LOCK_SUMS)
        wakes, other_wakes = self.heaviest(queries.wake_ledger, prometheus.WAKE_SUMS)
        lines = prometheus.lines(
            self.rows(queries.totals),
            [*met, *prometheus.others(other_locks, prometheus.OTHER_LOCK)],
            [*wakes, *prometheus.others(other_wakes, prometheus.OTHER_WAKE)],
            self.rows(queries.calls),
            self.rows(queries.lateness),
            late,
            self.rows(queries.waiting),
        )
        return "".join(f"{line}\n" for line in lines).encode()

    def heaviest(
        self, query: Callable[..., Any], names: tuple[str, ...]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """The first rows of it, and for each process what the others come to, and their number."""
        limit = SERIES_ROWS if self.options.limit is None else self.options.limit
        if not limit:
            return self.rows(query), []
        rows = self.rows(lambda t: query(t, lambda r, order: r.order_by(order).limit(limit)))
        if len(rows) < limit:
            return rows, []

        def whole(t: queries.Tables) -> Any:
            table = query(t)
            return table.group_by("process").agg(rows=table.count(), **queries.sums(table, names))

        left = {row["process"]: row for row in self.rows(whole)}
        for row in rows:
            rest = left[row["process"]]
            rest["rows"] -= 1
            for name in names:
                rest[name] -= row[name]
        return rows, [rest for rest in left.values() if rest["rows"]]

    def perfetto(self) -> Iterator[bytes]:
        from rouse.render import perfetto

        tables = self.database.tables
        events = self.database.table(tables["events"])
        if not events.num_rows:
            raise RouseError(
                f"{self.input.source}: has no events",
                "they are kept with ROUSE_OBS=trace, or by rouse record --trace",
            )
        names = {
            (row["process"], row["thread_id"]): row["name"]
            for row in self.rows(lambda t: t["threads"].select("process", "thread_id", "name"))
        }
        labels = {
            (row["process"], row["site"]): row["label"]
            for row in self.rows(lambda t: t["sites"].filter(t["sites"].frame == 0))
        }
        processes = self.rows(lambda t: t["processes"])
        titles = {
            row["process"]: f"{row['program'].rpartition('/')[2]} {row['pid']}" for row in processes
        }
        lost = sum(row["lost_events"] for row in processes)
        return perfetto.parts(events, titles, names, labels, lost)

    def kernel_style(self) -> str:
        from rouse.render import kernel_style

        threads = self.rows(activity.thread_events)
        has_events = bool(threads)
        counts = {(r["process"], r["worker"]): r for r in self.rows(activity.worker_events)}
        return kernel_style.text(
            f"{self.input.source}: switches, wake-ups and spinning",
            self.rows(lambda t: t["workers"].order_by(["process", "index"])),
            counts,
            threads or self.rows(activity.thread_counters),
            has_events,
            self.rows(locks.spins),
            [row for row in self.waits if row["waiting"]],
        )

    def parquet(self, folder: Path) -> None:
        from rouse.render import parquet

        tables = {name: self.database.table(t) for name, t in self.database.tables.items()}
        try:
            parquet.write(tables, folder)
        except OSError as error:
            raise RouseError(f"{folder}: {error.strerror or error}") from error


class Whole(Console):
    """rich would end the program, with a status of its own, when nobody reads what is written."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def print_report(report: Report, file: TextIO) -> None:
    from rouse.render.terminal import Terminal

    width = line_width(file)
    console = Whole(file=file, width=width or 10_000, highlight=False, markup=False, emoji=False)
    Terminal(console, width).report(report)


def line_width(file: TextIO) -> int | None:
    """Columns of a line; None where nobody counts them."""
    if file.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, 20)
    return None


def put(name: str, parts: Iterable[bytes]) -> None:
    """Write a file whole or not at all; a device or a pipe is written to. - is standard output."""
    if name == STDOUT:
        with output():
            sys.stdout.buffer.writelines(parts)
            sys.stdout.buffer.flush()
        return
    path = Path(name)
    try:
        if path.exists() and not path.is_file():
            with path.open("wb") as file:
                file.writelines(parts)
        else:
            replace_whole(path.resolve(), parts)
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error


def replace_whole(path: Path, parts: Iterable[bytes]) -> None:
    """Make the file beside, under a name that nobody has, and give it its own at the end."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("xb") as file:
        try:
            file.writelines(parts)
            file.flush()
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def run(target: str | None, options: Options) -> None:
    with open_input(target, options.with_events, options.engine, options.in_sum) as opened:
        reporter = Reporter(opened, options)
        for name, file in options.files.items():
            if name == "parquet":
                reporter.parquet(Path(file))
            elif name == "perfetto":
                put(file, reporter.perfetto())
            else:
                put(file, [getattr(reporter, name)()])
        if options.kernel_style:
            put(STDOUT, [reporter.kernel_style().encode()])
        elif options.as_json:
            put(STDOUT, [reporter.json().encode()])
        elif not options.files:
            with output():
                reporter.terminal(sys.stdout)
        if options.is_bare:
            for problem in opened.problems:
                print(f"rouse: {printable(problem)}", file=sys.stderr)


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
