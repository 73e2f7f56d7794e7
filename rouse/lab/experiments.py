# SPDX-License-Identifier: MIT
"""The investigations, as rows of rouse-bench: the old mechanism beside the new one.

`source` has the figures of the investigation itself, which are of other machines: only their ratios
can be compared with ours.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Step:
    label: str
    words: str  # the arguments of rouse-bench


@dataclass(frozen=True)
class Figure:
    """A column: a key of rouse-bench's JSON, and a factor."""

    title: str
    key: str
    factor: float = 1.0


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: Sequence[str]
    steps: Sequence[Step]
    figures: Sequence[Figure]


SELECT = "selectherd --threads kernel"
OLD = "--wake broadcast --sched-lock process --select-lock global --timer tick"
CALLS = Figure("calls/s", "calls_per_s")
SWITCHES = Figure("switches/call", "switches_per_call")
CPU = Figure("CPU µs", "cpu_ns_per_op", 1e-3)
TIMES_OUT = "-T 100 --sets 0 --timeout-us"


def time_outs() -> list[Step]:
    found = []
    for ms in (9, 10, 11):
        words = f"{SELECT} {TIMES_OUT} {ms}000"
        found += [
            Step(f"{ms} ms, ticks", f"{words} --timer tick"),
            Step(f"{ms} ms, exact", f"{words} --timer exact"),
        ]
    user = f"selectherd --threads user {TIMES_OUT} 10000"
    return [*found, Step("10 ms, rouse_poll, user threads", user)]


def cascades() -> list[Step]:
    processors = len(os.sched_getaffinity(0))
    found = []
    for threads in sorted({processors, processors + 1, 32, 33}):
        words = f"cascade_mutex -T {threads}"
        found += [
            Step(f"{threads} kernel threads", f"{words} --threads kernel"),
            Step(
                f"{threads} kernel threads, one processor", f"{words} --threads kernel --workers 1"
            ),
            Step(f"{threads} user threads", words),
        ]
    return found


def every() -> list[Experiment]:
    return [
        Experiment(
            "E1",
            "select() that wakes every thread",
            (
                "HP-UX 11.23: 180,000 calls, 330,000 switches",
                "HP-UX 11.31, another release: 601,000 calls, 68,000 switches",
            ),
            (
                Step("all old", f"{SELECT} {OLD}"),
                Step("wakes only who selects now", f"{SELECT} {OLD} --wake precise"),
                Step(
                    "and a scheduling lock per thread",
                    f"{SELECT} {OLD} --wake precise --sched-lock thread",
                ),
                Step(
                    "and fine locks of select",
                    f"{SELECT} --timer tick",
                ),
                Step("all new: and exact timers", SELECT),
                Step("poll(2), kernel threads", f"{SELECT} --via poll"),
                Step("rouse_poll, user threads", "selectherd --threads user"),
            ),
            (
                CALLS,
                SWITCHES,
                Figure("false", "false"),
                Figure("useful", "useful"),
                Figure("lock ns/call", "sched_lock_wait_ns_per_call"),
                CPU,
            ),
        ),
        Experiment(
            "E2",
            "one lock for select(), or fine ones",
            (
                "FreeBSD: MySQL waits 10 times less for locks, PostgreSQL 100 times",
                "PostgreSQL gains 5 to 10 %, MySQL little",
            ),
            (
                Step("16 descriptors, global lock", f"{SELECT} --select-lock global"),
                Step("16 descriptors, fine locks", SELECT),
                Step("1,024, global lock", f"{SELECT} --sets 1024 --select-lock global"),
                Step("1,024, fine locks", f"{SELECT} --sets 1024"),
            ),
            (
                CALLS,
                SWITCHES,
                Figure("lock ns/call", "select_lock_wait_ns_per_call"),
                Figure("user µs", "user_us_per_call"),
                Figure("system µs", "system_us_per_call"),
            ),
        ),
        Experiment(
            "E3",
            "time-outs in ticks",
            (
                "Solaris, 100 threads, 10 ms: about 6,000 calls and 10,000 switches per second",
                "predicted there, not measured: 9 ms at most 10,000 calls, 11 ms at most 5,000",
            ),
            time_outs(),
            (
                CALLS,
                Figure("early", "early"),
                SWITCHES,
                Figure("late p50 µs", "late_p50_us"),
                Figure("late p99 µs", "late_p99_us"),
                CPU,
            ),
        ),
        Experiment(
            "E4",
            "a thread library on clone(2)",
            ("no figure for creating a thread",),
            (
                Step("clone(2)", "spawn --threads clone"),
                Step("pthread_create", "spawn --threads kernel"),
                Step("rouse_thread_create", "spawn --threads user"),
            ),
            (
                Figure("create and join µs", "ns_per_op", 1e-3),
                Figure("least", "ns_min", 1e-3),
                Figure("most", "ns_max", 1e-3),
                CPU,
            ),
        ),
        Experiment(
            "E5",
            "more threads than processors, and who gets a connection",
            (
                "T2000, 32 strands, a loop: 16 threads 11.9 µs, 32 threads 32.4, 33 threads 1,140",
                "V890, 16 processors: 25.3, 850 and 900 µs",
            ),
            cascades(),
            (
                Figure("best loop µs", "best_loop_us"),
                Figure("a hop µs", "ns_per_op", 1e-3),
                Figure("voluntary switches", "voluntary_switches"),
                CPU,
            ),
        ),
    ]
