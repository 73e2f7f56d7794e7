# SPDX-License-Identifier: MIT
"""Resolve the sites of a store, which are addresses, to functions, files and lines.

A site is a return address, or a stack of them. Each address is looked up one byte before, in the
call. The table has one row per frame. Frame 0 is the innermost one outside of the language's
library and libc's wrappers: std::mutex::lock says nothing about who waits. The table is sufficient
to read a recording without the program's files.
"""

from __future__ import annotations

import heapq
import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rouse.store import events, layout, stacks
from rouse.store.decode import Store, text_of
from rouse.symbols import futex_waits, runtimes
from rouse.symbols.demangle import short
from rouse.symbols.elf import Elf, ElfError, Line, open_elf

END_OF_THREAD = "thread end"  # where the runtime wakes the joiner
RUNTIME = "runtime"  # the label of site 0
LIBRARY_SOURCES = re.compile(
    r"/include/c\+\+/|/c\+\+/v1/|/gthr-\w+\.h$|^/usr/include/(.*/)?bits/"  # of C and C++
    r"|/rouse/mark\.h$"
    r"|/(rustc/[0-9a-f]+|rust/src|rust)/library/|^library/(std|core|alloc)/"  # of Rust
)
LIBRARY_MODULES = re.compile(
    r"/(libc|libpthread|libstdc\+\+|libc\+\+|libgcc_s|libstd-\w+|librouse-preload)[-.][^/]*$"
    r"|^\[vdso\]$"
)


@dataclass(frozen=True)
class Module:
    """A mapped file of code."""

    start: int
    end: int
    bias: int
    build_id: str
    path: str


@dataclass(frozen=True)
class Frame:
    address: int
    label: str
    module: str | None = None
    build_id: str | None = None
    offset: int | None = None  # the return address in the file
    function: str | None = None
    file: str | None = None
    line: int | None = None
    role: str | None = None  # of the function, or of one inlined in it, in a futex wait
    within: str = ""  # the functions that it was inlined into, the innermost first, one a line

    @property
    def is_library(self) -> bool:
        """Whether it is code that programs call to wait, not a program's own."""
        return bool(
            LIBRARY_SOURCES.search(self.file or "") or LIBRARY_MODULES.search(self.module or "")
        )


def of_program(frames: list[Frame]) -> list[Frame]:
    """Return the frames from the innermost one outside of libraries on. All, if there is none."""
    for number, frame in enumerate(frames):
        if not frame.is_library:
            return frames[number:] if frame.function or not number else frames
    return frames


def own_place(places: list[Line]) -> Line | None:
    """Return the innermost inlined function that is not in a library."""
    own = [place for place in places if not LIBRARY_SOURCES.search(place.file)]
    return next(iter(own or places), None)


def modules_of(store: Store) -> list[Module]:
    found = []
    for entry in store.arrays[layout.MODULES]:
        size = min(int(entry["build_id_bytes"]), 32)
        found.append(
            Module(
                start=int(entry["start"]),
                end=int(entry["end"]),
                bias=int(entry["bias"]),
                build_id=bytes(entry["build_id"][:size]).hex(),
                path=text_of(entry["path"]),
            )
        )
    return found


