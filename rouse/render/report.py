# SPDX-License-Identifier: MIT
"""Make a report in any format, and write it to a file or a terminal."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console

from rouse import limits, whole_file
from rouse.errors import RouseError, output
from rouse.query import (
    activity,
    facts,
    icicle,
    lanes,
    locks,
    measures,
    ran,
    requests,
    scheduler,
    screen,
    verdict,
    wait_graph,
)
from rouse.query.paths import Paths
from rouse.query.ran import Running
from rouse.query.sections import Report, Section, Wanted
from rouse.query.sections import sections as make_sections
from rouse.query.verdict import Verdict
from rouse.render import document, progress
from rouse.render.links import FILE as FILE_LINK
from rouse.render.links import NONE as NO_LINKS
from rouse.render.links import Links
from rouse.sched.probe import BY_BPF
from rouse.sched.switches import Switches
from rouse.store import leftovers
from rouse.tables.build import Forms
from rouse.tables.engine import ENGINES
from rouse.tables.inputs import Asked, Input, open_input
from rouse.tables.schemas import COLUMNS, PRELOAD
from rouse.text import printable

if TYPE_CHECKING:
    from rouse.render.terminal import Terminal

CUT_EMPTY = "nothing in what is left of the recording, which is cut short"
TERMINAL_ROWS = 20
PAGE_ROWS = 2000
SERIES_ROWS = 1000  # of locks and sites, and as many of wake-ups: each is a few series
STDOUT = "-"


FORMATS = (
    *("text", "html", "json", "pprof", "folded", "perfetto", "parquet", "prometheus"),
    "kernel-style",
)
WITH_EVENTS = ("perfetto", "parquet", "kernel-style")
# Problems after which a recording without a finding says nothing about its program.
DAMAGE = re.compile(r"is cut short|\bchunk \d+ is left out")
DAMAGED = "No verdict: a part of the recording is missing, as the notes say"
# Formats that have a place for notes, so that problems need no line on standard error.
WITH_NOTES = ("text", "html", "json")
# Formats for readers. In series over time and for other tools a label must not depend on the rest.
WITH_CALLERS = (*WITH_NOTES, "parquet")


@dataclass(frozen=True)
class Options:
    sections: tuple[str, ...] = ()
    limit: int | None = None
    show_idle: bool = False
    format: str = FORMATS[0]
    file: str = STDOUT
    engine: str = ENGINES[0]
    in_sum: bool = False
    in_stacks: bool = False  # text: a row per call stack, not per place
    full: bool = False  # text: all tables, not the first screen
    hint: str = "All tables and notes: --full. A page: -o FILE.html"
    memory_mib: int | None = None  # that a FILE may take. None: by its size
    cpu_s: float | None = None
    editor: str | None = None  # template of links to source files. None: a terminal has plain ones

    @property
    def in_places(self) -> bool:
        """Whether tables have a row for a place, not for a call stack."""
        return self.format == "text" and self.has_tables and not self.in_stacks

    @property
    def forms(self) -> Forms:
        """The forms of sites that the format needs."""
        return Forms(self.format in WITH_CALLERS, self.in_places)

    @property
    def has_tables(self) -> bool:
        """Whether the text has tables, and is not the first screen."""
        return self.full or self.in_stacks or bool(self.sections)


class Reporter:
    """Makes all formats from one input, and asks once for what several of them need."""

    def __init__(self, opened: Input, options: Options) -> None:
        self.input = opened
        self.database = opened.database
        self.options = options

    def rows(self, sql: str) -> list[dict[str, Any]]:
        return self.database.rows(sql)

    @cached_property
    def frames(self) -> dict[tuple[str, str], list[dict[str, Any]]]:
        """Each site's frames, the innermost first."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows(measures.site_frames()):
            found.setdefault((row["process"], row["site"]), []).append(row)
        return found

    @cached_property
    def stacks(self) -> dict[str, list[str]]:
        """The labels of sites with more than one frame, the innermost first."""
        found: dict[str, list[str]] = {}
        for row in self.rows(measures.stack_frames()):
            found.setdefault(f"{row['process']} {row['site']}", []).append(row["label"])
        return found

    @cached_property
    def waits(self) -> list[dict[str, Any]]:
        """The wait sites to be shown."""
        return [
            row
            for row in self.rows(measures.wait_sites())
            if self.options.show_idle or not row["is_idle"]
        ]

    @cached_property
    def running(self) -> Running | None:
        """Where the threads ran. None: it was not sampled."""
        if self.input.ran is None:
            return None
        return ran.make(self.input.ran, self.database, self.input.processes)

    def answer(self) -> Verdict:
        made = verdict.make(self.database, self.input.busy_ns, self.running)
        if made.findings or not any(DAMAGE.search(each) for each in self.input.problems):
            return made
        return replace(made, summary=DAMAGED)

    def boxes(self) -> icicle.Box:
        return icicle.make(self.database, self.frames, self.running)

    def report(self, limit: int, show_idle: bool) -> Report:
        with progress.line("summing up"):
            return self.summed_up(limit, show_idle)

    def summed_up(self, limit: int, show_idle: bool) -> Report:
        options = self.options
        wanted = Wanted(
            options.sections, limit if options.limit is None else options.limit, show_idle
        )
        shown = self.input.in_places or self.database
        found = facts.facts(shown, self.input.source)
        if self.input.machine:
            found.append(("machine", self.input.machine))
        notes = facts.notes(shown, self.input.notes + self.input.problems, options.show_idle)
        sections = make_sections(shown, wanted)
        if not options.in_sum:
            sections += requests.sections(shown, wanted.limit, wanted.sections)
        if self.input.switches and not options.sections:
            found.append(("seen by", scheduler.fact(self.input.switches)))
            notes += scheduler.notes(self.input.switches)
            sections += self.kernel_sections(self.input.switches, wanted.limit, notes)
        if self.running and not options.sections:
            sections.append(scheduler.ran(self.running, wanted.limit))
            sections += scheduler.python(self.running, wanted.limit)
            notes += self.running.notes
        if self.input.is_cut:
            sections = [replace(s, empty=s.empty and CUT_EMPTY) for s in sections]
        answer = None if options.sections else self.answer()
        # In places, a site's further frames are those of one of several paths.
        stacks = {} if options.in_places else self.stacks
        return Report(found, notes, sections, stacks, answer)

    def kernel_sections(self, seen: Switches, limit: int, notes: list[str]) -> list[Section]:
        """Make the tables of what the kernel saw, and add to the notes."""
        pids = {row["process"]: int(row["pid"]) for row in self.rows(measures.processes())}
        labels = {
            (pids[process], int(site, 16)): frames[0]["label"]
            for (process, site), frames in self.frames.items()
        }
        waits: dict[tuple[int, str, int], int] = {}
        for row in self.rows(measures.wait_sites()):
            key = (pids[row["process"]], row["kind"], int(row["wait_site"], 16))
            waits[key] = waits.get(key, 0) + row["count"]
        made = [*scheduler.split(seen, labels, waits, limit), *scheduler.sections(seen, limit)]
        if seen.by == BY_BPF:
            paths = Paths(seen, is_beside=True)
            made.insert(1, paths.section(limit))
            notes += paths.all_notes()
        return made

    def json(self) -> Iterator[bytes]:
        report = self.report(0, self.options.show_idle)
        opened = self.input
        processes = self.rows(measures.processes())
        made = document.made(opened.source, opened.machine, processes, report)
        return (part.encode() for part in document.parts(made))

    def terminal(self, file: TextIO) -> None:
        options = self.options
        if options.has_tables:
            print_report(self.report(TERMINAL_ROWS, options.show_idle), file, self.links(file))
        else:
            terminal_of(file, self.links(file)).screen(self.screen(), options.limit)

    def links(self, file: TextIO | None = None) -> Links:
        """Return the links to source files for a terminal, or for a page (None)."""
        editor = self.options.editor
        if editor is None if file is None else not file.isatty():
            return Links()
        rows = self.rows("SELECT DISTINCT file, line FROM sites WHERE line > 0")
        return Links(rows, editor or FILE_LINK)

    def screen(self) -> screen.Screen:
        """Return what the text shows by default."""
        opened = self.input
        with progress.line("summing up"):
            problems = facts.warnings(self.database, opened.notes + opened.problems)
            answer = self.answer()
            options = self.options
            return screen.make(self.database, answer, problems, options.show_idle, options.hint)

    def event_notes(self) -> list[str]:
        """Return what a format without notes has to say about the events in it."""
        if self.options.format not in WITH_EVENTS:
            return []
        return facts.lost_event_notes(self.rows(measures.processes()))

    # The formats of files

    def html(self) -> bytes:
        from rouse.render import page

        # The page always contains idle waits, and hides them until the reader shows them.
        report = self.report(PAGE_ROWS, True)
        labels = {
            f"{process} {site}": [row["label"] for row in rows]
            for (process, site), rows in self.frames.items()
        }
        named = self.rows(measures.processes())
        what = (
            named[0]["program"].rpartition("/")[2] if len(named) == 1 else f"{len(named)} processes"
        )
        title = f"rouse report: {what}"
        pictures = page.Pictures(
            self.boxes(),
            wait_graph.make(self.database),
            lambda most: lanes.make(self.database, most),
        )
        whole = replace(report, frames=labels)
        is_bounded = self.options.limit is None
        return page.render(whole, pictures, title, self.links(), is_bounded).encode()

    def pprof(self) -> bytes:
        from rouse.render import pprof

        return pprof.encode(self.rows(measures.processes()), self.waits, self.frames)

    def folded(self) -> bytes:
        from rouse.render import folded

        return "".join(f"{line}\n" for line in folded.lines(self.waits, self.frames)).encode()

    def prometheus(self) -> bytes:
        from rouse.render import prometheus

        late = {row["process"]: row["late_ns"] for row in self.rows(measures.lateness_totals())}
        met, other_locks = self.heaviest(locks.table, prometheus.LOCK_SUMS)
        wakes, other_wakes = self.heaviest(measures.wake_ledger, prometheus.WAKE_SUMS)
        lines = prometheus.lines(
            self.rows(measures.totals()),
            [*met, *prometheus.others(other_locks, prometheus.OTHER_LOCK)],
            [*wakes, *prometheus.others(other_wakes, prometheus.OTHER_WAKE)],
            self.rows(measures.calls()),
            self.rows(measures.lateness()),
            late,
            self.rows(measures.waiting()),
        )
        return "".join(f"{line}\n" for line in lines).encode()

    def heaviest(
        self, query: Callable[..., Any], names: tuple[str, ...]
    ) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return the first rows, and for each process the sum and number of the others."""
        limit = SERIES_ROWS if self.options.limit is None else self.options.limit
        if not limit:
            return self.rows(query()), []
        rows = self.rows(query(lambda r, order: f"{measures.whole(r, order)} LIMIT {limit}"))
        if len(rows) < limit:
            return rows, []

        whole = (
            f'SELECT process, COUNT(*) AS "rows", {measures.sums(names)}'
            f" FROM ({query()}) q GROUP BY process"
        )
        left = {row["process"]: row for row in self.rows(whole)}
        for row in rows:
            rest = left[row["process"]]
            rest["rows"] -= 1
            for name in names:
                rest[name] -= row[name]
        return rows, [rest for rest in left.values() if rest["rows"]]

    def perfetto(self) -> Iterator[bytes]:
        from rouse.render import perfetto

        events = self.database.table("events")
        if not events.rows:
            raise RouseError(
                f"{self.input.source}: has no events",
                "they are kept by rouse run --trace or rouse record --trace, and with"
                " ROUSE_OBS=trace",
            )
        names = {
            (row["process"], row["thread_id"]): row["name"]
            for row in self.rows("SELECT process, thread_id, name FROM threads")
        }
        labels = {
            (row["process"], row["site"]): row["label"]
            for row in self.rows("SELECT process, site, label FROM sites WHERE frame = 0")
        }
        processes = self.rows(measures.processes())
        objects = {
            (row["process"], row["object"]): row["label"]
            for row in self.rows(activity.object_labels())
        }
        traced = [
            perfetto.Process(
                row["process"],
                f"{row['program'].rpartition('/')[2]} {row['pid']}",
                row["lost_events"] or 0,
                row["recorder"] == PRELOAD,
                row["taken_unix_ns"],
            )
            for row in processes
        ]
        return perfetto.parts(events, traced, perfetto.Known(names, labels, objects))

    def kernel_style(self) -> str:
        from rouse.render import kernel_style

        threads = self.rows(activity.thread_events())
        has_events = bool(threads)
        counts = {(r["process"], r["worker"]): r for r in self.rows(activity.worker_events())}
        return kernel_style.text(
            f"{self.input.source}: switches, wake-ups and spinning",
            self.rows('SELECT * FROM workers ORDER BY process, "index"'),
            counts,
            threads or self.rows(activity.thread_counters()),
            has_events,
            self.rows(locks.spins()),
            [row for row in self.waits if row["waiting"]],
        )

    def parquet(self, folder: Path) -> None:
        from rouse.tables import parquet

        tables = {name: self.database.table(name) for name in COLUMNS}
        try:
            parquet.write(tables, folder)
        except OSError as error:
            raise RouseError(f"{folder}: {error.strerror or error}") from error


class Whole(Console):
    """Raises when its reader has gone. rich would end the program with its own status."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def terminal_of(file: TextIO, links: Links = NO_LINKS) -> Terminal:
    from rouse.render.terminal import Terminal

    width = line_width(file)
    console = Whole(file=file, width=width or 10_000, highlight=False, markup=False, emoji=False)
    return Terminal(console, width, links)


