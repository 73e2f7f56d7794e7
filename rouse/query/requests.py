# SPDX-License-Identifier: MIT
"""How long the requests that a program marks took, and where their time went.

A request begins with its first mark (rouse_mark in <rouse/mark.h>) and ends with rouse_mark_end, in
whichever threads. Its time is that of the thread that ends it; timelines.py says what decided it.
"""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rouse.query import timelines
from rouse.query.sections import Section
from rouse.query.specs import PROCESS, Column, Row
from rouse.query.timelines import NOT_KEPT, RUNS, TO_RUN, Step, Stretch, Timelines
from rouse.tables.engine import Database
from rouse.tables.views import NOT_KNOWN
from rouse.text import UNKNOWN, counted, duration, share

EXPLAINED_MOST = 10_000  # requests of a name; of more, as many at random
SEED = 15
SLOW_SHARE = 0.01  # of the requests of a name; at least one
TAIL = 0.99
LEAST_SHARE = 0.001  # of the time, below which a part has no row of its own
NUMBER = re.compile(r"\d+$")

KEY, PATHS_KEY, SLOWEST_KEY = "requests", "request_paths", "slowest_requests"
COLUMNS = (
    Column("name", "request"),
    Column("count", "ended", "count"),
    Column("open", "open", "count", "begun, and not ended"),
    Column("cut", "cut", "count", "ended, and their begins are not kept"),
    Column("median_ns", "median", "ns"),
    Column("p99_ns", "p99", "ns"),
    Column("most_ns", "most", "ns"),
    Column("total_ns", "total", "ns"),
)
PATH_COLUMNS = (
    Column("name", "request"),
    Column("share", "share", "share", "of the time of all requests"),
    Column("slow_share", "slowest", "share", "of the time of the slowest 1 %"),
    Column("each_ns", "each", "ns", "per request"),
    Column("path", "what the time is spent on"),
)
SLOWEST_COLUMNS = (
    Column("name", "request"),
    Column("request_id", "id", "index"),
    Column("at_ns", "at", "ns", "since it began"),
    Column("for_ns", "for", "ns"),
    Column("path", "what the time is spent on"),
)
COLUMNS_BY_KEY = {KEY: COLUMNS, PATHS_KEY: PATH_COLUMNS, SLOWEST_KEY: SLOWEST_COLUMNS}
TITLES = {
    KEY: ("Requests", "As the program marks them, the longest total time first."),
    PATHS_KEY: (
        "Where the requests' time goes",
        "A wait is divided by what the thread that ended it did meanwhile: waits, meanwhile"
        " thread: what it does.",
    ),
    SLOWEST_KEY: ("The slowest request", "Of each name, step by step."),
}
EMPTY = "the program marks no requests (rouse/mark.h), or no events were recorded"


# Marks may be many: they are read one by one.
MARKS = """
SELECT process, type, name, object, site, at_ns, thread_id FROM events
WHERE type IN ('mark', 'mark_end') ORDER BY process, at_ns
"""


@dataclass(frozen=True, slots=True)
class Request:
    id: int
    begin: int
    end: int
    thread: int  # that ended it
    marks: tuple[tuple[int, str], ...]  # when it passed between them, and the sites

    @property
    def took(self) -> int:
        return self.end - self.begin


@dataclass
class Requests:
    """The requests of one name in one process."""

    process: str
    name: str
    ended: list[Request] = field(default_factory=list)
    open: int = 0
    cut: int = 0


def requests_of(database: Database) -> list[Requests]:
    """Return all requests, by process and name, the longest total time first."""
    _, marks = database.run(MARKS)
    found: dict[tuple[str, str], Requests] = {}
    begun: dict[tuple[str, str, int], list[tuple[int, str]]] = {}
    for process, sort, name, number, site, at, thread in marks:
        some = found.setdefault((process, name), Requests(process, name))
        one = (process, name, number)
        if sort == "mark":
            begun.setdefault(one, []).append((at, site))
        elif passed := begun.pop(one, None):
            begin, way = passed[0][0], tuple(passed[1:])
            some.ended.append(Request(number % (1 << 64), begin, at, thread, way))
        else:
            some.cut += 1
    for process, name, _ in begun:
        found[process, name].open += 1
    return sorted(found.values(), key=lambda some: -sum(one.took for one in some.ended))


