# SPDX-License-Identifier: MIT
"""Functions and lines of one ELF file: by line programs if it has any, else by sized symbols.

An address is the file's own (what was loaded, less the module's bias). Nothing is taken from a file
whose build-id is not the one that was recorded: it would give wrong names without a sign.
"""

from __future__ import annotations

import posixpath
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from rouse.symbols.demangle import demangled

DEBUG_FILES = Path("/usr/lib/debug/.build-id")
SYMBOL = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
FUNCTION_TYPES = (2, 10)  # STT_FUNC, STT_GNU_IFUNC
VARIABLE_TYPES = (1,)  # STT_OBJECT
Symbols = npt.NDArray[np.void]
GLOBAL = 1
LOOK_BACK = 16  # symbols that begin before an address, looked at for the one that contains it


@dataclass(frozen=True)
class Line:
    file: str
    line: int


@dataclass(frozen=True)
class Rows:
    """A line program run through: `lines[i]` from `addresses[i]` on; line 0 ends a sequence."""

    addresses: npt.NDArray[np.uint64]
    files: npt.NDArray[np.intp]
    lines: npt.NDArray[np.intp]
    names: list[str]


class ElfError(Exception):
    """Why a file is not used."""


class Elf:
    def __init__(self, path: Path, build_id: str = "") -> None:
        """build_id: the one it must have, in hexadecimal; empty: not known."""
        try:
            self.file: Any = self.opened(path)
            own = self.read_build_id()
        except OSError as error:
            raise ElfError(f"{path}: {error.strerror}") from error
        except Exception as error:  # pyelftools fails in many ways on a file that is damaged
            raise ElfError(f"{path}: is no ELF file that can be read: {error!r}") from error
        if build_id and own != build_id:
            raise ElfError(f"{path}: is another build than the one that ran")
        self.path = path
        self.build_id = own
        self.strings = b""
        self.symbols: Symbols = self.guarded(self.read_symbols, np.zeros(0, SYMBOL))
        self.functions = self.of_types(FUNCTION_TYPES)
        self.variables = self.of_types(VARIABLE_TYPES)
        self.debug: Any = self.guarded(self.open_debug, None)
        self.ranges: list[tuple[int, int, Any]] | None = None
        self.programs: dict[int, Rows] = {}

    def opened(self, path: Path) -> Any:
        """Read as it is needed, until this is no more."""
        stream = path.open("rb")
        weakref.finalize(self, stream.close)
        return ELFFile(stream)

    @staticmethod
    def guarded(call: Any, otherwise: Any) -> Any:
        """Reading a damaged part of a file gives nothing, and raises nothing."""
        try:
            return call()
        except Exception:  # see __init__
            return otherwise

    def read_build_id(self) -> str:
        for section in self.file.iter_sections():
            if not isinstance(section, NoteSection):
                continue
            for note in section.iter_notes():
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
        return ""

    # Symbols

    def read_symbols(self) -> Symbols:
        table = self.file.get_section_by_name(".symtab") or self.file.get_section_by_name(".dynsym")
        if table is None:
            return np.zeros(0, SYMBOL)
        data = table.data()
        symbols = np.frombuffer(data[: len(data) // SYMBOL.itemsize * SYMBOL.itemsize], SYMBOL)
        symbols = symbols[(symbols["section"] != 0) & (symbols["size"] > 0)]
        self.strings = self.file.get_section(table["sh_link"]).data()
        # Of names for one place the last is looked at first: a global one.
        order = np.lexsort([symbols["info"] >> 4 == GLOBAL, symbols["value"]])
        return np.asarray(symbols[order])

    def of_types(self, types: Sequence[int]) -> Symbols:
        return np.asarray(self.symbols[np.isin(self.symbols["info"] & 15, types)])

    def function(self, address: int) -> tuple[str, int] | None:
        """The function that contains an address, and how far into it that is."""
        return self.symbol(self.functions, address)

    def variable(self, address: int) -> tuple[str, int] | None:
        return self.symbol(self.variables, address)

    def symbol(self, symbols: Symbols, address: int) -> tuple[str, int] | None:
        values = symbols["value"]
        at = int(np.searchsorted(values, np.uint64(address), "right")) - 1
        for i in range(at, max(at - LOOK_BACK, -1), -1):
            offset = address - int(values[i])
            if offset < int(symbols["size"][i]):
                start = int(symbols["name"][i])
                name = self.strings[start : self.strings.find(b"\0", start)]
                return demangled(name).decode("utf-8", "replace"), offset
        return None

    # Lines

    def open_debug(self) -> Any:
        """The debug information, of this file or of the one that holds it apart."""
        if self.file.has_dwarf_info(strict=True):
            return self.file.get_dwarf_info()
        apart = DEBUG_FILES / self.build_id[:2] / f"{self.build_id[2:]}.debug"
        if self.build_id and apart.is_file():
            other = self.opened(apart)
            return other.get_dwarf_info() if other.has_dwarf_info(strict=True) else None
        return None

    def line(self, address: int) -> Line | None:
        if self.debug is None:
            return None
        found: Line | None = self.guarded(lambda: self.find_line(address), None)
        return found

    def find_line(self, address: int) -> Line | None:
        unit = self.unit_of(address)
        if unit is None:
            return None
        if unit.cu_offset not in self.programs:
            self.programs[unit.cu_offset] = self.run_program(unit)
        rows = self.programs[unit.cu_offset]
        at = int(np.searchsorted(rows.addresses, np.uint64(address), "right")) - 1
        if at < 0 or rows.lines[at] == 0:
            return None
        file = int(rows.files[at])
        return Line(rows.names[file] if file < len(rows.names) else "?", int(rows.lines[at]))

    def unit_of(self, address: int) -> Any:
        """The compilation unit that an address is of."""
        if self.ranges is None:
            self.ranges = self.read_ranges()
        for start, end, unit in self.ranges:
            if start <= address < end:
                return unit
        return None

    def read_ranges(self) -> list[tuple[int, int, Any]]:
        aranges = self.debug.get_aranges()
        if aranges is not None and aranges.entries:
            return [
                (e.begin_addr, e.begin_addr + e.length, self.debug.get_CU_at(e.info_offset))
                for e in aranges.entries
            ]
        found = []
        for unit in self.debug.iter_CUs():
            found += [(start, end, unit) for start, end in self.unit_ranges(unit)]
        return found

    def unit_ranges(self, unit: Any) -> list[tuple[int, int]]:
        """Where a unit's code lies, for compilers that make no table of it."""
        top = unit.get_top_DIE()
        attributes = top.attributes
        base = attributes["DW_AT_low_pc"].value if "DW_AT_low_pc" in attributes else 0
        if "DW_AT_high_pc" in attributes:
            high = attributes["DW_AT_high_pc"]
            end = high.value if high.form == "DW_FORM_addr" else base + high.value
            return [(base, end)]
        if "DW_AT_ranges" not in attributes:
            return []
        found = []
        lists = self.debug.range_lists()
        for entry in lists.get_range_list_at_offset(attributes["DW_AT_ranges"].value, unit):
            if hasattr(entry, "base_address"):
                base = entry.base_address
            elif getattr(entry, "is_absolute", False):
                found.append((entry.begin_offset, entry.end_offset))
            else:
                found.append((base + entry.begin_offset, base + entry.end_offset))
        return found

    def run_program(self, unit: Any) -> Rows:
        program = self.debug.line_program_for_CU(unit)
        states = [entry.state for entry in program.get_entries() if entry.state is not None]
        addresses = np.array([s.address for s in states], np.uint64)
        # An end of a sequence at the address where the next one begins does not hide that.
        ends = np.array([s.end_sequence for s in states], np.bool_)
        order = np.lexsort([~ends, addresses])
        return Rows(
            addresses[order],
            np.array([s.file for s in states], np.intp)[order],
            np.array([0 if s.end_sequence else s.line for s in states], np.intp)[order],
            self.file_names(unit, program),
        )

    @staticmethod
    def file_names(unit: Any, program: Any) -> list[str]:
        """By the numbers that the program uses, which begin at 1 before DWARF 5."""
        top = unit.get_top_DIE().attributes
        home = top["DW_AT_comp_dir"].value if "DW_AT_comp_dir" in top else b""
        header = program.header
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
