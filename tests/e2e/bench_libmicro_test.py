#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""rouse-bench libmicro: each case on each kind and on processes, its columns, and its faults.

No speed is checked.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("ROUSE_BUILD", "build/release"))
PROGRAM = BUILD / "bench" / "rouse-bench"
LOCKS = ("cascade_mutex", "mutex", "cascade_cond")
FILES = ("cascade_fcntl", "cascade_flock", "cascade_lockf")
FORKS = ("fork", "exec", "system")
CALLS = (
    *("poll", "select", "pipe", "socketpair", "connection", "close_tcp", "pthread_create"),
    *("semop", "sched_yield", "nanosleep", "clock_nanosleep", "getpid", "gettimeofday"),
    *("clock_gettime", "read", "write"),
)
CASES = {*LOCKS, *FILES, *FORKS, *CALLS}
COLUMNS = ["prc", "thr", "usecs/call", "samples", "errors", "cnt/samp"]
STATISTICS = (
    *("min", "max", "mean", "median", "stddev", "standard error", "99% confidence level", "skew"),
    *("kurtosis", "time correlation"),
)
# The cases that a run with these options leaves out.
ABSENT = {
    ("kernel", 1, 1): set(),
    ("kernel", 3, 1): set(),
    ("kernel", 2, 2): {"cascade_fcntl", "cascade_lockf"},
    ("user", 1, 1): {*FORKS},
    ("user", 2, 1): {*FORKS, *LOCKS},
    ("user", 2, 3): {*FORKS, *LOCKS, *FILES},
}
# A call of libc that gives a wrong result (lies.c), and what the case says about it.
LIES = {
    "getpid": ("getpid", "getpid"),
    "gettimeofday": ("gettimeofday", "gettimeofday"),
    "clock_gettime": ("clock_gettime", "clock_gettime, which must not go back,"),
    "read": ("read", "read"),
    "write": ("write", "write"),
    "pipe": ("read", "comparing what came"),
    "poll": ("poll", "poll"),
    "select --ready 1": ("select", "select"),
    "socketpair": ("read", "sending a byte"),
    "connection": ("accept4", "comparing ports"),
    "close_tcp": ("close", "close"),
    "pthread_create": ("pthread_join", "joining a thread"),
    "fork": ("waitpid", "the end of a forked process"),
    "exec": ("waitpid", "executing /bin/true"),
    "system": ("system", 'system("A=$$")'),
    "semop": ("semop", "counting a semaphore's units"),
    "sched_yield": ("sched_yield", "sched_yield"),
    "nanosleep": ("nanosleep", "nanosleep"),
    "clock_nanosleep": ("clock_nanosleep", "clock_nanosleep"),
    "cascade_flock -T 3": ("flock", "passing the token, which was lost or doubled,"),
    "cascade_lockf --processes 3": ("lockf", "passing the token, which was lost or doubled,"),
    "cascade_fcntl --processes 3": ("fcntl", "passing the token, which was lost or doubled,"),
    "cascade_cond": ("pthread_cond_wait", "pthread_cond_wait"),
}
SHORT = ("--samples", "2", "-n", "24")
SLOW_S = 120


def bench(*words: str, limit: Callable[[], None] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(PROGRAM), *words],
        capture_output=True,
        text=True,
        timeout=SLOW_S,
        check=False,
        preexec_fn=limit,
    )


def rows(text: str) -> dict[str, list[str]]:
    lines = [line for line in text.splitlines() if not line.startswith(("#", " "))]
    return {line.split()[0]: line.split(maxsplit=7)[1:] for line in lines}


def children(pid: int) -> set[int]:
    with contextlib.suppress(OSError):
        return {int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    return set()


def descendants(pid: int) -> set[int]:
    found = children(pid)
    for child in tuple(found):
        found |= descendants(child)
    return found


def state(pid: int) -> str:
    """The letter of /proc, or X."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return "X"
    return status.rpartition(")")[2].split()[0]


def is_running(pid: int) -> bool:
    return state(pid) not in "ZX"


def stop(pid: int) -> bool:
    """Stop the process. Return whether it will not end by itself any more."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) in "TZX", "a process does not stop")
    return state(pid) == "T"


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SLOW_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(what)
        time.sleep(0.01)


def later_children(pid: int) -> set[int]:
    """Wait for children of a process that it does not have yet."""
    before = children(pid)
    wait_until(lambda: bool(children(pid) - before), "no other process")
    return children(pid) - before


def wait_for_processes(pid: int, count: int) -> set[int]:
    """Wait until a run's forked processes have threads, so that they end with it."""

    def are_there() -> bool:
        pids = children(pid)
        return len(pids) == count and all(
            len(list(Path(f"/proc/{child}/task").glob("*"))) > 1 for child in pids
        )

    wait_until(are_there, "a process has not started")
    return children(pid)


def wait_for_end(pids: set[int]) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids), "a process is left")


