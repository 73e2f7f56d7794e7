# SPDX-License-Identifier: MIT
"""The throughput of threads that share locks: a simulation.

Each thread works outside of locks, then takes one lock after the other. Computing takes a processor
for as long as it lasts, also under a lock; sleeping takes none. Times are exponential, as in
query/gain.py, or constant except for JITTER. Without it, threads would stay in step for ever: if
work outside takes three times as long as a hold, the holds of readers follow each other without a
gap, and a writer never enters. A lock that is split has parts, of which a thread takes any. Readers
enter unless a writer is inside, as glibc's locks do by default: also while writers wait.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

CYCLES = 4000  # of all threads, that are counted; before them, as many as a quarter are not
CYCLES_PER_THREAD = 20
JITTER = 0.05  # of a constant time, at most, either way


@dataclass(frozen=True)
class Step:
    """A part of a thread's cycle, in ns. lock: under which of the locks. None: outside of them."""

    ran: float
    slept: float
    lock: int | None = None


@dataclass
class LockState:
    reads: float = 0.0  # the share of holds that only read
    readers: int = 0
    is_written: bool = False
    waiting: deque[tuple[int, bool]] = field(default_factory=deque)  # thread, and whether it reads

    def enter(self, reads: bool) -> bool:
        if self.is_written or (not reads and self.readers):
            return False
        self.readers += reads
        self.is_written = not reads
        return True

    def leave(self, read: bool) -> list[tuple[int, bool]]:
        """Return the threads that enter now: all readers that wait, or else the first writer."""
        if read:
            self.readers -= 1
        else:
            self.is_written = False
        let_in = []
        if not self.is_written and any(reads for _, reads in self.waiting):
            let_in = [one for one in self.waiting if one[1]]
            self.waiting = deque(one for one in self.waiting if not one[1])
        elif self.waiting and not self.readers:
            let_in = [self.waiting.popleft()]
        for _, reads in let_in:
            assert self.enter(reads)
        return let_in


@dataclass(frozen=True)
class Shared:
    """A lock as it is shared. reads: the share of its holds that only read."""

    reads: float = 0.0
    parts: int = 1


class Simulation:
    def __init__(
        self,
        steps: Sequence[Step],
        processors: int,
        locks: Sequence[Shared],
        is_constant: bool = False,
    ) -> None:
        """is_constant: each step always takes about as long, and is not exponential."""
        self.steps = steps
        self.is_constant = is_constant
        self.idle = processors
        self.queue: deque[int] = deque()  # threads that wait for a processor
        self.locks = [[LockState(lock.reads) for _ in range(lock.parts)] for lock in locks]
        self.part: list[LockState] = []  # of each thread, the part that it waits for or holds
        self.random = random.Random(1)  # the same recording gives the same prediction
        self.now = 0.0
        self.events: list[tuple[float, int, int, int]] = []  # when, order, thread, what
        self.order = 0
        self.at: list[int] = []
        self.is_reader: list[bool] = []
        self.cycles = 0

    RAN, SLEPT, BEGINS = range(3)

    def later(self, mean: float, thread: int, what: int) -> None:
        if self.is_constant or mean <= 0:
            lasts = mean * self.random.uniform(1 - JITTER, 1 + JITTER)
        else:
            lasts = self.random.expovariate(1 / mean)
        time = self.now + max(lasts, 0.0)
        self.order += 1
        heapq.heappush(self.events, (time, self.order, thread, what))

    def begin(self, thread: int) -> None:
        """Begin the present step of a thread: get its lock first."""
        step = self.steps[self.at[thread]]
        if step.lock is None:
            self.compute(thread)
            return
        lock = self.part[thread] = self.random.choice(self.locks[step.lock])
        reads = self.random.random() < lock.reads
        self.is_reader[thread] = reads
        if lock.enter(reads):
            self.compute(thread)
        else:
            lock.waiting.append((thread, reads))

    def compute(self, thread: int) -> None:
        if self.steps[self.at[thread]].ran <= 0:
            self.sleep(thread)
        elif self.idle:
            self.idle -= 1
            self.later(self.steps[self.at[thread]].ran, thread, self.RAN)
        else:
            self.queue.append(thread)

    def sleep(self, thread: int) -> None:
        self.later(self.steps[self.at[thread]].slept, thread, self.SLEPT)

    def end(self, thread: int) -> None:
        step = self.steps[self.at[thread]]
        if step.lock is not None:
            for other, _ in self.part[thread].leave(self.is_reader[thread]):
                self.compute(other)
        self.at[thread] = (self.at[thread] + 1) % len(self.steps)
        self.cycles += self.at[thread] == 0
        self.begin(thread)

    def throughput(self, threads: int) -> float:
        """Return the cycles per ns."""
        self.at, self.is_reader = [0] * threads, [False] * threads
        self.part = [LockState()] * threads
        whole = sum(step.ran + step.slept for step in self.steps)
        for thread in range(threads):  # not all at once
            self.order += 1
            at = self.random.uniform(0, whole)
            heapq.heappush(self.events, (at, self.order, thread, self.BEGINS))
        counted = max(CYCLES, CYCLES_PER_THREAD * threads)
        since = math.nan
        while self.cycles < counted + counted // 4:
            self.now, _, thread, what = heapq.heappop(self.events)
            if what == self.RAN:
                self.idle += 1
                if self.queue:
                    self.compute(self.queue.popleft())
                self.sleep(thread)
            elif what == self.BEGINS:
                self.begin(thread)
            else:
                self.end(thread)
            if self.cycles < counted // 4:
                since = self.now
                first = self.cycles
        return (self.cycles - first) / (self.now - since) if self.now > since else 0.0
