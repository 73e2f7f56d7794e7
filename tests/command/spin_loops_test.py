#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loops that wait for another thread, and loops that work, in machine code."""

from __future__ import annotations

import unittest

import common  # noqa: F401 enters the environment of the command

from rouse.symbols.spin_loops import CALLED, decoded, is_waiting

START = 0x1000
X86 = {
    "mov eax, 1": "b801000000",
    "xchg dword ptr [rdi], eax": "8707",
    "test eax, eax": "85c0",
    "jne -6": "75fa",
    "ret": "c3",
    "pause": "f390",
    "cmp dword ptr [rdi], 0": "833f00",
    "jne -7": "75f9",
    "lock add dword ptr [rdi], 1": "f0830701",
    "dec ecx": "ffc9",
    "jne -8": "75f8",
    "call": "e800000000",
    "jne -13": "75f3",
    "mov eax, dword ptr [rdx]": "8b02",
    "cmp esi, eax": "39c6",
    "je -6": "74fa",
    "mov eax, dword ptr [rdx + rcx * 4]": "8b048a",
    "inc ecx": "ffc1",
    "je -9": "74f7",
    "mov dword ptr [rdi], eax": "8907",
    "je -8": "74f6",
    "add eax, dword ptr [rdx]": "0302",
    "mov rdx, qword ptr [rdx]": "488b12",
    "test rdx, rdx": "4885d2",
    "rdtsc": "0f31",
}
ARM = {
    "mov w1, 1": "21008052",
    "swpa w1, w2, [x0]": "0280a1b8",
    "cbnz w2, -4": "e2ffff35",
    "ret": "c0035fd6",
    "ldar w0, [x1]": "20fcdf88",
    "cmp w0, w2": "1f00026b",
    "b.eq -8": "c0ffff54",
    "ldr w0, [x1], 4": "204440b8",
}


def code(known: dict[str, str], *names: str) -> bytes:
    return bytes.fromhex("".join(known[name] for name in names))


class X86Loops(unittest.TestCase):
    SPIN = ("mov eax, 1", "xchg dword ptr [rdi], eax", "test eax, eax", "jne -6", "ret")

    def waits(self, at: int, *names: str) -> bool:
        return is_waiting(decoded("x64", code(X86, *names), START), START + at)

    def test_loop_around_an_exchange_waits(self) -> None:
        for at in (5, 7, 9):
            self.assertTrue(self.waits(at, *self.SPIN), at)

    def test_instructions_around_the_loop_do_not(self) -> None:
        self.assertFalse(self.waits(0, *self.SPIN))
        self.assertFalse(self.waits(11, *self.SPIN))

    def test_loop_with_a_pause_waits(self) -> None:
        self.assertTrue(self.waits(2, "pause", "cmp dword ptr [rdi], 0", "jne -7", "ret"))

    def test_loop_that_adds_atomically_works(self) -> None:
        self.assertFalse(self.waits(4, "lock add dword ptr [rdi], 1", "dec ecx", "jne -8", "ret"))

    def test_loop_with_a_call_works(self) -> None:
        names = ("call", "xchg dword ptr [rdi], eax", "test eax, eax", "ret")
        loop = (*names[:3], "test eax, eax", "jne -13", "ret")
        self.assertFalse(self.waits(5, *loop))

    def test_loop_that_only_reads_a_word_waits(self) -> None:
        for at in (0, 2, 4):
            self.assertTrue(
                self.waits(at, "mov eax, dword ptr [rdx]", "cmp esi, eax", "je -6", "ret"), at
            )

    def test_loop_that_reads_one_word_after_the_other_works(self) -> None:
        loop = ("mov eax, dword ptr [rdx + rcx * 4]", "inc ecx", "cmp esi, eax", "je -9", "ret")
        self.assertFalse(self.waits(3, *loop))
        self.assertFalse(
            self.waits(3, "mov rdx, qword ptr [rdx]", "test rdx, rdx", "jne -8", "ret")
        )

    def test_loop_that_writes_or_adds_up_works(self) -> None:
        write = "mov dword ptr [rdi], eax"
        loop = ("mov eax, dword ptr [rdx]", write, "cmp esi, eax", "je -8", "ret")
        self.assertFalse(self.waits(2, *loop))
        self.assertFalse(self.waits(0, "add eax, dword ptr [rdx]", "cmp esi, eax", "je -6", "ret"))

    def test_loop_that_reads_the_clock_works(self) -> None:
        self.assertFalse(
            self.waits(2, "rdtsc", "mov eax, dword ptr [rdx]", "cmp esi, eax", "je -8")
        )

    def test_code_that_cannot_be_read_does_not_wait(self) -> None:
        for name, text in (("x64", b""), ("x64", b"\xff" * 40), ("RISC-V", code(X86, *self.SPIN))):
            self.assertFalse(is_waiting(decoded(name, text, START), START + 7))


class ArmLoops(unittest.TestCase):
    def test_loop_around_an_exchange_waits(self) -> None:
        names = ("mov w1, 1", "swpa w1, w2, [x0]", "cbnz w2, -4", "ret")
        known = decoded("AArch64", code(ARM, *names), START)
        self.assertTrue(is_waiting(known, START + 8))
        self.assertFalse(is_waiting(known, START))

    def test_loop_that_only_reads_a_word_waits(self) -> None:
        names = ("ldar w0, [x1]", "cmp w0, w2", "b.eq -8", "ret")
        self.assertTrue(is_waiting(decoded("AArch64", code(ARM, *names), START), START))

    def test_loop_that_reads_one_word_after_the_other_works(self) -> None:
        names = ("ldr w0, [x1], 4", "cmp w0, w2", "b.eq -8", "ret")
        self.assertFalse(is_waiting(decoded("AArch64", code(ARM, *names), START), START))


class Names(unittest.TestCase):
    def test_operations_that_are_called_where_nothing_is_inlined(self) -> None:
        for name in (
            "std::atomic_flag::test_and_set(std::memory_order)",
            "std::__atomic_base<int>::compare_exchange_strong(int&, int, std::memory_order)",
            "std::atomic<bool>::exchange(bool, std::memory_order)",
        ):
            self.assertTrue(CALLED.search(name), name)
        for name in ("std::atomic<long>::fetch_add(long)", "atomic_notes::exchange_rate()"):
            self.assertFalse(CALLED.search(name), name)


if __name__ == "__main__":
    unittest.main(verbosity=2)
