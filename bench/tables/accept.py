# SPDX-License-Identifier: MIT
"""Who gets the connections of a port: each order over threads, each way to share over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tables import rounds
from tables.render import NOTHING, Table, number
from tables.rounds import Series

USER, KERNEL = ("--threads", "user"), ("--threads", "kernel")
ORDERS = {
    "rouse, fifo": (*USER, "--order", "fifo"),
    "rouse, lifo": (*USER, "--order", "lifo"),
    "rouse, scatter": (*USER, "--order", "scatter"),
    "rouse, no order": (*USER, "--order", "plain"),
    "kernel threads in accept(2)": (*KERNEL, "--order", "accept"),
    "kernel threads in poll(2)": (*KERNEL, "--order", "poll"),
    "each an epoll set, EPOLLEXCLUSIVE": (*KERNEL, "--shared-by", "exclusive"),
    "prioritised FIFO": (*KERNEL, "--order", "prioritised"),
    "prioritised FIFO, promotion": (*KERNEL, "--order", "promoted"),
}
SHARES = {
    "rouse, herd": (*USER, "--shared-by", "herd"),
    "rouse, exclusive": (*USER, "--shared-by", "exclusive"),
    "rouse, turns": (*USER, "--shared-by", "turns"),
    "rouse, SO_REUSEPORT": (*USER, "--shared-by", "reuseport"),
    "kernel threads in accept(2)": (*KERNEL, "--order", "accept"),
    "kernel threads in poll(2)": (*KERNEL, "--order", "poll"),
    "each an epoll set, EPOLLEXCLUSIVE": (*KERNEL, "--shared-by", "exclusive"),
    "kernel threads, SO_REUSEPORT": (*KERNEL, "--shared-by", "reuseport"),
}
FIGURES = (
    ("wasted_per_connection", "without effect"),
    ("switches_per_connection", "switches"),
    ("late_p50_us", "p50, µs"),
    ("late_p99_us", "p99"),
    ("late_max_us", "most"),
    ("worst_wait_ms", "worst wait, ms"),
)
CAPTION = (
    "Medians of the rounds. Jain's index is 1 when all receive the same number, 1/n when one "
    "receives all. Without effect: returns of poll(2) or epoll_wait(2) per connection that found "
    "nothing. Threads that the kernel woke and put to sleep again inside the call appear as "
    "switches only. Switches: voluntary ones of the servers per connection. p50, p99 and most: "
    "from the beginning of connect(2) until accepted. Worst wait: of a thread that was ready to "
    "accept."
)


@dataclass(frozen=True)
class Scale:
    rounds: int
    connections: int  # a sample
    threads: int  # of one process
    servers: int
    burst: int


FULL = Scale(5, 2000, 8, 4, 16)
QUICK = Scale(1, 50, 4, 2, 4)


def measure(build: Path, scale: Scale, words: Mapping[str, Sequence[str]]) -> dict[str, Series]:
    program = [str(build / "bench" / "rouse-bench"), "acceptherd", "--json", "--samples", "5"]
    program += ["--seconds", "20", "-n", str(scale.connections)]
    series = {name: Series([*program, *some], scale.rounds) for name, some in words.items()}
    rounds.take_turns(list(series.values()))
    return series


def middle(series: Series, figure: str) -> str:
    values = series.values(figure)
    return number(median(values)) if values else NOTHING


def jain(series: Series, of: str) -> list[str]:
    values = series.values(f"jain_{of}")
    index = f"{median(values):.4f}" if values else NOTHING
    one = {"threads": "thread", "processes": "process"}[of]
    ends = [series.values(f"{one}_{end}") for end in ("least", "most")]
    return [index, "..".join(f"{median(end):.0f}" for end in ends if end) or NOTHING]


def table_of(title: str, of: str, before: str, series: Mapping[str, Series]) -> Table:
    head = ["", "Jain's index", "connections each", *(name for _, name in FIGURES)]
    table = Table(title, head, before=[f"{before} {CAPTION}"])
    for name, one in series.items():
        cells = [*jain(one, of), *(middle(one, figure) for figure, _ in FIGURES)]
        table.rows.append([name, *cells])
        if one.failure:
            table.after.append(f"{name}: {one.failure}")
    return table


def tables(build: Path, scale: Scale) -> Iterator[Table]:
    rounds.say("accept: orders")
    size = ("-T", str(scale.threads))
    words: dict[str, Sequence[str]] = {name: (*some, *size) for name, some in ORDERS.items()}
    yield table_of(
        "Accept order: threads of one process",
        "threads",
        f"`rouse-bench acceptherd`: {scale.threads} threads, one connection at a time. Of the "
        "prioritised FIFO's threads a quarter has a low priority.",
        measure(build, scale, words),
    )
    two = ("--servers", str(scale.servers), "-T", "2")
    for burst in (1, scale.burst):
        rounds.say(f"accept: processes, {burst} at a time")
        words = {name: (*some, *two, "--burst", str(burst)) for name, some in SHARES.items()}
        yield table_of(
            f"Accept order: processes on one port, {burst} at a time",
            "processes",
            f"`rouse-bench acceptherd`: {scale.servers} processes of two threads, {burst} "
            "connections at a time.",
            measure(build, scale, words),
        )
