#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every acquisition of a lock and every hold time, known by construction (lock_holds.c)."""

from __future__ import annotations

import json
import unittest
from collections import Counter

from common import rouse

from interposed import LIBRARY, Recorded, Source

HOLDS = Source("lock_holds")
KNOWN, label = HOLDS.known, HOLDS.label
MS = 1_000_000
TRIES = 5
FIGURES = ("acquired", "contested", "holds", "hold_ns", "hold_most_ns", "given_up")


class Scene(Recorded):
    """A run of a scene: its counts at each site, and everything else that it recorded."""

    def __init__(self, name: str, mode: str = "locks", mib: int = 256) -> None:
        super().__init__(HOLDS, name, ROUSE_OBS=mode, ROUSE_OBS_MIB=str(mib))
        self.places: dict[str, Counter[str]] = {}
        for row, stacks in self.rows("locks"):
            figures = {figure: row[figure] for figure in FIGURES if row[figure]}
            (place,) = stacks[row["site"]]
            self.places.setdefault(place, Counter()).update(figures)

    def got(self) -> dict[str, tuple[int, int]]:
        """The number of acquisitions and of finished holds, by site."""
        return {place: (row["acquired"], row["holds"]) for place, row in self.places.items()}

    def lost(self, what: str) -> int:
        return sum(row[f"lost_{what}"] for row, _ in self.rows("processes"))


class Counts(unittest.TestCase):
    def test_every_kind_of_lock_is_counted_each_time(self) -> None:
        free, tried = KNOWN["FREE"], KNOWN["TRIED"]
        expected = {label("/* free */", n): (free, free) for n in range(4)}
        expected |= {label("/* tried */", n): (tried, tried) for n in range(4)}
        found = Scene("free")
        self.assertEqual(found.got(), expected)
        self.assertEqual(sum(row["contested"] for row in found.places.values()), 0)

    def test_a_lock_that_its_owner_reacquires_is_held_once(self) -> None:
        nested = KNOWN["NESTED"]
        expected = {label("/* the first */", n): (nested, nested) for n in range(2)}
        self.assertEqual(Scene("nested").got(), expected)

    def test_the_time_is_that_from_lock_to_unlock(self) -> None:
        row = Scene("timed").places[label("/* for a while */")]
        least = KNOWN["HOLD_MS"] * MS
        self.assertEqual((row["acquired"], row["holds"]), (KNOWN["HELD"],) * 2)
        self.assertGreaterEqual(row["hold_ns"], KNOWN["HELD"] * least)
        self.assertGreaterEqual(row["hold_most_ns"], least)

    def test_a_condition_waiter_does_not_hold_the_mutex(self) -> None:
        wait = label("timedwait(&bell")
        least = KNOWN["PAUSES"] * KNOWN["HOLD_MS"] * MS
        for _ in range(TRIES):  # who loses its processor before a call waits there for less
            found = Scene("paused")
            waited = sum(row["wait_ns"] for row, _ in found.rows("wakes"))
            if waited >= least:
                break
        self.assertEqual(
            found.got(), {label("/* once */"): (1, 1), wait: (KNOWN["PAUSES"], KNOWN["PAUSES"])}
        )
        times = [row["hold_ns"] for row in found.places.values()]
        (lived,) = {row["duration_ns"] for row, _ in found.rows("processes")}
        self.assertGreaterEqual(waited, least)
        self.assertLessEqual(sum(times) + waited, lived)

    def test_a_lock_that_another_thread_unlocked_can_be_held_again(self) -> None:
        expected = {
            label("/* of which nobody sees the end */"): (KNOWN["HELD"], 0),
            label("/* and the next */"): (1, 1),
        }
        self.assertEqual(Scene("passed").got(), expected)

    def test_holds_without_room_are_counted(self) -> None:
        found = Scene("crowd")
        ((got, held),) = found.got().values()
        self.assertEqual(got, KNOWN["MANY"])
        self.assertEqual(held + found.lost("holds"), KNOWN["MANY"])
        self.assertLessEqual(held, KNOWN["ROOM"])
        self.assertGreater(held, KNOWN["ROOM"] // 2)

    def test_a_thread_may_use_all_rows_of_the_file(self) -> None:
        found, each = Scene("rows"), KNOWN["ROWS"]
        last = (KNOWN["NESTED"],) * 2
        self.assertEqual(
            found.got(), {label("/* of many */"): (each, each), label("/* the last */"): last}
        )
        self.assertEqual((found.lost("locks"), found.lost("holds")), (0, 0))

    def test_locks_without_a_row_are_counted_once(self) -> None:
        found, made = Scene("rows", mib=1), KNOWN["ROWS"] + KNOWN["NESTED"]
        got = [sum(column) for column in zip(*found.got().values(), strict=True)]
        self.assertEqual([got[0] + found.lost("locks"), got[1] + found.lost("holds")], [made] * 2)
        self.assertGreater(found.lost("locks"), KNOWN["ROWS"] // 2)

    def test_a_lock_that_was_held_on_arrival_is_acquired_once(self) -> None:
        found = Scene("contested")
        place = label("/* which is held */")
        self.assertEqual(found.got()[place], (KNOWN["CONTESTED"],) * 2)
        self.assertEqual(found.got()[label("/* by the holder */")], (1, 1))
        self.assertEqual(found.places[place]["contested"], KNOWN["CONTESTED"])

    def test_a_robust_lock_of_a_dead_owner_is_held_by_the_next(self) -> None:
        orphaned = KNOWN["ORPHANED"]
        expected = {label("/* from the dead */", n): (orphaned, orphaned) for n in range(2)}
        expected[label("/* until its end */")] = (2 * orphaned, 0)
        self.assertEqual(Scene("orphaned").got(), expected)

    def test_a_forked_child_holds_the_locks_that_it_acquired(self) -> None:
        expected = {label("/* over the fork */"): (1, 1), label("/* by the child */"): (1, 1)}
        self.assertEqual(Scene("child").got(), expected)

    def test_without_the_request_acquisitions_are_a_sample(self) -> None:
        found = Scene("free", "counted")
        for row, _ in found.rows("locks"):
            self.assertGreater(row["sampled"], 0)
            self.assertLessEqual(row["sampled"], KNOWN["FREE"])
        self.assertLessEqual(set(found.got()), set(Scene("free").got()))


class Command(unittest.TestCase):
    def test_the_lock_table_has_all_columns(self) -> None:
        said = rouse(
            *("run", "--holds", "--json", "--", HOLDS.program, "timed"),
            ROUSE_PRELOAD=str(LIBRARY),
        )
        found = json.loads(said.stderr)
        (row,) = found["sections"]["locks"]
        self.assertEqual((row["count"], row["lock_label"]), (KNOWN["HELD"], "held"))
        self.assertGreaterEqual(row["total_ns"], row["max_ns"])
        self.assertAlmostEqual(row["avg_ns"], row["total_ns"] / row["count"])
        self.assertEqual([process["mode"] for process in found["processes"]], ["locks"])
        self.assertNotIn("not every acquisition", said.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
