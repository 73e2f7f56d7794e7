#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rouse-bench: its list of cases, reports for every case and kind of threads, and wrong options."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("ROUSE_BUILD", "build/release"))
PROGRAM = BUILD / "bench" / "rouse-bench"
CASES = (
    *("nop", "yield", "spawn", "spawn_many", "ring", "cascade_mutex"),
    *("mutex", "pingpong", "sleepherd", "memory", "echo", "selectherd", "acceptherd", "fdtable"),
    *("shared_writes", "idle_memory", "steal"),
)
# Those besides mutex and cascade_mutex, which have a test of their own: bench_libmicro_test.py
LIBMICRO = (
    *("cascade_cond", "cascade_fcntl", "cascade_flock", "cascade_lockf", "poll", "select", "pipe"),
    *("socketpair", "connection", "close_tcp", "pthread_create", "fork", "exec", "system"),
    *("semop", "sched_yield", "nanosleep", "clock_nanosleep", "getpid", "gettimeofday"),
    *("clock_gettime", "read", "write"),
)
KINDS = ("user", "kernel", "clone")
# The cases that the kind clone, bare clone() threads, does not have.
ROUSE_ONLY = {"selectherd", "acceptherd", "fdtable", "idle_memory", "steal"}
COUNTING = "shared_writes"  # requires a build with ROUSE_TEST: bench_writes_test.py
USER_ONLY = {"steal"}
RUNS = [
    (case, kind)
    for case in CASES
    if case != COUNTING
    for kind in KINDS
    if kind != "clone" or case not in ROUSE_ONLY
    if kind == "user" or case not in USER_ONLY
]
TEXTS = ("case", "threads", "obs")
VERDICTS = {"useful", "lost_race", "false", "early", "timeout"}
INTEGERS = (
    *("workers", "P", "T", "ops", "samples", "total_ops", "voluntary_switches"),
    *("involuntary_switches", "pinned", "errors"),
)
NUMBERS = ("ns_per_op", "ns_min", "ns_max", "cpu_ns_per_op", "harness_ns_per_op")
OWN_FIGURES = {
    "spawn_many": {
        *("cold_ns_per_op", "cold_create_ns_per_op", "warm_ns_per_op", "warm_create_ns_per_op"),
    },
    "cascade_mutex": {"best_loop_us"},
    "mutex": {"most_ops", "least_ops", "yield_every", "lost_updates"},
    "sleepherd": {
        *("wakeups_per_s", "ideal_per_s", "late_p50_us", "late_p99_us", "late_max_us"),
        *("cpu_us_per_wakeup", "switches_per_wakeup", "early", "clumping"),
    },
    "memory": {"rss_bytes_per_thread"},
    "idle_memory": {
        f"{sort}_bytes{after}"
        for sort in ("semaphore", "sleep", "socket", "deep", "ended")
        for after in ("", "_trimmed")
    },
    "echo": {"bytes", "round_trips_per_s"},
    "steal": {
        *("affinity", "place", "footprint", "steals_per_1000", "stolen_per_1000"),
        *("wait_p50_us", "wait_p99_us"),
    },
    "fdtable": {
        *("table", "grown_to", "growth_us", "longest_step_us", "lookups_in_growth"),
        *("worst_lookup_us", "worst_calm_lookup_us"),
    },
    "acceptherd": {
        *("order", "share", "servers", "connections", "jain_threads", "jain_processes"),
        *("thread_least", "thread_most", "process_least", "process_most"),
        *("switches_per_connection", "worst_wait_ms"),
        *("late_p50_us", "late_p99_us", "late_max_us"),
    },
    "selectherd": {
        *("via", "load", "sets", "share", "processes", "timeout_us", "calls_per_s"),
        *("events", "events_per_s", "switches_per_call", *VERDICTS),
        *("sched_lock_wait_ns_per_call", "sched_lock_contended", "sched_lock_taken"),
        *("select_lock_wait_ns_per_call", "select_lock_contended", "select_lock_taken"),
        *("late_p50_us", "late_p99_us", "late_max_us", "clumping"),
        *("user_us_per_call", "system_us_per_call"),
    },
}
# fairness is missing if a thread did nothing, and the others depend on the options.
MAY_LACK = {"fairness", "wake", "sched_lock", "select_lock", "timer", "wasted_per_connection"}
SMALL = {
    "sleepherd": ("--sleep-us", "500", "-n", "16"),
    "mutex": ("-n", "400"),
    "selectherd": ("-n", "40"),
    "acceptherd": ("-n", "40"),
}

