# SPDX-License-Identifier: MIT
"""Watch a process that records: what its threads did between two looks.

All threads are handled together, as arrays. Unknown values are NaN. Nothing is rendered here.
"""

from __future__ import annotations

import posixpath
import pwd
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rouse.errors import RouseError
from rouse.sched import procfs
from rouse.store import decode, find, layout, states
from rouse.store.decode import Entries
from rouse.top import busy
from rouse.top.calls import Calls

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

LOOKED_AT = (layout.WRITERS, layout.THREADS)
# The columns of prstat -m, LCK and SLP followed by what they are made of.
LCK_PARTS = ("mutex", "rwlock", "cond", "sem", "join")
SLP_PARTS = ("io", "poll", "accept", "sleep")
PERCENTS = ("usr", "sys", "trp", "tfl", "dfl", "lck", "slp", "lat", *LCK_PARTS, *SLP_PARTS)
COUNTS = ("vcx", "icx", "scl", "sig")
COLUMNS = (*PERCENTS, *COUNTS)
COLUMN = {name: number for number, name in enumerate(COLUMNS)}

# /proc is read for this many kernel threads of a process at most: it costs 30 us each.
KERNEL_MOST = 256
IDLE_PERCENT = 99.95  # a worker without work for this much of the time is idle


@dataclass
class Rows:
    """The threads of one process over an interval. Id 0: a kernel thread not known to rouse."""

    values: Floats  # one row per thread, one column for each of COLUMNS
    ids: npt.NDArray[np.uint64]
    tids: npt.NDArray[np.int64]
    idle: Bools
    # Text as it was recorded, not yet fit for a terminal.
    names: list[bytes]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass
class Interval:
    process: str  # the program's name
    pid: int
    path: Path
    user: str
    seconds: float
    rows: Rows
    threads: int
    workers: int
    ended_threads: int  # that ended meanwhile
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """One look."""

    store: decode.Store
    threads: Entries
    states: states.States
    kernel: dict[int, procfs.KernelThread]
    counts_delays: bool


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class EndedError(Exception):
    """The fate of the process, as a sentence without its subject."""


class Watch:
    def __init__(self, path: Path, calls: Calls | None = None) -> None:
        """calls: counts system calls and signals. None: nobody does."""
        self.path = path
        self.calls = calls
        self.source = find.open_source(path)
        self.head = decode.read_head(self.source)
        self.pid = self.head.pid
        self.is_here = find.is_here(self.head)
        self.process = posixpath.basename(self.head.program) or "?"
        self.user = user_name(self.head.uid)
        self.counts_delays = procfs.counts_delays()
        became = find.what_became(self.source, path)
        if became:
            raise RouseError(
                f"process {self.pid} ({self.process}) {became}",
                f"rouse report {path} shows what it left",
            )
        self.last = self.look()

    def close(self) -> None:
        self.source.close()

    def check(self) -> None:
        """Raise EndedError when nothing more will come."""
        became = find.what_became(self.source, self.path)
        if became:
            raise EndedError(became)

    # Looking

    def look(self) -> Sample:
        now = find.read(self.source, LOOKED_AT)
        threads = now.threads
        folded = states.fold(threads, now.now_tsc)
        return Sample(now, threads, folded, self.look_at_kernel(now), self.counts_delays)

    def look_at_kernel(self, now: decode.Store) -> dict[int, procfs.KernelThread]:
        if not self.is_here:
            return {}  # its numbers are of other threads here
        writers = now.writers
        first = writers["tid"][(writers["is_live"] != 0) & (writers["is_worker"] != 0)].tolist()
        wanted = list(dict.fromkeys([*first, *procfs.tids(self.pid)]))[:KERNEL_MOST]
        found = ((tid, procfs.read_thread(self.pid, tid)) for tid in wanted if tid > 0)
        seen_now = {tid: seen for tid, seen in found if seen is not None}
        if not self.calls:
            return seen_now
        counted = self.calls.look(self.pid)
        return {
            tid: replace(seen, calls=calls, signals=signals)
            for tid, seen in seen_now.items()
            for calls, signals in [counted.get(tid, self.calls.others)]
        }

    def step(self) -> Interval:
        """Return the changes since the last step. Raise EndedError."""
        self.check()
        before, self.last = self.last, self.look()
        now = self.last.store
        seconds = (now.now_tsc - before.store.now_tsc) / now.clock.hz
        rows = [thread_rows(before, self.last), *self.kernel_rows(before, self.last)]
        live = (now.writers["is_worker"] != 0) & (now.writers["is_live"] != 0)
        ended = int(now.writers["ended"].sum()) - int(before.store.writers["ended"].sum())
        return Interval(
            process=self.process,
            pid=self.pid,
            path=self.path,
            user=self.user,
            seconds=seconds,
            rows=joined(rows),
            threads=len(self.last.threads),
            workers=int(live.sum()),
            ended_threads=max(ended, 0),
            problems=[*now.problems, *shortcomings(self.last)],
        )

    def kernel_rows(self, before: Sample, after: Sample) -> list[Rows]:
        """Return rows for workers, and for kernel threads that rouse does not know."""
        known = set(after.threads["tid"][after.threads["tid"] > 0].tolist())
        workers = worker_idle(before, after)
        values, names, tids, idle = [], [], [], []
        for tid, now in after.kernel.items():
            if tid in known:
                continue
            row = kernel_values(before.kernel.get(tid), now, self.counts_delays)
            name = now.name.encode()
            is_idle = False
            if tid in workers:
                number, share = workers[tid]
                name = b"worker-%d" % number
                awake = np.nansum(row[[COLUMN[c] for c in ("usr", "sys", "lat")]])
                row[COLUMN["slp"]] = min(share, max(100.0 - awake, 0.0))
                is_idle = share >= IDLE_PERCENT
            elif tid == after.store.head.pid:
                name = b"main"
            values.append(row)
            names.append(name)
            tids.append(tid)
            idle.append(is_idle or not row[[COLUMN["usr"], COLUMN["sys"]]].any())
        return [
            Rows(
                np.array(values).reshape(len(tids), len(COLUMNS)),
                np.zeros(len(tids), np.uint64),
                np.array(tids, np.int64),
                np.array(idle, np.bool_),
                names,
            )
        ]


