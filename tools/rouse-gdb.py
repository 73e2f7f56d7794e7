# SPDX-License-Identifier: MIT
"""rouse's threads in gdb, of a live process or of a core file.

    (gdb) source rouse-gdb.py
    (gdb) info rouse-threads       list all threads: id, name, kind, and state or wait
    (gdb) rouse bt ID...           print backtraces. rouse bt all prints those of every thread
    (gdb) rouse frame ID LEVEL     select a frame, to inspect its variables with gdb's own commands.
                                   rouse done returns to the kernel thread that was selected before

If the library is installed in gdb's auto-load path, gdb sources this file by itself. The script
reads the library's own structures, so it needs librouse's debug information.

Method: the switch saves sp, ip and the frame pointer of a parked thread (src/ctx/ctx.h). The
unwinder below tells gdb that these are the registers of the innermost frame's caller, and gdb
continues from there. It writes no register of the process.

Core files: those of the kernel are complete. gdb's own gcore leaves out mappings behind a guard
page (MADV_GUARD_INSTALL), and these include most stacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import gdb  # type: ignore[import-untyped]
import gdb.unwinder  # type: ignore[import-untyped]

LIFE_LIVE, LIFE_ENDED = 1, 2
ORIGIN_USER = 0
ORIGINS = ("user", "kernel", "foreign")
FOREVER = (1 << 64) - 1

# src/core/block.h and block.c
SLAB_BYTES = 256 * 1024
GROUP_BYTES = 16 * 1024
COLD_OFFSET = 12 * 1024

# Objects with a name; mutexes and locks also have an owner.
OBJECT_TYPES = {
    "ROUSE_WAIT_MUTEX": "struct rouse_mutex",
    "ROUSE_WAIT_READ_LOCK": "struct rouse_rwlock",
    "ROUSE_WAIT_WRITE_LOCK": "struct rouse_rwlock",
    "ROUSE_WAIT_COND": "struct rouse_cond",
    "ROUSE_WAIT_SEM": "struct rouse_sem",
    "ROUSE_WAIT_BARRIER": "struct rouse_barrier",
    "ROUSE_WAIT_ONCE": "struct rouse_once",
}
DESCRIPTOR_KINDS = (
    "ROUSE_WAIT_READ",
    "ROUSE_WAIT_WRITE",
    "ROUSE_WAIT_ACCEPT",
    "ROUSE_WAIT_CONNECT",
)


REGISTER_NAMES = {"i386:x86-64": ("rsp", "rip", "rbp"), "aarch64": ("sp", "pc", "x29")}


@dataclass(frozen=True)
class Registers:
    sp: int
    ip: int
    fp: int


def value(expression: str) -> gdb.Value:
    return gdb.parse_and_eval(expression)


def site(address: int) -> str:
    """The function and line of the call that returns to address."""
    call = address - 1
    block = gdb.block_for_pc(call)
    while block and not block.function:
        block = block.superblock
    line = gdb.find_pc_line(call)
    name = block.function.print_name if block else hex(address)
    return f"{name} ({line.symtab.filename}:{line.line})" if line.symtab else str(name)


class Thread:
    """A control block."""

    def __init__(self, block: gdb.Value) -> None:
        self.block = block
        self.waiter = block["waiter"]
        self.id = int(block["id"])
        self.origin = int(self.waiter["origin"])
        self.has_ended = int(self.waiter["life"]) == LIFE_ENDED
        self.is_on_cpu = int(self.waiter["on_cpu"]) == 1
        self.waits = int(self.waiter["claim"]) & 3 != 0

    @property
    def name(self) -> str:
        if not int(self.waiter["has_cold"]):
            return ""
        return str(cold_part(self.block)["name"].string(errors="replace"))

    @property
    def label(self) -> str:
        return f'thread {self.id} "{self.name}"' if self.name else f"thread {self.id}"

    def tid(self) -> int:
        """The kernel thread that this thread is or runs on. 0 if none runs it."""
        if self.origin != ORIGIN_USER:
            return int(self.block["tid"])
        if not self.is_on_cpu:
            return 0
        worker = value(f"rsi_rt.workers[{int(self.waiter['worker_index'])}]")
        is_current = int(worker["exec"]["current"]) == int(self.block.address)
        return int(worker["tid"]) if is_current else 0

    def parked(self) -> Registers | None:
        """The registers that the switch saved, if no worker runs this user thread."""
        context = self.waiter["ctx"]
        if self.origin != ORIGIN_USER or self.has_ended or int(context["sp"]) == 0 or self.tid():
            return None
        return Registers(int(context["sp"]), int(context["ip"]), int(context["fp"]))

    def state(self) -> str:
        if self.has_ended:
            return "ended, not joined"
        if self.is_on_cpu:
            worker = int(self.waiter["worker_index"])
            return f"running on worker {worker}" if self.origin == ORIGIN_USER else "running"
        if self.waits:
            return self.wait()
        return "runnable" if int(self.waiter["ctx"]["sp"]) else "runnable, not started"

    def wait(self) -> str:
        record = self.waiter["record"]
        kind = str(record["kind"].cast(gdb.lookup_type("enum rouse_wait_kind")))
        text = "sleeping" if kind == "ROUSE_WAIT_SLEEP" else "waiting for " + self.object(kind)
        if int(record["wait_site"]):
            text += f", at {site(int(record['wait_site']))}"
        return text

    def object(self, kind: str) -> str:
        address = self.waiter["record"]["object"]
        text = kind.removeprefix("ROUSE_WAIT_").lower().replace("_", " ")
        if kind in DESCRIPTOR_KINDS:
            return f"{text}, descriptor {int(address)}"
        if kind == "ROUSE_WAIT_JOIN":
            joined = address.cast(gdb.lookup_type("struct rouse_thread").pointer())
            return f"{text} of {Thread(joined.dereference()).label}"
        if kind not in OBJECT_TYPES:
            return text
        return f"{text} {int(address):#x}{describe_object(kind, address)}"


def describe_object(kind: str, address: gdb.Value) -> str:
    """The name and owner of the object that is waited for, if they can be read."""
    text = ""
    try:
        found = address.cast(gdb.lookup_type(OBJECT_TYPES[kind]).pointer()).dereference()
        if int(found["name"]):
            text = f' "{found["name"].string(errors="replace")}"'
        fields = [field.name for field in found.type.fields()]
        if "owner" in fields and int(found["owner"]):
            text += f" held by {Thread(found['owner'].dereference()).label}"
    except gdb.error:  # the core file lacks this memory
        pass
    return text


def group_blocks(slab: gdb.Value) -> int:
    """The number of blocks in a group: see src/core/block.h."""
    return int(slab["slots"]) // (SLAB_BYTES // GROUP_BYTES)


def cold_part(block: gdb.Value) -> gdb.Value:
    """The separate part of a block, with its name and half of its record."""
    address = int(block.address)
    group = address & ~(GROUP_BYTES - 1)
    in_group = group_blocks(value("'block.c'::pool")["slabs"][0])
    slot = (address - group) // (COLD_OFFSET // in_group)
    cold = gdb.lookup_type("struct rsi_cold")
    at = gdb.Value(group + COLD_OFFSET + slot * cold.sizeof)
    return at.cast(cold.pointer()).dereference()


def blocks() -> Iterator[gdb.Value]:
    """All control blocks that were ever in use. See src/core/block.c."""
    try:
        pool = value("'block.c'::pool")
        pointer = gdb.lookup_type("struct rouse_thread").pointer()
    except gdb.error as error:
        raise gdb.GdbError(f"librouse is not there, or has no debug information: {error}") from None
    for index in range(int(pool["slab_count"])):
        slab = pool["slabs"][index]
        in_group = group_blocks(slab)
        for slot in range(int(slab["used"])):
            group = int(slab["base"]) + slot // in_group * GROUP_BYTES
            address = group + slot % in_group * (COLD_OFFSET // in_group)
            yield gdb.Value(address).cast(pointer).dereference()


def threads() -> list[Thread]:
    found = [Thread(b) for b in blocks() if int(b["waiter"]["life"]) in (LIFE_LIVE, LIFE_ENDED)]
    return sorted(found, key=lambda thread: thread.id)


def thread_by_id(text: str) -> Thread:
    for thread in threads():
        if str(thread.id) == text:
            return thread
    raise gdb.GdbError(f"rouse has no thread {text}")


class ParkedUnwinder(gdb.unwinder.Unwinder):  # type: ignore[misc]
    """Append the frames of the selected parked thread to gdb's innermost frame."""

    def __init__(self) -> None:
        super().__init__("rouse parked thread")
        self.shown: Registers | None = None
        self.innermost = (0, 0)

    def show(self, registers: Registers | None) -> None:
        self.shown = None
        gdb.invalidate_cached_frames()
        if registers:
            sp, ip, _ = self.names(gdb.newest_frame())
            frame = gdb.newest_frame()
            self.innermost = (int(frame.read_register(sp)), int(frame.read_register(ip)))
            self.shown = registers
            gdb.invalidate_cached_frames()

    @staticmethod
    def hidden() -> int:
        """The number of gdb's frames before the parked ones: one, and those inlined in it."""
        count = 1
        frame = gdb.newest_frame()
        while frame.type() == gdb.INLINE_FRAME:
            frame = frame.older()
            count += 1
        return count

    def names(self, frame: gdb.Frame | gdb.PendingFrame) -> tuple[str, str, str]:
        architecture = frame.architecture().name()
        if architecture not in REGISTER_NAMES:
            raise gdb.GdbError(f"rouse does not run on {architecture}")
        return REGISTER_NAMES[architecture]

    def __call__(self, pending: gdb.PendingFrame) -> gdb.UnwindInfo | None:
        if self.shown is None:
            return None
        names = self.names(pending)
        sp, ip, fp = (pending.read_register(name) for name in names)
        if (int(sp), int(ip)) != self.innermost:
            return None
        # A frame below the parked stack: gdb requires callers at higher addresses.
        below = gdb.Value(self.shown.sp - 16).cast(sp.type)
        info = pending.create_unwind_info(FrameId(below, ip))
        for name, old, new in zip(
            names, (sp, ip, fp), (self.shown.sp, self.shown.ip, self.shown.fp), strict=True
        ):
            info.add_saved_register(name, gdb.Value(new).cast(old.type))
        return info


