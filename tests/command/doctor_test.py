#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The findings of `rouse doctor` on machines that lack something, and on this machine."""

from __future__ import annotations

import errno
import json
import os
import resource
import tempfile
import unittest
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from common import rouse

from rouse.cli import doctor
from rouse.sched import checks, probe

TSC = "/sys/devices/system/clocksource/clocksource0"
COMPLETE = {
    "/proc/sys/kernel/osrelease": "6.18.1",
    "/proc/cpuinfo": "processor : 0\nflags : fpu constant_tsc nonstop_tsc\n",
    f"{TSC}/available_clocksource": "tsc hpet",
    f"{TSC}/current_clocksource": "tsc",
    "/proc/self/status": f"Name: x\nCapEff:\t{(1 << 41) - 1:016x}\n",
    "/proc/self/schedstat": "1 2 3",
    "/proc/sys/kernel/task_delayacct": "1",
    "/proc/sys/kernel/perf_event_paranoid": "2",
    "/proc/sys/vm/overcommit_memory": "0",
    "/proc/pressure/memory": "some",
    "/sys/kernel/btf/vmlinux": "",
    "/sys/kernel/tracing/events/sched/sched_switch/id": "1",
}


class Machine(probe.System):
    """A complete machine, except for the parts that a test removes."""

    def __init__(self, root: Path, **changes: Any) -> None:
        super().__init__(root)
        self.machine = changes.get("machine", "x86_64")
        self.limits: dict[int, tuple[int, int]] = changes.get("limits", {})
        self.ring_error = changes.get("ring_error", 0)
        self.membarrier = changes.get("membarrier", True)
        self.guards = changes.get("guards", True)
        self.perf_error = changes.get("perf_error", 0)
        self.not_built = changes.get("not_built", "")
        self.free = changes.get("free", 1 << 34)

    def limit(self, which: int) -> tuple[int, int]:
        return self.limits.get(which, (-1, -1))

    def processors(self) -> int:
        return 4

    def free_bytes(self, path: str) -> int | None:
        return int(self.free)

    def io_uring_error(self) -> int:
        return int(self.ring_error)

    def perf_event_error(self) -> int:
        return int(self.perf_error)

    def helper(self, program: str) -> Path | None:
        return None if program == self.not_built else self.root / program

    def has_membarrier(self) -> bool:
        return bool(self.membarrier)

    def has_guards(self) -> bool:
        return bool(self.guards)


