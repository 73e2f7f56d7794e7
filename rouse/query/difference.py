# SPDX-License-Identifier: MIT
"""The time of two recordings in one icicle: a box's time is that of both.

So nothing that only one of them has is missing, and a box is as wide as those below it. Boxes are
matched by their names without what differs from run to run: lines, addresses and numbers of locks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from rouse.query.icicle import Box

LINE = re.compile(r":\d+(?=\]?$)")
OBJECT = re.compile(r" (?:0x[0-9a-f]+|[\d,]+ objects)(?=[\]:])")


def name_of(label: str) -> str:
    return OBJECT.sub("", LINE.sub("", label))


def merged(label: str, before: Sequence[Box], after: Sequence[Box]) -> Box:
    """Return one box for boxes that have the same name and the same callers."""
    before_ns = sum(box.ns for box in before)
    made = Box(label, before_ns + sum(box.ns for box in after), before_ns)
    below: dict[str, tuple[list[Box], list[Box]]] = {}
    for side, boxes in enumerate((before, after)):
        for box in boxes:
            for other in box.boxes.values():
                below.setdefault(name_of(other.label), ([], []))[side].append(other)
    made.boxes = {name: merged(name, *sides) for name, sides in below.items()}
    return made


def make(before: Box, after: Box) -> Box:
    return merged(after.label, [before], [after])
