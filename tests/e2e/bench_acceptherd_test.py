#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""acceptherd: every order and every way to share serves all connections and divides them as stated.

No speed is checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import unittest
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("ROUSE_BUILD", "build/release"))
PROGRAM = BUILD / "bench" / "rouse-bench"
USER, KERNEL = ("--threads", "user"), ("--threads", "kernel")
# If the machine stops a server for long, its turn passes on to another. The test then tries again.
ATTEMPTS = 5


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), "acceptherd", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def herd(*arguments: str) -> dict[str, Any]:
    done = run("-n", "200", "--samples", "3", *arguments)
    if done.returncode != 0:
        raise AssertionError(f"{arguments}: {done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


class Acceptherd(unittest.TestCase):
    def check(self, *arguments: str) -> dict[str, Any]:
        report = herd(*arguments)
        # One more sample calibrates the cost of an operation.
        self.assertGreaterEqual(report["connections"], report["total_ops"], arguments)
        self.assertGreater(report["late_p50_us"], 0)
        self.assertGreaterEqual(report["late_max_us"], report["late_p50_us"] * 0.8)
        for of in ("jain_threads", "jain_processes"):
            self.assertTrue(0 < report[of] <= 1.0001, (of, report[of]))
        return report

    def test_every_order(self) -> None:
        for order in ("plain", "fifo", "lifo", "scatter"):
            self.check(*USER, "--order", order, "-T", "4")
        for order in ("accept", "poll", "prioritised", "promoted"):
            self.check(*KERNEL, "--order", order, "-T", "4")

    def test_every_way_to_share(self) -> None:
        for way in ("herd", "exclusive", "turns", "reuseport"):
            for burst in ("1", "16"):
                more = ("--servers", "3", "-T", "2", "--burst", burst)
                self.check(*USER, "--shared-by", way, *more)
                if way != "turns":
                    self.check(*KERNEL, "--shared-by", way, *more)

    def test_fifo_is_fair_over_threads(self) -> None:
        found: list[float] = []
        while len(found) < ATTEMPTS and (not found or found[-1] < 0.99):
            found.append(herd(*USER, "--order", "fifo", "-T", "4")["jain_threads"])
        self.assertGreaterEqual(found[-1], 0.99, found)

    def test_turns_are_fair_over_processes(self) -> None:
        found: list[float] = []
        while len(found) < ATTEMPTS and (not found or found[-1] < 0.99):
            more = ("--servers", "4", "-T", "2", "--burst", "8")
            found.append(herd(*USER, "--shared-by", "turns", *more)["jain_processes"])
        self.assertGreaterEqual(found[-1], 0.99, found)

    def test_low_priorities_starve_without_promotion(self) -> None:
        report = herd(*KERNEL, "--order", "prioritised", "-T", "8")
        self.assertLess(report["thread_least"], report["thread_most"] / 4)

    def test_wrong_arguments_are_reported(self) -> None:
        for arguments in (
            (*KERNEL, "--order", "fifo"),
            (*USER, "--order", "poll"),
            (*KERNEL, "--shared-by", "turns"),
            (*KERNEL, "--order", "prioritised", "--servers", "2"),
            ("--servers", "0"),
            ("--servers", "65"),
            ("--burst", "0"),
            ("-T", "257"),
            ("--order", "none"),
            ("--shared-by", "none"),
        ):
            done = run(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""), arguments)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
