#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""examples/ports: both forms of each program behave alike, and the page shows how they differ."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import unittest
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
PROGRAMS = BUILD / "examples"
FORMS = (("pthread", "kernel"), ("rouse", "user"), ("rouse", "kernel"))
LIMIT_S = 60
sys.path.insert(0, str(SOURCE / "bench"))
import ports  # noqa: E402
from tables import ports as figures  # noqa: E402


def environment(kind: str) -> dict[str, str]:
    return {**os.environ, "ROUSE_THREADS": kind}


class Server:
    """One form of a server on a free port. The end of the with block stops it by SIGTERM."""

    def __init__(self, name: str, form: str, kind: str, *arguments: str) -> None:
        self.words = [str(PROGRAMS / f"example_port_{name}_{form}"), "0", *arguments]
        self.environment = environment(kind)

    def __enter__(self) -> Server:
        self.messages = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            self.words,
            stdout=subprocess.PIPE,
            stderr=self.messages,
            text=True,
            env=self.environment,
        )
        assert self.process.stdout
        found = re.search(r":(\d+)$", self.process.stdout.readline())
        assert found
        self.port = int(found[1])
        return self

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), LIMIT_S)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(LIMIT_S)
        self.messages.seek(0)
        said = self.messages.read()
        assert (status, said) == (0, ""), (status, said)

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self.process, self.messages:
            try:
                if kind is None and self.process.poll() is None:
                    self.stop()
            finally:
                self.process.kill()


def received(peer: socket.socket, count: int) -> bytes:
    with peer.makefile("rb") as reader:
        return reader.read(count)


def collect(peer: socket.socket, count: int, results: dict[socket.socket, bytes]) -> None:
    results[peer] = received(peer, count)


class Each(unittest.TestCase):
    def each(self) -> Iterator[tuple[str, str]]:
        for form, kind in FORMS:
            with self.subTest(form=form, threads=kind):
                yield form, kind


