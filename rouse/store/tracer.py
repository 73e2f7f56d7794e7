# SPDX-License-Identifier: MIT
"""Request events from a running process, and copy them before its rings are overwritten."""

from __future__ import annotations

import os
import struct
import time
from pathlib import Path

from rouse.errors import RouseError
from rouse.store import decode, layout, recording

# A recorder that is killed leaves the process in the mode trace for no longer.
ASKED_NS = 3_000_000_000
EVERY_S = 0.05
assert layout.HEAD.fields
UNTIL = int(layout.HEAD.fields["trace_until_ns"][1])


class Tracer:
    def __init__(self, path: Path, source: decode.FileSource, writer: recording.Writer) -> None:
        self.source, self.writer = source, writer
        self.next: dict[int, int] = {}  # by a ring's place, its first event not yet copied
        try:
            self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            raise RouseError(f"{path}: {error.strerror}") from error
        if not os.path.sameopenfile(self.fd, source.fd):
            os.close(self.fd)
            raise RouseError(f"{path}: is another process's now", "try again")

    def begin(self, is_on: bool) -> None:
        """Request events, and remember the first: events of an earlier trace are left out.

        is_on: the process already records events; those in its rings are copied too.
        """
        for ring in self.rings():
            count = decode.written(self.source, ring)
            first = max(count - ring.capacity + 1, 0) if is_on else count
            self.next[ring.offset] = first
            self.writer.events(ring.writer, first, b"")
        self.ask()

    def ask(self, for_ns: int = ASKED_NS) -> None:
        """Request events for so long from now. 0: stop."""
        os.pwrite(self.fd, struct.pack("<Q", time.monotonic_ns() + for_ns), UNTIL)

    def rings(self) -> list[decode.Ring]:
        raw, _ = decode.read_moments(self.source)
        reader = decode.ChunkReader(self.source, decode.decode_head(raw), ())
        reader.read_all()
        return reader.rings

    def drain(self) -> None:
        for ring in self.rings():
            first, events = decode.read_ring(self.source, ring, self.next.get(ring.offset, 0))
            if first is None or not len(events):
                continue
            self.next[ring.offset] = first + len(events)
            self.writer.events(ring.writer, first, events.tobytes())

    def blanked(self, image: bytes) -> bytes:
        """Return a copy of the store without the events that drain has already written."""
        out = bytearray(image)
        for ring in self.rings():
            begin = ring.offset + layout.CHUNK_HEAD
            end = min(begin + ring.capacity * layout.EVENT.itemsize, len(out))
            out[begin:end] = bytes(max(end - begin, 0))
            out[ring.offset + 24 : ring.offset + 32] = bytes(8)
        return bytes(out[: len(image)])

    def close(self) -> None:
        self.ask(0)
        os.close(self.fd)
