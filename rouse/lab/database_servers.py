# SPDX-License-Identifier: MIT
"""Database servers that an experiment starts and stops, with their own sockets and folders."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rouse.errors import RouseError
from rouse.lab import packages
from rouse.lab.processes import TICK_S, comm, fields, stop, tree

SOURCE = Path(__file__).resolve().parents[2]
TABLES, ROWS = 4, 10_000
START_S = 60
POINT = "oltp_point_select"
# An installed command has its packages beside it.
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{SOURCE}:{SOURCE / 'packages'}"}


class LabError(RouseError):
    """The reason why an experiment cannot continue."""


@dataclass(frozen=True)
class Sample:
    """The resources that a server has used, and the work it has done, up to one moment."""

    transactions: int
    user_s: float
    system_s: float
    voluntary: int
    involuntary: int

    def since(self, before: Sample) -> Sample:
        return Sample(*(getattr(self, f) - getattr(before, f) for f in self.__dataclass_fields__))

    def __add__(self, other: Sample) -> Sample:
        return Sample(*(getattr(self, f) + getattr(other, f) for f in self.__dataclass_fields__))


def found(name: str, *more: Path) -> str:
    path = shutil.which(name) or next((str(p / name) for p in more if (p / name).exists()), None)
    if path is None:
        raise LabError(
            f"{name} is not installed", f"apt-get install {packages.PACKAGES.get(name, name)}"
        )
    return path


def run(*words: str | Path, timeout: float = 120) -> str:
    done = subprocess.run(
        [str(word) for word in words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=ENVIRONMENT,
    )
    if done.returncode:
        told = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{words[0]} failed: {told[-1] if told else done.returncode}")
    return done.stdout


class Server:
    """One kind of database server. `folder` is empty, and no one else uses it."""

    name = ""
    driver = ""

    def __init__(self, folder: Path, options: Sequence[str] = (), rows: int = ROWS) -> None:
        """options: more of them, for the server. rows: of each table."""
        self.folder = folder
        self.socket = folder / "socket"
        self.options = options
        self.rows = rows
        self.within: Sequence[str] = ()  # the beginning of its command: see processors.limited

    def copy(self, folder: Path) -> Server:
        """Return a server on a copy of the data of this one, which must not run. The copy shares
        the blocks on disk where the file system can do that (reflink)."""
        folder.mkdir()
        run("cp", "-a", "--reflink=auto", self.folder / "data", folder / "data")
        shutil.copystat(self.folder, folder)
        status = self.folder.stat()
        os.chown(folder, status.st_uid, status.st_gid)
        return type(self)(folder, self.options, self.rows)

    def make(self) -> None:
        """Create the files of a database without tables."""

    def command(self) -> list[str]:
        raise NotImplementedError

    def as_user(self) -> list[str]:
        """The prefix of a command that runs it as a user other than root."""
        return []

    def asked(self, query: str) -> str:
        raise NotImplementedError

    def transactions(self, work: str) -> int:
        """Transactions completed so far. Loads without transactions count statements."""
        raise NotImplementedError

    def sysbench(self) -> list[str]:
        raise NotImplementedError

    def bench(self, work: str, clients: int, *words: str) -> list[str]:
        return [
            *(found("sysbench"), work, f"--db-driver={self.driver}", *self.sysbench()),
            *(f"--tables={TABLES}", f"--table-size={self.rows}", f"--threads={clients}", *words),
        ]

    @contextlib.contextmanager
    def started(self, *before: str) -> Iterator[Running]:
        """`before` is a command that runs the server."""
        log = (self.folder / "log").open("ab")
        program = subprocess.Popen(
            [*self.within, *self.as_user(), *before, *self.command()],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=self.folder,
            env=ENVIRONMENT,
        )
        try:
            self.wait(program)
            yield Running(self, program)
        finally:
            stop(program)
            log.close()

    def wait(self, program: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + START_S
        while True:
            with contextlib.suppress(LabError, subprocess.TimeoutExpired):
                self.asked("select 1")
                return
            if program.poll() is not None or time.monotonic() > until:
                told = (self.folder / "log").read_text("utf-8", "replace").strip().splitlines()
                raise LabError(f"{self.name} does not start: {told[-1] if told else 'no reason'}")
            time.sleep(0.1)


class Running:
    """A running server: its processes and their use of resources."""

    def __init__(self, server: Server, program: subprocess.Popen[bytes]) -> None:
        self.server = server
        self.program = program

    def processes(self) -> list[int]:
        """The server's own processes, without those that started it."""
        program = Path(self.server.command()[0]).name[:15]
        return [pid for pid in tree(self.program.pid) if comm(pid) == program]

    def sample(self, work: str) -> Sample:
        ticks = [0, 0]
        switches = [0, 0]
        for pid in self.processes():
            with contextlib.suppress(OSError):
                words = fields(Path(f"/proc/{pid}"))
                for i in range(2):  # the process's own time, and that of its ended children
                    ticks[i] += int(words[13 + i]) + int(words[15 + i])
                for status in Path(f"/proc/{pid}/task").glob("*/status"):
                    for line in status.read_text(encoding="utf-8").splitlines():
                        name, _, value = line.partition(":")
                        if name == "voluntary_ctxt_switches":
                            switches[0] += int(value)
                        elif name == "nonvoluntary_ctxt_switches":
                            switches[1] += int(value)
        done = self.server.transactions(work)
        return Sample(done, ticks[0] * TICK_S, ticks[1] * TICK_S, *switches)


