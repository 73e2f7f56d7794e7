#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run --trace`: every wait of a program appears once, when the program's own clock says."""

from __future__ import annotations

import collections
import itertools
import json
import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import COMMAND, here, next_line, rouse, start

from interposed import LIBRARY, Source, is_cross_built, record, unless_emulated
from run_case import Case, Row

from rouse.query import measures
from rouse.store import find, layout
from rouse.tables import inputs

WAITS = Source("traced_waits")
PROGRAM, KNOWN = WAITS.program, WAITS.known
NAMES = {"taker", *(f"napper-{i}" for i in range(KNOWN["NAPPERS"]))}
SMALL_KIB = 4
SMALL_KEPT = (SMALL_KIB * 1024 - layout.CHUNK_HEAD) // layout.EVENT.itemsize - 1
LARGE_KIB = 512
# Of other programs, so that they together have waits of all kinds, in threads that come and go and
# jump out of waits, and in processes that fork and that restrict their system calls.
SCENES: tuple[tuple[str, str], ...] = (
    *(("mutex_cond", "signals"), ("mutex_cond", "fork"), ("sync_waits", "rwlock")),
    *(("fd_waits", "race"), ("raw_futex", "requeue"), ("seccomp_filter", "forks")),
    *(("abnormal_waits", "cancels"), ("abnormal_waits", "jumps"), ("thread_churn", "7")),
)
if is_cross_built():  # the emulator has no seccomp
    SCENES = tuple(scene for scene in SCENES if scene[0] != "seccomp_filter")
ENDS = 4  # of threads in the middle of a wait, in the scene "ends" of abnormal_waits.c
SLACK_NS = 20_000  # of the conversion from time stamps to the clock
ASKED = inputs.Asked(with_events=True)


class Process:
    """The recording of a process."""

    def __init__(self, file: Path) -> None:
        source = find.open_source(file)
        self.head = find.read(source).head
        source.close()
        self.tables = inputs.load_store(file, ASKED, inputs.Resolvers()).tables
        self.events = self.tables["events"].to_rows()
        (self.row,) = self.tables["processes"].to_rows()
        sites = self.tables["sites"].to_rows()
        self.labels = {row["site"]: row["label"] for row in sites if row["frame"] == 0}

    def monotonic_ns(self, unix_ns: int) -> int:
        return unix_ns - self.head.realtime_ns + self.head.monotonic_ns

    def waits(self) -> list[tuple[Row, Row | None]]:
        """The begin and the end of each wait, in the order of their thread."""
        begun: dict[int, Row] = {}
        found: list[tuple[Row, Row | None]] = []
        for event in self.events:
            if event["type"] == "wait":
                assert event["thread_id"] not in begun, event
                begun[event["thread_id"]] = event
            elif event["type"] == "run":
                found.append((begun.pop(event["thread_id"]), event))
        return found + [(begin, None) for begin in begun.values()]


