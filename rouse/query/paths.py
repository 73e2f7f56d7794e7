# SPDX-License-Identifier: MIT
"""Where threads slept and from where they were woken, by the call paths that the kernel copied."""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from rouse.query import scheduler
from rouse.query.finding import LEAST_NS, LEAST_SHARE, Finding
from rouse.query.hot_locks import HOT_LOCK
from rouse.query.scheduler import NOBODY
from rouse.query.sections import Section
from rouse.query.specs import Column, extra
from rouse.query.summary import BUSY, CPU
from rouse.query.verdict import SHOWN, Verdict
from rouse.sched import switches
from rouse.sched.running import KERNEL, PERIOD_NS
from rouse.sched.stacks import ASLEEP
from rouse.sched.switches import Sleep, Switches
from rouse.symbols import futex_waits
from rouse.symbols.demangle import short
from rouse.symbols.images import Image, Names
from rouse.symbols.sites import Frame, Resolver
from rouse.text import duration, share

Row = dict[str, Any]
NAMING_SECONDS = 20.0  # the time to find the names of call paths; the others keep addresses
CONDITION_BYTES = 48  # of glibc's pthread_cond_t: its futexes are not its first word
FUTEX = "futex"
GO = "Go's scheduler"
# Kinds by the library's functions on the way to a futex, the innermost first.
KINDS = (
    ("mutex", re.compile(r"mutex_(timed|clock|cond_)?lock|^mtx_(timed)?lock")),
    ("condition", re.compile(r"pthread_cond_|^cnd_")),
    ("join", re.compile(r"pthread_\w*join|^thrd_join")),
    ("rwlock", re.compile(r"pthread_rwlock_")),
    ("semaphore", re.compile(r"^_*(new_)?sem_\w*wait")),
    ("barrier", re.compile(r"pthread_barrier_wait")),
    ("malloc", re.compile(r"^_*(GI_)?_*(libc_|int_)?(malloc|calloc|realloc|c?free|arena_get2)\b")),
)
ROLES = {futex_waits.LOCK: "lock", futex_waits.CONDITION: "condition", futex_waits.AWAIT: "await"}
LOCKS = ("mutex", "rwlock", "lock", "malloc")
GROUPS = {
    **dict.fromkeys(LOCKS, "locks"),
    **dict.fromkeys(("condition", "await", "semaphore", "barrier"), "conditions"),
    **dict.fromkeys(("join", "wait4", "waitid"), "joins"),
    **dict.fromkeys(("nanosleep", "clock_nanosleep"), "timers"),
    FUTEX: "other futexes",
    GO: "idle in Go",
    ASLEEP: ASLEEP,
    NOBODY: "page faults",
}
IO = re.compile(
    r"^(p?read|p?write|recv|send|splice|accept|connect|f(data)?sync|p?poll|p?select|epoll)"
)
# Functions that programs call to wait, where no file of theirs shows it: of a static libc, and of
# runtimes and libraries for locks.
WAITING = re.compile(
    r"^_*(GI_)?_*(libc_|new_)?((lll|futex|pthread|sem|mtx|cnd|thrd)_\w+|(clock_)?nanosleep|u?sleep"
    r"|(p?read|p?write|recv|send)(v|64|from|to|msg|mmsg)?|accept4?|connect|p?poll|p?select|fd?atasync"
    r"|fsync|epoll_p?wait2?|wait(pid|id|4)|syscall(_cancel\w*)?|cancel_\w+|internal_syscall_cancel"
    r"|malloc|calloc|realloc|c?free|arena_get2|int_(malloc|free)|tcache_\w+"
    r"|IO_\w+|f?gets|f?getc|fread|fwrite|fflush|getline|getdelim|v?f?printf|puts)(@.*)?$"
    r"|^(_?<*)?(std|core|alloc|parking_lot|parking_lot_core|lock_api)::"
    r"|^(runtime|syscall|internal/[\w/]+|sync|time)\."
)
# Of Go's runtime, the function that tells more about a thread than the call in which it sleeps.
GO_THREAD = re.compile(r"^runtime\.(findRunnable|sysmon|gcBgMarkWorker|templateThread|stopm)$")
KEY = "sleep_sites"
COLUMNS = (
    Column("asleep_ns", "waited", "ns", "until it was woken"),
    Column("count", "times", "count", "sleeps, with those that have not ended"),
    Column("asleep_each_ns", "each", "ns"),
    extra("asleep_most_ns", "most", "ns"),
    extra("queued_ns", "queued", "ns", "woken, and not yet on a processor"),
    extra("threads", "threads", "count"),
    Column("kind", "kind", "text", "of a lock, or the system call"),
    Column("label", "waits at"),
    Column("woken_from", "woken from", "text", "the place that ended most of the time"),
    Column("woken_by", "woken by"),
    Column("object", "object", "text", "locks are apart, unnamed conditions at a place together"),
    Column("held_from", "held from"),
)
ABOUT = (
    "Where threads slept, the longest total first. A wait may sleep more than once, or not at all."
    " - for held from: the kernel does not see who acquires a lock. Free acquisitions, hold times"
    " and lost races are not known either; `rouse run` records them."
)

