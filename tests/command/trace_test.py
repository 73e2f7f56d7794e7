#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Traces of programs whose wake-ups are known by construction, and of damaged rings."""

from __future__ import annotations

import collections
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, SOURCE, rouse

import numpy as np
from synthetic import Builder, of_process, tsc

from rouse.render import kernel_style
from rouse.store import decode, find, layout, recording, tracer
from rouse.store.decode import BytesSource, FileSource, Ring, read_ring
from rouse.store.events import TYPES
from rouse.tables import events, inputs

LEDGER, KNOWN = (FIXTURES / name for name in ("known_waits", "known_states"))
WAITERS, HERD, ROUNDS, POSTS = 100, 8, 5, 20  # from known_waits.c
FEW, MANY = 50_000, 500_000


class Running:
    """A recording program. It ends when its input does."""

    def __init__(self, program: Path, mode: str) -> None:
        self.place = tempfile.TemporaryDirectory()
        self.folder = Path(self.place.name)
        self.folder.chmod(0o700)
        self.process = subprocess.Popen(
            [program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={
                **os.environ,
                "ROUSE_WORKERS": "1",  # a second worker could yield until its ring has wrapped
                "ROUSE_OBS": mode,
                "ROUSE_OBS_DIR": str(self.folder),
            },
        )
        assert self.process.stdout
        while self.process.stdout.readline() not in (b"ready\n", b""):
            continue

    def rouse(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return rouse(*words, ROUSE_OBS_DIR=str(self.folder))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.place.cleanup()


def read_trace(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    return found


class Programs(unittest.TestCase):
    def run_program(self, program: Path, mode: str) -> Running:
        running = Running(program, mode)
        self.addCleanup(running.end)
        return running

    def check_arrows(self, trace: list[dict[str, Any]]) -> None:
        """Check that both ends of each arrow exist, in order, each on a span of its track."""
        spans = collections.defaultdict(list)
        for event in trace:
            if event["ph"] == "X":
                begin = round(event["ts"] * 1000)
                end = begin + round(event["dur"] * 1000)
                spans[event["pid"], event["tid"]].append((begin, end))
        begins = {event["id"]: event for event in trace if event["ph"] == "s"}
        ends = {event["id"]: event for event in trace if event["ph"] == "f"}
        self.assertEqual(begins.keys(), ends.keys())
        self.assertEqual(2 * len(begins), sum(event["ph"] in "sf" for event in trace))
        for number, begin in begins.items():
            end = ends[number]
            self.assertLessEqual(begin["ts"], end["ts"])
            for event in (begin, end):
                at = round(event["ts"] * 1000)
                own = spans[event["pid"], event["tid"]]
                self.assertTrue(any(first <= at <= last for first, last in own), event)

    def test_every_wake_up_is_an_arrow(self) -> None:
        running = self.run_program(LEDGER, "trace")
        file = running.folder / "trace.json"
        done = running.rouse("report", "--format", "perfetto", "-o", file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = read_trace(file)
        self.check_arrows(trace)
        names = collections.Counter(event["name"] for event in trace if event["ph"] == "s")
        self.assertEqual(names["wake mutex"], WAITERS)
        self.assertLessEqual(HERD * ROUNDS, names["wake condition"])
        waits = collections.Counter(event["name"] for event in trace if event["ph"] == "X")
        self.assertEqual(waits["mutex"], names["wake mutex"])
        self.assertEqual(waits["semaphore"], names["wake semaphore"])
        self.assertEqual(waits["join"], names["wake join"])
        self.assertGreater(waits["join"], 0)
        wanted = [event for event in trace if event["ph"] == "b"]
        self.assertLessEqual(WAITERS, len(wanted))
        self.assertEqual(len(wanted), sum(event["ph"] == "e" for event in trace))

    def test_switches_and_spin_in_one_text(self) -> None:
        running = self.run_program(LEDGER, "trace")
        done = running.rouse("report", "--format", "kernel-style")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        workers, threads, _, spin = done.stdout.split("\n\n")[1:]
        self.assertRegex(workers, r"worker \d+ \(tid \d+\)")
        # A waiter of the lock ran twice, waited once, was woken once, and contended once.
        own = [line.split()[:6] for line in threads.splitlines() if line.split()[:1] == ["2"]]
        self.assertIn(["2", "1", "0", "1", "1"], [row[:4] + row[5:] for row in own])
        # A thread that comes while the holder runs spins. There may be none.
        self.assertRegex(spin, r"no lock was spun for|mutex +hot, \w+ known_waits\.c:\d+")

    def test_a_lock_that_was_spun_for_has_its_contests_and_the_part_of_the_wait(self) -> None:
        lock = {"kind": "mutex", "lock_name": "hot", "site": 0, "site_label": "want a.c:3"}
        counts = {"contested": 100, "spun": 7, "spin_ns": 250_000, "wait_ns": 1_000_000}
        *_, line = kernel_style.spin_lines([lock | counts])
        self.assertRegex(line, r"^ +100 +7\.0% +250 µs +2\.50 µs +25\.0% +mutex +hot, want a\.c:3$")

    def test_a_program_without_a_trace_is_reported(self) -> None:
        running = self.run_program(LEDGER, "counted")
        done = running.rouse("report", "--format", "perfetto", "-o", running.folder / "trace.json")
        self.assertEqual(done.returncode, 3)
        self.assertIn("ROUSE_OBS=trace", done.stderr)

    def test_a_running_program_can_be_traced(self) -> None:
        running = self.run_program(KNOWN, "counted")
        file, trace = running.folder / "recording", running.folder / "trace.json"
        pid = str(running.process.pid)
        done = running.rouse("record", "--trace", "--seconds", "1", "-o", file, pid)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = running.rouse("report", file, "--format", "perfetto", "-o", trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = read_trace(trace)
        self.check_arrows(found)
        self.assertTrue(any(event["ph"] == "s" for event in found))


class Losses(unittest.TestCase):
    """A thread yields while a recorder reads its ring, or is prevented from reading it."""

    def setUp(self) -> None:
        self.running = Running(LEDGER, "trace")
        self.addCleanup(self.running.end)
        self.file = self.running.folder.with_suffix(".rouse")
        self.addCleanup(self.file.unlink, missing_ok=True)
        words = ("record", "--trace", "-o", self.file, str(self.running.process.pid))
        self.recorder = subprocess.Popen(
            [sys.executable, "-m", "rouse", *words],
            stderr=subprocess.PIPE,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "ROUSE_OBS_DIR": str(self.running.folder),
            },
        )
        self.addCleanup(self.recorder.communicate)
        self.addCleanup(self.recorder.kill)
        # The recorder copied the existing events with its first snapshot.
        while not self.file.exists() or b"BASE" not in self.file.read_bytes():
            self.assertIsNone(self.recorder.poll())

    def have_it_yield(self, letter: bytes) -> None:
        program = self.running.process
        assert program.stdin and program.stdout
        program.stdin.write(letter)
        program.stdin.flush()
        self.assertEqual(program.stdout.readline(), b"yielded\n")

    def found(self) -> tuple[int, int]:
        """The number of recorded yields of the thread, and the reported number of lost ones."""
        self.recorder.terminate()
        self.assertEqual(self.recorder.wait(60), 0)
        made = inputs.load_recording(self.file, inputs.Asked(with_events=True)).tables
        columns = [made["events"].column(n) for n in ("type", "thread_id", "name")]
        rows = list(zip(*columns, strict=True))
        (thread,) = [thread for kind, thread, name in rows if (kind, name) == ("end", "yielder")]
        (lost,) = made["processes"].column("lost_events")
        # The report without events has the same figures.
        (same,) = inputs.load_recording(self.file).tables["processes"].column("lost_events")
        self.assertEqual(same, lost)
        return sum(row[:2] == ("yield", thread) for row in rows), int(lost)

    def test_events_that_fit_in_a_ring_are_never_lost(self) -> None:
        self.have_it_yield(b"y")
        self.assertEqual(self.found(), (FEW, 0))

    def test_a_delayed_recorder_reports_the_number_of_lost_events(self) -> None:
        self.recorder.send_signal(signal.SIGSTOP)
        self.have_it_yield(b"Y")
        self.recorder.send_signal(signal.SIGCONT)
        yields, lost = self.found()
        self.assertLess(0, yields)
        self.assertLess(yields, MANY)
        # Each lost yield loses two events. Some lost events are from the thread's start.
        self.assertLessEqual(0, lost - 2 * (MANY - yields))
        self.assertLessEqual(lost - 2 * (MANY - yields), 16)


def ring(count: int, capacity: int, **head: int) -> tuple[bytes, Ring]:
    """A ring of events to which count events were written. Event n has the value n."""
    chunk = np.zeros(1, layout.CHUNK)
    values = {"kind": layout.EVENTS, "entry_bytes": 32, "capacity": capacity, "written": count}
    for name, value in {**values, **head}.items():
        chunk[name] = value
    entries = np.zeros(capacity, layout.EVENT)
    for n in range(max(count - capacity, 0), count):
        entries[n % capacity] = (tsc(n), TYPES["yield"] | 7 << 24, 0, n)
    raw = chunk.tobytes().ljust(layout.CHUNK_HEAD, b"\0") + entries.tobytes()
    return raw, Ring(0, capacity, 3)


class Rings(unittest.TestCase):
    def values(self, raw: bytes, of: Ring, since: int = 0) -> tuple[int | None, list[int]]:
        first, found = read_ring(BytesSource(raw, "ring"), of, since)
        return first, found["value"].tolist()

    def test_the_newest_events_are_kept(self) -> None:
        self.assertEqual(self.values(*ring(5, 8)), (0, [0, 1, 2, 3, 4]))
        self.assertEqual(self.values(*ring(7, 8)), (0, list(range(7))))
        # The oldest event of a full ring is left out, as it may be overwritten at this moment.
        self.assertEqual(self.values(*ring(8, 8)), (1, list(range(1, 8))))
        self.assertEqual(self.values(*ring(21, 8)), (14, list(range(14, 21))))

    def test_copied_events_are_not_copied_again(self) -> None:
        self.assertEqual(self.values(*ring(21, 8), since=18), (18, [18, 19, 20]))
        self.assertEqual(self.values(*ring(21, 8), since=21), (21, []))
        self.assertEqual(self.values(*ring(21, 8), since=5), (14, list(range(14, 21))))

    def test_invalid_rings_are_tolerated(self) -> None:
        raw, of = ring(5, 8)
        self.assertEqual(self.values(raw[: layout.CHUNK_HEAD + 40], of), (None, []))
        self.assertEqual(self.values(b"", of), (0, []))
        raw, of = ring(5, 8, written=(1 << 64) - 1)
        first, found = self.values(raw, of)
        self.assertEqual((first, len(found)), (decode.WRITTEN_MOST - 7, 7))


class Copied(unittest.TestCase):
    """A recorder copies a ring of 8 events while its writer continues, and reports losses."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.file = Path(place.name) / "recording"
        self.path = Path(place.name) / find.file_name(os.getpid())

    def put(self, count: int, mode: str = "counted") -> None:
        """Rewrite the process's file in place, as after a writer has written count events."""
        raw, _ = ring(count, 8)
        made = of_process(os.getpid(), mode=layout.MODES.index(mode))
        body = raw[layout.CHUNK_HEAD :]
        made.chunk(layout.EVENTS, [], writer=3, raw=body, written=count, capacity=8, used=0)
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.write(made.bytes())
        self.path.chmod(0o600)

    def copied(self, *counts: int, mode: str = "counted") -> tuple[list[int], int]:
        """Drain the ring at each of these counts. Returns the copied events and the losses."""
        self.put(counts[0], mode)
        source = FileSource(self.path)
        self.addCleanup(source.close)
        with self.file.open("wb") as file:
            writer = recording.Writer(file)
            asks = tracer.Tracer(self.path, source, writer)
            asks.begin(mode == "trace")
            for count in counts[1:]:
                self.put(count, mode)
                asks.drain()
            writer.snapshot(asks.blanked(decode.copy(source)), 6_000_000_000, 7, whole=True)
            writer.done("it was asked to")
            asks.close()
        made = inputs.load_recording(self.file, inputs.Asked(with_events=True))
        self.assertEqual(made.problems, [])
        (lost,) = made.tables["processes"].column("lost_events")
        return made.tables["events"].column("number"), lost

    def test_a_reader_that_keeps_up_loses_none(self) -> None:
        self.assertEqual(self.copied(0, 5, 12, 12, 19), (list(range(19)), 0))

    def test_each_overwritten_event_is_counted(self) -> None:
        # At 20 the ring has 12 to 19, and 12 may just be overwritten.
        self.assertEqual(self.copied(0, 20), (list(range(13, 20)), 13))
        expected = [*range(5), *range(13, 20), *range(23, 30)]
        self.assertEqual(self.copied(0, 5, 20, 30), (expected, 8 + 3))

    def test_events_before_the_recording_are_neither_copied_nor_lost(self) -> None:
        self.assertEqual(self.copied(100, 103), ([100, 101, 102], 0))
        self.assertEqual(self.copied(100, 120), (list(range(113, 120)), 13))

    def test_the_complete_part_of_a_running_trace_is_read(self) -> None:
        self.assertEqual(self.copied(100, 100, mode="trace"), (list(range(93, 100)), 0))
        self.assertEqual(self.copied(100, 103, mode="trace"), (list(range(96, 103)), 3))


class Tables(unittest.TestCase):
    def test_unknown_types_and_invalid_time_stamps_are_tolerated(self) -> None:
        made = Builder().store()
        wild = np.zeros(4, layout.EVENT)
        wild["what"] = [TYPES["run"], 0xFF, (1 << 64) - 1, TYPES["name"] | 9 << 8]
        wild["tsc"] = [(1 << 64) - 1, 0, 5, 7]
        wild["value"] = (1 << 64) - 1
        made.arrays[layout.EVENTS] = wild
        made.writer_of[layout.EVENTS] = np.zeros(4, np.uint32)
        made.numbers = np.arange(4)
        self.assertEqual(events.table(made).column("type"), ["run"])

    def test_overwritten_events_are_reported(self) -> None:
        made = Builder().store()
        made.overwritten = 5
        from rouse.tables import build

        self.assertEqual(build.processes(made).column("lost_events"), [5])


if __name__ == "__main__":
    unittest.main(verbosity=2)