def sets_of(count: int) -> int:
    """The number of sets of so many semaphores."""
    lines = Path("/proc/sysvipc/sem").read_text(encoding="utf-8").splitlines()[1:]
    return sum(line.split()[3] == str(count) for line in lines)


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [str(PROGRAM), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class Suite(unittest.TestCase):
    def check_row(self, case: str, row: list[str], processes: int) -> None:
        self.assertEqual(row[0], str(processes), case)
        self.assertGreater(float(row[2]), 0, case)
        self.assertGreaterEqual(int(row[3]), 1, case)
        self.assertEqual(row[4], "0", case)
        self.assertGreaterEqual(int(row[5]), 1, case)

    def test_each_case_has_a_row_on_each_kind_and_on_processes(self) -> None:
        for (kind, processes, threads), absent in ABSENT.items():
            with self.subTest(kind=kind, processes=processes, threads=threads):
                words = ("--threads", kind, "--processes", str(processes), "-T", str(threads))
                done = bench("libmicro", *words, *SHORT)
                self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
                found = rows(done.stdout)
                self.assertEqual(set(found), CASES)
                for case, row in found.items():
                    self.assertEqual(row[1], str(threads))
                    if case in absent:
                        self.assertEqual(row[2:6], ["-", "-", "-", "-"])
                        self.assertRegex(row[6], "^# .+")
                    else:
                        self.check_row(case, row, processes)
                header = next(line for line in done.stdout.splitlines() if line.startswith(" "))
                self.assertEqual(header.split(), COLUMNS)

    def test_as_json_each_case_is_a_line(self) -> None:
        done = bench("libmicro", "--threads", "user", "--json", *SHORT)
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual({line["case"] for line in lines}, CASES)
        for line in lines:
            self.assertEqual("reason" in line, line["case"] in {*FORKS})
            self.assertEqual(line["errors"], 0)

    def test_a_case_without_descriptors_fails_in_its_row_and_the_others_run(self) -> None:
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

        done = bench("libmicro", "--threads", "kernel", *SHORT, limit=few)
        self.assertEqual(done.returncode, 1, done.stdout)
        found = rows(done.stdout)
        self.assertEqual(set(found), CASES)
        for case, row in found.items():
            if case in ("poll", "select"):
                self.assertEqual(row[2:6], ["-", "-", "1", "-"], row)
                self.assertIn("Too many open files", row[6])
            else:
                self.check_row(case, row, 1)

    def test_a_batch_that_runs_out_of_descriptors_names_the_call(self) -> None:
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))

        done = bench("socketpair", "--threads", "kernel", "-n", "64", limit=few)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(
            done.stderr, "rouse-bench: socketpair: socketpair failed: Too many open files\n"
        )

    def test_a_case_that_crashes_fails_in_its_row_and_the_others_run(self) -> None:
        with running("libmicro", "--threads", "kernel", "--seconds", "0.2") as process:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                # The child of this line may be about to end: the one of a later line is killed.
                if line.startswith(("cascade_", "poll", "select")) and "signal 9" not in text:
                    for pid in later_children(process.pid):
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(pid, signal.SIGKILL)
            self.assertEqual(process.wait(SLOW_S), 1, text)
        found = rows(text)
        self.assertEqual(set(found), CASES)
        failed = [row for row in found.values() if row[4] == "1"]
        self.assertEqual([row[6] for row in failed], ["# it was ended by signal 9"])

    def test_a_case_that_does_not_end_fails_in_its_row_and_the_others_run(self) -> None:
        with running("libmicro", "--threads", "kernel", "--seconds", "0.1") as process:
            # A child may end before the signal comes. Then the next one is stopped.
            wait_until(lambda: any(stop(pid) for pid in children(process.pid)), "no process")
            text, _ = process.communicate(timeout=SLOW_S)
            self.assertEqual(process.returncode, 1)
        found = rows(text)
        self.assertEqual(set(found), CASES)
        failed = {case for case, row in found.items() if row[4] == "1"}
        self.assertEqual([found[case][6] for case in failed], ["# it did not end in time"])
        for case in CASES - failed:
            self.check_row(case, found[case], 1)


