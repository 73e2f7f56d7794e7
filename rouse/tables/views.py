# SPDX-License-Identifier: MIT
"""Views that several queries use, each with its SQL. An engine creates them when it opens tables.

The SQL text of views and queries is the same for SQLite, DuckDB and Spark. So a name that is a
keyword of one of them is quoted, a quotient has doubles, an order says where nulls go, and all
functions exist in each.
"""

from __future__ import annotations

from collections.abc import Iterable

from rouse.tables.schemas import COLUMNS, PRELOAD

NOT_KNOWN = "0x0"  # the site of the runtime itself, or of an unknown caller
USER = "user"  # the origin of a thread that runs on workers
FUTEX_LOCK = "futex lock"
SPIN_LOCK = "spin lock"
LOCK_KINDS = ("mutex", "read lock", "write lock", SPIN_LOCK, FUTEX_LOCK)
SPLIT = ("usr_cpu", "usr_queued", "usr_known", "in_call")


def names(columns: Iterable[str], table: str = "") -> str:
    """Join columns, qualified with one table if several have them."""
    head = f"{table}." if table else ""
    return ", ".join(f'{head}"{column}"' for column in columns)


def texts(words: Iterable[str]) -> str:
    """Return a list of texts for IN (...). The words are ours: none contains a quotation mark."""
    return ", ".join(f"'{word}'" for word in words)


def quoted(word: str) -> str:
    """Return a text from a recording as SQL. Names of programs may contain quotation marks."""
    return "'" + word.replace("'", "''") + "'"


def ratio(part: str, whole: str) -> str:
    """SQL for part / whole as a double. Null if whole is not above 0."""
    return f"CASE WHEN {whole} > 0 THEN CAST({part} AS DOUBLE) / {whole} END"


def at_most(value: str, most: str) -> str:
    """SQL for the smaller of both. Null if value is null."""
    return f"CASE WHEN {value} > {most} THEN {most} ELSE {value} END"


def known_site(site: str) -> str:
    """SQL for a site. NOT_KNOWN where an older rouse did not record it, or left it empty."""
    return f"COALESCE(NULLIF({site}, ''), '{NOT_KNOWN}')"


# The innermost frame of each site, by name, with the caller that tells its waits apart.
#
# Each process decides that by its own waits. If one of them does, the caller is named in all.
LABELS = """
SELECT a.process, a.site,
    MAX(CASE WHEN c.label IS NULL THEN a.label ELSE a.label || ' from ' || c.label END) AS label
FROM sites a LEFT JOIN (
    SELECT label, MIN(caller) AS caller FROM sites WHERE frame = 0 AND caller > 0 GROUP BY label
) d ON d.label = a.label LEFT JOIN sites c
    ON c.process = a.process AND c.site = a.site
    AND c.frame = CASE a.caller WHEN 0 THEN d.caller ELSE a.caller END
WHERE a.frame = 0 GROUP BY a.process, a.site
"""

# Sites with the same innermost frame as another, and the site that stands for all of them.
#
# A holder's site is one address; a waiter's is a stack where stacks are recorded. One place in the
# program is then several sites, of which the least, the address itself, stands for all.
PLACES = """
SELECT s.process, s.site, MAX(p.place) AS place
FROM sites s JOIN (
    SELECT process, address, MIN(site) AS place FROM sites
    WHERE frame = 0 AND address <> 0 GROUP BY process, address
) p ON p.process = s.process AND p.address = s.address
WHERE s.frame = 0 AND s.address <> 0 AND p.place <> s.site
GROUP BY s.process, s.site
"""

# Where threads wait that have nothing to do: idle pools, listeners, and waits mostly for clients.
CLIENTS = "clients"  # in place of an object's name; see preload/record/wait.c
IDLE_SITES = f"""
SELECT process, kind, wait_site FROM threads WHERE is_idle
UNION
SELECT process, kind, wait_site FROM wakes WHERE kind IN ('read', 'poll', 'epoll')
GROUP BY process, kind, wait_site
HAVING SUM(CASE WHEN object_name = '{CLIENTS}' THEN wait_ns ELSE 0 END) * 2 > SUM(wait_ns)
"""

