#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Decoding of intact, damaged, truncated and foreign stores."""

from __future__ import annotations

import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from synthetic import KINDS, START_TSC, Builder, entries, micro, ticks, tsc

from rouse.errors import RouseError
from rouse.store import decode, layout
from rouse.tables import build


def waiting(kind: str, since_ms: float, **more: Any) -> dict[str, Any]:
    return {
        "id": 7,
        "doing": layout.DOES_WAIT,
        "kind": KINDS[kind],
        "since_tsc": tsc(since_ms),
        "begin_tsc": tsc(0),
        **more,
    }


def wake(**more: Any) -> dict[str, Any]:
    return {"kind": KINDS["mutex"], "wait_site": 0x1000, "wake_site": 0x2000, **more}


def rows(table: Any) -> list[dict[str, Any]]:
    listed: list[dict[str, Any]] = table.to_rows()
    return listed


class Threads(unittest.TestCase):
    def only(self, builder: Builder, **row: Any) -> dict[str, Any]:
        found = rows(build.threads(builder.chunk(layout.THREADS, [row]).store()))
        self.assertEqual(len(found), 1)
        return found[0]

    def test_a_wait_under_way_counts_up_to_now(self) -> None:
        thread = self.only(Builder(1000), **waiting("mutex", 400, ticks=micro(usr=300, mutex=100)))
        self.assertEqual((thread["state"], thread["since_ns"]), ("mutex", 600_000_000))
        self.assertEqual((thread["usr"], thread["mutex"]), (300_000_000, 700_000_000))
        self.assertEqual(sum(thread[name] for name in layout.MICRO), thread["wall_ns"])

    def test_a_woken_thread_is_runnable_since_its_wake_up(self) -> None:
        thread = self.only(Builder(1000), **waiting("read", 400, wake_tsc=tsc(900)))
        self.assertEqual((thread["state"], thread["since_ns"]), ("LAT", 100_000_000))
        self.assertEqual((thread["io"], thread["lat"]), (500_000_000, 100_000_000))

    def test_a_wake_up_before_the_wait_is_ignored(self) -> None:
        thread = self.only(Builder(1000), **waiting("sleep", 400, wake_tsc=tsc(399)))
        self.assertEqual((thread["state"], thread["sleep"]), ("sleep", 600_000_000))

    def test_running_and_queued_threads(self) -> None:
        run = {"id": 1, "doing": layout.DOES_RUN, "run_tsc": tsc(250), "since_tsc": tsc(100)}
        thread = self.only(Builder(1000), **run)
        self.assertEqual((thread["state"], thread["usr"]), ("USR", 750_000_000))
        queue = {"id": 1, "doing": layout.DOES_QUEUE, "since_tsc": tsc(900)}
        thread = self.only(Builder(1000), **queue)
        self.assertEqual((thread["state"], thread["lat"]), ("LAT", 100_000_000))

    def test_a_stamp_ahead_of_now_counts_nothing(self) -> None:
        builder = Builder(1000, ended=1)
        thread = self.only(builder, **waiting("mutex", 1001))
        self.assertEqual((thread["mutex"], thread["since_ns"]), (0, 0))

    def test_every_kind_of_wait_counts_in_a_state(self) -> None:
        for kind in KINDS:
            thread = self.only(Builder(1000), **waiting(kind, 400))
            self.assertEqual(thread[thread["state"]], 600_000_000, kind)

    def test_free_entries_are_no_threads(self) -> None:
        builder = Builder().chunk(layout.THREADS, [{}, waiting("mutex", 1), {"id": 9}])
        self.assertEqual(build.threads(builder.store()).rows, 1)

    def test_idle_threads(self) -> None:
        end = 5000
        for kind, since, idle in (
            ("accept", end - 1, True),
            ("condition", end - 1, False),
            ("condition", 0, True),
            ("read", 0, True),
            ("mutex", 0, False),
            ("write lock", 0, False),
        ):
            thread = self.only(Builder(end), **waiting(kind, since))
            self.assertEqual(thread["is_idle"], idle, (kind, since))

    def test_names_end_at_their_first_zero(self) -> None:
        thread = self.only(Builder(), **waiting("mutex", 1, name=b"one\0two"))
        self.assertEqual(thread["name"], "one")


