# SPDX-License-Identifier: MIT
"""Runs a database under sysbench: how it scales, and which locks its threads wait for.

First the server runs alone with more and more clients, for transactions, processor time and
switches. Then it runs under `rouse run` with some numbers of clients, for locks and other waits.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rouse.lab.database_servers import LabError, Running, Sample, Server, rouse, run
from rouse.query.known_locks import DATABASE_LOCK

BEGIN_S, END_S = 1, 4  # seconds at the begin and the end of a run that are not measured
END_EACH_S = 0.2  # more seconds at the end per client, since sampling many processes takes time
Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    work: str
    clients: list[int]
    profiled: list[int]
    seconds: float


def load(server: Server, wanted: Wanted, clients: int, servers: int = 1) -> subprocess.Popen[str]:
    """Start the clients. They run slightly longer than the measurement.

    servers: how many there are. Each of them delays the samples of the others.
    """
    seconds = round(wanted.seconds + BEGIN_S + servers * (END_S + END_EACH_S * clients))
    words = server.bench(wanted.work, clients, f"--time={seconds}", "run")
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(program: subprocess.Popen[str]) -> str:
    told, _ = program.communicate(timeout=300)
    if program.returncode:
        lines = told.strip().splitlines() or [f"status {program.returncode}"]
        raise LabError(f"sysbench failed: {lines[-1]}")
    return told


@contextlib.contextmanager
def loaded(
    servers: Sequence[Server], wanted: Wanted, clients: int
) -> Iterator[list[subprocess.Popen[str]]]:
    """Start that many clients for each server. They do not outlive the block."""
    programs: list[subprocess.Popen[str]] = []
    try:
        programs += (load(server, wanted, clients, len(servers)) for server in servers)
        yield programs
    finally:
        for program in programs:
            program.kill()
            program.wait()


def measured(
    servers: Sequence[Running], wanted: Wanted, clients: int
) -> tuple[Sample, float, list[str]]:
    """The servers' work during a run, the seconds it took, and sysbench's summary of each load."""

    def sample() -> tuple[Sample, float]:
        with ThreadPoolExecutor(len(servers)) as pool:  # each waits for the server's answer
            samples = list(pool.map(lambda running: running.sample(wanted.work), servers))
        return sum(samples[1:], start=samples[0]), time.monotonic()

    with loaded([running.server for running in servers], wanted, clients) as programs:
        time.sleep(BEGIN_S)
        before, begin = sample()
        time.sleep(wanted.seconds)
        after, end = sample()
        if any(program.poll() is not None for program in programs):
            for program in programs:
                if program.poll() is not None:
                    finished(program)  # says why, if it failed
            raise LabError(f"{clients} clients had ended before they were looked at twice")
        return after.since(before), end - begin, [finished(program) for program in programs]


def futexes(running: Running, wanted: Wanted, clients: int) -> float | None:
    """Calls of futex(2) per transaction, counted by strace, which slows the server down."""
    if not shutil.which("strace"):
        return None
    program = load(running.server, wanted, clients)
    pids = [word for pid in running.processes() for word in ("-p", str(pid))]
    try:
        time.sleep(BEGIN_S)
        pids = [word for pid in running.processes() for word in ("-p", str(pid))]
        before = running.sample(wanted.work)
        strace = subprocess.Popen(
            ["strace", "-f", "-c", "-e", "trace=futex", *pids],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(wanted.seconds / 2)
        strace.terminate()
        _, told = strace.communicate(timeout=60)
        done = running.sample(wanted.work).since(before).transactions
        finished(program)
    finally:
        program.kill()
        program.wait()
    counts = [line.split() for line in told.splitlines() if line.rstrip().endswith(" futex")]
    return int(counts[0][3]) / max(done, 1) if counts else 0.0


def sampled(servers: Sequence[Running], wanted: Wanted, clients: int) -> Row:
    """The figures of that many clients for each server, per transaction. p95: the worst one."""
    did, seconds, told = measured(servers, wanted, clients)
    done = max(did.transactions, 1)
    late = [re.search(r"95th percentile:\s+([0-9.]+)", each) for each in told]
    own = [re.search(r"transactions:\s+\d+\s+\(([0-9.]+) per sec", each) for each in told]
    return {
        "clients": clients,
        "per_s": did.transactions / seconds,
        "client_per_s": sum(float(each[1]) for each in own if each),  # by sysbench's own clock
        "p95_ms": max((float(each[1]) for each in late if each), default=None),
        "user_us": did.user_s * 1e6 / done,
        "system_us": did.system_s * 1e6 / done,
        "cpus": (did.user_s + did.system_s) / seconds,
        "voluntary": did.voluntary / done,
        "involuntary": did.involuntary / done,
    }


def curve(running: Running, wanted: Wanted, tell: Callable[[str], None]) -> list[Row]:
    rows = []
    for clients in wanted.clients:
        row = sampled([running], wanted, clients)
        rows.append(row | {"futexes": futexes(running, wanted, clients)})
        tell(f"{clients} clients: {row['per_s']:,.0f} per second")
    return rows


def profile(server: Server, wanted: Wanted, clients: int) -> Row:
    """The relevant part of the report of a run under `rouse run`."""
    (found_,) = profiles([server], wanted, clients)
    return found_


def profiles(servers: Sequence[Server], wanted: Wanted, clients: int) -> list[Row]:
    """The same for servers that run at the same time, with that many clients each."""
    recorded = rouse("run", "-o", "/dev/null", "--keep")
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(server.started(*recorded, str(kept(server, clients)), "--"))
            for server in servers
        ]
        with loaded(servers, wanted, clients) as programs:
            told = [finished(program) for program in programs]
        for each in running:
            for pid in each.processes()[:1]:
                os.kill(pid, 15)
        for each in running:
            each.program.wait(120)
    return [summary(server, clients, said) for server, said in zip(servers, told, strict=True)]


def kept(server: Server, clients: int) -> Path:
    return server.folder / f"recording-{clients}"


def summary(server: Server, clients: int, told: str) -> Row:
    report = json.loads(
        run(
            *server.as_user(),
            *rouse("report", "--json", "--all", str(kept(server, clients))),
            timeout=300,
        )
    )
    sections = report["sections"]
    waited: dict[str, Row] = {}
    for row in sections["waits"]:
        into = waited.setdefault(row["kind"], {"times": 0, "waited_ns": 0})
        into["times"] += row["count"]
        into["waited_ns"] += row["wait_ns"]
    return {
        "clients": clients,
        "processes": len(report["processes"]),
        "totals": {
            name: sum(row[name] for row in sections["totals"])
            for name in (
                "calls",
                "wakes",
                "useful",
                "lost_race",
                "false_",
                "lock_waits",
                "lock_wait_ns",
            )
        },
        "kinds": dict(sorted(waited.items(), key=lambda item: -item[1]["waited_ns"])),
        "locks": locks(sections["locks"]),
        "verdict": verdict(report),
        "row_lock_ns": row_lock_ns(report),
        "sysbench": told,
    }


def verdict(report: Row) -> str:
    """The first finding of the report, or else its summary."""
    said = report["verdict"] or {"findings": [], "summary": ""}
    findings = [finding["text"] for finding in said["findings"]]
    return str(findings[0] if findings else said["summary"])


def row_lock_ns(report: Row) -> int:
    """Waits for the database's own locks, as of rows, which are no locks of a library."""
    findings = (report["verdict"] or {"findings": []})["findings"]
    return sum(each["blame_ns"] for each in findings if each["kind"] == DATABASE_LOCK)


