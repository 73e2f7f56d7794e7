#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Scheduler events of the kernel that are known by construction, from switching.c."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import BUILD, COMMAND, FIXTURES, SOURCE, here, main_unless, next_line, send, start_ready

from rouse.errors import RouseError
from rouse.query import scheduler
from rouse.sched import switches
from rouse.sched.probe import BY_BPF
from rouse.top import calls as top_calls

HELPER = BUILD / "kernel" / BY_BPF
LIBRARY = BUILD / "preload" / "librouse-preload.so"
TEXT = (SOURCE / "tests" / "command" / "fixtures" / "switching.c").read_text(encoding="utf-8")
KNOWN = {name: int(number) for name, number in re.findall(r"^    ([A-Z_]+) = (\d+),", TEXT, re.M)}
ATTACHED = (SOURCE / "tests" / "command" / "fixtures" / "attached.c").read_text(encoding="utf-8")
(ROUNDS,) = map(int, re.findall(r"^    ROUNDS = (\d+),", ATTACHED, re.M))
HOT_LOCK = FIXTURES / "hot_lock"
MADE = (SOURCE / "tests" / "command" / "fixtures" / "calls_made.c").read_text(encoding="utf-8")
(CALLS_EACH,) = map(int, re.findall(r"^    CALLS_EACH = (\d+),", MADE, re.M))
ATTEMPTS = 5  # of a test that needs idle processors
PLACE = {"ROUSE_KERNEL": str(HELPER)}
Row = dict[str, Any]


def not_run() -> str:
    with mock.patch.dict(os.environ, PLACE):
        return switches.why_not()


class Text(unittest.TestCase):
    """Checks that need neither root nor BPF."""

    def test_another_versions_line_is_an_error(self) -> None:
        with self.assertRaisesRegex(RouseError, "another version"):
            switches.decode("now\t5\nweather\tfine\n")

    def test_lost_records_are_reported(self) -> None:
        found = switches.decode("now\t5\nlost\t3\t4\t5\t6\n")
        self.assertEqual(len(scheduler.notes(found)), 4)
        self.assertIn("3 threads", scheduler.notes(found)[0])

    def test_a_sleep_under_way_counts_as_asleep(self) -> None:
        found = switches.decode(
            "now\t1000\nthread\t1\t77\t70\t1\t400\t100\t1\t0\t25\t0\t0\tfutex\tname\n"
        )
        (row,) = scheduler.thread_rows(found)
        self.assertEqual((row["asleep_ns"], row["now"]), (600, "asleep in futex"))

    def test_a_missing_process_is_reported(self) -> None:
        said = here("watch", str(2**22 + 1))
        self.assertEqual((said.returncode, said.stdout), (3, ""))
        self.assertIn("No such process", said.stderr)

    def test_without_bpf_proc_is_read_and_a_remedy_is_reported(self) -> None:
        program = start_ready(self, FIXTURES / "switching", "endless")
        send(program, "go\n")
        with mock.patch.object(switches, "why_not", lambda: "BPF is not allowed; be root"):
            said = here("watch", str(program.pid), "--seconds", "1", "--json")
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        whole = json.loads(said.stdout)
        self.assertIn("BPF is not allowed; be root", whole["seen by"])
        self.assertEqual(list(whole["sections"]), ["sleep_sites", "run_sites", "kernel_threads"])
        rows = {row["name"]: row for row in whole["sections"]["kernel_threads"]}
        self.assertLessEqual({"switching", "sleeper", "waker"}, set(rows))
        self.assertGreater(rows["sleeper"]["voluntary"], 0)


