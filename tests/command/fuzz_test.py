#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Flip bits in a recording and in a live file: the reader gives a result or an error in time.

The rounds run in random order. ROUSE_SEED repeats an order, ROUSE_FUZZ sets the number of rounds.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import BUILD, FIXTURES, here, rouse

import numpy as np

from rouse.errors import RouseError
from rouse.render import report
from rouse.store import decode, find, layout
from rouse.symbols import sites
from rouse.tables import engine, inputs

SEED = int(os.environ.get("ROUSE_SEED", time.time_ns() % 1_000_000))
ROUNDS = int(os.environ.get("ROUSE_FUZZ", "1000"))
LIBRARY = BUILD / "preload" / "librouse-preload.so"
REPORTED_EVERY = 1000  # one round in this many also makes a whole report
HANGS_S = 20
PEAK_MOST = 1 << 30
COUNTED = ("processes", "threads", "wakes", "locks", "workers")
OPTIONS = report.Options(show_idle=True, format="json")


def hung(_number: int, _frame: Any) -> None:
    raise TimeoutError(f"more than {HANGS_S} s for one file")


def rows_of(loaded: inputs.Loaded) -> dict[str, list[dict[str, Any]]]:
    return {name: table.to_rows() for name, table in loaded.tables.items()}


class Damaged(unittest.TestCase):
    """Files that are damaged and read."""

    asked = inputs.Asked()
    path: Path

    @classmethod
    def setUpClass(cls) -> None:
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.path = Path(place.name) / "file"

    def setUp(self) -> None:
        print(f"ROUSE_SEED={SEED}", flush=True)
        self.chance = random.Random(SEED)
        previous = signal.signal(signal.SIGALRM, hung)
        self.addCleanup(signal.signal, signal.SIGALRM, previous)
        self.addCleanup(signal.alarm, 0)
        # Files of code are not damaged here, and they are slow to read.
        patched = mock.patch.object(sites.Resolver, "elf", lambda *_: None)
        patched.start()
        self.addCleanup(patched.stop)

    def flipped(self, data: bytes, places: list[int]) -> bytes:
        """A copy with one to four bits flipped. Half of the time they are in its structure."""
        out = bytearray(data)
        for _ in range(self.chance.choice((1, 1, 2, 4))):
            at = self.chance.choice((self.chance.choice(places), self.chance.randrange(len(out))))
            out[at] ^= 1 << self.chance.randrange(8)
        return bytes(out)

    def read(self, data: bytes, number: int) -> inputs.Loaded | None:
        """Decode the file. Returns None if the reader refuses it with one line."""
        self.path.write_bytes(data)
        self.path.chmod(0o600)
        signal.alarm(HANGS_S)
        try:
            loaded = inputs.load_file(self.path, self.asked, inputs.Resolvers())
            if number % REPORTED_EVERY == 0:
                database = engine.open_tables(loaded.tables)
                whole = inputs.Input(loaded.source, database, loaded.problems, loaded.machine)
                self.assertTrue(list(report.Reporter(whole, OPTIONS).json()))
                database.close()
        except RouseError as error:
            self.assertTrue(str(error))
            return None
        finally:
            signal.alarm(0)
        return loaded

    def check_memory(self) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self.assertLess(peak, PEAK_MOST)


