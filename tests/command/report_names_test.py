#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Names with special characters in every format, and output on terminals of every kind."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import SOURCE, here, rouse

from known_tables import LOCKS, PROCESSES, THREADS, WAKES, Row, orders, site
from rich.cells import cell_len

from rouse.render import pprof
from rouse.tables import parquet

# Characters that control a terminal, end a line, field or string, form markup, or reverse text.
NASTY = "x\x1b[2J\r\n\t\x00\x9b1m;\"'\\{}<b>&[red]\u202e\u2028|"
START_NS = 1_760_000_000_000_000_000
EVENTS: list[Row] = [
    {"type": "new", "thread_id": 1, "at_ns": START_NS, "number": 0},
    {"type": "run", "thread_id": 1, "at_ns": START_NS + 10, "number": 1},
    {"type": "lock", "kind": "mutex", "site": "0x1010", "thread_id": 1, "number": 2}
    | {"at_ns": START_NS + 15, "object": 0xABC0},
    {"type": "got", "kind": "mutex", "site": "0x1020", "thread_id": 1, "number": 3}
    | {"at_ns": START_NS + 18, "verdict": "useful"},
    {"type": "wait", "kind": "mutex", "site": "0x1010", "thread_id": 1, "number": 4}
    | {"at_ns": START_NS + 20, "object": 0xABC0},
    {"type": "run", "thread_id": 2, "at_ns": START_NS + 20, "number": 5},
    {"type": "wake", "kind": "mutex", "site": "0x1020", "thread_id": 1, "number": 6}
    | {"at_ns": START_NS + 25, "other_id": 2, "verdict": "useful"},
    {"type": "end", "thread_id": 2, "at_ns": START_NS + 30, "number": 7, "name": NASTY},
    {"type": "run", "thread_id": 1, "at_ns": START_NS + 30, "number": 8},
]


class Names(unittest.TestCase):
    """All names have such characters: threads, locks, functions, files and command lines."""

    folder: Path

    @classmethod
    def setUpClass(cls) -> None:
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.folder = Path(place.name) / "tables"
        made = orders(
            processes=[{**PROCESSES[0], "program": f"/bin/{NASTY}", "command": NASTY}],
            threads=[{**thread, "name": NASTY} for thread in THREADS],
            wakes=[{**WAKES[0], "object_name": NASTY}, *WAKES[1:]],
            locks=[{**lock, "lock_name": NASTY} for lock in LOCKS],
            sites=[
                *site(0x1010, NASTY, NASTY, file=NASTY, line=17),
                *site(0x1020, NASTY, function=NASTY, module=f"/lib/{NASTY}"),
            ],
            events=EVENTS,
        )
        parquet.write(made, cls.folder)

    def printed(self, *words: str | Path, **environment: str) -> str:
        done = here("report", self.folder, *words, **environment)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout

    def check_text(self, text: str) -> None:
        """Check that the output has no control characters, and shows the name with escapes."""
        wild = sorted({c for c in text if not c.isprintable() and c != "\n"})
        self.assertEqual(wild, [])
        self.assertIn("x\\x1b[2J\\x0d\\x0a\\x09\\x00\\x9b1m", text.replace("\\\\", "\\"))

    def test_on_the_terminal(self) -> None:
        self.check_text(self.printed("--all"))
        for columns in ("40", "80"):
            self.assertTrue(
                all(c.isprintable() or c == "\n" for c in self.printed("--all", COLUMNS=columns))
            )

    def test_in_kernel_style_text(self) -> None:
        self.check_text(self.printed("--format", "kernel-style"))

    def test_in_folded_stacks_each_line_is_a_stack(self) -> None:
        text = self.printed("--format", "folded", "-o", "-", "--all")
        self.check_text(text)
        for line in text.splitlines():
            self.assertRegex(line, r"\A\S.*;\[[^;]*\] \d+\Z")

    def test_for_prometheus_each_line_is_a_sample(self) -> None:
        text = self.printed("--format", "prometheus", "-o", "-")
        self.check_text(text)
        value = r'"(?:[^"\\\n]|\\[\\"n])*"'
        for line in text.splitlines():
            self.assertRegex(line, rf"\A(#.*|\w+(\{{(\w+={value},?)+\}})? [-+.e\d]+)\Z")

    def test_in_pprofs_messages(self) -> None:
        file = self.folder.with_name("profile")
        self.printed("--format", "pprof", "-o", file)
        profile = pprof.profile_class()()
        profile.ParseFromString(gzip.decompress(file.read_bytes()))
        for text in profile.string_table:
            self.assertTrue(text.isprintable(), ascii(text))
        self.check_text("\n".join(profile.string_table))

    def test_perfetto_names_are_json_strings(self) -> None:
        text = self.printed("--format", "perfetto", "-o", "-")
        self.assertTrue(text.replace("\n", "").isprintable() and text.isascii())
        trace = json.loads(text)["traceEvents"]
        words: list[str] = []
        for event in trace:
            words += [event.get("name", ""), *map(str, event.get("args", {}).values())]
        self.check_text("\n".join(words))
        named = {event["args"]["name"] for event in trace if event["name"] == "thread_name"}
        for thread in (1, 2):  # the second thread has ended, so its name comes from its last event
            self.assertTrue(
                any(n.startswith("x\\x1b") and n.endswith(f"({thread})") for n in named)
            )

    def test_json_has_the_names_unchanged(self) -> None:
        text = self.printed("--json", "--all")
        self.assertTrue(text.isascii() and text.replace("\n", "").isprintable())
        threads = json.loads(text)["sections"]["threads"]
        self.assertEqual({thread["name"] for thread in threads}, {NASTY})


