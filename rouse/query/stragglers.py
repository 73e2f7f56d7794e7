# SPDX-License-Identifier: MIT
"""Threads that others wait for at a barrier or a join, because they have more work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from rouse.query import gain, measures
from rouse.query.demand import least_ran, load_without
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding, Row
from rouse.query.polling import function_of
from rouse.query.program import STATES, Program
from rouse.query.ran import TELLING, Running, Stack, busiest, busiest_thread
from rouse.query.specs import address
from rouse.tables.engine import Database
from rouse.tables.views import quoted, texts
from rouse.text import counted, duration

STRAGGLER = "straggler"
ROWS_MOST = 100  # of waits, the longest first
LEAST_GAIN = 1.1  # some always arrive later than others
BARRIER_LEAST = 10  # waits
QUEUED_MOST = 0.5  # of the time waited
MOSTLY = 0.5  # of the elapsed time
LONGER = 2.0  # times as long as the others on average runs the thread that has more work
# Threads that are joined, and how much shorter than the longest the others are.
THREADS_LEAST, THREADS_MOST = 3, 256
SHORT_LEAST, SHORT_MOST = 0.05, 0.5
AT_WORK = ("usr", "lat", "mutex", "rwlock", "io", "sleep")
# Waits of the others at a barrier, for each of the thread that hands out the work, and how long.
PEERS_LEAST, PEERS_MOST = 0.9, 0.25
# Kinds of waits in which a thread does its work.
SLOW_KINDS = ("read", "write", "sync", "connect", "message", "sleep")
BUSY = 0.7  # of the threads' time
JOINED = 0.2  # of the elapsed time


def cut(rows: str, _order: Sequence[str]) -> str:
    return (
        f"SELECT * FROM ({rows}) w"
        " WHERE kind IN ('barrier', 'join', 'condition', 'semaphore', 'futex')"
        f" ORDER BY wait_ns DESC LIMIT {ROWS_MOST}"
    )


def find(
    database: Database, program: Program, sampled: Running | None, alike: Collection[str] = ()
) -> list[Finding]:
    """alike: the labels of waits that a group's threads end for each other, as std::barrier's."""
    rows = database.rows(measures.wake_ledger(cut))
    every = [row for row in rows if row["kind"] == "barrier" or row["wait_label"] in alike]
    found = barriers(database, every, program, sampled)
    joins = [row for row in rows if row["kind"] == "join"]
    if joins:
        groups = database.rows("SELECT * FROM groups_seen WHERE NOT is_user")
        found += [
            each
            for join in joins
            for each in [joined(database, join, groups, program, sampled)]
            if each
        ]
    return found


def queued_for(process: str, program: Program, states: Sequence[str], count: int) -> float:
    """Return how long threads at barriers may have waited for others that had no processor.

    A thread that is queued for 1 ns may delay each of the others by as much. Wake-ups that take
    long make it late for a barrier if they end other waits than the count at barriers: as much of
    all their time as those have of all waits.
    """
    rows = [
        row
        for row in program.threads
        if row.get("process") == process and program.sum(*states, rows=[row])
    ]
    threads: int = sum(row["threads"] for row in rows)
    woken_ns = program.sum("lat", rows=rows)
    queue_ns = sum(
        (row["lat"] if row["queue_ns"] is None else row["queue_ns"]) or 0 for row in rows
    )
    waits = sum(row["waits"] for row in rows)
    at_barriers = max(woken_ns - queue_ns, 0) * min(count / max(waits, 1), 1.0)
    return float((woken_ns - at_barriers) * max(threads - 1, 0))


def runs_longest(process: str, program: Program, sampled: Running | None) -> bool:
    """Whether one thread of a process runs most of the time, and much longer than the others do."""
    counts: Counter[int] = Counter()
    ran_ns: Counter[int] = Counter()
    for stack in sampled.of(process) if sampled else []:
        counts[stack.tid] += stack.samples
        ran_ns[stack.tid] += round(stack.ns)
    if counts.total() < TELLING:
        return False
    ((_, longest), *others) = ran_ns.most_common()
    rest = sum(ns for _, ns in others)
    return longest >= MOSTLY * program.wall_ns and longest * len(others) >= LONGER * rest > 0


def work_of(
    database: Database,
    process: str,
    sampled: Running | None,
    thread: str | None = None,
    waiter: str = "",
) -> tuple[str, str, str]:
    """Return how and where the busiest thread works, of those with a name. Empty: not known.

    That is the function in which it runs, or the place of its process with the longest waits for
    input, output and time, if threads ran for less. waiter: the function that waits for the others
    after the work. The work is the function that it called then, and the third text says in which
    other one most of it is.
    """
    stacks = sampled.of(process, thread) if sampled else []
    slow = next(iter(database.rows(slowest(process))), None)
    if slow and slow["wait_ns"] > sum(stack.ns for stack in stacks):
        return "waits at", slow["wait_label"], ""
    longest = busiest_thread(stacks)
    inner = busiest(longest)[0]
    outer = called_by(waiter, longest)
    if not inner or outer in ("", inner):
        return "runs in", inner, ""
    return "runs in", outer, f", mostly in {inner}"


def called_by(function: str, stacks: Sequence[Stack]) -> str:
    """Return which function called by this one the samples are mostly in. Empty: not known."""
    counts: Counter[str] = Counter()
    for stack in stacks:
        calls = stack.calls
        names = [call.partition(" ")[0] for call in calls]
        if function in names[1:]:
            counts[calls[names.index(function, 1) - 1]] += stack.samples
    first, count = next(iter(counts.most_common(1)), ("", 0))
    return first if count >= MOSTLY * sum(stack.samples for stack in stacks) else ""


def slowest(process: str) -> str:
    """The place of a process with the longest waits at work."""
    return measures.labelled(
        "SELECT process, wait_site, SUM(wait_ns) AS wait_ns FROM wakes"
        f" WHERE process = {quoted(process)} AND kind IN ({texts(SLOW_KINDS)})"
        " GROUP BY process, wait_site ORDER BY wait_ns DESC LIMIT 1",
        wait_label="wait_site",
    )


def barriers(
    database: Database, rows: list[Row], program: Program, sampled: Running | None
) -> list[Finding]:
    """The waits at each barrier, for the thread that arrives last because it has more work."""
    sites: dict[tuple[str, str], list[Row]] = {}
    counts: Counter[str] = Counter()
    for row in rows:
        sites.setdefault((row["process"], row["wait_site"]), []).append(row)
        counts[row["process"]] += row["count"]
    found = []
    coordinators = {
        (some[0]["process"], function_of(some[0]["wait_label"]))
        for some in sites.values()
        if is_coordinator(some, rows)
    }
    least = max(LEAST_SHARE * program.sum(*STATES), LEAST_NS)
    for (process, _), some in sites.items():
        of = {function_of(row[side]) for row in some for side in ("wait_label", "wake_label")}
        if any((process, function) in coordinators for function in of):
            continue
        first = max(some, key=lambda row: row["wait_ns"])
        wait_ns, count = (sum(row[key] for row in some) for key in ("wait_ns", "count"))
        states = ("join",) if first["kind"] == "barrier" else ("cond", "sem")
        load = load_without(wait_ns, states, program)
        most, expected = gain.bound(load, []), gain.estimate(load, [])
        if wait_ns < least or count < BARRIER_LEAST or expected < LEAST_GAIN:
            continue
        queued_ns = queued_for(process, program, states, counts[process])
        is_queued = queued_ns > QUEUED_MOST * wait_ns
        if is_queued and not runs_longest(process, program, sampled):
            continue
        name = first["object_name"] or (
            address(first["object"]) if first["object"] else "a barrier"
        )
        waiter = first["wait_label"]
        how, work, inner = work_of(database, process, sampled, waiter=function_of(waiter))
        busy = f"; the busiest {how} {work}{inner}" if work else ""
        text = (
            f"{name}: threads wait {duration(wait_ns)} in all at {waiter},"
            f" {duration(wait_ns / count)} each, for the last one"
            f"{busy}. With equal shares of the work at"
            f" most {most:.2f}x, about {expected:.2f}x the throughput [{STRAGGLER}]"
        )
        last = work or first["wake_label"]
        found.append(Finding(STRAGGLER, name, waiter, last, wait_ns, most, expected, text))
    return found


def is_coordinator(some: list[Row], rows: list[Row]) -> bool:
    """Whether one thread waits there each time, for others that hardly wait for each other.

    It hands out the work, and has none itself.
    """
    objects = {(row["process"], row["object"]) for row in some}
    function = function_of(some[0]["wait_label"])
    peers = [
        row
        for row in rows
        if (row["process"], row["object"]) in objects and function_of(row["wait_label"]) != function
    ]
    alone, others = (sum(row["count"] for row in part) for part in (some, peers))
    each, each_peer = (
        sum(row["wait_ns"] for row in part) / max(sum(row["count"] for row in part), 1)
        for part in (some, peers)
    )
    return bool(others >= PEERS_LEAST * alone and each_peer < PEERS_MOST * each)


def times(database: Database, process: str, groups: Sequence[Row], threads: int) -> int:
    """How often a group of threads was started, and all of them joined.

    A kernel thread that is started continues the counts of one that has ended. So there are as many
    counts as threads at a time, and those that are alive. They tell nothing of several groups.
    """
    (counts, alive) = (
        database.rows(f"SELECT COUNT(*) AS n FROM {table} WHERE process = {quoted(process)}")[0][
            "n"
        ]
        for table in ("workers", "threads")
    )
    is_only = sum(group["process"] == process for group in groups) == 1
    at_once = counts - alive if is_only else threads
    return max(round(threads / at_once), 1) if at_once > 0 else 1


def joined(
    database: Database, join: Row, groups: list[Row], program: Program, sampled: Running | None
) -> Finding | None:
    """One thread of a group that works for much longer than the others, while it is joined.

    That is the case each time, if the group is started again and again.
    """
    if join["wait_most_ns"] > program.wall_ns:
        return None
    for group in groups:
        threads, whole = group["threads"], group["wall_ns"]
        if group["process"] != join["process"] or threads < THREADS_LEAST:
            continue
        rounds = times(database, join["process"], groups, threads)
        each = threads / rounds
        # One waits for all, one after the other, until the longest has ended.
        is_one = join["wait_ns"] <= program.wall_ns and join["count"] <= threads
        longest = join["wait_ns"] / rounds if is_one else join["wait_most_ns"]
        if not THREADS_LEAST <= each <= THREADS_MOST or (rounds > 1 and not is_one):
            continue
        if longest * rounds < max(JOINED * program.wall_ns, LEAST_NS):
            continue
        short = (whole - longest * rounds) / (threads - rounds)
        is_uneven = SHORT_LEAST * longest <= short <= SHORT_MOST * longest
        if not is_uneven or program.sum(*AT_WORK, rows=[group]) < BUSY * whole:
            continue
        rest = program.wall_ns - longest * rounds + whole / each
        all_ran = least_ran(program.ran_ns, group["waits"], program)
        most = program.wall_ns / max(rest, all_ran / program.processors)
        expected = program.wall_ns / max(rest, program.ran_ns / program.processors)
        if most < LEAST_GAIN:
            continue
        name, waiter = f"thread {group['name']}", join["wait_label"]
        how, work, _ = work_of(database, group["process"], sampled, group["name"])
        at = f" and {how} {work}" if work else ""
        joins = counted(threads, "thread")
        which = f"one {group['name']} runs for {duration(longest)}"
        if rounds > 1:
            joins += f", {each:.0f} at a time"
            which = f"each time one {group['name']} runs for {duration(longest)} on average"
        text = (
            f"{waiter} joins {joins}: {which}{at}, the others for {duration(short)} on average."
            f" With equal shares of the work at most {most:.2f}x, about {expected:.2f}x the"
            f" throughput [{STRAGGLER}]"
        )
        lost = round((threads - rounds) * (longest - short))
        return Finding(STRAGGLER, name, waiter, work or name, lost, most, expected, text)
    return None
