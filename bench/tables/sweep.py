# SPDX-License-Identifier: MIT
"""HTTP from one connection to thousands: CPU time and latency per request."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import http
from tables.http import Load
from tables.render import Column, Reports, Table, grid, of
from tables.servers import Server, ServerError

COMPARED = ("user", "user-uring", "epoll", "uring", "nginx")
SATURATED = 0.97  # of its processor; above this the client is the bottleneck
FIGURES = (("CPU", *http.CPU), ("p99", "latency_p99_us", ""))
TITLES = {"uring": "raw io_uring", "nginx": "nginx"}


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    connections: tuple[int, ...]


FULL = Scale(9, 1.0, (1, 10, 100, 1_000, 4_000))
QUICK = Scale(2, 0.1, (1, 100))


def busy(_name: str, reports: Reports) -> str:
    share = of(reports, "client_cpu_s", "seconds")
    return f"{100 * share:.0f} %" + (" (saturated)" if share >= SATURATED else "")


BEFORE = (
    "`rouse-serve` with one worker on both backends, next to the raw loops and nginx, "
    "as in the tables above. Each round starts a new server and runs all numbers of connections "
    "one after the other. Medians of the rounds; ratios are paired, with 95 % confidence "
    "intervals. Latency is from the sending of a request to its whole answer, as the client "
    "sees it: a client whose own processor is saturated adds its own queue, for all servers "
    "alike, and then limits requests/s; CPU per request is unaffected."
)


def tables(build: Path, found: Sequence[Server], scale: Scale) -> Iterator[Table]:
    loads = [Load(scale.seconds, connections) for connections in scale.connections]
    compared = [server for server in found if server.key in COMPARED]
    results = http.measure(build, compared, loads, scale.rounds, "sweep")
    for result in results:
        for load in loads if not result.failure else ():
            with contextlib.suppress(ServerError):
                result.calls[load] = http.traced_calls(
                    build, result.server, load.seconds, load.connections
                )
    for load in loads:
        plural = "connection" if load.connections == 1 else "connections"
        shown = (
            Column("requests/s", "requests_per_s"),
            http.CPU_COLUMN,
            http.calls(results, load),
            Column("p50 µs", "latency_p50_us"),
            Column("p99 µs", "latency_p99_us"),
            Column("client's CPU", busy),
            *http.ratios(results, load, TITLES, FIGURES),
        )
        title = f"HTTP sweep: {load.connections:,} {plural}"
        table = grid(title, "server", shown, http.rows(results, load))
        if load == loads[0]:
            table.before.append(BEFORE)
            table.after += [f"{r.server.title}: {r.failure}" for r in results if r.failure]
        yield table
