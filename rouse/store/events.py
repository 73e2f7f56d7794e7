# SPDX-License-Identifier: MIT
"""The types and the sites of a store's events: see enum rsi_event in src/obs/store.h."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Entries, Store

ID_SHIFT = np.uint64(24)
TYPES = {name: number for number, name in enumerate(layout.EVENT_NAMES)}


def of(types: npt.NDArray[Any], *names: str) -> npt.NDArray[np.bool_]:
    chosen = np.zeros(256, np.bool_)
    chosen[[TYPES[name] for name in names]] = True
    return np.asarray(chosen[types])


def site_words(entries: Entries, types: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the sites. 0: the event has none."""
    return np.where(
        of(types, "run", "wait", "wake", "lock", "got", "mark", "mark_end"),
        entries["site"],
        np.uint64(0),
    )


def types_of(entries: Entries) -> npt.NDArray[Any]:
    return np.asarray((entries["what"] & np.uint64(0xFF)).astype(np.uint8))


def with_open_waits(store: Store) -> tuple[Entries, npt.NDArray[Any], npt.NDArray[np.int64]]:
    """Return the events, their writers and their numbers, with the waits under way.

    The interposer writes a wait's events when it ends. Until then the wait is in the thread's slot.
    """
    entries, numbers = store.arrays[layout.EVENTS], store.numbers
    owners = store.writer_of[layout.EVENTS]
    if not store.rings or store.head.recorder != layout.PRELOAD:
        return entries, owners, numbers
    slots = store.threads[store.threads["doing"] == layout.DOES_WAIT]
    begun = entries[types_of(entries) == TYPES["wait"]]
    known = set(zip((begun["what"] >> ID_SHIFT).tolist(), begun["tsc"].tolist(), strict=True))
    begins = zip(slots["id"].tolist(), slots["since_tsc"].tolist(), strict=True)
    slots = slots[np.array([begin not in known for begin in begins], np.bool_)]
    added = np.zeros(len(slots), layout.EVENT)
    added["tsc"], added["site"], added["value"] = (
        slots[name] for name in ("since_tsc", "wait_site", "object")
    )
    kinds = slots["kind"].astype(np.uint64) & np.uint64(0xFF)
    added["what"] = np.uint64(TYPES["wait"]) | kinds << np.uint64(8) | slots["id"] << ID_SHIFT
    writers = slots["worker"].astype(owners.dtype)
    last = [int(np.max(numbers[owners == writer], initial=-1)) for writer in writers.tolist()]
    return (
        np.concatenate([entries, added]),
        np.concatenate([owners, writers]),
        np.concatenate([numbers, np.array(last, np.int64) + 1]),
    )


def sites_used(store: Store) -> npt.NDArray[np.uint64]:
    entries = store.arrays[layout.EVENTS]
    return np.asarray(np.unique(site_words(entries, types_of(entries))))
