# SPDX-License-Identifier: MIT
"""Every figure of a report as an SQL query over the tables of rouse/tables.

A function returns the text of a query that no engine has run yet. Times are nanoseconds. A null
means that the recording does not say. rouse/tables/views.py has the rules that keep one text good
for all engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rouse.tables.schemas import COLUMNS, MICROSTATES, UNNAMED
from rouse.tables.views import (
    FUTEX_LOCK,
    LOCK_KINDS,
    NOT_KNOWN,
    USER,
    known_site,
    names,
    ratio,
    texts,
)

LCK = ("mutex", "rwlock", "cond", "sem", "join")
SLP = ("io", "poll", "accept", "sleep")
VERDICTS = ("useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded")
# Labels of NOT_KNOWN. TIMER and THREAD_END also say what ended a wait that no call woke.
UNKNOWN, RUNTIME, UNSEEN, TIMER, THREAD_END = "-", "runtime", "not known", "timer", "thread end"
# Kinds of waits that another thread ends, if no deadline does.
BY_THREADS = (*LOCK_KINDS, "condition", "semaphore", "barrier", "once", "futex")

# Puts rows into an order and takes those to be shown, before their sites are named. Order and limit
# belong together: a query around rows need not keep their order. A column of
# the order may say DESC.
Cut = Callable[[str, Sequence[str]], str]


def order_by(columns: Iterable[str]) -> str:
    terms = []
    for column in columns:
        name, _, way = column.partition(" ")
        terms.append(f'"{name}" {way or "ASC"} NULLS LAST')
    return "ORDER BY " + ", ".join(terms)


def whole(rows: str, order: Sequence[str]) -> str:
    return f"SELECT * FROM ({rows}) w {order_by(order)}"


def total(columns: Iterable[str], table: str = "") -> str:
    """SQL for the sum of columns of a row."""
    head = f"{table}." if table else ""
    return "(" + " + ".join(f'{head}"{column}"' for column in columns) + ")"


def aggregates(function: str, columns: Iterable[str]) -> str:
    """SQL for the sum (or MAX, ...) of each column over a group, under its own name."""
    return ", ".join(f'{function}("{column}") AS "{column}"' for column in columns)


def sums(columns: Iterable[str]) -> str:
    return aggregates("SUM", columns)


def the_only(site: str) -> str:
    """SQL for the site that all rows of a group have. NOT_KNOWN: they have several, or none."""
    known = known_site(site)
    return f"CASE WHEN MIN({known}) = MAX({known}) THEN MAX({known}) ELSE '{NOT_KNOWN}' END"


# The number of objects of a group. The decoder makes one row per key, and the object is in the key.
OBJECTS = "CASE WHEN MIN(object) = MAX(object) THEN 1 ELSE COUNT(*) END"
# The name of all objects of a group; null if they have several, or some have none.
COMMON_NAME = (
    "CASE WHEN MIN(COALESCE(object_name, '')) = MAX(COALESCE(object_name, ''))"
    " THEN NULLIF(MAX(object_name), '') END"
)


def labelled(rows: str, order: Sequence[str] = (), nobody: str = UNKNOWN, **columns: str) -> str:
    """Add a column of labels for each column of site ids. nobody: the label of NOT_KNOWN."""
    shown, joins = [], []
    for number, (label, site) in enumerate(columns.items()):
        known = f"l{number}"
        shown.append(
            f"CASE WHEN r.{site} = '{NOT_KNOWN}' THEN '{nobody}'"
            f" ELSE COALESCE({known}.label, r.{site}) END AS {label}"
        )
        joins.append(
            f"LEFT JOIN labels {known} ON {known}.process = r.process AND {known}.site = r.{site}"
        )
    text = f"SELECT r.*, {', '.join(shown)} FROM ({rows}) r {' '.join(joins)}"
    return f"SELECT * FROM ({text}) o {order_by(order)}" if order else text


def by_place(rows: str, columns: Iterable[str], *sites: str) -> str:
    """Replace the sites in some columns by their places."""
    shown, joins = [], []
    for number, column in enumerate(columns):
        if column in sites:
            shown.append(f"COALESCE(p{number}.place, r.{column}) AS {column}")
            joins.append(
                f"LEFT JOIN places p{number}"
                f" ON p{number}.process = r.process AND p{number}.site = r.{column}"
            )
        else:
            shown.append(f'r."{column}"')
    return f"SELECT {', '.join(shown)} FROM ({rows}) r {' '.join(joins)}"


def with_idle(rows: str) -> str:
    """Add to rows (process, kind, wait_site, ...) whether their waits are those of idle threads."""
    return (
        f"SELECT r.*, (i.process IS NOT NULL OR r.kind = 'accept')"
        f" AND r.kind NOT IN ({texts(LOCK_KINDS)}) AS is_idle"
        f" FROM ({rows}) r LEFT JOIN idle_sites i"
        " ON i.process = r.process AND i.kind = r.kind AND i.wait_site = r.wait_site"
    )


def waited_for(locks: str) -> str:
    """Select the rows with contention: some thread found the lock held."""
    return f"SELECT * FROM ({locks}) h WHERE contested > 0 OR COALESCE(waiting, 0) > 0"


def nobody_label(woken: str) -> str:
    """SQL for the label of a waker without a site, in a row r with a kind, joined to preloaded n.

    woken: the number of wake-ups in the row that no deadline caused. A sleep, or a row of nothing
    but time-outs, was ended by a timer; a join by the end of the other thread. librouse itself may
    also wake a thread. In an interposed program, a wait in BY_THREADS ends by an unrecorded thread,
    such as one in another process, or by a signal.
    """
    unseen = f"n.process IS NOT NULL AND r.kind IN ({texts(BY_THREADS)}) AND {woken} > 0"
    return (
        f"CASE WHEN r.kind = 'sleep' OR {woken} = 0 THEN '{TIMER}'"
        f" WHEN r.kind = 'join' THEN '{THREAD_END}'"
        f" WHEN {unseen} THEN '{UNSEEN}' ELSE '{RUNTIME}' END"
    )


WAKE_KEYS = ("process", "kind", "wait_site", "wake_site")
SITES_MOST = 200  # of waits_and_wakes


def wake_ledger(cut: Cut = whole) -> str:
    """Wake-ups by kind, wait site and wake site, with their verdicts.

    names: how many names their objects have. They are counted apart: together with sums, different
    values would be counted over a copy of all records.
    """
    keys = names(WAKE_KEYS)
    grouped = f"""
