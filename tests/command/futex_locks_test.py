#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for futexes that are locks, in stores whose waits are known by construction."""

from __future__ import annotations

import tempfile
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from synthetic import KINDS, Builder, micro, ticks, tsc

from rouse.store import find, layout, recording
from rouse.symbols import futex_waits, sites
from rouse.tables import build, inputs
from rouse.top.drill import Drill
from rouse.top.intervals import Watch

LOCK, OTHER, WAKER = 0x1000, 0x2000, 0x3000
MS = 1_000_000
LOCKS = (
    # Rust's std, mangled in both ways, and parking_lot
    ("_ZN3std3sys4sync5mutex5futex5Mutex14lock_contended17h0123456789abcdefE",),
    ("std::sys::sync::rwlock::futex::RwLock::read_contended",),
    ("futex_wait", "<parking_lot::raw_mutex::RawMutex>::lock_slow", "main"),
    ("park", "parking_lot::raw_rwlock::RawRwLock::lock_exclusive_slow"),
    # A condition of Rust that acquires its mutex again
    ("std::sys::sync::mutex::futex::Mutex::lock_contended", "std::sync::Condvar::wait"),
    ("absl::lts_20220623::Mutex::LockSlowLoop", "absl::lts_20220623::Mutex::Lock"),
    ("ssux_lock_impl<true>::rd_wait()",),
    ("my_mutex_lock",),
)
OTHERS = (
    ("std::sys::sync::condvar::futex::Condvar::wait_optional_timeout", "lock_slow"),
    ("std::sys::sync::thread_parking::futex::Parker::park", "std::thread::park"),
    ("absl::CondVar::WaitCommon", "serve"),
    # abseil waits for a condition of its own in the lock's slow path
    ("absl::Mutex::LockSlowLoop", "absl::Mutex::AwaitCommon", "serve"),
    ("absl::Mutex::LockSlow", "absl::Mutex::LockWhen(absl::Condition const&)", "serve"),
    ("unlock_slow", "parking_lot::RawMutex::unlock_slow", "my_mutex_unlock"),
    ("cond_wait",),
    ("event_wait", None),
    (),
)


class Roles(unittest.TestCase):
    def test_functions_of_known_locks_and_of_other_waits(self) -> None:
        for functions in LOCKS:
            roles = [futex_waits.role_of([name]) for name in functions]
            self.assertTrue(futex_waits.is_for_lock(roles), functions)
        for others in OTHERS:
            roles = [futex_waits.role_of([name]) for name in others]
            self.assertFalse(futex_waits.is_for_lock(roles), others)

    def test_an_inlined_function_counts_before_the_one_that_contains_it(self) -> None:
        self.assertEqual(futex_waits.role_of(["futex_wait", "lock_contended", "cond_wait"]), "lock")

    def test_a_recording_knows_the_role_and_an_older_one_the_function(self) -> None:
        names = {"label": "serve a.c:1", "function": "serve"}
        older = {"label": "lock_slow a.c:1", "function": "lock_slow"}
        for frame in ({**names, "role": "lock"}, older, names):
            known = {("a", "", 8): recording.checked_frame(frame)}
            found = inputs.RecordedResolver(known).frames["a", "", 8]
            self.assertEqual(found.role, None if frame is names else "lock")


def wake(site: int, ms: float, **counts: int) -> dict[str, Any]:
    return {
        **{"kind": KINDS["futex"], "wait_site": site, "wake_site": WAKER, "object": 0x5000},
        "count": [counts.get(name, 0) for name in layout.VERDICTS],
        **{"wait_ticks": ticks(ms), "wait_most": ticks(ms)},
    }


def thread(number: int, site: int, since_ms: float, **states: float) -> dict[str, Any]:
    return {
        **{"id": number, "worker": number, "doing": layout.DOES_WAIT, "kind": KINDS["futex"]},
        **{"wait_site": site, "object": 0x5000, "since_tsc": tsc(since_ms), "begin_tsc": tsc(0)},
        "ticks": micro(**states),
    }