class Checks(unittest.TestCase):
    def test_a_call_that_does_not_do_what_it_reports_fails_the_run(self) -> None:
        library = BUILD / "tests" / "e2e" / "lies.so"
        if not library.exists():
            self.skipTest("not run: the library of wrong results is not in this build")
        for words, (lie, failed) in LIES.items():
            with self.subTest(words=words):
                done = subprocess.run(
                    [str(PROGRAM), *words.split(), "--threads", "kernel", "-n", "2000"],
                    env={**os.environ, "LD_PRELOAD": str(library.resolve()), "LIE": lie},
                    capture_output=True,
                    text=True,
                    timeout=SLOW_S,
                    check=False,
                )
                self.assertEqual((done.returncode, done.stdout), (1, ""))
                case = words.split()[0]
                self.assertRegex(
                    done.stderr, f"^rouse-bench: {case}: {re.escape(failed)} failed: .*\n$"
                )


class Processes(unittest.TestCase):
    def report(self, *words: str) -> dict[str, Any]:
        done = bench(*words, "--json")
        self.assertEqual(done.returncode, 0, f"{words}: {done.stderr}")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def test_every_operation_of_every_process_is_counted(self) -> None:
        for case in ("getpid", "pipe", "mutex", "cascade_flock", "pthread_create"):
            for words in (("--processes", "3", "-T", "2"), ("--processes=2",)):
                with self.subTest(case=case, words=words):
                    report = self.report(case, "--threads", "kernel", *words, "-n", "600")
                    members = report["P"] * report["T"]
                    self.assertEqual(sum(report["ops_per_worker"]), report["total_ops"])
                    self.assertEqual(report["ops"], 600)
                    call = report["ns_per_op"] * members / 1000
                    self.assertAlmostEqual(report["usecs_per_call"], call, delta=call / 1000)

    def test_every_process_keeps_to_the_processors_of_workers(self) -> None:
        words = ("--threads", "kernel", "--processes", "4", "--workers", "1", "-n", "40000")
        report = self.report("getpid", *words)
        self.assertEqual(len([ops for ops in report["ops_per_worker"] if ops]), 1)

    def test_bytes_come_back_from_each_partner_through_each_transport(self) -> None:
        for kind in ("user", "kernel"):
            for mode, transport in itertools.product(("st", "mt", "mp"), ("pipe", "sock", "tcp")):
                words = ("--threads", kind, "--mode", mode, "--transport", transport)
                size = ("-T", "3", "--processes", "2", "--bytes", "3000")
                with self.subTest(words=words):
                    report = self.report("pipe", *words, *size, "-n", "60", "--samples", "2")
                    self.assertEqual(report["total_ops"], 120)

    def test_a_partner_process_that_dies_is_an_error_of_the_pipe(self) -> None:
        for kind in ("user", "kernel"):
            words = ("pipe", "--threads", kind, "--mode", "mp", "--seconds", "600")
            with self.subTest(kind=kind), running(*words, "--samples", "1000") as process:
                wait_until(lambda: bool(children(process.pid)), "no partner")
                os.kill(min(children(process.pid)), signal.SIGKILL)
                out, err = process.communicate(timeout=SLOW_S)
                self.assertEqual((process.returncode, out), (1, ""))
                self.assertRegex(err, "^rouse-bench: pipe: (read|write) failed: Broken pipe\n$")

    def test_the_columns_count_processes_of_the_herds_too(self) -> None:
        sizes = {
            "selectherd": ("--processes", "-T", "4"),
            "acceptherd": ("--servers", "3", "-T", "2"),
        }
        wanted = {"selectherd": ["4", "1"], "acceptherd": ["3", "2"]}
        for case, words in sizes.items():
            done = bench(case, "--threads", "kernel", *words, "--samples", "1", "-n", "40")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(rows(done.stdout)[case][:2], wanted[case])

    def test_a_process_that_dies_ends_the_run_with_one_line(self) -> None:
        for case in ("getpid", "cascade_fcntl", "semop"):
            words = ("--threads", "kernel", "--processes", "3", "--seconds", "600")
            with self.subTest(case=case), running(case, *words, "--samples", "1000") as process:
                pids = wait_for_processes(process.pid, 2)
                os.kill(min(pids), signal.SIGKILL)
                out, err = process.communicate(timeout=SLOW_S)
                self.assertEqual((process.returncode, out), (1, ""))
                self.assertEqual(err, f"rouse-bench: {case}: a process of the run has died\n")
                wait_for_end(pids)

    def test_a_token_that_stands_still_ends_the_run(self) -> None:
        words = ("cascade_lockf", "--threads", "kernel", "--processes", "3", "--seconds", "600")
        with running(*words, "--samples", "1000") as process:
            os.kill(min(wait_for_processes(process.pid, 2)), signal.SIGSTOP)
            _, err = process.communicate(timeout=SLOW_S)
            self.assertEqual(process.returncode, 1)
            self.assertRegex(err, "^rouse-bench: cascade_lockf: passing the token failed: .*\n$")


