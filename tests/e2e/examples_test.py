#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The examples, built against an installed copy as users do, run on both kinds of threads."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import signal
import socket
import subprocess
import tempfile
import unittest
from collections.abc import Iterator
from pathlib import Path

from installed import COMPILERS, SOURCE, Installed, run, skip_without

KINDS = ("user", "kernel")
PROGRAMS = (
    *("echo_server", "echo_load", "worker_pool", "ported"),
    *("clusters", "descriptors", "locks", "own_waits", "thread_life"),
)
CPP_PROGRAMS = ("echo_server", "fan_out", "pipeline")
LIMIT_S = 60
CRASHES_MOST = 40
OWN_RUNS = 15

folder: Path
installed: Installed
builds: dict[str, Path]  # by compiler and kind of library


def setUpModule() -> None:
    global folder, installed, builds
    holder = tempfile.TemporaryDirectory()
    unittest.addModuleCleanup(holder.cleanup)
    folder = Path(holder.name)
    installed = Installed(folder / "root")
    builds = {}
    for compiler in COMPILERS:
        for static in (False, True):
            out = folder / f"{compiler}-{'static' if static else 'shared'}"
            out.mkdir()
            for name in PROGRAMS:
                source = SOURCE / "examples" / f"{name}.c"
                installed.compile(compiler, source, out / name, static)
            for name in CPP_PROGRAMS:
                source = SOURCE / "examples" / f"{name}.cpp"
                cpp = {"gcc": "g++", "clang": "clang++"}[compiler]
                installed.compile(cpp, source, out / f"cpp_{name}", static, ("-std=c++17",))
            builds[out.name] = out
    run("gcc", "-O2", "-pthread", "-o", folder / "original", SOURCE / "examples/pthread_original.c")


