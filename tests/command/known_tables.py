# SPDX-License-Identifier: MIT
"""Tables as the decoder makes them, for a program whose waits are known by construction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rouse.tables.schemas import COLUMNS, TEXT, TRUTH, WORD
from rouse.tables.table import Table

Row = Mapping[str, Any]
HOST = "host:42:7"
MS = 1_000_000


def default(name: str, sort: str) -> Any:
    if sort in (TEXT, WORD):
        return HOST if name == "process" else ""
    return False if sort == TRUTH else 0


def table(name: str, rows: Sequence[Row]) -> Table:
    """Make a table of these rows. Omitted columns are 0, empty or false."""
    unknown = {key for row in rows for key in row} - set(COLUMNS[name])
    if unknown:
        raise KeyError(f"{name} has no {sorted(unknown)}")
    return Table(
        name,
        len(rows),
        {
            key: [row.get(key, default(key, sort)) for row in rows]
            for key, sort in COLUMNS[name].items()
        },
    )


def table_of(name: str, columns: Mapping[str, Sequence[Any]]) -> Table:
    """Make a table of these columns. The other columns are 0, empty or false."""
    rows = len(next(iter(columns.values())))
    return Table(
        name,
        rows,
        {
            key: list(columns.get(key) or [default(key, sort)] * rows)
            for key, sort in COLUMNS[name].items()
        },
    )


def tables(**rows: Sequence[Row]) -> dict[str, Table]:
    """Make all tables. A table without rows here is empty."""
    return {name: table(name, rows.get(name, ())) for name in COLUMNS}


def site(address: int, *labels: str, **more: Any) -> list[Row]:
    """The frames of a site, innermost first."""
    return [
        {
            "site": hex(address),
            "frame": frame,
            "address": address + frame,
            "module": "/usr/bin/orders",
            "build_id": "c0ffee",
            "offset": address - 0x1000 + 16 * frame,
            "function": label.split("+")[0],
            "label": label,
            **more,
        }
        for frame, label in enumerate(labels)
    ]


# Three waiters of 10 ms each for a lock that put_order holds, ten false wake-ups, and an idle pool.
SITES = [
    *site(0, "runtime", function=None, module=None, build_id=None),
    *site(0x1010, "orders.c:17", "serve.c:80", "main+0x9", file="/src/orders.c", line=17),
    *site(0x1020, "put_order+0x1c", "serve.c:81", "main+0x9"),
    *site(0x1030, "worker.c:5", "main+0x9"),
    *site(0x1040, "queue_push+0x44", "serve.c:99"),
]
LOCKS = [
    {
        **{"kind": "mutex", "lock": 0xABC0, "lock_name": "orders", "site": "0x1010"},
        **{"holder_site": "0x1020", "acquired": 2, "contested": 2},
        **{"wait_ns": 20 * MS, "wait_most_ns": 10 * MS, "spin_ns": 3000, "spun": 1},
    },
    {
        **{"kind": "mutex", "lock": 0xABC0, "lock_name": "orders", "site": "0x1010"},
        **{"holder_site": "0x1010", "acquired": 0, "contested": 1, "given_up": 1},
        **{"wait_ns": 10 * MS, "wait_most_ns": 10 * MS},
    },
]
WAKES = [
    {
        **{"kind": "mutex", "wait_site": "0x1010", "wake_site": "0x1020", "object": 0xABC0},
        **{"object_name": "orders", "useful": 2, "wait_ns": 20 * MS, "wait_most_ns": 10 * MS},
        **{"late_ns": 4000, "late_most_ns": 3000},
    },
    {
        **{"kind": "mutex", "wait_site": "0x1010", "wake_site": "0x0", "object": 0xABC0},
        **{"object_name": "orders", "timeout": 1, "wait_ns": 10 * MS, "wait_most_ns": 10 * MS},
    },
    {
        **{"kind": "condition", "wait_site": "0x1030", "wake_site": "0x1040"},
        **{"object": 0xDEF0, "useful": 90, "false_": 10, "wait_ns": 500 * MS},
        **{"wait_most_ns": 50 * MS, "late_ns": 100_000, "late_most_ns": 9000, "waste_ns": 70_000},
    },
    {
        **{"kind": "accept", "wait_site": "0x1040", "wake_site": "0x0", "useful": 8},
        **{"wait_ns": 900 * MS, "wait_most_ns": 400 * MS},
    },
]
THREADS = [
    {
        **{"thread_id": 1, "name": "server", "origin": "user", "state": "USR", "waits": 3},
        **{"wall_ns": 1000 * MS, "usr": 940 * MS, "lat": 30 * MS, "mutex": 30 * MS},
        **{"accepted": 6},
    },
    {
        **{"thread_id": 2, "name": "server", "origin": "user", "state": "accept"},
        **{"kind": "accept", "wait_site": "0x1040", "object": 5, "accepted": 2},
        **{"wall_ns": 1000 * MS, "usr": 100 * MS, "accept": 900 * MS, "is_idle": True},
    },
    {
        **{"thread_id": 3, "name": "pool", "origin": "user", "state": "cond"},
        **{"kind": "condition", "wait_site": "0x1030", "object": 0xDEF0, "is_idle": True},
        **{"wall_ns": 1000 * MS, "usr": 500 * MS, "cond": 500 * MS, "waits": 100, "useless": 10},
    },
]
# Two requests have ended on the second worker, and a kernel thread named like the pool.
GROUPS = [
    {
        **{"name": "request", "is_user": True, "writer": 1, "threads": 2, "waits": 4},
        **{"wall_ns": 20 * MS, "usr": 5 * MS, "mutex": 7 * MS, "join": 3 * MS, "poll": 5 * MS},
        **{"cpu_ns": None, "run_queue_ns": None},
    },
    {
        **{"name": "pool", "writer": 0xFFFFFFFF, "threads": 1, "waits": 6, "useless": 1},
        **{"wall_ns": 100 * MS, "usr": 60 * MS, "cond": 40 * MS},
        **{"cpu_ns": 35 * MS, "run_queue_ns": 15 * MS},
    },
]
WORKERS = [
    {
        **{"index": 0, "is_worker": True, "is_live": True, "tid": 42, "wall_ns": 1000 * MS},
        **{"idle_ns": 400 * MS, "idle_count": 50, "switches": 111, "steals": 4, "stolen": 3},
        **{"signals_unheard": 5, "broadcasts_unheard": 2, "lateness_ns": 12_000},
        **{"lateness_most_ns": 5000, "user_ns": 500 * MS, "system_ns": 90 * MS},
        **{"cpu_ns": 600 * MS, "kernel_wall_ns": 1000 * MS, "kernel_idle_ns": 400 * MS},
        **{"voluntary": 51, "involuntary": 7, "syscalls": None, "signals": None},
    },
    {
        **{"index": 1, "is_worker": True, "is_live": True, "tid": 43, "worker": 1},
        **{"wall_ns": 1000 * MS, "idle_ns": 900 * MS, "switches": 9},
        **{"syscalls": None, "signals": None},
        **{"cpu_ns": 100 * MS, "kernel_wall_ns": 1000 * MS, "kernel_idle_ns": 900 * MS},
    },
]
PROCESSES = [
    {
        **{"pid": 42, "host": "host", "program": "/usr/bin/orders", "command": "orders -p 80"},
        **{"uid": 1000, "started_unix_ns": 1_760_000_000_000_000_000, "mode": "counted"},
        **{"taken_unix_ns": 1_760_000_001_000_000_000, "duration_ns": 1000 * MS},
        **{"tsc_hz": 2e9, "site_depth": 3, "stamp_ns": 10.0, "cpu_ns": 1700 * MS},
    }
]


def orders(**changed: Sequence[Row]) -> dict[str, Table]:
    """The tables of that program, with some replaced."""
    rows: dict[str, Sequence[Row]] = {
        "processes": PROCESSES,
        "threads": THREADS,
        "groups": GROUPS,
        "wakes": WAKES,
        "locks": LOCKS,
        "workers": WORKERS,
        "calls": [{"kind": "read", "completed": 70}, {"kind": "accept", "completed": 8}],
        "herds": [{"size_from": 4, "count": 3}, {"size_from": 1, "count": 2, "writer": 1}],
        "lateness": [{"late_from_ns": 2048, "count": 3}, {"late_from_ns": 4096, "count": 1}],
        "sites": SITES,
        **changed,
    }
    return tables(**rows)
