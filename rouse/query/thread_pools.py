# SPDX-License-Identifier: MIT
"""Pools of threads that serve requests: too few threads, or threads that nobody wakes.

Requests wait until a thread of the pool has served them. Those that wait, without those that are
being served, are in the queue.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from rouse.query import frames, java_locks, measures
from rouse.query.demand import least_ran
from rouse.query.finding import LEAST_GAIN, LEAST_NS, PAUSES, SMALL_POOL, Finding, Row
from rouse.query.program import Program
from rouse.tables.engine import Database
from rouse.text import duration

IDLE_POOL = "idle-pool"
LONG = 0.3  # of the elapsed time, which each wait for work lasts
ASKED_LEAST = 20  # waits of requests
NEAR = 3  # the calls from the thread's loop to its waits, and to the wake-ups after it
IDLE_LEAST, QUEUED_LEAST = 1.0, 0.5  # threads and requests, on average
BUSY = 0.85  # of the time of a pool's threads
MOSTLY = 0.5  # of the time that requests wait
OFTEN = 0.3  # the same, if the threads of the pool have no time
SEVERAL = 0.9  # waits for inner requests for each that is served; below, a thread waits for several
WORK = ("usr", "lat", "mutex", "rwlock")  # of all threads, since it may be the pool's
SITES = ("wait_site", "wake_site")
EVENTS = ("condition", "semaphore", "futex")  # a request waits for the pool, or the pool for work


def sum_of(rows: list[Row]) -> int:
    return sum(row["wait_ns"] for row in rows)


@dataclass(frozen=True)
class Pool:
    user: frames.Function  # the loop of its threads
    idle: list[Row]  # where they wait for work
    asked: list[Row]  # the waits of requests
    senders: frozenset[str]  # the functions that wake its threads again and again
    served: list[Row]  # the waits of its threads while they serve
    inner: list[Row]  # those for other requests to the same pool
    paused_ns: int  # how long the threads that send requests waited for other things
    # Requests wait until one is taken, not until they are served: for room in a queue.
    waits_for_room: bool

    @property
    def name(self) -> str:
        named = (row["object_name"] for row in self.idle if row["object_name"])
        return next(named, f"the pool of {self.user.name}")

    @property
    def waiter(self) -> str:
        label: str = max(self.asked, key=lambda row: row["wait_ns"])["label"]
        return label

    def queued_ns(self, program: Program) -> float:
        """How long requests waited for others to be served first, in sum.

        At least that, unless there are inner requests: then at most.
        """
        return sum_of(self.asked) - self.least_ns - program.sum(*WORK)

    @property
    def least_ns(self) -> float:
        """How long requests are served at least, in sum, if all inner ones are served at once."""
        if not self.inner:
            return sum_of(self.served)
        requests = sum(row["count"] for row in self.asked)
        once = (row["wait_ns"] * min(requests / (row["count"] or 1), 1.0) for row in self.served)
        return max(once, default=0.0)

    @property
    def is_parallel(self) -> bool:
        """Whether requests clearly make several inner ones, and then wait for all of them.

        Some have then been served when a thread looks.
        """
        inner: int = sum(row["count"] for row in self.inner)
        served: int = max((row["count"] for row in self.served), default=0)
        return inner < SEVERAL * served

    def is_behind(self, program: Program) -> bool:
        least = max(QUEUED_LEAST * program.wall_ns, LEAST_NS, MOSTLY * sum_of(self.asked))
        return self.queued_ns(program) >= least

    def of_senders(self, known: frames.Known) -> Pool:
        """Only the requests of functions that wake the pool, and then wait.

        Threads that wait for the next item of a queue are not among them. A pool that has no time
        hardly waits for work, so that nobody wakes it.
        """
        if not self.senders:
            return self
        asked = [
            row
            for row in self.asked
            if any(each.name in self.senders for each in functions_of(row, "wait_site", known))
        ]
        return replace(self, asked=asked)


@dataclass(frozen=True)
class Found:
    findings: list[Finding]
    served: set[str]  # the labels of waits that are the work of their pools


def find(database: Database, program: Program) -> Found:
    rows = java_locks.without_jvm(database.rows(measures.waits_and_wakes()))
    events = [row for row in rows if row["kind"] in EVENTS]
    found = Found([], set())
    if sum_of(events) < max(QUEUED_LEAST * program.wall_ns, LEAST_NS):
        return found
    calls = frames.calls(database, {row[key] for row in rows for key in SITES})
    known = calls.known
    outer = frames.without_helpers(known)
    rows = [{**row, "place": frames.label_of(row, known, outer)} for row in rows]
    for pool in pools_of(rows, known, calls.cut):
        finding = None
        if pool.is_behind(program):
            finding = idle(pool, program) or small(pool.of_senders(known), program)
        else:
            finding = uneven(pool, program) or full(pool.of_senders(known), program)
        if finding:
            found.findings.append(finding)
            found.served.update(row["label"] for row in pool.served)
    return found


def functions_of(row: Row, key: str, known: frames.Known) -> list[frames.Function]:
    return known.get((row["process"], row[key]), [])


def pools_of(rows: list[Row], known: frames.Known, cut: Collection[tuple[str, str]]) -> list[Pool]:
    """Find the functions that wait for work and, after it, wake threads that wait for something."""
    pools: dict[tuple[str, str], Pool] = {}
    for idle in (row for row in rows if row["kind"] in EVENTS):
        loop = functions_of(idle, "wait_site", known)
        for user in loop[:NEAR]:
            key = (idle["process"], user.name)
            if key not in pools and (pool := pool_of(idle, user, rows, known, cut)):
                pools[key] = pool
            if key in pools:
                break
    return list(pools.values())


def is_of_loop(functions: list[frames.Function], loop: list[frames.Function], user: str) -> bool:
    """Whether these functions lead from the user of this name to the beginning of the same thread.

    The functions of a queue are called by threads of several kinds.
    """

    def callers(of: list[frames.Function]) -> list[str]:
        called = [function.name for function in of]
        return called[called.index(user) :] if user in called else []

    return all(one == other for one, other in zip(callers(functions), callers(loop), strict=False))


def level_of(functions: list[frames.Function], user: frames.Function) -> int:
    """How many calls lie between the user and the innermost function. Negative: it is not there."""
    called = [function.name for function in functions]
    return called.index(user.name) if user.name in called else -1


def pool_of(
    first: Row,
    user: frames.Function,
    rows: list[Row],
    known: frames.Known,
    cut: Collection[tuple[str, str]],
) -> Pool | None:
    """Return the pool whose threads run this function. None: it is no loop of a pool.

    first: a wait for work in it.

    A wait deep in the code that serves may have lost the frame of the loop. It counts as the pool's
    if nothing tells that it is another thread's.
    """
    process, loop = first["process"], functions_of(first, "wait_site", known)
    idle: list[Row] = []
    served: list[Row] = []
    inner: list[Row] = []
    asked: list[Row] = []
    others: list[Row] = []
    level = level_of(loop, user)
    for row in rows:
        if row["process"] != process:
            continue
        waiter, waker = (functions_of(row, key, known) for key in SITES)
        is_answer = row["kind"] in EVENTS and level_of(waker[:NEAR], user) >= 0
        if level_of(waiter, user) >= 0:
            if is_answer and level_of(waiter, user) > level:
                inner.append(row)
            else:
                (idle if row["kind"] in EVENTS else served).append(row)
        elif is_answer:
            if is_of_loop(waker, loop, user.name):
                asked.append(row)
        elif row["kind"] in PAUSES:
            others.append(row)
    if sum(row["count"] for row in asked) < ASKED_LEAST:
        return None
    takes = all(functions_of(row, "wake_site", known)[0] == loop[0] for row in asked)
    if takes and level == 0 and len(loop) > 1 and not served:
        return None  # it takes from a queue, for its caller
    often = [row for row in idle if row["count"] >= ASKED_LEAST]
    senders = names_of(often, "wake_site", known)
    outside = names_of(idle, "wake_site", known) | names_of(asked, "wait_site", known)
    deep = [
        row
        for row in others
        if (process, row["wait_site"]) in cut and not names_of([row], "wait_site", known) & outside
    ]
    paused = sum_of([row for row in others if row not in deep])
    return Pool(user, idle, asked, senders, served + deep, inner, paused, takes and level > 0)


def names_of(rows: list[Row], key: str, known: frames.Known) -> frozenset[str]:
    return frozenset(function.name for row in rows for function in functions_of(row, key, known))


def idle(pool: Pool, program: Program) -> Finding | None:
    """Threads of the pool that wait for work, and were not woken."""
    wall, queued = program.wall_ns or 1, pool.queued_ns(program)
    never = [row for row in pool.idle if row["wait_ns"] > LONG * wall * row["count"]]
    idle_ns, asked_ns, slept_ns = sum_of(never), sum_of(pool.asked), sum_of(pool.served)
    if idle_ns < IDLE_LEAST * wall:
        return None

    def grows(busy_ns: float, serves_ns: float) -> float:
        """By what the throughput grows if all threads serve, and each request is served at once.

        serves_ns: while requests wait for others, a thread serves at least one. If the known waits
        of those that serve are shorter, it is not known how long a request is served.
        """
        busy = max(busy_ns, serves_ns, 1.0)
        at_once = asked_ns / busy if busy_ns >= serves_ns else math.inf
        return max(min((busy + idle_ns) / busy, at_once), 1.0)

    serves_ns = min(queued, wall)
    ran = least_ran(program.ran_ns, 0, program)
    most = min(grows(slept_ns, BUSY * serves_ns), program.processors * wall / max(ran, 1.0))
    most = max(most, 1.0)
    expected = min(grows(slept_ns + program.ran_ns, serves_ns), most)
    text = (
        f"{pool.name}: {idle_ns / wall:.1f} threads wait for work on average, at"
        f" {never[0]['label']}, while {queued / wall:.1f} requests wait for {pool.user.name} to"
        f" serve others first, {duration(queued)} in all: nobody wakes the threads. With all of"
        f" them at most {most:.2f}x, about {expected:.2f}x the throughput [{IDLE_POOL}]"
    )
    blame = round(queued)
    return Finding(
        *(IDLE_POOL, pool.name, pool.waiter, pool.user.label, blame, most, expected, text)
    )


def uneven(pool: Pool, program: Program) -> Finding | None:
    """Threads of the pool that never get work, beside some that have it all and let others wait.

    As where each has a queue, and nearly all requests go to the same one.
    """
    wall = program.wall_ns or 1
    never = [row for row in pool.idle if row["wait_ns"] > LONG * wall * row["count"]]
    idle_ns, asked_ns, slept_ns = sum_of(never), sum_of(pool.asked), sum_of(pool.served)
    waits = sum(row["count"] for row in pool.idle)
    if idle_ns < IDLE_LEAST * wall or asked_ns < QUEUED_LEAST * wall or waits >= ASKED_LEAST:
        return None
    busy_ns = min(slept_ns + program.sum(*WORK), wall)
    if busy_ns < BUSY * wall:
        return None
    ran = least_ran(program.ran_ns, 0, program)
    most = min((busy_ns + idle_ns) / busy_ns, program.processors * wall / max(ran, 1.0))
    if most < LEAST_GAIN:
        return None
    longest = max(pool.served, key=lambda row: row["wait_ns"], default=None)
    does = f", which wait mostly at {longest['place']}" if longest else ""
    text = (
        f"{pool.name}: {idle_ns / wall:.1f} threads wait for work all the time, at"
        f" {never[0]['label']}, and {pool.waiter} waits {duration(asked_ns)} for the others{does}:"
        f" they get all the work. Evenly shared at most {most:.2f}x the throughput [{IDLE_POOL}]"
    )
    return Finding(
        *(IDLE_POOL, pool.name, pool.waiter, pool.user.label, asked_ns, most, None, text)
    )


def is_busy(pool: Pool, program: Program) -> bool:
    """Whether the threads of the pool are busy nearly all of the time."""
    busy_ns = sum_of(pool.served) + sum_of(pool.inner) + program.sum(*WORK)
    return busy_ns >= BUSY * (busy_ns + sum_of(pool.idle))


def full(pool: Pool, program: Program) -> Finding | None:
    """A pool whose threads have no time, while requests wait for as long as they are served.

    Those that send them may send several before they wait for the first one. How many is not known.
    """
    wall, queued = program.wall_ns or 1, pool.queued_ns(program)
    asked_ns = sum_of(pool.asked)
    if sum(row["count"] for row in pool.asked) < ASKED_LEAST or not pool.served or pool.inner:
        return None
    least = max(QUEUED_LEAST * wall, LEAST_NS, OFTEN * asked_ns)
    if queued < least or not is_busy(pool, program):
        return None
    most = program.processors * wall / max(least_ran(program.ran_ns, 0, program), 1.0)
    single = min(asked_ns / max(pool.least_ns, 1.0), most)
    if single < LEAST_GAIN:
        return None
    longest = max(pool.served, key=lambda row: row["wait_ns"])
    text = (
        f"{pool.name} is too small: its threads, which wait mostly at {longest['place']}, have no"
        f" time for more, while {asked_ns / wall:.1f} threads wait for them on average at"
        f" {pool.waiter}. A larger pool gains at most {single:.2f}x the throughput if each waits"
        f" for one request at a time, else at most {most:.2f}x [{SMALL_POOL}]"
    )
    blame = round(queued)
    return Finding(*(SMALL_POOL, pool.name, pool.waiter, pool.user.label, blame, most, None, text))


def small(pool: Pool, program: Program) -> Finding | None:
    """A pool whose threads are busy nearly all of the time.

    With a thread for each request, a request takes as long as it is served. Those who send it spend
    the rest of their time as before, which is at least 0.
    """
    if not pool.is_behind(program) or sum(row["count"] for row in pool.asked) < ASKED_LEAST:
        return None
    wall, queued = program.wall_ns or 1, pool.queued_ns(program)
    asked_ns, least_ns = sum_of(pool.asked), pool.least_ns
    if not is_busy(pool, program):
        return None
    ran = least_ran(program.ran_ns, 0, program)
    whole = program.processors * wall
    most = max(min(asked_ns / max(least_ns, 1.0), whole / max(ran, 1.0)), 1.0)
    rest = pool.paused_ns
    free = max(whole - program.others_ran_ns, whole / 2) / max(program.ran_ns, 1.0)
    takes_ns = least_ns + program.sum(*WORK)
    expected: float | None
    expected = max(min((rest + asked_ns) / max(rest + takes_ns, 1.0), free, most), 1.0)
    about = f", about {expected:.2f}x"
    # How many inner ones follow each other is not known, nor how many wait for room behind each.
    if (pool.inner and not pool.is_parallel) or pool.waits_for_room:
        about, expected = "", None
    if most < LEAST_GAIN:
        return None
    does, larger = "", "A larger pool"
    if pool.served:
        longest = max(pool.served, key=lambda row: row["wait_ns"])
        does = f", which wait mostly at {longest['place']},"
    if pool.inner:
        longest = max(pool.inner, key=lambda row: row["wait_ns"])
        does = (
            f", of which {sum_of(pool.inner) / wall:.1f} wait for other requests to the same pool"
            f" at {longest['label']},"
        )
        larger = "A larger pool, or another one for the inner requests,"
    text = (
        f"{pool.name} is too small: {queued / wall:.1f} requests wait on average until"
        f" {pool.user.name} has served others, {duration(queued)} in all, and its threads{does}"
        f" have no time for more. {larger} gains at most {most:.2f}x{about}"
        f" the throughput [{SMALL_POOL}]"
    )
    blame = round(queued)
    return Finding(
        *(SMALL_POOL, pool.name, pool.waiter, pool.user.label, blame, most, expected, text)
    )