SELECT {keys}, {OBJECTS} AS objects, MAX(object) AS object, {COMMON_NAME} AS object_name,
    {the_only("init_site")} AS init_site,
    {sums((*VERDICTS, "wait_ns", "late_ns", "waste_ns", "sampled", "wait_variance"))},
    {aggregates("MAX", ("wait_most_ns", "late_most_ns"))}
FROM wakes GROUP BY {keys}
"""
    counted = f'SELECT g.*, {total(VERDICTS)} AS "count" FROM ({grouped}) g'
    rows = f"""
SELECT c.*, {ratio("wait_ns", '"count"')} AS wait_each_ns,
    {ratio("late_ns", '"count"')} AS late_each_ns
FROM ({counted}) c
"""
    named = f"""
SELECT i.*, COALESCE(n.names, 0) AS names FROM ({with_idle(rows)}) i LEFT JOIN (
    SELECT {keys}, COUNT(*) AS names FROM (
        SELECT DISTINCT {keys}, object_name FROM wakes
        WHERE object_name IS NOT NULL AND object_name <> ''
    ) d GROUP BY {keys}
) n ON n.process = i.process AND n.kind = i.kind
    AND n.wait_site = i.wait_site AND n.wake_site = i.wake_site
"""
    order = ("count DESC", *WAKE_KEYS)
    rows = labelled(cut(named, order), wait_label="wait_site", init_label="init_site")
    nobody = nobody_label('(r."count" - r.timeout)')
    return f"""
SELECT r.*, CASE WHEN r.wake_site = '{NOT_KNOWN}' THEN {nobody}
    ELSE COALESCE(l.label, r.wake_site) END AS wake_label
FROM ({rows}) r LEFT JOIN preloaded n ON n.process = r.process
LEFT JOIN labels l ON l.process = r.process AND l.site = r.wake_site
{order_of("r", order)}
"""


def waits_and_wakes() -> str:
    """The waits of all kinds by wait site and wake site, those under way too, the longest first."""
    keys = names(WAKE_KEYS)
    rows = f"""