class Screen(unittest.TestCase):
    """`rouse report` and `rouse doctor` on terminals."""

    def shown(self, columns: int, *words: str | Path, **environment: str) -> str:
        """The output on a terminal of that width."""
        ours, theirs = pty.openpty()
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "COLUMNS")}
        own = {"PYTHONPATH": str(SOURCE), "TERM": "xterm-256color"}
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(columns), *map(str, words)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, **own, **environment},
        )
        os.close(theirs)
        seen = b""
        while True:
            ready, _, _ = select.select([ours], [], [], 60)
            self.assertTrue(ready, seen)
            try:
                more = os.read(ours, 65536)
            except OSError:
                break
            if not more:
                break
            seen += more
        os.close(ours)
        self.assertIn(child.wait(timeout=60), (0, 1))  # 1: `rouse doctor` found a problem
        return seen.decode().replace("\r\n", "\n")

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.tables = Path(place.name) / "tables"
        parquet.write(orders(), self.tables)

    def test_forty_columns_are_not_exceeded(self) -> None:
        for words in (("report", self.tables, "--all"), ("doctor",)):
            text = re.sub(r"\x1b\[[0-9;]*m", "", self.shown(40, *words))
            self.assertTrue(text.isprintable() or "\n" in text)
            wide = [line for line in text.splitlines() if cell_len(line) > 40]
            self.assertEqual(wide, [], words)

    def test_colours_follow_the_terminal_and_the_environment(self) -> None:
        for words in (("report", self.tables), ("doctor",)):
            self.assertRegex(self.shown(80, *words), r"\x1b\[[0-9;]*m", words)
            self.assertNotRegex(self.shown(80, *words, NO_COLOR="1"), r"\x1b\[[0-9;]*3[0-9]", words)
            self.assertNotIn("\x1b", self.shown(80, *words, TERM="dumb"), words)

    def test_a_pipe_gets_no_colours(self) -> None:
        for words in (("report", self.tables), ("doctor",)):
            self.assertNotIn("\x1b", rouse(*words, TERM="xterm-256color").stdout)


PROGRAM = """
import fcntl, os, struct, sys, termios
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
os.execv(sys.executable, [sys.executable, "-m", "rouse", *sys.argv[2:]])
"""


class Output(unittest.TestCase):
    """Standard output that cannot be written to."""

    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.tables = Path(place.name)
        parquet.write(orders(), self.tables)

    def test_it_is_reported_in_one_line_with_status_3(self) -> None:
        report = f"report {self.tables}"
        helps = ("--help", "--version", "compare --help")
        for words in (
            report,
            f"{report} --json",
            f"{report} --format folded -o -",
            "doctor",
            *helps,
        ):
            for to, why in (
                ("&-", "Bad file descriptor"),
                ("/dev/full", "No space left on device"),
            ):
                done = subprocess.run(
                    ["bash", "-c", f"{sys.executable} -m rouse {words} >{to}"],
                    stderr=subprocess.PIPE,
                    text=True,
                    env={**os.environ, "PYTHONPATH": str(SOURCE)},
                )
                self.assertEqual(done.stderr, f"rouse: standard output: {why}\n", words)
                self.assertEqual(done.returncode, 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
