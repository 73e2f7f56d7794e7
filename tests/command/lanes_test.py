#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The lanes of threads on the page of a trace, and how they are bounded."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import here, main_unless, rouse

from browser import Case, not_run
from interposed import LIBRARY, Source

from rouse.query.icicle import Box, Texts
from rouse.query.lanes import LANES_MOST, Lane, Lanes, Span, joined
from rouse.render import page

MARKED = Source("marked_requests")
RUNS, LOCKS = "running", "locks"


class Bounded(unittest.TestCase):
    def test_short_spans_are_summed_up_and_no_time_is_lost(self) -> None:
        spans = [Span(n * 10, n * 10 + 10, LOCKS if n % 3 else RUNS, str(n)) for n in range(5000)]
        for most in (1, 7, 100, 4999, 5000):
            found = joined(spans, most)
            self.assertLessEqual(len(found), most)
            if most > 1:
                self.assertEqual(sum(one.end - one.begin for one in found), 50_000)
            if most == 7:
                self.assertEqual({one.part for one in found}, {LOCKS})

    def test_long_spans_stay_as_they_are(self) -> None:
        spans = [Span(n, n + 1, RUNS, "short") for n in range(1000)]
        spans.append(Span(1000, 100_000, LOCKS, "long"))
        self.assertIn(spans[-1], joined(spans, 50))

    def test_the_page_has_no_more_bytes_of_lanes_than_it_has_room_for(self) -> None:
        def lanes(most: int) -> Lanes:
            each = max(most // LANES_MOST, 4)
            some = [Span(n * 1000, n * 1000 + 999, RUNS, f"text {n}" * 20) for n in range(each)]
            return Lanes(0, 10**9, [Lane("thread", some)] * LANES_MOST, 0, [])

        pictures = page.Pictures(Box("all"), lanes=lanes)
        made = page.bounded_lanes(pictures, Texts())
        assert made
        self.assertLessEqual(len(page.embedded(made)), page.LANES_BYTES)
        self.assertEqual(len(made["lanes"]), LANES_MOST)


@unittest.skipIf(not_run(), f"not run: {not_run()}")
class Page(Case):
    def of_run(self, *words: str) -> Any:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        kept, file = Path(folder.name) / "kept", self.place / f"{self.id()}.html"
        where = ("--keep", kept, "-o", Path(folder.name) / "text")
        done = rouse("run", *words, *where, "--", MARKED.program, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = here("report", "--format", "html", "-o", file, kept)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.look_at(file)

    def test_a_trace_has_a_lane_per_thread(self) -> None:
        shown = self.of_run("--trace")
        self.assertTrue(shown.locator("#lanes-part").is_visible())
        names = shown.locator("#lanes svg > text:not(.tick) > title").all_text_contents()
        self.assertEqual(sorted(names), ["flusher", "marked_requests", "server-1"])

    def test_a_wait_says_who_ended_it_and_leads_to_that_lane(self) -> None:
        shown = self.of_run("--trace")
        waits = shown.locator("#lanes .span", has_text="server-1 waits (mutex)")
        self.assertGreater(waits.count(), 0)
        self.assertEqual(shown.locator("#lanes .arrow").count(), 0)
        waits.first.dispatch_event("click")
        said = shown.locator("#span").inner_text()
        where = MARKED.label("pthread_mutex_lock(&table);", 1)
        by = MARKED.label("pthread_mutex_unlock(&table);")
        self.assertIn(f"server-1 waits (mutex) at {where}, ended by flusher at {by}: ", said)
        self.assertEqual(shown.locator("#lanes .arrow").count(), 1)

    def test_a_request_is_enlarged(self) -> None:
        shown = self.of_run("--trace")
        whole = shown.locator("#lanes .span").count()
        self.assertFalse(shown.locator("#lanes-out").is_visible())
        shown.locator("#lanes-requests").select_option(index=1)
        self.assertLess(shown.locator("#lanes .span").count(), whole / 4)
        shown.locator("#lanes-out").click()
        self.assertEqual(shown.locator("#lanes .span").count(), whole)

    def test_without_a_trace_there_are_no_lanes(self) -> None:
        self.assertFalse(self.of_run().locator("#lanes-part").is_visible())


if __name__ == "__main__":
    main_unless("")
