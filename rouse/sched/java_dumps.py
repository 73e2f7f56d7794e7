# SPDX-License-Identifier: MIT
"""Locks and executors that the threads of a Java program wait for, by dumps of its threads.

Only the JVM knows its locks, and the methods that just-in-time code belongs to. It writes both to a
tool that attaches to it, as jstack does: it makes a socket when it receives SIGQUIT and finds a
file that asks for it, /tmp/.attach_pidN. The dump stops its threads for the time that it takes. So
the next one is made after half a second, or a hundred times the shortest one so far. Only the first
four, if they are short, come every half a second: a program that soon ends would have none of its
own code.

No signal is sent to a JVM that does not catch it (-Xrs), nor where attaching is forbidden
(-XX:+DisableAttachMechanism): it would print a dump among its own output.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from rouse.sched import procfs
from rouse.text import printable

LOOK_S = 0.25  # between looks for processes, and for the socket
EVERY_S, PART = 0.5, 100  # between two dumps: at least, and times the duration of one
SOON, SHORT_S = 4, 0.1  # dumps that come without a longer pause, and their duration at most
TRIES = 20  # looks until there is a socket
REFUSALS = 3  # one after the other
ANSWER_S = 0.5  # of the JVM, for a whole dump
BYTES_MOST = 4 << 20  # of a dump
PROCESSES_MOST = 8
JVM = re.compile(r"/libjvm\.so$")
FORBIDDEN = ("-XX:+DisableAttachMechanism", "-Xrs", "-XX:+ReduceSignalUsage")
OPTIONS = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")
REQUEST = b"1\0threaddump\0\0\0\0"  # the protocol's version, the command, three arguments
THREAD = re.compile(r'"(?P<name>.*)" .*?\bnid=(?P<tid>\w+)')
FRAME = re.compile(r"\tat (?:[\w.@]+/)?(?P<method>[^(]+)\((?P<place>[^)]*)\)")
WANTED = re.compile(
    r"\t- (?P<how>waiting to lock|parking to wait for) +<(?P<object>\w+)> \(a (?P<type>.+)\)"
)
LOCKED = re.compile(r"\t- locked <(?P<object>\w+)> \(a (?P<type>.+)\)")
NOTIFIED = re.compile(r"\t- waiting on <(?P<object>\w+)>")  # it has given it up meanwhile
# Calls in which threads wait for what others put somewhere, or put back.
TAKE = re.compile(
    r"java\.util\.concurrent\.(?!Synchronous)\w*(Queue|Deque)\.(take|poll)\w*"
    r"|java\.util\.concurrent\.locks\.\w+\$ConditionObject\.await\w*"
    r"|java\.lang\.Object\.wait"
)
# Of what threads park for: locks, not events and queues.
LOCKS = re.compile(r"java\.util\.concurrent\.locks\.(Reentrant|Stamped)\w*Lock")
SEMAPHORE = re.compile(r"java\.util\.concurrent\.Semaphore\b")
# A semaphore or queue is a pool if so many of the dumps in which threads wait for it have the same
# number of threads in calls from the method that waits, or from its caller. Of threads that wait
# for work the number varies.
SAME = 0.7
NEAR = 2  # methods: the one that waits, and its caller
PLACES_MOST = 20  # of a process, those with most threads
# Objects for which threads park until others have computed a result.
RESULTS = re.compile(r"java\.util\.concurrent\.(FutureTask|CompletableFuture)\b")
WORKER = "java.util.concurrent.ThreadPoolExecutor.runWorker"
SCHEDULED = "java.util.concurrent.ScheduledThreadPoolExecutor$"
# Calls in which a thread waits until there is room for more work.
ROOM = re.compile(
    r"java\.util\.concurrent\.(Semaphore\.acquire\w*|\w*(Queue|Deque)\.(put|offer)\w*)"
)
LIBRARY = re.compile(r"(javax?|jdk|sun|com\.sun)\.")
MONITOR = "waiting to lock"


@dataclass(frozen=True)
class JavaWaits:
    """Waits in the dumps of a process for locks of one type, at one place."""

    pid: int
    lock: str  # its type
    is_monitor: bool
    waiter: str  # "Class.method File.java:line"
    holder: str  # the same of the thread that had it; empty: not known
    count: int  # threads, summed over the dumps
    threads: int  # different ones
    most: int  # threads that waited for locks of the type in one dump
    dumps: int  # of the process
    permits: int = 0  # of a semaphore or a queue, which is a pool; 0: it is a lock
    taker: str = ""  # the method that takes from a queue, or waits for a condition


@dataclass(frozen=True)
class JavaPlace:
    """Where threads are in the dumps of a process, in the program's own code."""

    pid: int
    place: str  # "Class.method File.java:line"
    count: int  # threads, summed over the dumps


