#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` on programs of POSIX threads whose waits are known by construction: mutex_cond.c."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import FIXTURES, SOURCE, rouse

from interposed import LIBRARY, Source

from rouse.run import distortion, launch, unseen
from rouse.store import leftovers

MUTEXES = Source("mutex_cond")
PLAIN, KNOWN, label = MUTEXES.program, MUTEXES.known, MUTEXES.label
STATIC, LEDGER = FIXTURES / "mutex_cond_static", FIXTURES / "known_waits"
MS = 1_000_000
NOBODY = 65534
ASKED = unseen.Asked(Path("/dev/shm"), 256)  # the record of a program that is not recorded
MORE_INSTRUCTIONS = 40  # additional instructions per lock and unlock of a free mutex
Row = dict[str, Any]
Report = Mapping[str, Any]


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_it(self, *words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
        return rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), timeout=120, **environment)

    def report(self, *words: str | Path, status: int = 0) -> Report:
        """The report on a run that must end with that status."""
        file = self.folder / "report.json"
        done = self.run_it("--json", "-o", file, "--", *words)
        self.assertEqual((done.returncode, done.stderr), (status, ""))
        found: Report = json.loads(file.read_text(encoding="utf-8"))
        return found

    def sections(self, *words: str | Path, status: int = 0) -> Mapping[str, list[Row]]:
        found: Mapping[str, list[Row]] = self.report(*words, status=status)["sections"]
        return found

    def total(self, found: Mapping[str, list[Row]], **expected: int) -> None:
        row = found["totals"][0]
        self.assertEqual({name: row[name] for name in expected}, expected)


class Mutexes(Case):
    def test_each_waiter_and_its_holder_are_counted(self) -> None:
        found = self.sections(PLAIN, "mutex")
        waiters, hold_ns = KNOWN["WAITERS"], KNOWN["HOLD_MS"] * MS
        self.total(found, wakes=waiters, useful=waiters, lock_waits=waiters)
        (row,) = found["sides"]
        self.assertEqual(row["site_label"], label("pthread_mutex_lock(&hot);"))
        self.assertEqual(row["holder_label"], label("pthread_mutex_lock(&hot); /* by the holder"))
        self.assertEqual(row["contested"], waiters)
        self.assertGreaterEqual(row["wait_ns"], waiters * hold_ns)

    def test_wakers_are_inferred_from_unlocks(self) -> None:
        found = self.sections(PLAIN, "mutex")
        counts = {row["wake_label"]: row["useful"] for row in found["wakes"]}
        self.assertEqual(
            counts,
            {
                label("pthread_mutex_unlock(&hot); /* by the holder"): 1,
                label("pthread_mutex_unlock(&hot); /* by a waiter"): KNOWN["WAITERS"] - 1,
            },
        )

    def test_locks_that_are_given_up_are_counted_by_site(self) -> None:
        found = self.sections(PLAIN, "timed")
        self.total(found, timeout=KNOWN["TIMED"] + KNOWN["CLOCKED"], useful=0)
        self.assertEqual(
            {row["site_label"]: row["given_up"] for row in found["sides"]},
            {
                label("pthread_mutex_timedlock(&hot"): KNOWN["TIMED"],
                label("pthread_mutex_clocklock(&hot"): KNOWN["CLOCKED"],
            },
        )

    def test_types_of_mutexes_return_what_they_return_without(self) -> None:
        done = self.run_it("--", PLAIN, "types")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("no thread waited", done.stderr)

    def test_a_free_mutex_costs_few_instructions(self) -> None:
        if not shutil.which("valgrind"):
            self.skipTest("there is no valgrind")
        keep = {"ROUSE_OBS_DIR": str(self.folder), "ROUSE_OBS_KEEP": "1"}
        self.folder.chmod(0o700)
        per_pair = []
        for preload in ("", str(LIBRARY)):
            environment = {**os.environ, **keep, "LD_PRELOAD": preload}
            counts = [instructions(number, environment) for number in (10_000, 20_000)]
            per_pair.append((counts[1] - counts[0]) / 10_000)
        self.assertLess(per_pair[1] - per_pair[0], MORE_INSTRUCTIONS)


def instructions(locks: int, environment: dict[str, str]) -> int:
    done = subprocess.run(
        [
            "valgrind",
            "--tool=callgrind",
            "--callgrind-out-file=/dev/null",
            PLAIN,
            "many",
            str(locks),
        ],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"Collected : (\d+)", done.stderr)
    assert found
    return int(found[1])


