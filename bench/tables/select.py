# SPDX-License-Identifier: MIT
"""select() with the mechanisms of old kernels, one switch at a time, beside what there is today."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tables import paired, rounds
from tables.render import NOTHING, Table, interval, number
from tables.rounds import Series

Reports = list[dict[str, Any]]
Data = dict[str, dict[str, Reports]]  # by part and row

SWITCHES = {
    "wake": ("broadcast", "precise", "--wake"),
    "scheduling lock": ("process", "thread", "--sched-lock"),
    "select lock": ("global", "fine", "--select-lock"),
    "timer": ("tick", "exact", "--timer"),
}
LAYER = ("--threads", "kernel", "--via", "layer")
ROUSE = "rouse_poll, user threads"
BESIDE = {
    "poll(2), kernel threads": ("--threads", "kernel", "--via", "poll"),
    "rouse_poll, kernel threads": ("--threads", "kernel", "--via", "rouse", "--obs", "counted"),
    ROUSE: ("--threads", "user", "--via", "rouse", "--obs", "counted"),
}
OLD, NEW = "all old", "all new"
WAITED = ("ns/call", "contended/1,000 calls")


@dataclass(frozen=True)
class Scale:
    """How much is measured; a quick run shows that all works, and no figure to rely on."""

    rounds: int
    seconds: float
    threads: int  # of the steps; the source's number
    sets: int
    sizes: tuple[tuple[int, int], ...]  # threads and descriptors a set; at most 19,000 in all
    large: tuple[int, ...]  # sets for the select lock alone
    sleepers: int


FULL = Scale(
    *(5, 1.0, 32, 16),
    ((4, 1), (4, 64), (4, 1024), (16, 1), (16, 64), (16, 1024), (64, 1), (64, 64), (64, 256)),
    *((1, 16, 256, 1024), 100),
)
QUICK = Scale(2, 0.05, 6, 4, ((4, 8),), (16,), 20)


def switched(old: Sequence[str]) -> tuple[str, ...]:
    """The options of the layer with the named switches at their old setting."""
    words = [*LAYER]
    for name, (before, after, option) in SWITCHES.items():
        words += [option, before if name in old else after]
    return tuple(words)


def rows() -> dict[str, tuple[str, ...]]:
    """From all old to all new, then each old one alone, then what there is today."""
    names = list(SWITCHES)
    found = {OLD: switched(names)}
    for done in range(1, len(names)):
        after = SWITCHES[names[done - 1]][1]
        found[f"+ {names[done - 1]} {after}"] = switched(names[done:])
    found[f"+ {names[-1]} {SWITCHES[names[-1]][1]}: {NEW}"] = switched([])
    for name in names:
        found[f"{NEW} but {name} {SWITCHES[name][0]}"] = switched([name])
    return {**found, **BESIDE}


NEW_ROW = list(rows())[len(SWITCHES)]


def bench(build: Path, *arguments: str) -> list[str]:
    return [str(build / "bench" / "rouse-bench"), "selectherd", *arguments, "--json"]


def take(commands: Mapping[str, Sequence[str]], count: int) -> dict[str, Reports]:
    """Each row's reports, the rows taken in turns. A failure ends the whole: rows are compared."""
    series = {name: Series(command, count) for name, command in commands.items()}
    rounds.take_turns(list(series.values()))
    for name, one in series.items():
        if one.failure:
            raise RuntimeError(f"selectherd, {name}: {one.failure}")
    return {name: one.reports for name, one in series.items()}


def sized(build: Path, scale: Scale, threads: int, sets: int, words: Sequence[str]) -> list[str]:
    size = ("-T", str(threads), "--sets", str(sets), "--seconds", str(scale.seconds))
    return bench(build, *words, *size)


def measure(build: Path, scale: Scale) -> Data:
    def steps(*more: str) -> dict[str, list[str]]:
        return {
            name: sized(build, scale, scale.threads, scale.sets, (*words, *more))
            for name, words in rows().items()
            if not more or "rouse" not in words
        }

    rounds.say("select: one switch at a time")
    data = {"threads": take(steps(), scale.rounds)}
    rounds.say("select: forked processes")
    data["processes"] = take(steps("--processes"), scale.rounds)
    ends = {OLD: switched(list(SWITCHES)), NEW: switched([]), **BESIDE}
    for threads, sets in scale.sizes:
        rounds.say(f"select: {threads} threads, sets of {sets}")
        commands = {name: sized(build, scale, threads, sets, words) for name, words in ends.items()}
        data[f"{threads} x {sets}"] = take(commands, min(scale.rounds, 3))
    for sets in scale.large:
        rounds.say(f"select: the select lock, sets of {sets}")
        pair = {"global": switched(["select lock"]), "fine": switched([])}
        commands = {k: sized(build, scale, scale.threads, sets, w) for k, w in pair.items()}
        data[f"lock {sets}"] = take(commands, scale.rounds)
    return data


def of(reports: Reports, figure: str, per: str = "", scaled: float = 1) -> float:
    """The median of a figure, or of its ratio to another."""
    values = [float(r[figure]) / float(r[per] or 1) if per else float(r[figure]) for r in reports]
    return scaled * median(values)


