# SPDX-License-Identifier: MIT
"""The threads' time by call stack, as boxes within boxes.

The first level divides the time as the verdict does, except that waits for work have a part of
their own. Below are the functions, the outermost first, and then what was waited for. A box's time
is that of the boxes below it. Running time is divided by the threads' names. Where threads were
sampled, it is then divided by their stacks, in proportion to the samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rouse.query import measures, places
from rouse.query.frames import LIBRARY_NAMES
from rouse.query.program import PARTS
from rouse.query.ran import Running, Stack, function_of
from rouse.query.specs import Row, object_of
from rouse.store.layout import EVERY_KIND
from rouse.symbols.demangle import short
from rouse.symbols.sites import LIBRARY_MODULES, LIBRARY_SOURCES
from rouse.tables.engine import Database
from rouse.text import counted

WHOLE, UNEXPLAINED = "all threads", "unexplained"
FOR_WORK, NO_THREAD = "waits for work", "threads that never waited"
NO_STACK = "(call stack not known)"
FRAMES_MOST = 24  # of a stack, inlined functions included
SIDES_MOST = 8  # of a box
LABEL_MOST = 240  # characters
PART_OF_STATE = {state: part for part, states in PARTS for state in states}
PART_OF_KIND = {kind: PART_OF_STATE[state] for kind, state in EVERY_KIND}
Stacks = Mapping[tuple[str, str], Sequence[Row]]  # by process and site, the innermost frame first
Side = tuple[str, str]  # the role of the other side, and its place


@dataclass
class Box:
    label: str
    ns: int = 0
    before_ns: int | None = None  # of a difference: the part of ns that is of the first recording
    boxes: dict[str, Box] = field(default_factory=dict)
    sides: dict[Side, int] = field(default_factory=dict)  # of what was waited for here, in ns

    def within(self, label: str) -> Box:
        return self.boxes.setdefault(label, Box(label))


def clipped(label: str) -> str:
    half = LABEL_MOST // 2
    return label if len(label) <= LABEL_MOST else f"{label[:half]}…{label[-half:]}"


def is_library(frame: Row) -> bool:
    return bool(
        LIBRARY_MODULES.search(frame["module"] or "") or LIBRARY_SOURCES.search(frame["file"] or "")
    )


def path_of(frames: Sequence[Row]) -> list[str]:
    """Return the labels of a stack, the outermost first. Libraries' functions are left out."""
    own = [frame for frame in frames if not is_library(frame)] or list(frames[:1])
    found: list[str] = []
    for frame in own:
        within = [name for name in (frame["within"] or "").split("\n") if name]
        # The innermost function stays, whatever its name: it is the one that waited.
        if not found or not LIBRARY_NAMES.match(frame["function"] or ""):
            found.append(frame["label"])
        found += [short(name) for name in within if not LIBRARY_NAMES.match(name)]
    return [clipped(label) for label in reversed(found[:FRAMES_MOST])] or [NO_STACK]


def add(root: Box, path: Iterable[str], ns: int) -> Box:
    """Add time to the boxes of a path, and return the last one."""
    root.ns += ns
    for label in path:
        root = root.within(label)
        root.ns += ns
    return root


def thing_of(row: Row) -> str:
    """Return what was waited for: by name, or else by the place that initialised it."""
    row = object_of(dict(row))
    if row["init_label"] and not row["object_name"]:
        return f"{row['kind']} initialised at {row['init_label']}"
    return row["kind"] if row["object_label"] == "-" else f"{row['kind']} {row['object_label']}"


def waiting(root: Box, database: Database, stacks: Stacks, duration_ns: int) -> None:
    for row in database.rows(measures.wait_sites()):
        if row["wait_ns"] <= 0:
            continue
        part = PART_OF_KIND.get(row["kind"], PART_OF_STATE["io"])
        if places.is_idle(row, duration_ns):
            part = FOR_WORK
        what = thing_of(row)
        frames = stacks.get((row["process"], row["wait_site"]), [])
        box = add(root, [part, *path_of(frames), f"[{clipped(what)}]"], row["wait_ns"])
        side = (row["role"], clipped(row["other_label"]))
        box.sides[side] = box.sides.get(side, 0) + row["wait_ns"]


Weighted = list[tuple[Stack, float]]  # stacks with their shares, in any unit


def add_running(root: Box, name: str, ns: int, stacks: Weighted) -> None:
    """Add time that threads with a name ran."""
    whole = sum(weight for _, weight in stacks)
    if whole <= 0:
        add(root, ["running", clipped(name)], ns)
        return
    passed, given = 0.0, 0
    for stack, weight in stacks:
        passed += weight
        part = round(ns * passed / whole) - given  # the parts add up to ns
        given += part
        path = path_of([{**vars(frame), "label": function_of(frame)} for frame in stack.frames])
        inner = [f"[{clipped(stack.inner)}]"] if stack.inner else []
        add(root, ["running", clipped(name), *path, *inner], part)


