#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Calls with invalid arguments, and partly completed calls, return the same with the interposer."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from interposed import LIMIT, Source, environment

ANSWERS = Source("return_values")


def answers(scene: str, variables: dict[str, str] | None = None) -> list[str]:
    """The lines that the scene prints, one per call."""
    done = subprocess.run(
        [ANSWERS.program, scene], env=variables, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode == 77 and not variables:
        print(done.stdout, end="", flush=True)
        raise unittest.SkipTest(done.stdout.strip())
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f"{scene}: {done.returncode} {done.stderr}")
    return done.stdout.splitlines()


class Answers(unittest.TestCase):
    maxDiff = None

    def are_the_same(self, scene: str, *expected: str, **repairs: str) -> None:
        alone = answers(scene)
        for line in expected:
            self.assertIn(line, alone)
        with tempfile.TemporaryDirectory() as folder:
            recorded = answers(scene, environment(Path(folder), **repairs))
            self.assertTrue(list(Path(folder).glob("*.rouse")))
        self.assertEqual(recorded, alone)

    def test_a_wrong_time_or_clock_is_refused_where_libc_refuses_it(self) -> None:
        """This includes free objects, except that a free mutex or thread checks only the clock."""
        self.are_the_same(
            "times",
            "mutex held clock 0 time 0: ETIMEDOUT, 16 after",
            "mutex free clock 4 time 3: 0, 16 after",
            "mutex free clock 3 time 0: EINVAL, 0 after",
            "reader free clock 4 time 2: EINVAL, 0 after",
            "writer free clock 4 time 1: 0, 16 after",
            "semaphore free clock 4 time 3: EINVAL, 1 after",
            "join free clock 3 time 0: EINVAL, 1 after",
            "join free clock 4 time 3: 0, 0 after",
        )

    def test_unreadable_memory_is_an_error_and_does_not_end_the_program(self) -> None:
        for order in ({}, {"ROUSE_RUN_ACCEPT": "fifo"}):
            self.are_the_same("memory", "poll: -1 EFAULT", "select: -1 EFAULT", **order)

    def test_a_socket_that_asks_for_ten_bytes_gives_ten(self) -> None:
        self.are_the_same("low", "recv: 10 ", "read: 10 ", "left: 0 ")

    def test_a_reset_during_a_write_is_returned_by_the_next_one(self) -> None:
        self.are_the_same("resets", "write: 1 ", "write: -1 ECONNRESET", "send: -1 EPIPE")

    def test_a_send_that_is_half_done_ends_by_a_signal_and_in_time(self) -> None:
        self.are_the_same("signals", "send: 1 ", "in time: 1 ", "in time: -1 EAGAIN")

    def test_a_socket_that_connects_by_its_first_send_connects(self) -> None:
        self.are_the_same("first", "connect: 0 ", "first: 5 ", "none: -1 EPIPE")

    def test_several_messages_are_as_many_as_without(self) -> None:
        self.are_the_same(
            "batches",
            "recvmmsg of a pipe: -1 ENOTSOCK",
            "recvmmsg of a wrong time: -1 EINVAL",
            "recvmmsg of one: 1 ",
            "next: -1 EFAULT",
            "recvmmsg of two: 2 ",
            "recvmmsg in time: -1 EAGAIN",
            "recvmmsg without time: 1 ",
            "recvmmsg from nobody: -1 ECONNREFUSED",
            "sendmmsg of one: 1 ",
        )

    def test_calls_on_pipes_return_the_same(self) -> None:
        self.are_the_same(
            "pipes",
            "write of a page: 5000 ",
            "read of the rest: 5000 ",
            "read of an empty one: -1 EAGAIN",
            "write to a full one: -1 EAGAIN",
            "read of the other end: -1 EBADF",
            "write without a reader: -1 EPIPE",
            "read from memory that is not there: -1 EFAULT",
        )

    def test_a_stream_is_closed_as_libc_closes_it(self) -> None:
        self.are_the_same(
            "streams",
            "pclose: 768 ",
            "fclose of memory: 0 ",
            "fclose of what is closed: -1 EBADF",
            "freopen to nowhere: -1 ENOENT",
            "its number: -1 EBADF",
            "its number: 0 ",
            "freopen of the same: 1 ",
            "closedir of none: -1 EINVAL",
        )

    @unittest.skipUnless(shutil.which("strace"), "strace is not installed")
    def test_a_device_that_never_waits_is_not_polled(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            words = ["strace", "-f", "-qq", "-e", "trace=read,poll,ppoll", "-o", f"{folder}/trace"]
            command = [*words, "head", "-c", "100000", "/dev/zero"]
            done = subprocess.run(
                command,
                env=environment(Path(folder)),
                capture_output=True,
                check=False,
            )
            if "not permitted" in done.stderr.decode():
                self.skipTest("strace may not trace here")
            self.assertEqual((done.returncode, len(done.stdout)), (0, 100_000))
            trace = (Path(folder) / "trace").read_text(encoding="utf-8")
        self.assertGreater(trace.count("read("), 5)
        self.assertNotIn("poll(", trace)

    def test_errno_is_0_when_main_a_thread_or_a_child_begins(self) -> None:
        program = Source("initial_errno").program
        with tempfile.TemporaryDirectory() as folder:
            for variables in (None, environment(Path(folder))):
                done = subprocess.run([program], env=variables, check=False, timeout=LIMIT)
                self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
