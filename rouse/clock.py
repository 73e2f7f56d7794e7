# SPDX-License-Identifier: MIT
"""Convert ticks of the CPU's time stamp counter to ns."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

NS = 1_000_000_000
# Two moments this far apart give the rate of the time stamp to one part in 100,000.
MEASURED_NS = 10_000_000
PLAUSIBLE_HZ = (1e6, 1e11)
INT64_MAX = (1 << 63) - 1


@dataclass(frozen=True)
class Clock:
    """Converts a process's time stamps: `tsc` corresponds to `monotonic_ns` and `realtime_ns`."""

    hz: float
    is_measured: bool  # else it is what this machine says of itself
    tsc: int
    monotonic_ns: int
    realtime_ns: int

    def ns(self, ticks: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Return durations in ns. A "negative" one, from a sum read half-way, becomes 0."""
        signed = np.maximum(ticks.view(np.int64), 0)
        return np.minimum(signed * (NS / self.hz), float(INT64_MAX // 2)).astype(np.int64)

    def ns_of(self, ticks: int) -> int:
        return round(ticks * NS / self.hz)

    def ticks_of(self, ns: int) -> int:
        return round(ns * self.hz / NS)

    def tsc_at(self, monotonic_ns: int) -> int:
        return self.tsc + self.ticks_of(monotonic_ns - self.monotonic_ns)

    def unix_ns(self, tsc: int) -> int:
        return self.realtime_ns + self.ns_of(tsc - self.tsc)


@functools.cache
def machine_hz() -> float | None:
    """Return the frequency of the time stamp counter: the kernel's "bogomips" are two per tick."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    found = re.search(r"^bogomips\s*:\s*([\d.]+)", text, re.MULTILINE | re.IGNORECASE)
    hz = float(found[1]) * 500_000 if found else 0.0
    return hz if PLAUSIBLE_HZ[0] < hz < PLAUSIBLE_HZ[1] else None


def measured_hz(ticks: int, ns: int) -> float | None:
    """Return the frequency between two moments. None: they are too close, or disagree."""
    if ns < MEASURED_NS or ticks <= 0:
        return None
    hz = ticks * NS / ns
    return hz if PLAUSIBLE_HZ[0] < hz < PLAUSIBLE_HZ[1] else None


@functools.cache
def boot_id() -> str:
    """Return this boot's id, in the form that Head has."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        return ""
    return text.strip().replace("-", "")
