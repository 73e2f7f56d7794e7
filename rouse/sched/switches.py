# SPDX-License-Identifier: MIT
"""Read what the kernel's scheduler reports about the threads of some processes.

Root uses rouse-kernel, a BPF program; others use rouse-switches, which reads the kernel's records
of switches. Where neither is permitted, only sums are known. Nothing is rendered here. The lines
that they print are described in kernel/rouse_kernel.c and kernel/rouse_switches.c.
"""

from __future__ import annotations

import bisect
import contextlib
import resource
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rouse import regular
from rouse.clock import NS
from rouse.errors import RouseError
from rouse.sched import checks
from rouse.sched.probe import BY_BPF, BY_RECORDS, System
from rouse.store import leftovers
from rouse.symbols.unwind import Stack

BY_SUMS = "getrusage"
WAITS_BYTES = 8458304  # of src/obs/waits.h
STATES = ("running", "asleep", "in the run queue", "ended")  # enum rsi_bpf_state
RUNS, ASLEEP, QUEUED, ENDED = range(len(STATES))
NO_CALL = "-"
# enum rsi_bpf_join
ALONE, OUTSIDE, JOINED, RELOCK, UNREAD = range(5)
END_SECONDS = 30  # time for the helper to print its rows, at most 80,000


@dataclass
class Thread:
    tid: int
    process: int
    name: str
    state: int
    since_ns: int  # start of the state, CLOCK_MONOTONIC; so is first_ns
    first_ns: int  # when it was first seen
    call: str  # the system call in which it sleeps, or slept last
    voluntary: int
    involuntary: int
    cpu_ns: int
    preempted_ns: int  # time in the run queue without having slept
    preempted_most_ns: int
    all_queued_ns: int | None = None  # from schedstat, where wake-ups are not reported
    futex: int = 0  # that it sleeps for, or slept for last; 0: none
    place: int = 0  # where; key of Switches.places; 0: not known


@dataclass(frozen=True)
class Sleep:
    """Sleeps of one thread in one system call, ended by one waker."""

    thread: int  # key of Switches.threads
    call: str
    count: int
    asleep_ns: int  # until it was woken
    queued_ns: int  # from then on until it ran
    asleep_most_ns: int = 0
    queued_most_ns: int = 0
    waker_tid: int = 0  # 0: an interrupt, or not known
    waker: str = ""
    join: int = ALONE  # what is known of the wait that was recorded
    kind: int = 0  # of that wait; see layout.KIND_NAMES
    site: int = 0
    futex: int = 0  # its address; 0: none
    place: int = 0  # key of Switches.places; 0: not known
    waker_place: int = 0


@dataclass(frozen=True)
class Place:
    """A call path of a process to a system call."""

    process: int
    program: int  # where the program's code begins; 0: not known
    stack: Stack


@dataclass(frozen=True)
class Lock:
    """Waits for one of the kernel's own locks that was held on arrival, by one way to it."""

    address: int
    flags: int  # of the kernel's contention_begin
    count: int
    wait_ns: int
    wait_most_ns: int
    frames: tuple[int, ...]  # addresses of code, the innermost first


@dataclass(frozen=True)
class Sums:
    """Sums over all processes that were waited for."""

    voluntary: int = 0
    involuntary: int = 0
    cpu_ns: int = 0


@dataclass
class Switches:
    now_ns: int = 0
    threads: dict[int, Thread] = field(default_factory=dict)
    sleeps: list[Sleep] = field(default_factory=list)
    locks: list[Lock] = field(default_factory=list)
    places: dict[int, Place] = field(default_factory=dict)
    images: list[tuple[int, list[str]]] = field(default_factory=list)  # lines of /proc/PID/maps
    sampled: list[Sleep] | None = None  # without BPF: sleeps by call path, estimated; count is 0
    blind: str = ""  # why there are no call paths
    ran: dict[tuple[int, int], int] = field(default_factory=dict)  # samples, see sched/running.py
    ran_blind: str = ""  # why some threads were not sampled
    symbols: dict[int, str] = field(default_factory=dict)  # of the locks' frames
    lost_threads: int = 0
    lost_sleeps: int = 0
    lost_recorders: int = 0
    lost_locks: int = 0
    lost_places: int = 0
    by: str = BY_BPF
    why: str = ""  # why only the figures of `by` are available
    lost_records: int = 0  # records of switches that the kernel dropped
    sums: Sums = Sums()
    text: str = ""  # the helper's output, from which this was decoded


