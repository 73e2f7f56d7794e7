#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` samples where threads run. The oracle: the clocks of the program itself."""

from __future__ import annotations

import json
import os
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import here, main_unless, rouse

from interposed import LIBRARY, Source

from rouse.query.icicle import Box
from rouse.sched import cpu_samples
from rouse.sched.cpu_samples import Ran, Run, Sampler
from rouse.sched.perf_rings import Ended, Forked, Mapped, Sampled
from rouse.symbols.unwind import Stack

PARTS = Source("running_parts")
SIGMAS = 4  # of the number of samples, which is binomial where others use the processors too
FUNCTIONS = ("run_heavy", "run_light", "run_copies", "run_brief", "run_in_child")


@unittest.skipIf(os.getuid(), "not run: only root may observe all processors")
class Everywhere(unittest.TestCase):
    kept: Path
    report: dict[str, Any]
    ran: Ran
    clock: dict[str, int]  # ns by function

    @classmethod
    def setUpClass(cls) -> None:
        holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(holder.cleanup)
        cls.kept = Path(holder.name) / "kept"
        words = ("run", "--json", "-o", Path(holder.name) / "report", "--keep", cls.kept, "--")
        done = rouse(*words, PARTS.program, ROUSE_PRELOAD=str(LIBRARY))
        assert done.returncode == 0, done.stderr
        cls.report = json.loads((Path(holder.name) / "report").read_text(encoding="ascii"))
        cls.ran = cpu_samples.read(cls.kept / "cpu.samples")
        said = done.stdout.split()
        cls.clock = dict(zip(said[::2], map(int, said[1::2]), strict=True))

    def rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.report["sections"]["run_sites"]
        return rows

    def rows_of(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.rows() if row["label"].startswith(f"{name} ")]

    def test_each_function_has_the_time_that_the_program_measured(self) -> None:
        """Also functions that run in the kernel, and in threads and processes of any length."""
        found: dict[str, float] = dict.fromkeys(FUNCTIONS, 0.0)
        names = self.stacks()
        for functions, ns in names:
            for name in set(functions) & set(found):
                found[name] += ns
        for name, ns in self.clock.items():
            with self.subTest(function=name):
                samples = ns / self.ran.period_ns
                error = SIGMAS * max(samples, 1) ** 0.5 * self.ran.period_ns
                self.assertAlmostEqual(found[name], ns, delta=error)

    def stacks(self) -> list[tuple[list[str], float]]:
        from rouse.symbols.images import Image, Names
        from rouse.symbols.sites import Resolver

        resolver = Resolver()
        images = [Names(Image(pid, "\n".join(maps)), resolver) for pid, maps in self.ran.images]
        found = []
        for run in self.ran.runs:
            frames = [images[run.image].frame(address) for address in run.addresses]
            names = [name for f in frames for name in (f.function or "", *f.within.split("\n"))]
            found.append((names, run.count * self.ran.weight_ns))
        return found

    def test_the_report_has_the_program_s_function_and_what_it_called(self) -> None:
        [copied] = [row for row in self.rows_of("run_copies") if row["inner"] == "the kernel"]
        self.assertGreater(copied["cpu_ns"], self.clock["run_copies"] / 2)
        computing = self.rows_of("compute")
        rest = sum(self.clock.values()) - self.clock["run_copies"]
        self.assertGreater(sum(row["cpu_ns"] for row in computing), rest / 2)
        self.assertAlmostEqual(sum(row["share"] for row in self.rows()), 1)

    def test_threads_have_the_names_that_they_give_themselves(self) -> None:
        samples: dict[str, int] = {}
        for run in self.ran.runs:
            samples[run.name] = samples.get(run.name, 0) + run.count
        self.assertEqual(set(samples), {"parts", "running_parts"})
        self.assertGreater(samples["parts"], samples["running_parts"])

    def test_the_icicle_has_running_time_by_stack(self) -> None:
        from rouse.query import icicle, ran
        from rouse.tables import inputs

        with inputs.open_input(str(self.kept)) as opened:
            assert opened.ran
            sampled = ran.make(opened.ran, opened.database)
            root = icicle.make(opened.database, {}, sampled)
            plain = icicle.make(opened.database, {})
        self.assertEqual(root.ns, plain.ns)
        self.assertEqual(root.boxes["running"].ns, plain.boxes["running"].ns)
        boxes = self.below(root.boxes["running"])
        heavy = [box for box in boxes if box.label.startswith("run_heavy ")]
        whole = sum(box.ns for box in heavy)
        self.assertAlmostEqual(whole, self.clock["run_heavy"], delta=0.3 * whole)
        within = {label.split()[0] for box in heavy for label in box.boxes}
        self.assertIn("compute", within)

    def below(self, box: Box) -> list[Box]:
        found = list(box.boxes.values())
        for one in box.boxes.values():
            found += self.below(one)
        return found

    def test_a_kept_run_reports_the_same(self) -> None:
        done = here("report", "--format", "json", self.kept)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(json.loads(done.stdout)["sections"]["run_sites"], self.rows())


