#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A recording is made by someone else: what it names and claims must not harm its reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import COMMAND, SOURCE

import numpy as np
import synthetic

from rouse import limits, regular
from rouse.errors import RouseError
from rouse.render import document
from rouse.store import layout, recording
from rouse.symbols import elf, runtimes
from rouse.tables import inputs

WAITS_S = 60  # a report takes about a second; without an answer by then, it waits for something
OWN_KIB = 256 << 10  # the command and its libraries
OWN_S = 20  # to start and to end


def report(*words: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, "report", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        text=True,
        capture_output=True,
        timeout=WAITS_S,
        **more,
    )


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def pipe(self) -> Path:
        path = self.folder / "pipe"
        os.mkfifo(path)
        return path


class NamedFiles(Case):
    """The paths in a recording."""

    def recording_of(self, paths: list[Path]) -> Path:
        """Write a record with a module at each path, and a wait in each of them."""
        built = synthetic.Builder(program=os.fsencode(paths[0]))
        starts = [(number + 1) << 32 for number in range(len(paths))]
        modules = [
            {"start": start, "end": start + 0x10000, "bias": start, "path": os.fsencode(path)}
            for start, path in zip(starts, paths, strict=True)
        ]
        mutex = synthetic.KINDS["mutex"]
        counts = [0, 1] + [0] * (len(layout.VERDICTS) - 2)
        waits = [
            {"kind": mutex, "wait_site": start + 0x100, "count": counts, "wait_ticks": 999}
            for start in starts
        ]
        built.chunk(layout.MODULES, modules).chunk(layout.WAKES, waits)
        return built.write(self.folder)

    def test_a_pipe_or_a_device_named_as_a_module_is_not_opened(self) -> None:
        paths = [self.pipe(), Path("/dev/zero"), Path("/dev/stdin"), Path("/proc/self/fd/0")]
        ends = os.pipe()  # a reader of standard input would wait for ever
        self.addCleanup(os.close, ends[1])
        try:
            done = report(self.recording_of(paths), stdin=ends[0])
        finally:
            os.close(ends[0])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("is no regular file", done.stdout)
        self.assertNotIn("Traceback", done.stderr)

    def test_what_is_no_regular_file_is_not_a_file_of_code(self) -> None:
        link = self.folder / "link"
        link.symlink_to("/dev/zero")
        kernel = Path("/proc/self/maps")
        for path in (self.pipe(), Path("/dev/zero"), link, kernel, self.folder):
            with self.subTest(path=path):
                with self.assertRaisesRegex(elf.ElfError, "is no regular file"):
                    elf.Elf(path)
                self.assertEqual(runtimes.of_file(path), ())
                self.assertFalse(elf.has_checksum(path, 0))

    def test_a_file_that_is_too_large_is_not_read(self) -> None:
        path = self.folder / "sparse"
        path.touch()
        os.truncate(path, regular.LARGEST + 1)
        with self.assertRaisesRegex(elf.ElfError, "has more than"):
            elf.Elf(path)
        self.assertFalse(elf.has_checksum(path, 0))

    def test_a_pipe_as_the_file_of_debug_information_is_not_opened(self) -> None:
        own = elf.Elf(Path(sys.executable).resolve())
        named = self.folder / ".build-id" / "ab" / "cd.debug"
        named.parent.mkdir(parents=True)
        os.mkfifo(named)
        with mock.patch.object(elf, "DEBUG_FILES", self.folder):
            own.build_id = "abcd"
            self.assertIsNone(own.guarded(own.open_apart, None))

    def test_names_do_not_vanish_when_memory_is_short(self) -> None:
        """A report without names would look complete. The limit must be reported instead."""
        path = Path(sys.executable).resolve()
        for part in ("opened", "read_symbols", "open_apart", "open_debug"):
            with (
                self.subTest(part=part),
                mock.patch.object(elf.Elf, part, side_effect=MemoryError),
                self.assertRaises(MemoryError),
            ):
                elf.Elf(path)
        with (
            mock.patch.object(runtimes, "ELFFile", side_effect=MemoryError),
            self.assertRaises(MemoryError),
        ):
            runtimes.of_file(path, "not cached")


