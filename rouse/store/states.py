# SPDX-License-Identifier: MIT
"""Sum up each thread's time by microstate up to a moment, including the present state.

It works on whole arrays: `rouse top` does this each second for all threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Entries

Ticks = npt.NDArray[np.uint64]
WAITING = np.array([name not in ("usr", "lat") for name in layout.MICRO])
# Waits for something that another thread holds: never idle, however long they last.
HELD = np.array([name in ("mutex", "rwlock") for name in layout.MICRO])


@dataclass(frozen=True)
class States:
    """Each entry's present microstate, since when, and its time in each microstate."""

    state: npt.NDArray[np.intp]
    since_tsc: Ticks
    ticks: Ticks  # one row an entry, one column a microstate


def micro_of(kinds: npt.NDArray[np.uint16]) -> npt.NDArray[np.intp]:
    """Return the microstate of a wait of this kind."""
    known = np.where(kinds < len(layout.MICRO_OF_KIND), kinds, 0)
    return np.asarray(layout.MICRO_OF_KIND[known])


def span(begin: Ticks, end: Ticks) -> Ticks:
    """Return end - begin, or 0 where the time stamps of two processors disagree."""
    return np.where(end > begin, end - begin, np.uint64(0))


def scaled(ticks: Ticks, lives: Ticks, which: npt.NDArray[np.bool_]) -> Ticks:
    """Return the states of the entries in which so that they add up to their lives.

    Where a worker timed only some of its switches, each state is an estimate, and so is their sum.
    The life is known. An entry without any timed switch stays as it is.
    """
    sums = ticks.sum(axis=1, dtype=np.float64)
    factors = np.where(which & (sums > 0), lives / np.where(sums > 0, sums, 1), 1.0)
    return np.where((factors == 1.0)[:, None], ticks, (ticks * factors[:, None]).astype(np.uint64))


def fold(slots: Entries, now_tsc: int) -> States:
    now = np.full(len(slots), max(now_tsc, 0), np.uint64)
    doing, since, wake = slots["doing"], slots["since_tsc"], slots["wake_tsc"]
    waits = doing == layout.DOES_WAIT
    woken = waits & (wake >= since) & (wake != 0)
    for_clients = slots["is_for_clients"] != 0
    wait_state = np.where(for_clients, layout.ACCEPT, micro_of(slots["kind"]))

    state = np.full(len(slots), layout.LAT, np.intp)
    state[doing == layout.DOES_RUN] = layout.USR
    asleep = waits & ~woken
    state[asleep] = wait_state[asleep]
    begin = np.where(woken, wake, since)
    begin = np.where(doing == layout.DOES_RUN, slots["run_tsc"], begin)

    ticks = slots["ticks"].copy()
    rows = np.arange(len(slots))
    nothing = doing == layout.DOES_NOTHING
    ticks[rows, state] += np.where(nothing, np.uint64(0), span(begin, now))
    ticks[rows[woken], wait_state[woken]] += span(since, wake)[woken]
    return States(state, begin, ticks)
