# SPDX-License-Identifier: MIT
"""A finding, and from which size on a wait is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rouse.query.measures import UNSEEN
from rouse.query.specs import address
from rouse.tables.views import FUTEX_LOCK, NOT_KNOWN
from rouse.text import UNKNOWN, duration

LEAST_SHARE = 0.03  # of the threads' time, below which a wait is no finding
LEAST_NS = 5_000_000
LEAST_GAIN = 1.05
SMALL_POOL = "small-pool"  # a kind that several rules find
SYNC = "sync"
IO_KINDS = ("read", "write", SYNC, "connect", "poll", "set", "epoll", "message")
DESCRIPTORS = ("poll", "set", "epoll")  # waits for one of several descriptors
PAUSES = ("sleep", "read", "write", SYNC, "connect", "message")  # for no other thread's sake
CALLED = {FUTEX_LOCK: "lock", "read lock": "rwlock", "write lock": "rwlock"}  # by kind
Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """gain_most and gain are factors of the throughput; None: not known.

    sooner_ns is set instead where the load limits the throughput: how much less an acquisition of
    the lock takes without the waits. held is the share of 1 of the time for which a lock is held,
    and held_error twice its standard error, where the holds are a sample.
    """

    kind: str
    object: str
    waiter: str
    holder: str
    blame_ns: int
    gain_most: float | None
    gain: float | None
    text: str
    held: float | None = None
    held_error: float | None = None
    sooner_ns: float | None = None

    @property
    def brief(self) -> str:
        """The finding in a few words, for where there is no room for its text."""
        what = self.object if self.object not in ("", UNKNOWN) else self.waiter
        at = f" at {self.waiter}" if self.waiter and self.waiter != what else ""
        most = f", at most {self.gain_most:.2f}x" if self.gain_most else ""
        return f"{self.kind}: {what}, {duration(self.blame_ns)} waited{at}{most}"


def most_of(rows: Iterable[Row], label: str) -> str:
    """The label that most of the waiting time has. Empty: none is known."""
    times: Counter[str] = Counter()
    for row in rows:
        times[row[label]] += row["wait_ns"]
    known = [name for name, _ in times.most_common() if name != UNSEEN]
    return known[0] if known else ""


def lock_name(row: Row) -> str:
    """The name of a lock, or the place that initialised it, or its address."""
    if row["lock_name"]:
        return str(row["lock_name"])
    if row["init_site"] != NOT_KNOWN:
        return f"the {row['kind']} of {row['init_label']}"
    return address(row["lock"])


def lock_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of locks, each once."""
    names = Counter(lock_name(row) for row in rows)
    return [f"{name} ({n} locks)" if n > 1 else name for name, n in names.items()]


def lock_words(row: Row, place: str) -> str:
    """Return the words for a lock in a text. place: the label of a site that acquires it.

    A lock that is known by its address alone is called one of the class whose method that is.
    """
    name = lock_name(row)
    if name != address(row["lock"]):
        return name
    scope, _, _ = place.rpartition(" ")[0].rpartition("::")
    return f"a {CALLED.get(row['kind'], row['kind'])} of {scope} ({name})" if scope else name
