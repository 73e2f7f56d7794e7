# SPDX-License-Identifier: MIT
"""Open files whose paths cannot be trusted: only regular files, and never so that we wait.

A recording names files of code, and those names may be chosen to harm. Opening a FIFO waits for a
writer, opening a device may act on it, and reading /dev/zero never ends. So the path is opened
without access (O_PATH) first. Rejected: open and then look, which has touched the device already.
Symbolic links are followed, because paths of libraries have them: what they lead to is checked.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LARGEST = 8 << 30  # bytes of a file of code, or of debug information, that is read
PROC = Path("/proc")


class NotRegularError(OSError):
    """The file is not one that may be read."""


def is_of_proc(status: os.stat_result) -> bool:
    """Whether it is a file of the kernel's: /proc/kmsg, say, is regular, and its reads wait."""
    with suppress(OSError):
        return status.st_dev == PROC.stat().st_dev
    return False


def opened(path: Path, most: int | None = None) -> BinaryIO:
    """Open a file for reading. Raise OSError if it is not regular, or has more than most bytes."""
    known = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        status = os.fstat(known)
        if not stat.S_ISREG(status.st_mode) or is_of_proc(status):
            raise NotRegularError(errno.EINVAL, "is no regular file", str(path))
        if most is not None and status.st_size > most:
            raise NotRegularError(errno.EFBIG, f"has more than {most >> 20:,} MiB", str(path))
        # O_PATH pins the file, so it is still the one that was checked.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        try:
            fd = os.open(f"/proc/self/fd/{known}", flags)
        except FileNotFoundError:  # there is no /proc: look again after opening
            fd = os.open(path, flags)
            if not os.path.samestat(os.fstat(fd), status):
                os.close(fd)
                raise NotRegularError(errno.EINVAL, "was replaced", str(path)) from None
    finally:
        os.close(known)
    return os.fdopen(fd, "rb")
