#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` passes on status, streams and signals, and never prints an empty report."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import unittest
from pathlib import Path

from common import FIXTURES, SOURCE, rouse

import numpy as np
from interposed import LIBRARY
from nobody import NOBODY
from run_case import PROGRAM, Case, label

from rouse.run import launch, unseen
from rouse.store import layout

STATIC = FIXTURES / "mutex_cond_static"
WAITERS = 20  # of the scene "hang"
HANG_S = 0.5
ASKED = unseen.Asked(Path("/dev/shm"), 256)  # the settings for a program that is not recorded


class PassedThrough(Case):
    def test_status_and_streams_are_the_program_s(self) -> None:
        for status in (0, 1, 77):
            done = self.run_it(PROGRAM, "nothing", str(status))
            self.assertEqual(done.returncode, status)
        piped = subprocess.run(
            [sys.executable, "-m", "rouse", "run", "--", PROGRAM, "stdin"],
            input=b"some\0thing\n",
            capture_output=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
        )
        self.assertEqual(piped.stdout, b"some\0thing\n")
        self.assertTrue(piped.stderr.startswith(b"to standard error\n"))

    def test_a_signal_to_the_command_ends_the_program_and_then_the_command(self) -> None:
        running = self.start("--", PROGRAM, "sleep")
        running.send_signal(signal.SIGTERM)
        report = running.communicate(timeout=60)[1]
        self.assertEqual(running.returncode, -signal.SIGTERM)
        # The signal may come before the program waits for it.
        self.assertRegex(report, r"no thread waited|ended without closing its recording")

    def test_waits_of_a_killed_program_last_until_it_was_killed(self) -> None:
        file = self.folder / "report.json"
        began = time.monotonic()
        running = self.start("--json", "-o", file, "--", PROGRAM, "hang")
        all_wait = time.monotonic()
        time.sleep(HANG_S)
        hung_ns = (time.monotonic() - all_wait) * 1e9
        running.send_signal(signal.SIGTERM)
        self.assertEqual(running.wait(60), -signal.SIGTERM)
        most_ns = (time.monotonic() - began) * 1e9
        report = json.loads(file.read_text(encoding="utf-8"))
        waits = [row for row in report["sections"]["threads"] if row["now"] == "mutex"]
        self.assertEqual(len(waits), WAITERS)
        for row in waits:
            self.assertTrue(hung_ns <= row["since_ns"] <= most_ns, (hung_ns, row, most_ns))
        self.assertGreater(report["verdict"]["time"]["locks"], 0.9)
        (side,) = report["sections"]["sides"]
        self.assertEqual(
            side["holder_label"], label("pthread_mutex_lock(&hot); /* and never unlock it */")
        )
        self.assertEqual((side["lock_name"], side["waiting"]), ("hot", WAITERS))

    def test_waits_of_a_killed_grandchild_last_until_it_was_seen_alive(self) -> None:
        kept = self.folder / "kept"
        running = self.start("--keep", kept, "--", "sh", "-c", f"{PROGRAM} hang; true")
        until = time.monotonic() + 60
        while not (hung := [file for file in kept.glob("*.rouse") if self.is_seen(file, PROGRAM)]):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)
        os.kill(int(hung[0].name.split("-")[0].removesuffix(".rouse")), signal.SIGKILL)
        report = running.communicate(timeout=60)[1]
        self.assertEqual(running.returncode, 0)
        self.assertIn("it was last seen alive at", report)
        self.assertIn("% locks", report)

    def start(self, *words: str | Path) -> subprocess.Popen[str]:
        """Run a program that says that it is ready."""
        running = subprocess.Popen(
            [sys.executable, "-m", "rouse", "run", *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_PRELOAD": str(LIBRARY)},
            start_new_session=True,
        )
        assert running.stdout and running.stderr
        for stream in (running.stdout, running.stderr):
            self.addCleanup(stream.close)
        self.addCleanup(running.wait)
        self.addCleanup(self.kill_all, running.pid)
        self.assertEqual(running.stdout.readline(), "ready\n")
        return running

    @staticmethod
    def kill_all(group: int) -> None:
        """Kill what is left of a command and of all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)

    def is_seen(self, file: Path, program: Path) -> bool:
        """Whether a recording is of that program, whose process was seen alive."""
        raw = file.read_bytes()[: layout.HEAD.itemsize]
        if len(raw) < layout.HEAD.itemsize:
            return False
        head = np.frombuffer(raw, layout.HEAD)[0]
        return bool(head["alive_ns"]) and Path(head["program"].decode()).samefile(program)

    def test_other_preloaded_libraries_stay_first(self) -> None:
        done = self.run_it("sh", "-c", "echo $LD_PRELOAD", LD_PRELOAD="libm.so.6")
        self.assertEqual(done.stdout, f"libm.so.6:{LIBRARY.with_name(launch.DOOR)}\n")

    def test_an_output_that_cannot_be_written_is_reported_before_the_program_runs(self) -> None:
        mark = self.folder / "ran"
        for output, said in (
            (self.folder / "none" / "report", f"there is no folder {self.folder / 'none'}"),
            (self.folder, "is a folder"),
            (Path("/proc/x"), "cannot be written"),
        ):
            words = ("run", "-o", str(output), "--", "touch", str(mark))
            done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertEqual(len(done.stderr.splitlines()), 1)
            self.assertIn(said, done.stderr)
            self.assertFalse(mark.exists())

    def test_the_name_of_the_output_chooses_the_format(self) -> None:
        for scene, said in (("mutex", "waits at"), ("nothing", "no thread waited for a lock")):
            page, document = self.folder / "report.html", self.folder / "report.json"
            for file in (page, document):
                file.write_text("text of an earlier run", encoding="utf-8")
                self.assertEqual(self.run_it("-o", file, "--", PROGRAM, scene).returncode, 0)
            text = page.read_text(encoding="utf-8")
            self.assertTrue(text.startswith("<!DOCTYPE html>"), text[:100])
            self.assertIn(said, text)
            self.assertIn("version", json.loads(document.read_text(encoding="utf-8")))
            done = self.run_it("-o", page, "--format", "text", "--", PROGRAM, scene)
            self.assertNotIn("<", page.read_text(encoding="utf-8")[:1])
            self.assertEqual(done.returncode, 0)
        for words, wrong in (
            (("--format", "html"), "name it with -o FILE"),
            (("-o", "x.html", "--distortion", "1"), "--distortion has no page"),
        ):
            done = self.run_it(*words, "--", PROGRAM, "nothing")
            self.assertEqual(done.returncode, 2)
            self.assertIn(wrong, done.stderr)

    def test_a_missing_program_is_reported(self) -> None:
        done = self.run_it("no-such-program")
        self.assertEqual(done.returncode, 127)
        self.assertIn("no-such-program: is not in a folder of PATH", done.stderr)
        for name, status, said in (
            ("/etc/passwd", 126, "/etc/passwd: you may not execute it"),
            ("/etc", 126, "/etc: is a folder"),
            ("./absent", 127, "./absent: is not there"),
        ):
            done = self.run_it(name)
            self.assertEqual(done.returncode, status)
            self.assertIn(said, done.stderr)
        script = self.folder / "script"
        script.write_text("#!/no/such/shell -e\n", encoding="utf-8")
        script.chmod(0o755)
        done = self.run_it(script)
        self.assertEqual(done.returncode, 126)
        self.assertIn("script: /no/such/shell, which is to run it, is not there", done.stderr)


COMPUTES = """
import time

def work():
    while time.process_time() < 1.5:
        pass

work()
"""


class NeverEmpty(Case):
    def line(self, *words: str | Path, status: int = 0) -> str:
        done = self.run_it("--", *words)
        self.assertEqual(done.returncode, status)
        self.assertEqual(done.stderr.count("\n"), 1)
        return done.stderr

    def test_a_program_without_waits(self) -> None:
        self.assertIn("no thread waited for a lock", self.line(PROGRAM, "nothing"))

    def test_a_program_that_only_computes_has_a_verdict(self) -> None:
        done = self.run_it("--", sys.executable, "-c", COMPUTES)
        line = r"Nothing to fix here: .*in work .*\[cpu-bound\]"
        self.assertRegex(done.stderr, line)
        found = json.loads(self.run_it("--json", "--", sys.executable, "-c", COMPUTES).stderr)
        self.assertEqual(found["verdict"]["findings"], [])
        self.assertRegex(found["verdict"]["summary"], line)
        time = found["verdict"]["time"]  # a busy machine lets it wait for a processor
        self.assertGreater(time["running"] + time["queued"], 0.8)

    def test_the_message_is_also_in_a_file_and_in_json(self) -> None:
        file = self.folder / "report"
        for words in ((), ("--json",)):
            file.write_text("text of an earlier run", encoding="utf-8")
            done = self.run_it("-o", file, *words, "--", PROGRAM, "nothing")
            self.assertIn("no thread waited for a lock", done.stderr)
            text = file.read_text(encoding="utf-8")
            self.assertIn(
                "no thread waited for a lock", json.loads(text)["notes"][0] if words else text
            )
        done = self.run_it("--json", "--", PROGRAM, "nothing")
        self.assertEqual(json.loads(done.stderr)["processes"], [])

    def test_a_static_program(self) -> None:
        if not STATIC.exists():
            self.skipTest("the static program was not built")
        self.assertIn("linked statically", self.line(STATIC, "nothing", "3", status=3))

    def test_a_program_in_go_is_named_with_what_sees_its_waits(self) -> None:
        if not STATIC.exists():
            self.skipTest("the static program was not built")
        program = self.folder / "go"
        with_mark = ("--add-section", f".go.buildinfo={__file__}", STATIC, program)
        subprocess.run(["objcopy", *with_mark], check=True)
        line = self.line(program, "nothing", "3", status=3)
        for text in ("linked statically", "written in Go", "--kernel", "sudo rouse watch PID"):
            self.assertIn(text, line)
        subprocess.run(["objcopy", *with_mark[:2], PROGRAM, program], check=True)
        line = self.line(program, "nothing", "3", status=3)
        for text in ("no thread waited", "written in Go", "--kernel"):
            self.assertIn(text, line)

    def test_a_setuid_program(self) -> None:
        if os.getuid() != 0 or os.statvfs(self.folder).f_flag & os.ST_NOSUID:
            self.skipTest("not root, or the folder is on a disk that ignores setuid programs")
        self.folder.chmod(0o755)
        program = self.folder / "plain"
        shutil.copy(PROGRAM, program)
        os.chown(program, NOBODY, NOBODY)
        program.chmod(0o4755)
        self.assertIn("setuid", self.line(program, "mutex"))

    def test_a_program_for_musl(self) -> None:
        program = self.folder / "plain"
        loader = (unseen.interpreter(PROGRAM) or "").encode()
        musl = b"/lib/ld-musl.so.1".ljust(len(loader), b"\0")
        program.write_bytes(PROGRAM.read_bytes().replace(loader, musl))
        self.assertIn("musl", unseen.why(str(program), ASKED))

    def test_a_script_is_judged_by_its_interpreter(self) -> None:
        script = self.folder / "script"
        script.write_text(f"#!/usr/bin/env -S {STATIC}\n", encoding="utf-8")
        if STATIC.exists():
            reason = unseen.why(str(script), ASKED)
            self.assertIn(f"{STATIC}, which runs it, is linked statically", reason)
            near = f"./{os.path.relpath(STATIC)}"
            self.assertTrue(unseen.why(near, ASKED).startswith("it is linked statically"))

    def test_the_program_runs_where_no_file_can_be_made(self) -> None:
        line = self.line("bash", "-c", f"ulimit -f 1; exec {PROGRAM} _exit", status=9)
        self.assertIn("its file could not be made", line)


class Library(unittest.TestCase):
    def test_only_replacements_of_libc_are_exported(self) -> None:
        libc = next(
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
            if "/libc.so" in line
        )
        others = exported(LIBRARY) - exported(Path(libc))
        gomp = {name for name in others if name.startswith("GOMP_")}  # of libgomp
        self.assertEqual(len(gomp), 5)
        ours = ("join", "step_aside", "omp_barrier", "omp_critical")
        marks = {"rouse_run_mark_record"}  # which <rouse/mark.h> looks up
        self.assertEqual(others - gomp, marks | {f"rouse_preload_{name}" for name in ours})


def exported(library: Path) -> set[str]:
    done = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    )
    return {line.split()[-1].split("@")[0] for line in done.stdout.splitlines()}


if __name__ == "__main__":
    unittest.main(verbosity=2)