@dataclass(frozen=True)
class FrameId:
    sp: gdb.Value
    pc: gdb.Value


unwinder = ParkedUnwinder()
gdb.unwinder.register_unwinder(None, unwinder, replace=True)


def frames_from_parked(registers: Registers) -> str:
    """gdb's backtrace of a parked thread, without the frames of the kernel thread."""
    unwinder.show(registers)
    try:
        hidden = unwinder.hidden()
        text = gdb.execute("backtrace", to_string=True)
    finally:
        unwinder.show(None)
    kept = re.split(r"^(?=#\d+ )", text, flags=re.MULTILINE)[1 + hidden :]
    return "".join(re.sub(r"^#\d+ +", f"#{level:<3}", frame) for level, frame in enumerate(kept))


def kernel_thread(tid: int) -> gdb.InferiorThread | None:
    for thread in gdb.selected_inferior().threads():
        if tid and tid in thread.ptid[1:]:
            return thread
    return None


def frames_of(thread: Thread) -> str:
    registers = thread.parked()
    if registers:
        return frames_from_parked(registers)
    kernel = kernel_thread(thread.tid())
    if not kernel:
        return ""
    selected = gdb.selected_thread()
    kernel.switch()
    try:
        return str(gdb.execute("backtrace", to_string=True))
    finally:
        selected.switch()


