# SPDX-License-Identifier: MIT
"""System calls and context switches of an idle server, which should be none."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rouse.lab import tracepoint
from tables import http, rounds, servers
from tables.render import NOTHING, Column, Table, grid
from tables.servers import Running, Server, ServerError

SETTLE = 1.0  # seconds to wait after the last connection was closed
CALL = re.compile(r"^\d+\s+(\d+\.\d+) (?!\+\+\+|---)")
SHOWN = ("user", "user-uring", "kernel", "epoll", "nginx")


def switches(pid: int) -> int:
    """The context switches of all threads of the process so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text(encoding="ascii", errors="replace")
        total += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", text))
    return total


@contextlib.contextmanager
def settled(build: Path, server: Server, wrapper: Sequence[str] = ()) -> Iterator[Running]:
    """A server after all its connections were closed."""
    with servers.started(server, None, wrapper) as running:
        http.ask(build, running, http.Load(0.1))
        time.sleep(SETTLE)
        yield running


def whole(count: int | None) -> str:
    return NOTHING if count is None else str(count)


def strace_calls(build: Path, server: Server, seconds: float) -> int | None:
    if not shutil.which("strace"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        with settled(build, server, ["strace", "-f", "-ttt", "-o", str(out)]):
            began = time.time()
            time.sleep(seconds)
            ended = time.time()
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
        stamps = [float(found[1]) for line in lines if (found := CALL.match(line))]
        return sum(began <= stamp <= ended for stamp in stamps)


def count(build: Path, server: Server, seconds: float) -> tuple[int | None, int]:
    """System calls and context switches."""
    with settled(build, server) as running, tracepoint.counting(running.pid) as counter:
        before = switches(running.pid)
        time.sleep(seconds)
        calls = counter.total() if counter else None
        switched = switches(running.pid) - before
    return strace_calls(build, server, seconds) if calls is None else calls, switched


def tables(build: Path, found: Sequence[Server], seconds: float) -> Iterator[Table]:
    rows: dict[str, tuple[int | None, int | None]] = {}
    failures = []
    for server in found:
        if server.key not in SHOWN:
            continue
        rounds.say(f"idle: {server.title}")
        try:
            rows[server.title] = count(build, server, seconds)
        except ServerError as reason:
            failures.append(f"{server.title}: {reason}")
            rows[server.title] = (None, None)
    yield grid(
        f"An idle server, {seconds:g} s",
        "server",
        [
            Column("system calls", lambda _, counts: whole(counts[0])),
            Column("context switches", lambda _, counts: whole(counts[1])),
        ],
        rows,
        f"After {http.CONNECTIONS} connections came and went; all threads of the process.",
        failures,
    )