def print_report(report: Report, file: TextIO, links: Links = NO_LINKS) -> None:
    terminal_of(file, links).report(report)


def line_width(file: TextIO) -> int | None:
    """Return the columns of a line. None: no limit."""
    if file.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return max(shutil.get_terminal_size().columns, 20)
    return None


def put(name: str, parts: Iterable[bytes]) -> None:
    """Write a file whole or not at all; a device or pipe directly; - is standard output."""
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
            whole_file.replace(path.resolve(), parts)
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error


def written(reporter: Reporter, name: str) -> Iterable[bytes]:
    """Return the report in a format that is a stream of bytes."""
    if name == "perfetto":
        return reporter.perfetto()
    if name == "json":
        return reporter.json()
    if name == "kernel-style":
        return [reporter.kernel_style().encode()]
    made: bytes = getattr(reporter, name)()
    return [made]


@contextlib.contextmanager
def limited(target: str | None, options: Options) -> Iterator[None]:
    """Bound what a FILE may take. The folders' tables are on disk, and processes are our own."""
    path = Path(target or "")
    if not path.is_file():
        yield
        return
    size = path.stat().st_size
    with (
        limits.cpu(str(path), options.cpu_s or limits.cpu_seconds(size)),
        limits.memory(str(path), options.memory_mib or limits.memory_mib(size)),
    ):
        yield


def run(target: str | None, options: Options) -> None:
    if target and (Path(target) / leftovers.SWITCHES).is_file():
        options = replace(options, in_stacks=True)  # the kernel's sleeps are by stack
    is_text = options.format == "text"
    asked = Asked(
        with_events=options.format in (*WITH_EVENTS, "html"),
        with_requests=True,
        engine=options.engine,
        in_sum=options.in_sum,
        forms=options.forms,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(limited(target, options))
        with progress.line(f"reading {target or 'what is recorded'}"):
            opened = stack.enter_context(open_input(target, asked))
        reporter = Reporter(opened, options)
        if options.format == "parquet":
            reporter.parquet(Path(options.file))
        elif not is_text:
            put(options.file, written(reporter, options.format))
        elif options.file == STDOUT:
            with output():
                reporter.terminal(sys.stdout)
        else:
            text = io.StringIO()
            reporter.terminal(text)
            put(options.file, [text.getvalue().encode()])
        if options.format not in WITH_NOTES:
            for problem in opened.problems + reporter.event_notes():
                print(f"rouse: {printable(problem)}", file=sys.stderr)
