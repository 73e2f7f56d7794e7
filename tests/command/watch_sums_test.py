#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse watch` without BPF: the sums that /proc has, of threads that share one processor."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import unittest

import common

from rouse.query import scheduler
from rouse.sched import sampling

SPINNERS = 3
SECONDS = 1.0


class Sums(unittest.TestCase):
    def test_processes_that_share_a_processor_are_queued_for_the_rest(self) -> None:
        one = {min(os.sched_getaffinity(0))}
        spinners = [
            subprocess.Popen(
                [sys.executable, "-c", "print('ready', flush=True)\nwhile True: pass"],
                preexec_fn=lambda: os.sched_setaffinity(0, one),
                stdout=subprocess.PIPE,
                text=True,
            )
            for _ in range(SPINNERS)
        ]
        for spinner in spinners:
            self.addCleanup(spinner.communicate)
            self.addCleanup(spinner.kill)
        for spinner in spinners:
            self.assertEqual(common.next_line(spinner), "ready\n")
        pids = [spinner.pid for spinner in spinners]
        before, since = sampling.look(pids), time.monotonic()
        sampling.wait(sampling.open_processes(pids), SECONDS)
        after, passed_ns = sampling.look(pids), (time.monotonic() - since) * 1e9
        (section, *_) = scheduler.sections(sampling.between(before, after), 0)
        queued = sum(row["queued_ns"] for row in section.rows)
        # Together they run for the whole time at most, and are queued for the rest.
        self.assertGreater(queued, 0.9 * (SPINNERS - 1) * passed_ns)
        self.assertLess(queued, SPINNERS * passed_ns)
        for row in section.rows:
            self.assertAlmostEqual(row["cpu_ns"] + row["queued_ns"], passed_ns, delta=passed_ns / 5)


if __name__ == "__main__":
    unittest.main(verbosity=2)
