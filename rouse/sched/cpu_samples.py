# SPDX-License-Identifier: MIT
"""Sample where a program runs that this process starts, with the call stacks.

Root and users with CAP_PERFMON have one event per processor. It costs nothing at a switch or when a
thread begins, and misses no thread, however short. Samples of other programs are dropped at once.
Others have an event per thread, opened from here when the thread is first seen.
Rejected: events that threads inherit. They cost 0.3 µs at each switch, and each new thread gets
one per processor.

The kernel copies the end of the stack; the callers are found in the copy, by .eh_frame, after the
end of the program. Of all samples, at most SAMPLES_MOST are kept, each with the same probability.
"""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass, field
from pathlib import Path

from rouse import regular
from rouse.errors import RouseError
from rouse.sched import procfs
from rouse.sched.java_dumps import JavaPlace, JavaPool, JavaWaits
from rouse.sched.perf_rings import (
    EXCLUDE_KERNEL,
    WITH_LIVES,
    WITH_MAPPINGS,
    Asked,
    Ended,
    Forked,
    Mapped,
    Named,
    Record,
    Ring,
    Sampled,
    opened,
)
from rouse.sched.python_samples import PythonRun
from rouse.symbols.images import Image, Names
from rouse.symbols.sites import Resolver

EVERY_S = 0.25  # between looks
PERIOD_NS = 9_973_000  # prime in µs, so that it does not march with timers of whole ms
SAMPLES_MOST = 2000
THREADS_MOST = 256  # of those with an event each
STACK_BYTES, SMALL_STACK_BYTES = 16 << 10, 8 << 10
RINGS_BYTES, RING_BYTES_MOST, RING_BYTES_LEAST = 32 << 20, 1 << 20, 128 << 10
BY_THREAD = Asked(4 * PERIOD_NS, 4 << 10, 32 << 10)  # little, as users may lock little memory
UNWINDING_SECONDS = 5.0
MAPPINGS_MOST = 1 << 14  # of a process
FILE_BYTES_MOST = 64 << 20
ONLINE = Path("/sys/devices/system/cpu/online")


@dataclass
class Life:
    """A process from its execution of a program on."""

    pid: int
    lines: dict[int, tuple[int, str]] = field(default_factory=dict)  # by start: end and line
    is_shared: bool = False  # the lines are those of another process too, until one of them changes
    threads: int = 1

    def forked(self, pid: int) -> Life:
        self.is_shared = True
        return Life(pid, self.lines, is_shared=True)

    def add(self, start: int, end: int, line: str) -> None:
        if self.is_shared:
            self.lines, self.is_shared = dict(self.lines), False
        if len(self.lines) < MAPPINGS_MOST:
            covered = [at for at, (last, _) in self.lines.items() if at < end and start < last]
            for at in covered:
                del self.lines[at]
            self.lines[start] = (end, line)

    @property
    def maps(self) -> list[str]:
        return [line for _, (_, line) in sorted(self.lines.items())]

    def has(self, address: int) -> bool:
        return any(start <= address < end for start, (end, _) in self.lines.items())


@dataclass(frozen=True)
class Run:
    """Samples with one call stack of a thread."""

    image: int  # index of Ran.images
    tid: int
    name: str  # of the thread
    is_in_kernel: bool
    count: int
    addresses: tuple[int, ...]  # the innermost first; it is no return address


@dataclass
class Ran:
    """Where the threads of a program ran."""

    period_ns: int = PERIOD_NS
    taken: int = 0  # samples, of which those in runs are kept
    lost: int = 0
    images: list[tuple[int, list[str]]] = field(default_factory=list)  # pid, /proc/PID/maps
    runs: list[Run] = field(default_factory=list)
    why: str = ""  # why some threads were not sampled
    python: list[PythonRun] = field(default_factory=list)
    python_why: str = ""  # why there are no samples of some process that CPython runs
    java: list[JavaWaits] = field(default_factory=list)
    java_pools: list[JavaPool] = field(default_factory=list)
    java_places: list[JavaPlace] = field(default_factory=list)
    begun: dict[int, int] = field(default_factory=dict)  # threads by process; empty: not known

    @property
    def kept(self) -> int:
        return sum(run.count for run in self.runs)

    @property
    def weight_ns(self) -> float:
        """The time on a processor for which a kept sample stands."""
        return self.period_ns * self.taken / max(self.kept, 1)


