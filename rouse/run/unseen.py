# SPDX-License-Identifier: MIT
"""Find out from a program's file why the interposer was not loaded into it."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.segments import InterpSegment

from rouse.symbols import runtimes

SCRIPTS_MOST = 4  # interpreters followed, where each is itself a script


@dataclass(frozen=True)
class Asked:
    """The file that the program should have made."""

    place: Path  # its folder, or what that is in
    mib: int  # its length


def first_words(path: Path) -> list[str]:
    """Return the interpreter of a script and its argument. None: it is no script."""
    with path.open("rb") as file:
        line = file.readline(512)
    return line[2:].decode("utf-8", "replace").split() if line.startswith(b"#!") else []


def named_runner(path: Path) -> str | None:
    """Return the interpreter that a file names: a script's, or a program's dynamic loader."""
    with contextlib.suppress(OSError, ELFError):
        words = first_words(path)
        return words[0] if words else interpreter(path)
    return None


def run_by(path: Path) -> Path | None:
    """Return the interpreter of a script. None: it is not a script."""
    words = first_words(path)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = shutil.which(words[0]) if words else None
    return Path(found) if found else None


def is_privileged(path: Path) -> bool:
    """Whether it gains rights that its caller lacks: the dynamic loader then ignores LD_PRELOAD."""
    status = path.stat()
    if status.st_mode & stat.S_ISUID and status.st_uid != os.getuid():
        return True
    if status.st_mode & stat.S_ISGID and status.st_gid != os.getgid():
        return True
    return os.getuid() != 0 and "security.capability" in os.listxattr(path)


def interpreter(path: Path) -> str | None:
    """Return the dynamic loader that it names. None: it names none."""
    with path.open("rb") as file:
        for segment in ELFFile(file).iter_segments():
            if isinstance(segment, InterpSegment):
                return str(segment.get_interp_name())
    return None


def unknown(asked: Asked) -> str:
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if 0 <= most < asked.mib << 20:
        return (
            f"its file needs {asked.mib} MiB, and files may have {most >> 10:,} KiB here: raise"
            " ulimit -f, or give less with --memory"
        )
    return (
        f"its file could not be made (is there room in {asked.place}, and may the program's files"
        f" have {asked.mib} MiB?), or the program was started without the LD_PRELOAD of its"
        " environment"
    )


def file_run(program: str) -> Path:
    """Return the file of code that runs: the program's own, or that of a script's interpreter."""
    path = Path(program)
    for _ in range(SCRIPTS_MOST):
        runner = run_by(path)
        if runner is None:
            break
        path = runner
    return path


def own_waits(program: str) -> list[str]:
    """Return the note on a program whose runtime waits by system calls of its own."""
    with contextlib.suppress(OSError):
        path = file_run(program)
        return [runtimes.RUNTIMES[name] for name in runtimes.names_of(str(path), ())]
    return []


def why(program: str, asked: Asked) -> str:
    try:
        path = file_run(program)
        which = "it" if path == Path(program) else f"{path}, which runs it,"
        if is_privileged(path):
            return f"{which} is setuid, setgid or has capabilities: such programs preload nothing"
        loader = interpreter(path)
    except (OSError, ELFError):
        return unknown(asked)
    if loader is None:
        static = f"{which} is linked statically: there is no libc.so whose calls could be seen"
        return "; ".join([static, *own_waits(program)])
    if "musl" in loader:
        return f"{which} uses musl ({loader}), the interposer is for glibc"
    return unknown(asked)
