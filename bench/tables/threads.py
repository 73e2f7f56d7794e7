# SPDX-License-Identifier: MIT
"""The thread table: alternating runs of each load on rouse and on its peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from tables import paired, rounds
from tables.loads import Load, Metric, Scale, loads
from tables.programs import Program, command_line
from tables.render import NOTHING, Column, Table, grid, interval, number, numbers
from tables.rounds import Series

ORIENTATION = ("kernel", "clone")  # they get fewer rounds, since no claim is made about them
KERNEL_THREADS = (*ORIENTATION, "pthread")
ORIENTATION_ROUNDS = 3


def rounds_of(program: Program, scale: Scale, few: Sequence[str] = ORIENTATION) -> int:
    return min(scale.rounds, ORIENTATION_ROUNDS) if program.key in few else scale.rounds


@dataclass
class Measured:
    """The measurements of one load, by the program's key."""

    load: Load
    pin: bool
    series: dict[str, Series]


def measure(load: Load, pin: bool, programs: Sequence[Program], scale: Scale) -> Measured:
    series = {}
    for program in programs:
        if not program.fits(load.workers) or (pin and not program.pins):
            continue
        if load.only and program.key not in load.only:
            continue
        count = rounds_of(program, scale, KERNEL_THREADS if load.heavy else ORIENTATION)
        count = min(count, load.rounds_most or count)
        arguments = [*load.arguments, "--workers", str(load.workers), *(["--pin"] if pin else [])]
        series[program.key] = Series(command_line(program, arguments), count)
    rounds.take_turns(list(series.values()))
    return Measured(load, pin, series)


def measure_all(programs: Sequence[Program], scale: Scale) -> list[Measured]:
    results = []
    for load in loads(scale):
        for pin in (False, True) if load.pinned else (False,):
            name = " ".join(load.arguments) + f", w={load.workers}" + (", pinned" if pin else "")
            rounds.say(f"threads: {name}")
            results.append(measure(load, pin, programs, scale))
    return results


@dataclass(frozen=True)
class Row:
    """One figure of a load, by the program's key."""

    measured: Measured
    metric: Metric

    @property
    def label(self) -> str:
        return "same, workers pinned apart" if self.measured.pin else self.metric.label

    def values(self, key: str) -> list[float]:
        series = self.measured.series.get(key)
        return series.values(self.metric.figure) if series else []

    def median(self, key: str) -> float | None:
        values = self.values(key)
        return median(values) if values else None

    def spread(self, key: str) -> str:
        values = self.values(key)
        return numbers(paired.spread(values) if values else None)

    def ratio(self, one: str, other: str) -> str:
        return interval(paired.ratio(self.values(one), self.values(other)))

    def best_peer(self, programs: Sequence[Program]) -> Program | None:
        peers = [program for program in programs if program.peer and self.values(program.key)]
        if not peers or not self.measured.load.compared or self.metric.figure == "fairness":
            return None
        choose = max if self.metric.more_is_better else min
        return choose(peers, key=lambda program: self.median(program.key) or 0)


def rows(results: Sequence[Measured]) -> Iterator[tuple[str, Row]]:
    for measured in results:
        for metric in measured.load.metrics:
            if not measured.pin or metric.figure == "ns_per_op":
                row = Row(measured, metric)
                yield row.label, row


def per_program(programs: Sequence[Program], cell: Callable[[Any, str], str]) -> list[Column]:
    """One column per program: a cell from the row's data and the program's key."""

    def column(program: Program) -> Column:
        return Column(program.title, lambda _, row: cell(row, program.key))

    return [column(program) for program in programs]


def medians(programs: Sequence[Program]) -> list[Column]:
    return per_program(programs, lambda row, key: number(row.median(key)))


def main_table(
    results: Sequence[Measured], programs: Sequence[Program], missing: list[str]
) -> Table:
    def to_best(_label: str, row: Row) -> str:
        peer = row.best_peer(programs)
        return row.ratio("user", peer.key) if peer else NOTHING

    titles = {program.key: program.title for program in programs}
    failures = [
        f"{titles[key]}, `{' '.join(measured.load.arguments)}`: {series.failure}"
        for measured in results
        for key, series in measured.series.items()
        if series.failure
    ]
    return grid(
        "Threads",
        "ns, unless noted",
        [
            *medians([program for program in programs if program.peer or program.key == "user"]),
            Column("best peer", lambda _, row: getattr(row.best_peer(programs), "title", NOTHING)),
            Column("rouse / best peer", to_best),
            Column("aim", lambda _, row: "" if row.measured.pin else row.metric.aim),
        ],
        rows(results),
        "Medians of the rounds; `w` is the number of kernel threads that run user threads (for "
        "kernel threads: of processors in use). The ratio is the geometric mean of the paired "
        "ratios, with its 95 % confidence interval; below 1 rouse needs less (of wake-ups/s, "
        "above 1 is more). Recording of waits is on, as by default. No figure: the peer does not "
        "support the case, or the reason is below.",
        [*missing, *failures],
    )


def cost_of_recording(_label: str, row: Row) -> str:
    known = row.metric.figure != "fairness" and "unrecorded" in row.measured.series
    return row.ratio("user", "unrecorded") if known else NOTHING


def busiest_share(report: dict[str, object]) -> float | None:
    counts = report.get("ops_per_worker")
    if not isinstance(counts, list) or not sum(counts):
        return None
    return 100 * float(max(counts)) / float(sum(counts))


def share(measured: Measured, key: str) -> str:
    series = measured.series.get(key)
    found = [busiest_share(report) for report in series.reports] if series else []
    known = [share for share in found if share is not None]
    return f"{median(known):.0f}" if known else NOTHING


def tables(programs: Sequence[Program], missing: list[str], scale: Scale) -> Iterator[Table]:
    results = measure_all(programs, scale)
    unit = "ns, unless noted"
    yield main_table(results, programs, missing)
    title = "Threads: least and most of the rounds"
    yield grid(title, unit, per_program(programs, Row.spread), rows(results))
    ours = medians([program for program in programs if not program.peer])
    yield grid(
        "Threads: the forms of rouse",
        unit,
        [*ours, Column("recording on / off", cost_of_recording)],
        rows(results),
        "The same cases on user threads with recording of waits off and on, on kernel threads "
        "through the same interface, and on a bare clone() library of the benchmark's own.",
    )
    yield grid(
        "Threads: operations of the busiest worker, %",
        "w=2",
        per_program(programs, share),
        [
            (one.load.name() + (", workers pinned apart" if one.pin else ""), one)
            for one in results
            if one.load.workers >= 2 and one.load.arguments[0] != "memory"
        ],
        "Of all operations of a run, those of the worker (kernel threads and Go: of the "
        "processor) that did most; the median of the rounds. 50: both did the same; 100: one "
        "did all.",
    )
