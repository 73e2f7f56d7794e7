# SPDX-License-Identifier: MIT
"""Waits as folded stacks, the outermost frame first, for flame graphs; the number is ns waited."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rouse.text import printable


def frame_text(label: str) -> str:
    """Return a label without the characters that separate frames and figures."""
    return printable(label).replace(";", ":").strip() or "?"


def frame_name(frame: Mapping[str, Any]) -> str:
    """Return the function and the line, if both are known."""
    return str(frame["label"] if frame["line"] else frame["function"] or frame["label"])


def lines(
    waits: Iterable[Mapping[str, Any]],
    frames: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> Iterator[str]:
    """Return one line per stack and object, sorted. waits and frames are as for pprof."""
    sums: dict[str, int] = {}
    for wait in waits:
        stack = frames.get((wait["process"], wait["wait_site"]), [])
        labels = [frame_text(frame_name(frame)) for frame in reversed(stack)]
        what = f"{wait['kind']} {wait['object_name']}".strip()
        whole = ";".join([*(labels or ["[not known]"]), f"[{frame_text(what)}]"])
        sums[whole] = sums.get(whole, 0) + wait["wait_ns"]
    for whole in sorted(sums):
        yield f"{whole} {sums[whole]}"