# Columns of locks that recordings of an older rouse lack.
LOCKS_NEWER = (
    *("waiting", "waiting_ns", "sampled", "first_ns", "last_ns", "hold_variance"),
    "apart_ns",
    *("inside_lat_ns", "inside_lck_ns", "inside_io_ns", "inside_sleep_ns"),
)
LOCKS_NOW = f"""
SELECT {names(c for c in COLUMNS["locks"] if c not in (*LOCKS_NEWER, "init_site"))},
    {", ".join(f"COALESCE({c}, 0) AS {c}" for c in LOCKS_NEWER)},
    {known_site("init_site")} AS init_site
FROM locks
"""

# By process, how many rows have acquisitions of a free lock; 0: those are not recorded. sampled:
# how many such acquisitions were chosen at random.
FREE_LOCKS = """
SELECT process, SUM(CASE WHEN acquired + given_up > contested THEN 1 ELSE 0 END) AS free,
    SUM(COALESCE(sampled, 0)) AS sampled
FROM locks GROUP BY process
"""

IN_CALL_MOST = 0.01  # sleeps in unseen calls, as a share of the way to a processor
USELESS_MOST = 0.05  # useless wake-ups, as a share of the waits

# Processes that the interposer recorded.
PRELOADED = f"""
SELECT process FROM processes WHERE recorder = '{PRELOAD}'
"""

# By writer: the shares of a worker's busy time, or the sums of another kernel thread. USR is
# recorded as the time outside of waits. A user thread has a worker then, a kernel or foreign thread
# may be anywhere outside of rouse's calls; neither need be on a processor. A worker's figures, as
# the kernel has them, are carried over to its threads in proportion to their USR; those of another
# kernel thread are its own. Where they are not known, USR of a user thread stays as it is recorded,
# and that of another thread is null. unseen_ns: the time from
# the last look at the kernel to the end of the store.
SHARES = f"""
SELECT process, writer, is_worker, asleep, cpu_ns, run_queue_ns, unseen_ns, on_cpu,
    {at_most("queue", "1.0 - on_cpu")} AS queued
FROM (
    SELECT process, "index" AS writer, is_worker, asleep, cpu_ns, run_queue_ns,
        wall_ns - kernel_wall_ns AS unseen_ns,
        {at_most("CAST(cpu_ns AS DOUBLE) / busy", "1.0")} AS on_cpu,
        CAST(run_queue_ns AS DOUBLE) / busy AS queue
    FROM (
        SELECT workers.*, CASE WHEN is_worker AND kernel_wall_ns - kernel_idle_ns > 0
            THEN kernel_wall_ns - kernel_idle_ns END AS busy
        FROM workers
    ) w
) s
"""


def split(rows: str, is_user: str, usr: str) -> str:
    """Join rows with SHARES, with usr divided into running, queued and in a system call.

    usr: a column of ns outside of waits. in_call: asleep in a system call that rouse does not see.
    """
    known = "on_cpu IS NOT NULL AND queued IS NOT NULL"
    own = at_most("cpu_ns", usr)
    late = f"CASE WHEN {is_user} OR unseen_ns < 0 THEN 0 ELSE COALESCE(unseen_ns, 0) END"
    rest = f"{usr} - usr_cpu - usr_queued - late"
    return f"""
SELECT q.*, CASE WHEN {rest} > 0 THEN {rest} ELSE 0 END AS in_call
FROM (
    SELECT p.*, {late} AS late,
        CASE WHEN {is_user} THEN
            CASE WHEN {known} THEN CAST(ROUND({usr} * on_cpu) AS BIGINT) ELSE {usr} END
        ELSE {own} END AS usr_cpu,
        COALESCE(CASE WHEN {is_user} THEN
            CASE WHEN {known} THEN CAST(ROUND({usr} * queued) AS BIGINT) ELSE 0 END
        ELSE {at_most("run_queue_ns", f"{usr} - ({own})")} END, 0) AS usr_queued,
        {known} AS usr_known
    FROM ({rows}) p
) q
"""


