#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Context switches of a user's own threads as the kernel reports them, from switching.c.

Nothing here needs root. If root starts the test, it continues as the user nobody.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import (
    BUILD,
    COMMAND,
    FIXTURES,
    SOURCE,
    here,
    main_unless,
    next_line,
    send,
    start_ready,
)

from nobody import become_nobody

from rouse.errors import RouseError
from rouse.query import scheduler
from rouse.sched import probe, procfs, switches
from rouse.sched.probe import BY_RECORDS
from rouse.store import leftovers

HELPER = BUILD / "kernel" / BY_RECORDS
LIBRARY = BUILD / "preload" / "librouse-preload.so"
SWITCHING = FIXTURES / "switching"
TEXT = (SOURCE / "tests" / "command" / "fixtures" / "switching.c").read_text(encoding="utf-8")
KNOWN = {name: int(number) for name, number in re.findall(r"^    ([A-Z_]+) = (\d+),", TEXT, re.M)}
PLACE = {"ROUSE_SWITCHES": str(HELPER), "ROUSE_PRELOAD": str(LIBRARY)}
RINGS, KEPT, OWNERS_AT = 1024, 256, 64  # from src/obs/waits.h
Row = dict[str, Any]


def not_run() -> str:
    with mock.patch.dict(os.environ, PLACE):
        return switches.why_no_records()


