#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""OpenSSL on user threads: examples/tls_echo.c, built against an installed copy."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import tempfile
import threading
import unittest
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from installed import COMPILERS, HAS_OWN_TLS, SOURCE, Installed, run, skip_without

OWN = ("own",) if HAS_OWN_TLS else ()  # user threads with thread-local storage of their own
KINDS, WORKERS, BACKENDS = ("user", "kernel", *OWN), ("1", "2", "4"), ("uring", "epoll")
CONNECTIONS, MESSAGES, LARGEST, RESETS, LIMIT_S = 24, 12, 60_000, 20, 60
SEED = int(os.environ.get("ROUSE_SEED") or random.randrange(1 << 32))

folder: Path
installed: Installed


def setUpModule() -> None:
    global folder, installed
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")
    flags = run("pkg-config", "--cflags", "--libs", "openssl").split()
    for compiler in COMPILERS:
        source = SOURCE / "examples" / "tls_echo.c"
        installed.compile(compiler, source, folder / compiler, more=flags)
    words = (
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    )
    run("openssl", *words, "-keyout", folder / "key.pem", "-out", folder / "certificate.pem")


class Tls(unittest.TestCase):
    def server(
        self,
        compiler: str,
        settings: Mapping[str, str] = MappingProxyType({}),
        idle_s: int = 30,
        kind: str = "user",
    ) -> tuple[str, int]:
        more = {"ROUSE_THREADS": "kernel"} if kind == "kernel" else {}
        server = subprocess.Popen(
            [
                *(folder / compiler, folder / "certificate.pem", folder / "key.pem"),
                *("0", str(idle_s), *([kind] if kind == "own" else [])),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**installed.environment, **settings, **more},
        )
        assert server.stdout
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        found = re.search(r"(127\.0\.0\.1):(\d+)", server.stdout.readline())
        assert found
        return found[1], int(found[2])

    def connected(self, address: tuple[str, int]) -> ssl.SSLSocket:
        context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
        plain = socket.create_connection(address, LIMIT_S)
        return context.wrap_socket(plain, server_hostname="localhost")

    def echoes(self, address: tuple[str, int], seed: int) -> None:
        dice = random.Random(seed)
        with self.connected(address) as peer:
            for _ in range(MESSAGES):
                sent = dice.randbytes(dice.randrange(1, LARGEST))
                got = bytearray()
                peer.sendall(sent)  # the buffers on the way have room for it and for its echo
                while len(got) < len(sent) and (part := peer.recv(1 << 16)):
                    got += part
                self.assertEqual(got, sent)
            peer.unwrap()

    def test_every_byte_comes_back_on_many_connections_at_once(self) -> None:
        print(f"ROUSE_SEED={SEED}")
        for compiler, kind, workers, backend in itertools.product(
            COMPILERS, KINDS, WORKERS, BACKENDS
        ):
            with self.subTest(compiler=compiler, kind=kind, workers=workers, backend=backend):
                settings = {"ROUSE_WORKERS": workers, "ROUSE_IO": backend}
                address = self.server(compiler, settings, kind=kind)
                failed: list[BaseException] = []

                def run_one(
                    seed: int, to: tuple[str, int] = address, into: list[BaseException] = failed
                ) -> None:
                    try:
                        self.echoes(to, seed)
                    except BaseException as error:
                        into.append(error)

                clients = [
                    threading.Thread(target=run_one, args=(SEED + i,)) for i in range(CONNECTIONS)
                ]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                self.assertEqual(failed, [])

    def test_what_is_no_tls_or_ends_early_harms_no_other_connection(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                address = self.server(COMPILERS[0], kind=kind)
                with self.connected(address) as peer:
                    for junk in (b"GET / HTTP/1.0\r\n\r\n", b"\x16\x03\x01\xff\xff", b""):
                        with socket.create_connection(address, LIMIT_S) as other:
                            other.sendall(junk)
                    with self.connected(address) as cut:
                        cut.sendall(b"x" * LARGEST)  # it does not read the answer
                    peer.sendall(b"still here")
                    self.assertEqual(peer.recv(100), b"still here")

    def test_a_reset_while_the_server_writes_does_not_end_it_by_sigpipe(self) -> None:
        address = self.server(COMPILERS[0])
        with self.connected(address) as peer:
            for _ in range(RESETS):
                cut = self.connected(address)
                cut.setblocking(False)
                with contextlib.suppress(ssl.SSLWantWriteError):
                    while True:  # nobody reads the echo, so that the server's writes must wait
                        cut.send(b"x" * LARGEST)
                cut.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                cut.close()
                peer.sendall(b"still here")
                self.assertEqual(peer.recv(100), b"still here")

    def test_a_silent_connection_is_closed(self) -> None:
        address = self.server(COMPILERS[0], idle_s=1)
        with self.connected(address) as peer:
            self.assertEqual(peer.recv(1), b"")


if __name__ == "__main__":
    skip_without("pkg-config", "openssl", *COMPILERS)
    if subprocess.run(["pkg-config", "--exists", "openssl >= 3.0"], check=False).returncode:
        print("not run: libssl-dev is not installed")
        raise SystemExit(77)
    unittest.main(verbosity=2)