class Examples(unittest.TestCase):
    def each(self) -> Iterator[tuple[Path, dict[str, str]]]:
        """Run every build on every kind of threads."""
        for name, build in builds.items():
            for kind in KINDS:
                with self.subTest(build=name, threads=kind):
                    yield build, {**installed.environment, "ROUSE_THREADS": kind}

    @contextlib.contextmanager
    def echo_server(
        self, build: Path, environment: dict[str, str], idle_s: int
    ) -> Iterator[tuple[str, int]]:
        server = subprocess.Popen(
            [build / "echo_server", "0", str(idle_s)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        try:
            assert server.stdout
            found = re.search(r"(127\.0\.0\.1):(\d+)", server.stdout.readline())
            assert found
            yield found[1], int(found[2])
            self.assertIsNone(server.poll(), "the server ended")
        finally:
            server.kill()
            server.communicate()

    def test_the_static_programs_need_no_librouse_so(self) -> None:
        for name, build in builds.items():
            needed = run("readelf", "-d", build / "echo_server")
            self.assertEqual("librouse.so.0" in needed, name.endswith("shared"), name)

    def test_the_ports_build_as_users_build_them(self) -> None:
        """ports_test runs them."""
        for compiler in COMPILERS:
            for source in sorted((SOURCE / "examples/ports").glob("*.c")):
                installed.compile(compiler, source, folder / source.stem)

    def test_echo_server_returns_the_bytes_that_it_receives(self) -> None:
        for build, environment in self.each():
            with self.echo_server(build, environment, 30) as address:
                message = bytes(range(256)) * 1024
                with socket.create_connection(address, LIMIT_S) as peer:
                    for size in (1, 4096, 4097, len(message)):
                        peer.sendall(message[:size])
                        with peer.makefile("rb") as echo:
                            self.assertEqual(echo.read(size), message[:size])
                    peer.shutdown(socket.SHUT_WR)
                    self.assertEqual(peer.recv(1), b"")
                load = run(
                    build / "echo_load",
                    str(address[1]),
                    "50",
                    "0.3",
                    env=environment,
                    timeout=LIMIT_S,
                )
                found = re.fullmatch(r"50 connections: (\d+) round trips per second\n", load)
                assert found, load
                self.assertGreater(int(found[1]), 0)

    def test_echo_server_closes_the_idle_connection_only(self) -> None:
        for build, environment in self.each():
            with (
                self.echo_server(build, environment, 1) as address,
                socket.create_connection(address, LIMIT_S) as idle,
                socket.create_connection(address, LIMIT_S) as busy,
            ):
                # Send until the idle connection is closed, however slow the machine is.
                idle.setblocking(False)
                closed = False
                while not closed:
                    with contextlib.suppress(BlockingIOError):
                        closed = idle.recv(1) == b""
                    busy.sendall(b"x")
                    self.assertEqual(busy.recv(1), b"x")

    def test_worker_pool_does_every_job_once(self) -> None:
        for build, environment in self.each():
            for threads in ("1", "4", "100"):
                shown = run(
                    build / "worker_pool", threads, "1000", env=environment, timeout=LIMIT_S
                )
                # The sum of the steps of the Collatz sequences from 1 to 1,000.
                self.assertEqual(shown, "1000 jobs, 59542 steps\n")

    def output(self, build: Path, program: str, environment: dict[str, str]) -> str:
        return run(build / program, env=environment, timeout=LIMIT_S)

    def test_cpp_echo_server_answers_and_ends_with_its_clients(self) -> None:
        for build, environment in self.each():
            server = subprocess.Popen(
                [build / "cpp_echo_server", "0"],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            try:
                assert server.stdout
                port = int(server.stdout.readline().split()[1])
                clients = [
                    socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S) for _ in range(3)
                ]
                for number, client in enumerate(clients):
                    client.sendall(b"hello %d" % number)
                for number, client in enumerate(clients):
                    self.assertEqual(client.recv(100), b"hello %d" % number)
                clients[0].close()
                server.send_signal(signal.SIGINT)
                _, said = server.communicate(timeout=LIMIT_S)
            finally:
                server.kill()
            self.assertEqual(server.returncode, 0)
            # The thread of the client that has gone may not have seen it yet.
            self.assertIn(said, ["client: Operation canceled\n" * count for count in (2, 3)])
            for client in clients[1:]:
                self.assertEqual(client.recv(100), b"")
                client.close()

    def test_cpp_fan_out_stops_the_losers(self) -> None:
        for build, environment in self.each():
            self.assertEqual(
                self.output(build, "cpp_fan_out", environment), "answer 3\nstopped 7\n"
            )

    def test_cpp_pipeline_adds_up_all_squares(self) -> None:
        for build, environment in self.each():
            self.assertEqual(self.output(build, "cpp_pipeline", environment), "sum 333833500\n")

    def test_locks_keep_the_table_consistent(self) -> None:
        for build, environment in self.each():
            self.assertEqual(
                self.output(build, "locks", environment),
                "sum 120, 0 wrong, 2 slots free, forms agree\n",
            )

    def test_thread_life_ends_every_thread_as_it_was_asked(self) -> None:
        for build, environment in self.each():
            self.assertEqual(
                self.output(build, "thread_life", environment),
                f"worker: {environment['ROUSE_THREADS']} thread, new number: yes\n"
                "join: busy, timed out\n"
                "worker stopped\n"
                "computation interrupted\n"
                "blocking call returned 7\n",
            )

    def test_every_call_on_descriptors_returns_the_documented_value(self) -> None:
        for build, environment in self.each():
            for backend in ("epoll", "auto"):
                printed = self.output(build, "descriptors", {**environment, "ROUSE_IO": backend})
                self.assertRegex(
                    printed, r"\Aall calls returned what they should \((epoll|io_uring)\)\n\Z"
                )

    def test_clusters_moves_a_user_thread_and_back(self) -> None:
        for build, environment in self.each():
            is_user = environment["ROUSE_THREADS"] == "user"
            moved = "the thread came back to the default cluster" if is_user else "no user thread"
            self.assertEqual(
                self.output(build, "clusters", environment), f"computations: 2 workers, {moved}\n"
            )

    def test_own_waits_sees_its_sleep(self) -> None:
        for build, environment in self.each():
            self.assertEqual(
                self.output(build, "own_waits", {**environment, "ROUSE_OBS_DIR": str(folder)}),
                "last wait: sleep, timeout\nslept 5 ms\nspares within bound\n",
            )

    def test_the_ported_program_does_as_the_original(self) -> None:
        files = sorted((SOURCE / "src").rglob("*.c"))
        words = run(folder / "original", *files, timeout=LIMIT_S)
        self.assertGreater(int(words.split()[0]), 1000)
        for build, environment in self.each():
            shown = run(build / "ported", *files, env=environment, timeout=LIMIT_S)
            self.assertEqual(shown, words)

    def test_the_ported_program_reports_a_missing_file(self) -> None:
        for build, environment in self.each():
            result = subprocess.run(
                [build / "ported", folder / "none"],
                capture_output=True,
                text=True,
                env=environment,
                timeout=LIMIT_S,
            )
            self.assertEqual(result.returncode, 1)
            self.assertIn("No such file", result.stderr)
            self.assertEqual(result.stdout, "0 words\n")


@unittest.skipUnless(platform.machine() == "x86_64", "not run: the example is for x86-64")
class CloneThreads(unittest.TestCase):
    """The thread library on clone(2), and its crash."""

    def each(self, what: str) -> Iterator[subprocess.CompletedProcess[str]]:
        for compiler in COMPILERS:
            program = folder / f"clone_threads-{compiler}"
            if not program.exists():
                sources = sorted((SOURCE / "examples/clone_threads").glob("*.c"))
                run(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-o", program, *sources)
            with self.subTest(compiler=compiler):
                # malloc must find in its cache what the other threads left there.
                kept = {n: v for n, v in os.environ.items() if n != "MALLOC_PERTURB_"}
                yield subprocess.run(
                    [program, what], capture_output=True, text=True, timeout=LIMIT_S, env=kept
                )

    def test_results_locks_and_signals(self) -> None:
        expected = "results: 36\nspin lock: 1600000, mutex: 1600000\na signal arrived\n"
        for done in self.each("run"):
            self.assertEqual((done.returncode, done.stdout), (0, expected))

    def test_threads_that_share_a_block_crash_in_malloc(self) -> None:
        """Not each time: on a busy machine they may run one after the other."""
        ends = []
        for _ in range(CRASHES_MOST):
            for done in self.each("shared"):
                ends.append((done.returncode, done.stderr))
            if any(status == -signal.SIGABRT and "tcache" in said for status, said in ends):
                return
        self.fail(f"{ends}")

    def test_threads_with_a_block_each_do_not(self) -> None:
        """Not even sometimes, as where libc does not know that there are threads."""
        for _ in range(OWN_RUNS):
            for done in self.each("own"):
                self.assertEqual((done.returncode, done.stdout), (0, "sum: 72000000\n"))

    def test_an_overflow_meets_the_guard_page(self) -> None:
        for done in self.each("overflow"):
            self.assertEqual(done.returncode, -signal.SIGSEGV)


if __name__ == "__main__":
    skip_without("meson", "pkg-config", *COMPILERS)
    unittest.main(verbosity=2)
