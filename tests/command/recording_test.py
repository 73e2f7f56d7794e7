#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The file of `rouse record`: intact files, and files that are damaged in many ways."""

from __future__ import annotations

import json
import os
import random
import signal
import struct
import subprocess
import tempfile
import time
import unittest
import zlib
from pathlib import Path
from typing import Any

from common import COMMAND, rouse, start

from file_growth import await_snapshots
from synthetic import KINDS, Builder, micro, of_process, ticks, tsc

from rouse.errors import RouseError
from rouse.store import decode, layout, recording
from rouse.tables import inputs

SEED = int(os.environ.get("ROUSE_SEED", time.time_ns() % 1_000_000))
ROUNDS = 300
FRAMES: recording.Frames = {
    ("/usr/bin/example", "c0ffee", 0x40): {
        **{"label": "orders.c:17", "function": "put_order", "file": "/src/orders.c", "line": 17}
    }
}


def image(waits: int = 3, locks: int = 1, **head: Any) -> bytes:
    """A store in which threads waited this often for each lock, 10 ms each time."""
    builder = Builder(1000, **head)
    builder.chunk(layout.WRITERS, [{"is_worker": 1, "is_live": 1, "begin_tsc": tsc(0), "tid": 77}])
    thread = {"id": 1, "doing": layout.DOES_RUN, "run_tsc": tsc(900), "begin_tsc": tsc(0)}
    builder.chunk(layout.THREADS, [{**thread, "ticks": micro(usr=900), "waits": waits}])
    module = {"start": 0x1000, "end": 0x2000, "bias": 0x1000, "path": b"/usr/bin/example"}
    build_id = list(bytes.fromhex("c0ffee").ljust(32, b"\0"))
    builder.chunk(layout.MODULES, [{**module, "build_id": build_id, "build_id_bytes": 3}])
    row = {"kind": KINDS["mutex"], "contested": waits, "wait_ticks": ticks(10 * waits)}
    rows = [{**row, "lock": 8 + i, "site": 0x1040, "holder_site": 0x1040} for i in range(locks)]
    return builder.chunk(layout.LOCKS, rows).bytes()


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        self.path = self.folder / "file"

    def write(self, *images: bytes, done: str | None = "it was asked to") -> bytes:
        """Write a recording of these snapshots. The first one is complete. Returns its bytes."""
        with self.path.open("wb") as file:
            writer = recording.Writer(file)
            writer.head({"machine": "a machine"})
            for number, store_bytes in enumerate(images):
                writer.snapshot(store_bytes, 6_000_000_000 + number, 7, whole=False)
            writer.kernel({77: {"user_ns": 12, "system_ns": 5, "voluntary": 3}})
            writer.sites(FRAMES)
            if done is not None:
                writer.done(done)
        return self.path.read_bytes()

    def waits(self) -> tuple[int, list[str]]:
        """Make a report of the file. Returns its number of waits, and its notes."""
        loaded = inputs.load_recording(self.path)
        counts = loaded.tables["locks"].column("contested")
        return sum(counts), loaded.problems


class Whole(Case):
    def test_each_snapshot_is_read_back(self) -> None:
        images = [image(1), image(2), image(3, locks=200), image(4, locks=3)]
        for count in range(1, 5):
            self.write(*images[:count])
            found = recording.read(self.path)
            self.assertEqual(found.store, images[count - 1])
            self.assertEqual((found.snapshots, found.problems), (count, []))

    def test_only_changed_values_are_kept(self) -> None:
        big = image(1, locks=5000)
        changed = bytearray(big)
        changed[-5000] ^= 1
        first = len(self.write(big))
        more = len(self.write(big, bytes(changed))) - first
        self.assertLess(more, 3 * layout.PAGE)
        self.assertEqual(recording.read(self.path).store, bytes(changed))

    def test_it_can_be_read_without_the_program_and_the_process(self) -> None:
        self.write(image(3, pid=1))  # here another process has this number
        loaded = inputs.load_recording(self.path)
        site = loaded.tables["sites"].to_rows()[-1]
        self.assertEqual((site["label"], site["function"]), ("orders.c:17", "put_order"))
        (worker,) = loaded.tables["workers"].to_rows()
        self.assertEqual((worker["user_ns"], worker["voluntary"]), (12, 3))
        self.assertIsNone(worker["run_queue_ns"])
        self.assertEqual((loaded.machine, loaded.problems), ("a machine", []))
        (process,) = loaded.tables["processes"].to_rows()
        self.assertEqual((process["ended"], process["duration_ns"]), (False, 1_000_000_000))

    def test_the_end_of_the_program_is_known(self) -> None:
        self.write(image(), done=f"{recording.PROGRAM}has ended")
        (process,) = inputs.load_recording(self.path).tables["processes"].to_rows()
        self.assertTrue(process["ended"])

    def test_unknown_parts_are_skipped(self) -> None:
        with self.path.open("wb") as file:
            writer = recording.Writer(file)
            writer.chunk(b"LATR", b"what a later one adds")
            writer.snapshot(image(3), 0, 0, whole=True)
            writer.sites(FRAMES)
            writer.done("")
        self.assertEqual(self.waits(), (3, []))


