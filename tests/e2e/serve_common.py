# SPDX-License-Identifier: MIT
"""Shared by the tests of rouse-serve: a running server, a raw client, and a tree of files."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

PROGRAM = Path(os.environ.get("ROUSE_BUILD", "build/release")) / "serve" / "rouse-serve"
KINDS = ("user", "kernel")
SANITIZED = PROGRAM.exists() and b"__sanitizer_" in PROGRAM.read_bytes()
TSAN_OPTIONS = os.environ.get("TSAN_OPTIONS", "")
HOST = b"Host: localhost\r\n"


def get(target: str, headers: bytes = b"", method: str = "GET") -> bytes:
    """The bytes of a request. target may contain any character up to 255."""
    return f"{method} {target} HTTP/1.1\r\n".encode("latin-1") + HOST + headers + b"\r\n"


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Server:
    """A server on a free port. The end of the with block stops it and checks its status."""

    def __init__(
        self,
        *arguments: str | Path,
        kind: str = "user",
        preexec: Callable[[], None] | None = None,
        status: int | None = 0,
    ) -> None:
        self.command = [str(PROGRAM), "--port", "0", "--threads", kind, *map(str, arguments)]
        self.preexec = preexec
        self.status = status

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.log = stack.enter_context(tempfile.TemporaryFile())
            self.start()
            self.open = stack.pop_all()
        return self

    def start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdout=subprocess.PIPE,
            stderr=self.log,
            preexec_fn=self.preexec,
            env={**os.environ, "TSAN_OPTIONS": f"{TSAN_OPTIONS}:atexit_sleep_ms=50"},
        )
        assert self.process.stdout
        self.line = self.process.stdout.readline().decode()
        found = re.search(r"http://(\S+):(\d+)/", self.line)
        if not found:
            self.process.wait(10)
            raise AssertionError(f"no address in {self.line!r}; {self.messages()}")
        self.port = int(found[2])

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self.open:
            self.stop(kind is None)

    def stop(self, is_checked: bool) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        assert self.process.stdout
        self.process.stdout.close()
        if not is_checked:
            print(f"the server ended with {status}: {self.messages()}", file=sys.stderr)
        elif self.status is not None and status != self.status:
            raise AssertionError(f"the server ended with {status}: {self.messages()}")

    def messages(self) -> str:
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def held(self) -> int:
        """The number of descriptors that the server's connections and their files use."""
        count = -1  # do not count the listening socket
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # it has just been closed
                target = link.readlink()
                count += str(target).startswith("socket:") or target.is_file()
        return count

    def connect(self, receive_bytes: int = 0) -> Client:
        return Client(self.port, receive_bytes)

    def ask(self, target: str, headers: bytes = b"", method: str = "GET") -> Reply:
        with self.connect() as client:
            client.send(get(target, headers, method))
            return client.reply(method)

    def raw(self, data: bytes) -> list[Reply]:
        """Send data and shut down. Returns all answers until the server closes the connection."""
        with self.connect() as client:
            client.send(data)
            client.socket.shutdown(socket.SHUT_WR)
            return client.replies()


