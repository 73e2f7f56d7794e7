#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""bench/run.py: a tiny run makes every table, the statistics are right, bad options are errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from dataclasses import replace
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "release"))
sys.path.insert(0, str(SOURCE / "bench"))
from tables import (  # noqa: E402
    http,
    idle,
    paired,
    programs,
    render,
    rounds,
    servers,
)

from rouse.lab import tracepoint  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(SOURCE / "bench" / "run.sh"), "--build", str(BUILD), *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rows(markdown: str, title: str) -> list[list[str]]:
    """The cells of the table under a title, without its header row."""
    part = markdown.split(f"## {title}", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class Statistics(unittest.TestCase):
    def test_the_interval_is_students(self) -> None:
        ratio = paired.ratio([2.0, 2.0 * 1.1, 2.0 / 1.1], [1.0, 1.0, 1.0])
        assert ratio is not None
        self.assertAlmostEqual(ratio.mean, 2.0)
        # Computed by hand: the logarithms deviate by ln 1.1, and t is 4.303 with two degrees of
        # freedom.
        self.assertAlmostEqual(ratio.high, 2.0 * 1.1 ** (4.303 / 3**0.5), places=9)
        self.assertAlmostEqual(ratio.low * ratio.high, 4.0)
        self.assertEqual(ratio.pairs, 3)

    def test_two_pairs_are_needed(self) -> None:
        self.assertIsNone(paired.ratio([1.0], [1.0]))
        self.assertIsNone(paired.ratio([], []))

    def test_a_claim_holds_only_with_its_whole_interval(self) -> None:
        self.assertTrue(paired.Ratio(1.0, 0.9, 1.1, 9).within(1.1))
        self.assertFalse(paired.Ratio(1.0, 0.9, 1.11, 9).within(1.1))

    def test_figures_keep_significant_digits(self) -> None:
        values = (0.00001, 0.5, 12.34, 1234567.8, None)
        self.assertEqual(
            [render.number(v) for v in values], ["0", "0.50", "12.3", "1,234,568", "-"]
        )
        self.assertEqual(render.number(-0.00001), "0")

    def test_a_failure_ends_its_series_with_the_last_line_printed(self) -> None:
        bad = rounds.Series(["sh", "-c", "echo one >&2; echo two >&2; exit 3"], 3)
        good = rounds.Series(["echo", '{"x": 1}'], 3)
        rounds.take_turns([bad, good])
        self.assertEqual((bad.failure, bad.reports), ("two", []))
        self.assertEqual(good.values("x"), [1.0, 1.0, 1.0])


class Peers(unittest.TestCase):
    def test_a_peer_runs_the_same_cases_with_the_same_report(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            found, missing = programs.peers(Path(folder))
            self.assertEqual(len(found) + len(missing), len(programs.PEERS))
            self.assertIn("pthread", [program.key for program in found])
            for program in found:
                for case in ("yield", "ring", "mutex", "spawn", "sleepherd"):
                    with self.subTest(peer=program.title, case=case):
                        options = [case, "-T", "4", "-n", "40", "--samples", "1", "--workers", "1"]
                        command = programs.command_line(program, options)
                        done = subprocess.run(
                            command, capture_output=True, text=True, timeout=60, check=False
                        )
                        self.assertEqual(done.returncode, 0, done.stderr)
                        report = json.loads(done.stdout)
                        self.assertEqual((report["case"], report["T"]), (case, 4))
                        self.assertGreater(report["ns_per_op"], 0)

    def test_a_missing_peer_is_named_with_its_reason(self) -> None:
        with self.assertRaisesRegex(programs.MissingError, "no-such-dev is not installed"):
            programs.header("no/such/header.h", "()", "no-such-dev")
        with self.assertRaisesRegex(programs.MissingError, "no-such-compiler: No such file"):
            programs.run_tool("no-such-compiler")


class Calls(unittest.TestCase):
    CALLER = """
import os, sys
print("ready", flush=True)
sys.stdin.readline()
for _ in range(1000):
    os.getppid()
print("done", flush=True)
sys.stdin.readline()
"""

    def test_the_tracepoint_counts_every_call(self) -> None:
        with subprocess.Popen(
            [sys.executable, "-c", self.CALLER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdout.readline()
            try:
                with tracepoint.counting(process.pid) as counter:
                    if counter is None:
                        self.skipTest("not run: tracepoints are not visible here")
                    process.stdin.write("\n")
                    process.stdin.flush()
                    process.stdout.readline()
                    self.assertGreaterEqual(counter.total(), 1000)
                    self.assertLess(counter.total(), 1100)
            finally:
                process.kill()

    def test_strace_counts_the_same(self) -> None:
        if not shutil.which("strace"):
            self.skipTest("not run: strace is not installed")
        epoll = next(s for s in servers.all_servers(BUILD, "")[0] if s.key == "epoll")
        counted = http.strace_calls(BUILD, epoll, 0.1)
        assert counted is not None
        calls, requests = counted
        self.assertGreater(calls, 2 * requests)  # one read and one write each
        self.assertLess(calls, 4 * requests + 2000)
        self.assertEqual(idle.strace_calls(BUILD, epoll, 0.5), 0)


class Run(unittest.TestCase):
    def test_a_quick_run_of_threads_and_rings(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            done = run(
                "--quick", "--no-peers", "--only", "threads,rings", "--write", str(page), "--anyway"
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(page.read_text(encoding="utf-8").split(), done.stdout.split())
        self.assertIn("A quick run", done.stdout)
        self.assertNotIn("failed", done.stdout)
        main = rows(done.stdout, "Threads\n")
        self.assertGreater(len(main), 15)
        for label, ours, *_rest in main:
            self.assertRegex(ours, r"^[\d,.]+$", label)
        for title in ("Threads: the forms of rouse", "Threads: operations of the busiest worker"):
            self.assertTrue(rows(done.stdout, title))
        for title in ("with two mutexes", "with one semaphore"):
            table = rows(done.stdout, f"No cliff: the ring {title}")
            self.assertEqual([row[0] for row in table], ["rouse", "kernel threads", "bare clone()"])

    def test_a_quick_run_of_sleeping_threads(self) -> None:
        done = run("--quick", "--no-peers", "--only", "sleep")
        self.assertEqual(done.returncode, 0, done.stderr)
        table = rows(done.stdout, "Sleeping threads")
        self.assertEqual(len(table), 8)
        for label, slack, *figures in table:
            early = figures[5]
            self.assertEqual(early, "0", f"{label}, slack {slack}")

    def test_a_quick_run_of_servers(self) -> None:
        done = run("--quick", "--no-peers", "--only", "http,idle")
        self.assertEqual(done.returncode, 0, done.stderr)
        user = "rouse-serve, user threads"
        wanted = {f"{user}, epoll", "rouse-serve, kernel threads"}
        for title in ("HTTP: 100 connections, keep-alive", "HTTP: 100 connections, 16 requests"):
            table = rows(done.stdout, title)
            named = {row[0] for row in table}
            self.assertLessEqual(wanted | {"raw epoll loop"}, named, done.stdout)
            for row in table:
                self.assertRegex(row[1], r"^[\d,.]+$", done.stdout)
            # Without io_uring, a note gives the reason why the row is missing.
            for ring in (
                "raw io_uring loop",
                f"{user}, io_uring",
                f"{user}, io_uring, recording off",
            ):
                self.assertIn(ring, done.stdout)
        pairs = {row[0]: row[1] for row in rows(done.stdout, "HTTP: 100 connections, two workers")}
        if {"raw io_uring loop", f"{user}, io_uring"} <= {row[0] for row in table}:
            serve = "rouse-serve, two workers"
            known = {serve, f"{serve}, recording off", "two raw io_uring loops"}
            self.assertEqual(set(pairs), known, done.stdout)
            values = [float(value.replace(",", "")) for value in pairs.values()]
            self.assertGreater(min(values), 0, done.stdout)
        idle = {row[0]: row[1:] for row in rows(done.stdout, "An idle server")}
        self.assertIn(idle[f"{user}, epoll"], (["0", "0"], ["-", "0"]))

    def test_a_quick_run_of_the_sweep_and_of_memory(self) -> None:
        done = run("--quick", "--no-peers", "--only", "sweep,memory")
        self.assertEqual(done.returncode, 0, done.stderr)
        for title in ("HTTP sweep: 1 connection", "HTTP sweep: 100 connections"):
            table = {row[0]: row[1:] for row in rows(done.stdout, title)}
            for name in ("rouse-serve, user threads, epoll", "raw epoll loop"):
                self.assertRegex(table[name][0], r"^[\d,.]+$", done.stdout)
                self.assertRegex(table[name][5], r"^\d+ %( \(saturated\))?$", done.stdout)
        self.assertEqual(len(rows(done.stdout, "Memory: parked threads")), 2)
        self.assertEqual(len(rows(done.stdout, "Memory: 200 idle threads")), 5)
        idle = {row[0]: row[1:] for row in rows(done.stdout, "Memory: idle keep-alive")}
        for figures in (idle["rouse-serve, user threads, epoll"], idle["raw epoll loop"]):
            self.assertRegex(" ".join(figures), r"^[\d,.]+ [\d,.]+$", done.stdout)

    def test_a_load_without_a_request_lasts_longer(self) -> None:
        epoll = next(s for s in servers.all_servers(BUILD, "")[0] if s.key == "epoll")
        with servers.started(epoll) as running:
            nothing = http.Load(1e-9)
            self.assertEqual(http.ask_once(BUILD, running, nothing)["requests"], 0)
            self.assertGreater(http.ask(BUILD, running, nothing)["requests"], 0)

    def test_a_server_without_its_ring_is_reported(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "server"
            script.write_text("#!/bin/sh\necho no ring for you >&2\nexit 77\n", encoding="ascii")
            script.chmod(0o755)
            server = servers.Server("x", "x", "", lambda _folder: ([str(script)], 0), ring=True)
            with (
                self.assertRaisesRegex(servers.ServerError, "where it serves: no ring for you$"),
                servers.started(server),
            ):
                self.fail("it does not serve")
        epoll = next(s for s in servers.all_servers(BUILD, "")[0] if s.key == "epoll")
        with (
            self.assertRaisesRegex(servers.ServerError, "^it uses epoll$"),
            servers.started(replace(epoll, ring=True)),
        ):
            self.fail("it has no ring")

    def test_instructions_and_calls_are_counted(self) -> None:
        if not shutil.which("strace") or not shutil.which("valgrind"):
            self.skipTest("not run: strace or valgrind is not installed")
        if b"__sanitizer_" in (BUILD / "bench" / "rouse-bench").read_bytes():
            self.skipTest("not run: valgrind cannot run a program built with a sanitizer")
        done = run("--quick", "--no-peers", "--only", "counts")
        self.assertEqual(done.returncode, 0, done.stderr)
        for label, ours, *_rest in rows(done.stdout, "Instructions per operation"):
            self.assertGreater(float(ours.replace(",", "")), 1, label)
        for label, ours, *_rest in rows(done.stdout, "System calls per operation"):
            self.assertLess(float(ours), 0.5, label)

    def test_mistakes_are_reported_with_status_2(self) -> None:
        for arguments in (["--only", "nonsense"], ["--rounds", "0"], ["--build", "/nonexistent"]):
            with self.subTest(arguments=arguments):
                done = run(*arguments)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertIn("run.py: error: ", done.stderr)


if __name__ == "__main__":
    if not (BUILD / "bench" / "rouse-bench").exists():
        print(f"not run: no rouse-bench in {BUILD}")
        sys.exit(77)
    unittest.main(verbosity=2)