def not_waiting(
    root: Box, database: Database, locks_ns: int, sampled: Running | None = None
) -> None:
    """Add the time that no recorded wait has: running, queued and unexplained.

    locks_ns: the waits for locks. They contain time that the threads spun, and were on their way to
    a processor, which is also in running and queued. It is counted only in the waits.
    """
    groups = database.rows(measures.thread_groups())
    twice_ns = max(locks_ns - sum(row["mutex"] + row["rwlock"] for row in groups), 0)
    queued_ns = sum(row["lat"] for row in groups)
    if queued_ns > twice_ns:
        add(root, ["queued"], queued_ns - twice_ns)
    # Where the kernel's figures are not known, usr is what was recorded, as in the verdict.
    running = [row["had_usr"] if row["usr"] is None else row["usr"] for row in groups]
    ran_ns = sum(running)
    spun = min(max(twice_ns - queued_ns, 0) / max(ran_ns, 1), 1.0)
    left: dict[tuple[str, str], float] = {}  # of the samples of a group, the share not used here
    for row, ran in zip(groups, running, strict=True):
        missing = row["missing_ns"] - (ran if row["usr"] is None else 0)
        unexplained = row["in_call"] + max(missing, 0)
        at_work = int(ran * (1 - spun))
        if at_work > 0:
            stacks = sampled.of(row["process"], row["name"]) if sampled else []
            add_running(root, row["name"], at_work, [(stack, stack.ns) for stack in stacks])
            known_ns = sum(stack.ns for stack in stacks)
            left[row["process"], row["name"]] = max(1 - at_work / max(known_ns, 1.0), 0.0)
        if unexplained > 0:
            add(root, [UNEXPLAINED, clipped(row["name"])], unexplained)
    spent = sum(row["cpu_ns"] or 0 for row in database.rows(measures.processes()))
    if spent > ran_ns:
        every = sampled.stacks if sampled else []
        others = [(one, one.ns * left.get((one.process, one.thread), 1.0)) for one in every]
        add_running(root, NO_THREAD, spent - ran_ns, others)


def make(database: Database, stacks: Stacks, sampled: Running | None = None) -> Box:
    """Return the box of all threads' time. sampled: where they ran, if that is known."""
    root = Box(WHOLE)
    duration_ns = max(
        (row["duration_ns"] for row in database.rows(measures.processes())), default=0
    )
    waiting(root, database, stacks, duration_ns)
    locks = root.boxes.get(PART_OF_STATE["mutex"])
    not_waiting(root, database, locks.ns if locks else 0, sampled)
    return root


def boxes_of(root: Box) -> list[Box]:
    """Return a box and all below it, each after the one that contains it."""
    found = [root]
    for box in found:
        found += box.boxes.values()
    return found


def bounded(root: Box, most: int) -> Box:
    """Return the boxes with the longest time. Each box sums up those that it lacks."""
    every = boxes_of(root)
    chosen = {id(box) for box in sorted(every, key=lambda box: -box.ns)[:most]}

    def copy(box: Box) -> Box:
        made = Box(box.label, box.ns, box.before_ns, sides=heaviest(box.sides))
        below = sorted(box.boxes.values(), key=lambda other: -other.ns)
        for other in below:
            if id(other) in chosen:
                made.boxes[other.label] = copy(other)
        rest = [other for other in below if id(other) not in chosen]
        if rest:
            label = f"({counted(len(rest), 'smaller box', 'smaller boxes')})"
            made.boxes[label] = summed(label, rest)
        return made

    return copy(root)


def summed(label: str, boxes: Sequence[Box]) -> Box:
    """Return a box with the sum of several."""
    before = [box.before_ns for box in boxes if box.before_ns is not None]
    return Box(
        label,
        sum(box.ns for box in boxes),
        sum(before) if before else None,
        sides=sides_in(boxes),
    )


def sides_in(boxes: Iterable[Box]) -> dict[Side, int]:
    """Return the sides of boxes and of all below them."""
    found: dict[Side, int] = {}
    for root in boxes:
        for box in boxes_of(root):
            for side, ns in box.sides.items():
                found[side] = found.get(side, 0) + ns
    return heaviest(found)


def heaviest(sides: Mapping[Side, int]) -> dict[Side, int]:
    """Return the sides with the longest time, and the sum of the others."""
    ordered = sorted(sides.items(), key=lambda item: (-item[1], item[0]))
    found = dict(ordered[:SIDES_MOST])
    rest = ordered[SIDES_MOST:]
    if rest:
        found["", f"({len(rest):,} others)"] = sum(ns for _, ns in rest)
    return found


class Texts:
    """Numbers texts, so that a page contains each only once."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))


def as_json(box: Box, labels: Texts) -> list[Any]:
    """Return [label, ns, boxes, sides]; a side is [role, place, ns]. Texts are numbers.

    A difference has before_ns as a fifth element.
    """
    ordered = sorted(box.boxes.values(), key=lambda other: -other.ns)
    return [
        labels.number(box.label),
        box.ns,
        [as_json(other, labels) for other in ordered],
        [[labels.number(role), labels.number(at), ns] for (role, at), ns in box.sides.items()],
        *([] if box.before_ns is None else [box.before_ns]),
    ]