class Client:
    def __init__(self, port: int, receive_bytes: int = 0) -> None:
        self.socket = socket.socket()
        if receive_bytes:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(20)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.connect(("127.0.0.1", port))
        except OSError:
            self.socket.close()
            raise
        self.buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *rest: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def has_input(self, seconds: float) -> bool:
        """Wait until there is input or the end of input. Returns false on time-out."""
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        return bool(poller.poll(seconds * 1000))

    def reset(self) -> None:
        """Close the connection with a reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def fill(self) -> None:
        data = self.socket.recv(262144)
        if not data:
            raise EOFError(f"closed after {self.buffer[:80]!r}")
        self.buffer += data

    def reply(self, method: str = "GET") -> Reply:
        while (end := self.buffer.find(b"\r\n\r\n")) < 0:
            self.fill()
        lines = self.buffer[:end].decode("latin-1").split("\r\n")
        match = re.fullmatch(r"HTTP/1\.1 (\d{3}) [A-Za-z ]+", lines[0])
        assert match, lines[0]
        headers: dict[str, str] = {}
        for line in lines[1:]:
            name, value = line.split(": ", 1)
            assert name.lower() not in headers, line
            headers[name.lower()] = value
        status = int(match[1])
        self.buffer = self.buffer[end + 4 :]
        count = 0 if method == "HEAD" or status == 304 else int(headers["content-length"])
        parts = [self.buffer]
        have = len(self.buffer)
        while have < count:
            data = self.socket.recv(1 << 20)
            if not data:
                raise EOFError(f"closed amid a body, {have} of {count}")
            parts.append(data)
            have += len(data)
        data = b"".join(parts)
        self.buffer = data[count:]
        return Reply(status, headers, data[:count])

    def replies(self) -> list[Reply]:
        found = []
        while True:
            try:
                found.append(self.reply())
            except EOFError:
                assert not self.buffer, self.buffer
                return found

    def ended(self, seconds: float = 10) -> bool:
        """Whether the server closes the connection in time, without sending another byte."""
        self.socket.settimeout(seconds)
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False


@contextlib.contextmanager
def tree() -> Iterator[Path]:
    """Yield a root directory with files of all kinds, and a secret file beside it."""
    with tempfile.TemporaryDirectory(prefix="rouse-serve-") as name:
        top = Path(name)
        (top / "secret").write_text("secret")
        root = top / "root"
        (root / "sub" / "deep").mkdir(parents=True)
        (root / "bare").mkdir()
        (root / "index.html").write_text("<p>top\n")
        (root / "sub" / "index.html").write_text("<p>sub\n")
        (root / "empty.txt").touch()
        (root / "one.txt").write_bytes(b"1")
        (root / "small.txt").write_bytes(os.urandom(700))
        (root / "page.css").write_bytes(os.urandom(8192))
        (root / "over.js").write_bytes(os.urandom(8193))
        (root / "mega.bin").write_bytes(os.urandom(1 << 20))
        (root / "ten.bin").write_bytes(os.urandom(10 << 20))
        (root / "a b+c.txt").write_text("space")
        (root / "100%.txt").write_text("percent")
        (root / "grüße.txt").write_text("unicode")
        (root / "sub" / "deep" / "x.json").write_text("{}")
        yield root


def prctl(*arguments: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_ulong] * 5
    if libc.prctl(*arguments, *[0] * (5 - len(arguments))):
        raise OSError(ctypes.get_errno(), "prctl")


ALLOW, FAIL = 0x7FFF0000, 0x00050000  # what a filter returns; FAIL with the error number


def filter_calls(*code: tuple[int, int, int, int]) -> None:
    """In a child, before exec: let the kernel run this filter at each system call (seccomp)."""
    text = b"".join(struct.pack("HBBI", *line) for line in code)
    filters = ctypes.create_string_buffer(text, len(text))
    program = struct.pack("HxxxxxxP", len(code), ctypes.addressof(filters))
    holder = ctypes.create_string_buffer(program, len(program))
    prctl(38, 1)  # PR_SET_NO_NEW_PRIVS
    prctl(22, 2, ctypes.addressof(holder))  # PR_SET_SECCOMP


def without_openat2() -> None:
    """In a child, before exec: openat2 fails with ENOSYS, as on a kernel older than 5.6."""
    # Load the call's number. It is 437 on every architecture.
    filter_calls(
        *((0x20, 0, 0, 0), (0x15, 0, 1, 437)), (0x06, 0, 0, FAIL | 38), (0x06, 0, 0, ALLOW)
    )


def without_override() -> None:
    """In a child, before exec: file modes apply even to root."""
    if os.geteuid() == 0:
        prctl(24, 1)  # PR_CAPBSET_DROP: CAP_DAC_OVERRIDE
        prctl(24, 2)  # CAP_DAC_READ_SEARCH


def eventually(condition: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def seed() -> int:
    number = int(os.environ.get("ROUSE_SEED") or time.time_ns() % 1000000)
    print(f"ROUSE_SEED={number}", file=sys.stderr)
    return number


def not_run(reason: str) -> None:
    print(f"not run: {reason}")
    sys.exit(77)


def main(*tools: str) -> None:
    """Run the tests of the calling script, which needs these tools."""
    for tool in tools:
        if not shutil.which(tool):
            not_run(f"{tool} is not installed")
    if not PROGRAM.exists():
        not_run(f"{PROGRAM} is not built")
    unittest.main(verbosity=2)
