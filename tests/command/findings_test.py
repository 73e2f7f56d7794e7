#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The verdict of `rouse run` on the programs of tests/findings: each planted fault, and no other.

The gain of each repair is measured by the programs themselves, without rouse. The verdict's upper
bound must not be below it, and its estimate must be near it. Both allow for the noise of short
measurements on a shared machine; bench/findings.py measures for longer.
"""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

from common import BUILD, COMMAND, SOURCE, here, main_unless

import planted
from interposed import LIBRARY
from planted import Planted

PROGRAMS = BUILD / "tests" / "findings"
VARIABLES = {"ROUSE_PRELOAD": str(LIBRARY), "PYTHONPATH": str(SOURCE)}
RECORDED_S = 0.6
# Short runs in turn, since the load of the machine changes.
MEASURED_S, ROUNDS = 0.3, 3
EXACT = 0.1  # of a wait, by the program's clock and by the recording's
NEAR = 1.3  # ratio of an estimate to the gain, or the reverse
# Of a processor, that other programs may use while a verdict is made, which counts them as a limit.
OTHERS_MOST = 0.2
ATTEMPTS = 3
NOISE = 1.15  # ratio of a measured gain to the gain, or the reverse


@dataclass(frozen=True)
class Recorded:
    verdict: planted.Verdict | None
    printed: list[str]  # the lines of the text
    others: float  # processors that other programs used meanwhile


def busy_s() -> tuple[float, float]:
    """The time that all processors were busy or taken away, and that of our own programs."""
    user, nice, system, _idle, _wait, *rest = (
        int(word) for word in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]
    )
    own = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    ticks = user + nice + system + sum(rest)
    return ticks / os.sysconf("SC_CLK_TCK"), sum(each.ru_utime + each.ru_stime for each in own)


def run_here(
    words: Sequence[str | Path], variables: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run the command in this process, which keeps its modules and the libraries' symbols.

    The output of the program that it runs is added to its own.
    """
    sys.stdout.flush()
    before = os.dup(1)
    with tempfile.TemporaryFile("w+", dir=BUILD, encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        try:
            done = here(*words, **variables)
        finally:
            os.dup2(before, 1)
            os.close(before)
        file.seek(0)
        done.stdout = file.read() + done.stdout
    return done


def record(program: Planted, *words: str) -> Recorded:
    with tempfile.TemporaryDirectory(dir=BUILD) as place:
        begin, (all_s, own_s) = time.monotonic(), busy_s()
        report = planted.report(
            run_here,
            planted.command(program.name, PROGRAMS),
            *words,
            str(max(RECORDED_S, program.recorded_s)),
            scratch=Path(place),
            **VARIABLES,
        )
        wall_s, (all_after_s, own_after_s) = time.monotonic() - begin, busy_s()
        # The text has what the report has, which one run of each program shows.
        printed = [] if words else planted.printed(run_here, Path(place), **VARIABLES)
    others_s = (all_after_s - all_s) - (own_after_s - own_s)
    return Recorded(planted.verdict(report), printed, others_s / wall_s)


@cache
def recorded(program: Planted, *words: str) -> Recorded:
    """One run for all tests of the program. It is repeated if other programs used the machine."""
    for _ in range(ATTEMPTS):
        found = record(program, *words)
        if found.others <= OTHERS_MOST:
            break
    return found


class Verdict(unittest.TestCase):
    def found(self, program: Planted, *words: str) -> planted.Verdict:
        """Skips the rest of the test where there is no program, or no verdict."""
        if why := planted.why_not(planted.command(program.name, PROGRAMS)):
            self.skipTest(f"not run: {why}")
        found = recorded(program, *words)
        if found.verdict is None:
            self.skipTest("not run: the report has no verdict")
        if found.others > OTHERS_MOST:
            self.skipTest(f"not run: other programs use {found.others:.1f} processors")
        return found.verdict

    def check_gain(self, program: Planted) -> None:
        """Compare the gain that the first finding states with the gain that was measured.

        On a noisy machine, a bound that even the least ratio exceeds is wrong too.
        """
        found = self.found(program)
        first = found.first or {}
        most, estimate = first.get("gain_most"), first.get("gain")
        stated = "" if most is None else "bound" if estimate is None else "estimate"
        self.assertEqual(program.predicts, stated)
        if most is None:
            return
        with tempfile.TemporaryDirectory(dir=BUILD) as place:  # a disk, since journal syncs
            path = planted.command(program.name, PROGRAMS)
            measured = planted.gain(path, MEASURED_S, ROUNDS, Path(place))
        figures = f"measured {measured}, at most {most:.2f}, estimate {estimate}"
        print(f"{program.name}: {figures}", flush=True)
        if measured.is_noisy:
            print("not run: the machine is too noisy to judge the estimate", flush=True)
            if estimate is None:  # its time is the disk's, which other programs use too
                return
            self.assertGreaterEqual(NOISE * most, min(measured.ratios), figures)
            return
        self.assertGreaterEqual(NOISE * most, measured.median, figures)
        if estimate is None:
            return
        self.assertLessEqual(estimate, NEAR * NOISE * measured.median, figures)
        self.assertGreaterEqual(estimate, measured.median / NEAR / NOISE, figures)

    def test_the_place_of_the_wait_under_a_lock_is_named(self) -> None:
        for name, does, place in (
            ("sensors", "sleeps", "read_sensor sensors.c:"),
            ("journal", "waits for I/O", "append_record journal.c:"),
            ("bank", "sleeps", "Bank::archive bank.cpp:"),
        ):
            (program,) = (each for each in planted.programs() if each.name == name)
            first = self.found(program).first or {}
            self.assertIn(f"while its holder {does} at {place}", first["text"])

    def test_processes_in_sum_have_the_findings_that_need_call_stacks(self) -> None:
        for name in ("connection_pool", "dispatch"):
            (program,) = (each for each in planted.programs() if each.name == name)
            self.found(program)  # or the test is skipped
            with tempfile.TemporaryDirectory(dir=BUILD) as place:
                file = Path(place) / "report.json"
                words = ("run", "--sum", "--json", "-o", file, "--", PROGRAMS / name, "0.5")
                done = planted.runs(COMMAND)(words, VARIABLES)
                self.assertEqual(done.returncode, 0, done.stderr)
                (first, *_) = json.loads(file.read_text("utf-8"))["verdict"]["findings"]
            self.assertEqual(first["kind"], program.kind)

    def test_threads_that_end_one_after_another_gain_what_the_repair_of_the_example_gains(
        self,
    ) -> None:
        """Threads with a fixed number of requests, of which those that have the lock keep it."""
        source = (SOURCE / "examples" / "one_lock.c").read_text(encoding="utf-8")
        asleep = re.search(r" +usleep[^\n]+\n", source)
        assert asleep
        unlock = "        pthread_mutex_unlock(&cache_lock);\n"
        repaired = source.replace(asleep[0] + unlock, unlock + asleep[0])
        self.assertNotEqual(source, repaired)
        with tempfile.TemporaryDirectory(dir=BUILD) as place:
            programs = [Path(place) / "faulty", Path(place) / "repaired"]
            for program, text in zip(programs, (source, repaired), strict=True):
                line = ("cc", "-g", "-pthread", "-o", program, "-xc", "-")
                subprocess.run(line, input=text, text=True, check=True, timeout=planted.LIMIT_S)
            file = Path(place) / "report.json"
            done = run_here(("run", "--json", "-o", file, "--", programs[0]), VARIABLES)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            (found, *_) = json.loads(file.read_text(encoding="utf-8"))["verdict"]["findings"]
            took_s = []
            for program in programs:
                begin = time.monotonic()
                subprocess.run([program], check=True, timeout=planted.LIMIT_S)
                took_s.append(time.monotonic() - begin)
        gained = took_s[0] / took_s[1]
        figures = f"measured {gained:.2f}, {found['gain']:.2f}, at most {found['gain_most']:.2f}"
        self.assertGreaterEqual(NOISE * found["gain_most"], gained, figures)
        self.assertLess(max(found["gain"] / gained, gained / found["gain"]), NEAR * NOISE, figures)

    def test_an_acquisition_takes_less_without_the_waits_by_what_the_program_measured(self) -> None:
        (program,) = (each for each in planted.programs() if each.name == "tickets")
        self.found(program)  # or the test is skipped
        with tempfile.TemporaryDirectory(dir=BUILD) as place:
            file = Path(place) / "report.json"
            words = ("run", "--json", "-o", file, "--", PROGRAMS / program.name, "1")
            done = planted.runs(COMMAND)(words, {**VARIABLES, "PRINT_WAIT": "1"})
            self.assertEqual(done.returncode, 0, done.stderr)
            report = json.loads(file.read_text(encoding="utf-8"))
        measured = float(done.stderr.removesuffix(" ns\n"))
        (stated,) = (
            finding["sooner_ns"]
            for finding in report["verdict"]["findings"]
            if finding["object"] == program.object
        )
        self.assertAlmostEqual(stated / measured, 1, delta=EXACT, msg=f"{stated}, {measured}")


def test_of(program: Planted) -> None:
    """Add the tests of a program, so that each fails by itself."""

    def test_finding(self: Verdict) -> None:
        self.assertEqual(program.differences(self.found(program)), [])

    def test_text(self: Verdict) -> None:
        stated = self.found(program)
        self.assertEqual(stated.missing(recorded(program).printed), [])

    def test_gain(self: Verdict) -> None:
        self.check_gain(program)

    def test_repaired(self: Verdict) -> None:
        self.assertNotIn(program.kind, self.found(program, "fixed").kinds())

    if program.cured:
        setattr(Verdict, f"test_repaired_{program.name}", test_repaired)
    what = "healthy" if program.healthy else "finding"
    setattr(Verdict, f"test_{what}_{program.name}", test_finding)
    if not program.healthy:
        setattr(Verdict, f"test_gain_{program.name}", test_gain)
    setattr(Verdict, f"test_text_{program.name}_has_the_verdict", test_text)


for each in planted.programs():
    test_of(each)


class Programs(unittest.TestCase):
    def test_every_source_has_an_expected_finding(self) -> None:
        sources = {path.stem for path in planted.sources()}
        self.assertEqual({program.name for program in planted.programs()}, sources)

    def test_functions_named_in_the_table_are_in_the_source(self) -> None:
        for program in planted.programs():
            (source,) = (path for path in planted.sources() if path.stem == program.name)
            text = source.read_text(encoding="utf-8")
            for label in filter(None, (program.waiter, program.holder, program.object)):
                self.assertIn(re.split(r"::|[. ]", label)[-1], text, program.name)


class Comparison(unittest.TestCase):
    """A verdict that is wrong is not accepted."""

    RIGHT: ClassVar = {
        "kind": "wait-under-lock",
        "object": "ledger",
        "waiter": "app::Bank::append bank.cpp:3",
        "holder": "archive bank.cpp:9",
    }
    PROGRAM = Planted("bank", "", "wait-under-lock", "Bank::append", "Bank::archive", "ledger")

    def differences(self, program: Planted, *found: dict[str, str], summary: str = "") -> list[str]:
        return program.differences(planted.Verdict(found, summary))

    def test_right_finding_is_accepted(self) -> None:
        self.assertEqual(self.differences(self.PROGRAM, self.RIGHT), [])
        bound = Planted("checksum", "", "cpu-bound")
        self.assertEqual(self.differences(bound, summary="Nothing to fix [cpu-bound]"), [])

    def test_each_wrong_part_is_named(self) -> None:
        wrong = {
            "kind": "hot-lock",
            "object": "accounts",
            "waiter": "post bank.cpp:3",
            "holder": "not known",
        }
        for key, value in wrong.items():
            (difference,) = self.differences(self.PROGRAM, {**self.RIGHT, key: value})
            self.assertIn(value, difference)

    def test_missing_or_later_finding_is_not_accepted(self) -> None:
        other = {**self.RIGHT, "kind": "herd"}
        self.assertEqual(len(self.differences(self.PROGRAM)), 1)
        self.assertEqual(len(self.differences(self.PROGRAM, other, self.RIGHT)), 1)

    def test_finding_about_a_healthy_program_is_not_accepted(self) -> None:
        healthy = Planted("render_farm", healthy=True, allowed=("cpu-bound",))
        self.assertEqual(self.differences(healthy, summary="Nothing to fix [cpu-bound]"), [])
        self.assertEqual(len(self.differences(healthy, self.RIGHT)), 1)

    def test_second_finding_of_another_kind_is_not_accepted(self) -> None:
        second = {**self.RIGHT, "kind": "polling"}
        self.assertEqual(len(self.differences(self.PROGRAM, self.RIGHT, second)), 1)
        self.assertEqual(self.differences(self.PROGRAM, self.RIGHT, self.RIGHT), [])


if __name__ == "__main__":
    main_unless("")
