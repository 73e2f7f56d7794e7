# SPDX-License-Identifier: MIT
"""HTTP: the server's CPU time per request, with a light client on another processor."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rouse.lab import tracepoint
from tables import paired, rounds, servers
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
    of,
)
from tables.servers import Running, Server, ServerError

CONNECTIONS = 100
DEPTH = 16
LONGEST_S, LONGER = 10.0, 10  # of a load that had no request, and how many times longer it gets
RATIOS = {"epoll": "raw epoll", "uring": "raw io_uring", "nginx": "nginx"}
CPU = ("server_cpu_us", "requests")
CPU_COLUMN = Column("CPU µs/request", *CPU)
RATE = Column("requests/s", "requests_per_s")
LATENCIES = columns(("p50 µs", "latency_p50_us"), ("p99 µs", "latency_p99_us"))
BEFORE = (
    "A constant answer (`--respond`) to our client `bench-http-client`; server and "
    "client each have their own processor. CPU time is the server's, of user and kernel, read "
    "when the measured time begins and ends. Medians of the rounds, each with fresh "
    "processes; ratios are paired, with 95 % confidence intervals. The kernel counts "
    "system calls in a separate run. Where this is not allowed, strace counts them; it "
    "slows the server, so that more requests wait at once."
)
ABOUT_PIPELINED = (
    "As above, but the client sends this many requests in one write and waits for all replies."
)


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    calls: tuple[float, float]  # the seconds of the two runs under strace
    sweep_seconds: float
    connections: tuple[int, ...]  # numbers of connections in the sweep


FULL = Scale(9, 1.5, (0.5, 1.5), 1.0, (1, 10, 100, 1_000, 4_000, 8_000))
QUICK = Scale(2, 0.2, (0.1, 0.3), 0.1, (1, 100))


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
    """A processor for the server and one for the client. None: there is only one."""
    usable = sorted(os.sched_getaffinity(0))
    return (usable[0], usable[1]) if len(usable) > 1 else (None, None)


def ask(build: Path, running: Running, load: Load) -> dict[str, Any]:
    """Put the load on the server, and return the client's report.

    A machine that other programs use may run none of ours in a short time. If there was no request
    in it, the load lasts longer.
    """
    report = ask_once(build, running, load)
    while not report["requests"] and load.seconds < LONGEST_S:
        load = replace(load, seconds=min(load.seconds * LONGER, LONGEST_S))
        report = ask_once(build, running, load)
    if report["errors"] or not report["requests"]:
        raise ServerError(f"{report['errors']} errors in {report['requests']} requests")
    return report


def ask_once(build: Path, running: Running, load: Load) -> dict[str, Any]:
    cpu = processors()[1]
    command = [
        *([] if cpu is None else ["taskset", "-c", str(cpu)]),
        str(build / "bench" / "bench-http-client"),
        *("--port", str(running.port), "--server-pid", str(running.pid)),
        *("--connections", str(load.connections), "--depth", str(load.depth)),
        *("--seconds", str(load.seconds)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0:
        raise ServerError(done.stderr.strip() or f"the client ended with {done.returncode}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def take(build: Path, result: Results, loads: Sequence[Load]) -> None:
    """Run one round: a fresh server serves each load, one after another."""
    try:
        with servers.started(result.server, processors()[0]) as running:
            for load in loads:
                result.reports.setdefault(load, []).append(ask(build, running, load))
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


def traced_calls(build: Path, server: Server, load: Load) -> float | None:
    """Calls per request, counted by the kernel at full speed. None: this is not allowed here."""
    with (
        servers.started(server, processors()[0]) as running,
        tracepoint.counting(running.pid) as counter,
    ):
        if counter is None:
            return None
        report = ask(build, running, load)
        return counter.total() / float(report["requests"] + report["warm_up_requests"])


def strace_calls(build: Path, server: Server, seconds: float) -> tuple[int, int] | None:
    """The calls and the requests over a server's whole life."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        strace = ["strace", "-f", "-c", "-o", str(out)]
        with servers.started(server, processors()[0], strace) as running:
            report = ask(build, running, Load(seconds))
        calls = total_calls(out.read_text(encoding="utf-8"))
        return None if calls is None else (calls, report["requests"] + report["warm_up_requests"])