class KeyValue(Each):
    def servers(self) -> Iterator[Server]:
        for form, kind in self.each():
            with Server("kv", form, kind) as server:
                yield server

    def ask(self, peer: socket.socket, request: bytes, expected: bytes) -> None:
        peer.sendall(request)
        self.assertEqual(received(peer, len(expected)), expected)

    def test_values_are_stored_replaced_and_deleted(self) -> None:
        for server in self.servers():
            with server.connect() as peer, server.connect() as other:
                self.ask(peer, b"get a\r\n", b"END\r\n")
                self.ask(peer, b"set a 7 0 5\r\nhello\r\n", b"STORED\r\n")
                self.ask(other, b"get a\r\n", b"VALUE a 7 5\r\nhello\r\nEND\r\n")
                self.ask(other, b"set a 0 0 0\r\n\r\n", b"STORED\r\n")
                self.ask(peer, b"set b 4294967295 0 2\r\n\r\n\r\n", b"STORED\r\n")
                both = b"VALUE a 0 0\r\n\r\nVALUE b 4294967295 2\r\n\r\n\r\nEND\r\n"
                self.ask(peer, b"get a none b\r\n", both)
                self.ask(peer, b"delete a\r\n", b"DELETED\r\n")
                self.ask(other, b"delete a\r\n", b"NOT_FOUND\r\n")
                self.ask(
                    other,
                    b"set c 0 0 1 noreply\r\nc\r\nget a c\r\n",
                    b"VALUE c 0 1\r\nc\r\nEND\r\n",
                )
                self.ask(peer, b"delete c noreply\r\nget c\r\n", b"END\r\n")
                self.ask(peer, b"version\r\n", b"VERSION kv\r\n")
                peer.sendall(b"quit\r\n")
                self.assertEqual(peer.recv(1), b"")

    def test_requests_may_come_in_any_pieces(self) -> None:
        requests = b"set a 0 0 3\r\nx\r\n\r\nget a\r\ndelete a\r\nget a\r\n"
        answers = b"STORED\r\nVALUE a 0 3\r\nx\r\n\r\nEND\r\nDELETED\r\nEND\r\n"
        for server in self.servers():
            with server.connect() as peer:
                peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for pieces in ((requests[i : i + 1] for i in range(len(requests))), (requests,)):
                    for piece in pieces:
                        peer.sendall(piece)
                    self.assertEqual(received(peer, len(answers)), answers)

    def test_a_large_value_returns_whole_and_a_larger_one_is_refused(self) -> None:
        value = bytes(range(256)) * 4096
        for server in self.servers():
            with server.connect() as peer:
                self.ask(peer, b"set big 0 0 1048576\r\n" + value + b"\r\n", b"STORED\r\n")
                head = b"VALUE big 0 1048576\r\n"
                self.ask(peer, b"get big\r\n", head + value + b"\r\nEND\r\n")
                too_large = b"SERVER_ERROR object too large for cache\r\n"
                self.ask(peer, b"set big 0 0 1048577\r\n" + value + b"x\r\n", too_large)
                self.ask(peer, b"delete big\r\n", b"DELETED\r\n")

    def test_a_full_store_refuses_and_keeps_what_it_has(self) -> None:
        value = b"v" * (1 << 20)
        full = b"SERVER_ERROR out of memory storing object\r\n"
        for server in self.servers():
            with server.connect() as peer:
                for key in range(63):
                    self.ask(peer, b"set k%d 0 0 1048576\r\n%b\r\n" % (key, value), b"STORED\r\n")
                self.ask(peer, b"set last 0 0 1048576\r\n%b\r\n" % value, full)
                self.ask(peer, b"delete k0\r\n", b"DELETED\r\n")
                self.ask(peer, b"set last 0 0 1048576\r\n%b\r\n" % value, b"STORED\r\n")

    def test_lines_that_are_wrong_are_refused(self) -> None:
        kept = {
            b"\r\n": b"ERROR\r\n",
            b"unknown\r\n": b"ERROR\r\n",
            b"get\r\n": b"ERROR\r\n",
            b"delete\r\n": b"CLIENT_ERROR bad command line format\r\n",
            b"get " + b"k" * 251 + b"\r\n": b"CLIENT_ERROR bad command line format\r\n",
            b"get " + b"k" * 250 + b"\r\n": b"END\r\n",
        }
        ended = {
            b"x" * 2048: b"CLIENT_ERROR line too long\r\n",
            b"set a 0 0 1\r\nxyz": b"CLIENT_ERROR bad data chunk\r\n",
        }
        for words in (b"a", b"a 0 0", b"a 0 0 -1", b"a 4294967296 0 1", b"a 0 0 1x"):
            ended[b"set " + words + b"\r\n"] = b"CLIENT_ERROR bad command line format\r\n"
        for server in self.servers():
            with server.connect() as peer:
                for request, answer in kept.items():
                    self.ask(peer, request, answer)
            for request, answer in ended.items():
                with server.connect() as peer:
                    self.ask(peer, request, answer)
                    self.assertEqual(peer.recv(1), b"")

    def test_no_reader_sees_a_part_of_a_value(self) -> None:
        """Connections replace, read and delete the same keys."""

        def work(server: Server, mark: bytes) -> None:
            value = mark * 3000
            with server.connect() as peer, peer.makefile("rb") as reader:
                for round_ in range(100):
                    key = b"k%d" % (round_ % 3)
                    peer.sendall(b"set %b 0 0 3000\r\n%b\r\n" % (key, value))
                    assert reader.readline() == b"STORED\r\n"
                    peer.sendall(b"get %b\r\n" % key)
                    if (head := reader.readline()) != b"END\r\n":
                        assert head == b"VALUE %b 0 3000\r\n" % key, head
                        found = reader.read(3002)
                        assert found == found[:1] * 3000 + b"\r\n"
                        assert reader.readline() == b"END\r\n"
                    peer.sendall(b"delete %b\r\n" % key)
                    assert reader.readline() in (b"DELETED\r\n", b"NOT_FOUND\r\n")
                done.append(mark)

        for server in self.servers():
            done: list[bytes] = []
            marks = [bytes([mark]) for mark in b"abcdefghijklmnop"]
            threads = [threading.Thread(target=work, args=(server, mark)) for mark in marks]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(sorted(done), marks)

    def test_a_client_that_does_not_read_stops_nobody(self) -> None:
        value = b"v" * (1 << 20)
        for server in self.servers():
            with server.connect() as slow, server.connect() as peer:
                self.ask(peer, b"set big 0 0 1048576\r\n%b\r\n" % value, b"STORED\r\n")
                slow.sendall(b"get big\r\n" * 20)
                select.select([slow], [], [], LIMIT_S)
                self.ask(peer, b"set big 0 0 1\r\nx\r\n", b"STORED\r\n")
                self.ask(peer, b"get big\r\n", b"VALUE big 0 1\r\nx\r\nEND\r\n")
                self.ask(peer, b"delete big\r\n", b"DELETED\r\n")

    def test_sigterm_ends_every_connection(self) -> None:
        """Of clients that are idle, in the middle of a value, or do not read their answers."""
        value = b"v" * (1 << 20)
        for server in self.servers():
            with contextlib.ExitStack() as stack:
                peers = [stack.enter_context(server.connect()) for _ in range(100)]
                for peer in peers:
                    self.ask(peer, b"get none\r\n", b"END\r\n")
                self.ask(peers[0], b"set big 0 0 1048576\r\n%b\r\n" % value, b"STORED\r\n")
                peers[1].sendall(b"get big\r\n" * 20)
                peers[2].sendall(b"set half 0 0 1000\r\nvvv")
                select.select([peers[1]], [], [], LIMIT_S)
                server.stop()
                for peer in peers[2:]:
                    self.assertEqual(peer.recv(1), b"")


