# SPDX-License-Identifier: MIT
"""The head of every report: what was recorded, and what could not be seen."""

from __future__ import annotations

import datetime
import math
import posixpath
import time
from collections.abc import Sequence
from typing import Any

from rouse.query import measures
from rouse.symbols import packages
from rouse.symbols.runtimes import RUNTIMES
from rouse.tables.engine import Database
from rouse.tables.schemas import CONFINED, LAST_EVENT, LAST_SEEN, PRELOAD
from rouse.tables.views import FUTEX_LOCK, LOCK_KINDS, NOT_KNOWN
from rouse.text import counted, duration, share

WAIT_STAMPS = 2  # per wait: one at its wake-up, and half of that of each of its two switches
MISSING_SHARE = 0.01  # share of a thread's wall time that its states may leave unaccounted for
MISSING_LEAST_NS = 1_000_000
# CPU time that is in no thread's USR and is not mentioned: share of the whole, and least.
UNSEEN_SHARE = 0.02
UNSEEN_LEAST_NS = 10_000_000
SHOWN_PROCESSES = 4
ERRORS_SHOWN = 10  # the greatest error among so many sums of waits is stated
MODULES_SHOWN = 3
# Of processes that were killed, left by _exit(), or confined themselves: how far their times go.
ENDS = {
    CONFINED: "it asked for seccomp at {}: what came after is not recorded, nor what it forked"
    " then",
    LAST_EVENT: "it ended without closing its recording, whose last event was at {}: waits under"
    " way are counted up to then, and shares of threads that waited are not known (-)",
    LAST_SEEN: "it ended without closing its recording; it was last seen alive at {}, and times go"
    " up to then",
}
# The same of several processes: the time is that of the last one.
ENDS_OF_SEVERAL = {
    CONFINED: "they asked for seccomp, the last one at {}: what came after is not recorded,"
    " nor what they forked then",
    LAST_EVENT: "they ended without closing their recordings, of which the last event was at {}:"
    " waits under way are counted up to the last event of each, and shares of threads that"
    " waited are not known (-)",
    LAST_SEEN: "they ended without closing their recordings; the last one was last seen alive"
    " at {}, and the times of each go up to then",
}
PIDS_SHOWN = 3
FRESH_NS = 10_000_000_000  # an older recording does not show whether its process runs now
LOST = {
    "lost_chunks": "kinds of entries that are full",
    "lost_threads": "threads",
    "lost_wakes": "wake-ups",
    "lost_locks": "acquisitions of locks, or waits given up,",
    "lost_names": "names of locks",
    "lost_stacks": "call stacks",
    "lost_modules": "addresses of unknown files of code",
    "lost_holds": "holds of locks",
    "lost_origins": "places where locks and the like were initialised",
}
PRELOAD_NOTES = [
    "recorded by rouse run: waits inside libc, such as for malloc's locks, are not seen and"
    " count as USR; the mutex that a wait for a condition acquires at its end"
    " counts as LAT, unless its holder uses the condition too",
    "the waker of a thread that waited for a lock is inferred from the order of the unlocks;"
    " signals, broadcasts and posts were seen, but not which of several waiters each one woke",
]
ACCEPT_ORDERS = {
    1: "threads wait for a listener in turn, fifo: the one that has waited longest comes first",
    2: "threads wait for a listener in turn, lifo: the one that came last comes first",
    3: "accept was delayed at random, scatter",
}
RUNS = "runs"
Row = dict[str, Any]


