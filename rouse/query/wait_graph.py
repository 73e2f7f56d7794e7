# SPDX-License-Identifier: MIT
"""Which functions waited for which, and over what lock or other object, the longest waits first."""

from __future__ import annotations

from dataclasses import dataclass, field

from rouse.query import measures, places
from rouse.query.icicle import clipped, thing_of
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN

EDGES_MOST = 15
Way = tuple[str, str, str, str]  # the waiter, the object, the role of the other side, its place


@dataclass
class Graph:
    edges: list[tuple[Way, int]] = field(default_factory=list)  # with ns
    more: int = 0  # edges that are left out
    more_ns: int = 0


def make(database: Database) -> Graph:
    """Return the graph, without waits for work and those that no thread of the program ended."""
    duration_ns = max(
        (row["duration_ns"] for row in database.rows(measures.processes())), default=0
    )
    found: dict[Way, int] = {}
    for row in database.rows(measures.wait_sites()):
        if row["other_site"] == NOT_KNOWN or places.is_idle(row, duration_ns):
            continue
        way = (row["wait_label"], thing_of(row), row["role"], row["other_label"])
        short = (clipped(way[0]), clipped(way[1]), way[2], clipped(way[3]))
        found[short] = found.get(short, 0) + row["wait_ns"]
    ordered = sorted(found.items(), key=lambda item: (-item[1], item[0]))
    ordered = [(way, ns) for way, ns in ordered if ns > 0]
    rest = ordered[EDGES_MOST:]
    return Graph(ordered[:EDGES_MOST], len(rest), sum(ns for _, ns in rest))
