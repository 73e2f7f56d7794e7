# SPDX-License-Identifier: MIT
"""Find equal call stacks among those of a store."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import Store


def canonical(store: Store, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Replace each site by the least number of an equal stack: each writer numbers its own."""
    stacks = store.arrays[layout.STACKS]
    out = words.astype(np.uint64)
    if not len(stacks):
        return out
    frames = stacks["frames"].copy()
    frames[np.arange(frames.shape[1]) >= stacks["depth"][:, None]] = 0
    _, least, which = np.unique(frames, axis=0, return_index=True, return_inverse=True)
    first = least[which.reshape(-1)].astype(np.uint64)
    mark = np.uint64(layout.SITE_STACK)
    numbers = out & ~mark
    known = ((out & mark) != 0) & (numbers < len(first))
    out[known] = first[numbers[known].astype(np.intp)] | mark
    return out
