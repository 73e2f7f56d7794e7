# SPDX-License-Identifier: MIT
"""Queries about what threads and workers did while events were recorded; see measures.py."""

from __future__ import annotations


def times(condition: str, of: str = "1") -> str:
    return f"SUM(CASE WHEN {condition} THEN {of} ELSE 0 END)"


def thread_events() -> str:
    """The activity of each thread while events were recorded, the busiest first."""
    return f"""
SELECT o.process, o.thread_id, o.runs, o.waits, o.yields, o.woken, o.contests, o.spun_ns,
    COALESCE(w.wakes, 0) AS wakes, COALESCE(NULLIF(t.name, ''), o.ended_name) AS name
FROM (
    SELECT process, thread_id, {times("type = 'run'")} AS runs, {times("type = 'wait'")} AS waits,
        {times("type = 'yield'")} AS yields, {times("type IN ('wake', 'io')")} AS woken,
        {times("type = 'got'")} AS contests, {times("type = 'got'", '"value"')} AS spun_ns,
        MAX(name) AS ended_name
    FROM events WHERE thread_id <> 0 GROUP BY process, thread_id
) o LEFT JOIN (
    SELECT process, other_id, COUNT(*) AS wakes FROM events
    WHERE type = 'wake' AND other_id <> 0 GROUP BY process, other_id
) w ON w.process = o.process AND w.other_id = o.thread_id
LEFT JOIN threads t ON t.process = o.process AND t.thread_id = o.thread_id
ORDER BY o.runs DESC, o.process, o.thread_id
"""


def thread_counters() -> str:
    """The activity of each existing thread, from its counters. Null: no counter has it."""
    return """
SELECT process, thread_id, name, waits, yields, waits + yields + 1 AS runs, waits AS woken,
    NULL AS wakes, NULL AS contests, NULL AS spun_ns
FROM threads ORDER BY runs DESC, process, thread_id
"""


def worker_events() -> str:
    return f"""
SELECT process, worker, {times("type = 'wake'")} AS wakes, {times("type = 'io'")} AS polled
FROM events GROUP BY process, worker
"""


def object_labels() -> str:
    """The names of what threads waited for, by address, or else where these were initialised."""
    return """
SELECT w.process, w.object,
    COALESCE(NULLIF(MAX(w.object_name), ''), MAX(l.label)) AS label
FROM wakes w LEFT JOIN labels l ON l.process = w.process AND l.site = w.init_site
WHERE w.object <> 0 GROUP BY w.process, w.object
HAVING COALESCE(NULLIF(MAX(w.object_name), ''), MAX(l.label)) IS NOT NULL"""