class Sums(unittest.TestCase):
    def test_a_name_that_two_writers_recorded_is_one(self) -> None:
        """Each writer numbers the names that it sees. A lock that two saw must stay one row."""
        lock = {"kind": 1, "lock": 8, "site": 0x1000, "contested": 2}
        builder = Builder().chunk(layout.NAMES, [{"text": b"hot"}], writer=0)
        # The first writer's chunk has free entries, and the second's names are numbered after them.
        again = (layout.PAGE - layout.CHUNK_HEAD) // layout.NAME.itemsize + 1
        builder.chunk(layout.NAMES, [{"text": b"hot"}, {"text": b"cold"}], writer=1)
        for writer, name in enumerate((1, again)):
            builder.chunk(layout.LOCKS, [{**lock, "name": name}], writer)
            builder.chunk(layout.WAKES, [wake(object=8, count=[0, 1, *[0] * 5], name=name)], writer)
        builder.chunk(layout.LOCKS, [{**lock, "lock": 16, "name": again + 1}], 1)
        store_made = builder.store()
        found = rows(build.locks(store_made))
        self.assertEqual(
            [(row["lock"], row["lock_name"], row["contested"]) for row in found],
            [(8, "hot", 4), (16, "cold", 2)],
        )
        (row,) = rows(build.wakes(store_made))
        self.assertEqual((row["object_name"], row["useful"]), ("hot", 2))

    def test_wake_ups_are_summed_over_writers(self) -> None:
        builder = Builder()
        count = [1, 2, 0, 0, 0, 0, 4]
        for writer in range(3):
            row = wake(count=count, wait_ticks=ticks(10), wait_most=ticks(writer + 1))
            builder.chunk(layout.WAKES, [row, wake(wait_site=0x3000, count=count)], writer)
        found = rows(build.wakes(builder.store()))
        self.assertEqual([row["wait_site"] for row in found], ["0x1000", "0x3000"])
        self.assertEqual(found[0]["useful"], 6)
        self.assertEqual((found[0]["cancelled"], found[0]["unrecorded"]), (12, 3))
        self.assertEqual(found[0]["wait_ns"], 30_000_000)
        self.assertEqual(found[0]["wait_most_ns"], 3_000_000)

    def test_a_count_that_another_writer_corrected(self) -> None:
        """One writer counted the wake-up. Another corrected its verdict: its count is below 0."""
        builder = Builder()
        builder.chunk(layout.WAKES, [wake(count=[0, 5, 0, 0, 0, 0, 0])], 0)
        builder.chunk(layout.WAKES, [wake(count=[0, (1 << 64) - 2, 2, 0, 0, 0, 0])], 1)
        (row,) = rows(build.wakes(builder.store()))
        self.assertEqual((row["useful"], row["lost_race"]), (3, 2))

    def test_locks(self) -> None:
        builder = Builder().chunk(layout.NAMES, [{"text": b"first"}, {"text": b"queue"}])
        row = {"kind": KINDS["mutex"], "lock": 0x7F00, "name": 2, "site": 1, "holder_site": 2}
        row |= {"acquired": 10, "contested": 4, "wait_ticks": ticks(100), "spun": 1}
        builder.chunk(layout.LOCKS, [row], 0).chunk(layout.LOCKS, [row], 1)
        (lock,) = rows(build.locks(builder.store()))
        self.assertEqual((lock["acquired"], lock["contested"], lock["spun"]), (20, 8, 2))
        self.assertEqual((lock["lock_name"], lock["wait_ns"]), ("queue", 200_000_000))
        self.assertEqual((lock["kind"], lock["holder_site"]), ("mutex", "0x2"))

    def test_waits_of_threads_that_share_one_lock_are_apart(self) -> None:
        builder = Builder()
        row = {"kind": KINDS["mutex"], "site": 1, "holder_site": 2, "acquired": 10}
        for writer, waits in enumerate(({0x70: 95, 0x80: 5}, {0x80: 40}, {0x70: 50, 0x80: 50})):
            some = [{**row, "lock": lock, "wait_ticks": ticks(ms)} for lock, ms in waits.items()]
            builder.chunk(layout.LOCKS, some, writer)
        found = {row["lock"]: row["apart_ns"] for row in rows(build.locks(builder.store()))}
        self.assertEqual(found, {0x70: 95_000_000, 0x80: 40_000_000})

    def test_workers_and_their_counters(self) -> None:
        writer: dict[str, Any] = {"index": 3, "is_worker": 1, "is_live": 1, "begin_tsc": tsc(0)}
        writer |= {"idle_ticks": ticks(100), "idle_since_tsc": tsc(900), "switches": 5}
        calls, herds, lateness = [0] * 24, [0] * 16, [0] * 32
        calls[KINDS["accept"]], herds[3], lateness[0], lateness[10] = 9, 2, 1, 7
        writer |= {"calls": calls, "herds": herds, "lateness": lateness}
        found = build.tables(Builder(1000).chunk(layout.WRITERS, [writer]).store())
        (worker,) = rows(found["workers"])
        self.assertEqual((worker["idle_ns"], worker["wall_ns"]), (200_000_000, 1_000_000_000))
        self.assertIsNone(worker["voluntary"])
        (call,) = rows(found["calls"])
        self.assertEqual((call["writer"], call["kind"], call["completed"]), (3, "accept", 9))
        self.assertEqual([r["size_from"] for r in rows(found["herds"])], [8])
        late = [(r["late_from_ns"], r["count"]) for r in rows(found["lateness"])]
        self.assertEqual(late, [(0, 1), (1024, 7)])

    def test_threads_that_have_ended(self) -> None:
        group: dict[str, Any] = {
            "name": b"request",
            "threads": 3,
            "waits": 7,
            "wall_ticks": ticks(9),
        }
        group |= {"ticks": micro(usr=5, mutex=4), "cpu_ns": 4_000_000, "queue_ns": 1_000_000}
        rest = {**group, "name": b"", "is_rest": 1, "threads": 5}
        writer: dict[str, Any] = {
            "index": 2,
            "ended": 10,
            "groupless": 2,
            "ended_waits": 6,
            "is_worker": 1,
        }
        writer["ended_ticks"] = micro(usr=1, sleep=2)
        builder = Builder().chunk(layout.WRITERS, [writer])
        builder.chunk(layout.GROUPS, [group, rest], writer=0xFFFFFFFF)
        builder.chunk(layout.GROUPS, [{**group, "name": b"", "is_user": 1}], writer=2)
        named, others, user, groupless = rows(build.groups(builder.store()))
        self.assertEqual((named["name"], named["threads"], named["waits"]), ("request", 3, 7))
        self.assertEqual((named["usr"], named["mutex"]), (5_000_000, 4_000_000))
        self.assertEqual((named["cpu_ns"], named["run_queue_ns"]), (4_000_000, 1_000_000))
        self.assertEqual((others["name"], others["threads"]), ("(others)", 5))
        self.assertEqual((user["name"], user["writer"], user["cpu_ns"]), ("", 2, None))
        self.assertEqual((groupless["name"], groupless["threads"]), ("(others)", 2))
        self.assertEqual((groupless["waits"], groupless["sleep"]), (6, 2_000_000))
        self.assertEqual((groupless["wall_ns"], groupless["is_user"]), (3_000_000, True))
        # An older rouse had no groups.
        (row,) = rows(build.groups(Builder().chunk(layout.WRITERS, [writer]).store()))
        self.assertEqual((row["name"], row["threads"], row["waits"]), ("(others)", 10, 6))

    def test_the_kernels_figures_at_the_end_are_those_of_the_thread_that_has_the_entry(
        self,
    ) -> None:
        writer: dict[str, Any] = {"tid": 7, "read_tid": 7, "read_tsc": tsc(900), "is_live": 1}
        writer |= {"begin_tsc": tsc(0), "taken_tsc": tsc(100), "has_queue": 1}
        writer |= {"begin_cpu_ns": 5, "end_cpu_ns": 25, "begin_queue_ns": 1, "end_queue_ns": 4}
        later = {**writer, "tid": 8}
        unread = {**writer, "tid": 9, "read_tid": 9, "has_queue": 0}
        store = Builder(1000, cpu_ns=77).chunk(layout.WRITERS, [writer, later, unread]).store()
        known, none, half = rows(build.workers(store))
        self.assertEqual((known["cpu_ns"], known["run_queue_ns"]), (20, 3))
        self.assertEqual((known["wall_ns"], known["kernel_wall_ns"]), (900_000_000, 800_000_000))
        self.assertEqual((none["cpu_ns"], none["run_queue_ns"]), (None, None))
        self.assertEqual((half["cpu_ns"], half["run_queue_ns"]), (20, None))
        (process,) = rows(build.processes(store))
        self.assertEqual(process["cpu_ns"], 77)

    def test_a_program_is_called_by_the_link_that_its_command_names(self) -> None:
        def called(command: str) -> str:
            text = command.replace(" ", "\0").encode()
            store = Builder(program=str(folder / "check").encode(), command=text).store()
            (process,) = rows(build.processes(store))
            return Path(process["program"]).name

        with tempfile.TemporaryDirectory() as place:
            folder = Path(place).resolve()
            (folder / "check").touch()
            (folder / "server").symlink_to("check")
            (folder / "other").symlink_to("somewhere")
            self.assertEqual(called("server *:6379"), "server")
            self.assertEqual(called(f"{folder}/server --port 0"), "server")
            for command in ("check", "other", "not-there", ""):
                self.assertEqual(called(command), "check", command)

    def test_an_empty_store_has_every_table(self) -> None:
        found = build.tables(Builder().store())
        (process,) = rows(found.pop("processes"))
        self.assertEqual((process["mode"], process["command"]), ("counted", "example --flag"))
        self.assertEqual(process["duration_ns"], 1_000_000_000)
        self.assertEqual(
            {name: table.rows for name, table in found.items()}, dict.fromkeys(found, 0)
        )
        full = build.tables(sample().store())
        for name, table in found.items():
            self.assertEqual(list(table.columns), list(full[name].columns), name)