class Machines(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.place = self.root / "recordings"
        patched = mock.patch.dict(os.environ, {"ROUSE_OBS_DIR": str(self.place)})
        patched.start()
        self.addCleanup(patched.stop)

    def examine(self, files: Mapping[str, str | None] | None = None, **changes: Any) -> Any:
        """The checks by name, on a machine with these files changed."""
        for path, text in {**COMPLETE, **(files or {})}.items():
            file = self.root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            if text is not None:
                file.write_text(text)
        return {check.name: check for check in checks.examine(Machine(self.root, **changes))}

    def test_a_machine_that_has_everything(self) -> None:
        found = self.examine()
        self.assertEqual({check.state for check in found.values()}, {checks.GOOD})

    def test_each_lack_is_found_and_has_a_remedy(self) -> None:
        lacks: list[tuple[str, str, dict[str, str | None], dict[str, Any]]] = [
            ("kernel", checks.LIMITED, {"/proc/sys/kernel/osrelease": "6.1.0-18-amd64"}, {}),
            ("clock", checks.BAD, {"/proc/cpuinfo": "flags : fpu\n"}, {}),
            ("clock", checks.LIMITED, {f"{TSC}/available_clocksource": "hpet"}, {}),
            ("processors", checks.LIMITED, {"/sys/fs/cgroup/cpu.max": "150000 100000"}, {}),
            ("membarrier", checks.LIMITED, {}, {"membarrier": False}),
            ("io_uring", checks.LIMITED, {}, {"ring_error": errno.EPERM}),
            ("guard pages", checks.LIMITED, {}, {"guards": False}),
            ("open files", checks.LIMITED, {}, {"limits": {resource.RLIMIT_NOFILE: (1024, 4096)}}),
            (
                "locked memory",
                checks.LIMITED,
                {"/proc/sys/kernel/osrelease": "5.10.0"},
                {"limits": {resource.RLIMIT_MEMLOCK: (0, 0)}},
            ),
            ("address space", checks.LIMITED, {}, {"limits": {resource.RLIMIT_AS: (1 << 30, -1)}}),
            ("address space", checks.LIMITED, {"/proc/sys/vm/overcommit_memory": "2"}, {}),
            ("memory pressure", checks.LIMITED, {"/proc/pressure/memory": None}, {}),
            ("recordings", checks.LIMITED, {}, {"free": 1 << 20}),
            ("file size", checks.BAD, {}, {"limits": {resource.RLIMIT_FSIZE: (1 << 20, -1)}}),
            ("accounting", checks.LIMITED, {"/proc/self/schedstat": None}, {}),
            ("accounting", checks.LIMITED, {"/proc/sys/kernel/task_delayacct": "0"}, {}),
            (
                "tracefs",
                checks.LIMITED,
                {"/sys/kernel/tracing/events/sched/sched_switch/id": None},
                {},
            ),
            ("BPF", checks.LIMITED, {"/proc/self/status": "CapEff:\t0\n"}, {}),
            ("BPF", checks.LIMITED, {"/sys/kernel/btf/vmlinux": None}, {}),
            ("rouse-kernel", checks.LIMITED, {}, {"not_built": "rouse-kernel"}),
            ("PERF_RECORD_SWITCH", checks.LIMITED, {}, {"perf_error": errno.EPERM}),
            (
                "PERF_RECORD_SWITCH",
                checks.LIMITED,
                {"/proc/sys/kernel/perf_event_paranoid": "3"},
                {"perf_error": errno.EACCES},
            ),
            ("rouse-switches", checks.LIMITED, {}, {"not_built": "rouse-switches"}),
            (
                "perf",
                checks.LIMITED,
                {"/proc/sys/kernel/perf_event_paranoid": "4", "/proc/self/status": "CapEff: 0\n"},
                {},
            ),
            (
                "ptrace",
                checks.LIMITED,
                {"/proc/sys/kernel/yama/ptrace_scope": "1", "/proc/self/status": "CapEff: 0\n"},
                {},
            ),
        ]
        named = {name for name, _, _, _ in lacks}
        self.assertEqual(named, set(self.examine()))
        for name, state, files, changes in lacks:
            with self.subTest(check=name, files=files, **changes):
                check = self.examine(files, **changes)[name]
                self.assertEqual(check.state, state)
                self.assertTrue(check.effect)
                self.assertTrue(check.remedy)
                for path in files:  # removed again before the next case
                    (self.root / path.lstrip("/")).unlink(missing_ok=True)

    def test_the_setting_that_forbids_switch_records_is_reported(self) -> None:
        level = {"/proc/sys/kernel/perf_event_paranoid": "3"}
        found = self.examine(level, perf_error=errno.EACCES)["PERF_RECORD_SWITCH"]
        self.assertIn("perf_event_paranoid is 3", found.found)
        self.assertEqual(found.remedy, "sysctl kernel.perf_event_paranoid=2")
        found = self.examine(perf_error=errno.EPERM)["PERF_RECORD_SWITCH"]
        self.assertIn("Operation not permitted", found.found)

    def test_aarch64_has_a_clock_that_needs_no_flag(self) -> None:
        found = self.examine({"/proc/cpuinfo": "BogoMIPS : 50.00\n"}, machine="aarch64")
        self.assertEqual(found["clock"].state, checks.GOOD)

    def test_a_folder_that_others_can_read_is_bad(self) -> None:
        self.place.mkdir(mode=0o700)
        self.place.chmod(0o755)
        check = self.examine()["recordings"]
        self.assertEqual((check.state, check.remedy), (checks.BAD, f"chmod 700 {self.place}"))

    def test_damaged_files_give_the_same_checks(self) -> None:
        noise = dict.fromkeys(COMPLETE, "\x00noise\n")
        self.assertEqual(set(self.examine(noise)), set(self.examine()))

    def test_text_fits_a_narrow_terminal(self) -> None:
        found = list(self.examine(guards=False, ring_error=1).values())
        lines = doctor.render(found, 40, False)
        self.assertEqual([line for line in lines if len(line) > 40], [])
        self.assertIn("\x1b[", doctor.render(found, 40, True)[0])
        self.assertRegex(lines[-1], r"^\d+ good, 2 limited, 0 bad$")


class ThisMachine(unittest.TestCase):
    def test_the_command_runs_every_check(self) -> None:
        done = rouse("doctor", "--json")
        found = json.loads(done.stdout)
        is_bad = any(check["state"] == checks.BAD for check in found)
        self.assertEqual((done.returncode, done.stderr), (int(is_bad), ""))
        self.assertEqual(len(found), len(checks.CHECKS))

    def test_a_bad_finding_sets_the_exit_status(self) -> None:
        done = rouse("doctor", ROUSE_OBS_DIR="/proc/no/where")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^bad +recordings: /proc/no cannot be written to")
        self.assertNotIn("\x1b", done.stdout)

    def test_trials_succeed(self) -> None:
        system = probe.System()
        self.assertIsInstance(system.has_membarrier(), bool)
        if system.kernel() >= checks.GUARDS_SINCE and not system.has_guards():
            print("not run: this kernel is new, and makes no guard pages")
        if system.kernel() < checks.GUARDS_SINCE:
            self.assertFalse(system.has_guards())


if __name__ == "__main__":
    unittest.main(verbosity=2)