SELECT {keys}, SUM("count") AS "count", SUM(wait_ns) AS wait_ns, MAX(object_name) AS object_name
FROM (
    SELECT {keys}, {total(VERDICTS)} AS "count", wait_ns, object_name FROM wakes
    UNION ALL
    SELECT process, kind, wait_site, '{NOT_KNOWN}' AS wake_site, waiting AS "count", wait_ns,
        object_name FROM open_waits
) w GROUP BY {keys} ORDER BY wait_ns DESC LIMIT {SITES_MOST}
"""
    return labelled(rows, ("wait_ns DESC", *WAKE_KEYS), label="wait_site")


def order_of(table: str, order: Sequence[str]) -> str:
    """Qualify order_by with one table, where several have its columns."""
    terms = []
    for column in order:
        name, _, way = column.partition(" ")
        terms.append(f'{table}."{name}" {way or "ASC"} NULLS LAST')
    return "ORDER BY " + ", ".join(terms)


def woken() -> str:
    """Waits that another thread ended, by wait site and wake site. Those for locks are in held."""
    count = total(VERDICTS)
    return with_idle(f"""
SELECT process, kind, wait_site, wake_site AS other_site, COALESCE(object_name, '') AS object_name,
    {the_only("init_site")} AS init_site, 'woke' AS role,
    {OBJECTS} AS objects, MAX(object) AS object, SUM({count}) AS "count",
    SUM({count} - timeout) AS woken, SUM(lost_race + false_ + early) AS useless, 0 AS waiting,
    SUM(wait_ns) AS wait_ns, MAX(wait_most_ns) AS wait_most_ns, SUM(late_ns) AS late_ns,
    SUM(waste_ns) AS waste_ns
FROM wakes WHERE kind NOT IN ({texts(LOCK_KINDS)})
GROUP BY process, kind, wait_site, wake_site, COALESCE(object_name, '')
""")


def not_woken() -> str:
    """Waits under way, with the columns of woken."""
    return with_idle(f"""
SELECT process, kind, wait_site, '{NOT_KNOWN}' AS other_site,
    COALESCE(object_name, '') AS object_name, {the_only("init_site")} AS init_site,
    'not yet' AS role, {OBJECTS} AS objects, MAX(object) AS object, 0 AS "count", 0 AS woken,
    0 AS useless, SUM(waiting) AS waiting, SUM(wait_ns) AS wait_ns,
    MAX(wait_most_ns) AS wait_most_ns, 0 AS late_ns, 0 AS waste_ns
FROM open_waits WHERE kind NOT IN ({texts(LOCK_KINDS)})
GROUP BY process, kind, wait_site, COALESCE(object_name, '')
""")


def held() -> str:
    """Waits for locks, by acquisition site and the holder's, with the columns of woken.

    Of a futex that is a lock, the place that released it is known instead of the holder's.

    A wait ends when the thread has the lock. It may have been woken several times until then, while
    others took it. For whom each time is not known: the row of the holder that was waited for
    longest has all of these wake-ups.
    """
    place = ("process", "kind", "wait_site", "object_name")
    rows = f"""
SELECT process, kind, site AS wait_site, holder_site AS other_site,
    COALESCE(lock_name, '') AS object_name, {the_only("init_site")} AS init_site,
    CASE WHEN kind = '{FUTEX_LOCK}' THEN 'released' ELSE 'held' END AS role,
    CASE WHEN MIN("lock") = MAX("lock") THEN 1 ELSE COUNT(*) END AS objects,
    MAX("lock") AS object, SUM(contested) AS "count",
    SUM(waiting) AS waiting, SUM(wait_ns) AS wait_ns, MAX(wait_most_ns) AS wait_most_ns,
    0 AS late_ns, 1 = 0 AS is_idle
FROM ({waited_for("SELECT * FROM locks_now")}) l
GROUP BY process, kind, site, holder_site, COALESCE(lock_name, '')
"""
    longest = f"""
