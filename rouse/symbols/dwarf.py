# SPDX-License-Identifier: MIT
"""Units of .debug_info, their code ranges, and the functions that were inlined at an address.

A question reads only what it needs: the headers of all units, the table .debug_aranges, and the
tree of one unit. The walk of a tree makes no objects and skips entries whose code does not contain
the address.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from rouse.symbols.bytes_read import Reader
from rouse.symbols.elf_file import ElfFile
from rouse.symbols.lines import Program

# DW_TAG_
LEXICAL_BLOCK, INLINED, SUBPROGRAM, NAMESPACE = 0x0B, 0x1D, 0x2E, 0x39
# DW_AT_
SIBLING, NAME, STMT_LIST, LOW_PC, HIGH_PC, COMP_DIR = 0x01, 0x03, 0x10, 0x11, 0x12, 0x1B
ORIGIN, SPECIFICATION, RANGES, CALL_FILE, CALL_LINE = 0x31, 0x47, 0x55, 0x58, 0x59
LINKAGE_NAME, MIPS_LINKAGE_NAME = 0x6E, 0x2007
STR_BASE, ADDR_BASE, RANGES_BASE = 0x72, 0x73, 0x74
# DW_FORM_
ADDR, INDIRECT, IMPLICIT_CONST, SDATA, STRING, STRP = 0x01, 0x16, 0x21, 0x0D, 0x08, 0x0E
LINE_STRP, REF_ADDR, RANGES_INDEX = 0x1F, 0x10, 0x23
STRING_INDEXES = {0x1A, 0x25, 0x26, 0x27, 0x28}
ADDRESS_INDEXES = {0x1B, 0x29, 0x2A, 0x2B, 0x2C}
UNIT_REFERENCES = {0x11, 0x12, 0x13, 0x14, 0x15}
NUMBERS = {0x0F, 0x1A, 0x1B, 0x15, 0x22, 0x23, 0x1F01, 0x1F02}  # ULEB128
SIZES = {
    **{0x0B: 1, 0x05: 2, 0x06: 4, 0x07: 8, 0x1E: 16, 0x0C: 1, 0x19: 0, 0x21: 0},
    **{0x11: 1, 0x12: 2, 0x13: 4, 0x14: 8, 0x20: 8, 0x1C: 4, 0x24: 8},
    **{0x25: 1, 0x26: 2, 0x27: 3, 0x28: 4, 0x29: 1, 0x2A: 2, 0x2B: 3, 0x2C: 4},
}
OFFSETS = {0x0E, 0x1F, 0x17, 0x1D, 0x1F20, 0x1F21}
BLOCKS = {0x0A: 1, 0x03: 2, 0x04: 4}
LENGTH_BLOCKS = {0x09, 0x18}  # with a ULEB128 length
MOST_ORIGINS = 8  # links from an inlined function to its name; a damaged file may have a cycle
TYPE_UNITS = (2, 6)  # DW_UT_type, DW_UT_split_type
SKELETONS = (4, 5)

Ranges = list[tuple[int, int]]


class Spec(NamedTuple):
    attribute: int
    form: int
    constant: int


class Kind(NamedTuple):
    """An abbreviation: an entry's tag, whether it has children, and its attributes."""

    tag: int
    has_children: bool
    specs: list[Spec]
    fixed_bytes: int  # -1: the sizes of the attributes vary
    may_have_code: bool
    has_sibling: bool


class Place(NamedTuple):
    """A line, and the function whose source has it. The name may be empty."""

    function: bytes
    file: str
    line: int


