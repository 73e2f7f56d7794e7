# SPDX-License-Identifier: MIT
"""Memory of idle threads and connections, which should not depend on their number."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tables import rounds, servers
from tables.machine import field_of
from tables.render import Table, number
from tables.servers import Server, ServerError

HOLD = Path(__file__).resolve().parent.parent / "http" / "hold.py"
CROWD_BYTES = 5_000  # more than a parked thread costs
RESERVE = 300  # descriptors for other uses
CLIENT_MOST = 10_000  # connections per client process
COMPARED = ("user", "user-uring", "epoll", "uring", "nginx")
SORTS = {
    "semaphore": "waits for a semaphore",
    "sleep": "sleeps",
    "socket": "reads from a socket",
    "deep": "waits, was 32 KiB deep before",
    "ended": "has ended; its stack is kept",
}


@dataclass(frozen=True)
class Scale:
    crowds: tuple[int, ...]
    sorts: int
    connections: int
    several: int  # connections over as many server processes as the descriptor limit requires


FULL = Scale((1_000, 10_000, 100_000, 1_000_000), 4_000, 10_000, 30_000)
QUICK = Scale((500, 1_000), 200, 300, 600)


def bench(build: Path, *arguments: str) -> dict[str, Any]:
    series = rounds.Series([str(build / "bench" / "rouse-bench"), *arguments, "--json"], 1)
    series.take()
    if series.failure:
        raise ServerError(series.failure)
    return series.reports[0]


def crowds(build: Path, scale: Scale) -> Table:
    table = Table(
        "Memory: parked threads",
        ["threads at once", "resident bytes each"],
        before=["Each has a guard page, a page of stack and a control block of 192 bytes."],
    )
    available = int(field_of("/proc/meminfo", "MemAvailable").split()[0]) * 1024
    for count in scale.crowds:
        rounds.say(f"memory: {count:,} threads")
        if count * CROWD_BYTES > available * 3 // 4:
            table.after.append(f"{count:,} threads: not run: not enough memory")
            continue
        try:
            report = bench(build, "memory", "-T", str(count))
        except ServerError as reason:
            table.after.append(f"{count:,} threads: {reason}")
            continue
        table.rows.append([f"{count:,}", number(float(report["rss_bytes_per_thread"]))])
    return table


def sorts(build: Path, scale: Scale) -> Table:
    table = Table(
        f"Memory: {scale.sorts:,} idle threads of each sort, resident bytes each",
        ["a thread that", "user", "trimmed", "kernel"],
        before=[
            "Trimmed: after `rouse_stacks_trim(0)`. The kernel's own stack of a kernel thread, "
            "16 KiB, is not in the figures."
        ],
    )
    rounds.say("memory: sorts")
    try:
        user = bench(build, "idle_memory", "-T", str(scale.sorts))
        kernel = bench(build, "idle_memory", "-T", str(scale.sorts), "--threads", "kernel")
    except ServerError as reason:
        table.after.append(str(reason))
        return table
    for key, label in SORTS.items():
        figures = [user[f"{key}_bytes"], user[f"{key}_bytes_trimmed"], kernel[f"{key}_bytes"]]
        table.rows.append([label, *(number(float(figure)) for figure in figures)])
    return table


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@contextlib.contextmanager
def held(port: int, count: int, first_source: int) -> Iterator[int]:
    """Idle connections of several client processes, each from its own address."""
    with contextlib.ExitStack() as stack:
        clients = []
        for index, begin in enumerate(range(0, count, CLIENT_MOST)):
            some = min(CLIENT_MOST, count - begin)
            command = [sys.executable, str(HOLD), str(port), str(some)]
            command.append(f"127.0.0.{first_source + index}")
            client = stack.enter_context(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            )
            clients.append(client)
        total = 0
        for client in clients:
            assert client.stdout is not None
            made, _, reason = client.stdout.readline().strip().partition(" ")
            if reason:
                raise ServerError(f"{made} connections, then: {reason}")
            total += int(made)
        yield total


def rouse_with_patience(build: Path) -> Callable[[Path], tuple[list[str], int]]:
    patience = ("--idle-timeout", "3600", "--max-connections", "100000")
    return servers.rouse(build, "--workers", "1", *patience)


def bytes_each(server: Server, processes: int, total: int) -> float:
    """Resident bytes per connection, for total connections over several server processes."""
    share = total // processes
    with contextlib.ExitStack() as stack:
        used = made = 0
        for index in range(processes):
            running = stack.enter_context(servers.started(server))
            before = resident_bytes(running.pid)
            made += stack.enter_context(held(running.port, share, 2 + 10 * index))
            used += resident_bytes(running.pid) - before
        return used / made


def connections(build: Path, found: Sequence[Server], scale: Scale) -> Table:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    one = min(scale.connections, limit - RESERVE)
    processes = -(-scale.several // (limit - RESERVE)) if scale.several > limit - RESERVE else 2
    table = Table(
        "Memory: idle keep-alive connections, resident bytes each",
        ["server", f"{one:,} on one process", f"{scale.several:,} on {processes} processes"],
        before=[
            f"Each connection has sent one request. A process may have {limit:,} descriptors here "
            "(`ulimit -Hn`): this limits each process, so there are several; the clients "
            f"are processes of up to {CLIENT_MOST:,} connections, each with a loopback address of "
            "its own for its ports. Socket buffers belong to the kernel and are not in the figures."
        ],
    )
    for server in found:
        if server.key not in COMPARED:
            continue
        rounds.say(f"memory: connections to {server.title}")
        patient = server
        if server.key.startswith("user"):
            patient = replace(server, command=rouse_with_patience(build))
        try:
            figures = [bytes_each(patient, 1, one), bytes_each(patient, processes, scale.several)]
            table.rows.append([server.title, *(number(figure) for figure in figures)])
        except ServerError as reason:
            table.after.append(f"{server.title}: {reason}")
    return table


def tables(build: Path, found: Sequence[Server], scale: Scale) -> Iterator[Table]:
    yield crowds(build, scale)
    yield sorts(build, scale)
    yield connections(build, found, scale)
