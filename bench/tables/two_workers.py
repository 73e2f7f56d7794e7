# SPDX-License-Identifier: MIT
"""HTTP on two workers: the CPU time per request of all processors, with two clients."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tables import rounds, servers
from tables.http import (
    CPU,
    CPU_COLUMN,
    LONGER,
    LONGEST_S,
    RATE,
    Load,
    Results,
    Scale,
    ratios,
    spread,
    table,
)
from tables.render import Table
from tables.servers import Running, Server, ServerError

WORKERS = 2
LOOPS = "loops"
RATIOS = {LOOPS: "two raw loops"}
ABOUT = (
    "`rouse-serve` with two workers next to two raw io_uring loops, which are processes of their "
    "own that listen at one port. Two clients have half of the connections each, and servers and "
    "clients share both processors. CPU time is that of all the server's processes, over the whole "
    "run of the clients, with their connecting and closing. How a server meets its clients on the "
    "processors differs from run to run."
)


def all_servers(build: Path, version: str) -> list[Server]:
    def ours(obs: str, how: str) -> Server:
        settings = {"ROUSE_IO": "uring", "ROUSE_OBS": obs}
        command = servers.rouse(build, "--workers", str(WORKERS))
        title = f"rouse-serve, two workers{how}"
        return Server(f"two-{obs}", title, version, command, settings, ring=True)

    loops = servers.raw(build, "bench-raw-uring", str(WORKERS))
    return [
        ours("counted", ""),
        ours("off", ", recording off"),
        Server(LOOPS, "two raw io_uring loops", version, loops, ring=True),
    ]


def cpu_us(pids: Sequence[int]) -> float:
    """The CPU time of all threads of the processes, by the clock that clock_getcpuclockid gives."""
    try:
        return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids) / 1000
    except OSError:
        raise ServerError("a process of the server has ended") from None


def run_clients(command: Sequence[str]) -> list[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        clients = []
        for _ in range(WORKERS):
            pipe = subprocess.PIPE
            client = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
            stack.callback(client.wait)
            stack.callback(client.kill)
            clients.append(client)
        try:
            said = [client.communicate(timeout=120) for client in clients]
        except subprocess.TimeoutExpired:
            raise ServerError("a client did not end within 120 s") from None
    for client, (_, errors) in zip(clients, said, strict=True):
        if client.returncode != 0:
            raise ServerError(errors.strip() or f"a client ended with {client.returncode}")
    return [json.loads(text) for text, _ in said]


def ask_once(build: Path, running: Running, load: Load, processes: int) -> dict[str, Any]:
    pids = [running.pid, *servers.children(running.pid)]
    if len(pids) != processes:
        raise ServerError(f"{len(pids)} processes serve, not {processes}")
    command = [
        str(build / "bench" / "bench-http-client"),
        *("--port", str(running.port), "--seconds", str(load.seconds)),
        *("--connections", str(load.connections // WORKERS)),
    ]
    begin = cpu_us(pids)
    reports = run_clients(command)
    return {
        "server_cpu_us": cpu_us(pids) - begin,
        "requests": sum(report["requests"] + report["warm_up_requests"] for report in reports),
        "errors": sum(report["errors"] for report in reports),
        "requests_per_s": sum(report["requests_per_s"] for report in reports),
    }


def ask(build: Path, running: Running, load: Load, processes: int) -> dict[str, Any]:
    """Put the load on the server with two clients, and return what they had together.

    As in http.ask, the load lasts longer if there was no request in it.
    """
    report = ask_once(build, running, load, processes)
    while not report["requests"] and load.seconds < LONGEST_S:
        load = replace(load, seconds=min(load.seconds * LONGER, LONGEST_S))
        report = ask_once(build, running, load, processes)
    if report["errors"] or not report["requests"]:
        raise ServerError(f"{report['errors']} errors in {report['requests']} requests")
    return report


def tables(build: Path, version: str, scale: Scale) -> Iterator[Table]:
    load = Load(scale.seconds)
    results = [Results(server) for server in all_servers(build, version)]
    for turn in range(scale.rounds):
        rounds.say(f"http, two workers: round {turn + 1} of {scale.rounds}")
        for result in results if turn % 2 == 0 else reversed(results):
            if result.failure:
                continue
            processes = WORKERS if result.server.key == LOOPS else 1
            try:
                with servers.started(result.server) as running:
                    report = ask(build, running, load, processes)
            except ServerError as reason:
                result.failure = str(reason)
            else:
                result.reports.setdefault(load, []).append(report)
    shown = [CPU_COLUMN, spread(*CPU), RATE, *ratios(results, load, RATIOS)]
    title = f"HTTP: {load.connections} connections, two workers"
    yield table(results, load, title, shown, ABOUT, ())
