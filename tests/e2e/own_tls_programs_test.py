#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Threads with thread-local storage of their own, in programs that use librouse.so."""

from __future__ import annotations

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from installed import COMPILERS, HAS_OWN_TLS, SOURCE, Installed, skip_without

LARGE = ("-DLARGE=1048576",)  # bytes of thread-local variables

folder: Path
installed: Installed


def setUpModule() -> None:
    global folder, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")


def program(name: str, compiler: str = "gcc", more: tuple[str, ...] = ()) -> Path:
    return installed.compile(compiler, SOURCE / "tests/e2e/own_tls.c", folder / name, more=more)


class OwnTls(unittest.TestCase):
    def outcome(self, command: Path, what: str, **settings: str) -> str:
        done = subprocess.run(
            [command, what],
            env={**installed.environment, **settings},
            capture_output=True,
            text=True,
            timeout=120,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        return done.stdout.splitlines()[-1]

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    @unittest.skipUnless(os.geteuid() == 0, "not run: only root can change its user")
    def test_setuid_reaches_every_kernel_thread(self) -> None:
        command = program("rights")
        for workers in ("1", "2", "4"):
            for _ in range(3):
                with self.subTest(workers=workers):
                    said = self.outcome(command, "rights", ROUSE_WORKERS=workers)
                    self.assertEqual(said, "right")

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    def test_setuid_while_workers_start(self) -> None:
        self.assertEqual(self.outcome(program("workers"), "workers"), "right")

    @unittest.skipUnless(HAS_OWN_TLS, "not run: the processor lacks fsgsbase")
    def test_thread_local_variables_may_be_large(self) -> None:
        command = program("large", more=LARGE)
        self.assertEqual(self.outcome(command, "large"), "right")
        self.assertEqual(self.outcome(command, "large", ROUSE_TLS="own"), "right")

    def test_a_program_with_a_sanitizer_runs_and_is_refused(self) -> None:
        for compiler in COMPILERS:
            for sanitizer in ("address", "thread"):
                with self.subTest(compiler=compiler, sanitizer=sanitizer):
                    flags = (f"-fsanitize={sanitizer}",)
                    command = program(f"{compiler}-{sanitizer}", compiler, flags)
                    self.assertEqual(self.outcome(command, "large"), "not supported")


if __name__ == "__main__":
    skip_without("gcc", "clang")
    unittest.main(verbosity=2)
