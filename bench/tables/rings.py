# SPDX-License-Identifier: MIT
"""The ring table: whether the time per hop jumps when threads outnumber processors."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from statistics import median

from tables import paired, rounds
from tables.loads import Scale, timed
from tables.programs import Program, command_line
from tables.render import Table, interval, number
from tables.rounds import Series
from tables.threads import rounds_of

KINDS = ("user", "kernel", "clone")
LIMIT = 1.3
RING_TITLES = {
    "cascade_mutex": "No cliff: the ring with two mutexes per thread",
    "ring": "No cliff: the ring with one semaphore per thread",
}


def sizes(scale: Scale, processors: int) -> list[int]:
    return sorted({processors, processors + 1, *scale.cliff})


def measure(case: str, program: Program, scale: Scale, processors: int) -> dict[int, Series]:
    commands = {
        n: command_line(program, [case, "-T", str(n), *timed(scale.seconds)])
        for n in sizes(scale, processors)
    }
    return rounds.run(commands, rounds_of(program, scale))


def verdict(ratio: paired.Ratio | None) -> str:
    if ratio is None:
        return ""
    return "holds" if ratio.within(LIMIT) else "does not hold" if ratio.low > LIMIT else "undecided"


def table_of(case: str, programs: Sequence[Program], scale: Scale) -> Table:
    processors = len(os.sched_getaffinity(0))
    steps = [(processors, processors + 1), (16, 33)]
    names = [f"{b} / {a} threads" for a, b in steps]
    table = Table(
        RING_TITLES[case],
        ["ns per hop", *(str(n) for n in sizes(scale, processors)), *names],
        before=[
            f"`rouse-bench {case}`: medians of the rounds, by the number of threads; one is "
            f"runnable at a time; {processors} processors. The steps are paired ratios with their "
            f"95 % confidence intervals; no cliff means at most {LIMIT}."
        ],
    )
    for program in programs:
        rounds.say(f"rings: {case}, {program.title}")
        series = measure(case, program, scale, processors)
        values = {n: one.values("ns_per_op") for n, one in series.items()}
        cells = [number(median(some)) if some else "-" for some in values.values()]
        for a, b in steps:
            ratio = paired.ratio(values[b], values[a])
            cells.append(f"{interval(ratio)} {verdict(ratio)}".strip())
        table.rows.append([program.title, *cells])
        named = {f"{program.title}, {n:,} threads": one for n, one in series.items()}
        table.after += rounds.failures(named)
    return table


def tables(programs: Sequence[Program], scale: Scale) -> Iterator[Table]:
    shown = [program for program in programs if program.key in KINDS]
    for case in RING_TITLES:
        yield table_of(case, shown, scale)
