# SPDX-License-Identifier: MIT
"""Locks that threads wait for: how long each is held, what its holder does, and what that costs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rouse.query import apart, frames, gain, onions, rwlocks, wrappers
from rouse.query.demand import (
    IO_SAVES_NS,
    SLEEP_SAVES_NS,
    contention_of,
    ended_early,
    evened,
    key_of,
    least_ran,
    own_of,
    phase_of,
    unseen,
)
from rouse.query.finding import (
    IO_KINDS,
    LEAST_GAIN,
    LEAST_NS,
    LEAST_SHARE,
    SYNC,
    Finding,
    Row,
    lock_name,
    lock_names,
    lock_words,
    most_of,
)
from rouse.query.program import STATES, Program
from rouse.tables.engine import Database
from rouse.tables.views import quoted, texts
from rouse.text import duration, share

HOT_LOCK, UNDER_LOCK = "hot-lock", "wait-under-lock"
NEAR = 3  # calls between a function that holds a lock and its wait
WAITS_INSIDE = ("sleep", *IO_KINDS)
SATURATED = 0.9  # a lock that is held for more of the time is not free when a request comes
WOKEN_OFTEN = 3.0  # times for each wait for a lock, from which on the verdict says it
LEAST_ERROR = 0.005  # of a share, which is then printed
ERROR_MOST = 0.3  # of a share, from which on it is not stated
MOSTLY = 0.5
NAMED_MOST = 3  # locks in one finding


def sharing(row: Row, program: Program) -> list[Row]:
    """The threads of the lock's process that wait for locks."""
    own = [t for t in program.threads if t.get("process") == row["process"]]
    return [t for t in own if (t["mutex"] or 0) + (t["rwlock"] or 0) > 0]


def is_open(row: Row, busy: float, program: Program) -> bool:
    """Whether the load on a lock does not depend on how soon its threads are done.

    A thread is free at any time, and so is the lock at times: requests do not queue for threads,
    so that more of them would be served if more came.
    """
    free_ns = program.sum("cond", "sem", "poll", "accept", rows=sharing(row, program))
    return busy < SATURATED and free_ns >= phase_of(row, program)


def load_of(row: Row, program: Program) -> gain.Load:
    """The load that the threads with waits for locks make, while this lock is contended.

    Threads and locks of other processes only share the processors. Of other locks and of the
    processors only the sums over the whole run are known.
    """
    beside = [lock for lock in program.locks if lock["process"] == row["process"]]
    threads = sharing(row, program)
    phase = phase_of(row, program)
    part = phase / max(program.wall_ns, phase)
    others = program.sum("cond", "sem", "join", "poll", "accept", rows=threads)
    at_work = max(program.sum(*STATES, rows=threads) - others, row["wait_ns"])
    ran, io, sleep = (program.sum(state, rows=threads) for state in ("usr", "io", "sleep"))
    held_ns = own_of(row).held_ns
    beside_ns = unseen(held_ns, row["wait_ns"], ("mutex", "rwlock"), threads, program)
    unseen_ns = unseen_inside(row, threads, program)
    slept = io + sleep + beside_ns + unseen_ns
    count = (at_work + beside_ns) / phase * ended_early(row, threads, program, beside_ns)
    waits = sum(thread["waits"] for thread in threads)
    contested, acquired = (sum(lock[key] for lock in beside) for key in ("contested", "acquired"))
    saves = (io * IO_SAVES_NS + sleep * SLEEP_SAVES_NS) / slept if slept else 0.0
    return gain.Load(
        wall_ns=phase,
        threads=count,
        processors=program.processors,
        ran_ns=ran,
        slept_ns=slept,
        least_ran_ns=least_ran(ran, waits, program, acquired),
        least_slept_ns=max(slept - max(waits - contested, 0) * saves, slept / 2),
        all_ran_ns=least_ran(program.ran_ns, waits, program, acquired) * part,
        others_ran_ns=program.others_ran_ns * part,
        locks=evened(
            {
                key_of(other): own_of(
                    other, 1 if other is row else part, contention_of(other, ran, waits, program)
                )
                for other in beside
            },
            beside,
            count,
        ),
    )


def unseen_inside(row: Row, threads: Sequence[Row], program: Program) -> float:
    """For how long holders of the lock waited for something that is not seen.

    The holds are longer than the waits in them and the CPU time of all threads, which also slept in
    calls that are not seen.
    """
    ran, asleep = (program.sum(state, rows=threads) for state in ("usr", "in_call"))
    return min(max(own_of(row).ran_ns - ran, 0.0), asleep)


