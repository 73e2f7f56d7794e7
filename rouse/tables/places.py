# SPDX-License-Identifier: MIT
"""Replace call stacks by places: the innermost call outside of libraries.

The tables of the text have one row per place. A program's stacks are many, and most differ only in
callers that say nothing about the wait. All else is made from whole stacks, the verdict too.

A program may have a function of its own in which all of its threads wait, for many reasons. Its
callers say which. So the stacks of a place are divided where they part, if much of the program's
waiting is on one side: `WaitEventSetWait from XactLockTableWait`. Locks are not divided: their name
says what a thread waits for.

A holder's site is always one address, since a free lock walks no stack. If it lies in a library
(std::mutex::lock, not inlined), the stacks of waits from there tell who calls it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

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
LOCK_KINDS = ("mutex", "read lock", "write lock", "futex lock", "file lock")
MOSTLY = 0.5  # of the waits at a site
DIVIDED_LEAST = 0.01  # of all waiting of a process
DIVIDED_PART = 0.1  # of all waiting at a place
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


@dataclasses.dataclass
class Places:
    """The place that stands for each site.

    place: an address, or one of several stacks with the same innermost address. stacks: the stack
    with the longest wait, by place. callers: the number of the frame that divides, by site of a
    divided place. several: the places that are no part of a division, and have several callers.
    """

    place: dict[int, int] = dataclasses.field(default_factory=dict)
    stacks: dict[int, int] = dataclasses.field(default_factory=dict)
    callers: dict[int, int] = dataclasses.field(default_factory=dict)
    several: set[int] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(frozen=True)
class Path:
    site: int
    waited: float
    frames: Sequence[sites.Frame]


def paths_of(store: Store, known: sites.Sites, column: str) -> list[Path]:
    """Return the stacks in this column of the wake-ups, that of the longest wait last."""
    wakes = store.arrays[layout.WAKES]
    words, which = np.unique(wakes[column], return_inverse=True)
    waited = np.zeros(len(words))
    np.add.at(waited, which.reshape(-1), wakes["wait_ticks"].astype(np.float64))
    order = np.argsort(waited, kind="stable")
    sites_of = [(int(words[i]), float(waited[i])) for i in order]
    return [Path(site, ticks, known.frames(site)) for site, ticks in sites_of if site]


def undivided(store: Store) -> set[int]:
    """Return the sites of waits that are not divided.

    Where a wait for a condition ends, a thread waits for the condition's mutex too, but not mostly.
    """
    wakes = store.arrays[layout.WAKES]
    whole = [layout.KIND_NAMES.index(kind) for kind in (*LOCK_KINDS, "sleep")]
    words, which = np.unique(wakes["wait_site"], return_inverse=True)
    waited = wakes["wait_ticks"].astype(np.float64)
    of_whole = np.where(np.isin(wakes["kind"], whole), waited, 0)
    sums = (np.bincount(which.reshape(-1), each, len(words)) for each in (of_whole, waited))
    part, all_waited = sums
    return set(words[(part > MOSTLY * all_waited) | (all_waited == 0)].tolist())


def divided(paths: list[Path], depth: int, least: float) -> list[tuple[int, list[Path]]]:
    """Divide stacks that are equal up to depth. Returns the parts, with the frames that name them.

    0: no caller names it. Parts with a wait below least stay together.
    """
    sides: dict[int, list[Path]] = {}
    for path in paths:
        if depth + 1 < len(path.frames):
            sides.setdefault(path.frames[depth + 1].address, []).append(path)
    long = [side for side in sides.values() if sum(path.waited for path in side) >= least]
    if not long:
        return [(0, paths)]
    if len(long) == 1 and len(long[0]) == len(paths):
        return divided(paths, depth + 1, least)
    found = []
    for side in long:
        for named, part in divided(side, depth + 1, least):
            found.append((named or depth + 1, part))
    taken = {path.site for side in long for path in side}
    rest = [path for path in paths if path.site not in taken]
    return found + ([(0, rest)] if rest else [])


def find(store: Store, known: sites.Sites) -> Places:
    paths, whole = paths_of(store, known, "wait_site"), undivided(store)
    places, by_address = Places(), dict[int, list[Path]]()
    for path in paths:
        by_address.setdefault(path.frames[0].address, []).append(path)
    all_waited = sum(path.waited for path in paths)
    for address, some in by_address.items():
        parts = [(0, some)]
        waited = sum(path.waited for path in some)
        least = max(DIVIDED_LEAST * all_waited, DIVIDED_PART * waited)
        if waited and not any(path.site in whole for path in some):
            parts = divided(some, 0, least)
        for depth, part in parts:
            longest = part[-1]
            place = longest.site if depth else address
            places.stacks[place] = longest.site
            places.place.update((path.site, place) for path in part)
            if depth:
                places.callers.update((path.site, depth) for path in part)
            elif len(part) > 1:
                places.several.add(place)
    for path in reversed(paths_of(store, known, "wake_site")):
        places.stacks.setdefault(path.frames[0].address, path.site)
    return places


def by_place(store: Store, known: sites.Sites, places: Places) -> Store:
    """Return the store with every site replaced by its place."""

    def place(site: int) -> int:
        return places.place[site] if site in places.place else place_of(known, site)

    return replaced(store, COLUMNS, place)


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
