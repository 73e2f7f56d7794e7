#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` names the Python functions that run. The oracle: the program's own clock."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest import mock

from common import here, main_unless, rouse

from interposed import LIBRARY
from known_tables import HOST, PROCESSES, orders

from rouse.clock import NS
from rouse.errors import RouseError
from rouse.query import interpreter, ran, summary
from rouse.query.ran import PythonStack, Running
from rouse.sched import cpu_samples, procfs, python_samples
from rouse.sched.cpu_samples import Ran
from rouse.sched.python_samples import (
    INTERPRETER,
    PER_S,
    PythonRun,
    PythonSampler,
    Sampling,
    parsed,
)
from rouse.tables import engine

PYTHON = "/usr/bin/python3"
SIGMAS = 4  # of the number of samples, which is binomial
PROGRAM = """
import sys, threading, time
spent = {"heavy": 0.0, "light": 0.0}
def heavy():
    began = time.thread_time()
    sum(i * i for i in range(30000))
    spent["heavy"] += time.thread_time() - began
def light():
    began = time.thread_time()
    json_like = [str(i) for i in range(4000)]
    spent["light"] += time.thread_time() - began
def work(until):
    while time.monotonic() < until:
        heavy()
        light()
def main(threads, seconds):
    until = time.monotonic() + seconds
    team = [threading.Thread(target=work, args=(until,)) for _ in range(threads)]
    for one in team:
        one.start()
    for one in team:
        one.join()
    print(*(word for pair in spent.items() for word in pair))
main(int(sys.argv[1]), float(sys.argv[2]))
"""


def script(folder: Path, name: str, text: str) -> str:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


