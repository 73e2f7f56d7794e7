# SPDX-License-Identifier: MIT
"""The file of `rouse record`: what a process recorded, with all that it takes to read it elsewhere.

    0   magic "ROUSEREC", version (u32), 0 (u32)
    16  chunks, only ever added:
            sync (4 bytes), type (4 letters), length (u64), crc32 of the payload (u32),
            crc32 of these 20 bytes (u32), payload

    HEAD  JSON: which process, which machine, who recorded. First.
    BASE  the store's file as it was: monotonic_ns, realtime_ns, bytes (u64 each), then zlib of it
    DIFF  the same, with zlib of: count (u32), page numbers (u32 each), pages of 4,096 bytes
    KERN  zlib of JSON: what the kernel says of the process' threads, by tid; after a BASE or DIFF
          of a process that was alive then, and of no other
    SITE  zlib of JSON: names of sites: module, build-id, offset, function, file, line, label, role
    EVNT  a writer's number (u32), 0 (u32), the number of its first event (u64), zlib of its events;
          numbers missing between two of a writer's are lost events. A chunk without events marks
          the number at which the requested events begin; without such a chunk that is 0
    DONE  JSON: why it ended. Last; without it the recorder still writes, or was killed.

Numbers are little-endian. A chunk is written whole or, if its recorder is killed, cut short: all
before it can be read. A reader skips types that it does not know. Version: raised when a reader of
the old one would misread.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rouse import regular
from rouse.errors import RouseError
from rouse.store import layout

MAGIC = b"ROUSEREC"
VERSION = 1
FILE_HEAD = struct.Struct("<8sII")
SYNC = b"\xf0RC\n"
CHUNK = struct.Struct("<4s4sQII")
MOMENT = struct.Struct("<QQQ")
EVENTS = struct.Struct("<IIQ")
NUMBER_MOST = 1 << 62
PAGE = layout.PAGE
PAYLOAD_MOST = layout.BYTES_MAX + (16 << 20)
JSON_MOST = 64 << 20
LEVEL = 1  # zlib's fastest is enough: a store is mostly zeros and small numbers
PROGRAM = "the program "  # begins the reason in DONE if the program has ended
Frames = dict[tuple[str, str, int], dict[str, Any]]  # by module, build-id, offset


class DamageError(Exception):
    """A payload that is not what its chunk says."""


# Writing


class Writer:
    """Appends chunks to a file. Each is one write, so that only the last can be cut short."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.image = np.zeros(0, np.uint8)
        self.frames: set[tuple[str, str, int]] = set()
        self.put(FILE_HEAD.pack(MAGIC, VERSION, 0))

    def put(self, data: bytes) -> None:
        self.file.write(data)
        self.file.flush()

    def chunk(self, kind: bytes, payload: bytes) -> None:
        head = struct.pack("<4s4sQI", SYNC, kind, len(payload), zlib.crc32(payload))
        self.put(head + struct.pack("<I", zlib.crc32(head)) + payload)

    def head(self, facts: dict[str, Any]) -> None:
        self.chunk(b"HEAD", json.dumps(facts).encode())

    def snapshot(self, store: bytes, monotonic_ns: int, realtime_ns: int, whole: bool) -> None:
        """Append the store at that moment. whole: including unchanged pages."""
        new = pages_of(store)
        moment = MOMENT.pack(monotonic_ns, realtime_ns, len(store))
        old, self.image = self.image, new
        same = min(len(old), len(new)) // PAGE
        changed = np.flatnonzero(
            np.any(
                old[: same * PAGE].reshape(-1, PAGE) != new[: same * PAGE].reshape(-1, PAGE), axis=1
            )
        )
        changed = np.concatenate([changed, np.arange(same, len(new) // PAGE)]).astype("<u4")
        if whole or 2 * len(changed) > len(new) // PAGE:
            self.chunk(b"BASE", moment + zlib.compress(store, LEVEL))
            return
        pages = new.reshape(-1, PAGE)[changed].tobytes()
        body = struct.pack("<I", len(changed)) + changed.tobytes() + pages
        self.chunk(b"DIFF", moment + zlib.compress(body, LEVEL))

    def kernel(self, samples: Mapping[int, Any]) -> None:
        self.chunk(b"KERN", zlib.compress(json.dumps(samples).encode(), LEVEL))

    def sites(self, frames: Frames) -> None:
        """Append the sites that the file does not have yet."""
        new = [
            {"module": key[0], "build_id": key[1], "offset": key[2], **value}
            for key, value in frames.items()
            if key not in self.frames
        ]
        self.frames.update(frames)
        if new:
            self.chunk(b"SITE", zlib.compress(json.dumps(new).encode(), LEVEL))

    def events(self, writer: int, first: int, raw: bytes) -> None:
        self.chunk(b"EVNT", EVENTS.pack(writer, 0, first) + zlib.compress(raw, LEVEL))

    def done(self, why: str) -> None:
        self.chunk(b"DONE", json.dumps({"why": why}).encode())


def pages_of(data: bytes) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return data as whole pages, the last one filled with zeros."""
    rest = -len(data) % PAGE
    return np.frombuffer(data + bytes(rest), np.uint8)


# Reading


@dataclass
class Recording:
    """The readable part of a file. problems: what could not be read, and why."""

    name: str
    head: dict[str, Any] = field(default_factory=dict)
    image: bytearray = field(default_factory=bytearray)
    size: int = 0
    monotonic_ns: int = 0
    realtime_ns: int = 0
    snapshots: int = 0
    kernel: dict[str, Any] = field(default_factory=dict)
    alive_ns: int | None = None  # its monotonic_ns when the process was last seen alive
    frames: Frames = field(default_factory=dict)
    why_done: str | None = None
    events: list[tuple[int, int, Any]] = field(default_factory=list)  # writer, first, entries
    problems: list[str] = field(default_factory=list)
    is_cut: bool = False  # the file ends in the middle of a chunk

    @property
    def store(self) -> bytes:
        return bytes(self.image[: self.size])


def is_recording(path: Path) -> bool:
    try:
        with regular.opened(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read(path: Path) -> Recording:
    """Read a file, perhaps unfinished or damaged. Raise RouseError if nothing is readable."""
    try:
        with regular.opened(path) as file:
            return Reader(file, str(path)).read()
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error


@dataclass(frozen=True)
class ChunkHead:
    kind: bytes
    length: int
    crc: int


def chunk_head(raw: bytes) -> ChunkHead | None:
    """Return the head of a chunk. None: there is none, or it is damaged."""
    if len(raw) < CHUNK.size:
        return None
    sync, kind, length, crc, own = CHUNK.unpack(raw)
    if sync != SYNC or zlib.crc32(raw[:20]) != own:
        return None
    return ChunkHead(kind, length, crc)


def inflated(data: bytes, most: int) -> bytes:
    unpacker = zlib.decompressobj()
    try:
        out = unpacker.decompress(data, most + 1)
    except zlib.error as error:
        raise DamageError(f"cannot be unpacked ({error})") from error
    if len(out) > most or not unpacker.eof:
        raise DamageError("does not unpack to what it should")
    return out


def parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamageError("is no JSON") from error


class Reader:
    SEARCH = 1 << 20  # bytes looked at a time for the next chunk

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file = file
        self.name = name
        self.found = Recording(name)
        self.has_base = False
        self.handlers = {
            b"HEAD": self.take_head,
            b"BASE": self.take_base,
            b"DIFF": self.take_diff,
            b"KERN": self.take_kernel,
            b"SITE": self.take_sites,
            b"EVNT": self.take_events,
            b"DONE": self.take_done,
        }

    def read(self) -> Recording:
        self.check_file_head()
        for kind, payload in self.chunks():
            handler = self.handlers.get(kind)
            if handler is None:
                continue
            try:
                handler(payload)
            except DamageError as damage:
                self.problem(f"a part ({kind.decode('ascii')}) {damage} and is left out")
        self.conclude()
        return self.found

    def problem(self, text: str) -> None:
        self.found.problems.append(text)

    def check_file_head(self) -> None:
        raw = self.file.read(FILE_HEAD.size)
        if len(raw) < FILE_HEAD.size:
            raise RouseError(
                f"{self.name}: {len(raw)} bytes are not a whole recording",
                "it was cut short, or its recorder has just begun",
            )
        magic, version, _ = FILE_HEAD.unpack(raw)
        if magic != MAGIC:
            raise RouseError(f"{self.name}: is no recording of rouse")
        if version != VERSION:
            age = "newer" if version > VERSION else "older"
            raise RouseError(
                f"{self.name}: is of version {version}, this rouse reads version {VERSION}",
                f"use the {age} rouse that wrote it",
            )

    def chunks(self) -> Iterator[tuple[bytes, bytes]]:
        size = self.file.seek(0, 2)
        at = FILE_HEAD.size
        while at < size:
            self.file.seek(at)
            head = chunk_head(self.file.read(CHUNK.size))
            end = at + CHUNK.size + (head.length if head else 0)
            if head is None or end > size:
                following = self.search(at + 1, size)
                self.tell_gap(at, following, size, head)
                if following is None:
                    return
                at = following
                continue
            at = end
            if head.length > PAYLOAD_MOST:
                self.problem(f"a part of {head.length} bytes is larger than any can be; left out")
                continue
            payload = self.file.read(head.length)
            if zlib.crc32(payload) != head.crc:
                self.problem(f"a part ({name_of(head.kind)}) is damaged and is left out")
                continue
            yield head.kind, payload

    def tell_gap(self, at: int, following: int | None, size: int, head: ChunkHead | None) -> None:
        if following is not None:
            self.problem(f"{following - at:,} bytes at {at:,} are damaged and are left out")
        elif head is not None or size - at < CHUNK.size:
            self.found.is_cut = True
            self.problem(
                f"the recording is cut short at byte {size:,}: its last part, which begins at byte"
                f" {at:,}, is left out"
            )
        else:
            self.problem(f"the last {size - at:,} bytes are damaged and are left out")

    def search(self, at: int, size: int) -> int | None:
        """Return where the next whole chunk begins."""
        while at < size:
            self.file.seek(at)
            block = self.file.read(self.SEARCH + len(SYNC) - 1)
            place = block.find(SYNC)
            while place >= 0:
                self.file.seek(at + place)
                head = chunk_head(self.file.read(CHUNK.size))
                if head and at + place + CHUNK.size + head.length <= size:
                    return at + place
                place = block.find(SYNC, place + 1)
            at += self.SEARCH
        return None

    # The contents of the parts

    def take_head(self, payload: bytes) -> None:
        head = parsed(payload)
        if not isinstance(head, dict):
            raise DamageError("is not what it should be")
        self.found.head = head

    def moment(self, payload: bytes) -> tuple[int, int, int]:
        if len(payload) < MOMENT.size:
            raise DamageError("is too short")
        monotonic_ns, realtime_ns, size = MOMENT.unpack_from(payload)
        if size > layout.BYTES_MAX:
            raise DamageError(f"would have {size:,} bytes")
        return monotonic_ns, realtime_ns, size

    def took(self, moment: tuple[int, int, int]) -> None:
        self.found.monotonic_ns, self.found.realtime_ns, self.found.size = moment
        self.found.snapshots += 1

    def take_base(self, payload: bytes) -> None:
        moment = self.moment(payload)
        image = inflated(payload[MOMENT.size :], moment[2])
        if len(image) != moment[2]:
            raise DamageError(f"has {len(image):,} of {moment[2]:,} bytes")
        self.found.image = bytearray(image + bytes(-len(image) % PAGE))
        self.has_base = True
        self.took(moment)

    def take_diff(self, payload: bytes) -> None:
        if not self.has_base:
            raise DamageError("has changes only, to parts that were left out before,")
        moment = self.moment(payload)
        pages = -(-moment[2] // PAGE)
        body = inflated(payload[MOMENT.size :], 4 + pages * (4 + PAGE))
        if len(body) < 4:
            raise DamageError("is too short")
        (count,) = struct.unpack_from("<I", body)
        if len(body) != 4 + count * (4 + PAGE):
            raise DamageError(f"has not the {count:,} pages that it says")
        numbers = np.frombuffer(body, "<u4", count, 4)
        if count and int(numbers.max()) >= pages:
            raise DamageError("changes what is not there")
        image = self.found.image
        image.extend(bytes(max(pages * PAGE - len(image), 0)))
        for place, number in enumerate(numbers.tolist()):
            begin = 4 + 4 * count + place * PAGE
            image[number * PAGE : (number + 1) * PAGE] = body[begin : begin + PAGE]
        self.took(moment)

    def take_kernel(self, payload: bytes) -> None:
        samples = parsed(inflated(payload, JSON_MOST))
        if not isinstance(samples, dict):
            raise DamageError("is not what it should be")
        self.found.kernel = samples
        self.found.alive_ns = self.found.monotonic_ns

    def take_sites(self, payload: bytes) -> None:
        frames = parsed(inflated(payload, JSON_MOST))
        if not isinstance(frames, list):
            raise DamageError("is not what it should be")
        for frame in frames:
            try:
                key = (str(frame["module"]), str(frame["build_id"]), int(frame["offset"]))
                self.found.frames[key] = checked_frame(frame)
            except (KeyError, TypeError, ValueError) as error:
                raise DamageError("has a site that is none") from error

    def take_events(self, payload: bytes) -> None:
        if len(payload) < EVENTS.size:
            raise DamageError("is too short")
        writer, _, first = EVENTS.unpack_from(payload)
        raw = inflated(payload[EVENTS.size :], layout.BYTES_MAX)
        if len(raw) % layout.EVENT.itemsize or first > NUMBER_MOST:
            raise DamageError("has no whole events")
        self.found.events.append((writer, first, np.frombuffer(raw, layout.EVENT)))

    def take_done(self, payload: bytes) -> None:
        done = parsed(payload)
        self.found.why_done = str(done.get("why", "")) if isinstance(done, dict) else ""

    def conclude(self) -> None:
        if not self.found.snapshots:
            why = "; ".join(self.found.problems) or "its recorder has just begun, or was killed"
            raise RouseError(f"{self.name}: nothing was recorded in it: {why}")
        if self.found.why_done is None:
            self.problem(
                "it has no end: its recorder still writes, or was killed;"
                " the figures are those of its last whole part"
            )


def name_of(kind: bytes) -> str:
    text = kind.decode("latin-1")
    return text if text.isalnum() and text.isascii() else repr(kind)


def checked_frame(frame: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a site, after a check of their types."""

    def text(key: str) -> str | None:
        return None if frame.get(key) is None else str(frame[key])

    line = frame.get("line")
    return {
        "label": text("label") or "?",
        "function": text("function"),
        "file": text("file"),
        "line": None if line is None else int(line),
        "role": text("role"),
    }
