#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Requests that a program marks: how long they took and why, compared with the program's clock."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path

from common import FIXTURES, SOURCE, here, next_line, start

from interposed import LIBRARY, Source, unless_emulated
from run_case import Case, Row

from rouse.query.timelines import NOT_KEPT, RUNS, Step, Stretch, Timelines

MARKED = Source("marked_requests")
PROGRAM, KNOWN = MARKED.program, MARKED.known
USER = Source("marked_threads")
HOLDS = "server-* waits (mutex) at {}, meanwhile flusher waits (sleep) at {}"
SLACK = 0.1  # of the requests' time: the clock is read around the calls
LABELS_MOST = 64


Event = tuple[str, int, int, str, str, int, int]


def wait(at: int, thread: int, kind: str = "mutex") -> Event:
    return ("wait", at, thread, kind, f"w{thread}", 0, 0)


def event(at: int, sort: str, thread: int, other_id: int = 0, value: int = 0) -> Event:
    return (sort, at, thread, "", "", other_id, value)


def wake(at: int, thread: int, waker: int) -> Event:
    return ("wake", at, thread, "", f"k{waker}", waker, 0)


def timelines_of(events: list[Event]) -> Timelines:
    """The timelines of events, each thread's in their order."""
    made = Timelines()
    for one in sorted(events, key=lambda one: one[1]):
        made.add(*one)
    return made


class Paths(unittest.TestCase):
    """The stretches of a time, and why each took as long, of events that are written here."""

    def check(self, events: list[Event], thread: int, expected: list[tuple[int, int, str]]) -> None:
        found = timelines_of(events).explain(thread, 0, 100)
        said = [
            (one.begin, one.end, " < ".join(f"{s.thread} {s.what}" for s in one.chain))
            for one in found
        ]
        self.assertEqual(said, expected)
        self.assertEqual([one.begin for one in found[1:]], [one.end for one in found[:-1]])

    def test_a_wait_takes_as_long_as_what_its_waker_did_meanwhile(self) -> None:
        events = [
            *(event(0, "new", thread) for thread in (1, 2, 3)),
            *(wait(10, 1), wait(20, 2, "semaphore")),
            *(wake(50, 2, 3), event(55, "run", 2)),
            *(wake(80, 1, 2), event(90, "run", 1)),
        ]
        self.check(
            events,
            1,
            [
                (0, 10, "1 runs"),
                (10, 20, "1 mutex < 2 runs"),
                (20, 50, "1 mutex < 2 semaphore < 3 runs"),
                (50, 55, "1 mutex < 2 to run"),
                (55, 80, "1 mutex < 2 runs"),
                (80, 90, "1 to run"),
                (90, 100, "1 runs"),
            ],
        )

    def test_a_wait_that_no_thread_ended_is_the_end_of_the_path(self) -> None:
        events = [event(0, "new", 1), wait(10, 1, "read"), event(70, "run", 1, value=60)]
        self.check(
            events,
            1,
            [(0, 10, "1 runs"), (10, 60, "1 read"), (60, 70, "1 to run"), (70, 100, "1 runs")],
        )

    def test_threads_that_wake_each_other_end_the_path(self) -> None:
        events = [
            *(event(0, "new", 1), event(0, "new", 2)),
            *(wait(10, 1), wait(10, 2), wake(80, 1, 2), wake(80, 2, 1)),
            *(event(80, "run", 1), event(80, "run", 2)),
        ]
        self.check(
            events,
            1,
            [
                (0, 10, "1 runs"),
                (10, 80, "1 mutex < 2 mutex < 1 not recorded"),
                (80, 100, "1 runs"),
            ],
        )

    def test_time_before_the_kept_events_of_a_thread_is_not_explained(self) -> None:
        self.check([wait(40, 1)], 1, [(0, 40, f"1 {NOT_KEPT}"), (40, 100, "1 mutex")])

    def test_a_thread_s_time_before_its_creation_is_its_creator_s(self) -> None:
        events = [event(0, "new", 1), event(30, "new", 2, other_id=1)]
        self.check(events, 2, [(0, 30, f"1 {RUNS}"), (30, 100, f"2 {RUNS}")])

    def test_a_thread_of_which_nothing_is_known(self) -> None:
        found = Timelines().explain(9, 0, 100)
        self.assertEqual(found, [Stretch(0, 100, (Step(9, NOT_KEPT),))])


