# SPDX-License-Identifier: MIT
"""How the threads' time divides."""

from __future__ import annotations

from collections.abc import Iterable

from rouse.query.finding import Row
from rouse.query.program import PARTS, STATES, Program

WITH_MUTEX = ("condition", "mutex")  # waits that end with a mutex
DELIVERY_MOST_NS = 100_000  # of a wake-up, until the kernel's scheduler has it
MOSTLY = 0.5


def division(program: Program) -> dict[str, float]:
    whole = program.sum(*STATES)
    time = {name: program.sum(*states) / whole if whole else 0.0 for name, states in PARTS}
    asleep = slept_on(program, program.threads) / whole if whole else 0.0
    return time | {"queued": time["queued"] - asleep, "locks": time["locks"] + asleep}


def slept_on(program: Program, threads: Iterable[Row]) -> float:
    """Return for how long these slept for a mutex after the call that is taken for their wake-up.

    A thread that was woken, and is neither in the kernel's run queue nor on a processor for longer
    than a wake-up takes, sleeps. Threads that come out of a wait for a condition wait for its mutex
    inside of libc, where they are not seen: their time counts from the signal on, and an unlock may
    wake one of them instead of the thread that is taken for woken.
    """
    known = [row for row in threads if row.get("queue_most_ns") is not None]
    queue_ns, waits = (sum(row[name] for row in known) for name in ("queue_most_ns", "waits"))
    woken_ns = program.sum("lat", rows=known)
    for_locks = sum(row["late_ns"] for row in program.wakes if row["kind"] in WITH_MUTEX)
    return float(max(min(woken_ns - queue_ns - DELIVERY_MOST_NS * waits, for_locks), 0))


def delivery(program: Program) -> tuple[int | None, int | None]:
    """Return the time in the kernel's run queue, and that until wake-ups were delivered to it.

    None: not known. A thread that was taken off its processor just before it slept, or just after
    it was woken, was queued in time that counts as its wait. On busy processors that may be longer
    than all deliveries.
    """
    known = [row for row in program.threads if row["to_run_ns"] is not None]
    to_run_ns, queue_ns = (sum(row[name] for row in known) for name in ("to_run_ns", "queue_ns"))
    if to_run_ns < MOSTLY * program.sum("lat") or not to_run_ns:
        return None, None
    to_run_ns -= round(slept_on(program, known))
    return queue_ns, to_run_ns - queue_ns if to_run_ns >= queue_ns else None
