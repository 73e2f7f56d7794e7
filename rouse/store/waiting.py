# SPDX-License-Identifier: MIT
"""Waits that are under way: for what, where, since when, and who holds it.

A wait for a lock lasts from the arrival of the thread until it has the lock, however often it is
woken meanwhile. A thread that was woken from another wait, and has not run yet, no longer waits.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rouse.store import layout, stacks, states
from rouse.store.decode import Entries, Store

KEYS = ("kind", "wait_site", "object", "holder_site")
# Kinds whose rows differ by object; the object of others is a descriptor, or nothing.
BARRIER = layout.KIND_NAMES.index("barrier")
HAS_OBJECT = np.array([0 < kind <= BARRIER or kind == layout.FUTEX_LOCK for kind in range(256)])
IS_LOCK = np.array([kind in (1, 2, 3, layout.FUTEX_LOCK) for kind in range(256)])
WAIT = np.dtype([(name, "<u8") for name in (*KEYS, "name", "ticks")])


def contends(slots: Entries) -> Any:
    """Return for each thread whether it waits for a lock, or was woken and has not got it."""
    kinds = np.minimum(slots["kind"], len(HAS_OBJECT) - 1)
    contest = slots["contest_tsc"]
    return IS_LOCK[kinds] & (contest != 0) & (slots["since_tsc"] >= contest)


def under_way(store: Store, now: states.States | None = None) -> Entries:
    """One row per waiting thread."""
    slots = store.threads
    now = now or states.fold(slots, store.now_tsc)
    kinds = np.minimum(slots["kind"], len(HAS_OBJECT) - 1)
    contest, contending = slots["contest_tsc"], contends(slots)
    waits = states.WAITING[now.state] | contending
    if not waits.any():
        return np.zeros(0, WAIT)
    begin = np.where(contending, contest, slots["since_tsc"])
    end = np.full(len(slots), max(store.now_tsc, 0), np.uint64)
    out = np.zeros(int(waits.sum()), WAIT)
    out["kind"] = slots["kind"][waits]
    out["wait_site"] = stacks.canonical(store, slots["wait_site"][waits])
    out["object"] = np.where(HAS_OBJECT[kinds], slots["object"], np.uint64(0))[waits]
    holders = np.where(contending, slots["contest_holder"], np.uint64(0))[waits]
    out["holder_site"] = stacks.canonical(store, holders)
    out["ticks"] = states.span(begin, end)[waits]
    out["name"] = names(store, out["object"])
    return out


def names(store: Store, objects: Any) -> Any:
    """Return the number of each object's name. 0: no entry has it."""
    known: dict[int, int] = {0: 0}
    for entries, field in (
        (store.arrays[layout.WAKES], "object"),
        (store.arrays[layout.LOCKS], "lock"),
    ):
        named = entries[entries["name"] != 0]
        known |= dict(zip(named[field].tolist(), named["name"].tolist(), strict=True))
    different, which = np.unique(objects, return_inverse=True)
    numbers = np.array([known.get(word, 0) for word in different.tolist()], np.uint64)
    return numbers[which.reshape(-1)] if len(different) else np.zeros(0, np.uint64)


def are_for_locks(waits: Entries) -> Any:
    return IS_LOCK[np.minimum(waits["kind"], np.uint64(len(IS_LOCK) - 1)).astype(np.intp)]
