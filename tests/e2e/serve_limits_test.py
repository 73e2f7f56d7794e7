# SPDX-License-Identifier: MIT
"""rouse-serve with clients that take too much: connections, time, or a pace that is too slow.

In each case another client is answered meanwhile, and the metrics name the limit.
"""

from __future__ import annotations

import functools
import shutil
import socket
import subprocess
import threading
import time
import unittest
from collections.abc import Callable

from serve_common import Client, eventually, get, main, tree
from serve_metrics_test import Figures

LONG = ("--header-timeout", "600", "--body-timeout", "600", "--write-timeout", "600")
CAUSES = ("address", "body", "full", "header", "idle", "rate", "write")
ATTACKS = 40
ENOUGH_S = 2
ENDS_S = 8.0  # more than any time-out here, with room for a busy machine


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


class Drip(threading.Thread):
    """Sends data, one byte every tenth of a second, until the server has closed or refused."""

    def __init__(self, client: Client, data: bytes) -> None:
        super().__init__()
        self.client, self.data = client, data
        self.start()

    def run(self) -> None:
        for byte in self.data:
            try:
                self.client.send(bytes([byte]))
            except OSError:
                return
            if self.client.has_input(0.1):
                return


class UserThreads(unittest.TestCase):
    kind = "user"

    def setUp(self) -> None:
        self.root = self.enterContext(tree())

    def serve(self, *options: str) -> Figures:
        return self.enterContext(Figures(self.root, "--metrics", "0", *options, kind=self.kind))

    def counted(self, server: Figures) -> dict[str, float]:
        samples = server.samples()
        found = {c: samples["rouse_serve_limited_total", f'cause="{c}"'] for c in CAUSES}
        return {cause: count for cause, count in found.items() if count}

    def is_counted(self, server: Figures, **causes: int) -> None:
        self.assertTrue(eventually(lambda: self.counted(server) == causes), self.counted(server))

    def others_are_served_until(self, server: Figures, is_over: Callable[[], bool]) -> None:
        end_s = time.monotonic() + ENDS_S
        while not is_over():
            self.assertLess(time.monotonic(), end_s, "the slow client was not closed")
            self.assertEqual(server.ask("/one.txt").body, b"1")
            time.sleep(0.02)

    def refused(self, server: Figures, client: Client) -> None:
        self.others_are_served_until(server, lambda: client.has_input(0))
        reply = client.reply()
        self.assertEqual((reply.status, reply.headers["connection"]), (408, "close"))
        self.assertTrue(client.ended(5))

    # Receiving.

    def test_a_head_that_arrives_byte_by_byte_is_refused_in_time(self) -> None:
        server = self.serve("--header-timeout", "1", "--min-rate", "0", "--body-timeout", "600")
        with server.connect() as client:
            drip = Drip(client, get("/one.txt", b"A: " + b"x" * 300 + b"\r\n"))
            self.refused(server, client)
            drip.join()
        self.is_counted(server, header=1)

    def test_a_body_that_arrives_byte_by_byte_is_refused_in_time(self) -> None:
        server = self.serve("--header-timeout", "600", "--min-rate", "0", "--body-timeout", "1")
        with server.connect() as client:
            client.send(get("/one.txt", b"Content-Length: 300\r\n"))
            drip = Drip(client, b"x" * 300)
            self.refused(server, client)
            drip.join()
        self.is_counted(server, body=1)

    def test_a_request_below_the_rate_is_refused_after_the_grace(self) -> None:
        server = self.serve(*LONG, "--min-rate", "1000", "--rate-grace", "1")
        for data in (get("/", b"A: " + b"x" * 300), get("/", b"Content-Length: 99\r\n") + b"x" * 9):
            with server.connect() as client:
                drip = Drip(client, data)
                self.refused(server, client)
                drip.join()
        self.is_counted(server, rate=2)

    def test_a_request_above_the_rate_outlives_the_grace(self) -> None:
        server = self.serve(*LONG, "--min-rate", "1000", "--rate-grace", "1")
        with server.connect() as client:
            client.send(get("/one.txt", b"Content-Length: 60000\r\n"))
            for _ in range(20):
                client.send(b"x" * 3000)
                time.sleep(0.1)
            self.assertEqual(client.reply().body, b"1")
        self.assertEqual(self.counted(server), {})

    def test_an_idle_connection_ends_and_a_begun_request_does_not(self) -> None:
        server = self.serve(*LONG, "--idle-timeout", "1", "--min-rate", "0")
        with server.connect() as idle, server.connect() as begun:
            begun.send(get("/one.txt")[:-2])
            self.others_are_served_until(server, lambda: idle.has_input(0))
            self.assertTrue(idle.ended())
            time.sleep(1)
            begun.send(b"\r\n")
            self.assertEqual(begun.reply().body, b"1")
        self.is_counted(server, idle=1)

    # Sending.

    def reads_nothing(self, target: str) -> None:
        server = self.serve("--write-timeout", "1", "--min-rate", "0", "--idle-timeout", "600")
        with server.connect(4096) as client:
            client.send(get(target) * 3000)
            client.fill()
            self.others_are_served_until(server, lambda: self.counted(server) == {"write": 1})
            self.assertTrue(eventually(lambda: server.held() == 1))  # the metrics' socket

    def test_a_client_that_reads_nothing_of_a_large_file_is_cut_in_time(self) -> None:
        self.reads_nothing("/ten.bin")

    def test_a_client_that_reads_nothing_of_many_answers_is_cut_in_time(self) -> None:
        self.reads_nothing("/page.css")

    def test_a_client_that_reads_below_the_rate_is_cut_after_the_grace(self) -> None:
        server = self.serve(*LONG, "--min-rate", "10000000", "--rate-grace", "1")
        with server.connect(4096) as client:
            client.send(get("/ten.bin"))

            def is_cut() -> bool:
                if client.has_input(0):
                    client.socket.recv(1000)
                return self.counted(server) == {"rate": 1}

            self.others_are_served_until(server, is_cut)

    def test_a_slow_reader_above_the_rate_gets_everything(self) -> None:
        server = self.serve("--write-timeout", "1", "--min-rate", "100000", "--rate-grace", "1")
        with server.connect(65536) as client:
            client.send(get("/ten.bin"))
            while len(client.buffer) < 4 << 20:
                client.fill()
                time.sleep(0.02)
            self.assertEqual(client.reply().body, (self.root / "ten.bin").read_bytes())
        self.assertEqual(self.counted(server), {})

    def test_a_slow_reader_whose_kernel_takes_much_is_not_cut(self) -> None:
        """The server's kernel takes the next part of the file every few seconds only."""
        server = self.serve(*LONG, "--min-rate", "1000", "--rate-grace", "4")
        with server.connect(65536) as client:
            client.send(get("/ten.bin"))
            time.sleep(2)  # all buffers are full
            end_s = time.monotonic() + 4
            while time.monotonic() < end_s:
                client.buffer += client.socket.recv(20000)
                time.sleep(0.1)
            self.assertEqual(client.reply().body, (self.root / "ten.bin").read_bytes())
        self.assertEqual(self.counted(server), {})

    # A tool that others use to try a server.

    def attacked(self, cause: str, *options: str) -> None:
        server = self.serve(*(f"--{name}-timeout={ENOUGH_S}" for name in ("header", "write")))
        url = f"http://127.0.0.1:{server.port}/ten.bin"
        command = ["slowhttptest", "-c", str(ATTACKS), "-r", "50", "-l", "60", *options, "-u", url]
        attack = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            is_over = functools.partial(self.has_counted, server, cause, ATTACKS)
            self.others_are_served_until(server, is_over)
        finally:
            attack.kill()
            attack.wait()

    def has_counted(self, server: Figures, cause: str, count: int) -> bool:
        return self.counted(server).get(cause, 0) >= count

    @unittest.skipUnless(shutil.which("slowhttptest"), "not run: slowhttptest is not installed")
    def test_slow_heads_of_slowhttptest_are_refused(self) -> None:
        self.attacked("header", "-H", "-i", "1")

    @unittest.skipUnless(shutil.which("slowhttptest"), "not run: slowhttptest is not installed")
    def test_slow_readers_of_slowhttptest_are_cut(self) -> None:
        self.attacked("write", "-X", "-w", "512", "-y", "1024", "-n", "5", "-z", "8", "-k", "1")

    # Addresses.

    def connect_from(self, server: Figures, address: str, to: str = "127.0.0.1") -> Client:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        client = Client.__new__(Client)
        client.socket = self.enterContext(socket.socket(family))
        client.socket.settimeout(20)
        client.socket.bind((address, 0))
        client.socket.connect((to, server.port))
        client.buffer = b""
        return client

    def asks(self, client: Client, method: str = "GET") -> int:
        client.send(get("/one.txt", method=method))
        return client.reply(method).status

    def limited(self, server: Figures, to: str, address: str, other: str | None) -> None:
        mine = [self.connect_from(server, address, to) for _ in range(2)]
        self.assertEqual([self.asks(client) for client in mine], [200, 200])
        for count, method in enumerate(("GET", "HEAD"), 1):
            third = self.connect_from(server, address, to)
            self.assertEqual(self.asks(third, method), 503)
            self.assertTrue(third.ended())
            self.is_counted(server, address=count)
        if other:
            self.assertEqual(self.asks(self.connect_from(server, other, to)), 200)
        mine[0].socket.close()

        def is_free() -> bool:
            with self.connect_from(server, address, to) as client:
                return self.asks(client) == 200

        self.assertTrue(eventually(is_free))

    def test_connections_above_the_limit_of_their_address_get_503(self) -> None:
        server = self.serve("--per-address", "2")
        self.limited(server, "127.0.0.1", "127.0.0.2", "127.0.0.3")

    @unittest.skipUnless(has_ipv6(), "no IPv6 here")
    def test_ipv6_clients_are_limited(self) -> None:
        server = self.serve("--per-address", "2", "--address", "::1")
        self.limited(server, "::1", "::1", None)

    @unittest.skipUnless(has_ipv6(), "no IPv6 here")
    def test_mapped_addresses_count_one_by_one(self) -> None:
        server = self.serve("--per-address", "2", "--address", "::")
        self.limited(server, "127.0.0.1", "127.0.0.2", "127.0.0.3")

    def test_one_address_cannot_fill_the_server_by_default(self) -> None:
        server = self.serve("--max-connections", "10")
        busy = [self.connect_from(server, "127.0.0.2") for _ in range(10)]
        found = sorted(self.asks(client) for client in busy)
        self.assertEqual(found, [200] * 5 + [503] * 5)
        self.assertEqual(self.asks(self.connect_from(server, "127.0.0.3")), 200)

    def test_without_a_limit_one_address_may_fill_the_server(self) -> None:
        server = self.serve("--max-connections", "10", "--per-address", "0")
        busy = [self.connect_from(server, "127.0.0.2") for _ in range(10)]
        self.assertEqual([self.asks(client) for client in busy], [200] * 10)

    def test_a_connection_that_is_closed_for_another_client_is_counted(self) -> None:
        server = self.serve("--max-connections", "1", "--per-address", "0")
        with server.connect() as idle:
            self.assertEqual(self.asks(idle), 200)
            self.assertEqual(server.ask("/one.txt").body, b"1")
            self.assertTrue(idle.ended())
        self.is_counted(server, full=1)


class KernelThreads(UserThreads):
    kind = "kernel"


if __name__ == "__main__":
    main()
