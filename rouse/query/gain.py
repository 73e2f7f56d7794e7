# SPDX-License-Identifier: MIT
"""How much faster a program could become if its threads did not have to wait for a lock.

Two answers, both as factors of the throughput. The bound follows from the operational laws alone
(Denning and Buzen, 1978): no resource can be busy for more than all of the time, and no thread can
do more than work all of the time. The estimate solves a closed queueing network by mean value
analysis (Reiser and Lavenberg, 1980).

All times are sums over one phase of the program, during which its load did not change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

THREADS_MOST = 5000  # of the network: more threads than that have the same throughput
RUNS_DIFFER = 0.05  # the part of a gain by which a program's runs differ, recorded or not


@dataclass(frozen=True)
class Lock:
    """The time for which a lock was held, without its holders' waits for other locks."""

    held_ns: float
    ran_ns: float  # the part in which the holder ran, or could run
    slept_ns: float  # the part in which the holder slept or waited for I/O
    contention_ns: float = 0.0  # the CPU time that waits for it cost besides
    # It is one of many, of which each thread has one for itself at a time: no queue forms there.
    is_alone: bool = False


@dataclass(frozen=True)
class Load:
    """The work of the threads that share it."""

    wall_ns: float
    threads: float  # how many
    processors: int
    ran_ns: float
    slept_ns: float  # sleep and I/O
    # The least of both that the same work may take: faster threads wait less often.
    least_ran_ns: float
    least_slept_ns: float
    all_ran_ns: float  # the least of the whole program, in which these threads are included
    others_ran_ns: float  # what other programs took of the same processors
    locks: Mapping[object, Lock] = field(default_factory=dict)


def mean_value_analysis(threads: int, delay: float, stations: Sequence[float]) -> float:
    """Return the throughput of a closed network.

    stations: each one's demand per job, served one job at a time. delay: the time per job that no
    queue limits.
    """
    lengths = [0.0] * len(stations)
    throughput = 0.0
    for count in range(1, threads + 1):
        times = [demand * (1 + length) for demand, length in zip(stations, lengths, strict=True)]
        whole = delay + sum(times)
        if whole <= 0:
            return 0.0
        throughput = count / whole
        lengths = [throughput * time for time in times]
    return throughput


def allowed(factor: float) -> float:
    """Return a bound that holds in other runs too, for one that follows from the times of a run."""
    return 1 + (factor - 1) * (1 + RUNS_DIFFER)


def limit(load: Load, fixed: Collection[object]) -> float:
    """Return what the laws let the throughput of this very run grow by at most."""
    if load.threads <= 0 or load.wall_ns <= 0:  # waits are recorded, but not whose
        return 1.0
    left = [lock.held_ns / load.wall_ns for key, lock in load.locks.items() if key not in fixed]
    left.append(load.all_ran_ns / (load.processors * load.wall_ns))
    left.append((load.least_ran_ns + load.least_slept_ns) / (load.threads * load.wall_ns))
    busiest = max(left)
    return max(1 / busiest if busiest > 0 else load.threads, 1.0)


def bound(load: Load, fixed: Collection[object]) -> float:
    """Return the most that the throughput can grow by if nobody waits for the fixed locks."""
    return allowed(limit(load, fixed))


def estimate(load: Load, fixed: Collection[object]) -> float:
    """Return the growth of the throughput to expect. At least 1, and at most the limit."""
    stations, ran, slept = [], load.ran_ns, load.slept_ns
    for key, lock in load.locks.items():
        if key in fixed:
            ran -= lock.contention_ns
        elif not lock.is_alone:
            stations.append(lock.held_ns)
            ran, slept = ran - lock.ran_ns, slept - lock.slept_ns
    ran, slept = max(ran, 0.0), max(slept, 0.0)
    # Several processors with one queue as one that is faster, and a delay (Seidmann et al., 1987).
    stations.append(ran / load.processors)
    delay = slept + ran * (load.processors - 1) / load.processors
    threads = min(max(round(load.threads), 1), THREADS_MOST)
    rate = mean_value_analysis(threads, delay, stations) * load.wall_ns
    # Other programs keep the processors that they have, up to half of them: the scheduler is fair.
    whole = load.processors * load.wall_ns
    if load.all_ran_ns > 0:
        rate = min(rate, max(whole - load.others_ran_ns, whole / 2) / load.all_ran_ns)
    return min(max(rate, 1.0), limit(load, fixed))
