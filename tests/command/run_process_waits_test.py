#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for children, file locks, signals, semaphores of System V and messages (process_waits.c).

The program measures by its own clock how long its waits took. It also checks results and errno.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source, unless_emulated

WAITS = Source("process_waits")
LEAST_NS = WAITS.known["WAIT_MS"] * 500_000  # shorter waits are no part of the scene
NEAR_NS = 2_000_000  # per wait, between the clock of the program and the recording
# By scene: the kind of its waits, and the comment at each.
SCENES = {
    "children": ("child process", "wait", "waitpid", "wait3", "wait4", "waitid", "system"),
    "file_locks": ("file lock", "flock", "fcntl", "lockf"),
    "signals": ("signal", "sigwait", "sigwaitinfo", "sigtimedwait", "sigsuspend", "pause"),
    "semaphores": ("System V semaphore", "semop", "semtimedop"),
    "messages": ("message", "msgrcv"),
    "queues": ("message", "mq_receive", "mq_send"),
}


class Waits(unittest.TestCase):
    def run_it(self, *scene: str) -> tuple[list[dict[str, Any]], int, dict[str, float]]:
        """The rows of waits, the time by the program's clock, and the division of time."""
        with tempfile.TemporaryDirectory() as place:
            report = Path(place) / "report"
            words = ("run", "--json", "-o", str(report), "--", str(WAITS.program), *scene)
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            if done.returncode == 77:
                self.skipTest(done.stdout.strip())
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            found = json.loads(report.read_text())
        return found["sections"]["waits"], int(done.stdout), found["verdict"]["time"]

    def check(self, scene: str, untimed: int = 0) -> None:
        """untimed: waits of the scene that end at a deadline."""
        kind, *calls = SCENES[scene]
        rows, measured_ns, _ = self.run_it(scene)
        of_kind = [row for row in rows if row["kind"] == kind]
        labels = {row["wait_label"] for row in of_kind}
        for call in calls:
            self.assertIn(WAITS.label(f"/* by {call} */"), labels)
        own = [row for row in of_kind if row["wait_label"].startswith(f"{scene} ")]
        self.assertTrue(all(row["count"] == 1 for row in own), own)
        long = [row["wait_ns"] for row in own if row["wait_ns"] > LEAST_NS / 2]
        self.assertEqual(len(long), len(calls) + untimed, own)
        self.assertAlmostEqual(sum(long), measured_ns, delta=NEAR_NS * len(long))

    @unless_emulated("its program starts one of this machine")
    def test_children(self) -> None:
        self.check("children")

    def test_locks_of_files(self) -> None:
        self.check("file_locks")

    def test_signals(self) -> None:
        self.check("signals", untimed=1)

    def test_semaphores_of_system_v(self) -> None:
        self.check("semaphores")

    def test_messages_of_system_v(self) -> None:
        self.check("messages")

    @unless_emulated("the emulator writes to the deadline of mq_timedreceive")
    def test_queues_of_messages(self) -> None:
        self.check("queues", untimed=1)

    def test_a_thread_that_is_cancelled_in_its_wait(self) -> None:
        rows, _, _ = self.run_it("cancelled")
        (row,) = [row for row in rows if row["wait_label"].startswith("wait_for_a_child ")]
        self.assertEqual(row["kind"], "child process")

    def test_a_wait_for_a_file_lock_is_time_for_locks(self) -> None:
        _, _, time = self.run_it("file_locks")
        self.assertGreater(time["locks"], 0.1)

    @unless_emulated("its program starts one of this machine")
    def test_a_process_that_only_waits_for_children_is_not_recorded(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            kept = Path(place) / "kept"
            words = ("run", "--keep", str(kept), "--", "sh", "-c", "sleep 0.01; sleep 0.01")
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, r"^sleep x2: ")

    @unless_emulated("its program starts one of this machine")
    def test_a_process_with_locks_that_only_waits_for_children_has_these_waits(self) -> None:
        rows, measured_ns, time = self.run_it("children", "locks")
        waited = sum(row["wait_ns"] for row in rows if row["kind"] == "child process")
        self.assertAlmostEqual(waited, measured_ns, delta=6 * NEAR_NS)
        self.assertLess(time["unexplained"], 0.1)

    def test_the_scenes_pass_their_checks_without_recording(self) -> None:
        for scene in (*SCENES, "cancelled"):
            done = subprocess.run([WAITS.program, scene], capture_output=True, check=False)
            self.assertIn(done.returncode, (0, 77), done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
