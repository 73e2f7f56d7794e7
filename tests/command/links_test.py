#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Links from places in a report to their source: in a terminal, never in a pipe; hostile names."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import COMMAND, SOURCE, here

from known_tables import orders, site

from rouse.render.links import Links, wrong_with
from rouse.tables import parquet

OSC_8 = "\x1b]8;"
PLACE = {"file": "/src/orders/queue.c", "line": 42}
LIMIT_S = 60


class Names(unittest.TestCase):
    def found(
        self, text: str, *rows: dict[str, object], template: str = "e://o{file}?{line}"
    ) -> str:
        """The text with its links, each as [place](link)."""
        made, at = "", 0
        for start, end, uri in Links(rows, template).of(text):
            made += f"{text[at:start]}[{text[start:end]}]({uri})"
            at = end
        return made + text[at:]

    def test_each_place_leads_to_its_line(self) -> None:
        said = self.found("take queue.c:42 from put queue.c:421, xqueue.c:42", PLACE)
        linked = "[queue.c:42](e://o/src/orders/queue.c?42)"
        self.assertEqual(said, f"take {linked} from put queue.c:421, xqueue.c:42")

    def test_a_name_that_stands_for_two_files_has_no_link(self) -> None:
        other = {"file": "/src/other/queue.c", "line": 42}
        self.assertEqual(self.found("queue.c:42", PLACE, other), "queue.c:42")
        self.assertIn("](", self.found("queue.c:42", PLACE, PLACE))

    def test_what_is_no_absolute_path_has_no_link(self) -> None:
        for path in ("", None, "nptl/queue.c", "/" + "x" * 5000 + "/queue.c"):
            self.assertEqual(self.found("queue.c:42", {"file": path, "line": 42}), "queue.c:42")

    def test_hostile_names_cannot_leave_their_link(self) -> None:
        path = "/a b/\x1b]8;;evil\x1b\\<script>\"'\n%41/queue.c"
        said = self.found("queue.c:42", {"file": path, "line": 42})
        self.assertRegex(said, r"^\[queue\.c:42\]\(e://o/a%20b/%1B[\w%/.:?-]*\)$")

    def test_templates_that_run_code_or_lack_the_file_are_refused(self) -> None:
        for good in ("vscode://file{file}:{line}", "idea://open?file={file}&line={line}"):
            self.assertEqual(wrong_with(good), "")
        for bad in ("javascript:alert({file})", "JavaScript:{file}", "data:text/html,{file}"):
            self.assertNotEqual(wrong_with(bad), "")
        for bad in ("{file}", "e://x", "e://{file} y", 'e://{file}"', "e://{file}\x1b", ""):
            self.assertNotEqual(wrong_with(bad), "", bad)


class Command(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rouse-links-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        sites = [
            *site(0x1000, "take queue.c:42", **PLACE),
            *site(0x2000, "put put.c:7", file="/src/orders/put.c", line=7),
        ]
        wake = {"kind": "condition", "wait_site": "0x1000", "wake_site": "0x2000", "useful": 9}
        wake |= {"wait_ns": 10**9, "wait_most_ns": 10**9}
        parquet.write(orders(sites=sites, wakes=[wake]), self.folder / "tables")

    def shown(self, *words: str) -> str:
        """The output on a terminal."""
        main, side = pty.openpty()
        self.addCleanup(os.close, main)
        done = subprocess.run(
            [*COMMAND, "report", str(self.folder / "tables"), *words],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm-256color"},
            stdout=side,
            stderr=subprocess.PIPE,
            check=False,
            timeout=LIMIT_S,
        )
        os.close(side)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        text = b""
        try:
            while part := os.read(main, 1 << 16):
                text += part
        except OSError:  # its other side is closed
            pass
        return text.decode()

    def test_a_terminal_has_links_and_a_pipe_and_a_file_have_none(self) -> None:
        self.assertIn(";file:///src/orders/queue.c", self.shown("--all"))
        self.assertIn(";file:///src/orders/queue.c", self.shown("--all", "--full"))
        said = self.shown("--all", "--editor", "vscode://file{file}:{line}")
        self.assertIn(";vscode://file/src/orders/queue.c:42", said)
        piped = here("report", "--all", "--editor", "e://{file}", str(self.folder / "tables"))
        self.assertIn("take queue.c:42", piped.stdout)
        self.assertNotIn(OSC_8, piped.stdout)
        file = self.folder / "report.txt"
        here("report", "--all", "-o", str(file), str(self.folder / "tables"))
        self.assertNotIn(OSC_8, file.read_text(encoding="utf-8"))

    def test_a_wrong_template_is_refused_in_a_line(self) -> None:
        said = here("report", "--editor", "javascript:{file}", str(self.folder / "tables"))
        self.assertEqual(said.returncode, 2)
        self.assertIn("it begins with no scheme", said.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