# Invalid command lines, each with a word of its error message.
MISTAKES = {
    "": "which case",
    "nonsense": "nonsense",
    "yield ring": "ring",
    "list extra": "extra",
    "yield --threads fibre": "fibre",
    "yield --threads": "--threads",
    "yield -T 0": "-T",
    "yield -T -1": "-T",
    "yield -T 3x": "3x",
    "yield -T": "-T",
    "yield -n 0": "-n",
    "yield -n 99999999999999999999": "-n",
    "memory -n 4000001": "-n",
    "memory --samples 3": "takes only one",
    "yield --workers 0": "--workers",
    "yield --workers 1025": "--workers",
    "yield --seconds 0": "--seconds",
    "yield --seconds -1": "--seconds",
    "yield --seconds nan": "nan",
    "yield --seconds 1e9": "1e9",
    "yield --samples 1001": "--samples",
    "yield --obs on": "on",
    "yield --obs counted --threads clone": "clone",
    "yield --lock spin": "--lock",
    "mutex --lock spin": "clone",
    "ring --sleep-us 5": "--sleep-us",
    "ring --bytes 5": "--bytes",
    "echo --bytes 0": "--bytes",
    "echo --socket udp": "udp",
    "ring --yield-every 5": "--yield-every",
    "pingpong -T 3": "even",
    "ring --wake broadcast": "selectherd",
    "selectherd --threads clone": "selectherd",
    "selectherd --threads kernel --processes 2": "-T",
    "ring --processes 2": "libMicro",
    "getpid --processes": "number",
    "getpid --processes 0": "--processes",
    "getpid --processes 3x": "3x",
    "getpid --processes=-1": "--processes",
    "getpid --processes 100 -T 41": "4096",
    "getpid --threads clone": "getpid",
    "mutex --threads clone --processes 2": "clone",
    "libmicro --threads clone": "clone",
    "libmicro --processes": "number",
    "libmicro --bytes 5": "--bytes",
    "libmicro extra": "extra",
    "poll --fds 3": "even",
    "poll --fds 2 --ready 3": "--ready",
    "pipe --fds 2": "select",
    "pipe --bytes 65537": "65536",
    "pipe --mode sp": "sp",
    "mutex --hold-us 1000001": "--hold-us",
    "cascade_mutex --hold-us 5": "mutex",
    "pipe --transport fifo": "fifo",
    "echo --mode mt": "pipe",
    "fork --threads user": "worker",
    "mutex --threads user --processes 2": "shared",
    "cascade_fcntl --threads kernel -T 2": "process",
    "cascade_flock --threads user -T 2": "worker",
    "fdtable --table hash": "hash",
    "steal --affinity 7": "--affinity",
    "steal --place longest": "longest",
    "steal --threads kernel": "user",
    "ring --footprint 5": "steal",
    "shared_writes --op fly": "fly",
    "ring --table rwlock": "fdtable",
    "selectherd --threads kernel --wake all": "all",
    "selectherd --threads kernel --sched-lock cpu": "cpu",
    "selectherd --threads kernel --select-lock one": "one",
    "selectherd --threads kernel --timer 10": "10",
    "selectherd --threads kernel --load heavy": "heavy",
    "selectherd --threads kernel --sets 1025": "--sets",
    "selectherd --threads kernel --sets 0 --timeout-us 0": "--sets 0",
    "selectherd --threads kernel --sets 0 --load stepped": "--sets 0",
    "selectherd --threads kernel --share 0": "--share",
    "selectherd --threads kernel -T 257": "256",
    "selectherd --via epoll": "epoll",
    "selectherd --via poll": "--threads kernel",
    "selectherd --wake broadcast": "--via layer",
    "selectherd --threads kernel --via poll --timer tick": "--via layer",
    "selectherd --threads kernel --via rouse --processes": "--processes",
    "yield --json=1": "--json=1",
    "yield --frobnicate": "--frobnicate",
    "yield -x": "-x",
}

# Functions that a thread of the clone() library may call, since they use no thread-local storage.
HARMLESS = {"memcpy", "memmove", "memset", "memcmp"}
# Functions of the cases that only the main thread runs, when no clone() thread does.
MAIN_THREAD = re.compile(
    r"(prepare|release|report|compare|listener_make|connect_\w+|\w+_prepare_clone|\w+_release_clone)"
    r"(\.\w+)*$"
)