class Forward(Each):
    def forwarders(self) -> Iterator[tuple[Server, socket.socket]]:
        for form, kind in self.each():
            with (
                socket.create_server(("127.0.0.1", 0), backlog=256) as target,
                Server("forward", form, kind, "127.0.0.1", str(target.getsockname()[1])) as server,
            ):
                target.settimeout(LIMIT_S)
                yield server, target

    @contextlib.contextmanager
    def pair(self, server: Server, target: socket.socket) -> Iterator[list[socket.socket]]:
        with server.connect() as client, target.accept()[0] as peer:
            peer.settimeout(LIMIT_S)
            yield [client, peer]

    def test_both_directions_carry_every_byte_at_once(self) -> None:
        sent = [bytes(range(256)) * 8192, bytes(range(255, -1, -1)) * 8192]
        for server, target in self.forwarders():
            with self.pair(server, target) as ends:
                results: dict[socket.socket, bytes] = {}
                threads = []
                for end, text in zip(ends, sent, strict=True):
                    threads.append(threading.Thread(target=end.sendall, args=(text,)))
                    threads.append(threading.Thread(target=collect, args=(end, len(text), results)))
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
                self.assertTrue([results[end] for end in reversed(ends)] == sent)

    def test_the_end_of_one_direction_leaves_the_other_open(self) -> None:
        for server, target in self.forwarders():
            for first in (0, 1):
                with self.pair(server, target) as ends:
                    ended, other = ends[first], ends[1 - first]
                    ended.sendall(b"last")
                    ended.shutdown(socket.SHUT_WR)
                    self.assertEqual(received(other, 5), b"last")
                    other.sendall(b"answer")
                    self.assertEqual(received(ended, 6), b"answer")
                    other.close()
                    self.assertEqual(ended.recv(1), b"")

    def test_a_reset_ends_both_sides(self) -> None:
        for server, target in self.forwarders():
            with self.pair(server, target) as (client, peer):
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                client.close()
                with contextlib.suppress(ConnectionResetError):
                    self.assertEqual(peer.recv(1), b"")

    def test_a_target_that_refuses_ends_the_client_only(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))  # bound, so nobody else listens there
            port = str(unused.getsockname()[1])
            for form, kind in self.each():
                with Server("forward", form, kind, "127.0.0.1", port) as server:
                    for _ in range(2):
                        with server.connect() as client, contextlib.suppress(ConnectionResetError):
                            self.assertEqual(client.recv(1), b"")

    def test_sigterm_ends_every_connection(self) -> None:
        for server, target in self.forwarders():
            with contextlib.ExitStack() as stack:
                pairs = [stack.enter_context(self.pair(server, target)) for _ in range(100)]
                for client, peer in pairs:
                    client.sendall(b"x")
                    self.assertEqual(peer.recv(1), b"x")
                pairs[0][0].shutdown(socket.SHUT_WR)
                self.assertEqual(pairs[0][1].recv(1), b"")
                server.stop()
                for client, peer in pairs:
                    self.assertEqual((client.recv(1), peer.recv(1)), (b"", b""))


