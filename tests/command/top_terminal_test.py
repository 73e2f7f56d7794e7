#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse top` on a terminal: its keys, its display in 40 columns, and its end."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

from common import SOURCE

from synthetic import KINDS, Builder, of_process
from textual.pilot import Pilot
from top_test import Program

from rouse.store import layout
from rouse.top import live, rowtext, watched

THREADS: list[dict[str, Any]] = [
    {"id": 1, "doing": layout.DOES_RUN, "name": b"one"},
    {"id": 2, "doing": layout.DOES_WAIT, "kind": KINDS["mutex"], "name": b"two", "wait_site": 64},
    {"id": 3, "doing": layout.DOES_WAIT, "kind": KINDS["accept"], "name": b"idle one"},
    {"id": 4, "doing": layout.DOES_RUN, "name": b"[red]\x1b[2J"},
]


class Keys(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.program = Program()
        self.addCleanup(self.program.end)
        many: list[dict[str, Any]] = [{"id": n, "doing": layout.DOES_RUN} for n in range(100, 160)]
        self.builder: Builder = of_process(self.program.pid).chunk(layout.THREADS, THREADS + many)
        self.builder.write(Path(folder.name))
        before = os.environ.get("ROUSE_OBS_DIR")
        os.environ["ROUSE_OBS_DIR"] = folder.name
        self.addCleanup(lambda: os.environ.update(ROUSE_OBS_DIR=before or ""))

    def run_app(
        self, act: Callable[[live.Top, Pilot[int]], Awaitable[None]], width: int = 100
    ) -> live.Top:
        """Run it without a terminal. It samples only when act() asks it to."""

        async def whole() -> live.Top:
            processes = watched.Watched([str(self.program.pid)])
            app = live.Top(processes, rowtext.Wanted(), 3600)
            async with app.run_test(size=(width, 24)) as pilot:
                app.look()
                await pilot.pause()
                await act(app, pilot)
            return app

        return asyncio.run(whole())

    @staticmethod
    def screen(app: live.Top) -> list[str]:
        """The text on the screen."""
        found = []
        for widget in (app.totals, app.details if app.drill else app.lines, app.status):
            rows = range(widget.size.height)
            found += [widget.render_line(y).text for y in rows]
        return found

    def test_threads_are_shown_and_sorted_filtered_and_split(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            text = "\n".join(self.screen(app))
            self.assertIn("PID USERNAME USR SYS", text)
            self.assertRegex(text, r"100 .*/1:one")
            self.assertNotIn("idle one", text)
            self.assertIn("Total: 1 process, 64 threads", text)
            await pilot.press("a", "s")
            lines = self.screen(app)
            self.assertRegex(lines[2], r"/2:two")  # sorted by LCK
            await pilot.press("l")
            self.assertIn("MTX", self.screen(app)[1])
            await pilot.press("l", "slash", *"idle")
            self.assertEqual([line for line in self.screen(app) if "/2:two" in line], [])
            self.assertEqual(len([line for line in self.screen(app) if "idle one" in line]), 1)
            await pilot.press("enter")
            self.assertFalse(app.input.has_focus)
            await pilot.press("q")

        self.assertEqual(self.run_app(act).return_value, 0)

    def test_markup_and_control_characters_are_text(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            self.assertIn("/4:[red]?[2J", "\n".join(self.screen(app)))

        self.run_app(act)

    def test_forty_columns(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            lines = self.screen(app)
            self.assertEqual({len(line) for line in lines}, {40})
            self.assertRegex(lines[1], "USR .*LCK SLP LAT")
            self.assertTrue(any("/1:one" in line for line in lines))

        self.run_app(act, width=40)

    def test_the_details_of_a_thread_are_shown(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            await pilot.press("s", "enter")
            text = "\n".join(self.screen(app))
            self.assertIn("2:two", text)
            self.assertRegex(text, "now mutex for")
            self.assertRegex(text, r"100.0%  mutex at 0x40")
            await pilot.press("escape")
            self.assertIn("USERNAME", self.screen(app)[1])

        self.run_app(act)

    def test_only_visible_rows_are_rendered(self) -> None:
        made: list[int] = []

        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            line = rowtext.Picture.line

            def counted(self: Any, row: int, *rest: Any) -> str:
                made.append(row)
                return line(self, row, *rest)

            with mock.patch.object(rowtext.Picture, "line", counted):
                app.look()
                await pilot.pause()
            await pilot.press("end")
            self.assertEqual(app.lines.cursor, len(app.shown) - 1)

        self.run_app(act)
        self.assertLessEqual(len(set(made)), 24)

    def test_no_sample_is_taken_while_paused(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            picture = app.picture
            await pilot.press("p")
            app.look()
            self.assertIs(app.picture, picture)
            self.assertIn("[paused]", self.screen(app)[-1])
            await pilot.press("p")
            app.look()
            self.assertIsNot(app.picture, picture)

        self.run_app(act)

    def test_the_end_of_the_program_is_reported_and_sets_the_exit_status(self) -> None:
        async def act(app: live.Top, pilot: Pilot[int]) -> None:
            self.program.kill()
            self.program.wait()
            app.look()
            await pilot.pause()
            self.assertIn("was killed", self.screen(app)[-1])
            await pilot.press("q")

        self.assertEqual(self.run_app(act).return_value, 4)


class Terminal(unittest.TestCase):
    """`rouse top` on a real terminal that is small and has no colours."""

    def test_it_starts_and_ends(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            program = Program()
            self.addCleanup(program.end)
            of_process(program.pid).chunk(layout.THREADS, THREADS).write(Path(folder))
            ours, theirs = pty.openpty()
            environment = {
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "ROUSE_OBS_DIR": folder,
                "TERM": "vt100",
                "NO_COLOR": "1",
                "COLUMNS": "40",
                "LINES": "12",
            }
            command = [sys.executable, "-m", "rouse", "top", "--interval", "0.1"]
            child = subprocess.Popen(
                command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
            )
            os.close(theirs)
            seen = self.read_until(ours, rb"/1:one")
            self.assertIsNone(re.search(rb"\x1b\[[0-9;]*3[0-9]m", seen), "colours")
            os.write(ours, b"q")
            self.read_until(ours, None)
            self.assertEqual(child.wait(timeout=60), 0)
            os.close(ours)

    def read_until(self, fd: int, pattern: bytes | None) -> bytes:
        """Read until the pattern appears. None: until the other side closes the terminal."""
        seen = b""
        while pattern is None or not re.search(pattern, seen):
            ready, _, _ = select.select([fd], [], [], 60)
            self.assertTrue(ready, seen)
            try:
                more = os.read(fd, 65536)
            except OSError:
                more = b""
            if not more:
                self.assertIsNone(pattern, seen)
                break
            seen += more
        return seen


if __name__ == "__main__":
    unittest.main(verbosity=2)