class Conditions(Case):
    def test_a_herd_is_counted_and_so_is_what_nobody_heard(self) -> None:
        found = self.sections(PLAIN, "broadcasts")
        herd, rounds = KNOWN["HERD"], KNOWN["ROUNDS"]
        self.total(
            found,
            signals_unheard=KNOWN["SIGNALS"],
            broadcasts_unheard=KNOWN["BROADCASTS"],
        )
        self.assertEqual([(r["size_from"], r["count"]) for r in found["herds"]], [(herd, rounds)])
        rows = [row for row in found["wakes"] if row["kind"] == "condition"]
        self.assertEqual(
            [(row["wait_label"], row["wake_label"], row["useful"]) for row in rows],
            [(label("/* in a herd"), label("/* to a herd"), herd * rounds)],
        )

    def test_a_thread_that_waits_again_at_once_had_a_spurious_wake_up(self) -> None:
        found = self.sections(PLAIN, "signals")
        rows = [row for row in found["wakes"] if row["kind"] == "condition"]
        self.assertEqual(
            [(r["wait_label"], r["wake_label"], r["useful"], r["false_"]) for r in rows],
            [
                (
                    label("/* for a post"),
                    label("/* a post"),
                    KNOWN["POSTS"] - KNOWN["VAIN"],
                    KNOWN["VAIN"],
                )
            ],
        )
        self.assertGreater(rows[0]["waste_ns"], 0)

    def test_time_outs_are_counted_and_errors_are_not(self) -> None:
        found = self.sections(PLAIN, "timeouts")
        self.total(found, wakes=KNOWN["TIMEOUTS"] + 1, timeout=KNOWN["TIMEOUTS"] + 1)

    def test_a_cancelled_waiter_has_left_the_queue(self) -> None:
        found = self.sections(PLAIN, "cancelled")
        self.total(found, wakes=1, cancelled=1, signals_unheard=1)


class Processes(Case):
    def test_a_child_of_a_fork_has_a_record_of_its_own(self) -> None:
        found = self.report(PLAIN, "fork")
        self.assertEqual(len(found["processes"]), 2)
        self.assertNotIn(leftovers.MARK, " ".join(found["notes"]))
        waits = [row["lock_waits"] for row in found["sections"]["totals"]]
        self.assertEqual(waits, [KNOWN["WAITERS"]] * 2)

    def test_a_process_that_is_left_behind_goes_on_recording(self) -> None:
        fifo, kept = self.folder / "fifo", self.folder / "kept"
        # The first sleep is a recorded wait: the process has a file from then on.
        code = "import os, time; time.sleep(.001); print(os.getpid(), flush=True); time.sleep(600)"
        child = f"{sys.executable} -c '{code}' >{fifo} 2>&1 </dev/null"
        script = f"mkfifo {fifo}; {child} & read pid <{fifo}; echo $pid"
        done = self.run_it("--keep", kept, "--", "sh", "-c", script)
        os.kill(int(done.stdout), signal.SIGKILL)
        self.assertIn(f"1 process runs on: the waits from now on are in {kept}", done.stderr)
        self.assertTrue((kept / f"{int(done.stdout)}.rouse").exists())

    def test_processes_of_one_program_are_summed(self) -> None:
        file = self.folder / "report.json"
        done = self.run_it("--sum", "--json", "-o", file, "--", PLAIN, "fork")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(file.read_text(encoding="utf-8"))
        (process,) = found["processes"]
        self.assertEqual((process["process"], process["program"]), (str(PLAIN.resolve()),) * 2)
        self.assertIn("and 1 processes more", process["command"])
        sections = found["sections"]
        self.total(sections, useful=2 * KNOWN["WAITERS"], lock_waits=2 * KNOWN["WAITERS"])
        (row,) = sections["sides"]
        self.assertEqual(row["contested"], 2 * KNOWN["WAITERS"])
        self.assertEqual(row["site_label"], label("pthread_mutex_lock(&hot);"))
        self.assertEqual(len(sections["threads"]), 2)

    @unittest.skipIf(os.getuid() != 0, "only root can become nobody")
    def test_a_child_that_gives_up_its_user_is_recorded(self) -> None:
        found = self.report(PLAIN, "drop")
        waits = [row["lock_waits"] for row in found["sections"]["totals"]]
        self.assertEqual(waits, [KNOWN["WAITERS"]] * 2)

    def test_processes_without_waits_are_left_out(self) -> None:
        found = self.report("sh", "-c", f"{PLAIN} nothing; {PLAIN} mutex; exit 0")
        self.assertEqual(len(found["processes"]), 1)
        self.assertRegex(" ".join(found["notes"]), "[23] other processes recorded no wait")

    def test_a_wait_that_never_ended_is_reported(self) -> None:
        found = self.sections(PLAIN, "stuck", status=-signal.SIGKILL)
        waiting = [row for row in found["threads"] if row["state"] == "cond"]
        self.assertEqual([row["wait_label"] for row in waiting], [label("/* for ever")])

    def test_a_program_run_by_exec_is_recorded(self) -> None:
        self.total(self.sections(PLAIN, "exec"), lock_waits=KNOWN["WAITERS"])

    def test_what_was_recorded_before__exit_is_there_and_the_wait_that_goes_on_is_too(
        self,
    ) -> None:
        found = self.sections(PLAIN, "_exit", status=9)
        self.total(found, lock_waits=KNOWN["WAITERS"])
        waiting = [row for row in found["threads"] if row["state"] == "cond"]
        self.assertEqual([row["wait_label"] for row in waiting], [label("/* for ever")])

    def test_a_program_killed_by_sigkill_is_reported_and_so_are_we(self) -> None:
        found = self.sections(PLAIN, "kill", status=-signal.SIGKILL)
        self.total(found, lock_waits=KNOWN["WAITERS"])

    def test_librouse_in_the_program_records_and_the_interposer_steps_aside(self) -> None:
        found = self.report(LEDGER)
        self.assertEqual(len(found["processes"]), 1)
        self.assertIn("hot", {row["lock_name"] for row in found["sections"]["sides"]})
        self.assertFalse([note for note in found["notes"] if "rouse run" in note])


