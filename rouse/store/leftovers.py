# SPDX-License-Identifier: MIT
"""The folder of a run, and those that runs have left which were killed.

The process that made a folder holds a lock (flock) on it, which ends with the process; it also lays
a file in it once it holds that. So a folder that has the file and no lock is nobody's, unless
processes of the run still record in it: their files are locked too. Numbers of processes would
say less: they are given anew, and mean something else in another PID namespace.
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

from rouse.store import find

MARK = "made-by-rouse-run"
SWITCHES = "kernel.switches"  # the output of the kernel recorder, beside the recordings
WAITS = "waits"  # the state of each thread while the program runs, in the same folder
FILES = (MARK, "accept", WAITS, SWITCHES)  # and those of processes
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK


@contextlib.contextmanager
def temporary(place: Path) -> Iterator[Path]:
    """A folder there for this user alone, while this goes on."""
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
    """Those of this user, as far as they can be removed."""
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


def is_dead(fd: int) -> bool:
    """And this process has its lock then."""
    status = os.fstat(fd)
    if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
        return False
    names = os.listdir(fd)
    if MARK not in names:
        return False
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return not any(is_recorded_in(fd, name) for name in names if find.NAME.fullmatch(name))


def is_recorded_in(folder: int, name: str) -> bool:
    """Or may be soon: one that is empty yet is about to be locked, which we would prevent."""
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
    """Of what runs put there; the mark last, for who is killed here leaves it to the next."""
    names = sorted(os.listdir(folder), key=MARK.__eq__)
    if all(name in FILES or find.NAME.fullmatch(name) for name in names):
        for name in names:
            os.unlink(name, dir_fd=folder)
