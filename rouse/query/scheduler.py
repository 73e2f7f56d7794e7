# SPDX-License-Identifier: MIT
"""The sections of a report on what the kernel's scheduler did with threads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from rouse.clock import NS
from rouse.query.ran import Running, python_rows
from rouse.query.sections import Section
from rouse.query.specs import Column, extra
from rouse.sched import switches
from rouse.sched.probe import BY_BPF, BY_RECORDS
from rouse.sched.python_samples import PER_S
from rouse.sched.switches import Lock, Sleep, Switches, Thread
from rouse.store import layout
from rouse.text import counted

Row = dict[str, Any]
NOBODY = "-"
PROCESS = Column("process", "process", "index")
COLUMN_QUEUED = Column("queued_ns", "queued", "ns", "woken, and not yet on a processor")
COLUMN_QUEUED_MOST = extra("queued_most_ns", "queued at most", "ns")
COLUMN_ASLEEP = Column("asleep_ns", "asleep", "ns", "until it was woken")
THREADS = (
    Column("tid", "thread", "index"),
    Column("cpu_ns", "CPU", "ns", "on a processor"),
    COLUMN_ASLEEP,
    COLUMN_QUEUED,
    Column("preempted_ns", "preempted", "ns", "taken off a processor, or new, and not yet on one"),
    Column("sleeps", "sleeps", "count"),
    Column("involuntary", "taken off", "count", "involuntary switches"),
    replace(COLUMN_QUEUED_MOST, about="longest time in the run queue"),
    Column("now", "at the end"),
    Column("name", "name"),
)
SLEEPS = (
    Column("count", "sleeps", "count"),
    COLUMN_ASLEEP,
    extra("asleep_most_ns", "longest", "ns"),
    COLUMN_QUEUED,
    COLUMN_QUEUED_MOST,
    extra("threads", "threads", "count", "with this name"),
    Column("name", "name"),
    Column("call", "system call"),
    Column("waker", "woken by"),
)
WAITS = (
    Column("waits", "waits", "count", "that were recorded"),
    Column("count", "sleeps", "count", "in them, by the kernel"),
    COLUMN_ASLEEP,
    COLUMN_QUEUED,
    Column("queued_share", "queued %", "share", "of both"),
    COLUMN_QUEUED_MOST,
    Column("kind", "kind"),
    Column("label", "wait site"),
)
RAN = (
    Column("cpu_ns", "CPU", "ns", "on a processor, by samples"),
    Column("share", "share %", "share"),
    Column("samples", "samples", "count"),
    Column("label", "function"),
    Column("inner", "in", "text", "the library's function that it called, or the kernel"),
)
ABOUT_RAN = (
    "The program's functions in which threads ran, and what they called of libraries and the kernel"
    " meanwhile, by {samples}, one per {period:.0f} ms on a processor."
)
PYTHON = (
    Column("share", "share %", "share"),
    Column("samples", "samples", "count"),
    Column("label", "function"),
)
ABOUT_PYTHON = (
    "The Python program's functions whose threads held the interpreter lock, by samples of py-spy,"
    f" {PER_S} a second."
)
QUEUED = ("queued_ns", "queued_most_ns", "queued_share")
KERNEL_LOCKS = (
    Column("count", "count", "count", "times it was held on arrival"),
    Column("wait_ns", "waited", "ns"),
    extra("wait_most_ns", "longest", "ns"),
    extra("locks", "locks", "count", "with this type, at this place"),
    Column("type", "type"),
    Column("place", "in"),
    Column("callers", "called by"),
)


# By section. Without BPF some of the columns are missing, whose figures are then unknown.
COLUMNS_BY_KEY = {
    "kernel_threads": THREADS,
    "kernel_sleeps": SLEEPS,
    "kernel_locks": KERNEL_LOCKS,
    "kernel_waits": WAITS,
    "run_sites": RAN,
    "python_sites": PYTHON,
}


def by_records(columns: tuple[Column, ...], *unknown: str) -> tuple[Column, ...]:
    """Return the columns that are known without the wake-ups of sleepers."""
    return tuple(
        replace(column, about="until it ran again") if column.key == "asleep_ns" else column
        for column in columns
        if column.key not in unknown
    )


# LCB_F_... of the kernel's contention_begin, the most telling first.
FLAG_MUTEX, FLAG_PERCPU, FLAG_RT, FLAG_WRITE, FLAG_READ, FLAG_SPIN = 32, 16, 8, 4, 2, 1
# How the kernel's own functions for locks, and those that watch them, are called.
OF_LOCKS = re.compile(
    r"^(bpf_|__bpf_|__traceiter_|trace_|_*mutex_|_*ww_mutex|_*rt_mutex|down_|__down|rwsem_|_*percpu_"
    r"|_*raw_|_*rt_spin|_*rt_read|_*rt_write|(native_)?queued_|_*pv_queued|osq_|_*lock_|do_raw_)"
)
CALLERS = 3
ABOUT_WAITS = (
    "The longest total first. A wait may sleep more than once, or not at all. Not recorded:"
    " sleeps in no wait that librouse-preload.so has seen, by system call, as for libc's own"
    " locks and in page faults. Mutex again: the wait for the mutex at a condition's end."
)
ABOUT_SLEEPS = (
    "The longest total first. A wait may sleep more than once, or not at all; a sleep ends when"
    " the thread runs again. Not recorded: sleeps in no wait that librouse-preload.so has seen, as"
    " for libc's own locks and in page faults."
)
RELOCK = "condition: mutex again"
OUTSIDE = "not recorded"


def after_sleeps(thread: Thread, asleep_ns: int) -> int | None:
    """Return the time in the run queue after sleeps, in ns: the kernel's sum less the preemptions.

    The two have different clocks, so the result is bounded. None: the kernel's sum is not known.
    """
    if thread.all_queued_ns is None:
        return None
    return min(max(thread.all_queued_ns - thread.preempted_ns, 0), asleep_ns)


def thread_row(thread: Thread, now_ns: int, sleeps: Iterable[Sleep], by: str) -> Row:
    sleeps = list(sleeps)
    asleep = sum(sleep.asleep_ns for sleep in sleeps)
    queued: int | None = sum(sleep.queued_ns for sleep in sleeps)
    if by == BY_RECORDS:
        queued = after_sleeps(thread, asleep)
        asleep -= queued or 0
    most = max([thread.preempted_most_ns, *(sleep.queued_most_ns for sleep in sleeps)])
    cpu, preempted = thread.cpu_ns, thread.preempted_ns
    present = max(now_ns - thread.since_ns, 0)
    now = switches.STATES[thread.state]
    if thread.state == switches.ASLEEP:
        asleep += present
        if thread.call != switches.NO_CALL:
            now = f"{now} in {thread.call}"
    elif thread.state == switches.QUEUED:
        preempted += present
    elif thread.state == switches.RUNS:
        cpu += present
    return {
        "process": thread.process,
        "tid": thread.tid,
        "name": thread.name,
        "cpu_ns": cpu,
        "asleep_ns": asleep,
        "queued_ns": queued,
        "preempted_ns": preempted,
        "queued_most_ns": most,
        "sleeps": sum(sleep.count for sleep in sleeps),
        "voluntary": thread.voluntary,
        "involuntary": thread.involuntary,
        "now": now,
    }


def thread_rows(found: Switches) -> list[Row]:
    of: dict[int, list[Sleep]] = {}
    for sleep in found.sleeps:
        of.setdefault(sleep.thread, []).append(sleep)
    rows = [
        thread_row(thread, found.now_ns, of.get(key, []), found.by)
        for key, thread in found.threads.items()
    ]
    return sorted(
        rows, key=lambda row: (-(row["queued_ns"] or 0) - row["preempted_ns"], row["tid"])
    )


def sleep_rows(found: Switches) -> list[Row]:
    """Sum up sleeps by the threads' names, which the threads of a pool share."""
    names = {thread.tid: thread.name for thread in found.threads.values()}
    rows: dict[tuple[int, str, str, str], Row] = {}
    for sleep in found.sleeps:
        thread = found.threads.get(sleep.thread)
        if thread is None:
            continue
        # The waker's latest name: it may not have had one at its first wake-up.
        waker = names.get(sleep.waker_tid, sleep.waker) if sleep.waker_tid else NOBODY
        key = (thread.process, thread.name, sleep.call, waker)
        row = rows.setdefault(
            key,
            {
                **dict(zip(("process", "name", "call", "waker"), key, strict=True)),
                **dict.fromkeys(("count", "asleep_ns", "asleep_most_ns"), 0),
                **dict.fromkeys(("queued_ns", "queued_most_ns"), 0),
                "tids": set(),
            },
        )
        for name in ("count", "asleep_ns", "queued_ns"):
            row[name] += getattr(sleep, name)
        for name in ("asleep_most_ns", "queued_most_ns"):
            row[name] = max(row[name], getattr(sleep, name))
        row["tids"].add(sleep.thread)
    for row in rows.values():
        row["threads"] = len(row.pop("tids"))
    return sorted(rows.values(), key=lambda row: -row["asleep_ns"])


