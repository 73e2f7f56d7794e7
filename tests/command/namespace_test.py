#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Processes in other PID namespaces: their files stay apart, and invisible ones are reported."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

from common import COMMAND, FIXTURES, here, main_unless, rouse, start, start_ready

from file_growth import await_recording

from rouse.errors import RouseError
from rouse.store import decode, find, layout, recording

KNOWN = FIXTURES / "known_states"
NAMES = {"holder", "wanter", "sleeper", "runner", "waiter", "listener"}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
NOTE = "it runs in another PID namespace: its kernel threads cannot be seen from here"
NOT_SURE = (
    "it runs in another PID namespace: whether it lives, and its kernel threads, cannot be seen"
    " from here"
)
NO_NAMESPACE = "cannot create a PID namespace"
KEPT = 8  # files of killed processes


def why_not() -> str:
    try:
        done = subprocess.run([*APART, "true"], capture_output=True, text=True, check=False)
    except OSError as error:
        return f"{NO_NAMESPACE}: {error}"
    return f"{NO_NAMESPACE}: {done.stderr.strip()}" if done.returncode else ""


class Apart(unittest.TestCase):
    """Runs known_states.c, each time as process 1 of its own namespace."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.folder = self.place / "recordings"
        before = os.environ.get("ROUSE_OBS_DIR")
        os.environ["ROUSE_OBS_DIR"] = str(self.folder)
        self.addCleanup(self.restore, before)

    @staticmethod
    def restore(before: str | None) -> None:
        os.environ.pop("ROUSE_OBS_DIR")
        if before is not None:
            os.environ["ROUSE_OBS_DIR"] = before

    def known(self, *around: str) -> tuple[subprocess.Popen[str], Path]:
        """Start known_states. Returns the process and its file."""
        before = set(self.files())
        process = start_ready(self, *around, KNOWN)
        (path,) = set(self.files()) - before
        return process, path

    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir()) if self.folder.is_dir() else []

    def report(self, *words: str | Path) -> Any:
        done = here("report", *words, "--json", "--all", "-s", "threads")
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def await_unlocked(self, path: Path) -> None:
        source = find.open_source(path)
        self.addCleanup(source.close)
        deadline = time.monotonic() + 30
        while find.has_lock(source):
            self.assertLess(time.monotonic(), deadline, "the lock outlives its process")

    def test_two_processes_with_one_pid_have_two_files(self) -> None:
        (_, first), (_, second) = self.known(*APART), self.known(*APART)
        for path in (first, second):
            self.assertRegex(path.name, r"\A1-[0-9]+\.rouse\Z")
            output = self.report(path)
            self.assertIn(NOTE, output["notes"])
            self.assertFalse(output["processes"][0]["ended"])
            self.assertLessEqual(NAMES, {row["name"] for row in output["sections"]["threads"]})
        listed = [(found.pid, found.is_alive, found.is_here) for found in find.processes()]
        self.assertEqual(listed, [(1, True, False)] * 2)
        with self.assertRaisesRegex(RouseError, "there are 2 in other PID namespaces"):
            find.of_pid(1)
        done = rouse("top", "--batch", "0.1", "1", "--all", "--json", "known_states")
        self.assertEqual(done.returncode, 0, done.stderr)
        output = json.loads(done.stdout)
        self.assertEqual([p["pid"] for p in output["processes"]], [1, 1])
        for process in output["processes"]:
            self.assertEqual(process["problems"][0], NOTE)
            self.assertIn("workers: the kernel does not report", process["problems"][1])
        self.assertFalse([row for row in output["threads"] if row["name"].endswith("/worker-0")])
        self.assertIn("processes that record now: 2", rouse("doctor").stdout)

    def test_a_process_is_recorded_to_its_end(self) -> None:
        process, path = self.known(*APART)
        file = self.place / "file"
        words = ("record", "-o", file, "--interval", "0.05", "1")
        done = here(*words, "--seconds", "0.2")
        self.assertRegex(done.stderr, "; 0.2 s have passed\n")
        output = self.report(file)
        self.assertFalse(output["processes"][0]["ended"])
        self.assertLessEqual(NAMES, {row["name"] for row in output["sections"]["threads"]})
        recorder = start(self, *COMMAND, *words, "--force")
        await_recording(file, lambda found: found.why_done is None)
        process.kill()
        self.assertEqual(recorder.wait(60), 0)
        self.assertIn(find.GONE, recording.read(file).why_done or "")
        self.await_unlocked(path)
        self.assertTrue(self.report(path)["processes"][0]["ended"])

    def test_a_file_without_a_lock_may_belong_to_a_live_process(self) -> None:
        process, path = self.known(*APART)
        raw = bytearray(path.read_bytes()[: layout.BYTES_MAX // 16])
        process.kill()
        assert layout.HEAD.fields
        raw[layout.HEAD.fields["is_locked"][1]] = 0
        path.write_bytes(raw)
        output = self.report(path)
        self.assertIn(NOT_SURE, output["notes"])
        self.assertIsNone(output["processes"][0]["ended"])
        self.assertIn("runs, or has ended", here("report", path, "-s", "totals").stdout)
        self.assertLessEqual(NAMES, {row["name"] for row in output["sections"]["threads"]})

    def test_a_file_of_another_namespace_is_removed_when_its_process_is_gone(self) -> None:
        process, path = self.known(*APART)
        self.leave_dead(KEPT + 2)
        self.assertIn(path, self.files())
        process.kill()
        self.await_unlocked(path)
        os.utime(path, (0, 0))
        self.leave_dead(1)
        self.assertNotIn(path, self.files())

    def leave_dead(self, count: int) -> None:
        for _ in range(count):
            process = start_ready(self, KNOWN)
            process.kill()
            process.wait()

    def test_the_head_names_the_namespace(self) -> None:
        _, path = self.known(*APART)
        _, own = self.known()
        heads = [
            decode.decode_head(decode.read_moments(find.open_source(p))[0]) for p in (path, own)
        ]
        self.assertEqual(heads[0].pid_namespace, int(path.stem.partition("-")[2]))
        self.assertEqual(heads[1].pid_namespace, find.namespace())
        self.assertEqual([head.is_locked for head in heads], [True, True])
        self.assertEqual(own.name, find.file_name(heads[1].pid))


if __name__ == "__main__":
    main_unless(why_not())
