# SPDX-License-Identifier: MIT
"""Where the symbols of a file come from that has none: the package, and debuginfod.

Debian has debug information in packages of their own, and many distributions have it on servers
that answer by build-id. The servers are asked only if DEBUGINFOD_URLS names them, as for GDB.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from rouse import whole_file

URLS, CACHE = "DEBUGINFOD_URLS", "DEBUGINFOD_CACHE_PATH"
PATTERN = re.compile(r"[*?\[\\]")  # dpkg-query takes a path with these for a pattern
ASKED_S = 5  # the package manager may take so long
CONNECT_S = 10
BYTES_MOST = 2 << 30
APART = {"libc6": "libc6-dbg"}  # packages whose debug information is not in NAME-dbgsym


@cache
def with_symbols(path: str) -> str:
    """Return the Debian package with the debug information of a file. Empty: not known."""
    if not path.startswith("/") or PATTERN.search(path) or not shutil.which("dpkg-query"):
        return ""
    # Packages may have the path from before /lib became /usr/lib.
    paths = dict.fromkeys((path, path.removeprefix("/usr")))
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            ["dpkg-query", "-S", *paths],
            capture_output=True,
            text=True,
            timeout=ASKED_S,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
        found = re.match(r"([a-z0-9][a-z0-9.+-]*)(?::\w+)?: /", done.stdout)
        if found:
            return APART.get(found[1], f"{found[1]}-dbgsym")
    return ""


def cached(build_id: str) -> Path:
    """Return the place that debuginfod's own client uses, so that both share their files."""
    given = os.environ.get(CACHE)
    if given:
        return Path(given) / build_id / "debuginfo"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "debuginfod_client" / build_id / "debuginfo"


@cache
def fetched(build_id: str) -> Path | None:
    """Return the file of debug information that a server has. None: not asked, or not found."""
    urls = os.environ.get(URLS, "").split()
    if not urls or not re.fullmatch(r"[0-9a-f]{8,64}", build_id):
        return None
    place = cached(build_id)
    if place.is_file():
        return place if place.stat().st_size else None  # the client notes a failure so
    for url in urls:
        with contextlib.suppress(OSError, ValueError, urllib.error.URLError):
            download(f"{url.rstrip('/')}/buildid/{build_id}/debuginfo", place)
            return place
    return None


def download(url: str, place: Path) -> None:
    """Raise OSError or ValueError. The file is then not there."""
    if not url.startswith(("http://", "https://")):
        raise ValueError(url)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with urllib.request.urlopen(url, timeout=CONNECT_S) as answer:
        whole_file.replace(place, bounded(iter(lambda: answer.read(1 << 20), b"")))


def bounded(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > BYTES_MOST:
            raise ValueError(f"has more than {BYTES_MOST >> 20:,} MiB")
        yield chunk
