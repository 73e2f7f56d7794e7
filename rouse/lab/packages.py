# SPDX-License-Identifier: MIT
"""Debian's packages of the servers and clients that the laboratory compares, and their install."""

from __future__ import annotations

import os
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


def is_here(command: str) -> bool:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), *PLACES))
    if shutil.which(command, path=path):
        return True
    return command == "postgres" and Path(VERSIONED).is_dir()


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