def longest_inside(database: Database, side: Row, kinds: Sequence[str]) -> tuple[str, int]:
    """The place of the longest waits of these kinds in the function that holds the lock, or ''.

    And how long they were, with those before and after the lock.
    """
    rows = database.rows(f"""
SELECT w.process, w.wait_site, MAX(l.label) AS label, SUM(w.wait_ns) AS wait_ns FROM wakes w
JOIN labels l ON l.process = w.process AND l.site = w.wait_site
JOIN sites s ON s.process = w.process AND s.site = w.wait_site
JOIN sites h ON h.process = w.process AND h.frame = 0 AND (
    h."function" = s."function" OR s.within LIKE '%' || h."function" || '%'
)
WHERE h.process = {quoted(side["process"])} AND h.site = {quoted(side["holder_site"])}
    AND w.kind IN ({texts(kinds)}) AND s.frame <= {NEAR}
GROUP BY w.process, w.wait_site ORDER BY SUM(w.wait_ns) DESC LIMIT 1
""")
    if not rows or not rows[0]["label"]:
        return "", rows[0]["wait_ns"] if rows else 0
    known = frames.functions(database, {rows[0]["wait_site"]})
    label = frames.label_of(rows[0], known, frames.without_helpers(known))
    return label, rows[0]["wait_ns"]


def woken_often(row: Row, program: Program) -> str:
    """Say how often a waiter is woken until it has the lock, if others mostly take it first."""
    lost = sum(
        wake["lost_race"] + wake["false_"]
        for wake in program.wakes
        if wake["process"] == row["process"]
        and (wake["kind"], wake["object"], wake["objects"]) == (row["kind"], row["lock"], 1)
    )
    each = 1 + lost / max(row["contested"], 1)
    return f", and is woken {each:,.0f} times until it has the lock" if each >= WOKEN_OFTEN else ""


def longest_wait(row: Row) -> tuple[int, str]:
    """A key for the lock with the longest waits, also where several have waits as long."""
    return row["wait_ns"], str(key_of(row))


def gains_without(row: Row, load: gain.Load, program: Program) -> tuple[float, float, str]:
    """Return the bound and the estimate without the waits for the lock, and words for more locks.

    Those words are of locks without which the program gains much more.
    """
    key, own = key_of(row), apart.find(row, program)
    if own is None:
        most, expected = gain.bound(load, [key]), gain.estimate(load, [key])
        more = onions.further(key, load, program) if most >= LEAST_GAIN else ""
        return most, expected, more
    most, expected = apart.gains(load, [key], [own.part])
    rows = {key_of(other): other for other in program.locks}
    if max([row, *(rows[other] for other in own.others)], key=longest_wait) is not row:
        return most, expected, ""  # the text of the first one names all
    keys = [key, *own.others]
    parts = [each.part for other in keys if (each := apart.find(rows[other], program))]
    all_most, all_expected = apart.gains(load, keys, [part / sum(parts) for part in parts])
    names = lock_names([rows[other] for other in own.others])
    left = len(names) - NAMED_MOST
    named = ", ".join(names[:NAMED_MOST]) + (f" and {left} more" if left > 0 else "")
    more = (
        f"; without those of other threads for {named} too at most {all_most:.2f}x, about"
        f" {all_expected:.2f}x"
    )
    return most, expected, more


