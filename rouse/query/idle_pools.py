# SPDX-License-Identifier: MIT
"""Pools whose threads wait for work while work waits for them: nobody wakes them.

Requests wait until a thread of the pool has served them. Those that wait, without those that are
being served, are in the queue. Threads of the pool that wait for work meanwhile were not woken.
"""

from __future__ import annotations

from dataclasses import dataclass

from rouse.query import frames, measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_NS, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN, names
from rouse.text import duration

IDLE_POOL = "idle-pool"
SITES_MOST = 200  # of waits, the longest first
LONG = 0.3  # of the elapsed time, which each wait for work lasts
ASKED_LEAST = 20  # waits of requests
NEAR = 3  # the calls from the thread's loop to the waits for work, and to the wake-ups after it
IDLE_LEAST, QUEUED_LEAST = 1.0, 0.5  # threads and requests, on average
MOSTLY = 0.5  # of the time that requests wait
WORK = ("usr", "lat", "mutex", "rwlock")  # of all threads, since it may be the pool's
KEYS = ("process", "kind", "wait_site", "wake_site")
NOT_SERVED = ("condition", "semaphore")


def waits() -> str:
    """Waits by site, those under way too."""
    rows = f"""
SELECT {names(KEYS)}, SUM("count") AS "count", SUM(wait_ns) AS wait_ns,
    MAX(object_name) AS object_name
FROM (
    SELECT {names(KEYS)}, {measures.total(measures.VERDICTS)} AS "count", wait_ns, object_name
    FROM wakes
    UNION ALL
    SELECT process, kind, wait_site, '{NOT_KNOWN}' AS wake_site, waiting AS "count", wait_ns,
        object_name FROM open_waits
) w GROUP BY {names(KEYS)} ORDER BY wait_ns DESC LIMIT {SITES_MOST}
"""
    return measures.labelled(rows, ("wait_ns DESC", *KEYS), label="wait_site")


@dataclass(frozen=True)
class Pool:
    user: frames.Function  # the loop of its threads
    idle: Row  # where they wait for work
    idle_ns: int
    asked: list[Row]  # the waits of requests
    asked_ns: int
    slept_ns: int  # the time in which its threads waited while they served


def find(database: Database, program: Program) -> list[Finding]:
    rows = database.rows(waits())
    idle: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["kind"] in NOT_SERVED and row["wait_ns"] > LONG * program.wall_ns * row["count"]:
            idle.setdefault((row["process"], row["wait_site"]), []).append(row)
    wall = program.wall_ns or 1
    idle = {
        key: some
        for key, some in idle.items()
        if sum(r["wait_ns"] for r in some) > IDLE_LEAST * wall
    }
    if not idle:
        return []
    known = frames.functions(database, {row[key] for row in rows for key in KEYS[2:]})
    pools = [pool_of(some, rows, known) for some in idle.values()]
    found = [finding(pool, program) for pool in pools if pool]
    return [each for each in found if each]


def pool_of(idle: list[Row], rows: list[Row], known: frames.Known) -> Pool | None:
    """idle: waits at one site. Returns None if its threads wake nobody else."""
    first = max(idle, key=lambda row: row["wait_ns"])
    process, site = first["process"], first["wait_site"]
    loop = known.get((process, site), [])
    asked: list[Row] = []
    users: dict[str, frames.Function] = {}
    for row in rows:
        if row["process"] != process or row["kind"] not in NOT_SERVED or row["wait_site"] == site:
            continue
        user = frames.common(loop, known.get((process, row["wake_site"]), []), NEAR)
        waiter = known.get((process, row["wait_site"]), [])
        if user and user.name not in {function.name for function in waiter}:
            asked.append(row)
            users[user.name] = user
    if sum(row["count"] for row in asked) < ASKED_LEAST:
        return None
    slept = sum(
        row["wait_ns"]
        for row in rows
        if row["process"] == process
        and row["wait_site"] != site
        and any(f.name in users for f in known.get((process, row["wait_site"]), []))
    )
    idle_ns, asked_ns = (sum(row["wait_ns"] for row in some) for some in (idle, asked))
    return Pool(next(iter(users.values())), first, idle_ns, asked, asked_ns, slept)


def finding(pool: Pool, program: Program) -> Finding | None:
    wall = program.wall_ns or 1
    served = pool.slept_ns + program.sum(*WORK)
    queued = pool.asked_ns - served
    if queued < max(QUEUED_LEAST * wall, MOSTLY * pool.asked_ns, LEAST_NS):
        return None

    def grows(busy_ns: float) -> float:
        """By what the throughput grows if all threads serve, and each request is served at once."""
        busy = max(busy_ns, 1.0)
        return max(min((busy + pool.idle_ns) / busy, pool.asked_ns / busy), 1.0)

    ran = least_ran(program.ran_ns, 0, program)
    most = max(min(grows(pool.slept_ns), program.processors * wall / max(ran, 1.0)), 1.0)
    expected = min(grows(pool.slept_ns + program.ran_ns), most)
    waiter = max(pool.asked, key=lambda row: row["wait_ns"])["label"]
    name = pool.idle["object_name"] or f"the pool of {pool.user.name}"
    text = (
        f"{name}: {pool.idle_ns / wall:.1f} threads wait for work on average, at"
        f" {pool.idle['label']}, while {queued / wall:.1f} requests wait for {pool.user.name} to"
        f" serve others first, {duration(queued)} in all: nobody wakes the threads. With all of"
        f" them at most {most:.2f}x, about {expected:.2f}x the throughput [{IDLE_POOL}]"
    )
    blame = round(queued)
    return Finding(IDLE_POOL, name, waiter, pool.user.label, blame, most, expected, text)
