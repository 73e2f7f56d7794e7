# SPDX-License-Identifier: MIT
"""The columns of the tables that reports are made from, as rouse/tables/build.py decodes them.

A table of no rows, or one that a Parquet folder lacks, is made from here.
"""

from __future__ import annotations

import functools

import pyarrow as pa

MICROSTATES = (
    *("usr", "lat", "mutex", "rwlock", "cond", "sem", "join"),
    *("io", "poll", "accept", "sleep"),
)


# processes.end: what the moment is up to which a process' times go. Empty: an older rouse wrote it.
RUNS, FAREWELL = "runs", "farewell"
CONFINED = "confined"  # it asked for seccomp: its record ends there, and it went on
LAST_SEEN, LAST_EVENT = "last seen", "last event"  # it ended later, without a farewell

# processes.recorder: librouse is empty, also where an older rouse wrote it.
PRELOAD = "preload"

WORD = pa.dictionary(pa.int32(), pa.string())  # a text of which there are few different ones


def schema(texts: str, numbers: str = "", truths: str = "", measures: str = "") -> pa.Schema:
    sorts = ((texts, pa.string()), (numbers, pa.int64()), (truths, pa.bool_()))
    columns = [(name, kind) for names, kind in sorts for name in names.split()]
    return pa.schema(columns + [(name, pa.float64()) for name in measures.split()])


SCHEMAS = {
    "processes": schema(
        "process host program command mode end recorder",
        "pid uid started_unix_ns taken_unix_ns duration_ns site_depth lost_chunks lost_threads"
        " lost_wakes lost_locks lost_names lost_stacks lost_modules lost_holds lost_events"
        " lost_origins slack_ns spin_ns accept_order scatter_ns",
        "ended",
        "tsc_hz stamp_ns",
    ),
    "threads": schema(
        "process name origin state kind wait_site",
        "thread_id writer tid object since_ns waits useless yields accepted wall_ns "
        + " ".join(MICROSTATES),
        "is_idle is_cut",
    ),
    "wakes": schema(
        "process kind wait_site wake_site object_name init_site",
        "object useful lost_race false_ early timeout cancelled unrecorded"
        " wait_ns wait_most_ns late_ns late_most_ns waste_ns",
    ),
    "locks": schema(
        "process kind lock_name init_site site holder_site",
        "lock acquired contested given_up wait_ns wait_most_ns spin_ns spun"
        " holds hold_ns hold_most_ns waiting waiting_ns",
    ),
    "open_waits": schema(
        "process kind wait_site object_name init_site", "object waiting wait_ns wait_most_ns"
    ),
    "workers": schema(
        "process",
        "index tid worker cluster wall_ns idle_ns idle_count switches steals stolen"
        " signals_unheard broadcasts_unheard lateness_ns lateness_most_ns"
        " ended_threads ended_waits ended_useless ended_yields ended_accepted "
        + " ".join(f"ended_{name}" for name in MICROSTATES)
        + " user_ns system_ns cpu_ns run_queue_ns voluntary involuntary major_faults minor_faults"
        " syscalls signals asleep kernel_wall_ns kernel_idle_ns",
        "is_worker is_live",
    ),
    "calls": schema("process kind", "writer completed"),
    "herds": schema("process", "writer size_from count"),
    "lateness": schema("process", "writer late_from_ns count"),
    "listeners": schema(
        "process listener name",
        "writer accepted woken in_vain lost samples backlog backlog_most"
        " ordered turns promoted overdue put_off delays delay_ns first_ns last_ns",
    ),
    "sites": schema(
        "process site module build_id function file label", "frame address offset line"
    ),
    "events": pa.schema(
        [(name, WORD) for name in ("process", "type", "kind", "verdict", "site", "name")]
        + [
            (name, pa.int64())
            for name in ("at_ns", "worker", "number", "thread_id", "other_id", "object", "value")
        ]
    ),
}


@functools.cache
def empty(name: str) -> pa.Table:
    """It takes as long to make as a table with a few rows, and most processes have several."""
    return SCHEMAS[name].empty_table()
