# SPDX-License-Identifier: MIT
"""Read the shared file in which a process records (src/obs/store.h), or a copy of it.

No number in it is trusted without a check. Damaged parts are left out and reported in
`Store.problems`; only a file without a usable head is an error. The file is read, not mapped: a
truncated one would raise SIGBUS.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rouse import clock
from rouse.errors import RouseError
from rouse.store import integrity, layout, snapshot

Entries = npt.NDArray[np.void]
MARKED = -1  # asks for the events of a recording that has marks of requests
ALL_KINDS = frozenset(layout.ENTRIES)
COUNTED = ALL_KINDS - {layout.EVENTS}  # events are many, and few reports need them
TRIES = 4  # attempts to read the head while it does not change
WRITTEN_MOST = 1 << 62  # events ever written to a ring; a larger number is damage
LATE_TICKS_S = 3600  # time stamps further than this beyond the head's are damage


class Source(Protocol):
    """Random access to bytes. Reads at the end return fewer bytes than asked for."""

    name: str

    def read(self, offset: int, size: int) -> bytes: ...
    def size(self) -> int: ...


class FileSource:
    """An open file. It can be read after it was unlinked."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        # A pipe, say, must not make us wait.
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)

    def read(self, offset: int, size: int) -> bytes:
        return os.pread(self.fd, size, offset)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def close(self) -> None:
        os.close(self.fd)


class BytesSource:
    def __init__(self, data: bytes, name: str) -> None:
        self.name = name
        self.data = data

    def read(self, offset: int, size: int) -> bytes:
        return self.data[offset : offset + size]

    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class Head:
    version: int
    machine: int
    pid: int
    uid: int
    start_ticks: int
    mode: int
    ended: bool
    chunk_count: int
    page_count: int
    lost_chunks: int
    site_depth: int
    cpus: int  # that the process might use; 0: not known
    boot_id: str  # 32 hexadecimal digits
    program: str
    command: str
    host: str
    tick_tsc: int
    tick_monotonic_ns: int
    tsc: int
    monotonic_ns: int
    realtime_ns: int
    lost_events: int
    stamps_ticks: int  # the cost of layout.STAMPS time stamps; 0: not measured
    pid_namespace: int  # the namespace of pid; 0: not known
    is_locked: bool  # the file has a lock for as long as its process has it mapped
    recorder: int
    slack_ns: int
    spin_ns: int
    accept_order: int
    is_confined: bool  # it asked for seccomp, and was recorded until then
    is_marked: bool  # there are marks of requests among its events
    is_sampled: bool  # times of waits and states are estimates, in part
    scatter_ns: int
    lost_origins: int
    cpu_ns: int  # when the process ended; 0: not known
    system_ns: int  # the part of it in the kernel
    earlier_programs: int  # of the same process, before exec, of which there are recordings
    earlier_cpu_ns: int  # what the process had used when this program began
    alive_ns: int  # when `rouse run` last saw that the process ran; 0: not watched

    @property
    def process(self) -> str:
        after = f".{self.earlier_programs}" if self.earlier_programs else ""
        return f"{self.host}:{self.pid}:{self.start_ticks}{after}"

    @property
    def mode_name(self) -> str:
        return layout.MODES[self.mode] if self.mode < len(layout.MODES) else str(self.mode)


NO_NUMBERS = np.zeros(0, np.int64)


@dataclass
class Store:
    """The contents of a file at one time. `arrays` has an entry for every kind of chunk."""

    name: str
    head: Head
    clock: clock.Clock
    now_tsc: int  # the time of these contents
    is_live: bool
    arrays: dict[int, Entries]
    writer_of: dict[int, npt.NDArray[np.uint32]]  # the writer of each entry, by kind
    problems: list[str] = field(default_factory=list)
    # The number of each event, which its writer counts.
    numbers: npt.NDArray[np.int64] = field(default_factory=lambda: NO_NUMBERS)
    rings: int = 0  # of events, that were read
    overwritten: int = 0  # events that were overwritten before they were read
    is_here: bool = True  # /proc/PID is its process, as long as that runs
    is_sure: bool = True  # it is known whether the process runs
    end: str = ""  # schemas.LAST_SEEN, ...; empty: no recorder knows, build.end_of() derives it

    @property
    def threads(self) -> Entries:
        """The threads, without free entries. slots() includes those."""
        return np.asarray(self.slots[is_thread(self.slots)])

    @property
    def slots(self) -> Entries:
        return self.arrays[layout.THREADS]

    @property
    def writers(self) -> Entries:
        return self.arrays[layout.WRITERS]


