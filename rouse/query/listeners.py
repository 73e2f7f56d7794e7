# SPDX-License-Identifier: MIT
"""Queries about listeners and the threads that accepted their connections; see measures.py.

A listener belongs to the kernel: processes that share one have one row together.
"""

from __future__ import annotations

from rouse.query.measures import VERDICTS, Cut, labelled, sums, total, whole
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS, names, quoted, ratio

SUMMED = (
    *("accepted", "woken", "in_vain", "lost"),
    *("ordered", "turns", "promoted", "overdue", "put_off", "delays", "delay_ns"),
)
COUNTS = (*SUMMED, "samples", "backlog")
# When the first and the last connection was taken.
ENDS = "MIN(NULLIF(first_ns, 0)) AS first_ns, MAX(NULLIF(last_ns, 0)) AS last_ns"
MOST = "MAX(name) AS name, MAX(backlog_most) AS backlog_most"
SQUARE = "CAST(accepted AS DOUBLE) * CAST(accepted AS DOUBLE)"


def jain(key: str) -> str:
    """The sums from which Jain's index of the threads' connections is computed."""
    return f"SUM({SQUARE}) AS {key}_squares, COUNT(*) AS {key}"


def waits_at(database: Database, process: str = "") -> str:
    """Return the place where threads wait for clients most often. Empty: there is none.

    process: of this process only.
    """
    of_process = f"AND process = {quoted(process)}" if process else ""
    rows = f"""
SELECT process, wait_site, SUM({total(VERDICTS)}) AS waits FROM wakes
WHERE (kind = 'accept' OR object_name = '{CLIENTS}') {of_process} GROUP BY process, wait_site
"""
    order = ("waits DESC", "process", "wait_site")
    found = database.rows(f"{labelled(rows, order, place='wait_site')} LIMIT 1")
    return str(found[0]["place"]) if found else ""


def listeners(cut: Cut = whole) -> str:
    """One row per listener. Wake-ups per connection are 1 if none is spurious.

    queue_delay_ns: how long a connection was in the queue, by Little's law: the connections that
    were left when one was taken, divided by the rate at which they were taken.
    """
    threads = f"""
SELECT listener, process, writer, {MOST}, {sums(COUNTS)}, {ENDS}
FROM listeners GROUP BY listener, process, writer
"""
    processes = f"""
SELECT listener, process, {MOST}, {sums(COUNTS)}, {ENDS}, {jain("threads")}
FROM ({threads}) t GROUP BY listener, process
"""
    rows = f"""
SELECT listener, {MOST}, MIN(accepted) AS least, MAX(accepted) AS most,
    {sums((*COUNTS, "threads", "threads_squares"))}, {ENDS}, {jain("processes")}
FROM ({processes}) p GROUP BY listener
"""
    rows = f"""
SELECT g.*, {SQUARE} AS square, {ratio("backlog", "samples")} AS backlog_mean,
    {ratio("(last_ns - first_ns)", "(accepted - 1)")} AS between_ns
FROM ({rows}) g
"""
    rows = f"""
SELECT listener, name, least, most, threads, processes, {names(SUMMED)},
    {ratio("square", "(threads * threads_squares)")} AS jain_threads,
    {ratio("square", "(processes * processes_squares)")} AS jain_processes,
    {ratio("(woken + in_vain)", "accepted")} AS woken_each, backlog_mean,
    CASE WHEN samples > 0 THEN backlog_most END AS backlog_most,
    CAST(ROUND(backlog_mean * between_ns) AS BIGINT) AS queue_delay_ns
FROM ({rows}) r
"""
    return cut(rows, ["accepted DESC", "listener"])
