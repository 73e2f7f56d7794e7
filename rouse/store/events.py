# SPDX-License-Identifier: MIT
"""The types and the sites of a store's events: see enum rsi_event in src/obs/store.h."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Entries, Store

TYPES = {name: number for number, name in enumerate(layout.EVENT_NAMES)}


def of(types: npt.NDArray[Any], *names: str) -> npt.NDArray[np.bool_]:
    chosen = np.zeros(256, np.bool_)
    chosen[[TYPES[name] for name in names]] = True
    return np.asarray(chosen[types])


def site_words(entries: Entries, types: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the sites. 0: the event has none."""
    return np.where(of(types, "run", "wait", "wake", "lock", "got"), entries["site"], np.uint64(0))


def types_of(entries: Entries) -> npt.NDArray[Any]:
    return np.asarray((entries["what"] & np.uint64(0xFF)).astype(np.uint8))


def sites_used(store: Store) -> npt.NDArray[np.uint64]:
    entries = store.arrays[layout.EVENTS]
    return np.asarray(np.unique(site_words(entries, types_of(entries))))
