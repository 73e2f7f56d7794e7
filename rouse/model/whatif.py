# SPDX-License-Identifier: MIT
"""The throughput of a recorded program if a lock is held for less time, or divided into several.

The threads that share the locks are the jobs of a closed queueing network (see query/gain.py): one
station per lock, one for the processors, and a delay for sleep and I/O. A change alters the demands
of a station, and the throughputs of the two networks have a ratio.

The network's times are exponential. Those of a program vary less, and may even be constant: then
its threads work in step, and wait less. So the same is simulated with constant times. The
prediction is in the middle between both ratios, its interval has both, and it never exceeds the
bound that the utilisations leave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rouse.errors import RouseError
from rouse.model.simulation import Shared, Simulation, Step
from rouse.query import gain, hot_locks, verdict
from rouse.query.demand import key_of, own_of
from rouse.query.finding import lock_name
from rouse.query.gain import Load, Lock
from rouse.tables.engine import Database

WAITING_LEAST = 0.05  # of the threads' time, below which no lock is worth a change
PARTS_MOST = 1000
SIMULATED_MOST = 500  # threads
SIGMAS = 2.0  # of the error of the holds
NONE: Mapping[object, float] = {}


@dataclass(frozen=True)
class Change:
    """Of one lock. factor: of its holds; 0: nobody waits for it. parts: into which it is split.

    more_us: that each hold lasts longer, and computes. reads: the share of holds that others with
    the same may have at the same time.
    """

    factor: float = 1.0
    parts: int = 1
    more_us: float = 0.0
    reads: float = 0.0

    def then(self, other: Change) -> Change:
        return Change(
            self.factor * other.factor,
            self.parts * other.parts,
            self.more_us * other.factor + other.more_us,
            max(self.reads, other.reads),
        )


@dataclass(frozen=True)
class Prediction:
    """Factors of the throughput.

    least and greatest: by the error of the recorded holds, and with times that are exponential or
    constant.
    """

    gain: float
    least: float
    greatest: float
    bound: float
    waiting: float  # the share of the threads' time that is then waited for locks


Changes = Mapping[object, Change]


def changed(load: Load, changes: Changes, counts: Mapping[object, float]) -> Load:
    """The load with other holds. Work that leaves the lock is not done at all.

    counts: how many holds of each lock are in the load.
    """
    locks = dict(load.locks)
    ran, slept = load.ran_ns, load.slept_ns
    for key, change in changes.items():
        lock = locks[key]
        saved = 1 - change.factor
        more = change.more_us * 1000 * counts.get(key, 0.0)
        ran -= saved * lock.ran_ns - more
        slept -= saved * lock.slept_ns
        locks[key] = replace(
            lock,
            held_ns=lock.held_ns * change.factor + more,
            ran_ns=lock.ran_ns * change.factor + more,
            slept_ns=lock.slept_ns * change.factor,
        )
    saved_ran = load.ran_ns - max(ran, 0.0)
    return replace(
        load,
        ran_ns=max(ran, 0.0),
        slept_ns=max(slept, 0.0),
        least_ran_ns=max(load.least_ran_ns - saved_ran, 0.0),
        least_slept_ns=max(load.least_slept_ns - (load.slept_ns - max(slept, 0.0)), 0.0),
        all_ran_ns=max(load.all_ran_ns - saved_ran, 0.0),
        locks=locks,
    )


def queued(load: Load) -> dict[object, Lock]:
    """The locks that threads queue for. Of locks that each thread has its own of, none is."""
    return {key: lock for key, lock in load.locks.items() if not lock.is_alone}


def solved(load: Load, changes: Changes) -> tuple[float, float]:
    """Return the throughput per ns of wall time, and the share of waiting for locks.

    Time under a lock is spent at its station; the rest on the processors, or in the delay.
    """
    stations, ran, slept = [], load.ran_ns, load.slept_ns
    for key, lock in queued(load).items():
        parts = changes.get(key, Change()).parts
        stations += [lock.held_ns / parts] * parts
        ran, slept = ran - lock.ran_ns, slept - lock.slept_ns
    processors = load.processors
    ran, slept = max(ran, 0.0), max(slept, 0.0)
    locks_ns = sum(stations)
    stations.append(ran / processors)
    delay = slept + ran * (processors - 1) / processors
    threads = min(max(round(load.threads), 1), gain.THREADS_MOST)
    rate = gain.mean_value_analysis(threads, delay, stations)
    in_all = delay + locks_ns + stations[-1]
    at_most = processors / load.all_ran_ns if load.all_ran_ns > 0 else math.inf
    rate = min(rate, at_most)
    return rate, max(1 - rate * in_all / threads, 0.0)


def simulated(load: Load, changes: Changes, is_constant: bool) -> tuple[float, float]:
    """The same by simulation, also for locks with readers. A cycle is the load of one ns."""
    threads = min(max(round(load.threads), 1), SIMULATED_MOST)
    locks = list(queued(load).items())
    ran = max(load.ran_ns - sum(lock.ran_ns for _, lock in locks), 0.0)
    slept = max(load.slept_ns - sum(lock.slept_ns for _, lock in locks), 0.0)
    steps = [Step(ran, slept)]
    steps += [Step(lock.ran_ns, lock.slept_ns, number) for number, (_, lock) in enumerate(locks)]
    ways = [changes.get(key, Change()) for key, _ in locks]
    shared = [Shared(change.reads, change.parts) for change in ways]
    rate = Simulation(steps, load.processors, shared, is_constant).throughput(threads)
    if load.all_ran_ns > 0:
        rate = min(rate, load.processors / load.all_ran_ns)
    in_all = sum(step.ran + step.slept for step in steps)
    return rate, max(1 - rate * in_all / threads, 0.0)


def once(
    load: Load, changes: Changes, counts: Mapping[object, float] = NONE
) -> tuple[float, float]:
    after_load = changed(load, changes, counts)
    if any(change.reads for change in changes.values()):
        before, _ = simulated(load, {}, False)
        after, waiting = simulated(after_load, changes, False)
    else:
        before, _ = solved(load, {})
        after, waiting = solved(after_load, changes)
    return after / before if before > 0 else 1.0, waiting


def in_step(load: Load, changes: Changes, counts: Mapping[object, float] = NONE) -> float:
    """The factor of the throughput, if all times are constant."""
    before, _ = simulated(load, {}, True)
    after, _ = simulated(changed(load, changes, counts), changes, True)
    return after / before if before > 0 else 1.0


def exclusive(change: Change) -> float:
    """The part of its holds during which a lock must be free of others."""
    return (1 - change.reads) / change.parts


def bound(load: Load, changes: Changes, counts: Mapping[object, float] = NONE) -> float:
    """The bound of the changed load: a lock that is split is used for one part of the time."""
    after = changed(load, changes, counts)
    locks = {
        key: Lock(lock.held_ns * exclusive(changes.get(key, Change())), 0, 0)
        for key, lock in after.locks.items()
    }
    return gain.limit(replace(after, locks=locks), [])


def scaled(lock: Lock, factor: float) -> Lock:
    return replace(
        lock,
        held_ns=lock.held_ns * factor,
        ran_ns=lock.ran_ns * factor,
        slept_ns=lock.slept_ns * factor,
    )


def predict(
    load: Load,
    changes: Changes,
    errors: Mapping[object, float],
    counts: Mapping[object, float] = NONE,
) -> Prediction:
    """errors: the standard error of each lock's holds, as a share of them. counts: of its holds."""
    varied, waiting = once(load, changes, counts)
    steady = in_step(load, changes, counts) if load.threads <= SIMULATED_MOST else varied
    ends = [varied, steady]
    for side in (-SIGMAS, SIGMAS):
        locks = {
            key: scaled(lock, max(1 + side * errors.get(key, 0.0), 0.0))
            for key, lock in load.locks.items()
        }
        ends.append(once(replace(load, locks=locks), changes, counts)[0])
    most = bound(load, changes, counts)
    found = min((varied + steady) / 2, most)
    return Prediction(found, min(*ends, most), min(max(ends), most), most, waiting)


