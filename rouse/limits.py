# SPDX-License-Identifier: MIT
"""How much memory and processor time one file may take, since its contents may be made to take all.

The kernel counts the memory (RLIMIT_DATA), and a thread watches the time: a long query leaves the
interpreter, which then handles no signal. Rejected: RLIMIT_CPU, whose end says nothing.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rouse.errors import EXIT_NOTHING, RouseError

MIB = 1 << 20
BASE_MIB, TIMES, MOST_MIB = 1024, 8, 2048
BASE_S, PER_MIB_S = 60, 2


def memory_mib(size: int) -> int:
    """Return the MiB that a file of this many bytes may take."""
    return min(BASE_MIB + TIMES * size // MIB, MOST_MIB)


def cpu_seconds(size: int) -> int:
    return BASE_S + PER_MIB_S * size // MIB


def data_bytes() -> int:
    """Return the memory that the kernel counts for this process now. 0: not known."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("VmData:"):
                return int(line.split()[1]) << 10
    return 0


@contextmanager
def memory(name: str, mib: int) -> Iterator[None]:
    """Take at most this much more memory. More is a RouseError."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most = data_bytes() + mib * MIB
    for limit in before:
        most = most if limit == resource.RLIM_INFINITY else min(most, limit)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        yield
    except MemoryError:
        raise RouseError(
            f"{name}: takes more than {mib:,} MiB of memory", "give more with --memory MIB"
        ) from None
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


@contextmanager
def cpu(name: str, seconds: float) -> Iterator[None]:
    """Take at most this much more processor time. More ends the process with one line."""
    done = threading.Event()
    end = time.process_time() + seconds

    def watch() -> None:
        while (left := end - time.process_time()) > 0:
            if done.wait(left):
                return
        text = f"rouse: {name}: takes more than {seconds:g} s of processor time"
        printable = "".join(c if c.isprintable() else "?" for c in text)
        print(f"{printable}; give more with --cpu SECONDS", file=sys.stderr, flush=True)
        os._exit(EXIT_NOTHING)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()
