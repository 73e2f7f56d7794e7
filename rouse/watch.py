# SPDX-License-Identifier: MIT
"""`rouse watch`: what the kernel's scheduler does with the threads of running processes."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Sequence

import click

from rouse import asleep, inputs, kernel, switches
from rouse.arguments import Seconds
from rouse.commands import Command
from rouse.errors import EXIT_ENDED, RouseError, output
from rouse.kernel import KernelThread
from rouse.report import TERMINAL_ROWS, print_report
from rouse.sections import Report
from rouse.switches import Sleep, Switches, Thread

SECONDS = 10.0
SECONDS_MOST = 86_400.0
EPILOG = """\b
Exit status: 0; 2 wrong arguments; 3 nothing to watch; 4 all has ended.
"""


def open_processes(pids: Sequence[int]) -> dict[int, int]:
    """Descriptors that become readable when the processes end, by their numbers."""
    opened = {}
    for pid in dict.fromkeys(pids):
        try:
            opened[pid] = os.pidfd_open(pid)
        except OSError as error:
            raise RouseError(f"process {pid}: {error.strerror}") from error
    return opened


def wait(processes: dict[int, int], seconds: float) -> bool:
    """Until the time is over, all have ended, or we are interrupted. Whether all have ended."""
    deadline = time.monotonic() + seconds
    alive = set(processes.values())
    poll = select.poll()
    for fd in alive:
        poll.register(fd, select.POLLIN)
    while alive and (left := deadline - time.monotonic()) > 0:
        for fd, _ in poll.poll(left * 1000):
            poll.unregister(fd)
            alive.discard(fd)
    return not alive


@contextlib.contextmanager
def ended_by_signal() -> Iterator[None]:
    """SIGINT and SIGTERM end the watching, and what was seen is told."""

    def enough(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, enough) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with contextlib.suppress(KeyboardInterrupt):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Without BPF


def look(processes: Sequence[int]) -> dict[tuple[int, int], KernelThread]:
    return {
        (pid, tid): found
        for pid in processes
        for tid in kernel.tids(pid)
        if (found := kernel.read_thread(pid, tid))
    }


def between(
    before: dict[tuple[int, int], KernelThread], after: dict[tuple[int, int], KernelThread]
) -> Switches:
    """What /proc tells: all time in the run queue is one, and who woke whom is not known."""
    found = Switches(now_ns=time.monotonic_ns())
    for number, ((pid, tid), now) in enumerate(after.items(), 1):
        was = before.get((pid, tid))
        first = was.read_ns if was else now.read_ns - now.age_ns
        cpu = (now.cpu_ns or 0) - ((was.cpu_ns or 0) if was else 0)
        queued = (now.run_queue_ns or 0) - ((was.run_queue_ns or 0) if was else 0)
        voluntary = now.voluntary - (was.voluntary if was else 0)
        involuntary = now.involuntary - (was.involuntary if was else 0)
        state = switches.RUNS if now.is_runnable else switches.ASLEEP
        found.threads[number] = Thread(
            *(tid, pid, now.name, state, found.now_ns, first, switches.NO_CALL),
            *(voluntary, involuntary, cpu, 0, 0),
        )
        slept = max(now.read_ns - first - cpu - queued, 0)
        found.sleeps.append(Sleep(number, switches.NO_CALL, voluntary, slept, 0, queued, 0, 0, ""))
    return found


# What it shows


def report(found: Switches, facts: list[tuple[str, str]], is_whole: bool, limit: int) -> Report:
    sections = asleep.sections(found, limit)
    return Report(facts, asleep.notes(found), sections if is_whole else sections[:1])


def show(made: Report, as_json: bool) -> None:
    with output():
        if not as_json:
            print_report(made, sys.stdout)
            return
        whole = {
            **dict(made.facts),
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
    help=f"Rows a section, 0 for all [{TERMINAL_ROWS}; JSON all].",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON; times in ns.")
def command(pids: tuple[int, ...], seconds: float, limit: int | None, as_json: bool) -> int:
    """For how long the threads of running processes sleep, who wakes them, and how long they then
    wait for a processor.

    Any program may be watched, also a static one or one in Go, with the processes that it forks
    meanwhile. By BPF, as root; without, from /proc, with less to tell.
    """
    opened = open_processes(pids)
    missing = switches.why_not()
    before: dict[tuple[int, int], KernelThread] = {}
    recorder = None
    if missing:
        before = look(list(opened))
    else:
        recorder = switches.watch(list(opened))
    begin = time.monotonic()
    have_ended = False
    with ended_by_signal():
        have_ended = wait(opened, seconds)
    passed = time.monotonic() - begin
    found = recorder.stop() if recorder else between(before, look(list(opened)))
    source = "sched_switch, sched_waking and contention_begin, by BPF"
    if missing:
        source = (
            f"/proc alone, without wakers, and with all time in the run queue as queued: {missing}"
        )
    facts = [
        ("processes", f"{', '.join(map(str, opened))}, for {passed:.1f} s"),
        ("machine", inputs.machine_text()),
        ("seen by", source),
    ]
    rows = TERMINAL_ROWS if limit is None and not as_json else limit or 0
    show(report(found, facts, not missing, rows), as_json)
    return EXIT_ENDED if have_ended else 0