def decode_sleep(words: list[str]) -> Sleep:
    thread, call, join, kind, site, *numbers, waker = words
    count, asleep, longest, queued, most, waker_tid = map(int, numbers)
    if not ALONE <= int(join) <= UNREAD:
        raise ValueError(join)
    return Sleep(
        thread=int(thread),
        call=call,
        join=int(join),
        kind=int(kind),
        site=int(site, 16),
        count=count,
        asleep_ns=asleep,
        asleep_most_ns=longest,
        queued_ns=queued,
        queued_most_ns=most,
        waker_tid=waker_tid,
        waker=waker,
    )


def decode(text: str) -> Switches:
    found = Switches(text=text)
    for line in text.removesuffix("\n").split("\n"):  # not splitlines(): a name may contain \r
        try:
            kind, *words = line.split("\t")
            decode_line(found, kind, words)
        except (LookupError, TypeError, ValueError) as error:
            raise RouseError(
                f"the switches have a line {line!r}", "are they damaged, or of another version?"
            ) from error
    return found


def decode_line(found: Switches, kind: str, words: list[str]) -> None:
    if kind == "now":
        found.now_ns = int(words[0])
    elif kind == "thread":
        key, tid, process, state, since, first, *rest = map(int, words[:-2])
        if not RUNS <= state <= ENDED:
            raise ValueError(state)
        found.threads[key] = Thread(tid, process, words[-1], state, since, first, words[-2], *rest)
    elif kind == "sleep":
        found.sleeps.append(decode_sleep(words))
    elif kind == "lost":
        (
            found.lost_threads,
            found.lost_sleeps,
            found.lost_recorders,
            found.lost_locks,
            *rest,
        ) = map(int, words)
        (found.lost_places,) = rest or (0,)  # older files do not count them
    elif kind == "at":
        key, futex, place = int(words[0]), int(words[1], 16), int(words[2])
        found.threads[key].futex, found.threads[key].place = futex, place
    elif kind == "in":
        futex, place, waker_place = int(words[0], 16), int(words[1]), int(words[2])
        found.sleeps[-1] = replace(
            found.sleeps[-1], futex=futex, place=place, waker_place=waker_place
        )
    elif kind == "place":
        program, ip, sp, bp, link = (int(word, 16) for word in words[2:7])
        stack = Stack(ip, sp, bp, link, bytes.fromhex(words[7]))
        found.places[int(words[0])] = Place(int(words[1]), program, stack)
    elif kind == "image":
        found.images.append((int(words[0]), []))
    elif kind == "map":
        found.images[-1][1].append("\t".join(words))
    elif kind == "lock":
        frames = tuple(int(word, 16) for word in words[5:])
        flags, count, wait, most = map(int, words[1:5])
        found.locks.append(Lock(int(words[0], 16), flags, count, wait, most, frames))
    elif kind == "symbol":
        found.symbols[int(words[0], 16)] = words[1]
    elif kind == "perf":
        found.by, found.lost_records = BY_RECORDS, int(words[0])
    elif kind == "queue":
        key, found_ns = map(int, words)
        found.threads[key].all_queued_ns = found_ns
    elif kind == "sums":
        found.by, found.sums = BY_SUMS, Sums(*map(int, words))
    elif kind == "why":
        found.why = words[0]
    else:
        raise ValueError(kind)


def named(found: Switches) -> Switches:
    """Add the kernel's names to the text. They are valid in this boot only."""
    wanted = sorted({address for lock in found.locks for address in lock.frames})
    names: list[str] = []
    starts: list[int] = []
    if wanted:
        with contextlib.suppress(OSError), Path("/proc/kallsyms").open(encoding="ascii") as file:
            words = (line.split(maxsplit=3) for line in file)
            code = sorted((int(w[0], 16), w[2]) for w in words if w[1] in "tTwW")
            starts, names = [start for start, _ in code], [name for _, name in code]
    for address in wanted:
        at = bisect.bisect_right(starts, address) - 1
        if at >= 0 and starts[at]:  # all are 0 where the kernel hides them
            found.symbols[address] = names[at]
            found.text += f"symbol\t{address:x}\t{names[at]}\n"
    return found


