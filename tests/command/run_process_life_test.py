#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every way to fork, exec, exit and unload a library, with and without the interposer."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import here

from interposed import Source, environment, is_cross_built, unless_emulated, why_no_disk

Row = dict[str, Any]
LIFE = Source("process_life")
FEW, KINDS = LIFE.known["FEW"], LIFE.known["KINDS"]
LOCK = LIFE.label("/* which is held */")
SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGILL, signal.SIGABRT),
    *(signal.SIGFPE, signal.SIGKILL, signal.SIGSEGV, signal.SIGPIPE, signal.SIGTERM),
)
# The lock waits of each process that waits at all, in the order in which the processes start.
EXPECTED = {
    "waits": [FEW],
    "exec": [FEW] * 6,
    "vfork": [2 * FEW],
    "raw": [2 * FEW],
    "daemon": [FEW, FEW],
    "empty": [FEW, FEW],
    "close": [3 * FEW],
    "preload": [FEW],
    "dlopen": [2 * FEW],
    "kinds": [KINDS * FEW],
    **{f"signal {number.value}": [FEW] for number in SIGNALS},
}
MALLOCS = [
    name
    for name in ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
    if list(Path("/usr/lib").glob(f"*/{name}"))
]
SANITIZED = [
    program
    for sanitizer in ("address", "thread")
    if (program := LIFE.program.with_name(f"process_life_{sanitizer}")).exists()
]
if is_cross_built():
    # The shell, allocators and sanitizers are of this machine. The emulator's vfork is a fork, its
    # madvise has no effect, it has no robust lists, and it reports the signals that end a program.
    AWAY = {scene for scene in EXPECTED if scene.startswith("signal")}
    AWAY |= {"exec", "vfork", "raw", "kinds"}
    print(f"not run: in an emulator: {', '.join(sorted(AWAY))}")
    EXPECTED = {scene: waits for scene, waits in EXPECTED.items() if scene not in AWAY}
    MALLOCS.clear()
    SANITIZED.clear()
KIB = (16, 72, 76, 84, 92, 100, 120)  # sizes of disks, which become full at different moments


def preloaded(folder: Path) -> list[str]:
    """The interposer's environment variables, as words for the shell."""
    variables = environment(folder)
    return [f"{name}={variables[name]}" for name in ("LD_PRELOAD", "ROUSE_OBS_DIR")]


def reported(*words: str) -> dict[str, Any]:
    said = here("report", "--all", "--json", *words)
    assert (said.returncode, said.stderr) == (0, ""), said
    found: dict[str, Any] = json.loads(said.stdout)
    return found


