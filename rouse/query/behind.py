# SPDX-License-Identifier: MIT
"""Waits for one lock that another lock causes: its holders, or its next owners, wait for that.

The finding of the other lock has their blame too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rouse.query import frames, hot_locks, polling
from rouse.query.finding import Finding, Row, lock_words
from rouse.query.program import Program
from rouse.query.rwlocks import CONVOY
from rouse.tables.engine import Database
from rouse.text import counted, duration

MOSTLY = 0.5
NEAR_BYTES = 8  # between the words of a lock that is made of several futexes
Pair = tuple[Row, Finding | None]  # a lock, and what is known of it


def joined(pairs: Sequence[Pair], program: Program, database: Database) -> list[Finding]:
    """Return the findings on locks, with the waits behind them."""
    found = convoys(pairs, program, database)
    return [finding for _, finding in with_outer(found, program) if finding]


def with_outer(pairs: Sequence[Pair], program: Program) -> list[Pair]:
    """Add the waits for locks whose holders wait for another lock for most of their time."""
    left = list(pairs)
    behind: dict[int, list[Row]] = {}
    for row, finding in pairs:
        held = row["hold_ns"]
        if finding or not held or row["inside_lck_ns"] <= MOSTLY * held or not row["wait_ns"]:
            continue
        inner = [
            at
            for at, (other, known) in enumerate(left)
            if known and other["process"] == row["process"]
        ]
        if len(inner) == 1:  # else which of several they wait for is not known
            behind.setdefault(inner[0], []).append(row)
    for at, rows in behind.items():
        other, known = left[at]
        assert known
        waits: Counter[str] = Counter()
        for row in rows:
            longest = side_of(row, program)
            waits[longest["site_label"] if longest else "another thread"] += row["wait_ns"]
        (waiter, wait_ns), *_ = waits.most_common(1)
        elsewhere = sum(waits.values()) - wait_ns
        more = f"; {waiter} waits {duration(wait_ns)} behind it"
        more += f", and others {duration(elsewhere)}" if elsewhere else ""
        locks = "a lock" if len(rows) == 1 else counted(len(rows), "lock")
        more += f", for {locks} whose holders wait for this one"
        before, until, after = known.text.partition(". Without these waits")
        blame = known.blame_ns + sum(waits.values())
        left[at] = (other, replace(known, text=before + more + until + after, blame_ns=blame))
    return left


def side_of(row: Row, program: Program) -> Row | None:
    """Return where the longest waits for a lock are, and its holder."""
    sides = [
        side
        for side in program.sides
        if (side["process"], side["lock"]) == (row["process"], row["lock"])
    ]
    return max(sides, key=lambda side: side["wait_ns"], default=None)


def convoys(pairs: Sequence[Pair], program: Program, database: Database) -> list[Pair]:
    """Join the two words of a read-write lock, as Rust's: one for readers and one for writers.

    Readers wait until a writer releases the lock, and the writer waits until a reader does. Its
    release may be known by the function that called it: the call is the last thing that one does.
    """
    left = list(pairs)
    waits = {
        id(row): side
        for row, finding in pairs
        if finding and not row["hold_ns"] and (side := side_of(row, program))
    }
    calls = frames.functions(database, {side["site"] for side in waits.values()}) if waits else {}
    for row, readers in pairs:
        for at, (other, writers) in enumerate(left):
            if not readers or not writers or other is row or row["process"] != other["process"]:
                continue
            is_near = 0 < abs(row["lock"] - other["lock"]) <= NEAR_BYTES
            if not is_near or id(row) not in waits or id(other) not in waits:
                continue
            waiting = waits[id(other)]
            passed = calls.get((waiting["process"], waiting["site"]), [])
            names = {function.name for function in passed}
            if polling.function_of(readers.holder) not in names:
                continue
            place = hot_locks.longest_inside(database, waiting, hot_locks.WAITS_INSIDE)[0]
            during = f", while it waits at {place}" if place else ""
            waited, behind = map(duration, (writers.blame_ns, readers.blame_ns))
            gain = (
                f" Without these waits at most {readers.gain_most:.2f}x, about"
                f" {readers.gain:.2f}x the throughput"
                if readers.gain_most and readers.gain
                else ""
            )
            called = lock_words(other, writers.waiter)
            text = (
                f"{called}: {writers.holder} holds it as a reader{during}. Writers wait for that at"
                f" {writers.waiter}, {waited} in all, and other readers wait behind them at"
                f" {readers.waiter}, {behind} in all.{gain} [{CONVOY}]"
            )
            blame = readers.blame_ns + writers.blame_ns
            left[at] = (
                other,
                replace(
                    writers,
                    kind=CONVOY,
                    waiter=readers.waiter,
                    blame_ns=blame,
                    text=text,
                    gain_most=readers.gain_most,
                    gain=readers.gain,
                ),
            )
            left = [(r, None if r is row else f) for r, f in left]
            break
    return left
