#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The simulator of bench/scale: what must hold of any costs, and of each design."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench"))
from scale.loads import REQUEST_NS, TURN_NS, burst, requests
from scale.simulator import Costs, Design, Figures

COSTS = Costs()
SECONDS = 0.02


TODAY = Design()


def figures_of(workers: int, design: Design = TODAY, seed: int = 1) -> Figures:
    return requests(workers, COSTS, design, 0.5, SECONDS, seed)


class Simulation(unittest.TestCase):
    def test_a_seed_gives_the_same_figures_and_another_one_others(self) -> None:
        self.assertEqual(figures_of(4), figures_of(4))
        self.assertNotEqual(figures_of(4), figures_of(4, seed=2))

    def test_the_clients_get_what_they_ask_for_while_workers_are_idle(self) -> None:
        figures = requests(2, COSTS, Design(), 0.5, 0.2)
        wanted = 2 * 0.5 * 0.2e9 / REQUEST_NS
        self.assertAlmostEqual(figures.turns, wanted, delta=0.1 * wanted)
        self.assertAlmostEqual(
            figures.useful_ns / figures.turns, REQUEST_NS, delta=0.05 * REQUEST_NS
        )

    def test_a_queue_waits_as_theory_says(self) -> None:
        # One worker that costs nothing but its turns is M/M/1: the mean wait is load / (1 - load)
        # turns. The clients are many.
        free = Costs(switch=0, line=0, far_line=0, fence=0, latency=0, awake=0, search=0)
        figures = requests(1, free, Design(), 0.5, 4.0)
        mean = sum(figures.waits_ns) / len(figures.waits_ns)
        self.assertAlmostEqual(mean, REQUEST_NS, delta=0.1 * REQUEST_NS)

    def test_every_turn_of_a_burst_is_run_and_is_shared(self) -> None:
        one, four = (burst(count, COSTS, Design(), 400, rounds=5) for count in (1, 4))
        self.assertEqual(one.turns, four.turns)
        self.assertAlmostEqual(one.useful_ns, one.turns * TURN_NS, delta=one.useful_ns * 1e-6)
        self.assertGreater(four.steals, 0)
        self.assertLess(four.end_ns, 0.5 * one.end_ns)
        self.assertGreater(four.end_ns, 0.25 * one.end_ns)

    def test_only_membarrier_interrupts_and_the_more_the_more_workers_there_are(self) -> None:
        full = figures_of(32, Design(has_membarrier=False))
        self.assertEqual((full.fences, full.interrupts_ns), (0, 0.0))
        few, many = (figures_of(count) for count in (2, 32))
        self.assertGreater(many.interrupts_ns / many.turns, 10 * few.interrupts_ns / few.turns)
        self.assertGreater(many.cpu_ns / many.turns, 1.2 * full.cpu_ns / full.turns)

    def test_more_searchers_reach_many_workers_sooner(self) -> None:
        one, several = (
            burst(64, COSTS, Design(has_membarrier=False, searchers=most), 64 * 64, rounds=3)
            for most in (1, 9)
        )
        self.assertEqual(one.turns, several.turns)
        self.assertLess(several.end_ns, 0.8 * one.end_ns)


if __name__ == "__main__":
    unittest.main(verbosity=2)
