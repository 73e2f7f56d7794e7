# SPDX-License-Identifier: MIT
"""Replace call stacks by places: the innermost call outside of libraries.

Text has one row per place. A program's stacks are many, and most differ only in callers that say
nothing about the wait. The other formats have whole stacks. Of the stacks of a place, the callers
of the one with the longest wait are kept, since some findings are recognised by them.

A holder's site is always one address, since a free lock walks no stack. If it lies in a library
(std::mutex::lock, not inlined), the stacks of waits from there tell who calls it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Entries, Store
from rouse.symbols import sites

Words = npt.NDArray[np.uint64]
# By kind of entries, their columns of sites.
COLUMNS = {
    layout.WAKES: ("wait_site", "wake_site"),
    layout.LOCKS: ("site", "holder_site"),
    layout.THREADS: ("wait_site", "wake_site", "contest_holder"),
    layout.WRITERS: ("repeated_site", "yield_site"),
}
HOLDERS = {layout.LOCKS: ("holder_site",), layout.THREADS: ("contest_holder",)}


def replaced(
    store: Store, columns: Mapping[int, tuple[str, ...]], place: Callable[[int], int]
) -> Store:
    """Return the store with each site of these columns replaced."""
    arrays = dict(store.arrays)
    for kind, names in columns.items():
        entries: Entries = arrays[kind].copy()
        for name in names:
            words, which = np.unique(entries[name], return_inverse=True)
            places = np.array([place(word) for word in words.tolist()], np.uint64)
            if len(places):
                entries[name] = places[which.reshape(-1)]
        arrays[kind] = entries
    return dataclasses.replace(store, arrays=arrays)


def place_of(known: sites.Sites, site: int) -> int:
    return known.frames(site)[0].address if site else 0


def longest(store: Store, known: sites.Sites) -> dict[int, int]:
    """Return, for each place where threads waited, the site of the stack with the longest wait."""
    wakes = store.arrays[layout.WAKES]
    words, which = np.unique(wakes["wait_site"], return_inverse=True)
    waited = np.zeros(len(words))
    np.add.at(waited, which.reshape(-1), wakes["wait_ticks"].astype(np.float64))
    ordered = words[np.argsort(waited, kind="stable")].tolist()
    return {place_of(known, site): site for site in ordered}  # the last one of a place stays


def by_place(store: Store, known: sites.Sites) -> Store:
    """Return the store with every site replaced by its place."""
    return replaced(store, COLUMNS, lambda site: place_of(known, site))


def with_callers(store: Store, known: sites.Sites) -> Store:
    """Return the store with the sites of holders in libraries replaced by their only callers."""
    places: dict[int, set[int]] = {}
    for number in range(len(known.stacks)):
        site = number | layout.SITE_STACK
        frames = known.frames(site)
        if frames and not frames[0].is_library:
            places.setdefault(known.addresses(site)[0], set()).add(frames[0].address)

    def caller(site: int) -> int:
        found = places.get(site, set())
        return next(iter(found)) if len(found) == 1 else site

    if all(place == {address} for address, place in places.items()):
        return store
    return replaced(store, HOLDERS, caller)
