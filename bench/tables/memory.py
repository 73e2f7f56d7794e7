# SPDX-License-Identifier: MIT
"""Memory of idle threads and connections, which should not depend on their number."""

from __future__ import annotations

import contextlib
import resource
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tables import rounds, servers
from tables.loads import CROWD_BYTES
from tables.machine import available_bytes
from tables.render import Column, Table, grid, number
from tables.servers import Server, ServerError

HOLD = Path(__file__).resolve().parent.parent / "http" / "hold.py"
RESERVE = 300  # descriptors left for other uses
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
    several: int  # connections, spread over as many servers as the descriptor limit requires


FULL = Scale((1_000, 10_000, 100_000, 1_000_000), 4_000, 10_000, 30_000)
QUICK = Scale((500, 1_000), 200, 300, 600)


def figures(*titles: str) -> list[Column]:
    """Columns of rows that are lists of figures."""

    def column(index: int, title: str) -> Column:
        return Column(title, lambda _, row: number(float(row[index])))

    return [column(index, title) for index, title in enumerate(titles)]


def bench(build: Path, *arguments: str) -> dict[str, Any]:
    series = rounds.Series(rounds.bench(build, *arguments), 1)
    series.take()
    if series.failure:
        raise ServerError(series.failure)
    return series.reports[0]


def crowds(build: Path, scale: Scale) -> Table:
    rows, remarks = {}, []
    for count in scale.crowds:
        rounds.say(f"memory: {count:,} threads")
        try:
            if count * CROWD_BYTES > available_bytes() * 3 // 4:
                raise ServerError("not run: not enough memory")
            report = bench(build, "memory", "-T", str(count))
            rows[f"{count:,}"] = [report["rss_bytes_per_thread"]]
        except ServerError as reason:
            remarks.append(f"{count:,} threads: {reason}")
    return grid(
        "Memory: parked threads",
        "threads at once",
        figures("resident bytes each"),
        rows,
        "Each has a guard page, a page of stack and a control block of 192 bytes.",
        remarks,
    )


def sorts(build: Path, scale: Scale) -> Table:
    rounds.say("memory: sorts")
    rows, remarks = {}, []
    case = ("idle_memory", "-T", str(scale.sorts))
    try:
        user, kernel = bench(build, *case), bench(build, *case, "--threads", "kernel")
        for key, label in SORTS.items():
            name = f"{key}_bytes"
            rows[label] = [user[name], user[f"{name}_trimmed"], kernel[name]]
    except ServerError as reason:
        remarks.append(str(reason))
    return grid(
        f"Memory: {scale.sorts:,} idle threads of each sort, resident bytes each",
        "a thread that",
        figures("user", "trimmed", "kernel"),
        rows,
        "Trimmed: after `rouse_stacks_trim(0)`. The kernel's own stack of a kernel thread, "
        "16 KiB, is not in the figures.",
        remarks,
    )


def resident_bytes(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


@contextlib.contextmanager
def held(port: int, count: int, first_source: int) -> Iterator[int]:
    """Hold idle connections in several client processes, each from its own address."""
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


def rouse_with_patience(build: Path) -> servers.Command:
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
    rows, remarks = {}, []
    for server in found:
        if server.key not in COMPARED:
            continue
        rounds.say(f"memory: connections to {server.title}")
        patient = server
        if server.key.startswith("user"):
            patient = replace(server, command=rouse_with_patience(build))
        try:
            several = (processes, scale.several)
            rows[server.title] = [bytes_each(patient, *some) for some in ((1, one), several)]
        except ServerError as reason:
            remarks.append(f"{server.title}: {reason}")
    return grid(
        "Memory: idle keep-alive connections, resident bytes each",
        "server",
        figures(f"{one:,} on one process", f"{scale.several:,} on {processes} processes"),
        rows,
        f"Each connection has sent one request. A process may have {limit:,} descriptors here "
        "(`ulimit -Hn`): this limits each process, so there are several; the clients "
        f"are processes of up to {CLIENT_MOST:,} connections, each with a loopback address of "
        "its own for its ports. Socket buffers belong to the kernel and are not in the figures.",
        remarks,
    )


def tables(build: Path, found: Sequence[Server], scale: Scale) -> Iterator[Table]:
    yield crowds(build, scale)
    yield sorts(build, scale)
    yield connections(build, found, scale)