class Traced(Case):
    def keep(self, scene: str, *words: str) -> tuple[list[Process], dict[int, list[Row]], str]:
        """Run a scene. Return its processes, what they printed by process, and the report."""
        self.kept = self.folder / "kept"
        report = self.folder / "report"
        done = self.run_it(
            *(words or ("--trace",)), "--keep", self.kept, "-o", report, "--", PROGRAM, scene
        )
        self.assertIn(done.returncode, (0, -signal.SIGKILL), done.stderr)
        printed: dict[int, list[Row]] = {}
        for line in done.stdout.splitlines():
            pid, tid, kind, before, after = line.split()
            row = {"tid": int(tid), "kind": kind, "before": int(before), "after": int(after)}
            printed.setdefault(int(pid), []).append(row)
        files = sorted(self.kept.glob("*.rouse"))
        return [Process(file) for file in files], printed, report.read_text(encoding="utf-8")

    def perfetto(self) -> tuple[dict[str, Any], str]:
        file = self.folder / "trace.json"
        done = here("report", "--format", "perfetto", "-o", file, self.kept)
        self.assertEqual(done.returncode, 0, done.stderr)
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found, done.stderr

    def check_process(self, process: Process, printed: list[Row]) -> None:
        """Each wait that the program printed is there once, within its readings of the clock."""
        waits = [(begin, end) for begin, end in process.waits() if end]
        self.assertEqual(len(waits), len(printed))
        by_thread = collections.defaultdict(list)
        for row in sorted(printed, key=lambda row: int(row["before"])):
            by_thread[row["tid"]].append(row)
        for begin, end in waits:
            row = by_thread[begin["thread_id"]].pop(0)
            self.assertEqual(begin["kind"], row["kind"])
            at, until = (process.monotonic_ns(event["at_ns"]) for event in (begin, end))
            self.assertLessEqual(row["before"] - SLACK_NS, at)
            self.assertLessEqual(at, until)
            self.assertLessEqual(until, row["after"] + SLACK_NS)
            self.assertEqual(end["verdict"], "useful" if row["kind"] == "semaphore" else "timeout")

    def test_every_wait_appears_once_within_the_program_s_clock_readings(self) -> None:
        (process,), printed, _ = self.keep("waits")
        (rows,) = printed.values()
        expected = KNOWN["POSTS"] + KNOWN["NAPPERS"] * KNOWN["NAPS"] + 1
        self.assertEqual(len(rows), expected)
        self.check_process(process, rows)
        self.assertEqual(process.row["lost_events"], 0)
        wakes = [event for event in process.events if event["type"] == "wake"]
        self.assertEqual(len(wakes), KNOWN["POSTS"])
        for wake in wakes:  # the first thread posts
            self.assertEqual(wake["other_id"], process.row["pid"])
            self.assertEqual(process.labels[wake["site"]], WAITS.label("sem_post(&items)"))

    def test_the_events_of_a_site_sum_up_to_its_figures(self) -> None:
        (process,), _, _ = self.keep("waits")
        sums: dict[tuple[str, str], list[int]] = {}
        for begin, end in process.waits():
            assert end
            woken = end["value"] or end["at_ns"]
            own = sums.setdefault((begin["kind"], process.labels[begin["site"]]), [0, 0, 0])
            own[0] += 1
            own[1] += woken - begin["at_ns"]
            own[2] += end["at_ns"] - woken
        reported: dict[tuple[str, str], list[int]] = {}
        for row in process.tables["wakes"].to_rows():
            own = reported.setdefault((row["kind"], process.labels[row["wait_site"]]), [0, 0, 0])
            own[0] += row["useful"] + row["timeout"]
            own[1] += row["wait_ns"]
            own[2] += row["late_ns"]
        self.assertEqual(sums.keys(), reported.keys())
        for site, (count, waited, late) in sums.items():
            self.assertEqual(count, reported[site][0])
            # Each stamp is rounded to a nanosecond, and so are the sums.
            self.assertLessEqual(abs(waited - reported[site][1]), 2 * count + 1)
            self.assertLessEqual(abs(late - reported[site][2]), 2 * count + 1)

    def test_a_small_ring_counts_the_events_that_it_loses(self) -> None:
        (process,), _, report = self.keep("many", f"--trace={SMALL_KIB}")
        written = 1 + 2 * KNOWN["MANY"]  # the thread's begin, and two events per sleep
        lost = written - SMALL_KEPT
        self.assertEqual(process.row["lost_events"], lost)
        self.assertEqual(len(process.events), SMALL_KEPT)
        self.assertLess(lost, written)
        said = f"the trace lacks {lost} events"
        self.assertIn(said, report)
        trace, errors = self.perfetto()
        self.assertIn(said, errors)
        self.assertEqual(trace["otherData"]["lost_events"], lost)
        (name,) = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        self.assertIn(f"({lost} events lost)", name)
        found = here("report", "--json", self.kept)
        self.assertIn(said, found.stdout)

    @unless_emulated("the counter of this machine is not the emulated one")
    def test_events_of_a_killed_program_are_kept_with_the_wait_under_way(self) -> None:
        (process,), printed, _ = self.keep("killed")
        (rows,) = printed.values()
        self.check_process(process, rows)
        ((begin, _),) = [wait for wait in process.waits() if not wait[1]]
        self.assertEqual(begin["kind"], "mutex")
        self.assertEqual(process.labels[begin["site"]], WAITS.label("/* never acquired */"))
        trace, _ = self.perfetto()
        (hung,) = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"] == "mutex"]
        spans = [e for e in trace["traceEvents"] if e["ph"] == "X"]
        self.assertAlmostEqual(
            hung["ts"] + hung["dur"], max(e["ts"] + e["dur"] for e in spans), places=2
        )

    def test_forked_children_have_their_own_events_in_one_file(self) -> None:
        processes, printed, _ = self.keep("forked")
        self.assertEqual(len(processes), 1 + KNOWN["CHILDREN"])
        for process in processes:
            self.check_process(process, printed[process.row["pid"]])
        trace, _ = self.perfetto()
        groups = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
        self.assertEqual(sorted(groups), sorted(f"traced_waits {pid}: threads" for pid in printed))
        # The children begin after the parent has been through its own waits, on one axis.
        firsts: dict[int, float] = {}
        for event in trace["traceEvents"]:
            if event["ph"] == "X":
                firsts[event["pid"]] = min(firsts.get(event["pid"], 1e18), event["ts"])
        begun = [firsts[pid] for pid in sorted(firsts)]
        self.assertEqual(len(set(begun)), len(processes))
        self.assertEqual(min(begun), 0)

    def test_each_thread_has_a_lane_of_its_name_and_each_wait_a_slice(self) -> None:
        file = self.folder / "trace.json"
        done = self.run_it("--trace", "--format", "perfetto", "-o", file, "--", PROGRAM, "waits")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        lanes = {e["tid"]: e["args"]["name"] for e in trace if e["name"] == "thread_name"}
        tids = {int(line.split()[1]) for line in done.stdout.splitlines()}
        self.assertEqual(set(lanes), tids)
        names = {name.rpartition(" (")[0] for name in lanes.values()}
        self.assertEqual(names, {"traced_waits", *NAMES})
        slices = [e for e in trace if e["ph"] == "X"]
        kinds = collections.Counter(e["name"] for e in slices)
        self.assertEqual(kinds["semaphore"], KNOWN["POSTS"])
        self.assertEqual(kinds["sleep"], KNOWN["NAPPERS"] * KNOWN["NAPS"] + 1)
        for event in slices:
            if event["name"] == "semaphore":
                about = event["args"]
                self.assertEqual(about["site"], WAITS.label("sem_wait(&items)"))
                self.assertEqual(about["wake_site"], WAITS.label("sem_post(&items)"))
                self.assertEqual((about["name"], about["verdict"]), ("items", "useful"))
                self.assertRegex(about["waker"], r"^traced_waits \(\d+\)$")
        self.check_lanes(slices)
        begins = {e["id"]: e for e in trace if e["ph"] == "s"}
        ends = {e["id"]: e for e in trace if e["ph"] == "f"}
        self.assertEqual(len(begins), KNOWN["POSTS"])
        self.assertEqual(begins.keys(), ends.keys())
        for number, begin in begins.items():
            self.assertEqual(lanes[begin["tid"]].rpartition(" (")[0], "traced_waits")
            self.assertEqual(lanes[ends[number]["tid"]].rpartition(" (")[0], "taker")
            self.assertLessEqual(begin["ts"], ends[number]["ts"])
            for end in (begin, ends[number]):
                own = [e for e in slices if e["tid"] == end["tid"]]
                self.assertTrue(
                    any(e["ts"] <= end["ts"] <= e["ts"] + e["dur"] + 0.001 for e in own), end
                )

    def test_a_running_program_can_be_recorded_with_its_events(self) -> None:
        pid, done = self.record_live("--trace")
        self.assertEqual(done.returncode, 0, done.stderr)
        file = self.folder / "trace.json"
        done = here("report", "--format", "perfetto", "-o", file, self.folder / "recording")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        trace = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
        (name,) = [e["args"]["name"] for e in trace if e["name"] == "process_name"]
        self.assertEqual(name, f"traced_waits {pid}: threads")
        kinds = collections.Counter(e["name"] for e in trace if e["ph"] == "X")
        self.assertEqual(kinds["semaphore"], KNOWN["POSTS"])
        self.assertEqual(kinds["sleep"], KNOWN["NAPPERS"] * KNOWN["NAPS"] + 1)

    def test_a_running_program_without_events_is_refused(self) -> None:
        _, done = self.record_live()
        self.assertEqual(done.returncode, 3)
        self.assertIn("start it by rouse run --trace", done.stderr)
        self.assertFalse((self.folder / "recording").exists())

    def record_live(self, *options: str) -> tuple[int, subprocess.CompletedProcess[str]]:
        """Record a program that runs under rouse run. Return its number as well."""
        words = ("run", *options, "--keep", str(self.folder / "kept"), "-o", os.devnull, "--")
        run = start(self, *COMMAND, *words, str(PROGRAM), "paused", ROUSE_PRELOAD=str(LIBRARY))
        pid = 0
        while (line := next_line(run).strip()) != "ready":
            pid = int(line.split()[0])
        recording = self.folder / "recording"
        done = rouse(
            *("record", "--trace", "--seconds", "0.1", "-o", recording, str(pid)), ROUSE_OBS_DIR=""
        )
        run.communicate(timeout=60)
        self.assertEqual(run.returncode, 0)
        return pid, done

    def check_lanes(self, slices: list[Row]) -> None:
        """No two slices of a lane overlap."""
        lanes = collections.defaultdict(list)
        for event in slices:
            lanes[event["pid"], event["tid"]].append(event)
        for own in lanes.values():
            own.sort(key=lambda event: (event["ts"], event["dur"]))
            for first, second in itertools.pairwise(own):
                self.assertLessEqual(first["ts"] + first["dur"], second["ts"] + 0.001)