class Names:
    """The texts for steps."""

    def __init__(self, database: Database) -> None:
        self.threads: dict[tuple[str, int], str] = {}
        for sql in (
            "SELECT process, thread_id, name FROM events WHERE type = 'end'",
            "SELECT process, thread_id, name FROM threads",
        ):
            for row in database.rows(sql):
                if row["name"]:
                    self.threads[row["process"], row["thread_id"]] = row["name"]
        self.sites = {
            (row["process"], row["site"]): row["label"]
            for row in database.rows(
                "SELECT process, site, label, frame FROM sites ORDER BY frame DESC"
            )
        }

    def thread(self, process: str, thread: int) -> str:
        return self.threads.get((process, thread)) or f"thread {thread}"

    def stem(self, process: str, thread: int) -> str:
        """The name of a thread without its number, which is the same for all of a pool."""
        return NUMBER.sub("*", self.thread(process, thread))

    def site(self, process: str, site: str) -> str:
        return "" if site in ("", NOT_KNOWN) else self.sites.get((process, site), UNKNOWN)

    def step(self, process: str, step: Step) -> str:
        if step.what == RUNS:
            return "runs"
        if step.what == NOT_KEPT:
            return "does what is not recorded"
        at = self.site(process, step.site)
        place = f" at {at}" if at else ""
        if step.what == TO_RUN:
            return f"is to run{place and f' after its wait{place}'}"
        return f"waits ({step.what}){place}"

    def path(self, process: str, chain: Sequence[Step], is_one: bool) -> str:
        """Return a chain as text. is_one: of one request, so that the threads have numbers."""
        thread = self.thread if is_one else self.stem
        said = [f"{thread(process, step.thread)} {self.step(process, step)}" for step in chain]
        return ", meanwhile ".join(said)


@dataclass
class Part:
    ns: int = 0
    slow_ns: int = 0


@dataclass(frozen=True)
class Explained:
    """The parts of the requests of one name, the longest first, and the slowest one's way."""

    requests: Requests
    parts: list[tuple[str, Part]]
    ns: int  # of the requests that are explained
    slow_ns: int
    count: int
    slowest: Request | None
    way: list[tuple[int, int, str]]  # of the slowest: since its begin, for how long, what


class Explainer:
    def __init__(self, database: Database) -> None:
        self.database = database
        self.names = Names(database)
        self.timelines = timelines.of(database)

    def explain(self, some: Requests) -> Explained:
        process = some.process
        known = self.timelines.get(process) or Timelines()
        by_time = sorted(some.ended, key=lambda one: -one.took)
        slow = set(map(id, by_time[: max(int(len(by_time) * SLOW_SHARE), 1)]))
        chosen = by_time
        if len(chosen) > EXPLAINED_MOST:
            chosen = random.Random(SEED).sample(chosen, EXPLAINED_MOST)
            sampled = {id(one) for one in chosen}
            chosen += [one for one in by_time if id(one) in slow and id(one) not in sampled]
        parts: defaultdict[str, Part] = defaultdict(Part)
        whole = Part()
        texts_of: dict[tuple[Step, ...], str] = {}
        for one in chosen:
            for stretch in known.explain(one.thread, one.begin, one.end):
                chain = stretch.chain
                text = texts_of.get(chain) or self.names.path(process, chain, is_one=False)
                texts_of[chain] = text
                for part in (parts[text], whole):
                    part.ns += stretch.end - stretch.begin
                    part.slow_ns += (stretch.end - stretch.begin) * (id(one) in slow)
        slowest = by_time[0] if by_time else None
        return Explained(
            some,
            sorted(parts.items(), key=lambda item: -item[1].ns),
            whole.ns,
            whole.slow_ns,
            len(chosen),
            slowest,
            list(self.way(process, slowest, known)) if slowest else [],
        )

    def way(self, process: str, one: Request, known: Timelines) -> Iterator[tuple[int, int, str]]:
        """Yield the way of one request, step by step, with its marks."""
        stretches: list[Stretch] = known.explain(one.thread, one.begin, one.end)
        steps = [
            (s.begin, s.end - s.begin, self.names.path(process, s.chain, is_one=True))
            for s in stretches
        ]
        steps += [(at, 0, f"mark at {self.names.site(process, site)}") for at, site in one.marks]
        for at, took, text in sorted(steps, key=lambda step: step[:2]):
            yield at - one.begin, took, text


