#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a database under sysbench, and show how it scales and which locks its threads wait for.

    demos/database.py mariadb
    demos/database.py postgresql --work oltp_read_only --clients 1,8,64

The script starts Debian's server with its own socket and folder, and stops it again. First the
server runs alone with more and more clients, for transactions, processor time and switches. Then it
runs under `rouse run` with some numbers of clients, for locks and other waits. Nothing is rebuilt.
`rouse lab E6` shows the same servers before and after a repair.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import source_tree  # noqa: F401

from rouse.lab import databases
from rouse.lab.database_servers import POINT, SERVERS, LabError, found
from rouse.lab.databases import Wanted
from rouse.lab.quiet import Machine

WORKS = (POINT, "oltp_read_only", "oltp_read_write")
CLIENTS = "1,2,4,8,20,64"
PROFILED = "8,20"
LOCKS = 8  # locks that are shown per profile
Row = dict[str, Any]


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
    return Machine().description()


def demonstrate(name: str, wanted: Wanted) -> Row:
    with databases.place() as folder:
        server = SERVERS[name](folder)
        say(f"{server.name} in {folder}")
        with databases.filled(server, wanted) as running:
            rows = databases.curve(running, wanted, say)
        profiles = []
        for clients in wanted.profiled:
            say(f"{clients} clients, under rouse run")
            profiles.append(databases.profile(server, wanted, clients))
        return {
            "server": server.name,
            "work": wanted.work,
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "seconds": wanted.seconds,
            "curve": rows,
            "profiles": profiles,
        }


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
    except (LabError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    if asked.json:
        Path(asked.json).write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    print(text_of(shown), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
