#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known call stacks of a program that does not use rouse (call_stacks.c)."""

from __future__ import annotations

import unittest
from collections import Counter

from common import rouse

from interposed import LIBRARY, Recorded, Source

from rouse.store import layout

SITES = Source("call_stacks")
NAP = SITES.label("nanosleep(")
TAKE = SITES.label("lock(&lock) == 0);")
Stack = tuple[str, ...]


class Scene(Recorded):
    def __init__(self, name: str, depth: str) -> None:
        super().__init__(SITES, name, ROUSE_OBS_DEPTH=depth)

    def waits(self, kind: str, side: str = "wait_site") -> Counter[Stack]:
        counts: Counter[Stack] = Counter()
        for row, stacks in self.rows("wakes"):
            if row["kind"] == kind:
                counts[stacks.get(row[side], ())] += row["useful"] + row["timeout"]
        return counts


class Stacks(unittest.TestCase):
    def test_callers_of_the_only_lock_site_are_reported(self) -> None:
        found = Scene("wrapped", "4")
        middle = SITES.label("/* of middle */")
        first, second = SITES.label("/* the first way */"), SITES.label("/* the second way */")
        use = SITES.label("first_way();"), SITES.label("second_way();")
        ways = {
            (TAKE, middle, first, use[0]): SITES.known["FIRST"],
            (TAKE, middle, second, use[1]): SITES.known["SECOND"],
        }
        self.assertEqual(found.waits("mutex"), ways)
        got: Counter[Stack] = Counter()
        for row, stacks in found.rows("locks"):
            if row["contested"]:
                got[stacks[row["site"]]] += row["contested"]
        self.assertEqual(got, ways)

    def test_without_a_depth_only_the_site_is_recorded(self) -> None:
        both = SITES.known["FIRST"] + SITES.known["SECOND"]
        self.assertEqual(Scene("wrapped", "").waits("mutex"), {(TAKE,): both})

    def test_callers_of_a_wake_site_are_reported(self) -> None:
        (stack,) = Scene("woken", "3").waits("condition", "wake_site")
        self.assertEqual(stack[:2], (SITES.label("_signal(&bell)"), SITES.label("/* by main */")))

    def test_of_a_deep_stack_the_innermost_calls_are_kept(self) -> None:
        found = Scene("deep", "8")
        bottom, deeper = SITES.label("/* at the bottom */"), SITES.label("/* deeper */")
        self.assertEqual(found.waits("sleep"), {(NAP, bottom, *(deeper,) * 6): 1})

    def test_calls_of_the_library_that_calls_back_are_left_out(self) -> None:
        ((stack, count),) = Scene("once", "6").waits("sleep").items()
        inner, outer = SITES.label("/* in the routine */"), SITES.label("initialize) == 0);")
        self.assertEqual((stack[:2], count), ((NAP, inner), 1))
        self.assertIn(outer, stack)
        between = [label for label in stack[2 : stack.index(outer)] if "once" not in label]
        self.assertEqual(between, [])
        self.assertFalse([label for label in stack if "rpi_" in label or "preload" in label])

    def test_a_forked_child_has_its_own_stacks(self) -> None:
        found = Scene("child", "2")
        parts = [SITES.label(f"/* {what} */") for what in ("before the fork", "in the child")]
        self.assertEqual(found.waits("sleep"), {(NAP, part): 1 for part in parts})

    def test_stacks_that_the_program_allocated_are_not_read(self) -> None:
        expected = {(NAP,): 4, (NAP, SITES.label("/* on the thread's */")): 2}
        self.assertEqual(Scene("own", "2").waits("sleep"), expected)

    def test_an_invalid_depth_is_ignored(self) -> None:
        found = Scene("deep", "nine")
        self.assertEqual(found.waits("sleep"), {(NAP,): 1})


class Apart(unittest.TestCase):
    def test_a_program_with_gaps_between_its_segments_is_mapped_completely(self) -> None:
        apart = Source("call_stacks", "call_stacks_apart")
        found = Recorded(apart, "wrapped", ROUSE_OBS_DEPTH="2")
        self.assertEqual({row["lock_name"] for row, _ in found.rows("locks")}, {"lock"})
        stacks = {stacks[row["site"]] for row, stacks in found.rows("locks")}
        self.assertIn((TAKE, SITES.label("/* of middle */")), stacks)
        (process,) = found.processes
        own = {row["build_id"] for row in process["sites"].to_rows() if row["file"]}
        self.assertTrue(own and all(own))


class Command(unittest.TestCase):
    def test_the_text_report_shows_the_calls_before_a_wait(self) -> None:
        words = ("run", "--stacks", "--depth", str(layout.SITE_FRAMES), "--", SITES.program, "deep")
        said = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
        bottom = SITES.label("/* at the bottom */")
        self.assertEqual(said.returncode, 0, said.stderr)
        self.assertIn(f"    waits at {NAP} from {bottom} from ", said.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