def sample() -> Builder:
    """A store with an entry of every kind."""
    names = [{"key": 1, "text": b"lock"}]
    stacks = [{"hash": 1, "depth": 2, "frames": [0x1010, 0x1020, 0, 0, 0, 0, 0, 0]}]
    modules = [{"start": 0x1000, "end": 0x2000, "bias": 0x1000, "path": b"/no/such/file"}]
    site = layout.SITE_STACK
    writer = {"is_live": 1, "calls": [1] * 24, "herds": [1] * 16, "lateness": [1] * 32}
    lock = {"kind": 1, "lock": 1, "name": 1, "site": site, "acquired": 1}
    return (
        Builder()
        .chunk(layout.WRITERS, [writer, {**writer, "index": 1}])
        .chunk(layout.THREADS, [waiting("mutex", 1, wait_site=site, id=i + 1) for i in range(40)])
        .chunk(layout.WAKES, [wake(wait_site=site, count=[1] * 7)])
        .chunk(layout.LOCKS, [lock])
        .chunk(layout.NAMES, names)
        .chunk(layout.STACKS, stacks)
        .chunk(layout.MODULES, modules)
    )


class Sites(unittest.TestCase):
    def test_a_stack_has_one_row_per_frame(self) -> None:
        found = rows(build.tables(sample().store())["sites"])
        stack = [row for row in found if row["site"] == hex(layout.SITE_STACK)]
        self.assertEqual(
            [(row["frame"], row["address"]) for row in stack], [(0, 0x1010), (1, 0x1020)]
        )
        self.assertEqual([row["label"] for row in stack], ["file+0x10", "file+0x20"])
        runtime = [row for row in found if row["site"] == "0x0"]
        self.assertEqual([row["label"] for row in runtime], ["runtime"])

    def test_a_stack_that_two_writers_recorded_is_one(self) -> None:
        mark = layout.SITE_STACK
        frames = [
            [0x1010, 0x1020, *[0] * 6],
            [0x1010, 0x1030, *[0] * 6],
            [0x1010, 0x1020, *[9] * 6],
        ]
        stacks = [{"hash": n, "depth": 2, "frames": f} for n, f in enumerate(frames)]
        lock = {"kind": 1, "lock": 8, "holder_site": mark | 1, "contested": 2}
        builder = Builder().chunk(layout.STACKS, stacks)
        builder.chunk(layout.LOCKS, [{**lock, "site": mark | n} for n in (2, 0)])
        builder.chunk(
            layout.WAKES, [wake(wait_site=mark | n, count=[0, 1, *[0] * 5]) for n in (2, 0)]
        )
        builder.chunk(layout.THREADS, [waiting("condition", 1, wait_site=mark | 2)])
        found = build.tables(builder.store())
        (lock_row,) = rows(found["locks"])
        self.assertEqual((lock_row["site"], lock_row["contested"]), (hex(mark), 4))
        (wake_row,) = rows(found["wakes"])
        self.assertEqual((wake_row["wait_site"], wake_row["useful"]), (hex(mark), 2))
        (thread,) = rows(found["threads"])
        self.assertEqual(thread["wait_site"], hex(mark))
        named = {row["site"] for row in rows(found["sites"])}
        self.assertIn(hex(mark), named)
        self.assertNotIn(hex(mark | 2), named)

    def test_a_missing_stack_is_labelled_runtime(self) -> None:
        builder = Builder().chunk(layout.WAKES, [wake(wait_site=layout.SITE_STACK | 99)])
        found = rows(build.tables(builder.store())["sites"])
        self.assertIn(
            (hex(layout.SITE_STACK | 99), "runtime"), [(r["site"], r["label"]) for r in found]
        )


