# SPDX-License-Identifier: MIT
"""Loops of machine code that wait for another thread.

Such a loop has a few instructions and no call. One of them exchanges a word atomically, or tells
the processor to pause. A loop that retries a compare-and-swap until it succeeds is one too. An
atomic addition does not wait. The first 64-bit processors of Arm exchange a word by a loop of two
other instructions, which is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import capstone

LONGEST = 24  # instructions
CODE_MOST = 1 << 16  # bytes of a function
TARGET = re.compile(r"(?:.*, )?#?(0x[0-9a-f]+)")
# Names of the functions in code that is not optimised. Their caller has the loop.
CALLED = re.compile(
    r"\b(?:__atomic_base|atomic(?:_flag)?)\b.*::(?:test_and_set|exchange|compare_exchange_\w+)\b"
)
X86_JUMP = re.compile(r"j[a-z]+")
X86_CALL = re.compile(r"call|syscall|ret")
X86_WAIT = re.compile(r"pause|lock (?:cmpxchg|bts)|xchg .*\[")
ARM_JUMP = re.compile(r"b|b\.[a-z]+|cbn?z|tbn?z")
ARM_CALL = re.compile(r"bl|blr|svc|ret")
ARM_WAIT = re.compile(r"yield|wfe|isb|swp|cas")


@dataclass(frozen=True)
class Instruction:
    address: int
    mnemonic: str  # without prefixes
    text: str


@dataclass(frozen=True)
class Machine:
    decoder: Any
    jump: re.Pattern[str]
    call: re.Pattern[str]
    wait: re.Pattern[str]


@cache
def machine(name: str) -> Machine | None:
    """name: as pyelftools calls it. None: its code is not known."""
    if name == "x64":
        decoder = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        return Machine(decoder, X86_JUMP, X86_CALL, X86_WAIT)
    if name == "AArch64":
        decoder = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
        return Machine(decoder, ARM_JUMP, ARM_CALL, ARM_WAIT)
    return None


def decoded(known: Machine, code: bytes, start: int) -> list[Instruction]:
    return [
        Instruction(address, mnemonic.rpartition(" ")[2], f"{mnemonic} {operands}")
        for address, _, mnemonic, operands in known.decoder.disasm_lite(code, start)
    ]


def loops(known: Machine, code: Sequence[Instruction], at: int) -> Iterator[Sequence[Instruction]]:
    """Yield the loops around an address that one jump backwards closes."""
    for number, last in enumerate(code):
        if last.address < at or not known.jump.fullmatch(last.mnemonic):
            continue
        target = TARGET.fullmatch(last.text.partition(" ")[2])
        begin = int(target[1], 16) if target else last.address + 1
        if begin <= at:
            yield [each for each in code[: number + 1] if each.address >= begin]


def is_waiting(name: str, code: bytes, start: int, at: int) -> bool:
    """Whether an instruction is in such a loop. code: of its function, which begins at start."""
    known = machine(name)
    if known is None:
        return False
    found = list(loops(known, decoded(known, code[:CODE_MOST], start), at))
    shortest = min(found, key=len, default=())
    return (
        0 < len(shortest) <= LONGEST
        and any(known.wait.match(each.text) for each in shortest)
        and not any(known.call.fullmatch(each.mnemonic) for each in shortest)
    )
