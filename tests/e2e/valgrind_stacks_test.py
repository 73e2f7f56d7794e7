# SPDX-License-Identifier: MIT
"""Valgrind's memcheck knows the threads' stacks: it reports no error and guesses no switch."""

from __future__ import annotations

import os
import shutil
import subprocess
import unittest

from waits_common import END_OF_DUMP, PROGRAM, SANITIZED, Scene, not_run, threads_of

COMMAND = ("valgrind", "--error-exitcode=99", "--num-callers=20")
LIMIT_S = 400


def why_not() -> str | None:
    """The reason why valgrind cannot run the program, or None."""
    if not shutil.which("valgrind"):
        return "there is no valgrind"
    if SANITIZED:
        return "valgrind cannot run a program that a sanitizer has instrumented"
    done = subprocess.run([*COMMAND, PROGRAM], capture_output=True, text=True, check=False)
    if "usage: waits" not in done.stderr:
        return f"valgrind cannot run programs here: {done.stderr[-300:]!r}"
    return None


class Valgrind(unittest.TestCase):
    def test_many_stacks(self) -> None:
        for workers in ("1", "2"):
            with self.subTest(workers=workers):
                done = subprocess.run(
                    [*COMMAND, PROGRAM, "many"],
                    env={**os.environ, "ROUSE_WORKERS": workers},
                    capture_output=True,
                    text=True,
                    timeout=LIMIT_S,
                    check=False,
                )
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertEqual(done.stdout, "ready\n")
                self.assertIn("ERROR SUMMARY: 0 errors", done.stderr)
                self.assertNotIn("switching stacks", done.stderr)
                self.assertNotIn("Warning", done.stderr)

    def test_dump(self) -> None:
        variables = {"ROUSE_WORKERS": "2", "ROUSE_IO": "uring"}
        with Scene("variously", variables, wrapper=COMMAND) as scene:
            scene.wait_until_ready()
            self.assertIn("epoll is used: Valgrind", scene.said())
            threads = threads_of(scene.quit())
            self.assertIn(" lock_accounts+", threads["locker"])
            self.assertIn(" spin+", threads["busy"])
            scene.end_input()
            self.assertEqual(scene.wait(), 0, scene.said())
            self.assertIn("ERROR SUMMARY: 0 errors", scene.said())
            self.assertEqual(scene.said().count(END_OF_DUMP), 1)


if __name__ == "__main__":
    if not PROGRAM.exists():
        not_run(f"{PROGRAM} was not built")
    reason = why_not()
    if reason:
        not_run(reason)
    unittest.main(verbosity=2)
