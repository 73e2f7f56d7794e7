# SPDX-License-Identifier: MIT
"""SIGQUIT prints every thread with its state and backtrace, and the program continues."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import unittest

from serve_common import Server
from waits_common import END_OF_DUMP, PROGRAM, Scene, not_run, threads_of, wait_for_text

FRAME = re.compile(r"^    #(\d+) (\S+)(?: \((\S+)\+0x[0-9a-f]+\))?$")


def functions(part: str) -> list[str]:
    """The functions of a backtrace, innermost first."""
    found = [match for line in part.splitlines() if (match := FRAME.match(line))]
    return [match[2].split("+")[0] for match in found]


class Sigquit(unittest.TestCase):
    def test_each_state(self) -> None:
        with Scene("variously", {"ROUSE_WORKERS": "2"}) as scene:
            scene.wait_until_ready()
            threads = threads_of(scene.quit())
            self.assertRegex(
                threads["locker"], r'user: waiting for mutex 0x\w+ "accounts", at lock_a'
            )
            self.assertRegex(threads["locker"], r"\n    held by thread \d+, acquired at \w+\+0x")
            self.assertRegex(
                threads["sleeper"], r"user: sleeping, at sleep_long\+.*, at most \d+\."
            )
            self.assertRegex(
                threads["reader"], r"user: waiting for read, descriptor \d+, at read_p"
            )
            self.assertRegex(threads["busy"], r"user: running on worker [01]\n")
            self.assertRegex(threads["kernel sleeper"], r"kernel, tid \d+: sleeping, at sleep_long")
            self.assertRegex(threads[""], r"foreign, tid \d+: running\n")
            for name, function in (
                ("locker", "lock_accounts"),
                ("sleeper", "sleep_long"),
                ("reader", "read_pipe"),
                ("busy", "spin"),
            ):
                with self.subTest(name):
                    self.assertIn(function, functions(threads[name]))
                    self.assertEqual(functions(threads[name])[-1], "rsi_ctx_start")
            self.assertIn("sleep_long", functions(threads["kernel sleeper"]))
            self.assertIn("main", functions(threads[""]))
            # The program continues, and answers again.
            self.assertEqual(threads.keys(), threads_of(scene.quit(2)).keys())
            scene.end_input()
            self.assertEqual(scene.wait(), 0)

    def test_a_program_with_gaps_between_its_segments_has_names(self) -> None:
        with Scene("variously", program="waits_apart") as scene:
            scene.wait_until_ready()
            threads = threads_of(scene.quit())
            self.assertRegex(threads["locker"], r'waiting for mutex 0x\w+ "accounts", at lock_a')
            self.assertIn("main", functions(threads[""]))
            scene.end_input()
            self.assertEqual(scene.wait(), 0)

    def test_recorded_waits_have_a_time(self) -> None:
        with Scene("variously", {"ROUSE_OBS": "counted"}) as scene:
            scene.wait_until_ready()
            names = ("locker", "sleeper", "reader", "kernel sleeper")
            for times in range(1, 20):  # a wait that is just beginning has no time yet
                threads = threads_of(scene.quit(times))
                missing = [n for n in names if not re.search(r", for \d+\.\d{3} s", threads[n])]
                if not missing:
                    break
            self.assertEqual(missing, [])
            scene.end_input()
            self.assertEqual(scene.wait(), 0)

    def test_all_workers_stuck_in_the_programs_code(self) -> None:
        for workers in ("1", "3"):
            with self.subTest(workers=workers), Scene("stuck", {"ROUSE_WORKERS": workers}) as scene:
                scene.wait_until_ready()
                dump = scene.quit()
                self.assertEqual(dump.count("user: running on worker"), int(workers))
                self.assertEqual(dump.count(" spin+0x"), int(workers))
                scene.end_input()
                self.assertEqual(scene.wait(), 0)

    def test_addresses_are_those_of_addr2line(self) -> None:
        if not shutil.which("addr2line"):
            self.skipTest("not run: no addr2line")
        with Scene("variously") as scene:
            scene.wait_until_ready()
            frames = threads_of(scene.quit())["locker"]
        address = re.search(r"lock_accounts\+0x\w+ \(waits\+(0x\w+)\)", frames)
        assert address
        command = ["addr2line", "-f", "-e", PROGRAM, address[1]]
        function = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        self.assertEqual(function.split()[0], "lock_accounts")

    def test_the_server_continues(self) -> None:
        with Server("--respond", "hello") as server:
            self.assertEqual(server.ask("/").body, b"hello")
            said, dumps = "", 0
            while "user: waiting for accept, descriptor" not in said:
                dumps += 1
                self.assertLess(dumps, 1000, said[-2000:])
                server.process.send_signal(signal.SIGQUIT)
                said = wait_for_text(server.process, server.log, END_OF_DUMP, dumps)
            self.assertEqual(server.ask("/").body, b"hello")


if __name__ == "__main__":
    if not PROGRAM.exists():
        not_run(f"{PROGRAM} was not built")
    unittest.main(verbosity=2)
