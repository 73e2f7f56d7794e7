#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Locks that are owned by kernel threads, and user threads: reported, or right with own storage."""

from __future__ import annotations

import errno
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from installed import HAS_OWN_TLS, SOURCE, Installed

LOCKS = {
    "recursive": "recursive mutex",
    "timed": "recursive mutex",
    "checked": "error-checking mutex",
    "file": "FILE's lock",
}

program: Path
installed: Installed


def setUpModule() -> None:
    global program, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    installed = Installed(Path(holder.name) / "root")
    source = SOURCE / "tests/e2e/owner_locks.cpp"
    program = installed.compile("g++", source, Path(holder.name) / "owner_locks")


class OwnerLocks(unittest.TestCase):
    def outcome(self, lock: str, **settings: str) -> tuple[int, str]:
        """Return what the second thread got, and the lines on standard error."""
        done = subprocess.run(
            [program, lock],
            env={**os.environ, **installed.environment, "ROUSE_WORKERS": "1", **settings},
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return int(done.stdout), done.stderr

    def report_of(self, text: str, what: str, lock: str) -> None:
        pattern = (
            rf"rouse: owner_locks\+0x[0-9a-f]+: {what} the {lock} at 0x[0-9a-f]+\. "
            r"To it, all threads of a worker are one owner\. Use own_tls or ROUSE_TLS=own, or "
            r"rouse_mutex: see rouse\(7\)\. Only the first such case is reported \(thread \d+\)\n"
        )
        self.assertRegex(text, rf"\A{pattern}\Z")

    def test_two_threads_of_a_worker_inside_an_owned_lock_are_reported_once(self) -> None:
        for lock in ("recursive", "timed", "file"):
            with self.subTest(lock=lock):
                got, text = self.outcome(lock)
                self.assertEqual(got, 0)
                self.report_of(text, "two threads hold", LOCKS[lock])

    def test_a_wrong_edeadlk_is_reported(self) -> None:
        got, text = self.outcome("checked")
        self.assertEqual(got, errno.EDEADLK)
        self.report_of(text, "wrong EDEADLK from", LOCKS["checked"])

    def test_a_wrong_eperm_after_a_move_is_reported(self) -> None:
        got, text = self.outcome("moved")
        self.assertEqual(got, errno.EPERM)
        self.report_of(text, "wrong EPERM from", LOCKS["checked"])

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    def test_with_own_storage_owned_locks_exclude(self) -> None:
        for lock in LOCKS:
            with self.subTest(lock=lock):
                got, text = self.outcome(lock, ROUSE_TLS="own")
                self.assertIn(got, (errno.EBUSY, errno.ETIMEDOUT))
                self.assertEqual(text, "")
        self.assertEqual(self.outcome("moved", ROUSE_TLS="own"), (0, ""))

    def test_right_uses_are_not_reported(self) -> None:
        for workers in ("1", "2"):
            for storage in ("shared", "own") if HAS_OWN_TLS else ("shared",):
                with self.subTest(workers=workers, storage=storage):
                    settings = {"ROUSE_WORKERS": workers, "ROUSE_TLS": storage}
                    self.assertEqual(self.outcome("nested", **settings), (0, ""))
        for lock in ("monitor recursive", "monitor checked", "forked"):
            with self.subTest(lock=lock):
                self.assertEqual(self.outcome(lock, ROUSE_WORKERS="2"), (0, ""))
        for lock in LOCKS:
            with self.subTest(lock=lock):
                got, text = self.outcome(lock, ROUSE_THREADS="kernel")
                self.assertIn(got, (errno.EBUSY, errno.ETIMEDOUT))
                self.assertEqual(text, "")

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    def test_libc_gives_the_stack_of_a_thread_with_own_storage(self) -> None:
        self.assertEqual(self.outcome("stack"), (1, ""))

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    def test_priority_inheritance_and_own_storage_refuse_each_other(self) -> None:
        for lock, refused in (
            ("priority first", r"rouse_thread_create returns -ENOTSUP"),
            ("priority second", r"pthread_mutexattr_setprotocol returns ENOTSUP"),
        ):
            with self.subTest(lock=lock):
                got, text = self.outcome(lock)
                self.assertEqual(abs(got), errno.ENOTSUP)
                self.assertRegex(text, rf"\Arouse: own_tls and PTHREAD_PRIO_\w+ .*{refused}.*\n\Z")


if __name__ == "__main__":
    unittest.main(verbosity=2)