@unittest.skipIf(not_run(), f"not run: {not_run()}")
class Seen(unittest.TestCase):
    def watched(self, scene: str) -> switches.Switches:
        running = start_ready(self, FIXTURES / "switching", scene)
        with mock.patch.dict(os.environ, PLACE):
            recorder = switches.watch([running.pid])
        self.addCleanup(recorder.close)
        send(running, "go\n")
        self.assertEqual(next_line(running), "done\n")
        found = recorder.stop()
        self.assertEqual(scheduler.notes(found), [])
        return found

    def seen(self, scene: str) -> tuple[list[Row], list[Row]]:
        """The rows of the scene's threads and of its sleeps."""
        found = self.watched(scene)
        return scheduler.thread_rows(found), scheduler.sleep_rows(found)

    def named(self, rows: list[Row], name: str) -> list[Row]:
        return [row for row in rows if row["name"] == name]

    def wakes(self, sleeps: list[Row]) -> None:
        reads = [row for row in self.named(sleeps, "sleeper") if row["call"] == "read"]
        self.assertEqual(
            [(row["count"], row["waker"]) for row in reads], [(KNOWN["SLEEPS"], "waker")]
        )
        (row,) = reads
        self.assertGreater(row["asleep_ns"], row["asleep_most_ns"])
        self.assertGreater(row["queued_ns"], row["queued_most_ns"])
        self.assertGreater(row["queued_most_ns"], 0)

    def test_each_sleep_is_seen_with_its_call_and_its_waker(self) -> None:
        threads, sleeps = self.seen("wakes")
        self.wakes(sleeps)
        (sleeper,) = self.named(threads, "sleeper")
        # The exit of the thread is a switch but not a sleep. It may not have happened yet.
        every = sum(row["count"] for row in self.named(sleeps, "sleeper"))
        self.assertIn(sleeper["voluntary"] - every, (0, 1))
        self.assertEqual(sleeper["now"] == "ended", sleeper["voluntary"] > every)
        (joined,) = self.named(sleeps, "switching")[:1]
        self.assertEqual(len(self.named(threads, "switching")), 1)
        self.assertNotEqual(joined["waker"], "")

    def test_a_wake_up_by_a_timer_has_no_waker(self) -> None:
        _, sleeps = self.seen("wakes")
        naps = [row for row in self.named(sleeps, "waker") if "nanosleep" in row["call"]]
        self.assertEqual({row["waker"] for row in naps}, {scheduler.NOBODY})

    def test_threads_on_one_processor_wait_for_it_without_sleeping(self) -> None:
        threads, _ = self.seen("crowd")
        spinners = self.named(threads, "spinner")
        self.assertEqual(len(spinners), 2)
        for row in spinners:
            self.assertGreaterEqual(row["involuntary"], KNOWN["TAKEN_OFF"])
            self.assertGreater(row["preempted_ns"], 0)
            # The longest delay may precede the thread's first run. Compare its part after the
            # wake-up.
            self.assertGreater(row["preempted_ns"] + row["queued_ns"], row["queued_most_ns"])
            self.assertGreater(row["cpu_ns"], 0)

    def test_a_lock_inside_the_kernel_is_reported_with_its_place(self) -> None:
        rows = scheduler.lock_rows(self.watched("writes"))
        found = [row for row in rows if row["type"] == "rwsem write" and "write" in row["place"]]
        self.assertTrue(found, rows)
        self.assertGreater(found[0]["wait_most_ns"], 0)
        self.assertEqual(found[0]["locks"], 1)

    def test_the_child_of_a_fork_is_watched(self) -> None:
        threads, sleeps = self.seen("forks")
        self.wakes(sleeps)
        self.assertEqual(len({row["process"] for row in threads}), 2)
        self.assertEqual([row["now"] for row in self.named(threads, "child")], ["ended"])

    def test_the_command_watches_a_static_program(self) -> None:
        name = "switching_static"
        if not (FIXTURES / name).exists():
            name = "switching"
        program = start_ready(self, FIXTURES / name, "endless")
        send(program, "go\n")
        said = here("watch", str(program.pid), "--seconds", "1", "--json", **PLACE)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        whole = json.loads(said.stdout)
        self.assertEqual(
            whole["seen by"], "sched_switch, sched_waking and contention_begin, by BPF"
        )
        rows = self.named(whole["sections"]["kernel_sleeps"], "sleeper")
        self.assertIn(("read", "waker"), [(row["call"], row["waker"]) for row in rows])
        text = here("watch", str(program.pid), "--seconds", "1", **PLACE)
        self.assertIn("Sleeps and wakers", text.stdout)
        self.assertIn("woken by", text.stdout)
        self.assertIn("sleeper", text.stdout)  # the thread existed before the watch began

    def test_it_ends_with_the_watched_program(self) -> None:
        program = subprocess.Popen(["sleep", "0.5"])
        self.addCleanup(program.wait)
        said = here("watch", str(program.pid), "--seconds", "60", **PLACE)
        self.assertEqual(said.returncode, 4, said.stderr)
        self.assertIn("clock_nanosleep", said.stdout)


