# SPDX-License-Identifier: MIT
"""Find the processes that record, and read what they have recorded so far."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import posixpath
import re
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from rouse import clock, regular
from rouse.errors import RouseError
from rouse.store import decode, layout

MEMORY = Path("/dev/shm")
RUN_PREFIX = "rouse-run-"  # begins the name of the folder of a `rouse run`
# PID.rouse, PID-NAMESPACE.rouse in a PID namespace, and PID.N.rouse of a program before exec
NAME = re.compile(r"([1-9][0-9]{0,9})(?:-([0-9]{1,20}))?(?:\.[1-9][0-9]{0,3})?\.rouse")
DELETED = " (deleted)"


@dataclass(frozen=True)
class Found:
    """The recording of a process. It stays longer than the process only if that was killed."""

    pid: int
    path: Path
    is_alive: bool
    is_here: bool  # pid is a number of this PID namespace
    recorded: str  # the path of its program

    @property
    def program(self) -> str | None:
        """The name of the program that it runs. None: it cannot be seen."""
        return program_of(self.pid) if self.is_here else posixpath.basename(self.recorded)


def folder() -> Path:
    """Return where this user's processes record."""
    asked = os.environ.get("ROUSE_OBS_DIR")
    return Path(asked) if asked else MEMORY / f"rouse-{os.geteuid()}"


def check_own(path: Path, status: os.stat_result, what: str) -> None:
    """Raise RouseError unless this user owns it, and alone may write to it."""
    if status.st_uid != os.geteuid():
        raise RouseError(
            f"{path}: this {what} is of user {status.st_uid}, not of user {os.geteuid()}",
            "run rouse as that user",
        )
    if status.st_mode & 0o022:
        raise RouseError(f"{path}: others may write to this {what}", f"chmod go-w {path}")


def checked_folder() -> Path | None:
    """Return the folder. None: it does not exist. An error: it is not this user's own."""
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


def private_folders(prefix: str, places: Iterable[Path]) -> list[Path]:
    """Return this user's folders with such names that others cannot read. Others' are ignored."""
    found = []
    for place in dict.fromkeys(places):
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            for entry in entries:
                if not entry.name.startswith(prefix):
                    continue
                with contextlib.suppress(OSError):  # it has just been removed
                    status = entry.stat(follow_symlinks=False)
                    is_own = status.st_uid == os.geteuid() and not status.st_mode & 0o077
                    if stat.S_ISDIR(status.st_mode) and is_own:
                        found.append(place / entry.name)
    return found


def run_folders() -> list[Path]:
    """Return the folders of runs of `rouse run` by this user that go on."""
    return private_folders(RUN_PREFIX, (MEMORY, Path(tempfile.gettempdir())))


def spare_folders() -> list[Path]:
    """Return the folders that processes use because another user has taken their folder's name."""
    return private_folders(f"rouse-{os.geteuid()}-", (MEMORY,))


def own_folders() -> list[Path]:
    """Return the folders of this user's processes. An error: there is none, and a name is taken."""
    if os.environ.get("ROUSE_OBS_DIR"):
        own = checked_folder()
        return [own] if own else []
    spare = spare_folders()
    try:
        own = checked_folder()
    except RouseError:
        if not spare:
            raise
        return spare
    return [own, *spare] if own else spare


def kept_folders(pid: int) -> list[Path]:
    """Return the folder that a process' environment names, as `rouse run --keep` sets it."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    name = b"ROUSE_OBS_DIR="
    return [Path(os.fsdecode(word.removeprefix(name))) for word in words if word.startswith(name)]


def folders() -> list[Path]:
    """Return the folders to search for recordings: only ROUSE_OBS_DIR, if it is set."""
    runs = [] if os.environ.get("ROUSE_OBS_DIR") else run_folders()
    return own_folders() + runs


def start_ticks(pid: int) -> int | None:
    """Return when a process began, which distinguishes it from others. None: it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    if len(fields) < 20 or fields[0] in ("Z", "X"):
        return None
    return int(fields[19])


