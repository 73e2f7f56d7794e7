# SPDX-License-Identifier: MIT
"""HTTP: CPU time per request, under a light client on another processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tables import paired, rounds, servers, tracepoint
from tables.counts import total_calls
from tables.render import (
    NOTHING,
    Column,
    Reports,
    Table,
    columns,
    grid,
    interval,
    number,
    numbers,
)
from tables.servers import Running, Server, ServerError

CONNECTIONS = 100
DEPTH = 16
RATIOS = {"epoll": "raw epoll", "uring": "raw io_uring", "nginx": "nginx"}
CPU = ("server_cpu_us", "requests")
CPU_COLUMN = Column("CPU µs/request", *CPU)
BEFORE = (
    "A constant answer (`--respond`) to our client `bench-http-client`; server and "
    "client each have their own processor. CPU time is the server's, of user and kernel, read "
    "when the measured time begins and ends. Medians of the rounds, each with fresh "
    "processes; ratios are paired, with 95 % confidence intervals. The kernel counts "
    "system calls in a separate run. Where this is not allowed, strace counts them; it "
    "slows the server, so that more requests wait at once."
)


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    calls: tuple[float, float]  # seconds of the two runs under strace


FULL = Scale(9, 1.5, (0.5, 1.5))
QUICK = Scale(2, 0.2, (0.1, 0.3))


@dataclass(frozen=True)
class Load:
    seconds: float
    connections: int = CONNECTIONS
    depth: int = 1


@dataclass
class Results:
    server: Server
    reports: dict[Load, list[dict[str, Any]]] = field(default_factory=dict)
    calls: dict[Load, float | None] = field(default_factory=dict)
    failure: str = ""


def processors() -> tuple[int | None, int | None]:
    """One for the server and another for the client, where there are two."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def ask(
    build: Path, running: Running, seconds: float, depth: int, connections: int = CONNECTIONS
) -> dict[str, Any]:
    cpu = processors()[1]
    command = [
        *([] if cpu is None else ["taskset", "-c", str(cpu)]),
        str(build / "bench" / "bench-http-client"),
        *("--port", str(running.port), "--server-pid", str(running.pid)),
        *("--connections", str(connections), "--depth", str(depth), "--seconds", str(seconds)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ServerError(done.stderr.strip() or f"the client ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    if report["errors"] or not report["requests"]:
        raise ServerError(f"{report['errors']} errors in {report['requests']} requests")
    return report


def take(build: Path, result: Results, loads: Sequence[Load]) -> None:
    """One round: a fresh server, which serves each load in turn."""
    try:
        with servers.started(result.server, processors()[0]) as running:
            for load in loads:
                report = ask(build, running, load.seconds, load.depth, load.connections)
                result.reports.setdefault(load, []).append(report)
    except ServerError as reason:
        result.failure = str(reason)


def measure(
    build: Path, found: Sequence[Server], loads: Sequence[Load], count: int, label: str
) -> list[Results]:
    results = [Results(server) for server in found]
    for turn in range(count):
        rounds.say(f"{label}: round {turn + 1} of {count}")
        for result in results if turn % 2 == 0 else reversed(results):
            if not result.failure:
                take(build, result, loads)
    rounds.say(f"{label}: system calls")
    return results


def traced_calls(
    build: Path, server: Server, seconds: float, connections: int = CONNECTIONS
) -> float | None:
    """Calls per request, counted by the kernel at full speed. None: not allowed here."""
    with (
        servers.started(server, processors()[0]) as running,
        tracepoint.counting(running.pid) as counter,
    ):
        if counter is None:
            return None
        report = ask(build, running, seconds, 1, connections)
        return counter.total() / float(report["requests"] + report["warm_up_requests"])


def strace_calls(build: Path, server: Server, seconds: float) -> tuple[int, int] | None:
    """The calls and the requests over a server's whole life."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        strace = ["strace", "-f", "-c", "-o", str(out)]
        with servers.started(server, processors()[0], strace) as running:
            report = ask(build, running, seconds, 1)
        calls = total_calls(out.read_text(encoding="utf-8"))
        return None if calls is None else (calls, report["requests"] + report["warm_up_requests"])


def calls_per_request(build: Path, server: Server, scale: Scale) -> float | None:
    try:
        traced = traced_calls(build, server, scale.seconds)
        if traced is not None or not shutil.which("strace"):
            return traced
        # Two runs of different length, so that the start does not count.
        short, long = (strace_calls(build, server, seconds) for seconds in scale.calls)
    except ServerError:
        return None
    if short is None or long is None or long[1] <= short[1]:
        return None
    return (long[0] - short[0]) / (long[1] - short[1])


def rows(results: Sequence[Results], load: Load) -> dict[str, list[dict[str, Any]]]:
    """The reports of each server that served the load, by its title."""
    return {r.server.title: r.reports[load] for r in results if r.reports.get(load)}


def calls(results: Sequence[Results], load: Load) -> Column:
    known = {result.server.title: result.calls.get(load) for result in results}
    return Column("calls/request", lambda name, _: number(known[name]))


def values(reports: Reports, figure: str, per: str = "") -> list[float]:
    return [float(r[figure]) / (float(r[per]) if per else 1.0) for r in reports]


def spread(figure: str, per: str = "") -> Column:
    return Column("least..most", lambda _, some: numbers(paired.spread(values(some, figure, per))))


def ratios(
    results: Sequence[Results],
    load: Load,
    others: Mapping[str, str],
    figures: Sequence[tuple[str, str, str]] = (("CPU", *CPU),),
) -> Iterator[Column]:
    """Paired ratios to other servers, for each title, figure and divisor."""
    for other, title in others.items():
        base = next((r for r in results if r.server.key == other), None)
        for short, figure, per in figures:

            def cell(
                name: str,
                some: Reports,
                base: Results | None = base,
                figure: str = figure,
                per: str = per,
            ) -> str:
                if base is None or base.server.title == name:
                    return NOTHING
                theirs = values(base.reports.get(load, []), figure, per)
                return interval(paired.ratio(values(some, figure, per), theirs))

            yield Column(f"{short} / {title}", cell)


def tables(
    build: Path, found: Sequence[Server], missing: list[str], scale: Scale
) -> Iterator[Table]:
    single = Load(scale.seconds)
    pipelined = Load(scale.seconds / 2, depth=DEPTH)
    results = measure(build, found, (single, pipelined), scale.rounds, "http")
    for result in results:
        if not result.failure:
            result.calls[single] = calls_per_request(build, result.server, scale)
    shown = (
        CPU_COLUMN,
        spread(*CPU),
        Column("user part", "server_user_us", "requests"),
        calls(results, single),
        *columns(
            ("requests/s", "requests_per_s"),
            ("p50 µs", "latency_p50_us"),
            ("p99 µs", "latency_p99_us"),
        ),
        *ratios(results, single, RATIOS),
    )
    title = f"HTTP: {CONNECTIONS} connections, keep-alive, one worker"
    table = grid(title, "server", shown, rows(results, single), BEFORE)
    table.after += missing
    table.after += [f"{r.server.title}: {r.failure}" for r in results if r.failure]
    yield table
    shown = (
        Column("requests/s", "requests_per_s"),
        spread("requests_per_s"),
        CPU_COLUMN,
        *ratios(results, pipelined, RATIOS),
    )
    yield grid(
        f"HTTP: {CONNECTIONS} connections, {DEPTH} requests at a time",
        "server",
        shown,
        rows(results, pipelined),
        "As above, but the client sends this many requests in one write and waits for all replies.",
    )