def to_a_processor(is_user: str, queueless: str) -> str:
    """Return three columns: the way to a processor, its part in the run queue, and that at most.

    The first two are null unless both are known. The run queue's sum also has what followed other
    sleeps: those in calls that rouse does not see, and those after which a thread found nothing to
    do. The third one is the sum nevertheless: no more of the way can have been in the run queue.
    """
    read = f"NOT ({is_user}) AND run_queue_ns IS NOT NULL AND {queueless} = 0"
    known = (
        f"{read} AND usr_cpu IS NOT NULL"
        f" AND in_call <= {IN_CALL_MOST} * (lat + usr_queued) AND useless <= {USELESS_MOST} * waits"
    )
    return (
        f"CASE WHEN {known} THEN lat + usr_queued END AS to_run_ns,"
        f" CASE WHEN {known} THEN run_queue_ns END AS queue_ns,"
        f" CASE WHEN {read} THEN run_queue_ns END AS queue_most_ns"
    )


def threads_seen() -> str:
    """The threads, with usr and lat by the kernel, and in_call as a column.

    had_usr is usr as recorded.
    """
    plain = [name for name in COLUMNS["threads"] if name not in ("usr", "lat", "state")]
    joined = (
        "SELECT t.*, s.asleep, s.on_cpu, s.queued, s.cpu_ns, s.run_queue_ns, s.unseen_ns"
        " FROM threads t LEFT JOIN shares s ON s.process = t.process AND s.writer = t.writer"
    )
    is_user = f"origin = '{USER}'"
    unknown = f"CASE WHEN {is_user} THEN 'USR' ELSE '-' END"
    return f"""
SELECT {names(plain)}, in_call, usr AS had_usr, usr_cpu AS usr, lat + usr_queued AS lat,
    CASE WHEN NOT ({is_user}) AND usr_cpu IS NOT NULL AND run_queue_ns IS NULL
        THEN 1 ELSE 0 END AS queueless,
    CASE WHEN state <> 'USR' THEN state WHEN asleep = 1 THEN 'SLP' WHEN asleep = 0 THEN 'USR'
        ELSE {unknown} END AS state,
    {to_a_processor(is_user, "0")},
    CASE WHEN {is_user} THEN usr_known ELSE usr_cpu IS NOT NULL END AS is_known
FROM ({split(joined, is_user, "usr")}) r
"""


def groups_seen() -> str:
    """The groups of threads that have ended, with the same division."""
    plain = [name for name in COLUMNS["groups"] if name not in ("usr", "lat")]
    joined = (
        "SELECT g.*, s.on_cpu, s.queued, 0 AS unseen_ns FROM groups g"
        " LEFT JOIN shares s ON s.process = g.process AND s.writer = g.writer"
    )
    return f"""
SELECT {names(plain)}, in_call, usr AS had_usr, usr_cpu AS usr, lat + usr_queued AS lat,
    {to_a_processor("is_user", "queueless")},
    CASE WHEN is_user THEN usr_known ELSE usr_cpu IS NOT NULL END AS is_known
FROM ({split(joined, "is_user", "usr")}) r
"""


# In the order in which they are made: later ones read earlier ones.
VIEWS = {
    "labels": LABELS,
    "places": PLACES,
    "idle_sites": IDLE_SITES,
    "locks_now": LOCKS_NOW,
    "free_locks": FREE_LOCKS,
    "preloaded": PRELOADED,
    "shares": SHARES,
    "threads_seen": threads_seen(),
    "groups_seen": groups_seen(),
}
# Those that are small, and that many queries join with: an engine may keep their rows, by key.
KEPT = {
    "labels": ("process", "site"),
    "places": ("process", "site"),
    "idle_sites": ("process", "kind", "wait_site"),
}