def wait_of(sleep: Sleep, labels: Mapping[tuple[int, int], str], process: int) -> tuple[str, str]:
    """Return the kind and the label of the wait in which a thread slept."""
    if sleep.join not in (switches.JOINED, switches.RELOCK):
        return OUTSIDE, sleep.call
    names = layout.kind_names(layout.PRELOAD)  # the kernel's side joins no waits of librouse
    kind = names[sleep.kind] if sleep.kind < len(names) else str(sleep.kind)
    label = labels.get((process, sleep.site), hex(sleep.site))
    return (RELOCK if sleep.join == switches.RELOCK else kind), label


def wait_rows(
    found: Switches,
    labels: Mapping[tuple[int, int], str],
    waits: Mapping[tuple[int, str, int], int],
) -> list[Row]:
    """Split the recorded waits into sleep and run queue; list other sleeps by system call.

    labels: of sites, by process. waits: how many were recorded, by process, kind and site.
    """
    rows: dict[tuple[int, str, str], Row] = {}
    for sleep in found.sleeps:
        thread = found.threads.get(sleep.thread)
        if thread is None:
            continue
        kind, label = wait_of(sleep, labels, thread.process)
        row = rows.setdefault(
            (thread.process, kind, label),
            {
                **{"process": thread.process, "kind": kind, "label": label},
                "waits": waits.get((thread.process, kind, sleep.site)),
                **dict.fromkeys(("count", "asleep_ns", "queued_ns", "queued_most_ns"), 0),
            },
        )
        for name in ("count", "asleep_ns", "queued_ns"):
            row[name] += getattr(sleep, name)
        row["queued_most_ns"] = max(row["queued_most_ns"], sleep.queued_most_ns)
    for row in rows.values():
        whole = row["asleep_ns"] + row["queued_ns"]
        row["queued_share"] = row["queued_ns"] / whole if whole else None
    ordered = sorted(rows.values(), key=lambda row: -row["asleep_ns"] - row["queued_ns"])
    if found.by == BY_RECORDS:
        return [{**row, **dict.fromkeys(QUEUED)} for row in ordered]
    return ordered


