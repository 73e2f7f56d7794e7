#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Count the waits of Python threads, for demos/programs.py.

    demos/threads.py SECONDS

The program prints that it is ready, reads a line, and works. First it repeatedly hands a lock over
to a thread that is certainly asleep. Then workers take numbers from a queue and add them up under a
lock, while they share the interpreter lock. Another thread sleeps repeatedly. The program prints
its counts as JSON, and ends when its standard input does. It does not use rouse.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import threading
import time
from pathlib import Path

HANDOVERS = 50
WORKERS = 4
ROOM = 64  # capacity of the queue
NUMBER = 500
NAP_S = 0.001


class Naps:
    """The sleeps of one thread, each of which is a wait by construction."""

    def __init__(self) -> None:
        self.count = 0

    def nap(self) -> None:
        self.count += 1
        time.sleep(NAP_S)


def look(tid: int) -> tuple[str, ...]:
    """The state of the thread, and the number of times it has slept."""
    text = Path(f"/proc/self/task/{tid}/status").read_text(encoding="utf-8")
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return found["State"].split()[0], found["voluntary_ctxt_switches"]


def sleeps_on(tid: int, naps: Naps) -> bool:
    """Whether it waits for something else than the interpreter lock, which we release meanwhile."""
    before = look(tid)
    naps.nap()
    return before[0] == "S" and look(tid) == before


def hand_over(naps: Naps) -> None:
    """Hold each lock until the one thread that waits for it is asleep."""
    gates = [threading.Lock() for _ in range(HANDOVERS)]
    for gate in gates:
        gate.acquire()

    def pass_all() -> None:
        for gate in gates:
            gate.acquire()

    passing = threading.Thread(target=pass_all)
    passing.start()
    assert passing.native_id
    for gate in gates:
        while not sleeps_on(passing.native_id, naps):
            pass
        gate.release()
    passing.join()


class Work:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.items: queue.Queue[int | None] = queue.Queue(ROOM)
        self.lock = threading.Lock()
        self.total = 0
        self.naps = Naps()
        self.is_over = threading.Event()

    def take(self) -> None:
        while (item := self.items.get()) is not None:
            found = sum(range(item))
            with self.lock:
                self.total += found

    def sleep(self) -> None:
        while not self.is_over.is_set():
            self.naps.nap()

    def do(self) -> int:
        """Work, and return the number of items that were added up."""
        threads = [threading.Thread(target=self.take) for _ in range(WORKERS)]
        sleeper = threading.Thread(target=self.sleep)
        for thread in (*threads, sleeper):
            thread.start()
        self.items.put(NUMBER)
        put, end = 1, time.monotonic() + self.seconds
        while time.monotonic() < end:
            self.items.put(NUMBER)
            put += 1
        for _ in threads:
            self.items.put(None)
        self.is_over.set()
        for thread in (*threads, sleeper):
            thread.join()
        assert self.total == put * sum(range(NUMBER))
        return put


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("seconds", type=float, help="for how long its workers work")
    seconds = parser.parse_args().seconds
    print("ready", flush=True)
    sys.stdin.readline()
    naps = Naps()
    hand_over(naps)
    work = Work(seconds)
    begin = time.monotonic()
    done = work.do()
    told = {
        "operations": done,
        "seconds": time.monotonic() - begin,
        "handovers": HANDOVERS,
        "naps": naps.count + work.naps.count,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
