# SPDX-License-Identifier: MIT
"""The threads' time as lanes: when each thread ran, waited and was to run, from events.

A lane has a bounded number of spans. Where a thread has more, its shortest spans are summed up with
their neighbours into one, which has the state that took most of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rouse.query import timelines
from rouse.query.icicle import PART_OF_KIND, PART_OF_STATE
from rouse.query.requests import Names, requests_of
from rouse.query.timelines import RUNS, TO_RUN, Timeline
from rouse.tables.engine import Database
from rouse.text import counted

LANES_MOST = 64
SPANS_MOST = 12_000  # of all lanes
REQUESTS_MOST = 500  # the longest ones


@dataclass(frozen=True)
class Span:
    """Times are in ns since the first event."""

    begin: int
    end: int
    part: str  # of the verdict's division of time
    text: str
    waker: int = -1  # the lane of the thread that ended the wait. -1: none is shown


@dataclass(frozen=True)
class Lane:
    name: str
    spans: list[Span]


@dataclass(frozen=True)
class Lanes:
    begin: int  # of the first event, in ns since 1970
    ns: int
    lanes: list[Lane]
    more: int  # threads that are left out
    requests: list[Span]  # of the program's marks; a text and the thread that ended it


def part_of(kind: str) -> str:
    if kind in (RUNS, TO_RUN):
        return PART_OF_STATE["usr" if kind == RUNS else "lat"]
    return PART_OF_KIND.get(kind, PART_OF_STATE["io"])


def joined(spans: list[Span], most: int) -> list[Span]:
    """Sum up neighbours until there are at most so many spans."""
    groups = [[span] for span in spans]
    while len(groups) > most:
        lengths = sorted(some[-1].end - some[0].begin for some in groups)
        limit = 2 * lengths[len(groups) - max(most // 2, 1)] + 1
        made: list[list[Span]] = []
        for some in groups:
            if made and some[-1].end - made[-1][0].begin <= limit:
                made[-1] += some
            else:
                made.append(some)
        if len(made) == len(groups):  # each is as long as the limit: the last are left out
            del made[most:]
        groups = made
    return [one_of(some) for some in groups]


def one_of(spans: list[Span]) -> Span:
    if len(spans) == 1:
        return spans[0]
    spent: Counter[str] = Counter()
    for span in spans:
        spent[span.part] += span.end - span.begin
    ((part, _),) = spent.most_common(1)
    text = f"{counted(len(spans), 'span')}, most of the time {part}"
    return Span(spans[0].begin, spans[-1].end, part, text)


@dataclass(frozen=True)
class Key:
    process: str
    thread: int


def spans_of(
    key: Key, line: Timeline, until: int, numbers: dict[Key, int], names: Names
) -> Iterator[Span]:
    """The spans of a thread, in ns since 1970."""
    name = names.thread(key.process, key.thread)
    at = line.begin
    running = part_of(RUNS)
    for rest in line.rests:
        if rest.begin > at:
            yield Span(at, rest.begin, running, f"{name} runs")
        end = until if rest.end is None else rest.end
        where = names.site(key.process, rest.site)
        place = f" at {where}" if where else ""
        woken = rest.woken
        if rest.kind == TO_RUN:
            yield Span(rest.begin, end, part_of(TO_RUN), f"{name} is to run")
        elif woken is None or not rest.begin <= woken <= end:
            yield Span(rest.begin, end, part_of(rest.kind), f"{name} waits ({rest.kind}){place}")
        else:
            by = names.thread(key.process, rest.waker) if rest.waker else ""
            source = names.site(key.process, rest.wake_site)
            ended = f", ended by {by}" if by else ""
            ended += f" at {source}" if by and source else ""
            waker = numbers.get(Key(key.process, rest.waker), -1)
            text = f"{name} waits ({rest.kind}){place}{ended}"
            yield Span(rest.begin, woken, part_of(rest.kind), text, waker)
            if end > woken:
                yield Span(woken, end, part_of(TO_RUN), f"{name} is to run after its wait{place}")
        at = max(at, end)
    last = until if line.end is None else line.end
    if last > at:
        yield Span(at, last, running, f"{name} runs")


def make(database: Database, spans_most: int = SPANS_MOST) -> Lanes | None:
    """Return the lanes, those of threads with most waits first. None: there are no events."""
    lines = {
        Key(process, thread): line
        for process, some in timelines.of(database).items()
        for thread, line in some.threads.items()
        if line.rests
    }
    if not lines:
        return None
    ends = [line.end or line.begin for line in lines.values()]
    ends += [line.rests[-1].end or line.rests[-1].begin for line in lines.values()]
    begin, until = min(line.begin for line in lines.values()), max(ends)
    chosen = sorted(lines, key=lambda key: -len(lines[key].rests))[:LANES_MOST]
    chosen.sort(key=lambda key: lines[key].begin)
    numbers = {key: number for number, key in enumerate(chosen)}
    names = Names(database)
    made = []
    for key in chosen:
        spans = list(spans_of(key, lines[key], until, numbers, names))
        some = joined(spans, max(spans_most // len(chosen), 4))
        own = [replace(s, begin=s.begin - begin, end=s.end - begin) for s in some]
        made.append(Lane(names.thread(key.process, key.thread), own))
    marked = [
        Span(
            max(one.begin - begin, 0),
            max(one.end - begin, 0),
            some.name,
            f"{some.name} {one.id}",
            numbers.get(Key(some.process, one.thread), -1),
        )
        for some in requests_of(database)
        for one in some.ended
    ]
    marked.sort(key=lambda span: span.begin - span.end)
    return Lanes(begin, until - begin, made, len(lines) - len(chosen), marked[:REQUESTS_MOST])
