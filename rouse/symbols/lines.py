# SPDX-License-Identifier: MIT
"""Line programs of .debug_line, DWARF 2 to 5: addresses as files and lines.

One loop over the bytes runs a program. Decoding it entry by entry into objects took most of the
time of a report on a program with debug information.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from dataclasses import dataclass, field

from rouse.symbols.bytes_read import Reader

STRING, LINE_STRP, STRP, UDATA = 0x08, 0x1F, 0x0E, 0x0F
DATA16, BLOCK = 0x1E, 0x09
FIXED = {0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8}  # DW_FORM_data1 to data8
PATH, DIRECTORY = 1, 2  # DW_LNCT_


@dataclass
class Sequence:
    """Rows of code without a gap: addresses[i] and on have lines[i] of files[i]."""

    end: int = 0
    addresses: list[int] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)


@dataclass
class Header:
    version: int = 0
    start: int = 0
    end: int = 0
    min_bytes: int = 1
    line_base: int = 0
    line_range: int = 1
    opcode_lengths: tuple[int, ...] = ()
    folders: list[bytes] = field(default_factory=list)
    files: list[tuple[bytes, int]] = field(default_factory=list)  # with the folder's number


class Program:
    """A unit's line program."""

    def __init__(
        self, data: bytes, offset: int, home: bytes, strings: bytes, line_strings: bytes
    ) -> None:
        """home: the folder where the compiler ran."""
        self.data, self.home = data, home
        self.strings = {STRP: strings, LINE_STRP: line_strings}
        self.header = self.read_header(offset)
        # A linker leaves the code that it dropped at address 0.
        found = [one for one in self.run() if one.addresses and one.addresses[0]]
        self.sequences = sorted(found, key=lambda one: one.addresses[0])
        self.starts = [one.addresses[0] for one in self.sequences]

    def at(self, address: int) -> tuple[int, int] | None:
        """The file's number and the line."""
        i = bisect_right(self.starts, address) - 1
        if i < 0:
            return None
        sequence = self.sequences[i]
        if address >= sequence.end:
            return None
        row = bisect_right(sequence.addresses, address) - 1
        line = sequence.lines[row]
        return (sequence.files[row], line) if line else None

    def file_name(self, number: int) -> str:
        header = self.header
        is_old = header.version < 5  # files are numbered from 1, and folder 0 is home
        number -= is_old
        if not 0 <= number < len(header.files):
            return "?"
        name, folder = header.files[number]
        folders = [self.home, *header.folders] if is_old else header.folders
        above = folders[folder] if folder < len(folders) else b""
        return posixpath.normpath(posixpath.join(self.home, above, name).decode("utf-8", "replace"))

    def read_header(self, offset: int) -> Header:
        reader, header = Reader(self.data, offset), Header()
        size, is_wide = reader.unit_length()
        header.end = min(reader.at + size, len(self.data))
        header.version = reader.fixed(2)
        if not 2 <= header.version <= 5:
            raise ValueError("a line program of an unknown version")
        if header.version == 5:
            reader.at += 2  # sizes of an address and of a segment's number
        header_bytes = reader.fixed(8 if is_wide else 4)
        header.start = reader.at + header_bytes
        header.min_bytes = reader.fixed(1)
        if header.version >= 4:
            reader.at += 1  # operations per instruction: more than one on VLIW machines only
        reader.at += 1  # whether rows begin as statements
        header.line_base = (reader.fixed(1) ^ 0x80) - 0x80
        header.line_range = reader.fixed(1)
        header.opcode_lengths = tuple(reader.fixed(1) for _ in range(reader.fixed(1) - 1))
        if header.version == 5:
            self.read_tables(reader, header, is_wide)
        else:
            self.read_old_tables(reader, header)
        return header

    @staticmethod
    def read_old_tables(reader: Reader, header: Header) -> None:
        while folder := reader.string():
            header.folders.append(folder)
        while name := reader.string():
            number = reader.uleb()
            reader.uleb()
            reader.uleb()
            header.files.append((name, number))

    def read_tables(self, reader: Reader, header: Header, is_wide: bool) -> None:
        header.folders = [name for name, _ in self.read_table(reader, is_wide)]
        header.files = self.read_table(reader, is_wide)

    def read_table(self, reader: Reader, is_wide: bool) -> list[tuple[bytes, int]]:
        formats = [(reader.uleb(), reader.uleb()) for _ in range(reader.fixed(1))]
        count = reader.uleb()
        if not formats or count > len(self.data):
            return []
        found = []
        for _ in range(count):
            name, folder = b"", 0
            for content, form in formats:
                if content == PATH:
                    name = self.read_name(reader, form, is_wide)
                    continue
                value = self.read_number(reader, form)
                if content == DIRECTORY:
                    folder = value
            found.append((name, folder))
        return found

    def read_name(self, reader: Reader, form: int, is_wide: bool) -> bytes:
        if form == STRING:
            return reader.string()
        return Reader(self.strings[form], reader.fixed(8 if is_wide else 4)).string()

    @staticmethod
    def read_number(reader: Reader, form: int) -> int:
        if form in FIXED:
            return reader.fixed(FIXED[form])
        if form == DATA16:
            reader.at += 16
        elif form == BLOCK:
            reader.at += reader.uleb()
        elif form == UDATA:
            return reader.uleb()
        else:
            raise ValueError("a line program's table has an unknown form")
        return 0

    def run(self) -> list[Sequence]:
        """Run the program. If several rows have the same address, the last one counts."""
        data, header = self.data, self.header
        at, end, min_bytes = header.start, header.end, header.min_bytes
        base, span, first = header.line_base, header.line_range, len(header.opcode_lengths) + 1
        steps = [
            ((op - first) // span * min_bytes, base + (op - first) % span)
            for op in range(first, 256)
        ]
        constant = (255 - first) // span * min_bytes
        found: list[Sequence] = []
        now = Sequence()
        address, file, line = 0, 1, 1
        addresses, files, lines = now.addresses, now.files, now.lines
        while at < end:
            op = data[at]
            at += 1
            if op >= first:
                step, up = steps[op - first]
                address += step
                line += up
            elif op == 1:  # copy
                pass
            elif op == 0:  # extended
                size = shift = 0
                while True:
                    byte = data[at]
                    at += 1
                    size |= (byte & 0x7F) << shift
                    if byte < 0x80:
                        break
                    shift += 7
                kind, after = data[at], at + size
                if kind == 1:  # the sequence ends
                    now.end = address
                    found.append(now)
                    now = Sequence()
                    address, file, line = 0, 1, 1
                    addresses, files, lines = now.addresses, now.files, now.lines
                elif kind == 2:  # set the address
                    address = int.from_bytes(data[at + 1 : after], "little")
                at = max(after, at)
                continue
            elif op == 9:  # advance by a fixed size
                address += data[at] | data[at + 1] << 8
                at += 2
                continue
            elif op == 8:  # advance as the last special opcode does
                address += constant
                continue
            elif op in (6, 7, 10, 11):  # flags that are of no use here
                continue
            else:
                count = 1 if op in (2, 3, 4, 5, 12) else header.opcode_lengths[op - 1]
                for _ in range(count):
                    value = shift = 0
                    while True:
                        byte = data[at]
                        at += 1
                        value |= (byte & 0x7F) << shift
                        shift += 7
                        if byte < 0x80:
                            break
                    if op == 2:
                        address += value * min_bytes
                    elif op == 3:
                        line += value - (1 << shift) if byte & 0x40 else value
                    elif op == 4:
                        file = value
                continue
            if addresses and addresses[-1] == address:
                files[-1], lines[-1] = file, line
            else:
                addresses.append(address)
                files.append(file)
                lines.append(line)
        return found
