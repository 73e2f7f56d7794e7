# SPDX-License-Identifier: MIT
"""HTTP: what a request costs a server, under a light client on another processor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from tables import paired, rounds, servers, tracepoint
from tables.counts import total_calls
from tables.render import Table, interval, number, numbers
from tables.servers import Running, Server, ServerError

CONNECTIONS = 100
DEPTH = 16
RATIOS = ("epoll", "uring", "nginx")
RATIO_HEADS = ("CPU / raw epoll", "CPU / raw io_uring", "CPU / nginx")


@dataclass(frozen=True)
class Scale:
    rounds: int
    seconds: float
    calls: tuple[float, float]  # seconds of the two runs under strace


FULL = Scale(9, 1.5, (0.5, 1.5))
QUICK = Scale(2, 0.2, (0.1, 0.3))


@dataclass
class Results:
    server: Server
    keep_alive: list[dict[str, Any]] = field(default_factory=list)
    pipelined: list[dict[str, Any]] = field(default_factory=list)
    calls: float | None = None
    failure: str = ""

    def cpu_us(self, pipelined: bool = False) -> list[float]:
        reports = self.pipelined if pipelined else self.keep_alive
        return [float(r["server_cpu_us"]) / float(r["requests"]) for r in reports]


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


def take(build: Path, result: Results, scale: Scale) -> None:
    try:
        with servers.started(result.server, processors()[0]) as running:
            result.keep_alive.append(ask(build, running, scale.seconds, 1))
            result.pipelined.append(ask(build, running, scale.seconds / 2, DEPTH))
    except ServerError as reason:
        result.failure = str(reason)


def traced_calls(
    build: Path, server: Server, seconds: float, connections: int = CONNECTIONS
) -> float | None:
    """Counted by the kernel, beside a load of full speed. None: not allowed here."""
    with (
        servers.started(server, processors()[0]) as running,
        tracepoint.counting(running.pid) as counter,
    ):
        if counter is None:
            return None
        report = ask(build, running, seconds, 1, connections)
        return counter.total() / float(report["requests"] + report["warm_up_requests"])


def strace_calls(build: Path, server: Server, seconds: float) -> tuple[int, int] | None:
    """The calls and the requests of a server's whole life."""
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
        # Two runs of different length, so that starting costs nothing.
        short, long = (strace_calls(build, server, seconds) for seconds in scale.calls)
    except ServerError:
        return None
    if short is None or long is None or long[1] <= short[1]:
        return None
    return (long[0] - short[0]) / (long[1] - short[1])


def measure(build: Path, found: Sequence[Server], scale: Scale) -> list[Results]:
    results = [Results(server) for server in found]
    for turn in range(scale.rounds):
        rounds.say(f"http: round {turn + 1} of {scale.rounds}")
        for result in results if turn % 2 == 0 else reversed(results):
            if not result.failure:
                take(build, result, scale)
    rounds.say("http: system calls")
    for result in results:
        if not result.failure:
            result.calls = calls_per_request(build, result.server, scale)
    return results


def middle(reports: Sequence[dict[str, Any]], figure: str) -> float | None:
    return median(float(report[figure]) for report in reports) if reports else None


def user_part(reports: Sequence[dict[str, Any]]) -> float | None:
    if not reports:
        return None
    return median(float(r["server_user_us"]) / float(r["requests"]) for r in reports)


def ratio_to(results: Sequence[Results], one: Results, other: str, pipelined: bool) -> str:
    base = next((r for r in results if r.server.key == other), None)
    if base is None or base is one:
        return "-"
    return interval(paired.ratio(one.cpu_us(pipelined), base.cpu_us(pipelined)))


def keep_alive_table(results: Sequence[Results], missing: list[str]) -> Table:
    table = Table(
        f"HTTP: {CONNECTIONS} connections, keep-alive, one worker",
        [
            *("server", "CPU µs/request", "least..most", "user part", "calls/request"),
            *("requests/s", "p50 µs", "p99 µs", *RATIO_HEADS),
        ],
        before=[
            "A constant answer (`--respond`) to our client `bench-http-client`; server and client "
            "each on a processor of its own. CPU time is the server's, of user and kernel, read "
            "when the measured time begins and ends. Medians of the rounds, each with fresh "
            "processes; ratios are paired, with 95 % confidence intervals. System calls are of "
            "a run of their own, counted by the kernel; where that is not allowed by strace, which "
            "slows the server, so that more requests wait at once."
        ],
        after=list(missing),
    )
    for result in results:
        if result.failure:
            table.after.append(f"{result.server.title}: {result.failure}")
        if not result.keep_alive:
            continue
        reports, cpu = result.keep_alive, result.cpu_us()
        row = [result.server.title]
        row += [number(median(cpu) if cpu else None), numbers(paired.spread(cpu) if cpu else None)]
        row += [number(user_part(reports)), number(result.calls)]
        figures = ("requests_per_s", "latency_p50_us", "latency_p99_us")
        row += [number(middle(reports, figure)) for figure in figures]
        row += [ratio_to(results, result, other, False) for other in RATIOS]
        table.rows.append(row)
    return table


def pipelined_table(results: Sequence[Results]) -> Table:
    table = Table(
        f"HTTP: {CONNECTIONS} connections, {DEPTH} requests at a time",
        ["server", "requests/s", "least..most", "CPU µs/request", *RATIO_HEADS],
        before=["As above, but the client sends so many requests in one write, and waits for all."],
    )
    for result in results:
        if not result.pipelined:
            continue
        cpu = result.cpu_us(pipelined=True)
        rates = [float(report["requests_per_s"]) for report in result.pipelined]
        row = [result.server.title]
        row += [number(median(rates) if rates else None)]
        row += [numbers(paired.spread(rates) if rates else None)]
        row += [number(median(cpu) if cpu else None)]
        row += [ratio_to(results, result, other, True) for other in RATIOS]
        table.rows.append(row)
    return table


def tables(
    build: Path, found: Sequence[Server], missing: list[str], scale: Scale
) -> Iterator[Table]:
    results = measure(build, found, scale)
    yield keep_alive_table(results, missing)
    yield pipelined_table(results)
