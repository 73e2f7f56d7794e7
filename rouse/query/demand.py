# SPDX-License-Identifier: MIT
"""How much of the locks and of the processors the threads of a program need."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rouse.query import gain
from rouse.query.finding import Row
from rouse.query.program import STATES, Program

# The part of a wait that a program with fewer waits, on processors that are seldom idle, may save:
# of I/O the way of two wake-ups, there and back; of a sleep half of the usual timer slack.
IO_SAVES_NS, SLEEP_SAVES_NS = 80_000, 25_000
# The CPU time of a wake-up and the switches around it; and the most that a wait may cost, with the
# caches that others have used meanwhile: 14 µs was measured, where locks protect work of 65 µs.
SWITCH_NS, WAIT_NS = 5_000, 15_000
# The cost of an acquisition in user code, if another processor tries to acquire the lock: the
# cache line comes and goes several times. 1.1 µs was measured, with holds of 0.4 µs.
TRANSFER_NS = 1_200


def key_of(row: Row) -> tuple[Any, ...]:
    return (row["process"], row["lock"], row["init_site"])


def own_of(row: Row, part: float = 1.0, contention_ns: float = 0.0) -> gain.Lock:
    """The lock's own demand: without the time in which its holders waited for other threads.

    part: of the time over which its holds are summed. contention_ns: CPU time of the waits for it.
    """
    slept = row["inside_io_ns"] + row["inside_sleep_ns"]
    held = max(row["hold_ns"] - row["inside_lck_ns"], slept)
    return gain.Lock(held * part, (held - slept) * part, slept * part, contention_ns)


def evened(
    locks: dict[object, gain.Lock], rows: Sequence[Row], threads: float
) -> dict[object, gain.Lock]:
    """Give locks that nobody waited for, and that one place acquires, the mean of their demands.

    Each object has such a lock of its own. Which objects have the most depends on the threads that
    were lucky at another lock: without the waits for that, it may be all of them.
    """
    alike: dict[tuple[Any, Any], list[tuple[Any, ...]]] = {}
    for row in rows:
        if row["site"] is not None and not row["contested"] and not row["waiting"]:
            alike.setdefault((row["process"], row["site"]), []).append(key_of(row))
    found = dict(locks)
    for keys in alike.values():
        times = ("held_ns", "ran_ns", "slept_ns", "contention_ns")
        means = {name: sum(getattr(locks[key], name) for key in keys) / len(keys) for name in times}
        mean = gain.Lock(**means, is_alone=len(keys) >= round(threads))
        found.update(dict.fromkeys(keys, mean))
    return found


def contention_of(row: Row, ran_ns: float, waits: int, program: Program) -> float:
    """Return the CPU time in the kernel that the waits for a lock cost.

    ran_ns, waits: of the threads that share it. Their waits for other things cost as much each.
    """
    contested: int = row["contested"]
    in_kernel = program.in_kernel * ran_ns * contested / max(waits, contested, 1)
    return min(in_kernel, contested * SWITCH_NS)


def phase_of(row: Row, program: Program) -> float:
    """For how long the lock was contended, from the first wait for it to the last.

    When threads waited for a futex is not recorded: it is the elapsed time then.
    """
    if not row["last_ns"]:
        return float(program.wall_ns or 1)
    return float(min(max(row["last_ns"] - row["first_ns"], 1), program.wall_ns or 1))


def ended_early(row: Row, threads: Sequence[Row], program: Program, unseen_ns: float) -> float:
    """By how much more threads would work without the lock, since some ended before the others.

    Threads with a fixed number of requests each end one after another if those that have the lock
    keep it. Without the lock all of them would work until the end. Threads that live for less than
    half of the time may as well follow each other. The lock is held by one thread at a time: for
    that long it was used, though the last thread did not wait for it. The first one did not either
    if it held the lock for unseen_ns, as long as the others in the mean, or half as long.
    """
    used_ns = max(phase_of(row, program), min(row["hold_ns"], program.wall_ns))
    lived = (program.sum(*STATES, rows=threads) + unseen_ns) / used_ns
    count = sum(thread["threads"] for thread in threads)
    count += 2 * unseen_ns * (count + 1) > row["hold_ns"] > 0
    return count / lived if 0 < lived < count < 2 * lived else 1.0


def unseen(
    held_ns: float, wait_ns: float, states: Sequence[str], threads: Sequence[Row], program: Program
) -> float:
    """For how long a lock was held by none of these threads, which wait for it in these states.

    A thread that has the lock may keep it from all others and never wait. held_ns: 0 if it is not
    known. The lock is held while threads wait for it, of which wait_ns is the sum.
    """
    count = max(sum(thread["threads"] for thread in threads), 1)
    others = [state for state in STATES if state not in states]
    return max((held_ns or wait_ns / count) - program.sum(*others, rows=threads), 0.0)


def least_ran(ran_ns: float, waits: int, program: Program, acquired: int = 0) -> float:
    """The CPU time without what waits may cost, in the kernel and in user code.

    acquired: how often locks were acquired for which threads waited.
    """
    in_user = ran_ns * (1 - program.in_kernel)
    return max(in_user - waits * WAIT_NS - acquired * TRANSFER_NS, in_user / 2)


def load_without(
    wait_ns: float, states: Sequence[str], program: Program, is_lock: bool = False
) -> gain.Load:
    """The load of the threads that wait in these states, besides waits of which wait_ns is the sum.

    Waits that are not in the sum are those of threads that have nothing to do. is_lock: the waits
    are for a lock, whose holder may be none of these threads.
    """
    sharing = [row for row in program.threads if program.sum(*states, rows=[row]) > 0]
    wall = float(program.wall_ns or 1)
    ran, io, sleep = (program.sum(state, rows=sharing) for state in ("usr", "io", "sleep"))
    beside_ns = unseen(0, wait_ns, states, sharing, program) if is_lock else 0.0
    slept = io + sleep + beside_ns
    at_work = ran + slept + program.sum("lat", "mutex", "rwlock", rows=sharing)
    waits = sum(row["waits"] for row in sharing)
    saves = (io * IO_SAVES_NS + sleep * SLEEP_SAVES_NS) / slept if slept else 0.0
    return gain.Load(
        wall_ns=wall,
        threads=(at_work + min(wait_ns, program.sum(*states, rows=sharing))) / wall,
        processors=program.processors,
        ran_ns=ran,
        slept_ns=slept,
        least_ran_ns=least_ran(ran, waits, program),
        least_slept_ns=max(slept - waits * saves, slept / 2),
        all_ran_ns=least_ran(program.ran_ns, waits, program),
        others_ran_ns=program.others_ran_ns,
        locks={key_of(row): own_of(row) for row in program.locks},
    )
