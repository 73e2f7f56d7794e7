#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program with more rights than its caller does not follow the caller's environment."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import COMMAND, FIXTURES, SOURCE

from rouse.store import find

OTHER = 54321  # a user without a name
OWN = Path(f"/dev/shm/rouse-{OTHER}")
READERS = ("src", "preload")  # the library and the interposer


class Environment(unittest.TestCase):
    def test_no_source_reads_a_variable_without_secure_getenv(self) -> None:
        files = [path for folder in READERS for path in (SOURCE / folder).rglob("*.[ch]")]
        self.assertTrue(files)
        call = re.compile(r"(?<!secure_)\bgetenv\s*\(|\benviron\s*\[")
        found = [str(path) for path in files if call.search(path.read_text(encoding="utf-8"))]
        self.assertEqual(found, [])

    @unittest.skipIf(os.geteuid(), "not run: only root can make a program that is another user's")
    def test_a_variable_of_the_caller_stops_a_set_user_id_program(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        if os.statvfs(place.name).f_flag & os.ST_NOSUID:
            self.skipTest(f"not run: {place.name} has no set-user-ID programs (nosuid)")
        Path(place.name).chmod(0o755)
        program = Path(place.name) / "program"
        shutil.copy(FIXTURES / "known_states", program)
        os.chown(program, OTHER, OTHER)
        if not OWN.exists():
            self.addCleanup(shutil.rmtree, OWN, ignore_errors=True)
        for mode, status, says in ((0o755, -6, ""), (0o4755, 0, "ready\n")):
            program.chmod(mode)
            done = subprocess.run(
                [program],
                env={**os.environ, "ROUSE_WORKERS": "no number", "ASAN_OPTIONS": "detect_leaks=0"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
            with self.subTest(mode=oct(mode)):
                self.assertEqual((done.returncode, done.stdout), (status, says), done.stderr)

    def test_a_symbolic_link_in_place_of_the_folder_is_named_as_one(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            link = Path(place) / "link"
            link.symlink_to(place)
            done = subprocess.run(
                [FIXTURES / "known_states"],
                env={**os.environ, "ROUSE_OBS_DIR": str(link)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
            )
        self.assertIn(f"{link} is a symbolic link, made by user {os.geteuid()}", done.stderr)
        self.assertEqual(done.stdout, "ready\n")

    @unittest.skipIf(os.geteuid(), "not run: only root can become another user")
    def test_a_folder_that_another_user_made_first_does_not_stop_the_recording(self) -> None:
        if OWN.is_symlink() or OWN.exists():
            self.skipTest(f"not run: {OWN} is there")
        can_read = ["test", "-r", str(SOURCE / "rouse/__init__.py")]
        if subprocess.run(can_read, user=OTHER, group=OTHER, extra_groups=[]).returncode:
            self.skipTest(f"not run: another user cannot read {SOURCE}")
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        Path(place.name).chmod(0o755)
        program = Path(place.name) / "program"
        shutil.copy(FIXTURES / "known_states", program)
        foreign = OWN.with_name(f"{OWN.name}-0")  # has such a name, but is of another user
        foreign.mkdir(mode=0o700)
        self.addCleanup(foreign.rmdir)

        def link() -> None:
            OWN.symlink_to(place.name)

        cases: tuple[tuple[Callable[[], object], str, Callable[[], object]], ...] = (
            (link, "is a symbolic link, made by user 0", OWN.unlink),
            (lambda: OWN.mkdir(mode=0o700), f"cannot open {OWN}", OWN.rmdir),
            (lambda: OWN.mkdir(mode=0o755), "must belong to this user", OWN.rmdir),
            (OWN.touch, f"cannot open {OWN}", OWN.unlink),
        )
        for make, says, remove in cases:
            make()
            try:
                with self.subTest(says=says):
                    self.recorded_elsewhere(program, says)
            finally:
                remove()

    def recorded_elsewhere(self, program: Path, says: str) -> None:
        """Run it as the other user. Its folder must be private, and readers must find it."""
        user: dict[str, Any] = {"user": OTHER, "group": OTHER, "extra_groups": [], "text": True}
        variables = {name: v for name, v in os.environ.items() if not name.startswith("ROUSE_")}
        running = subprocess.Popen(
            [program],
            env=variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **user,
        )
        assert running.stdout and running.stdin and running.stderr
        self.assertEqual(running.stdout.readline(), "ready\n")
        looked = (
            "import sys; from rouse.store import find; "
            "print(find.of_pid(int(sys.argv[1]))); print([f.pid for f in find.processes()])"
        )
        try:
            done = subprocess.run(
                [sys.executable, "-c", looked, str(running.pid)],
                env={**variables, "PYTHONPATH": os.pathsep.join(map(str, (SOURCE, *sys.path)))},
                cwd="/",
                capture_output=True,
                timeout=60,
                **user,
            )
        finally:
            said = running.communicate("", timeout=60)[1]
        self.assertIn(says, said)
        (name,) = re.findall(rf"so ({OWN}-[0-9a-f]+) is used", said)
        folder = Path(name)
        self.addCleanup(shutil.rmtree, folder, ignore_errors=True)
        status = folder.stat()
        self.assertEqual((status.st_uid, status.st_mode & 0o777), (OTHER, 0o700))
        if "PermissionError" in done.stderr or "No module named 'rouse'" in done.stderr:
            print("not run: other users cannot read the checkout")
            return
        self.assertEqual(done.stdout, f"{folder / find.file_name(running.pid)}\n[{running.pid}]\n")


class Checkout(unittest.TestCase):
    @unittest.skipIf(os.geteuid(), "not run: only root can become another user")
    def test_the_command_runs_from_a_checkout_for_a_user_without_a_home(self) -> None:
        words = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups"]
        if not shutil.which(words[0]):
            self.skipTest("not run: there is no setpriv")
        may_read = subprocess.run([*words, "test", "-r", str(SOURCE / "rouse" / "__main__.py")])
        if may_read.returncode or subprocess.run([*words, sys.executable, "-c", ""]).returncode:
            self.skipTest("not run: other users cannot read the checkout")
        for command in (["doctor"], ["report", "/none"], ["top", "--help"]):
            with self.subTest(command=command):
                done = subprocess.run(
                    [*words, *COMMAND, *command],
                    env={"PATH": os.environ["PATH"], "HOME": "/root", "PYTHONPATH": str(SOURCE)},
                    cwd="/",
                    capture_output=True,
                    text=True,
                    timeout=60,
                )
                self.assertIn(done.returncode, (0, 1, 3), done.stderr)
                self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
