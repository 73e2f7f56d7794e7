# SPDX-License-Identifier: MIT
"""rouse-serve with misbehaving clients, with scarce descriptors, and when it gets signals."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
import signal
import socket
import threading
import time
import unittest
from pathlib import Path

from serve_common import SANITIZED, Client, Server, eventually, get, main, tree

COARSE_S = 0.01  # more than a tick of CLOCK_MONOTONIC_COARSE


FEW = ("--workers", "2", "--per-address", "0")


def crowded(count: str) -> tuple[str, ...]:
    """Options for a server that one address may fill."""
    return ("--max-connections", count, "--per-address", "0")


def descriptors(pid: int) -> dict[int, str]:
    found = {}
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found[int(path.name)] = str(path.readlink())
    return found


def all_last(pid: int) -> bool:
    """Whether no descriptor is about to be closed: the file of an answer, or a worker's ring.

    A worker that starts registers its ring and closes its descriptor, if the kernel can.
    """
    return not any(Path(t).is_file() or "io_uring" in t for t in descriptors(pid).values())


def threads_of(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def refuses(server: Server) -> bool:
    """Whether the server has begun to drain and no longer listens."""
    try:
        server.connect().socket.close()
    except OSError:
        return True
    return False


class UserThreads(unittest.TestCase):
    kind = "user"

    def setUp(self) -> None:
        self.root = self.enterContext(tree())

    def serve(self, *options: str, status: int | None = 0) -> Server:
        return Server(self.root, *options, kind=self.kind, status=status)

    # Time.

    def test_slow_head_gets_408(self) -> None:
        with self.serve("--header-timeout", "1") as server, server.connect() as client:
            began = time.monotonic()
            for byte in get("/one.txt", b"A: " + b"x" * 100 + b"\r\n"):
                try:
                    client.send(bytes([byte]))
                except OSError:
                    break
                if time.monotonic() - began > 1.3:
                    break
                time.sleep(0.05)
            reply = client.reply()
            self.assertEqual((reply.status, reply.headers["connection"]), (408, "close"))
            self.assertLess(time.monotonic() - began, 3)
            self.assertTrue(client.ended(5))

    def test_slow_body_gets_408(self) -> None:
        with self.serve("--body-timeout", "1") as server, server.connect() as client:
            client.send(get("/one.txt", b"Content-Length: 10\r\n") + b"part")
            self.assertEqual(client.reply().status, 408)

    def test_idle_connection_ends_silently(self) -> None:
        with (
            self.serve("--idle-timeout", "1") as server,
            server.connect() as fresh,
            server.connect() as used,
        ):
            used.send(get("/one.txt"))
            self.assertEqual(used.reply().status, 200)
            began = time.monotonic()
            self.assertTrue(fresh.ended(5))
            self.assertTrue(used.ended(5))
            self.assertGreater(time.monotonic() - began, 0.5)

    def test_busy_connection_outlives_the_idle_time(self) -> None:
        with self.serve("--idle-timeout", "1") as server, server.connect() as client:
            for _ in range(5):
                client.send(get("/one.txt"))
                self.assertEqual(client.reply().status, 200)
                time.sleep(0.5)

    def test_reader_that_stops_is_cut(self) -> None:
        with self.serve("--write-timeout", "1") as server:
            clients = [server.connect(4096) for _ in range(3)]
            clients[0].send(get("/ten.bin"))
            clients[1].send(get("/page.css") * 3000)
            clients[2].send(get("/ten.bin") * 3)
            self.assertTrue(eventually(lambda: server.held() >= 3))
            self.assertTrue(eventually(lambda: server.held() == 0))
            for client in clients:
                client.socket.close()

    def test_slow_reader_gets_everything(self) -> None:
        with self.serve("--write-timeout", "2") as server, server.connect(65536) as client:
            client.send(get("/ten.bin"))
            client.fill()
            time.sleep(1)
            while len(client.buffer) < 4 << 20:
                client.fill()
                time.sleep(0.005)
            self.assertEqual(client.reply().body, (self.root / "ten.bin").read_bytes())

    # Resets.

    def test_resets_in_every_state(self) -> None:
        data = get("/one.txt") + get("/ten.bin")
        data += get("/small.txt", b"Content-Length: 4\r\n") + b"ab"
        with self.serve() as server:
            for at in range(0, len(data), 2):
                client = server.connect(4096)
                client.send(data[:at])
                if at % 3 == 0:
                    time.sleep(0.002)
                if at % 5 == 0:
                    client.socket.shutdown(socket.SHUT_WR)
                client.reset()
            self.assertEqual(server.ask("/one.txt").body, b"1")
            self.assertTrue(eventually(lambda: server.held() == 0))

    def test_storm_of_resets(self) -> None:
        with self.serve() as server:

            def storm(seed: int) -> None:
                for n in range(300):
                    client = server.connect()
                    if (n + seed) % 3:
                        client.send(get("/mega.bin") * (n % 4))
                    client.reset()

            storms = [threading.Thread(target=storm, args=(n,)) for n in range(4)]
            for thread in storms:
                thread.start()
            for thread in storms:
                thread.join()
            self.assertEqual(server.ask("/one.txt").body, b"1")
            self.assertTrue(eventually(lambda: server.held() == 0))

    # Scarcity.

    def served(self, client: Client, seconds: float = 0.3) -> bool:
        client.socket.settimeout(seconds)
        try:
            return client.reply().status == 200
        except TimeoutError:
            return False

    def test_at_the_limit_the_connections_that_waited_longest_are_closed(self) -> None:
        with self.serve(*crowded("5")) as server, contextlib.ExitStack() as stack:
            clients: list[Client] = []
            for _ in range(8):
                clients.append(stack.enter_context(server.connect()))
                clients[-1].send(get("/one.txt"))
                self.assertEqual(clients[-1].reply().body, b"1")
                time.sleep(COARSE_S)  # the server orders waits by a clock with ticks
            for client in clients[:3]:
                self.assertTrue(client.ended())
            for client in clients[3:]:
                client.send(get("/one.txt"))
                self.assertEqual(client.reply().body, b"1")

    def test_a_connection_in_the_middle_of_its_answer_is_not_closed_at_the_limit(self) -> None:
        with self.serve(*crowded("3")) as server, contextlib.ExitStack() as stack:
            busy = stack.enter_context(server.connect(receive_bytes=4096))
            busy.send(get("/ten.bin"))
            busy.socket.recv(1, socket.MSG_PEEK)
            for _ in range(4):
                other = stack.enter_context(server.connect())
                other.send(get("/one.txt"))
                self.assertEqual(other.reply().body, b"1")
            self.assertEqual(len(busy.reply().body), 10 << 20)

    def flood(self, server: Server, sent: bytes, count: int) -> list[socket.socket]:
        """Open connections that send this and nothing else."""
        flood = []
        for i in range(count):
            one = socket.socket()
            self.addCleanup(one.close)
            one.bind((f"127.0.0.{2 + i % 50}", 0))
            one.settimeout(10)
            one.connect(("127.0.0.1", server.port))
            one.sendall(sent)
            flood.append(one)
        return flood

    def test_a_flood_of_connections_locks_nobody_out(self) -> None:
        for name, sent in (("idle", b""), ("half a head", get("/one.txt")[:-2])):
            with self.serve(*crowded("100")) as server:
                self.flood(server, sent, 300)
                times = []
                for i in range(200):
                    if i % 20 == 0:
                        self.flood(server, sent, 1)
                    began = time.monotonic()
                    self.assertEqual(server.ask("/one.txt").body, b"1")
                    times.append(time.monotonic() - began)
                p99 = sorted(times)[len(times) * 99 // 100]
                print(f"{self.kind}, {name}: p99 {1e3 * p99:.1f} ms", flush=True)

    def test_table_of_descriptors_has_room_for_all_connections_from_the_start(self) -> None:
        with self.serve("--max-connections", "900") as server:
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            found = re.search(r"FDSize:\s*(\d+)", status)
            assert found
            self.assertGreater(int(found[1]), 2 * 900)

    def test_few_descriptors_from_the_start(self) -> None:
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

        with Server(self.root, *FEW, kind=self.kind, preexec=few) as server:
            clients = [server.connect() for _ in range(60)]
            for client in clients:
                client.send(get("/ten.bin", b"Connection: close\r\n"))
            for client in clients:
                self.assertEqual(len(client.reply().body), 10 << 20)
                client.socket.close()

    @unittest.skipIf(SANITIZED, "creating hundreds of kernel threads is slow with a sanitizer")
    def test_waiting_connections_use_no_descriptor_when_those_are_scarce(self) -> None:
        def few() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))

        with Server(self.root, *FEW, kind=self.kind, preexec=few) as server:
            found = re.search(r"up to (\d+)", server.line)
            assert found
            most = int(found[1])
            self.assertLess(most, 512)
            clients: list[Client] = []
            for _ in range(most):  # one at a time, so that the server accepts each
                clients.append(self.enterContext(server.connect()))
                clients[-1].send(get("/one.txt"))
                self.assertEqual(clients[-1].reply().body, b"1")
            folder = Path(f"/proc/{server.process.pid}/fd")
            held = len(list(folder.iterdir()))
            waiting = [self.enterContext(server.connect()) for _ in range(100)]
            for client in clients:
                with contextlib.suppress(EOFError, OSError):  # it was idle for a second here
                    client.send(get("/one.txt"))
                    self.assertEqual(client.reply().body, b"1")
            self.assertLessEqual(len(list(folder.iterdir())), held + 1)
            for client in (*clients, *waiting):
                client.socket.close()

    def test_too_few_descriptors_to_serve_and_it_still_drains(self) -> None:
        for count in range(4, 9):

            def few(count: int = count) -> None:
                resource.setrlimit(resource.RLIMIT_NOFILE, (count, count))

            arguments = ("--workers", "1", "--respond", "x")
            with Server(*arguments, kind=self.kind, preexec=few) as server:
                with server.connect() as client:
                    client.send(get("/"))
                    if count == 8:
                        self.assertEqual(client.reply().body, b"x")
                self.assertIsNone(server.process.poll())

    def test_no_descriptors_left_while_running(self) -> None:
        if self.kind == "user" and os.environ.get("ROUSE_IO") == "uring":
            self.skipTest("a ring applies the limit in force when its accept was submitted")
        with self.serve() as server:
            pid = server.process.pid
            first = server.connect()
            first.send(get("/one.txt"))
            self.assertEqual(first.reply().body, b"1")
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            eventually(lambda: all_last(pid))  # a number that is free later would be one too many
            used = set(descriptors(pid))
            # The next connection gets the lowest free number, so none is left for files.
            bound = min(set(range(1000)) - used) + 1
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (bound, limits[1]))
            holder = server.connect()
            late = server.connect()
            late.send(get("/one.txt"))
            self.assertTrue(eventually(lambda: "trying again" in server.messages()))
            for _ in range(20):
                first.send(get("/one.txt"))
                reply = first.reply()
                self.assertEqual(reply.status, 503)
                self.assertEqual(reply.headers["retry-after"], "1")
            self.assertFalse(self.served(late))
            holder.socket.close()
            # The late connection takes its place: the thread that ends needs no descriptor for it.
            late.socket.settimeout(10)
            self.assertEqual(late.reply().status, 503)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            for client in (first, late):
                client.send(get("/one.txt"))
                self.assertEqual(client.reply().body, b"1")
                client.socket.close()
            self.assertEqual(server.messages().count("trying again"), 1)

    @unittest.skipIf(SANITIZED, "sanitizers need the address space")
    def test_no_memory_left_while_running(self) -> None:
        with self.serve() as server, server.connect() as first:
            pid = server.process.pid
            first.send(get("/one.txt"))
            self.assertEqual(first.reply().body, b"1")
            status = Path(f"/proc/{pid}/status").read_text()
            used = int(status.split("VmSize:")[1].split()[0]) * 1024
            limits = resource.prlimit(pid, resource.RLIMIT_AS)
            resource.prlimit(pid, resource.RLIMIT_AS, (used, limits[1]))
            others: list[Client] = []

            def is_refused() -> bool:
                return "cannot start a thread for a connection" in server.messages()

            while not is_refused():
                self.assertLess(len(others), 1000)
                others.append(self.enterContext(server.connect()))
                others[-1].send(get("/small.txt") * 50)
                # Connect no faster than the server accepts, since a backlog needs no server memory.
                self.assertTrue(eventually(lambda: others[-1].has_input(0.05) or is_refused()))
            for target in ("/one.txt", "/small.txt", "/page.css", "/over.js", "/mega.bin"):
                first.send(get(target))
                self.assertEqual(first.reply().body, (self.root / target[1:]).read_bytes())
            resource.prlimit(pid, resource.RLIMIT_AS, limits)
            for client in others:
                client.socket.close()
            self.assertEqual(server.ask("/one.txt").body, b"1")
            self.assertTrue(eventually(lambda: server.held() == 1))

    def test_nothing_is_left_behind_by_a_thousand_connections(self) -> None:
        with self.serve() as server:
            pid = server.process.pid
            clients = [server.connect() for _ in range(400)]
            for client in clients:
                client.send(get("/one.txt"))
            for client in clients:
                self.assertEqual(client.reply().body, b"1")
                client.socket.close()
            self.assertTrue(eventually(lambda: server.held() == 0))
            if self.kind == "kernel":
                self.assertTrue(eventually(lambda: threads_of(pid) < 10))

    # Signals.

    def test_drain_finishes_a_download(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.serve() as server, server.connect(4096) as busy, server.connect() as idle:
                idle.send(get("/one.txt"))
                self.assertEqual(idle.reply().body, b"1")
                busy.send(get("/ten.bin"))
                busy.fill()
                server.process.send_signal(number)
                self.assertTrue(idle.ended(5))
                self.assertIsNone(server.process.poll())
                with self.assertRaises(OSError):
                    server.connect()
                reply = busy.reply()
                self.assertEqual(reply.body, (self.root / "ten.bin").read_bytes())
                self.assertTrue(busy.ended(5))
                self.assertEqual(server.process.wait(5), 0)

    def test_drain_answers_requests_that_have_arrived(self) -> None:
        with self.serve() as server, server.connect(4096) as client:
            client.send(get("/ten.bin") + get("/one.txt"))
            client.fill()
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(eventually(lambda: refuses(server)))
            first, last = client.reply(), client.reply()
            self.assertEqual((len(first.body), last.body), (10 << 20, b"1"))
            self.assertEqual(last.headers["connection"], "close")

    def test_drain_serves_those_that_wait_to_be_accepted(self) -> None:
        with self.serve() as server, contextlib.ExitStack() as stack:
            server.process.send_signal(signal.SIGSTOP)
            clients = [stack.enter_context(server.connect()) for _ in range(50)]
            for client in clients:
                client.send(get("/one.txt"))
            server.process.send_signal(signal.SIGTERM)
            server.process.send_signal(signal.SIGCONT)
            self.assertEqual([client.reply().body for client in clients], [b"1"] * 50)
            self.assertEqual(server.process.wait(5), 0)

    def test_drain_without_connections_is_quick(self) -> None:
        with self.serve() as server:
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(5), 0)  # long before the drain time-out

    def test_drain_gives_up(self) -> None:
        with self.serve("--drain-timeout", "1") as server, server.connect(4096) as client:
            client.send(get("/ten.bin"))
            client.fill()
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            self.assertEqual(server.process.wait(5), 0)
            self.assertGreater(time.monotonic() - began, 0.9)
            self.assertIn("1 connection cut", server.messages())

    def test_second_signal_ends_at_once(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.serve(status=128 + number) as server, server.connect(4096) as client:
                client.send(get("/ten.bin"))
                client.fill()
                server.process.send_signal(number)
                self.assertTrue(eventually(functools.partial(refuses, server)))
                self.assertIsNone(server.process.poll())
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(2), 128 + number)

    def test_drain_during_a_storm(self) -> None:
        for _ in range(5):
            with self.serve() as server:
                served = threading.Semaphore(0)

                def storm(port: int = server.port, served: threading.Semaphore = served) -> None:
                    with contextlib.suppress(OSError, EOFError):
                        while True:
                            with Client(port) as client:
                                client.send(get("/one.txt") * 3)
                                client.reply()
                                served.release()

                storms = [threading.Thread(target=storm) for _ in range(4)]
                for thread in storms:
                    thread.start()
                for _ in range(200):
                    served.acquire()
                server.process.send_signal(signal.SIGTERM)
                self.assertEqual(server.process.wait(10), 0)
                for thread in storms:
                    thread.join()


class KernelThreads(UserThreads):
    kind = "kernel"


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C")
    main()
