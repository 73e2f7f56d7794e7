# SPDX-License-Identifier: MIT
"""Find out what the kernel permits, by trying where only that is certain. Nothing is changed."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import shutil
import struct
from pathlib import Path

SYS_IO_URING_SETUP = 425  # the same on both machines
SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283}
SYS_PERF_EVENT_OPEN = {"x86_64": 298, "aarch64": 241}
PERF_TYPE_SOFTWARE, PERF_COUNT_SW_DUMMY, PERF_ATTR_BYTES = 1, 9, 112
PERF_FLAGS = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 26  # disabled, no kernel, no hypervisor, switches
MEMBARRIER_PRIVATE_EXPEDITED = 1 << 3
MADV_GUARD_INSTALL = 102
IO_URING_PARAMS_BYTES = 120
# Programs that see the kernel's scheduler, and the variables that name others in their place.
BY_BPF, BY_RECORDS = "rouse-kernel", "rouse-switches"
HELPERS = {BY_BPF: "ROUSE_KERNEL", BY_RECORDS: "ROUSE_SWITCHES"}
CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39, "CAP_SYS_PTRACE": 19}


class System:
    """This machine, as this user sees it. root: where /proc and /sys are; a test has its own."""

    def __init__(self, root: Path = Path("/")) -> None:
        self.root = root
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.machine = platform.machine()

    # Files

    def text(self, path: str) -> str | None:
        """Return a file's text without surrounding space. None: it cannot be read."""
        try:
            return (
                (self.root / path.lstrip("/")).read_text(encoding="utf-8", errors="replace").strip()
            )
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        text = self.text(path)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None

    def exists(self, path: str) -> bool:
        return (self.root / path.lstrip("/")).exists()

    def may_read(self, path: str) -> bool:
        return os.access(self.root / path.lstrip("/"), os.R_OK)

    # Facts

    def kernel(self) -> tuple[int, int]:
        parts = (self.text("/proc/sys/kernel/osrelease") or platform.release()).split(".")
        digits = ["".join(c for c in part if c.isdigit()) or "0" for part in [*parts, "0"][:2]]
        return int(digits[0]), int(digits[1])

    def capabilities(self) -> set[str]:
        for line in (self.text("/proc/self/status") or "").splitlines():
            if line.startswith("CapEff:"):
                bits = int(line.split()[1], 16)
                return {name for name, bit in CAPABILITIES.items() if bits >> bit & 1}
        return set()

    def limit(self, which: int) -> tuple[int, int]:
        """Return the soft and the hard limit. -1: none."""
        return resource.getrlimit(which)

    def helper(self, program: str) -> Path | None:
        """Return the path of one of HELPERS in the package's folder. None: it was not built."""
        here = Path(__file__).resolve().parents[1]
        asked = os.environ.get(HELPERS[program])
        built = here.parent / "build" / "release" / "kernel" / program
        places = [Path(asked)] if asked else [here / program, built]
        return next((place for place in places if place.is_file()), None)

    def free_bytes(self, path: str) -> int | None:
        try:
            return shutil.disk_usage(path).free
        except OSError:
            return None

    def processors(self) -> int:
        return len(os.sched_getaffinity(0))

    # Trials

    def io_uring_error(self) -> int:
        """Return 0, or the error number with which the kernel refuses a ring."""
        parameters = ctypes.create_string_buffer(IO_URING_PARAMS_BYTES)
        fd = self.libc.syscall(SYS_IO_URING_SETUP, 1, parameters)
        if fd < 0:
            return ctypes.get_errno()
        os.close(fd)
        return 0

    def perf_event_error(self) -> int:
        """Return 0, or the error with which the kernel refuses to report this user's switches."""
        number = SYS_PERF_EVENT_OPEN.get(self.machine)
        if number is None:
            return errno.ENOSYS
        words = (PERF_TYPE_SOFTWARE, PERF_ATTR_BYTES, PERF_COUNT_SW_DUMMY, PERF_FLAGS)
        attributes = struct.pack("=IIQ24xQ", *words).ljust(PERF_ATTR_BYTES, b"\0")
        fd = self.libc.syscall(number, attributes, 0, -1, -1, ctypes.c_ulong(0))
        if fd < 0:
            return ctypes.get_errno()
        os.close(fd)
        return 0

    def has_membarrier(self) -> bool:
        number = SYS_MEMBARRIER.get(self.machine)
        if number is None:
            return False
        commands = int(self.libc.syscall(number, 0, 0, 0))
        return commands > 0 and bool(commands & MEMBARRIER_PRIVATE_EXPEDITED)

    def has_guards(self) -> bool:
        """Whether madvise() makes guard pages: some emulators report success and make none."""
        with mmap.mmap(-1, mmap.PAGESIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as page:
            start = ctypes.c_char.from_buffer(page)
            address = ctypes.c_void_p(ctypes.addressof(start))
            size = ctypes.c_size_t(mmap.PAGESIZE)
            done = self.libc.madvise(address, size, MADV_GUARD_INSTALL) == 0
            guards = done and self.is_guarded(address)
            del start, address  # or the page could not be closed
        return guards

    def is_guarded(self, address: ctypes.c_void_p) -> bool:
        """Let the kernel read there: it reports the result without a fault."""
        reader, writer = os.pipe()
        try:
            got = self.libc.write(writer, address, ctypes.c_size_t(1))
            return got < 0 and ctypes.get_errno() == errno.EFAULT
        finally:
            os.close(reader)
            os.close(writer)
