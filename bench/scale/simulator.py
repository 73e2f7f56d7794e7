# SPDX-License-Identifier: MIT
"""Simulates the workers of a cluster by discrete events: queues, stealing, sleeping and waking.

It has the rules of src/core/idle.c and share.h, and replaces what takes time by stated costs. It
leaves out what does not depend on the number of workers: the `next` slot, inboxes, the poller, and
the watcher, which looks 5,000 times per second at most.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

PAUSE_NS = 20_000.0  # between two steals of a worker, with steal affinity 3
SHARE_NS = 40_000.0  # a queue is short if its worker runs all of it within this time
SLEEPS, WAKES, SEARCHES, RUNS = "sleeps", "wakes", "searches", "runs"
RUNNING = (SEARCHES, RUNS)


@dataclass(frozen=True)
class Costs:
    """In ns. The defaults are those of the machine that the study names."""

    switch: float = 10  # a switch with its queue operations
    line: float = 60  # a cache line moves between processors
    far_line: float = 200  # the same, between groups of `group` processors
    group: int = 8
    fence: float = 400  # membarrier where no other processor runs the process
    fence_first: float = 2_600  # more, if one does
    fence_each: float = 100  # more, for each further one
    interrupt: float = 1_000  # that a fence takes from each processor that runs the process
    full_fence: float = 8  # instruction
    futex: float = 1_500  # the call that wakes a worker
    latency: float = 30_000  # from that call until the worker runs
    awake: float = 3_000  # CPU time of a worker for a sleep and its end, in the kernel
    search: float = 3_000  # a search that finds nothing


@dataclass(frozen=True)
class Design:
    """The rules that are compared."""

    has_membarrier: bool = True  # else both halves of each fence are full fences
    searchers: int = 1  # nobody is woken while so many search

    def switch_ns(self, costs: Costs) -> float:
        # A turn passes the light half twice for the queue lock and once after a push.
        return costs.switch + (0 if self.has_membarrier else 3 * costs.full_fence)


@dataclass
class Thread:
    turns: int  # that are left
    queued_ns: float = 0.0


@dataclass
class Worker:
    number: int
    queue: deque[Thread] = field(default_factory=deque)
    state: str = SLEEPS
    debt_ns: float = 0.0  # taken by interrupts since the turn began
    stole_ns: float = -PAUSE_NS
    mean_ns: float = 1_000.0  # of its turns


@dataclass
class Shared:
    """A cache line that all workers write: one after the other."""

    free_ns: float = 0.0
    owner: int = 0
    busy_ns: float = 0.0

    def write(self, now: float, worker: int, costs: Costs) -> float:
        """Return how long the write takes, with the wait for those before."""
        near = worker // costs.group == self.owner // costs.group
        takes = 0.0 if worker == self.owner else costs.line if near else costs.far_line
        begin = max(now, self.free_ns)
        self.free_ns, self.owner = begin + takes, worker
        self.busy_ns += takes
        return self.free_ns - now


@dataclass
class Figures:
    turns: int = 0
    useful_ns: float = 0.0  # in turns
    cpu_ns: float = 0.0
    fences: int = 0
    interrupts_ns: float = 0.0
    steals: int = 0
    wakes: int = 0
    waits_ns: list[float] = field(default_factory=list)
    line_ns: float = 0.0  # for which the shared line was busy
    end_ns: float = 0.0

    def wait_ns(self, share: float) -> float:
        ordered = sorted(self.waits_ns)
        return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class Cluster:
    """`turn` returns the length of a thread's turn, `after` says where a thread goes after it:
    None ends it, 0 queues it again, and another number is the ns for which it sleeps."""

    def __init__(
        self,
        count: int,
        costs: Costs,
        design: Design,
        turn: Callable[[], float],
        after: Callable[[Thread], float | None],
        seed: int = 1,
    ) -> None:
        self.costs, self.design = costs, design
        self.turn, self.after = turn, after
        self.workers = [Worker(number) for number in range(count)]
        self.idle = list(self.workers)
        self.line = Shared()
        self.searching = 0
        self.now = 0.0
        self.figures = Figures()
        self.random = random.Random(seed)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.number = 0

    def at(self, time: float, act: Callable[[], None]) -> None:
        self.number += 1
        heapq.heappush(self.events, (time, self.number, act))

    def run(self, until_ns: float) -> Figures:
        while self.events and self.events[0][0] <= until_ns:
            self.now, _, act = heapq.heappop(self.events)
            act()
        self.figures.end_ns = min(self.now, until_ns)
        self.figures.line_ns = self.line.busy_ns
        return self.figures

    # Costs

    def heavy_fence(self, by: Worker) -> float:
        if not self.design.has_membarrier:
            return self.costs.full_fence
        # A worker that sleeps, or is being woken, has no processor yet.
        others = [each for each in self.workers if each is not by and each.state in RUNNING]
        for each in others:
            each.debt_ns += self.costs.interrupt
        count = len(others)
        self.figures.fences += 1
        self.figures.interrupts_ns += count * self.costs.interrupt
        if count == 0:
            return self.costs.fence
        return self.costs.fence + self.costs.fence_first + (count - 1) * self.costs.fence_each

    # Waking: returns what it costs the caller.

    def is_short(self, worker: Worker) -> bool:
        return len(worker.queue) * worker.mean_ns <= SHARE_NS

    def wake_if_useful(self, by: Worker) -> float:
        if not self.idle or self.searching >= self.design.searchers or self.is_short(by):
            return 0.0
        worker = self.idle.pop()
        worker.state = WAKES
        self.searching += 1
        self.figures.wakes += 1
        cost = self.costs.futex + self.line.write(self.now, by.number, self.costs)
        self.at(self.now + cost + self.costs.latency, lambda: self.woken(worker))
        return cost

    def woken(self, worker: Worker) -> None:
        worker.state = SEARCHES
        self.spend(self.costs.awake)
        self.search(worker, True)

    def arrive(self, worker: Worker, thread: Thread) -> None:
        """A thread's sleep ends: the worker's own poll finds it."""
        thread.queued_ns = self.now
        worker.queue.append(thread)
        if worker.state == SLEEPS:
            self.idle.remove(worker)
            worker.state = WAKES
            self.at(self.now + self.costs.latency, lambda: self.returned(worker))

    def returned(self, worker: Worker) -> None:
        delay = self.line.write(self.now, worker.number, self.costs)
        self.spend(self.costs.awake + delay)
        worker.state = RUNS
        self.next(worker, delay)

    # A worker

    def spend(self, ns: float) -> None:
        self.figures.cpu_ns += ns

    def next(self, worker: Worker, cost: float = 0.0) -> None:
        """Begin the next turn after so many ns, or look for work."""
        if not worker.queue:
            delay = cost + self.line.write(self.now, worker.number, self.costs)
            self.spend(delay)
            self.searching += 1
            worker.state = SEARCHES
            pause = max(worker.stole_ns + PAUSE_NS - self.now, 0.0)
            self.spend(pause)
            self.at(self.now + delay + pause, lambda: self.search(worker, False))
            return
        thread = worker.queue.popleft()
        worker.state = RUNS
        ns = self.turn()
        worker.mean_ns += (ns - worker.mean_ns) / 8
        self.figures.waits_ns.append(self.now + cost - thread.queued_ns)
        self.figures.useful_ns += ns
        whole = cost + ns + self.design.switch_ns(self.costs)
        self.spend(whole)
        self.at(self.now + whole, lambda: self.ended(worker, thread))

    def ended(self, worker: Worker, thread: Thread) -> None:
        if worker.debt_ns:
            debt, worker.debt_ns = worker.debt_ns, 0.0
            self.spend(debt)
            self.at(self.now + debt, lambda: self.ended(worker, thread))
            return
        self.figures.turns += 1
        sleep = self.after(thread)
        if sleep == 0:
            thread.queued_ns = self.now
            worker.queue.append(thread)
        elif sleep is not None:
            self.at(self.now + sleep, lambda: self.arrive(worker, thread))
        self.next(worker, self.wake_if_useful(worker))

    def search(self, worker: Worker, is_woken: bool) -> None:
        cost = 0.0
        if not worker.queue:
            cost = self.steal(worker)
        if worker.queue:
            self.searching -= 1
            cost += self.line.write(self.now, worker.number, self.costs)
            self.next(worker, cost + self.wake_if_useful(worker))
            return
        cost = 0.0 if is_woken else self.costs.search
        self.spend(cost)
        self.at(self.now + cost, lambda: self.sleep(worker))

    def steal(self, worker: Worker) -> float:
        count = len(self.workers)
        first = self.random.randrange(count)
        for i in range(count):
            victim = self.workers[(first + i) % count]
            if victim is worker or not victim.queue or self.is_short(victim):
                continue
            cost = self.heavy_fence(worker) + (i + 1) * self.costs.line
            for _ in range((len(victim.queue) + 1) // 2):
                worker.queue.append(victim.queue.popleft())
            worker.mean_ns = victim.mean_ns
            worker.stole_ns = self.now
            self.figures.steals += 1
            return cost
        return 0.0

    def sleep(self, worker: Worker) -> None:
        if worker.queue:  # a poll has found something meanwhile
            self.searching -= 1
            self.next(worker)
            return
        cost = self.line.write(self.now, worker.number, self.costs)
        self.searching -= 1
        is_last = len(self.idle) + 1 == len(self.workers)
        cost += self.costs.full_fence if is_last else self.heavy_fence(worker)
        self.spend(cost)
        worker.debt_ns = 0.0
        if stolen := self.steal(worker):
            self.next(worker, stolen)
            return
        worker.state = SLEEPS
        self.idle.append(worker)
