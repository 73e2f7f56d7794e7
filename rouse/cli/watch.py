# SPDX-License-Identifier: MIT
"""`rouse watch`: what the kernel's scheduler does with the threads of running processes."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import click

from rouse.cli.arguments import Seconds
from rouse.cli.commands import Command
from rouse.errors import EXIT_ENDED, output
from rouse.query import scheduler
from rouse.query.paths import Paths
from rouse.query.sections import Report
from rouse.render.report import TERMINAL_ROWS, print_report
from rouse.sched import switches
from rouse.sched.running import Samples
from rouse.sched.sampling import between, look, open_processes, wait
from rouse.sched.stacks import Looks
from rouse.sched.switches import Switches
from rouse.tables import inputs

SECONDS = 10.0
SAMPLES_EVERY = 0.5
SECONDS_MOST = 86_400.0
EPILOG = """\b
Exit status: 0; 2 wrong arguments; 3 nothing to watch; 4 all has ended.
"""


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """SIGINT and SIGTERM end the watching, and the report follows."""

    def enough(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, enough) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def images_of(pids: Iterable[int]) -> list[tuple[int, list[str]]]:
    """The memory of processes. One that has just ended has none."""
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
            found.append((pid, text.splitlines()))
    return found


Result = tuple[Switches, bool]  # and whether all processes have ended


def watch_for(
    opened: dict[int, int], seconds: float, samples: Samples, each: Callable[[], float]
) -> bool:
    """Sample where threads run until the end. each: called before each look; returns its length."""
    deadline = time.monotonic() + seconds
    next_samples = 0.0
    have_ended = False
    with ended_by_signal():
        while not have_ended and (left := deadline - time.monotonic()) > 0:
            if time.monotonic() >= next_samples:
                samples.look()
                next_samples = time.monotonic() + SAMPLES_EVERY
            have_ended = wait(opened, min(left, each()))
    samples.stop()
    return have_ended


def watch_inside(opened: dict[int, int], seconds: float) -> Result:
    """Watch by BPF."""
    recorder, samples = switches.watch(list(opened)), Samples(list(opened))
    have_ended = watch_for(opened, seconds, samples, lambda: SAMPLES_EVERY)
    found = recorder.stop()
    found.ran, found.ran_blind = samples.counts, samples.why
    return found, have_ended


def look_from_outside(opened: dict[int, int], seconds: float) -> Result:
    """Look at /proc and at the threads' stacks again and again."""
    pids = list(opened)
    images = images_of(pids)
    before, looks, samples = look(pids), Looks(pids), Samples(pids)

    def look_at_stacks() -> float:
        looks.look()
        return looks.every

    have_ended = watch_for(opened, seconds, samples, look_at_stacks)
    found = between(before, look(pids))
    found.images = images + images_of(pids)
    looks.add_to(found)
    found.ran, found.ran_blind = samples.counts, samples.why
    return found, have_ended


def report(found: Switches, facts: list[tuple[str, str]], limit: int) -> Report:
    paths = Paths(found)
    tables = scheduler.sections(found, limit)
    sections = [
        paths.section(limit),
        paths.run_section(limit),
        *(tables if found.sampled is None else tables[:1]),
    ]
    verdict = paths.verdict()
    notes = [*scheduler.notes(found), *paths.all_notes()]
    return Report(facts, notes, sections, verdict=verdict)


def show(made: Report, as_json: bool) -> None:
    with output():
        if not as_json:
            print_report(made, sys.stdout)
            return
        whole = {
            **dict(made.facts),
            "verdict": made.verdict and made.verdict.as_json(),
            "notes": made.notes,
            "sections": {section.key: section.rows for section in made.sections},
        }
        print(json.dumps(whole, ensure_ascii=True, indent=1))


@click.command(
    cls=Command, short_help="What the kernel does with the threads of a process.", epilog=EPILOG
)
@click.argument("pids", nargs=-1, required=True, type=click.IntRange(min=1), metavar="PID...")
@click.option(
    "--seconds",
    type=Seconds(min=0, max=SECONDS_MOST, min_open=True),
    default=SECONDS,
    metavar="N",
    help=f"For how long; less if all end, or SIGINT comes [{SECONDS:.0f}].",
)
@click.option(
    "--limit",
    "-n",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Rows per section, 0 for all [{TERMINAL_ROWS}; JSON all].",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; times in ns.")
def command(pids: tuple[int, ...], seconds: float, limit: int | None, as_json: bool) -> int:
    """For how long the threads of running processes sleep, who wakes them, and how long they then
    wait for a processor.

    Any program may be watched, also a static one or one in Go, with the processes that it forks
    meanwhile. By BPF, as root; without, from /proc, which has fewer figures.
    """
    opened = open_processes(pids)
    missing = switches.why_not()
    seen = look_from_outside if missing else watch_inside
    begin = time.monotonic()
    found, have_ended = seen(opened, seconds)
    passed = time.monotonic() - begin
    source = "sched_switch, sched_waking and contention_begin, by BPF"
    if missing:
        source = (
            "/proc and the threads' stacks, without wakers, and with all time in the run queue as"
            f" queued: {missing}"
        )
    facts = [
        ("processes", f"{', '.join(map(str, opened))}, for {passed:.1f} s"),
        ("machine", inputs.machine_text()),
        ("seen by", source),
    ]
    rows = TERMINAL_ROWS if limit is None and not as_json else limit or 0
    show(report(found, facts, rows), as_json)
    return EXIT_ENDED if have_ended else 0
