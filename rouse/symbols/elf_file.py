# SPDX-License-Identifier: MIT
"""Sections of a 64-bit little-endian ELF file, read when they are asked for."""

from __future__ import annotations

import os
import struct
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path

MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
COMPRESSION = struct.Struct("<IIQQ")
NOTE = struct.Struct("<III")
COMPRESSED = 0x800  # SHF_COMPRESSED
ZLIB = 1  # ELFCOMPRESS_ZLIB
NOBITS = 8
NOTES = 7
BUILD_ID = 3  # NT_GNU_BUILD_ID
MOST_BYTES = 1 << 31  # a damaged file may claim any size for a compressed section


@dataclass(frozen=True)
class Section:
    type: int
    flags: int
    offset: int
    size: int
    link: int


class ElfFile:
    """Raises OSError, ValueError or struct.error for a file that it cannot read."""

    def __init__(self, path: Path) -> None:
        # Not mapped: reading the mapping of a file that was truncated would end this process.
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self.descriptor)
        self.stamp = self.state()
        if self.read(0, len(MAGIC)) != MAGIC:
            raise ValueError("it does not begin as a 64-bit little-endian ELF file")
        header = HEADER.unpack(self.read(0, HEADER.size))
        start, entry_bytes, count, names = header[6], header[11], header[12], header[13]
        table = self.read(start, entry_bytes * count)
        entries = [SECTION.unpack_from(table, i * entry_bytes) for i in range(count)]
        self.sections = [Section(*entry[1:3], *entry[4:7]) for entry in entries]
        self.names: dict[str, int] = {}
        text = self.bytes_of(names) if entries else b""
        for i, entry in enumerate(entries):
            name = text[entry[0] : text.find(b"\0", entry[0])]
            self.names.setdefault(name.decode("ascii", "replace"), i)

    def state(self) -> tuple[int, int]:
        found = os.fstat(self.descriptor)
        return found.st_size, found.st_mtime_ns

    def read(self, start: int, size: int) -> bytes:
        """Sections are read late. A file that was written in between is another program."""
        if self.state() != self.stamp:
            raise ValueError("the file has changed since it was opened")
        return os.pread(self.descriptor, min(size, self.stamp[0]), start)

    def bytes_of(self, number: int) -> bytes:
        """The contents of a section, decompressed; empty if it has none."""
        section = self.sections[number]
        if section.type == NOBITS:
            return b""
        raw = self.read(section.offset, section.size)
        if not section.flags & COMPRESSED:
            return raw
        method, _, size, _ = COMPRESSION.unpack_from(raw, 0)
        if method != ZLIB:
            return b""
        return inflated(raw[COMPRESSION.size :], size)

    def named(self, name: str) -> bytes:
        """The contents of the section with that name; empty if there is none."""
        if name in self.names:
            return self.bytes_of(self.names[name])
        old = name.replace(".debug", ".zdebug")  # what old tools call a compressed section
        if old not in self.names:
            return b""
        raw = self.bytes_of(self.names[old])
        return inflated(raw[12:], int.from_bytes(raw[4:12], "big")) if raw[:4] == b"ZLIB" else b""

    def build_id(self) -> str:
        """In hexadecimal; empty if the file has none."""
        for number, section in enumerate(self.sections):
            if section.type != NOTES:
                continue
            raw, at = self.bytes_of(number), 0
            while at + NOTE.size <= len(raw):
                name_size, size, kind = NOTE.unpack_from(raw, at)
                name = at + NOTE.size
                start = name + (name_size + 3 & ~3)
                if kind == BUILD_ID and raw[name : name + 4] == b"GNU\0":
                    return raw[start : start + size].hex()
                at = start + (size + 3 & ~3)
        return ""


def inflated(raw: bytes, size: int) -> bytes:
    if size > MOST_BYTES:
        raise ValueError("a compressed section claims too many bytes")
    return zlib.decompressobj().decompress(raw, size or 1)