class Flipped(Damaged):
    """Damage to the files of a run of tests/command/fixtures/known_waits.c."""

    image: bytes
    recorded: bytes

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        folder = cls.path.parent / "recordings"
        own = {"ROUSE_OBS_DIR": str(folder)}
        words: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "env": {**os.environ, **own},
        }
        with subprocess.Popen([FIXTURES / "known_states"], text=True, **words) as program:
            assert program.stdout
            program.stdout.readline()
            record = ("record", "-o", cls.path, "--interval", "0.2", "--seconds", "0.3")
            done = here(*record, str(program.pid), **own)
            assert done.returncode == 0, done.stderr
            cls.recorded = cls.path.read_bytes()
            source = find.open_source(folder / find.file_name(program.pid))
            cls.image = decode.copy(source)
            source.close()
            program.kill()

    def test_a_recording(self) -> None:
        """Each part has a checksum, so every change is noticed."""
        sound = self.read(self.recorded, 1)
        assert sound
        marks = [i for i in range(len(self.recorded)) if self.recorded[i : i + 4] == b"\xf0RC\n"]
        places = [*range(16), *(mark + i for mark in marks for i in range(24))]
        for number in range(ROUNDS):
            data = self.flipped(self.recorded, places)
            with self.subTest(number=number, seed=SEED):
                loaded = self.read(data, number)
                if loaded is not None and loaded.problems == sound.problems:
                    self.assertEqual(rows_of(loaded), rows_of(sound))
        self.check_memory()

    def test_the_file_of_a_process(self) -> None:
        """The file has no checksums. Losses that its structure reveals are reported."""
        sound = self.read(self.image, 1)
        assert sound
        head = decode.decode_head(np.frombuffer(self.image[: layout.HEAD.itemsize], layout.HEAD)[0])
        words = range(layout.DIRECTORY, layout.DIRECTORY + 4 * head.chunk_count)
        pages = np.frombuffer(self.image[words.start : words.stop], "<u4")
        chunks = [int(page) * layout.PAGE + i for page in pages for i in range(32)]
        # A writer may just have begun the entry after the last, so a chunk's count may be wrong by
        # up to two without being noticed. It is therefore not part of the structure.
        structure = {*range(24), *words, *(c for c in chunks if c % layout.PAGE < 16)}
        kinds = {c for c in chunks if c % layout.PAGE == 0}
        places = [*range(layout.HEAD.itemsize), *words, *chunks]
        for number in range(ROUNDS):
            data = self.flipped(self.image, places)
            changed = np.flatnonzero(
                np.frombuffer(data, np.uint8) != np.frombuffer(self.image, np.uint8)
            )
            with self.subTest(number=number, seed=SEED, changed=changed.tolist()):
                loaded = self.read(data, number)
                if loaded is None or loaded.problems != sound.problems:
                    continue
                # A chunk of another kind may be valid too, since an older runtime wrote shorter
                # entries of that kind.
                is_kind = any(c in kinds and data[c] in layout.ENTRIES for c in changed.tolist())
                if structure.issuperset(changed.tolist()) and not is_kind:
                    rows = {name: loaded.tables[name].rows for name in COUNTED}
                    self.assertEqual(rows, {n: sound.tables[n].rows for n in COUNTED})
        self.check_memory()


@unittest.skipUnless(LIBRARY.exists(), "no interposer in a build with sanitizers")
class Traced(Damaged):
    """Damage to the file of a program that was killed under rouse run --trace."""

    asked = inputs.Asked(with_events=True)
    traced: bytes

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        with tempfile.TemporaryDirectory() as place:
            kept = Path(place) / "kept"
            words = ("--trace=4", "--keep", kept, "-o", os.devnull, "--")
            done = rouse(
                "run", *words, FIXTURES / "traced_waits", "killed", ROUSE_PRELOAD=str(LIBRARY)
            )
            assert done.returncode == -signal.SIGKILL, done.stderr
            (file,) = kept.glob("*.rouse")
            source = find.open_source(file)
            cls.traced = decode.copy(source)
            source.close()

    def test_the_events_of_a_process(self) -> None:
        """Each file is refused in one line, or gives JSON."""
        raw = np.frombuffer(self.traced[: layout.HEAD.itemsize], layout.HEAD)[0]
        count = decode.decode_head(raw).chunk_count
        words = range(layout.DIRECTORY, layout.DIRECTORY + 4 * count)
        pages = np.frombuffer(self.traced[words.start : words.stop], "<u4")
        rings = [int(page) * layout.PAGE for page in pages]
        rings = [ring for ring in rings if self.traced[ring] == layout.EVENTS]
        self.assertTrue(rings)
        places = [ring + i for ring in rings for i in range(layout.CHUNK_HEAD * 4)]
        for number in range(ROUNDS // 4):
            data = self.flipped(self.traced, [*range(layout.HEAD.itemsize), *words, *places])
            if number % 4 == 0:
                data = data[: self.chance.randrange(len(data))]
            with self.subTest(number=number, seed=SEED):
                loaded = self.read(data, number + 1)
                if loaded is None:
                    continue
                database = engine.open_tables(loaded.tables)
                whole = inputs.Input(loaded.source, database, loaded.problems, loaded.machine)
                made = report.Reporter(whole, report.Options(format="perfetto"))
                try:
                    self.assertIn("traceEvents", json.loads(b"".join(made.perfetto())))
                except RouseError as error:
                    self.assertIn("has no events", str(error))
                finally:
                    database.close()
        self.check_memory()


if __name__ == "__main__":
    unittest.main(verbosity=2)
