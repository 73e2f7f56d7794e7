# SPDX-License-Identifier: MIT
"""Calls that wake several threads, of which most find that another was faster."""

from __future__ import annotations

from collections.abc import Collection

from rouse.query.demand import WAIT_NS, least_ran
from rouse.query.finding import Finding, Row
from rouse.query.program import Program
from rouse.query.specs import address
from rouse.tables.views import NOT_KNOWN
from rouse.text import counted

HERD = "herd"
HERD_LEAST, HERD_SHARE = 100, 0.4  # useless wake-ups per s of the run, and their part of all
MOSTLY = 0.5


def without_work(count: int, program: Program) -> int:
    """Return how many wake-ups of a futex, at one place, probably find nothing to do.

    A thread that waits again without the mutex of a condition is not seen to have lost a race. But
    each call wakes several, and they run for less than a wake-up costs.
    """
    if program.herd_wakes < MOSTLY * count or program.ran_ns > WAIT_NS * count:
        return 0
    return max(count - program.herd_calls, 0)


def is_alone(rows: list[Row], useless: int, program: Program) -> bool:
    """Whether at most one thread waits there at a time, so that no call wakes several.

    Its wake-ups count as false if it does too little to be seen. A race is lost to another thread.
    """
    waited: int = sum(row["wait_ns"] + row["late_ns"] for row in rows)
    return waited < program.wall_ns and sum(row["false_"] for row in rows) >= MOSTLY * useless > 0


def find(
    program: Program, waiters: Collection[str], of_jvm: Collection[tuple[str, str]]
) -> list[Finding]:
    """Calls that wake several threads, of which most find that another was faster.

    waiters: the labels of waits for something of a pool, which may wake all for each thing, or for
    the last thread of a group. of_jvm: waits of the JVM's own threads, which nobody can repair.
    """
    sites: dict[tuple[str, str, str], list[Row]] = {}
    for row in program.wakes:
        is_own = (row["process"], row["wait_site"]) not in of_jvm
        if is_own and row["kind"] not in ("sleep", "mutex", "read lock", "write lock"):
            sites.setdefault((row["process"], row["kind"], row["wait_site"]), []).append(row)
    found = []
    for rows in sites.values():
        useless = sum(row["lost_race"] + row["false_"] for row in rows)
        count = sum(row["count"] for row in rows)
        if rows[0]["wait_label"] in waiters or is_alone(rows, useless, program):
            continue
        if rows[0]["kind"] == "futex":
            useless = max(useless, without_work(count, program))
        least = HERD_LEAST * max(program.wall_ns / 1e9, 1)
        if useless < max(least, HERD_SHARE * count) or not program.has_herds(useless):
            continue
        worst = max(rows, key=lambda row: row["lost_race"] + row["false_"])
        name = worst["object_name"] or (address(worst["object"]) if worst["object"] else "-")
        blame = sum(row["late_ns"] + row["waste_ns"] for row in rows)
        waker = "its waker" if worst["wake_site"] == NOT_KNOWN else worst["wake_label"]
        # The processors limit the throughput, even if no wake-up were useless.
        ran = least_ran(program.ran_ns, useless, program)
        most = program.processors * program.wall_ns / ran if ran else None
        gains = f": at most {most:.2f}x the throughput without them" if most else ""
        text = (
            f"{useless:,} of {counted(count, 'wake-up')} find nothing to do: {worst['wait_label']}"
            f" waits for {name} ({worst['kind']}), and {waker} wakes more threads"
            f" than have work{gains} [{HERD}]"
        )
        finding = Finding(
            *(HERD, name, worst["wait_label"], worst["wake_label"], blame, most, None, text)
        )
        found.append(finding)
    return found
