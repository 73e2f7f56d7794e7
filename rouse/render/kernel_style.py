# SPDX-License-Identifier: MIT
"""Switches, wake-ups and spinning in one text, as kernel tools print them (kiparse).

It shows what each worker and each thread did, where threads wait, and for which locks they spun.
The threads' figures come from events where there are any, and cover their time. Otherwise they come
from the counters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rouse.query.specs import address
from rouse.text import duration, printable

Row = Mapping[str, Any]
ROWS = 40  # threads and locks shown


def lined(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Align columns: to the right, the last one to the left."""
    whole = [titles, *rows]
    widths = [max(len(row[i]) for row in whole) for i in range(len(titles) - 1)]
    for row in whole:
        left = "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=False))
        yield f"  {left}  {row[-1]}".rstrip()


def share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else "-"


def shown(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def worker_lines(workers: Sequence[Row], counts: Mapping[tuple[str, int], Row]) -> Iterator[str]:
    yield "WORKERS"
    yield from lined(
        ("busy", "idle", "switches", "steals", "stolen", "wake-ups", "I/O", "worker"),
        (
            (
                share(row["wall_ns"] - row["idle_ns"], row["wall_ns"]) if own["is_worker"] else "-",
                share(row["idle_ns"], row["wall_ns"]) if own["is_worker"] else "-",
                shown(row["switches"]),
                shown(row["steals"]),
                shown(row["stolen"]),
                shown(seen["wakes"] if seen else None),
                shown(seen["polled"] if seen else None),
                f"{'worker' if own['is_worker'] else 'kernel thread'} {row['index']}"
                f" (tid {row['tid']})",
            )
            for row in workers
            for own, seen in [(row, counts.get((row["process"], row["index"])))]
        ),
    )


def thread_lines(threads: Sequence[Row], has_events: bool) -> Iterator[str]:
    yield f"THREADS, of {'events' if has_events else 'counters'}"
    yield from lined(
        ("switches", "waits", "yields", "woken", "wakes", "lock waits", "spun", "thread"),
        (
            (
                shown(row["runs"]),
                shown(row["waits"]),
                shown(row["yields"]),
                shown(row["woken"]),
                shown(row["wakes"]),
                shown(row["contests"]),
                "-" if row["spun_ns"] is None else duration(row["spun_ns"]),
                f"{printable(row['name'] or '')} ({row['thread_id']})".strip(),
            )
            for row in threads[:ROWS]
        ),
    )
    if len(threads) > ROWS:
        yield f"  and {len(threads) - ROWS:,} more"


def spin_lines(locks: Sequence[Row]) -> Iterator[str]:
    yield "SPIN"
    if not locks:
        yield "  no lock was spun for"
        return
    yield from lined(
        ("contested", "spun to it", "spin", "spin/contest", "of the wait", "kind", "lock, site"),
        (
            (
                shown(row["contested"]),
                share(row["spun"], row["contested"]),
                duration(row["spin_ns"]),
                duration(row["spin_ns"] / max(row["contested"], 1)),
                share(row["spin_ns"], row["wait_ns"]),
                row["kind"],
                f"{printable(row['lock_name'] or address(row['lock']))},"
                f" {printable(row['site_label'] or row['site'])}",
            )
            for row in locks[:ROWS]
        ),
    )
    if len(locks) > ROWS:
        yield f"  and {len(locks) - ROWS:,} more"


def waiting_lines(waits: Sequence[Row]) -> Iterator[str]:
    yield "WAITING NOW"
    if not waits:
        yield "  no thread waits, except idle ones"
        return
    yield from lined(
        ("threads", "times before", "time", "longest", "kind", "waits at, held from"),
        (
            (
                shown(row["waiting"]),
                shown(row["count"]),
                duration(row["wait_ns"]),
                duration(row["wait_most_ns"]),
                row["kind"],
                f"{printable(row['wait_label'] or row['wait_site'])},"
                f" {printable(row['other_label']) if row['role'] == 'held' else '-'}"
                f" {printable(row['object_name'] or '')}".rstrip(),
            )
            for row in waits[:ROWS]
        ),
    )
    if len(waits) > ROWS:
        yield f"  and {len(waits) - ROWS:,} more"


def text(
    title: str,
    workers: Sequence[Row],
    counts: Mapping[tuple[str, int], Row],
    threads: Sequence[Row],
    has_events: bool,
    locks: Sequence[Row],
    waits: Sequence[Row],
) -> str:
    parts = (
        worker_lines(workers, counts),
        thread_lines(threads, has_events),
        waiting_lines(waits),
        spin_lines(locks),
    )
    return "\n\n".join([printable(title), *("\n".join(part) for part in parts)]) + "\n"