def processors() -> list[int]:
    """The processors that are online."""
    found: list[int] = []
    for part in ONLINE.read_text(encoding="ascii").strip().split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def asked_of(count: int) -> Asked:
    """How to sample, with rings for so many processors."""
    ring = RING_BYTES_MOST
    while ring > RING_BYTES_LEAST and ring * count > RINGS_BYTES:
        ring //= 2
    stack = STACK_BYTES if ring == RING_BYTES_MOST else SMALL_STACK_BYTES
    # Half of a ring has room for what comes between two looks.
    least_ns = round(EVERY_S * 1e9 * 2 * stack / ring)
    return Asked(max(PERIOD_NS, least_ns), stack, ring)


class Sampler:
    """Samples the processes that come from this one, from now on."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """pids: the processes of the program that are known to live."""
        self.pids = pids
        self.why = ""
        self.rings: dict[int, Ring] = {}  # by processor, or by thread
        self.lives: dict[int, Life] = {}  # by process
        self.names: dict[int, str] = {}  # by thread
        # Threads that ended since the last look, and before it. They may still run for a moment.
        self.ending: set[int] = set()
        self.ended: set[int] = set()
        self.pending: list[Record] = []
        self.kept: list[tuple[Life, str, Sampled]] = []
        self.begun: Counter[int] = Counter()
        self.taken = self.lost = 0
        self.random = random.Random(0)  # the same program and samples give the same report
        self.next_s = time.monotonic() + EVERY_S
        self.is_by_thread = False
        self.excluded = 0
        cpus = processors()
        self.asked = asked_of(len(cpus))
        try:
            for cpu in cpus:
                self.rings[cpu] = opened(self.asked, -1, cpu, WITH_MAPPINGS | WITH_LIVES)
        except OSError:
            self.close()
            self.is_by_thread = True
            self.asked = BY_THREAD

    def begin(self, pid: int) -> None:
        """The program was started as this process."""
        self.lives.setdefault(pid, Life(pid))

    def look(self) -> float:
        """Take what was sampled, if that is due. Return for how many seconds it is not."""
        if time.monotonic() >= self.next_s:
            self.take()
            self.next_s = time.monotonic() + EVERY_S
        return max(self.next_s - time.monotonic(), 0.0)

    def take(self, is_last: bool = False) -> None:
        """Use the records. Those since this moment may lack earlier ones of other rings."""
        before_ns = time.monotonic_ns()
        for ring in self.rings.values():
            self.pending += ring.take()
        self.pending.sort(key=lambda record: record.at_ns)
        rest = []
        for record in self.pending:
            if is_last or record.at_ns < before_ns:
                self.use(record)
            else:
                rest.append(record)
        self.pending = rest
        for tid in self.ended:
            self.names.pop(tid, None)
        self.ended, self.ending = self.ending, set()
        if self.is_by_thread:
            self.find_threads()

    def use(self, record: Record) -> None:
        if isinstance(record, Forked):
            parent = self.lives.get(record.by_pid)
            if parent and record.pid != record.by_pid:
                self.lives[record.pid] = parent.forked(record.pid)
            elif parent:
                parent.threads += 1
                self.begun[record.pid] += 1
            if parent:
                self.names[record.tid] = self.names.get(record.by_tid, "")
                self.ending.discard(record.tid)
                self.ended.discard(record.tid)
        elif record.pid not in self.lives:
            return
        elif isinstance(record, Ended):
            self.ending.add(record.tid)
            self.lives[record.pid].threads -= 1
            if self.lives[record.pid].threads <= 0:
                del self.lives[record.pid]
        elif isinstance(record, Named):
            self.names[record.tid] = record.name
            if record.is_exec:
                self.lives[record.pid] = Life(record.pid)
        elif isinstance(record, Mapped):
            self.lives[record.pid].add(record.start, record.end, record.line)
        else:
            self.keep(record)

    def keep(self, sample: Sampled) -> None:
        """Keep each sample with the same probability (reservoir sampling, algorithm R)."""
        life = self.lives[sample.pid]
        if self.is_by_thread and not life.has(sample.stack.ip):
            self.read_maps(life)
        if not life.lines:
            return  # it has not executed the program yet
        one = (life, self.names.get(sample.tid, ""), sample)
        self.taken += 1
        if len(self.kept) < SAMPLES_MOST:
            self.kept.append(one)
        elif (place := self.random.randrange(self.taken)) < SAMPLES_MOST:
            self.kept[place] = one

    # Where only one's own threads may be sampled

    def read_maps(self, life: Life) -> None:
        """List the code of a process, which may have executed another program."""
        try:
            text = procfs.read(f"/proc/{life.pid}/maps")
        except OSError:
            return
        fresh = Life(life.pid)
        for line in text.splitlines():
            words = line.split(maxsplit=2)
            start, _, end = words[0].partition("-")
            if "x" in words[1]:
                fresh.add(int(start, 16), int(end, 16), line)
        life.lines = fresh.lines

    def find_threads(self) -> None:
        """Begin to sample the threads that are new, and end with those that have ended."""
        alive = {tid: pid for pid in self.pids() for tid in procfs.tids(pid)}
        for tid in set(self.rings) - set(alive):
            self.end(self.rings.pop(tid))
        for tid, pid in alive.items():
            if tid in self.rings:
                continue
            if len(self.rings) == THREADS_MOST:
                self.why = f"more than {THREADS_MOST} threads ran at once"
                break
            try:
                self.rings[tid] = self.opened(tid)
            except ProcessLookupError:
                continue
            except OSError as error:
                self.why = f"{error.strerror}; see rouse doctor"
                break
            self.begin(pid)
            thread = procfs.read_thread(pid, tid)
            self.names[tid] = thread.name if thread else ""

    def opened(self, tid: int) -> Ring:
        if not self.excluded:
            try:
                return opened(self.asked, tid, -1)
            except PermissionError:
                self.excluded = EXCLUDE_KERNEL
        return opened(self.asked, tid, -1, self.excluded)

    def end(self, ring: Ring) -> None:
        self.lost += ring.lost
        ring.close()

    def close(self) -> None:
        for ring in self.rings.values():
            self.end(ring)
        self.rings.clear()

    def stop(self) -> Ran:
        """Stop, and find the callers of the samples."""
        self.take(is_last=True)
        self.close()
        found = Ran(self.asked.period_ns, self.taken, self.lost, why=self.why)
        found.begun = dict(self.begun)
        resolver, numbers = Resolver(), dict[int, int]()
        names: list[Names] = []
        runs: Counter[tuple[int, int, str, bool, tuple[int, ...]]] = Counter()
        deadline = time.monotonic() + UNWINDING_SECONDS
        self.random.shuffle(self.kept)  # so that those that are left out are any
        for life, name, sample in self.kept:
            if time.monotonic() > deadline:
                break
            if id(life) not in numbers:
                numbers[id(life)] = len(names)
                found.images.append((life.pid, life.maps))
                names.append(Names(Image(life.pid, "\n".join(life.maps)), resolver))
            image = numbers[id(life)]
            addresses = tuple(names[image].addresses(sample.stack))
            runs[image, sample.tid, name, sample.is_in_kernel, addresses] += 1
        found.runs = [
            Run(image, tid, name, is_in_kernel, count, addresses)
            for (image, tid, name, is_in_kernel, addresses), count in runs.items()
        ]
        return found


def encode(ran: Ran) -> Iterator[str]:
    """The samples as lines of JSON."""
    yield json.dumps(["samples", ran.period_ns, ran.taken, ran.lost, ran.why, ran.python_why])
    for pid, lines in ran.images:
        yield json.dumps(["image", pid, lines])
    for run in ran.runs:
        yield json.dumps(
            ["run", run.image, run.tid, run.name, run.is_in_kernel, run.count, run.addresses]
        )
    for python in ran.python:
        yield json.dumps(["python", python.pid, python.count, python.frames, python.is_of_all])
    for pid, count in ran.begun.items():
        yield json.dumps(["begun", pid, count])
    for java in ran.java:
        yield json.dumps(["java", *astuple(java)])
    for pool in ran.java_pools:
        yield json.dumps(["java_pool", *astuple(pool)])
    for place in ran.java_places:
        yield json.dumps(["java_place", *astuple(place)])


def decode_line(ran: Ran, line: str) -> None:
    kind, *words = json.loads(line)
    if kind == "samples":
        ran.period_ns, ran.taken, ran.lost = map(int, words[:3])
        ran.why, ran.python_why = map(str, words[3:])
    elif kind == "image":
        ran.images.append((int(words[0]), [str(text) for text in words[1]]))
    elif kind == "run":
        image, tid, name, is_in_kernel, count, addresses = words
        ran.images[image]  # there is such an image
        if int(count) < 1 or not addresses:
            raise ValueError(line)
        found = tuple(int(address) % (1 << 64) for address in addresses)
        ran.runs.append(Run(int(image), int(tid), str(name), bool(is_in_kernel), int(count), found))
    elif kind == "python":
        pid, count, functions, is_of_all = words
        if int(count) < 1 or not functions:
            raise ValueError(line)
        names = tuple(map(str, functions))
        ran.python.append(PythonRun(int(pid), int(count), names, bool(is_of_all)))
    elif kind == "begun":
        pid, count = map(int, words)
        if count < 1:
            raise ValueError(line)
        ran.begun[pid] = count
    elif kind == "java":
        pid, lock, is_monitor, waiter, holder, *sums, taker = words
        count, threads, most, dumps, permits = map(int, sums)
        if min(count, threads, most, dumps) < 1 or permits < 0:
            raise ValueError(line)
        places, numbers = (str(waiter), str(holder)), (count, threads, most, dumps, permits)
        java = (int(pid), str(lock), bool(is_monitor), *places, *numbers, str(taker))
        ran.java.append(JavaWaits(*java))
    elif kind == "java_pool":
        pid, waiter, worker, blocked_at, is_scheduled, *sums = words
        waiting, busy, queued, threads, full, blocked, dumps = map(int, sums)
        if min(busy, threads, dumps) < 1 or min(waiting, queued, full, blocked) < 0:
            raise ValueError(line)
        where = (str(waiter), str(worker), str(blocked_at))
        counts = (waiting, busy, queued, threads, full, blocked, dumps)
        ran.java_pools.append(JavaPool(int(pid), *where, bool(is_scheduled), *counts))
    elif kind == "java_place":
        pid, place, count = words
        if int(count) < 1:
            raise ValueError(line)
        ran.java_places.append(JavaPlace(int(pid), str(place), int(count)))
    else:
        raise ValueError(kind)


def write(ran: Ran, path: Path) -> None:
    path.write_text("".join(f"{line}\n" for line in encode(ran)), encoding="ascii")


def read(path: Path) -> Ran:
    found = Ran()
    try:
        with regular.opened(path, FILE_BYTES_MOST) as file:
            for line in file:
                decode_line(found, line.decode("ascii"))
    except OSError as error:
        raise RouseError(f"{path}: cannot be read: {error}") from error
    except (LookupError, TypeError, ValueError, RecursionError) as error:
        raise RouseError(f"{path}: is damaged, or of another version") from error
    return found
