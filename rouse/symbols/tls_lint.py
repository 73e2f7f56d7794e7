# SPDX-License-Identifier: MIT
"""Find functions that keep an address of thread-local storage over a call that may switch.

Such storage belongs to a kernel thread, and a user thread may run on another one after the call.
The code is read from objdump's text, which is the same for x86-64 everywhere. In each function the
registers and stack slots that hold such an address are followed along all jumps. A finding is a use
of the address after the call; keeping it without a use is harmless.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rouse.errors import RouseError
from rouse.symbols.elf import Elf, ElfError

MAY_SWITCH = re.compile(
    r"rouse_(accept|barrier_wait|blocking|close|cluster_destroy|cluster_worker_(add|remove)|cond_wait"
    r"(_while)?|connect|fsync|getaddrinfo|mutex_lock|once_call|poll(_exclusive)?|pread|pwrite|readv?"
    r"|recv(msg)?|release|rwlock_(read|write)_lock|select|sem_wait|send(file|msg)?|set_wait|shutdown"
    r"|sleep|thread_(join|move|yield)|writev?)(_until)?"
)
ADDRESSES = ("__errno_location", "__tls_get_addr", "rouse_errno_location")
OWN = re.compile(r"(rouse|rsi)_")  # the runtime's own code, in a static program
HEAD = re.compile(r"([0-9a-f]+) <(.+)>:")
LINE = re.compile(r" *([0-9a-f]+):\t(.+)")
CALL = re.compile(
    r"(?:(?:data16|rex\.W|bnd|notrack) )*(call|jmp)q?\s+[0-9a-f]+ <([^@>+]+)(@plt)?[^>]*>"
)
IS_CALL = re.compile(r"(?:(?:data16|rex\.W|bnd|notrack) )*callq?\s")
JUMP = re.compile(r"(?:bnd |notrack )*j(\w+)\s+([0-9a-f]+) <")
MEMORY = re.compile(r"(%\w+:)?(-?0x[0-9a-f]+)?\(([^)]*)\)")
REGISTER = re.compile(r"%(\w+)")
SLOT = re.compile(r"-?(0x[0-9a-f]+)?\(%r[bs]p\)")
CALLER_SAVED = frozenset(f"r{n}" for n in ("ax", "cx", "dx", "si", "di", "8", "9", "10", "11"))
BASE = "%fs:0x0"


def whole_names() -> dict[str, str]:
    """Return the 64-bit register of each of its parts."""
    found: dict[str, str] = {}
    for name in ("ax", "bx", "cx", "dx"):
        found |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{name[0]}l"), f"r{name}")
        found[f"{name[0]}h"] = f"r{name}"
    for name in ("si", "di", "bp", "sp"):
        found |= dict.fromkeys((f"r{name}", f"e{name}", name, f"{name}l"), f"r{name}")
    for number in range(8, 16):
        found |= {f"r{number}{form}": f"r{number}" for form in ("", "d", "w", "b")}
    return found


WHOLE = whole_names()
# By place: the call that the address was kept over. Empty: none yet.
State = dict[str, str]


@dataclass
class Code:
    """A function, as objdump prints it."""

    name: str
    addresses: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def calls(self) -> Iterator[str]:
        """Yield the functions that it calls or ends in by a jump."""
        for text in self.texts:
            if (call := CALL.match(text)) and call[2] != self.name:
                yield call[2]


@dataclass(frozen=True)
class Kept:
    """A use of an address of thread-local storage that was kept over a call."""

    function: str
    call: str
    address: int
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else f"{self.address:#x}"
        return (
            f"{self.function} ({place}): uses an address of thread-local storage that it computed"
            f" before {self.call}(), which may return on another kernel thread"
        )


@dataclass(frozen=True)
class Found:
    kept: list[Kept]
    functions: int  # that call something of rouse that may switch
    unclear: int  # of those: has jumps or calls whose targets cannot be seen


def disassembled(path: Path) -> list[Code]:
    """Return the functions of a file. Raise RouseError."""
    tool = shutil.which("objdump")
    if tool is None:
        raise RouseError("there is no objdump", "install binutils")
    words = [tool, "-d", "--no-show-raw-insn", "--wide", "--", str(path.absolute())]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    if done.returncode:
        raise RouseError(f"{path}: objdump cannot read it: {done.stderr.strip()[:200]}")
    found: list[Code] = []
    for text in done.stdout.splitlines():
        if head := HEAD.fullmatch(text):
            found.append(Code(head[2]))
        elif found and (line := LINE.fullmatch(text)):
            found[-1].addresses.append(int(line[1], 16))
            found[-1].texts.append(line[2].partition("#")[0].strip())
    return found


def switching(every: list[Code]) -> set[str]:
    """Return the functions that may switch, and those that call one of them."""
    callers: dict[str, set[str]] = {}
    for code in every:
        for name in code.calls():
            callers.setdefault(name, set()).add(code.name)
    found = {name for name in callers if MAY_SWITCH.fullmatch(name)}
    due = list(found)
    while due:
        new = callers.get(due.pop(), set()) - found
        found |= new
        due += new
    return found


def operands(text: str) -> list[str]:
    """Return the operands of an instruction."""
    found, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            found.append(text[begin:at])
            begin = at + 1
    return [*found, text[begin:]] if text else []


def place_of(operand: str) -> str | None:
    """Return the register or the stack slot that an operand is. None: something else."""
    if operand.startswith("%"):
        return WHOLE.get(operand[1:])
    return operand if SLOT.fullmatch(operand) else None


class Follower:
    """Follows the addresses through one function."""

    def __init__(self, code: Code, may_switch: set[str]) -> None:
        self.code, self.may_switch = code, may_switch
        self.at = {address: number for number, address in enumerate(code.addresses)}
        self.uses: dict[int, str] = {}
        self.is_unclear = False

    def run(self) -> None:
        states: list[State | None] = [None] * len(self.code.texts)
        due: list[tuple[int, State]] = [(0, {})]
        while due:
            number, state = due.pop()
            if number >= len(states):
                continue
            old = states[number]
            merged = state if old is None else self.joined(old, state)
            if old is not None and merged == old:
                continue
            states[number] = merged
            after = self.step(number, dict(merged))
            due += [(target, after) for target in self.next(number)]

    @staticmethod
    def joined(one: State, other: State) -> State:
        return {key: one.get(key) or other.get(key) or "" for key in {**one, **other}}

    def next(self, number: int) -> list[int]:
        text = self.code.texts[number]
        name = text.split(None, 1)[0]
        if name in ("ret", "retq", "hlt", "ud2", "repz"):
            return []
        if jump := JUMP.match(text):
            target = self.at.get(int(jump[2], 16))
            ahead = [] if target is None else [target]
            return ahead if jump[1] in ("mp", "mpq") else [*ahead, number + 1]
        if re.match(r"(?:bnd |notrack )*jmp", text):
            self.is_unclear = True
            return []
        return [number + 1]

    def step(self, number: int, state: State) -> State:
        """Return the state after an instruction. Note a use of an address that was kept."""
        text = self.code.texts[number]
        words = text.split(None, 1)
        name, listed = words[0], operands(words[1].strip() if len(words) > 1 else "")
        is_address_only = name.startswith(("lea", "nop"))
        for operand in listed:
            inner = MEMORY.search(operand)
            if inner and not is_address_only:
                for part in REGISTER.findall(inner[3]):
                    if over := state.get(WHOLE.get(part, "")):
                        self.uses.setdefault(number, over)
        if IS_CALL.match(text):
            return self.called(text, state)
        if name in ("push", "pushq", "pop", "popq") or (listed and listed[-1] == "%rsp"):
            state = {key: over for key, over in state.items() if "%rsp" not in key}
        if not listed or name.startswith(("cmp", "test", "push", "j", "nop")):
            return state
        self.write(name, listed, state)
        return state

    @staticmethod
    def write(name: str, listed: list[str], state: State) -> None:
        to = place_of(listed[-1])
        if to is None:
            return
        source = listed[0]
        if len(listed) == 2 and source == BASE and name in ("mov", "movq", "add"):
            state[to] = ""
        elif len(listed) == 2 and name in ("mov", "movq"):
            held = place_of(source)
            if held in state:
                state[to] = state[held]
            else:
                state.pop(to, None)
        elif len(listed) == 2 and name in ("lea", "leaq"):
            inner = MEMORY.fullmatch(source)
            parts = REGISTER.findall(inner[3]) if inner else []
            held = next((p for p in (WHOLE.get(part) for part in parts) if p in state), None)
            if held:
                state[to] = state[held]
            else:
                state.pop(to, None)
        elif len(listed) == 2 and name in ("add", "addq", "sub", "subq"):
            held = place_of(source)
            if to not in state and held in state:
                state[to] = state[held]
        else:
            state.pop(to, None)

    def called(self, text: str, state: State) -> State:
        call = CALL.match(text)
        name = call[2] if call else ""
        left = {key: over for key, over in state.items() if key not in CALLER_SAVED}
        if not call:
            self.is_unclear = True
        elif name in self.may_switch:
            left = {key: over or name for key, over in left.items()}
        if name in ADDRESSES:
            left["rax"] = ""
        return left


def examine(path: Path) -> Found:
    """Return what the functions of a file keep. Raise RouseError."""
    try:
        elf = Elf(path)
    except ElfError as error:
        raise RouseError(str(error)) from error
    if elf.file["e_machine"] != "EM_X86_64":
        raise RouseError(f"{path}: is no code for x86-64, the only one that is read")
    every = disassembled(path)
    may_switch = switching(every)
    kept: list[Kept] = []
    functions = unclear = 0
    for code in every:
        if code.name not in may_switch or OWN.match(code.name) or not code.texts:
            continue
        functions += 1
        follower = Follower(code, may_switch)
        follower.run()
        unclear += follower.is_unclear
        for number, call in sorted(follower.uses.items()):
            address = code.addresses[number]
            line = elf.line(address)
            shown = (line.file, line.line) if line else ("", 0)
            kept.append(Kept(code.name, call, address, *shown))
    return Found(one_per_place(kept), functions, unclear)


def one_per_place(kept: list[Kept]) -> list[Kept]:
    found: dict[tuple[str, str, int], Kept] = {}
    for use in kept:
        found.setdefault((use.function, use.file, use.line or use.address), use)
    return list(found.values())
