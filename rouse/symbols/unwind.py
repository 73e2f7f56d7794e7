# SPDX-License-Identifier: MIT
"""Find the callers of a function from registers and a copy of the stack, by .eh_frame.

Copy and tables are the program's own, and may be damaged: each step must go up the stack, and end
in code that is mapped for execution. The steps, and the instructions of a table, are counted.

Code without a table, as in Go, is followed by its frame pointers. Rejected: pyelftools' decoder of
these tables. It copies its whole state at each instruction, so a damaged table may take minutes.
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

DEEPEST = 64  # frames of a stack
INSTRUCTIONS_MOST = 4096  # of a table up to an address
REMEMBERED_MOST = 64  # states that a table may keep at once
TABLES_BYTES_MOST = 256 << 20
FUNCTIONS_MOST = 1 << 20  # of a file that has no index of them
WORD = 8
ADDRESS_BITS = (1 << 48) - 1  # AArch64 may sign a return address in the others
# Numbers of registers in the tables. The return address has a column of its own on x86-64.
IS_ARM = platform.machine() == "aarch64"
FRAME, STACK, RETURN = (29, 31, 30) if IS_ARM else (6, 7, 16)
POINTER_PCREL_SDATA4, COUNT_UDATA4, TABLE_DATAREL_SDATA4 = 0x1B, 0x03, 0x3B
ABSOLUTE, SIGNED = 0x00, 0x08
PCREL, OMIT = 0x10, 0xFF
FORMATS = {0x00: "<Q", 0x02: "<H", 0x03: "<I", 0x04: "<Q", 0x0A: "<h", 0x0B: "<i", 0x0C: "<q"}

SAME, SAVED, UNKNOWN = range(3)
UNREADABLE = -1  # of Row.register: an expression, as at a signal's frame


class DamagedError(Exception):
    """The tables cannot be used."""


class Reader:
    """Decodes numbers from bytes."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        if not 0 <= at <= end <= len(data):
            raise DamagedError
        self.data, self.at, self.end = data, at, end

    def number(self, form: str) -> int:
        size = struct.calcsize(form)
        if self.at + size > self.end:
            raise DamagedError
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return int(value)

    def byte(self) -> int:
        return self.number("<B")

    def leb(self, is_signed: bool = False) -> int:
        value = shift = 0
        while shift < 70:
            part = self.byte()
            value |= (part & 0x7F) << shift
            shift += 7
            if not part & 0x80:
                return value - (1 << shift) if is_signed and part & 0x40 else value
        raise DamagedError

    def skip(self, count: int) -> None:
        if count > self.end - self.at:
            raise DamagedError
        self.at += count

    def text(self) -> bytes:
        end = self.data.find(b"\0", self.at, self.end)
        if end < 0:
            raise DamagedError
        found = self.data[self.at : end]
        self.at = end + 1
        return found

    def pointer(self, encoding: int, base: int) -> int:
        """Decode an encoded address. base: the address of the section's first byte."""
        form = FORMATS.get(encoding & 0x0F)
        if form is None or encoding & 0x70 not in (ABSOLUTE, PCREL):
            raise DamagedError
        here = base + self.at
        return self.number(form) + (here if encoding & 0x70 == PCREL else 0)


@dataclass(frozen=True)
class Row:
    """How to find the caller of code at an address: the frame's end, and saved registers."""

    register: int  # the end of the frame is at this register plus the offset
    offset: int
    caller: tuple[int, int] = (SAME, 0)  # of the return address; SAVED: at this offset of the end
    frame: tuple[int, int] = (SAME, 0)  # of the frame pointer


@dataclass(frozen=True)
class Common:
    """The part that the tables of many functions share."""

    code_step: int
    data_step: int
    encoding: int
    has_length: bool
    begin: int  # of the instructions
    end: int


