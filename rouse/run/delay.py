# SPDX-License-Identifier: MIT
"""Find the mutex whose holds `rouse run --delay` lengthens."""

from __future__ import annotations

import re
from pathlib import Path

from rouse.errors import RouseError
from rouse.run import unseen
from rouse.symbols.elf import Elf, ElfError

VARIABLE = "ROUSE_RUN_DELAY"
NAME = re.compile(r"(?P<name>.+?)(?:\+(?P<offset>0x[0-9a-f]+|\d+))?")
MUTEX_BYTES = 40  # of pthread_mutex_t; AArch64: 48


def value(program: str, lock: str, us: float) -> str:
    """Return the value of VARIABLE. lock: a static variable of the program, as reports name it."""
    match = NAME.fullmatch(lock)
    assert match
    path = unseen.file_run(program)
    try:
        found = Elf(path).variables_called(match["name"])
        status = Path(path).stat()
    except (ElfError, OSError) as error:
        raise RouseError(f"--delay: {error}") from error
    offset = int(match["offset"] or "0", 0)
    if not found:
        raise RouseError(
            f"--delay: {path} has no variable {match['name']}",
            "name a mutex that is a static variable of the program, as a report does",
        )
    if len(found) > 1:
        raise RouseError(f"--delay: {path} has {len(found)} variables {match['name']}")
    ((address, size),) = found
    if offset + MUTEX_BYTES > size:
        raise RouseError(f"--delay: {lock} is no mutex: {match['name']} has {size} bytes")
    return f"{status.st_dev}:{status.st_ino}:{address + offset}:{round(us * 1000)}"
