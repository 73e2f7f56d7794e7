# SPDX-License-Identifier: MIT
"""The Universal Scalability Law, fitted to measured throughputs.

X(N) = L N / (1 + s (N - 1) + k N (N - 1)), where L is the throughput of one, s the share of the
work that is done one at a time, and k the cost of each pair that has to agree (N. J. Gunther,
"Guerrilla Capacity Planning", 2007). N / X is linear in 1/L, s/L and k/L, which must not be
negative. So the fit is a linear regression with the bounds, weighted for errors that are relative.

The bands are those of 1,000 fits to resampled measurements (bootstrap): each throughput is the
fitted one with the relative error of another measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from rouse.errors import RouseError

POINTS_LEAST = 4  # different N: three parameters, and an error
ROWS_MOST = 100_000
FITS = 1000
STUDENT = 1.21  # the first term of the series of t at 97.5 %, in 1 / degrees of freedom
BAND = (2.5, 97.5)  # percentiles
SEED = 0
LARGEST = 1e15
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Law:
    one: float  # L: the throughput of one
    serial: float  # s
    pairs: float  # k

    def at(self, number: float) -> float:
        cost = 1 + self.serial * (number - 1) + self.pairs * number * (number - 1)
        return self.one * number / cost

    @property
    def peak(self) -> float:
        """The N with the greatest throughput. inf: it grows for ever."""
        if self.pairs <= 0:
            return math.inf
        return max(math.sqrt(max(1 - self.serial, 0) / self.pairs), 1.0)

    @property
    def limit(self) -> float:
        """The greatest throughput, or what it comes near to. inf: there is none."""
        if self.pairs > 0:
            return self.at(self.peak)
        return self.one / self.serial if self.serial > 0 else math.inf


@dataclass(frozen=True)
class Fit:
    law: Law
    sample: Sequence[Law]  # the fits to resampled measurements
    numbers: Floats
    throughputs: Floats

    def band(self, values: Iterable[float]) -> tuple[float, float]:
        """The interval that has 95 % of these values."""
        ordered = sorted(values)
        low, high = (ordered[round(part / 100 * (len(ordered) - 1))] for part in BAND)
        return low, high

    def band_at(self, number: float) -> tuple[float, float]:
        return self.band(law.at(number) for law in self.sample)

    @property
    def error(self) -> float:
        """The root of the mean squared relative error of the fit."""
        fitted = np.array([self.law.at(number) for number in self.numbers])
        return float(np.sqrt(np.mean((self.throughputs / fitted - 1) ** 2)))


def least_squares(numbers: Floats, throughputs: Floats) -> Law:
    """Fit. Of the ways to set parameters to 0, the one with the least error that needs no other."""
    wanted = numbers / throughputs
    weight = 1 / wanted
    basis = np.stack([np.ones_like(numbers), numbers - 1, numbers * (numbers - 1)], axis=1)
    best: tuple[float, Floats] | None = None
    for chosen in [(0, *rest) for size in (0, 1, 2) for rest in combinations((1, 2), size)]:
        columns = basis[:, chosen] * weight[:, None]
        found, *_ = np.linalg.lstsq(columns, wanted * weight, rcond=None)
        if np.any(found < 0) or found[0] <= 0:
            continue
        error = float(np.sum((columns @ found - wanted * weight) ** 2))
        if best is None or error < best[0]:
            whole = np.zeros(3)
            whole[list(chosen)] = found
            best = (error, whole)
    assert best  # a constant alone is positive
    first, serial, pairs = best[1]
    return Law(float(1 / first), float(serial / first), float(pairs / first))


def fit(numbers: Sequence[float], throughputs: Sequence[float]) -> Fit:
    """Raise RouseError if the points are too few."""
    different = len(set(numbers))
    if different < POINTS_LEAST:
        raise RouseError(
            f"{different} different numbers are too few for a fit",
            f"measure at {POINTS_LEAST} or more",
        )
    counts, rates = np.array(numbers, np.float64), np.array(throughputs, np.float64)
    law = least_squares(counts, rates)
    fitted = np.array([law.at(number) for number in counts])
    # The fit has used up three degrees of freedom, so errors are larger than its residuals, and how
    # much larger is itself not certain: the second factor is that of Student's t to a normal one.
    free = max(len(counts) - 3, 1)
    scale = math.sqrt(len(counts) / free) * (1 + STUDENT / free)
    errors = (rates / fitted - 1) * scale
    random = np.random.default_rng(SEED)
    sample = []
    for _ in range(FITS):
        drawn = fitted * np.maximum(1 + random.choice(errors, len(counts)), 1e-3)
        sample.append(least_squares(counts, drawn))
    return Fit(law, sample, counts, rates)


def read(lines: Iterable[str], name: str) -> tuple[list[float], list[float]]:
    """Read rows of a number and a throughput, with commas, tabs or blanks between them.

    The first row may have titles. Empty rows, and those that begin with #, are left out.
    """
    numbers: list[float] = []
    rates: list[float] = []
    for place, line in enumerate(lines, 1):
        words = line.replace(",", " ").replace(";", " ").split()
        if not words or words[0].startswith("#"):
            continue
        try:
            number, rate = (float(word) for word in words[:2])
        except ValueError:
            if not numbers and place == 1:
                continue  # titles
            raise RouseError(
                f"{name}:{place}: is not a number and a throughput", "as in `8, 12500`"
            ) from None
        if not (1 <= number <= LARGEST and 0 < rate <= LARGEST):
            raise RouseError(
                f"{name}:{place}: {words[0]}, {words[1]} is out of range",
                "the number is at least 1, the throughput above 0",
            )
        numbers.append(number)
        rates.append(rate)
        if len(numbers) > ROWS_MOST:
            raise RouseError(f"{name}: has more than {ROWS_MOST:,} rows")
    return numbers, rates
