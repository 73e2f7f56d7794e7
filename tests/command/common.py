# SPDX-License-Identifier: MIT
"""Shared by the tests of the command: its Python, the paths of its programs, and ways to run it.

Meson starts the tests with the Python that it found, but the command's packages are in build/venv.
Import this module first: it restarts the test with that Python, or skips it with a reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import io
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
FIXTURES = BUILD / "tests" / "command" / "fixtures"  # the compiled C programs
VENV = SOURCE / "build" / "venv"
PYTHON = VENV / "bin" / "python"
NEEDED = ("click", "duckdb", "elftools", "google", "numpy", "pyarrow", "rich", "textual")


def missing() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def enter_venv() -> None:
    """Restart this process with the Python that has the command's packages."""
    if missing() and PYTHON.exists() and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    if missing():
        print(f"not run: Python packages are not in build/venv: {', '.join(missing())}")
        sys.exit(77)


enter_venv()
sys.path.insert(0, str(SOURCE))

COMMAND = (sys.executable, "-m", "rouse")
TAKEN = (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM)  # signals that the command handles itself


def rouse(*words: str | Path, timeout: float = 60, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command. more: additional environment variables."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **more}
    return subprocess.run(
        [*COMMAND, *(str(word) for word in words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )


@contextlib.contextmanager
def laboratory() -> Iterator[None]:
    """Keep other tests from running `rouse lab`, which refuses to run twice on a machine."""
    path = Path(tempfile.gettempdir()) / f"rouse-lab-tests.{os.getuid()}"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def here(*words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the command inside this process. This is faster, since its modules are loaded already."""
    from rouse.cli.main import main

    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    status: Any = 0
    before = {number: signal.getsignal(number) for number in TAKEN}
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "", **more}),
        mock.patch.object(sys, "argv", ["rouse", *map(str, words)]),
        mock.patch.object(tempfile, "tempdir", None),  # as TMPDIR in `more` says, this time
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
    texts = [stream.buffer.getvalue().decode() for stream in (out, err)]
    return subprocess.CompletedProcess(sys.argv, status, *texts)


def main_unless(reason: str) -> None:
    """Run the tests of the calling script. If there is a reason not to, print it and skip them."""
    if reason:
        print(f"not run: {reason}")
        sys.exit(77)
    unittest.main(verbosity=2)


def start(test: unittest.TestCase, *command: str | Path, **more: str) -> subprocess.Popen[str]:
    """Start a program that is killed when the test ends. more: additional environment variables."""
    started = subprocess.Popen(
        [str(word) for word in command],
        env={**os.environ, "PYTHONPATH": str(SOURCE), **more},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    test.addCleanup(started.communicate)
    test.addCleanup(started.kill)
    return started


def start_ready(
    test: unittest.TestCase, *command: str | Path, **more: str
) -> subprocess.Popen[str]:
    """Like start, but return once the program has printed that it is ready."""
    started = start(test, *command, **more)
    said = next_line(started)
    if said != "ready\n":
        started.kill()
        test.fail(f"{command[0]} said {said!r} and {started.communicate()}")
    return started


def next_line(program: subprocess.Popen[str]) -> str:
    assert program.stdout
    return program.stdout.readline()


def send(program: subprocess.Popen[str], text: str) -> None:
    assert program.stdin
    program.stdin.write(text)
    program.stdin.flush()


def site_label(file: str, lines: list[str], number: int) -> str:
    """The label of a site, `function file:line`. The C file is formatted by tools/format.sh."""
    start = max(at for at, line in enumerate(lines[:number]) if line.startswith("{"))
    head = max(at for at, line in enumerate(lines[:start]) if re.match(r"\w.*\(", line))
    function = re.search(r"(\w+)\(", re.sub(r"__attribute__\(\(.*?\)\)\)?", "", lines[head]))
    assert function, lines[head]
    return f"{function[1]} {file}:{number}"