class Versions(unittest.TestCase):
    def test_longer_entries_are_read(self) -> None:
        size = layout.WAKE.itemsize + 64
        raw = entries(layout.WAKES, [wake(count=[0, n, 0, 0, 0, 0, 0]) for n in (1, 2)])
        grown = b"".join(row.tobytes().ljust(size, b"\xff") for row in raw)
        builder = Builder().chunk(layout.WAKES, [], raw=grown, entry_bytes=size, capacity=2, used=2)
        (row,) = rows(build.wakes(builder.store()))
        self.assertEqual(row["useful"], 3)

    def test_shorter_entries_are_read(self) -> None:
        spare = layout.WRITER["spare"].shape[0]
        raw = entries(layout.WRITERS, [{"switches": 4, "spare": [1] * spare}])
        size = layout.WRITER.itemsize - 8 * spare
        builder = Builder().chunk(
            layout.WRITERS, [], raw=raw.tobytes()[:size], entry_bytes=size, capacity=1, used=1
        )
        read = builder.store().writers
        self.assertEqual((int(read["switches"][0]), int(read["spare"].sum())), (4, 0))

    def test_unknown_kinds_of_chunks_are_skipped(self) -> None:
        read = Builder().chunk(99, [], raw=b"x" * 64).chunk(layout.NAMES, [{"text": b"a"}]).store()
        self.assertEqual(read.problems, ["chunks of a kind that is not known are left out: 1"])
        self.assertEqual(len(read.arrays[layout.NAMES]), 60)

    def test_another_version_is_refused(self) -> None:
        for version, age in ((layout.VERSION - 1, "older"), (layout.VERSION + 1, "newer")):
            with self.assertRaisesRegex(RouseError, f"of version {version}.*use the {age}"):
                Builder(version=version).store()