class Broken(Case):
    def refused(self) -> str:
        with self.assertRaises(RouseError) as raised:
            recording.read(self.path)
        return str(raised.exception)

    def test_cut_short_anywhere_it_is_read_up_to_there(self) -> None:
        whole = self.write(image(1), image(2))
        marks = [i for i in range(len(whole)) if whole[i : i + 4] == recording.SYNC]
        ends = {mark: i for i, mark in enumerate(marks)}
        for size in sorted({*range(0, 64), *marks, *(m + 9 for m in marks), len(whole) - 1}):
            self.path.write_bytes(whole[:size])
            parts = sum(1 for mark in marks[1:] if mark <= size) + (size == len(whole))
            if parts < 2:  # the file is empty, or has only its head
                self.assertRegex(self.refused(), "not a whole recording|nothing was recorded")
                continue
            waits, problems = self.waits()
            self.assertEqual(waits, 1 if parts < 3 else 2, (size, ends))
            self.assertTrue(any("it has no end" in problem for problem in problems))
            if size not in marks:
                self.assertIn(f"cut short at byte {size:,}", " ".join(problems))

    def test_a_damaged_part_costs_itself_alone(self) -> None:
        whole = self.write(image(1), image(2), image(3))
        marks = [i for i in range(len(whole)) if whole[i : i + 4] == recording.SYNC]
        for mark, expected in ((marks[0], 3), (marks[2], 3), (marks[3], 2), (marks[4], 3)):
            for at in (mark, mark + 5, mark + 20, mark + recording.CHUNK.size + 1):
                broken = bytearray(whole)
                broken[at] ^= 0x40
                self.path.write_bytes(broken)
                waits, problems = self.waits()
                self.assertEqual(waits, expected, (at, problems))
                self.assertTrue(problems)

    def test_losses_before_the_first_snapshot_are_reported(self) -> None:
        whole = bytearray(self.write(image(1)))
        mark = [i for i in range(len(whole)) if whole[i : i + 4] == recording.SYNC][1]
        whole[mark + recording.CHUNK.size + 60] ^= 1
        self.path.write_bytes(whole)
        self.assertIn("a part (BASE) is damaged", self.refused())

    def test_foreign_newer_and_empty_files_are_refused(self) -> None:
        for data, reason in (
            (b"", "0 bytes are not a whole recording"),
            (b"\x7fELF" + bytes(60), "is no recording of rouse"),
            (struct.pack("<8sII", recording.MAGIC, 2, 0), "is of version 2, this rouse reads"),
            (struct.pack("<8sII", recording.MAGIC, 1, 0), "its recorder has just begun"),
        ):
            self.path.write_bytes(data)
            self.assertIn(reason, self.refused())

    def test_a_part_cannot_unpack_to_more_than_it_may(self) -> None:
        with self.path.open("wb") as file:
            writer = recording.Writer(file)
            for size in (1 << 20, layout.BYTES_MAX + 1, 1 << 62):
                bomb = zlib.compress(bytes(64 << 20))
                writer.chunk(b"BASE", recording.MOMENT.pack(0, 0, size) + bomb)
        self.assertIn("nothing was recorded", self.refused())

    def test_random_damage_ends_in_a_report_or_in_a_line(self) -> None:
        print(f"ROUSE_SEED={SEED}")
        chance = random.Random(SEED)
        whole = self.write(image(1), image(2, locks=40), image(3, locks=41))
        for _ in range(ROUNDS):
            data = bytearray(whole)
            for _ in range(chance.choice((1, 1, 3, 20))):
                at = chance.randrange(len(data))
                match chance.randrange(4):
                    case 0:
                        data[at] = chance.randrange(256)
                    case 1:
                        del data[at : at + chance.randrange(1, 200)]
                    case 2:
                        data[at:at] = data[: chance.randrange(1, 200)]
                    case _:
                        data[at : at + 8] = chance.randbytes(8)
                data = data or bytearray(whole[:1])
            self.path.write_bytes(data)
            self.read_anything()

    def test_random_contents_of_valid_parts_end_in_a_report_or_in_a_line(self) -> None:
        chance = random.Random(SEED + 1)
        good = image(2, locks=3)
        for _ in range(ROUNDS // 3):
            bad = bytearray(good)
            for _ in range(chance.randrange(1, 9)):
                at = chance.choice((chance.randrange(1200), chance.randrange(len(bad))))
                bad[at : at + 4] = chance.randbytes(4)
            with self.path.open("wb") as file:
                writer = recording.Writer(file)
                writer.snapshot(good, 0, 0, whole=True)
                writer.snapshot(bytes(bad), chance.getrandbits(64), 7, whole=False)
                kind = chance.choice((b"BASE", b"DIFF", b"KERN", b"SITE", b"HEAD", b"DONE"))
                texts = (b"[1]", b"{}", b'{"77": 3}', b'[{"offset": "x"}]', b"[" * 5000, b"\xff")
                text = chance.choice(texts)
                writer.chunk(kind, chance.choice((text, zlib.compress(text))))
            self.read_anything()

    def read_anything(self) -> None:
        try:
            inputs.load_recording(self.path)
        except RouseError as error:
            self.assertTrue(str(error))


class Recorder(Case):
    """The command itself, recording a process that has a store."""

    def setUp(self) -> None:
        super().setUp()
        self.own = {"ROUSE_OBS_DIR": str(self.folder)}
        self.folder.chmod(0o700)

    def rouse(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return rouse(*words, timeout=60, **self.own)

    def start(self, *words: str) -> subprocess.Popen[str]:
        return start(self, *COMMAND, "record", "-o", self.path, *words, **self.own)

    def store(self, builder: Builder) -> Path:
        builder.chunk(layout.THREADS, [{"id": 1, "doing": layout.DOES_RUN, "begin_tsc": tsc(0)}])
        return builder.write(self.folder)

    def test_it_can_be_read_while_it_grows_and_after_the_recorder_was_killed(self) -> None:
        self.store(of_process(os.getpid()))
        recorder = self.start("--interval", "0.05")
        growing = await_snapshots(self.path, 3)
        self.assertIn("it has no end", " ".join(growing.problems))
        recorder.kill()
        recorder.wait()
        found = recording.read(self.path)
        self.assertGreaterEqual(found.snapshots, 3)
        self.assertEqual(len(decode.decode_bytes(found.store, "file").threads), 1)

    def test_a_signal_ends_it_normally(self) -> None:
        self.store(of_process(os.getpid()))
        recorder = self.start("--interval", "30")
        await_snapshots(self.path, 1)
        recorder.send_signal(signal.SIGTERM)
        self.assertEqual(recorder.wait(60), 0)
        found = recording.read(self.path)
        self.assertEqual((found.why_done, found.problems), ("stopped by SIGTERM", []))
        self.assertGreaterEqual(found.snapshots, 2)

    def test_it_ends_with_the_program_and_keeps_its_last_record(self) -> None:
        with subprocess.Popen(["sleep", "1000"]) as program:
            self.store(of_process(program.pid))
            recorder = self.start(str(program.pid), "--interval", "0.05")
            await_snapshots(self.path, 2)
            program.kill()
            self.assertEqual(recorder.wait(60), 0)
        self.assertEqual(
            recording.read(self.path).why_done, "the program was killed, or left by _exit()"
        )
        report = json.loads(rouse("report", "--json", self.path).stdout)
        self.assertTrue(report["processes"][0]["ended"])

    def test_a_duration_ends_it_and_an_existing_file_is_not_overwritten(self) -> None:
        self.store(of_process(os.getpid()))
        words = ("record", "-o", self.path, "--seconds", "0")
        done = self.rouse(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(recording.read(self.path).why_done, "0 s have passed")
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        again = self.rouse(*words)
        self.assertEqual(again.returncode, 3)
        self.assertIn("already exists; --force", again.stderr)
        self.assertEqual(self.rouse(*words, "--force").returncode, 0)

    def test_nothing_to_record(self) -> None:
        done = self.rouse("record", "-o", self.path)
        self.assertEqual(done.returncode, 3)
        self.assertIn("no process of user", done.stderr)
        self.assertFalse(self.path.exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
