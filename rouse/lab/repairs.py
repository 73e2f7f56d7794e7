# SPDX-License-Identifier: MIT
"""E6: databases before and after the repair of what their threads wait for.

A step runs the server alone, for its speed, and under `rouse run`, for the waits. The second half
of E6 is several servers on one machine, each with a copy of the data and its part of the clients;
and rouse-serve, likewise.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rouse.errors import RouseError
from rouse.lab import databases, web_instances
from rouse.lab.database_servers import POINT, SERVERS, TABLES, Server, found
from rouse.lab.databases import Row, Wanted
from rouse.lab.experiments import (
    LESS,
    MORE,
    NEW_WAY,
    OLD_WAY,
    Curve,
    Experiment,
    Figure,
    Run,
    Step,
)
from rouse.lab.processors import limited
from rouse.text import counted, duration, printable

NAME = "E6"
CLIENTS = 20
HOT_ROWS, ROWS = 16, 10_000
STEP_S = 25.0  # to make, start and stop a database twice, beyond what is measured
UPDATE = "oltp_update_non_index"
DONE = re.compile(r"transactions:\s+(\d+)")


def of_them(processors: float) -> str:
    return f"{processors:g} processor{'s' * (processors != 1)}"


@dataclass(frozen=True)
class Variant:
    label: str
    server: str
    work: str
    options: Sequence[str] = ()
    rows: int = ROWS
    kind: str = OLD_WAY
    instances: int = 1
    processors: float | None = None  # of the server; None: all

    @property
    def clients(self) -> int:
        """Those of each instance."""
        return max(CLIENTS // self.instances, 1)

    @property
    def words(self) -> str:
        server = " ".join((self.server, *self.options))
        load = f"{self.work} --tables={TABLES} --table-size={self.rows} --threads={self.clients}"
        words = f"{server}; sysbench {load}"
        if self.processors:
            return f"on {of_them(self.processors)}: {words}"
        return words if self.instances == 1 else f"{self.instances} times, at once: {words}"


@dataclass(frozen=True)
class Web:
    """rouse-serve, whose processes share the workers and the clients."""

    instances: int

    @property
    def label(self) -> str:
        held = f"rouse-serve, {web_instances.LOCK_US} µs under one lock"
        return f"{held}: {counted(self.instances, 'instance')}"

    @property
    def kind(self) -> str:
        return OLD_WAY if self.instances == 1 else NEW_WAY

    @property
    def clients(self) -> int:
        """Those of all instances."""
        return max(CLIENTS // self.instances, 1) * self.instances

    @property
    def words(self) -> str:
        each = counted(web_instances.workers_of(self.instances), "worker")
        server = f"rouse-serve --instances {self.instances} --shared-lock {web_instances.LOCK_US}"
        return f"{server}, {each} each; {self.clients} connections"


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


def copies(first: Server, count: int) -> list[Server]:
    """Return the server and others on copies of its data. It must not run."""
    whole = first.folder.parent
    return [first, *(first.copy(whole / f"server-{number}") for number in range(2, count + 1))]


def measured(variant: Variant, seconds: float) -> Row:
    clients = variant.clients
    wanted = Wanted(variant.work, [clients], [clients], seconds)
    found("sysbench")
    with databases.place() as folder:
        first = SERVERS[variant.server](folder, variant.options, variant.rows)
        with databases.filled(first, wanted):
            pass
        servers = copies(first, variant.instances)
        with contextlib.ExitStack() as limits:
            if variant.processors:
                first.within = limits.enter_context(limited(variant.processors))
            with contextlib.ExitStack() as stack:
                every = [stack.enter_context(server.started()) for server in servers]
                row = databases.sampled(every, wanted, clients)
            profiles = databases.profiles(servers, wanted, clients)
    done = [DONE.search(profile["sysbench"]) for profile in profiles]
    waited_ns = sum(
        profile["totals"]["lock_wait_ns"] + profile["row_lock_ns"] for profile in profiles
    )
    return row | {
        "lock_wait_us": waited_ns / 1000 / max(sum(int(each[1]) for each in done if each), 1),
        "remark": remark(profiles[0]),
    }


def remark(profile: Row) -> str:
    """What `rouse run` says: its verdict, and the lock that was waited for longest."""
    said = f"rouse run: {profile['verdict']}"
    if not profile["locks"]:
        return f"{said}; no mutex or other lock of a library was waited for"
    most = profile["locks"][0]
    waits = f"{most['waits']:,} waits of {duration(most['waited_ns'])} in all"
    return f"{said}; the longest waits for a lock are at {most['site']}: {waits}"


def runner(variants: Sequence[Variant | Web]) -> Run:
    """Return what runs the step of each of the variants."""
    by_label = {variant.label: variant for variant in variants}

    def run(step: Step, seconds: float) -> tuple[Row, str]:
        variant = by_label[step.label]
        try:
            if isinstance(variant, Web):
                return web_instances.measured(variant.instances, variant.clients, seconds), ""
            return measured(variant, seconds), ""
        except (RouseError, subprocess.TimeoutExpired, OSError) as error:
            return {}, printable(str(error))

    return run


def by_instances(counts: Sequence[int]) -> list[Variant | Web]:
    """Servers that wait, as one instance and as several."""
    every = sorted({1, *counts})
    databases_of = [
        replace(
            variant,
            label=f"{variant.label}: {counted(count, 'instance')}",
            instances=count,
            kind=OLD_WAY if count == 1 else NEW_WAY,
        )
        for variant in VARIANTS
        if variant.kind == OLD_WAY
        for count in every
    ]
    return [*databases_of, *(Web(count) for count in every)]


def by_processors(counts: Sequence[float]) -> list[Variant]:
    """Databases that wait, on a part of this machine's processors."""
    return [
        replace(variant, label=f"{variant.label}: {of_them(count)}", processors=count)
        for variant in VARIANTS
        if variant.kind == OLD_WAY
        for count in counts
    ]


