# SPDX-License-Identifier: MIT
"""The investigations, most of them as rows of rouse-bench: the old mechanism beside the new one.

`source` has the figures of the investigation itself, which are of other machines: only their ratios
can be compared with ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

PROGRAM = "rouse-bench"
OLD_WAY, NEW_WAY, OURS = "the old mechanism", "the new mechanism", "rouse"
MORE, LESS = "more is better", "less is better"


@dataclass(frozen=True)
class Step:
    label: str
    words: str  # the arguments of the program
    kind: str = OURS
    source: str = ""  # what the investigation says about this row
    settings: str = ""  # of its environment: NAME=VALUE
    program: str = PROGRAM  # empty: the words have it

    @property
    def command(self) -> str:
        return " ".join(filter(None, (self.settings, self.program, self.words)))


@dataclass(frozen=True)
class Figure:
    """A column: a key of rouse-bench's JSON, and a factor."""

    title: str
    key: str
    factor: float = 1.0
    better: str = ""  # MORE or LESS; otherwise it only explains the others


@dataclass(frozen=True)
class Curve:
    """Rows that differ in a number: lines over it."""

    x_title: str
    lines: Mapping[str, Mapping[float, str]]  # labels of rows, by the number, by the line's name
    figures: Sequence[str]  # the titles of those that are drawn


# Runs a step for so many seconds. Returns its figures by key, or why there are none.
Run = Callable[[Step, float], tuple[dict[str, Any], str]]


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: Sequence[str]
    steps: Sequence[Step]
    figures: Sequence[Figure]
    pairs: Sequence[tuple[str, str]]  # labels of rows: the new mechanism, and what it replaces
    step_s: float = 0.0  # of a row and round, beyond the time for which it is measured
    more_s: float = 0.0  # the same of a whole round
    notes: Sequence[str] = ()  # what a reader of the figures has to know
    run: Run | None = None  # runs a step; None: rouse-bench does
    curves: Sequence[Curve] = ()
    series: str = ""  # what differs in its rows, if it has rows of its own for that

    @property
    def page(self) -> str:
        """The name of its page: each series has its own."""
        return "-".join(filter(None, (self.name, self.series)))

    def seconds(self, each_s: float, rounds: int) -> float:
        return rounds * (len(self.steps) * (each_s + self.step_s) + self.more_s)


SELECT = "selectherd --threads kernel"
OLD = "--wake broadcast --sched-lock process --select-lock global --timer tick"
CALLS = Figure("calls/s", "calls_per_s", better=MORE)
SWITCHES = Figure("switches/call", "switches_per_call", better=LESS)
# Those of the kernel's figures: rouse-bench has their sum, and the number of calls.
VOLUNTARY = Figure("voluntary switches/call", "voluntary_per_op", better=LESS)
CPU = Figure("CPU µs", "cpu_ns_per_op", 1e-3, LESS)
TIMES_OUT = "-T 100 --sets 0 --timeout-us"


HZ = 100  # of the sources' systems
OF_TICKS = ("E1", "E3")  # experiments whose old mechanism has a clock
ALONE = "one thread, {}"
AFFINITIES = range(1, 7)  # from workers that steal at once, to those that hardly ever do
# By tenths of a tick.
PREDICTED = {
    9: "predicted: at most 10,000 calls/s",
    10: "6,000 calls/s, 10,000 switches/s",
    11: "predicted: at most 5,000 calls/s",
}


def with_hz(words: str, hz: int) -> str:
    return words if hz == HZ else words.replace("--timer tick", f"--timer tick --hz {hz}")


def label_of(tenths: int, hz: int) -> str:
    """A time-out of so many tenths of a tick."""
    return f"{tenths * 100 / hz:g} ms"


def time_outs(hz: int) -> list[Step]:
    found = []
    for tenths, source in PREDICTED.items():
        words = f"{SELECT} {TIMES_OUT} {tenths * 100_000 // hz}"
        label = label_of(tenths, hz)
        ticks = with_hz(f"{words} --timer tick", hz)
        found += [
            Step(f"{label}, ticks", ticks, OLD_WAY, source if hz == HZ else ""),
            Step(f"{label}, exact", f"{words} --timer exact", NEW_WAY),
        ]
    user = f"selectherd --threads user {TIMES_OUT} {1_000_000 // hz}"
    found.append(Step(f"{label_of(10, hz)}, rouse_poll, user threads", user))
    one = f"{SELECT} {TIMES_OUT} {1_000_000 // hz}".replace("-T 100", "-T 1")
    label, source = ALONE.format(label_of(10, hz)), "about 60 calls/s" if hz == HZ else ""
    return [
        *found,
        Step(f"{label}, ticks", with_hz(f"{one} --timer tick", hz), OLD_WAY, source),
        Step(f"{label}, exact", f"{one} --timer exact", NEW_WAY),
    ]