class Bounds(unittest.TestCase):
    def setUp(self) -> None:
        self.sampler = Sampler(list)
        self.addCleanup(self.sampler.close)
        self.sampler.begin(1)
        self.sampler.lives[1].add(0, 1 << 20, "0-100000 r-xp 0 0:0 0")

    def keep(self, *tids: int) -> None:
        for tid in tids:
            stack = Stack(ip=tid, sp=0, bp=0, link=0, copy=b"")
            self.sampler.keep(Sampled(0, 1, tid, False, stack))

    def test_of_many_samples_some_are_kept_each_with_the_same_probability(self) -> None:
        most, count = cpu_samples.SAMPLES_MOST, 10
        self.keep(*(n % count for n in range(most * 20)))
        self.assertEqual(len(self.sampler.kept), most)
        for tid in range(count):
            kept = sum(sample.tid == tid for _, _, sample in self.sampler.kept)
            self.assertAlmostEqual(kept, most / count, delta=SIGMAS * (most / count) ** 0.5)
        found = self.sampler.stop()
        self.assertEqual((found.taken, found.kept), (most * 20, most))
        self.assertAlmostEqual(found.weight_ns, 20 * found.period_ns)

    def test_what_ended_is_forgotten_and_what_was_forked_is_shared(self) -> None:
        use, lives = self.sampler.use, self.sampler.lives
        for pid in range(2, 1000):
            use(Forked(0, pid, pid, 1, 1))
            self.assertIs(lives[pid].lines, lives[1].lines)
            if pid % 2:
                use(Mapped(0, pid, 1 << 30, 1 << 31, "a line"))
                self.assertEqual((len(lives[pid].lines), len(lives[1].lines)), (2, 1))
            use(Forked(0, pid, 5000, pid, pid))
            use(Ended(0, pid, pid))
            self.assertIn(pid, lives)  # its other thread runs
            use(Ended(0, pid, 5000))
        self.assertEqual(list(lives), [1])
        self.assertEqual(len(self.sampler.names), 999)  # they may run for a moment
        use(Forked(0, 1, 5000, 1, 1))  # the number of a thread that has ended
        self.sampler.take()
        self.sampler.take()
        self.assertEqual(list(self.sampler.names), [5000])

    def test_rings_of_many_processors_have_room_for_two_looks(self) -> None:
        for count in (1, 2, 8, 64, 256, 4096):
            asked = cpu_samples.asked_of(count)
            per_look = cpu_samples.EVERY_S * 1e9 / asked.period_ns * asked.stack_bytes
            self.assertLessEqual(2 * per_look, asked.ring_bytes * 1.01)
            if count <= 256:
                self.assertLessEqual(asked.ring_bytes * count, cpu_samples.RINGS_BYTES)


class Damaged(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.path = Path(holder.name) / "samples"

    def test_what_is_written_is_read(self) -> None:
        images = [(1, ["1000-2000 r-xp 0 0:0 1 /a\tb"])]
        run = Run(0, 2, "a\nthread\t\u00fc", True, 3, (1, 2**64 - 1))
        ran = Ran(10, 4, 5, images, [run], "why")
        cpu_samples.write(ran, self.path)
        self.assertEqual(cpu_samples.read(self.path), ran)

    def test_a_damaged_file_is_one_line(self) -> None:
        for line in (
            "",
            "[",
            "[]",
            "{}",
            '["samples"]',
            '["run", 0, 1, "a", false, 1, [1]]',
            '["image", "x", []]',
            '["samples", 1, 1, 1, ""]\n["image", 1, []]\n["run", 0, 1, "a", false, 0, [1]]',
            '["image", 1, []]\n["run", 0, 1, "a", false, 1, []]',
            '["image", 1, []]\n["run", 7, 1, "a", false, 1, [1]]',
            "[" * 100_000,
            "\u00ff",
        ):
            self.path.write_text(f"{line}\n", encoding="utf-8")
            with self.assertRaisesRegex(Exception, "damaged, or of another version"):
                cpu_samples.read(self.path)


if __name__ == "__main__":
    main_unless("" if PARTS.program.exists() else "its program was not built")
