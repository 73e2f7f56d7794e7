# SPDX-License-Identifier: MIT
"""Examine the files that the processes of a run have left, before the report."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from rouse.store import find, layout


@dataclass(frozen=True)
class Left:
    is_silent: bool  # none of its threads has waited, waits, or signalled without a waiter
    is_live: bool
    is_cut: bool  # it ended without closing its recording
    is_confined: bool  # it has asked for seccomp, and was recorded until then
    is_full: bool  # the recording had no room for some entries
    room_mib: int | None  # the limit that it reached; None, if is_full: the disk was full
    ran_ns: int  # the CPU time of a process that has ended normally, else 0

    @property
    def only_ran(self) -> bool:
        """Whether all of its threads did nothing but compute, for long enough to say where."""
        is_whole = not (self.is_full or self.is_confined or self.is_cut)
        return self.is_silent and is_whole and self.ran_ns >= COMPUTES_NS


COMPUTES_NS = 100_000_000
CHUNK_PAGES_MOST = 16  # of any chunk that the limit refuses; see ledger.c


def limit_mib(lost: int, pages: int, size: int) -> int | None:
    """Return the limit, in MiB, of a recording that reached it. None: it did not."""
    is_used_up = size - pages * layout.PAGE < CHUNK_PAGES_MOST * layout.PAGE
    return size >> 20 if lost and is_used_up else None


def look(file: Path) -> Left:
    source = find.open_source(file)
    try:
        found, size = find.read(source), source.size()
    finally:
        source.close()
    waits = found.threads["doing"] == layout.DOES_WAIT
    unheard = found.writers["signals_unheard"] + found.writers["broadcasts_unheard"]
    locks = found.arrays[layout.LOCKS]
    # A sample of a lock that nobody waited for says nothing.
    is_told = (locks["contested"] > 0) | (locks["sampled"] == 0)
    is_silent = not (
        len(found.arrays[layout.WAKES]) or is_told.any() or waits.any() or unheard.any()
    )
    head = found.head
    is_cut = not (found.is_live or head.ended)
    room_mib = limit_mib(head.lost_chunks, head.page_count, size)
    is_full = head.lost_chunks > 0
    return Left(
        *(is_silent, found.is_live, is_cut, head.is_confined, is_full, room_mib, head.cpu_ns)
    )


def no_room(every: Collection[Left], place: Path) -> str:
    mib = min((left.room_mib for left in every if left.room_mib), default=0)
    if not mib:
        return f"found no room to record waits in: is there some in {place}?"
    most = layout.BYTES_MAX >> 20
    what = f"give it more with --memory, up to {most}" if mib < most else "which is the most"
    return f"found no room to record waits in the {mib} MiB that a record may take; {what}"


def confined(every: Collection[Left]) -> list[str]:
    """Return the note on processes that requested seccomp, if there are others."""
    count = sum(left.is_confined for left in every)
    if not count or len(every) == 1:
        return []
    return [f"{count} of {len(every)} processes asked for seccomp: what came after is not recorded"]


def silence(program: str, every: Collection[Left], place: Path) -> str:
    """Return the line for a run in which no thread waited.

    A file without an end mark may belong to an earlier program of the process.
    """
    which = "its process" if len(every) == 1 else f"{len(every)} processes"
    if any(left.is_full for left in every):
        return f"{program}: {which} {no_room(every, place)}"
    line = (
        f"{program}: {which} recorded, and no thread waited for a lock, another thread,"
        " the time or a descriptor in a call that rouse sees"
    )
    if any(left.is_confined for left in every):
        alone = ["it asked for seccomp, and what came after is not recorded"]
        line = "; ".join([line, *(confined(every) or alone)])
    cut = sum(left.is_cut for left in every)
    if not cut:
        return line
    who = "it" if len(every) == 1 else f"{cut} of them"
    were = "was" if cut == 1 else "were"
    return f"{line}; {who} {were} killed, left by _exit(), or ran a program that was not recorded"


def run_on(every: Collection[Left], keep: Path | None) -> list[str]:
    """Return the note on processes that still run, such as daemons."""
    count = sum(left.is_live for left in every)
    if not count:
        return []
    who = "1 process runs on" if count == 1 else f"{count} processes run on"
    later = f"in {keep}, for rouse report" if keep else "lost without --keep"
    return [f"{who}: the waits from now on are {later}"]
