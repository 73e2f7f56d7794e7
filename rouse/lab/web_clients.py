# SPDX-License-Identifier: MIT
"""The load of the sweep: wrk(1), or any command that prints a line of JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
import resource
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rouse.errors import RouseError
from rouse.lab import runs
from rouse.lab.web_servers import HOST, Running, replaced
from rouse.text import counted, printable

SCRIPT = Path(__file__).with_name("wrk.lua")
OWN = "bench-http-client"
OWN_OPTIONS = "--port {port} --connections {connections} --seconds {seconds}"
LIMIT_S = 30  # beyond the time for which it was asked
SATURATED = 0.97  # of a processor
DESCRIPTORS = 64  # that a client needs besides its connections
PORTS_FULL = 0.9
TIME_WAIT = "06"  # in /proc/net/tcp


class ClientError(RouseError):
    """A client did not measure."""


@dataclass(frozen=True)
class Load:
    connections: int
    keep_alive: bool
    seconds: int


@dataclass(frozen=True)
class Figures:
    requests: int
    seconds: float
    errors: int
    p50_us: float
    p99_us: float
    served: int  # with those before the measured time
    cpu_share: float  # of the client, of one processor
    wrong: str = ""  # how its answers differ from the first one


class Client(Protocol):
    name: str

    def can(self, load: Load) -> bool: ...

    def ask(self, running: Running, load: Load) -> Figures: ...


def output_of(words: list[str], seconds: int) -> tuple[str, float]:
    """Run a client in a group of its own. Returns its last line, and its processor time in s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        raise ClientError(f"{words[0]}: {error.strerror}") from error
    try:
        said, complaint = process.communicate(timeout=seconds + LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise ClientError(f"the client does not end within {seconds + LIMIT_S} s") from error
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream:
                stream.close()
    if process.returncode:
        last = (complaint.strip() or said.strip()).splitlines()[-1:]
        why = printable(last[0]) if last else f"status {process.returncode}"
        raise ClientError(f"the client failed: {why}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (said.strip().splitlines() or [""])[-1], spent


def report_of(line: str, *keys: str, may_lack: Sequence[str] = ()) -> dict[str, float]:
    """Return the figures of a line of JSON, which must be numbers. may_lack: 0 if not there."""
    try:
        found: Any = json.loads(line)
        report = {key: float(found[key]) for key in keys}
        report |= {key: float(found.get(key, 0)) for key in may_lack}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ClientError(f"the last line of the client is no JSON with {', '.join(keys)}") from (
            error
        )
    if not all(math.isfinite(value) and value >= 0 for value in report.values()):
        raise ClientError("a figure of the client is negative or no number")
    return report


ERRORS = ("connect", "read", "write", "status", "timeout")
USUAL = ("requests", "seconds", "latency_p50_us", "latency_p99_us")


class Wrk:
    name = "wrk"

    def __init__(self) -> None:
        self.program = shutil.which("wrk") or "wrk"

    def can(self, load: Load) -> bool:
        return True

    def ask(self, running: Running, load: Load) -> Figures:
        close = [] if load.keep_alive else ["-H", "Connection: close"]
        words = [self.program, "-t", "1", "-c", str(load.connections), "-d", f"{load.seconds}s"]
        url = f"http://{HOST}:{running.port}/"
        line, spent = output_of([*words, "-s", str(SCRIPT), *close, url], load.seconds)
        report = report_of(line, *USUAL, "bytes", *ERRORS)
        requests, seconds = int(report["requests"]), report["seconds"]
        return Figures(
            requests,
            seconds,
            int(sum(report[name] for name in ERRORS)),
            report["latency_p50_us"],
            report["latency_p99_us"],
            requests,
            spent / max(seconds, 1e-9),
            self.wrong(running, load, report),
        )

    @staticmethod
    def wrong(running: Running, load: Load, report: dict[str, float]) -> str:
        """Compare the bytes of all answers with the length of the first one."""
        if report["status"]:
            return f"{counted(int(report['status']), 'answer')} with another status"
        if report["requests"] == 0:
            return ""
        each = running.reply_bytes
        rest = report["bytes"] - report["requests"] * each
        # At the end an answer may be under way on each connection.
        if 0 <= rest <= load.connections * each:
            return ""
        mean = report["bytes"] / report["requests"]
        return f"the answers have {mean:.1f} bytes on average, the first had {each}"


class Given:
    """A command that prints a line of JSON with the usual figures, and its errors."""

    def __init__(self, words: str) -> None:
        self.parts = shlex.split(words)
        if not shutil.which(self.parts[0]):
            raise RouseError(f"{self.parts[0]}: is not installed")
        self.name = Path(self.parts[0]).name
        self.has_close = "{keep_alive}" in words

    def can(self, load: Load) -> bool:
        return load.keep_alive or self.has_close

    def ask(self, running: Running, load: Load) -> Figures:
        marks = {
            "{port}": str(running.port),
            "{connections}": str(load.connections),
            "{seconds}": str(load.seconds),
            "{keep_alive}": str(int(load.keep_alive)),
        }
        line, spent = output_of([replaced(part, marks) for part in self.parts], load.seconds)
        report = report_of(line, *USUAL, "errors", may_lack=("warm_up_requests",))
        return Figures(
            int(report["requests"]),
            report["seconds"],
            int(report["errors"]),
            report["latency_p50_us"],
            report["latency_p99_us"],
            int(report["requests"] + report["warm_up_requests"]),
            spent / max(report["seconds"], 1e-9),
        )


def default() -> Client:
    """Return wrk, or else our own client, which only keeps connections alive."""
    if shutil.which("wrk"):
        return Wrk()
    if path := runs.find(OWN):
        return Given(f"{shlex.quote(str(path))} {OWN_OPTIONS}")
    raise RouseError("wrk: is not installed", "apt-get install wrk, or name another with --client")


# Limits that are not the server's


def raise_descriptors() -> int:
    """Raise the limit of open descriptors as far as it goes. Returns it."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


def ports_used(port: int) -> float:
    """Return the share of outgoing ports that closed connections to a server still hold."""
    try:
        low, high = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text("ascii").split()
        lines = Path("/proc/net/tcp").read_text("ascii").splitlines()
    except OSError:
        return 0.0
    end = f":{port:04X}"
    held = 0
    for line in lines[1:]:
        _, local, remote, state = line.split(maxsplit=4)[:4]
        held += state == TIME_WAIT and (local.endswith(end) or remote.endswith(end))
    return held / (int(high) - int(low) + 1)


def limits(figures: Figures, port: int) -> str:
    """Name what limited the load, other than the server. Empty: nothing did."""
    found = []
    if figures.cpu_share >= SATURATED:
        found.append("client")
    if ports_used(port) >= PORTS_FULL:
        found.append("ports")
    return ", ".join(found)