class File(Case):
    """The FILE itself."""

    def test_waits_at_a_barrier_without_a_thread_are_reported(self) -> None:
        counts = [0, 1] + [0] * (len(layout.VERDICTS) - 2)
        wait = {"kind": synthetic.KINDS["barrier"], "wait_site": 0x1000, "count": counts}
        built = synthetic.Builder().chunk(layout.WAKES, [{**wait, "wait_ticks": 10**10}])
        done = report(built.write(self.folder), "--full")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr, "")

    def test_a_pipe_or_a_device_as_the_recording_is_refused_at_once(self) -> None:
        for path in (self.pipe(), Path("/dev/zero"), Path("/dev/stdin")):
            with self.subTest(path=path):
                done = report(path, stdin=subprocess.DEVNULL)
                self.assertEqual(done.returncode, 3)
                self.assertEqual(len(done.stderr.splitlines()), 1)

    def test_a_recording_that_becomes_a_pipe_is_refused(self) -> None:
        """The path may be replaced after it was looked at."""
        path = self.pipe()
        self.assertFalse(recording.is_recording(path))
        with self.assertRaisesRegex(RouseError, "is no regular file"):
            inputs.load_file(path, inputs.Asked(), inputs.Resolvers())


class Cost(Case):
    """A file that was made to take all the memory and time it can."""

    SEED = int(os.environ.get("ROUSE_SEED", time.time_ns() % 1_000_000))
    ROWS = 4_000

    def crafted(self) -> Path:
        """Write a file whose every row is a site, a stack and a module of its own."""
        print(f"ROUSE_SEED={self.SEED}", flush=True)
        chance = np.random.default_rng(self.SEED)
        built = synthetic.Builder()
        for kind in (layout.WAKES, layout.STACKS, layout.MODULES, layout.LOCKS, layout.THREADS):
            size = layout.ENTRIES[kind].itemsize
            noise = np.frombuffer(chance.bytes(size * self.ROWS), layout.ENTRIES[kind])
            built.chunk(kind, noise)
        return built.write(self.folder)

    def test_json_is_not_held_as_one_text(self) -> None:
        """The text of a report has many times the bytes of its file."""
        whole = {"sections": {"locks": [{"site": "0x0", "count": n} for n in range(100_000)]}}
        sizes = [len(part) for part in document.parts(whole)]
        self.assertEqual(sum(sizes), len(json.dumps(whole, indent=1)) + 1)
        self.assertLess(max(sizes), sum(sizes) // 10)

    def test_a_file_that_takes_too_much_memory_is_one_line(self) -> None:
        path = self.crafted()
        done = report(path, "--memory", "1")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Arouse: .*memory.*--memory.*\n\Z")

    def test_a_file_that_takes_too_long_is_one_line(self) -> None:
        path = self.crafted()
        done = report(path, "--cpu", "0.001")
        self.assertEqual(done.returncode, 3, done.stderr)
        self.assertRegex(done.stderr, r"\Arouse: .*processor time; .*--cpu SECONDS\n\Z")

    def test_a_crafted_file_stays_within_its_limits_in_each_format(self) -> None:
        path = self.crafted()
        size = path.stat().st_size
        for name in ("text", "html", "json", "pprof", "folded"):
            with self.subTest(format=name):
                words = ["report", path, "-f", name, "-o", self.folder / name]
                environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
                made = subprocess.Popen([*COMMAND, *map(str, words)], env=environment)
                _, status, used = os.wait4(made.pid, 0)
                made.returncode = os.waitstatus_to_exitcode(status)
                self.assertIn(made.returncode, (0, 3))
                most = (limits.memory_mib(size) << 10) + OWN_KIB
                self.assertLess(used.ru_maxrss, most)
                spent = used.ru_utime + used.ru_stime
                self.assertLess(spent, limits.cpu_seconds(size) + OWN_S)
                print(f"{name}: {size >> 10} KiB, {used.ru_maxrss >> 10} MiB, {spent:.1f} s")


if __name__ == "__main__":
    unittest.main(verbosity=2)
