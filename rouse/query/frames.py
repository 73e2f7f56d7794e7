# SPDX-License-Identifier: MIT
"""The program's own functions at a site: its frames', and those they were inlined into."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rouse.symbols.demangle import short
from rouse.symbols.sites import LIBRARY_MODULES, LIBRARY_SOURCES
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN, names, quoted

# A template's name begins with the type of its result, and that of a method of a trait with `<`.
LIBRARY_NAMES = re.compile(r"^([\w ]+[*&]* )?<*(std|__gnu_cxx|core|alloc)::|^_")
SITES_MOST = 500  # of one query


@dataclass(frozen=True)
class Function:
    name: str
    file: str  # without its folder; empty: not known

    @property
    def label(self) -> str:
        return f"{self.name} {self.file}".strip()


Known = dict[tuple[str, str], list[Function]]


def functions(database: Database, sites: Iterable[str]) -> Known:
    """By process and site, the functions, the innermost first. No library's are among them."""
    wanted = sorted(set(sites) - {NOT_KNOWN})[:SITES_MOST]
    if not wanted:
        return {}
    columns = ("process", "site", "function", "within", "file", "module")
    rows = database.rows(
        f"SELECT {names(columns)} FROM sites WHERE site IN ({', '.join(map(quoted, wanted))})"
        " ORDER BY process, site, frame"
    )
    found: Known = {}
    for row in rows:
        if LIBRARY_MODULES.search(row["module"] or ""):
            continue
        file = "" if LIBRARY_SOURCES.search(row["file"] or "") else row["file"] or ""
        own = found.setdefault((row["process"], row["site"]), [])
        for name in (row["function"] or "", *(row["within"] or "").split("\n")):
            if name and not LIBRARY_NAMES.match(name):
                own.append(Function(short(name), posixpath.basename(file)))
    return found


def cut_off(database: Database, sites: Iterable[str]) -> set[tuple[str, str]]:
    """The sites, with their processes, whose outermost calls may be missing: they are too many."""
    wanted = sorted(set(sites) - {NOT_KNOWN})[:SITES_MOST]
    if not wanted:
        return set()
    rows = database.rows(
        "SELECT s.process, s.site FROM sites s JOIN processes p ON p.process = s.process"
        f" WHERE s.site IN ({', '.join(map(quoted, wanted))}) AND s.frame = p.site_depth - 1"
    )
    return {(row["process"], row["site"]) for row in rows}


def common(waiter: Sequence[Function], waker: Sequence[Function], near: int) -> Function | None:
    """The innermost function of both, if it is among the first functions of each."""
    wakers = {function.name for function in waker[:near]}
    return next((function for function in waiter[:near] if function.name in wakers), None)
