#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Eight threads that fetch quotes from a slow server. Fault: they fetch under the table's lock.

Usage: quotes.py [fixed] [SECONDS]. Repair: the lock is for the table alone.
"""

from __future__ import annotations

import sys
import threading
import time

THREADS = 8
ANSWER_S = 0.002  # of the server


def fetch_quote() -> float:
    time.sleep(ANSWER_S)
    return 1.0


class Quotes:
    def __init__(self, is_fixed: bool) -> None:
        self.is_fixed = is_fixed
        self.lock = threading.Lock()
        self.table: dict[int, float] = {}
        self.ops = 0

    def refresh(self, key: int) -> None:
        quote = fetch_quote() if self.is_fixed else 0.0
        with self.lock:
            if not self.is_fixed:
                quote = fetch_quote()
            self.table[key] = quote
            self.ops += 1


def work(quotes: Quotes, key: int, until: float) -> None:
    while time.monotonic() < until:
        quotes.refresh(key)


def main() -> None:
    words = sys.argv[1:]
    seconds = next((float(word) for word in words if word != "fixed"), 1.0)
    quotes, began = Quotes("fixed" in words), time.monotonic()
    threads = [
        threading.Thread(target=work, args=(quotes, key, began + seconds)) for key in range(THREADS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"ops {quotes.ops} seconds {time.monotonic() - began:.6f}")


if __name__ == "__main__":
    main()
