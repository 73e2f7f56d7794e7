#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The line on a terminal about a report that takes long."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import threading
import unittest
from unittest import mock

from common import COMMAND, FIXTURES, SOURCE

from rouse.render import progress

LIMIT_S = 60


class Terminal(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.is_written = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.is_written.set()
        return count


class Progress(unittest.TestCase):
    def test_long_work_is_shown_on_a_terminal_until_it_ends(self) -> None:
        terminal = Terminal()
        with (
            mock.patch("sys.stderr", terminal),
            mock.patch.object(progress, "EACH_S", 0.01),
            progress.line("reading 7"),
        ):
            self.assertTrue(terminal.is_written.wait(LIMIT_S))
        self.assertIn("rouse: reading 7, ", terminal.getvalue())
        self.assertRegex(terminal.getvalue(), "\r +\r$")
        self.assertNotIn("\x1b", terminal.getvalue())

    def test_short_work_and_other_outputs_show_nothing(self) -> None:
        terminal, file = Terminal(), io.StringIO()
        with mock.patch("sys.stderr", terminal), progress.line("reading 7"):
            pass
        with mock.patch("sys.stderr", file), progress.line("reading 7"):
            pass
        self.assertEqual((terminal.getvalue(), file.getvalue()), ("", ""))

    def test_a_report_on_a_terminal_ends_as_elsewhere(self) -> None:
        main, side = pty.openpty()
        self.addCleanup(os.close, main)
        done = subprocess.run(
            [*COMMAND, "report", str(FIXTURES / "missing")],
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stderr=side,
            check=False,
            timeout=LIMIT_S,
        )
        os.close(side)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"is not there", os.read(main, 4096))


if __name__ == "__main__":
    unittest.main(verbosity=2)