def at_share(times: Sequence[int], part: float) -> int:
    """Return the least time that this share of the sorted times does not exceed."""
    return times[min(int(len(times) * part), len(times) - 1)] if times else 0


def summary(some: Requests) -> Row:
    times = sorted(one.took for one in some.ended)
    return {
        "process": some.process,
        "name": some.name,
        "count": len(times),
        "open": some.open,
        "cut": some.cut,
        "median_ns": at_share(times, 0.5),
        "p99_ns": at_share(times, TAIL),
        "most_ns": times[-1] if times else 0,
        "total_ns": sum(times),
    }


def shown_parts(found: Explained) -> Iterator[tuple[str, Part]]:
    """The parts that are worth a row, and the others in sum."""
    rest, others = Part(), 0
    for text, part in found.parts:
        if part.ns < LEAST_SHARE * found.ns and part.slow_ns < LEAST_SHARE * found.slow_ns:
            rest.ns, rest.slow_ns, others = (
                rest.ns + part.ns,
                rest.slow_ns + part.slow_ns,
                others + 1,
            )
        else:
            yield text, part
    if others:
        yield f"{counted(others, 'shorter part')}", rest


def path_rows(found: Explained) -> Iterator[Row]:
    for text, part in shown_parts(found):
        yield {
            "process": found.requests.process,
            "name": found.requests.name,
            "share": part.ns / found.ns if found.ns else 0.0,
            "slow_share": part.slow_ns / found.slow_ns if found.slow_ns else 0.0,
            "each_ns": part.ns // max(found.count, 1),
            "path": text,
        }


def slowest_rows(found: Explained) -> Iterator[Row]:
    if found.slowest:
        for at, took, text in found.way:
            yield {
                "process": found.requests.process,
                "name": found.requests.name,
                "request_id": found.slowest.id,
                "at_ns": at,
                "for_ns": took,
                "path": text,
            }


def sections(database: Database, limit: int = 0, wanted: Iterable[str] = ()) -> list[Section]:
    """Make the sections that are wanted. None is wanted: all, unless there are no requests."""
    keys = [key for key in COLUMNS_BY_KEY if key in wanted]
    requests = requests_of(database)
    if not requests and not keys:
        return []
    explainer = Explainer(database)
    explained = [explainer.explain(some) for some in requests]
    rows: Mapping[str, list[Row]] = {
        KEY: [summary(some) for some in requests],
        PATHS_KEY: [row for found in explained for row in path_rows(found)],
        SLOWEST_KEY: [row for found in explained for row in slowest_rows(found)],
    }
    several = len({some.process for some in requests}) > 1
    return [
        Section(
            key,
            *TITLES[key],
            (PROCESS, *COLUMNS_BY_KEY[key]) if several else COLUMNS_BY_KEY[key],
            rows[key][:limit] if limit else rows[key],
            more=max(len(rows[key]) - limit, 0) if limit else 0,
            empty="" if rows[key] else EMPTY,
        )
        for key in keys or COLUMNS_BY_KEY
    ]


def lines(database: Database) -> list[str]:
    """Return a sentence or two on the requests of each name, all processes in sum."""
    requests = requests_of(database)
    if not any(some.ended for some in requests):
        return []
    explainer = Explainer(database)
    said = []
    for name in dict.fromkeys(some.name for some in requests if some.ended):
        same = [some for some in requests if some.name == name]
        times = sorted(one.took for some in same for one in some.ended)
        spent: Counter[str] = Counter()
        for some in same:
            spent.update({text: part.ns for text, part in explainer.explain(some).parts})
        said.append(
            f"Requests: {counted(len(times), name)}, median {duration(at_share(times, 0.5))},"
            f" p99 {duration(at_share(times, TAIL))}, most {duration(times[-1])}."
        )
        if spent:
            ((text, ns),) = spent.most_common(1)
            said[-1] += f" {share(ns / spent.total())} % of their time: {text}."
    return said
