# SPDX-License-Identifier: MIT
"""Locks that hide each other: without the busiest one, the next one is the limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rouse.query import apart, gain
from rouse.query.demand import key_of
from rouse.query.finding import (
    LEAST_NS,
    LEAST_SHARE,
    Finding,
    Row,
    lock_name,
    lock_names,
    lock_words,
    most_of,
)
from rouse.query.program import STATES, Program
from rouse.text import duration, share

ONION = "onion"
LAYERS_MOST = 4
ALONE_MOST = 1.5  # from which on the first lock alone is worth fixing
WORTH = 1.5  # of the bound without all layers to that without the first
Key = tuple[Any, ...]


@dataclass(frozen=True)
class Onion:
    keys: set[Key]  # of the locks, which need no finding of their own
    finding: Finding


def layers(load: gain.Load) -> list[Key]:
    """The locks in the order in which each limits the throughput without those before it."""
    found: list[Key] = []
    while len(found) < LAYERS_MOST:
        left = {key: lock.held_ns for key, lock in load.locks.items() if key not in found}
        busiest = max(left, key=lambda key: left[key], default=None)
        if busiest is None or gain.bound(load, [*found, busiest]) <= gain.bound(load, found):
            break
        found.append(busiest)  # type: ignore[arg-type]
    return found


def further(key: Key, load: gain.Load, program: Program) -> str:
    """Say which locks limit the throughput without this one, if it gains much more without them."""
    keys = layers(load)
    most = gain.bound(load, keys)
    if keys[:1] != [key] or most < WORTH * gain.bound(load, [key]):
        return ""
    rows = {key_of(row): row for row in program.locks}
    others = " and ".join(lock_names([rows[other] for other in keys[1:]]))
    expected = gain.estimate(load, keys)
    return f"; without those for {others} too at most {most:.2f}x, about {expected:.2f}x"


def find(program: Program, load_of: Callable[[Row, Program], gain.Load]) -> Onion | None:
    """load_of: the load while a lock is contended."""
    least = max(LEAST_SHARE * (program.sum(*STATES) - program.sum("join", "accept")), LEAST_NS)
    rows = {key_of(row): row for row in program.locks}
    first = max(program.locks, key=lambda row: row["wait_ns"], default=None)
    if first is None or first["wait_ns"] < least or not first["hold_ns"]:
        return None
    if apart.find(first, program):
        return None
    load = load_of(first, program)
    keys = layers(load)
    if len(keys) < 2:
        return None
    alone, most = gain.bound(load, keys[:1]), gain.bound(load, keys)
    if alone >= ALONE_MOST or most < WORTH * alone:
        return None
    expected = gain.estimate(load, keys)
    named = [
        lock_words(
            rows[key], most_of((s for s in program.sides if key_of(s) == key), "holder_label")
        )
        for key in keys
    ]
    busy = [share(min(load.locks[key].held_ns / load.wall_ns, 1.0)) for key in keys]
    sides = [side for side in program.sides if key_of(side) == keys[0]]
    waiter, holder = most_of(sides, "site_label"), most_of(sides, "holder_label")
    blame = sum(rows[key]["wait_ns"] for key in keys)
    whom = "another thread there" if holder and holder == waiter else holder
    text = (
        f"{', '.join(named)} hide each other: they are held {', '.join(busy)} % of the time, and"
        f" threads wait {duration(blame)} in all, first at {waiter or 'a place not known'} for"
        f" {whom or 'a holder that is not known'}. Fixing {named[0]} alone gains at most"
        f" {alone:.2f}x, fixing all {len(keys)} at most {most:.2f}x, about {expected:.2f}x"
        f" [{ONION}]"
    )
    onion = Finding(ONION, lock_name(rows[keys[0]]), waiter, holder, blame, most, expected, text)
    return Onion(set(keys), onion)