def command_of(pid: int) -> str:
    """Return the words of its command, which it may change; empty if they cannot be read."""
    try:
        return decode.command_text(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return ""


LIVES, DEAD, NOT_SEEN = "lives", "dead", "not seen"


@functools.cache
def namespace() -> int:
    """Return this process's PID namespace. 0: not known."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except FileNotFoundError:
        return layout.INITIAL_PIDS  # of a kernel that has only one
    except OSError:
        return 0


def file_name(pid: int) -> str:
    """Return the name of the file of a process of this PID namespace."""
    own = namespace()
    return f"{pid}.rouse" if own == layout.INITIAL_PIDS else f"{pid}-{own}.rouse"


@functools.cache
def is_own_proc() -> bool:
    """Whether /proc shows the numbers of this process's namespace."""
    try:
        return Path("/proc/self").readlink().name == str(os.getpid())
    except OSError:
        return False


def is_here(head: decode.Head) -> bool:
    """Whether process numbers mean the same in a recording and in this /proc."""
    return is_own_proc() and head.pid_namespace in (0, namespace())


def has_lock(source: decode.FileSource) -> bool:
    """Whether a process has the file mapped. It holds a lock meanwhile."""
    try:
        fcntl.flock(source.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    fcntl.flock(source.fd, fcntl.LOCK_UN)
    return False


def life(head: decode.Head, source: decode.FileSource) -> str:
    """Whether the process of a file still runs on this machine.

    For another PID namespace, only the lock shows it.
    """
    if head.ended or head.boot_id != clock.boot_id():
        return DEAD
    if is_here(head):
        return LIVES if start_ticks(head.pid) == head.start_ticks else DEAD
    if not head.is_locked:
        return NOT_SEEN
    return LIVES if has_lock(source) else DEAD


def far_notes(head: decode.Head, state: str) -> list[str]:
    """Return the note on a process that may run in another PID namespace."""
    if state == DEAD or is_here(head):
        return []
    what = (
        "whether it lives, and its kernel threads," if state == NOT_SEEN else "its kernel threads"
    )
    return [f"it runs in another PID namespace: {what} cannot be seen from here"]


def open_source(path: Path) -> decode.FileSource:
    """Open a file for reading, if it is this user's own."""
    try:
        source = decode.FileSource(path)
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


def read(source: decode.FileSource, kinds: Iterable[int] = decode.COUNTED) -> decode.Store:
    """Return its present contents, or its last ones if its process has ended."""
    head = decode.read_head(source)
    state = life(head, source)
    is_dead = state == DEAD
    is_replaced = not is_dead and what_became(source, Path(source.name)) == REPLACED
    is_over = is_dead or is_replaced
    found = decode.decode(source, kinds, None if is_over else time.monotonic_ns)
    found.is_here, found.is_sure = is_here(head), state != NOT_SEEN
    if state == LIVES and found.is_here and found.is_live:
        found.head = replace(found.head, command=command_of(head.pid) or head.command)
    found.problems += far_notes(head, state)
    if is_replaced:
        found.problems.append(f"its process {REPLACED}: what is here is from before")
    return found


def files_of(place: Path) -> list[Path]:
    """Return the paths in a folder; a run that ends removes its folder."""
    try:
        return list(place.iterdir())
    except FileNotFoundError:
        return []


def processes() -> list[Found]:
    """Return the files of this user's processes that record, or were killed while they did."""
    found = []
    for path in sorted(path for place in folders() for path in files_of(place)):
        match = NAME.fullmatch(path.name)
        if not match:
            continue
        try:
            source = open_source(path)
        except RouseError:
            continue
        try:
            head = decode.read_head(source)
            is_alive = life(head, source) != DEAD
        except RouseError:
            continue
        finally:
            source.close()
        if head.pid == int(match[1]):
            found.append(Found(head.pid, path, is_alive, is_here(head), head.program))
    return found


def of_pid(pid: int) -> Path:
    """Return the file of a process. Raise RouseError that says why there is none."""
    for place in own_folders() + run_folders() + kept_folders(pid):
        path = place / file_name(pid)
        if path.exists():
            return path
    path = folder() / file_name(pid)
    elsewhere = [found.path for found in processes() if found.pid == pid and not found.is_here]
    if len(elsewhere) == 1:
        return elsewhere[0]
    if elsewhere:
        raise RouseError(
            f"process {pid}: there are {len(elsewhere)} in other PID namespaces",
            "run rouse in the one that is meant: nsenter --pid --mount --target",
        )
    raise RouseError(f"process {pid}: {why_not(pid, path)}")


def why_not(pid: int, path: Path) -> str:
    """Return why a process has no file."""
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
    """Whether a file begins like a store."""
    try:
        with regular.opened(path) as file:
            return file.read(8) == layout.MAGIC.to_bytes(8, "little")
    except OSError:
        return False


def program_path(pid: int) -> str | None:
    """Return the path of the file that a process runs, which may have been deleted."""
    try:
        return str(Path(f"/proc/{pid}/exe").readlink()).removesuffix(DELETED)
    except OSError:
        return None


def program_of(pid: int) -> str | None:
    """Return the name of the program that a process runs."""
    path = program_path(pid)
    return None if path is None else posixpath.basename(path)


ENDED, KILLED = "has ended", "was killed, or left by _exit()"
GONE = "was killed, left by _exit(), or runs another program; it was in another PID namespace"
REPLACED = "runs another program now (exec)"


def what_became(source: decode.FileSource, path: Path) -> str | None:
    """Return the fate of the process of an open file, as a sentence without its subject.

    None: it goes on. The file stays at its path until its process ends, or until another program of
    that process begins to record.
    """
    head = decode.decode_head(decode.read_moments(source)[0])
    for _ in range(2):  # the process may have ended after its head was read
        is_dead = life(head, source) == DEAD
        head = decode.decode_head(decode.read_moments(source)[0])
        if head.ended:
            return ENDED
        if is_dead:
            return KILLED if is_here(head) else GONE
        try:
            is_same = os.path.samestat(path.stat(), os.fstat(source.fd))
        except OSError:
            is_same = False
        program = (program_path(head.pid) if is_here(head) else None) or head.program
        if is_same and program == head.program.removesuffix(DELETED):
            return None
    return REPLACED


def parent_of(pid: int) -> int | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return int(fields[1]) if len(fields) > 1 else None