def text_of(raw: bytes) -> str:
    """Return a text of the file, up to its first 0. It may contain control characters."""
    return bytes(raw).split(b"\0", 1)[0].decode("utf-8", "replace")


def is_thread(slots: Entries) -> npt.NDArray[np.bool_]:
    return np.asarray((slots["id"] != 0) & (slots["doing"] != layout.DOES_NOTHING))


# The head


def read_moments(source: Source) -> tuple[Any, bool]:
    """Read the head with both words of its second moment. Return whether they belong together."""
    raw = b""
    for _ in range(TRIES):
        before = source.read(0, layout.HEAD.itemsize)
        raw = source.read(0, layout.HEAD.itemsize)
        if len(before) != layout.HEAD.itemsize or len(raw) != layout.HEAD.itemsize:
            raise RouseError(
                f"{source.name}: {source.size()} bytes are not a whole recording of rouse",
                "it was cut short, or is something else",
            )
        seqs = [np.frombuffer(r, layout.HEAD)["tick_seq"][0] for r in (before, raw)]
        if seqs[0] == seqs[1] and int(seqs[1]) % 2 == 0:
            return np.frombuffer(raw, layout.HEAD)[0], True
    return np.frombuffer(raw, layout.HEAD)[0], False


def check_head(name: str, head: Any) -> None:
    if int(head["magic"]) == 0:
        raise RouseError(f"{name}: holds no recording yet", "try again: its process just begins")
    if int(head["magic"]) != layout.MAGIC:
        raise RouseError(f"{name}: is no recording of rouse")
    version = int(head["version"])
    if version != layout.VERSION:
        age = "newer" if version > layout.VERSION else "older"
        raise RouseError(
            f"{name}: is of version {version}, this rouse reads version {layout.VERSION}",
            f"use the {age} rouse that came with the program's library",
        )
    if int(head["pid"]) <= 0:
        raise RouseError(f"{name}: is damaged: process number {int(head['pid'])}")


def command_text(words: bytes) -> str:
    """Return a command as text. words: as in /proc/PID/cmdline, each ended by 0."""
    return words.rstrip(b"\0 ").replace(b"\0", b" ").decode("utf-8", "replace")


def decode_head(raw: Any) -> Head:
    numbers = (
        "version machine pid uid start_ticks mode chunk_count page_count lost_chunks site_depth "
        "tick_tsc tick_monotonic_ns tsc monotonic_ns realtime_ns lost_events stamps_ticks "
        "pid_namespace recorder cpus slack_ns spin_ns accept_order scatter_ns lost_origins"
        " cpu_ns system_ns alive_ns earlier_programs earlier_cpu_ns"
    )
    fields: dict[str, Any] = {name: int(raw[name]) for name in numbers.split()}
    truths = ("ended", "is_locked", "is_confined", "is_marked", "is_sampled")
    fields |= {name: bool(raw[name]) for name in truths}
    return Head(
        **fields,
        boot_id=bytes(raw["boot_id"]).hex(),
        program=text_of(raw["program"]),
        command=command_text(bytes(raw["command"])),
        host=text_of(raw["host"]) or "?",
    )


def read_head(source: Source) -> Head:
    """Read the head. Raise RouseError if this is no recording, or none that can be read."""
    raw, _ = read_moments(source)
    check_head(source.name, raw)
    return decode_head(raw)


def make_clock(head: Head, moments_agree: bool, problems: list[str]) -> clock.Clock:
    """Make a clock from the head's two moments, or this machine's frequency if they are equal."""
    hz = None
    if moments_agree:
        passed_ns = head.tick_monotonic_ns - head.monotonic_ns
        hz = clock.measured_hz(head.tick_tsc - head.tsc, passed_ns)
    is_measured = hz is not None
    if hz is None and head.boot_id == clock.boot_id():
        hz = clock.machine_hz()
    if hz is None:
        problems.append(
            "how fast its time stamps run is not known: times are taken for 1 tick a ns"
        )
        hz = float(clock.NS)
    # The later moment is nearer to what is to be converted.
    if is_measured:
        realtime_ns = head.realtime_ns + head.tick_monotonic_ns - head.monotonic_ns
        return clock.Clock(hz, True, head.tick_tsc, head.tick_monotonic_ns, realtime_ns)
    return clock.Clock(hz, False, head.tsc, head.monotonic_ns, head.realtime_ns)


