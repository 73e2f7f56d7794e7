#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Where locks and the like were initialised, of tables in which that is known by construction."""

from __future__ import annotations

import unittest

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from orders import WAKES, site
from report_queries_test import asked, lock, picked

from rouse import locks, queries


class Origins(unittest.TestCase):
    def test_memory_that_another_place_initialises_anew_is_another_lock(self) -> None:
        rows = [
            lock(init_site="0x30", contested=2, wait_ns=7),
            lock(init_site="0x40", contested=1, wait_ns=5),
            lock(init_site="0x0", contested=1, wait_ns=1),
        ]
        sites = [*site(0x30, "here.c:1"), *site(0x40, "there.c:2")]
        found = [row for row in asked(locks.table, locks=rows, sites=sites) if row["cnt_lock"]]
        names = ("init_label", "cnt_lock", "wait_total_ns")
        self.assertEqual(
            picked(found, *names), [("here.c:1", 2, 7), ("there.c:2", 1, 5), ("-", 1, 1)]
        )
        sides = asked(locks.sides, locks=rows, sites=sites)
        self.assertEqual(picked(sides, "init_label"), [("here.c:1",), ("there.c:2",), ("-",)])

    def test_locks_of_one_origin_are_counted_and_summed(self) -> None:
        rows = [
            lock(lock=number, init_site="0x30", site=at, contested=1, wait_ns=number, acquired=1)
            for number in range(1, 4)
            for at in ("0x10", "0x20")
        ]
        rows += [lock(lock=9, kind="read lock", init_site="0x30", contested=1)]
        rows += [lock(lock=10, contested=5), lock(lock=11, init_site=None, contested=5)]
        found = asked(locks.origins, locks=rows, sites=[*site(0x30, "here.c:1")])
        names = ("init_label", "kind", "locks", "cnt_lock", "wait_total_ns", "wait_max_ns")
        self.assertEqual(
            picked(found, *names),
            [("here.c:1", "mutex", 3, 6, 12, 0), ("here.c:1", "rwlock", 1, 1, 0, 0)],
        )
        self.assertEqual(picked(found, "count", "total_ns"), [(None, None)] * 2)

    def test_objects_of_several_places_are_of_none(self) -> None:
        wake = {**WAKES[0], "kind": "condition", "useful": 1}
        sites = [*site(0x30, "here.c:1"), *site(0x40, "there.c:2")]
        for places, told in (
            (("0x30", "0x30"), "here.c:1"),
            (("0x30", "0x40"), "-"),
            (
                ("0x30", None),
                "-",
            ),
        ):
            wakes = [{**wake, "object": i, "init_site": at} for i, at in enumerate(places)]
            for query in (queries.wake_ledger, queries.wait_sites):
                (row,) = [r for r in asked(query, wakes=wakes, sites=sites) if r["objects"] == 2]
                self.assertEqual(row["init_label"], told)


if __name__ == "__main__":
    unittest.main()
