# SPDX-License-Identifier: MIT
"""Where the threads of a program ran, by samples with call stacks."""

from __future__ import annotations

import posixpath
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from rouse.clock import NS
from rouse.query import measures
from rouse.query.specs import Row
from rouse.regular import opened
from rouse.sched.cpu_samples import Ran
from rouse.sched.java_dumps import JavaPlace, JavaPool, JavaWaits
from rouse.sched.python_samples import PER_S
from rouse.symbols.demangle import short
from rouse.symbols.images import Image, Names
from rouse.symbols.sites import Frame, Resolver, of_program
from rouse.symbols.spin_loops import CALLED
from rouse.tables.engine import Database
from rouse.text import printable

NAMING_SECONDS = 20.0  # the time to find names; the other samples keep addresses
TELLING = 20  # samples of a thread, from which on they say where it ran
PYTHON_TELLING = 10  # the same, of a process that CPython runs
KERNEL = "the kernel"
PYTHON_FRAME = re.compile(
    r"(?P<function>.+) \((?P<file>.*?)(?::(?P<line>\d+))?\)"
)  # as py-spy writes it
SLEEP_CALL = re.compile(r"\bsleep\(")
SOURCE_MOST = 1 << 20  # bytes
PYTHON_LIBRARY = re.compile(r"/lib/python3(?:\.\d+)?/|^<frozen ")
# A generator or lambda belongs to the function that has it.
PYTHON_INLINE = re.compile(r"(?:\.<locals>\.<(?:genexpr|listcomp|setcomp|dictcomp|lambda)>)+$")


@cache
def source(path: str) -> list[str]:
    """Read the lines of a Python source. Empty: there is none, or it is no ordinary small file."""
    try:
        with opened(Path(path), SOURCE_MOST) as file:
            return file.read().decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return []


def sleeps(path: str, line: int) -> bool:
    lines = source(path)
    return 0 < line <= len(lines) and bool(SLEEP_CALL.search(lines[line - 1]))


def function_of(frame: Frame) -> str:
    """A frame's function without its line or address, which differ from sample to sample."""
    if not frame.function:
        return frame.label
    return f"{short(frame.function)} {posixpath.basename(frame.file or '')}".rstrip()


@dataclass(frozen=True)
class Stack:
    """Samples with one call stack."""

    process: str
    thread: str  # its name
    tid: int
    samples: int
    ns: float  # on a processor
    frames: tuple[Frame, ...]  # the innermost first
    is_in_kernel: bool
    is_waiting: bool = False  # it was in a loop that waits for another thread

    @property
    def own(self) -> Frame:
        """The innermost function that is the program's, or else the innermost one."""
        return of_program(list(self.frames))[0]

    @property
    def function(self) -> str:
        """The innermost function that is the program's, or else the innermost one."""
        return function_of(self.own)

    @property
    def calls(self) -> list[str]:
        """The program's functions with their files where known, also inlined ones.

        The innermost first.
        """
        found = []
        for frame in of_program(list(self.frames)):
            inlined = [name for name in frame.within.split("\n") if name]
            found += [function_of(frame), *map(short, inlined)]
        return found

    @property
    def caller(self) -> str:
        """The function that called it, also if it was inlined. Empty: not known."""
        within = self.own.within.partition("\n")[0]
        if within:
            return short(within)
        outer = of_program(list(self.frames))[1:2]
        return function_of(outer[0]) if outer else ""

    @property
    def inner(self) -> str:
        """The kernel, or the library's function that was called. Empty: the program's own ran."""
        if self.is_in_kernel:
            return KERNEL
        frame = self.frames[0]
        if frame is self.own:
            return ""
        return short(frame.function) if frame.function else posixpath.basename(frame.module or "")


@dataclass(frozen=True)
class PythonStack:
    """Samples with one stack of the functions of a Python program."""

    process: str
    samples: int
    frames: tuple[str, ...]  # "function (file:line)", the innermost first

    @property
    def function(self) -> str:
        """The innermost function that is the program's, or else the innermost one."""
        return self.place[0]

    @property
    def is_asleep(self) -> bool:
        """Whether its line calls a function that sleeps. False: the source is not known."""
        match = self.match
        return bool(match and match["line"] and sleeps(match["file"], int(match["line"])))

    @property
    def place(self) -> tuple[str, str]:
        """The same function without and with its line."""
        match = self.match
        if match is None:
            return printable(self.frames[0]), printable(self.frames[0])
        name = PYTHON_INLINE.sub("", match["function"])
        function = printable(f"{name} {posixpath.basename(match['file'])}")
        return function, f"{function}:{match['line']}" if match["line"] else function

    @property
    def match(self) -> re.Match[str] | None:
        """The parts of the frame that is the innermost one of the program, or the innermost."""
        found = [match for frame in self.frames if (match := PYTHON_FRAME.fullmatch(frame))]
        own = (match for match in found if not PYTHON_LIBRARY.search(match["file"]))
        return next(own, found[0] if found else None)