class PassedThrough(Case):
    def test_status_and_streams_are_the_program_s(self) -> None:
        for status in (0, 1, 77):
            done = self.run_it(PLAIN, "nothing", str(status))
            self.assertEqual(done.returncode, status)
        piped = subprocess.run(
            [sys.executable, "-m", "rouse", "run", "--", PLAIN, "stdin"],
            input=b"some\0thing\n",
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
        )
        self.assertEqual(piped.stdout, b"some\0thing\n")
        self.assertTrue(piped.stderr.startswith(b"to standard error\n"))

    def test_a_signal_for_us_ends_the_program_and_then_us(self) -> None:
        running = subprocess.Popen(
            [sys.executable, "-m", "rouse", "run", "--", PLAIN, "sleep"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
        )
        assert running.stdout and running.stderr
        self.assertEqual(running.stdout.readline(), "ready\n")
        running.send_signal(signal.SIGTERM)
        told = running.communicate(timeout=60)[1]
        self.assertEqual(running.returncode, -signal.SIGTERM)
        self.assertIn("no thread waited", told)

    def test_other_preloaded_libraries_stay_first(self) -> None:
        done = self.run_it("sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD="libm.so.6")
        self.assertEqual(done.stdout, f"libm.so.6:{LIBRARY.with_name(launch.DOOR)}\n")

    def test_a_program_that_is_not_there_is_reported(self) -> None:
        done = self.run_it("no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("no-such-program: is not there", done.stderr)
        self.assertEqual(self.run_it("/etc/passwd").returncode, 126)
        script = self.folder / "script"
        script.write_text("#!/no/such/shell -e\n", encoding="utf-8")
        script.chmod(0o755)
        done = self.run_it(script)
        self.assertEqual(done.returncode, 126)
        self.assertIn("script: /no/such/shell, which is to run it, is not there", done.stderr)


class NeverEmpty(Case):
    def line(self, *words: str | Path, status: int = 0) -> str:
        done = self.run_it("--", *words)
        self.assertEqual(done.returncode, status)
        self.assertEqual(done.stderr.count("\n"), 1)
        return done.stderr

    def test_no_wait(self) -> None:
        self.assertIn("no thread waited for a lock", self.line(PLAIN, "nothing"))

    def test_a_file_has_the_line_too_and_json_is_json(self) -> None:
        file = self.folder / "report"
        for words in ((), ("--json",)):
            file.write_text("of an earlier run", encoding="utf-8")
            done = self.run_it("-o", file, *words, "--", PLAIN, "nothing")
            self.assertIn("no thread waited for a lock", done.stderr)
            text = file.read_text(encoding="utf-8")
            self.assertIn(
                "no thread waited for a lock", json.loads(text)["notes"][0] if words else text
            )
        done = self.run_it("--json", "--", PLAIN, "nothing")
        self.assertEqual(json.loads(done.stderr)["processes"], [])

    def test_a_static_program(self) -> None:
        if not STATIC.exists():
            self.skipTest("there is no static libc")
        self.assertIn("linked statically", self.line(STATIC, "nothing", "3", status=3))

    def test_a_setuid_program(self) -> None:
        if os.getuid() != 0 or os.statvfs(self.folder).f_flag & os.ST_NOSUID:
            self.skipTest("only root can make a program of another user, where mounts allow it")
        self.folder.chmod(0o755)
        program = self.folder / "plain"
        shutil.copy(PLAIN, program)
        os.chown(program, NOBODY, NOBODY)
        program.chmod(0o4755)
        self.assertIn("setuid", self.line(program, "mutex"))

    def test_a_program_for_musl(self) -> None:
        program = self.folder / "plain"
        loader = (unseen.interpreter(PLAIN) or "").encode()
        musl = b"/lib/ld-musl.so.1".ljust(len(loader), b"\0")
        program.write_bytes(PLAIN.read_bytes().replace(loader, musl))
        self.assertIn("musl", unseen.why(str(program), ASKED))

    def test_a_script_is_judged_by_what_runs_it(self) -> None:
        script = self.folder / "script"
        script.write_text(f"#!/usr/bin/env -S {STATIC}\n", encoding="utf-8")
        if STATIC.exists():
            told = unseen.why(str(script), ASKED)
            self.assertIn(f"{STATIC}, which runs it, is linked statically", told)
            near = f"./{os.path.relpath(STATIC)}"
            self.assertTrue(unseen.why(near, ASKED).startswith("it is linked statically"))

    def test_where_no_file_can_be_made_the_program_runs_all_the_same(self) -> None:
        told = self.line("bash", "-c", f"ulimit -f 1; exec {PLAIN} _exit", status=9)
        self.assertIn("its file could not be made", told)


class Reports(Case):
    def test_a_kept_recording_is_read_again(self) -> None:
        kept = self.folder / "kept"
        done = self.run_it("--keep", kept, "--", PLAIN, "mutex")
        self.assertIn("mutex_cond.c:", done.stderr)
        self.assertEqual(kept.stat().st_mode & 0o777, 0o700)
        found = json.loads(rouse("report", "--json", kept).stdout)
        self.assertEqual(found["sections"]["totals"][0]["lock_waits"], KNOWN["WAITERS"])
        self.assertIn("inferred", " ".join(found["notes"]))
        tables = self.folder / "tables"
        rouse("report", "--format", "parquet", "-o", tables, kept)
        again_notes = json.loads(rouse("report", "--json", tables).stdout)["notes"]
        self.assertEqual(again_notes, found["notes"])
        again = self.run_it("--keep", kept, "--", PLAIN, "mutex")
        self.assertEqual(again.returncode, 3)
        self.assertIn("is there already", again.stderr)

    def test_a_report_that_cannot_be_written_leaves_the_status(self) -> None:
        done = self.run_it("-o", self.folder / "no" / "report", "--", PLAIN, "_exit")
        self.assertEqual(done.returncode, 9)
        self.assertIn("No such file", done.stderr)
        for words in ((), ("--json",)):
            done = self.run_it("-o", "/dev/full", *words, "--", PLAIN, "_exit")
            self.assertEqual(done.returncode, 9)
            self.assertIn("/dev/full: No space left on device", done.stderr)

    def test_standard_error_that_is_closed_or_full_leaves_the_status(self) -> None:
        for to in ("&-", "/dev/full"):
            for words in ("_exit", "nothing 9"):
                line = f"{sys.executable} -m rouse run -- {PLAIN} {words} 2>{to}"
                done = subprocess.run(
                    ["bash", "-c", line],
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
                )
                self.assertEqual((done.returncode, done.stdout), (9, b""), line)

    def test_the_report_may_follow_on_standard_output(self) -> None:
        done = self.run_it("-o", "-", "--", PLAIN, "mutex")
        self.assertIn("mutex_cond.c:", done.stdout)
        self.assertEqual(done.stderr, "")

    def test_nothing_is_left_behind(self) -> None:
        before = set(Path("/dev/shm").glob("rouse-run-*"))
        self.run_it("--", PLAIN, "nothing")
        left = set(Path("/dev/shm").glob("rouse-run-*")) - before
        self.assertFalse([path for path in left if path.owner() == Path.home().owner()])


class Repairs(Case):
    def test_a_slack_is_given_to_all_threads_and_reported(self) -> None:
        slack = "import os; print(open('/proc/self/timerslack_ns').read().strip())"
        for asked, expected, told in (
            ("precise", "1", "1 ns"),
            ("coalesce:2000", "2000000", "2.00 ms"),
        ):
            done = self.run_it("--timers", asked, "--", sys.executable, "-c", slack)
            self.assertEqual(done.stdout.strip(), expected)
            done = self.run_it("--timers", asked, "--", PLAIN, "mutex")
            self.assertIn(f"timers of all threads were given a slack of {told}", done.stderr)
        self.assertNotIn("repair:", self.run_it("--", PLAIN, "mutex").stderr)

    def test_mutexes_that_are_tried_for_a_while_are_reported(self) -> None:
        done = self.run_it("--locks", "adaptive", "--", PLAIN, "mutex")
        self.assertIn("repair: plain mutexes were spun for up to 5.00 µs", done.stderr)

    def test_unavailable_options_are_reported(self) -> None:
        for words in (
            ("--timers", "soon"),
            ("--timers", "coalesce:"),
            ("--timers", "coalesce:0"),
            ("--timers", "coalesce:1000001"),
            ("--locks", "none"),
            ("--depth", "9"),
            ("--memory", "0"),
            ("--memory", "257"),
        ):
            done = self.run_it(*words, "--", PLAIN, "nothing")
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(words[0], done.stderr)


class Distortion(Case):
    def test_it_is_run_in_pairs_and_both_sides_are_reported(self) -> None:
        runs = self.folder / "runs"
        script = f'echo "$LD_PRELOAD" >> {runs}; exec {PLAIN} mutex'
        done = self.run_it("--distortion", "3", "--", "sh", "-c", script)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertRegex(done.stderr, r"CPU time, 3 pairs: .* without recording, .* with it: \d")
        self.assertRegex(done.stderr, r"elapsed, 3 pairs: .*\[0\.|elapsed, 3 pairs: .*\[1\.")
        with_it = [bool(line) for line in runs.read_text(encoding="utf-8").splitlines()]
        self.assertEqual(with_it, [False, True, False, True, True, False, False, True])

    def test_as_json(self) -> None:
        file = self.folder / "cost.json"
        done = self.run_it("--distortion", "1", "--json", "-o", file, "--", PLAIN, "mutex")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(file.read_text(encoding="utf-8"))
        self.assertEqual(found["pairs"], 1)
        cost = found["elapsed_ns"]
        self.assertAlmostEqual(cost["ratio"], cost["with"] / cost["without"])
        self.assertGreater(cost["without"], KNOWN["HOLD_MS"] * MS)
        self.assertIsInstance(cost["with"], int)
        self.assertIn("CPU time, 1 pair: ", distortion.lines(1, found)[0])

    def test_what_it_came_to_and_cannot_be_written_is_an_error(self) -> None:
        done = self.run_it("--distortion", "1", "-o", "/dev/full", "--", PLAIN, "nothing")
        self.assertEqual(done.returncode, 3)
        self.assertEqual(done.stderr, f"rouse: /dev/full: {os.strerror(errno.ENOSPC)}\n")

    def test_a_run_that_fails_is_not_compared(self) -> None:
        done = self.run_it("--distortion", "1", "--", PLAIN, "nothing", "3")
        self.assertEqual(done.returncode, 1)
        self.assertIn("a run ended with 3: nothing is compared", done.stderr)
        done = self.run_it("--distortion", "2", "--", "/no/program")
        self.assertEqual(done.returncode, 127)
        for words in (("0",), ("x",), ("2", "--keep", self.folder / "kept")):
            done = self.run_it("--distortion", *words, "--", PLAIN, "nothing")
            self.assertEqual(done.returncode, 2)


class Library(unittest.TestCase):
    def test_nothing_is_exported_but_what_stands_before_libc(self) -> None:
        libc = next(
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            if "/libc.so" in line
        )
        others = exported(LIBRARY) - exported(Path(libc))
        self.assertEqual(others, {"rouse_preload_join", "rouse_preload_step_aside"})


def exported(library: Path) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


if __name__ == "__main__":
    unittest.main()