def read(path: Path) -> Switches:
    try:
        with regular.opened(path) as file:
            return decode(file.read().decode("utf-8"))
    except (OSError, UnicodeError) as error:
        raise RouseError(f"{path}: cannot be read: {error}") from error
    except RouseError as error:
        raise RouseError(f"{path}: {error.what}", error.remedy) from error


def why_not() -> str:
    """Why the kernel's scheduler cannot be watched by BPF, and what to do; empty: it can be."""
    system = System()
    for check in (checks.bpf(system), checks.by_bpf(system)):
        if check.state != checks.GOOD:
            return f"{check.name} is {check.found}; {check.remedy}"
    return ""


def why_no_records() -> str:
    """Why the kernel's records of switches cannot be read, and what to do. Empty: they can."""
    system = System()
    for check in (checks.records(system), checks.by_records(system)):
        if check.state != checks.GOOD:
            return f"{check.name} is {check.found}; {check.remedy}"
    return ""


class Recorder:
    """A running helper of ours."""

    def __init__(self, program: str, *words: str, why: str = "") -> None:
        """Return when everything is watched. Raise RouseError if that is impossible."""
        place = System().helper(program)
        assert place
        self.program, self.why = program, why
        self.process = subprocess.Popen(
            [str(place), *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # the terminal's signals reach only us; we then stop the helper
        )
        assert self.process.stdout
        if self.process.stdout.readline() != "ready\n":
            said = self.process.communicate()[1].strip()
            raise RouseError(f"{program}: {said or 'ended at once'}", "see rouse doctor")

    def stop(self) -> Switches:
        try:
            text, said = self.process.communicate(timeout=END_SECONDS)
        except subprocess.TimeoutExpired as error:
            self.close()
            raise RouseError(f"{self.program}: did not end") from error
        if self.process.returncode:
            raise RouseError(f"{self.program}: {said.strip() or 'was ended'}")
        return named(decode(text + why_line(self.why)))

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.communicate()


def why_line(why: str) -> str:
    return f"why\t{' '.join(why.split())}\n" if why else ""


def used() -> Sums:
    """Return the resources used by our children that have ended."""
    so_far = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_ns = round((so_far.ru_utime + so_far.ru_stime) * NS)
    return Sums(so_far.ru_nvcsw, so_far.ru_nivcsw, cpu_ns)


class Summer:
    """Supplies the sums that remain where nothing may be watched."""

    def __init__(self, why: str) -> None:
        self.why = why
        self.before = used()

    def stop(self) -> Switches:
        now = used()
        words = (
            now.voluntary - self.before.voluntary,
            now.involuntary - self.before.involuntary,
            now.cpu_ns - self.before.cpu_ns,
        )
        return decode("\t".join(("sums", *map(str, words))) + "\n" + why_line(self.why))

    def close(self) -> None:
        pass


def watch(processes: Sequence[int]) -> Recorder:
    return Recorder(BY_BPF, "watch", *map(str, processes))


def watch_next(library: Path, folder: Path) -> Recorder | Summer:
    """Watch the next process that the calling thread starts, and that records there."""
    thread = str(threading.get_native_id())
    more = why_not()
    if not more:
        try:
            return Recorder(BY_BPF, "run", thread, str(library))
        except RouseError as error:
            more = str(error)
    missing = why_no_records()
    if not missing:
        try:
            # All its memory is allocated now, so that a full disk is reported now.
            (folder / leftovers.WAITS).write_bytes(bytes(WAITS_BYTES))
            return Recorder(BY_RECORDS, thread, str(folder / leftovers.WAITS), why=more)
        except (OSError, RouseError) as error:
            missing = str(error)
            (folder / leftovers.WAITS).unlink(missing_ok=True)
    return Summer(missing)
