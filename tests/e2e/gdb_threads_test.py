# SPDX-License-Identifier: MIT
"""tools/rouse-gdb.py shows the threads of a process and of a core file, with their backtraces."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

from waits_common import PROGRAM, SOURCE, Scene, not_run

SCRIPT = SOURCE / "tools" / "rouse-gdb.py"
LIMIT_S = 100
NO_LIMIT = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)


def gdb(*arguments: str | Path, commands: tuple[str, ...]) -> str:
    command: list[str | Path] = ["gdb", "-batch", "-nx", "-ex", "set debuginfod enabled off"]
    command += ["-ex", "set style enabled off", "-ex", "set width 0"]
    for text in (f"source {SCRIPT}", *commands):
        command += ["-ex", text]
    done = subprocess.run(
        [*command, PROGRAM, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return done.stdout


def why_not() -> str | None:
    """The reason why gdb cannot inspect a process on this machine, or None."""
    if not shutil.which("gdb"):
        return "there is no gdb"
    if "works" not in gdb(commands=("python print('works')",)):
        return "gdb has no Python"
    with Scene("variously") as scene:
        scene.wait_until_ready()
        said = gdb("-p", str(scene.process.pid), commands=("info inferiors",))
    if "process" not in said or "ptrace" in said:
        return f"gdb may not attach to a process: {said[-200:]!r}"
    return None


def backtraces(text: str) -> dict[str, list[str]]:
    """The functions of each thread's frames, innermost first. The key "" is an unnamed thread."""
    found: dict[str, list[str]] = {}
    for part in re.split(r"^(?=thread \d+)", text, flags=re.MULTILINE)[1:]:
        name = re.match(r'thread \d+(?: "([^"]*)")?', part)
        assert name
        frames = re.findall(r"^#\d+ +(?:0x\w+ in )?(\w+)", part, flags=re.MULTILINE)
        found[name[1] or ""] = frames
    return found


class Gdb(unittest.TestCase):
    def check_list(self, text: str) -> None:
        for pattern in (
            r"^ +\d+  locker +user +waiting for mutex 0x\w+ \"accounts\" held by thread \d+, "
            r"at lock_accounts \(.*waits\.c:\d+\)$",
            r"^ +\d+  sleeper +user +sleeping, at sleep_long \(.*waits\.c:\d+\)$",
            r"^ +\d+  reader +user +waiting for read, descriptor \d+, at read_pipe \(",
            r"^ +\d+  kernel sleeper +kernel +sleeping, at sleep_long \(",
            r"^ +\d+  busy +user +running on worker \d+$",
            r"^ +\d+ +foreign +running$",
            r"^6 threads$",
        ):
            with self.subTest(pattern):
                self.assertRegex(text, re.compile(pattern, re.MULTILINE))

    def check_backtraces(self, text: str) -> None:
        frames = backtraces(text)
        for name, function, last in (
            ("locker", "lock_accounts", "rsi_ctx_start"),
            ("sleeper", "sleep_long", "rsi_ctx_start"),
            ("reader", "read_pipe", "rsi_ctx_start"),
            ("busy", "spin", "rsi_ctx_start"),
            ("kernel sleeper", "sleep_long", ""),
            ("", "main", ""),
        ):
            with self.subTest(name):
                self.assertIn(function, frames.get(name, []), text)
                if last:
                    self.assertEqual(frames[name][-1], last)
        # A parked thread's first frame is its own, not a frame of the selected kernel thread.
        for name in ("locker", "sleeper", "reader"):
            self.assertIn("rsi_", frames[name][0], text)

    def test_process(self) -> None:
        with Scene("variously") as scene:
            scene.wait_until_ready()
            text = gdb(
                "-p",
                str(scene.process.pid),
                commands=("info rouse-threads", "rouse bt all", "echo own view\\n", "backtrace"),
            )
            shown, _, own_view = text.partition("own view\n")
            self.check_list(shown)
            self.check_backtraces(shown)
            self.assertRegex(own_view, r"#\d+ .*\bmain \(")
            self.assertNotIn("rsi_ctx_start", own_view)
            # The program continues: gdb wrote nothing to it.
            scene.end_input()
            self.assertEqual(scene.wait(), 0)

    def test_core_file(self) -> None:
        """Uses the kernel's core file: gdb's own gcore omits mappings behind a guard page."""
        pattern = Path("/proc/sys/kernel/core_pattern").read_text().strip()
        if pattern.startswith(("|", "/")):
            self.skipTest(f"not run: core files are written elsewhere: {pattern}")
        with tempfile.TemporaryDirectory() as folder:
            with Scene("variously", folder=folder) as scene:
                resource.prlimit(scene.process.pid, resource.RLIMIT_CORE, NO_LIMIT)
                scene.wait_until_ready()
                scene.process.send_signal(signal.SIGABRT)
                scene.wait()
            cores = list(Path(folder).iterdir())
            if not cores:
                self.skipTest("not run: the kernel writes no core file here")
            text = gdb("-c", cores[0], commands=("info rouse-threads", "rouse bt all"))
        self.check_list(text)
        self.check_backtraces(text)

    def test_variables_of_a_parked_frame(self) -> None:
        with Scene("variously") as scene:
            scene.wait_until_ready()
            at = ("-p", str(scene.process.pid))
            listed = gdb(*at, commands=("info rouse-threads", "rouse bt all"))
            number = re.search(r"^ +(\d+)  locker", listed, re.MULTILINE)
            assert number
            level = backtraces(listed)["locker"].index("lock_accounts")
            text = gdb(
                *at,
                commands=(
                    f"rouse frame {number[1]} {level}",
                    "info symbol $pc",
                    "rouse done",
                    "frame function main",
                    "rouse bt 999999",
                    "rouse bt",
                ),
            )
            self.assertRegex(text, r"\nlock_accounts \+ \d+ in section \.text")
            self.assertRegex(text, r"in main \(")
            self.assertIn("rouse has no thread 999999", text)
            self.assertIn("rouse bt ID...|all", text)

    def test_program_without_rouse(self) -> None:
        text = gdb("/bin/true", commands=("file /bin/true", "info rouse-threads"))
        self.assertIn("librouse is not there, or has no debug information", text)


if __name__ == "__main__":
    if not PROGRAM.exists():
        not_run(f"{PROGRAM} was not built")
    reason = why_not()
    if reason:
        not_run(reason)
    unittest.main(verbosity=2)
