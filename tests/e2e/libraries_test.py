#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""zlib, SQLite, libcurl and libpq on user threads, as docs/libraries.md says."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from installed import COMPILERS, HAS_OWN_TLS, SOURCE, Installed, run, skip_without

MODES = (
    {"ROUSE_THREADS": "user"},
    *([{"ROUSE_THREADS": "user", "ROUSE_TLS": "own"}] if HAS_OWN_TLS else []),
    {"ROUSE_THREADS": "kernel"},
)
BACKENDS = ("uring", "epoll")
# Without spare workers a library that blocks its worker would stop all threads.
SETTINGS = tuple(
    {**mode, "ROUSE_WORKERS": workers, "ROUSE_IO": backend, "ROUSE_SPARES": "0"}
    for mode, workers, backend in itertools.product(MODES, ("1", "2"), BACKENDS)
)
THREADS, LIMIT_S = 32, 120

folder: Path
installed: Installed


def setUpModule() -> None:
    global folder, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    folder.chmod(0o755)  # PostgreSQL runs as another user
    installed = Installed(folder / "root")


class Server(ThreadingHTTPServer):
    """Answers a request when THREADS of them are there, with the last part of its path."""

    daemon_threads = True
    request_queue_size = THREADS

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.all_there = threading.Barrier(THREADS)


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.all_there.wait(LIMIT_S)
        body = self.path.rpartition("/")[2].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def http() -> Iterator[str]:
    with Server() as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@contextlib.contextmanager
def postgres() -> Iterator[str]:
    """Run a server that only a socket in the folder reaches. Yield how to connect."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        raise unittest.SkipTest("not run: PostgreSQL is not installed")
    place = folder / "postgres"
    place.mkdir()
    other = [] if os.geteuid() else ["setpriv", "--reuid=postgres", "--regid=postgres"]
    if other:
        other.append("--clear-groups")
        shutil.chown(place, "postgres")
    data = place / "data"
    run(*other, binaries[-1] / "initdb", "-D", data, "-U", "tester", "-A", "trust", cwd="/")
    control = (*other, binaries[-1] / "pg_ctl", "-D", data, "-w", "-l", place / "log")
    listen = f"-c listen_addresses= -k {place} -N {THREADS + 8}"
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/"}
    subprocess.run([*map(str, control), "-o", listen, "start"], check=True, **quiet)  # type: ignore[call-overload]
    try:
        yield f"host={place} user=tester dbname=postgres"
    finally:
        subprocess.run([*map(str, control), "-m", "immediate", "stop"], check=True, **quiet)  # type: ignore[call-overload]


class Libraries(unittest.TestCase):
    def built(self, name: str, package: str, compiler: str) -> Path:
        if subprocess.run(["pkg-config", "--exists", package], check=False).returncode:
            self.skipTest(f"not run: {package}.pc is not installed")
        flags = run("pkg-config", "--cflags", "--libs", package).split()
        source = SOURCE / "tests" / "e2e" / "libraries" / f"{name}.c"
        return installed.compile(compiler, source, folder / f"{name}-{compiler}", more=flags)

    def is_right(self, *words: str | Path, **settings: str) -> None:
        done = subprocess.run(
            [str(word) for word in words],
            env={**installed.environment, **settings},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "right\n"), done.stderr)

    def test_zlib(self) -> None:
        for compiler in COMPILERS:
            program = self.built("with_zlib", "zlib", compiler)
            for settings in SETTINGS:
                with self.subTest(compiler=compiler, **settings):
                    self.is_right(program, **settings)

    def test_sqlite(self) -> None:
        for compiler in COMPILERS:
            program = self.built("with_sqlite", "sqlite3", compiler)
            for settings in SETTINGS:
                with (
                    self.subTest(compiler=compiler, **settings),
                    tempfile.TemporaryDirectory() as at,
                ):
                    self.is_right(program, Path(at) / "data", **settings)

    def test_libcurl(self) -> None:
        for compiler in COMPILERS:
            program = self.built("with_curl", "libcurl", compiler)
            for settings in SETTINGS:
                with self.subTest(compiler=compiler, **settings), http() as url:
                    self.is_right(program, url, str(THREADS), **settings)

    def test_libcurl_that_blocks_gets_a_spare_worker_per_thread(self) -> None:
        program = self.built("with_curl", "libcurl", COMPILERS[0])
        with http() as url:
            self.is_right(program, url, str(THREADS), "easy", ROUSE_WORKERS="1")

    def test_libpq(self) -> None:
        programs = [self.built("with_libpq", "libpq", compiler) for compiler in COMPILERS]
        with postgres() as target:
            for program, settings in itertools.product(programs, SETTINGS):
                with self.subTest(program=program.name, **settings):
                    self.is_right(program, target, str(THREADS), **settings)


if __name__ == "__main__":
    skip_without("pkg-config", *COMPILERS)
    unittest.main(verbosity=2)
