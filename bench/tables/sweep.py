# SPDX-License-Identifier: MIT
"""HTTP from one connection to thousands: what a request costs and how long it takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tables import http, paired, rounds, servers
from tables.render import Table, interval, number
from tables.servers import Server, ServerError

COMPARED = ("user", "user-uring", "epoll", "uring", "nginx")
SATURATED = 0.97  # of its processor: then the client is what is measured
TITLES = {"uring": "raw io_uring", "nginx": "nginx"}


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    connections: tuple[int, ...]


FULL = Scale(9, 1.0, (1, 10, 100, 1_000, 4_000))
QUICK = Scale(2, 0.1, (1, 100))


@dataclass
class Results:
    server: Server
    reports: dict[int, list[dict[str, Any]]] = field(default_factory=dict)
    calls: dict[int, float | None] = field(default_factory=dict)
    failure: str = ""

    def values(self, connections: int, figure: str) -> list[float]:
        return [float(report[figure]) for report in self.reports.get(connections, [])]

    def cpu_us(self, connections: int) -> list[float]:
        used = self.values(connections, "server_cpu_us")
        return [a / b for a, b in zip(used, self.values(connections, "requests"), strict=True)]


def take(build: Path, result: Results, scale: Scale) -> None:
    """A fresh server for all numbers of connections."""
    try:
        with servers.started(result.server, http.processors()[0]) as running:
            for count in scale.connections:
                report = http.ask(build, running, scale.seconds, 1, count)
                result.reports.setdefault(count, []).append(report)
    except ServerError as reason:
        result.failure = str(reason)


def count_calls(build: Path, result: Results, scale: Scale) -> None:
    for count in scale.connections:
        try:
            result.calls[count] = http.traced_calls(build, result.server, scale.seconds, count)
        except ServerError:
            result.calls[count] = None


def measure(build: Path, found: Sequence[Server], scale: Scale) -> list[Results]:
    results = [Results(server) for server in found if server.key in COMPARED]
    for turn in range(scale.rounds):
        rounds.say(f"sweep: round {turn + 1} of {scale.rounds}")
        for result in results if turn % 2 == 0 else reversed(results):
            if not result.failure:
                take(build, result, scale)
    for result in results:
        if not result.failure:
            count_calls(build, result, scale)
    return results


def middle(values: Sequence[float]) -> float | None:
    return median(values) if values else None


def compare(
    results: Sequence[Results], one: Results, other: str, connections: int, figure: str
) -> str:
    base = next((r for r in results if r.server.key == other), None)
    if base is None or base is one:
        return "-"
    if figure == "cpu":
        return interval(paired.ratio(one.cpu_us(connections), base.cpu_us(connections)))
    return interval(paired.ratio(one.values(connections, figure), base.values(connections, figure)))


def table(results: Sequence[Results], connections: int) -> Table:
    plural = "connection" if connections == 1 else "connections"
    result = Table(
        f"HTTP sweep: {connections:,} {plural}",
        [
            *("server", "requests/s", "CPU µs/request", "calls/request", "p50 µs", "p99 µs"),
            *("client's CPU", "CPU / raw io_uring", "p99 / raw io_uring"),
            *("CPU / nginx", "p99 / nginx"),
        ],
    )
    for one in results:
        if not one.reports.get(connections):
            continue
        seconds = one.values(connections, "seconds")
        used = one.values(connections, "client_cpu_s")
        busy = median(a / b for a, b in zip(used, seconds, strict=True))
        row = [one.server.title]
        row += [number(middle(one.values(connections, "requests_per_s")))]
        row += [number(middle(one.cpu_us(connections))), number(one.calls.get(connections))]
        row += [number(middle(one.values(connections, f"latency_p{q}_us"))) for q in (50, 99)]
        row += [f"{100 * busy:.0f} %" + (" (saturated)" if busy >= SATURATED else "")]
        for other in TITLES:
            row += [
                compare(results, one, other, connections, figure)
                for figure in ("cpu", "latency_p99_us")
            ]
        result.rows.append(row)
    return result


BEFORE = (
    "`rouse-serve` with one worker on both backends beside the raw loops and nginx, as in the "
    "tables before. A server is started anew in each round and meets all numbers of connections "
    "one after the other. Medians of the rounds; ratios are paired, with 95 % confidence "
    "intervals. Latency is from the sending of a request to its whole answer, as the client "
    "sees it: a client whose own processor is saturated adds its own queue, for all servers "
    "alike, and requests/s are then the client's; CPU a request is not."
)


def tables(build: Path, found: Sequence[Server], scale: Scale) -> Iterator[Table]:
    results = measure(build, found, scale)
    for index, connections in enumerate(scale.connections):
        one = table(results, connections)
        if index == 0:
            one.before.append(BEFORE)
            one.after += [f"{r.server.title}: {r.failure}" for r in results if r.failure]
        yield one
