#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse model`: against figures that follow from theory, and parameters that are known."""

from __future__ import annotations

import json
import math
import tempfile
import unittest
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import here

import numpy as np
from known_tables import MS, PROCESSES, Row, orders

from rouse.errors import RouseError
from rouse.model import scaling, simulation, ticks, whatif
from rouse.model.scaling import Law
from rouse.model.whatif import Change
from rouse.query.gain import Load, Lock
from rouse.tables import engine

S = 1000 * MS


class Ticks(unittest.TestCase):
    def test_figures_of_the_source(self) -> None:
        """Ticks of 10 ms and 100 threads: time-outs of 9, 10 and 11 ms."""
        found = [ticks.expected(timeout, 100, 0.2) for timeout in (9, 10, 11)]
        self.assertEqual([round(one.calls) for one in found], [10_000, 5_556, 5_000])
        self.assertEqual([round(one.switches) for one in found], [10_000, 10_000, 5_000])
        self.assertEqual([round(one.early) for one in found], [0, 4_444, 0])

    def test_rates_are_those_of_a_simulation(self) -> None:
        random = np.random.default_rng(1)
        for timeout, hz, long in ((10, 100, 0.3), (8, 250, 0.5), (3, 1000, 0.1), (7, 250, 0.5)):
            tick_ms = 1000 / hz
            is_long = random.random(40_000) < long
            gaps = np.where(is_long, tick_ms * 1.0001, tick_ms * 0.9999)
            woken = ticks.timeline(timeout, gaps.tolist(), tick_ms)
            seconds = float(gaps.sum()) / 1000
            found = ticks.expected(timeout, 1, long, tick_ms)
            if ticks.ticks_of(timeout, tick_ms) == 1 or not ticks.is_multiple(timeout, tick_ms):
                self.assertAlmostEqual(
                    len(woken) / seconds, found.wake_ups, delta=found.wake_ups / 50
                )
                calls = sum(over for _, over in woken) / seconds
                self.assertAlmostEqual(calls, found.calls, delta=found.calls / 50)

    def test_exact_multiples_survive_division(self) -> None:
        self.assertEqual(ticks.ticks_of(0.3, 0.1), 3)
        self.assertEqual(ticks.ticks_of(20, 1000 / 250), 5)

    def test_drawing_shows_early_wake_ups(self) -> None:
        drawn, _ = ticks.drawing(10, 0.2, 10, 5)
        self.assertEqual(drawn, "●──○──●──○──●══●")

    def test_drawing_of_a_long_time_out_has_two_calls(self) -> None:
        drawn, _ = ticks.drawing(25, 0.0, 1, 20)
        self.assertEqual(drawn, "●" + "·" * 24 + "○●" + "·" * 24 + "○●·")
        self.assertEqual(ticks.drawing(250, 0.2, 1, 20)[0][:22], "a call takes 250 ticks")

    def test_command(self) -> None:
        done = here("model", "tick", "--json")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(round(json.loads(done.stdout)["calls_per_s"]), 5_556)
        for words in (
            ["--hz", "0"],
            ["--long-gaps", "120%"],
            ["--timeout", "nan"],
            ["--hz", "nan"],
        ):
            self.assertEqual(here("model", "tick", *words).returncode, 2, words)


