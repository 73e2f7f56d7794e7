# SPDX-License-Identifier: MIT
"""The sections of a report: the query, the columns and the introduction of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rouse.query import listeners, locks, measures
from rouse.tables.schemas import MICROSTATES
from rouse.tables.views import FUTEX_LOCK, NOT_KNOWN

Row = dict[str, Any]
RELEASE = " (release)"  # after the place that released a lock, where its acquisition is not known


@dataclass(frozen=True)
class Column:
    """A column. kind: text, count, ns (a duration), us (in µs), share (of 1), or index."""

    key: str
    title: str
    kind: str = "text"
    about: str = ""
    is_extra: bool = False  # left out where the line is too narrow for all
    is_seldom: bool = False  # left out where no row has any


@dataclass(frozen=True)
class Plan:
    """How to make a section."""

    key: str
    title: str
    about: str
    query: Callable[[measures.Cut], str]
    columns: tuple[Column, ...]
    finish: Callable[[Row], Row] = lambda row: row
    empty: str = "nothing was recorded"
    split_idle: bool = False
    is_plain: bool = False  # rows are records, not sums of many
    is_by_place: bool = False  # a row sums up all call stacks that led to its site
    is_summary: bool = False  # a row is a list of figures, not a line of a table
    is_joint: bool = False  # rows sum up all processes


def extra(key: str, title: str, kind: str = "text", about: str = "") -> Column:
    return Column(key, title, kind, about, is_extra=True)


def seldom(key: str, title: str, kind: str, about: str) -> Column:
    return Column(key, title, kind, about, is_extra=True, is_seldom=True)


def address(word: int) -> str:
    """Return an address as text. A table has it as a signed number."""
    return hex(word % (1 << 64))


def init_text(row: Mapping[str, Any]) -> str:
    """Return the place that initialised a lock. Empty: not known, or several."""
    return str(row["init_label"]) if row["init_site"] not in ("", None, NOT_KNOWN) else ""


def init_of(row: Row) -> Row:
    """Replace the place that initialised a lock by null if it is not known."""
    if not init_text(row):
        row["init_site"] = row["init_label"] = None
    return row


def origin_of(row: Row) -> Row:
    lock = "lock" if row["locks"] == 1 else "locks"
    row["name"] = f"{row['locks']:,} {lock} initialised at {row['init_label']} ({row['kind']})"
    return row


def lock_name(row: Row) -> Row:
    """Return FreeBSD's name of a row: where the lock is acquired, and which lock it is."""
    init_of(row)
    row["lock_label"] = row["lock_name"] or address(row["lock"])
    row["name"] = f"{row['site_label']} ({row['kind']}:{row['lock_label']})"
    return row


def lock_of(row: Row) -> Row:
    row["lock_label"] = row["lock_name"] or address(row["lock"])
    return row


def side_of(row: Row) -> Row:
    if row["kind"] == FUTEX_LOCK and row["holder_site"] != NOT_KNOWN:
        row["holder_label"] += RELEASE
    return lock_of(init_of(row))


def object_of(row: Row) -> Row:
    init_of(row)
    name = row["object_name"]
    one = name or (address(row["object"]) if row["object"] else "-")
    several = f"{row['objects']:,} objects"
    row["object_label"] = (f"{several}: {name}" if name else several) if row["objects"] > 1 else one
    return row


def thread_of(row: Row) -> Row:
    row["label"] = row["name"] or f"thread {row['thread_id']}"
    row["now"] = row["state"]
    return shares_of(row)


def group_of(row: Row) -> Row:
    row["label"] = f"{row['name']} x{row['threads']}" if row["threads"] > 1 else row["name"]
    return shares_of(row)


def shares_of(row: Row) -> Row:
    wall = None if row["is_cut"] else row["wall_ns"]
    for name in (*MICROSTATES, "lck", "slp", "in_call"):
        row[f"{name}_share"] = row[name] / wall if wall and row[name] is not None else None
    row["missing_share"] = row["missing_ns"] / wall if wall else None
    return row


def worker_of(row: Row) -> Row:
    sort = "worker" if row["is_worker"] else "kernel thread"
    row["label"] = f"{sort} {row['worker'] if row['is_worker'] else row['tid']}"
    wall = row["wall_ns"]
    # Outside of rouse a kernel thread is not seen to be idle: the kernel reports whether it ran.
    busy = wall - row["idle_ns"] if row["is_worker"] else row["cpu_ns"]
    row["busy_share"] = min(busy / wall, 1.0) if wall and busy is not None else None
    row["idle_share"] = row["idle_ns"] / wall if wall and row["is_worker"] else None
    return row


