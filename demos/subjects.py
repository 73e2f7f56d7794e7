# SPDX-License-Identifier: MIT
"""Programs that a demonstration starts, loads and stops: Debian's servers, and some of our own."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import source_tree  # noqa: F401

from rouse.lab.database_servers import ENVIRONMENT, SOURCE, START_S, LabError
from rouse.lab.processes import STOP_S, TICK_S, fields, tree

ENDING = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}  # signals that interrupt a demonstration
SETTLED = 100  # requests of the clients before the measurement begins
FINISH_S = 600  # limit for a compiler or a report
WORK_S = 60  # limit for an answer of our programs, in addition to their working time
DEMOS = SOURCE / "demos"
SBIN = Path("/usr/sbin")
Row = dict[str, Any]


class NotInstalledError(LabError):
    """A program that the demonstration needs is not installed."""


@dataclass(frozen=True)
class Done:
    """The work of a program during the measurement."""

    requests: int
    seconds: float
    cpu_s: float
    whole: int  # requests in its whole life, which a recording covers
    told: Row  # the program's own figures


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Block interruptions between starting a process and noting that it must be ended."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def end(process: subprocess.Popen[str]) -> None:
    """End the process and all remaining processes of its session."""
    if process.poll() is None:
        process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream:
            with contextlib.suppress(OSError):
                stream.close()


@contextlib.contextmanager
def session(
    words: Sequence[str], folder: Path, log: IO[str], **more: Any
) -> Iterator[subprocess.Popen[str]]:
    """Run a process in its own session: keys at the terminal reach us, and we end the process.

    The folder keeps files that it leaves behind.
    """
    with contextlib.ExitStack() as stack:
        with held_back():
            process = subprocess.Popen(
                words,
                stderr=log,
                text=True,
                cwd=folder,
                env={**ENVIRONMENT, "TMPDIR": str(folder)},
                start_new_session=True,
                preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING),
                **{"stdin": subprocess.DEVNULL, "stdout": log, **more},
            )
            stack.callback(end, process)
        yield process


def finished(words: Sequence[str], folder: Path) -> tuple[int, str, str]:
    """A command's status, standard output and standard error."""
    paths = [folder / name for name in ("said", "complaint")]
    with (
        paths[0].open("w", encoding="utf-8") as said,
        paths[1].open("w", encoding="utf-8") as complaint,
        session(words, folder, complaint, stdout=said) as process,
    ):
        status = process.wait(FINISH_S)
    texts = [path.read_text("utf-8", "replace") for path in paths]
    return status, texts[0], texts[1]


def result(words: Sequence[str], folder: Path) -> str:
    status, said, complaint = finished(words, folder)
    if status:
        lines = (complaint or said).strip().splitlines()
        raise LabError(f"{words[0]} failed: {lines[-1] if lines else status}")
    return said


