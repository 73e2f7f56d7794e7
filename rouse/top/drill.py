# SPDX-License-Identifier: MIT
"""One thread of `rouse top`: where it waits now, where it has waited, and what ended its waits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rouse.errors import RouseError
from rouse.store import decode, find, layout, states
from rouse.symbols import sites
from rouse.tables import futexes
from rouse.top import rowtext
from rouse.top.intervals import Watch

SITES_MOST = 12  # each has several lines


def duration(ns: float) -> str:
    """Return a duration in the unit that leaves one to three digits before the point."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if ns >= size:
            return f"{ns / size:.1f} {unit}"
    return f"{ns:.0f} ns"


class Drill:
    def __init__(self, path: Path, number: int, tid: int, name: str) -> None:
        self.path = path
        self.number = number
        self.tid = tid
        self.name = name
        self.seen: Counter[tuple[str, int]] = Counter()  # (state, wait site)
        self.looks = 0
        self.resolver = sites.Resolver()
        self.text: list[str] = [name]

    def lines(self) -> list[str]:
        """Return the lines. The first is the title."""
        return self.text

    def look(self, watch: Watch | None) -> None:
        if watch is None:
            self.text[0] = f"{self.name}: its process has ended"
            return
        try:
            now = find.read(watch.source)
        except RouseError as error:
            self.text[0] = rowtext.printable(f"{self.name}: {error}")
            return
        known = sites.Sites(now, self.resolver)
        now = futexes.as_locks(now, known)
        chosen = now.threads[now.threads["id"] == self.number] if self.number else now.threads[:0]
        if not len(chosen):
            gone = "has ended" if self.number else "runs threads, and is none"
            self.text[0] = f"{self.name}: {gone}"
            return
        self.looks += 1
        folded = states.fold(chosen, now.now_tsc)
        state = layout.MICRO[int(folded.state[0])]
        waits = state not in ("usr", "lat")
        self.seen[state, int(chosen["wait_site"][0]) if waits else 0] += 1
        self.text = [rowtext.printable(line) for line in self.report(now, chosen[0], folded, known)]

    def report(
        self, now: decode.Store, thread: Any, folded: states.States, known: sites.Sites
    ) -> list[str]:
        when = now.clock
        total = max(int(folded.ticks[0].sum()), 1)
        shares = [
            f"{name} {ticks / total * 100:.1f}%"
            for name, ticks in zip(layout.MICRO, folded.ticks[0].tolist(), strict=True)
            if ticks
        ]
        since = when.ns_of(max(now.now_tsc - int(folded.since_tsc[0]), 0))
        state = layout.MICRO[int(folded.state[0])]
        lines = [
            f"{self.name}   (Esc: back)",
            f"now {state} for {duration(since)}; {int(thread['waits'])} waits, "
            f"{int(thread['useless'])} of no use, {int(thread['yields'])} yields",
            "since it began: " + ", ".join(shares),
        ]
        if state not in ("usr", "lat"):
            lines += self.present_wait(thread, layout.kind_names(now.head.recorder), known)
        elif int(thread["wake_tsc"]):
            waker = f" by thread {int(thread['waker_id'])}" if int(thread["waker_id"]) else ""
            lines.append(f"last woken{waker} at {known.label(int(thread['wake_site']))}")
        lines += ["", f"Seen at {self.looks} looks:"]
        for (state, site), count in self.seen.most_common(SITES_MOST):
            where = f" at {known.label(site)}" if site else ""
            lines.append(f"{count / self.looks * 100:5.1f}%  {state}{where}")
            if site:
                lines += self.ledger(now, site, known)
        return lines

    @staticmethod
    def present_wait(thread: Any, names: Sequence[str], known: sites.Sites) -> list[str]:
        kind = int(thread["kind"])
        name = names[kind] if kind < len(names) else f"kind {kind}"
        lines = [f"waits for {name} {int(thread['object']):#x}"]
        for number, frame in enumerate(known.frames(int(thread["wait_site"]))):
            place = f" ({frame.file}:{frame.line})" if frame.file else ""
            lines.append(f"    #{number} {frame.function or frame.label}{place}")
        return lines

    @staticmethod
    def ledger(now: decode.Store, site: int, known: sites.Sites) -> list[str]:
        """Return the counts of a wait site over the whole process, by waker."""
        wakes = now.arrays[layout.WAKES]
        rows = wakes[wakes["wait_site"] == np.uint64(site)]
        lines = []
        for wake_site in np.unique(rows["wake_site"]).tolist():
            some = rows[rows["wake_site"] == wake_site]
            counts = np.maximum(some["count"].sum(axis=0).view(np.int64), 0)
            total = max(int(counts.sum()), 1)
            wait = now.clock.ns_of(int(some["wait_ticks"].sum())) / total
            late = now.clock.ns_of(int(some["late_ticks"].sum())) / total
            said = [f"{int(n)} {v}" for n, v in zip(counts, layout.VERDICTS, strict=True) if n]
            lines.append(
                f"        woken at {known.label(wake_site)}: {', '.join(said)}; "
                f"waited {duration(wait)}, then ran after {duration(late)}"
            )
        return lines
