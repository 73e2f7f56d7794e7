# SPDX-License-Identifier: MIT
"""Two loads of the simulator: requests at all workers, and threads made on one of them."""

from __future__ import annotations

import random
from functools import partial

from scale.simulator import Cluster, Costs, Design, Figures, Thread

REQUEST_NS = 10_000.0  # mean
TURN_NS, TURNS_MOST = 1_200.0, 16  # of rouse-bench steal


def requests(
    count: int, costs: Costs, design: Design, load: float, seconds: float, seed: int = 1
) -> Figures:
    """Run clients, each of which sends a request, waits for the answer, and thinks.

    load: of the workers, if they did nothing else. There are 50 clients for each worker.
    """
    chance = random.Random(seed)
    clients = 50 * count
    think_ns = clients * REQUEST_NS / (load * count) - REQUEST_NS
    cluster = Cluster(
        count,
        costs,
        design,
        lambda: chance.expovariate(1 / REQUEST_NS),
        lambda _thread: chance.expovariate(1 / think_ns),
        seed,
    )
    for number in range(clients):
        begin = chance.uniform(0, think_ns)
        arrive = partial(cluster.arrive, cluster.workers[number % count], Thread(1))
        cluster.at(begin, arrive)
    return cluster.run(seconds * 1e9)


def burst(
    count: int,
    costs: Costs,
    design: Design,
    threads: int,
    turn_ns: float = TURN_NS,
    rounds: int = 20,
    seed: int = 1,
) -> Figures:
    """Make threads on one worker, each of 1 to 16 turns, and again when all have ended."""
    chance = random.Random(seed)
    left = [0, rounds]

    def after(thread: Thread) -> float | None:
        thread.turns -= 1
        if thread.turns:
            return 0.0
        left[0] -= 1
        if left[0] == 0 and left[1]:
            cluster.at(cluster.now, make)
        return None

    cluster = Cluster(count, costs, design, lambda: turn_ns, after, seed)

    def make() -> None:
        left[0], left[1] = threads, left[1] - 1
        first = cluster.workers[0]
        for _ in range(threads):
            thread = Thread(1 + chance.randrange(TURNS_MOST), cluster.now)
            first.queue.append(thread)
        thread = first.queue.pop()
        cluster.arrive(first, thread)

    cluster.at(0.0, make)
    return cluster.run(1e12)