class Requests(Case):
    def report_of(self, *words: str) -> tuple[Mapping[str, list[Row]], list[int]]:
        """Run the program. Return the sections, and what the program printed."""
        file = self.folder / "report.json"
        done = self.run_it("--trace", "--json", "-o", file, "--", PROGRAM, *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        sections = json.loads(file.read_text(encoding="utf-8"))["sections"]
        return sections, [int(word) for word in done.stdout.split()]

    def check_times(self, found: Mapping[str, list[Row]], name: str, printed: list[int]) -> None:
        """Compare the total, the runs and the waits with the program's clock."""
        took, server, posted, locked = printed
        (whole,) = (row for row in found["requests"] if row["name"] == name)
        self.assertAlmostEqual(whole["total_ns"] / took, 1, delta=SLACK)
        parts = [row for row in found["request_paths"] if row["name"] == name]
        self.assertAlmostEqual(sum(row["share"] for row in parts), 1, places=6)

        def spent(pattern: str) -> float:
            chosen = (row["share"] for row in parts if re.match(pattern, row["path"]))
            return float(sum(chosen) * whole["total_ns"])

        runs = spent(r"server-\* runs$")
        self.assertAlmostEqual((server - posted - locked - runs) / took, 0, delta=SLACK)
        # The program's clock has the way to a processor in its waits.
        waits = spent(r"server-\* waits \(mutex\)|server-\* is to run after its wait at look_up")
        self.assertAlmostEqual((locked - waits) / took, 0, delta=SLACK)

    def test_a_request_s_time_is_divided_as_the_program_s_clock_says(self) -> None:
        found, printed = self.report_of()
        self.check_times(found, "request", printed)
        (row,) = found["requests"]
        self.assertEqual((row["count"], row["open"], row["cut"]), (KNOWN["REQUESTS"], 0, 0))
        where = MARKED.label("pthread_mutex_lock(&table);", 1), MARKED.label("nanosleep(")
        parts = {row["path"]: row["each_ns"] for row in found["request_paths"]}
        self.assertGreater(parts[HOLDS.format(*where)], KNOWN["HOLD_NS"] / 2)

    def test_the_slowest_request_is_shown_step_by_step(self) -> None:
        found, _ = self.report_of()
        steps = found["slowest_requests"]
        first = KNOWN["FIRST_ID"]
        self.assertIn(steps[0]["request_id"], range(first, first + KNOWN["REQUESTS"]))
        self.assertEqual(len({row["request_id"] for row in steps}), 1)
        marks = [row["path"] for row in steps if row["path"].startswith("mark at")]
        self.assertEqual(marks, [f"mark at {MARKED.label('rouse_mark(', 0)}"])
        self.assertEqual(sum(row["for_ns"] for row in steps), found["requests"][0]["most_ns"])
        self.assertIn("server-1 runs", [row["path"] for row in steps])

    def test_odd_marks_are_counted(self) -> None:
        found, _ = self.report_of("odd")
        rows = {row["name"]: row for row in found["requests"]}
        self.assertEqual((rows["request"]["open"], rows["request"]["cut"]), (1, 1))
        self.assertEqual(rows["request"]["count"], KNOWN["REQUESTS"])
        self.assertEqual(len(rows), LABELS_MOST)

    def test_names_without_room_are_counted_as_lost(self) -> None:
        kept = self.folder / "kept"
        self.run_it("--trace", "--keep", kept, "-o", self.folder / "text", "--", PROGRAM, "odd")
        done = here("report", "--json", kept)
        (process,) = json.loads(done.stdout)["processes"]
        self.assertEqual(process["lost_events"], 100 + 1 - LABELS_MOST)

    def test_the_first_screen_says_where_the_requests_time_goes(self) -> None:
        done = self.run_it("--trace", "--", PROGRAM)
        text = " ".join(done.stderr.split())
        self.assertIn(f"Requests: {KNOWN['REQUESTS']} requests, median ", text)
        self.assertRegex(text, r"\d % of their time: server-\* ")

    def test_a_program_without_marks_is_told_that_its_events_are_not_kept(self) -> None:
        program = Source("traced_waits").program
        done = self.run_it("--trace", "--", program, "waits")
        self.assertIn("marks no requests", done.stderr)

    def test_sections_of_requests_can_be_chosen(self) -> None:
        kept = self.folder / "kept"
        self.run_it("--trace", "--keep", kept, "-o", self.folder / "text", "--", PROGRAM)
        done = here("report", "--section", "requests", kept)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("request     20", done.stdout)
        self.assertNotIn("Where the requests", done.stdout)

    def test_perfetto_has_a_slice_per_request(self) -> None:
        trace = self.folder / "trace.json"
        done = self.run_it("--trace", "--format", "perfetto", "-o", trace, "--", PROGRAM)
        self.assertEqual(done.returncode, 0, done.stderr)
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
        marks = [one for one in events if one.get("cat") == "request"]
        phases = [one["ph"] for one in marks]
        self.assertEqual(
            {phase: phases.count(phase) for phase in "bne"}, dict.fromkeys("bne", KNOWN["REQUESTS"])
        )
        self.assertEqual(marks[0]["name"], f"request {KNOWN['FIRST_ID']}")

    def test_without_a_recorder_marks_do_nothing(self) -> None:
        done = subprocess.run([PROGRAM, "odd"], capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(len(done.stdout.split()), 4)

    def test_without_trace_no_mark_is_recorded(self) -> None:
        self.assertNotIn("requests", self.sections(PROGRAM))

    @unless_emulated("<sys/sdt.h> of this machine is not used")
    def test_marks_are_usdt_probes(self) -> None:
        if not any(Path("/usr/include").rglob("sys/sdt.h")):
            self.skipTest("not run: there is no <sys/sdt.h>")
        done = subprocess.run(
            ["readelf", "-n", PROGRAM], capture_output=True, text=True, check=True
        )
        found = set(re.findall(r"Provider: (\w+)\s+Name: (\w+)", done.stdout))
        self.assertEqual(found, {("rouse", "mark"), ("rouse", "mark_end")})

    @unless_emulated("the counter of this machine is not the emulated one")
    def test_rouse_threads_have_paths_too(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        program = start(self, USER.program, ROUSE_OBS="trace", ROUSE_OBS_DIR=folder.name)
        printed = [int(word) for word in next_line(program).split()]
        self.assertEqual(next_line(program), "ready\n")
        done = here("report", "--json", str(program.pid), ROUSE_OBS_DIR=folder.name)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)["sections"]
        self.check_times(found, "job", printed)
        where = USER.label("rouse_mutex_lock(&table);", 1), USER.label("rouse_sleep(")
        paths = [row["path"] for row in found["request_paths"]]
        self.assertIn(HOLDS.format(*where), paths)


class Header(unittest.TestCase):
    def test_it_compiles_alone_in_c_and_cxx(self) -> None:
        source = '#include <rouse/mark.h>\nint main(void) { rouse_mark("a", 1); return 0; }\n'
        warnings = ("-Wall", "-Wextra", "-Werror", "-pedantic", "-Wshadow")
        for compiler, language in (
            *(("gcc", ("c", "-std=c17")), ("g++", ("c++", "-std=c++17"))),
            *(("clang", ("c", "-std=c17")), ("clang++", ("c++", "-std=c++17"))),
        ):
            for optimized in ("-O0", "-O2"):
                with self.subTest(compiler=compiler, optimized=optimized):
                    words = [compiler, "-x", *language, *warnings, optimized]
                    done = subprocess.run(
                        [*words, f"-I{SOURCE / 'include'}", "-", "-o", "/dev/null"],
                        input=source,
                        capture_output=True,
                        text=True,
                    )
                    self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    assert LIBRARY.exists() and FIXTURES.exists()
    unittest.main()