class Resolver:
    """Looks addresses up, and caches results. `problems`: files that could not be used."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, str], Elf | None] = {}
        self.frames: dict[tuple[str, str, int], Frame] = {}
        self.problems: list[str] = []

    def elf(self, module: Module, live_program: Path | None) -> Elf | None:
        key = (module.path, module.build_id)
        if key not in self.files:
            self.files[key] = self.open(module, live_program)
        return self.files[key]

    def open(self, module: Module, live_program: Path | None) -> Elf | None:
        """live_program: the running file, whatever lies at its path now."""
        if not module.path.startswith("/"):
            return None  # the vdso has no file
        why = ""
        for path in [live_program, Path(module.path)]:
            if path is None:
                continue
            try:
                return open_elf(path, module.build_id)
            except ElfError as error:
                why = str(error)
        self.problems.append(f"no names from {why}")
        return None

    def frame(self, module: Module, address: int, live_program: Path | None = None) -> Frame:
        key = (module.path, module.build_id, address - module.bias)
        if key not in self.frames:
            self.frames[key] = self.look_up(module, address, live_program)
        known = self.frames[key]
        return (
            known if known.address == address else Frame(**{**known.__dict__, "address": address})
        )

    def variable(self, module: Module, address: int, live_program: Path | None) -> str | None:
        """Return the name of the static variable that contains a lock. Cached as frames are."""
        key = (module.path, module.build_id, address - module.bias)
        if key not in self.frames:
            elf, offset, label = self.elf(module, live_program), address - module.bias, ""
            found = elf.variable(offset) if elf is not None and offset > 0 else None
            if found:
                whole = short(found[0]) + (f"+{found[1]:#x}" if found[1] else "")
                label = runtimes.known_name(short(found[0])) or whole
            self.frames[key] = Frame(address, label, module.path, module.build_id, offset)
        return self.frames[key].label or None

    def look_up(self, module: Module, address: int, live_program: Path | None) -> Frame:
        offset = address - module.bias
        name = posixpath.basename(module.path) or "?"
        label, function, file, line = f"{name}+{offset:#x}", None, None, None
        role, within = None, ""
        elf = self.elf(module, live_program)
        if elf is not None and offset > 0:
            found = elf.function(offset - 1)
            if found:
                function = found[0]
                label = f"{short(function)}+{found[1] + 1:#x}"
            places = elf.places(offset - 1)
            role = futex_waits.role_of([*(place.function for place in places), function])
            at = own_place(places)
            if at:
                file, line = at.file, at.line
                function = at.function or function
                place = f"{posixpath.basename(file)}:{line}"
                callers = places[places.index(at) + 1 :]
                within = "\n".join(caller.function for caller in callers if caller.function)
                label = f"{short(function)} {place}" if function else place
            is_ours = name.startswith("librouse") or (file or "").endswith("core/thread.c")
            if found and found[0] == "thread_main" and is_ours:
                label = END_OF_THREAD
        known = (module.path, module.build_id, offset, function, file, line, role, within)
        return Frame(address, label, *known)


class Spans:
    """Which of several ranges contains an address: the first of them, where they overlap.

    A file may name many thousands of modules and of sites, so that no search goes through all.
    """

    def __init__(self, ranges: Sequence[tuple[int, int]]) -> None:
        """ranges: begin and end of each."""
        starts = sorted(range(len(ranges)), key=lambda number: ranges[number][0])
        edges = sorted({edge for span in ranges for edge in span})
        owners: list[int] = []
        begun: list[int] = []  # a heap: ranges that have begun, some of which have ended
        at = 0
        for edge in edges:
            while at < len(starts) and ranges[starts[at]][0] <= edge:
                heapq.heappush(begun, starts[at])
                at += 1
            while begun and ranges[begun[0]][1] <= edge:
                heapq.heappop(begun)
            owners.append(begun[0] if begun else -1)
        self.edges = np.array(edges, np.uint64)
        self.owners = np.array([-1, *owners], np.intp)

    def of(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """Return the number of the range of each address. -1: none."""
        return self.owners[np.searchsorted(self.edges, addresses, "right")]


class Sites:
    """The sites of one store."""

    def __init__(self, store: Store, resolver: Resolver) -> None:
        self.resolver = resolver
        self.modules = modules_of(store)
        self.spans = Spans([(module.start, module.end) for module in self.modules])
        self.stacks = store.arrays[layout.STACKS]
        self.program = store.head.program
        is_seen = store.is_live and store.is_here
        self.live_program = Path(f"/proc/{store.head.pid}/exe") if is_seen else None

    def addresses(self, site: int) -> list[int]:
        """Return a site's return addresses, the innermost first."""
        if not site & layout.SITE_STACK:
            return [site]
        number = site & ~layout.SITE_STACK
        if number >= len(self.stacks):
            return [0]
        stack = self.stacks[number]
        depth = min(int(stack["depth"]), len(stack["frames"]))
        return [int(address) for address in stack["frames"][:depth]] or [0]

    def frames(self, site: int) -> list[Frame]:
        return of_program([self.frame(address) for address in self.addresses(site)])

    def frame(self, address: int) -> Frame:
        if address == 0:
            return Frame(0, RUNTIME)
        module, live = self.module_of(address)
        if module is None:
            return Frame(address, f"{address:#x}")
        return self.resolver.frame(module, address, live)

    def is_for_lock(self, site: int) -> bool:
        """Whether a futex wait at this site is for a lock, by the functions that led there."""
        return futex_waits.is_for_lock(self.frame(a).role for a in self.addresses(site))

    def variable(self, address: int) -> str | None:
        """Return the static variable that contains an object. None: not known."""
        module, live = self.module_of(address)
        return self.resolver.variable(module, address, live) if module else None

    def variables(self, objects: npt.NDArray[np.uint64]) -> dict[int, str]:
        """Return the names of the objects in static variables. Most objects are elsewhere."""
        words = np.unique(objects)
        is_static = self.spans.of(words) >= 0
        names = {word: self.variable(word) for word in words[is_static].tolist()}
        return {word: name for word, name in names.items() if name}

    def module_of(self, address: int) -> tuple[Module | None, Path | None]:
        """Return the module of an address, and its file if it is the running program."""
        (number,) = self.spans.of(np.array([address], np.uint64)).tolist()
        if number < 0:
            return None, None
        module = self.modules[number]
        return module, self.live_program if module.path == self.program else None

    def label(self, site: int) -> str:
        """Return the label of the innermost frame."""
        return self.frames(site)[0].label


def used(store: Store) -> list[int]:
    """Return every site that an entry of the store names."""
    wakes, locks = store.arrays[layout.WAKES], store.arrays[layout.LOCKS]
    threads, names = store.threads, of_names(store)
    columns = [
        *(wakes[name] for name in ("wait_site", "wake_site")),
        *(locks[name] for name in ("site", "holder_site")),
        *(threads[name] for name in ("wait_site", "wake_site", "contest_holder")),
        names[names != 0],
        store.writers["yield_site"],
    ]
    # Events name the sites as their writer does.
    every = [stacks.canonical(store, np.concatenate(columns)), events.sites_used(store)]
    return [int(site) for site in np.unique(np.concatenate(every))]


def of_names(store: Store) -> npt.NDArray[np.uint64]:
    """Return, for each name, the place that initialised its object. 0: not recorded."""
    names = store.arrays[layout.NAMES]
    is_place = (store.head.recorder == layout.PRELOAD) & (names["text"] == b"")
    return np.where(is_place, names["key"], 0).astype(np.uint64)


def objects_of(store: Store) -> npt.NDArray[np.uint64]:
    """Return the objects that threads wait for, or have waited for."""
    wakes, locks = store.arrays[layout.WAKES], store.arrays[layout.LOCKS]
    every = [wakes["object"], locks["lock"], store.threads["object"]]
    return np.concatenate(every).astype(np.uint64)


def frames_used(
    store: Store, resolver: Resolver, paths: Mapping[int, int]
) -> list[tuple[int, int, Frame]]:
    """Return each frame of each site that the store names, with its number. 0: the innermost.

    paths: by site, the stack whose frames it has instead of its own.
    """
    known = Sites(store, resolver)
    return [
        (site, number, frame)
        for site in used(store)
        for number, frame in enumerate(known.frames(paths.get(site, site)))
    ]