def shortcomings(sample: Sample) -> list[str]:
    """Return notes on properties of the rows that a reader would not expect."""
    now, found = sample.store, []
    if now.head.mode_name == "off":
        found.append("it does not record now: what is shown is as of when that was switched off")
    lost = int(now.writers["lost_threads"].sum())
    if lost:
        found.append(f"threads that are not shown, since the recording is full: {lost} so far")
    tids = now.writers["tid"][(now.writers["is_live"] != 0) & (now.writers["is_worker"] != 0)]
    seen = [sample.kernel.get(tid) for tid in tids.tolist()]
    unknown = sum(thread is None or thread.cpu_ns is None for thread in seen)
    if unknown:
        found.append(
            f"{unknown} of {len(seen)} workers: the kernel does not report how long they ran:"
            " USR of a user thread there is the time that it had the worker"
        )
    return found


def joined(parts: list[Rows]) -> Rows:
    return Rows(
        np.concatenate([p.values for p in parts]),
        np.concatenate([p.ids for p in parts]),
        np.concatenate([p.tids for p in parts]),
        np.concatenate([p.idle for p in parts]),
        [name for p in parts for name in p.names],
    )


def match(old: npt.NDArray[np.uint64], new: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
    """Return the index in old of each of new. -1: not there. Thread numbers are never reused."""
    if not len(old):
        return np.full(len(new), -1, np.intp)
    order = np.argsort(old, kind="stable")
    at = np.minimum(np.searchsorted(old[order], new), len(old) - 1)
    place = order[at]
    return np.where(old[place] == new, place, -1)


def thread_rows(before: Sample, after: Sample) -> Rows:
    """Return rows for the threads of rouse, of all kinds."""
    old, new = before.threads, after.threads
    place = match(old["id"], new["id"])
    was = np.maximum(place, 0)
    is_old = place >= 0
    if not len(old):
        ticks, waits, yields = after.states.ticks, new["waits"], new["yields"]
    else:
        none = np.uint64(0)
        ticks = after.states.ticks - np.where(is_old[:, None], before.states.ticks[was], none)
        waits = new["waits"] - np.where(is_old, old["waits"][was], none)
        yields = new["yields"] - np.where(is_old, old["yields"][was], none)
    begin = np.maximum(new["begin_tsc"], np.uint64(max(before.store.now_tsc, 0)))
    lasted = states.span(begin, np.full(len(new), max(after.store.now_tsc, 0), np.uint64))
    ticks = np.maximum(ticks.view(np.int64), 0).view(np.uint64)
    ticks = states.scaled(ticks, lasted, (new["origin"] == 0) & bool(after.store.head.is_sampled))
    # A state that ended while the store was read may count slightly beyond the interval.
    share = np.maximum(ticks.view(np.int64), 0) / np.maximum(lasted, 1)[:, None] * 100
    share = np.minimum(share, 100.0)

    values = np.full((len(new), len(COLUMNS)), np.nan)
    for number, name in enumerate(layout.MICRO):
        values[:, COLUMN[name]] = share[:, number]
    for whole, parts in (("lck", LCK_PARTS), ("slp", SLP_PARTS)):
        values[:, COLUMN[whole]] = sum(values[:, COLUMN[part]] for part in parts)
    values[:, COLUMN["vcx"]] = np.maximum((waits + yields).view(np.int64), 0)
    did_not_run = add_kernel(values, before, after)
    add_workers(values, before, after)

    state = after.states.state
    can_idle = states.WAITING[state] & ~states.HELD[state]
    slept = after.states.since_tsc <= np.uint64(max(before.store.now_tsc, 0))
    idle = (can_idle & slept) | (did_not_run & ~states.HELD[state])
    return Rows(values, new["id"], new["tid"].astype(np.int64), idle, new["name"].tolist())


def add_kernel(values: Floats, before: Sample, after: Sample) -> Bools:
    """Add the kernel's figures of kernel threads. Return which of them did not run at all."""
    did_not_run = np.zeros(len(values), np.bool_)
    for i in np.flatnonzero(after.threads["origin"] != 0).tolist():
        now = after.kernel.get(int(after.threads["tid"][i]))
        if now is None:
            continue
        own = values[i].copy()
        waits = [COLUMN[c] for c in ("lck", "slp", *LCK_PARTS, *SLP_PARTS)]
        was = before.kernel.get(int(after.threads["tid"][i]))
        seen = kernel_values(was, now, after.counts_delays)
        known = ~np.isnan(seen)
        values[i, known] = seen[known]
        # Outside of the waits of rouse, and neither running nor runnable: asleep in a system call.
        parts = seen[[COLUMN[c] for c in ("usr", "sys", "lat")]]
        if np.isnan(parts).any():
            continue  # new: there is nothing to compare with yet
        awake = parts.sum()
        did_not_run[i] = awake == 0
        asleep = own[COLUMN["usr"]] + own[COLUMN["lat"]] - awake
        waited = own[COLUMN["lck"]] + own[COLUMN["slp"]]
        if asleep >= 0:
            values[i, COLUMN["slp"]] += asleep
        elif waited > 0:
            # The kernel was at work in the waits, or had the thread in its queue.
            values[i, waits] = own[waits] * max(waited + asleep, 0.0) / waited
    return did_not_run


def add_workers(values: Floats, before: Sample, after: Sample) -> None:
    """Add how much of the time that user threads had a worker it was on a processor."""
    known = busy.by_writer((before.store, after.store), (before.kernel, after.kernel))
    user = after.threads["origin"] == 0
    worker = after.threads["worker"]
    usr = values[:, COLUMN["usr"]]
    for index, own in known.items():
        rows = user & (worker == index)
        values[rows, COLUMN["lat"]] += usr[rows] * own.queued
        values[rows, COLUMN["slp"]] += usr[rows] * own.asleep
        values[rows, COLUMN["usr"]] *= own.on_cpu


def kernel_values(
    before: procfs.KernelThread | None,
    now: procfs.KernelThread,
    counts_delays: bool,
) -> Floats:
    """Return the figures between two reads. If it is new: NaN, except for switches."""
    row = np.full(len(COLUMNS), np.nan)
    if before is None or now.read_ns <= before.read_ns:
        return row
    whole = (now.read_ns - before.read_ns) / 100

    def passed(name: str) -> float:
        new, old = getattr(now, name), getattr(before, name)
        return float("nan") if new is None or old is None else float(max(new - old, 0))

    user, system = passed("user_ns"), passed("system_ns")
    cpu = passed("cpu_ns")
    if not np.isnan(cpu):
        # The sum is exact. Its division into user and system is known in clock ticks only.
        if user + system == 0:
            user, system = float(now.user_ns), float(now.system_ns)
        part = user / (user + system) if user + system else 1.0
        user, system = cpu * part, cpu * (1 - part)
    row[COLUMN["usr"]], row[COLUMN["sys"]] = user / whole, system / whole
    # The kernel counts time in the queue when it is over. A thread that never slept was queued
    # whenever it did not run.
    rest = np.maximum(100 - row[COLUMN["usr"]] - row[COLUMN["sys"]], 0)
    slept = now.voluntary != before.voluntary or not (before.is_runnable and now.is_runnable)
    row[COLUMN["lat"]] = np.minimum(passed("run_queue_ns") / whole, rest) if slept else rest
    row[COLUMN["vcx"]], row[COLUMN["icx"]] = passed("voluntary"), passed("involuntary")
    row[COLUMN["scl"]], row[COLUMN["sig"]] = passed("calls"), passed("signals")
    if not passed("major_faults"):
        row[COLUMN["tfl"]] = row[COLUMN["dfl"]] = 0.0
    elif counts_delays:
        row[COLUMN["dfl"]] = passed("block_ns") / whole
    row[: len(PERCENTS)] = np.minimum(row[: len(PERCENTS)], 100.0)
    return row


def worker_idle(before: Sample, after: Sample) -> dict[int, tuple[int, float]]:
    """Return by kernel thread: the worker's number, and its share of the time without a thread."""
    found = {}
    old = {int(w["index"]): w for w in before.store.writers}
    for writer in after.store.writers:
        if not writer["is_worker"] or not writer["is_live"]:
            continue
        was = old.get(int(writer["index"]))
        idle = busy.idle_ticks(writer, after.store.now_tsc)
        begin = int(writer["begin_tsc"])
        if was is not None and int(was["begin_tsc"]) == begin:
            idle -= busy.idle_ticks(was, before.store.now_tsc)
            begin = before.store.now_tsc
        share = max(idle, 0) / max(after.store.now_tsc - begin, 1) * 100
        found[int(writer["tid"])] = int(writer["worker"]), min(share, 100.0)
    return found