# An object that threads wait for: its type, whether it is a monitor, and the method that takes from
# it if it is a queue or condition.
Wanted = tuple[str, bool, str]


@dataclass(frozen=True)
class JavaPool:
    """Threads of executors in the dumps of a process, and those that wait for them.

    All counts are sums over the dumps.
    """

    pid: int
    waiter: str  # where most of those are that wait for a result
    worker: str  # where most of the pools' threads are that work
    blocked_at: str  # where most of those are that wait for room: in a queue, or for a permit
    is_scheduled: bool  # they run timers
    waiting: int  # for a result
    busy: int
    queued: int  # threads that wait for a result beyond those that the executors have, busy or idle
    threads: int  # of the executors
    full: int  # dumps in which all of these were busy
    blocked: int
    dumps: int


@dataclass
class Thread:
    tid: str
    frames: list[tuple[str, str]] = field(default_factory=list)  # method, and file:line
    # By object: its type, and which of the frames locked it, from 1 on.
    locked: dict[str, tuple[str, int]] = field(default_factory=dict)
    wanted: str = ""  # an object
    type: str = ""
    is_monitor: bool = False

    @property
    def own_methods(self) -> list[str]:
        """Those that are not the library's, the innermost first."""
        return [method for method, _ in self.frames if not LIBRARY.match(method)]

    @property
    def called(self) -> str:
        """The method of the library that the innermost one of the program called, if any."""
        inner = self.frames.index(self.own) if self.own[0] else 0
        return self.frames[inner - 1][0] if inner else ""

    @property
    def waits_for(self) -> Wanted | None:
        """The lock, semaphore or queue that it waits for."""
        if not self.own[0]:
            return None
        if TAKE.fullmatch(self.called):
            return printable(self.called.rpartition(".")[0]), False, printable(self.own[0])
        if self.is_monitor or LOCKS.match(self.type) or SEMAPHORE.match(self.type):
            return printable(self.type), self.is_monitor, ""
        return None

    @property
    def own(self) -> tuple[str, str]:
        """The innermost frame that is not the library's. Empty: there is none."""
        return next((frame for frame in self.frames if not LIBRARY.match(frame[0])), ("", ""))

    @property
    def label(self) -> str:
        return printable(" ".join(self.own))


def parsed(text: str) -> list[Thread]:
    """The threads of a dump that run Java code, also that of the library alone."""
    found: list[Thread] = []
    notified: set[tuple[int, str]] = set()
    for line in text.splitlines():
        if match := THREAD.match(line):
            found.append(Thread(match["tid"]))
        elif not found:
            continue
        elif match := FRAME.match(line):
            found[-1].frames.append((match["method"], match["place"]))
        elif match := NOTIFIED.match(line):
            notified.add((len(found), match["object"]))
        elif match := LOCKED.match(line):
            if (len(found), match["object"]) not in notified:
                found[-1].locked[match["object"]] = (match["type"], len(found[-1].frames))
        elif match := WANTED.match(line):
            found[-1].wanted, found[-1].type = match["object"], match["type"]
            found[-1].is_monitor = match["how"] == MONITOR
    return with_spinning([thread for thread in found if thread.frames])


def with_spinning(threads: list[Thread]) -> list[Thread]:
    """Say of threads that spin for a monitor that they wait for it.

    A dump says that they have locked it. One thread has: if it is not known which, one that has
    called other methods meanwhile.
    """
    owners: dict[str, list[Thread]] = {}
    for thread in threads:
        for name in thread.locked:
            owners.setdefault(name, []).append(thread)
    for name, some in owners.items():
        some.sort(key=lambda thread: -thread.locked[name][1])
        for thread in some[1:]:
            kind, frame = thread.locked[name]
            if frame == 1 and not thread.wanted:
                del thread.locked[name]
                thread.wanted, thread.type, thread.is_monitor = name, kind, True
    return threads


def users(waiting: Thread, threads: Iterable[Thread]) -> list[list[Thread]]:
    """Return the threads that have what another one waits for, as its methods tell, by two tests.

    They are in calls from the method that waits. Or they are in calls from its caller: what it
    waits for is acquired in a method of its own.
    """
    wanted, known = waiting.waits_for, list(threads)
    return [
        [
            thread
            for thread in known
            if thread is not waiting and thread.waits_for != wanted and method in thread.own_methods
        ]
        for method in waiting.own_methods[:NEAR]
    ]


def holder_of(waiting: Thread, threads: Iterable[Thread]) -> str:
    """Return where the thread is that has the lock. Empty: not known.

    A dump names the monitors that a thread has. Of other locks it does not: their holder is in a
    call from the method that others wait in, or from its caller.
    """
    known = list(threads)
    if not waiting.is_monitor:
        return next((each[0].label for each in users(waiting, known) if each), "")
    for thread in known:
        if thread is not waiting and waiting.wanted in thread.locked:
            return thread.label
    return ""


