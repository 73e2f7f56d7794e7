#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`make run` refuses invalid settings with one line, before its experiment begins."""

from __future__ import annotations

import socket
import subprocess
import sys
import unittest

from installed import SOURCE


class Refusals(unittest.TestCase):
    def check(self, port: str, folder: str, word: str) -> None:
        with self.subTest(port=port, folder=folder):
            done = subprocess.run(
                [sys.executable, str(SOURCE / "tools/demo.py"), "--port", port, folder],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertIn(word, done.stderr)

    def test_an_invalid_port_is_refused(self) -> None:
        for port in ("99999", "65536", "http", "", "-1", "\u00b2"):
            self.check(port, "/", f"not '{port}'")

    def test_a_port_in_use_is_refused(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = str(taken.getsockname()[1])
            self.check(port, "/", f"port {port}")

    def test_an_invalid_folder_is_refused(self) -> None:
        for folder in ("/nonexistent", __file__, ""):
            self.check("0", folder, f"'{folder}'")


if __name__ == "__main__":
    unittest.main(verbosity=2)
