# SPDX-License-Identifier: MIT
"""Count waits for locks that are futex words as waits for locks.

A store has a futex wait under the word, its site and the site that woke it. Whether the word is a
lock shows only in the names of the functions at the site, which the recorded process does not know.
So the decoder makes rows of locks from such waits. The last holder is known by the place that
released the lock, since that is what woke the waiter. Where it acquired the lock is not recorded.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Entries, Store
from rouse.symbols import sites

MUTEX, SEM = (layout.MICRO.index(name) for name in ("mutex", "sem"))
LOST_RACE, TIMEOUT = (layout.VERDICTS.index(name) for name in ("lost_race", "timeout"))


def as_locks(store: Store, known: sites.Sites) -> Store:
    """Return the store with waits for futexes that are locks under their own kind."""
    wakes, slots = store.arrays[layout.WAKES], store.slots
    words = np.unique(np.concatenate([of_futexes(wakes), of_futexes(slots)]))
    places = np.array([word for word in words.tolist() if known.is_for_lock(word)], np.uint64)
    if not len(places):
        return store
    arrays, writer_of = dict(store.arrays), dict(store.writer_of)
    arrays[layout.WAKES], is_wake = renamed(wakes, places)
    arrays[layout.THREADS], _ = renamed(slots, places)
    owners = store.writer_of[layout.WAKES][is_wake]
    arrays[layout.LOCKS] = np.concatenate([arrays[layout.LOCKS], rows_of(wakes[is_wake])])
    writer_of[layout.LOCKS] = np.concatenate([writer_of[layout.LOCKS], owners])
    arrays[layout.WRITERS] = store.writers.copy()
    move_states(arrays, owners, wakes["wait_ticks"][is_wake])
    return dataclasses.replace(store, arrays=arrays, writer_of=writer_of)


def of_futexes(entries: Entries) -> npt.NDArray[np.uint64]:
    return np.asarray(entries["wait_site"][entries["kind"] == layout.FUTEX])


def renamed(entries: Entries, places: npt.NDArray[np.uint64]) -> tuple[Entries, Any]:
    """Return the entries with the kind of locks at these places, and which these are."""
    is_lock = (entries["kind"] == layout.FUTEX) & np.isin(entries["wait_site"], places)
    out = entries.copy()
    out["kind"][is_lock] = layout.FUTEX_LOCK
    return out, is_lock


def rows_of(wakes: Entries) -> Entries:
    """Return one row of locks for each of the wake-ups. Each sleep counts as a wait.

    A thread whose word changed before it slept has not waited: only its time counts.
    """
    out = np.zeros(len(wakes), layout.LOCK)
    out["kind"] = layout.FUTEX_LOCK
    for name, source in (
        *(("lock", "object"), ("site", "wait_site"), ("holder_site", "wake_site")),
        *((name, name) for name in ("name", "wait_ticks", "wait_most")),
    ):
        out[name] = wakes[source]
    counts = wakes["count"]
    out["contested"] = counts.sum(axis=1) - counts[:, LOST_RACE]
    out["given_up"] = counts[:, TIMEOUT]
    out["acquired"] = out["contested"] - out["given_up"]
    return out


def move_states(arrays: dict[int, Entries], owners: Any, ticks: Any) -> None:
    """Move the time of these waits from the state of semaphores to that of mutexes.

    A slot has one sum per state. The waits are known by kernel thread, so that the sums are right
    for a thread that lives. Threads that used one kernel thread's entries one after another share
    their waits: the one that still lives gets as many as it can have, and the ended ones the rest.
    Groups of ended threads get it by their time in that state.
    """
    numbers, which = np.unique(owners, return_inverse=True)
    left = np.zeros(len(numbers), np.uint64)
    np.add.at(left, which.reshape(-1), ticks)
    slots, writers = arrays[layout.THREADS], arrays[layout.WRITERS]
    for sums, owner in ((slots["ticks"], slots["worker"]), (writers["ended_ticks"], None)):
        # Each kernel thread has one slot at most: of a damaged store, the first counts.
        known, first = np.unique(writers["index"] if owner is None else owner, return_index=True)
        _, of, at = np.intersect1d(numbers, known, return_indices=True)
        rows = first[at]
        moved = np.minimum(left[of], sums[rows, SEM])
        sums[rows, SEM] -= moved
        sums[rows, MUTEX] += moved
        left[of] -= moved
    groups = arrays[layout.GROUPS] = arrays[layout.GROUPS].copy()
    sems = np.where(groups["is_user"] == 0, groups["ticks"][:, SEM], 0).astype(np.float64)
    if not sems.sum():
        return
    shares = (sems * min(float(left.sum()) / sems.sum(), 1.0)).astype(np.uint64)
    groups["ticks"][:, SEM] -= shares
    groups["ticks"][:, MUTEX] += shares
