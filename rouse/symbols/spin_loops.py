# SPDX-License-Identifier: MIT
"""Loops of machine code that wait for another thread.

Such a loop has a few instructions and no call. One of them exchanges a word atomically, or tells
the processor to pause. A loop that retries a compare-and-swap until it succeeds is one too. An
atomic addition does not wait. The first 64-bit processors of Arm exchange a word by a loop of two
other instructions, which is not recognised.

Or the loop only reads: it writes nothing to memory, and computes each time from nothing that it
has computed before. So it does the same again and again, until another thread changes a word.
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
# These read no memory, whatever their operands look like.
X86_NO_READ = re.compile(r"lea|nop|prefetch")
ARM_NO_READ = re.compile(r"nop|prfm")
# These have results of their own each time: the clock, random numbers, other devices.
X86_SOURCE = re.compile(r"rdtsc|rdrand|rdseed|rdpmc|in\b|cpuid|lock |xchg")
ARM_SOURCE = re.compile(r"mrs|ldxr|ldaxr|stxr|stlxr|ldadd|ldset|ldclr")
# Parts of one register: al, ax and eax of rax; r8d of r8; w0 of x0; s0, d0 and q0 of v0.
X86_WHOLE = re.compile(r"[re]?([a-d])[xlh]|[re]?([sd]i|[sb]p)l?|(r\d+)[dwb]?|[xyz]mm(\d+)")
ARM_WHOLE = re.compile(r"[wx](\d+)|[bhsdqv](\d+)")
NO_REGISTERS = frozenset(("rip", "eip", "wzr", "xzr"))


@dataclass(frozen=True)
class Instruction:
    address: int
    mnemonic: str  # without prefixes
    text: str


@dataclass(frozen=True)
class Machine:
    decoder: Any
    exact_decoder: Any  # slower: which registers and operands an instruction reads and writes
    jump: re.Pattern[str]
    call: re.Pattern[str]
    wait: re.Pattern[str]
    no_read: re.Pattern[str]
    source: re.Pattern[str]
    whole: re.Pattern[str]


def decoders(architecture: int, mode: int) -> tuple[Any, Any]:
    plain, exact = capstone.Cs(architecture, mode), capstone.Cs(architecture, mode)
    exact.detail = True
    return plain, exact


@cache
def machine(name: str) -> Machine | None:
    """name: as pyelftools calls it. None: its code is not known."""
    if name == "x64":
        both = decoders(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
        return Machine(*both, *(X86_JUMP, X86_CALL, X86_WAIT, X86_NO_READ, X86_SOURCE, X86_WHOLE))
    if name == "AArch64":
        # capstone 6 has another name for it.
        arm = getattr(capstone, "CS_ARCH_ARM64", None) or capstone.CS_ARCH_AARCH64
        both = decoders(arm, capstone.CS_MODE_ARM)
        return Machine(*both, *(ARM_JUMP, ARM_CALL, ARM_WAIT, ARM_NO_READ, ARM_SOURCE, ARM_WHOLE))
    return None


@dataclass(frozen=True)
class Code:
    """A function."""

    machine: Machine
    start: int
    code: bytes
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
    return Code(known, start, code, found, loops)


def only_reads(code: Code, body: Sequence[Instruction]) -> bool:
    """Whether these instructions of a loop do the same each time, unless memory has changed.

    In the order of their addresses: a jump forwards may leave some out.
    """
    known = code.machine
    if any(known.source.match(each.text) for each in body):
        return False
    offset = body[0].address - code.start
    details = known.exact_decoder.disasm(code.code[offset:], body[0].address, len(body))
    first_read: set[str] = set()
    written: set[str] = set()
    reads_memory = False
    for each, detail in zip(body, details, strict=True):
        reads, writes = (
            {register_of(detail.reg_name(number), known.whole) for number in numbers}
            for numbers in detail.regs_access()
        )
        first_read |= reads - written
        written |= writes
        for operand in detail.operands:
            if operand.type == capstone.CS_OP_MEM and not known.no_read.match(each.text):
                reads_memory = True
                if operand.access & capstone.CS_AC_WRITE:
                    return False
    return reads_memory and not (first_read & written) - NO_REGISTERS


def register_of(name: str, whole: re.Pattern[str]) -> str:
    """The name of the whole register."""
    found = whole.fullmatch(name)
    return f"{found.lastindex}:{found[found.lastindex]}" if found and found.lastindex else name


def is_waiting(code: Code | None, at: int) -> bool:
    """Whether an instruction of a function is in such a loop."""
    loops = code.loops if code else ()
    around = [(end - begin, begin, end) for begin, end in loops if begin <= at <= end]
    if code is None or not around:
        return False
    _, begin, end = min(around)
    body = [each for each in code.instructions if begin <= each.address <= end]
    if len(body) > LONGEST or any(code.machine.call.fullmatch(each.mnemonic) for each in body):
        return False
    return any(code.machine.wait.match(each.text) for each in body) or only_reads(code, body)