def to_new(part: Mapping[str, Reports], name: str) -> str:
    """Calls a second, as a ratio to all new of the same rounds."""
    if name == NEW_ROW:
        return NOTHING
    mine = [float(r["calls_per_s"]) for r in part[name]]
    return interval(paired.ratio(mine, [float(r["calls_per_s"]) for r in part[NEW_ROW]]))


def calls_table(title: str, part: Mapping[str, Reports], before: list[str]) -> Table:
    head = ["", "calls/s", "events/s", "switches/call", "user µs/call", "system µs/call"]
    table = Table(title, [*head, "calls/s, to all new"], before=before)
    for name, reports in part.items():
        figures = ("calls_per_s", "events_per_s", "switches_per_call")
        cells = [number(of(reports, figure)) for figure in figures]
        cells += [number(of(reports, f"{kind}_us_per_call")) for kind in ("user", "system")]
        table.rows.append([name, *cells, to_new(part, name)])
    return table


def wake_table(part: Mapping[str, Reports]) -> Table:
    verdicts = ("useful", "lost_race", "false", "early", "timeout")
    table = Table(
        "select(): wake-ups of 1,000 calls, by verdict",
        ["", *(verdict.replace("_", " ") for verdict in verdicts)],
        before=[
            "A call that finds an event at once needs no wake-up. poll(2) does not show what "
            "happens inside it: all its calls that returned an event count as useful."
        ],
    )
    for name, reports in part.items():
        cells = [number(of(reports, verdict, "total_ops", 1000)) for verdict in verdicts]
        if "poll(2)" in name:
            cells[1:4] = [NOTHING] * 3
        table.rows.append([name, *cells])
    return table


def lock_table(part: Mapping[str, Reports]) -> Table:
    table = Table(
        "select(): waiting for locks",
        ["", *(f"{lock}: {what}" for lock in ("scheduling", "select") for what in WAITED)],
        before=["Summed over the threads that wait at once; a call may be waited for longer."],
    )
    for name, reports in part.items():
        if name in BESIDE:
            continue
        cells = []
        for lock in ("sched", "select"):
            cells.append(number(of(reports, f"{lock}_lock_wait_ns_per_call")))
            cells.append(number(of(reports, f"{lock}_lock_contended", "total_ops", 1000)))
        table.rows.append([name, *cells])
    return table


def time_table(part: Mapping[str, Reports]) -> Table:
    figures = ("late_p50_us", "late_p99_us", "late_max_us", "clumping")
    table = Table(
        "select(): time-outs of 5 ms, how late",
        ["", "p50 µs", "p99 µs", "most µs", "wake-ups an instant"],
        before=["An instant is 0.1 ms in which the timer woke at least one thread."],
    )
    for name, reports in part.items():
        table.rows.append([name, *(number(of(reports, figure)) for figure in figures)])
    return table


def size_table(data: Data, scale: Scale) -> Table:
    names = [OLD, NEW, *BESIDE]
    table = Table(
        "select(): calls per second by threads and descriptors per set",
        ["threads x set", *names, f"false wake-ups a call, {OLD}"],
        before=[
            "poll(2) and rouse_poll need an eventfd for each descriptor. Sizes stay below 20,000 "
            "of them, a usual limit."
        ],
    )
    for threads, sets in scale.sizes:
        part = data[f"{threads} x {sets}"]
        cells = [number(of(part[name], "calls_per_s")) for name in names]
        false = number(of(part[OLD], "false", "total_ops"))
        table.rows.append([f"{threads} x {sets}", *cells, false])
    return table


def large_table(data: Data, scale: Scale) -> Table:
    table = Table(
        "select(): one select lock against fine ones, by the size of the set",
        [
            "descriptors a set",
            *(f"{lock}: {what}" for lock in ("global", "fine") for what in WAITED),
            "calls/s, global to fine",
        ],
        before=[
            "All other mechanisms are new: the cost of the lock alone, as waiting in ns per call."
        ],
    )
    for sets in scale.large:
        part = data[f"lock {sets}"]
        cells = []
        for name in ("global", "fine"):
            cells.append(number(of(part[name], "select_lock_wait_ns_per_call")))
            cells.append(number(of(part[name], "select_lock_contended", "total_ops", 1000)))
        calls = {name: [float(r["calls_per_s"]) for r in part[name]] for name in part}
        ratio = paired.ratio(calls["global"], calls["fine"])
        table.rows.append([str(sets), *cells, interval(ratio)])
    return table


def tables_of(data: Data, scale: Scale) -> Iterator[Table]:
    size = f"{scale.threads} threads, {scale.sets} descriptors a call, time-outs of 5 ms"
    about = (
        f"`rouse-bench selectherd`: {size}; half of the threads hand tokens round, the calls of "
        "the others end by their time-out. Medians of the rounds; ratios are paired, with 95 % "
        "confidence intervals. The layer below the switches is the benchmark's own."
    )
    part = data["threads"]
    yield calls_table("select(): one switch at a time", part, [about])
    yield wake_table(part)
    yield lock_table(part)
    yield time_table(part)
    forked = (
        "As the first table, with a forked process for each thread; memory and locks are shared."
    )
    yield calls_table("select(): forked processes", data["processes"], [forked])
    yield size_table(data, scale)
    yield large_table(data, scale)


def tables(build: Path, scale: Scale) -> Iterator[Table]:
    yield from tables_of(measure(build, scale), scale)