class Agrees(unittest.TestCase):
    """The events of other programs agree with the counts that these are tested by."""

    def processes(self, source: Source, scene: str) -> list[Process]:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "kept"
            record(folder, source, scene, ROUSE_RUN_TRACE=str(LARGE_KIB))
            return [Process(file) for file in sorted(folder.glob("*.rouse"))]

    def test_waits_of_every_kind_are_traced_as_often_as_they_are_counted(self) -> None:
        for name, scene in SCENES:
            for process in self.processes(Source(name), scene):
                with self.subTest(name, scene=scene):
                    traced = collections.Counter(b["kind"] for b, end in process.waits() if end)
                    counted: collections.Counter[str] = collections.Counter()
                    for row in process.tables["wakes"].to_rows():
                        kind = row["kind"].replace("futex lock", "futex")
                        counted[kind] += sum(row[verdict] for verdict in measures.VERDICTS)
                    self.assertEqual(traced, +counted)
                    self.assertEqual(process.row["lost_events"], 0)

    def test_a_thread_that_ends_in_a_wait_has_that_wait(self) -> None:
        source = Source("abnormal_waits")
        (process,) = self.processes(source, "ends")
        ended = [begin["thread_id"] for begin, end in process.waits() if not end]
        self.assertEqual(len(ended), ENDS)
        self.assertEqual(len(set(ended)), ENDS)


