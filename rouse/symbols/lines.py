# SPDX-License-Identifier: MIT
"""Lines and inlined functions at an address, from the DWARF that pyelftools reads.

Only the compilation unit of the address is read: its line program, and of its tree the functions,
then the entries of one function that contain the address.
"""

from __future__ import annotations

import posixpath
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from elftools import __version__ as elftools_version
from elftools.dwarf import dwarfinfo

from rouse.symbols.demangle import demangled, short

# This version, that of Debian 12, makes the same structures anew for each unit: 20 s for 4,000 of
# them in place of 0.3.
if elftools_version == "0.29":
    vars(dwarfinfo)["DWARFStructs"] = cache(vars(dwarfinfo)["DWARFStructs"])

Ranges = list[tuple[int, int]]
NAMES = ("DW_AT_linkage_name", "DW_AT_MIPS_linkage_name", "DW_AT_name")
ORIGINS = ("DW_AT_abstract_origin", "DW_AT_specification")
MOST_ORIGINS = 8  # links from an inlined function to its name; a damaged file may have a cycle
NESTS = (
    *("DW_TAG_subprogram", "DW_TAG_lexical_block"),
    *("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type"),
)
BLOCKS = ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine", "DW_TAG_try_block")
NAMESPACE, FUNCTION, TYPES = "DW_TAG_namespace", NESTS[0], NESTS[2:]
MOST_SCOPES = 32  # around a function; a damaged file may have a cycle
CPLUSPLUS = (0x04, 0x1A, 0x21, 0x2B)  # the codes of the language's versions
CALL = b"operator()"
CLOSURE = b"$closure$"  # in Rust's older linkage names, where all closures of a function are one


class Place(NamedTuple):
    """A line, and the function whose source contains it. The function may be empty."""

    function: bytes
    file: str
    line: int


@dataclass(frozen=True)
class Rows:
    """The result of a line program: `lines[i]` from `addresses[i]` on. Line 0 ends a sequence."""

    addresses: npt.NDArray[np.uint64]
    files: npt.NDArray[np.intp]
    lines: npt.NDArray[np.intp]

    def at(self, address: int) -> tuple[int, int] | None:
        """Return the number of the file, and the line."""
        row = int(np.searchsorted(self.addresses, np.uint64(address), "right")) - 1
        if row < 0 or self.lines[row] == 0:
            return None
        return int(self.files[row]), int(self.lines[row])


def value(die: Any, attribute: str) -> Any:
    return die.attributes[attribute].value if attribute in die.attributes else None


def nameless_types(die: Any) -> list[int]:
    """Return the offsets of the types without a name in a function, in order."""
    found = []
    for child in die.iter_children():
        if child.tag in TYPES and "DW_AT_name" not in child.attributes:
            found.append(child.offset)
        elif child.tag == BLOCKS[0]:
            found += nameless_types(child)
    return sorted(found)


