# SPDX-License-Identifier: MIT
"""How connections divide: for each accept order over threads, for each sharing over processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import rounds
from tables.render import NOTHING, Column, Reports, Table, columns, grid, of

USER, KERNEL = ("--threads", "user"), ("--threads", "kernel")
KERNEL_WAYS = {
    "kernel threads in accept(2)": (*KERNEL, "--order", "accept"),
    "kernel threads in poll(2)": (*KERNEL, "--order", "poll"),
    "each an epoll set, EPOLLEXCLUSIVE": (*KERNEL, "--shared-by", "exclusive"),
}
ORDERS = {
    "rouse, fifo": (*USER, "--order", "fifo"),
    "rouse, lifo": (*USER, "--order", "lifo"),
    "rouse, scatter": (*USER, "--order", "scatter"),
    "rouse, no order": (*USER, "--order", "plain"),
    **KERNEL_WAYS,
    "prioritised FIFO": (*KERNEL, "--order", "prioritised"),
    "prioritised FIFO, promotion": (*KERNEL, "--order", "promoted"),
}
SHARES = {
    "rouse, herd": (*USER, "--shared-by", "herd"),
    "rouse, exclusive": (*USER, "--shared-by", "exclusive"),
    "rouse, turns": (*USER, "--shared-by", "turns"),
    "rouse, SO_REUSEPORT": (*USER, "--shared-by", "reuseport"),
    **KERNEL_WAYS,
    "kernel threads, SO_REUSEPORT": (*KERNEL, "--shared-by", "reuseport"),
}
COLUMNS = columns(
    ("without effect", "wasted_per_connection"),
    ("switches", "switches_per_connection"),
    ("p50, µs", "late_p50_us"),
    ("p99", "late_p99_us"),
    ("most", "late_max_us"),
    ("worst wait, ms", "worst_wait_ms"),
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
    connections: int  # per sample
    threads: int  # per process
    servers: int
    burst: int


FULL = Scale(5, 2000, 8, 4, 16)
QUICK = Scale(1, 50, 4, 2, 4)


def ends(one: str) -> Column:
    """Least and most connections of any thread or process."""

    def cell(_name: str, reports: Reports) -> str:
        known = [f"{of(reports, f'{one}_{end}'):.0f}" for end in ("least", "most") if reports]
        return "..".join(known) or NOTHING

    return Column("connections each", cell)


def jain(group: str) -> Column:
    figure = f"jain_{group}"
    return Column("Jain's index", lambda _, rows: f"{of(rows, figure):.4f}" if rows else NOTHING)


def table_of(
    title: str,
    group: tuple[str, str],
    before: str,
    commands: Mapping[str, Sequence[str]],
    count: int,
) -> Table:
    series = rounds.run(commands, count)
    reports = {name: one.reports for name, one in series.items()}
    shown = (jain(group[1]), ends(group[0]), *COLUMNS)
    table = grid(title, "", shown, reports, f"{before} {CAPTION}")
    table.after += rounds.failures(series)
    return table


def tables(build: Path, scale: Scale) -> Iterator[Table]:
    case = ("acceptherd", "--json", "--samples", "5", "--seconds", "20")
    program = [str(build / "bench" / "rouse-bench"), *case, "-n", str(scale.connections)]
    size = ("-T", str(scale.threads))
    rounds.say("accept: orders")
    yield table_of(
        "Accept order: threads of one process",
        ("thread", "threads"),
        f"`rouse-bench acceptherd`: {scale.threads} threads, one connection at a time. Of the "
        "prioritised FIFO's threads, a quarter have a low priority.",
        {name: [*program, *some, *size] for name, some in ORDERS.items()},
        scale.rounds,
    )
    two = ("--servers", str(scale.servers), "-T", "2")
    for burst in (1, scale.burst):
        rounds.say(f"accept: processes, {burst} at a time")
        more = (*two, "--burst", str(burst))
        yield table_of(
            f"Accept order: processes on one port, {burst} at a time",
            ("process", "processes"),
            f"`rouse-bench acceptherd`: {scale.servers} processes of two threads, {burst} "
            "connections at a time.",
            {name: [*program, *some, *more] for name, some in SHARES.items()},
            scale.rounds,
        )
