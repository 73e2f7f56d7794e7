# SPDX-License-Identifier: MIT
"""The figures in Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rouse.query.specs import address, init_text
from rouse.text import printable

VERDICTS = {
    "useful": "useful",
    "lost_race": "lost-race",
    "false_": "false",
    "early": "early",
    "timeout": "timeout",
    "cancelled": "cancelled",
    "unrecorded": "unrecorded",
}
LOCK_SUMS = (
    *("cnt_lock", "cnt_hold", "wait_total_ns", "spin_ns"),
    *("waiting", "waiting_ns", "kept_waiting"),
)
WAKE_SUMS = (*VERDICTS, "wait_ns", "late_ns", "waste_ns")
# The labels of the sum of rows beyond the limit: the number of series must not grow with the
# program's rows.
OTHER = "other"
OTHER_LOCK = {
    **{"lock_name": OTHER, "lock": 0, "kind": "", "site_label": OTHER, "site": ""},
    **{"init_label": "", "init_site": ""},
}
OTHER_WAKE = {
    **{"kind": "", "wait_label": OTHER, "wake_label": OTHER},
    **{"wait_site": "", "wake_site": ""},
}
Row = Mapping[str, Any]
Sample = tuple[dict[str, str], float]


def quoted(text: str) -> str:
    return printable(text).replace("\\", "\\\\").replace('"', '\\"')


def metric(name: str, sort: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {sort}"
    for labels, value in samples:
        shown = ",".join(f'{key}="{quoted(text)}"' for key, text in labels.items())
        yield f"{name}{{{shown}}} {value!r}"


def others(sums: Iterable[Row], names: Row) -> list[Row]:
    """Return rows like those that were summed, one per process. rows: how many each stands for."""
    return [{**names, **row} for row in sums]


def seconds(ns: int) -> float:
    return ns / 1e9


def lock_labels(row: Row) -> dict[str, str]:
    return {
        "process": row["process"],
        "lock": row["lock_name"] or address(row["lock"]),
        "address": address(row["lock"]),
        "kind": row["kind"],
        "site": row["site_label"],
        "site_id": row["site"],
        # Wake-ups lack these: a row's place can become several, which would start a new series.
        "initialised_at": init_text(row),
        "initialised_at_id": row["init_site"] if init_text(row) else "",
    }


def wake_labels(row: Row) -> dict[str, str]:
    return {
        "process": row["process"],
        "kind": row["kind"],
        "wait_site": row["wait_label"],
        "wake_site": row["wake_label"],
        "wait_site_id": row["wait_site"],
        "wake_site_id": row["wake_site"],
    }


def site_labels(row: Row) -> dict[str, str]:
    return {
        "process": row["process"],
        "kind": row["kind"],
        "wait_site": row["wait_label"],
        "wait_site_id": row["wait_site"],
    }


def histogram(name: str, about: str, rows: Sequence[Row], sums: Mapping[str, int]) -> Iterator[str]:
    """Counts in powers of two, in Prometheus' form: cumulative up to each bound."""
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} histogram"
    by_process: dict[str, list[Row]] = {}
    for row in rows:
        by_process.setdefault(row["process"], []).append(row)
    for process, buckets in by_process.items():
        label, count = f'process="{quoted(process)}"', 0
        for row in buckets:
            count += row["count"]
            bound = max(2 * row["late_from_ns"], 2) / 1e9
            yield f'{name}_bucket{{{label},le="{bound!r}"}} {count}'
        yield f'{name}_bucket{{{label},le="+Inf"}} {count}'
        yield f"{name}_sum{{{label}}} {seconds(sums.get(process, 0))!r}"
        yield f"{name}_count{{{label}}} {count}"


def waiting_lines(locks: Sequence[Row], waiting: Sequence[Row]) -> Iterator[str]:
    """Yield gauges of the waits under way.

    The counters contain ended waits only. Otherwise they would count a wait at one site, and at
    another once its waker is known.
    """
    for key, name, about in (
        ("waiting", "rouse_lock_waiting_threads", "Threads that wait for a lock, by site."),
        ("kept_waiting", "rouse_lock_kept_waiting_threads", "The same, by the holder's site."),
    ):
        yield from metric(name, "gauge", about, ((lock_labels(row), row[key]) for row in locks))
    yield from metric(
        *("rouse_waiting_threads", "gauge", "Threads that wait, by site."),
        ((site_labels(row), row["waiting"]) for row in waiting),
    )
    yield from metric(
        *("rouse_waiting_seconds", "gauge", "Time that these have waited so far, summed."),
        ((site_labels(row), seconds(row["wait_ns"])) for row in waiting),
    )


def lines(
    totals: Sequence[Row],
    locks: Sequence[Row],
    wakes: Sequence[Row],
    calls: Sequence[Row],
    lateness: Sequence[Row],
    lateness_sums: Mapping[str, int],
    waiting: Sequence[Row],
) -> Iterator[str]:
    """Yield the lines of the text. The rows are those of the queries of the same names."""
    own = [({"process": row["process"]}, row) for row in totals]
    for what, rows in (("locks by site", locks), ("wake-ups by sites", wakes)):
        beyond = sum(row.get("rows", 0) for row in rows)
        if beyond:
            yield f'# The lightest {beyond:,} rows of {what} are summed up as "{OTHER}".'
    yield from metric(
        *("rouse_wakeups_total", "counter", "Wake-ups by kind and verdict."),
        (
            ({**wake_labels(row), "verdict": name}, row[key])
            for row in wakes
            for key, name in VERDICTS.items()
            if row[key]
        ),
    )
    for key, name, about in (
        ("wait_ns", "rouse_wait_seconds_total", "Time waited, by kind."),
        ("late_ns", "rouse_wake_to_run_seconds_total", "From the wake-up until the thread ran."),
        (
            "waste_ns",
            "rouse_wasted_cpu_seconds_total",
            "Time run after useless wake-ups.",
        ),
    ):
        samples = ((wake_labels(row), seconds(row[key])) for row in wakes)
        yield from metric(name, "counter", about, samples)
    for key, name, about in (
        ("cnt_lock", "rouse_lock_contended_total", "Lock calls that found the lock held."),
        ("cnt_hold", "rouse_lock_held_against_total", "Calls by others while it was held."),
    ):
        yield from metric(name, "counter", about, ((lock_labels(row), row[key]) for row in locks))
    ended = ((lock_labels(row), seconds(row["wait_total_ns"] - row["waiting_ns"])) for row in locks)
    yield from metric(
        *("rouse_lock_wait_seconds_total", "counter", "Time waited for locks, all waiters."), ended
    )
    spun = ((lock_labels(row), seconds(row["spin_ns"])) for row in locks)
    yield from metric(
        "rouse_lock_spin_seconds_total", "counter", "Time spent spinning for locks.", spun
    )
    yield from waiting_lines(locks, waiting)
    yield from metric(
        *("rouse_calls_total", "counter", "Blocking calls that completed."),
        (({"process": r["process"], "kind": r["kind"]}, r["completed"]) for r in calls),
    )
    for key, name, about in (
        ("switches", "rouse_switches_total", "Times a worker began to run a thread."),
        ("steals", "rouse_steals_total", "Threads taken from another worker."),
        ("signals_unheard", "rouse_signals_unheard_total", "Signals without a waiter."),
        ("broadcasts_unheard", "rouse_broadcasts_unheard_total", "Broadcasts without a waiter."),
    ):
        yield from metric(name, "counter", about, ((labels, row[key]) for labels, row in own))
    yield from histogram(
        "rouse_timer_lateness_seconds", "How late timers were fired.", lateness, lateness_sums
    )
