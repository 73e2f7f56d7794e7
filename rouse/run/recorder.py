# SPDX-License-Identifier: MIT
"""Record a running process into a file, until it ends."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from rouse.errors import RouseError
from rouse.store import decode, find, layout, recording, tracer
from rouse.symbols import sites
from rouse.tables import build, inputs

WHOLE_EVERY = 60  # snapshots, so that one damaged part costs little
SECONDS_MOST = 10_000_000
TRACE = layout.MODES[3]


class Recorder:
    """Appends what a process records to a file, at each interval and at the end."""

    def __init__(self, path: Path, source: decode.FileSource, writer: recording.Writer) -> None:
        self.path = path
        self.source = source
        self.writer = writer
        self.resolver = sites.Resolver()
        self.count = 0
        self.tracer: tracer.Tracer | None = None

    def head(self) -> decode.Head:
        return decode.read_head(self.source)

    def begin(self) -> None:
        head = self.head()
        self.writer.head(
            {
                "process": head.process,
                "program": head.program,
                "command": head.command,
                "machine": inputs.machine_text(),
                "boot_id": head.boot_id,
                "recorded_unix_ns": time.time_ns(),
            }
        )
        if self.tracer:
            self.tracer.begin(head.mode_name == TRACE)

    def snapshot(self, last: bool = False) -> None:
        """Append the current state of the store, and the names of its new sites."""
        image = decode.copy(self.source)
        if self.tracer:
            if not last:
                self.tracer.ask()  # wait() does not, if a snapshot takes longer than the interval
            self.tracer.drain()
            image = self.tracer.blanked(image)
        monotonic_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
        whole = last or self.count % WHOLE_EVERY == 0
        found = decode.decode_bytes(image, self.source.name, monotonic_ns)
        found.is_here = find.is_here(found.head)
        found.is_live = find.life(found.head, self.source) != find.DEAD
        samples = build.kernel_samples(found)
        self.writer.snapshot(image, monotonic_ns, realtime_ns, whole)
        self.count += 1
        if samples:
            self.writer.kernel(samples)
        self.writer.sites(self.names(found))

    def names(self, found: decode.Store) -> recording.Frames:
        sites.frames_used(found, self.resolver, {})
        sites.Sites(found, self.resolver).variables(sites.objects_of(found))
        return {
            key: {name: getattr(f, name) for name in ("label", "function", "file", "line", "role")}
            for key, f in self.resolver.frames.items()
        }

    def why_over(self) -> str | None:
        """Return why nothing more will come. Empty: more will come."""
        became = find.what_became(self.source, self.path)
        return recording.PROGRAM + became if became else None


class Stop:
    """Whether a signal asked for the end. Waits for a signal or for a time."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.why = ""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self.asked)

    def asked(self, number: int, _frame: FrameType | None) -> None:
        self.why = f"stopped by {signal.Signals(number).name}"
        self.event.set()

    def wait(self, seconds: float) -> bool:
        return self.event.wait(max(seconds, 0))


class Progress:
    """A line on a terminal that is overwritten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.is_shown = sys.stderr.isatty()

    def show(self, seconds: float) -> None:
        if self.is_shown:
            size = self.path.stat().st_size / 1e6
            print(f"\r{seconds:.0f} s, {size:.1f} MB ", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.is_shown:
            print(file=sys.stderr)


def create(path: Path, force: bool) -> BinaryIO:
    """Create the file, readable only by this user. A lock shows that it is still written."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_TRUNC if force else os.O_EXCL)
    try:
        fd = os.open(path, flags, 0o600)
    except FileExistsError as error:
        raise RouseError(f"{path}: already exists", "--force overwrites it") from error
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return os.fdopen(fd, "wb", buffering=0)


def wait(recorder: Recorder, stop: Stop, until: float) -> bool:
    """Copy events until a deadline. Return whether a signal came first."""
    while recorder.tracer and until - time.monotonic() > tracer.EVERY_S:
        recorder.tracer.ask()
        recorder.tracer.drain()
        if stop.wait(tracer.EVERY_S):
            return True
    return stop.wait(until - time.monotonic())


def follow(recorder: Recorder, seconds: float, interval: float, progress: Progress) -> str:
    """Record until the time is over, the process ends, or a signal comes. Return the reason."""
    stop = Stop()
    began = time.monotonic()
    recorder.begin()
    recorder.snapshot()
    due = began
    while True:
        passed = time.monotonic() - began
        progress.show(passed)
        over = recorder.why_over()
        if over:
            return over
        if passed >= seconds:
            return f"{seconds:g} s have passed"
        due = max(due + interval, time.monotonic())
        if wait(recorder, stop, min(due, began + seconds)):
            return stop.why
        recorder.snapshot()


def run(
    output: Path, target: int | None, seconds: float, interval: float, force: bool, trace: bool
) -> None:
    path = find.of_pid(target) if target else inputs.running()
    source = find.open_source(path)
    try:
        head = decode.read_head(source)
        if trace and head.recorder == layout.PRELOAD and head.mode_name != TRACE:
            raise RouseError(
                f"{source.name}: rouse run records no events of this process",
                "start it by rouse run --trace",
            )
        with create(output, force) as file:
            writer = recording.Writer(file)
            recorder, progress = Recorder(path, source, writer), Progress(output)
            try:
                if trace:
                    recorder.tracer = tracer.Tracer(path, source, writer)
                why = follow(recorder, seconds, interval, progress)
                recorder.snapshot(last=True)
                writer.done(why)
            finally:
                if recorder.tracer:
                    recorder.tracer.close()
                progress.end()
    except OSError as error:
        raise RouseError(f"{output}: {error.strerror}", "what was written can be read") from error
    finally:
        source.close()
    size = output.stat().st_size
    print(f"{output}: {size:,} bytes, {recorder.count} snapshots; {why}", file=sys.stderr)