class Scaling(unittest.TestCase):
    NUMBERS = (1, 2, 4, 8, 16, 24, 32, 48, 64)
    LAW = Law(1000, 0.03, 0.0005)

    def measured(self, law: Law, seed: int, error: float) -> list[float]:
        random = np.random.default_rng(seed)
        return [law.at(n) * (1 + random.normal(0, error)) for n in self.NUMBERS * 2]

    def test_exact_points_give_the_law_back(self) -> None:
        found = scaling.fit(self.NUMBERS, [self.LAW.at(n) for n in self.NUMBERS])
        for name in ("one", "serial", "pairs", "peak", "limit"):
            self.assertAlmostEqual(getattr(found.law, name) / getattr(self.LAW, name), 1, places=6)
        self.assertAlmostEqual(self.LAW.peak, math.sqrt(0.97 / 0.0005))

    def test_bands_have_the_truth_as_often_as_they_say(self) -> None:
        runs, hits = 60, {"peak": 0, "limit": 0, "at 40": 0}
        for seed in range(runs):
            found = scaling.fit(self.NUMBERS * 2, self.measured(self.LAW, seed, 0.03))
            for name in ("peak", "limit"):
                low, high = found.band(getattr(law, name) for law in found.sample)
                hits[name] += low <= getattr(self.LAW, name) <= high
            low, high = found.band_at(40)
            hits["at 40"] += low <= self.LAW.at(40) <= high
        for name, count in hits.items():
            self.assertGreaterEqual(count, 0.85 * runs, name)  # 95 %, less three standard errors

    def test_law_without_contention_has_no_peak_and_no_limit(self) -> None:
        found = scaling.fit(self.NUMBERS, [100 * n for n in self.NUMBERS])
        self.assertAlmostEqual(found.law.one, 100)
        self.assertEqual((found.law.serial, found.law.pairs), (0, 0))
        self.assertTrue(math.isinf(found.law.peak) and math.isinf(found.law.limit))

    def test_amdahl_has_a_limit_and_no_peak(self) -> None:
        law = Law(10, 0.1, 0)
        found = scaling.fit(self.NUMBERS, [law.at(n) for n in self.NUMBERS])
        self.assertTrue(math.isinf(found.law.peak))
        self.assertAlmostEqual(found.law.limit, 100, delta=1e-6)

    def test_growth_beyond_proportion_is_not_called_contention(self) -> None:
        found = scaling.fit((1, 2, 4, 8), (10, 25, 60, 150))
        self.assertEqual((found.law.serial, found.law.pairs), (0, 0))

    def of_text(self, text: str | bytes, *words: str) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "rows"
            path.write_bytes(text if isinstance(text, bytes) else text.encode())
            return here("model", "usl", *words, path)

    def test_command(self) -> None:
        rows = "".join(f"{n},{self.LAW.at(n)}\n" for n in self.NUMBERS)
        done = self.of_text(f"clients,throughput\n# quiet\n\n{rows}", "--json", "--at", "40,100")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found = json.loads(done.stdout)
        self.assertAlmostEqual(found["parameters"]["peak at"]["fit"], self.LAW.peak, places=3)
        self.assertIn(40, [point["n"] for point in found["curve"]])
        text = self.of_text(rows.replace(",", "\t")).stdout
        self.assertIn("peak at", text)

    def test_page_has_the_measured_points_and_the_law_with_its_band(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "new"
            rows = "".join(f"{n},{self.LAW.at(n)}\n" for n in self.NUMBERS)
            done = self.of_text(rows, "--at", "40", "-o", str(place))
            self.assertEqual(done.returncode, 0, done.stderr)
            drawn = (place / "usl-throughput.svg").read_text()
            self.assertEqual(drawn.count("<circle"), 2 * len(self.NUMBERS) + 1)
            self.assertIn("peak at", (place / "usl.md").read_text())
        refused = self.of_text("1,1\n", "-o", "/proc/pages")
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (3, 1))

    def test_bad_rows_are_refused_in_one_line(self) -> None:
        for text, what in (
            ("1,10\n2,20\n4,30\n", "3 different numbers are too few"),
            ("", "0 different numbers are too few"),
            ("1,10\n2,x\n", ":2: is not a number"),
            ("1,10\n2\n", ":2: is not a number"),
            ("1,10\n2,nan\n", "out of range"),
            ("1,10\n-2,5\n", "out of range"),
            ("1,10\n2,0\n", "out of range"),
            ("1,10\n2,1e300\n", "out of range"),
            (b"\xff\xfe\x00", "is no text"),
        ):
            with self.subTest(text=text):
                done = self.of_text(text)
                self.assertEqual((done.returncode, done.stdout), (3, ""))
                self.assertRegex(done.stderr, r"^rouse: .*\n$")
                self.assertIn(what, done.stderr)


def load(held_ms: float, slept: bool = True, **more: Any) -> Load:
    """Eight threads that sleep, and hold a lock for a part of it, in a second."""
    held = held_ms * MS
    lock = Lock(held, 0.0 if slept else held, held if slept else 0.0)
    words = {
        **{"wall_ns": S, "threads": 8, "processors": 4, "ran_ns": 0.0, "slept_ns": 4.0 * S},
        **{"least_ran_ns": 0.0, "least_slept_ns": 4.0 * S, "all_ran_ns": 0.0, "others_ran_ns": 0.0},
        **{"locks": {"lock": lock}},
    }
    return Load(**{**words, **more})


