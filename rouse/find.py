# SPDX-License-Identifier: MIT
"""Find the processes that record, and read what they have recorded so far."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from rouse import layout, store
from rouse.errors import RouseError

NAME = re.compile(r"([1-9][0-9]{0,9})\.rouse")
DELETED = " (deleted)"


@dataclass(frozen=True)
class Found:
    """A file of a process. It is there as long as the process, or, if that was killed, longer."""

    pid: int
    path: Path
    is_alive: bool


def folder() -> Path:
    """Where this user's processes record."""
    asked = os.environ.get("ROUSE_OBS_DIR")
    return Path(asked) if asked else Path(f"/dev/shm/rouse-{os.geteuid()}")


def check_own(path: Path, status: os.stat_result, what: str) -> None:
    """Another user could have laid anything there, and may change it while it is read."""
    if status.st_uid != os.geteuid():
        raise RouseError(
            f"{path}: this {what} is of user {status.st_uid}, not of user {os.geteuid()}",
            "run rouse as that user",
        )
    if status.st_mode & 0o022:
        raise RouseError(f"{path}: others may write to this {what}", f"chmod go-w {path}")


def checked_folder() -> Path | None:
    """The folder if it is there; an error if it is not this user's own."""
    path = folder()
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise RouseError(
            f"{path}: is no folder", "remove it, or set ROUSE_OBS_DIR to another place"
        )
    check_own(path, status, "folder")
    return path


def start_ticks(pid: int) -> int | None:
    """When a process began, to tell it from another of its number; None: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def is_alive(head: store.Head) -> bool:
    """Whether the process of a recording still runs, on this machine since it was started."""
    return (
        not head.ended
        and head.boot_id == store.boot_id()
        and start_ticks(head.pid) == head.start_ticks
    )


def open_source(path: Path) -> store.FileSource:
    """Open a file for reading, if it is this user's own."""
    try:
        source = store.FileSource(path)
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error
    status = os.fstat(source.fd)
    try:
        if not stat.S_ISREG(status.st_mode):
            raise RouseError(f"{path}: is no file")
        check_own(path, status, "file")
    except RouseError:
        source.close()
        raise
    return source


def read(source: store.FileSource, kinds: Iterable[int] = store.COUNTED) -> store.Store:
    """What it has at this moment, if its process is alive, else what it had in the end."""
    raw, _ = store.read_moments(source)
    store.check_head(source.name, raw)
    alive = is_alive(store.decode_head(raw))
    return store.decode(source, kinds, time.monotonic_ns if alive else None)


def processes() -> list[Found]:
    """Those of this user that record, or were killed while they did; other files are skipped."""
    place = checked_folder()
    if place is None:
        return []
    found = []
    for path in sorted(place.iterdir()):
        match = NAME.fullmatch(path.name)
        if not match:
            continue
        try:
            source = open_source(path)
        except RouseError:
            continue
        try:
            raw, _ = store.read_moments(source)
            store.check_head(source.name, raw)
            head = store.decode_head(raw)
        except RouseError:
            continue
        finally:
            source.close()
        if head.pid == int(match[1]):
            found.append(Found(head.pid, path, is_alive(head)))
    return found


def of_pid(pid: int) -> Path:
    """The file of a process; an error that says why there is none."""
    place = checked_folder()
    path = folder() / f"{pid}.rouse"
    if place is not None and path.exists():
        return path
    raise RouseError(f"process {pid}: {why_not(pid, path)}")


def why_not(pid: int, path: Path) -> str:
    """Why a process has no file."""
    if start_ticks(pid) is None:
        return "there is none"
    try:
        owner = Path(f"/proc/{pid}").stat().st_uid
    except OSError:
        return "there is none"
    if owner != os.geteuid():
        return f"it is of user {owner}; run rouse as that user"
    return (
        f"it does not record ({path} is not there); it must use librouse, without ROUSE_OBS=off "
        "and with the same ROUSE_OBS_DIR"
    )


def is_recording(path: Path) -> bool:
    """Whether a file begins as a store does."""
    try:
        with path.open("rb") as file:
            return file.read(8) == layout.MAGIC.to_bytes(8, "little")
    except OSError:
        return False


def program_path(pid: int) -> str | None:
    """The file that a process runs, though it may lie there no more."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(DELETED)
    except OSError:
        return None


def program_of(pid: int) -> str | None:
    """The name of the program that a process runs."""
    path = program_path(pid)
    return None if path is None else posixpath.basename(path)


def parent_of(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None
