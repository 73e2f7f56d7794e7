#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Show an accept server with a thundering herd, fix it without a rebuild, and measure it again.

    demos/accept.py
    demos/accept.py --way epoll --processes 8

demos/herd.c forks processes that all wait for one listener, and is its own client. The script
compiles it and runs it alone, under `rouse run`, and under `rouse run --accept` with each order.
The server itself counts connections per process and polls that found no connection. The other
figures are from the report.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import source_tree  # noqa: F401

from database import machine, number, say, table

from rouse.lab.database_servers import ENVIRONMENT, SOURCE, LabError, found, rouse, run

WAYS = ("poll", "pipe", "select", "epoll", "accept")
ORDERS = ("fifo", "lifo", "scatter:2")
Row = dict[str, Any]


@dataclass(frozen=True)
class Wanted:
    way: str
    processes: int
    connections: int
    at_once: int


def compiled(folder: Path) -> Path:
    program = folder / "herd"
    run(found("cc"), "-O2", "-pthread", "-o", program, SOURCE / "demos" / "herd.c")
    return program


def jain(counts: Sequence[int]) -> float:
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


def herd(wanted: Wanted, program: Path, *before: str) -> Row:
    """Run once. `before` is a command that runs the program."""
    words = [*before, str(program), wanted.way, str(wanted.processes), "1"]
    words += [str(wanted.connections), str(wanted.at_once)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, env=ENVIRONMENT)
    if done.returncode:
        raise LabError(f"herd failed: {done.stderr.strip()}")
    told: Row = json.loads(done.stdout)
    told["jain"] = jain(told["served"])
    return told


def reported(wanted: Wanted, program: Path, kept: Path, *options: str) -> Row:
    command = rouse("run", "-o", "/dev/null", "--keep", str(kept), *options, "--")
    told = herd(wanted, program, *command)
    words = rouse("report", "--json", "--section", "listeners", str(kept))
    (listener,) = json.loads(run(*words, timeout=300))["sections"]["listeners"]
    return {**told, "listener": listener}


def demonstrate(wanted: Wanted) -> Row:
    with tempfile.TemporaryDirectory(prefix="rouse-demo-") as place:
        folder = Path(place)
        program = compiled(folder)
        say(f"{wanted.processes} processes wait by {wanted.way}: as it is")
        runs = {"as it is": herd(wanted, program)}
        say("under rouse run")
        runs["recorded"] = reported(wanted, program, folder / "before")
        for order in ORDERS:
            say(f"--accept {order}")
            runs[order] = reported(wanted, program, folder / order, "--accept", order)
        compared = run(*rouse("compare", "-n", "6", str(folder / "before"), str(folder / "fifo")))
    return {
        "way": wanted.way,
        "processes": wanted.processes,
        "connections": wanted.connections,
        "at_once": wanted.at_once,
        "machine": machine(),
        "runs": runs,
        "compared": compared,
    }


HEADS = (
    *("run", "connections per process", "Jain's index", "polls without effect"),
    *("wake-ups per connection", "switches per connection", "turns", "p50 µs", "p99 µs"),
)


def line(name: str, row: Row, connections: int) -> tuple[str, ...]:
    listener = row.get("listener", {})
    return (
        name,
        f"{min(row['served']):,} to {max(row['served']):,}",
        number(row["jain"], 3),
        f"{row['in_vain']:,}",
        number(listener.get("woken_each"), 2),
        number(row["voluntary"] / connections, 2),
        f"{listener['turns']:,}" if listener.get("turns") else "-",
        number(row["p50_us"], 0),
        number(row["p99_us"], 0),
    )


def text_of(shown: Row) -> str:
    rows = [line(name, row, shown["connections"]) for name, row in shown["runs"].items()]
    head = (
        f"{shown['processes']} processes wait by {shown['way']}; {shown['connections']:,}"
        f" connections, {shown['at_once']} at a time; {shown['machine']}.\n"
    )
    return "\n".join(
        (head, table(HEADS, rows), "rouse compare, recorded and fifo:\n", shown["compared"])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("--way", choices=WAYS, default="poll", help="that they wait by [poll]")
    parser.add_argument("--processes", type=int, default=4, metavar="N", help="[4]")
    parser.add_argument("--connections", type=int, default=2000, metavar="N", help="[2000]")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="connections [1]")
    parser.add_argument("--json", metavar="FILE", help="all figures, for other programs")
    asked = parser.parse_args()
    try:
        shown = demonstrate(Wanted(asked.way, asked.processes, asked.connections, asked.at_once))
    except (LabError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    if asked.json:
        Path(asked.json).write_text(json.dumps(shown, indent=1) + os.linesep, encoding="utf-8")
    print(text_of(shown), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