SELECT h.*, ROW_NUMBER() OVER (
    PARTITION BY {names(place)} ORDER BY wait_ns DESC, other_site
) AS place
FROM ({rows}) h
"""
    wakes = f"""
SELECT process, kind, wait_site, COALESCE(object_name, '') AS object_name,
    SUM({total(VERDICTS)} - timeout) AS woken, SUM(lost_race + false_ + early) AS useless,
    SUM(waste_ns) AS waste_ns
FROM wakes WHERE kind IN ({texts(LOCK_KINDS)}) GROUP BY 1, 2, 3, 4
"""
    same = " AND ".join(f"r.{name} = w.{name}" for name in place)
    return f"""
SELECT r.*, COALESCE(w.woken, 0) AS woken, COALESCE(w.useless, 0) AS useless,
    COALESCE(w.waste_ns, 0) AS waste_ns
FROM ({longest}) r LEFT JOIN ({wakes}) w ON {same} AND r.place = 1
"""


SIDE_COLUMNS = (
    *("process", "kind", "wait_site", "other_site", "object_name", "init_site", "role", "is_idle"),
    *("objects", "object", "count", "woken", "useless", "waiting"),
    *("wait_ns", "wait_most_ns", "late_ns", "waste_ns"),
)


def wait_sites(cut: Cut = whole) -> str:
    """Where threads waited, for what, and the other side: the holder, or the waker."""
    sides = " UNION ALL ".join(
        f"SELECT {names(SIDE_COLUMNS)} FROM ({part}) s" for part in (woken(), not_woken(), held())
    )
    rows = f"""
SELECT u.*, {ratio("wait_ns", '("count" + waiting)')} AS wait_each_ns
FROM ({sides}) u WHERE "count" > 0 OR waiting > 0
"""
    order = ("wait_ns DESC", "process", "kind", "wait_site", "other_site", "object_name")
    rows = labelled(cut(rows, order), wait_label="wait_site", init_label="init_site")
    return f"""
SELECT r.*, CASE
    WHEN r.other_site = '{NOT_KNOWN}' AND r.role = 'woke' THEN {nobody_label("r.woken")}
    WHEN r.other_site = '{NOT_KNOWN}' AND r.role IN ('held', 'released') THEN '{UNSEEN}'
    WHEN r.other_site = '{NOT_KNOWN}' THEN '{UNKNOWN}'
    ELSE COALESCE(l.label, r.other_site) END AS other_label
FROM ({rows}) r LEFT JOIN preloaded n ON n.process = r.process
LEFT JOIN labels l ON l.process = r.process AND l.site = r.other_site
{order_of("r", order)}
"""


def totals(cut: Cut = whole) -> str:
    """One row per process: the sums of its waits and wake-ups."""
    own = ("switches", "steals", "signals_unheard", "broadcasts_unheard")
    counted = (*VERDICTS, "late_ns", "waste_ns")
    parts = (
        (("calls",), "SUM(completed) AS calls", "calls"),
        (own, sums(own), "workers"),
        (counted, sums(counted), "wakes"),
        (
            ("lock_waits", "lock_wait_ns", "lock_spin_ns", "lock_waiting"),
            "SUM(contested) AS lock_waits, SUM(wait_ns) AS lock_wait_ns,"
            " SUM(spin_ns) AS lock_spin_ns, SUM(waiting) AS lock_waiting",
            "locks_now",
        ),
        (
            ("waiting", "waiting_ns"),
            "SUM(waiting) AS waiting, SUM(wait_ns) AS waiting_ns",
            "open_waits",
        ),
    )
    shown, joins = ["p.process", "p.duration_ns"], []
    for number, (columns, made, table) in enumerate(parts):
        shown += [f"COALESCE(t{number}.{name}, 0) AS {name}" for name in columns]
        joins.append(
            f"LEFT JOIN (SELECT process, {made} FROM {table} GROUP BY process) t{number}"
            f" ON t{number}.process = p.process"
        )
    rows = f"SELECT {', '.join(shown)} FROM processes p {' '.join(joins)}"
    return cut(f"SELECT r.*, {total(VERDICTS)} AS wakes FROM ({rows}) r", ["process"])


def waiting() -> str:
    """Waits under way, by kind and site."""
    rows = """