class Damage(unittest.TestCase):
    def test_other_files_are_refused(self) -> None:
        for data, says in (
            (b"", "0 bytes are not a whole"),
            (b"\x7fELF" * 1000, "is no recording of rouse"),
            (bytes(8192), "holds no recording yet"),
            (sample().bytes()[:500], "500 bytes are not a whole"),
        ):
            with self.assertRaisesRegex(RouseError, says):
                decode.decode_bytes(data, "x")

    def test_an_invalid_chunk_is_left_out_and_reported(self) -> None:
        wrong: list[dict[str, Any]] = [
            {"used": 1 << 31},
            {"entry_bytes": 0},
            {"entry_bytes": 1 << 31},
            {"bytes": 4097},
            {"bytes": 0},
            {"bytes": 1 << 31},
            {"capacity": 1 << 31},
        ]
        for change in wrong:
            builder = Builder().chunk(layout.WAKES, [wake()], **change)
            read = builder.chunk(layout.LOCKS, [{"lock": 1}]).store()
            self.assertEqual(len(read.problems), 1, change)
            self.assertIn("chunk 0 is left out", read.problems[0])
            self.assertEqual(len(read.arrays[layout.LOCKS]), 1)

    def test_numbers_of_names_are_not_guessed(self) -> None:
        """Without a lost chunk of names, every later name would have another number."""
        builder = Builder().chunk(layout.NAMES, [{"text": b"a"}], used=1 << 30)
        read = builder.chunk(layout.NAMES, [{"text": b"b"}]).store()
        self.assertEqual(len(read.arrays[layout.NAMES]), 0)
        self.assertEqual(len(read.problems), 2)

    def test_chunks_that_overlap(self) -> None:
        data = bytearray(Builder().chunk(layout.LOCKS, [{}]).chunk(layout.LOCKS, [{}]).bytes())
        data[layout.DIRECTORY + 4 : layout.DIRECTORY + 8] = data[
            layout.DIRECTORY : layout.DIRECTORY + 4
        ]
        read = decode.decode_bytes(bytes(data), "x")
        self.assertEqual(len(read.arrays[layout.LOCKS]), 1)
        self.assertIn("overlaps", read.problems[0])

    def test_the_greatest_number_of_chunks(self) -> None:
        """Each is compared only with its neighbours, because all pairs would take minutes."""
        builder = Builder()
        for _ in range(layout.CHUNKS_MAX):
            builder.chunk(layout.LOCKS, [{"lock": 1}])
        read = builder.store()
        self.assertEqual((len(read.arrays[layout.LOCKS]), read.problems), (layout.CHUNKS_MAX, []))

    def test_a_truncated_store_gives_its_complete_part(self) -> None:
        whole = sample().bytes()
        everything = {k: len(v) for k, v in sample().store().arrays.items() if k != layout.STACKS}
        for size in range(layout.HEAD.itemsize, len(whole), 1000):
            read = decode.decode_bytes(whole[:size], "x")
            build.tables(read)
            found = {kind: len(read.arrays[kind]) for kind in everything}
            self.assertTrue(read.problems or found == everything, size)

    def test_random_bytes_raise_no_other_error(self) -> None:
        chance = random.Random(20260101)
        whole = sample().bytes()
        for _ in range(200):
            data = bytearray(whole)
            for _ in range(20):
                at = chance.choice((8, layout.DIRECTORY, layout.CHUNKS)) + chance.randrange(2000)
                data[at] = chance.randrange(256)
            try:
                read = decode.decode_bytes(bytes(data), "x")
            except RouseError:
                continue
            build.tables(read)

    def test_a_damaged_time_stamp_is_not_the_end(self) -> None:
        builder = Builder(1000).chunk(layout.THREADS, [waiting("mutex", 1, run_tsc=(1 << 64) - 1)])
        self.assertEqual(builder.store().now_tsc, tsc(1000))

    def test_the_last_stamp_of_a_killed_process_is_its_end(self) -> None:
        builder = Builder(1000).chunk(layout.THREADS, [waiting("mutex", 1500)])
        self.assertEqual(builder.store().now_tsc, tsc(1500))

    def test_an_unknown_clock_is_reported(self) -> None:
        builder = Builder(tick_tsc=START_TSC, tick_monotonic_ns=5_000_000_000, boot_id=[1] * 16)
        read = builder.store()
        self.assertEqual((read.clock.hz, read.clock.is_measured), (1e9, False))
        self.assertIn("time stamps", read.problems[0])


