# SPDX-License-Identifier: MIT
"""E6: databases before and after the repair of what their threads wait for.

A step runs the server alone, for its speed, and under `rouse run`, for the waits.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from rouse.errors import RouseError
from rouse.lab import databases
from rouse.lab.database_servers import POINT, SERVERS, TABLES, found
from rouse.lab.databases import Row, Wanted
from rouse.lab.experiments import LESS, MORE, NEW_WAY, OLD_WAY, Experiment, Figure, Step
from rouse.text import duration, printable

CLIENTS = 20
HOT_ROWS, ROWS = 16, 10_000
STEP_S = 25.0  # to make, start and stop a database twice, beyond what is measured
UPDATE = "oltp_update_non_index"
DONE = re.compile(r"transactions:\s+(\d+)")


@dataclass(frozen=True)
class Variant:
    label: str
    server: str
    work: str
    options: Sequence[str] = ()
    rows: int = ROWS
    kind: str = OLD_WAY

    @property
    def words(self) -> str:
        server = " ".join((self.server, *self.options))
        load = f"{self.work} --tables={TABLES} --table-size={self.rows} --threads={CLIENTS}"
        return f"{server}; sysbench {load}"


VARIANTS = (
    Variant(
        "MariaDB, one cache of open tables",
        "mariadb",
        POINT,
        ("--table-open-cache-instances=1",),
    ),
    Variant(
        "MariaDB, 8 caches as needed",
        "mariadb",
        POINT,
        ("--table-open-cache-instances=8",),
        kind=NEW_WAY,
    ),
    Variant(f"PostgreSQL, {HOT_ROWS} rows per table", "postgresql", UPDATE, rows=HOT_ROWS),
    Variant(f"PostgreSQL, {ROWS:,} rows per table", "postgresql", UPDATE, kind=NEW_WAY),
)


def measured(variant: Variant, seconds: float) -> Row:
    wanted = Wanted(variant.work, [CLIENTS], [CLIENTS], seconds)
    found("sysbench")
    with databases.place() as folder:
        server = SERVERS[variant.server](folder, variant.options, variant.rows)
        with databases.filled(server, wanted) as running:
            row = databases.sampled(running, wanted, CLIENTS)
        profile = databases.profile(server, wanted, CLIENTS)
    done = DONE.search(profile["sysbench"])
    waited = profile["totals"]["lock_wait_ns"] / 1000
    return row | {
        "lock_wait_us": waited / max(int(done[1]) if done else 0, 1),
        "remark": remark(profile),
    }


def remark(profile: Row) -> str:
    """What `rouse run` says: its verdict, and the lock that was waited for longest."""
    said = f"rouse run: {profile['verdict']}"
    if not profile["locks"]:
        return f"{said}; no lock was waited for"
    most = profile["locks"][0]
    waits = f"{most['waits']:,} waits of {duration(most['waited_ns'])} in all"
    return f"{said}; the longest waits for a lock are at {most['site']}: {waits}"


def run(step: Step, seconds: float) -> tuple[Row, str]:
    """Run a step. Returns its figures, or why there are none."""
    variant = next(variant for variant in VARIANTS if variant.label == step.label)
    try:
        return measured(variant, seconds), ""
    except (RouseError, subprocess.TimeoutExpired, OSError) as error:
        return {}, printable(str(error))


def experiment() -> Experiment:
    return Experiment(
        "E6",
        "a database that stopped scaling, before and after a repair",
        (
            "8 processors used, and 24 after days of fixing one hot lock after another",
            "six instances on a machine: almost twice as fast as one",
        ),
        [Step(each.label, each.words, each.kind) for each in VARIANTS],
        (
            Figure("transactions/s", "per_s", better=MORE),
            Figure("p95 ms", "p95_ms", better=LESS),
            Figure("user µs", "user_us", better=LESS),
            Figure("system µs", "system_us", better=LESS),
            Figure("switches", "voluntary", better=LESS),
            Figure("lock wait µs", "lock_wait_us", better=LESS),
        ),
        [(VARIANTS[i + 1].label, VARIANTS[i].label) for i in range(0, len(VARIANTS), 2)],
        program="",
        step_s=STEP_S,
        run=run,
    )