class Words(Each):
    def count(self, form: str, kind: str, *words: str | Path) -> tuple[int, str, str]:
        done = subprocess.run(
            [PROGRAMS / f"example_port_words_{form}", *words],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=environment(kind),
        )
        return done.returncode, done.stdout, done.stderr

    def test_the_sums_are_those_of_wc(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "empty").touch()
            (Path(folder) / "open").write_text("no end")
            (Path(folder) / "edge").write_text("x" * 32767 + " " + "y" * 40000 + "\n")
            paths = [*Path(folder).iterdir(), *(SOURCE / "src").rglob("*.c")]
            wc = subprocess.run(
                ["wc", *paths], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
            )
            lines, words, count, _ = wc.stdout.splitlines()[-1].split()
            expected = (0, f"{lines} lines, {words} words, {count} bytes\n", "")
            for form, kind in self.each():
                for threads in ("1", "4", "64"):
                    self.assertEqual(self.count(form, kind, threads, *paths), expected)

    def test_a_file_that_cannot_be_read_is_named(self) -> None:
        for form, kind in self.each():
            with tempfile.NamedTemporaryFile("w") as good:
                good.write("a b\n")
                good.flush()
                names = (good.name, "/none", "/tmp", good.name)
                status, said, errors = self.count(form, kind, "3", *names)
                self.assertEqual((status, said), (1, "2 lines, 4 words, 8 bytes\n"))
                self.assertEqual(
                    sorted(errors.splitlines()),
                    ["words: /none: No such file or directory", "words: /tmp: Is a directory"],
                )
            self.assertEqual(self.count(form, kind, "0")[0], 2)


class Page(unittest.TestCase):
    def test_the_page_shows_how_the_forms_differ(self) -> None:
        """`bench/ports.py --diffs` writes it again."""
        page = ports.PAGE.read_text(encoding="utf-8")
        shown = {found[3] for found in ports.BLOCK.finditer(page) if found[2] == "diff"}
        self.assertEqual(shown, set(ports.PROGRAMS))
        self.assertEqual(ports.with_differences(page), page)

    @unittest.skipUnless(Path("/proc/self/schedstat").exists(), "this kernel has no schedstat")
    def test_the_figures_are_measured(self) -> None:
        tables = figures.measure(PROGRAMS, figures.QUICK)
        self.assertEqual(set(tables), {"kv", "forward", "words"})
        for table in tables.values():
            self.assertEqual(len(table.rows), 2)
            for row in table.rows:
                cpu = float(row[-1].split()[0].replace(",", ""))
                self.assertGreater(cpu, 0)


def backend() -> str:
    """The one that this process's environment selects, as a program reports it."""
    words = [PROGRAMS / "example_descriptors"]
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S).stdout


if __name__ == "__main__":
    if os.environ.get("ROUSE_IO") == "uring" and "io_uring" not in backend():
        print("not run: there is no io_uring here")
        sys.exit(77)
    unittest.main(verbosity=2)
