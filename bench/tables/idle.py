# SPDX-License-Identifier: MIT
"""What an idle server does: it should be nothing."""

from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tables import http, rounds, servers
from tables.render import Table
from tables.servers import Server, ServerError

SETTLE = 1.0  # after the last connection was closed
CALL = re.compile(r"^\d+\s+(\d+\.\d+) (?!\+\+\+|---)")
SHOWN = ("user", "kernel", "epoll", "nginx")


def switches(pid: int) -> int:
    """Context switches of all its threads so far."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        text = status.read_text(encoding="ascii", errors="replace")
        total += sum(int(n) for n in re.findall(r"ctxt_switches:\s+(\d+)", text))
    return total


def count_switches(build: Path, server: Server, seconds: float) -> int:
    with servers.started(server) as running:
        http.ask(build, running, 0.1, 1)
        time.sleep(SETTLE)
        before = switches(running.pid)
        time.sleep(seconds)
        return switches(running.pid) - before


def count_calls(build: Path, server: Server, seconds: float) -> int | None:
    if not shutil.which("strace"):
        return None
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        with servers.started(server, None, ["strace", "-f", "-ttt", "-o", str(out)]) as running:
            http.ask(build, running, 0.1, 1)
            time.sleep(SETTLE)
            began = time.time()
            time.sleep(seconds)
            ended = time.time()
        lines = out.read_text(encoding="utf-8", errors="replace").splitlines()
        stamps = [float(found[1]) for line in lines if (found := CALL.match(line))]
        return sum(began <= stamp <= ended for stamp in stamps)


def table(build: Path, found: Sequence[Server], seconds: float) -> Table:
    result = Table(
        f"An idle server, {seconds:g} s",
        ["server", "system calls", "context switches"],
        before=[
            f"After {http.CONNECTIONS} connections came and went; all threads of the process. "
            "Calls and switches were counted in runs of their own."
        ],
    )
    for server in found:
        if server.key not in SHOWN:
            continue
        rounds.say(f"idle: {server.title}")
        try:
            calls = count_calls(build, server, seconds)
            row = [
                "-" if calls is None else str(calls),
                str(count_switches(build, server, seconds)),
            ]
        except ServerError as reason:
            result.after.append(f"{server.title}: {reason}")
            row = ["-", "-"]
        result.rows.append([server.title, *row])
    return result


def tables(build: Path, found: Sequence[Server], seconds: float) -> Iterator[Table]:
    yield table(build, found, seconds)
