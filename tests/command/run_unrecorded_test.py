#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A program that `rouse run` cannot record runs as usual, and one line gives the reason."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import COMMAND, FIXTURES, SOURCE

from interposed import LIBRARY, Source, lines_of, why_no_disk
from nobody import NOBODY

PLAIN = Source("mutex_cond")
STATIC = FIXTURES / "mutex_cond_static"
STATUS = next(
    int(line.split()[2].strip(",")) for line in lines_of("musl_waits.c") if "STATUS =" in line
)
MUSL = shutil.which("musl-gcc")
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")
SAID = "to standard error\n"
Done = subprocess.CompletedProcess[str]


def without(*words: str | Path) -> Done:
    return subprocess.run(words, capture_output=True, text=True, timeout=60)


def recorded(*words: str | Path, before: tuple[str, ...] = (), after: tuple[str, ...] = ()) -> Done:
    """Run it under `rouse run`, which the command `before` starts."""
    return subprocess.run(
        [*before, *COMMAND, "run", *after, "--", *words],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
    )


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.folder.chmod(0o755)

    def check_line(self, done: Done, *words: str) -> None:
        """Check that rouse prints one line with these words, after all output of the program."""
        *_, line = done.stderr.splitlines() or [""]
        self.assertTrue(line.startswith("rouse: run: "), done.stderr)
        self.assertEqual(done.stderr.count("rouse: "), 1, done.stderr)
        for word in words:
            self.assertIn(word, line)


@unittest.skipUnless(MUSL, "not run: musl-gcc is not installed (Debian: musl-tools)")
class Musl(Case):
    def setUp(self) -> None:
        super().setUp()
        self.program = self.folder / "musl_waits"
        source = SOURCE / "tests" / "command" / "fixtures" / "musl_waits.c"
        words = [str(MUSL), "-O2", "-o", str(self.program), str(source)]
        subprocess.run(words, check=True, timeout=60)

    def test_it_runs_as_it_does_without_and_a_line_says_why_it_is_not_recorded(self) -> None:
        alone, with_us = without(self.program), recorded(self.program)
        self.assertEqual((alone.returncode, alone.stderr), (STATUS, SAID))
        self.assertEqual((with_us.returncode, with_us.stdout), (STATUS, alone.stdout))
        self.check_line(with_us, "uses musl", f"ld-musl-{platform.machine()}")
        self.assertEqual(with_us.stderr.count("\n"), SAID.count("\n") + 1, with_us.stderr)

    def test_a_glibc_shell_starts_it_as_usual(self) -> None:
        script = f"{self.program}; echo $?"
        alone, with_us = without("sh", "-c", script), recorded("sh", "-c", script)
        self.assertEqual((with_us.returncode, with_us.stdout), (0, alone.stdout))
        self.assertTrue(with_us.stderr.startswith(SAID), with_us.stderr)
        self.assertNotIn("symbol", with_us.stderr)

    def test_a_program_that_a_shell_executes_is_reported(self) -> None:
        done = recorded("sh", "-c", f"exec {self.program}")
        self.assertEqual(done.returncode, STATUS)
        self.check_line(done, "ran a program that was not recorded")


@unittest.skipUnless(STATIC.exists(), "not run: the static program was not built")
class Static(Case):
    def test_a_program_that_a_shell_executes_is_reported(self) -> None:
        done = recorded("bash", "-c", f"exec {STATIC} nothing 3")
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        self.check_line(done, "ran a program that was not recorded")


def why_no_users() -> str:
    if os.getuid() != 0 or not shutil.which("setpriv"):
        return "not run: only root can become another user, with setpriv"
    if os.statvfs(tempfile.gettempdir()).f_flag & os.ST_NOSUID:
        return "not run: the folder for temporary files allows no setuid programs"
    readable = without(*AS_NOBODY, COMMAND[0], "-c", f"import sys; open({str(LIBRARY)!r}); ")
    if readable.returncode:
        return "not run: other users cannot read this build"
    return ""


@unittest.skipIf(why_no_users(), why_no_users())
class Users(Case):
    def test_a_setuid_program_of_root_that_another_user_runs(self) -> None:
        program = self.folder / "plain"
        shutil.copy(PLAIN.program, program)
        program.chmod(0o4755)
        done = recorded(program, "mutex", before=AS_NOBODY)
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.check_line(done, "setuid")
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_another_user_records_its_own_alone(self) -> None:
        """The program and its file are in a folder of this user."""
        self.folder.chmod(0o777)
        kept = self.folder / "kept"
        done = recorded(
            *(PLAIN.program, "mutex"), before=AS_NOBODY, after=("--keep", str(kept), "--json")
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        (file,) = kept.glob("*.rouse")
        modes = [(path.stat().st_uid, path.stat().st_mode & 0o777) for path in (kept, file)]
        self.assertEqual(modes, [(NOBODY, 0o700), (NOBODY, 0o600)])

    def test_a_program_that_is_run_as_another_user_is_reported_and_can_write_nothing(self) -> None:
        kept = self.folder / "kept"
        done = recorded(*AS_NOBODY, PLAIN.program, "mutex", after=("--keep", str(kept)))
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.check_line(done, "ran a program that was not recorded")
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertEqual({path.stat().st_uid for path in (kept, *kept.iterdir())}, {0})

    def test_a_child_that_gives_up_its_user_goes_on_in_a_file_of_the_parent_s_user(self) -> None:
        kept = self.folder / "kept"
        script = (
            "import os, time; pid = os.fork()\n"
            f"if not pid: os.setgid({NOBODY}); os.setuid({NOBODY}); time.sleep(0.01); os._exit(0)\n"
            "os.waitpid(pid, 0); time.sleep(0.01)"
        )
        done = recorded(COMMAND[0], "-c", script, after=("--keep", str(kept), "--json"))
        self.assertEqual(done.returncode, 0, done.stderr)
        files = [path.stat() for path in kept.glob("*.rouse")]
        self.assertEqual([(file.st_uid, file.st_mode & 0o777) for file in files], [(0, 0o600)] * 2)


@unittest.skipIf(why_no_disk(), why_no_disk())
class FullDisk(Case):
    """The disk on which `rouse run` creates the folder for recordings is full."""

    def record(
        self,
        size: str,
        *words: str | Path,
        at: str | Path = "/dev/shm",
        after: tuple[str, ...] = (),
    ) -> Done:
        mount = f"mount -t tmpfs -o size={size},mode=1777 none {at}"
        before = ("unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh")
        return recorded(*words, before=before, after=after)

    def test_a_missing_file_for_lack_of_room_is_reported_in_one_line(self) -> None:
        done = self.record("4k", PLAIN.program, "mutex")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.check_line(done, "its file could not be made")

    def test_later_records_without_room_are_reported(self) -> None:
        done = self.record("64k", PLAIN.program, "mutex")
        self.assertEqual((done.returncode, done.stdout), (0, ""))
        self.assertIn("no room", done.stderr)

    def test_the_full_disk_is_named(self) -> None:
        kept = self.folder / "kept"
        for size, what in (("4k", "is there room in"), ("64k", "is there some in")):
            after = ("--keep", str(kept))
            done = self.record(size, PLAIN.program, "mutex", at=self.folder, after=after)
            self.assertEqual(done.returncode, 0)
            self.assertIn(f"{what} {kept}", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
