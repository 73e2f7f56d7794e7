# SPDX-License-Identifier: MIT
"""The code of a running process: what is mapped where, and the names of its call paths.

Files are opened through the kernel's links to the mappings, so that they are those that run.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from rouse.symbols import perf_map
from rouse.symbols.elf import Elf, ElfError, open_elf
from rouse.symbols.perf_map import PerfMap
from rouse.symbols.sites import LIBRARY_MODULES, Frame, Module, Resolver
from rouse.symbols.spin_loops import CODE_MOST, Code, decoded, is_waiting
from rouse.symbols.unwind import Row, Stack, Tables, callers

MAPPINGS_MOST = 1 << 16


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    offset: int
    is_code: bool
    path: str  # empty: no file
    identity: str  # of that file: its device and inode
    name: str = ""  # of memory that the kernel names, such as [vdso]


def decode_maps(text: str) -> Iterator[Mapping]:
    for line in text.splitlines()[:MAPPINGS_MOST]:
        words = line.split(maxsplit=5)
        start, _, end = words[0].partition("-")
        path = words[5] if len(words) > 5 and words[5].startswith("/") else ""
        yield Mapping(
            start=int(start, 16),
            end=int(end, 16),
            offset=int(words[2], 16),
            is_code="x" in words[1],
            path=path,
            identity=f"{words[3]} {words[4]}",
            name=words[5] if len(words) > 5 and words[5].startswith("[") else "",
        )


class Image:
    """The memory of one process, as it was at one moment."""

    def __init__(self, pid: int, text: str) -> None:
        """text: of /proc/PID/maps."""
        self.pid = pid
        self.mappings = list(decode_maps(text))
        self.starts = [mapping.start for mapping in self.mappings]

    def mapping(self, address: int) -> Mapping | None:
        at = bisect_right(self.starts, address) - 1
        return self.mappings[at] if at >= 0 and address < self.mappings[at].end else None

    def is_code(self, address: int) -> bool:
        found = self.mapping(address)
        return bool(found and found.is_code)

    def files(self) -> dict[str, list[Mapping]]:
        found: dict[str, list[Mapping]] = {}
        for mapping in self.mappings:
            if mapping.path:
                found.setdefault(mapping.path, []).append(mapping)
        return found


@dataclass(frozen=True)
class Loaded:
    """A file of code in a process."""

    module: Module
    tables: Tables


class Names:
    """Call paths of one process with names. An image may be older than the process's end."""

    def __init__(self, image: Image, resolver: Resolver) -> None:
        self.image, self.resolver = image, resolver
        self.files = image.files()
        self.loaded: dict[str, Loaded | None] = {}
        self.functions: dict[tuple[str, int], Code | None] = {}  # by file and start

    @cached_property
    def made(self) -> PerfMap:
        """Of code that is in no file."""
        return perf_map.of(self.image.pid)

    def load(self, path: str) -> Loaded | None:
        if path not in self.loaded:
            self.loaded[path] = self.opened(path, self.files[path])
        return self.loaded[path]

    def opened(self, path: str, mappings: list[Mapping]) -> Loaded | None:
        first = mappings[0]
        place = Path(f"/proc/{self.image.pid}/map_files/{first.start:x}-{first.end:x}")
        if not os.access(place, os.R_OK):  # the process has ended, or we have not the right
            place = Path(path)
        key = (path, first.identity)
        if key not in self.resolver.files:
            self.resolver.files[key] = self.elf(place, first)
        elf = self.resolver.files[key]
        if elf is None:
            return None
        bias, end = placed(elf, first)
        module = Module(first.start, max(end, mappings[-1].end), bias, first.identity, path)
        return Loaded(module, Tables(elf.file))

    def elf(self, place: Path, mapping: Mapping) -> Elf | None:
        try:
            inode = place.stat().st_ino
            if inode == int(mapping.identity.split()[1]):
                return open_elf(place)
            why = f"{mapping.path}: is another file than the one that ran"
        except OSError as error:
            why = f"{mapping.path}: {error.strerror}"
        except ElfError as error:
            why = str(error)
        self.resolver.problems.append(f"no names from {why}")
        return None

    def of(self, address: int) -> Loaded | None:
        found = self.image.mapping(address)
        return self.load(found.path) if found and found.path else None

    def row(self, address: int) -> Row | None:
        loaded = self.of(address)
        return loaded.tables.row(address - loaded.module.bias) if loaded else None

    def addresses(self, stack: Stack) -> list[int]:
        return callers(stack, self.row, self.image.is_code)

    def frame(self, address: int) -> Frame:
        loaded = self.of(address)
        if loaded is None:
            found = self.image.mapping(address)
            name = found.name if found else ""
            made = "" if name else self.made.name(address - 1)
            label = name or made or f"{address:#x}"
            return Frame(address, label, module=name or None, function=made or None)
        return self.resolver.frame(loaded.module, address)

    def is_waiting(self, address: int) -> bool:
        """Whether an instruction is in a loop that waits for another thread."""
        loaded = self.of(address)
        elf = loaded and self.resolver.elf(loaded.module, None)
        if not loaded or not elf or LIBRARY_MODULES.search(loaded.module.path):
            return False
        at = address - loaded.module.bias
        found = elf.guarded(lambda: elf.code(at, CODE_MOST), None)
        if not found:
            return False
        start, code = found
        key = (loaded.module.path, start)
        if key not in self.functions:
            self.functions[key] = decoded(elf.file.get_machine_arch(), code, start)
        return is_waiting(self.functions[key], at)

    def variable(self, address: int) -> str | None:
        """Return the static variable at an address. None: it is in none."""
        at = bisect_right(self.image.starts, address) - 1
        # A program's zeroed variables lie in a mapping without a file, behind those of the file.
        for i in range(at, max(at - 2, -1), -1):
            path = self.image.mappings[i].path
            loaded = self.load(path) if path else None
            if loaded and loaded.module.start <= address < loaded.module.end:
                return self.resolver.variable(loaded.module, address, None)
        return None


def placed(elf: Elf, first: Mapping) -> tuple[int, int]:
    """Return the distance between addresses in memory and in the file, and the end in memory."""
    bias = end = 0
    for segment in elf.file.iter_segments():
        if segment["p_type"] != "PT_LOAD":
            continue
        file_offset, address = segment["p_offset"], segment["p_vaddr"]
        if file_offset - file_offset % 4096 <= first.offset < file_offset + segment["p_filesz"]:
            bias = first.start - first.offset + file_offset - address
        end = max(end, address + segment["p_memsz"])
    return bias, bias + end