def locks(rows: Sequence[Row]) -> list[Row]:
    """Locks by wait site, and by the name of the lock or the site that initialised it."""
    found_: dict[tuple[str, str], Row] = {}
    for row in rows:
        if not row["cnt_lock"]:
            continue
        key = (row["site_label"], row["lock_name"] or row["init_label"] or "")
        into = found_.setdefault(
            key,
            {
                "site": key[0],
                "lock": key[1],
                "kind": row["kind"],
                "locks": 0,
                "waits": 0,
                "waited_ns": 0,
            },
        )
        into["locks"] += 1
        into["waits"] += row["cnt_lock"]
        into["waited_ns"] += row["wait_total_ns"]
    return sorted(found_.values(), key=lambda row: -row["waited_ns"])


@contextlib.contextmanager
def place() -> Iterator[Path]:
    """Yield an empty folder for a server, which may run as another user."""
    whole = Path(tempfile.mkdtemp(prefix="rouse-demo-"))
    try:
        whole.chmod(0o755)
        folder = whole / "server"
        folder.mkdir()
        yield folder
    finally:
        shutil.rmtree(whole, ignore_errors=True)


@contextlib.contextmanager
def filled(server: Server, wanted: Wanted) -> Iterator[Running]:
    """Make a database, start its server, and fill the tables."""
    server.make()
    with server.started() as running:
        server.asked("create database bench")
        run(*server.bench(wanted.work, 1, "prepare"))
        yield running