class InfoThreads(gdb.Command):  # type: ignore[misc]
    """List rouse's threads: id, name, kind, and what each does or waits for."""

    def __init__(self) -> None:
        super().__init__("info rouse-threads", gdb.COMMAND_STATUS)

    def invoke(self, argument: str, from_tty: bool) -> None:
        found = threads()
        print(f"{'Id':>6}  {'Name':<23}  {'Kind':<7}  State")
        for thread in found:
            print(
                f"{thread.id:>6}  {thread.name:<23}  {ORIGINS[thread.origin]:<7}  {thread.state()}"
            )
        print(f"{len(found)} threads")


class Rouse(gdb.Command):  # type: ignore[misc]
    """Commands for rouse's threads: rouse bt, rouse frame, rouse done; and info rouse-threads."""

    def __init__(self) -> None:
        super().__init__("rouse", gdb.COMMAND_STACK, prefix=True)


class Backtrace(gdb.Command):  # type: ignore[misc]
    """rouse bt ID...|all: backtraces of rouse's threads."""

    def __init__(self) -> None:
        super().__init__("rouse bt", gdb.COMMAND_STACK)

    def invoke(self, argument: str, from_tty: bool) -> None:
        names = gdb.string_to_argv(argument)
        if not names:
            raise gdb.GdbError("rouse bt ID...|all")
        chosen = threads() if names == ["all"] else [thread_by_id(name) for name in names]
        for thread in chosen:
            print(f"{thread.label}, {ORIGINS[thread.origin]}: {thread.state()}")
            print(frames_of(thread))


class SelectFrame(gdb.Command):  # type: ignore[misc]
    """rouse frame ID LEVEL: select a frame of a parked thread. rouse done ends it."""

    def __init__(self) -> None:
        super().__init__("rouse frame", gdb.COMMAND_STACK)

    def invoke(self, argument: str, from_tty: bool) -> None:
        words = gdb.string_to_argv(argument)
        if len(words) != 2 or not words[1].isdigit():
            raise gdb.GdbError("rouse frame ID LEVEL")
        registers = thread_by_id(words[0]).parked()
        if not registers:
            raise gdb.GdbError(f"thread {words[0]} is not parked: use gdb's own threads")
        unwinder.show(registers)
        gdb.execute(f"frame {int(words[1]) + unwinder.hidden()}")


class Done(gdb.Command):  # type: ignore[misc]
    """rouse done: show the kernel thread's own frames again."""

    def __init__(self) -> None:
        super().__init__("rouse done", gdb.COMMAND_STACK)

    def invoke(self, argument: str, from_tty: bool) -> None:
        unwinder.show(None)


for command in (InfoThreads, Rouse, Backtrace, SelectFrame, Done):
    command()
