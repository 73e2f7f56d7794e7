# SPDX-License-Identifier: MIT
"""A program whose threads all wait for each other reports the deadlock once. Others never do."""

from __future__ import annotations

import contextlib
import time
import unittest

from waits_common import END_OF_DUMP, PROGRAM, SANITIZED, Scene, not_run, threads_of

REPORT = "rouse: deadlock: every thread waits for another thread\n"

# The latest report, in seconds: the time in which threads settle, and one more check.
LATEST_S = 1.05
MARGIN_S = 3.0 if SANITIZED else 1.5


class Deadlock(unittest.TestCase):
    def reported(
        self, name: str, *, ends_input: bool = False, environment: dict[str, str] | None = None
    ) -> str:
        with Scene(name, environment) as scene:
            if ends_input:
                scene.wait_until_ready()
                self.assertEqual(scene.said(), "")
                scene.end_input()
            return scene.wait_until_said(END_OF_DUMP)

    def test_circle_of_locks(self) -> None:
        for kind in ("user", "kernel"):
            for workers in ("1", "2", "4"):
                with self.subTest(kind=kind, workers=workers):
                    environment = {"ROUSE_THREADS": kind, "ROUSE_WORKERS": workers}
                    said = self.reported("circle", environment=environment)
                    self.assertTrue(said.startswith(REPORT), said)
                    threads = threads_of(said)
                    self.assertRegex(
                        threads["left"], 'waiting for mutex 0x.* "orders", at accounts_'
                    )
                    self.assertRegex(
                        threads["left"], 'held by thread . "right", acquired at orders_first'
                    )
                    self.assertRegex(
                        threads["right"], 'waiting for mutex 0x.* "accounts", at orders_'
                    )
                    self.assertRegex(threads[""], 'foreign.*: waiting for join of thread . "left"')

    def test_the_last_thread_that_could_wake_another_has_ended(self) -> None:
        said = self.reported("one-that-ends", ends_input=True)
        self.assertTrue(said.startswith(REPORT), said)
        self.assertIn("waiting for semaphore", threads_of(said)[""])

    def test_main_has_ended_by_pthread_exit(self) -> None:
        said = self.reported("main-exited", ends_input=True)
        self.assertTrue(said.startswith(REPORT), said)
        self.assertIn(" wait_for_never+", said)

    def test_it_is_reported_once(self) -> None:
        with Scene("circle") as scene:
            scene.wait_until_said(END_OF_DUMP)
            time.sleep(LATEST_S + MARGIN_S)
            self.assertEqual(scene.said().count(REPORT), 1)
            # A dump in between does not repeat it either.
            scene.quit(2)
            time.sleep(LATEST_S)
            self.assertEqual(scene.said().count(REPORT), 1)

    def test_no_false_alarm(self) -> None:
        """Something can still wake a thread: main() in a plain read, an unknown kernel thread, a
        timer, input, or a blocking call."""
        names = ("main-reads", "unknown", "time", "input", "blocking", "ever", "variously", "stuck")
        with contextlib.ExitStack() as stack:
            scenes = [
                stack.enter_context(Scene(name, {"ROUSE_WORKERS": workers}))
                for name in names
                for workers in ("1", "2")
            ]
            for scene in scenes:
                scene.wait_until_ready()
            time.sleep(LATEST_S + MARGIN_S)
            for scene in scenes:
                with self.subTest(scene.name):
                    self.assertEqual(scene.said(), "")
                    self.assertIsNone(scene.process.poll())
            for scene in scenes:
                if scene.name in ("main-reads", "unknown", "blocking", "variously"):
                    scene.end_input()
                    self.assertEqual(scene.wait(), 0, scene.said())


if __name__ == "__main__":
    if not PROGRAM.exists():
        not_run(f"{PROGRAM} was not built")
    unittest.main(verbosity=2)
