# SPDX-License-Identifier: MIT
"""Loops of machine code that wait for another thread.

Such a loop has a few instructions and no call. One of them exchanges a word atomically, or tells
the processor to pause. A loop that retries a compare-and-swap until it succeeds is one too. An
atomic addition does not wait. The first 64-bit processors of Arm exchange a word by a loop of two
other instructions, which is not recognised.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
        # capstone 6 has another name for it.
        arm = getattr(capstone, "CS_ARCH_ARM64", None) or capstone.CS_ARCH_AARCH64
        decoder = capstone.Cs(arm, capstone.CS_MODE_ARM)
        return Machine(decoder, ARM_JUMP, ARM_CALL, ARM_WAIT)
    return None


@dataclass(frozen=True)
class Code:
    """A function."""

    machine: Machine
    instructions: Sequence[Instruction]
    loops: Sequence[tuple[int, int]]  # the first and last addresses; one jump backwards closes each


def decoded(name: str, code: bytes, start: int) -> Code | None:
    """Decode a function that begins at start. None: this machine's code is not known."""
    known = machine(name)
    if known is None:
        return None
    found = [
        Instruction(address, mnemonic.rpartition(" ")[2], f"{mnemonic} {operands}")
        for address, _, mnemonic, operands in known.decoder.disasm_lite(code[:CODE_MOST], start)
    ]
    loops = [
        (begin, last.address)
        for last in found
        if known.jump.fullmatch(last.mnemonic)
        and (target := TARGET.fullmatch(last.text.partition(" ")[2]))
        and (begin := int(target[1], 16)) <= last.address
    ]
    return Code(known, found, loops)


def is_waiting(code: Code | None, at: int) -> bool:
    """Whether an instruction of a function is in such a loop."""
    loops = code.loops if code else ()
    around = [(end - begin, begin, end) for begin, end in loops if begin <= at <= end]
    if code is None or not around:
        return False
    _, begin, end = min(around)
    body = [each for each in code.instructions if begin <= each.address <= end]
    return (
        len(body) <= LONGEST
        and any(code.machine.wait.match(each.text) for each in body)
        and not any(code.machine.call.fullmatch(each.mnemonic) for each in body)
    )