# Chunks


def entries_from(raw: bytes, kind: int, entry_bytes: int, count: int) -> Entries:
    """Return entries as this reader knows them: longer ones cut, shorter ones filled with zeros."""
    dtype = layout.ENTRIES[kind]
    if entry_bytes == dtype.itemsize:
        return np.frombuffer(raw, dtype, count)
    out = np.zeros(count, dtype)
    common = min(entry_bytes, dtype.itemsize)
    given = np.frombuffer(raw, np.uint8, count * entry_bytes).reshape(count, entry_bytes)
    out.view(np.uint8).reshape(count, dtype.itemsize)[:, :common] = given[:, :common]
    return out


@dataclass(frozen=True)
class Ring:
    """A writer's chunk of events: where it begins, and its capacity."""

    offset: int
    capacity: int
    writer: int


def written(source: Source, ring: Ring) -> int:
    raw = source.read(ring.offset, layout.CHUNK.itemsize)
    whole = len(raw) == layout.CHUNK.itemsize
    count = int(np.frombuffer(raw, layout.CHUNK)["written"][0]) if whole else 0
    return min(count, WRITTEN_MOST)


def first_kept(count: int, ring: Ring) -> int:
    """Return the number of the first event that cannot have been overwritten."""
    return max(count - ring.capacity + 1, 0)


def read_ring(source: Source, ring: Ring, since: int = 0) -> tuple[int | None, Entries]:
    """Return the events from number since on that still exist, and the number of the first.

    None: they cannot be read. Events that may have been overwritten during the copy are left out.
    """
    until, size = written(source, ring), layout.EVENT.itemsize
    nothing: Entries = np.zeros(0, layout.EVENT)
    if until <= since:
        return since, nothing
    used = min(until, ring.capacity)
    raw = source.read(ring.offset + layout.CHUNK_HEAD, size * used)
    if len(raw) < size * used:
        return None, nothing
    first = max(since, first_kept(written(source, ring), ring))
    if first >= until:
        return until, nothing
    entries = np.frombuffer(raw, layout.EVENT)
    start, end = first % ring.capacity, until % ring.capacity
    if start < end:
        return first, entries[start:end]
    return first, np.concatenate([entries[start:], entries[:end]])