class MariaDB(Server):
    name = "MariaDB"
    driver = "mysql"

    def make(self) -> None:
        run(
            *(found("mariadb-install-db"), "--no-defaults", f"--datadir={self.folder / 'data'}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
            f"--user={pwd.getpwuid(os.getuid()).pw_name}",
        )

    def command(self) -> list[str]:
        return [
            *(found("mariadbd", Path("/usr/sbin")), "--no-defaults", "--skip-networking"),
            *(f"--datadir={self.folder / 'data'}", f"--socket={self.socket}"),
            *(f"--pid-file={self.folder / 'pid'}", f"--user={pwd.getpwuid(os.getuid()).pw_name}"),
            *("--innodb-buffer-pool-size=256M", "--innodb-flush-log-at-trx-commit=2"),
            *("--max-connections=200", f"--log-error={self.folder / 'log'}"),
            *self.options,
        ]

    def asked(self, query: str) -> str:
        return run(
            *(found("mariadb"), "--no-defaults", "-S", self.socket, "-u", "root", "-BN"),
            *("-e", query),
        )

    def transactions(self, work: str) -> int:
        counter = "Questions" if work == POINT else "Com_commit"
        return int(self.asked(f"show global status where Variable_name = '{counter}'").split()[1])

    def sysbench(self) -> list[str]:
        return [f"--mysql-socket={self.socket}", "--mysql-user=root", "--mysql-db=bench"]


class PostgreSQL(Server):
    name = "PostgreSQL"
    driver = "pgsql"

    def __init__(self, folder: Path, options: Sequence[str] = (), rows: int = ROWS) -> None:
        super().__init__(folder, options, rows)
        self.homes = packages.postgresql()

    def as_user(self) -> list[str]:
        if os.getuid():
            return []
        return [found("setpriv"), "--reuid=postgres", "--regid=postgres", "--clear-groups"]

    def make(self) -> None:
        initdb = found("initdb", *self.homes)
        if not os.getuid():
            shutil.chown(self.folder, "postgres", "postgres")
        data = self.folder / "data"
        run(*self.as_user(), initdb, "-D", data, "-A", "trust", "-U", "bench")

    def command(self) -> list[str]:
        return [
            *(found("postgres", *self.homes), "-D", str(self.folder / "data")),
            *("-k", str(self.folder), "-c", "listen_addresses=", "-c", "max_connections=200"),
            *("-c", "shared_buffers=256MB", "-c", "synchronous_commit=off"),
            *self.options,
        ]

    def asked(self, query: str) -> str:
        return run(
            *(found("psql", *self.homes), "-h", self.folder, "-U", "bench", "-d", "postgres"),
            *("-Atc", query),
        )

    def transactions(self, work: str) -> int:
        return int(self.asked("select sum(xact_commit)::bigint from pg_stat_database"))

    def sysbench(self) -> list[str]:
        return [f"--pgsql-host={self.folder}", "--pgsql-user=bench", "--pgsql-db=bench"]


SERVERS = {"mariadb": MariaDB, "postgresql": PostgreSQL}


def rouse(*words: str) -> Sequence[str]:
    """Run the command of this source tree with its installed packages."""
    venv = SOURCE / "build" / "venv" / "bin" / "python"
    return [str(venv) if venv.exists() else sys.executable, "-m", "rouse", *words]
