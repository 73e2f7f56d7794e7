# SPDX-License-Identifier: MIT
"""The loads of the thread table, and the rows that their reports fill."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tables import machine

CROWD_BYTES = 5_000  # more than a parked thread costs


@dataclass(frozen=True)
class Scale:
    """The amount of work. A quick run is a test; its figures are unreliable."""

    rounds: int
    seconds: float
    sleep_seconds: float
    many: int
    ring: int
    sleepers: int
    parked: int
    crowd: int
    cliff: tuple[int, ...]


FULL = Scale(9, 0.3, 1.0, 100_000, 10_000, 10_000, 10_000, 1_000_000, (16, 32, 33, 1_000, 10_000))
QUICK = Scale(2, 0.02, 0.1, 1_000, 100, 200, 500, 5_000, (16, 32, 33))


@dataclass(frozen=True)
class Metric:
    """One row: a figure of the report."""

    figure: str
    label: str
    aim: str = ""
    more_is_better: bool = False


@dataclass(frozen=True)
class Load:
    arguments: tuple[str, ...]
    workers: int
    metrics: tuple[Metric, ...]
    pinned: bool = False  # also measure it with the workers pinned apart
    only: tuple[str, ...] = ()  # the programs to measure; empty: all
    rounds_most: int | None = None
    compared: bool = True  # compared with the best peer
    heavy: bool = False  # many threads, so kernel threads of any form get fewer rounds

    def name(self) -> str:
        """The case, and the number of threads unless it is the default."""
        case, *options = self.arguments
        threads = dict(zip(options[::2], options[1::2], strict=True)).get("-T")
        return case + (f" {int(threads):,}" if threads else "")


def ns(label: str, aim: str = "") -> tuple[Metric, ...]:
    return (Metric("ns_per_op", label, aim),)


def timed(seconds: float) -> tuple[str, str]:
    return ("--seconds", str(seconds))


def creating(scale: Scale) -> Iterator[Load]:
    time, many = timed(scale.seconds), f"{scale.many:,}"
    yield Load(("nop", *time), 1, ns("empty operation (the harness), w=1"), compared=False)
    yield Load(("yield", *time), 1, ns("yield, w=1", "<= 8"))
    yield Load(("spawn", *time), 1, ns("spawn+join one at a time, w=1", "<= 60"))
    yield Load(("spawn", *time), 2, ns("same, w=2", "<= 120"), pinned=True)
    yield Load(
        ("spawn_many", "-T", str(scale.many), *time),
        2,
        (
            Metric("cold_ns_per_op", f"create {many}, then join, each, w=2: cold", "<= 1,600"),
            Metric("warm_ns_per_op", "same, warm stacks", "<= 200"),
        ),
        heavy=True,
    )


def passing(scale: Scale) -> Iterator[Load]:
    time = timed(scale.seconds)
    yield Load(("ring", *time), 1, ns("semaphore ring of 16, per hop, w=1", "<= 15"))
    yield Load(("ring", *time), 2, ns("same, w=2", "<= 20"), pinned=True)
    large = ("ring", "-T", str(scale.ring), *time)
    label = f"ring of {scale.ring:,}, per hop, w=2"
    yield Load(large, 2, ns(label, "<= 40"), pinned=True, heavy=True)
    yield Load(
        ("mutex", *timed(10 * scale.seconds)),  # fairness needs time to show
        2,
        (
            Metric("ns_per_op", "contended mutex, 8 threads, w=2", "<= 20"),
            Metric("fairness", "same: most/least operations of a thread", "<= 1.5"),
        ),
        pinned=True,
    )
    yield Load(("pingpong", *time), 2, ns("ping-pong, per round trip, w=2", "<= 80"), pinned=True)


def sleeping(scale: Scale) -> Iterator[Load]:
    def of(threads: int, *metrics: Metric) -> Load:
        arguments = ("sleepherd", "-T", str(threads), *timed(scale.sleep_seconds))
        return Load(arguments, 2, metrics, heavy=threads > 1_000)

    rate, many = "x sleep 10 ms, w=2: wake-ups/s", f"{scale.sleepers:,}"
    yield of(
        scale.sleepers,
        Metric("wakeups_per_s", f"{many} {rate}", ">= 99 %", more_is_better=True),
        Metric("cpu_us_per_wakeup", "same: CPU µs per wake-up", "<= 0.20"),
        Metric("late_p99_us", "same: lateness p99, µs", "<= 400"),
    )
    yield of(
        100,
        Metric("wakeups_per_s", f"100 {rate}", ">= 99.8 %", more_is_better=True),
        Metric("late_p50_us", "same: lateness p50, µs", "<= 15"),
    )


def resting(scale: Scale) -> Iterator[Load]:
    crowd = min(scale.crowd, machine.available_bytes() // (2 * CROWD_BYTES))
    bytes_each = "rss_bytes_per_thread"
    yield Load(
        ("memory", "-T", str(scale.parked)),
        1,
        (Metric(bytes_each, "a parked thread, resident bytes", "<= 4,300"),),
        heavy=True,
    )
    yield Load(
        ("memory", "-T", str(crowd)),
        1,
        (Metric(bytes_each, f"same, of {crowd:,} threads at once", "<= 4,300"),),
        only=("user",),
        rounds_most=1,
    )


def loads(scale: Scale) -> list[Load]:
    return [*creating(scale), *passing(scale), *sleeping(scale), *resting(scale)]
