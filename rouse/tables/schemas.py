# SPDX-License-Identifier: MIT
"""The columns of the tables from which reports are made."""

from __future__ import annotations

MICROSTATES = (
    *("usr", "lat", "mutex", "rwlock", "cond", "sem", "join"),
    *("io", "poll", "accept", "sleep"),
)


# processes.end: the event at which a process' times end. Empty: an older rouse wrote it.
RUNS, FAREWELL = "runs", "farewell"
CONFINED = "confined"  # it requested seccomp: its recording ends there, and it went on
LAST_SEEN, LAST_EVENT = "last seen", "last event"  # it did not close its recording

# processes.recorder: librouse is empty, also where an older rouse wrote it.
PRELOAD = "preload"

# processes.runtimes: names of symbols/runtimes.py, with commas. Null: an older rouse wrote it.
# Names of rows: threads without a name, and threads whose names found no room.
UNNAMED, OTHERS = "(unnamed)", "(others)"

# sites.within: the functions that a frame's function was inlined into, one a line. Null: an older
# rouse wrote it. sites.caller, of the innermost frame: the number of the frame that tells apart the
# waits of its place (places.py). 0: they are not told apart; SEVERAL_CALLERS: a place has several.
SEVERAL_CALLERS = -1

# Types of columns: a word is a text of which there are few different ones.
TEXT, WORD, WHOLE, REAL, TRUTH = "text", "word", "whole", "real", "truth"


def columns(texts: str, wholes: str = "", truths: str = "", reals: str = "") -> dict[str, str]:
    sorts = ((texts, TEXT), (wholes, WHOLE), (truths, TRUTH), (reals, REAL))
    return {name: sort for names, sort in sorts for name in names.split()}


# By table, its columns in order with their types.
COLUMNS: dict[str, dict[str, str]] = {
    "processes": columns(
        "process host program command mode end recorder runtimes",
        "pid uid started_unix_ns taken_unix_ns duration_ns site_depth cpus lost_chunks lost_threads"
        " lost_wakes lost_locks lost_names lost_stacks lost_modules lost_holds lost_events"
        " lost_origins slack_ns spin_ns accept_order scatter_ns cpu_ns system_ns",
        "ended is_sampled",
        "tsc_hz stamp_ns",
    ),
    "threads": columns(
        "process name origin state kind wait_site",
        "thread_id writer tid object holder_tid since_ns waits useless yields accepted wall_ns "
        + " ".join(MICROSTATES),
        "is_idle is_cut",
    ),
    "groups": columns(
        "process name",
        "writer threads waits useless yields accepted wall_ns cpu_ns run_queue_ns queueless "
        + " ".join(MICROSTATES),
        "is_user",
    ),
    "wakes": columns(
        "process kind wait_site wake_site object_name init_site",
        "object useful lost_race false_ early timeout cancelled unrecorded"
        " wait_ns wait_most_ns late_ns late_most_ns waste_ns sampled",
        reals="wait_variance late_variance",
    ),
    "locks": columns(
        "process kind lock_name init_site site holder_site",
        "lock acquired contested given_up wait_ns wait_most_ns spin_ns spun"
        " holds hold_ns hold_most_ns waiting waiting_ns"
        " sampled inside_lat_ns inside_lck_ns inside_io_ns inside_sleep_ns first_ns last_ns"
        " apart_ns",
        reals="hold_variance",
    ),
    "open_waits": columns(
        "process kind wait_site object_name init_site", "object waiting wait_ns wait_most_ns"
    ),
    "workers": columns(
        "process repeated_site yield_site",
        "index tid worker cluster wall_ns idle_ns idle_count switches steals stolen"
        " signals_unheard broadcasts_unheard lateness_ns lateness_most_ns"
        " user_ns system_ns cpu_ns run_queue_ns voluntary involuntary major_faults minor_faults"
        " syscalls signals asleep kernel_wall_ns kernel_idle_ns repeated_sleeps repeated_ns"
        " yields",
        "is_worker is_live",
    ),
    "calls": columns("process kind", "writer completed"),
    "herds": columns("process", "writer size_from count"),
    "lateness": columns("process", "writer late_from_ns count"),
    "listeners": columns(
        "process listener name",
        "writer accepted woken in_vain lost samples backlog backlog_most"
        " ordered turns promoted overdue put_off delays delay_ns first_ns last_ns",
    ),
    "sites": columns(
        "process site module build_id function file label within",
        "frame address offset line caller",
    ),
    "events": dict.fromkeys(("process", "type", "kind", "verdict", "site", "name"), WORD)
    | dict.fromkeys(
        ("at_ns", "worker", "number", "thread_id", "other_id", "object", "value"), WHOLE
    ),
}
# Columns that are true or false in what a query returns; some engines return 0 and 1.
TRUTHS = frozenset(
    name for table in COLUMNS.values() for name, sort in table.items() if sort == TRUTH
) | {"is_known", "is_complete"}
