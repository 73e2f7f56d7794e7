# SPDX-License-Identifier: MIT
"""The runs and waits of each thread, from events, and what decided how long they took.

A stretch of a thread's time is divided into its runs and its waits. A wait that another thread
ended took as long as that thread needed, so the other thread's time meanwhile takes its place, and
so on: the path that a wait-for graph has over time. See C. Q. Yang and B. P. Miller, "Critical Path
Analysis for the Execution of Parallel and Distributed Programs", 1988.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from rouse.tables.engine import Database
from rouse.tables.views import texts

RUNS, TO_RUN, NOT_KEPT = "runs", "to run", "not recorded"
DEPTH_MOST = 16  # of threads that wait for one another
TYPES = ("wait", "yield", "wake", "io", "run", "new", "end", "mark", "mark_end")
# The events in the order of time, and those of one stamp in the order of their thread.
EVENTS = f"""
SELECT process, type, at_ns, thread_id, kind, site, other_id, value FROM events
WHERE type IN ({texts(TYPES)}) AND thread_id <> 0
ORDER BY at_ns, CASE type WHEN 'new' THEN 0 WHEN 'wait' THEN 1 WHEN 'yield' THEN 1
    WHEN 'io' THEN 2 WHEN 'wake' THEN 2 WHEN 'run' THEN 3 ELSE 4 END
"""


@dataclass(frozen=True)
class Step:
    """A thread's doing: a state of this module, or the kind of its wait."""

    thread: int
    what: str
    site: str = ""  # where it waits. Empty: not known
    wake_site: str = ""  # from where it was woken


@dataclass(frozen=True)
class Stretch:
    """A part of time, and why it passed: each thread of the chain waits for the next one."""

    begin: int
    end: int
    chain: tuple[Step, ...]


@dataclass(slots=True)
class Rest:
    """For how long a thread does not run. Times are in ns."""

    begin: int
    kind: str
    site: str
    woken: int | None = None  # None: not known
    waker: int = 0  # 0: no thread, or not known
    wake_site: str = ""
    end: int | None = None  # None: it has not ended


@dataclass
class Timeline:
    """The rests of a thread in order. Between them it runs, or is preempted."""

    begin: int  # the first that is known
    maker: int = 0  # the thread that created it at begin. 0: not known
    end: int | None = None
    rests: list[Rest] = field(default_factory=list)
    begins: list[int] = field(default_factory=list)  # of the rests

    def between(self, begin: int, end: int) -> Iterator[Rest]:
        """The rests that overlap with this time."""
        at = max(bisect_right(self.begins, begin) - 1, 0)
        while at < len(self.rests) and self.rests[at].begin < end:
            rest = self.rests[at]
            if rest.end is None or rest.end > begin:
                yield rest
            at += 1


class Timelines:
    """The threads of one process."""

    def __init__(self) -> None:
        self.threads: dict[int, Timeline] = {}

    def add(
        self, sort: str, at: int, thread: int, kind: str, site: str, other: int, value: int
    ) -> None:
        """Add the next event of those of a process, in their order."""
        line = self.threads.get(thread)
        if line is None or sort == "new":
            line = self.threads[thread] = Timeline(at)
        last = line.rests[-1] if line.rests and line.rests[-1].end is None else None
        if sort == "new":
            line.maker = other
        elif sort in ("wait", "yield"):
            kind = kind if sort == "wait" else TO_RUN
            line.rests.append(Rest(at, kind, site, None if sort == "wait" else at))
            line.begins.append(at)
        elif sort in ("wake", "io") and last:
            last.woken, last.waker, last.wake_site = at, other, site
        elif sort == "run" and last:
            last.end = at
            if last.woken is None and value:
                last.woken, last.wake_site = value, site
        elif sort == "end":
            line.end = at

    def explain(self, thread: int, begin: int, end: int) -> list[Stretch]:
        """Return what decided how long this thread's time from begin to end took, in order."""
        out: list[Stretch] = []
        self.walk(thread, begin, end, (), out)
        return out

    def walk(
        self, thread: int, begin: int, end: int, chain: tuple[Step, ...], out: list[Stretch]
    ) -> None:
        line = self.threads.get(thread)
        if line is None or len(chain) == DEPTH_MOST or thread in (step.thread for step in chain):
            put(out, begin, end, (*chain, Step(thread, NOT_KEPT)))
            return
        if begin < line.begin:
            until = min(line.begin, end)
            if line.maker:
                self.walk(line.maker, begin, until, chain, out)
            else:
                put(out, begin, until, (*chain, Step(thread, NOT_KEPT)))
        at = max(begin, line.begin)
        for rest in line.between(at, end):
            put(out, at, rest.begin, (*chain, Step(thread, RUNS)))
            at = self.rested(thread, rest, max(at, rest.begin), end, chain, out)
        put(out, at, end, (*chain, Step(thread, RUNS)))

    def rested(
        self,
        thread: int,
        rest: Rest,
        begin: int,
        end: int,
        chain: tuple[Step, ...],
        out: list[Stretch],
    ) -> int:
        """Explain a rest between begin and end. Return its end."""
        until = end if rest.end is None else min(rest.end, end)
        woken = until if rest.woken is None else min(max(rest.woken, begin), until)
        waits = (*chain, Step(thread, rest.kind, rest.site, rest.wake_site))
        if rest.waker and rest.waker != thread:
            self.walk(rest.waker, begin, woken, waits, out)
        else:
            put(out, begin, woken, waits)
        put(out, woken, until, (*chain, Step(thread, TO_RUN, rest.site, rest.wake_site)))
        return until


def put(out: list[Stretch], begin: int, end: int, chain: tuple[Step, ...]) -> None:
    if begin < end:
        out.append(Stretch(begin, end, chain))


made: WeakKeyDictionary[Database, Mapping[str, Timelines]] = WeakKeyDictionary()


def of(database: Database) -> Mapping[str, Timelines]:
    """Return the threads of each process that has events."""
    found = made.get(database)
    if found is None:
        found = {}
        _, rows = database.run(EVENTS)
        for process, *event in rows:
            found.setdefault(process, Timelines()).add(*event)
        made[database] = found
    return found
