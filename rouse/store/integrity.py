# SPDX-License-Identifier: MIT
"""Check whether a shared file that nobody writes any more has lost entries."""

from __future__ import annotations

import numpy as np

from rouse.store import layout


def of_directory(count: int, words: bytes, after: bytes, lost_chunks: int) -> list[str]:
    """Check that every counted chunk has a place, except those that found no room.

    after: the word that follows.
    """
    found = []
    whole = words[: len(words) // 4 * 4]
    missing = len(whole) // 4 - int(np.count_nonzero(np.frombuffer(whole, "<u4")))
    if missing and not lost_chunks:
        found.append(f"the directory is damaged: it lacks {missing} of {count} chunks")
    if count < layout.CHUNKS_MAX and any(after):
        found.append(f"the directory is damaged: it has more than {count} chunks")
    return found


def of_count(index: int, used: int, after: bytes) -> list[str]:
    """Check the entries after the last: the first may have been begun, the second may not."""
    return [f"chunk {index} is damaged: it has more than {used} entries"] if any(after) else []