class Unit:
    """A compilation unit."""

    def __init__(self, debug: Any, unit: Any) -> None:
        self.debug, self.unit = debug, unit
        self.top = unit.get_top_DIE()
        self.layers: list[list[tuple[int, int, Any]]] = []  # sorted functions, and their ranges
        self.unread = [self.top]  # entries whose functions are to be read next
        self.nested: list[Any] = []  # entries in which functions are defined rarely: read last
        self.lambdas: dict[int, list[int]] = {}  # the offsets of lambdas in a function, by its own
        self.known: dict[int, list[Any]] = {}  # the children of an entry, by its offset

    def children(self, die: Any) -> list[Any]:
        """Return the children of an entry, in the order of their offsets.

        pyelftools reads each entry once, but looks for it again at each walk.
        """
        if die.offset not in self.known:
            self.known[die.offset] = list(die.iter_children())
        return self.known[die.offset]

    def parent(self, die: Any) -> Any:
        """Return the entry around an entry. None: there is none."""
        if die.cu.cu_offset != self.unit.cu_offset:
            return die.get_parent()
        around, at = None, self.top
        while at.offset != die.offset:
            inside = self.children(at)
            next_one = bisect_right(inside, die.offset, key=lambda child: child.offset) - 1
            if next_one < 0:
                return None
            around, at = at, inside[next_one]
        return around

    def ranges_of(self, die: Any) -> Ranges:
        """Return the code ranges of an entry."""
        low, high = value(die, "DW_AT_low_pc"), die.attributes.get("DW_AT_high_pc")
        if high is not None:
            return [(low, high.value if high.form.startswith("DW_FORM_addr") else low + high.value)]
        listed = die.attributes.get("DW_AT_ranges")
        if listed is None:
            return []
        found, base = [], value(self.top, "DW_AT_low_pc") or 0
        lists = self.debug.range_lists()
        for entry in lists.get_range_list_at_offset(listed.value, self.unit):
            if hasattr(entry, "base_address"):
                base = entry.base_address
            else:
                add = 0 if getattr(entry, "is_absolute", False) else base
                found.append((add + entry.begin_offset, add + entry.end_offset))
        return found

    def contains(self, die: Any, address: int) -> bool:
        return any(low <= address < high for low, high in self.ranges_of(die))

    @cached_property
    def rows(self) -> Rows:
        program = self.debug.line_program_for_CU(self.unit)
        states = [entry.state for entry in program.get_entries() if entry.state is not None]
        addresses = np.array([s.address for s in states], np.uint64)
        # An end of a sequence at the address where the next one begins does not hide that.
        ends = np.array([s.end_sequence for s in states], np.bool_)
        order = np.lexsort([~ends, addresses])
        return Rows(
            addresses[order],
            np.array([s.file for s in states], np.intp)[order],
            np.array([0 if s.end_sequence else s.line for s in states], np.intp)[order],
        )

    @cached_property
    def files(self) -> list[str]:
        """The file names by the numbers of the line program, which begin at 1 before DWARF 5."""
        header = self.debug.line_program_for_CU(self.unit).header
        home = value(self.top, "DW_AT_comp_dir") or b""
        folders = list(header["include_directory"])
        is_old = header["version"] < 5
        if is_old:
            folders.insert(0, home)
        names = ["?"] if is_old else []
        for entry in header["file_entry"]:
            folder = folders[entry.dir_index] if entry.dir_index < len(folders) else b""
            whole = posixpath.join(home, folder, entry.name).decode("utf-8", "replace")
            names.append(posixpath.normpath(whole))
        return names

    def file(self, number: int) -> str:
        return self.files[number] if number < len(self.files) else "?"

    def read_layer(self) -> bool:
        """Read the functions one level of namespaces further down. False: there are no more.

        After the namespaces come types and functions: GCC defines the body of a lambda, and the
        methods of a local class, inside the function that contains them.
        """
        if not self.unread:
            self.unread, self.nested = self.nested, []
        if not self.unread:
            return False
        found, below = [], []
        for die in self.unread:
            for child in self.children(die):
                if child.tag == NAMESPACE:
                    below.append(child)
                elif child.tag in NESTS and child.has_children:
                    self.nested.append(child)
                if child.tag == "DW_TAG_subprogram":
                    found += [(low, high, child) for low, high in self.ranges_of(child) if low]
        self.layers.append(sorted(found, key=lambda function: function[:2]))
        self.unread = below
        return True

    def function(self, address: int) -> Any:
        """Return the function at an address.

        GCC defines functions in the unit. Clang defines them in their namespace, which costs more
        to read.
        """
        number = 0
        while number < len(self.layers) or self.read_layer():
            layer = self.layers[number]
            at = bisect_right(layer, address, key=lambda function: function[0]) - 1
            if at >= 0 and address < layer[at][1]:
                return layer[at][2]
            number += 1
        return None

    def inlined(self, die: Any, address: int) -> Any:
        """Return the child that contains the address: a block, or an inlined function."""
        for child in self.children(die):
            if child.tag in BLOCKS and self.contains(child, address):
                return child
        return None

    def name(self, die: Any, depth: int = 0) -> bytes:
        """Return the linkage name, or else the name in the source, or else nothing."""
        name = b""
        for _ in range(MOST_ORIGINS):
            for attribute in NAMES[:2]:
                if attribute in die.attributes:
                    linked, own = bytes(value(die, attribute)), value(die, "DW_AT_name")
                    return self.scoped(die, own, depth) if CLOSURE in linked and own else linked
            name = name or value(die, "DW_AT_name") or b""
            origin = next((name for name in ORIGINS if name in die.attributes), None)
            if origin is None:
                break
            die = die.get_DIE_from_attribute(origin)
        return self.scoped(die, bytes(name), depth) if name and self.is_cplusplus else bytes(name)

    @cached_property
    def is_cplusplus(self) -> bool:
        return value(self.top, "DW_AT_language") in CPLUSPLUS

    def scoped(self, die: Any, name: bytes, depth: int) -> bytes:
        """Return the name with those of the namespaces, types and functions around it.

        Functions that no other unit can call have no linkage name: lambdas, methods of local
        classes, and all that is in a namespace without a name.
        """
        for level in range(depth, MOST_SCOPES):
            die = self.parent(die)
            if die is None:
                break
            if die.tag == FUNCTION:
                # Its own name has the scopes around it.
                around = self.name(die, level + 1)
                outer = short(demangled(around).decode("utf-8", "replace")).encode()
                return outer + b"::" + name if outer else name
            around = value(die, "DW_AT_name") or b""
            if die.tag in TYPES and not around and name == CALL:
                name = b"{lambda()#%d}" % self.number_of_lambda(die)
            elif around and die.tag in (*TYPES, NAMESPACE):
                name = around + b"::" + name
        return name

    def number_of_lambda(self, type_of_it: Any) -> int:
        """Return the lambda's number among those of the function around it, from 1 on."""
        around = type_of_it
        while around is not None and around.tag != FUNCTION:
            around = self.parent(around)
        if around is None:
            return 1
        if around.offset not in self.lambdas:
            self.lambdas[around.offset] = nameless_types(around)
        known = self.lambdas[around.offset]
        return known.index(type_of_it.offset) + 1 if type_of_it.offset in known else 1

    def places(self, address: int) -> list[Place]:
        """Return functions and lines at an address, the innermost inlined function first."""
        row = self.rows.at(address)
        if row is None:
            return []
        file, line = row
        die, chain = self.function(address), []
        while die is not None:
            if die.tag not in BLOCKS or die.tag == BLOCKS[1]:
                chain.append(die)
            die = self.inlined(die, address)
        found = []
        for die in reversed(chain):
            found.append(Place(self.name(die), self.file(file), line))
            file, line = value(die, "DW_AT_call_file") or 0, value(die, "DW_AT_call_line") or 0
        return found or [Place(b"", self.file(file), line)]