def bench(*arguments: str, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )


def small(case: str, kind: str) -> list[str]:
    options = SMALL.get(case, ("-n", "40"))
    samples = "1" if case in ("memory", "idle_memory") else "2"
    return [case, "--threads", kind, "-T", "4", "--samples", samples, *options]


class Listing(unittest.TestCase):
    def test_list_names_every_case_once(self) -> None:
        done = bench("list")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(
            tuple(line.split()[0] for line in done.stdout.splitlines()),
            (*CASES, *LIBMICRO),
        )

    def test_help_names_every_kind_and_goes_to_stdout(self) -> None:
        done = bench("--help")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        for word in (*KINDS, "--json", "--seconds"):
            self.assertIn(word, done.stdout)


class Reports(unittest.TestCase):
    def report(self, *arguments: str) -> dict[str, Any]:
        done = bench(*arguments, "--json")
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr}")
        self.assertEqual(len(done.stdout.splitlines()), 1)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def check_fields(self, report: dict[str, Any]) -> None:
        for name in TEXTS:
            self.assertIsInstance(report[name], str, name)
        for name in INTEGERS:
            self.assertIsInstance(report[name], int, name)
        for name in NUMBERS:
            self.assertIsInstance(report[name], (int, float), name)
        self.assertLessEqual(report["ns_min"], report["ns_per_op"])
        self.assertLessEqual(report["ns_per_op"], report["ns_max"])
        self.assertGreater(report["harness_ns_per_op"], 0)
        self.assertGreaterEqual(report["total_ops"], report["ops"])
        self.assertGreaterEqual(len(report["ops_per_worker"]), report["workers"])
        self.assertEqual(report["errors"], 0)
        self.assertEqual(len(report["sample_ns"]), report["samples"])
        self.assertEqual(report["P"], 1)
        common = {*TEXTS, *INTEGERS, *NUMBERS, "ops_per_worker", "sample_ns"}
        if report["case"] in ("mutex", "cascade_mutex"):
            common.add("usecs_per_call")
        own = set(report) - common
        self.assertEqual(own - MAY_LACK, OWN_FIGURES.get(report["case"], set()))

    def test_every_case_on_every_kind(self) -> None:
        for case, kind in RUNS:
            with self.subTest(case=case, kind=kind):
                report = self.report(*small(case, kind))
                self.check_fields(report)
                self.assertEqual((report["case"], report["threads"]), (case, kind))
                self.assertGreater(report["ops"], 0)
                self.assertGreater(sum(report["ops_per_worker"]), 0)

    def test_operations_per_worker_add_up_to_the_total(self) -> None:
        for case, kind in RUNS:
            for count in ("100", "8") if case not in SMALL else ():
                with self.subTest(case=case, kind=kind, count=count):
                    report = self.report(*small(case, kind), "-n", count)
                    self.assertEqual(sum(report["ops_per_worker"]), report["total_ops"])

    def test_calibration_operations_are_not_counted(self) -> None:
        for case in ("ring", "cascade_mutex", "yield", "pingpong"):
            for kind in KINDS:
                with self.subTest(case=case, kind=kind):
                    options = ("--threads", kind, "-T", "40", "--seconds", "0.05")
                    report = self.report(case, *options)
                    self.assertEqual(sum(report["ops_per_worker"]), report["total_ops"])

    def test_a_ring_of_one_and_of_many(self) -> None:
        for case in ("ring", "cascade_mutex"):
            for threads in (1, 2, 3, 33, 300):
                for kind in KINDS:
                    with self.subTest(case=case, threads=threads, kind=kind):
                        options = ("-T", str(threads), "-n", "600", "--samples", "1")
                        report = self.report(case, "--threads", kind, *options)
                        self.assertEqual(report["T"], threads)

    def test_no_update_under_the_mutex_is_lost(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                report = self.report("mutex", "--threads", kind, "--seconds", "0.05")
                self.assertEqual(report["lost_updates"], 0)
        report = self.report("mutex", "--threads", "clone", "--lock", "spin", "--seconds", "0.05")
        self.assertEqual(report["lost_updates"], 0)

    def test_a_mutex_is_held_for_the_requested_time(self) -> None:
        runs = [(kind, ()) for kind in KINDS] + [("kernel", ("--processes", "2", "-T", "2"))]
        for kind, words in runs:
            with self.subTest(kind=kind, words=words):
                report = self.report(
                    *("mutex", "--threads", kind, *words, "--hold-us", "200", "-n", "20")
                )
                self.assertGreaterEqual(report["ns_min"], 200000)

    def test_workers_and_pinning_are_as_requested(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                report = self.report("yield", "--threads", kind, "--workers", "1", "-n", "100")
                self.assertEqual(report["workers"], 1)
                self.assertEqual(report["pinned"], 0)
                report = self.report("yield", "--threads", kind, "-n", "100", "--pin")
                self.assertGreaterEqual(report["pinned"], 1)

    def test_recording_of_waits_can_be_on(self) -> None:
        for kind in ("user", "kernel"):
            for mode in ("counted", "exact", "locks", "trace", "off"):
                report = self.report("ring", "--threads", kind, "--obs", mode, "-n", "100")
                self.assertEqual(report["obs"], mode)

    def test_echo_over_tcp_with_long_messages(self) -> None:
        for kind in KINDS:
            options = ("--socket", "tcp", "--bytes", "70000", "-T", "3", "-n", "6")
            report = self.report("echo", "--threads", kind, *options, "--samples", "1")
            self.assertEqual(report["bytes"], 70000)

    def test_a_sleep_is_never_early(self) -> None:
        for kind in KINDS:
            report = self.report("sleepherd", "--threads", kind, "-T", "3", "-n", "9")
            self.assertLessEqual(report["wakeups_per_s"], report["ideal_per_s"])
            self.assertEqual(report["early"], 0)

    def test_the_text_has_the_same_figures(self) -> None:
        done = bench(*small("ring", "user"))
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in ("usecs/call", "STATISTICS", "voluntary", "the harness", "machine", "kernel"):
            self.assertIn(word, done.stdout)


class Mistakes(unittest.TestCase):
    def test_each_is_reported_in_one_line_with_status_2(self) -> None:
        for line, word in MISTAKES.items():
            with self.subTest(line=line):
                done = bench(*line.split())
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertTrue(done.stderr.startswith("rouse-bench: "), done.stderr)
                self.assertIn(word, done.stderr)

    def test_a_report_that_cannot_be_written_is_a_failure(self) -> None:
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            for arguments in (["list"], small("nop", "user"), [*small("nop", "user"), "--json"]):
                with self.subTest(arguments=arguments):
                    self.assertEqual(bench(*arguments, stdout=full.fileno()).returncode, 1)

    def test_too_many_threads_are_reported_in_one_line(self) -> None:
        done = bench("memory", "--threads", "clone", "-T", "200000", "--json")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        self.assertIn("creating a thread failed", done.stderr)


class Adapter(unittest.TestCase):
    def calls(self) -> Iterator[tuple[str, str]]:
        """Pairs of a function of the clone() family and an external symbol that it uses."""
        archive = BUILD / "bench" / "libbench-clone.a"
        done = subprocess.run(
            ["objdump", "-dr", "--no-show-raw-insn", str(archive)],
            capture_output=True,
            text=True,
            check=True,
        )
        function = ""
        for line in done.stdout.splitlines():
            if found := re.match(r"[0-9a-f]+ <([^>]+)>:$", line):
                function = found[1]
            elif found := re.search(
                r": R_(?:X86_64_PLT32|X86_64_GOTPCRELX?|AARCH64_CALL26|AARCH64_JUMP26)\s+(\w+)",
                line,
            ):
                yield function, found[1]

    def test_its_threads_enter_no_libc(self) -> None:
        if not shutil.which("objdump"):
            self.skipTest("not run: no objdump here")
        calls = set(self.calls())
        if not calls:
            self.skipTest("not run: the archive holds no machine code (link-time optimisation)")
        guilty = {
            (function, symbol)
            for function, symbol in calls
            if not MAIN_THREAD.match(function)
            and symbol not in HARMLESS
            and not symbol.endswith("_clone")
            and not symbol.startswith(("clone_", "bench_"))
        }
        self.assertEqual(guilty, set())
        self.assertIn(("prepare", "calloc"), calls)  # this shows that the test sees calls at all


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"not run: no {PROGRAM}")
        sys.exit(77)
    unittest.main(verbosity=2)