class Moving(unittest.TestCase):
    """A store that changes while it is read."""

    @staticmethod
    def source(*steps: tuple[int, int]) -> decode.BytesSource:
        """A source with one thread, in which the nth read finds the nth pair of (seq, waits)."""
        images = [
            Builder().chunk(layout.THREADS, [waiting("mutex", 1, seq=seq, waits=waits)]).bytes()
            for seq, waits in steps
        ]

        class Source(decode.BytesSource):
            reads = 0

            def read(self, offset: int, size: int) -> bytes:
                slot = layout.CHUNKS + layout.CHUNK_HEAD
                if offset <= slot < offset + size:
                    self.data = images[min(self.reads, len(images) - 1)]
                    self.reads += 1
                return super().read(offset, size)

        return Source(images[0], "moving")

    def read(self, *steps: tuple[int, int]) -> Any:
        (thread,) = decode.decode(self.source(*steps), [layout.THREADS]).threads
        return thread

    def test_the_words_of_an_entry_are_consistent(self) -> None:
        self.assertEqual(int(self.read((2, 5), (2, 5), (2, 5))["waits"]), 5)
        # If it is read while it changes, intermediate contents are dropped.
        self.assertEqual(int(self.read((2, 5), (3, 6), (4, 7), (4, 7), (4, 7))["waits"]), 7)
        self.assertEqual(int(self.read((2, 5), (2, 99), (4, 7), (4, 7), (4, 7))["waits"]), 7)

    def test_a_thread_that_was_killed_while_it_wrote_is_shown_and_reported(self) -> None:
        self.assertEqual(int(self.read((3, 5))["waits"]), 5)
        read = decode.decode(self.source((3, 5)), [layout.THREADS])
        self.assertEqual(read.problems, ["threads whose words may be of two moments: 1"])
        self.assertEqual(decode.decode(self.source((2, 5)), [layout.THREADS]).problems, [])

    def copied(self, *steps: tuple[int, int]) -> tuple[int, list[str]]:
        """The thread's waits in a copy of the whole store, and the reader's notes."""
        read = decode.decode_bytes(decode.copy(self.source(*steps)), "copy")
        return int(read.threads["waits"][0]), read.problems

    def test_the_words_of_an_entry_in_a_copy_are_consistent(self) -> None:
        self.assertEqual(self.copied((2, 5)), (5, []))
        # It was copied while it changed, or when a change was half done.
        self.assertEqual(self.copied((3, 99), (4, 7)), (7, []))
        self.assertEqual(self.copied((2, 99), (4, 7)), (7, []))
        self.assertEqual(self.copied((2, 99), (3, 98), (4, 97), (6, 7)), (7, []))

    def test_a_changing_store_is_copied_and_reported(self) -> None:
        output = ["threads whose words may be of two moments: 1"]
        self.assertEqual(self.copied((3, 5)), (5, output))
        # seq is even at every read, but always different.
        busy = [(2 * n, n) for n in range(1, 200)]
        waits, problems = self.copied(*busy)
        self.assertEqual(problems, output)
        self.assertGreater(waits, 8)

    def test_one_inconsistent_entry_does_not_affect_the_others(self) -> None:
        many = [waiting("mutex", 1, seq=2 + (n == 50), waits=n) for n in range(100)]
        data = Builder().chunk(layout.THREADS, many).bytes()
        read = decode.decode_bytes(decode.copy(decode.BytesSource(data, "many")), "copy")
        self.assertEqual(read.slots["waits"].tolist(), list(range(100)))
        self.assertEqual(read.problems, ["threads whose words may be of two moments: 1"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