@dataclass
class Running:
    """The samples, with names."""

    period_ns: int
    stacks: list[Stack] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    python: list[PythonStack] = field(default_factory=list)
    python_all: list[PythonStack] = field(default_factory=list)  # of all threads, also of these
    java: list[tuple[str, JavaWaits]] = field(default_factory=list)  # with their process
    java_pools: list[JavaPool] = field(default_factory=list)
    java_places: list[JavaPlace] = field(default_factory=list)
    python_why: str = ""  # why there are none of some process that CPython runs
    begun: dict[str, int] = field(default_factory=dict)  # threads by process; empty: not known

    @property
    def samples(self) -> int:
        return sum(stack.samples for stack in self.stacks)

    @property
    def python_ns(self) -> float:
        """The time for which the samples of Python functions stand."""
        return sum(stack.samples for stack in self.python) * NS / PER_S

    def of(self, process: str, thread: str | None = None) -> list[Stack]:
        """The samples of a process, or those of its threads with a name."""
        return [
            stack
            for stack in self.stacks
            if stack.process == process and thread in (None, stack.thread)
        ]

    def rows(self) -> list[Row]:
        found: dict[tuple[str, str, str], Row] = {}
        whole = max(sum(stack.ns for stack in self.stacks), 1)
        for stack in self.stacks:
            key = (stack.process, stack.function, stack.inner)
            words = dict(zip(("process", "label", "inner"), key, strict=True))
            row = found.setdefault(key, {**words, "samples": 0, "cpu_ns": 0.0})
            row["samples"] += stack.samples
            row["cpu_ns"] += stack.ns
        for row in found.values():
            row["share"] = row["cpu_ns"] / whole
            row["cpu_ns"] = round(row["cpu_ns"])
        return sorted(found.values(), key=lambda row: -row["cpu_ns"])


def python_rows(found: Running) -> list[Row]:
    counts = Counter[tuple[str, str]]()
    for stack in found.python:
        counts[stack.process, stack.function] += stack.samples
    return [
        {
            "process": process,
            "label": function,
            "samples": count,
            "share": count / counts.total(),
        }
        for (process, function), count in counts.most_common()
    ]


def busiest(stacks: Iterable[Stack | PythonStack], telling: int = TELLING) -> tuple[str, float]:
    """Return the function with the most samples, and its share. Empty: too few samples say so."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        counts[stack.function] += stack.samples
    whole = counts.total()
    if whole < telling:
        return "", 0.0
    (function, count), *_ = counts.most_common(1)
    return function, count / whole


def busiest_thread(stacks: Sequence[Stack]) -> list[Stack]:
    """Return the samples of the thread that ran for longest."""
    counts: Counter[int] = Counter()
    for stack in stacks:
        counts[stack.tid] += stack.samples
    first = counts.most_common(1)
    return [stack for stack in stacks if first and stack.tid == first[0][0]]


def make(ran: Ran, database: Database, named: Mapping[int, str] | None = None) -> Running:
    """Find the names of what was sampled of the recorded processes.

    named: all processes by pid, where the processes of a program are one in the database.
    """
    processes = {int(row["pid"]): row["process"] for row in database.rows(measures.processes())}
    processes.update(named or {})
    resolver = Resolver()
    names = [Names(Image(pid, "\n".join(lines)), resolver) for pid, lines in ran.images]
    known: dict[tuple[int, int], Frame] = {}
    waiting: dict[tuple[int, int], bool] = {}
    deadline = time.monotonic() + NAMING_SECONDS

    def frame(image: int, address: int) -> Frame:
        if (image, address) not in known:
            is_late = time.monotonic() > deadline
            known[image, address] = (
                Frame(address, f"{address:#x}") if is_late else names[image].frame(address)
            )
        return known[image, address]

    def is_waiting(image: int, frames: Sequence[Frame]) -> bool:
        at = (image, frames[0].address)
        if at not in waiting:
            called = CALLED.search(frames[0].function or "")
            is_late = time.monotonic() > deadline
            waiting[at] = bool(called) or (not is_late and names[image].is_waiting(at[1] - 1))
        return waiting[at]

    found = Running(ran.period_ns)
    for run in ran.runs:
        process = processes.get(ran.images[run.image][0])
        if process is None:
            continue
        first, *callers = run.addresses  # the first is no return address
        frames = (frame(run.image, first + 1), *(frame(run.image, each) for each in callers))
        ns = run.count * ran.weight_ns
        waits = not run.is_in_kernel and is_waiting(run.image, frames)
        found.stacks.append(
            Stack(process, run.name, run.tid, run.count, ns, frames, run.is_in_kernel, waits)
        )
    for python in ran.python:
        if process := processes.get(python.pid):
            some = found.python_all if python.is_of_all else found.python
            some.append(PythonStack(process, python.count, python.frames[::-1]))
    for java in ran.java:
        if process := processes.get(java.pid):
            found.java.append((process, java))
    found.java_pools += [pool for pool in ran.java_pools if pool.pid in processes]
    found.java_places += [place for place in ran.java_places if place.pid in processes]
    found.python_why = ran.python_why
    for pid, count in ran.begun.items():
        if process := processes.get(pid):
            found.begun[process] = found.begun.get(process, 0) + count
    found.notes += resolver.problems
    if ran.lost:
        found.notes.append(f"{ran.lost:,} samples of where threads ran were lost: rings were full")
    if ran.why:
        found.notes.append(f"some threads were not sampled: {ran.why}")
    if time.monotonic() > deadline:
        found.notes.append("some samples have no names: finding them took too long")
    return found
