# SPDX-License-Identifier: MIT
"""The tables of docs/scale.md: what the simulation predicts, and how it compares with real runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

from tables.render import Table, number

from scale.loads import burst, requests
from scale.simulator import Costs, Design, Figures

WORKERS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
SIMULATED_TURNS = 40_000  # at least, of requests
LOADS = (0.3, 0.6, 0.9)
BURSTS = (64, 256, 1024)  # threads made at once, of rouse-bench steal
PER_WORKER = 64  # threads of the burst that grows with the workers
BARE_METAL_NS = 5_000.0  # until a worker runs, where no hypervisor has to wake its processor


def designs(workers: int) -> dict[str, Design]:
    more = 1 + workers // 8
    return {
        "interrupts, one searcher": Design(),
        "full fences, one searcher": Design(has_membarrier=False),
        "full fences, one for every 8": Design(has_membarrier=False, searchers=more),
    }


def by_workers(title: str, cell: Any, workers: Sequence[int] = WORKERS) -> Table:
    """A row for each number of workers, a column for each design."""
    table = Table(title, ["workers", *designs(1)])
    for count in workers:
        cells = [cell(count, design) for design in designs(count).values()]
        table.rows.append([str(count), *cells])
    return table


def served(workers: int, design: Design, load: float, costs: Costs) -> Figures:
    seconds = max(SIMULATED_TURNS / (workers * load * 100_000), 0.004)
    return requests(workers, costs, design, load, seconds)


def cpu_of(figures: Figures) -> str:
    return number(figures.cpu_ns / max(figures.turns, 1) / 1000)


def request_tables(costs: Costs) -> list[Table]:
    tables = []
    for load in LOADS:

        def cell(workers: int, design: Design, load: float = load) -> str:
            figures = served(workers, design, load, costs)
            line = figures.line_ns / figures.end_ns
            return f"{cpu_of(figures)}, {number(figures.wait_ns(0.99) / 1000)}, {line:.0%}"

        tables.append(
            by_workers(f"Requests, load {load:g}: CPU µs, p99 of the wait µs, line", cell)
        )
    return tables


def burst_tables(costs: Costs) -> list[Table]:
    tables = []
    for latency in (BARE_METAL_NS, costs.latency):
        chosen = replace(costs, latency=latency)

        def cell(workers: int, design: Design, chosen: Costs = chosen) -> str:
            figures = burst(workers, chosen, design, PER_WORKER * workers, rounds=10)
            return number(figures.end_ns / figures.turns * workers / 1000)

        after = f"a worker runs {latency / 1000:g} µs after the call that wakes it"
        tables.append(by_workers(f"Bursts, {after}: worker µs per turn of 1.2 µs", cell))
    return tables


def sensitivity(costs: Costs, workers: int = 32, load: float = 0.3) -> Table:
    """Return what the first two designs cost if a stated cost is half or twice as large."""
    names = ("interrupt", "fence_first", "fence_each", "full_fence", "line", "awake")
    first, second, _ = designs(workers).values()
    table = Table(
        f"CPU µs per request, {workers} workers, load {load:g}", ["cost", "half", "twice"]
    )
    for name in names:
        cells = []
        for factor in (0.5, 2.0):
            chosen = replace(costs, **{name: getattr(costs, name) * factor})
            pair = [cpu_of(served(workers, design, load, chosen)) for design in (first, second)]
            cells.append(" and ".join(pair))
        table.rows.append([name, *cells])
    return table


# Real runs


def steal_words(threads: int, workers: int) -> list[str]:
    return ["steal", "-T", str(threads), "--workers", str(workers)]


def validation(
    reports: Mapping[tuple[int, int], Sequence[Mapping[str, Any]]], costs: Costs
) -> Table:
    """reports: of rouse-bench steal, by threads and workers. One worker gives the turn's length."""
    head = ["threads", "workers", "measured ns", "simulated", "p99 µs", "simulated"]
    table = Table("A turn, and its wait in the queue", head)
    for threads in BURSTS:
        turn_ns = 0.0
        for workers in (1, 2):
            found = reports[threads, workers]
            each_ns = median(report["ns_per_op"] for report in found)
            p99_us = median(report["wait_p99_us"] for report in found)
            turn_ns = turn_ns or each_ns - costs.switch
            figures = burst(workers, costs, Design(), threads, turn_ns, rounds=50)
            row = [each_ns, figures.end_ns / figures.turns, p99_us, figures.wait_ns(0.99) / 1000]
            table.rows.append([str(threads), str(workers), *map(number, row)])
    return table