@dataclass(frozen=True)
class Recorded:
    """The locks of a recording, and the load on them."""

    load: Load
    names: Mapping[object, str]
    errors: Mapping[object, float]
    counts: Mapping[object, float]  # of the holds in the load

    def key(self, name: str) -> object:
        """The lock of a name. Raise RouseError: there is none, or there are several."""
        found = [key for key, known in self.names.items() if known == name]
        if len(found) == 1:
            return found[0]
        if found:
            raise RouseError(f"{len(found)} locks are called {name}", "give each a name of its own")
        raise RouseError(
            f"no lock is called {name}", f"there are {', '.join(self.names.values()) or 'none'}"
        )

    def onion(self) -> list[tuple[str, Prediction]]:
        """Which locks to remove, and what that gains, until little time is waited for locks.

        Each is the one whose removal, with those before it, gains most.
        """
        steps: list[tuple[str, Prediction]] = []
        done: dict[object, Change] = {}
        while len(done) < len(self.load.locks):
            left = [key for key in self.load.locks if key not in done]
            best = max(
                left, key=lambda key: once(self.load, {**done, key: Change(parts=PARTS_MOST)})[0]
            )
            done[best] = Change(parts=PARTS_MOST)
            found = predict(self.load, done, self.errors)
            steps.append((self.names[best], found))
            if found.waiting < WAITING_LEAST:
                break
        return steps


def recorded(database: Database, busy_ns: int | None) -> Recorded:
    """Raise RouseError if no lock was contended, or nobody knows for how long they were held."""
    program = verdict.read(database, busy_ns)
    rows = [row for row in program.locks if row["hold_ns"]]
    if not rows:
        raise RouseError(
            "the recording has no lock that threads waited for and whose holds are known",
            "rouse run --holds records all of them",
        )
    first = max(rows, key=lambda row: row["wait_ns"])
    load = hot_locks.load_of(first, program)
    of_load = [row for row in rows if key_of(row) in load.locks]
    names: dict[object, str] = {key_of(row): lock_name(row) for row in of_load}
    errors: dict[object, float] = {
        key_of(row): math.sqrt(row["hold_variance"]) / row["hold_ns"] for row in of_load
    }
    kept: dict[object, Lock] = {key: lock for key, lock in load.locks.items() if key in names}
    # The load has the same part of a lock's holds as of their time.
    counts: dict[object, float] = {
        key_of(row): row["holds"] * kept[key_of(row)].held_ns / own_of(row).held_ns
        for row in of_load
        if own_of(row).held_ns > 0
    }
    return Recorded(replace(load, locks=kept), names, errors, counts)
