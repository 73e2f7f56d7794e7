# SPDX-License-Identifier: MIT
"""A finding, and from which size on a wait is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rouse.query.measures import UNSEEN

LEAST_SHARE = 0.03  # of the threads' time, below which a wait is no finding
LEAST_NS = 5_000_000
LEAST_GAIN = 1.05
Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """gain_most and gain are factors of the throughput; None: not known."""

    kind: str
    object: str
    waiter: str
    holder: str
    blame_ns: int
    gain_most: float | None
    gain: float | None
    text: str


def most_of(rows: Iterable[Row], label: str) -> str:
    """The label that most of the waiting time has. Empty: none is known."""
    times: Counter[str] = Counter()
    for row in rows:
        times[row[label]] += row["wait_ns"]
    known = [name for name, _ in times.most_common() if name != UNSEEN]
    return known[0] if known else ""
