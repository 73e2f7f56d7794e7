#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse compare` on recordings of sync_waits.c, with and without a repair."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES, here

from interposed import Source, environment, record

from rouse.query import compare, listeners
from rouse.tables import inputs

CONNECTIONS = 60
TWO_LOCKS = """\
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>
static pthread_mutex_t *locks;
static void *take(void *lock)
{
    pthread_mutex_lock(lock);
    pthread_mutex_unlock(lock);
    return NULL;
}
int main(void)
{
    pthread_t thread;
    locks = malloc(2 * sizeof *locks);
    for (int i = 0; i < 2; i++)
        pthread_mutex_init(&locks[i], NULL);
    for (int i = 0; i < 2; i++) {
        pthread_mutex_lock(&locks[i]);
        pthread_create(&thread, NULL, take, &locks[i]);
        while (__atomic_load_n(&locks[i].__data.__lock, __ATOMIC_RELAXED) != 2)
            usleep(100);
        usleep(i == 0 ? 10000 : 200000);
        pthread_mutex_unlock(&locks[i]);
        pthread_join(thread, NULL);
    }
}
"""
WAITS = Source("sync_waits")
MS = 1_000_000


class Compare(unittest.TestCase):
    before: Path
    after: Path
    other: Path
    herd: Path
    in_turn: Path

    @classmethod
    def setUpClass(cls) -> None:
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.before, cls.after = (Path(place.name) / name for name in ("before", "after"))
        record(cls.before, WAITS, "held")
        record(cls.after, WAITS, "held", ROUSE_RUN_SPIN_NS="1000000000")
        record(Path(place.name) / "sleep", WAITS, "sleep")
        cls.other = Path(place.name) / "sleep"
        cls.herd, cls.in_turn = (Path(place.name) / name for name in ("herd", "in_turn"))
        for folder, repairs in ((cls.herd, {}), (cls.in_turn, {"ROUSE_RUN_ACCEPT": "fifo"})):
            folder.mkdir(mode=0o700)
            subprocess.run(
                [FIXTURES / "herd", "poll", "2", "1", str(CONNECTIONS), "1"],
                env=environment(folder, **repairs),
                stdout=subprocess.DEVNULL,
                check=True,
                timeout=60,
            )

    def compared(self, *words: str | Path) -> dict[str, Any]:
        done = here("compare", "--json", *words)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def test_locks_are_matched_by_name(self) -> None:
        found = self.compared(self.before, self.after)
        rows = {row["lock_name"]: row for row in found["sections"]["locks"]}
        self.assertEqual(set(rows), {"held_by_runner", "inherits", "held_by_sleeper"})
        for name, row in rows.items():
            self.assertEqual(row["site_label"], WAITS.label(f"_lock(&{name})"))
            self.assertEqual((row["before_cnt_lock"], row["after_cnt_lock"]), (1, 1))
            ratio = row["after_wait_total_ns"] / row["before_wait_total_ns"]
            self.assertAlmostEqual(row["ratio"], ratio)

    def test_sums_and_the_repair_are_reported(self) -> None:
        found = self.compared(self.before, self.after)
        figures = {row["figure"]: row for row in found["sections"]["figures"]}
        useful = figures["useful"]
        self.assertEqual((useful["before_value"], useful["after_value"]), (3, 2))
        self.assertAlmostEqual(useful["ratio"], 2 / 3)
        spun = figures["spun for locks"]
        self.assertEqual((spun["before_value"], spun["ratio"]), (0, None))
        self.assertGreater(spun["after_value"], MS)
        (note,) = (note for note in found["notes"] if "repair:" in note)
        self.assertTrue(note.startswith("after: "))

    def test_rows_of_only_one_side_are_shown(self) -> None:
        found = self.compared(self.before, self.other)["sections"]
        self.assertEqual({row["after_wait_total_ns"] for row in found["locks"]}, {0})
        figures = {row["figure"]: row for row in found["figures"]}
        p50 = figures["timers late from, p50"]
        self.assertGreaterEqual(p50["after_value"], 0)
        again = self.compared(self.other, self.other)["sections"]
        self.assertEqual(again["locks"], [])
        self.assertEqual({row["ratio"] for row in again["wait_sites"]}, {1.0})

    def test_the_text_has_the_same_figures_and_keeps_the_row_limit(self) -> None:
        done = here("compare", "-n", "1", self.before, self.after)
        self.assertEqual(done.returncode, 0)
        self.assertIn("held_by_sleeper", done.stdout)
        self.assertNotIn("inherits", done.stdout)
        self.assertIn("2 more rows", done.stdout)
        self.assertIn("after: repair: plain mutexes", done.stdout)

    def test_a_file_gets_what_standard_output_would(self) -> None:
        file = self.before.parent / "comparison"
        for words in ((), ("--json",)):
            printed = here("compare", *words, self.before, self.after)
            written = here("compare", *words, "-o", file, self.before, self.after)
            self.assertEqual((written.returncode, written.stdout), (0, ""))
            self.assertEqual(file.read_text(encoding="utf-8"), printed.stdout)
        wrong = here("compare", "--json", "--format", "html", self.before, self.after)
        self.assertEqual(wrong.returncode, 2)
        self.assertIn("--json and --format html contradict each other", wrong.stderr)

    def of_listeners(self, *folders: Path) -> dict[str, Any]:
        """The rows by figure. All of them belong to one listener."""
        rows = self.compared(*folders)["sections"]["listeners"]
        self.assertEqual(len({row["name"] for row in rows}), 1)
        return {row["figure"]: row for row in rows}

    def test_listeners_are_matched_though_their_ports_differ(self) -> None:
        rows = []
        for folder in (self.herd, self.in_turn):
            with inputs.open_input(str(folder)) as opened:
                rows += opened.database.rows(listeners.listeners())
        found = self.of_listeners(self.herd, self.in_turn)
        names = {row["name"] for row in found.values()}
        self.assertEqual(names, {f"{rows[0]['name']}, {rows[1]['name']}"})
        for title, key in (
            ("accepted", "accepted"),
            ("Jain's index, processes", "jain_processes"),
            ("wake-ups per connection", "woken_each"),
        ):
            row = found[title]
            values = (row["before_value"], row["after_value"])
            self.assertEqual(values, tuple(expected[key] for expected in rows))
            self.assertAlmostEqual(row["ratio"], values[1] / values[0])
        self.assertEqual(found["accepted"]["after"], str(CONNECTIONS + 2))
        same = self.of_listeners(self.herd, self.herd)
        self.assertEqual({row["ratio"] for row in same.values()}, {1.0})

    def test_a_listener_of_one_side_is_shown(self) -> None:
        row = self.of_listeners(self.before, self.herd)["accepted"]
        values = (row["before_value"], row["after_value"], row["ratio"])
        self.assertEqual(values, (None, CONNECTIONS + 2, None))
        done = here("compare", self.before, self.after)
        self.assertIn("neither has any whose connections were seen", done.stdout)

    def test_the_busiest_listener_of_a_name_is_matched_first(self) -> None:
        before = [{"name": name, "accepted": count} for name, count in (("a", 9), ("b", 5))]
        after = [{"name": name, "accepted": count} for name, count in (("b", 7), ("b", 3))]
        found = [
            (name, old.get("accepted"), new.get("accepted"))
            for name, old, new in compare.paired(before, after)
        ]
        self.assertEqual(found, [("b", 5, 7), ("a, b", 9, 3)])
        names = [name for name, _, _ in compare.paired([*before, before[0]], after)]
        self.assertEqual(names, ["b", "a", "a", "b"])

    def test_a_line_added_above_a_site_changes_nothing_and_locks_stay_apart(self) -> None:
        folders = []
        for name, text in (("old", TWO_LOCKS), ("new", "\n\n" + TWO_LOCKS)):
            place = self.before.parent / name
            place.mkdir(mode=0o700)
            (place / "two.c").write_text(text)
            words = ["gcc", "-g", "-O1", "-pthread", "-o", "two", "two.c"]
            subprocess.run(words, cwd=place, check=True)
            folders.append(place / "recorded")
            folders[-1].mkdir(mode=0o700)
            variables = {**os.environ, **environment(folders[-1])}
            subprocess.run([place / "two"], env=variables, check=True, timeout=60)
        found = self.compared(*folders)["sections"]
        slow, fast = found["locks"]
        for row, rank, least in ((slow, 1, 200), (fast, 2, 10)):
            self.assertEqual(row["rank"], rank)
            self.assertEqual(row["site_label"], "take two.c:9")  # where the later one has it
            for side in ("before", "after"):
                self.assertEqual(row[f"{side}_cnt_lock"], 1)
                self.assertGreaterEqual(row[f"{side}_wait_total_ns"], least * MS)
        for side in ("before", "after"):
            self.assertGreater(slow[f"{side}_wait_total_ns"], fast[f"{side}_wait_total_ns"])
        places = [(row["wait_label"], row["before_count"]) for row in found["wait_sites"]]
        self.assertIn(("take two.c:9", 2), places)

    def test_a_missing_input_is_reported(self) -> None:
        done = here("compare", self.before, self.before / "no")
        self.assertEqual(done.returncode, 3)
        self.assertIn("is not there", done.stderr)
        self.assertEqual(here("compare", self.before).returncode, 2)


if __name__ == "__main__":
    unittest.main(verbosity=2)
