#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The known sites that initialised locks and other objects (init_sites.c)."""

from __future__ import annotations

import json
import subprocess
import unittest
from collections import Counter

from common import rouse

from interposed import LIBRARY, Recorded, Source, recorded

INITS = Source("init_sites")
KNOWN, label = INITS.known, INITS.label
SCENES = ("acquired", "waited", "again", "turns", "child", "crowd", "makers", "refused", "race")
BOTH = (("here", KNOWN["HERE"]), ("there", KNOWN["THERE"]))
NOBODY = ""  # the site if no initialising call was seen
Rows = list[tuple[str, str, str, int]]


class Scene(Recorded):
    """A run of a scene, and its records by kind, object and initialising site."""

    def __init__(self, name: str, mode: str = "counted") -> None:
        super().__init__(INITS, name, ROUSE_OBS=mode)

    def objects(self, table: str, figure: str) -> Counter[tuple[str, int, str, str]]:
        field = "lock" if table == "locks" else "object"
        found: Counter[tuple[str, int, str, str]] = Counter()
        for row, stacks in self.rows(table):
            (place,) = stacks.get(row["init_site"], (NOBODY,))
            if row[field] and row[figure]:
                found[row["kind"], row[field], place, row["process"]] += row[figure]
        return found

    def places(self, table: str, figure: str) -> Counter[tuple[str, str, int]]:
        """The number of objects by kind, initialising site, and count per object."""
        every = self.objects(table, figure).items()
        return Counter((kind, place, count) for (kind, _, place, _), count in every)

    def lost(self) -> int:
        return sum(row["lost_origins"] for row, _ in self.rows("processes"))


def of(kind: str, name: str) -> Counter[tuple[str, str, int]]:
    """The objects of this kind that make_here and make_there initialise, each counted once."""
    return Counter({(kind, label(f"/* {name} {where} */"), 1): count for where, count in BOTH})


class Places(unittest.TestCase):
    def test_every_kind_of_lock_that_is_waited_for(self) -> None:
        expected = of("mutex", "mutex") + of("mutex", "mtx") + of("write lock", "rwlock")
        found = Scene("waited")
        self.assertEqual(found.places("locks", "contested"), expected)
        expected += of("condition", "cond") + of("condition", "cnd")
        expected += of("semaphore", "sem") + of("barrier", "barrier")
        self.assertEqual(found.places("wakes", "useful"), expected)
        self.assertEqual(found.lost(), 0)

    def test_every_kind_of_lock_that_is_acquired(self) -> None:
        expected = of("mutex", "mutex") + of("spin lock", "spin") + of("mutex", "mtx")
        expected += of("read lock", "rwlock")
        self.assertEqual(Scene("acquired", "locks").places("locks", "acquired"), expected)

    def test_a_reinitialised_lock_is_another(self) -> None:
        found = Scene("again")
        for table, figure, kind, name in (
            ("locks", "contested", "mutex", "mutex"),
            ("wakes", "useful", "semaphore", "sem"),
        ):
            here, there = (label(f"/* {name} {where} */") for where, _ in BOTH)
            expected = Counter({here: KNOWN["BEFORE"] + 1, there: KNOWN["AFTER"]})
            if kind == "mutex":
                expected[NOBODY] = 1
            rows = {key: n for key, n in found.objects(table, figure).items() if key[0] == kind}
            self.assertEqual(Counter({place: n for (_, _, place, _), n in rows.items()}), expected)
            self.assertEqual(len({at for _, at, _, _ in rows}), 1)

    def test_a_reinitialised_lock_is_acquired_as_another(self) -> None:
        each = KNOWN["TURNS"] // 2
        expected = {("mutex", label(f"/* mutex {where} */"), each): 1 for where, _ in BOTH}
        self.assertEqual(Scene("turns", "locks").places("locks", "acquired"), expected)

    def test_a_forked_child_has_its_parents_init_sites_and_its_own(self) -> None:
        here, there = (label(f"/* mutex {where} */") for where, _ in BOTH)
        expected = {
            ("mutex", there, KNOWN["AFTER"]): 1,  # the child's lock
            ("mutex", here, 1): 2,  # one lock in each process
            ("mutex", here, KNOWN["BEFORE"]): 1,  # the parent's lock, which is unchanged
        }
        self.assertEqual(Scene("child").places("locks", "contested"), expected)

    def test_failed_calls_change_nothing(self) -> None:
        found = Scene("refused")
        mutex, sem = label("/* mutex here */"), label("/* sem here */")
        self.assertEqual(found.places("locks", "contested"), {("mutex", mutex, 1): 1})
        wakes = found.places("wakes", "useful")
        self.assertEqual(wakes["semaphore", sem, 1], 1)

    def test_initialisations_without_room_are_counted(self) -> None:
        found = Scene("crowd", "locks")
        many, fresh, lost = label("/* many */"), label("/* fresh */"), found.lost()
        self.assertGreater(lost, 0)
        expected = {("mutex", many, 1): KNOWN["MANY"] - lost, ("mutex", NOBODY, 1): lost}
        expected["mutex", fresh, 1] = KNOWN["FRESH"]
        self.assertEqual(found.places("locks", "acquired"), expected)

    def test_concurrent_initialisations_are_all_recorded(self) -> None:
        found = Scene("makers", "locks")
        made: Counter[str] = Counter()
        for (_, _, place, _), count in found.objects("locks", "acquired").items():
            made[place] += count
        each = KNOWN["ROUNDS"] * KNOWN["MAKERS"] // 2
        self.assertEqual(made, {label("/* odd */"): each, label("/* even */"): each})
        self.assertEqual(found.lost(), 0)

    def test_threads_that_wait_first_at_once_are_all_recorded(self) -> None:
        found = Scene("race")
        waits = [row for row, _ in found.rows("wakes") if row["kind"] != "join"]
        self.assertEqual({row["kind"] for row in waits}, {"semaphore"})
        each = Counter(row["timeout"] for row in waits)
        self.assertEqual(each, {KNOWN["RACERS"]: KNOWN["NAMED"]})

    def test_without_the_library_all_calls_return_the_same(self) -> None:
        for scene in SCENES:
            done = subprocess.run([INITS.program, scene], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), scene)


