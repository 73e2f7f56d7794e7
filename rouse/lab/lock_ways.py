# SPDX-License-Identifier: MIT
"""E2's second half: a database whose mutexes sleep at once, and one whose mutexes spin first.

Both run under `rouse run`, the second one with --locks adaptive, so that recording costs both the
same. Each row is a server with so many clients; the rows are the curve.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rouse.errors import RouseError
from rouse.lab import databases, runs
from rouse.lab.database_servers import POINT, SERVERS, found, rouse
from rouse.lab.databases import Row, Wanted
from rouse.lab.experiments import NEW_WAY, OLD_WAY, Curve, Experiment, Step
from rouse.text import counted, printable

NAME = "E2"
SERVER = "mariadb"
CLIENTS = (1, 4, 16, 64)
ADAPTIVE = ("--locks", "adaptive")
LOCK_WAIT = "select_lock_wait_ns_per_call"
REPORT_S = 120  # for the server to end, and its report to be made
STEP_S = 14.0  # to make, start and stop a database, beyond what is measured
# The same figures of the rows of rouse-bench.
KEYS = {
    "per_s": "calls_per_s",
    "voluntary": "switches_per_call",
    "user_us": "user_us_per_call",
    "system_us": "system_us_per_call",
}


@dataclass(frozen=True)
class Variant:
    clients: int
    options: Sequence[str] = ()  # of rouse run

    @property
    def label(self) -> str:
        return f"MariaDB, {counted(self.clients, 'client')}{', ' * bool(self.way)}{self.way}"

    @property
    def way(self) -> str:
        return "mutexes spin first" if self.options else ""

    @property
    def step(self) -> Step:
        words = " ".join((*rouse_run(self.options), SERVER))
        load = f"sysbench {POINT} --threads={self.clients}"
        kind = NEW_WAY if self.options else OLD_WAY
        return Step(self.label, f"{words}; {load}", kind, program="")


def rouse_run(options: Sequence[str]) -> list[str]:
    return ["rouse", "run", *options, "--"]


VARIANTS = tuple(Variant(clients, options) for clients in CLIENTS for options in ((), ADAPTIVE))


def measured(variant: Variant, seconds: float) -> Row:
    wanted = Wanted(POINT, [variant.clients], [], seconds)
    found("sysbench")
    with databases.place() as folder:
        server = SERVERS[SERVER](folder)
        with databases.filled(server, wanted):
            pass
        file = server.folder / "report.json"
        recorded = rouse("run", "--json", "-o", str(file), *variant.options)
        with server.started(*recorded, "--") as running:
            row = databases.sampled([running], wanted, variant.clients)
            done = server.transactions(POINT)
            for pid in running.processes()[:1]:
                os.kill(pid, signal.SIGTERM)
            running.program.wait(REPORT_S)
        sections = json.loads(file.read_text("utf-8"))["sections"]
    waited_ns = sum(each["lock_wait_ns"] for each in sections["totals"])
    row[LOCK_WAIT] = waited_ns / max(done, 1)
    return row | {name: row[key] for key, name in KEYS.items()}


def run(step: Step, seconds: float) -> tuple[Row, str]:
    """Run a row of a database here, and all others by rouse-bench."""
    variant = next((each for each in VARIANTS if each.label == step.label), None)
    if variant is None:
        return runs.run_row(runs.program(), step, seconds)
    try:
        return measured(variant, seconds), ""
    except (RouseError, subprocess.TimeoutExpired, OSError, ValueError) as error:
        return {}, printable(str(error))


def extended(experiment: Experiment) -> Experiment:
    """Return E2 with its databases."""
    labels = [variant.label for variant in VARIANTS]
    lines: dict[str, dict[float, str]] = {}
    for variant in VARIANTS:
        lines.setdefault(variant.way or "mutexes of libc", {})[variant.clients] = variant.label
    drawn = ("calls/s", "switches/call", "lock ns/call", "user µs", "system µs")
    return replace(
        experiment,
        steps=[*experiment.steps, *(variant.step for variant in VARIANTS)],
        pairs=[*experiment.pairs, *zip(labels[1::2], labels[::2], strict=True)],
        more_s=len(VARIANTS) * STEP_S,
        run=run,
        notes=(
            "lock ns/call: of select(2)'s own lock, and of all locks of MariaDB.",
            "More caches of MariaDB's open tables, and PostgreSQL, whose locks are no mutexes: E6.",
        ),
        curves=[*experiment.curves, Curve("clients of MariaDB", lines, drawn)],
    )
