#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The summary that tools/summary.py makes of steps and of meson's logs."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import summary


def test_of(result: str, output: str = "") -> summary.Outcome:
    return summary.Outcome("t", result, 1, output, is_test=True)


class Report(unittest.TestCase):
    def last(self, *outcomes: summary.Outcome) -> str:
        return list(summary.report(list(outcomes)))[-1]

    def test_everything_is_counted_once(self) -> None:
        step = summary.Outcome("format", summary.PASSED, 1, "", is_test=False)
        self.assertEqual(self.last(step, test_of(summary.PASSED)), "2 passed, 0 failed, 0 skipped")

    def test_a_run_without_a_test_has_failed(self) -> None:
        step = summary.Outcome("format", summary.PASSED, 1, "", is_test=False)
        self.assertEqual(self.last(step), "1 passed, 1 failed, 0 skipped")
        self.assertIn("1 failed", self.last(test_of(summary.SKIPPED, "not run: no curl")))

    def test_skipped_tests_are_listed_with_their_reason(self) -> None:
        outcomes = [test_of(summary.SKIPPED, "not run: no spin here"), test_of(summary.PASSED)]
        lines = list(summary.report(outcomes))
        self.assertIn("---- not run: t: no spin here", lines)
        self.assertEqual(lines[-1], "1 passed, 0 failed, 1 skipped")

    def test_a_skipped_case_of_a_passing_program_is_listed(self) -> None:
        lines = list(summary.report([test_of(summary.PASSED, "ok 1\nnot run: no io_uring\n")]))
        self.assertIn("---- not run: t: no io_uring", lines)
        self.assertEqual(lines[-1], "1 passed, 0 failed, 1 skipped")

    def test_case_of_a_python_test_that_was_not_run_is_reported(self) -> None:
        output = "test_a (A.test_a) ... skipped 'no go'\nB. ... skipped \"no 'x'\""
        lines = list(summary.report([test_of(summary.PASSED, output)]))
        self.assertIn("---- not run: t: no go", lines)
        self.assertIn("---- not run: t: no 'x'", lines)

    def test_a_failure_shows_the_end_of_its_output(self) -> None:
        lines = list(summary.report([test_of(summary.FAILED, "first\n" * 99 + "assertion\n")]))
        self.assertIn("assertion", lines)
        self.assertEqual(lines.count("first"), summary.TAIL_LINES - 1)

    def test_a_failure_is_not_hidden_behind_the_cases_that_passed(self) -> None:
        passed = "".join(f"[ RUN      ] t{n}\n[       OK ] t{n}\n" for n in range(99))
        output = f"[ RUN      ] wrong\nfailed: x == 1\n[  FAILED  ] wrong\n{passed}7 failed\n"
        lines = list(summary.report([test_of(summary.FAILED, output)]))
        self.assertIn("failed: x == 1", lines)
        self.assertFalse([line for line in lines if "OK" in line])

    def test_the_ten_slowest_tests_are_listed(self) -> None:
        many = [summary.Outcome(f"t{n}", summary.PASSED, n, "", is_test=True) for n in range(12)]
        lines = list(summary.report(many))
        first = lines.index("slowest tests:") + 1
        self.assertEqual([line.split()[-1] for line in lines[first:-1]][:2], ["t11", "t10"])
        self.assertEqual(len(lines[first:-1]), 10)

    def test_mesons_results_are_read(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "asan" / "meson-logs" / "testlog.json"
            log.parent.mkdir(parents=True)
            results = ("OK", "FAIL", "TIMEOUT", "SKIP", "ERROR")
            log.write_text(
                "".join(
                    json.dumps({"name": "rouse:x", "result": r, "returncode": 0, "duration": 1})
                    + "\n"
                    for r in results
                )
            )
            outcomes = list(summary.read_testlog(log))
        self.assertEqual(
            [o.result for o in outcomes],
            [summary.PASSED, summary.FAILED, summary.FAILED, summary.SKIPPED, summary.FAILED],
        )
        self.assertEqual(outcomes[0].name, "asan: x")


if __name__ == "__main__":
    unittest.main(verbosity=2)