def by_affinity() -> list[Step]:
    """The herd of user threads, by how soon idle workers steal."""
    words = "selectherd --threads user"
    return [
        Step(
            f"user threads, steal affinity {level}", words, settings=f"ROUSE_STEAL_AFFINITY={level}"
        )
        for level in AFFINITIES
    ]


CROWDS = (10, 50, 200)  # threads


def crowds() -> list[Step]:
    """How long a call waits for the scheduling lock of the old mechanism, and of the new one."""
    ways = (("process", OLD_WAY, "one scheduling lock"), ("thread", NEW_WAY, "one for each"))
    return [
        Step(f"{count} threads, {label}", f"{SELECT} -T {count} --sched-lock {lock}", kind)
        for count in CROWDS
        for lock, kind, label in ways
    ]


LOOPS = {
    16: "T2000: 11.9 µs, V890: 25.3 µs",
    32: "T2000: 32.4 µs, V890: 850 µs",
    33: "T2000: 1,140 µs, V890: 900 µs",
}


def ring_sizes() -> list[int]:
    processors = len(os.sched_getaffinity(0))
    return sorted({processors, processors + 1, *LOOPS})


def cascades() -> list[Step]:
    found = []
    for threads in ring_sizes():
        words = f"cascade_mutex -T {threads}"
        kernel = f"{words} --threads kernel"
        processes = f"cascade_mutex -T 1 --processes {threads} --threads kernel"
        found += [
            Step(f"{threads} kernel threads", kernel, OLD_WAY, LOOPS.get(threads, "")),
            Step(f"{threads} kernel threads, one processor", f"{kernel} --workers 1", OLD_WAY),
            Step(
                f"{threads} kernel threads, pinned to two", f"{kernel} --workers 2 --pin", OLD_WAY
            ),
            Step(f"{threads} processes", processes, OLD_WAY),
            Step(f"{threads} user threads", words),
        ]
    return found


def accepts() -> list[Step]:
    """The connections of a port that processes share: who gets them, and when."""
    many = "acceptherd --servers 4 -T 2"
    return [
        Step(
            "accept: 4 processes in poll(2)",
            f"{many} --threads kernel --order poll",
            OLD_WAY,
            "poll(): last come first served",
        ),
        Step(
            "accept: 4 processes in accept(2)",
            f"{many} --threads kernel",
            OLD_WAY,
            "accept(): nearly round robin",
        ),
        Step(
            "accept: EPOLLEXCLUSIVE",
            f"{many} --shared-by exclusive",
            OLD_WAY,
        ),
        Step("accept: rouse, in turns", f"{many} --shared-by turns"),
        Step(
            "accept: by priority",
            "acceptherd --threads kernel --order prioritised",
            OLD_WAY,
            "threads of low priority starve",
        ),
        Step(
            "accept: with promotion",
            "acceptherd --threads kernel --order promoted",
            NEW_WAY,
            "they are served",
        ),
    ]


def cascade_pairs() -> list[tuple[str, str]]:
    return [
        (f"{threads} user threads", f"{threads} kernel threads{where}")
        for threads in ring_sizes()
        for where in ("", ", one processor", ", pinned to two")
    ]


