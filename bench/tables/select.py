# SPDX-License-Identifier: MIT
"""select() with the mechanisms of old kernels, one switch at a time, next to today's calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import paired, rounds
from tables.render import NOTHING, Column, Table, columns, grid, interval

Reports = list[dict[str, Any]]
Data = dict[str, dict[str, Reports]]  # the key is the part, and then the row

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


def waits(lock: str, title: str, part: str = "") -> tuple[Column, Column]:
    """Two columns: how long and how often calls waited for a lock."""
    return (
        Column(f"{title}: ns/call", f"{lock}_lock_wait_ns_per_call", part=part),
        Column(
            f"{title}: contended/1,000 calls", f"{lock}_lock_contended", "total_ops", 1000, part
        ),
    )


CALLS = columns(
    ("calls/s", "calls_per_s"),
    ("events/s", "events_per_s"),
    ("switches/call", "switches_per_call"),
    ("user µs/call", "user_us_per_call"),
    ("system µs/call", "system_us_per_call"),
)
HIDDEN = "poll(2)"  # its internal waits and wake-ups are not visible
WAKE_UPS = columns(
    ("useful", "useful", "total_ops", 1000),
    ("lost race", "lost_race", "total_ops", 1000, "", HIDDEN),
    ("false", "false", "total_ops", 1000, "", HIDDEN),
    ("early", "early", "total_ops", 1000, "", HIDDEN),
    ("timeout", "timeout", "total_ops", 1000),
)
LOCKS = (*waits("sched", "scheduling"), *waits("select", "select"))
LATENESS = columns(
    ("p50 µs", "late_p50_us"),
    ("p99 µs", "late_p99_us"),
    ("most µs", "late_max_us"),
    ("wake-ups per instant", "clumping"),
)


@dataclass(frozen=True)
class Scale:
    """The amount of work. A quick run is a test; its figures are unreliable."""

    rounds: int
    seconds: float
    threads: int  # in the steps; the number that the source uses
    sets: int
    sizes: tuple[tuple[int, int], ...]  # threads and descriptors per set; at most 19,000 in all
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
    """The rows: from all old to all new, then each old mechanism alone, then today's calls."""
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


def sized(build: Path, scale: Scale, threads: int, sets: int, words: Sequence[str]) -> list[str]:
    size = ("-T", str(threads), "--sets", str(sets), "--seconds", str(scale.seconds))
    return rounds.bench(build, "selectherd", *words, *size)


def measure(build: Path, scale: Scale) -> Data:
    def steps(*more: str) -> dict[str, list[str]]:
        return {
            name: sized(build, scale, scale.threads, scale.sets, (*words, *more))
            for name, words in rows().items()
            if not more or "rouse" not in words
        }

    rounds.say("select: one switch at a time")
    data = {"threads": rounds.reports_of(steps(), scale.rounds)}
    rounds.say("select: forked processes")
    data["processes"] = rounds.reports_of(steps("--processes"), scale.rounds)
    ends = {OLD: switched(list(SWITCHES)), NEW: switched([]), **BESIDE}
    for threads, sets in scale.sizes:
        rounds.say(f"select: {threads} threads, sets of {sets}")
        commands = {name: sized(build, scale, threads, sets, words) for name, words in ends.items()}
        data[f"{threads} x {sets}"] = rounds.reports_of(commands, min(scale.rounds, 3))
    for sets in scale.large:
        rounds.say(f"select: the select lock, sets of {sets}")
        pair = {"global": switched(["select lock"]), "fine": switched([])}
        commands = {k: sized(build, scale, scale.threads, sets, w) for k, w in pair.items()}
        data[f"lock {sets}"] = rounds.reports_of(commands, scale.rounds)
    return data


def to_new(part: Mapping[str, Reports], name: str) -> str:
    """Calls per second, relative to the row "all new" of the same rounds."""
    if name == NEW_ROW:
        return NOTHING
    return ratio_of(part[name], part[NEW_ROW])


def ratio_of(mine: Reports, base: Reports) -> str:
    calls = [[float(r["calls_per_s"]) for r in reports] for reports in (mine, base)]
    return interval(paired.ratio(*calls))


def calls_table(title: str, part: Mapping[str, Reports], before: str) -> Table:
    to_all_new = Column("calls/s, to all new", lambda name, _: to_new(part, name))
    return grid(title, "", [*CALLS, to_all_new], part, before)


def size_table(data: Data, scale: Scale) -> Table:
    names = [f"{threads} x {sets}" for threads, sets in scale.sizes]
    shown = [Column(name, "calls_per_s", part=name) for name in (OLD, NEW, *BESIDE)]
    false = Column(f"false wake-ups per call, {OLD}", "false", "total_ops", part=OLD)
    return grid(
        "select(): calls per second by threads and descriptors per set",
        "threads x set",
        [*shown, false],
        {name: data[name] for name in names},
        "poll(2) and rouse_poll need an eventfd for each descriptor. Sizes stay below 20,000 "
        "of them, a usual limit.",
    )


def large_table(data: Data, scale: Scale) -> Table:
    ratio = Column("calls/s, global to fine", lambda _, row: ratio_of(row["global"], row["fine"]))
    locks = [column for name in ("global", "fine") for column in waits("select", name, name)]
    return grid(
        "select(): one select lock against fine ones, by the size of the set",
        "descriptors per set",
        [*locks, ratio],
        {str(sets): data[f"lock {sets}"] for sets in scale.large},
        "All other mechanisms are new: the cost of the lock alone, as waiting in ns per call.",
    )


def tables_of(data: Data, scale: Scale) -> Iterator[Table]:
    size = f"{scale.threads} threads, {scale.sets} descriptors per call, time-outs of 5 ms"
    about = (
        f"`rouse-bench selectherd`: {size}; half of the threads hand tokens round, and "
        "the calls of the others time out. Medians of the rounds; ratios are paired, with 95 % "
        "confidence intervals. The layer below the switches is the benchmark's own."
    )
    part = data["threads"]
    yield calls_table("select(): one switch at a time", part, about)
    yield grid(
        "select(): wake-ups of 1,000 calls, by verdict",
        "",
        WAKE_UPS,
        part,
        "A call that finds an event at once needs no wake-up. poll(2) does not show what "
        "happens inside it: all its calls that returned an event count as useful.",
    )
    yield grid(
        "select(): waiting for locks",
        "",
        LOCKS,
        {name: reports for name, reports in part.items() if name not in BESIDE},
        "Summed over all waiting threads, so the wait per call can exceed the duration of a call.",
    )
    yield grid(
        "select(): time-outs of 5 ms, how late",
        "",
        LATENESS,
        part,
        "An instant is 0.1 ms in which the timer woke at least one thread.",
    )
    forked = (
        "As the first table, with a forked process for each thread; memory and locks are shared."
    )
    yield calls_table("select(): forked processes", data["processes"], forked)
    yield size_table(data, scale)
    yield large_table(data, scale)


def tables(build: Path, scale: Scale) -> Iterator[Table]:
    yield from tables_of(measure(build, scale), scale)