def with_lock() -> Any:
    """Make LOCK the site of a lock in what follows."""

    def is_for_lock(_self: object, site: int) -> bool:
        return site == LOCK

    return mock.patch.object(sites.Sites, "is_for_lock", is_for_lock)


def made(builder: Builder) -> dict[str, list[dict[str, Any]]]:
    """The tables of a store."""
    with with_lock():
        return {name: table.to_rows() for name, table in build.tables(builder.store()).items()}


class Stores(unittest.TestCase):
    def test_each_wait_is_in_the_locks_once_with_its_verdicts(self) -> None:
        builder = Builder().chunk(
            layout.WAKES,
            [
                wake(LOCK, 30, useful=3, lost_race=2, timeout=1),
                wake(OTHER, 40, useful=4),
            ],
        )
        found = made(builder)
        (lock,) = found["locks"]
        names = ("kind", "lock", "site", "holder_site", "contested", "given_up", "wait_ns")
        expected = ("futex lock", 0x5000, hex(LOCK), hex(WAKER), 4, 1, 30 * MS)
        self.assertEqual(tuple(lock[name] for name in names), expected)
        kinds = {row["wait_site"]: row["kind"] for row in found["wakes"]}
        self.assertEqual(kinds, {hex(LOCK): "futex lock", hex(OTHER): "futex"})

    def test_waits_under_way_are_for_the_lock_and_never_idle(self) -> None:
        slots = [thread(1, LOCK, 0), thread(2, OTHER, 0)]
        found = made(Builder(3000).chunk(layout.THREADS, slots))
        (lock,) = found["locks"]
        self.assertEqual((lock["waiting"], lock["waiting_ns"]), (1, 3000 * MS))
        rows = {row["thread_id"]: row for row in found["threads"]}
        self.assertEqual((rows[1]["kind"], rows[1]["state"]), ("futex lock", "mutex"))
        self.assertEqual([rows[i]["is_idle"] for i in (1, 2)], [False, True])
        self.assertEqual((rows[1]["mutex"], rows[1]["sem"]), (3000 * MS, 0))
        self.assertEqual((rows[2]["mutex"], rows[2]["sem"]), (0, 3000 * MS))

    def test_time_moves_from_semaphores_to_mutexes_by_kernel_thread(self) -> None:
        slots = [thread(1, OTHER, 1000, sem=70, mutex=5), thread(2, OTHER, 1000, sem=60)]
        writers = [{"index": i, "ended": 1, "ended_ticks": micro(sem=50)} for i in range(3)]
        builder = Builder().chunk(layout.WRITERS, writers).chunk(layout.THREADS, slots)
        builder.chunk(layout.WAKES, [wake(LOCK, 30, useful=1), wake(OTHER, 40, useful=1)], writer=1)
        builder.chunk(layout.WAKES, [wake(LOCK, 20, useful=1)], writer=0)
        found = made(builder)
        rows = {row["thread_id"]: row for row in found["threads"]}
        self.assertEqual((rows[1]["mutex"], rows[1]["sem"]), (35 * MS, 40 * MS))
        self.assertEqual((rows[2]["mutex"], rows[2]["sem"]), (0, 60 * MS))
        ended = [(row["mutex"] // MS, row["sem"] // MS) for row in found["groups"]]
        self.assertEqual(ended, [(20, 30), (0, 50), (0, 50)])

    def test_top_shows_the_wait_of_one_thread_as_one_for_a_lock(self) -> None:
        builder = Builder().chunk(layout.THREADS, [thread(1, LOCK, 0), thread(2, OTHER, 0)])
        with tempfile.TemporaryDirectory() as place, with_lock():
            path = builder.write(Path(place))
            source = find.open_source(path)
            self.addCleanup(source.close)
            for number, text in ((1, "waits for futex lock 0x5000"), (2, "waits for futex 0x5000")):
                drill = Drill(path, number, number, "one")
                drill.look(cast(Watch, SimpleNamespace(source=source)))
                self.assertIn(text, drill.lines())


if __name__ == "__main__":
    unittest.main(verbosity=2)
