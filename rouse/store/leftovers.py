# SPDX-License-Identifier: MIT
"""The folder of a run, and the removal of folders whose runs were killed.

The process that made a folder holds a lock (flock) on it, which ends with the process. Once it
holds the lock, it puts a marker file into the folder. So a folder with the marker and without a
lock belongs to nobody, unless processes of the run still record in it: their files are locked too.
Process numbers would not do: they are reused, and differ between PID namespaces.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rouse import regular
from rouse.store import find

MARK = "made-by-rouse-run"
SWITCHES = "kernel.switches"  # the output of the kernel recorder, beside the recordings
WAITS = "waits"  # the state of each thread while the program runs, in the same folder
SAMPLES = "cpu.samples"  # where its threads ran, see sched/cpu_samples.py
BUSY = "processors-busy-ns"  # how long all programs ran on the processors meanwhile, in digits
FILES = (MARK, "accept", WAITS, SWITCHES, SAMPLES, BUSY)  # a run's files besides its recordings
BUSY_BYTES = 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def temporary(place: Path) -> Iterator[Path]:
    """Make a folder for this user alone, and remove it at the end."""
    with contextlib.ExitStack() as until_removed:
        folder = Path(tempfile.mkdtemp(prefix=find.RUN_PREFIX, dir=place))
        fd = os.open(folder, FOLDER)
        until_removed.callback(os.close, fd)
        until_removed.callback(shutil.rmtree, folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # a file system without locks, or without room
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / MARK).touch()
        yield folder


def remove_dead(place: Path) -> None:
    """Remove this user's folders of killed runs. Folders that cannot be removed stay."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        names = [entry.name for entry in entries if entry.name.startswith(find.RUN_PREFIX)]
        for name in names:
            with contextlib.suppress(OSError):
                fd = os.open(place / name, FOLDER)
                try:
                    if is_dead(fd):
                        empty(fd)
                        (place / name).rmdir()
                finally:
                    os.close(fd)


def put_busy(folder: Path, busy_ns: int) -> None:
    with contextlib.suppress(OSError):  # it is not known then
        (folder / BUSY).write_text(f"{busy_ns}\n", encoding="ascii")


def busy_of(folder: Path) -> int | None:
    """Return what put_busy() has noted. None: nothing, or something else."""
    try:
        with regular.opened(folder / BUSY, BUSY_BYTES) as file:
            digits = file.read(BUSY_BYTES).strip()
    except OSError:
        return None
    return int(digits) if digits.isdigit() else None


def is_dead(fd: int) -> bool:
    """Whether nobody uses the folder. If so, this process holds its lock."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
        return False
    names = os.listdir(fd)
    if MARK not in names:
        return False
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return not any(is_recorded_in(fd, name) for name in names if find.NAME.fullmatch(name))


def is_recorded_in(folder: int, name: str) -> bool:
    """Whether a process records in the file, or soon may. We must not lock an empty file."""
    file = os.open(name, FILE, dir_fd=folder)
    try:
        if not os.fstat(file).st_size:
            return True
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def empty(folder: int) -> None:
    """Remove the files of a run, the marker last: if we are killed, the next process goes on."""
    names = sorted(os.listdir(folder), key=MARK.__eq__)
    if all(name in FILES or find.NAME.fullmatch(name) for name in names):
        for name in names:
            os.unlink(name, dir_fd=folder)
