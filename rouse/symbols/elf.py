# SPDX-License-Identifier: MIT
"""Functions and lines of one ELF file: by line programs if it has any, else by sized symbols.

An address is the file's own (what was loaded, less the module's bias). Nothing is taken from a file
whose build-id is not the one that was recorded: it would give wrong names without a sign.
"""

from __future__ import annotations

import os
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from rouse import regular
from rouse.symbols import packages
from rouse.symbols.demangle import demangled
from rouse.symbols.lines import Lines, Place

DEBUG_FILES = Path("/usr/lib/debug")
SUMMED_MOST = 2 << 30  # bytes of a file whose checksum is computed
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
    """A line, and the function whose source contains it. The function may be empty."""

    file: str
    line: int
    function: str = ""


class ElfError(Exception):
    """Why a file is not used."""


def build_id_of(file: Any) -> str:
    """Return the build-id of an open ELF file, in hexadecimal. Empty: it has none."""
    for section in file.iter_sections():
        if not isinstance(section, NoteSection):
            continue
        for note in section.iter_notes():
            if note["n_type"] == "NT_GNU_BUILD_ID":
                return str(note["n_desc"])
    return ""


def has_debug(file: Any) -> bool:
    """Whether an open ELF file has DWARF. Unwind tables, which pyelftools counts, are none."""
    names = (".debug_info", ".zdebug_info")
    return any(file.get_section_by_name(name) is not None for name in names)


def has_checksum(path: Path, wanted: int) -> bool:
    """Whether it is a regular file with this CRC-32, and not too large to read as a whole."""
    crc = 0
    try:
        with regular.opened(path, SUMMED_MOST) as file:
            while chunk := file.read(1 << 20):
                crc = zlib.crc32(chunk, crc)
    except OSError:
        return False
    return crc == wanted


