#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The page of `rouse report --format html`, opened and used in a browser."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from common import main_unless

from browser import MARKUP, Case, not_run
from known_tables import LOCKS, THREADS, WAKES, Row, orders, site, tables

from rouse.query import specs


class Page(Case):
    @staticmethod
    def column(page: Any, title: str) -> list[str]:
        """The displayed texts of a column."""
        titles = page.locator("#table thead th").all_inner_texts()
        place = titles.index(title) + 1
        texts: list[str] = page.locator(f"#table tbody td:nth-child({place})").all_inner_texts()
        return texts

    def test_every_section_every_order_and_every_row(self) -> None:
        page = self.open_orders()
        sections = page.locator("#tabs button").count()
        titles = page.locator("#empty dt").all_text_contents()
        self.assertEqual(sections + len(titles), len(specs.PLANS))
        self.assertIn("Listeners", titles)
        for tab in page.locator("#tabs button").all():
            tab.click()
            self.assertEqual(tab.get_attribute("aria-selected"), "true")
            if page.locator("#idle-label").is_visible():
                page.locator("#idle").check()
            for button in page.locator("#table thead button").all():
                button.click()
            for row in page.locator("#table tbody tr").all():
                row.click()
                self.assertTrue(page.locator("#detail").is_visible())
                page.locator("#close").click()

    def test_it_shows_the_program_the_time_and_the_machine(self) -> None:
        page = self.open_orders()
        head = page.locator("body").inner_text()
        for expected in ("rouse report: orders", "42 on host, orders -p 80", "2025-10-09 08:53:20"):
            self.assertIn(expected, head)
        self.assertIn("max, total, count, avg and wait_avg are not known", head)

    def test_figures_are_those_of_the_tables_and_change_with_them(self) -> None:
        page = self.open_orders()
        self.choose(page, "locks")
        self.assertEqual(self.column(page, "wait_total"), ["30000", "0"])
        self.assertEqual(self.column(page, "cnt_hold"), ["1", "2"])
        self.assertEqual(self.column(page, "count"), ["-", "-"])
        changed = [{**LOCKS[0], "wait_ns": 21_000_000}, *LOCKS[1:]]
        page = self.open(orders(locks=changed))
        self.choose(page, "locks")
        self.assertEqual(self.column(page, "wait_total"), ["31000", "0"])

    def test_sort(self) -> None:
        page = self.open_orders()
        self.choose(page, "sides")
        self.assertEqual(self.column(page, "waited"), ["20.0 ms", "10.0 ms"])
        page.locator("#table thead button", has_text=re.compile("^given up$")).click()
        self.assertEqual(self.column(page, "given up"), ["1", "0"])
        page.locator("#table thead button", has_text=re.compile("^given up$")).click()
        self.assertEqual(self.column(page, "given up"), ["0", "1"])

    def test_filter_and_idle_waits(self) -> None:
        page = self.open_orders()
        self.choose(page, "waits")
        self.assertEqual(self.column(page, "kind"), ["mutex", "mutex"])
        self.assertIn("2 of idle waits hidden", page.locator("#shown").inner_text())
        page.locator("#idle").check()
        self.assertEqual(self.column(page, "kind"), ["accept", "condition", "mutex", "mutex"])
        page.locator("#filter").fill("put_order")
        self.assertEqual(self.column(page, "other side"), ["put_order+0x1c"])
        page.locator("#filter").fill("nothing like it")
        self.assertEqual(page.locator("#table tbody tr").count(), 0)

    def test_the_calls_of_a_wait_lead_to_the_editor(self) -> None:
        place = {"file": '/src/"><b>/queue.c', "line": 42}
        sites = [*site(0x1000, "take queue.c:42", **place), *site(0x2000, "put+0x1c")]
        wake = {"kind": "condition", "wait_site": "0x1000", "wake_site": "0x2000", "useful": 9}
        made = orders(sites=sites, wakes=[{**wake, "wait_ns": 10**9}])
        page = self.open(made, "--editor", "vscode://file{file}:{line}")
        self.choose(page, "wakes")
        page.locator("#table tbody tr").first.click()
        (link,) = page.locator("#detail a").all()
        self.assertEqual(link.inner_text(), "queue.c:42")
        self.assertEqual(link.get_attribute("href"), "vscode://file/src/%22%3E%3Cb%3E/queue.c:42")

    def test_a_row_leads_to_its_stacks_and_to_the_other_sections(self) -> None:
        page = self.open_orders()
        self.choose(page, "sides")
        page.locator("#table tbody tr").first.click()
        detail = page.locator("#detail")
        self.assertEqual(
            [stack.all_inner_texts() for stack in (detail.locator("ol >> nth=0 >> li"),)],
            [["orders.c:17", "serve.c:80", "main+0x9"]],
        )
        self.assertIn("put_order+0x1c", detail.inner_text())
        detail.locator("button", has_text="Wake-ups:").first.click()
        self.assertEqual(page.locator("#title").inner_text(), "Wake-ups")
        self.assertIn("wake-ups", detail.inner_text())

    def test_a_bar_of_the_plot_leads_to_its_row(self) -> None:
        page = self.open_orders()
        self.choose(page, "locks")
        page.locator("#plot .bar rect").first.click()
        page.locator("#detail").wait_for()
        self.assertIn("30000", page.locator("#detail").inner_text())

    def test_names_are_text_and_never_markup(self) -> None:
        threads = [{**THREADS[0], "name": MARKUP}, *THREADS[1:]]
        wakes: Sequence[Row] = [{**WAKES[0], "object_name": MARKUP}]
        locks = [{**LOCKS[0], "lock_name": MARKUP}]
        made = orders(threads=threads, wakes=wakes, locks=locks, sites=site(0x1010, MARKUP))
        page = self.open(made)
        for tab in page.locator("#tabs button").all():
            tab.click()
            self.assertEqual(page.locator("main img, main b, #plot a").count(), 0)
        self.choose(page, "threads")
        self.assertIn(MARKUP.replace("\x1b", "\\x1b"), self.column(page, "thread"))

    def test_many_rows_are_shown_in_steps_and_left_out_beyond_the_limit(self) -> None:
        many = [{**LOCKS[0], "lock": i, "site": "0x1010", "wait_ns": i} for i in range(1, 701)]
        page = self.open(orders(locks=many), "--limit", "500")
        self.choose(page, "sides")
        self.assertEqual(page.locator("#table tbody tr").count(), 200)
        page.locator("#more").click()
        page.locator("#more").click()
        self.assertEqual(page.locator("#table tbody tr").count(), 500)
        self.assertTrue(page.locator("#more").is_hidden())
        self.assertIn("200 more were left out", page.locator("#shown").inner_text())

    def test_tables_without_rows_are_folded_behind_one_line(self) -> None:
        page = self.open(tables(processes=orders()["processes"].to_rows()))
        self.assertIn("no wait was recorded", page.locator("#notes").inner_text())
        self.assertEqual(page.locator("#tabs button").all_inner_texts(), ["Totals"])
        self.assertFalse(page.locator("#empty dl").is_visible())
        page.locator("#empty summary").click()
        self.assertIn(
            "no thread met a lock of POSIX or librouse that was held",
            page.locator("#empty").inner_text(),
        )


if __name__ == "__main__":
    main_unless(not_run())
