# SPDX-License-Identifier: MIT
"""The processes that `rouse top` watches, and the intervals between its looks at them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rouse.errors import RouseError
from rouse.store import find
from rouse.top import rowtext
from rouse.top.calls import Calls
from rouse.top.intervals import EndedError, Interval, Watch


class Watched:
    """The processes that are watched, with the notes shown for them."""

    def __init__(self, wanted: Sequence[str], calls: Calls | None = None) -> None:
        """calls: counts system calls and signals. None: nobody does."""
        self.wanted = wanted
        self.calls = calls
        self.watches: dict[Path, Watch] = {}  # a number is of its PID namespace, and no key
        self.known: set[Path] = set()
        self.messages: list[str] = []
        self.begin()
        self.ended = 0

    def begin(self) -> None:
        """Raise RouseError if there is nothing to watch."""
        alive = [found for found in find.processes() if found.is_alive]
        if not self.wanted:
            chosen = [found.path for found in alive]
            if not chosen:
                raise RouseError(
                    f"no process of this user records (none in {find.folder()})",
                    "start a program that uses librouse, without ROUSE_OBS=off",
                )
        else:
            chosen = [path for word in self.wanted for path in self.paths_of(word, alive)]
        for path in dict.fromkeys(chosen):
            self.watches[path] = Watch(path, self.calls)
        self.known = {found.path for found in alive} | set(chosen)

    @staticmethod
    def paths_of(word: str, alive: Sequence[find.Found]) -> list[Path]:
        """Return the files of a process number, or of the processes of a program."""
        if word.isdecimal():
            return [find.of_pid(int(word))]
        named = [f.path for f in alive if f.program == word]
        if not named:
            raise RouseError(
                f"no process records that runs {word}", "rouse top without a name shows all that do"
            )
        return named

    def look_for_new(self) -> None:
        """Add processes that watched ones have forked, and all others if all are watched."""
        paths = sorted(path for place in find.folders() for path in find.files_of(place))
        for path in paths:
            if path in self.known or not find.NAME.fullmatch(path.name):
                continue
            parent = self.parent_of(path)
            if parent or not self.wanted:
                try:
                    watch = self.watches[path] = Watch(path, self.calls)
                except RouseError:
                    continue  # it has just begun; the next look sees it
                began = (
                    f"{parent.pid} has forked {watch.pid}" if parent else f"{watch.pid} has begun"
                )
                self.messages.append(f"process {began} ({watch.process}), which is shown too")
            self.known.add(path)

    def parent_of(self, path: Path) -> Watch | None:
        """Return the watched process that forked the process of a file."""
        name = find.NAME.fullmatch(path.name)
        if not name or path.name != find.file_name(int(name[1])):
            return None
        number = find.parent_of(int(name[1]))
        return next((w for w in self.watches.values() if w.is_here and w.pid == number), None)

    def step(self) -> list[Interval]:
        """Return an interval of each live process. messages says what became of the others."""
        self.look_for_new()
        found = []
        for path, watch in list(self.watches.items()):
            try:
                found.append(watch.step())
            except (EndedError, RouseError) as end:
                self.messages.append(f"process {watch.pid} ({watch.process}) {end}")
                watch.close()
                del self.watches[path]
                # After an exec, the file at this path is that of a new program.
                self.known.discard(watch.path)
                self.ended += 1
        return found

    def take_messages(self) -> list[str]:
        taken, self.messages = self.messages, []
        return [rowtext.printable(text) for text in taken]


def tell(lines: Sequence[str]) -> None:
    for line in lines:
        print(f"rouse: {line}", file=sys.stderr, flush=True)


def intervals(watched: Watched, seconds: float, count: int) -> Iterator[list[Interval]]:
    """Look at each interval, count times (0: without end), as long as a process lives."""
    due = time.monotonic()
    number = 0
    while watched.watches and (not count or number < count):
        due += seconds
        time.sleep(max(due - time.monotonic(), 0))
        yield watched.step()
        number += 1
