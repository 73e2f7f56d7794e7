# SPDX-License-Identifier: MIT
"""The web servers of the sweep: how each is found, started, asked and stopped."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rouse.errors import RouseError
from rouse.lab import runs
from rouse.lab.processes import TICK_S, fields, tree
from rouse.text import printable

HOST = "127.0.0.1"
NGINX_NAME, NODE_NAME = "nginx", "Node.js"
NODE_SCRIPT = Path(__file__).with_name("node.mjs")
TEXT = "Hello, world!\n"
START_S, STOP_S, ANSWER_S = 10, 5, 5
HEAD_BYTES_MOST, BODY_BYTES_MOST = 1 << 16, 1 << 20
INSTANCES_MOST = 256
STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ \r]")
LENGTH = re.compile(rb"content-length:[ \t]*(\d{1,9})[ \t]*\r\n", re.IGNORECASE)

NGINX = """\
daemon off;
worker_processes {workers};
{user}
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 16384; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    keepalive_timeout 3600s;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {host}:{port} backlog=16384;
        location / {{
            default_type "text/plain; charset=utf-8";
            return 200 "{text}";
        }}
    }}
}}
"""


class ServerError(RouseError):
    """A server did not start, died, or answered wrongly."""


# The command of a server in that folder, on that port, with so many workers.
Command = Callable[[Path, int, int], list[str]]


@dataclass(frozen=True)
class Server:
    name: str
    command: Command
    has_workers: bool = True  # their number can be given
    body: bytes | None = TEXT.encode()  # of each answer; None: that of the first one
    is_in_quick: bool = True  # measured with --quick, if it is not asked for
    can_close: bool = True  # a connection after its answer


@dataclass(frozen=True)
class Running:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    reply_bytes: int  # of an answer, with its head
    body: bytes | None = None
    keep_alive: bool = True

    def cpu_s(self) -> tuple[float, float]:
        """Return the user and system time of all its processes, and of those that have ended."""
        sums = [0, 0]
        for pid in tree(self.process.pid):
            with contextlib.suppress(OSError):
                words = fields(Path(f"/proc/{pid}"))
                for i in range(2):
                    sums[i] += int(words[13 + i]) + int(words[15 + i])
        return sums[0] * TICK_S, sums[1] * TICK_S

    def check(self) -> None:
        if self.process.poll() is not None:
            raise ServerError(f"it died, {ended(self.process, self.log)}")

    def ask_again(self) -> None:
        """Check that it still answers after a load, as before."""
        try:
            reply_bytes(self.port, self.body, self.keep_alive)
        except ServerError as error:
            raise ServerError(f"after the load {error}") from error


def ours(_folder: Path, port: int, workers: int) -> list[str]:
    words = [str(runs.program("rouse-serve")), "--port", str(port), "--respond", TEXT]
    # All connections come from one address.
    return [*words, "--per-address", "0", "--workers", str(workers)]


def by_kernel_threads(folder: Path, port: int, workers: int) -> list[str]:
    return [*ours(folder, port, workers), "--threads", "kernel"]


def to_shortest_queue(folder: Path, port: int, workers: int) -> list[str]:
    """A thread runs where the fewest wait when it is created, and no worker steals it."""
    return ["env", "ROUSE_PLACE=shortest", *ours(folder, port, workers)]


def raw(name: str) -> Command:
    """Return the command of a bare event loop, which a built tree has."""

    def command(_folder: Path, port: int, _workers: int) -> list[str]:
        return [str(runs.program(name)), str(port), TEXT]

    return command


def node(_folder: Path, port: int, workers: int) -> list[str]:
    return [shutil.which("node") or "node", str(NODE_SCRIPT), str(port), str(workers)]


def instances(count: int) -> Server:
    """Return rouse-serve as so many processes that share the port."""

    def command(folder: Path, port: int, workers: int) -> list[str]:
        return [*ours(folder, port, workers), "--instances", str(count)]

    return Server(f"rouse-serve x {count}", command)


def nginx_program() -> str | None:
    return shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")


def nginx(folder: Path, port: int, workers: int) -> list[str]:
    program = nginx_program()
    if program is None:
        raise ServerError("it is not installed")
    user = "user root;" if os.geteuid() == 0 else ""
    text = TEXT.replace("\n", "\\n")
    settings = NGINX.format(
        folder=folder, host=HOST, port=port, workers=workers, user=user, text=text
    )
    file = folder / "nginx.conf"
    file.write_text(settings, encoding="utf-8")
    return [program, "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(file)]


def given(name: str, words: str) -> Server:
    """Return the server that a command starts: {port} and {workers} stand for numbers."""
    parts = shlex.split(words)

    def command(_folder: Path, port: int, workers: int) -> list[str]:
        numbers = {"{port}": str(port), "{workers}": str(workers)}
        return [replaced(part, numbers) for part in parts]

    return Server(name, command, "{workers}" in words, None)


def in_words(server: Server) -> list[str]:
    """Return the command of a server, without the folders of programs, and its settings, if any."""
    port, workers = 65123, 65122  # no other number of a command is one of these
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        words = server.command(folder, port, workers)
        words = [each if place in each else re.sub("^/.*/(?=.)", "", each) for each in words]
        lines = [shlex.join(words).replace("\n", "\\n")]
        lines += [" ".join(file.read_text("utf-8").split()) for file in sorted(folder.iterdir())]
    marks = {place: "FOLDER", str(port): "PORT", str(workers): "WORKERS"}
    return [replaced(line, marks) for line in lines]


def replaced(text: str, numbers: dict[str, str]) -> str:
    for mark, number in numbers.items():
        text = text.replace(mark, number)
    return text


RAW = {"raw epoll loop": "bench-raw-epoll", "raw io_uring loop": "bench-raw-uring"}


def known() -> list[Server]:
    return [
        Server("rouse-serve", ours),
        Server("rouse-serve on kernel threads", by_kernel_threads),
        Server("rouse-serve to the shortest queue", to_shortest_queue, is_in_quick=False),
        Server(NGINX_NAME, nginx),
        *(
            Server(name, raw(program), has_workers=False, can_close=False)
            for name, program in RAW.items()
        ),
        Server(NODE_NAME, node),
    ]


def absent() -> dict[str, str]:
    """The known servers that are not here, and how to get them."""
    found = {}
    if nginx_program() is None:
        found[NGINX_NAME] = "it is not installed: --install, or apt-get install nginx-light"
    for name, program in RAW.items():
        if runs.find(program) is None:
            found[name] = "it is not installed: a checkout of rouse builds it, by make"
    if shutil.which("node") is None:
        found[NODE_NAME] = "it is not installed: --install, or apt-get install nodejs"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def ended(process: subprocess.Popen[bytes], log: Path) -> str:
    said = log.read_text("utf-8", "replace").strip().splitlines() if log.exists() else []
    last = f": {printable(said[-1])}" if said else ""
    return f"with status {process.returncode}{last}"


def wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                return
        if process.poll() is not None:
            raise ServerError(f"it does not start: it ended {ended(process, log)}")
        if time.monotonic() > until:
            raise ServerError(f"it does not listen on port {port} within {START_S} s")
        time.sleep(0.01)


def reply_bytes(port: int, body: bytes | None, keep_alive: bool) -> int:
    """Ask once, check the answer, and return its length with its head."""
    try:
        with (
            socket.create_connection((HOST, port), ANSWER_S) as asked,
            asked.makefile("rb") as stream,
        ):
            close = "" if keep_alive else "Connection: close\r\n"
            asked.sendall(f"GET / HTTP/1.1\r\nHost: {HOST}\r\n{close}\r\n".encode())
            head = [stream.readline(HEAD_BYTES_MOST)]
            while head[-1] not in (b"\r\n", b"") and sum(map(len, head)) < HEAD_BYTES_MOST:
                head.append(stream.readline(HEAD_BYTES_MOST))
            status = STATUS.match(head[0])
            length = next((int(found[1]) for line in head if (found := LENGTH.match(line))), None)
            if not status or length is None or length > BODY_BYTES_MOST:
                raise ServerError("its answer is not HTTP/1.1 with a Content-Length")
            answer = stream.read(length)
            if not keep_alive and stream.read(1):
                raise ServerError("more follows its answer")
    except TimeoutError as error:
        why = "answer" if keep_alive else "answer and close the connection"
        raise ServerError(f"it does not {why} within {ANSWER_S} s") from error
    except OSError as error:
        raise ServerError(f"it does not answer: {error.strerror or error}") from error
    if status[1] != b"200":
        raise ServerError(f"it answers with status {status[1].decode()}")
    if len(answer) != length or body not in (None, answer):
        raise ServerError(f"it answers with {len(answer)} bytes that were not asked for")
    return sum(map(len, head)) + len(answer)


@contextlib.contextmanager
def started(server: Server, workers: int, keep_alive: bool) -> Iterator[Running]:
    with tempfile.TemporaryDirectory(prefix="rouse-lab-") as place:
        folder = Path(place)
        port = free_port()
        log = folder / "output"
        with log.open("wb") as output:
            try:
                process = subprocess.Popen(
                    server.command(folder, port, workers),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            except OSError as error:
                raise ServerError(f"it does not start: {error.strerror}") from error
        try:
            wait(process, port, log)
            size = reply_bytes(port, server.body, keep_alive)
            yield Running(process, port, log, size, server.body, keep_alive)
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process of its own group, and all that it has left there."""
    signals: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGKILL)
    for number in signals:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