SELECT process, kind, wait_site, SUM(waiting) AS waiting, SUM(wait_ns) AS wait_ns,
    MAX(wait_most_ns) AS wait_most_ns
FROM open_waits GROUP BY process, kind, wait_site
"""
    order = ("wait_ns DESC", "process", "kind", "wait_site")
    return labelled(with_idle(rows), order, wait_label="wait_site")


def calls(cut: Cut = whole) -> str:
    """Blocking calls that completed, by kind."""
    rows = (
        "SELECT process, kind, SUM(completed) AS completed FROM calls WHERE completed > 0"
        " GROUP BY process, kind"
    )
    return cut(rows, ["process", "completed DESC", "kind"])


def histogram(table: str, first: str) -> str:
    return (
        f'SELECT process, {first}, SUM("count") AS "count" FROM {table} WHERE "count" > 0'
        f" GROUP BY process, {first}"
    )


def herds(cut: Cut = whole) -> str:
    """Broadcasts by how many threads each woke at once, in powers of two."""
    return cut(histogram("herds", "size_from"), ["process", "size_from"])


def polls() -> str:
    """Sleeps in loops that only sleep and run, and all sleeps, by site.

    Without those in functions that acquire a futex lock which others wait for: the threads hold it
    while they sleep. No wait is recorded if they find it free.
    """
    rows = f"""
SELECT process, {known_site("repeated_site")} AS site, {sums(("repeated_sleeps", "repeated_ns"))}
FROM workers WHERE repeated_sleeps > 0 GROUP BY process, {known_site("repeated_site")}
"""
    rows = f"""
SELECT r.* FROM ({rows}) r LEFT JOIN (
    SELECT DISTINCT s.process, s.site FROM sites s
    JOIN sites h ON h.process = s.process AND h."function" = s."function"
    JOIN locks l ON l.process = h.process AND l.site = h.site
    WHERE s.frame = 0 AND h.frame = 0 AND l.kind = '{FUTEX_LOCK}' AND l.contested > 0
) k ON k.process = r.process AND k.site = r.site
WHERE k.site IS NULL
"""
    rows = f"""
SELECT r.*, COALESCE(s.sleeps, 0) AS sleeps, COALESCE(s.slept_ns, 0) AS slept_ns
FROM ({rows}) r LEFT JOIN (
    SELECT process, wait_site, SUM({total(VERDICTS)}) AS sleeps, SUM(wait_ns) AS slept_ns FROM wakes
    WHERE kind = 'sleep' GROUP BY process, wait_site
) s ON s.process = r.process AND s.wait_site = r.site
"""
    return labelled(rows, ("repeated_ns DESC", "process", "site"), site_label="site")


def lateness(cut: Cut = whole) -> str:
    """Timers by how late they fired, in powers of two of ns."""
    return cut(histogram("lateness", "late_from_ns"), ["process", "late_from_ns"])


def lateness_totals() -> str:
    return (
        "SELECT process, SUM(lateness_ns) AS late_ns, MAX(lateness_most_ns) AS late_most_ns"
        " FROM workers GROUP BY process ORDER BY process"
    )


ACCEPTS = (
    "SELECT process, thread_id, name, accepted FROM threads WHERE accepted > 0 OR kind = 'accept'"
)


def accepts(cut: Cut = whole) -> str:
    """Threads that accepted connections, or that wait to."""
    return cut(ACCEPTS, ["accepted DESC", "process", "thread_id"])


def accept_balance(cut: Cut = whole) -> str:
    """Jain's index of the connections of a process's threads. 1: all have equally many."""
    square = "CAST(accepted AS DOUBLE) * CAST(accepted AS DOUBLE)"
    rows = f"""
SELECT process, threads, accepted, least, most, {ratio(square, "(threads * squares)")} AS jain
FROM (
    SELECT process, COUNT(*) AS threads, SUM(accepted) AS accepted, MIN(accepted) AS least,
        MAX(accepted) AS most, SUM({square}) AS squares
    FROM ({ACCEPTS}) a GROUP BY process
) g
"""
    return cut(rows, ["process"])


MICROSTATES_KNOWN = tuple(name for name in MICROSTATES if name != "usr")


def microstates_rows() -> str:
    """Where each thread's time went, and how far its states' sum is from the wall time."""
    columns = (
        *("process", "thread_id", "name", "origin", "tid", "state", "kind", "object"),
        *("wait_site", "since_ns", "waits", "useless", "yields", "wall_ns", *MICROSTATES),
        *("is_idle", "is_cut", "in_call", "had_usr", "is_known"),
    )
    states = f"({total((*MICROSTATES_KNOWN, 'in_call'))} + COALESCE(usr, 0))"
    return f"""