class Calls(unittest.TestCase):
    """rouse top --kernel: the system calls and signals of threads."""

    def top(self, program: subprocess.Popen[str], *words: str) -> list[Row]:
        """Return the rows of "caller" in three intervals."""
        more = ("--batch", "0.2", "3", "--all", "--json", *words)
        done = here("top", *more, str(program.pid), **PLACE)
        self.assertEqual(done.returncode, 0, done.stderr)
        looks = [json.loads(line)["threads"] for line in done.stdout.splitlines()]
        return [row for rows in looks for row in rows if row["name"].endswith("caller")]

    @unittest.skipIf(not_run(), f"not run: {not_run()}")
    def test_the_calls_of_a_thread_for_each_of_its_signals(self) -> None:
        """An interval may begin and end within a round of calls."""
        program = start_ready(self, FIXTURES / "calls_made")
        rows = self.top(program, "--kernel")
        self.assertEqual(len(rows), 3)
        for row in rows:
            self.assertGreater(row["sig"], 5)
            self.assertLessEqual(abs(row["scl"] - CALLS_EACH * row["sig"]), CALLS_EACH)

    def test_without_room_for_all_threads_the_others_are_not_known(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            helper = Path(folder) / "helper"
            helper.write_text(
                "#!/bin/sh\necho ready\nread pid\nprintf 'count\\t7\\t3\\t1\\nend\\t0\\n'\n"
                "read pid\nprintf 'end\\t5\\n'\nread pid\n"
            )
            helper.chmod(0o755)
            place = mock.patch.dict(os.environ, {"ROUSE_KERNEL": str(helper)})
            with place, mock.patch.object(switches, "why_not", lambda: ""):
                calls = top_calls.Calls()
            self.addCleanup(calls.close)
            self.assertEqual((calls.look(7), calls.others), ({7: (3, 1)}, (0, 0)))
            self.assertEqual((calls.look(7), calls.others), ({}, (None, None)))

    def test_without_the_option_they_are_not_known(self) -> None:
        program = start_ready(self, FIXTURES / "calls_made")
        rows = self.top(program)
        self.assertEqual({(row["scl"], row["sig"]) for row in rows}, {(None, None)})

    def test_without_bpf_a_remedy_is_reported(self) -> None:
        program = start_ready(self, FIXTURES / "calls_made")
        with mock.patch.object(switches, "why_not", lambda: "BPF is not allowed; be root"):
            said = here("top", "--kernel", "--batch", "1", "1", str(program.pid))
        self.assertEqual((said.returncode, said.stdout), (3, ""))
        self.assertIn("SCL and SIG need BPF: BPF is not allowed; be root", said.stderr)

    @unittest.skipIf(not_run(), f"not run: {not_run()}")
    def test_a_helper_that_ends_is_reported(self) -> None:
        with mock.patch.dict(os.environ, PLACE):
            calls = top_calls.Calls()
        self.addCleanup(calls.close)
        self.assertEqual(calls.look(2**22), {})
        calls.recorder.process.kill()
        calls.recorder.process.wait()
        with self.assertRaisesRegex(RouseError, "ended"):
            calls.look(2**22)


@unittest.skipIf(not_run(), f"not run: {not_run()}")
@unittest.skipUnless(LIBRARY.exists(), "not run: librouse-preload.so was not built")
class Joined(unittest.TestCase):
    """rouse run --kernel: the kernel's events, assigned to recorded waits."""

    def test_the_delivery_of_wake_ups_is_what_the_run_queue_leaves(self) -> None:
        """From sched_waking to sched_switch, less the run queue's part by schedstat.

        Two threads hand a lock to each other, mostly from one idle processor to the other. Ours
        begins a little earlier, when the lock is released.
        """
        for _ in range(ATTEMPTS):
            whole = self.handed_over()
            said, threads = whole["verdict"], whole["sections"]["kernel_threads"]
            queued_ns = sum(row["queued_ns"] + row["preempted_ns"] for row in threads)
            if said["delivery_ns"] is not None and said["queue_ns"] < 0.1 * queued_ns:
                break
        else:
            self.skipTest("not run: other programs use the processors")
        (group,) = whole["sections"]["groups"]
        by_kernel_ns = queued_ns - said["queue_ns"]
        self.assertGreater(said["delivery_ns"], 0.7 * by_kernel_ns)
        self.assertLess(said["delivery_ns"], 1.3 * by_kernel_ns + 20_000 * group["waits"])

    def handed_over(self) -> dict[str, Any]:
        """Return the report on two threads that hand a lock to each other."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "report.json"
            words = ("run", "--kernel", "--json", "-o", file, "--", HOT_LOCK)
            more = {"ROUSE_PRELOAD": str(LIBRARY), **PLACE}
            done = here(*words, "mutex", "2", "50", "50", "2000", **more)
            self.assertEqual(done.returncode, 0, done.stderr)
            whole: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            return whole

    def run_scenes(self, program: str, *words: str | Path) -> Any:
        done = subprocess.run(
            [*COMMAND, "run", "--kernel", "--json", "--", FIXTURES / program, *words],
            input="go\n",
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
            env={
                **os.environ,
                "PYTHONPATH": str(SOURCE),
                "ROUSE_PRELOAD": str(LIBRARY),
                **PLACE,
            },
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"^ready\ndone( \d+)?\n$")
        return json.loads(done.stderr[done.stderr.index("{") :])

    def rows(self, whole: Any, kind: str) -> list[Row]:
        rows: list[Row] = whole["sections"]["kernel_waits"]
        return [row for row in rows if row["kind"] == kind]

    def test_each_recorded_wait_is_split_into_sleep_and_run_queue(self) -> None:
        """For a process and its child. A condition wait's wait for its mutex counts separately."""
        whole = self.run_scenes("switching", "wakes", "relock", "forks")
        reads = [row for row in self.rows(whole, "read") if row["count"] > 1]
        self.assertEqual(len({row["process"] for row in reads}), 2)
        for row in reads:
            self.assertEqual((row["waits"], row["count"]), (KNOWN["SLEEPS"], KNOWN["SLEEPS"]))
            self.assertRegex(row["label"], r"^\w+ switching\.c:\d+$")
            self.assertGreater(row["asleep_ns"], 0)
            self.assertGreater(row["queued_ns"], 0)
        (waited,) = self.rows(whole, "condition")
        (again,) = self.rows(whole, scheduler.RELOCK)
        self.assertEqual((waited["count"], again["count"]), (1, 1))
        self.assertEqual(waited["label"], again["label"])
        self.assertGreater(joined_percent(whole), 0.0)

    def test_locks_inside_malloc_have_a_place_beside_the_recorded_waits(self) -> None:
        whole = self.run_scenes("attached", "heap")
        rows = whole["sections"]["sleep_sites"]
        found = [row for row in rows if row["kind"] == "malloc"]
        self.assertTrue(found, rows)
        longest = found[0]  # threads that begin allocate too
        places = (longest["label"].split()[0], longest["woken_from"].split()[0])
        self.assertEqual(places, ("churn", "churn"))

    def test_a_sleep_is_in_a_recorded_wait_or_beside_it(self) -> None:
        """A thread's first wait may not be recorded yet when the thread goes to sleep."""
        whole = self.run_scenes("attached", "mutex")
        recorded = sum(row["count"] for row in self.rows(whole, "mutex"))
        rows = whole["sections"]["sleep_sites"]
        beside = sum(row["count"] for row in rows if row["kind"] == "mutex")
        self.assertEqual(recorded + beside, ROUNDS)
        self.assertLess(beside, recorded)

    def test_the_kernels_figures_are_kept(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "kept"
            words = ("--kernel", "--json", "--keep", folder)
            at_once = here(
                "run", *words, "--", "sleep", "0.01", ROUSE_PRELOAD=str(LIBRARY), **PLACE
            )
            again = here("report", "--json", folder)
            text = here("report", folder).stdout
        # Its waits were counted by place, and so had neither their number nor a name.
        self.assertRegex(text, r"(?m)^ +1 +1 .* sleep +\w+\+0x")
        self.assertEqual((at_once.returncode, again.returncode), (0, 0), again.stderr)
        said = [json.loads(text) for text in (at_once.stderr, again.stdout)]
        kept = [whole["sections"]["kernel_waits"] for whole in said]
        self.assertEqual(kept[0], kept[1])
        (row,) = self.rows(said[0], "sleep")
        self.assertEqual((row["waits"], row["count"]), (1, 1))

    def test_a_static_program_is_reported_by_the_kernel(self) -> None:
        if not (FIXTURES / "switching_static").exists():
            self.skipTest("not run: the static programs were not built")
        whole = self.run_scenes("switching_static", "wakes")
        self.assertIn("static", whole["notes"][0])
        rows = [row for row in whole["sections"]["kernel_sleeps"] if row["name"] == "sleeper"]
        reads = [(row["count"], row["waker"]) for row in rows if row["call"] == "read"]
        self.assertEqual(reads, [(KNOWN["SLEEPS"], "waker")])


def joined_percent(whole: Any) -> float:
    (seen,) = [text for name, text in whole["facts"] if name == "seen by"]
    return float(re.findall(r"\((\S+) %\)", seen)[0])


if __name__ == "__main__":
    main_unless("" if (FIXTURES / "switching").exists() else "its program was not built")
