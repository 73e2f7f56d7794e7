#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/plots.py: its charts, the same bytes in two runs, and the message without matplotlib."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from drawing import SOURCE, reason_not_to

if reason_not_to():
    print(f"not run: {reason_not_to()}")
    sys.exit(77)
sys.path.insert(0, str(SOURCE / "bench"))  # plots continues in build/venv
import plots

SVG = "{http://www.w3.org/2000/svg}"
ROWS = {"first": {"old": "12,345", "new": "99"}, "second": {"old": "1,000", "new": "10.5"}}


def texts(drawn: str) -> list[str]:
    return ["".join(text.itertext()) for text in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def title(drawn: str) -> str | None:
    return ElementTree.fromstring(drawn).findtext(f"{SVG}title")


def bars(drawn: str) -> dict[str, float]:
    """The length of each bar."""
    found = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        name = group.get("id", "")
        if name.startswith("bar: "):
            path = group.find(f"{SVG}path")
            assert path is not None
            ends = [float(x) for x in re.findall(r"[ML] (\S+)", path.get("d", ""))]
            found[name.removeprefix("bar: ")] = max(ends) - min(ends)
    return found


def groups() -> str:
    return plots.groups("the title", "the heading", ROWS, {"old": "#888", "new": "#c00"}, (10, 1e5))


def panels(ticks: plots.Ticks | None = None) -> str:
    calls = plots.Panel("calls per second", ("calls",), [[2000], [500]])
    wakes = plots.Panel("wake-ups", ("useful", "early"), [[30, 10], [20, 0]])
    return plots.chart("the title", ["this way", "that <way>"], [calls, wakes], ticks)


class Groups(unittest.TestCase):
    def test_each_figure_stands_at_the_end_of_its_bar(self) -> None:
        drawn = groups()
        shown = texts(drawn)
        self.assertEqual(title(drawn), "the title")
        for text in ("the heading", "first", "second", "12,345 ns", "99 ns", "1,000 ns", "10.5 ns"):
            self.assertEqual(shown.count(text), 1, text)
        for library in ("old", "new"):
            self.assertEqual(shown.count(library), len(ROWS))

    def test_the_scale_is_logarithmic(self) -> None:
        found = bars(groups())
        self.assertEqual(len(found), 4)
        # From 10 to 1,000 are two powers of ten; to 12,345 it is 3.09.
        self.assertAlmostEqual(found["first, old"] / found["second, old"], 3.09 / 2, delta=0.01)


class Panels(unittest.TestCase):
    def test_rows_have_labels_and_sums_and_stacks_have_a_legend(self) -> None:
        drawn = panels()
        shown = texts(drawn)
        self.assertEqual(title(drawn), "the title")
        for text in ("this way", "that <way>", "calls per second", "wake-ups", "useful", "early"):
            self.assertEqual(shown.count(text), 1, text)
        for number in ("2,000", "500", "40.0", "20.0"):
            self.assertEqual(shown.count(number), 1, number)
        self.assertNotIn("calls", shown)

    def test_a_bar_is_as_long_as_its_value(self) -> None:
        found = bars(panels())
        self.assertEqual(len(found), 6)
        for longer, shorter, ratio in (
            ("calls per second, calls, 0", "calls per second, calls, 1", 4),
            ("wake-ups, useful, 0", "wake-ups, early, 0", 3),
        ):
            self.assertAlmostEqual(found[longer] / found[shorter], ratio, delta=0.01)
        self.assertEqual(found["wake-ups, early, 1"], 0)

    def test_a_timeline_shows_each_tick_and_each_call(self) -> None:
        ticks = plots.Ticks("one thread", (10, 10, 12), ((1, False), (2, True), (3, True)))
        drawn = panels(ticks)
        shown = texts(drawn)
        for text in ("one thread", "a wake-up that ends a call", "an early one", *"0123"):
            self.assertEqual(shown.count(text), 1, text)
        self.assertEqual(len(re.findall(r'd="M [^"]* Q ', drawn.replace("\n", " "))), 2)
        self.assertEqual(len(bars(drawn)), 6)


class Runs(unittest.TestCase):
    def test_two_runs_write_the_same_bytes(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("one.svg", "two.svg")]
            for file in files:
                command = [sys.executable, str(SOURCE / "bench/chart.py"), "--to", str(file)]
                subprocess.run(command, check=True, timeout=60)
            self.assertEqual(files[0].read_bytes(), files[1].read_bytes())

    def test_without_matplotlib_one_line_says_what_to_install(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "matplotlib.py").write_text("raise ImportError('left out here')\n")
            for script in ("chart.py", "studies.py"):
                done = subprocess.run(
                    [sys.executable, SOURCE / "bench" / script, "--help"],
                    env={**os.environ, "PYTHONPATH": folder},
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                self.assertEqual(
                    done.stderr,
                    f"{script}: a Python package is missing (left out here); install it: "
                    "pip install 'rouse[lab]', or tools/setup.sh check in a checkout\n",
                )


if __name__ == "__main__":
    unittest.main(verbosity=2)
