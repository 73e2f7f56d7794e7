# SPDX-License-Identifier: MIT
"""rouse-serve on a socket with a path, as curl sees it, and the files that it finds there."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from serve_common import PROGRAM, main, tree


class UnixSocket(unittest.TestCase):
    def setUp(self) -> None:
        self.root = self.enterContext(tree())
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.folder / "http"

    def command(self, *options: str | Path) -> list[str | Path]:
        return [PROGRAM, "--address", f"unix:{self.path}", *options, self.root]

    @contextlib.contextmanager
    def served(self, *options: str | Path) -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            self.command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout
                self.assertIn(f" at unix:{self.path} (", server.stdout.readline())
                yield server
            finally:
                server.terminate()
                server.wait(20)

    def refused(self) -> str:
        done = subprocess.run(
            self.command(), capture_output=True, text=True, timeout=20, check=False
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        return done.stderr

    def ask(self, target: str) -> str:
        words = [
            "curl",
            "-sS",
            "--max-time",
            "20",
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{size_download}",
        ]
        words += ["--unix-socket", str(self.path), f"http://localhost{target}"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        return done.stdout

    def test_files_are_served_and_the_socket_is_removed_at_the_end(self) -> None:
        log = self.folder / "log"
        with self.served("--access-log", log):
            self.assertEqual(self.ask("/small.txt"), "200 700")
            self.assertEqual(self.ask("/nothing")[:3], "404")
        self.assertFalse(self.path.exists())
        lines = log.read_text(encoding="ascii").splitlines()
        self.assertEqual([line.split()[0] for line in lines], ["unix:", "unix:"])

    def test_the_socket_of_a_server_that_was_killed_is_replaced(self) -> None:
        with self.served() as server:
            server.send_signal(signal.SIGKILL)
            server.wait(20)
        self.assertTrue(self.path.is_socket())
        with self.served():
            self.assertEqual(self.ask("/small.txt")[:3], "200")

    def test_the_socket_of_another_server_is_left_alone(self) -> None:
        with self.served():
            expected = f"rouse-serve: cannot listen on 'unix:{self.path}': Address already in use\n"
            self.assertEqual(self.refused(), expected)
            self.assertEqual(self.ask("/small.txt")[:3], "200")

    def test_a_file_that_is_no_socket_is_left_alone(self) -> None:
        self.path.write_text("mine", encoding="ascii")
        self.assertIn("Address already in use", self.refused())
        self.assertEqual(self.path.read_text(encoding="ascii"), "mine")

    def test_a_socket_that_another_server_has_put_there_is_not_removed(self) -> None:
        with self.served() as first:
            self.path.unlink()
            with self.served():
                first.terminate()
                first.wait(20)
                self.assertEqual(self.ask("/small.txt")[:3], "200")

    def test_a_path_that_is_too_long_or_empty_is_named(self) -> None:
        self.path = self.folder / ("x" * 120)
        self.assertIn("File name too long", self.refused())
        done = subprocess.run(
            [PROGRAM, "--address", "unix:", self.root], capture_output=True, text=True, timeout=20
        )
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr, "rouse-serve: cannot listen on 'unix:': Invalid argument\n")


if __name__ == "__main__":
    main("curl")