class Elf:
    def __init__(self, path: Path, build_id: str = "") -> None:
        """build_id: the expected one, in hexadecimal. Empty: not known."""
        try:
            self.file: Any = self.opened(path)
            own = build_id_of(self.file)
        except OSError as error:
            raise ElfError(f"{path}: {error.strerror}") from error
        except MemoryError:
            raise
        except Exception as error:  # pyelftools fails in many ways on a file that is damaged
            raise ElfError(f"{path}: is no ELF file that can be read: {error!r}") from error
        if build_id and own != build_id:
            raise ElfError(f"{path}: is another build than the one that ran")
        self.path = path
        self.build_id = own
        self.apart: Any = self.guarded(self.open_apart, None)
        self.strings = b""
        self.symbols: Symbols = self.guarded(self.read_symbols, np.zeros(0, SYMBOL))
        self.functions = self.of_types(FUNCTION_TYPES)
        self.variables = self.of_types(VARIABLE_TYPES)
        self.debug: Lines | None = self.guarded(self.open_debug, None)

    def opened(self, path: Path) -> Any:
        """Open the file, and read from it as needed."""
        stream = regular.opened(path, regular.LARGEST)
        weakref.finalize(self, stream.close)
        return ELFFile(stream)

    @staticmethod
    def guarded(call: Any, otherwise: Any) -> Any:
        """Turn errors from a damaged part of a file into no result.

        Too little memory is no damage: names would vanish without a sign.
        """
        try:
            return call()
        except MemoryError:
            raise
        except Exception:  # see __init__
            return otherwise

    # The file that has the debug information, if it is a separate one

    def linked(self) -> Iterator[Path]:
        """Yield the places where .gnu_debuglink may mean a file, as GDB looks for it."""
        section, folder = (
            self.file.get_section_by_name(".gnu_debuglink"),
            self.path.resolve().parent,
        )
        if section is None:
            return
        # A name that ends with a zero, padding to four bytes, and the file's checksum.
        text = section.data()
        name = Path(os.fsdecode(text.partition(b"\0")[0])).name
        checksum = int.from_bytes(text[-4:], "little" if self.file.little_endian else "big")
        for place in (folder, folder / ".debug", DEBUG_FILES / folder.relative_to("/")):
            if place / name != self.path and has_checksum(place / name, checksum):
                yield place / name

    def open_apart(self) -> Any:
        """Open the separate file. None: there is none, or it belongs to another build."""
        if self.build_id:
            named = DEBUG_FILES / ".build-id" / self.build_id[:2] / f"{self.build_id[2:]}.debug"
            if named.exists():
                return self.opened(named)
        for path in self.linked():
            file = self.opened(path)
            if build_id_of(file) == self.build_id:
                return file
        if not self.build_id or has_debug(self.file):
            return None
        fetched = packages.fetched(self.build_id)
        file = self.opened(fetched) if fetched else None
        return file if file and build_id_of(file) == self.build_id else None

    # Symbols

    def read_symbols(self) -> Symbols:
        for file, name in (
            (self.file, ".symtab"),
            (self.apart, ".symtab"),
            (self.file, ".dynsym"),
        ):
            table = file.get_section_by_name(name) if file else None
            if table is not None and table["sh_type"] != "SHT_NOBITS":
                break
        else:
            return np.zeros(0, SYMBOL)
        data = table.data()
        symbols = np.frombuffer(data[: len(data) // SYMBOL.itemsize * SYMBOL.itemsize], SYMBOL)
        symbols = symbols[(symbols["section"] != 0) & (symbols["size"] > 0)]
        self.strings = file.get_section(table["sh_link"]).data()
        # A search begins with the last name of an address: a global one, if there is any.
        order = np.lexsort([symbols["info"] >> 4 == GLOBAL, symbols["value"]])
        return np.asarray(symbols[order])

    def of_types(self, types: Sequence[int]) -> Symbols:
        return np.asarray(self.symbols[np.isin(self.symbols["info"] & 15, types)])

    def function(self, address: int) -> tuple[str, int] | None:
        """Return the function that contains an address, and the offset in it."""
        return self.symbol(self.functions, address)

    def code(self, address: int, most: int) -> tuple[int, bytes] | None:
        """Return where the function that contains an address begins, and its first bytes."""
        values = self.functions["value"]
        found = self.function(address)
        if found is None:
            return None
        start = address - found[1]
        same = self.functions[values == np.uint64(start)]
        for segment in self.file.iter_segments():
            begin = segment["p_vaddr"]
            if segment["p_type"] == "PT_LOAD" and begin <= start < begin + segment["p_filesz"]:
                self.file.stream.seek(segment["p_offset"] + start - begin)
                return start, self.file.stream.read(min(int(same["size"].max()), most))
        return None

    def variable(self, address: int) -> tuple[str, int] | None:
        return self.symbol(self.variables, address)

    def symbol(self, symbols: Symbols, address: int) -> tuple[str, int] | None:
        values = symbols["value"]
        at = int(np.searchsorted(values, np.uint64(address), "right")) - 1
        for i in range(at, max(at - LOOK_BACK, -1), -1):
            offset = address - int(values[i])
            if offset < int(symbols["size"][i]):
                return self.name_of(symbols[i]), offset
        return None

    def name_of(self, symbol: np.void) -> str:
        start = int(symbol["name"])
        name = self.strings[start : self.strings.find(b"\0", start)]
        return demangled(name).decode("utf-8", "replace")

    def variables_called(self, name: str) -> list[tuple[int, int]]:
        """Return where variables of this name begin, and their sizes."""
        return sorted(
            {
                (int(one["value"]), int(one["size"]))
                for one in self.variables
                if self.name_of(one) == name
            }
        )

    # Lines

    def open_debug(self) -> Lines | None:
        """Return the debug information of this file, or of the separate file that has it."""
        for file in (self.file, self.apart):
            if file and has_debug(file):
                return Lines(file.get_dwarf_info())
        return None

    def places(self, address: int) -> list[Line]:
        """Return functions and lines at an address, the innermost inlined function first."""
        lines = self.debug
        if lines is None:
            return []
        places: list[Place] = self.guarded(lambda: lines.places(address), [])
        found = [
            Line(p.file, p.line, demangled(p.function).decode("utf-8", "replace")) for p in places
        ]
        symbol = self.function(address) if places else None
        # Only the symbol names a lambda's scopes. A C symbol may be a clone's: name.isra.0.
        is_mangled = places and places[-1].function.startswith((b"_Z", b"_R"))
        if symbol and not is_mangled and ("(" in symbol[0] or not found[-1].function):
            found[-1] = Line(found[-1].file, found[-1].line, symbol[0])
        return [place for place in found if place.line]

    def line(self, address: int) -> Line | None:
        places = self.places(address)
        return places[0] if places else None


OPEN_MOST = 64
_open: OrderedDict[tuple[int, ...], Elf] = OrderedDict()  # the least recently used first


def open_elf(path: Path, build_id: str = "") -> Elf:
    """Open a file, or return it as it was opened before: reading its tables takes most of the time.

    A file that was written or replaced since is opened anew. Raises ElfError.
    """
    try:
        status = path.stat()
    except OSError as error:
        raise ElfError(f"{path}: {error.strerror}") from error
    key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    if key not in _open:
        _open[key] = Elf(path, build_id)
        if len(_open) > OPEN_MOST:
            _open.popitem(last=False)
    _open.move_to_end(key)
    found = _open[key]
    if build_id and found.build_id != build_id:
        raise ElfError(f"{path}: is another build than the one that ran")
    return found
