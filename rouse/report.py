# SPDX-License-Identifier: MIT
"""`rouse report`: what threads waited for, who held it or woke them, and what that came to."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from rouse import facts, queries
from rouse.errors import RouseError
from rouse.inputs import Input, open_input
from rouse.plans import KEYS
from rouse.sections import Report, Wanted, sections

TERMINAL_ROWS = 20
PAGE_ROWS = 2000
STDOUT = "-"


@dataclass(frozen=True)
class Options:
    sections: tuple[str, ...]
    limit: int | None
    show_idle: bool
    as_json: bool
    files: dict[str, str]  # by format
    kernel_style: bool = False

    @property
    def with_events(self) -> bool:
        return self.kernel_style or bool({"perfetto", "parquet"} & set(self.files))


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
        found = facts.facts(self.database, self.input.source)
        if self.input.machine:
            found.append(("machine", self.input.machine))
        notes = facts.notes(self.database, self.input.problems, options.show_idle)
        return Report(found, notes, sections(self.database, wanted))

    def json(self) -> str:
        report = self.report(0, self.options.show_idle)
        whole = {
            "source": self.input.source,
            "machine": self.input.machine,
            "processes": self.rows(queries.processes),
            "notes": report.notes,
            "sections": {section.key: section.rows for section in report.sections},
            "left_out": {
                section.key: {"rows": section.more, "idle": section.idle}
                for section in report.sections
                if section.more or section.idle
            },
        }
        return json.dumps(whole, ensure_ascii=True, indent=1) + "\n"

    def terminal(self) -> None:
        from rouse.render.terminal import Terminal

        width = line_width()
        console = Console(width=width or 10_000, highlight=False, markup=False, emoji=False)
        Terminal(console, width).report(self.report(TERMINAL_ROWS, self.options.show_idle))

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
        lines = prometheus.lines(
            self.rows(queries.totals),
            self.rows(queries.lock_table),
            self.rows(queries.wake_ledger),
            self.rows(queries.calls),
            self.rows(queries.lateness),
            late,
        )
        return "".join(f"{line}\n" for line in lines).encode()

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
        titles = {
            row["process"]: f"{row['program'].rpartition('/')[2]} {row['pid']}"
            for row in self.rows(lambda t: t["processes"])
        }
        return perfetto.parts(events, titles, names, labels)

    def kernel_style(self) -> str:
        from rouse.render import kernel_style

        threads = self.rows(queries.thread_events)
        has_events = bool(threads)
        counts = {(r["process"], r["worker"]): r for r in self.rows(queries.worker_events)}
        return kernel_style.text(
            f"{self.input.source}: switches, wake-ups and spinning",
            self.rows(lambda t: t["workers"].order_by(["process", "index"])),
            counts,
            threads or self.rows(queries.thread_counters),
            has_events,
            self.rows(queries.spins),
        )

    def parquet(self, folder: Path) -> None:
        from rouse.render import parquet

        tables = {name: self.database.table(t) for name, t in self.database.tables.items()}
        parquet.write(tables, folder)


def line_width() -> int | None:
    """Columns of a line; None where nobody counts them."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, 20)
    return None


def put(name: str, parts: Iterable[bytes]) -> None:
    """Write a file whole or not at all; - is standard output."""
    if name == STDOUT:
        sys.stdout.buffer.writelines(parts)
        sys.stdout.buffer.flush()
        return
    path = Path(name)
    partial = path.with_name(path.name + ".part")
    try:
        with partial.open("wb") as file:
            file.writelines(parts)
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise RouseError(f"{path}: {error.strerror}") from error


def run(target: str | None, options: Options) -> None:
    with open_input(target, options.with_events) as opened:
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
            reporter.terminal()


@click.command(short_help="Locks, wake-ups and waits of a process or a recording.")
@click.argument("target", required=False, metavar="[PID|FILE|FOLDER]")
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
    help=f"Rows a section, 0 for all [{TERMINAL_ROWS}; a page {PAGE_ROWS}; JSON all].",
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON; times in ns.")
@click.option(
    "--kernel-style", "kernel_style", is_flag=True, help="Switches, wake-ups and spin in one text."
)
@click.option("--html", metavar="FILE", help="Write one self-contained page.")
@click.option("--pprof", metavar="FILE", help="Write a profile for go tool pprof.")
@click.option("--folded", metavar="FILE", help="Write folded stacks, weighted by ns waited.")
@click.option("--prometheus", metavar="FILE", help="Write Prometheus' text format.")
@click.option("--perfetto", metavar="FILE", help="Write the events for Perfetto, as trace JSON.")
@click.option("--parquet", metavar="DIR", help="Write the tables as Parquet beneath DIR.")
def command(
    target: str | None,
    chosen: tuple[str, ...],
    show_idle: bool,
    limit: int | None,
    as_json: bool,
    kernel_style: bool,
    **files: str | None,
) -> None:
    """Report on a running process (PID), a recording or store (FILE), or a FOLDER of them.

    Without an argument: on the only process of yours that records. A FILE of - is standard output.
    """
    wanted = {name: file for name, file in files.items() if file}
    run(target, Options(chosen, limit, show_idle, as_json, wanted, kernel_style))