class ChunkReader:
    """Walks the directory once."""

    def __init__(
        self, source: Source, head: Head, kinds: Iterable[int], is_still: bool = False
    ) -> None:
        self.source = source
        self.head = head
        self.kinds = frozenset(kinds)
        if MARKED in self.kinds and head.is_marked:
            self.kinds |= {layout.EVENTS}
        self.found: dict[int, list[Entries]] = {kind: [] for kind in layout.ENTRIES}
        self.owners: dict[int, list[npt.NDArray[np.uint32]]] = {kind: [] for kind in layout.ENTRIES}
        self.is_still = is_still  # nobody writes any more: an inconsistency is damage
        self.unknown = 0  # chunks of kinds that a newer runtime may have
        self.problems: list[str] = []
        self.taken: list[tuple[int, int]] = []  # the ranges of other chunks, in order
        self.rings: list[Ring] = []
        self.slots: list[tuple[int, int, int]] = []  # of threads: offset, size of each, number
        self.torn = 0  # threads whose words kept changing
        self.numbers: list[npt.NDArray[np.int64]] = []
        self.overwritten = 0
        # Names and stacks are numbered across all their chunks: after a damaged chunk, no number is
        # certain.
        self.is_count_sure = True

    def read_all(self) -> None:
        count = self.head.chunk_count
        if count > layout.CHUNKS_MAX:
            # Threads that found the directory full have raised the count too.
            count = layout.CHUNKS_MAX
        raw = self.source.read(layout.DIRECTORY, 4 * count)
        if len(raw) < 4 * count:
            self.problems.append(f"the directory is cut short: {len(raw) // 4} of {count} chunks")
        for index, page in enumerate(np.frombuffer(raw[: len(raw) // 4 * 4], "<u4")):
            if page:
                self.read_chunk(index, int(page) * layout.PAGE)
        if self.is_still:
            after = self.source.read(layout.DIRECTORY + 4 * count, 4)
            self.problems += integrity.of_directory(count, raw, after, self.head.lost_chunks)
        if self.unknown:
            self.problems.append(f"chunks of a kind that is not known are left out: {self.unknown}")
        if self.torn:
            self.problems.append(f"threads whose words may be of two moments: {self.torn}")

    def damaged(self, index: int, why: str) -> None:
        self.problems.append(f"chunk {index} is left out: {why}")
        self.is_count_sure = False

    def read_chunk(self, index: int, offset: int) -> None:
        size = self.source.size()
        if offset < layout.CHUNKS or offset + layout.CHUNK_HEAD > size:
            self.damaged(index, f"it begins at {offset} of {size} bytes")
            return
        raw = self.source.read(offset, layout.CHUNK.itemsize)
        if len(raw) < layout.CHUNK.itemsize:
            self.damaged(index, "it is cut short")
            return
        chunk = {name: int(np.frombuffer(raw, layout.CHUNK)[name][0]) for name in CHUNK_WORDS}
        if chunk["kind"] not in layout.ENTRIES:
            self.unknown += 1
            return
        if why := self.wrong_with(chunk, offset):
            self.damaged(index, why)
            return
        bisect.insort(self.taken, (offset, offset + chunk["bytes"]))
        if chunk["kind"] == layout.EVENTS:
            self.read_events(index, offset, chunk)
        if chunk["kind"] == layout.THREADS:
            here = (offset + layout.CHUNK_HEAD, chunk["entry_bytes"], chunk["used"])
            self.slots.append(here)
        if chunk["kind"] != layout.EVENTS and chunk["kind"] in self.kinds:
            self.read_entries(index, offset + layout.CHUNK_HEAD, chunk)

    def wrong_with(self, chunk: dict[str, int], offset: int) -> str:
        room = chunk["bytes"] - layout.CHUNK_HEAD
        if chunk["bytes"] % layout.PAGE or not layout.PAGE <= chunk["bytes"] <= layout.BYTES_MAX:
            return f"it says it has {chunk['bytes']} bytes"
        if not 8 <= chunk["entry_bytes"] <= room:
            return f"its entries would have {chunk['entry_bytes']} bytes"
        if chunk["capacity"] * chunk["entry_bytes"] > room or chunk["used"] > chunk["capacity"]:
            return f"{chunk['used']} of {chunk['capacity']} entries do not fit in it"
        at = bisect.bisect(self.taken, (offset, offset))
        follows = at and self.taken[at - 1][1] > offset
        if follows or (at < len(self.taken) and self.taken[at][0] < offset + chunk["bytes"]):
            return "it overlaps another"
        return ""

    def read_events(self, index: int, offset: int, chunk: dict[str, int]) -> None:
        if chunk["entry_bytes"] != layout.EVENT.itemsize:
            self.damaged(index, f"its events would have {chunk['entry_bytes']} bytes")
            return
        ring = Ring(offset, chunk["capacity"], chunk["writer"])
        self.rings.append(ring)
        if layout.EVENTS not in self.kinds:
            self.overwritten += first_kept(written(self.source, ring), ring)
            return
        first, events = read_ring(self.source, ring)
        if first is None:
            self.problems.append(f"chunk {index} is cut short: its events are left out")
            return
        self.found[layout.EVENTS].append(events)
        self.owners[layout.EVENTS].append(np.full(len(events), ring.writer, np.uint32))
        self.numbers.append(np.arange(first, first + len(events), dtype=np.int64))
        self.overwritten += first

    def read_entries(self, index: int, at: int, chunk: dict[str, int]) -> None:
        kind, size, used = chunk["kind"], chunk["entry_bytes"], chunk["used"]
        if kind in (layout.NAMES, layout.STACKS) and not self.is_count_sure:
            self.problems.append(f"chunk {index} is left out: its numbers are not sure any more")
            return
        raw = self.source.read(at, size * (used + 2))
        if self.is_still and used + 1 < chunk["capacity"]:
            self.problems += integrity.of_count(index, used, raw[size * (used + 1) :])
        if len(raw) < size * used:
            self.problems.append(
                f"chunk {index} is cut short: {len(raw) // size} of {used} entries"
            )
            used = len(raw) // size
            self.is_count_sure = False
        if kind == layout.THREADS and used:
            rows, is_torn = snapshot.settled(self.source, at, size, raw[: size * used])
            self.torn += int(is_torn.sum())
            raw = rows.tobytes()
        entries = entries_from(raw, kind, size, used)
        if kind in (layout.NAMES, layout.STACKS) and used < chunk["capacity"]:
            entries = np.concatenate([entries, np.zeros(chunk["capacity"] - used, entries.dtype)])
        self.found[kind].append(entries)
        self.owners[kind].append(np.full(len(entries), chunk["writer"], np.uint32))


CHUNK_WORDS = layout.CHUNK.names or ()


def joined(kind: int, parts: list[Entries]) -> Entries:
    return np.concatenate(parts) if parts else np.zeros(0, layout.ENTRIES[kind])


def last_tsc(head: Head, when: clock.Clock, arrays: dict[int, Entries]) -> int:
    """Return when a process ended: its last time stamp, or when it was last seen alive."""
    if head.ended:
        return head.tick_tsc
    seen_tsc = min(max(when.tsc_at(head.alive_ns), 0), (1 << 64) - 1) if head.alive_ns else 0
    last = max(head.tick_tsc, head.tsc)
    limit = np.uint64(min(last + round(LATE_TICKS_S * when.hz), (1 << 64) - 1))
    threads, writers = arrays[layout.THREADS], arrays[layout.WRITERS]
    stamps = [threads[n] for n in ("since_tsc", "run_tsc", "wake_tsc", "begin_tsc")]
    stamps += [writers[n] for n in ("begin_tsc", "end_tsc", "idle_since_tsc")]
    return max(last, seen_tsc, *(int(np.max(s[s <= limit], initial=0)) for s in stamps))


def decode(
    source: Source,
    kinds: Iterable[int] = COUNTED,
    clock_ns: Callable[[], int] | None = None,
) -> Store:
    """Read a recording.

    clock_ns returns its moment, on its machine's monotonic clock. None: its end. It is called after
    everything was read: what a thread did by then, it does until that moment, and nothing is later.
    """
    raw, moments_agree = read_moments(source)
    check_head(source.name, raw)
    head = decode_head(raw)
    problems: list[str] = []
    when = make_clock(head, moments_agree, problems)
    if head.machine not in layout.MACHINES:
        problems.append(f"it is of a machine that is not known: {head.machine}")
    reader = ChunkReader(source, head, kinds, is_still=clock_ns is None)
    reader.read_all()
    arrays = {kind: joined(kind, parts) for kind, parts in reader.found.items()}
    owners = {
        kind: np.concatenate(parts) if parts else np.zeros(0, np.uint32)
        for kind, parts in reader.owners.items()
    }
    if clock_ns is None:
        now_tsc = last_tsc(head, when, arrays)
    else:
        now_tsc = min(max(when.tsc_at(clock_ns()), 0), (1 << 64) - 1)
    is_live = clock_ns is not None and not head.ended
    problems += reader.problems
    numbers = np.concatenate(reader.numbers) if reader.numbers else NO_NUMBERS
    return Store(
        *(source.name, head, when, now_tsc, is_live, arrays, owners, problems, numbers),
        rings=len(reader.numbers),
        overwritten=reader.overwritten,
    )


def decode_bytes(
    data: bytes, name: str, now_monotonic_ns: int | None = None, kinds: Iterable[int] = COUNTED
) -> Store:
    """Decode bytes that copy() returned."""
    clock_ns = None if now_monotonic_ns is None else lambda: now_monotonic_ns
    return decode(BytesSource(data, name), kinds, clock_ns)


def copy(source: Source) -> bytes:
    """Copy the used part of a file, which may change meanwhile."""
    raw, _ = read_moments(source)
    check_head(source.name, raw)
    size = min(int(raw["page_count"]) * layout.PAGE, source.size(), layout.BYTES_MAX)
    image = bytearray(source.read(0, max(size, layout.CHUNKS)))
    reader = ChunkReader(BytesSource(bytes(image), source.name), decode_head(raw), ())
    reader.read_all()
    for at, size, used in reader.slots:
        first = bytes(image[at : at + size * used])
        if len(first) == size * used and used:
            image[at : at + len(first)] = snapshot.marked(
                *snapshot.settled(source, at, size, first)
            )
    return bytes(image)