class Interrupts(unittest.TestCase):
    def test_an_interrupt_leaves_no_process_and_no_semaphores(self) -> None:
        threads = 20 + os.getpid() % 100  # other programs have sets of other sizes
        size = ("-T", str(threads), "--processes", "3")
        runs = {
            "SIGINT": ("semop", "--threads", "user", *size),
            "SIGTERM": ("semop", "--threads", "kernel", *size),
            "SIGHUP": ("cascade_cond", "--threads", "kernel", *size),
        }
        for name, words in runs.items():
            number = signal.Signals[name]
            with self.subTest(signal=name), running(*words, "--seconds", "600") as process:
                pids = wait_for_processes(process.pid, 2)
                os.kill(process.pid, number)
                self.assertEqual(process.wait(SLOW_S), -number)
                wait_for_end(pids)
                self.assertEqual(sets_of(3 * threads), 0)

    def test_the_processes_of_all_cases_end_with_the_run(self) -> None:
        words = ("libmicro", "--threads", "kernel", "--processes", "2", "--seconds", "600")
        with running(*words, "--samples", "1000") as process:
            wait_until(lambda: len(descendants(process.pid)) == 2, "no processes")
            pids = descendants(process.pid)
            os.kill(process.pid, signal.SIGINT)
            self.assertEqual(process.wait(SLOW_S), -signal.SIGINT)
            wait_for_end(pids)


class Statistics(unittest.TestCase):
    def test_the_text_has_the_statistics_of_libmicro(self) -> None:
        done = bench("getpid", "--threads", "kernel", "--samples", "60", "-n", "20")
        self.assertEqual(done.returncode, 0, done.stderr)
        values = {}
        for name in STATISTICS:
            found = re.search(rf"^# +{name} +(\S+) +(\S+)$", done.stdout, re.MULTILINE)
            assert found, f"{name}: {done.stdout}"
            values[name] = (float(found[1]), float(found[2]))
        for which in (0, 1):
            ordered = [values[name][which] for name in ("min", "median", "max")]
            self.assertEqual(ordered, sorted(ordered))
        self.assertLessEqual(values["max"][1], values["max"][0])
        outliers = re.search(r"number of outliers +(\d+)", done.stdout)
        samples = re.search(r"number of samples +(\d+)", done.stdout)
        assert outliers and samples
        self.assertEqual(int(samples[1]), 60)
        self.assertEqual(rows(done.stdout)["getpid"][3], "60")
        shown = done.stdout.split("# DISTRIBUTION")[1]
        counts = [int(n) for n in re.findall(r"^# +(\d+) +\S.*\|", shown, re.MULTILINE)]
        self.assertEqual(sum(counts), 60)


def line(case: str, samples: Sequence[float], **fields: object) -> str:
    """A line as --json prints it, with these samples."""
    known = {"case": case, "threads": "kernel", "workers": 2, "P": 1, "T": 1, **fields}
    return json.dumps({**known, "sample_ns": samples})


