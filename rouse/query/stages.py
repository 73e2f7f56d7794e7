# SPDX-License-Identifier: MIT
"""The slowest stage of a pipeline: threads of several other stages wait for it.

Threads before it wait until it takes something out of a full queue, threads behind it until it puts
something into an empty one. Its own threads wait for neither. The stages further away wait for one
that waits for it.

A stage is a function that threads run from their beginning on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rouse.query import frames, java_locks, measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_GAIN, LEAST_NS, SYNC, Finding, Row
from rouse.query.pools import WORK
from rouse.query.program import Program
from rouse.query.thread_pools import EVENTS, Found, functions_of, sum_of
from rouse.tables.engine import Database
from rouse.text import duration

SLOW_STAGE = "slow-stage"
WAITED_LEAST = 0.5  # threads that wait for it, on average
MOSTLY = 0.5  # of all waits for events
IDLE = ("cond", "sem")
OUTPUT = ("write", SYNC, "connect")
OF_OTHERS = 0.01  # of the lives of threads: what others than the stage's wait for events at least
IDLE_MOST = 0.1  # of the waits for it: its own waits for others
SIDE_LEAST = 0.1  # of the waits for it, on each of its sides


@dataclass(frozen=True)
class Slow(Found):
    waits: set[str] = field(default_factory=set)  # the labels of those for the slow stages


@dataclass
class Stage:
    process: str
    function: frames.Function
    sides: dict[str, list[Row]] = field(default_factory=dict)  # waits for it, by who waits
    idle: list[Row] = field(default_factory=list)  # its own waits for other stages
    work: list[Row] = field(default_factory=list)  # its other waits

    @property
    def waited_ns(self) -> int:
        return sum(sum_of(rows) for rows in self.sides.values())

    @property
    def is_output(self) -> bool:
        out_ns = sum_of([row for row in self.work if row["kind"] in OUTPUT])
        return out_ns > MOSTLY * sum_of(self.work)

    def is_slow(self, all_ns: int, program: Program) -> bool:
        waited = self.waited_ns
        sides = [rows for rows in self.sides.values() if sum_of(rows) >= SIDE_LEAST * waited]
        return (
            waited >= max(WAITED_LEAST * program.wall_ns, LEAST_NS, MOSTLY * all_ns)
            and sum_of(self.idle) <= IDLE_MOST * waited
            and len(sides) > 1
        )


def stages_of(rows: list[Row], known: frames.Known) -> list[Stage]:
    found: dict[tuple[str, str], Stage] = {}

    def stage(row: Row, key: str) -> Stage | None:
        functions = functions_of(row, key, known)
        if not functions:
            return None
        outermost = functions[-1]
        return found.setdefault((row["process"], outermost.name), Stage(row["process"], outermost))

    for row in rows:
        waiter = stage(row, "wait_site")
        if row["kind"] in WORK and waiter:
            waiter.work.append(row)
        if row["kind"] not in EVENTS:
            continue
        waker = stage(row, "wake_site")
        if waiter:
            waiter.idle.append(row)
        if waiter and waker and waiter is not waker:
            waker.sides.setdefault(waiter.function.name, []).append(row)
    stages = list(found.values())
    join_chains(stages, known)
    return stages


def join_chains(stages: list[Stage], known: frames.Known) -> None:
    """Add to the waits for each stage those for the stages before it, which wait for room.

    A stage before it mostly waits for it, and is woken in a function in which it has waited itself,
    such as one that takes from a queue. The stages behind an input that is slow wait for it, too,
    but it has never waited for them. A stage that mostly waits for output is no input.
    """
    of = {(stage.process, stage.function.name): stage for stage in stages}
    direct = {key: dict(stage.sides) for key, stage in of.items()}
    for stage in stages:
        waits_in = {name for row in stage.idle for name in innermost(row, "wait_site", known)}
        left = [
            name
            for name, rows in stage.sides.items()
            if stage.is_output or any(waits_in & innermost(row, "wake_site", known) for row in rows)
        ]
        seen = {stage.function.name}
        while left:
            name = left.pop()
            before = of[stage.process, name]
            if name in seen or sum_of(stage.sides[name]) < MOSTLY * sum_of(before.idle):
                continue
            seen.add(name)
            for further, rows in direct[stage.process, name].items():
                if further not in stage.sides and further != stage.function.name:
                    stage.sides[further] = rows
                    left.append(further)


def innermost(row: Row, key: str, known: frames.Known) -> set[str]:
    return {function.name for function in functions_of(row, key, known)[:1]}


def find(database: Database, program: Program) -> Slow:
    rows = java_locks.without_jvm(database.rows(measures.waits_and_wakes()))
    events = [row for row in rows if row["kind"] in EVENTS]
    found = Slow([], set())
    if sum_of(events) < max(WAITED_LEAST * program.wall_ns, LEAST_NS):
        return found
    sites = {row[key] for row in rows for key in ("wait_site", "wake_site")}
    known = frames.functions(database, sites)
    outer = frames.without_helpers(known)
    rows = [{**row, "place": frames.label_of(row, known, outer)} for row in rows]
    for stage in stages_of(rows, known):
        if stage.is_slow(sum_of(events), program) and (slow := finding(stage, program)):
            found.findings.append(slow)
            found.served.update(row["label"] for row in stage.work)
            found.waits.update(row["label"] for rows in stage.sides.values() for row in rows)
    return found


def finding(stage: Stage, program: Program) -> Finding | None:
    """There is no estimate: how many threads the stage has is not known."""
    wall = program.wall_ns or 1
    ran = least_ran(program.ran_ns, sum(row["count"] for row in stage.work), program)
    # The others can wait less, but not do more than work all the time.
    others = [
        row
        for row in program.threads
        if program.sum(*IDLE, rows=[row]) > OF_OTHERS * (row["wall_ns"] or 1)
    ]
    lived = sum(row["wall_ns"] for row in others)
    busy = max(lived - program.sum(*IDLE, rows=others), 1.0)
    most = max(min(program.processors * wall / max(ran, 1.0), lived / busy), 1.0)
    if most < LEAST_GAIN:
        return None
    waits = [row for rows in stage.sides.values() for row in rows]
    longest = max(waits, key=lambda row: row["wait_ns"])
    work = max(stage.work, key=lambda row: row["wait_ns"], default=None)
    does = ""
    if work and sum_of(stage.work) > MOSTLY * wall:
        does = f", and waits mostly at {work['place']} meanwhile"
    text = (
        f"{stage.function.label} is the slowest stage: on average"
        f" {stage.waited_ns / wall:.1f} threads of other stages wait for it,"
        f" {duration(stage.waited_ns)} in all, at {longest['label']} and elsewhere. It waits for"
        f" none of them{does}. More threads for it, or less work in it, gain at most {most:.2f}x"
        f" the throughput [{SLOW_STAGE}]"
    )
    return Finding(
        *(SLOW_STAGE, stage.function.name, longest["label"], stage.function.label),
        *(stage.waited_ns, most, None, text),
    )