class Options(Case):
    def refused(self, *words: str) -> str:
        done = self.run_it(*words, "--", PROGRAM, "many")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        return done.stderr

    def test_options_that_show_no_event_are_refused(self) -> None:
        self.assertIn("add --trace", self.refused("--format", "perfetto", "-o", "x"))
        self.assertIn("-o FILE", self.refused("--trace", "--format", "perfetto"))
        self.assertIn("range", self.refused("--trace=3", "--keep", "x"))
        self.assertIn("contradict", self.refused("--json", "--format", "text"))

    def test_the_word_after_trace_is_the_program(self) -> None:
        kept = self.folder / "kept"
        done = self.run_it("--keep", kept, "--trace", PROGRAM, "many")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(list(kept.glob("*.rouse")))

    @unless_emulated("its program is one of this machine")
    def test_a_program_without_waits_leaves_no_file(self) -> None:
        file = self.folder / "trace.json"
        done = self.run_it("--trace", "--format", "perfetto", "-o", file, "--", "true")
        self.assertEqual(done.returncode, 0)
        self.assertIn("no thread waited", done.stderr)
        self.assertFalse(file.exists())

    def test_a_recording_without_events_says_how_to_get_them(self) -> None:
        kept = self.folder / "kept"
        self.run_it("--keep", kept, "--", PROGRAM, "many")
        done = here("report", "--format", "perfetto", "-o", self.folder / "x", kept)
        self.assertEqual(done.returncode, 3)
        self.assertIn("rouse run --trace", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