SELECT {names(columns)}, {total(LCK)} AS lck, {total((*SLP, "in_call"))} AS slp,
    wall_ns - {states} AS missing_ns, lat + {total(LCK)} AS blocked
FROM threads_seen
"""


def microstates(cut: Cut = whole) -> str:
    order = ("blocked DESC", "had_usr DESC", "process", "thread_id")
    return labelled(cut(microstates_rows(), order), order, wait_label="wait_site")


GROUP_COUNTS = ("threads", "ended_threads", "waits", "useless", "yields", "accepted", "queueless")
GROUP_STATES = (*MICROSTATES_KNOWN, "in_call", "had_usr")


def thread_parts() -> str:
    """Groups of threads that have ended and single threads that have not, in one form."""
    ended = """
SELECT *, threads AS ended_threads, 1 = 0 AS is_idle, 1 = 0 AS is_cut FROM groups_seen
"""
    live = f"""
SELECT *, 1 AS threads, 0 AS ended_threads, origin = '{USER}' AS is_user FROM threads_seen
"""
    columns = (
        *("process", "name", "wall_ns", "usr", *GROUP_STATES, *GROUP_COUNTS),
        *("to_run_ns", "queue_ns", "queue_most_ns", "is_user", "is_known", "is_idle", "is_cut"),
    )
    return " UNION ALL ".join(f"SELECT {names(columns)} FROM ({part}) s" for part in (ended, live))


def thread_groups(cut: Cut = whole) -> str:
    """Where the time of threads went, by process and name: of those that ended, and of the others.

    usr is null if it is not known of one of them.
    """

    def every(column: str) -> str:
        return f"MIN(CASE WHEN {column} THEN 1 ELSE 0 END) = 1"

    rows = f"""
SELECT process, COALESCE(NULLIF(name, ''), '{UNNAMED}') AS name,
    {sums(("wall_ns", *GROUP_STATES, *GROUP_COUNTS))},
    CASE WHEN COUNT(usr) = COUNT(*) THEN SUM(usr) END AS usr,
    {every("is_idle")} AS is_idle, NOT ({every("NOT is_cut")}) AS is_cut
FROM ({thread_parts()}) p GROUP BY process, COALESCE(NULLIF(name, ''), '{UNNAMED}')
"""
    states = f"({total((*MICROSTATES_KNOWN, 'in_call'))} + COALESCE(usr, 0))"
    return cut(
        f"SELECT g.*, {total(LCK)} AS lck, {total((*SLP, 'in_call'))} AS slp,"
        f" wall_ns - {states} AS missing_ns, lat + {total(LCK)} AS blocked FROM ({rows}) g",
        ("blocked DESC", "had_usr DESC", "process", "name"),
    )


def workers(cut: Cut = whole) -> str:
    order = ("process", "is_worker DESC", "cluster", "worker", "index")
    return cut(f"SELECT {names(COLUMNS['workers'])} FROM workers", order)


def processes() -> str:
    return f"SELECT {names(COLUMNS['processes'])} FROM processes {order_by(['process'])}"


def site_frames() -> str:
    """Each site's frames, the innermost first."""
    order = order_by(("process", "site", "frame"))
    return f"SELECT {names(COLUMNS['sites'])} FROM sites {order}"


def stack_frames() -> str:
    """The labels of sites with more than one frame, the innermost first."""
    return (
        "SELECT s.process, s.site, s.label FROM sites s JOIN sites o"
        " ON o.process = s.process AND o.site = s.site AND o.frame = 1"
        f" {order_of('s', ('process', 'site', 'frame'))}"
    )


def count_of(rows: str, condition: str = "1 = 1") -> str:
    return f'SELECT COUNT(*) AS "rows" FROM ({rows}) c WHERE {condition}'
