#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Under `rouse run`, a program starts and ends as it would without it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import COMMAND, SOURCE, rouse

from interposed import LIBRARY

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)}
TELL_IGNORED = (
    "import signal; ignored = [s.name for s in (signal.SIGHUP, signal.SIGCHLD, signal.SIGUSR2)"
    " if signal.getsignal(s) == signal.SIG_IGN]; print(*ignored)"
)


class Begins(unittest.TestCase):
    def script(self, text: str) -> Path:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        path = Path(place.name) / "script"
        path.write_text(text)
        path.chmod(0o755)
        return path

    def test_signals_that_were_ignored_still_are(self) -> None:
        def ignore() -> None:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)

        done = subprocess.run(
            [*COMMAND, "run", "-o", os.devnull, "--", sys.executable, "-c", TELL_IGNORED],
            capture_output=True,
            text=True,
            timeout=60,
            env=ENVIRONMENT,
            preexec_fn=ignore,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "SIGHUP SIGCHLD\n"), done.stderr)

    def test_a_script_without_an_interpreter_line_runs_in_the_shell(self) -> None:
        for text, status, said in (("echo $# $2; exit 5\n", 5, "2 b\n"), ("", 0, "")):
            words = ("run", "-o", os.devnull, "--", self.script(text), "a", "b")
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual((done.returncode, done.stdout), (status, said), done.stderr)


class Interrupted(unittest.TestCase):
    def run_it(self, *words: str | Path, path: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, *words],
            capture_output=True,
            text=True,
            timeout=60,
            env={**ENVIRONMENT, "PYTHONPATH": path},
        )
        self.assertEqual(done.returncode, -signal.SIGINT, done.stderr)
        self.assertEqual(done.stderr.strip(), "")
        return done

    def test_an_interrupt_while_modules_are_imported(self) -> None:
        for module in ("signal", "click"):
            with tempfile.TemporaryDirectory() as place:
                code = f"import os\nos.kill(os.getpid(), {signal.SIGINT:d})\n"
                (Path(place) / f"{module}.py").write_text(code)
                self.run_it("-m", "rouse", "run", "--", "true", path=f"{place}:{SOURCE}")

    def test_an_interrupt_before_the_program_starts_leaves_nothing_behind(self) -> None:
        script = (
            "import os, signal\n"
            "from rouse.cli import main\n"
            "from rouse.run import launch\n"
            "def interrupted(folder, _):\n"
            "    print(folder, flush=True)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "launch.environment = interrupted\n"
            "main.main()\n"
        )
        done = self.run_it("-c", script, "run", "--", "true", path=str(SOURCE))
        self.assertRegex(done.stdout, "rouse-run-")
        self.assertFalse(Path(done.stdout.strip()).exists())


class Ends(unittest.TestCase):
    def test_the_status_is_the_programs_when_nobody_reads_the_report(self) -> None:
        for words, status in ((("sleep", "0.01"), 0), (("sh", "-c", "sleep 0.01; exit 9"), 9)):
            reader, writer = os.pipe()
            os.close(reader)
            try:
                done = subprocess.run(
                    [*COMMAND, "run", "--", *words],
                    stdout=writer,
                    stderr=writer,
                    timeout=60,
                    env=ENVIRONMENT,
                )
            finally:
                os.close(writer)
            self.assertEqual(done.returncode, status)

    def test_the_status_is_the_programs_when_the_report_cannot_be_written(self) -> None:
        for limit in (600_000, 1_500_000, 2_000_000):
            script = f'ulimit -v {limit}; exec "$@"'
            program = ("sh", "-c", "sleep 0.01; exit 5")
            done = subprocess.run(
                ["sh", "-c", script, "sh", *COMMAND, "run", "--memory", "8", "--", *program],
                capture_output=True,
                text=True,
                timeout=60,
                env=ENVIRONMENT,
            )
            self.assertEqual(done.returncode, 5, done.stderr)
            self.assertTrue(
                "rouse: run: " in done.stderr or "of threads' time" in done.stderr,
                (limit, done.stderr),
            )
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