class Programs(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.program = self.folder / "totals.py"
        self.program.write_text(PROGRAM, encoding="utf-8")

    def run_it(self, threads: int, seconds: float) -> tuple[dict[str, Any], dict[str, float]]:
        words = ("run", "--json", "-o", self.folder / "report", "--keep", self.folder / "kept")
        program = (PYTHON, self.program, str(threads), str(seconds))
        done = rouse(*words, "--", *program, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        said = done.stdout.split()
        report = json.loads((self.folder / "report").read_text(encoding="ascii"))
        return report, dict(zip(said[::2], map(float, said[1::2]), strict=True))

    def test_the_interpreter_lock_has_the_function_that_holds_it(self) -> None:
        report, spent = self.run_it(4, 3)
        [finding] = (f for f in report["verdict"]["findings"] if f["kind"] == "interpreter-lock")
        self.assertEqual(finding["holder"], "heavy totals.py")
        rows = {row["label"]: row for row in report["sections"]["python_sites"]}
        count = sum(row["samples"] for row in rows.values())
        part = spent["heavy"] / sum(spent.values())
        error = SIGMAS * (part * (1 - part) / count) ** 0.5
        self.assertAlmostEqual(rows["heavy totals.py"]["share"], part, delta=error)
        self.assertEqual(
            set(rows) - {"work totals.py", "main totals.py"},
            {
                "heavy totals.py",
                "light totals.py",
            },
        )

    def test_a_program_that_computes_in_one_thread_has_its_function(self) -> None:
        report, _ = self.run_it(1, 2)
        rows = report["sections"]["python_sites"]
        self.assertEqual(rows[0]["label"], "heavy totals.py")
        done = here("report", "--json", self.folder / "kept")
        again = json.loads(done.stdout)
        self.assertEqual(again["verdict"], report["verdict"])
        self.assertEqual(again["sections"]["python_sites"], rows)


def only(pid: int) -> Callable[[], Iterable[int]]:
    return lambda: [pid]


class Samples(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def spinning(self) -> int:
        """Start a Python process that uses its processor until the end of the test."""
        process = subprocess.Popen([PYTHON, "-c", "while True: pass"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while python_samples.used(process.pid)[0] < python_samples.LEAST_NS:
            os.sched_yield()
        return process.pid

    def sampled(self, tool: str | None, pid: int) -> tuple[list[PythonRun], str]:
        sampler = PythonSampler(lambda: [pid])
        sampler.next_s = 0
        with (
            mock.patch.object(python_samples, "tool", return_value=tool),
            mock.patch.object(python_samples, "END_S", 0.1),
        ):
            sampler.look()
            return sampler.stop()

    def test_processes_of_a_program_in_sum_have_the_samples_of_each(self) -> None:
        runs = [PythonRun(pid, 3, ("get (cache.py:7)",), is_of_all=True) for pid in (11, 12, 13)]
        database = engine.open_tables(orders(processes=[{**PROCESSES[0], "pid": 11}]))
        self.addCleanup(database.close)
        name = HOST
        sampled = ran.make(Ran(python=runs), database, {11: name, 12: name})
        self.assertEqual([stack.process for stack in sampled.python_all], [name, name])

    def test_a_tool_that_is_missing_fails_or_hangs_is_named(self) -> None:
        pid = self.spinning()
        fails = script(self.folder, "fails", 'echo "Error: no such process" >&2; exit 1')
        hangs = script(self.folder, "hangs", 'trap "" INT; while :; do sleep 1; done')
        self.assertEqual(self.sampled(None, pid), ([], "py-spy is not installed"))
        self.assertEqual(self.sampled(fails, pid), ([], "py-spy: no such process"))
        self.assertEqual(self.sampled(hangs, pid), ([], ""))
        found, why = self.sampled("/nowhere/py-spy", pid)
        self.assertEqual((found, why), ([], "/nowhere/py-spy: No such file or directory"))

    def test_all_threads_are_sampled_from_the_second_look_on(self) -> None:
        """Also a process with one thread, which may wait for others."""
        process = subprocess.Popen([PYTHON, "-c", "import time; time.sleep(60)"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while not procfs.has_mapped(process.pid, INTERPRETER):
            os.sched_yield()
        sampler = PythonSampler(only(process.pid))
        for look, begun in ((1, 0), (2, 1), (3, 1)):
            sampler.next_s = 0
            with mock.patch.object(python_samples, "tool", return_value="/bin/true"):
                sampler.look()
            self.assertEqual(len(sampler.running), begun, look)
        self.assertTrue(all(each.is_of_all for each in sampler.running))
        sampler.stop()

    def test_a_run_that_may_be_short_is_looked_at_sooner(self) -> None:
        sampler = PythonSampler(lambda: ())
        with mock.patch("time.monotonic", return_value=100.0):
            for begun_s, every_s in (
                (100.0, python_samples.FIRST_EVERY_S),
                (99.0, python_samples.EVERY_S),
            ):
                sampler.begun_s, sampler.next_s = begun_s, 0.0
                self.assertAlmostEqual(sampler.look(), every_s)

    def test_many_threads_are_sampled_at_a_lower_rate(self) -> None:
        """Each sample counts for several then: the shares stay."""
        writes = script(self.folder, "writes", 'trap "" INT; echo "f (/a/b.py:3) 4" > "${14}"')
        sampler = PythonSampler(only(os.getpid()))
        with mock.patch.object(python_samples, "tool", return_value=writes):
            for threads, rates in (
                (65, []),
                (2, [10]),
                (10, [10]),
                (11, [10, 5]),
                (16, [10, 5]),
                (17, [10, 5, 1]),
                (2, [10, 5, 1]),
                (65, [10, 5, 1]),
            ):
                sampler.begin(os.getpid(), True, threads)
                self.assertEqual([each.rate for each in sampler.running], rates, threads)
                while sampler.running and not os.fstat(sampler.running[-1].stacks).st_size:
                    os.sched_yield()
            self.assertEqual([each.is_over for each in sampler.running], [True] * 3)
            for sampling in sampler.running:
                sampling.process.wait()
            found, why = sampler.stop()
            self.assertEqual(why, "")
            sampler = PythonSampler(only(os.getpid()))
            sampler.begin(os.getpid(), True, 65)
            self.assertEqual(sampler.stop(), ([], "a process had more than 64 threads"))
        self.assertEqual(
            [(run.count, run.is_of_all) for run in found], [(count, True) for count in (4, 8, 40)]
        )

    def test_a_process_that_becomes_python_by_exec_is_sampled(self) -> None:
        """As by a script that starts it, which may take its time before."""
        wrapper = script(self.folder, "wrapper", f'read line; exec {PYTHON} -c "while True: pass"')
        process = subprocess.Popen([wrapper], stdin=subprocess.PIPE)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        sampler = PythonSampler(only(process.pid))
        with mock.patch.object(python_samples, "tool", return_value="/bin/true"):
            for _ in range(procfs.Mapped.LOOKS + 5):
                sampler.next_s = 0
                sampler.look()
            self.assertEqual(sampler.running, [])
            assert process.stdin
            process.stdin.close()
            while python_samples.used(process.pid)[0] < python_samples.LEAST_NS:
                os.sched_yield()
            sampler.next_s = 0
            sampler.look()
        self.assertEqual(len(sampler.running), 1)
        sampler.stop()

    def test_other_programs_are_not_sampled(self) -> None:
        self.assertFalse(procfs.has_mapped(1, INTERPRETER))
        self.assertTrue(procfs.has_mapped(os.getpid(), INTERPRETER))
        for mapped, is_python in (
            ("/usr/bin/python3.11", True),
            ("/opt/lib/libpython3.13t.so.1.0", True),
            ("/usr/lib/python3.11/lib-dynload/_json.so", False),
            ("/usr/bin/python3.11-config", False),
        ):
            line = f"7f00-7f10 r-xp 00000000 08:01 1234      {mapped}\n"
            self.assertEqual(bool(INTERPRETER.search(line)), is_python, mapped)

    def test_the_function_is_the_program_s_own(self) -> None:
        for frames, function in (
            (("f (/a/b.py:3)",), "f b.py"),
            (("f.<locals>.<genexpr> (/a/b.py:3)", "f (/a/b.py:3)"), "f b.py"),
            (("<module> (/a/b.py:3)",), "<module> b.py"),
            (("<lambda> (/a/b.py:3)",), "<lambda> b.py"),
            (
                ("iterencode (/usr/lib/python3.11/json/encoder.py:257)", "A.f (/a/b.py:9)"),
                "A.f b.py",
            ),
            (("_find (<frozen importlib._bootstrap>:9)", "g (/a/b.py:9)"), "g b.py"),
            (("wait (/usr/lib/python3.11/threading.py:324)",), "wait threading.py"),
            (("no place", "f (/a/b.py:3)"), "f b.py"),
            (("\x1b[2Jno place",), "\\x1b[2Jno place"),
        ):
            self.assertEqual(PythonStack("p", 1, frames).function, function)
        self.assertEqual(PythonStack("p", 1, ("f (/a/b.py:3)",)).place, ("f b.py", "f b.py:3"))

    def test_damaged_output_of_the_tool_is_left_out(self) -> None:
        text = "a (/x.py:1);b (/x.py:2) 3\n\nno count\n 7\nc (/x.py:1) 99999999999999999999x\n"
        self.assertEqual(parsed(9, text), [PythonRun(9, 3, ("a (/x.py:1)", "b (/x.py:2)"))])

    def test_damaged_samples_are_refused(self) -> None:
        path = self.folder / "cpu.samples"
        runs = [PythonRun(9, 3, ("a (/x.py:1)",)), PythonRun(9, 2, ("b (/x.py:2)",), True)]
        kept = Ran(python=runs, python_why="it is not there")
        cpu_samples.write(kept, path)
        self.assertEqual(cpu_samples.read(path), kept)
        for line in ('["python", 1, 0, ["a"]]', '["python", 1, 1, []]', '["python", 1]'):
            path.write_text(f"{line}\n", encoding="ascii")
            with self.assertRaises(RouseError):
                cpu_samples.read(path)

    def test_the_verdict_of_a_busy_program_has_the_function(self) -> None:
        """Unless the interpreter lock was not held for most of the time: a library computed."""
        samples = 2 * PER_S
        stacks = [PythonStack("p", samples, ("f (/a/b.py:3)",))]
        for cpu_s, is_named in ((2, True), (5, False)):
            program = mock.Mock(ran_ns=cpu_s * NS)
            said = summary.where_busy(program, Running(1, python=stacks))
            self.assertEqual("100 % of it in f b.py" in said, is_named)

    def test_why_no_function_is_known_is_said(self) -> None:
        few = [PythonStack("p", ran.PYTHON_TELLING - 1, ("f (/a/b.py:3)",))]
        why = Running(1, python=few, python_why="py-spy is not installed")
        said = interpreter.holder("p", why)[1]
        self.assertIn("not known: py-spy is not installed", said)
        self.assertEqual(interpreter.holder("p", Running(1, python=few)), ("", ""))
        self.assertEqual(interpreter.holder("p", None), ("", ""))


class Sampler(unittest.TestCase):
    def test_the_terminal_s_signals_are_for_the_program(self) -> None:
        process = subprocess.Popen([PYTHON, "-c", "while True: pass"])
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        tool = python_samples.tool()
        assert tool
        sampling = Sampling(tool, process.pid)
        self.assertNotEqual(os.getpgid(sampling.process.pid), os.getpgid(0))
        sampling.stop()
        self.assertIsNotNone(sampling.process.returncode)


if __name__ == "__main__":
    main_unless("" if python_samples.tool() else "py-spy is not installed")
