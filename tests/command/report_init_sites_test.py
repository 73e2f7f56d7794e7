#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The sites that initialised locks and other objects, which are known by construction."""

from __future__ import annotations

import json
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from common import here

from known_tables import LOCKS, WAKES, Row, orders, site
from report_queries_test import asked, lock, picked

from rouse.query import locks, measures
from rouse.tables import parquet


class Origins(unittest.TestCase):
    def test_memory_that_another_site_initialises_again_is_another_lock(self) -> None:
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

    def test_locks_with_the_same_init_site_are_counted_and_summed(self) -> None:
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

    def test_objects_of_several_init_sites_have_no_init_site(self) -> None:
        wake = {**WAKES[0], "kind": "condition", "useful": 1}
        sites = [*site(0x30, "here.c:1"), *site(0x40, "there.c:2")]
        for places, expected in (
            (("0x30", "0x30"), "here.c:1"),
            (("0x30", "0x40"), "-"),
            (
                ("0x30", None),
                "-",
            ),
        ):
            wakes = [{**wake, "object": i, "init_site": at} for i, at in enumerate(places)]
            for query in (measures.wake_ledger, measures.wait_sites):
                (row,) = [r for r in asked(query, wakes=wakes, sites=sites) if r["objects"] == 2]
                self.assertEqual(row["init_label"], expected)


class Compared(unittest.TestCase):
    """Two recordings whose addresses and site numbers differ."""

    def compared(self, *sides: Sequence[Row]) -> tuple[list[Row], str]:
        """The rows of locks, and the same comparison as text.

        here.c:1 has the address 0x30 on the first side and 0x130 on the second. there.c:2 is 0x10
        higher on each side.
        """
        with tempfile.TemporaryDirectory() as place:
            folders = [Path(place) / name for name in ("before", "after")]
            for number, (folder, rows) in enumerate(zip(folders, sides, strict=True)):
                at = 0x30 + 0x100 * number
                sites = [*site(at, "here.c:1"), *site(at + 0x10, "there.c:2"), *site(0x10, "wait")]
                parquet.write(orders(locks=rows, sites=sites), folder)
            done, text = here("compare", "--json", *folders), here("compare", *folders)
        self.assertEqual((done.returncode, done.stderr, text.returncode), (0, "", 0))
        found: list[Row] = json.loads(done.stdout)["sections"]["locks"]
        return found, text.stdout

    def test_locks_with_the_same_init_site_are_matched_by_rank_and_stay_apart(self) -> None:
        each = {"contested": 1, "acquired": 1}
        found, text = self.compared(
            [
                lock(lock=1, init_site="0x30", wait_ns=7, **each),
                lock(lock=2, init_site="0x30", wait_ns=6, **each),
                lock(lock=3, init_site="0x40", wait_ns=5, **each),
                lock(lock=4, init_site="0x0", wait_ns=1, **each),
            ],
            [
                lock(lock=8, init_site="0x130", wait_ns=2, **each),
                lock(lock=9, init_site=None, wait_ns=3, **each),
            ],
        )
        names = ("site_label", "init_label", "rank", "before_cnt_lock", "after_cnt_lock")
        self.assertEqual(
            picked(found, *names, "before_wait_total_ns", "after_wait_total_ns"),
            [
                ("wait", "here.c:1", 1, 1, 1, 7, 2),
                ("wait", "here.c:1", 2, 1, 0, 6, 0),
                ("wait", "there.c:2", None, 1, 0, 5, 0),
                ("wait", "", None, 1, 1, 1, 3),
            ],
        )
        self.assertIn("initialised at", text)
        self.assertIn("there.c:2", text)

    def test_named_locks_are_compared_by_name_for_any_init_site(self) -> None:
        named = {**LOCKS[0], "site": "0x10", "holder_site": "0x0"}
        found, _ = self.compared(
            [{**named, "init_site": "0x30"}], [{**named, "init_site": "0x140"}]
        )
        names = ("lock_name", "init_label", "before_cnt_lock", "after_cnt_lock")
        self.assertEqual(picked(found, *names), [("orders", "here.c:1, there.c:2", 2, 2)])

    def test_without_init_sites_the_column_is_left_out(self) -> None:
        rows = [lock(contested=1, wait_ns=1)]
        found, text = self.compared(rows, rows)
        self.assertEqual(picked(found, "init_label", "ratio"), [("", 1.0)])
        self.assertNotIn("initialised at", text)


if __name__ == "__main__":
    unittest.main(verbosity=2)
