# SPDX-License-Identifier: MIT
"""Figures and names as text, the same in every format that people read."""

from __future__ import annotations

import math
from typing import Any

UNKNOWN = "-"
DURATIONS = ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns"))


def printable(text: str) -> str:
    """Return text with escapes for what would move the cursor or be invisible."""
    return "".join(c if c.isprintable() else escaped(c) for c in text)


def escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def significant(value: float) -> str:
    """Return three digits, without needless zeros."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number with its noun: 1 thread, 2 threads. many: a plural other than one + s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def duration(ns: float) -> str:
    if ns < 0:
        return "-" + duration(-ns)
    if ns == 0:
        return "0"
    # A value that rounds up to 1,000 of a unit is 1 of the next.
    scale, unit = next((d for d in DURATIONS if ns >= d[0] * 0.9995), DURATIONS[-1])
    if scale == 1.0 and float(ns).is_integer():
        return f"{int(ns)} ns"
    return f"{significant(ns / scale)} {unit}"


def microseconds(ns: float) -> str:
    """Return a bare number, as in FreeBSD's tables: whole, except small ones."""
    us = ns / 1000
    return f"{us:.0f}" if us >= 99.95 or us.is_integer() else f"{us:.1f}"


def share(value: float) -> str:
    """Return a share of 1 in percent, as prstat prints it: below 10 with one decimal."""
    percent = value * 100
    if abs(percent) < 0.05:
        return "0.0"
    return f"{percent:.1f}" if abs(percent) < 9.95 else f"{percent:.0f}"


def cell(kind: str, value: Any) -> str:
    """Return the text of a value in a column of that kind (see rouse/query/specs.py)."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return UNKNOWN
    if kind == "text":
        return printable(str(value)) or UNKNOWN
    if kind == "ns":
        return duration(value)
    if kind == "us":
        return microseconds(value)
    if kind == "share":
        return share(value)
    if kind == "count":
        return f"{value:,}"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
