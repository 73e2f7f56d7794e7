# SPDX-License-Identifier: MIT
"""The access log of rouse-serve: its lines, as curl's requests make them, and a bad disk."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
import unittest
from datetime import UTC, datetime
from pathlib import Path

from serve_common import Server, eventually, get, main, tree

LINE = re.compile(
    r'(?P<peer>\S+) - - \[(?P<time>[^]]+)\] "(?P<request>[^"]*)" (?P<status>\d{3})'
    r' (?P<bytes>\d+|-) "(?P<referer>(?:[^"\\]|\\.)*)" "(?P<agent>(?:[^"\\]|\\.)*)"'
)
QUEUED_MOST = 4 << 20  # bytes of lines that may wait; serve/access_log.c


class Log(unittest.TestCase):
    def setUp(self) -> None:
        self.root = self.enterContext(tree())
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.path = self.folder / "access.log"

    def lines(self, path: Path | None = None) -> list[str]:
        return (path or self.path).read_text(encoding="ascii").splitlines()

    def curl(self, server: Server, target: str, *options: str) -> None:
        url = f"http://127.0.0.1:{server.port}{target}"
        words = ["curl", "-sS", "--path-as-is", "-o", "/dev/null", "--max-time", "20", *options]
        subprocess.run([*words, url], timeout=30, check=True)

    def test_each_answer_has_a_line_in_the_combined_format(self) -> None:
        asked: tuple[tuple[str, list[str], str, str, str | None], ...] = (
            ("/small.txt", [], "GET /small.txt HTTP/1.1", "200", "700"),
            ("/small.txt", ["-I"], "HEAD /small.txt HTTP/1.1", "200", "-"),
            ("/small.txt", ["-r", "0-9"], "GET /small.txt HTTP/1.1", "206", "10"),
            ("/%6fne.txt?q=1", [], "GET /%6fne.txt?q=1 HTTP/1.1", "200", None),
            ("/nothing", ["-0"], "GET /nothing HTTP/1.0", "404", None),
            ("/sub", [], "GET /sub HTTP/1.1", "301", None),
            ("/small.txt", ["-X", "POST"], "POST /small.txt HTTP/1.1", "405", None),
        )
        with Server(self.root, "--access-log", self.path) as server:
            for target, options, *_ in asked:
                self.curl(server, target, "-A", "me/1 (x)", "-e", "http://a/?b", *options)
        found = [LINE.fullmatch(line) for line in self.lines()]
        self.assertEqual(len(found), len(asked))
        for match, (_, _, request, status, count) in zip(found, asked, strict=True):
            assert match
            self.assertEqual((match["peer"], match["request"]), ("127.0.0.1", request))
            self.assertEqual(match["status"], status)
            self.assertEqual((match["agent"], match["referer"]), ("me/1 (x)", "http://a/?b"))
            if count:
                self.assertEqual(match["bytes"], count)
            when = datetime.strptime(match["time"], "%d/%b/%Y:%H:%M:%S %z")
            self.assertLess(abs((datetime.now(UTC) - when).total_seconds()), 60)

    def test_no_client_can_forge_a_line(self) -> None:
        forged = '"\n127.0.0.1 - - [x] "GET / HTTP/1.1" 200 1 "-" "-'
        with Server(self.root, "--access-log", self.path) as server:
            server.raw(f"GET /{forged} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            server.raw(get("/one.txt", b'User-Agent: a"b\\c\xff\x01\r\n'))
            server.raw(get("/one.txt", b"User-Agent: " + b"y" * 3000 + b"\r\n"))
            server.raw(b"\x16\x03\x01 not http\r\n\r\n")
        lines = self.lines()
        self.assertEqual(len(lines), 4)
        for line in lines:
            self.assertTrue(line.isprintable(), line)
        self.assertIn(r'"GET /\""', lines[0])
        self.assertIn('"GET /one.txt HTTP/1.1" 400', lines[1])
        match = LINE.fullmatch(lines[2])
        assert match
        self.assertEqual(match["agent"], "y" * 1024)
        self.assertIn(r'"\x16\x03\x01 not http" 400', lines[3])

    def test_pipelined_requests_have_a_line_each(self) -> None:
        with Server("--respond", "hello", "--access-log", self.path) as server:
            server.raw(b"".join(get(f"/{i}") for i in range(500)))
        requests = [match["request"] for line in self.lines() if (match := LINE.fullmatch(line))]
        self.assertEqual(requests, [f"GET /{i} HTTP/1.1" for i in range(500)])

    def test_a_log_that_was_renamed_is_opened_again(self) -> None:
        old = self.folder / "access.log.1"
        with Server(self.root, "--access-log", self.path) as server:
            server.ask("/one.txt")
            self.path.rename(old)
            server.process.send_signal(signal.SIGUSR1)
            self.assertTrue(eventually(self.path.exists))
            server.ask("/small.txt")
        self.assertIn("/one.txt", "".join(self.lines(old)))
        self.assertEqual(len(self.lines(old)), 1)
        self.assertIn("/small.txt", "".join(self.lines()))
        self.assertEqual(len(self.lines()), 1)

    def lost(self, server: Server) -> int:
        found = re.search(
            r"metrics for Prometheus at http://127\.0\.0\.1:(\d+)", self.second(server)
        )
        assert found
        done = subprocess.run(
            ["curl", "-sS", "--max-time", "20", f"http://127.0.0.1:{found[1]}/metrics"],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        value = re.search(r"^rouse_serve_log_lost_total (\d+)$", done.stdout, re.M)
        assert value
        return int(value[1])

    def second(self, server: Server) -> str:
        """The line about metrics, which follows the first."""
        if not hasattr(self, "told"):
            assert server.process.stdout
            self.told = server.process.stdout.readline().decode()
        return self.told

    def test_a_disk_that_is_full_stops_no_answer_and_the_lost_lines_are_counted(self) -> None:
        words = (self.root, "--access-log", "/dev/full", "--metrics", "0")
        with Server(*words) as server:
            for _ in range(20):
                self.assertEqual(server.ask("/one.txt").status, 200)
            self.assertTrue(eventually(lambda: self.lost(server) == 20))
            said = server.messages()
        self.assertRegex(
            said, r"^rouse-serve: /dev/full: cannot write: No space left on device; \d+"
        )
        self.assertEqual(said.count("cannot write"), 1)

    def test_a_disk_that_does_not_answer_delays_no_answer(self) -> None:
        os.mkfifo(self.path)
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        request = get("/", b"User-Agent: " + b"z" * 1000 + b"\r\n")
        count = QUEUED_MOST // len(request) + 500
        with Server("--respond", "x", "--access-log", self.path, "--metrics", "0") as server:
            for _ in range(count // 100 + 1):
                self.assertEqual(len(server.raw(request * 100)), 100)
            lost = self.lost(server)
            os.set_blocking(reader, True)
            seen = self.folder / "seen"
            with seen.open("wb") as out:
                drain = subprocess.Popen(["cat"], stdin=reader, stdout=out)
            os.close(reader)
        drain.wait(30)
        self.assertGreater(lost, 0)
        self.assertEqual(len(self.lines(seen)) + lost, (count // 100 + 1) * 100)

    def test_a_disk_that_never_answers_does_not_keep_the_server_from_ending(self) -> None:
        os.mkfifo(self.path)
        reader = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        request = get("/", b"User-Agent: " + b"z" * 1000 + b"\r\n")
        words = ("--respond", "x", "--access-log", self.path, "--drain-timeout", "1")
        with Server(*words) as server:
            server.raw(request * 200)
            server.stop(True)
            self.assertIn("the last lines are not written", server.messages())

    def test_a_log_that_cannot_be_opened_is_named_before_the_server_listens(self) -> None:
        done = subprocess.run(
            [*Server(self.root, "--access-log", "/nowhere/log").command],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
        self.assertEqual(done.returncode, 1)
        expected = (
            "rouse-serve: cannot write the access log '/nowhere/log': No such file or directory\n"
        )
        self.assertEqual(done.stderr, expected)


if __name__ == "__main__":
    main()