class Text(unittest.TestCase):
    """Checks that need no permission."""

    def test_lost_records_are_reported(self) -> None:
        found = switches.decode("perf\t7\nnow\t5\nlost\t0\t0\t0\t0\n")
        (note,) = scheduler.notes(found)
        self.assertIn("7 records of switches", note)

    def test_threads_without_room_for_their_waits_are_reported(self) -> None:
        (note,) = scheduler.notes(switches.decode("perf\t0\nnow\t5\nlost\t0\t0\t3\t0\n"))
        self.assertIn("3 threads that wait found no room", note)

    def test_perf_records_have_no_wake_up_time(self) -> None:
        found = switches.decode(
            "perf\t0\nnow\t1000\nthread\t1\t77\t70\t1\t400\t100\t1\t0\t25\t30\t30\t-\tname\n"
            "sleep\t1\t-\t0\t0\t0\t2\t50\t40\t0\t0\t0\t\n"
        )
        (row,) = scheduler.thread_rows(found)
        self.assertEqual((row["asleep_ns"], row["queued_ns"]), (650, None))
        self.assertEqual(row["preempted_ns"], 30)
        (section,) = scheduler.split(found, {}, {})
        self.assertNotIn("queued_ns", [column.key for column in section.columns])

    def test_the_threads_own_sum_splits_its_sleep(self) -> None:
        """Of its 80 ns in the run queue, it was there for 30 ns because it was preempted."""
        found = switches.decode(
            "perf\t0\nnow\t1000\nthread\t1\t77\t70\t3\t400\t100\t1\t0\t25\t30\t30\t-\tname\n"
            "queue\t1\t80\nsleep\t1\t-\t0\t0\t0\t2\t90\t40\t0\t0\t0\t\n"
        )
        (row,) = scheduler.thread_rows(found)
        self.assertEqual((row["asleep_ns"], row["queued_ns"], row["preempted_ns"]), (40, 50, 30))
        found.threads[1].all_queued_ns = 29  # less than 30, because it comes from another clock
        (row,) = scheduler.thread_rows(found)
        self.assertEqual((row["asleep_ns"], row["queued_ns"]), (90, 0))

    def test_without_permission_sums_and_a_remedy_are_reported(self) -> None:
        with (
            mock.patch.object(probe.System, "perf_event_error", lambda _: errno.EACCES),
            mock.patch.object(probe.System, "number", lambda *_: 3),
        ):
            said = here("run", "--kernel", "--json", "--", "sleep", "0.01", **PLACE)
        whole = json.loads(said.stderr)
        self.assertEqual(said.returncode, 0)
        (seen,) = [text for name, text in whole["facts"] if name == "seen by"]
        self.assertRegex(seen, r"getrusage.* [1-9]\d* voluntary .*perf_event_paranoid is 3")
        self.assertIn("sysctl kernel.perf_event_paranoid=2", seen)
        self.assertEqual([key for key in whole["sections"] if key.startswith("kernel_")], [])

    def test_a_refused_helper_is_reported_and_sums_are_shown(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            helper = Path(place) / "refused"
            helper.write_text("#!/bin/sh\necho perf_event_open: not today >&2\nexit 1\n")
            helper.chmod(0o755)
            with mock.patch.object(probe.System, "perf_event_error", lambda _: 0):
                more = {**PLACE, "ROUSE_SWITCHES": str(helper)}
                said = here("run", "--kernel", "--json", "--", "sleep", "0.01", **more)
        (seen,) = [text for name, text in json.loads(said.stderr)["facts"] if name == "seen by"]
        self.assertRegex(seen, "getrusage.*not today")


class Damaged(unittest.TestCase):
    """Damaged output of the helper is reported or refused with one line."""

    WHOLE = (
        "now\t9000\n"
        "thread\t1\t11\t10\t1\t100\t50\t7\t2\t3000\t400\t90\tread\tone\n"
        "thread\t2\t12\t10\t3\t200\t60\t8\t1\t3000\t400\t90\t-\ttwo\n"
        "sleep\t1\tread\t2\t9\t4f\t5\t600\t70\t80\t20\t12\ttwo\n"
        "sleep\t2\tfutex\t0\t0\t0\t5\t600\t70\t80\t20\t0\t\n"
        "lost\t0\t1\t0\t0\n"
        "lock\tff00\t36\t5\t900\t300\tff10\tff20\n"
        "symbol\tff10\tdown_write\n"
        "symbol\tff20\tvfs_write\n"
        "queue\t1\t500\n"
        "why\tno reason\n"
    )

    def check_decode(self, text: str) -> None:
        found = switches.decode(text)
        scheduler.sections(found)
        scheduler.notes(found)
        scheduler.fact(found)

    def test_complete_output_is_read(self) -> None:
        self.check_decode(self.WHOLE)

    def test_an_invalid_line_is_refused(self) -> None:
        lines = ("why", "now", "symbol", "perf", "queue\t5\t6", "sums\tx", "other\t1", "\x00")
        states = [line.replace("\t10\t1\t", "\t10\t9\t") for line in self.WHOLE.splitlines()[1:2]]
        joins = [
            line.replace("\tread\t2\t", "\tread\t9\t") for line in self.WHOLE.splitlines()[3:4]
        ]
        for line in (*lines, *states, *joins):
            with self.assertRaisesRegex(RouseError, "the switches have a line", msg=line):
                self.check_decode(self.WHOLE + line + "\n")

    def test_flipped_bits(self) -> None:
        seed = int(os.environ.get("ROUSE_SEED", time.time_ns() % 1_000_000))
        print(f"ROUSE_SEED={seed}", flush=True)
        chance = random.Random(seed)
        for _ in range(3000):
            raw = bytearray(self.WHOLE.encode())
            for _ in range(chance.choice((1, 1, 2, 4))):
                raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
            text = raw[: chance.choice((len(raw), chance.randrange(len(raw))))].decode("latin-1")
            with contextlib.suppress(RouseError):
                self.check_decode(text)


@unittest.skipIf(not_run(), f"not run: {not_run()}")
class Seen(unittest.TestCase):
    def watched(
        self, scene: str, is_recorded: bool = False
    ) -> tuple[subprocess.Popen[str], switches.Recorder]:
        """Run scenes to their end. The program still runs afterwards."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        waits = Path(folder.name) / leftovers.WAITS
        waits.write_bytes(bytes(switches.WAITS_BYTES))
        with mock.patch.dict(os.environ, PLACE):
            recorder = switches.Recorder(BY_RECORDS, str(threading.get_native_id()), str(waits))
        self.addCleanup(recorder.close)
        more = {"LD_PRELOAD": str(LIBRARY), "ROUSE_OBS_DIR": folder.name, "ROUSE_RUN_WAITS": "1"}
        running = start_ready(self, SWITCHING, scene, **(more if is_recorded else {}))
        send(running, "go\n")
        self.assertEqual(next_line(running), "done\n")
        return running, recorder

    def test_switches_are_those_that_the_kernel_counts(self) -> None:
        running, recorder = self.watched("stays")
        named = {tid: procfs.read_thread(running.pid, tid) for tid in procfs.tids(running.pid)}
        found = recorder.stop()
        self.assertEqual(scheduler.notes(found), [])
        rows = {row["tid"]: row for row in scheduler.thread_rows(found)}
        names = []
        for tid, counted in named.items():
            if (
                counted is None or tid == running.pid
            ):  # the main thread had switched before the watch began
                continue
            row = rows[tid]
            names.append(row["name"])
            self.assertEqual(
                (row["name"], row["voluntary"], row["involuntary"]),
                (counted.name, counted.voluntary, counted.involuntary),
            )
            self.assertEqual(row["sleeps"], row["voluntary"] - 1, "the last one goes on")
            self.assertEqual(row["now"], "asleep")
            self.assertGreater(row["cpu_ns"], 0)
            self.assertGreater(row["asleep_ns"], 0)
            (thread,) = [thread for thread in found.threads.values() if thread.tid == tid]
            self.assertEqual(thread.all_queued_ns, counted.run_queue_ns)
        self.assertEqual(sorted(names), ["sleeper", "spinner", "spinner"])
        for row in rows.values():
            if row["name"] == "sleeper":
                self.assertGreater(row["voluntary"], KNOWN["SLEEPS"])
                self.assertIsNotNone(row["queued_ns"])
            if row["name"] == "spinner":
                self.assertGreaterEqual(row["involuntary"], KNOWN["TAKEN_OFF"])
                self.assertGreater(row["preempted_ns"], 0)

    def test_the_child_of_a_fork_is_watched(self) -> None:
        _, recorder = self.watched("forks")
        rows = scheduler.thread_rows(recorder.stop())
        self.assertEqual(len({row["process"] for row in rows}), 2)
        (sleeper,) = [row for row in rows if row["name"] == "sleeper"]
        self.assertGreaterEqual(sleeper["voluntary"], KNOWN["SLEEPS"])
        self.assertEqual([row["now"] for row in rows if row["name"] == "child"], ["ended"])

    def test_other_processes_are_not_seen(self) -> None:
        running, recorder = self.watched("wakes")
        processes = {row["process"] for row in scheduler.thread_rows(recorder.stop())}
        self.assertEqual(processes, {running.pid})

    def test_a_sleep_after_a_wait_is_not_in_it(self) -> None:
        _, recorder = self.watched("unseen", is_recorded=True)
        found = recorder.stop()
        counts = dict.fromkeys(range(switches.UNREAD + 1), 0)
        for sleep in found.sleeps:
            if found.threads[sleep.thread].name == "dreamer":
                counts[sleep.join] += sleep.count
        self.assertGreaterEqual(counts[switches.JOINED], 1)
        self.assertGreaterEqual(counts[switches.OUTSIDE], KNOWN["SLEEPS"])

    def test_a_wait_that_is_overwritten_before_it_is_looked_for_is_reported(self) -> None:
        """The reader pauses while more waits end than are kept."""
        with tempfile.TemporaryDirectory() as place:
            waits = Path(place) / leftovers.WAITS
            waits.write_bytes(bytes(switches.WAITS_BYTES))
            with mock.patch.dict(os.environ, PLACE):
                recorder = switches.Recorder(BY_RECORDS, str(threading.get_native_id()), str(waits))
            self.addCleanup(recorder.close)
            wanted = {"LD_PRELOAD": str(LIBRARY), "ROUSE_OBS_DIR": place, "ROUSE_RUN_WAITS": "1"}
            running = start_ready(self, SWITCHING, "many", **wanted)
            os.kill(recorder.process.pid, signal.SIGSTOP)
            os.waitid(os.P_PID, recorder.process.pid, os.WSTOPPED | os.WNOWAIT)
            send(running, "go\n")
            self.assertEqual(next_line(running), "done\n")
            os.kill(recorder.process.pid, signal.SIGCONT)
            found = recorder.stop()
            words = waits.read_bytes()[OWNERS_AT : OWNERS_AT + 4 * RINGS]
        counts: dict[int, int] = {}
        for sleep in found.sleeps:
            if found.threads[sleep.thread].name == "sleeper":
                counts[sleep.join] = counts.get(sleep.join, 0) + sleep.count
        # Each kept wait has one switch, or two if the thread slept twice in it.
        self.assertGreaterEqual(counts[switches.JOINED], KEPT - 1)
        self.assertLess(counts[switches.JOINED], 2 * KEPT)
        self.assertGreaterEqual(counts[switches.UNREAD], KNOWN["MANY"] - KEPT + 1)
        (note,) = scheduler.notes(found)
        self.assertIn(" sleeps were read too late", note)
        owners = {*struct.unpack(f"={RINGS}I", words)} - {0}
        self.assertEqual(owners, {running.pid}, "the rings of threads that have ended are free")

    def test_the_command_reports_its_privileges_and_keeps_them(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "kept"
            words = ("--kernel", "--json", "--keep", folder, "--", SWITCHING, "wakes", "crowd")
            done = subprocess.run(
                [*COMMAND, "run", *map(str, words)],
                input="go\n",
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
                env={**os.environ, "PYTHONPATH": str(SOURCE), **PLACE},
            )
            self.assertEqual((done.returncode, done.stdout), (0, "ready\ndone\n"), done.stderr)
            whole = json.loads(done.stderr[done.stderr.index("{") :])
            again = json.loads(here("report", "--json", folder).stdout)
            text = here("report", "--full", folder).stdout
        (seen,) = [text for name, text in whole["facts"] if name == "seen by"]
        self.assertRegex(seen, r"PERF_RECORD_SWITCH.* [1-9]\d* of \d+ sleeps")
        (reads,) = [row for row in whole["sections"]["kernel_waits"] if row["kind"] == "read"]
        self.assertEqual((reads["waits"], reads["count"]), (KNOWN["SLEEPS"], KNOWN["SLEEPS"]))
        self.assertRegex(reads["label"], r"^\w+ switching\.c:\d+$")
        self.assertGreater(reads["asleep_ns"], 0)
        self.assertIsNone(reads["queued_ns"])
        rows: list[Row] = whole["sections"]["kernel_threads"]
        (sleeper,) = [row for row in rows if row["name"] == "sleeper"]
        self.assertGreaterEqual(sleeper["voluntary"], KNOWN["SLEEPS"])
        self.assertIsNotNone(sleeper["queued_ns"])  # from the kernel's sum for this thread
        spun = [
            row["involuntary"] >= KNOWN["TAKEN_OFF"] for row in rows if row["name"] == "spinner"
        ]
        self.assertEqual(spun, [True, True])
        for section in ("kernel_threads", "kernel_waits"):
            self.assertEqual(again["sections"][section], whole["sections"][section])
        self.assertIn(["seen by", seen], again["facts"])
        self.assertIn("Threads, by the kernel's records of switches", text)


if __name__ == "__main__":
    if os.geteuid() == 0 and (reason := become_nobody(HELPER, SWITCHING)):
        print(f"not run: {reason}")
        sys.exit(77)
    main_unless("" if SWITCHING.exists() and LIBRARY.exists() else "its programs were not built")