class Reports(unittest.TestCase):
    def test_locks_of_one_init_site_are_one_row(self) -> None:
        found = recorded(self, INITS, "waited")
        rows = {row["init_label"]: row for row in found["origins"] if row["kind"] == "mutex"}
        for where, count in BOTH:
            row = rows[label(f"/* mutex {where} */")]
            self.assertEqual((row["locks"], row["cnt_lock"]), (count, count))
            self.assertRegex(row["name"], rf"^{count} locks initialised at \w+ init_sites\.c:")
            each = [r for r in found["locks"] if r["init_label"] == row["init_label"]]
            waits = sum(r["wait_total_ns"] for r in each)
            self.assertEqual((len({r["lock"] for r in each}), waits), (count, row["wait_total_ns"]))

    def test_objects_of_several_init_sites_have_no_init_site(self) -> None:
        found = recorded(self, INITS, "waited")
        (row,) = [row for row in found["wakes"] if row["kind"] == "semaphore"]
        self.assertEqual((row["objects"], row["init_label"]), (sum(n for _, n in BOTH), None))

    def test_the_lock_table_shows_the_init_site(self) -> None:
        words = ("run", "--full", "--", INITS.program, "again")
        said = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(said.returncode, 0, said.stderr)
        here = label("/* mutex here */")
        self.assertRegex(said.stderr, rf"(?m)^.*  {here}  .* \(mutex:things(\+0x0)?\)$")
        self.assertIn(f"1 lock initialised at {here} (mutex)", said.stderr)

    def test_json_has_null_where_no_call_is_known(self) -> None:
        words = ("run", "--json", "--", INITS.program, "again")
        sections = json.loads(rouse(*words, ROUSE_PRELOAD=str(LIBRARY)).stderr)["sections"]
        places = {(row["init_label"], row["init_site"] is None) for row in sections["locks"]}
        here, there = (label(f"/* mutex {where} */") for where, _ in BOTH)
        self.assertEqual(places, {(here, False), (there, False), (None, True)})


if __name__ == "__main__":
    unittest.main(verbosity=2)
