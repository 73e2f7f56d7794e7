# SPDX-License-Identifier: MIT
"""Locks that different threads share: each is the limit of its own threads alone.

Without the waits for one of them, only its threads do more work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rouse.query import gain
from rouse.query.demand import key_of
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Row
from rouse.query.program import STATES, Program

MOSTLY = 0.9  # of the waits for a lock
NESTED_MOST = 0.1  # of the holds, in which the holder waits for another lock
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Apart:
    """A lock with threads of its own."""

    part: float  # of the work of all threads that wait for such locks
    others: list[Key]  # the other such locks


def is_apart(row: Row, least: float) -> bool:
    """Whether other locks hold up neither its threads nor their holds."""
    is_free: bool = row["inside_lck_ns"] <= NESTED_MOST * row["hold_ns"]
    return is_free and row["wait_ns"] >= least and row["apart_ns"] > MOSTLY * row["wait_ns"]


def find(row: Row, program: Program) -> Apart | None:
    """None: no other lock with much waiting has threads of its own, or this one has none."""
    least = max(LEAST_SHARE * (program.sum(*STATES) - program.sum("join", "accept")), LEAST_NS)
    all_apart = [
        other
        for other in program.locks
        if other["process"] == row["process"] and is_apart(other, least)
    ]
    if row not in all_apart or len(all_apart) < 2:
        return None
    # How much of the work is theirs is not known: the share of the acquisitions, or of the time.
    shares = (
        row[name] / max(sum(other[name] for other in all_apart), 1)
        for name in ("acquired", "wait_ns")
    )
    return Apart(max(shares), [key_of(other) for other in all_apart if other is not row])


def load_of(load: gain.Load, key: Key, part: float) -> gain.Load:
    """Return the load of the threads of one lock."""
    names = ("threads", "ran_ns", "slept_ns", "least_ran_ns", "least_slept_ns", "all_ran_ns")
    scaled = {name: getattr(load, name) * part for name in names}
    return replace(load, **scaled, locks={key: load.locks[key]})


def gains(load: gain.Load, keys: Sequence[Key], parts: Sequence[float]) -> tuple[float, float]:
    """Return the bound and the estimate of the gain without the waits for these locks."""
    most = expected = 1.0
    for key, part in zip(keys, parts, strict=True):
        own = load_of(load, key, part)
        most += part * (gain.bound(own, [key]) - 1)
        expected += part * (gain.estimate(own, [key]) - 1)
    by_processors = gain.allowed(load.processors * load.wall_ns / max(load.all_ran_ns, 1.0))
    most = max(min(most, by_processors), 1.0)
    return most, min(expected, most)
