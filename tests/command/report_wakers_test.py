#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Rows that sum up many waits: how they name their objects, and wakers that were not seen."""

from __future__ import annotations

import unittest

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from known_tables import PROCESSES, WAKES
from report_queries_test import asked, made, picked

from rouse.query import measures
from rouse.query.sections import Wanted


class Sides(unittest.TestCase):
    def test_a_row_of_several_objects_shows_their_number(self) -> None:
        wake = {**WAKES[0], "kind": "semaphore", "useful": 1}
        for objects, expected in (
            (((1, "a"), (2, "b")), "2 objects"),
            (((1, "a"), (2, None)), "2 objects"),
            (((1, "a"), (2, "a")), "2 objects: a"),
            (((1, "a"), (1, "a")), "a"),
            (((1, None),), "0x1"),
        ):
            wakes = [{**wake, "object": number, "object_name": name} for number, name in objects]
            (row,) = made(Wanted(), wakes=wakes)["wakes"].rows
            self.assertEqual(row["object_label"], expected)

    def test_wakers_without_a_site_are_labelled_by_their_kind(self) -> None:
        posted = {**WAKES[0], "kind": "semaphore", "wake_site": "0x0"}
        none = {**posted, "useful": 0}
        for wake, interposed, linked in (
            (posted, "not known", "runtime"),
            ({**none, "cancelled": 1}, "not known", "runtime"),
            ({**none, "timeout": 1}, "timer", "timer"),
            ({**posted, "kind": "sleep"}, "timer", "timer"),
            ({**posted, "kind": "join"}, "thread end", "thread end"),
            ({**posted, "kind": "read"}, "runtime", "runtime"),
        ):
            for recorder, label in (("preload", interposed), ("", linked)):
                changed = {"processes": [{**PROCESSES[0], "recorder": recorder}], "wakes": [wake]}
                (row,) = asked(measures.wake_ledger, **changed)
                self.assertEqual(row["wake_label"], label)
                if wake["kind"] == "semaphore":
                    woken = [
                        r for r in asked(measures.wait_sites, **changed) if r["role"] == "woke"
                    ]
                    self.assertEqual(picked(woken, "other_label"), [(label,)])


if __name__ == "__main__":
    unittest.main(verbosity=2)