class Tables:
    """The tables of one file."""

    def __init__(self, file: Any) -> None:
        """file: an ELFFile. Without usable tables there are no rows."""
        self.known: dict[int, Row | None] = {}
        self.commons: dict[int, Common] = {}
        self.data = b""
        self.base = 0
        self.starts = self.entries = np.zeros(0, np.int64)
        try:
            self.read(file)
        except Exception:  # pyelftools fails in many ways on a file that is damaged
            self.starts = self.entries = np.zeros(0, np.int64)

    def read(self, file: Any) -> None:
        head, tables = map(file.get_section_by_name, (".eh_frame_hdr", ".eh_frame"))
        if tables is None or tables["sh_size"] > TABLES_BYTES_MOST:
            return
        self.data, self.base = tables.data(), tables["sh_addr"]
        index = self.index_of(head.data(), head["sh_addr"]) if head else None
        if index is None:  # as in static programs
            index = np.array(list(self.functions()), np.int64).reshape(-1, 2)
            index = index[np.argsort(index[:, 0], kind="stable")]
        self.starts, self.entries = index[:, 0], index[:, 1]

    @staticmethod
    def index_of(data: bytes, base: int) -> npt.NDArray[np.int64] | None:
        """Return starts of functions and their entries, as .eh_frame_hdr has them."""
        if tuple(data[1:4]) != (POINTER_PCREL_SDATA4, COUNT_UDATA4, TABLE_DATAREL_SDATA4):
            return None
        count = min(int.from_bytes(data[8:12], "little"), (len(data) - 12) // WORD)
        words = np.frombuffer(data[12 : 12 + count * WORD], "<i4")
        return words.reshape(-1, 2).astype(np.int64) + base

    def functions(self) -> Iterator[tuple[int, int]]:
        """Find the entries one after the other."""
        at = 0
        for _ in range(FUNCTIONS_MOST):
            try:
                reader = self.entry(at)
                end, pointer_at = reader.end, reader.at
                if reader.at == end:  # the last one of a file that was linked
                    return
                distance = reader.number("<I")
                if distance:
                    common = self.common(pointer_at - distance)
                    start = reader.pointer(common.encoding, self.base)
                    if start < 1 << 63:
                        yield start, at + self.base
            except DamagedError:
                return
            at = end

    def row(self, address: int) -> Row | None:
        """Return how to find the caller of code. None: the tables do not say."""
        if address not in self.known:
            try:
                self.known[address] = self.look_up(address)
            except DamagedError:
                self.known[address] = None
        return self.known[address]

    def look_up(self, address: int) -> Row | None:
        if address >= 1 << 63:
            return None
        at = int(np.searchsorted(self.starts, address, "right")) - 1
        if at < 0:
            return None
        reader = self.entry(int(self.entries[at]) - self.base)
        pointer_at = reader.at
        distance = reader.number("<I")
        common = self.common(pointer_at - distance)
        start = reader.pointer(common.encoding, self.base)
        size = reader.pointer(common.encoding & 0x0F & ~SIGNED, self.base)
        if distance == 0 or not 0 <= address - start < size:
            return None
        if common.has_length:
            reader.skip(reader.leb())
        program = Program(common, start, address)
        program.run(Reader(self.data, common.begin, common.end))
        program.initial = program.row
        program.run(reader)
        return program.row

    def entry(self, offset: int) -> Reader:
        """Return a reader behind the length of an entry."""
        reader = Reader(self.data, offset, len(self.data))
        size = reader.number("<I")
        return Reader(self.data, reader.at, reader.at + size)

    def common(self, offset: int) -> Common:
        if offset not in self.commons:
            self.commons[offset] = self.read_common(offset)
        return self.commons[offset]

    def read_common(self, offset: int) -> Common:
        reader = self.entry(offset)
        if reader.number("<I") != 0:
            raise DamagedError
        reader.byte()  # the version
        letters = reader.text()
        code_step, data_step, caller = reader.leb(), reader.leb(is_signed=True), reader.leb()
        if caller != RETURN or (not letters.startswith(b"z") and letters):
            raise DamagedError
        encoding = ABSOLUTE
        if letters:
            size = reader.leb()
            after = reader.at + size
            for letter in letters[1:]:
                if letter == ord("R"):
                    encoding = reader.byte()
                elif letter == ord("L"):
                    reader.byte()
                elif letter == ord("P"):
                    reader.pointer(reader.byte() & 0x0F, self.base)
            reader = Reader(self.data, after, reader.end)
        return Common(code_step, data_step, encoding, bool(letters), reader.at, reader.end)


class Program:
    """Runs the instructions of a table, up to an address."""

    def __init__(self, common: Common, start: int, address: int) -> None:
        self.common, self.at, self.address = common, start, address
        self.row: Row | None = Row(STACK, 0)
        self.initial: Row | None = None
        self.kept: list[Row | None] = []
        self.left = INSTRUCTIONS_MOST

    def run(self, reader: Reader) -> None:
        while reader.at < reader.end and self.at <= self.address:
            self.left -= 1
            if self.left < 0:
                raise DamagedError
            code = reader.byte()
            if code & 0xC0 == 0x40:  # DW_CFA_advance_loc
                self.advance(code & 0x3F)
            elif code & 0xC0 == 0x80:  # DW_CFA_offset
                self.saved(code & 0x3F, reader.leb())
            elif code & 0xC0 == 0xC0:  # DW_CFA_restore
                self.restored(code & 0x3F)
            elif code in INSTRUCTIONS:
                INSTRUCTIONS[code](self, reader)
            else:
                raise DamagedError

    def advance(self, steps: int) -> None:
        self.at += steps * self.common.code_step

    def moved(self, to: int) -> None:
        self.at = to

    def ruled(self, register: int, rule: tuple[int, int]) -> None:
        if self.row is None:
            return
        if register == RETURN:
            self.row = replace(self.row, caller=rule)
        elif register == FRAME:
            self.row = replace(self.row, frame=rule)

    def saved(self, register: int, steps: int) -> None:
        self.ruled(register, (SAVED, steps * self.common.data_step))

    def lost(self, register: int, _: int = 0) -> None:
        """It has no value in the caller, or one that is not in the stack."""
        self.ruled(register, (UNKNOWN, 0))

    def restored(self, register: int) -> None:
        first = self.initial or Row(STACK, 0)
        self.ruled(register, first.frame if register == FRAME else first.caller)

    def ends_at(self, register: int | None = None, offset: int | None = None) -> None:
        """The end of the frame is at a register plus an offset. None: as before."""
        row = self.row or Row(STACK, 0)
        if register is not None:
            row = replace(row, register=register)
        self.row = row if offset is None else replace(row, offset=offset)

    def ends_by_expression(self, reader: Reader) -> None:
        reader.skip(reader.leb())
        if self.row:
            self.row = replace(self.row, register=UNREADABLE)

    def keep(self) -> None:
        if len(self.kept) == REMEMBERED_MOST:
            raise DamagedError
        self.kept.append(self.row)

    def take_back(self) -> None:
        if not self.kept:
            raise DamagedError
        self.row = self.kept.pop()

    def by_expression(self, reader: Reader) -> None:
        self.lost(reader.leb())
        reader.skip(reader.leb())

    def ignore(self, *_: int) -> None:
        pass


INSTRUCTIONS: dict[int, Callable[[Program, Reader], None]] = {
    0x00: lambda p, _r: p.ignore(),  # DW_CFA_nop
    0x01: lambda p, r: p.moved(r.number("<Q")),  # DW_CFA_set_loc
    0x02: lambda p, r: p.advance(r.number("<B")),  # DW_CFA_advance_loc1
    0x03: lambda p, r: p.advance(r.number("<H")),  # DW_CFA_advance_loc2
    0x04: lambda p, r: p.advance(r.number("<I")),  # DW_CFA_advance_loc4
    0x05: lambda p, r: p.saved(r.leb(), r.leb()),  # DW_CFA_offset_extended
    0x06: lambda p, r: p.restored(r.leb()),  # DW_CFA_restore_extended
    0x07: lambda p, r: p.lost(r.leb()),  # DW_CFA_undefined
    0x08: lambda p, r: p.ruled(r.leb(), (SAME, 0)),  # DW_CFA_same_value
    0x09: lambda p, r: p.lost(r.leb(), r.leb()),  # DW_CFA_register
    0x0A: lambda p, _r: p.keep(),  # DW_CFA_remember_state
    0x0B: lambda p, _r: p.take_back(),  # DW_CFA_restore_state
    0x0C: lambda p, r: p.ends_at(r.leb(), r.leb()),  # DW_CFA_def_cfa
    0x0D: lambda p, r: p.ends_at(register=r.leb()),  # DW_CFA_def_cfa_register
    0x0E: lambda p, r: p.ends_at(offset=r.leb()),  # DW_CFA_def_cfa_offset
    0x0F: lambda p, r: p.ends_by_expression(r),  # DW_CFA_def_cfa_expression
    0x10: lambda p, r: p.by_expression(r),  # DW_CFA_expression
    0x11: lambda p, r: p.saved(r.leb(), r.leb(is_signed=True)),  # DW_CFA_offset_extended_sf
    0x12: lambda p, r: p.ends_at(r.leb(), r.leb(is_signed=True) * p.common.data_step),  # _sf
    0x13: lambda p, r: p.ends_at(offset=r.leb(is_signed=True) * p.common.data_step),  # _offset_sf
    0x14: lambda p, r: p.lost(r.leb(), r.leb()),  # DW_CFA_val_offset
    0x15: lambda p, r: p.lost(r.leb(), r.leb(is_signed=True)),  # DW_CFA_val_offset_sf
    0x16: lambda p, r: p.by_expression(r),  # DW_CFA_val_expression
    0x2D: lambda p, _r: p.ignore(),  # DW_CFA_AARCH64_negate_ra_state
    0x2E: lambda p, r: p.ignore(r.leb()),  # DW_CFA_GNU_args_size
}


@dataclass(frozen=True)
class Stack:
    """Registers of a thread, and a copy of the end of its stack."""

    ip: int
    sp: int
    bp: int
    link: int  # 0: the machine has no such register
    copy: bytes

    def word(self, address: int) -> int | None:
        at = address - self.sp
        if not 0 <= at <= len(self.copy) - WORD:
            return None
        return int.from_bytes(self.copy[at : at + WORD], "little")


def callers(
    stack: Stack, row_of: Callable[[int], Row | None], is_code: Callable[[int], bool]
) -> list[int]:
    """Return the address of the instruction and those of the callers, the innermost first."""
    found = [stack.ip]
    ip, sp, link = stack.ip, stack.sp, stack.link
    bp: int | None = stack.bp
    while len(found) < DEEPEST:
        row = row_of(ip if len(found) == 1 else ip - 1)
        if row is None:
            step = by_frame_pointer(stack, sp, bp, is_code, is_first=len(found) == 1)
        else:
            step = by_row(stack, row, sp, bp, link)
        if step is None:
            break
        caller, end, bp = step
        caller = caller & ADDRESS_BITS if IS_ARM else caller
        is_up = end > sp or (IS_ARM and len(found) == 1 and end == sp)
        if not is_up or not is_code(caller):
            break
        ip, sp, link = caller, end, 0
        found.append(ip)
    return found


Step = tuple[int, int, int | None]  # the caller's address, stack pointer and frame pointer


def by_row(stack: Stack, row: Row, sp: int, bp: int | None, link: int) -> Step | None:
    base = {STACK: sp, FRAME: bp}.get(row.register)
    if base is None:
        return None
    end = base + row.offset
    kind, offset = row.caller
    caller = stack.word(end + offset) if kind == SAVED else link if kind == SAME else None
    kind, offset = row.frame
    frame = stack.word(end + offset) if kind == SAVED else bp if kind == SAME else None
    return (caller, end, frame) if caller else None


def by_frame_pointer(
    stack: Stack, sp: int, bp: int | None, is_code: Callable[[int], bool], is_first: bool
) -> Step | None:
    """Follow code that has no table. The innermost function may have no frame of its own."""
    if is_first:
        caller = stack.link or stack.word(sp)
        if caller and is_code(caller):
            return caller, sp if stack.link else sp + WORD, bp
    if bp is None or bp < sp:
        return None
    caller, frame = stack.word(bp + WORD), stack.word(bp)
    return (caller, bp + 2 * WORD, frame) if caller else None