def last_line(log: Path) -> str:
    lines = log.read_text("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "no reason"


@dataclass(frozen=True)
class Running:
    """A running program. If it is recorded, the process that we started is `rouse run`."""

    process: subprocess.Popen[str]
    is_recorded: bool

    def cpu_s(self) -> float:
        ticks = 0
        for pid in tree(self.process.pid)[self.is_recorded :]:
            with contextlib.suppress(OSError):
                ticks += sum(map(int, fields(Path(f"/proc/{pid}"))[13:15]))
        return ticks * TICK_S


class Subject:
    """One program. `folder` is empty, and no one else uses it."""

    name = ""
    request = "request"
    load = ""  # the program that loads it
    needs: tuple[tuple[str, str], ...] = ()  # commands, and the Debian packages that contain them
    version_words: tuple[str, ...] = ()
    speaks_kernel = False  # makes its system calls without libc, so only the kernel sees its waits

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.found = {name: self.needed(name, package) for name, package in self.needs}

    def needed(self, name: str, package: str) -> str:
        path = shutil.which(name) or shutil.which(name, path=str(SBIN))
        if path is None:
            raise NotInstalledError(
                f"{name} is not installed: apt-get install {package}, or tools/setup.sh demos,"
                " which installs what all demonstrations need"
            )
        return path

    def version(self) -> str:
        words = [self.found.get(word, word) for word in self.version_words]
        _, said, complaint = finished(words, self.folder)
        return (said or complaint).splitlines()[0].strip()

    def make(self) -> None:
        """Create the files that it needs in its folder."""

    def command(self, seconds: float) -> list[str]:
        raise NotImplementedError

    def started(self, seconds: float, *before: str) -> contextlib.AbstractContextManager[Running]:
        """Run it, by the command `before` if there is one. Both have ended when this returns."""
        raise NotImplementedError

    def loaded(self, running: Running, seconds: float) -> Done:
        raise NotImplementedError


class Server(Subject):
    """A server: it listens on an address, has clients, and counts their requests."""

    hello = b""
    counters: tuple[bytes, ...] = ()

    def address(self) -> tuple[str, int] | str:
        raise NotImplementedError

    def clients(self) -> list[str]:
        """A command that loads it for longer than the measurement."""
        raise NotImplementedError

    def asked(self) -> int:
        """The requests that it has counted so far."""
        address = self.address()
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        with socket.socket(family) as client:
            client.settimeout(START_S)
            client.connect(address)
            client.sendall(self.hello)
            told, counts = b"", self.counts(b"")
            while len(counts) < len(self.counters):
                more = client.recv(1 << 16)
                if not more:
                    raise LabError(f"{self.name} does not tell what it was asked: {told!r}")
                told += more
                counts = self.counts(told)
        return sum(counts)

    def counts(self, told: bytes) -> list[int]:
        found = (re.search(counter, told) for counter in self.counters)
        return [int(count[1]) for count in found if count]

    @contextlib.contextmanager
    def started(self, seconds: float, *before: str) -> Iterator[Running]:
        with (
            self.log.open("a", encoding="utf-8") as log,
            session([*before, *self.command(seconds)], self.folder, log) as process,
        ):
            self.wait(process)
            yield Running(process, bool(before))
            process.terminate()
            process.wait(STOP_S)

    def wait(self, process: subprocess.Popen[str]) -> None:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(OSError):
                self.asked()
                return
            if process.poll() is not None or time.monotonic() > until:
                raise LabError(f"{self.name} does not start: {last_line(self.log)}")
            time.sleep(0.05)

    def loaded(self, running: Running, seconds: float) -> Done:
        path = self.folder / "clients"
        with (
            path.open("w", encoding="utf-8") as log,
            session(self.clients(), self.folder, log) as clients,
        ):
            self.settle(clients, path)
            before, cpu, begin = self.asked(), running.cpu_s(), time.monotonic()
            time.sleep(seconds)
            self.settle(clients, path)  # if almost nothing was done yet, wait until something is
            after, cpu_then, now = self.asked(), running.cpu_s(), time.monotonic()
            self.still_there(clients, path)
        return Done(after - before, now - begin, cpu_then - cpu, self.asked(), {})

    def settle(self, clients: subprocess.Popen[str], log: Path) -> None:
        first, until = self.asked(), time.monotonic() + START_S
        while self.asked() < first + SETTLED:
            self.still_there(clients, log)
            if time.monotonic() > until:
                raise LabError(f"{self.load}: {self.name} has next to nothing to do")
            time.sleep(0.05)

    def still_there(self, clients: subprocess.Popen[str], log: Path) -> None:
        if clients.poll() is not None:
            raise LabError(f"{self.load}: has ended: {last_line(log)}")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Redis(Server):
    name = "redis"
    threads: tuple[str, ...] = ("--io-threads", "2", "--io-threads-do-reads", "yes")
    load = "redis-benchmark, 50 clients, GET and SET"
    needs = (("redis-server", "redis-server"), ("redis-benchmark", "redis-tools"))
    version_words = ("redis-server", "--version")
    hello = b"INFO stats\r\n"
    counters = (rb"total_commands_processed:(\d+)\s",)

    def address(self) -> str:
        return str(self.folder / "socket")

    def command(self, seconds: float) -> list[str]:
        return [
            *(self.found["redis-server"], "--port", "0", "--unixsocket", self.address()),
            *("--dir", str(self.folder), "--save", "", "--appendonly", "no"),
            *self.threads,
        ]

    def clients(self) -> list[str]:
        return [
            *(self.found["redis-benchmark"], "-s", self.address(), "-c", "50", "-q", "-l"),
            *("-t", "get,set", "-n", "1000000"),
        ]


class RedisSingle(Redis):
    """One thread does everything, which is the default of redis."""

    name = "redis-single"
    threads = ()


class Memcached(Server):
    name = "memcached"
    load = "memcslap, 8 threads (4,000 keys set, each got by all, and so on)"
    needs = (("memcached", "memcached"), ("memcslap", "libmemcached-tools"))
    version_words = ("memcached", "-V")
    hello = b"stats\r\n"
    counters = (rb"STAT cmd_get (\d+)\s", rb"STAT cmd_set (\d+)\s")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def command(self, seconds: float) -> list[str]:
        return [
            *(self.found["memcached"], "-u", pwd.getpwuid(os.getuid()).pw_name, "-U", "0"),
            *("-l", "127.0.0.1", "-p", str(self.port), "-t", "4", "-m", "64"),
        ]

    def clients(self) -> list[str]:
        one = (
            f"{self.found['memcslap']} --servers=127.0.0.1:{self.port} --test=get"
            " --concurrency=8 --execute-number=4000"
        )
        return ["sh", "-c", f"while {one}; do :; done"]


class Nginx(Server):
    name = "nginx"
    load = "wrk, 64 connections, each for 100 requests"
    workers = 2
    needs = (("nginx", "nginx-light"), ("wrk", "wrk"))
    version_words = ("nginx", "-v")
    hello = b"GET /status HTTP/1.0\r\n\r\n"
    counters = (rb"requests\s+\d+ \d+ (\d+)\s",)

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port = free_port()

    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def make(self) -> None:
        places = "\n".join(
            f"    {kind}_temp_path {self.folder / 'temp'};"
            for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        (self.folder / "nginx.conf").write_text(
            f"""daemon off;
worker_processes {self.workers};
pid {self.folder / "pid"};
error_log stderr;
events {{ worker_connections 512; }}
http {{
    access_log off;
    keepalive_requests 100;
{places}
    server {{
        listen 127.0.0.1:{self.port} backlog=511;
        location / {{ return 200 "hello\\n"; }}
        location /status {{ stub_status; }}
    }}
}}
""",
            encoding="utf-8",
        )

    def command(self, seconds: float) -> list[str]:
        folder = str(self.folder)
        conf = str(self.folder / "nginx.conf")
        return [self.found["nginx"], "-p", folder, "-c", conf, "-e", "stderr"]

    def clients(self) -> list[str]:
        url = f"http://127.0.0.1:{self.port}/"
        return [self.found["wrk"], "-t", "1", "-c", "64", "-d", "600", url]


class Own(Subject):
    """A small program of ours. It says that it is ready, works on request, and reports its work."""

    request = "number"
    load = "itself"

    @contextlib.contextmanager
    def started(self, seconds: float, *before: str) -> Iterator[Running]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "bufsize": 1}
        with (
            self.log.open("a", encoding="utf-8") as log,
            session([*before, *self.command(seconds)], self.folder, log, **pipes) as process,
        ):
            if self.line(process, START_S) != "ready\n":
                raise LabError(f"{self.name} does not start: {last_line(self.log)}")
            yield Running(process, bool(before))
            assert process.stdin
            process.stdin.close()
            process.wait(STOP_S)

    def line(self, process: subprocess.Popen[str], seconds: float) -> str:
        """Read a line. The program writes one at a time, so the stream's buffer is empty then."""
        assert process.stdout
        if not select.select([process.stdout], [], [], seconds)[0]:
            raise LabError(f"{self.name} says nothing for {seconds:.0f} s")
        return process.stdout.readline()

    def loaded(self, running: Running, seconds: float) -> Done:
        assert running.process.stdin
        cpu = running.cpu_s()
        running.process.stdin.write("go\n")
        line = self.line(running.process, seconds + WORK_S)
        if not line:
            raise LabError(f"{self.name} has ended: {last_line(self.log)}")
        told = json.loads(line)
        done = told["operations"]
        return Done(done, told["seconds"], running.cpu_s() - cpu, done, told)


class Python(Own):
    name = "python"
    version_words = (sys.executable, "--version")

    def command(self, seconds: float) -> list[str]:
        return [sys.executable, str(DEMOS / "threads.py"), str(seconds)]


class Java(Own):
    name = "java"
    needs = (
        ("javac", "openjdk-17-jdk-headless (or openjdk-21-jdk-headless)"),
        ("java", "openjdk-17-jdk-headless (or openjdk-21-jdk-headless)"),
    )
    no_file = "-XX:-UsePerfData"  # otherwise Java creates a file for jps in /tmp
    version_words = ("java", no_file, "-version")

    def make(self) -> None:
        source = str(DEMOS / "Contention.java")
        words = [self.found["javac"], f"-J{self.no_file}", "-d", str(self.folder), source]
        result(words, self.folder)

    def command(self, seconds: float) -> list[str]:
        words = [self.found["java"], self.no_file, "-cp", str(self.folder)]
        return [*words, "Contention", str(seconds)]


class Go(Own):
    name = "go"
    needs = (("go", "golang-go"),)
    version_words = ("go", "version")
    speaks_kernel = True

    def make(self) -> None:
        words = ["env", "CGO_ENABLED=0", self.found["go"], "build", "-o", self.program()]
        result([*words, str(DEMOS / "goroutines.go")], self.folder)

    def program(self) -> str:
        return str(self.folder / "goroutines")

    def command(self, seconds: float) -> list[str]:
        return [self.program(), str(seconds)]


SUBJECTS: dict[str, type[Subject]] = {
    subject.name: subject for subject in (Memcached, Redis, RedisSingle, Nginx, Java, Go, Python)
}
