# SPDX-License-Identifier: MIT
"""Shared by the tests of waiting threads: the program `waits` in one of its scenes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, NoReturn

BUILD = Path(os.environ.get("ROUSE_BUILD", "build/check"))
SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
PROGRAM = BUILD / "tests" / "e2e" / "waits"
SANITIZED = PROGRAM.exists() and b"__sanitizer_" in PROGRAM.read_bytes()
END_OF_DUMP = "rouse: end of the threads\n"
PATIENCE_S = 60


def not_run(reason: str) -> NoReturn:
    print(f"not run: {reason}")
    sys.exit(77)


def contents(file: IO[bytes]) -> str:
    """The output so far. This leaves the file offset, which the program shares, unchanged."""
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


def wait_for_text(
    process: subprocess.Popen[bytes], file: IO[bytes], text: str, times: int = 1
) -> str:
    end = time.monotonic() + PATIENCE_S
    while (found := contents(file)).count(text) < times:
        assert time.monotonic() < end, f"no {text!r} in {found!r}"
        assert process.poll() is None, f"ended: {found!r}"
        time.sleep(0.01)
    return found


class Scene:
    """A run of `waits SCENE`, which ends with the with block. Its standard error is kept."""

    def __init__(
        self,
        name: str,
        environment: dict[str, str] | None = None,
        *,
        folder: str | None = None,
        wrapper: tuple[str, ...] = (),
        program: str = PROGRAM.name,
    ) -> None:
        self.name = name
        self.program = PROGRAM.with_name(program).resolve()
        self.wrapper = wrapper
        self.folder = folder
        self.environment = {**os.environ, **(environment or {})}

    def __enter__(self) -> Scene:
        self.errors: IO[bytes] = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [*self.wrapper, self.program, self.name],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
        )
        return self

    def __exit__(self, *rest: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            if stream:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def wait_until_ready(self) -> None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line == b"ready\n", (line, self.said())

    def end_input(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()

    def said(self) -> str:
        return contents(self.errors)

    def wait_until_said(self, text: str, times: int = 1) -> str:
        return wait_for_text(self.process, self.errors, text, times)

    def quit(self, times: int = 1) -> str:
        """Send SIGQUIT and return the dump."""
        self.process.send_signal(signal.SIGQUIT)
        return self.wait_until_said(END_OF_DUMP, times).split(END_OF_DUMP)[times - 1]

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)


def threads_of(dump: str) -> dict[str, str]:
    """The parts of a dump by thread name. The key "" is an unnamed thread."""
    parts: dict[str, str] = {}
    for part in dump.split("\nthread ")[1:]:
        head = part.split(",", 1)[0]
        parts[head.partition('"')[2].rstrip('"')] = part
    return parts
