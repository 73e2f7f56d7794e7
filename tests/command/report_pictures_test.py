#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The pictures of pages: the icicle of the threads' time, and the graph of their waits.

They are compared with the JSON of the same recording.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from common import BUILD, here, main_unless, rouse

from browser import MARKUP, Case, not_run
from interposed import LIBRARY
from known_tables import LOCKS, MS, THREADS, WAKES, Row, orders, site

from rouse.render.page import BYTES_MOST
from rouse.tables import parquet

PROGRAM = BUILD / "tests" / "findings" / "bank"
SPINS = PROGRAM.parent / "tally"
RECORDED_S = "0.5"
PARTS = {"mutex": "locks", "join": "joins", "sleep": "timers"}
EVERY_BOX = """() => [...document.querySelectorAll("#icicle .box")].map((box) => {
    const [frame] = box.getElementsByTagName("rect");
    const [label, time] = box.getAttribute("aria-label").split("\\n");
    return {label, time, x: +frame.getAttribute("x"), y: +frame.getAttribute("y"),
        width: +frame.getAttribute("width"), dim: box.classList.contains("dim")};
})"""
FILLS = """() => Object.fromEntries([...document.querySelectorAll("#icicle .box")].map((box) =>
    [box.getAttribute("aria-label").split("\\n")[0],
        box.getElementsByTagName("rect")[0].getAttribute("fill")]))"""
FOCUSED = "() => document.activeElement.getAttribute('aria-label').split('\\n')[0]"