def moment(unix_ns: int) -> str:
    try:
        when = datetime.datetime.fromtimestamp(unix_ns // 1_000_000_000, datetime.UTC)
    except (ValueError, OverflowError, OSError):
        return f"{unix_ns} ns after 1970"
    return when.strftime("%Y-%m-%d %H:%M:%S UTC")


def distortion(database: Database) -> str:
    """Return the least cost of recording, as the runtime has measured it. Empty: not known."""
    waits_of = {row["process"]: row["wakes"] for row in database.rows(measures.totals())}
    waits = sum(waits_of.values())
    workers = [row for row in database.rows(measures.workers()) if row["is_worker"]]
    busy_ns = sum(max(row["wall_ns"] - row["idle_ns"], 0) for row in workers)
    if not waits or not workers:
        return ""
    processes = database.rows(measures.processes())
    stamps = {row["process"]: row["stamp_ns"] for row in processes}
    known = [ns for ns in stamps.values() if ns]
    if len(known) < len(processes):
        return "not known: not every runtime has measured what its time stamps cost"
    cost_ns = sum(waits * WAIT_STAMPS * stamps[name] for name, waits in waits_of.items())
    each = " to ".join(f"{ns:.1f}" for ns in sorted({min(known), max(known)}))
    # Estimates of idle time may leave nothing of a worker that hardly ever ran.
    part = f", {share(cost_ns / busy_ns)} % of what the workers were busy" if busy_ns else ""
    return (
        f"at least {duration(round(cost_ns))} of CPU time{part}: {waits:,} waits of {WAIT_STAMPS}"
        f" time stamps each, and one takes {each} ns"
    )


def sampling(database: Database) -> str:
    """Return how exact the times are of processes that timed only some of their waits, or ''."""
    rows = database.rows(measures.wake_ledger())
    count, sampled = (sum(row[name] for row in rows) for name in ("count", "sampled"))
    if not sampled:
        return ""
    largest = sorted(rows, key=lambda row: -row["wait_ns"])[:ERRORS_SHOWN]
    errors = [
        2 * math.sqrt(row["wait_variance"]) / row["wait_ns"] for row in largest if row["wait_ns"]
    ]
    within = f"; the {len(errors)} largest are within {share(max(errors))} %" if errors else ""
    return (
        f"estimates in part: workers with turns of less than 2 µs timed {sampled:,} of {count:,}"
        f" waits, at random{within} (95 of 100 times). ROUSE_OBS=exact times all"
    )


def waiting(database: Database) -> str:
    """Return the waits under way as text. Empty: there are none."""
    rows = database.rows(measures.waiting())
    if not rows:
        return ""
    parts = (
        ("for locks", [row for row in rows if row["kind"] in LOCK_KINDS]),
        ("idle", [row for row in rows if row["is_idle"]]),
    )
    parts_shown = [
        f"{sum(row['waiting'] for row in some):,} {what},"
        f" the longest for {duration(max(row['wait_most_ns'] for row in some))}"
        for what, some in parts
        if some
    ]
    count = sum(row["waiting"] for row in rows)
    head = f"{count:,}, the time that they have lasted is in the sums"
    return "; ".join([head, *parts_shown])


def state_of(row: Row, now_ns: int) -> str:
    """Return the state of a process at the moment of the report."""
    if row["ended"] is None:
        return "runs, or has ended"
    if row["ended"]:
        return "has ended"
    return RUNS if now_ns - row["taken_unix_ns"] < FRESH_NS else "ran on then"


def end_of(row: Row) -> str:
    return ENDS[row["end"]].format(moment(row["taken_unix_ns"]))


def ends(processes: Sequence[Row]) -> list[str]:
    """Return a note for the processes that did not end in the usual way, by how they ended."""
    groups: dict[str, list[Row]] = {}
    for row in processes:
        if row["end"] in ENDS:
            groups.setdefault(row["end"], []).append(row)
    return [
        f"process {rows[0]['pid']}: {end_of(rows[0])}" if len(rows) == 1 else several(end, rows)
        for end, rows in groups.items()
    ]


def several(end: str, rows: Sequence[Row]) -> str:
    pids = ", ".join(str(row["pid"]) for row in rows[:PIDS_SHOWN])
    more = ", ..." if len(rows) > PIDS_SHOWN else ""
    last = max(row["taken_unix_ns"] for row in rows)
    return f"{len(rows):,} processes ({pids}{more}): {ENDS_OF_SEVERAL[end].format(moment(last))}"


def facts(database: Database, source: str) -> list[tuple[str, str]]:
    rows = database.rows(measures.processes())
    found = [("source", source)]
    for row in rows[:SHOWN_PROCESSES]:
        state = state_of(row, time.time_ns())
        found += [
            ("process", f"{row['pid']} on {row['host']}, {row['command'] or row['program']}"),
            (
                "recorded",
                f"for {duration(row['duration_ns'])} from {moment(row['started_unix_ns'])} on;"
                f" it {state}; recording: {row['mode']}",
            ),
        ]
        if row["end"] in ENDS:
            found.append(("end", end_of(row)))
    if len(rows) > SHOWN_PROCESSES:
        found.append(("processes", f"{len(rows)}"))
    if spent := processor_time(database, rows):
        found.append(("CPU time", spent))
    waits = waiting(database)
    if waits:
        found.append(("waits under way", waits))
    if any(row["is_sampled"] for row in rows) and (sampled := sampling(database)):
        found.append(("times", sampled))
    elif cost := distortion(database):
        found.append(("cost of recording", cost))
    return found


def repair_notes(processes: Sequence[Row]) -> list[str]:
    """Return notes on the repairs that the programs were run with."""
    found = []
    for slack_ns in sorted({row["slack_ns"] for row in processes} - {0, None}):
        found.append(f"repair: timers of all threads were given a slack of {duration(slack_ns)}")
    for spin_ns in sorted({row["spin_ns"] for row in processes} - {0, None}):
        found.append(
            f"repair: plain mutexes were spun for up to {duration(spin_ns)} while their holder was"
            " not known to wait: spun is how often that was enough"
        )
    orders = {row["accept_order"] for row in processes}
    for number in sorted(orders & set(ACCEPT_ORDERS)):
        most = max(row["scatter_ns"] or 0 for row in processes)
        by = f" of up to {duration(most)}" if most else ""
        found.append(f"repair: {ACCEPT_ORDERS[number]}{by}; under Listeners is what that did")
    if orders & set(ACCEPT_ORDERS) and orders - set(ACCEPT_ORDERS):
        count = sum(row["accept_order"] not in ACCEPT_ORDERS for row in processes)
        found.append(f"{count} processes take connections as they come: they found no order")
    return found


def warnings(database: Database, problems: Sequence[str]) -> list[str]:
    """Return notes on what is missing in the recording, or not to be trusted."""
    processes = database.rows(measures.processes())
    totals = database.rows(measures.totals())
    found = repair_notes(processes) + list(problems)
    found += empty_notes(database, processes, totals)
    found += lost_notes(processes)
    found += runtime_notes(database)
    found += state_notes(database)
    found += site_notes(database)
    unrecorded = sum(row["unrecorded"] for row in totals)
    if unrecorded:
        found.append(f"{unrecorded:,} waits were recorded only in part; they are counted under ?")
    return found


def notes(database: Database, problems: Sequence[str], show_idle: bool) -> list[str]:
    """Return notes that tell a reader how far to trust the figures."""
    processes = database.rows(measures.processes())
    found = list(PRELOAD_NOTES) if any(row["recorder"] == PRELOAD for row in processes) else []
    found += warnings(database, problems)
    found += lock_notes(database)
    found += futex_notes(database)
    found += processor_notes(database)
    found += condition_notes(database)
    if show_idle:
        found.append("idle waits (of listeners, pools, idle connections) are shown with the others")
    return found


def empty_notes(database: Database, processes: Sequence[Row], totals: Sequence[Row]) -> list[str]:
    found = []
    if not processes:
        return ["nothing was recorded: there is no process in it"]
    off = [row for row in processes if row["mode"] == "off"]
    if off:
        which = "recording is" if len(processes) == 1 else f"in {len(off)} processes recording is"
        found.append(f"{which} off, since ROUSE_OBS=off or rouse_obs_set_mode() said so")
    if any(row["wakes"] or row["lock_waits"] for row in totals):
        return found
    under_way = sum(row["waiting"] for row in totals)
    if under_way:
        return [*found, f"no wait has ended since recording began; {under_way:,} are under way"]
    threads = database.count(measures.count_of("SELECT process FROM threads"))
    if not threads:
        found.append("no wait was recorded: no thread has waited in a call that rouse sees")
    else:
        found.append(
            f"no wait was recorded: none of its {threads:,} threads has ended one,"
            " after recording began"
        )
    return found


def lost_notes(processes: Sequence[Row]) -> list[str]:
    lost = {name: sum(row[name] or 0 for row in processes) for name in LOST}
    found = [
        f"{count:,} {LOST[name]} did not fit into the recording and are in no figure"
        for name, count in lost.items()
        if count
    ]
    return found + lost_event_notes(processes)


def lost_event_notes(processes: Sequence[Row]) -> list[str]:
    """Return the note of every output that is made from events, or may be."""
    lost = sum(row["lost_events"] or 0 for row in processes)
    if not lost:
        return []
    return [
        f"the trace lacks {counted(lost, 'event')}, for which its rings had no room; the sums of"
        " waits are complete"
    ]


def lock_notes(database: Database) -> list[str]:
    rows = database.rows("SELECT process, free, sampled FROM free_locks")
    sampled = sum(row["sampled"] for row in rows)
    if sampled:
        return [
            f"{counted(sampled, 'acquisition')} of free locks were chosen at random: max, total,"
            " count, avg and wait_avg are estimates from these and from all contended ones"
        ]
    if not rows or any(row["free"] for row in rows):
        return []
    return [
        "only waits for locks were recorded, not every acquisition, nor how long locks were held:"
        " max, total, count, avg and wait_avg are not known (-)"
    ]


def futex_notes(database: Database) -> list[str]:
    """Return the note on locks that a program or its language builds from futex words."""
    rows = database.rows(f"SELECT DISTINCT kind FROM locks WHERE kind = '{FUTEX_LOCK}'")
    if not rows:
        return []
    return [
        "futex locks are built by the program or its language, and recognised by the function that"
        " waits: who acquired them while they were free, and how long they were held, is not known"
    ]


def runtime_notes(database: Database) -> list[str]:
    """Return notes on runtimes whose waits the interposer cannot see."""
    rows = database.rows(f"SELECT DISTINCT runtimes FROM processes WHERE recorder = '{PRELOAD}'")
    named = {name for row in rows for name in (row["runtimes"] or "").split(", ")}
    return [RUNTIMES[name] for name in sorted(named & set(RUNTIMES))]


def state_notes(database: Database) -> list[str]:
    is_off = (
        f"ABS(missing_ns) > ROUND(CAST(wall_ns AS DOUBLE) * {MISSING_SHARE})"
        f" AND ABS(missing_ns) > {MISSING_LEAST_NS}"
    )
    (row,) = database.rows(
        f'SELECT SUM(CASE WHEN {is_off} THEN 1 ELSE 0 END) AS off, COUNT(*) AS "rows",'
        f" MAX(ABS(missing_ns)) AS most FROM ({measures.microstates_rows()}) m"
        " WHERE usr IS NOT NULL"
    )
    if not row["off"]:
        return []
    return [
        f"{row['off']:,} of {counted(row['rows'], 'thread')}: the states differ from the time"
        f" that they lived by up to {duration(row['most'])}"
    ]


def processor_notes(database: Database) -> list[str]:
    """Return notes on threads whose USR does not come from the kernel."""

    def summed(condition: str, what: str) -> str:
        return f"SUM(CASE WHEN {condition} THEN {what} ELSE 0 END)"

    unknown = "NOT is_known AND had_usr > 0"
    (row,) = database.rows(
        f"SELECT {summed(f'is_user AND {unknown}', 'had_usr')} AS user_ns,"
        f" {summed(f'NOT is_user AND {unknown}', 'threads')} AS others,"
        f" {summed(f'NOT is_user AND {unknown}', 'had_usr')} AS others_ns,"
        f" SUM(queueless) AS queueless FROM ({measures.thread_parts()}) m"
    )
    found = []
    if row["user_ns"]:
        found.append(
            f"{duration(row['user_ns'])} of user threads' USR is the time that they had a worker:"
            " the kernel's figures, which say how long the worker ran, are missing for it"
        )
    if row["others"]:
        found.append(
            f"{counted(row['others'], 'thread')}: {duration(row['others_ns'])} could not be"
            " split into running and sleeping in system calls: USR is -, and the time counts as"
            " missing"
        )
    if row["queueless"]:
        found.append(
            f"{counted(row['queueless'], 'thread')}: their time in the kernel's run queue could not"
            " be read: outside of waits, it counts as call"
        )
    return found


def processor_time(database: Database, processes: Sequence[Row]) -> str:
    """Return the CPU time of the processes, and its part that no thread has. Empty: not known."""
    spent = [row["cpu_ns"] for row in processes]
    if None in spent or not spent:
        return ""
    (row,) = database.rows(f"SELECT SUM(usr) AS usr FROM ({measures.thread_parts()}) m")
    rest = sum(spent) - (row["usr"] or 0)
    whole = duration(sum(spent))
    if rest <= max(sum(spent) * UNSEEN_SHARE, UNSEEN_LEAST_NS):
        return whole
    return (
        f"{whole}, of which {duration(rest)} are in no thread's USR: threads that never waited, and"
        " what others ran before their first lock or wait"
    )


def condition_notes(database: Database) -> list[str]:
    """Return notes on loops around plain waits.

    Such a loop is the program's own, and nobody sees why it goes on. The interposer sees the mutex
    of a wait for a condition, and so whether the thread went on.
    """
    places = (
        "SELECT process, wait_site FROM wakes WHERE kind = 'condition'"
        " AND process NOT IN (SELECT process FROM preloaded) GROUP BY process, wait_site"
        " HAVING SUM(useful) > 0 AND SUM(false_) = 0"
    )
    count = database.count(measures.count_of(places))
    if not count:
        return []
    return [
        f"at {count:,} places that wait for a condition no wake-up is false: in a loop around"
        " rouse_cond_wait() that cannot be seen, and each counts as useful;"
        " rouse_cond_wait_while() shows it"
    ]


def site_notes(database: Database) -> list[str]:
    (row,) = database.rows(
        """SELECT COUNT(*) AS "rows", SUM(CASE WHEN "function" <> '' THEN 1 ELSE 0 END) AS named"""
        f" FROM sites WHERE frame = 0 AND site <> '{NOT_KNOWN}'"
    )
    unnamed = row["rows"] - (row["named"] or 0)
    if not unnamed:
        return []
    modules = database.rows(
        """SELECT module, COUNT(*) AS "rows" FROM sites"""
        f""" WHERE frame = 0 AND site <> '{NOT_KNOWN}' AND COALESCE("function", '') = ''"""
        f""" AND module <> '' GROUP BY module ORDER BY "rows" DESC, module LIMIT {MODULES_SHOWN}"""
    )
    found = {row["module"]: packages.with_symbols(row["module"]) for row in modules}
    named = [
        f"{posixpath.basename(path)} by {package}" for path, package in found.items() if package
    ]
    how = (
        f"{', '.join(named)}; or by {packages.URLS}"
        if named
        else "a program built with -g has them"
    )
    return [
        f"{unnamed:,} of {row['rows']:,} sites have no symbol, and are shown as module+0x..."
        f" They get names: {how}"
    ]