class Lines:
    """The debug information of a file."""

    def __init__(self, debug: Any) -> None:
        self.debug = debug
        self.units: dict[int, Unit] = {}

    @cached_property
    def tabled(self) -> list[tuple[int, int, int]]:
        """Rows of .debug_aranges, sorted: start, end and the unit's offset."""
        table = self.debug.get_aranges()
        entries = table.entries if table is not None else []
        found = {(e.begin_addr, e.begin_addr + e.length, e.info_offset) for e in entries}
        return sorted(row for row in found if row[0])

    @cached_property
    def untabled(self) -> list[tuple[int, int, int]]:
        """The same for units without a table."""
        listed = {offset for _, _, offset in self.tabled}
        found = []
        for unit in self.debug.iter_CUs():
            if unit.cu_offset not in listed:
                mine = Unit(self.debug, unit)
                ranges = mine.ranges_of(mine.top)
                found += [(low, high, unit.cu_offset) for low, high in ranges if low]
        return sorted(found)

    def unit_of(self, address: int) -> Unit | None:
        for rows in (self.tabled, self.untabled):
            at = bisect_right(rows, address, key=lambda row: row[0]) - 1
            if at >= 0 and address < rows[at][1]:
                offset = rows[at][2]
                if offset not in self.units:
                    self.units[offset] = Unit(self.debug, self.debug.get_CU_at(offset))
                return self.units[offset]
        return None

    def places(self, address: int) -> list[Place]:
        """Functions and lines at an address, the innermost inlined function first."""
        unit = self.unit_of(address)
        return unit.places(address) if unit else []