class ProcessLife(unittest.TestCase):
    processes: dict[str, list[Row]]
    wakes: dict[str, list[Row]]
    in_sum: dict[str, Any]

    @classmethod
    def setUpClass(cls) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        cls.processes, cls.wakes = {}, {}
        scenes = [*EXPECTED, *(["chroot"] if os.getuid() == 0 else [])]
        with tempfile.TemporaryDirectory() as place:
            for scene in scenes:
                cls.play(scene, environment(Path(place)))
            for name in MALLOCS:
                with mock.patch.dict(os.environ, {"LD_PRELOAD": name}):
                    cls.play(f"waits {name}", environment(Path(place)))
            for program in SANITIZED:
                cls.play(f"waits {program.name}", environment(Path(place)), program)
            whole = reported(place)
            cls.in_sum = reported("--sum", place)
        for report in (whole, cls.in_sum):  # parents wait for their children too
            rows = report["sections"]["wakes"]
            report["sections"]["wakes"] = [row for row in rows if row["kind"] != "child process"]
        for process in sorted(whole["processes"], key=lambda row: row["started_unix_ns"]):
            scene = process["command"].partition(" ")[2]
            cls.processes.setdefault(scene, []).append(process)
        for row in whole["sections"]["wakes"]:
            cls.wakes.setdefault(row["process"], []).append(row)

    @classmethod
    def play(cls, scene: str, variables: dict[str, str], program: Path = LIFE.program) -> None:
        """Run the scene. It prints nothing and exits with 0, even if it becomes a daemon."""
        words = [str(program), *scene.split()]
        done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=60)
        status = -int(words[2]) if words[1] == "signal" else 0
        said = (done.returncode, done.stdout, done.stderr)
        assert said == (status, "", ""), f"{scene}: {said}"

    def waits(self, scene: str) -> list[int]:
        """The number of lock waits of each process that waited at all."""
        counts = [
            sum(row["useful"] for row in self.wakes.get(process["process"], ()))
            for process in self.processes[scene]
        ]
        return [count for count in counts if count]

    def test_each_process_has_the_waits_that_it_made(self) -> None:
        found = {scene: self.waits(scene) for scene in EXPECTED}
        if "exec" in EXPECTED:
            children = len(EXPECTED["exec"]) - 1  # the children play the scene of this name
            self.assertEqual(found["waits"], [FEW] * (1 + children))
            found["exec"] += found["waits"][1:]
            found["waits"] = found["waits"][:1]
        self.assertEqual(found, EXPECTED)

    def test_all_of_them_wait_for_locks_where_the_source_says(self) -> None:
        for scene in EXPECTED:
            for process in self.processes[scene]:
                rows = self.wakes.get(process["process"], ())
                self.assertEqual({row["kind"] for row in rows} - {"mutex"}, set(), scene)
                if scene != "dlopen":
                    self.assertEqual({row["wait_label"] for row in rows} - {LOCK}, set(), scene)

    def test_locks_of_an_unloaded_library_are_named(self) -> None:
        (process,) = self.processes["dlopen"]
        rows = self.wakes[process["process"]]
        line = Source("lock_library").label("!= 0) /* in the library")
        self.assertEqual({row["wait_label"] for row in rows}, {line})

    def test_a_summed_report_has_each_site_of_a_program_once(self) -> None:
        program = str(LIFE.program.resolve())
        rows = [row for row in self.in_sum["sections"]["wakes"] if row["process"] == program]
        keys = ("wait_label", "wake_label", "kind")
        places = {tuple(row[key] for key in keys) for row in rows}
        self.assertEqual(len(rows), len(places), "forked or run by exec: each place once")
        each = [row for rows in self.wakes.values() for row in rows]
        ours = {
            p["process"] for ps in self.processes.values() for p in ps if p["program"] == program
        }
        for verdict in ("useful", "timeout"):
            apart = sum(row[verdict] for row in each if row["process"] in ours)
            self.assertEqual(sum(row[verdict] for row in rows), apart)

    def test_a_killed_process_is_distinguished_from_one_that_ended(self) -> None:
        for scene in EXPECTED:
            ends = {process["end"] for process in self.processes[scene]}
            is_killed = scene.startswith("signal")
            self.assertEqual("farewell" not in ends, is_killed, scene)

    @unittest.skipIf(os.getuid() != 0, "only root can have another root")
    def test_a_child_that_has_another_root_is_recorded(self) -> None:
        _, child = self.processes["chroot"]
        (row,) = self.wakes[child["process"]]
        self.assertEqual(row["timeout"], FEW)
        self.assertEqual(row["wait_label"], LIFE.label("usleep(1000)"))
        self.assertEqual(self.waits("chroot"), [FEW])

    @unittest.skipUnless(MALLOCS, "libjemalloc.so.2 and libtcmalloc.so.4 are not installed")
    def test_with_another_allocator(self) -> None:
        for name in MALLOCS:
            self.assertEqual(self.waits(f"waits {name}"), [FEW], name)

    @unittest.skipUnless(SANITIZED, "the compiler has no sanitizers")
    def test_with_sanitizers_in_the_program(self) -> None:
        for program in SANITIZED:
            self.assertEqual(self.waits(f"waits {program.name}"), [FEW], program.name)

    @unless_emulated("the emulator's madvise has no effect, so a full disk is not seen")
    @unittest.skipIf(why_no_disk(), why_no_disk())
    def test_a_full_disk_does_not_affect_the_program(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            for size in KIB:
                disk = f"mount -t tmpfs -o size={size}k,mode=700 none {place}"
                words = f"{disk} && exec {LIFE.program} kinds"
                script = f"export {' '.join(preloaded(Path(place)))}; {words}"
                done = subprocess.run(
                    ["unshare", "-m", "sh", "-c", script], capture_output=True, text=True
                )
                said = (done.returncode, done.stdout, done.stderr)
                self.assertEqual(said, (0, "", ""), f"{size} KiB")

    def test_an_unusable_folder_does_not_affect_the_program(self) -> None:
        for place in ("/no/such", "/proc/self", "/etc"):
            self.play("waits", environment(Path(place)))

    def test_without_the_library_all_of_them_end_the_same(self) -> None:
        for scene in EXPECTED:
            self.play(scene, dict(os.environ))


if __name__ == "__main__":
    unittest.main(verbosity=2)
