#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The export formats of `rouse report`. If Go is installed, `go tool pprof` reads its file."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path

from common import here

import pyarrow as pa
from known_tables import LOCKS, WAKES, Row, orders, site
from pyarrow import parquet as files

from rouse.render import pprof
from rouse.tables import parquet

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\} ([0-9.e+-]+)')


class Exports(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def written(self, form: str, *words: str, **changed: Sequence[Row]) -> Path:
        """Make tables with these changes, export them, and return the file."""
        parquet.write(orders(**changed), self.folder / "tables")
        file = self.folder / form
        done = here("report", self.folder / "tables", "-f", form, "-o", file, *words)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))
        self.assertEqual([p.name for p in self.folder.iterdir() if p.suffix == ".part"], [])
        return file

    def test_a_page_of_a_server_with_a_listener_is_written(self) -> None:
        listener = {"listener": "0x7", "name": "here:80", "accepted": 6, "samples": 6}
        page = self.written("html", listeners=[listener])
        self.assertIn("here:80", page.read_text(encoding="utf-8"))

    def test_pipes_and_links_are_written_to_and_not_replaced(self) -> None:
        pipe, link = self.folder / "folded", self.folder / "prometheus"
        os.mkfifo(pipe)
        link.symlink_to("elsewhere")
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
            self.written("folded", "--all")
            text, _ = reader.communicate(timeout=60)
        self.assertTrue(pipe.is_fifo())
        self.assertIn(b"main;worker.c:5;[condition] 500000000\n", text)
        self.written("prometheus")
        self.assertTrue(link.is_symlink())
        self.assertIn("rouse_", (self.folder / "elsewhere").read_text(encoding="utf-8"))

    def test_a_folder_as_output_file_is_refused(self) -> None:
        parquet.write(orders(), self.folder / "tables")
        done = here("report", self.folder / "tables", "--format", "folded", "-o", self.folder)
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.assertIn("Is a directory", done.stderr)

    def test_folded_stacks(self) -> None:
        self.assertEqual(
            self.written("folded", "--all").read_text(encoding="utf-8").splitlines(),
            [
                "main+0x9;serve.c:80;orders.c:17;[mutex orders] 30000000",
                "main;worker.c:5;[condition] 500000000",
                "serve.c:99;queue_push;[accept] 900000000",
            ],
        )
        self.assertEqual(len(self.written("folded").read_text(encoding="utf-8").splitlines()), 1)

    def test_folded_stacks_of_names_with_separators(self) -> None:
        awkward = self.written("folded", sites=site(0x1010, "a;b\nc"))
        self.assertEqual(awkward.read_text(encoding="utf-8"), "a:b\\x0ac;[mutex orders] 30000000\n")

    def test_prometheus(self) -> None:
        evil = 'x"y\\\n'
        text = self.written(
            "prometheus", locks=[{**LOCKS[0], "lock_name": evil}], wakes=WAKES
        ).read_text(encoding="utf-8")
        values: dict[tuple[str, str], float] = {}
        for line in text.splitlines():
            if line.startswith("#"):
                continue
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            key = (sample[1], sample[2])
            self.assertNotIn(key, values)
            values[key] = float(sample[3])
        total = {name: 0.0 for name, _ in values}
        for (name, _), value in values.items():
            total[name] += value
        self.assertEqual(total["rouse_wakeups_total"], 111)
        self.assertEqual(total["rouse_lock_wait_seconds_total"], 0.02)
        self.assertEqual(total["rouse_calls_total"], 78)
        self.assertEqual(total["rouse_timer_lateness_seconds_count"], 4)
        self.assertIn('lock="x\\"y\\\\\\\\x0a"', text)
        buckets = [v for (name, _), v in values.items() if name.endswith("_bucket")]
        self.assertEqual(buckets, [3, 4, 4])

    def test_prometheus_has_no_more_series_for_more_locks(self) -> None:
        locks = [{**LOCKS[0], "lock": n, "wait_ns": n * 1000, "contested": 2} for n in range(1, 51)]
        wakes = [{**WAKES[0], "wake_site": hex(n), "useful": n, "false_": 0} for n in range(1, 51)]
        sizes = set()
        for count in (10, 50):
            text = self.written(
                *("prometheus", "--limit", "4"), locks=locks[:count], wakes=wakes[:count]
            ).read_text(encoding="utf-8")
            found = [m for m in map(SAMPLE.fullmatch, text.splitlines()) if m]
            sizes.add(len(found))
            for name, whole in (
                ("rouse_lock_wait_seconds_total", count * (count + 1) / 2 * 1e-6),
                ("rouse_lock_contended_total", 2 * count),
                ("rouse_wakeups_total", count * (count + 1) / 2),
            ):
                values = {m[2]: float(m[3]) for m in found if m[1] == name}
                self.assertAlmostEqual(sum(values.values()), whole, msg=name)
                (other,) = [value for labels, value in values.items() if '="other"' in labels]
                self.assertGreater(other, 0)
            heaviest = f'lock="orders",address="{count:#x}"'
            self.assertIn(heaviest, text)
            self.assertIn(f"# The lightest {count - 4} rows of wake-ups by sites are", text)
            # Each lock has one series for the waiter and one for the holder.
            self.assertIn(f"# The lightest {2 * count - 4} rows of locks by site are", text)
        self.assertEqual(len(sizes), 1, sizes)

    def test_prometheus_distinguishes_locks_at_one_address(self) -> None:
        locks = [{**LOCKS[0], "init_site": at} for at in ("0x1030", "0x1040", "0x0")]
        text = self.written("prometheus", locks=locks).read_text(encoding="utf-8")
        found = [m[2] for m in map(SAMPLE.fullmatch, text.splitlines()) if m]
        of_locks = [
            labels for labels in found if 'site="orders.c:17"' in labels and ',address="' in labels
        ]
        places = ("worker.c:5", "queue_push+0x44", "")
        for place, number in zip(places, ("0x1030", "0x1040", ""), strict=True):
            output = f',initialised_at="{place}",initialised_at_id="{number}"'
            self.assertTrue(any(labels.endswith(output) for labels in of_locks), output)
        series = [line.rpartition(" ")[0] for line in text.splitlines() if line[0] != "#"]
        self.assertEqual(len(set(series)), len(series))

    def test_parquet_is_the_tables(self) -> None:
        folder = self.written("parquet")
        made = orders()
        for name, table in made.items():
            (file,) = (folder / name).glob("*.parquet")
            back = files.read_table(file)
            self.assertEqual(
                (back.num_rows, back.column_names), (table.rows, list(table.columns)), name
            )
        wakes = files.read_table(next((folder / "wakes").glob("*.parquet")))
        self.assertEqual(pa.compute.sum(wakes["useful"]).as_py(), 100)
        again = here("report", folder, "-s", "locks")
        self.assertIn("30000", again.stdout)

    def test_standard_output_gets_the_same_as_a_file(self) -> None:
        file = self.written("folded")
        for words in ((), ("-o", "-")):
            done = here("report", self.folder / "tables", "--format", "folded", *words)
            self.assertEqual(done.stdout, file.read_text(encoding="utf-8"))

    def test_tables_as_text_in_a_file(self) -> None:
        done = here("report", self.folder / "tables", "--full", "-o", self.written("text"))
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIn("30000", (self.folder / "text").read_text(encoding="utf-8"))

    def test_formats_that_cannot_be_written_report_a_remedy(self) -> None:
        for words, said in (
            (("--format", "parquet"), "writes a folder: name it with -o DIR"),
            (("--json", "--format", "html"), "contradict each other"),
            (("--sum", "--format", "perfetto"), "--sum has no events"),
        ):
            done = here("report", *words, self.folder)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn(said, done.stderr)

    def test_pprofs_messages(self) -> None:
        profile = pprof.profile_class()()
        profile.ParseFromString(gzip.decompress(self.written("pprof", "--all").read_bytes()))
        texts = list(profile.string_table)
        self.assertEqual(texts[0], "")
        kinds = [(texts[kind.type], texts[kind.unit]) for kind in profile.sample_type]
        self.assertEqual(kinds, [("contentions", "count"), ("delay", "nanoseconds")])
        self.assertEqual(sum(sample.value[0] for sample in profile.sample), 111)
        self.assertEqual(sum(sample.value[1] for sample in profile.sample), 1_430_000_000)
        labels = {texts[label.str] for sample in profile.sample for label in sample.label}
        self.assertLessEqual({"mutex", "orders", "put_order+0x1c"}, labels)

    def test_pprof_shows_where_objects_were_initialised(self) -> None:
        profile = pprof.profile_class()()
        locks = [{**row, "init_site": "0x1030"} for row in LOCKS]
        file = self.written("pprof", "--all", locks=locks, wakes=WAKES[2:3])
        profile.ParseFromString(gzip.decompress(file.read_bytes()))
        texts = list(profile.string_table)
        found = [{texts[pair.key]: texts[pair.str] for pair in s.label} for s in profile.sample]
        places = {labels["kind"]: labels.get("initialised_at") for labels in found}
        self.assertEqual(places, {"mutex": "worker.c:5", "condition": None})

    @unittest.skipUnless(shutil.which("go"), "Go is not installed")
    def test_go_tool_pprof_reads_it(self) -> None:
        file = self.written("pprof", "--all")
        for index, total, first in (
            ("delay", "1430ms", r"900ms\s+62.94%\s+62.94%\s+900ms\s+62.94%\s+queue_push"),
            ("contentions", "111", r"100\s+90.09%\s+90.09%\s+100\s+90.09%\s+worker.c:5"),
        ):
            done = subprocess.run(
                ["go", "tool", "pprof", "-top", f"-sample_index={index}", str(file)],
                capture_output=True,
                text=True,
                timeout=120,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"of {total} total", done.stdout)
            self.assertRegex(done.stdout, first)
            self.assertIn("Type: " + index, done.stdout)


if __name__ == "__main__":
    if not shutil.which("go"):
        print("not run: there is no go: its pprof does not read the profile")
    unittest.main(verbosity=2)