@dataclass
class Unit:
    """A compilation unit."""

    dwarf: Dwarf
    offset: int
    end: int
    version: int
    is_wide: bool
    abbreviations: int
    first: int  # where its top entry begins
    address_bytes: int = 8
    is_type: bool = False
    kinds: dict[int, Kind] = field(default_factory=dict)
    next_kind: int = -1

    def kind(self, code: int) -> Kind:
        """Abbreviations are read up to the one that is asked for."""
        if code in self.kinds:
            return self.kinds[code]
        reader = Reader(self.dwarf.abbrev, max(self.next_kind, self.abbreviations))
        while number := reader.uleb():
            self.kinds[number] = self.read_kind(reader)
            self.next_kind = reader.at
            if number == code:
                return self.kinds[code]
        raise ValueError("an entry of an unknown kind")

    def read_kind(self, reader: Reader) -> Kind:
        tag, has_children = reader.uleb(), bool(reader.fixed(1))
        specs, size = [], 0
        has_code = False
        while True:
            attribute, form = reader.uleb(), reader.uleb()
            constant = reader.sleb() if form == IMPLICIT_CONST else 0
            if not attribute:
                break
            specs.append(Spec(attribute, form, constant))
            one = self.size_of(form)
            size = -1 if one is None or size < 0 else size + one
            has_code |= attribute in (LOW_PC, RANGES)
        has_sibling = any(spec.attribute == SIBLING for spec in specs)
        return Kind(tag, has_children, specs, size, has_code, has_sibling)

    def size_of(self, form: int) -> int | None:
        """None: it depends on the value."""
        if form == ADDR:
            return self.address_bytes
        if form in OFFSETS:
            return 8 if self.is_wide else 4
        if form == REF_ADDR:
            wide = 8 if self.is_wide else 4
            return self.address_bytes if self.version < 3 else wide
        return SIZES.get(form)

    def skip(self, reader: Reader, kind: Kind) -> None:
        if kind.fixed_bytes >= 0:
            reader.at += kind.fixed_bytes
            return
        for spec in kind.specs:
            self.skip_one(reader, spec.form)

    def skip_one(self, reader: Reader, form: int) -> None:
        size = self.size_of(form)
        if size is not None:
            reader.at += size
        elif form in NUMBERS or form == SDATA:
            reader.uleb()
        elif form == STRING:
            reader.at = reader.data.index(b"\0", reader.at) + 1
        elif form in LENGTH_BLOCKS:
            size = reader.uleb()
            reader.at += size
        elif form in BLOCKS:
            size = reader.fixed(BLOCKS[form])
            reader.at += size
        elif form == INDIRECT:
            self.skip_one(reader, reader.uleb())
        else:
            raise ValueError("an attribute of an unknown form")

    def values(self, reader: Reader, kind: Kind) -> dict[int, tuple[int, int]]:
        """By attribute its form and number, of a string its place; other values are left out."""
        found = {}
        for attribute, form, constant in kind.specs:
            if form == INDIRECT:
                form = reader.uleb()  # the form stands before the value
            size = self.size_of(form)
            if form == IMPLICIT_CONST:
                found[attribute] = (form, constant)
            elif form == STRING:
                found[attribute] = (form, reader.at)
                self.skip_one(reader, form)
            elif size is not None:
                found[attribute] = (form, reader.fixed(size))
            elif form in NUMBERS:
                found[attribute] = (form, reader.uleb())
            elif form == SDATA:
                found[attribute] = (form, reader.sleb())
            else:
                self.skip_one(reader, form)
        return found

    def entry(self, offset: int) -> tuple[Kind | None, dict[int, tuple[int, int]], int]:
        """An entry with its attributes, and where the next one begins."""
        reader = Reader(self.dwarf.info, offset)
        code = reader.uleb()
        if not code:
            return None, {}, reader.at
        kind = self.kind(code)
        return kind, self.values(reader, kind), reader.at

    @cached_property
    def top(self) -> dict[int, tuple[int, int]]:
        return self.entry(self.first)[1]

    def number(self, attribute: int, otherwise: int = 0) -> int:
        """An attribute of the unit itself."""
        return self.top.get(attribute, (0, otherwise))[1]

    def text(self, value: tuple[int, int]) -> bytes:
        form, at = value
        dwarf = self.dwarf
        if form == STRING:
            return Reader(dwarf.info, at).string()
        if form == STRP:
            return Reader(dwarf.strings, at).string()
        if form == LINE_STRP:
            return Reader(dwarf.line_strings, at).string()
        if form in STRING_INDEXES:
            wide = 8 if self.is_wide else 4
            place = self.number(STR_BASE, 2 * wide) + at * wide
            return Reader(dwarf.strings, Reader(dwarf.string_offsets, place).fixed(wide)).string()
        return b""  # in another file

    def address(self, value: tuple[int, int]) -> int:
        form, at = value
        if form not in ADDRESS_INDEXES:
            return at
        place = self.number(ADDR_BASE, 8) + at * self.address_bytes
        return Reader(self.dwarf.addresses, place).fixed(self.address_bytes)

    @cached_property
    def base(self) -> int:
        return self.address(self.top[LOW_PC]) if LOW_PC in self.top else 0

    def ranges_of(self, values: dict[int, tuple[int, int]]) -> Ranges:
        """The code of an entry."""
        if RANGES in values:
            return self.dwarf.ranges(self, values[RANGES])
        if LOW_PC not in values or HIGH_PC not in values:
            return []
        low, high = self.address(values[LOW_PC]), values[HIGH_PC]
        is_end = high[0] == ADDR or high[0] in ADDRESS_INDEXES
        return [(low, self.address(high) if is_end else low + high[1])]

    @cached_property
    def ranges(self) -> Ranges:
        return [(start, end) for start, end in self.ranges_of(self.top) if start]

    def target(self, value: tuple[int, int]) -> tuple[Unit, int]:
        """The unit and the offset of the entry that an attribute refers to."""
        form, at = value
        if form in UNIT_REFERENCES:
            return self, self.offset + at
        if form == REF_ADDR:
            return self.dwarf.unit_at(at), at
        raise ValueError("a reference to another file")

    def function_name(self, values: dict[int, tuple[int, int]]) -> bytes:
        """The linkage name if there is one, otherwise the name in the source, otherwise empty."""
        unit, name = self, b""
        for _ in range(MOST_ORIGINS):
            for attribute in (LINKAGE_NAME, MIPS_LINKAGE_NAME):
                if attribute in values:
                    return unit.text(values[attribute])
            if not name and NAME in values:
                name = unit.text(values[NAME])
            origin = values.get(ORIGIN) or values.get(SPECIFICATION)
            if not origin:
                break
            unit, offset = unit.target(origin)
            _, values, _ = unit.entry(offset)
        return name

    def skip_children(self, reader: Reader) -> None:
        depth = 1
        while depth:
            code = reader.uleb()
            if not code:
                depth -= 1
                continue
            kind = self.kind(code)
            self.skip(reader, kind)
            depth += kind.has_children

    def after_children(self, values: dict[int, tuple[int, int]], after: int) -> int:
        """Where the next entry begins after one whose children, if any, begin at `after`."""
        if SIBLING in values:
            end = self.target(values[SIBLING])[1]
            if end <= after:  # a damaged file must not make a loop
                raise ValueError("a sibling that comes earlier")
            return end
        reader = Reader(self.dwarf.info, after)
        self.skip_children(reader)
        return reader.at

    @cached_property
    def functions(self) -> list[tuple[int, int, int]]:
        """The functions with code, sorted: start, end and the offset of the entry."""
        found: list[tuple[int, int, int]] = []
        reader = Reader(self.dwarf.info, self.first)
        depth, is_top = 0, True
        while reader.at < self.end:
            offset = reader.at
            code = reader.uleb()
            if not code:
                depth -= 1
                if depth <= 0:
                    break
                continue
            kind = self.kind(code)
            is_function = kind.tag == SUBPROGRAM
            is_skipped = kind.has_sibling and kind.has_children and kind.tag != NAMESPACE
            if is_top or not (is_function or is_skipped):
                self.skip(reader, kind)
                depth += kind.has_children
                is_top = False
                continue
            values = self.values(reader, kind)
            if is_function and kind.may_have_code:
                found += [(low, high, offset) for low, high in self.ranges_of(values) if low]
            if kind.has_children:
                reader.at = self.after_children(values, reader.at)
        return sorted(found)

    def places(self, address: int) -> list[Place]:
        """The function that contains an address and those inlined there, the innermost first."""
        at = bisect_right(self.functions, (address, 1 << 64, 0)) - 1
        if at < 0 or address >= self.functions[at][1]:
            return []
        chain = self.inlined(self.functions[at][2], address)
        line = self.program.at(address)
        places = []
        for values in reversed(chain):
            file, number = line or (-1, 0)
            name = self.function_name(values)
            places.append(Place(name, self.program.file_name(file) if line else "", number))
            line = (values[CALL_FILE][1], values[CALL_LINE][1]) if CALL_LINE in values else None
        return places

    def inlined(self, function: int, address: int) -> list[dict[int, tuple[int, int]]]:
        """Attributes of a function's entry and of those inlined at an address, outermost first."""
        kind, values, at = self.entry(function)
        chain = [values]
        while kind and kind.has_children:
            kind, values, at = self.entry(at)
            while kind and not self.is_around(kind, values, address):
                if kind.has_children:
                    at = self.after_children(values, at)
                kind, values, at = self.entry(at)
            if kind and kind.tag == INLINED:
                chain.append(values)
        return chain

    def is_around(self, kind: Kind, values: dict[int, tuple[int, int]], address: int) -> bool:
        """Whether an entry is a part of a function with that address."""
        if kind.tag not in (INLINED, LEXICAL_BLOCK) or not kind.may_have_code:
            return False
        return any(low <= address < high for low, high in self.ranges_of(values))

    @cached_property
    def program(self) -> Program:
        home = self.text(self.top[COMP_DIR]) if COMP_DIR in self.top else b""
        dwarf = self.dwarf
        if STMT_LIST not in self.top:
            raise ValueError("a unit without lines")
        start = self.number(STMT_LIST)
        return Program(dwarf.lines, start, home, dwarf.strings, dwarf.line_strings)