class Comparison(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def file(self, name: str, text: str) -> str:
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def compare(self, a: str, b: str) -> subprocess.CompletedProcess[str]:
        return bench("compare", self.file("a", a), self.file("b", b))

    def shown(self, a: str, b: str) -> dict[str, list[str]]:
        done = self.compare(a, b)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return rows(done.stdout)

    def test_two_real_runs_have_a_ratio_within_its_interval(self) -> None:
        files = []
        for name in ("a", "b"):
            done = bench("libmicro", "--threads", "user", "--json", "--samples", "4", "-n", "24")
            self.assertEqual(done.returncode, 0, done.stderr)
            files.append(self.file(name, done.stdout))
        done = bench("compare", *files)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = {text.split()[0]: text.split() for text in done.stdout.splitlines()}
        for case in CASES:
            row = found[case]
            if case in FORKS:
                self.assertEqual(row[4:], ["-", "-", "-", "-"])
            elif len(row) == 10:  # four samples, unless --seconds ended the run before
                low, ratio, high = float(row[7]), float(row[6]), float(row[9])
                self.assertTrue(low <= ratio <= high, row)

    def test_the_ratio_and_its_interval_are_those_of_the_ranks(self) -> None:
        a = [100, 101, 102, 103, 104]
        b = [2 * value for value in a]
        row = self.shown(line("getpid", a, usecs_per_call=1), line("getpid", b))["getpid"]
        pairs = sorted(y / x for x in a for y in b)
        # 5 and 5 samples: mean 12.5, standard deviation 4.787; the interval begins at rank 3.
        low, high = pairs[2], pairs[-3]
        self.assertEqual(row[:6], ["1", "1", "kernel", "0.10200", "0.20400", "2.000"])
        self.assertEqual(row[6].split(), [f"{low:.3f}", "to", f"{high:.3f}"])

    def test_lines_of_one_case_are_taken_together(self) -> None:
        several = "\n".join(line("pipe", [value]) for value in (10, 20, 30, 40))
        row = self.shown(several, line("pipe", [10, 20, 30, 40]))["pipe"]
        self.assertEqual(row[3:6], ["0.02500", "0.02500", "1.000"])

    def test_a_call_of_several_threads_is_as_long_as_in_its_thread(self) -> None:
        fields = {"P": 3, "T": 2, "usecs_per_call": 1}
        row = self.shown(line("pipe", [1000], **fields), line("pipe", [1000], **fields))["pipe"]
        self.assertEqual(row[3:5], ["6.00000", "6.00000"])

    def test_a_case_of_one_file_and_too_few_samples_have_no_interval(self) -> None:
        a = f"{line('read', [1, 2, 3])}\n{line('write', [5])}\n"
        found = self.shown(a, line("read", [1, 2, 3]) + "\n" + line("poll", [7]))
        self.assertEqual(found["read"][6].split()[0], "-")
        self.assertEqual(found["write"][3:5], ["0.00500", "-"])
        self.assertEqual(found["poll"][3:5], ["-", "0.00700"])

    def test_a_case_of_other_threads_is_a_pair_if_each_file_has_one(self) -> None:
        """Kernel threads beside user threads, as two files of the whole suite have them."""
        for fields, names in (
            ({"T": 2}, ["1", "1/2", "kernel"]),
            ({"P": 3, "threads": "user"}, ["1/3", "1", "kernel/user"]),
        ):
            found = self.shown(line("read", [1000]), line("read", [3000], **fields))["read"]
            self.assertEqual((found[:3], found[5]), (names, "3.000"))
        several = f"{line('read', [1], T=2)}\n{line('read', [1], T=3)}"
        done = self.compare(line("read", [1]), several)
        self.assertEqual(len([t for t in done.stdout.splitlines() if t.startswith("read")]), 3)

    def test_a_bad_file_is_refused_in_one_line(self) -> None:
        good = line("getpid", [1, 2, 3, 4])
        bad = {
            "": "no results",
            "\n\n": "no results",
            "getpid 1 1 0.5": "b:1: not a result",
            good + "\n{": "b:2: not a result",
            good[:-1]: "not a result",
            good + "x": "not a result",
            good.replace("kernel", "ker\\\\nel"): "not a result",
            good.replace("[1,", "[1 "): "not a result",
            good.replace("[1,", "[-1,"): "above 0",
            good.replace("[1,", "[nan,"): "not a result",
            good.replace("[1,", "[1e999,"): "not a result",
            good.replace('"T": 1', '"T": 0'): "without",
            good.replace('"case"', '"name"'): "without",
            good.replace('"getpid"', "[1]"): "without",
            good + "\0": "byte of 0",
            line("getpid", [1.0] * 1001): "not a result",
            "\n".join([line("getpid", [1.0] * 1000)] * 5): "b:5: too many samples",
            "\n".join(line(f"c{i}", [1.0]) for i in range(1025)): "b:1025: too many cases",
            "[" * 100000: "not a result",
        }
        for text, word in bad.items():
            with self.subTest(word=word, text=text[:80]):
                done = self.compare(good, text)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
                self.assertIn(word, done.stderr)

    def test_a_file_that_cannot_be_read_and_a_wrong_number_of_files(self) -> None:
        good = self.file("good", line("getpid", [1]))
        for words in ((), (good,), (good, good, good), (good, "/none"), (good, str(self.folder))):
            with self.subTest(words=words):
                done = bench("compare", *words)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)


if __name__ == "__main__":
    if not PROGRAM.exists():
        print(f"not run: no {PROGRAM}")
        sys.exit(77)
    unittest.main(verbosity=2)
