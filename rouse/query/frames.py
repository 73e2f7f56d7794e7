# SPDX-License-Identifier: MIT
"""The program's own functions at a site: its frames', and those they were inlined into."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from rouse.query.finding import Row
from rouse.symbols.demangle import short
from rouse.symbols.sites import LIBRARY_MODULES, LIBRARY_SOURCES
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN, names, quoted

# A template's name begins with the type of its result, and that of a method of a trait with `<`.
LIBRARY_NAMES = re.compile(r"^([\w ]+[*&]* )?<*(std|__gnu_cxx|core|alloc)::|^_")
HEADERS = re.compile(r"\.(h|hh|hpp|hxx|inc|inl|ipp)$")
SITES_MOST = 500  # of one query
# Functions that only sleep, on behalf of their callers.
SLEEPER = re.compile(r"(?:^|_|::)[mun]?(?:sleep|nap|delay|pause)", re.IGNORECASE)
# Where threads begin, in programs and in libc, whose functions often have no names.
LIBC = re.compile(r"/(libc|libpthread)[-.][^/]*$")
BEGINNINGS = ("clone", "clone3", "__clone", "__clone3", "start_thread", "_start")


@dataclass(frozen=True)
class Function:
    name: str
    file: str  # without its folder; empty: not known

    @property
    def label(self) -> str:
        return f"{self.name} {self.file}".strip()


Known = dict[tuple[str, str], list[Function]]


@dataclass(frozen=True)
class Calls:
    known: Known
    cut: set[tuple[str, str]]  # the sites, with their processes, whose outermost calls are missing


def functions(database: Database, sites: Iterable[str]) -> Known:
    """By process and site, the functions, the innermost first. No library's are among them."""
    return calls(database, sites).known


def calls(database: Database, sites: Iterable[str]) -> Calls:
    """Read the functions of sites.

    A stack that was too deep to be recorded whole is continued with the callers of its outermost
    function, where all other stacks agree on them.
    """
    wanted = sorted(set(sites) - {NOT_KNOWN})[:SITES_MOST]
    if not wanted:
        return Calls({}, set())
    columns = ("process", "site", "function", "within", "file", "module")
    rows = database.rows(
        f"SELECT {names(columns)} FROM sites WHERE site IN ({', '.join(map(quoted, wanted))})"
        " ORDER BY process, site, frame"
    )
    found: Known = {}
    outermost: dict[tuple[str, str], Row] = {}
    files = {(row["process"], row["function"]): file for row in rows if (file := own_file(row))}
    for row in rows:
        key = (row["process"], row["site"])
        outermost[key] = row
        if is_library(row):
            continue
        own = found.setdefault(key, [])
        # The file is that of the innermost function, which may be inlined from a header.
        around = "" if HEADERS.search(own_file(row)) else own_file(row)
        for name in (row["function"] or "", *(row["within"] or "").split("\n")):
            if name and not LIBRARY_NAMES.match(name):
                own.append(Function(short(name), files.get((row["process"], name), around)))
    cut = {key for key, row in outermost.items() if not is_beginning(row)}
    return Calls(found, continued(found, cut))


def own_file(row: Row) -> str:
    """Return the file of a row's function, without its folder. Empty: not known, or a library's."""
    file = row["file"] or ""
    return "" if LIBRARY_SOURCES.search(file) else posixpath.basename(file)


def is_library(row: Row) -> bool:
    return bool(LIBRARY_MODULES.search(row["module"] or ""))


def is_beginning(row: Row) -> bool:
    if row["function"]:
        return row["function"] in BEGINNINGS
    return bool(LIBC.search(row["module"] or ""))


def continued(found: Known, cut: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Continue stacks that are cut off, in place. Returns those whose beginning stays unknown."""
    callers: dict[tuple[str, str], dict[str, Function | None]] = {}
    for (process, site), own in found.items():
        for function, after in itertools.pairwise(own):
            callers.setdefault((process, function.name), {})[after.name] = after
        if own and (process, site) not in cut:
            callers.setdefault((process, own[-1].name), {})[""] = None  # a thread began there
    unknown = set()
    for process, site in cut:
        own = found.get((process, site), [])
        seen = {function.name for function in own}
        begins = False
        while own and not begins:
            named = callers.get((process, own[-1].name), {})
            caller = next(iter(named.values()), None) if len(named) == 1 else None
            begins = list(named) == [""]
            if caller is None or caller.name in seen:
                break
            own.append(caller)
            seen.add(caller.name)
        if not begins:
            unknown.add((process, site))
    return unknown


def without_helpers(known: Known, locking: Collection[str] = ()) -> Known:
    """Leave out the functions at the innermost end that only wait on behalf of their callers.

    Their names say so, or they are called by several functions, and acquire no lock. locking: the
    functions that acquire one.
    """
    by_name: dict[tuple[str, str], set[str]] = {}
    for (process, _), own in known.items():
        for function, caller in itertools.pairwise(own):
            by_name.setdefault((process, function.name), set()).add(caller.name)

    def is_helper(process: str, name: str) -> bool:
        several = len(by_name[process, name]) > 1 and name not in locking
        return several or bool(SLEEPER.search(name))

    found = {}
    for (process, site), own in known.items():
        at = 0
        while at + 1 < len(own) and is_helper(process, own[at].name):
            at += 1
        found[process, site] = own[at:]
    return found


def label_of(row: Row, known: Known, outer: Known) -> str:
    """Return the label of a row's wait, with its caller if it is in a helper.

    outer: what without_helpers made of known.
    """
    key, label = (row["process"], row["wait_site"]), str(row["label"])
    own = outer.get(key, [])
    is_helper = own != known.get(key, []) and " from " not in label
    return f"{label} from {own[0].name}" if is_helper else label


def common(waiter: Sequence[Function], waker: Sequence[Function], near: int) -> Function | None:
    """The innermost function of both, if it is among the first functions of each."""
    wakers = {function.name for function in waker[:near]}
    return next((function for function in waiter[:near] if function.name in wakers), None)
