#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a database under sysbench, and show how it scales and which locks its threads wait for.

    demos/database.py mariadb
    demos/database.py postgresql --work oltp_read_only --clients 1,8,64

The script starts Debian's server with its own socket and folder, and stops it again. First the
server runs alone with more and more clients, for transactions, processor time and switches. Then it
runs under `rouse run` with some numbers of clients, for locks and other waits. Nothing is rebuilt.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import POINT, SERVERS, DemoError, Running, Sample, Server, found, rouse, run

WORKS = (POINT, "oltp_read_only", "oltp_read_write")
CLIENTS = "1,2,4,8,20,64"
PROFILED = "8,20"
BEGIN_S, END_S = 1, 4  # seconds at the begin and the end of a run that are not measured
END_EACH_S = 0.2  # more seconds at the end per client, since sampling many processes takes time
LOCKS = 8  # locks that are shown per profile
Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    work: str
    clients: list[int]
    profiled: list[int]
    seconds: float


def load(server: Server, wanted: Wanted, clients: int) -> subprocess.Popen[str]:
    """Start the clients. They run slightly longer than the measurement."""
    seconds = round(wanted.seconds + BEGIN_S + END_S + END_EACH_S * clients)
    words = server.bench(wanted.work, clients, f"--time={seconds}", "run")
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(program: subprocess.Popen[str]) -> str:
    told, _ = program.communicate(timeout=300)
    if program.returncode:
        raise DemoError(f"sysbench failed: {told.strip().splitlines()[-1]}")
    return told


def measured(running: Running, wanted: Wanted, clients: int) -> tuple[Sample, float, str]:
    """The server's work during a run, the seconds it took, and sysbench's summary of the run."""
    program = load(running.server, wanted, clients)
    try:
        time.sleep(BEGIN_S)
        before, begin = running.sample(wanted.work), time.monotonic()
        time.sleep(wanted.seconds)
        after, end = running.sample(wanted.work), time.monotonic()
        if program.poll() is not None:
            raise DemoError(f"{clients} clients had ended before they were looked at twice")
        return after.since(before), end - begin, finished(program)
    finally:
        program.kill()
        program.wait()


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


def curve(running: Running, wanted: Wanted) -> list[Row]:
    rows = []
    for clients in wanted.clients:
        did, seconds, told = measured(running, wanted, clients)
        done = max(did.transactions, 1)
        late = re.search(r"95th percentile:\s+([0-9.]+)", told)
        rows.append(
            {
                "clients": clients,
                "per_s": did.transactions / seconds,
                "p95_ms": float(late[1]) if late else None,
                "user_us": did.user_s * 1e6 / done,
                "system_us": did.system_s * 1e6 / done,
                "cpus": (did.user_s + did.system_s) / seconds,
                "voluntary": did.voluntary / done,
                "involuntary": did.involuntary / done,
                "futexes": futexes(running, wanted, clients),
            }
        )
        say(f"{clients} clients: {rows[-1]['per_s']:,.0f} a second")
    return rows


def profile(server: Server, wanted: Wanted, clients: int) -> Row:
    """The relevant part of the report of a run under `rouse run`."""
    kept = server.folder / f"recording-{clients}"
    with server.started(*rouse("run", "-o", "/dev/null", "--keep", str(kept), "--")) as running:
        program = load(server, wanted, clients)
        try:
            finished(program)
        finally:
            program.kill()
            program.wait()
        for pid in running.processes()[:1]:
            os.kill(pid, 15)
        running.program.wait(120)
    report = json.loads(run(*server.as_user(), *rouse("report", "--json", str(kept)), timeout=300))
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
    }


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


def say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr, flush=True)


def number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def text_of(found_: Row) -> str:
    rows = found_["curve"]
    parts = [
        f"{found_['server']}, sysbench {found_['work']}; {found_['machine']}; {found_['date']}.\n",
        table(
            (
                *("clients", "transactions/s", "p95 ms", "user µs", "system µs", "processors"),
                *("voluntary", "involuntary", "futex calls"),
            ),
            [
                (
                    *(str(row["clients"]), number(row["per_s"], 0), number(row["p95_ms"], 2)),
                    *(number(row[name]) for name in ("user_us", "system_us")),
                    *(number(row["cpus"], 2), number(row["voluntary"], 2)),
                    *(number(row["involuntary"], 2), number(row["futexes"], 2)),
                )
                for row in rows
            ],
        ),
        "Times, switches and calls of the server are of one transaction.\n",
    ]
    for one in found_["profiles"]:
        parts.append(f"{one['clients']} clients, under `rouse run`: where they waited\n")
        parts.append(
            table(
                ("waited s", "times", "for"),
                [
                    (number(row["waited_ns"] / 1e9, 3), f"{row['times']:,}", kind)
                    for kind, row in one["kinds"].items()
                ],
            )
        )
        if not one["locks"]:
            parts.append(f"{one['clients']} clients: no lock was waited for\n")
            continue
        parts.append(f"{one['clients']} clients: the locks that were waited for longest\n")
        parts.append(
            table(
                ("waited ms", "times", "locks", "kind", "at", "lock, or initialised at"),
                [
                    (
                        *(number(row["waited_ns"] / 1e6), f"{row['waits']:,}", f"{row['locks']:,}"),
                        *(
                            row["kind"],
                            f"`{row['site']}`",
                            f"`{row['lock']}`" if row["lock"] else "",
                        ),
                    )
                    for row in one["locks"][:LOCKS]
                ],
            )
        )
    return "\n".join(parts)


def machine() -> str:
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = model[1] if model else os.uname().machine
    return f"{len(os.sched_getaffinity(0))} processors ({name}), Linux {os.uname().release}"


def demonstrate(name: str, wanted: Wanted) -> Row:
    place = Path(tempfile.mkdtemp(prefix="rouse-demo-"))
    place.chmod(0o755)
    folder = place / "server"
    folder.mkdir()
    server = SERVERS[name](folder)
    try:
        say(f"{server.name} in {folder}")
        server.make()
        with server.started() as running:
            server.asked("create database bench")
            run(*server.bench(wanted.work, 1, "prepare"))
            rows = curve(running, wanted)
        profiles = []
        for clients in wanted.profiled:
            say(f"{clients} clients, under rouse run")
            profiles.append(profile(server, wanted, clients))
        return {
            "server": server.name,
            "work": wanted.work,
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "seconds": wanted.seconds,
            "curve": rows,
            "profiles": profiles,
        }
    finally:
        shutil.rmtree(place, ignore_errors=True)


def counts(text: str) -> list[int]:
    found_ = [int(word) for word in text.split(",") if word]
    if not all(1 <= count <= 128 for count in found_):
        raise argparse.ArgumentTypeError("numbers of clients are 1 to 128")
    return found_


def main() -> int:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("server", choices=sorted(SERVERS))
    parser.add_argument("--work", choices=WORKS, default=POINT)
    parser.add_argument("--clients", type=counts, default=CLIENTS, metavar="N,N,...")
    parser.add_argument("--profile", type=counts, default=PROFILED, metavar="N,N,...")
    parser.add_argument("--seconds", type=float, default=8.0, help="that each is looked at [8]")
    parser.add_argument("--json", metavar="FILE", help="all figures, for other programs")
    asked = parser.parse_args()
    try:
        found("sysbench")
        wanted = Wanted(asked.work, asked.clients, asked.profile, asked.seconds)
        shown = demonstrate(asked.server, wanted)
    except (DemoError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    if asked.json:
        Path(asked.json).write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    print(text_of(shown), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
