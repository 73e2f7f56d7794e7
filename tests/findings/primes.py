#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Four threads that count primes in Python. Fault: only one of them at a time can run.

Usage: primes.py [fixed] [SECONDS]. Repair: processes instead of threads.
"""

from __future__ import annotations

import multiprocessing
import sys
import threading
import time
from multiprocessing.sharedctypes import Synchronized

WORKERS = 4
FIRST, LAST = 10_000, 10_500


def count_primes() -> int:
    return sum(all(n % d for d in range(2, 100)) for n in range(FIRST, LAST))


def work(until: float, ops: Synchronized[int]) -> None:
    """Count until then, and add how often that was."""
    mine = 0
    while time.monotonic() < until:
        count_primes()
        mine += 1
    with ops.get_lock():
        ops.value += mine


def main() -> None:
    words = sys.argv[1:]
    seconds = next((float(word) for word in words if word != "fixed"), 1.0)
    began = time.monotonic()
    ops: Synchronized[int] = multiprocessing.Value("l", 0)
    start = multiprocessing.Process if "fixed" in words else threading.Thread
    workers = [start(target=work, args=(began + seconds, ops)) for _ in range(WORKERS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print(f"ops {ops.value} seconds {time.monotonic() - began:.6f}")


if __name__ == "__main__":
    main()