def every(hz: int = HZ) -> list[Experiment]:
    """hz: ticks per second, of the old mechanism."""
    old = with_hz(OLD, hz)
    labels = [label_of(tenths, hz) for tenths in PREDICTED]
    return [
        Experiment(
            "E1",
            "select() that wakes every thread",
            (
                "HP-UX 11.23: 180,000 calls, 330,000 switches",
                "HP-UX 11.31, another release: 601,000 calls, 68,000 switches",
            ),
            (
                Step(
                    "all old",
                    f"{SELECT} {old}",
                    OLD_WAY,
                    "11.23, without FreeBSD's one lock of select: 1.83 switches/call",
                ),
                Step("wakes only who selects now", f"{SELECT} {old} --wake precise", NEW_WAY),
                Step(
                    "and a scheduling lock per thread",
                    f"{SELECT} {old} --wake precise --sched-lock thread",
                    NEW_WAY,
                    "11.31: 0.11 switches/call, 3.3 times the calls of 11.23",
                ),
                Step(
                    "and fine locks of select",
                    with_hz(f"{SELECT} --timer tick", hz),
                    NEW_WAY,
                ),
                Step("all new: and exact timers", SELECT, NEW_WAY),
                Step("poll(2), kernel threads", f"{SELECT} --via poll", NEW_WAY),
                Step("rouse_poll, user threads", "selectherd --threads user"),
                *by_affinity(),
                *crowds(),
            ),
            (
                CALLS,
                SWITCHES,
                Figure("false", "false"),
                Figure("useful", "useful"),
                Figure("lock ns/call", "sched_lock_wait_ns_per_call", better=LESS),
                CPU,
            ),
            (
                ("all new: and exact timers", "all old"),
                ("rouse_poll, user threads", "all new: and exact timers"),
                ("rouse_poll, user threads", "poll(2), kernel threads"),
                *(
                    (f"{count} threads, one for each", f"{count} threads, one scheduling lock")
                    for count in CROWDS
                ),
            ),
            curves=(
                Curve(
                    "threads",
                    {
                        label: {count: f"{count} threads, {label}" for count in CROWDS}
                        for label in ("one scheduling lock", "one for each")
                    },
                    ("lock ns/call",),
                ),
            ),
        ),
        Experiment(
            "E2",
            "one lock for select(), or fine ones",
            (
                "FreeBSD: MySQL waits 10 times less for locks, PostgreSQL 100 times",
                "PostgreSQL gains 5 to 10 %, MySQL little: it contends in user space",
            ),
            (
                Step("16 descriptors, global lock", f"{SELECT} --select-lock global", OLD_WAY),
                Step("16 descriptors, fine locks", SELECT, NEW_WAY),
                Step("1,024, global lock", f"{SELECT} --sets 1024 --select-lock global", OLD_WAY),
                Step("1,024, fine locks", f"{SELECT} --sets 1024", NEW_WAY),
            ),
            (
                CALLS,
                SWITCHES,
                Figure("lock ns/call", "select_lock_wait_ns_per_call", better=LESS),
                Figure("user µs", "user_us_per_call", better=LESS),
                Figure("system µs", "system_us_per_call", better=LESS),
            ),
            (
                ("16 descriptors, fine locks", "16 descriptors, global lock"),
                ("1,024, fine locks", "1,024, global lock"),
            ),
        ),
        Experiment(
            "E3",
            "time-outs in ticks",
            (
                "Solaris, 100 threads, 10 ms: some 6,000 calls, 10,000 switches per second (1.67)",
                "predicted there, not measured: 9 ms at most 10,000 calls, 11 ms at most 5,000",
            ),
            time_outs(hz),
            (
                CALLS,
                Figure("early", "early"),
                VOLUNTARY,
                Figure("late p50 µs", "late_p50_us", better=LESS),
                Figure("late p99 µs", "late_p99_us", better=LESS),
                CPU,
            ),
            (
                *((f"{each}, exact", f"{each}, ticks") for each in labels),
                (f"{labels[1]}, rouse_poll, user threads", f"{labels[1]}, exact"),
            ),
        ),
        Experiment(
            "E4",
            "a thread library on clone(2)",
            (
                "no figure for creating a thread",
                "uThreads' web server, 200 connections: 128,626 requests/s (rouse lab http)",
            ),
            (
                Step("clone(2)", "spawn --threads clone", OLD_WAY),
                Step("pthread_create", "spawn --threads kernel", OLD_WAY),
                Step("rouse_thread_create", "spawn --threads user"),
            ),
            (
                Figure("create and join µs", "ns_per_op", 1e-3, LESS),
                Figure("least", "ns_min", 1e-3),
                Figure("most", "ns_max", 1e-3),
                CPU,
            ),
            (
                ("rouse_thread_create", "clone(2)"),
                ("rouse_thread_create", "pthread_create"),
            ),
        ),
        Experiment(
            "E5",
            "more threads than processors, and who gets a connection",
            (
                "T2000, 32 strands, a loop: 16 threads 11.9 µs, 32 threads 32.4, 33 threads 1,140",
                "V890, 16 processors: 25.3, 850 and 900 µs",
                "accept(): nearly round robin; poll(): last come first served (acceptherd)",
            ),
            [*cascades(), *accepts()],
            (
                Figure("best loop µs", "best_loop_us", better=LESS),
                Figure("a hop µs", "ns_per_op", 1e-3, LESS),
                Figure("voluntary switches", "voluntary_switches"),
                CPU,
                Figure("fairness of processes (1: equal)", "jain_processes", better=MORE),
                Figure("longest wait ms", "worst_wait_ms", better=LESS),
            ),
            [
                *cascade_pairs(),
                ("accept: rouse, in turns", "accept: 4 processes in poll(2)"),
                ("accept: rouse, in turns", "accept: EPOLLEXCLUSIVE"),
                ("accept: with promotion", "accept: by priority"),
            ],
            curves=(
                Curve(
                    "threads of the loop",
                    {
                        what: {size: f"{size} {what}" for size in ring_sizes()}
                        for what in ("kernel threads", "processes", "user threads")
                    },
                    ("best loop µs",),
                ),
            ),
            notes=("The mutexes of kernel threads and of processes are rouse's, too, not libc's.",),
        ),
    ]
