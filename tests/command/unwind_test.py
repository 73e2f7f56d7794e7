#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Callers found by .eh_frame: as another decoder has them, and in bounds where it is damaged."""

from __future__ import annotations

import io
import os
import random
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import FIXTURES, main_unless

from elftools.dwarf.callframe import FDE, RegisterRule
from elftools.elf.elffile import ELFFile

from rouse.symbols import unwind
from rouse.symbols.unwind import Row, Stack, Tables, callers

PROGRAM = FIXTURES / "attached"
STATIC = FIXTURES / "attached_static"
SEED = int(os.environ.get("ROUSE_SEED", random.SystemRandom().randrange(1 << 32)))
BASE = 0x7F0000000000
BOUND_SECONDS = 20  # a bound of a hang, not of a speed


def opened(path: Path) -> Any:
    return ELFFile(io.BytesIO(path.read_bytes()))


def rule_of(line: dict[Any, Any], register: int) -> tuple[int, int]:
    rule = line.get(register)
    if rule is None or rule.type == RegisterRule.SAME_VALUE:
        return unwind.SAME, 0
    if rule.type == RegisterRule.OFFSET:
        return unwind.SAVED, rule.arg
    return unwind.UNKNOWN, 0


class Rows(unittest.TestCase):
    def agrees(self, path: Path) -> None:
        """Compare the rows of each function with those that pyelftools decodes."""
        file = opened(path)
        tables, compared = Tables(file), 0
        for entry in file.get_dwarf_info().EH_CFI_entries():
            if not isinstance(entry, FDE):
                continue
            for line in entry.get_decoded().table:
                row, rule = tables.row(line["pc"]), line["cfa"]
                assert row, hex(line["pc"])
                if rule.expr is not None:
                    self.assertEqual(row.register, unwind.UNREADABLE)
                    continue
                self.assertEqual((row.register, row.offset), (rule.reg, rule.offset))
                self.assertEqual(row.caller, rule_of(line, unwind.RETURN), hex(line["pc"]))
                self.assertEqual(row.frame, rule_of(line, unwind.FRAME), hex(line["pc"]))
                compared += 1
        self.assertGreater(compared, 10)

    def test_rows_are_those_of_another_decoder(self) -> None:
        self.agrees(PROGRAM)

    def test_rows_without_an_index_are_those_of_another_decoder(self) -> None:
        if not STATIC.exists():
            self.skipTest("not run: the static programs were not built")
        self.agrees(STATIC)

    def test_an_address_between_functions_has_no_row(self) -> None:
        tables = Tables(opened(PROGRAM))
        for address in (0, 1, 1 << 40, (1 << 64) - 1, -5):
            self.assertIsNone(tables.row(address))


class Damaged(unittest.TestCase):
    def test_damaged_tables_end_in_bounded_time(self) -> None:
        print(f"ROUSE_SEED={SEED}")
        chance = random.Random(SEED)
        file = opened(PROGRAM)
        tables = Tables(file)
        good, starts = tables.data, [int(start) for start in tables.starts]
        begin = time.monotonic()
        for _ in range(300):
            bad = bytearray(good)
            for _ in range(chance.randrange(1, 40)):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            tables.data, tables.known, tables.commons = bytes(bad), {}, {}
            for start in starts:
                tables.row(start + chance.randrange(64))
            list(tables.functions())
        self.assertLess(time.monotonic() - begin, BOUND_SECONDS)

    def test_a_table_without_end_is_given_up(self) -> None:
        """A million instructions that do nothing, and states that are kept for ever."""
        common = unwind.Common(1, -8, 0, True, 0, 0)
        for code in (0x00, 0x0A):
            data = bytes([code]) * 1_000_000
            program = unwind.Program(common, 0, 5)
            with self.assertRaises(unwind.DamagedError):
                program.run(unwind.Reader(data, 0, len(data)))

    def test_an_entry_that_is_its_own_common_part_is_refused(self) -> None:
        tables = Tables(opened(PROGRAM))
        entry = int(tables.entries[0]) - tables.base
        data = bytearray(tables.data)
        data[entry + 4 : entry + 8] = (4).to_bytes(4, "little")  # the distance to the common part
        tables.data, tables.commons = bytes(data), {}
        self.assertIsNone(tables.row(int(tables.starts[0])))

    def test_random_stacks_end_in_bounded_time(self) -> None:
        chance = random.Random(SEED)
        rows = [None, Row(unwind.FRAME, 16, (unwind.SAVED, -8), (unwind.SAVED, -16))]
        rows += [Row(unwind.STACK, 8 * n, (unwind.SAVED, -8)) for n in range(-3, 9)]
        for _ in range(300):
            words = [BASE + chance.randrange(-4096, 8192) for _ in range(512)]
            copy = b"".join(word.to_bytes(8, "little") for word in words)
            stack = Stack(BASE, BASE, BASE + chance.randrange(4096), 0, copy)
            found = callers(stack, lambda _: chance.choice(rows), lambda _: True)
            self.assertLessEqual(len(found), unwind.DEEPEST)

    def test_a_frame_that_leads_to_itself_ends(self) -> None:
        copy = (BASE + 16).to_bytes(8, "little") * 512
        stack = Stack(BASE, BASE, BASE + 16, 0, copy)
        found = callers(stack, lambda _: None, lambda _: True)
        self.assertLess(len(found), 4)

    def test_a_return_address_outside_of_code_ends_the_path(self) -> None:
        copy = (BASE + 16).to_bytes(8, "little") * 512
        stack = Stack(BASE, BASE, 0, 0, copy)
        row = Row(unwind.STACK, 8, (unwind.SAVED, -8))
        self.assertEqual(callers(stack, lambda _: row, lambda _: False), [BASE])
        self.assertEqual(len(callers(stack, lambda _: row, lambda _: True)), unwind.DEEPEST)

    def test_a_file_without_sections_has_no_rows(self) -> None:
        file = mock.Mock()
        file.get_section_by_name.side_effect = ValueError("damaged")
        self.assertIsNone(Tables(file).row(0x1000))


if __name__ == "__main__":
    main_unless("" if PROGRAM.exists() else "its program was not built")
