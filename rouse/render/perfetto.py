# SPDX-License-Identifier: MIT
"""Events as Chrome's trace JSON, which Perfetto (ui.perfetto.dev) and chrome://tracing read.

Each process has two groups of tracks: one track per worker or kernel thread, with the threads that
it ran; and one track per thread, with its states: running, waiting, runnable. An arrow leads from
each wake-up to the run that it caused. Waits for locks, spinning included, are spans of their own.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.tables.schemas import COLUMNS, WORD
from rouse.tables.table import Table
from rouse.text import printable

Columns = Mapping[str, npt.NDArray[Any]]
Names = Mapping[tuple[str, int], str]
Labels = Mapping[tuple[str, str], str]
AT_ONCE = 4096  # events per write
# Of events of one stamp, which comes first on a thread's track.
RANKS = {"new": 0, "wait": 1, "yield": 1, "io": 2, "wake": 2, "run": 3, "end": 4}
TAKES = ("run", "idle")
LEAVES = ("wait", "yield", "end")


def quoted(text: str) -> str:
    return json.dumps(printable(text))


def us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


class Tracks:
    """The events of one process."""

    def __init__(
        self, process: str, title: str, pid: int, columns: Columns, names: Names, labels: Labels
    ) -> None:
        self.process, self.title = process, title
        self.pid_workers, self.pid_threads = pid, pid + 1
        self.labels, self.known = labels, names
        self.columns = columns
        self.types, self.at = columns["type"], columns["at_ns"]
        self.end = int(self.at.max(initial=0))
        self.begin = int(self.at.min(initial=self.end))
        ended = np.flatnonzero((self.types == "end") & (columns["name"] != ""))
        self.ended = dict(
            zip(columns["thread_id"][ended].tolist(), columns["name"][ended].tolist(), strict=True)
        )

    def thread(self, thread_id: int) -> str:
        name = self.known.get((self.process, thread_id)) or self.ended.get(thread_id)
        return f"{name} ({thread_id})" if name else f"thread {thread_id}"

    def site(self, site: str) -> str:
        return self.labels.get((self.process, site), site)

    def us(self, at: int) -> str:
        return us(max(at - self.begin, 0))

    def rows(self, chosen: npt.NDArray[Any], *names: str) -> Iterator[tuple[Any, ...]]:
        return zip(*(self.columns[name][chosen].tolist() for name in names), strict=True)

    # Lines, without their commas

    def names(self) -> Iterator[str]:
        for pid, what in ((self.pid_workers, "workers"), (self.pid_threads, "threads")):
            yield (
                f'{{"ph":"M","pid":{pid},"name":"process_name",'
                f'"args":{{"name":{quoted(f"{self.title}: {what}")}}}}}'
            )
        for worker in np.unique(self.columns["worker"]).tolist():
            yield self.track(self.pid_workers, worker, f"kernel thread {worker}")
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
        self.take_at(chosen[is_begin], ends[is_begin])
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

    def take_at(self, begins: npt.NDArray[Any], ends: npt.NDArray[Any]) -> None:
        """Return where a worker's track has a span from which an arrow can leave."""
        self.spans = {
            worker: (self.at[begins][own], ends[own])
            for worker in np.unique(self.columns["worker"][begins]).tolist()
            if (own := self.columns["worker"][begins] == worker) is not None
        }

    def is_on_span(self, chosen: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        out = np.zeros(len(chosen), np.bool_)
        workers, at = self.columns["worker"][chosen], self.at[chosen]
        for worker, (begins, ends) in self.spans.items():
            own = np.flatnonzero(workers == worker)
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
        chosen = self.by_thread("run", "wait", "yield", "end")
        threads = self.columns["thread_id"][chosen]
        ends = following(self.at[chosen], threads, self.end)
        # The run that follows contains the time of the wake-up.
        woken = np.append(self.columns["value"][chosen][1:], 0)
        is_run = np.append((self.types[chosen][1:] == "run") & (threads[1:] == threads[:-1]), False)
        woken = np.where(is_run & (woken > 0), woken, ends)
        woken = np.clip(woken, self.at[chosen], np.maximum(ends, self.at[chosen]))
        picked = self.rows(chosen, "thread_id", "at_ns", "type", "kind", "site", "object")
        times = zip(picked, ends.tolist(), woken.tolist(), strict=True)
        for (tid, begin, kind, wait, site, thing), end, wake in times:
            if kind == "run":
                yield self.span(self.pid_threads, tid, begin, end, "running")
            elif kind == "yield":
                yield self.span(self.pid_threads, tid, begin, end, "runnable")
            elif kind == "wait":
                args = f'{{"site":{quoted(self.site(site))},"object":"{thing & (1 << 64) - 1:#x}"}}'
                yield self.span(self.pid_threads, tid, begin, wake, wait, args)
                if end > wake:
                    yield self.span(self.pid_threads, tid, wake, end, "runnable")

    def arrows(self) -> Iterator[str]:
        """Arrows from each wake-up to its thread's next run. Those that lack an end are left out.

        worker_spans must have been consumed before.
        """
        chosen = self.by_thread("run", "wake", "io")
        types, threads = self.types[chosen], self.columns["thread_id"][chosen]
        is_pair = (types[:-1] != "run") & (types[1:] == "run") & (threads[1:] == threads[:-1])
        wakes, runs = chosen[:-1][is_pair], chosen[1:][is_pair]
        has_begin = self.is_on_span(wakes)
        wakes, runs = wakes[has_begin], runs[has_begin]
        begin = self.rows(wakes, "worker", "at_ns", "type", "kind", "verdict", "site")
        end = self.rows(runs, "thread_id", "at_ns")
        for number, (wake, run) in enumerate(zip(begin, end, strict=True)):
            worker, at, kind, wait, verdict, site = wake
            common = (
                f'"cat":"wake","name":{quoted(f"{kind} {wait}")},"id":"{self.pid_workers}.{number}"'
            )
            args = f'{{"site":{quoted(self.site(site))},"verdict":{quoted(verdict)}}}'
            yield (
                f'{{"ph":"s","pid":{self.pid_workers},"tid":{worker},'
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

    def lines(self) -> Iterator[str]:
        yield from self.names()
        yield from self.worker_spans()
        yield from self.thread_spans()
        yield from self.arrows()
        yield from self.moments()
        yield from self.locks()


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


def parts(
    table: Table, titles: Mapping[str, str], names: Names, labels: Labels, lost: int
) -> Iterator[bytes]:
    """Yield the file piece by piece. titles: of processes; names: of threads; labels: of sites.

    lost: events that are missing.
    """
    columns = columns_of(table)
    other = json.dumps({"lost_events": lost})
    yield f'{{"displayTimeUnit":"ns","otherData":{other},"traceEvents":[\n'.encode()
    separator, held = "", []
    for number, (process, title) in enumerate(titles.items()):
        own = columns["process"] == process
        mine = {name: values[own] for name, values in columns.items()}
        tracks = Tracks(process, title, 2 * number + 1, mine, names, labels)
        for line in tracks.lines():
            held.append(separator + line)
            separator = ",\n"
            if len(held) == AT_ONCE:
                yield "".join(held).encode()
                held.clear()
    yield "".join(held).encode()
    yield b"\n]}\n"