def joined(found: Switches) -> tuple[int, int]:
    """Return the sleeps in recorded waits, and all sleeps of the processes that record."""
    counts = [0] * (switches.UNREAD + 1)
    for sleep in found.sleeps:
        counts[sleep.join] += sleep.count
    return counts[switches.JOINED] + counts[switches.RELOCK], sum(counts) - counts[switches.ALONE]


def joined_text(found: Switches) -> str:
    some, every = joined(found)
    share = f"{100 * some / every:.1f} %" if every else "none"
    return f"{some:,} of {every:,} sleeps ({share}) were in waits that were recorded"


def fact(found: Switches) -> str:
    if found.by == switches.BY_SUMS:
        sums = found.sums
        return (
            f"librouse-preload.so; getrusage, all processes together: {sums.voluntary:,} voluntary"
            f" and {sums.involuntary:,} involuntary switches, {sums.cpu_ns / NS:.3f} s on a"
            f" processor; no more: {found.why}"
        )
    if found.by == BY_RECORDS:
        return (
            "librouse-preload.so; the kernel's records of switches (PERF_RECORD_SWITCH):"
            f" {joined_text(found)}; not who woke a thread, and when: {found.why}"
        )
    return (
        "librouse-preload.so; sched_switch, sched_waking and contention_begin, by BPF:"
        f" {joined_text(found)}"
    )


def section(
    key: str, title: str, about: str, columns: tuple[Column, ...], rows: list[Row], limit: int
) -> Section:
    several = len({row.get("process") for row in rows}) > 1
    shown = rows[:limit] if limit else rows
    return Section(
        key,
        title,
        about,
        (PROCESS, *columns) if several else columns,
        shown,
        more=len(rows) - len(shown),
        empty="" if rows else "none was seen",
    )


def ran(found: Running, limit: int) -> Section:
    """The functions in which threads ran, of a program that was sampled."""
    samples = counted(found.samples, "sample")
    about = ABOUT_RAN.format(samples=samples, period=found.period_ns / 1e6)
    made = section("run_sites", "Where threads ran", about, RAN, found.rows(), limit)
    return replace(made, empty=made.empty and "no thread ran for long enough")


def python(found: Running, limit: int) -> list[Section]:
    """The functions of Python programs, if there are some."""
    rows = python_rows(found)
    if not rows:
        return []
    return [section("python_sites", "Python functions", ABOUT_PYTHON, PYTHON, rows, limit)]


