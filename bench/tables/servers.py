# SPDX-License-Identifier: MIT
"""The compared HTTP servers: how each is started, found and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rouse.lab import web_servers

START_LIMIT = 10.0
STOP_LIMIT = 20.0
RING_LIMIT = 1.0
ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)/")


# The command and its port, for a server in that folder. Port 0: the server prints the port.
Command = Callable[[Path], tuple[list[str], int]]


class ServerError(Exception):
    """A server did not start. The text gives the reason."""


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[str]
    pid: int  # the process that serves
    port: int


@dataclass(frozen=True)
class Server:
    key: str
    title: str
    version: str
    command: Command
    environment: Mapping[str, str] = field(default_factory=dict)
    forks: bool = False  # a child of the started process serves
    ring: bool | None = None  # whether it must use io_uring; None: either


# All connections come from one address.
ALONE = ("--per-address", "0")


def rouse(build: Path, *options: str) -> Command:
    program = str(build / "serve" / "rouse-serve")
    return lambda _folder: (
        [program, "--port", "0", "--respond", web_servers.TEXT, *ALONE, *options],
        0,
    )


def raw(build: Path, name: str, *loops: str) -> Command:
    program = str(build / "bench" / name)
    return lambda _folder: ([program, "0", web_servers.TEXT, *loops], 0)


def nginx(folder: Path) -> tuple[list[str], int]:
    port = web_servers.free_port()
    return web_servers.nginx(folder, port, 1), port


def version_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip().rpartition("/")[2] or "?"


def nginx_version() -> str | None:
    program = web_servers.nginx_program()
    return version_of(program, "-v") if program else None


def all_servers(build: Path, version: str) -> tuple[list[Server], list[str]]:
    def ours(key: str, how: str, io: str, obs: str = "counted") -> Server:
        settings = {"ROUSE_IO": io, "ROUSE_OBS": obs}
        title = f"rouse-serve, user threads, {how}"
        command = rouse(build, "--workers", "1")
        return Server(key, title, version, command, settings, ring=io == "uring")

    kernel = rouse(build, "--threads", "kernel")
    title = "rouse-serve, kernel threads"
    found = [
        ours("user", "epoll", "epoll"),
        ours("user-uring", "io_uring", "uring"),
        Server("epoll", "raw epoll loop", version, raw(build, "bench-raw-epoll")),
        Server("uring", "raw io_uring loop", version, raw(build, "bench-raw-uring"), ring=True),
        ours("unrecorded", "io_uring, recording off", "uring", "off"),
        Server("kernel", title, version, kernel, {"ROUSE_OBS": "counted"}),
    ]
    nginx_is = nginx_version()
    if nginx_is is None:
        return found, ["nginx is missing: it is not installed"]
    found.append(Server("nginx", "nginx", nginx_is, nginx, forks=True))
    return found, []


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    except OSError:
        return []
    return [int(word) for word in text.split()]


def until(condition: Callable[[], bool], what: str, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + START_LIMIT
    while not condition():
        if process.poll() is not None:
            raise ServerError(f"it ended with status {process.returncode}")
        if time.monotonic() > end:
            raise ServerError(f"{what} within {START_LIMIT:.0f} s")
        time.sleep(0.01)


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def has_ring(pid: int) -> bool:
    """Whether the process maps an io_uring. The descriptor may be registered and closed."""
    return "[io_uring]" in Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")


def check_ring(server: Server, running: Running) -> None:
    """Check for the ring. It exists soon after the first connection, which was answered."""
    if server.ring is None:
        return
    end = time.monotonic() + RING_LIMIT
    while server.ring and not has_ring(running.pid) and time.monotonic() < end:
        time.sleep(0.01)
    if server.ring != has_ring(running.pid):
        raise ServerError("it uses epoll" if server.ring else "it uses io_uring")


def last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return f": {lines[-1]}" if lines else ""


def announced_port(stream: IO[str]) -> int:
    for line in stream:
        if found := ADDRESS.search(line):
            return int(found[1])
    raise ServerError("it did not say where it serves")


def serving_pid(process: subprocess.Popen[str], levels: int) -> int:
    """The process that serves: `levels` generations below the one that was started."""
    pid = process.pid
    for _ in range(levels):
        until(lambda: bool(children(pid)), "no child", process)  # noqa: B023
        pid = children(pid)[0]
    return pid


def stop(process: subprocess.Popen[str], below: int) -> None:
    """End the server, which is `below` generations under the process that was started."""
    target = process.pid
    for _ in range(below):
        target = next(iter(children(target)), target)
    with contextlib.suppress(ProcessLookupError):
        os.kill(target, signal.SIGTERM)
    try:
        process.wait(STOP_LIMIT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def started(
    server: Server, cpu: int | None = None, wrapper: Sequence[str] = ()
) -> Iterator[Running]:
    """Run the server in its own folder, on one processor, under a wrapper such as strace."""
    with tempfile.TemporaryDirectory() as folder:
        command, port = server.command(Path(folder))
        taskset = [] if cpu is None else ["taskset", "-c", str(cpu)]
        if not Path(command[0]).exists():
            raise ServerError(f"there is no {command[0]}")
        log = Path(folder) / "stderr"
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*wrapper, *taskset, *command],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **server.environment},
            )
        below = 1 if wrapper else 0
        try:
            if port == 0 and process.stdout is not None:
                port = announced_port(process.stdout)
            until(lambda: answers(port), "no answer", process)
            running = Running(process, serving_pid(process, below + int(server.forks)), port)
            check_ring(server, running)
        except ServerError as reason:
            raise ServerError(f"{reason}{last_line(log)}") from None
        else:
            yield running
        finally:
            stop(process, below)
            if process.stdout is not None:
                process.stdout.close()