class Dwarf:
    """The debug information of a file."""

    def __init__(self, file: ElfFile) -> None:
        self.file = file

    def section(self, name: str) -> bytes:
        return self.file.named(name)

    info = cached_property(lambda self: self.section(".debug_info"))
    abbrev = cached_property(lambda self: self.section(".debug_abbrev"))
    lines = cached_property(lambda self: self.section(".debug_line"))
    strings = cached_property(lambda self: self.section(".debug_str"))
    line_strings = cached_property(lambda self: self.section(".debug_line_str"))
    string_offsets = cached_property(lambda self: self.section(".debug_str_offsets"))
    addresses = cached_property(lambda self: self.section(".debug_addr"))
    range_lists = cached_property(lambda self: self.section(".debug_rnglists"))
    old_ranges = cached_property(lambda self: self.section(".debug_ranges"))

    @cached_property
    def units(self) -> list[Unit]:
        found, reader = [], Reader(self.info, 0)
        while reader.at < len(self.info):
            unit = self.read_unit(reader)
            reader.at = unit.end
            found.append(unit)
        return found

    def read_unit(self, reader: Reader) -> Unit:
        offset = reader.at
        size, is_wide = reader.unit_length()
        end = reader.at + size
        version, kind, wide = reader.fixed(2), 0, 8 if is_wide else 4
        if version >= 5:
            kind, address_bytes = reader.fixed(1), reader.fixed(1)
            abbreviations = reader.fixed(wide)
            if kind in TYPE_UNITS:
                reader.at += 8 + wide
            elif kind in SKELETONS:
                reader.at += 8
        else:
            abbreviations, address_bytes = reader.fixed(wide), reader.fixed(1)
        fixed = (version, is_wide, abbreviations, reader.at, address_bytes)
        return Unit(self, offset, end, *fixed, kind in TYPE_UNITS)

    @cached_property
    def offsets(self) -> list[int]:
        return [unit.offset for unit in self.units]

    def unit_at(self, offset: int) -> Unit:
        """The unit that contains an offset of .debug_info."""
        return self.units[max(bisect_right(self.offsets, offset) - 1, 0)]

    @cached_property
    def tabled(self) -> tuple[list[tuple[int, int, int]], set[int]]:
        """Rows of .debug_aranges, sorted: start, end and unit; and the units that it lists."""
        data = self.section(".debug_aranges")
        reader, rows, listed = Reader(data, 0), [], set()
        while reader.at < len(data):
            start = reader.at
            size, is_wide = reader.unit_length()
            end = reader.at + size
            reader.at += 2
            unit = reader.fixed(8 if is_wide else 4)
            if reader.fixed(1) == 8 and reader.fixed(1) == 0:
                first = start + (reader.at - start + 15) // 16 * 16
                raw = data[first:end]
                pairs = np.frombuffer(raw[: len(raw) // 16 * 16], "<u8").reshape(-1, 2).tolist()
                found = [(low, low + length, unit) for low, length in pairs if low and length]
                rows += found
                if found:
                    listed.add(unit)
            reader.at = end
        return sorted(rows), listed

    @cached_property
    def untabled(self) -> list[tuple[int, int, int]]:
        """The ranges of units that compilers made no table of."""
        _, listed = self.tabled
        return sorted(
            (low, high, unit.offset)
            for unit in self.units
            if unit.offset not in listed and not unit.is_type
            for low, high in unit.ranges
        )

    def unit_of(self, address: int) -> Unit | None:
        for rows in (self.tabled[0], self.untabled):
            at = bisect_right(rows, (address, 1 << 64, 0)) - 1
            if at >= 0 and rows[at][0] <= address < rows[at][1]:
                return self.unit_at(rows[at][2])
        return None

    def ranges(self, unit: Unit, value: tuple[int, int]) -> Ranges:
        form, at = value
        if unit.version < 5:
            return list(self.old_list(unit, at))
        if form == RANGES_INDEX:
            start = unit.number(RANGES_BASE, 20 if unit.is_wide else 12)
            wide = 8 if unit.is_wide else 4
            at = start + Reader(self.range_lists, start + at * wide).fixed(wide)
        return list(self.list_of(unit, at))

    def old_list(self, unit: Unit, at: int) -> Iterator[tuple[int, int]]:
        base = unit.base
        while True:
            low, high = struct.unpack_from("<QQ", self.old_ranges, at)
            at += 16
            if not low and not high:
                return
            if low == (1 << 64) - 1:
                base = high
            else:
                yield base + low, base + high

    def list_of(self, unit: Unit, at: int) -> Iterator[tuple[int, int]]:
        """DW_RLE_ entries, up to their end."""
        reader, base, size = Reader(self.range_lists, at), unit.base, unit.address_bytes

        def indexed() -> int:
            return unit.address((0x1B, reader.uleb()))

        while kind := reader.fixed(1):
            if kind == 1:
                base = indexed()
            elif kind == 2:
                yield indexed(), indexed()
            elif kind == 3:
                low = indexed()
                yield low, low + reader.uleb()
            elif kind == 4:
                yield base + reader.uleb(), base + reader.uleb()
            elif kind == 5:
                base = reader.fixed(size)
            elif kind == 6:
                yield reader.fixed(size), reader.fixed(size)
            elif kind == 7:
                low = reader.fixed(size)
                yield low, low + reader.uleb()
            else:
                raise ValueError("a list of ranges has an unknown entry")

    def places(self, address: int) -> list[Place]:
        """Functions and lines at an address, the innermost inlined function first."""
        unit = self.unit_of(address)
        if unit is None:
            return []
        try:
            found = unit.places(address)
        except (ValueError, IndexError, KeyError, struct.error):
            found = []  # of a file that is damaged, or in part elsewhere
        if found and found[0].line:
            return found
        line = unit.program.at(address)
        return [Place(b"", unit.program.file_name(line[0]), line[1])] if line else []