ABOUT_BESIDE = (
    "Where threads slept that no recorded wait covers, as for libc's own locks, in static programs"
    " and in Go: by call paths that the kernel copied. - for held from: the kernel does not see who"
    " acquires a lock."
)
OF_LOOKS = ("asleep_ns", "threads", "kind", "label", "object", "woken_from", "held_from")
ABOUT_LOOKS = (
    "Where threads slept, the longest total first: the time that each was asleep, divided by where"
    " it was seen. - for woken from and held from: /proc shows neither who wakes a thread nor who"
    " holds a lock. The number of sleeps is not known."
)

RUN = (
    Column("cpu_ns", "CPU", "ns", "on a processor, by samples"),
    Column("share", "share %", "share"),
    Column("samples", "samples", "count"),
    Column("label", "function"),
)
ABOUT_RUN = (
    f"The functions in which threads ran, by a sample per {PERIOD_NS // 1_000_000} ms on a"
    " processor: the innermost function, also of libraries."
)


@dataclass(frozen=True)
class Site:
    """A call path with names."""

    frames: tuple[Frame, ...]  # the innermost first, from the first one that is no library's
    kind: str = ""  # empty: not known from its functions

    @property
    def label(self) -> str:
        return self.frames[0].label if self.frames else NOBODY


def is_waiting(frame: Frame) -> bool:
    return frame.is_library or bool(WAITING.match(short(frame.function or "")))


def site_of(frames: list[Frame]) -> Site:
    own = next((n for n, frame in enumerate(frames) if not is_waiting(frame)), None)
    if own is None:
        scheduler_of_go = (n for n, f in enumerate(frames) if GO_THREAD.match(f.function or ""))
        own = next(scheduler_of_go, None)
        if own is not None:
            return Site(tuple(frames[own:]), GO)
        own = 0
    passed = frames[: own + 1]
    texts = [[f.function or "", *f.within.split("\n")] for f in passed]
    functions = [name for names in texts for name in names if name]
    kind = ""
    for function in functions:
        kind = next((name for name, pattern in KINDS if pattern.search(function)), "")
        if kind:
            break
    roles = [frame.role for frame in frames if frame.role]
    if not kind and roles:
        kind = ROLES[futex_waits.AWAIT if futex_waits.AWAIT in roles else roles[0]]
    return Site(tuple(frames[own:]), kind)