class Pictures(Case):
    def recording(self, *words: str, program: Path = PROGRAM) -> Path:
        """Record a program once for all tests. words: its arguments."""
        folder = self.place / "_".join((program.name, *words))
        if not folder.exists():
            command = ("run", "--keep", folder, "-o", self.place / "report.txt", "--", program)
            done = rouse(*command, *words, RECORDED_S, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        return folder

    def open_recording(self, *words: str, program: Path = PROGRAM) -> tuple[Any, dict[str, Any]]:
        """Open the page of a program. Returns its JSON, too."""
        folder = self.recording(program=program)
        done = here("report", folder, "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return self.open_made("report", folder, *words), json.loads(done.stdout)

    def open_made(self, *command: str | Path) -> Any:
        """Open the page that a command makes."""
        file = self.place / f"{self.id()}.html"
        made = here(*command, "--format", "html", "-o", file)
        self.assertEqual((made.returncode, made.stdout, made.stderr), (0, "", ""))
        return self.look_at(file)

    @staticmethod
    def boxes(page: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = page.evaluate(EVERY_BOX)
        return found

    def box(self, page: Any, label: str) -> dict[str, Any]:
        """The widest box with this label."""
        return max(
            (box for box in self.boxes(page) if box["label"] == label),
            key=lambda box: float(box["width"]),
        )

    @staticmethod
    def click(page: Any, label: str) -> None:
        """Click the widest box with this label, which is the first one."""
        page.locator("#icicle .box").filter(has=page.locator(f'text="{label}"')).first.click()

    def test_widths_are_in_proportion_to_the_sums_of_the_report(self) -> None:
        page, report = self.open_recording()
        sums: Counter[str] = Counter()
        for row in report["sections"]["waits"]:
            sums[PARTS[row["kind"]]] += row["wait_ns"]
        ratio = self.box(page, "all threads")["width"] / report["verdict"]["thread_ns"]
        for part, ns in sums.items():
            width = self.box(page, part)["width"]
            self.assertAlmostEqual(width / (ns * ratio), 1, delta=0.02, msg=part)

    def test_a_box_has_the_time_of_the_boxes_below_it(self) -> None:
        """A function that ran has time of its own besides. A wait is the last box of a stack."""
        page, report = self.open_recording()
        texts = page.evaluate("() => Draw.data.pictures.texts")

        def check(box: list[Any], ran: bool) -> None:
            label, ns, below, _ = box
            ran = ran or texts[label] == "running"
            if below and ran:
                self.assertGreaterEqual(ns, sum(other[1] for other in below))
            elif below:
                self.assertEqual(ns, sum(other[1] for other in below))
            for other in below:
                check(other, ran)

        whole = page.evaluate("() => Draw.data.pictures.icicle")
        check(whole, ran=False)
        self.assertAlmostEqual(whole[1] / report["verdict"]["thread_ns"], 1, delta=0.02)

    def test_time_spun_for_a_lock_is_counted_once(self) -> None:
        page, report = self.open_recording(program=SPINS)
        whole = page.evaluate("() => Draw.data.pictures.icicle")
        self.assertAlmostEqual(whole[1] / report["verdict"]["thread_ns"], 1, delta=0.02)
        self.assertIn("locks", [box["label"] for box in self.boxes(page)])

    def test_boxes_lie_below_their_callers(self) -> None:
        page, _ = self.open_recording()
        call, what = self.box(page, "serve"), self.box(page, "[mutex main::bank]")
        self.assertGreater(what["y"], call["y"])
        self.assertLessEqual(call["x"], what["x"])
        self.assertLessEqual(what["x"] + what["width"], call["x"] + call["width"] + 0.01)

    def test_functions_of_libraries_are_left_out(self) -> None:
        """They are, unless a sampled stack has no others. Then it is shown by its innermost one."""
        page, _ = self.open_recording()
        data = page.evaluate("() => Draw.data.pictures")
        names = []

        def add(box: list[Any], part: str) -> None:
            label, _, below, _ = box
            name = data["texts"][label]
            called = [other for other in below if not data["texts"][other[0]].startswith("[")]
            if part != "running" or called:
                names.append(name)
            for other in below:
                add(other, part or data["texts"][other[0]])

        add(data["icicle"], "")
        self.assertIn("serve", names)
        self.assertFalse([name for name in names if name.startswith(("std::", "_", "start_"))])

    def test_a_click_shows_the_holder_that_the_json_names(self) -> None:
        page, report = self.open_recording()
        rows = [row for row in report["sections"]["waits"] if row["object_name"] == "main::bank"]
        holders: Counter[str] = Counter()
        for row in rows:
            holders[row["other_label"]] += row["wait_ns"]
        self.click(page, "[mutex main::bank]")
        shown = page.locator("#box tbody tr").all()
        cells = [row.locator("td").all_inner_texts() for row in shown]
        self.assertEqual([row[1] for row in cells], [name for name, _ in holders.most_common()])
        self.assertEqual({row[0] for row in cells}, {"held from"})
        self.assertIn("called from Bank::post bank.cpp:", page.locator("#box").inner_text())

    def test_a_click_zooms_and_the_way_back(self) -> None:
        page, _ = self.open_recording()
        whole = self.box(page, "all threads")["width"]
        narrow = self.box(page, "timers")["width"]
        self.assertLess(narrow, whole)
        self.click(page, "timers")
        self.assertEqual(self.box(page, "timers")["width"], whole)
        self.assertNotIn("locks", [box["label"] for box in self.boxes(page)])
        page.locator("#zoom-out").click()
        self.assertEqual(self.box(page, "timers")["width"], narrow)
        self.assertFalse(page.locator("#zoom-out").is_visible())

    def test_keys_move_zoom_and_come_back(self) -> None:
        page, _ = self.open_recording()
        page.locator("#icicle .box[tabindex='0']").focus()
        labels = []
        for key in ("ArrowDown", "ArrowRight", "ArrowLeft", "Enter", "ArrowUp"):
            page.keyboard.press(key)
            labels.append(page.evaluate(FOCUSED))
        first = page.evaluate("() => Draw.data.pictures.texts[Draw.data.pictures.icicle[2][0][0]]")
        second = page.evaluate("() => Draw.data.pictures.texts[Draw.data.pictures.icicle[2][1][0]]")
        self.assertEqual(labels, [first, second, first, first, "all threads"])
        page.keyboard.press("Escape")
        self.assertFalse(page.locator("#zoom-out").is_visible())

    def test_search_shows_what_is_found_and_its_time(self) -> None:
        page, _ = self.open_recording()
        page.locator("#search").fill("[SLEEP]")
        self.assertEqual({box["label"] for box in self.boxes(page) if not box["dim"]}, {"[sleep]"})
        (time,) = {box["time"] for box in self.boxes(page) if box["label"] == "[sleep]"}
        self.assertEqual(page.locator("#found").inner_text(), f"1 box: {time}")
        page.locator("#search").fill("no such function")
        self.assertEqual(page.locator("#found").inner_text(), "0 boxes: 0, 0.0 % of the time")

    def test_places_of_the_icicle_lead_to_the_editor(self) -> None:
        page, _ = self.open_recording("--editor", "vscode://file{file}:{line}")
        self.click(page, "[mutex main::bank]")
        for link in page.locator("#box a").all():
            self.assertRegex(
                link.get_attribute("href"), r"^vscode://file/.*/tests/findings/bank\.cpp:\d+$"
            )
        self.assertGreater(page.locator("#box a").count(), 0)

    def test_waits_for_work_are_shown_on_request(self) -> None:
        page = self.open(orders())
        labels = [box["label"] for box in self.boxes(page)]
        self.assertNotIn("waits for work", labels)
        page.locator("#for-work").check()
        self.assertIn("900 ms", self.box(page, "[accept]")["time"])
        ratio = self.box(page, "[accept]")["width"] / self.box(page, "[mutex orders]")["width"]
        self.assertAlmostEqual(ratio, 30, delta=0.1)

    def test_the_graph_has_the_waiters_the_lock_and_the_holders(self) -> None:
        page = self.open(orders())
        labels = page.locator("#wait-graph .node text:not([text-anchor])").all_text_contents()
        self.assertEqual(labels, ["orders.c:17", "mutex orders", "put_order+0x1c", "orders.c:17"])
        titles = page.locator("#wait-graph .edge title").all_text_contents()
        expected = "orders.c:17 waited 20 ms for mutex orders, held from put_order+0x1c"
        self.assertEqual(titles[:2], [expected, expected])

    def test_the_graph_sums_up_its_shortest_waits(self) -> None:
        many = [
            {**LOCKS[0], "lock": i, "lock_name": f"lock {i:02}", "wait_ns": i * MS}
            for i in range(1, 31)
        ]
        page = self.open(orders(locks=many))
        self.assertEqual(page.locator("#wait-graph .edge").count(), 2 * 15)
        expected = "15 shorter ones are left out: in all 120 ms"
        self.assertIn(expected, page.locator("#waits-about").inner_text())

    def test_a_page_with_many_long_names_is_bounded_and_says_what_is_left_out(self) -> None:
        sites: list[Row] = []
        wakes: list[Row] = []
        for number in range(1, 4001):
            labels = [f"{'name' * 40}{number}_{depth} file.cc:{depth}" for depth in range(6)]
            sites += site(number << 8, *labels)
            wakes.append({**WAKES[2], "wait_site": hex(number << 8), "wait_ns": number * MS})
        made = orders(sites=sites, wakes=wakes, threads=THREADS[:2])
        page = self.open(made)
        size = (self.place / f"{self.id()}.html").stat().st_size
        self.assertLessEqual(size, BYTES_MOST)
        self.assertIn("small boxes are summed up", page.locator("#time-about").inner_text())
        rest = [box for box in self.boxes(page) if box["label"].endswith(" smaller boxes)")]
        self.assertTrue(rest)
        self.choose(page, "waits")
        self.assertIn("more were left out of this page", page.locator("#shown").inner_text())

    def test_a_page_whose_links_are_long_is_bounded(self) -> None:
        sites: list[Row] = []
        wakes: list[Row] = []
        for number in range(1, 1001):
            file = f"/{'folder/' * 300}{number}.cc"
            sites += site(number << 8, f"take {number}.cc:7", file=file, line=7)
            wakes.append({**WAKES[2], "wait_site": hex(number << 8), "wait_ns": number * MS})
        made = orders(sites=sites, wakes=wakes, threads=THREADS[:2])
        self.open(made, "--editor", "vscode://file{file}:{line}")
        size = (self.place / f"{self.id()}.html").stat().st_size
        self.assertLessEqual(size, BYTES_MOST)

    def test_names_in_pictures_are_text_and_never_markup(self) -> None:
        names = (MARKUP, "__proto__")
        threads = [{**row, "name": name} for row, name in zip(THREADS, names, strict=False)]
        locks = [{**LOCKS[0], "lock_name": MARKUP}]
        sites = [
            *site(0x1010, MARKUP, "__proto__", "constructor"),
            *site(0x1020, f"holder{MARKUP}"),
        ]
        page = self.open(orders(threads=threads, locks=locks, sites=sites))
        shown = MARKUP.replace("\x1b", "\\x1b")
        for label in (shown, f"[mutex {shown}]", "__proto__", "constructor"):
            self.assertGreater(self.box(page, label)["width"], 0)
        page.locator("#search").fill(MARKUP[:8])
        page.locator("#icicle .box:not(.dim)").last.click()
        self.assertIn(f"holder{shown}", page.locator("#box").inner_text())
        self.assertEqual(page.locator("body img, main b, svg a, #box a").count(), 0)

    def test_the_difference_has_the_times_of_both_and_the_colour_of_the_change(self) -> None:
        folders = (self.recording(), self.recording("fixed"))
        done = here("compare", "--json", *folders)
        sums: dict[str, Counter[str]] = {"before": Counter(), "after": Counter()}
        for row in json.loads(done.stdout)["sections"]["wait_sites"]:
            for side, found in sums.items():
                found[PARTS[row["kind"]]] += row[f"{side}_wait_ns"]
        page = self.open_made("compare", *folders)
        pictures = page.evaluate("() => Draw.data.pictures")
        parts = {pictures["texts"][box[0]]: box for box in pictures["icicle"][2]}
        for part in PARTS.values():
            _, ns, _, _, before_ns = parts[part]
            self.assertEqual((before_ns, ns - before_ns), tuple(sums[s][part] for s in sums))
        fills = page.evaluate(FILLS)
        self.assertTrue(fills["timers"].startswith("hsl(5 "), fills)
        self.assertTrue(fills["locks"].startswith("hsl(210 "), fills)
        page.locator("#icicle .box").nth(1).click()
        self.assertRegex(page.locator("#box").inner_text(), r": .* before, .* after")

    def test_the_difference_matches_boxes_whose_lines_and_addresses_differ(self) -> None:
        folders = []
        for number, wait_ns in ((17, 20 * MS), (18, 5 * MS)):
            locks = [{**LOCKS[0], "lock": number << 8, "lock_name": "", "wait_ns": wait_ns}]
            sites = site(0x1010, f"take orders.c:{number}", f"main orders.c:{number + 60}")
            folder = self.place / f"lines_{number}"
            parquet.write(orders(locks=locks, sites=sites), folder)
            folders.append(folder)
        page = self.open_made("compare", *folders)
        found = {box["label"]: box["time"] for box in self.boxes(page)}
        for label in ("take orders.c", "main orders.c", "[mutex]"):
            self.assertEqual(found[label], "20 ms before, 5 ms after")


if __name__ == "__main__":
    main_unless(not_run())