def calls_per_request(build: Path, server: Server, scale: Scale) -> float | None:
    try:
        traced = traced_calls(build, server, Load(scale.seconds))
        if traced is not None or not shutil.which("strace"):
            return traced
        # Compare two runs of different length, so that the start does not count.
        short, long = (strace_calls(build, server, seconds) for seconds in scale.calls)
    except ServerError:
        return None
    if short is None or long is None or long[1] <= short[1]:
        return None
    return (long[0] - short[0]) / (long[1] - short[1])


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


def table(
    results: Sequence[Results],
    load: Load,
    title: str,
    shown: Sequence[Column],
    before: str,
    remarks: Sequence[str] | None = None,
) -> Table:
    """One row per server that served the load. With remarks, the failures follow them."""
    failures = [f"{r.server.title}: {r.failure}" for r in results if r.failure]
    after = [] if remarks is None else [*remarks, *failures]
    rows = {r.server.title: r.reports[load] for r in results if r.reports.get(load)}
    return grid(title, "server", shown, rows, before, after)


def tables(
    build: Path, found: Sequence[Server], missing: list[str], scale: Scale
) -> Iterator[Table]:
    single = Load(scale.seconds)
    pipelined = Load(scale.seconds / 2, depth=DEPTH)
    results = measure(build, found, (single, pipelined), scale.rounds, "http")
    for result in results:
        if not result.failure:
            result.calls[single] = calls_per_request(build, result.server, scale)
    shown = [
        CPU_COLUMN,
        spread(*CPU),
        Column("user part", "server_user_us", "requests"),
        calls(results, single),
        *(RATE, *LATENCIES),
        *ratios(results, single, RATIOS),
    ]
    title = f"HTTP: {CONNECTIONS} connections, keep-alive, one worker"
    yield table(results, single, title, shown, BEFORE, missing)
    shown = [RATE, spread("requests_per_s"), CPU_COLUMN, *ratios(results, pipelined, RATIOS)]
    title = f"HTTP: {CONNECTIONS} connections, {DEPTH} requests at a time"
    yield table(results, pipelined, title, shown, ABOUT_PIPELINED)


# The sweep: from one connection to thousands.
SWEPT = ("user", "user-uring", "unrecorded", "epoll", "uring", "nginx")
SATURATED = 0.97  # the share of its processor above which the client is the bottleneck
SWEEP_FIGURES = (("CPU", *CPU), ("p99", "latency_p99_us", ""))
SWEEP_RATIOS = {"uring": "raw io_uring", "nginx": "nginx"}
ABOUT_SWEEP = (
    "`rouse-serve` with one worker on both backends, and without recording, next to the raw loops "
    "and nginx, as in the tables above. Each round starts a new server and runs all numbers of "
    "connections one after the other. Medians of the rounds; ratios are paired, with 95 % "
    "confidence intervals. Latency is from the sending of a request to its whole answer, as the "
    "client sees it: a client whose own processor is saturated adds its own queue, for all "
    "servers alike, and then limits requests/s; CPU per request is unaffected."
)


def busy(_name: str, reports: Reports) -> str:
    share = of(reports, "client_cpu_s", "seconds")
    return f"{100 * share:.0f} %" + (" (saturated)" if share >= SATURATED else "")


def sweep(build: Path, found: Sequence[Server], scale: Scale) -> Iterator[Table]:
    loads = [Load(scale.sweep_seconds, connections) for connections in scale.connections]
    swept = [server for server in found if server.key in SWEPT]
    results = measure(build, swept, loads, scale.rounds, "sweep")
    for result in results:
        for load in loads if not result.failure else ():
            with contextlib.suppress(ServerError):
                result.calls[load] = traced_calls(build, result.server, load)
    for load in loads:
        shown = [
            *(RATE, CPU_COLUMN, calls(results, load), *LATENCIES, Column("client's CPU", busy)),
            *ratios(results, load, SWEEP_RATIOS, SWEEP_FIGURES),
        ]
        plural = "connection" if load.connections == 1 else "connections"
        title = f"HTTP sweep: {load.connections:,} {plural}"
        is_first = load == loads[0]
        yield table(
            *(results, load, title, shown),
            *((ABOUT_SWEEP, ()) if is_first else ("", None)),
        )
