# SPDX-License-Identifier: MIT
"""Read words of threads that belong to one moment, while their writers change them.

A slot begins with its seq, which is odd while its other words change (struct rsi_store_thread).
Data read between two reads of the same even seq belong to one moment. The reads follow each other:
the seq from an earlier read is older than all data of a later one.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

TRIES = 4  # reads of all slots at once
ALONE_TRIES = 16  # then reads of each slot that kept changing: one by one is faster
ALONE_MOST = 64  # slots read one by one; no more threads than that run all the time
Rows = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]


class Source(Protocol):
    def read(self, offset: int, size: int) -> bytes: ...


def rows_of(raw: bytes, size: int) -> Rows:
    return np.frombuffer(raw, np.uint8).reshape(-1, size)


def seqs(rows: Rows) -> npt.NDArray[Any]:
    return np.ascontiguousarray(rows[:, :4]).view("<u4")[:, 0]


def settled(source: Source, at: int, size: int, first: bytes) -> tuple[Rows, Bools]:
    """Return the slots from `at` on, `size` bytes each; `first` is what was read a moment ago.

    Also return which slots kept changing: their words may belong to two moments.
    """
    chosen = rows_of(first, size).copy()
    todo = together(source, at, chosen)
    for row in todo[:ALONE_MOST].tolist():
        one = chosen[row : row + 1]  # a view
        if not len(together(source, at + size * row, one, ALONE_TRIES)):
            todo = todo[todo != row]
    is_torn = np.zeros(len(chosen), np.bool_)
    is_torn[todo] = True
    return chosen, is_torn


def together(source: Source, at: int, chosen: Rows, tries: int = TRIES) -> npt.NDArray[np.intp]:
    """Settle as many slots as possible, in place. Return the numbers of the others."""
    size = chosen.shape[1]
    todo = np.arange(len(chosen))
    before = seqs(chosen)
    for _ in range(tries):
        reads = [source.read(at, chosen.size) for _ in range(2)]
        if not len(todo) or min(len(raw) for raw in reads) < chosen.size:
            break
        middle, after = (rows_of(raw, size) for raw in reads)
        now = seqs(after)
        same = (before[todo] == now[todo]) & (now[todo] % 2 == 0)
        chosen[todo[same]] = middle[todo[same]]
        chosen[todo[~same]] = after[todo[~same]]
        todo, before = todo[~same], now
    return todo


def marked(rows: Rows, is_torn: Bools) -> bytes:
    """Mark torn slots in the bytes: their seq becomes odd, so that a reader recognises them."""
    out = rows.copy()
    out[is_torn, 0] |= 1
    return out.tobytes()