def sections(found: Switches, limit: int = 0) -> list[Section]:
    if found.by == switches.BY_SUMS:
        return []
    if found.by == BY_RECORDS:
        return [
            section(
                "kernel_threads",
                "Threads, by the kernel's records of switches",
                "Those that waited longest for a processor first. queued is by the thread's own sum"
                " at its end (schedstat), less what it was preempted; else it is in asleep.",
                THREADS,
                thread_rows(found),
                limit,
            )
        ]
    return [
        section(
            "kernel_threads",
            "Threads, by the kernel's scheduler",
            "Those that waited longest for a processor first. asleep ends when the thread is woken;"
            " from then on until it runs it is queued.",
            THREADS,
            thread_rows(found),
            limit,
        ),
        section(
            "kernel_sleeps",
            "Sleeps and wakers, by the kernel's scheduler",
            "The longest in all first; - for a waker: an interrupt, as of a timer, a disk or the"
            " network; for a system call: none, as in a page fault. Sleeps that ended.",
            SLEEPS,
            sleep_rows(found),
            limit,
        ),
        section(
            "kernel_locks",
            "Locks of the kernel's own",
            "Locks that were held on arrival, the longest total wait first: where in the kernel.",
            KERNEL_LOCKS,
            lock_rows(found),
            limit,
        ),
    ]


def split(
    found: Switches,
    labels: Mapping[tuple[int, int], str],
    waits: Mapping[tuple[int, str, int], int],
    limit: int = 0,
) -> list[Section]:
    if found.by == switches.BY_SUMS:
        return []
    is_split = found.by == BY_BPF
    return [
        section(
            "kernel_waits",
            "Waits, split by the kernel's scheduler"
            if is_split
            else "Waits, and the sleeps in them",
            ABOUT_WAITS if is_split else ABOUT_SLEEPS,
            WAITS if is_split else by_records(WAITS, *QUEUED),
            wait_rows(found, labels, waits),
            limit,
        )
    ]


def lock_type(flags: int) -> str:
    way = "write" if flags & FLAG_WRITE else "read" if flags & FLAG_READ else ""
    if flags & FLAG_MUTEX:
        return "mutex"
    if flags & FLAG_SPIN:
        return f"spin lock {way}".strip()
    if flags & FLAG_RT:
        return f"rt {way or 'mutex'}"
    sort = "percpu rwsem" if flags & FLAG_PERCPU else "rwsem" if way else "semaphore"
    return f"{sort} {way}".strip()


def way_to(lock: Lock, symbols: Mapping[int, str]) -> tuple[str, str]:
    """Return the function that asked for the lock, and its callers."""
    names = [symbols.get(address, hex(address)) for address in lock.frames]
    is_of_locks = [bool(OF_LOCKS.match(name)) for name in names]
    # The watcher's own code comes first. It may have no name, or a wrong one.
    first = is_of_locks.index(True) if any(is_of_locks) else 0
    while first < len(names) - 1 and is_of_locks[first]:
        first += 1
    place = names[first] if names else NOBODY
    return place, " < ".join(names[first + 1 : first + 1 + CALLERS]) or NOBODY


def lock_rows(found: Switches) -> list[Row]:
    rows: dict[tuple[str, str, str], Row] = {}
    for lock in found.locks:
        key = (lock_type(lock.flags), *way_to(lock, found.symbols))
        row = rows.setdefault(
            key,
            {
                **dict(zip(("type", "place", "callers"), key, strict=True)),
                **dict.fromkeys(("count", "wait_ns", "wait_most_ns"), 0),
                "addresses": set(),
            },
        )
        row["count"] += lock.count
        row["wait_ns"] += lock.wait_ns
        row["wait_most_ns"] = max(row["wait_most_ns"], lock.wait_most_ns)
        row["addresses"].add(lock.address)
    for row in rows.values():
        row["addresses"] = sorted(map(hex, row["addresses"]))
        row["locks"] = len(row["addresses"])
    return sorted(rows.values(), key=lambda row: -row["wait_ns"])


def notes(found: Switches) -> list[str]:
    recorders = "threads that wait" if found.by == BY_RECORDS else "processes that record"
    lost = (
        (found.lost_threads, "threads", "all that they did"),
        (found.lost_sleeps, "sleeps", "their time"),
        (found.lost_locks, "waits for locks of the kernel", "their time"),
        (found.lost_places, "call paths", "where they slept or woke others"),
        (found.lost_recorders, recorders, "which waits they slept in"),
        (found.lost_records, "records of switches", "their switches, and what lies between,"),
    )
    notes = [
        f"{count:,} {what} found no room: {missing} is missing"
        for count, what, missing in lost
        if count
    ]
    unread = sum(sleep.count for sleep in found.sleeps if sleep.join == switches.UNREAD)
    if found.by == BY_RECORDS and unread:
        notes.append(f"{unread:,} sleeps were read too late to find the waits that they were in")
    return notes