def series(name: str, variants: Sequence[Variant | Web], counts: Sequence[float]) -> Curve:
    """Return the curves of servers by a number, in whose order the variants of each are."""
    each = len(counts)
    lines = {}
    for first in range(0, len(variants), each):
        labels = [variant.label for variant in variants[first : first + each]]
        lines[labels[0].rpartition(": ")[0]] = dict(zip(counts, labels, strict=True))
    return Curve(name, lines, ("transactions/s", "p95 ms", "lock wait µs"))


def experiment(instances: Sequence[int] = (), processors: Sequence[float] = ()) -> Experiment:
    """instances: compare one instance with so many. processors: servers on so many of them. Without
    either: before and after a repair."""
    pairs: list[tuple[str, str]] = []
    curve: Curve | None = None
    variants: list[Variant | Web]
    if processors:
        variants = [*by_processors(sorted(processors))]
        title = "a database that stopped scaling, by the processors that it has"
        curve = series("processors", variants, sorted(processors))
    elif instances:
        variants = by_instances(instances)
        title = "servers that stopped scaling, as one instance and as several"
        each = len(set(instances) | {1})
        curve = series("instances", variants, sorted({1, *instances}))
        pairs = [
            (variants[first + other].label, variants[first].label)
            for first in range(0, len(variants), each)
            for other in range(1, each)
        ]
    else:
        variants = list(VARIANTS)
        title = "a database that stopped scaling, before and after a repair"
        pairs = [(VARIANTS[i + 1].label, VARIANTS[i].label) for i in range(0, len(VARIANTS), 2)]
    return Experiment(
        NAME,
        title,
        (
            "8 processors used, and 24 after days of fixing one hot lock after another",
            "six instances, in the global zone and five zones of 24 processors: nearly five times"
            " one zone, almost twice a full E6900",
        ),
        [Step(each.label, each.words, each.kind, program="") for each in variants],
        (
            Figure("transactions/s", "per_s", better=MORE),
            Figure("p95 ms", "p95_ms", better=LESS),
            Figure("user µs", "user_us", better=LESS),
            Figure("system µs", "system_us", better=LESS),
            Figure("switches", "voluntary", better=LESS),
            Figure("lock wait µs", "lock_wait_us", better=LESS),
        ),
        pairs,
        step_s=STEP_S,
        run=runner(variants),
        curves=[curve] if curve else [],
        series="processors" if processors else "instances" if instances else "",
    )
