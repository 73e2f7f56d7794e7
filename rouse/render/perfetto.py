# SPDX-License-Identifier: MIT
"""Events as Chrome's trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing read.

Each process has two groups of tracks: one track per worker or kernel thread, with the threads that
it ran; and one track per thread, with its states: running, waiting, runnable. An arrow leads from
each wake-up to the run that it caused. Waits for locks, spinning included, are spans of their own,
and so are the requests that the program marks.

Under `rouse run` every thread is a kernel thread, so a process has the second group alone. There
the woken thread has recorded its wake-up: an arrow begins on the track of the waker.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.tables.schemas import COLUMNS, WORD
from rouse.tables.table import Table
from rouse.text import printable

Columns = Mapping[str, npt.NDArray[Any]]
AT_ONCE = 4096  # events per write
# Of events of one stamp, which comes first on a thread's track.
RANKS = {"new": 0, "wait": 1, "yield": 1, "io": 2, "wake": 2, "run": 3, "end": 4}
TAKES = ("run", "idle")
LEAVES = ("wait", "yield", "end")
NOWHERE = ("", "0x0")  # sites of events that have none


def quoted(text: str) -> str:
    return json.dumps(printable(text))


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


@dataclass(frozen=True)
class Process:
    """A process that was traced."""

    process: str
    title: str
    lost: int  # events that are missing
    is_preload: bool  # recorded by rouse run
    end_ns: int  # until when it is known, in ns since 1970

    @property
    def label(self) -> str:
        return f"{self.title} ({self.lost:,} events lost)" if self.lost else self.title


@dataclass(frozen=True)
class Known:
    """Names, by process."""

    threads: Mapping[tuple[str, int], str]
    sites: Mapping[tuple[str, str], str]
    objects: Mapping[tuple[str, int], str]


class Tracks:
    """The events of one process. begin: the first event of all processes."""

    def __init__(
        self, process: Process, pid: int, begin: int, columns: Columns, known: Known
    ) -> None:
        self.process, self.title = process.process, process.label
        self.is_preload = process.is_preload
        self.pid_workers, self.pid_threads = pid, pid + 1
        self.known = known
        self.columns = columns
        self.types, self.at = columns["type"], columns["at_ns"]
        self.begin, self.end = begin, int(self.at.max(initial=0))
        if process.is_preload:  # all its threads were traced until its end
            self.end = max(self.end, process.end_ns)
        # An arrow begins on a track of this group, whose number is in this column.
        self.pid_wakers = self.pid_threads if process.is_preload else self.pid_workers
        self.waker_column = "other_id" if process.is_preload else "worker"
        ended = np.flatnonzero((self.types == "end") & (columns["name"] != ""))
        self.ended = dict(
            zip(columns["thread_id"][ended].tolist(), columns["name"][ended].tolist(), strict=True)
        )

    def thread(self, thread_id: int) -> str:
        name = self.known.threads.get((self.process, thread_id)) or self.ended.get(thread_id)
        return f"{name} ({thread_id})" if name else f"thread {thread_id}"

    def site(self, site: str) -> str:
        return self.known.sites.get((self.process, site), site)

    def us(self, at: int) -> str:
        return us(max(at - self.begin, 0))

    def rows(self, chosen: npt.NDArray[Any], *names: str) -> Iterator[tuple[Any, ...]]:
        return zip(*(self.columns[name][chosen].tolist() for name in names), strict=True)

    # Lines, without their commas

    def names(self) -> Iterator[str]:
        groups = [(self.pid_threads, "threads")]
        if not self.is_preload:
            groups.insert(0, (self.pid_workers, "workers"))
            for worker in np.unique(self.columns["worker"]).tolist():
                yield self.track(self.pid_workers, worker, f"kernel thread {worker}")
        for pid, what in groups:
            yield (
                f'{{"ph":"M","pid":{pid},"name":"process_name",'
                f'"args":{{"name":{quoted(f"{self.title}: {what}")}}}}}'
            )
        for thread in np.unique(self.columns["thread_id"]).tolist():
            if thread:
                yield self.track(self.pid_threads, thread, self.thread(thread))

    def track(self, pid: int, tid: int, name: str) -> str:
        return (
            f'{{"ph":"M","pid":{pid},"tid":{tid},"name":"thread_name",'
            f'"args":{{"name":{quoted(name)}}}}}'
        )

    def span(self, pid: int, tid: int, begin: int, end: int, name: str, args: str = "{}") -> str:
        return (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"ts":{self.us(begin)},'
            f'"dur":{us(max(end - begin, 0))},"name":{quoted(name)},"args":{args}}}'
        )

    def worker_spans(self) -> Iterator[str]:
        """The threads that each worker ran, from a switch until the event that ends the run."""
        chosen = np.flatnonzero(np.isin(self.types, (*TAKES, *LEAVES)))
        worker, number = self.columns["worker"], self.columns["number"]
        chosen = chosen[np.lexsort((number[chosen], worker[chosen]))]
        ends = following(self.left_at()[chosen], worker[chosen], self.end)
        is_begin = np.isin(self.types[chosen], TAKES)
        self.take_at("worker", chosen[is_begin], ends[is_begin])
        picked = self.rows(chosen[is_begin], "worker", "at_ns", "type", "thread_id")
        for (tid, begin, kind, thread), end in zip(picked, ends[is_begin].tolist(), strict=True):
            name = "idle" if kind == "idle" else self.thread(thread)
            yield self.span(self.pid_workers, tid, begin, end, name)

    def left_at(self) -> npt.NDArray[Any]:
        """Return when an arrow leaves each event; a thread's end when it woke the joiner."""
        worker, number, types = self.columns["worker"], self.columns["number"], self.types
        order = np.lexsort((number, worker))
        first, second = order[:-1], order[1:]
        wakes = (types[first] == "end") & (types[second] == "wake")
        wakes &= (worker[first] == worker[second]) & (number[first] + 1 == number[second])
        out = self.at.copy()
        out[first[wakes]] = self.at[second[wakes]]
        return np.asarray(out)

    def take_at(self, column: str, begins: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Note where each track, by its number in a column, has a span for an arrow's begin."""
        numbers = self.columns[column][begins]
        self.spans = {
            number: (self.at[begins][own], ends[own])
            for number in np.unique(numbers).tolist()
            if (own := numbers == number) is not None
        }

    def is_on_span(self, chosen: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        out = np.zeros(len(chosen), np.bool_)
        numbers, at = self.columns[self.waker_column][chosen], self.at[chosen]
        for number, (begins, ends) in self.spans.items():
            own = np.flatnonzero(numbers == number)
            place = np.searchsorted(begins, at[own], side="right") - 1
            out[own] = (place >= 0) & (at[own] <= ends[np.maximum(place, 0)])
        return out

    def by_thread(self, *types: str) -> npt.NDArray[Any]:
        chosen = np.flatnonzero(np.isin(self.types, types))
        ranks = np.array([RANKS[name] for name in types])
        rank = np.zeros(len(chosen), np.int64)
        for name, value in zip(types, ranks, strict=True):
            rank[self.types[chosen] == name] = value
        order = np.lexsort((rank, self.at[chosen], self.columns["thread_id"][chosen]))
        return np.asarray(chosen[order])

    def thread_spans(self) -> Iterator[str]:
        # A kernel thread runs from its begin on.
        begins = ("new",) if self.is_preload else ()
        chosen = self.by_thread("run", "wait", "yield", "end", *begins)
        threads = self.columns["thread_id"][chosen]
        ends = following(self.at[chosen], threads, self.end)
        # The run that follows contains the time of the wake-up.
        woken = np.append(self.columns["value"][chosen][1:], 0)
        is_run = np.append((self.types[chosen][1:] == "run") & (threads[1:] == threads[:-1]), False)
        woken = np.where(is_run & (woken > 0), woken, ends)
        woken = np.clip(woken, self.at[chosen], np.maximum(ends, self.at[chosen]))
        if self.is_preload:
            has_span = self.types[chosen] != "end"
            self.take_at("thread_id", chosen[has_span], ends[has_span])
        runs = np.append(chosen[1:], 0)  # of each wait, if is_run
        picked = self.rows(chosen, "thread_id", "at_ns", "type", "kind", "site", "object")
        ended = self.rows(runs, "verdict", "site")
        wakers = self.wakers()[runs].tolist()
        times = zip(ends.tolist(), woken.tolist(), is_run.tolist(), wakers, strict=True)
        for event, run, (end, wake, is_over, waker) in zip(picked, ended, times, strict=True):
            tid, begin, kind, wait, site, thing = event
            if kind in ("run", "new"):
                yield self.span(self.pid_threads, tid, begin, end, "running")
            elif kind == "yield":
                yield self.span(self.pid_threads, tid, begin, end, "runnable")
            elif kind == "wait":
                args = self.about(site, thing, (*run, waker) if is_over else None)
                yield self.span(self.pid_threads, tid, begin, wake, wait, args)
                if end > wake:
                    yield self.span(self.pid_threads, tid, wake, end, "runnable")

    def wakers(self) -> npt.NDArray[Any]:
        """Return the thread that caused each run, in the rows of the runs. 0: not known."""
        chosen = self.by_thread("run", "wake", "io")
        types, threads = self.types[chosen], self.columns["thread_id"][chosen]
        is_pair = (types[:-1] == "wake") & (types[1:] == "run") & (threads[1:] == threads[:-1])
        out = np.zeros(len(self.types), np.int64)
        out[chosen[1:][is_pair]] = self.columns["other_id"][chosen[:-1][is_pair]]
        return out

    def about(self, site: str, thing: int, end: tuple[str, str, int] | None) -> str:
        """Return what is known of a wait. end: its verdict, wake site and waker."""
        args = {"site": printable(self.site(site)), "object": hex(thing & (1 << 64) - 1)}
        if name := self.known.objects.get((self.process, thing)):
            args["name"] = printable(name)
        if end:
            args["verdict"] = end[0]
            if end[1] not in NOWHERE:
                args["wake_site"] = printable(self.site(end[1]))
            if end[2]:
                args["waker"] = printable(self.thread(end[2]))
        return json.dumps(args)

    def arrows(self) -> Iterator[str]:
        """Arrows from each wake-up to its thread's next run. Those that lack an end are left out.

        worker_spans and thread_spans must have been consumed before.
        """
        chosen = self.by_thread("run", "wake", "io")
        types, threads = self.types[chosen], self.columns["thread_id"][chosen]
        is_pair = (types[:-1] != "run") & (types[1:] == "run") & (threads[1:] == threads[:-1])
        wakes, runs = chosen[:-1][is_pair], chosen[1:][is_pair]
        has_begin = self.is_on_span(wakes)
        wakes, runs = wakes[has_begin], runs[has_begin]
        columns = (self.waker_column, "at_ns", "type", "kind", "verdict", "site")
        begin = self.rows(wakes, *columns)
        end = self.rows(runs, "thread_id", "at_ns")
        for number, (wake, run) in enumerate(zip(begin, end, strict=True)):
            waker, at, kind, wait, verdict, site = wake
            common = (
                f'"cat":"wake","name":{quoted(f"{kind} {wait}")},"id":"{self.pid_workers}.{number}"'
            )
            args = f'{{"site":{quoted(self.site(site))},"verdict":{quoted(verdict)}}}'
            yield (
                f'{{"ph":"s","pid":{self.pid_wakers},"tid":{waker},'
                f'"ts":{self.us(at)},{common},"args":{args}}}'
            )
            yield (
                f'{{"ph":"f","bp":"e","pid":{self.pid_threads},"tid":{run[0]},'
                f'"ts":{self.us(max(run[1], at))},{common}}}'
            )

    def moments(self) -> Iterator[str]:
        chosen = np.flatnonzero(np.isin(self.types, ("steal", "io")))
        for worker, at, kind, wait, thread, value in self.rows(
            chosen, "worker", "at_ns", "type", "kind", "thread_id", "value"
        ):
            name = f"stole {value}" if kind == "steal" else f"{wait}: {self.thread(thread)}"
            yield (
                f'{{"ph":"i","s":"t","pid":{self.pid_workers},"tid":{worker},'
                f'"ts":{self.us(at)},"name":{quoted(name)}}}'
            )

    def locks(self) -> Iterator[str]:
        """Each lock event and the acquisition that follows it, as spans that may overlap others."""
        chosen = np.flatnonzero(np.isin(self.types, ("lock", "got")))
        worker, number = self.columns["worker"], self.columns["number"]
        chosen = chosen[np.lexsort((number[chosen], worker[chosen]))]
        first, second = chosen[:-1], chosen[1:]
        is_pair = (
            (self.types[first] == "lock")
            & (self.types[second] == "got")
            & (worker[first] == worker[second])
            & (number[first] + 1 == number[second])
        )
        begins = self.rows(first[is_pair], "thread_id", "at_ns", "kind", "site", "object")
        ends = self.rows(second[is_pair], "at_ns", "verdict", "site", "value")
        for n, (begin, end) in enumerate(zip(begins, ends, strict=True)):
            tid, at, kind, site, thing = begin
            args = {
                "lock": hex(thing & (1 << 64) - 1),
                "site": printable(self.site(site)),
                "holder": printable(self.site(end[2])),
                "verdict": end[1],
                "spun_ns": end[3],
            }
            common = (
                f'"cat":"lock","name":{quoted(f"{kind} wanted")},"id":"{self.pid_workers}.{n}",'
                f'"pid":{self.pid_threads},"tid":{tid}'
            )
            yield f'{{"ph":"b","ts":{self.us(at)},{common},"args":{json.dumps(args)}}}'
            yield f'{{"ph":"e","ts":{self.us(max(end[0], at))},{common}}}'

    def requests(self) -> Iterator[str]:
        """Requests from their first marks to their ends, with the marks between as moments."""
        chosen = np.flatnonzero(np.isin(self.types, ("mark", "mark_end")))
        chosen = chosen[np.argsort(self.at[chosen], kind="stable")]
        begun: set[tuple[str, int]] = set()
        columns = ("type", "name", "object", "thread_id", "at_ns", "site")
        for sort, name, number, thread, at, site in self.rows(chosen, *columns):
            is_first = (name, number) not in begun
            if sort == "mark_end" and is_first:
                continue
            phase = "e" if sort == "mark_end" else "b" if is_first else "n"
            (begun.discard if phase == "e" else begun.add)((name, number))
            title = f"{name} {number % (1 << 64)}"
            args = json.dumps({"site": printable(self.site(site))})
            yield (
                f'{{"ph":"{phase}","cat":"request","name":{quoted(title)},'
                f'"id":{quoted(f"{self.pid_workers}.{title}")},"pid":{self.pid_threads},'
                f'"tid":{thread},"ts":{self.us(at)},"args":{args}}}'
            )

    def lines(self) -> Iterator[str]:
        yield from self.names()
        if not self.is_preload:
            yield from self.worker_spans()
        yield from self.thread_spans()
        yield from self.arrows()
        yield from self.moments()
        yield from self.locks()
        yield from self.requests()


def following(at: npt.NDArray[Any], owner: npt.NDArray[Any], end: int) -> npt.NDArray[Any]:
    """Return the time of the next event of the same owner, for each event. Otherwise end."""
    out = np.full(len(at), end, np.int64)
    same = owner[1:] == owner[:-1]
    out[:-1][same] = at[1:][same]
    return out


def columns_of(table: Table) -> dict[str, npt.NDArray[Any]]:
    """Return texts as arrays; equal texts are one object."""
    return {
        name: np.array(table.column(name), object if sort == WORD else np.int64)
        for name, sort in COLUMNS["events"].items()
    }


def parts(table: Table, processes: Sequence[Process], known: Known) -> Iterator[bytes]:
    """Yield the file piece by piece."""
    columns = columns_of(table)
    begin = int(columns["at_ns"].min(initial=int(columns["at_ns"].max(initial=0))))
    other = json.dumps({"lost_events": sum(process.lost for process in processes)})
    yield f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n'.encode()
    separator, held = "", []
    for number, process in enumerate(processes):
        own = columns["process"] == process.process
        if not own.any():
            continue
        mine = {name: values[own] for name, values in columns.items()}
        tracks = Tracks(process, 2 * number + 1, begin, mine, known)
        for line in tracks.lines():
            held.append(separator + line)
            separator = ",\n"
            if len(held) == AT_ONCE:
                yield "".join(held).encode()
                held.clear()
    yield "".join(held).encode()
    yield b"\n]}\n"
