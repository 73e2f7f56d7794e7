# SPDX-License-Identifier: MIT
"""Build stores in memory, in the form in which the runtime writes them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import common  # noqa: F401 sets the package's path

import numpy as np

from rouse import clock
from rouse.store import decode, find, layout

HZ = 2_000_000_000  # two ticks per ns
START_NS = 5_000_000_000
START_TSC = 1_000_000_000_000
KINDS = {name: number for number, name in enumerate(layout.KIND_NAMES)}


def tsc(ms: float) -> int:
    """The time stamp this many ms after recording began."""
    return START_TSC + ticks(ms)


def ticks(ms: float) -> int:
    return round(ms * HZ / 1000)


def entries(kind: int, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Make the entries of a chunk. Fields that a row does not name are 0."""
    out = np.zeros(len(rows), layout.ENTRIES[kind])
    for i, row in enumerate(rows):
        for name, value in row.items():
            out[i][name] = value
    return out


def micro(**ms: float) -> list[int]:
    """The ticks of a thread in each state, from ms."""
    return [ticks(ms.get(name, 0)) for name in layout.MICRO]


class Builder:
    """Builds a store chunk by chunk. It ends end_ms after it began."""

    def __init__(self, end_ms: float = 1000, **head: Any) -> None:
        self.head = np.zeros(1, layout.HEAD)
        self.end_ms = end_ms
        values: dict[str, Any] = {
            "magic": layout.MAGIC,
            "version": layout.VERSION,
            "machine": 62,
            "pid": os.getpid(),
            "uid": os.geteuid(),
            "start_ticks": find.start_ticks(os.getpid()) or 0,
            "pid_namespace": find.namespace(),
            "tsc": START_TSC,
            "monotonic_ns": START_NS,
            "realtime_ns": 1_700_000_000_000_000_000,
            "tick_tsc": tsc(end_ms),
            "tick_monotonic_ns": START_NS + round(end_ms * 1_000_000),
            "mode": 1,
            "site_depth": 1,
            "program": b"/usr/bin/example",
            "command": b"example\0--flag",
            "host": b"here",
            "boot_id": np.frombuffer(bytes.fromhex(clock.boot_id() or "00" * 16), np.uint8),
        }
        for name, value in {**values, **head}.items():
            self.head[0][name] = value
        self.chunks: list[bytes] = []

    def live(self) -> Builder:
        """Make it the store of this process, which still records."""
        now = time.monotonic_ns()
        begin = now - round(self.end_ms * 1_000_000)
        self.head[0]["monotonic_ns"], self.head[0]["tick_monotonic_ns"] = begin, now
        self.head[0]["realtime_ns"] = time.time_ns() - (now - begin)
        return self

    def chunk(
        self,
        kind: int,
        rows: Sequence[Mapping[str, Any]] | Any,
        writer: int = 0,
        raw: bytes | None = None,
        **change: int,
    ) -> Builder:
        """Add a chunk of entries. change: words of its head that are set to other values."""
        body = raw if raw is not None else self.rows(kind, rows).tobytes()
        size = layout.ENTRIES[kind].itemsize if kind in layout.ENTRIES else 64
        whole = -(-(layout.CHUNK_HEAD + len(body)) // layout.PAGE) * layout.PAGE
        head = np.zeros(1, layout.CHUNK)
        values = {
            "kind": kind,
            "bytes": whole,
            "entry_bytes": size,
            "capacity": (whole - layout.CHUNK_HEAD) // size,
            "used": len(body) // size,
            "writer": writer,
        }
        for name, value in {**values, **change}.items():
            head[0][name] = value
        self.chunks.append(
            (head.tobytes().ljust(layout.CHUNK_HEAD, b"\0") + body).ljust(whole, b"\0")
        )
        return self

    @staticmethod
    def rows(kind: int, rows: Sequence[Mapping[str, Any]] | Any) -> Any:
        return rows if isinstance(rows, np.ndarray) else entries(kind, rows)

    def bytes(self) -> bytes:
        directory = np.zeros(layout.CHUNKS_MAX, "<u4")
        page = layout.CHUNKS // layout.PAGE
        for index, chunk in enumerate(self.chunks):
            directory[index] = page
            page += len(chunk) // layout.PAGE
        if not self.head[0]["chunk_count"]:
            self.head[0]["chunk_count"] = len(self.chunks)
        self.head[0]["page_count"] = page
        head = self.head.tobytes().ljust(layout.DIRECTORY, b"\0")
        return head + directory.tobytes() + b"".join(self.chunks)

    def store(self) -> decode.Store:
        """Read the store as if its process had ended."""
        return decode.decode_bytes(self.bytes(), "synthetic")

    def write(self, folder: Path, pid: int | None = None) -> Path:
        """Write the store as the file of a process."""
        path = folder / find.file_name(pid or int(self.head[0]["pid"]))
        path.write_bytes(self.bytes())
        path.chmod(0o600)
        return path


def of_process(pid: int, end_ms: float = 1000, **head: Any) -> Builder:
    """Begin the store of a live process that started to record end_ms ago."""
    program = os.fsencode(Path(f"/proc/{pid}/exe").readlink())
    started = find.start_ticks(pid)
    return Builder(end_ms, pid=pid, start_ticks=started, program=program, **head).live()
