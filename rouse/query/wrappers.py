# SPDX-License-Identifier: MIT
"""Functions that only acquire a lock: their callers have it, and release it by another call.

A stack that acquires a lock then has another innermost function than those that release it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rouse.query import frames
from rouse.query.specs import Row
from rouse.tables.engine import Database
from rouse.tables.views import LOCK_KINDS, NOT_KNOWN, quoted, texts

SITES_MOST = 100  # the stacks with the longest waits
MOSTLY = 0.5
NEAR = 3  # calls between a function that has the lock and its wait


@dataclass(frozen=True)
class Wrapped:
    """The functions that acquire a lock by calling a wrapper."""

    waiter: str  # the label of the caller that waits longest
    callers: frozenset[str]  # the names of all
    name: str  # of the wrapper


@dataclass(frozen=True)
class Call:
    function: str
    address: int
    label: str


def find(row: Row, database: Database) -> Wrapped | None:
    """None: the functions that acquire the lock release it too, or this is not known."""
    waits = database.rows(f"""
SELECT wait_site, wake_site, SUM(wait_ns) AS wait_ns FROM wakes
WHERE process = {quoted(row["process"])} AND object = {row["lock"]}
    AND kind IN ({texts(LOCK_KINDS)}) AND wake_site <> '{NOT_KNOWN}'
GROUP BY wait_site, wake_site ORDER BY SUM(wait_ns) DESC LIMIT {SITES_MOST}
""")
    known = calls_at(row["process"], database, waits)
    pairs = [
        (known.get(wait["wait_site"], []), known.get(wait["wake_site"], []), wait["wait_ns"])
        for wait in waits
    ]
    pairs = [pair for pair in pairs if pair[0] and pair[1]]
    released = [call for _, waker, _ in pairs for call in waker]
    functions = {call.function for call in released}
    addresses = {call.address for call in released}
    by_caller: Counter[str] = Counter()
    by_wrapper: Counter[str] = Counter()
    labels: dict[str, str] = {}
    for waiter, _, wait_ns in pairs:
        caller = caller_of(waiter, functions, addresses)
        if caller is None:
            continue
        by_caller[caller.function] += wait_ns
        by_wrapper[waiter[0].function] += wait_ns
        labels.setdefault(caller.function, caller.label)
    if by_caller.total() <= MOSTLY * sum(wait_ns for *_, wait_ns in pairs):
        return None
    ((longest, _),) = by_caller.most_common(1)
    ((wrapper, _),) = by_wrapper.most_common(1)
    return Wrapped(labels[longest], frozenset(by_caller), wrapper)


def caller_of(waiter: list[Call], functions: set[str], addresses: set[int]) -> Call | None:
    """Return the innermost call that also releases the lock, if it is not the innermost one.

    functions, addresses: those of the stacks that release it. A function whose last call releases
    it may have left no frame then, but the place that called the function is in both stacks.
    """
    for number, call in enumerate(waiter):
        if call.function in functions:
            return call if number else None
        is_called = number + 1 < len(waiter) and waiter[number + 1].address in addresses
        if is_called:
            return call if number else None
    return None


def calls_at(process: str, database: Database, waits: Sequence[Row]) -> dict[str, list[Call]]:
    """Return the program's calls of each site with their labels, the innermost first."""
    sites = {wait[key] for wait in waits for key in ("wait_site", "wake_site")}
    if not sites:
        return {}
    rows = database.rows(
        f'SELECT site, "function", address, label, file, module FROM sites'
        f" WHERE process = {quoted(process)} AND site IN ({', '.join(map(quoted, sorted(sites)))})"
        " ORDER BY site, frame"
    )
    found: dict[str, list[Call]] = {}
    for row in rows:
        name = row["function"] or "_"
        is_own = name not in frames.BEGINNINGS and not frames.LIBRARY_NAMES.match(name)
        if is_own and not frames.is_library(row):
            found.setdefault(row["site"], []).append(Call(name, row["address"], row["label"]))
    return found


def longest_inside(
    wrapped: Wrapped, process: str, database: Database, kinds: Sequence[str]
) -> tuple[str, str]:
    """Return the place of the longest waits of these kinds in a caller, and where it calls that."""
    rows = database.rows(f"""
SELECT l.label AS label, s.label AS caller, SUM(w.wait_ns) AS wait_ns FROM wakes w
JOIN labels l ON l.process = w.process AND l.site = w.wait_site
JOIN sites s ON s.process = w.process AND s.site = w.wait_site
WHERE w.process = {quoted(process)} AND w.kind IN ({texts(kinds)}) AND s.frame <= {NEAR}
    AND s."function" IN ({", ".join(map(quoted, sorted(wrapped.callers)))})
GROUP BY l.label, s.label ORDER BY SUM(w.wait_ns) DESC LIMIT 1
""")
    return (rows[0]["label"], rows[0]["caller"]) if rows else ("", "")
