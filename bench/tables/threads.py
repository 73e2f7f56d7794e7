# SPDX-License-Identifier: MIT
"""The thread table: each load on rouse and on its peers, in turns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from tables import paired, rounds
from tables.loads import Load, Metric, Scale, loads
from tables.programs import Program, command_line
from tables.render import Table, interval, number, numbers
from tables.rounds import Series

ORIENTATION = ("kernel", "clone")  # fewer rounds: no claim is made about them
KERNEL_THREADS = (*ORIENTATION, "pthread")
ORIENTATION_ROUNDS = 3


@dataclass
class Measured:
    """One row's load, by the program's key."""

    load: Load
    pin: bool
    series: dict[str, Series]

    def medians(self, metric: Metric) -> dict[str, float]:
        values = {key: one.values(metric.figure) for key, one in self.series.items()}
        return {key: median(some) for key, some in values.items() if some}


def measure(load: Load, pin: bool, programs: Sequence[Program], scale: Scale) -> Measured:
    series = {}
    for program in programs:
        if program.workers_most is not None and load.workers > program.workers_most:
            continue
        if (pin and not program.pins) or (load.only and program.key not in load.only):
            continue
        few = KERNEL_THREADS if load.heavy else ORIENTATION
        limits = [ORIENTATION_ROUNDS] if program.key in few else []
        limits += [load.rounds_most] if load.rounds_most else []
        count = min([scale.rounds, *limits])
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


def rows(results: Sequence[Measured]) -> Iterator[tuple[str, Measured, Metric]]:
    for measured in results:
        for metric in measured.load.metrics:
            if not measured.pin:
                yield metric.label, measured, metric
            elif metric.figure == "ns_per_op":
                yield "same, workers pinned apart", measured, metric


def best_peer(measured: Measured, metric: Metric, programs: Sequence[Program]) -> Program | None:
    medians = measured.medians(metric)
    peers = [program for program in programs if program.peer and program.key in medians]
    if not peers or not measured.load.compared or metric.figure == "fairness":
        return None
    choose = max if metric.more_is_better else min
    return choose(peers, key=lambda program: medians[program.key])


def against(measured: Measured, metric: Metric, one: str, other: str) -> paired.Ratio | None:
    return paired.ratio(
        measured.series[one].values(metric.figure), measured.series[other].values(metric.figure)
    )


def main_table(
    results: Sequence[Measured], programs: Sequence[Program], missing: list[str]
) -> Table:
    shown = [program for program in programs if program.peer or program.key == "user"]
    table = Table(
        "Threads",
        ["ns, unless noted", *(p.title for p in shown), "best peer", "rouse / best peer", "aim"],
        before=[
            "Medians of the rounds; `w` is the number of kernel threads that run user threads (for "
            "kernel threads: of processors in use). The ratio is the geometric mean of the paired "
            "ratios, with its 95 % confidence interval; below 1 rouse needs less (of wake-ups/s, "
            "above 1 is more). Recording of waits is off. No figure: the peer does not "
            "support the case, or the reason is below."
        ],
        after=list(missing),
    )
    for label, measured, metric in rows(results):
        medians = measured.medians(metric)
        best = best_peer(measured, metric, programs)
        cells = [number(medians.get(program.key)) for program in shown]
        compared = against(measured, metric, "user", best.key) if best else None
        aim = metric.aim if not measured.pin else ""
        table.rows.append([label, *cells, best.title if best else "-", interval(compared), aim])
    table.after += failures(results, programs)
    return table


def failures(results: Sequence[Measured], programs: Sequence[Program]) -> list[str]:
    titles = {program.key: program.title for program in programs}
    return [
        f"{titles[key]}, `{' '.join(measured.load.arguments)}`: {series.failure}"
        for measured in results
        for key, series in measured.series.items()
        if series.failure
    ]


def spread_table(results: Sequence[Measured], programs: Sequence[Program]) -> Table:
    table = Table(
        "Threads: least and most of the rounds",
        ["ns, unless noted", *(program.title for program in programs)],
    )
    for label, measured, metric in rows(results):
        cells = []
        for program in programs:
            series = measured.series.get(program.key)
            values = series.values(metric.figure) if series else []
            cells.append(numbers(paired.spread(values) if values else None))
        table.rows.append([label, *cells])
    return table


def ours_table(results: Sequence[Measured], programs: Sequence[Program]) -> Table:
    shown = [program for program in programs if not program.peer]
    table = Table(
        "Threads: the forms of rouse",
        ["ns, unless noted", *(program.title for program in shown), "recording on / off"],
        before=[
            "The same cases on user threads with recording of waits off and on, on kernel threads "
            "through the same interface, and on a bare clone() library of the benchmark's own."
        ],
    )
    for label, measured, metric in rows(results):
        medians = measured.medians(metric)
        cost = None
        if metric.figure != "fairness" and "recorded" in measured.series:
            cost = against(measured, metric, "recorded", "user")
        cells = [number(medians.get(program.key)) for program in shown]
        table.rows.append([label, *cells, interval(cost)])
    return table


def busiest_share(report: dict[str, object]) -> float | None:
    counts = report.get("ops_per_worker")
    if not isinstance(counts, list) or not sum(counts):
        return None
    return 100 * float(max(counts)) / float(sum(counts))


def share_table(results: Sequence[Measured], programs: Sequence[Program]) -> Table:
    table = Table(
        "Threads: operations of the busiest worker, %",
        ["w=2", *(program.title for program in programs)],
        before=[
            "Of all operations of a run, those of the worker (kernel threads and Go: of the "
            "processor) that did most; the median of the rounds. 50: both did the same; 100: one "
            "did all."
        ],
    )
    for measured in results:
        if measured.load.workers < 2 or measured.load.arguments[0] == "memory":
            continue
        cells = []
        for program in programs:
            series = measured.series.get(program.key)
            shares = [busiest_share(report) for report in series.reports] if series else []
            known = [share for share in shares if share is not None]
            cells.append(f"{median(known):.0f}" if known else "-")
        pinned = ", workers pinned apart" if measured.pin else ""
        table.rows.append([measured.load.name() + pinned, *cells])
    return table


def tables(programs: Sequence[Program], missing: list[str], scale: Scale) -> Iterator[Table]:
    results = measure_all(programs, scale)
    yield main_table(results, programs, missing)
    yield spread_table(results, programs)
    yield ours_table(results, programs)
    yield share_table(results, programs)