def find(row: Row, program: Program, database: Database) -> Finding | None:
    whole = program.sum(*STATES) - program.sum("join", "accept")
    if row["wait_ns"] < max(LEAST_SHARE * whole, LEAST_NS):
        return None
    key = key_of(row)
    sides = [side for side in program.sides if key_of(side) == key]
    longest = max(sides, key=lambda side: side["wait_ns"], default=None)
    waiter = most_of(sides, "site_label")
    # A holder that found the lock free has noted one address alone, which may be in a library.
    known = [side for side in sides if not frames.LIBRARY_NAMES.match(side["holder_label"] or "")]
    holder = most_of(known or sides, "holder_label")
    name = lock_name(row)
    role = rwlocks.role_at(database, row, holder) if row["kind"] in rwlocks.KINDS else ""
    called = lock_words(row, holder or waiter)
    inside = None  # the place of the holder's longest waits, if a wrapper hides it
    wrapped = wrappers.find(row, database)
    if wrapped:
        inside = wrappers.longest_inside(wrapped, row["process"], database, WAITS_INSIDE)
        waiter, holder = wrapped.waiter, inside[1]
    whom = "another thread there" if holder and holder == waiter else holder
    waits = (
        f"{waiter or 'a thread'}{f', in {wrapped.name},' if wrapped else ''} waits"
        f" {duration(row['wait_ns'])} in all for"
        f" {whom or 'a holder that is not known'}{role and f', {role}'}{woken_often(row, program)}"
    )
    own, load = own_of(row), load_of(row, program)
    if not row["hold_ns"]:
        most, expected = gain.bound(load, [key]), gain.estimate(load, [key])
        if most < LEAST_GAIN:
            return None
        kind, does = HOT_LOCK, ""
        at, wait_ns = longest_inside(database, longest, WAITS_INSIDE) if longest else ("", 0)
        if wait_ns > MOSTLY * phase_of(row, program):
            kind, does = UNDER_LOCK, f", which waits {duration(wait_ns)} in all at {at} meanwhile"
        text = (
            f"{called}: {waits}{does}. How long the lock is held was not recorded. Without these"
            f" waits at most {most:.2f}x, about {expected:.2f}x the throughput [{kind}]"
        )
        return Finding(kind, name, waiter, holder, row["wait_ns"], most, expected, text)
    busy = min(own.held_ns / load.wall_ns, 1.0)
    if row["inside_lck_ns"] > MOSTLY * row["hold_ns"] and busy < MOSTLY:
        return None  # its holders wait for another lock, which is to blame
    most, expected, more = gains_without(row, load, program)
    if most < LEAST_GAIN and not more:
        return None
    if role == rwlocks.WRITER and whom == holder and busy < 1:
        # The readers alone wait, and work in the rest of the time.
        by_processors = load.processors * load.wall_ns / max(load.all_ran_ns, 1.0)
        alone = min(1 / (1 - busy), by_processors)
        most, expected = max(most, gain.allowed(alone)), max(expected, alone)
    is_unseen = unseen_inside(row, sharing(row, program), program) > MOSTLY * own.held_ns
    kind = UNDER_LOCK if is_unseen or own.slept_ns > MOSTLY * own.held_ns else HOT_LOCK
    does, is_on_disk = "", False
    if is_unseen:
        does = ", while its holder waits in system calls that are not seen"
    elif kind == UNDER_LOCK:
        is_asleep = row["inside_sleep_ns"] > row["inside_io_ns"]
        kinds = ("sleep",) if is_asleep else IO_KINDS
        at = longest_inside(database, longest, kinds)[0] if longest else ""
        at = inside[0] if inside else at
        does = f", while its holder {'sleeps' if is_asleep else 'waits for I/O'}"
        does += f" at {at}" if at else ""
        on_disk = longest_inside(database, longest, (SYNC,))[0] if longest else ""
        is_on_disk = bool(at) and at == on_disk
    error = 2 * math.sqrt(row["hold_variance"]) / load.wall_ns
    is_known = error < ERROR_MOST
    around = f" ± {100 * error:.0f}" if error >= LEAST_ERROR else ""
    part = f"{share(busy)}{around} % of the time, {duration(row['hold_ns'] / row['holds'])} each"
    if not is_known:
        part = "for a part of the time that too few timed holds tell"
    text = f"{called} is held {part}{does}: {waits}. Without these waits"
    sooner = None
    if is_open(row, busy, program):
        gains: tuple[float | None, float | None] = (None, None)
        sooner = row["wait_ns"] / max(row["acquired"], row["contested"], 1)
        text += (
            f" each acquisition takes {duration(sooner)} less; the throughput stays, since it is"
            f" limited by the load: threads are free for more [{kind}]"
        )
    elif is_unseen:
        gains = (most, None)
        text += (
            f" at most {most:.2f}x the throughput, less if what they wait for serves one thread"
            f" after the other [{kind}]"
        )
    elif is_on_disk:
        gains = (most, None)
        text += (
            f" at most {most:.2f}x the throughput, less if the disk serves one thread after the"
            f" other [{kind}]"
        )
    else:
        gains = (most, expected if is_known else None)
        about = f", about {expected:.2f}x" if is_known else ""
        text += f" at most {most:.2f}x{about} the throughput"
        text += f"{more} [{kind}]"
    return Finding(*(kind, name, waiter, holder, row["wait_ns"], *gains, text, busy, error, sooner))