def most_of(counts: Counter[str]) -> str:
    return next((place for place, _ in counts.most_common(1)), "")


@dataclass
class Executors:
    """The executors of a JVM that run timers, or all others."""

    waiting: Counter[str] = field(default_factory=Counter)  # for results, by place
    blocked: Counter[str] = field(default_factory=Counter)  # for room
    busy: Counter[str] = field(default_factory=Counter)  # threads of pools
    queued: int = 0
    threads: int = 0
    full: int = 0

    def add(self, workers: list[Thread], others: list[Thread]) -> None:
        """Add a dump with these threads of the executors, and with others."""
        # A thread that waits for a lock or a result is as busy as one that works.
        busy = [thread for thread in workers if thread.own[0]]
        waiting = [t for t in others if t.own[0] and RESULTS.match(t.type)]
        blocked = [t for t in others if t.own[0] and ROOM.fullmatch(t.called)]
        for counts, some in ((self.busy, busy), (self.waiting, waiting), (self.blocked, blocked)):
            counts.update(thread.label for thread in some)
        self.queued += max(len(waiting) - len(workers), 0)
        self.threads += len(workers)
        self.full += 0 < len(workers) == len(busy)


@dataclass
class Process:
    """A JVM, to which dumps are asked of."""

    pid: int
    inner_pid: int  # in its own namespace
    tries: int = 0
    refused: int = 0  # dumps, one after the other
    given: int = 0  # dumps, also those that tell nothing
    is_over: bool = False  # it gives no more
    dumps: int = 0
    next_s: float = 0.0
    least_s: float = ANSWER_S  # of a dump so far
    counts: Counter[tuple[Wanted, str, str]] = field(default_factory=Counter)
    threads: dict[Wanted, set[str]] = field(default_factory=dict)
    most: Counter[Wanted] = field(default_factory=Counter)
    # Of dumps with threads that wait for a semaphore or queue: how many others have something of
    # it, by each of the tests of users().
    passed: dict[Wanted, list[Counter[int]]] = field(default_factory=dict)
    places: Counter[str] = field(default_factory=Counter)
    executors: dict[bool, Executors] = field(default_factory=dict)  # by whether they run timers

    @property
    def folder(self) -> Path:
        return Path(f"/proc/{self.pid}/root/tmp")

    @property
    def socket(self) -> Path:
        return self.folder / f".java_pid{self.inner_pid}"

    @property
    def asking(self) -> Path:
        return self.folder / f".attach_pid{self.inner_pid}"

    def is_there(self) -> bool:
        """Whether the JVM has made its socket. One of another user is none of it."""
        try:
            status = self.socket.lstat()
        except OSError:
            return False
        return stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()

    def ask(self) -> None:
        """Ask the JVM to make its socket."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.suppress(OSError):
            os.close(os.open(self.asking, flags, 0o600))
            os.kill(self.pid, signal.SIGQUIT)

    def forget(self) -> None:
        with contextlib.suppress(OSError):
            if self.asking.lstat().st_uid == os.geteuid():
                self.asking.unlink()

    def dump(self) -> str:
        """Return a dump of its threads. Empty: it gave none."""
        parts, size = [], 0
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            until = time.monotonic() + ANSWER_S
            connection.settimeout(ANSWER_S)
            connection.connect(str(self.socket))
            connection.sendall(REQUEST)
            while size < BYTES_MOST and (part := connection.recv(1 << 16)):
                parts.append(part)
                size += len(part)
                left = until - time.monotonic()
                if left <= 0:
                    return ""
                connection.settimeout(left)
        text = b"".join(parts).decode("utf-8", "replace")
        status, _, rest = text.partition("\n")
        return rest if status == "0" else ""

    def add(self, text: str) -> None:
        threads, now = parsed(text), Counter[Wanted]()
        if not self.dumps and not any(thread.own[0] for thread in threads):
            return  # the JVM has just begun, or compiles the program
        self.dumps += 1
        for thread in threads:
            self.places[thread.label] += bool(thread.own[0])
            if wanted := thread.waits_for:
                self.counts[wanted, thread.label, holder_of(thread, threads)] += 1
                self.threads.setdefault(wanted, set()).add(thread.tid)
                if not now[wanted]:
                    counts = self.passed.setdefault(wanted, [Counter() for _ in range(NEAR)])
                    for count, some in zip(counts, users(thread, threads), strict=False):
                        count[len(some)] += 1
                now[wanted] += 1
        self.most |= now
        self.add_executors(threads)

    def add_executors(self, threads: list[Thread]) -> None:
        workers: dict[bool, list[Thread]] = {}
        others = []
        for thread in threads:
            methods = [method for method, _ in thread.frames]
            if WORKER in methods:
                is_scheduled = any(method.startswith(SCHEDULED) for method in methods)
                workers.setdefault(is_scheduled, []).append(thread)
            else:
                others.append(thread)
        for is_scheduled, some in workers.items():
            waiting = [] if is_scheduled else others
            self.executors.setdefault(is_scheduled, Executors()).add(some, waiting)

    def pools(self) -> list[JavaPool]:
        return [
            JavaPool(
                *(self.pid, most_of(some.waiting), most_of(some.busy), most_of(some.blocked)),
                *(is_scheduled, some.waiting.total(), some.busy.total(), some.queued),
                *(some.threads, some.full, some.blocked.total(), self.dumps),
            )
            for is_scheduled, some in self.executors.items()
            if some.busy and (some.waiting or some.blocked or is_scheduled)
        ]

    def permits(self, wanted: Wanted) -> int:
        """How many threads have something of a semaphore or queue. 0: it is no pool of theirs."""
        for counts in self.passed.get(wanted, []):
            (count, dumps), *_ = counts.most_common(1) or [(0, 0)]
            if count and dumps >= SAME * counts.total():
                return count
        return 0

    def waits(self) -> list[JavaWaits]:
        found = []
        for (wanted, waiter, holder), count in self.counts.items():
            kind, is_monitor, taker = wanted
            may_be_pool = bool(taker or SEMAPHORE.match(kind))
            permits = self.permits(wanted) if may_be_pool else 0
            if permits or not may_be_pool:
                numbers = (count, len(self.threads[wanted]), self.most[wanted], self.dumps)
                found.append(
                    JavaWaits(self.pid, kind, is_monitor, waiter, holder, *numbers, permits, taker)
                )
        return found


def inner_pid(pid: int) -> int:
    """Return the number of a JVM in its own namespace. 0: it must not be attached to."""
    try:
        status = procfs.read(f"/proc/{pid}/status")
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    caught = int(lines.get("SigCgt", "0"), 16) >> (signal.SIGQUIT - 1) & 1
    is_ours = lines.get("Uid", "").split()[1:2] == [str(os.geteuid())]
    options = [v for v in variables if v.split(b"=")[0].decode("latin-1") in OPTIONS]
    is_forbidden = any(
        option.encode() in word for option in FORBIDDEN for word in (*words, *options)
    )
    return (
        int(lines.get("NSpid", "0").split()[-1]) if caught and is_ours and not is_forbidden else 0
    )


class JavaSampler:
    """Asks the JVMs of a program for dumps."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """pids: the processes of the program that are known to live."""
        self.pids = pids
        self.mapped = procfs.Mapped(JVM)
        self.tries: Counter[int] = Counter()  # by process: a new JVM does not catch SIGQUIT yet
        self.known: dict[int, Process] = {}
        self.next_s = time.monotonic() + LOOK_S

    def look(self) -> float:
        """Do what is due. Return for how long nothing is."""
        if time.monotonic() >= self.next_s:
            for pid in self.pids():
                self.find(pid)
                process = self.known.get(pid)
                if process and not process.is_over:
                    self.step(process)
            self.next_s = time.monotonic() + LOOK_S
        return max(self.next_s - time.monotonic(), 0.0)

    def find(self, pid: int) -> None:
        if pid in self.known or len(self.known) >= PROCESSES_MOST or not self.mapped.look(pid):
            return
        self.tries[pid] += 1
        if self.tries[pid] <= TRIES and (number := inner_pid(pid)):
            self.known[pid] = Process(pid, number)

    def step(self, process: Process) -> None:
        if not process.is_there():
            process.tries += 1
            if process.tries == 1:
                process.ask()
            if process.tries > TRIES:
                process.forget()
                process.is_over = True
            return
        if process.given == 0:
            process.forget()
        begin = time.monotonic()
        if begin < process.next_s:
            return
        process.next_s = begin + EVERY_S
        text = process.dump()
        took_s = time.monotonic() - begin
        if not text:
            process.refused += 1
            process.is_over = process.refused >= REFUSALS
            process.next_s = begin + max(EVERY_S, PART * took_s)
            return
        process.refused = 0
        process.given += 1
        process.add(text)
        # The first one takes longer, and any may wait for a processor.
        if process.given > 1:
            process.least_s = min(process.least_s, took_s)
        if process.given >= SOON or (process.given > 1 and process.least_s > SHORT_S):
            process.next_s = begin + max(EVERY_S, PART * process.least_s)

    def stop(self) -> tuple[list[JavaWaits], list[JavaPool], list[JavaPlace]]:
        """Return what was found."""
        every = self.known.values()
        for process in every:
            process.forget()
        waits = [each for process in every for each in process.waits()]
        places = [
            JavaPlace(process.pid, place, count)
            for process in every
            for place, count in process.places.most_common(PLACES_MOST)
            if count
        ]
        return waits, [pool for process in every for pool in process.pools()], places
