# SPDX-License-Identifier: MIT
"""HTTP on two workers: the CPU time per request of all processors, with two clients."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tables import rounds, servers
from tables.http import CPU, CPU_COLUMN, RATE, Load, Results, Scale, ratios, spread, table
from tables.render import Column, Table
from tables.servers import Running, Server, ServerError

WORKERS = 2
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
RATIOS = {"loops": "two raw loops"}
ABOUT = (
    "`rouse-serve` with two workers next to two raw io_uring loops, which are processes of their "
    "own that listen at one port. Two clients have half of the connections each, and servers and "
    "clients share both processors. CPU time is that of all the server's processes, over the whole "
    "run of the clients. How a server meets its clients on the processors differs from run to run."
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
        Server("loops", "two raw io_uring loops", version, loops, ring=True),
    ]


def cpu_us(pids: Sequence[int]) -> float:
    ticks = 0
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks * TICK_US


def ask(build: Path, running: Running, load: Load) -> dict[str, Any]:
    """Put the load on the server with two clients, and return what they had together."""
    pids = [running.pid, *servers.children(running.pid)]
    command = [
        str(build / "bench" / "bench-http-client"),
        *("--port", str(running.port), "--seconds", str(load.seconds)),
        *("--connections", str(load.connections // WORKERS)),
    ]
    begin = cpu_us(pids)
    clients = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WORKERS)]
    texts = [client.communicate(timeout=120)[0] for client in clients]
    used = cpu_us(pids) - begin
    if any(client.returncode != 0 for client in clients):
        raise ServerError("a client ended with an error")
    reports = [json.loads(text) for text in texts]
    requests = sum(report["requests"] + report["warm_up_requests"] for report in reports)
    if not requests or any(report["errors"] for report in reports):
        raise ServerError(f"errors in {requests} requests")
    rate = sum(report["requests_per_s"] for report in reports)
    return {"server_cpu_us": used, "requests": requests, "requests_per_s": rate}


def tables(build: Path, version: str, scale: Scale) -> Iterator[Table]:
    load = Load(scale.seconds)
    results = [Results(server) for server in all_servers(build, version)]
    for turn in range(scale.rounds):
        rounds.say(f"http, two workers: round {turn + 1} of {scale.rounds}")
        for result in results if turn % 2 == 0 else reversed(results):
            if result.failure:
                continue
            try:
                with servers.started(result.server) as running:
                    result.reports.setdefault(load, []).append(ask(build, running, load))
            except ServerError as reason:
                result.failure = str(reason)
    shown: list[Column] = [CPU_COLUMN, spread(*CPU), RATE, *ratios(results, load, RATIOS)]
    title = f"HTTP: {load.connections} connections, two workers"
    yield table(results, load, title, shown, ABOUT, ())
