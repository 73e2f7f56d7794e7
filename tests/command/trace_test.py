#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Events: of programs whose wake-ups are known by construction, and of rings that are damaged."""

from __future__ import annotations

import collections
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import BUILD, rouse

import numpy as np
from synthetic import Builder, tsc

from rouse import events, layout, store
from rouse.store import BytesSource, Ring, read_ring

LEDGER, KNOWN = (BUILD / "tests" / "command" / name for name in ("ledger", "known"))
WAITERS, HERD, ROUNDS, POSTS = 100, 8, 5, 20  # as ledger.c has them


class Running:
    """A program that records, until its input ends."""

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
                "ROUSE_WORKERS": "1",  # with more, one may yield until its ring has come round
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
        """Both ends are there, in order, each on a span of its track."""
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
        done = running.rouse("report", "--perfetto", file)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = read_trace(file)
        self.check_arrows(trace)
        names = collections.Counter(event["name"] for event in trace if event["ph"] == "s")
        self.assertEqual(names["wake mutex"], WAITERS)
        self.assertLessEqual(HERD * ROUNDS, names["wake condition"])
        waits = collections.Counter(event["name"] for event in trace if event["ph"] == "X")
        self.assertEqual(waits["mutex"], names["wake mutex"])
        self.assertEqual(waits["semaphore"], names["wake semaphore"])
        wanted = [event for event in trace if event["ph"] == "b"]
        self.assertLessEqual(WAITERS, len(wanted))
        self.assertEqual(len(wanted), sum(event["ph"] == "e" for event in trace))

    def test_switches_and_spin_in_one_text(self) -> None:
        running = self.run_program(LEDGER, "trace")
        done = running.rouse("report", "--kernel-style")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        workers, threads, spin = done.stdout.split("\n\n")[1:]
        self.assertRegex(workers, r"worker \d+ \(tid \d+\)")
        # A waiter of the lock ran twice, waited once, was woken once, and contended once.
        own = [line.split()[:6] for line in threads.splitlines() if line.split()[:1] == ["2"]]
        self.assertIn(["2", "1", "0", "1", "1"], [row[:4] + row[5:] for row in own])
        self.assertRegex(spin, r"\b100\b.*mutex +hot, ledger\.c:\d+")

    def test_a_program_that_keeps_none_says_so(self) -> None:
        running = self.run_program(LEDGER, "counted")
        done = running.rouse("report", "--perfetto", running.folder / "trace.json")
        self.assertEqual(done.returncode, 3)
        self.assertIn("ROUSE_OBS=trace", done.stderr)

    def test_a_running_program_is_asked(self) -> None:
        running = self.run_program(KNOWN, "counted")
        file, trace = running.folder / "recording", running.folder / "trace.json"
        pid = str(running.process.pid)
        done = running.rouse("record", "--trace", "--seconds", "1", "-o", file, pid)
        self.assertEqual(done.returncode, 0, done.stderr)
        done = running.rouse("report", file, "--perfetto", trace)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = read_trace(trace)
        self.check_arrows(found)
        self.assertTrue(any(event["ph"] == "s" for event in found))


def ring(count: int, capacity: int, **head: int) -> tuple[bytes, Ring]:
    """A chunk of events that count were written to; event n has n as its value."""
    chunk = np.zeros(1, layout.CHUNK)
    values = {"kind": layout.EVENTS, "entry_bytes": 32, "capacity": capacity, "written": count}
    for name, value in {**values, **head}.items():
        chunk[name] = value
    entries = np.zeros(capacity, layout.EVENT)
    for n in range(max(count - capacity, 0), count):
        entries[n % capacity] = (tsc(n), events.TYPES["yield"] | 7 << 24, 0, n)
    raw = chunk.tobytes().ljust(layout.CHUNK_HEAD, b"\0") + entries.tobytes()
    return raw, Ring(0, capacity, 3)


class Rings(unittest.TestCase):
    def values(self, raw: bytes, of: Ring, since: int = 0) -> tuple[int | None, list[int]]:
        first, found = read_ring(BytesSource(raw, "ring"), of, since)
        return first, found["value"].tolist()

    def test_the_newest_stay(self) -> None:
        self.assertEqual(self.values(*ring(5, 8)), (0, [0, 1, 2, 3, 4]))
        self.assertEqual(self.values(*ring(7, 8)), (0, list(range(7))))
        # Of a full ring the oldest may be overwritten at this moment.
        self.assertEqual(self.values(*ring(8, 8)), (1, list(range(1, 8))))
        self.assertEqual(self.values(*ring(21, 8)), (14, list(range(14, 21))))

    def test_what_was_copied_is_not_copied_again(self) -> None:
        self.assertEqual(self.values(*ring(21, 8), since=18), (18, [18, 19, 20]))
        self.assertEqual(self.values(*ring(21, 8), since=21), (21, []))
        self.assertEqual(self.values(*ring(21, 8), since=5), (14, list(range(14, 21))))

    def test_hostile_rings(self) -> None:
        raw, of = ring(5, 8)
        self.assertEqual(self.values(raw[: layout.CHUNK_HEAD + 40], of), (None, []))
        self.assertEqual(self.values(b"", of), (0, []))
        raw, of = ring(5, 8, written=(1 << 64) - 1)
        first, found = self.values(raw, of)
        self.assertEqual((first, len(found)), (store.WRITTEN_MOST - 7, 7))


class Tables(unittest.TestCase):
    def test_unknown_types_and_wild_stamps_do_no_harm(self) -> None:
        made = Builder().store()
        wild = np.zeros(4, layout.EVENT)
        wild["what"] = [events.TYPES["run"], 0xFF, (1 << 64) - 1, events.TYPES["name"] | 9 << 8]
        wild["tsc"] = [(1 << 64) - 1, 0, 5, 7]
        wild["value"] = (1 << 64) - 1
        made.arrays[layout.EVENTS] = wild
        made.writer_of[layout.EVENTS] = np.zeros(4, np.uint32)
        made.numbers = np.arange(4)
        self.assertEqual(events.table(made).column("type").to_pylist(), ["run"])

    def test_what_was_overwritten_is_told(self) -> None:
        made = Builder().store()
        made.overwritten = 5
        from rouse import tables

        self.assertEqual(tables.processes(made).column("lost_events").to_pylist(), [5])


if __name__ == "__main__":
    unittest.main()
