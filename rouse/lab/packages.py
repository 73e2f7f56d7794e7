# SPDX-License-Identifier: MIT
"""The servers and clients that the laboratory compares: their Debian packages and versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rouse.errors import RouseError

# Of commands. That of PostgreSQL has a server of its own, too.
PACKAGES = {
    "mariadb": "mariadb-client-core",
    "mariadb-install-db": "mariadb-server-core",
    "mariadbd": "mariadb-server-core",
    "initdb": "postgresql",
    "postgres": "postgresql",
    "psql": "postgresql-client",
    "sysbench": "sysbench",
    "wrk": "wrk",
    "nginx": "nginx-light",
    "node": "nodejs",
}
# Commands, by experiment.
NEEDED = {
    "E2": ("sysbench", "mariadb", "mariadbd"),
    "E6": ("sysbench", "mariadb", "mariadbd", "postgres", "psql"),
    "http": ("wrk", "nginx", "node"),
}
PLACES = ("/usr/sbin", "/usr/local/sbin")
VERSIONED = "/usr/lib/postgresql"  # Debian has PostgreSQL's server below it, not in PATH
# The option for which a command prints its version, if not "--version".
ASKED = {"nginx": "-v", "wrk": "-v"}
VERSION = re.compile(r"(?<![\w.])v?(\d+(?:\.\d+)+[\w.+~-]*)")
RELEASE = "Distrib "  # before the release, in MariaDB's clients, which have their own versions
ANSWER_S = 10


def path_of(command: str) -> str | None:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *PLACES))
    if found := shutil.which(command, path=path):
        return found
    if command != "postgres":
        return None
    return shutil.which(command, path=os.pathsep.join(map(str, postgresql())))


def postgresql() -> list[Path]:
    """Return the folders of PostgreSQL's servers, the newest first."""
    found = [path for path in Path(VERSIONED).glob("*/bin") if path.parent.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.parent.name), reverse=True)


def is_here(command: str) -> bool:
    return path_of(command) is not None


def version_of(command: str) -> str | None:
    """Return the version that a command prints. None: it is missing, or prints none."""
    path = path_of(command)
    if path is None:
        return None
    try:
        said = subprocess.run(
            [path, ASKED.get(command, "--version")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=ANSWER_S,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = VERSION.search(said.partition(RELEASE)[2] or said)
    return found[1] if found else None


def versions(name: str) -> list[str]:
    """Return command and version of each program that an experiment compares or asks."""
    known = [(command, version_of(command)) for command in NEEDED.get(name, ())]
    return [f"{command} {version}" for command, version in known if version]


def missing(names: Sequence[str]) -> list[str]:
    """Return the packages that the experiments lack."""
    commands = {command for name in names for command in NEEDED.get(name, ())}
    return sorted({PACKAGES[command] for command in commands if not is_here(command)})


def install(names: Sequence[str], tell: Callable[[str], None]) -> None:
    """Install what the experiments lack by apt-get, as root or by sudo. Services do not start."""
    packages = missing(names)
    if not packages:
        tell("no package is missing")
        return
    words = ["apt-get", "install", "-y", "--no-install-recommends", *packages]
    if shutil.which(words[0]) is None:
        raise RouseError(f"no apt-get here; install by other means: {' '.join(packages)}")
    settings = {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            raise RouseError("only root can install packages", f"as root: {' '.join(words)}")
        words = ["sudo", "env", *(f"{name}={value}" for name, value in settings.items()), *words]
    tell(" ".join(words))
    done = subprocess.run(words, env={**os.environ, **settings}, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RouseError(f"apt-get ended with status {done.returncode}: nothing was measured")
