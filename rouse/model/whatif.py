# SPDX-License-Identifier: MIT
"""The throughput of a recorded program if a lock is held for less time, or divided into several.

The threads that share the locks are the jobs of a closed queueing network (see query/gain.py): one
station per lock, one for the processors, and a delay for sleep and I/O. A change alters the demands
of a station. The prediction is the ratio of the throughputs of the two networks, and never exceeds
the bound that the utilisations leave.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rouse.errors import RouseError
from rouse.query import gain, verdict
from rouse.query.demand import key_of
from rouse.query.finding import lock_name
from rouse.query.gain import Load, Lock
from rouse.tables.engine import Database

WAITING_LEAST = 0.05  # of the threads' time, below which no lock is worth a change
PARTS_MOST = 1000
SIGMAS = 2.0  # of the error of the holds


@dataclass(frozen=True)
class Change:
    """Of one lock. factor: of its holds; 0: nobody waits for it. parts: into which it is split."""

    factor: float = 1.0
    parts: int = 1


@dataclass(frozen=True)
class Prediction:
    """Factors of the throughput. least and greatest: by the error of the recorded holds."""

    gain: float
    least: float
    greatest: float
    bound: float
    waiting: float  # the share of the threads' time that is then waited for locks


Changes = Mapping[object, Change]


def changed(load: Load, changes: Changes) -> Load:
    """The load with shorter holds. Work that leaves the lock is not done at all."""
    locks = dict(load.locks)
    ran, slept = load.ran_ns, load.slept_ns
    for key, change in changes.items():
        lock = locks[key]
        saved = 1 - change.factor
        ran -= saved * lock.ran_ns
        slept -= saved * lock.slept_ns
        locks[key] = Lock(
            *(ns * change.factor for ns in (lock.held_ns, lock.ran_ns, lock.slept_ns))
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


def solved(load: Load, changes: Changes) -> tuple[float, float]:
    """Return the throughput per ns of wall time, and the share of waiting for locks.

    Time under a lock is spent at its station; the rest on the processors, or in the delay.
    """
    stations, ran, slept = [], load.ran_ns, load.slept_ns
    for key, lock in load.locks.items():
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


def once(load: Load, changes: Changes) -> tuple[float, float]:
    after, waiting = solved(changed(load, changes), changes)
    before, _ = solved(load, {})
    return after / before if before > 0 else 1.0, waiting


def bound(load: Load, changes: Changes) -> float:
    """The bound of the changed load: a lock that is split is used for one part of the time."""
    after = changed(load, changes)
    locks = {
        key: Lock(*(ns / changes.get(key, Change()).parts for ns in (lock.held_ns, 0, 0)))
        for key, lock in after.locks.items()
    }
    return gain.bound(replace(after, locks=locks), [])


def predict(load: Load, changes: Changes, errors: Mapping[object, float]) -> Prediction:
    """errors: the standard error of each lock's holds, as a share of them."""
    found, waiting = once(load, changes)
    ends = [found]
    for side in (-SIGMAS, SIGMAS):
        locks = {
            key: Lock(
                *(
                    ns * max(1 + side * errors.get(key, 0.0), 0.0)
                    for ns in (lock.held_ns, lock.ran_ns, lock.slept_ns)
                )
            )
            for key, lock in load.locks.items()
        }
        ends.append(once(replace(load, locks=locks), changes)[0])
    most = bound(load, changes)
    return Prediction(min(found, most), min(*ends, most), min(max(ends), most), most, waiting)


@dataclass(frozen=True)
class Recorded:
    """The locks of a recording, and the load on them."""

    load: Load
    names: Mapping[object, str]
    errors: Mapping[object, float]

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
    load = verdict.load_of(first, program)
    of_load = [row for row in rows if key_of(row) in load.locks]
    names: dict[object, str] = {key_of(row): lock_name(row) for row in of_load}
    errors: dict[object, float] = {
        key_of(row): math.sqrt(row["hold_variance"]) / row["hold_ns"] for row in of_load
    }
    kept: dict[object, Lock] = {key: lock for key, lock in load.locks.items() if key in names}
    return Recorded(replace(load, locks=kept), names, errors)