class Paths:
    """The call paths of what was seen, with names."""

    def __init__(self, found: Switches, is_beside: bool = False) -> None:
        """is_beside: leave out sleeps in recorded waits, which have rows of their own."""
        self.found = found
        self.is_beside = is_beside
        self.resolver = Resolver()
        self.notes: list[str] = []
        self.names = self.named()
        self.sites: dict[int, Site] = {}
        self.deadline = time.monotonic() + NAMING_SECONDS
        self.late = 0

    def named(self) -> dict[int, list[Names]]:
        """The memory of each process, the newest first. It may have executed another program."""
        found: dict[int, list[Names]] = {}
        for pid, lines in self.found.images:
            found.setdefault(pid, []).insert(0, Names(Image(pid, "\n".join(lines)), self.resolver))
        for pid in sorted({place.process for place in self.found.places.values()} - set(found)):
            self.notes.append(f"no names of process {pid}: it ended before its memory was listed")
        return found

    def names_at(self, process: int, code: int) -> Names | None:
        """The names of a process whose memory has code at an address. 0: the newest ones."""
        for names in self.names.get(process, ()):
            if not code or names.image.is_code(code):
                return names
        return None

    def site(self, place: int) -> Site:
        if place not in self.sites:
            self.sites[place] = self.look_up(place)
        return self.sites[place]

    def look_up(self, number: int) -> Site:
        place = self.found.places.get(number)
        if place is None:
            return Site(())
        names = self.names_at(place.process, place.program or place.stack.ip)
        if names is None or time.monotonic() > self.deadline:
            self.late += names is not None
            return Site((Frame(place.stack.ip, f"{place.stack.ip:#x}"),))
        return site_of([names.frame(address) for address in names.addresses(place.stack)])

    def object(self, process: int, kind: str, futex: int) -> str:
        names = self.names_at(process, 0)
        if not futex or kind == GO:  # each of Go's threads has a futex of its own
            return NOBODY
        if kind == "condition":
            futex &= ~7  # glibc uses two words in turn
        name = names.variable(futex) if names else None
        if name and kind == "condition":
            base, _, offset = name.rpartition("+0x")
            name = base if base and int(offset, 16) < CONDITION_BYTES else name
        return name or f"{futex:#x}"

    def sleeps(self) -> Iterator[Sleep]:
        """Yield the sleeps that have ended, and those that have not."""
        if self.found.sampled is not None:
            yield from self.found.sampled
            return
        for sleep in self.found.sleeps:
            if not self.is_beside or sleep.join not in (switches.JOINED, switches.RELOCK):
                yield sleep
        for key, thread in self.found.threads.items():
            if thread.state == switches.ASLEEP and (thread.place or not self.is_beside):
                asleep = max(self.found.now_ns - thread.since_ns, 0)
                yield Sleep(
                    thread=key,
                    call=thread.call,
                    count=1,
                    asleep_ns=asleep,
                    queued_ns=0,
                    asleep_most_ns=asleep,
                    futex=thread.futex,
                    place=thread.place,
                )

    @cached_property
    def rows(self) -> list[Row]:
        rows: dict[tuple[Any, ...], Row] = {}
        tids = {thread.tid: thread.name for thread in self.found.threads.values()}
        for sleep in self.sleeps():
            thread = self.found.threads.get(sleep.thread)
            if thread is None:
                continue
            site = self.site(sleep.place)
            kind = site.kind if sleep.call == FUTEX and site.kind else sleep.call
            thing = self.object(thread.process, kind, sleep.futex)
            is_apart = kind in LOCKS or not thing.startswith("0x")
            key = (thread.process, kind, site.label, thing if is_apart else "")
            row = rows.setdefault(
                key,
                {
                    **{"process": thread.process, "kind": kind, "call": sleep.call},
                    **{"label": site.label, "held_from": None, "objects": set()},
                    **dict.fromkeys(("count", "asleep_ns", "asleep_most_ns", "queued_ns"), 0),
                    **{"stack": [frame.label for frame in site.frames]},
                    **{"tids": set(), "wakers": {}},
                },
            )
            for name in ("count", "asleep_ns", "queued_ns"):
                row[name] += getattr(sleep, name)
            row["asleep_most_ns"] = max(row["asleep_most_ns"], sleep.asleep_most_ns)
            row["tids"].add(sleep.thread)
            row["objects"].add(thing)
            by = tids.get(sleep.waker_tid, sleep.waker) if sleep.waker_tid else NOBODY
            waker = (self.site(sleep.waker_place).label if sleep.waker_tid else NOBODY, by)
            row["wakers"][waker] = row["wakers"].get(waker, 0) + sleep.asleep_ns
        return [self.finished(row) for row in sorted(rows.values(), key=lambda r: -r["asleep_ns"])]

    def finished(self, row: Row) -> Row:
        wakers = sorted(row.pop("wakers").items(), key=lambda item: -item[1])
        (place, name), _ = wakers[0]
        row["wakers"] = [
            {"place": place, "name": name, "asleep_ns": asleep_ns}
            for (place, name), asleep_ns in wakers
        ]
        row["woken_from"], row["woken_by"] = place, name
        row["threads"] = len(row.pop("tids"))
        row["objects"] = sorted(row["objects"])
        several = f"{len(row['objects']):,} objects"
        row["object"] = row["objects"][0] if len(row["objects"]) == 1 else several
        if self.found.sampled is not None:  # looks have no number of sleeps
            row.update(dict.fromkeys(("count", "asleep_most_ns", "queued_ns")))
        row["asleep_each_ns"] = row["asleep_ns"] / row["count"] if row["count"] else None
        return row

    def section(self, limit: int) -> Section:
        is_whole = self.found.sampled is None
        title, about = "Wait sites, by the kernel's scheduler", ABOUT
        if self.is_beside:
            title, about = "Sleeps outside of recorded waits, by place", ABOUT_BESIDE
        made = scheduler.section(
            KEY,
            title if is_whole else "Wait sites, by looks at /proc",
            about if is_whole else ABOUT_LOOKS,
            COLUMNS if is_whole else tuple(c for c in COLUMNS if c.key in OF_LOOKS),
            self.rows,
            limit,
        )
        return replace(made, empty=made.empty and "no thread slept")

    def function(self, process: int, address: int) -> str:
        """The function at an address where a thread ran."""
        if address == KERNEL:
            return "the kernel"
        names = self.names_at(process, address)
        if names is None or time.monotonic() > self.deadline:
            self.late += names is not None
            return f"{address:#x}"
        frame = names.frame(address + 1)  # it is not a return address
        file = posixpath.basename(frame.module or "") or f"{address:#x}"
        return short(frame.function) if frame.function else file

    def run_section(self, limit: int) -> Section:
        rows: dict[tuple[int, str], Row] = {}
        whole = sum(self.found.ran.values())
        for (process, address), count in self.found.ran.items():
            label = self.function(process, address)
            row = rows.setdefault(
                (process, label), {"process": process, "label": label, "samples": 0}
            )
            row["samples"] += count
        for row in rows.values():
            row["cpu_ns"], row["share"] = row["samples"] * PERIOD_NS, row["samples"] / whole
        ordered = sorted(rows.values(), key=lambda row: -row["samples"])
        made = scheduler.section("run_sites", "Where threads ran", ABOUT_RUN, RUN, ordered, limit)
        return replace(made, empty=made.empty and "no thread ran for long enough")

    def lock_findings(self, whole_ns: int) -> list[Finding]:
        """The locks that threads sleep for. Without the holds, the gain of a fix is not known."""
        found = []
        for row in self.rows:
            waited = row["asleep_ns"]
            if row["kind"] not in LOCKS or waited < max(LEAST_SHARE * whole_ns, LEAST_NS):
                continue
            waiter, holder = row["label"], row["woken_from"]
            times = f", {row['count']:,} times" if row["count"] else ""
            by = f" {holder} released it." if holder != NOBODY else ""
            name = "malloc's own lock" if row["kind"] == "malloc" else row["object"]
            text = (
                f"{name}: {waiter} sleeps {duration(waited)} in all for it{times}.{by} How long it"
                f" is held, and so what a fix gains, only rouse run can tell [{HOT_LOCK}]"
            )
            holder = "" if holder == NOBODY else holder
            found.append(Finding(HOT_LOCK, name, waiter, holder, waited, None, None, text))
        return found[:SHOWN]

    def summary(self, time: Mapping[str, float], ran: Section) -> str:
        """Say why there is no finding."""
        if time["running"] >= BUSY and ran.rows:
            first = ran.rows[0]
            where = f"{share(first['share'])} % of it in {first['label']}"
            return f"Nothing to fix here: the threads compute, {where} [{CPU}]"
        slept = next(iter(self.rows), None)
        if slept is None:
            return ""
        return f"No lock is contended: threads sleep mostly at {slept['label']} ({slept['kind']})"

    def verdict(self) -> Verdict:
        """How the threads' time divides, and for which locks they sleep."""
        parts = {"running": 0, "queued": 0}
        for row in scheduler.thread_rows(self.found):
            parts["running"] += row["cpu_ns"]
            parts["queued"] += row["preempted_ns"] + (row["queued_ns"] or 0)
        for row in self.rows:
            group = GROUPS.get(row["kind"]) or ("I/O" if IO.match(row["kind"]) else "other calls")
            parts[group] = parts.get(group, 0) + row["asleep_ns"]
        whole = sum(parts.values())
        if not whole:
            return Verdict({}, 0)
        time = {name: ns / whole for name, ns in parts.items()}
        findings = self.lock_findings(whole)
        text = "" if findings or self.is_beside else self.summary(time, self.run_section(1))
        return Verdict(time, whole, findings, text)

    def all_notes(self) -> list[str]:
        blind = self.found.blind
        found = [f"no places where threads sleep: {blind}"] if blind else []
        if self.found.ran_blind:
            found.append(f"some threads were not sampled: {self.found.ran_blind}")
        late = f"{self.late:,} call paths have no names: finding them took too long"
        return [*found, *self.notes, *self.resolver.problems, *([late] if self.late else [])]
