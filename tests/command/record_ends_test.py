#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The end of `rouse record`, with and without --trace, in every way that its program can end."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from common import COMMAND, FIXTURES, here, next_line, send, start, start_ready

from file_growth import await_recording

from rouse.store import find, recording, tracer

NAMES = {"holder", "wanter", "sleeper", "runner", "waiter", "listener"}


def count(found: recording.Recording) -> int:
    """Return how many events there are."""
    return sum(len(entries) for _, _, entries in found.events)


class Recorded(unittest.TestCase):
    """Records known_states.c, whose threads have known names."""

    words: tuple[str, ...] = ()

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name) / "recordings"
        self.file = Path(place.name) / "file"
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}
        self.program = start_ready(self, FIXTURES / "known_states", **self.own)
        words = ("record", "-o", self.file, "--interval", "0.05", str(self.program.pid))
        self.recorder = start(self, *COMMAND, *words, *self.words, **self.own)
        self.await_recording(2)

    def await_recording(self, snapshots: int) -> recording.Recording:
        """The file's contents once it has that many snapshots and, for a trace, some events."""

        def is_enough(found: recording.Recording) -> bool:
            return found.snapshots >= snapshots and (count(found) > 0 or not self.words)

        return await_recording(self.file, is_enough)

    def report(self, *words: str | Path) -> Any:
        done = here("report", *words, "--json", "--all", "-s", "threads", **self.own)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def check_file(self, why: str, ended: bool) -> None:
        """Check that the recorder ended properly for this reason and that its file is complete."""
        self.assertEqual(self.recorder.wait(60), 0)
        assert self.recorder.stderr
        self.assertRegex(self.recorder.stderr.read(), rf"\A[^\n]* snapshots; {why}\n\Z")
        found = recording.read(self.file)
        self.assertRegex(found.why_done or "", rf"\A{why}\Z")
        self.assertEqual(found.problems, [])
        trace = self.file.with_name("trace")
        made = self.report(self.file)
        self.assertEqual(made["processes"][0]["ended"], ended)
        self.assertLessEqual(NAMES, {thread["name"] for thread in made["sections"]["threads"]})
        if self.words:
            done = here("report", self.file, "-f", "perfetto", "-o", trace, **self.own)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
            self.assertIn("running", {event["name"] for event in events})

    def test_the_program_ends_normally(self) -> None:
        assert self.program.stdin
        self.program.stdin.close()
        self.program.wait()
        self.program.stdin = None
        self.check_file("the program has ended", ended=True)

    def test_the_program_is_killed(self) -> None:
        self.program.kill()
        self.program.wait()
        self.check_file(r"the program was killed, or left by _exit\(\)", ended=True)

    def test_the_program_becomes_another(self) -> None:
        send(self.program, "x")
        self.check_file(r"the program runs another program now \(exec\)", ended=True)
        # The process continues without these threads, so it adds nothing to their record.
        path = self.folder / find.file_name(self.program.pid)
        first, second = self.report(path), self.report(path)
        self.assertEqual(first["processes"][0]["ended"], True)
        self.assertEqual(
            first["processes"][0]["duration_ns"], second["processes"][0]["duration_ns"]
        )
        self.assertIn("runs another program now (exec)", first["notes"][0])

    def test_the_program_forks(self) -> None:
        """The parent is still recorded. The child has a file of its own, without events."""
        send(self.program, "f")
        child = int(next_line(self.program).split()[1])
        self.addCleanup(os.kill, child, signal.SIGKILL)
        before = recording.read(self.file)

        def has_more(found: recording.Recording) -> bool:
            has_events = count(found) > count(before) or not self.words
            return found.snapshots >= before.snapshots + 2 and has_events

        await_recording(self.file, has_more)
        self.recorder.send_signal(signal.SIGTERM)
        self.recorder.wait(60)
        self.program.kill()  # it computes, and would slow down the following steps
        output = self.report(str(child))
        self.assertEqual(output["processes"][0]["mode"], "counted")
        self.assertEqual(["child"], [t["name"] for t in output["sections"]["threads"] if t["name"]])
        done = here("report", str(child), "--format", "perfetto", "-o", "-", **self.own)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("has no events", done.stderr)
        self.check_file("stopped by SIGTERM", ended=False)


class Traced(Recorded):
    words = ("--trace",)

    def test_events_do_not_end_though_no_time_is_left_between_snapshots(self) -> None:
        """The interval is so short that the recorder never waits."""
        end = time.monotonic() + 1.5 * tracer.ASKED_NS / 1e9
        found = await_recording(self.file, lambda _: time.monotonic() > end)
        last = count(found)
        await_recording(self.file, lambda found: count(found) > last)


if __name__ == "__main__":
    unittest.main(verbosity=2)
