# SPDX-License-Identifier: MIT
"""Runtimes whose threads wait by system calls of their own, which no preloaded library sees."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile

from rouse import regular
from rouse.symbols.elf import build_id_of

GO, GOMP = "Go", "libgomp"
GO_SECTIONS = (".go.buildinfo", ".note.go.buildid")
OTHERWISE = "they are seen by `rouse run --kernel`, and by `sudo rouse watch PID`"
# By runtime, what a report on a program that uses it says.
RUNTIMES = {
    GO: "the program is written in Go, whose runtime makes its own system calls: the waits of"
    f" goroutines and of the runtime's threads are not recorded; {OTHERWISE}",
    GOMP: "the program uses OpenMP of gcc (libgomp), which makes its own futex calls: of its waits"
    " only those at barriers and critical sections are recorded, not those for the end of a"
    f" parallel region, a loop, a task or omp_set_lock(); {OTHERWISE}",
}


# By runtime, the kind of its threads' waits that are not recorded.
OWN_CALLS = {GO: "in system calls of Go's runtime", GOMP: "in futex calls of libgomp"}

# Variables of runtimes and libc that users know by other names: OpenMP's critical sections in
# programs, those of preload/hooks/openmp.c, and streams.
CRITICAL = ".gomp_critical_user_"
OBJECTS = {
    **{"rouse_preload_omp_critical": "omp critical", "rouse_preload_omp_barrier": "omp barrier"},
    "std::__detail::__waiter_pool_base::_S_for::__w": "waits of std::atomic",  # std::barrier too
    **{f"_IO_2_1_{name}_": name for name in ("stdin", "stdout", "stderr")},  # libc's streams
}


def known_name(variable: str) -> str | None:
    """Return the name by which users know a variable of a runtime. None: it is another."""
    if variable.startswith(CRITICAL):
        return f"omp critical {variable.removeprefix(CRITICAL)}"
    return OBJECTS.get(variable)


@cache
def of_file(path: Path, build_id: str = "") -> tuple[str, ...]:
    """Return the runtimes of a program's file. build_id: the expected one. Empty: not known."""
    try:
        with regular.opened(path, regular.LARGEST) as stream:
            file = ELFFile(stream)
            if build_id and build_id_of(file) != build_id:
                return ()
            is_go = any(file.get_section_by_name(name) is not None for name in GO_SECTIONS)
            dynamic = file.get_section_by_name(".dynamic")
            tags: Iterable[Any] = ()
            if isinstance(dynamic, DynamicSection):
                tags = dynamic.iter_tags("DT_NEEDED")
            needed = [str(tag.needed) for tag in tags]
    except MemoryError:
        raise
    except Exception:  # pyelftools fails in many ways on a file that is damaged
        return ()
    has_gomp = any(name.startswith(GOMP) for name in needed)
    return (*((GO,) if is_go else ()), *((GOMP,) if has_gomp else ()))


def names_of(program: str, modules: Iterable[tuple[str, str]]) -> list[str]:
    """Return the runtimes of a process. modules: paths and build-ids of its files of code."""
    by_path = dict(modules)
    found = of_file(Path(program), by_path.get(program, ""))
    is_loaded = any(posixpath.basename(path).startswith(GOMP) for path in by_path)
    return list(dict.fromkeys([*found, *((GOMP,) if is_loaded else ())]))