class WhatIf(unittest.TestCase):
    def gain(self, of: Load, **change: Any) -> float:
        return whatif.predict(of, {"lock": Change(**change)}, {}).gain

    def test_no_change_gains_nothing(self) -> None:
        self.assertAlmostEqual(self.gain(load(900)), 1)

    def test_more_parts_gain_more_up_to_the_threads(self) -> None:
        found = [self.gain(load(900), parts=parts) for parts in (1, 2, 4, 16, 1000)]
        self.assertEqual(found, sorted(found))
        self.assertLess(found[-1], 2.0 + 1e-9)  # eight threads slept for 4 s of 8
        self.assertGreater(found[-1], 1.7)

    def test_shorter_holds_gain_more(self) -> None:
        found = [self.gain(load(900), factor=factor) for factor in (1, 0.75, 0.5, 0.25)]
        self.assertEqual(found, sorted(found))

    def test_a_lock_that_nobody_waits_for_gains_little(self) -> None:
        self.assertLess(self.gain(load(1), parts=4), 1.01)

    def test_no_thread_queues_for_a_lock_of_its_own(self) -> None:
        """Each thread has one of many objects with such a lock: splitting another lock gains."""
        of = load(900)
        found = {}
        for is_alone in (False, True):
            own: dict[object, Lock] = {
                number: Lock(350 * MS, 0, 350 * MS, is_alone=is_alone) for number in range(8)
            }
            found[is_alone] = self.gain(replace(of, locks={**of.locks, **own}), parts=8)
        self.assertAlmostEqual(found[True], self.gain(of, parts=8), places=6)
        self.assertLess(found[False], 0.95 * found[True])

    def test_processors_bound_the_gain(self) -> None:
        busy = load(
            900,
            slept=False,
            **{"slept_ns": 0.0, "least_slept_ns": 0.0, "ran_ns": 1.0 * S, "least_ran_ns": 1.0 * S},
            **{"all_ran_ns": 1.0 * S, "processors": 2},
        )
        found = whatif.predict(busy, {"lock": Change(parts=1000)}, {})
        self.assertAlmostEqual(found.bound, 2.0, places=6)
        self.assertLessEqual(found.gain, found.bound)

    def test_an_uncertain_hold_gives_an_uncertain_gain(self) -> None:
        found = whatif.predict(load(900), {"lock": Change(parts=2)}, {"lock": 0.1})
        self.assertLess(found.least, found.gain)
        self.assertLess(found.gain, found.greatest)

    def recording(self, *names: str) -> whatif.Recorded:
        rows: list[Row] = [
            {
                **{"kind": "mutex", "lock": number, "lock_name": name, "site": "0x10"},
                **{"holder_site": "0x10", "acquired": 1000, "contested": 900, "holds": 1000},
                **{"wait_ns": 3000 * MS - number, "hold_ns": (900 - 100 * number) * MS},
                **{"inside_sleep_ns": (900 - 100 * number) * MS, "first_ns": 1, "last_ns": S},
            }
            for number, name in enumerate(names, 1)
        ]
        state = {"usr": 0, "sleep": 400 * MS, "mutex": 600 * MS, "wall_ns": S}
        threads: Sequence[Row] = [
            {"name": "t", "origin": "kernel", "state": "USR", "thread_id": n, "waits": 100, **state}
            for n in range(1, 9)
        ]
        processes = [{**PROCESSES[0], "cpus": 4, "cpu_ns": 0}]
        database = engine.open_tables(
            orders(locks=rows, threads=threads, processes=processes, wakes=[], groups=[], herds=[])
        )
        self.addCleanup(database.close)
        return whatif.recorded(database, None)

    def test_a_longer_hold_of_a_saturated_lock_costs_as_much(self) -> None:
        """With more threads than can be served, the throughput is one over the hold."""
        known = self.recording("lock")
        hold_us = (
            known.load.locks[known.key("lock")].held_ns / known.counts[known.key("lock")] / 1e3
        )
        for more_us in (hold_us / 2, hold_us, 3 * hold_us):
            changes = {known.key("lock"): Change(more_us=more_us)}
            found = whatif.predict(known.load, changes, known.errors, known.counts)
            self.assertAlmostEqual(found.gain, hold_us / (hold_us + more_us), delta=0.1)

    def test_readers_alone_wait_for_nobody(self) -> None:
        """Holds of which none excludes another: each thread does its cycle without a queue."""
        found = whatif.predict(load(900), {"lock": Change(reads=1.0)}, {})
        self.assertAlmostEqual(found.waiting, 0, delta=0.05)
        before, _ = whatif.simulated(load(900), {}, False)
        self.assertAlmostEqual(found.gain, 8 / (4 * S) / before, delta=0.05)

    def test_more_readers_gain_more(self) -> None:
        found = [self.gain(load(900), reads=share) for share in (0.01, 0.5, 0.9, 1.0)]
        self.assertEqual(found, sorted(found))
        self.assertAlmostEqual(found[0], 1, delta=0.05)
        bound = whatif.bound(load(900), {"lock": Change(reads=0.5)})
        self.assertLessEqual(found[1], bound)

    def test_constant_times_reach_the_bounds(self) -> None:
        """Threads in step wait for nobody, until the lock is busy all the time."""
        for held, rate in ((100, 2 / S), (400, 2 / S), (900, 1 / (0.9 * S))):
            simulated, _ = whatif.simulated(load(held), {}, True)
            self.assertAlmostEqual(simulated * S, rate * S, delta=0.1)

    def test_times_in_a_ratio_of_whole_numbers_do_not_starve_writers(self) -> None:
        """A hold is a third of the work outside. changed_lock.c, with such sleeps, gains 1.87."""
        found = whatif.in_step(load(1000), {"lock": Change(reads=0.9)})
        self.assertAlmostEqual(found, 1.87, delta=0.1)

    def test_threads_that_compute_all_the_time_gain_nothing_from_a_second_lock(self) -> None:
        """Half of their time is under the lock, and two processors are busy with four threads."""
        work = {"slept_ns": 0.0, "least_slept_ns": 0.0, "ran_ns": 2.0 * S, "least_ran_ns": 2.0 * S}
        busy = load(1000, slept=False, **work, all_ran_ns=2.0 * S, processors=2, threads=4)
        found = whatif.predict(busy, {"lock": Change(parts=2)}, {})
        self.assertLess(found.least, 1.05)

    def test_the_interval_has_exponential_and_constant_times(self) -> None:
        changes: whatif.Changes = {"lock": Change(parts=2)}
        found = whatif.predict(load(900), changes, {})
        varied, _ = whatif.once(load(900), changes)
        steady = whatif.in_step(load(900), changes)
        self.assertEqual([found.least, found.greatest], sorted((varied, steady)))
        self.assertGreater(found.greatest - found.least, 0.1)
        self.assertAlmostEqual(found.gain, (varied + steady) / 2)

    def test_the_simulation_without_readers_is_the_network(self) -> None:
        """Both for exponential times; in the network, computing under a lock takes no processor."""
        for held in (100, 500, 900):
            simulated, _ = whatif.simulated(load(held), {}, False)
            solved, _ = whatif.solved(load(held), {})
            self.assertAlmostEqual(simulated / solved, 1, delta=0.06)

    def test_readers_need_processors(self) -> None:
        """Two processors, and all work is computing under the lock."""
        work = {"slept_ns": 0.0, "least_slept_ns": 0.0, "ran_ns": 0.9 * S, "least_ran_ns": 0.9 * S}
        busy = load(900, slept=False, **work, all_ran_ns=0.9 * S, processors=2)
        self.assertAlmostEqual(self.gain(busy, reads=1.0), 2.0, delta=0.1)

    def test_writers_wait_for_readers_inside(self) -> None:
        """A reader that is inside keeps a writer out, and the next readers pass it."""
        lock = simulation.LockState()
        self.assertTrue(lock.enter(True))
        self.assertFalse(lock.enter(False))
        lock.waiting.append((1, False))
        self.assertTrue(lock.enter(True))
        self.assertEqual(lock.leave(True), [])
        self.assertEqual(lock.leave(True), [(1, False)])
        self.assertFalse(lock.enter(True))
        lock.waiting.extend(((2, False), (3, True), (4, True)))
        self.assertEqual(lock.leave(False), [(3, True), (4, True)])

    def test_changes_of_one_lock_add_up(self) -> None:
        made = Change(factor=0.5).then(Change(more_us=10)).then(Change(parts=2, factor=0.5))
        self.assertEqual(made, Change(0.25, 2, 5.0))

    def test_onion_takes_the_busiest_lock_first(self) -> None:
        steps = self.recording("outer", "inner").onion()
        self.assertEqual([name for name, _ in steps], ["outer", "inner"])
        self.assertGreater(steps[1][1].gain, steps[0][1].gain)
        self.assertLess(steps[1][1].waiting, whatif.WAITING_LEAST)

    def test_a_lock_is_named_as_the_report_names_it(self) -> None:
        known = self.recording("outer", "inner")
        self.assertEqual(known.names[known.key("inner")], "inner")
        with self.assertRaisesRegex(RouseError, "no lock is called other.*outer, inner"):
            known.key("other")
        with self.assertRaisesRegex(RouseError, "2 locks are called same"):
            self.recording("same", "same").key("same")

    def test_a_recording_without_contended_locks_is_refused(self) -> None:
        with self.assertRaisesRegex(RouseError, "no lock that threads waited for"):
            self.recording()

    def test_wrong_changes_are_refused(self) -> None:
        for words in (
            [],
            ["--split", "lock"],
            ["--split", "lock=0"],
            ["--split", "=2"],
            ["--shorten", "lock=150%"],
            ["--shorten", "lock=x"],
        ):
            done = here("model", "whatif", *words, "nowhere")
            self.assertEqual(done.returncode, 2, words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
