# SPDX-License-Identifier: MIT
"""Medians, spreads and ratios of alternating runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Student's t, two-sided 95 %, by degrees of freedom.
T_95 = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
T_95_LIMIT = 1.960


@dataclass(frozen=True)
class Spread:
    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Ratio:
    """The geometric mean of paired ratios, and its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    pairs: int

    def within(self, limit: float) -> bool:
        """Whether the whole interval lies at or below the limit."""
        return self.high <= limit


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio | None:
    """The ratio of ours[i] to theirs[i], measured next to each other. None: too few pairs."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=False) if a > 0 and b > 0]
    if len(logs) < 2:
        return None
    freedom = len(logs) - 1
    quantile = T_95[freedom - 1] if freedom <= len(T_95) else T_95_LIMIT
    mean = statistics.fmean(logs)
    half = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(logs))