LABEL = Column("label", "thread")
INIT = seldom("init_label", "initialised at", "text", "if it was by a call that is seen")
WAITED = Column("wait_ns", "waited", "ns", "waits under way up to now")
WAITING = seldom("waiting", "now", "count", "waits under way")
# The first columns of locks, by site or by origin.
HOLDS_AND_WAITS = (
    Column("max_ns", "max", "us", "longest hold"),
    Column("wait_max_ns", "wait_max", "us", "longest wait"),
    Column("total_ns", "total", "us", "all holds"),
    Column("wait_total_ns", "wait_total", "us", "all waits, those under way up to now"),
    Column("count", "count", "count", "acquisitions"),
    Column("avg_ns", "avg", "us", "hold each"),
)
LOCKS = Plan(
    "locks",
    "Locks",
    "By lock and the site that acquired it, the longest total wait first; microseconds. Waits"
    " are summed over all waiters. Holders of futex locks are shown by the site that released"
    " them.",
    locks.table,
    (
        *HOLDS_AND_WAITS,
        Column("wait_avg_ns", "wait_avg", "us", "wait per acquisition"),
        Column("cnt_hold", "cnt_hold", "count", "others that came while it was held from here"),
        Column("cnt_lock", "cnt_lock", "count", "times it was held on arrival here"),
        seldom("waiting", "waiting", "count", "wait here now; they are not in cnt_lock yet"),
        seldom("kept_waiting", "kept", "count", "wait now, and came while it was held from here"),
        INIT,
        Column("name", "name"),
    ),
    lock_name,
    "no thread met a lock of POSIX or librouse that was held",
    is_by_place=True,
)
ORIGINS = Plan(
    "origins",
    "Locks by origin",
    "By the place that initialised them, the longest total wait first; microseconds. Locks that"
    " nobody waited for are not counted unless each time was recorded, and those that no call"
    " initialised are in none.",
    locks.origins,
    (
        *HOLDS_AND_WAITS,
        Column("cnt_lock", "cnt_lock", "count", "times one was held on arrival"),
        Column("locks", "locks", "count"),
        seldom("waiting", "waiting", "count", "wait now; they are not in cnt_lock yet"),
        Column("name", "name"),
    ),
    origin_of,
    "no lock of which anything was recorded was initialised by a call that is seen",
)
SIDES = Plan(
    "sides",
    "Waiters and holders",
    "By lock: the site that waited, and the site at which the holder had acquired it. Of futex"
    " locks it is the site that released it.",
    locks.sides,
    (
        WAITED,
        Column("contested", "times", "count", "waits that have ended"),
        WAITING,
        Column("wait_each_ns", "each", "ns"),
        extra("wait_most_ns", "most", "ns"),
        extra("given_up", "given up", "count"),
        extra("spin_ns", "spun", "ns", "of the time waited"),
        Column("site_label", "waits at"),
        Column("holder_label", "held from"),
        Column("lock_label", "lock"),
        INIT,
        extra("kind", "kind"),
    ),
    side_of,
    "no thread waited for a lock",
    is_plain=True,
)
WAITS = Plan(
    "waits",
    "Wait sites",
    "Where threads waited, for what, and the other side: who held it, or who woke them.",
    measures.wait_sites,
    (
        WAITED,
        Column("count", "times", "count", "waits that have ended"),
        WAITING,
        extra("wait_each_ns", "each", "ns"),
        extra("wait_most_ns", "most", "ns"),
        extra("useless", "useless", "count", "wake-ups: lost-race, false, early"),
        Column("kind", "kind"),
        Column("wait_label", "waits at"),
        extra("role", "other"),
        Column("other_label", "other side"),
        extra("object_label", "object"),
        INIT,
    ),
    object_of,
    "no thread has waited",
    split_idle=True,
)
WAKES = Plan(
    "wakes",
    "Wake-ups",
    "By wait site and wake site: the verdicts on wake-ups, and how late the thread then ran.",
    measures.wake_ledger,
    (
        Column("count", "wake-ups", "count"),
        Column("useful", "useful", "count"),
        extra("lost_race", "lost", "count", "lost-race: another took it first"),
        Column("false_", "false", "count", "nothing that it waits for had happened"),
        extra("early", "early", "count"),
        extra("timeout", "timeout", "count"),
        extra("cancelled", "cancel", "count"),
        extra("unrecorded", "?", "count", "not recorded whole"),
        Column("late_each_ns", "to run", "ns", "from the wake-up until it ran, each"),
        extra("late_most_ns", "most", "ns"),
        extra("waste_ns", "ran for it", "ns", "after useless wake-ups; the switches cost more"),
        extra("kind", "kind"),
        Column("wait_label", "waits at"),
        Column("wake_label", "woken from"),
        extra("object_label", "object"),
        INIT,
    ),
    object_of,
    "no thread has been woken",
    split_idle=True,
)
SHARES = (
    *(
        Column(f"{key}_share", title, "share", about)
        for key, title, about in (
            ("usr", "USR", "on a processor; of user threads their part of what the worker was"),
            ("lat", "LAT", "could run, and did not, or its worker did not"),
            ("lck", "LCK", "waits for other threads"),
            ("slp", "SLP", "waits for something else"),
        )
    ),
    *(extra(f"{name}_share", name, "share") for name in (*measures.LCK, *measures.SLP)),
    extra("in_call_share", "call", "share", "asleep in a system call that rouse does not see"),
    extra("missing_share", "missing", "share", "what the states' sum lacks of the wall"),
)
GROUPS = Plan(
    "groups",
    "Threads by name",
    "All threads of a name, also those that have ended, in percent of their lives; first those"
    " that could run and did not, or waited for others.",
    measures.thread_groups,
    (
        LABEL,
        Column("wall_ns", "lived", "ns", "all of them together"),
        *SHARES,
        seldom("ended_threads", "ended", "count", "threads that have ended"),
        extra("waits", "waits", "count"),
        extra("useless", "useless", "count"),
        seldom("accepted", "accepted", "count", "connections"),
    ),
    group_of,
    "there was no thread",
    split_idle=True,
)
THREADS = Plan(
    "threads",
    "Where the time goes",
    "By thread that has not ended, in percent of its life; first the threads that could run and"
    " did not, or wait for others.",
    measures.microstates,
    (
        LABEL,
        extra("thread_id", "id", "index"),
        Column("now", "now"),
        *SHARES,
        extra("waits", "waits", "count"),
        extra("useless", "useless", "count"),
        extra("wait_label", "last waited at"),
    ),
    thread_of,
    "there is no thread",
    split_idle=True,
)
WORKERS = Plan(
    "workers",
    "Workers and kernel threads",
    "What runs the threads. user to SIG are the kernel's figures; - is what the kernel does not"
    " report.",
    measures.workers,
    (
        Column("label", "worker"),
        extra("tid", "tid", "index"),
        Column("busy_share", "busy", "share", "had a thread to run; kernel threads: ran"),
        extra("idle_share", "idle", "share"),
        Column("switches", "switches", "count", "threads put on the CPU"),
        extra("steals", "steals", "count"),
        extra("stolen", "stolen", "count"),
        Column("user_ns", "user", "ns"),
        Column("system_ns", "system", "ns"),
        extra("run_queue_ns", "LAT", "ns", "runnable, and not run by the kernel"),
        extra("voluntary", "VCX", "count"),
        extra("involuntary", "ICX", "count"),
        extra("major_faults", "major", "count"),
        extra("minor_faults", "minor", "count"),
        extra("syscalls", "SCL", "count"),
        extra("signals", "SIG", "count"),
    ),
    worker_of,
    "no worker has begun",
)
SPINS = Plan(
    "spins",
    "Spinning",
    "By lock and site: the time spun before the lock was acquired or given up.",
    locks.spins,
    (
        Column("spin_ns", "spun", "ns"),
        Column("spun", "enough", "count", "times that spinning was enough"),
        extra("contested", "times", "count"),
        extra("wait_ns", "waited", "ns", "total, spinning included"),
        Column("site_label", "site"),
        Column("lock_label", "lock"),
        extra("kind", "kind"),
    ),
    lock_of,
    "no thread spun for a lock",
    is_by_place=True,
)
CALLS = Plan(
    "calls",
    "Calls completed",
    "Blocking calls that completed, by kind.",
    measures.calls,
    (Column("kind", "kind"), Column("completed", "completed", "count")),
    empty="no blocking call has completed",
)
HERDS = Plan(
    "herds",
    "Herds",
    "How many threads were woken at once, and how often.",
    measures.herds,
    (
        Column("size_from", "threads from", "count"),
        Column("count", "times", "count"),
    ),
    empty="no threads were woken together",
)
LATENESS = Plan(
    "lateness",
    "Lateness of timers",
    "How late timers were fired, in powers of two.",
    measures.lateness,
    (
        Column("late_from_ns", "late from", "ns"),
        Column("count", "timers", "count"),
    ),
    empty="no timer was fired",
)
ACCEPTS = Plan(
    "accepts",
    "Who gets the connections",
    "Connections by the thread that accepted them.",
    measures.accepts,
    (
        LABEL,
        Column("thread_id", "id", "index"),
        Column("accepted", "accepted", "count"),
    ),
    lambda row: {**row, "label": row["name"] or f"thread {row['thread_id']}"},
    "no thread accepts connections",
)
BALANCE = Plan(
    "balance",
    "Balance of accept",
    "Jain's index: 1 where each thread has the same share, 1/threads where one has all.",
    measures.accept_balance,
    (
        Column("threads", "threads", "count"),
        Column("accepted", "accepted", "count"),
        Column("least", "least", "count"),
        Column("most", "most", "count"),
        Column("jain", "Jain's index", "index"),
    ),
    is_summary=True,
    empty="no thread accepts connections",
)
LISTENERS = Plan(
    "listeners",
    "Listeners",
    "Over all processes that share one. Jain's index: 1 where each has the same share of the"
    " connections, 1/n where one of n has all.",
    listeners.listeners,
    (
        Column("name", "listener"),
        Column("accepted", "accepted", "count"),
        Column("processes", "processes", "count", "that waited for it, or accepted"),
        Column("threads", "threads", "count"),
        Column("least", "least", "count", "of a process"),
        Column("most", "most", "count", "of a process"),
        Column("jain_processes", "Jain's index, processes", "index"),
        Column("jain_threads", "Jain's index, threads", "index"),
        Column("woken", "wake-ups", "count", "waits that ended since a connection was there"),
        Column("in_vain", "spurious", "count", "wake-ups inside waits: another had taken it"),
        Column("woken_each", "wake-ups per connection", "index", "both; more than 1: a herd"),
        Column("lost", "lost races", "count", "poll reported a connection, accept found none"),
        Column("backlog_mean", "left in the queue", "index", "mean, when one was accepted"),
        Column("backlog_most", "most left", "count"),
        Column(
            "queue_delay_ns",
            "in the queue (estimate)",
            "ns",
            "by Little's law: those left, by the rate at which they were taken",
        ),
        *(
            seldom(key, title, kind, about)
            for key, title, kind, about in (
                ("ordered", "accepted in turn", "count", "by who had the turn"),
                ("turns", "turns given", "count", "to who was next"),
                ("promoted", "promoted", "count", "turns of who had been passed over for 100 ms"),
                ("overdue", "turns taken over", "count", "from who did not use them"),
                ("put_off", "put off", "count", "out of turn: accept said EAGAIN"),
                ("delays", "delayed", "count", "accepts that were made to wait"),
                ("delay_ns", "delayed by", "ns", "all of them"),
            )
        ),
    ),
    is_summary=True,
    is_joint=True,
    empty="no listener was recorded; rouse run records listeners",
)
TOTALS = Plan(
    "totals",
    "Totals",
    "The sums of waits and wake-ups.",
    measures.totals,
    (
        Column("calls", "calls completed", "count"),
        Column("switches", "switches", "count"),
        Column("wakes", "wake-ups", "count"),
        Column("useful", "useful", "count"),
        Column("lost_race", "lost-race", "count"),
        Column("false_", "false", "count"),
        Column("early", "early", "count"),
        Column("timeout", "timeout", "count"),
        Column("cancelled", "cancelled", "count"),
        Column("unrecorded", "not recorded whole", "count"),
        Column("signals_unheard", "signals nobody waited for", "count"),
        Column("broadcasts_unheard", "broadcasts nobody waited for", "count"),
        Column("waiting", "waits under way", "count"),
        Column("waiting_ns", "waited in these so far", "ns"),
        Column("waste_ns", "ran after useless wake-ups", "ns"),
        Column("lock_waits", "waits for locks", "count"),
        Column("lock_waiting", "wait for locks now", "count"),
        Column("lock_wait_ns", "waited for locks", "ns"),
        Column("lock_spin_ns", "spun for locks", "ns"),
    ),
    is_summary=True,
    empty="nothing was recorded",
)
PLANS = (
    *(TOTALS, LOCKS, ORIGINS, SIDES, WAITS, WAKES, SPINS, GROUPS, THREADS, WORKERS),
    *(LISTENERS, BALANCE, ACCEPTS, LATENESS, HERDS, CALLS),
)
KEYS = tuple(plan.key for plan in PLANS)
PROCESS = Column("process", "process")
