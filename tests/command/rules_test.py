#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rules of the verdict, each with tables that have its pattern, and with similar tables."""

from __future__ import annotations

import tempfile
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import common  # noqa: F401 enters the environment of the command

from known_tables import MS, PROCESSES, Row, orders, site

from rouse.query import (
    accept_herds,
    apart,
    demand,
    file_locks,
    frames,
    gain,
    handovers,
    herds,
    interpreter,
    java_locks,
    java_pools,
    joins,
    known_locks,
    loops,
    onions,
    polling,
    python_locks,
    rwlocks,
    shares,
    spins,
    stages,
    stragglers,
    thread_pools,
    timers,
    verdict,
)
from rouse.query.finding import SMALL_POOL, Finding
from rouse.query.program import Program
from rouse.query.ran import PythonStack, Running, Stack
from rouse.sched.java_dumps import JavaPool
from rouse.symbols.sites import Frame
from rouse.tables import engine
from rouse.tables.schemas import PRELOAD
from rouse.tables.views import CLIENTS

S = 1000 * MS


def found(**changed: Sequence[Row]) -> list[Finding]:
    """The findings on a program of these tables, in a second of which nothing else happened."""
    empty: dict[str, Sequence[Row]] = {"locks": [], "wakes": [], "groups": [], "herds": []}
    processes = [{**PROCESSES[0], "cpus": 4, "cpu_ns": 0}]
    database = engine.open_tables(orders(**{**empty, "processes": processes, **changed}))
    try:
        return verdict.make(database).findings
    finally:
        database.close()


def threads(count: int, **ms: int) -> list[dict[str, Any]]:
    """So many threads, each of which was so long in these states."""
    states = {name: value * MS for name, value in ms.items()}
    row = {"name": "t", "origin": "kernel", "state": "USR", "wall_ns": sum(states.values())}
    return [{**row, "thread_id": number + 1, **states} for number in range(count)]


class Deadlocks(unittest.TestCase):
    """Threads 1 and 2 have the locks 7 and 8, and each waits for the other's."""

    SITES = (*site(0x2010, "move+0x5", "forth+0x9"), *site(0x2020, "move+0x2", "forth+0x9"))

    def wait(self, tid: int, lock: int, holder: int, ns: int = 3 * S) -> Row:
        row = {"name": "t", "origin": "kernel", "state": "mutex", "kind": "mutex", "object": lock}
        own = {"wait_site": "0x2010", "thread_id": tid, "tid": tid, "holder_tid": holder}
        return {**row, **own, "since_ns": ns, "wall_ns": ns, "mutex": ns}

    def lock(self, number: int, hold_most_ns: int = 1000, **changed: Any) -> list[Row]:
        own = {"kind": "mutex", "lock": number, "lock_name": f"lock{number}", "site": "0x2010"}
        held = {"holder_site": "0x2020", "waiting": 1, "waiting_ns": 3 * S, "wait_ns": 3 * S}
        ended = {"site": "0x2020", "acquired": 100, "holds": 100, "hold_ns": 100 * 1000}
        ended |= {"hold_most_ns": hold_most_ns, "holder_site": "0x0"}
        return [{**own, **held, **changed}, {**own, **ended}]

    def rows(self, *waits: Row, **changed: Any) -> list[Finding]:
        numbers = sorted({wait["object"] for wait in waits} - {0})
        locks = [row for number in numbers for row in self.lock(number, **changed)]
        return found(threads=waits, locks=locks, sites=self.SITES)

    def test_ring_has_no_gain_and_counts_the_waits_of_the_threads_behind_it(self) -> None:
        behind = self.wait(3, 7, 1, 2 * S)
        (ring,) = self.rows(self.wait(1, 8, 2), self.wait(2, 7, 1), behind)
        self.assertEqual((ring.kind, ring.gain, ring.gain_most), ("deadlock", None, None))
        self.assertEqual(ring.blame_ns, 8 * S)
        self.assertIn("thread 1 has lock7, acquired at move+0x2, and waits for lock8", ring.text)
        self.assertIn("thread 2 has lock8, acquired at move+0x2, and waits for lock7", ring.text)
        self.assertIn("(called by forth)", ring.text)
        self.assertIn(" 1 other thread waits too.", ring.text)

    def test_of_a_lock_with_readers_the_last_place_is_told_and_not_said_to_be_the_holders(
        self,
    ) -> None:
        wait = {**self.wait(1, 8, 0), "kind": "write lock", "state": "rwlock"}
        (kept,) = self.rows(wait, kind="write lock")
        self.assertEqual((kept.kind, kept.gain, kept.holder), ("never-released", None, ""))
        words = "lock8 was not free for the last 3.00 s: thread 1 waits for it at move+0x5"
        self.assertIn(words, kept.text)
        self.assertIn("who has it is not known. The last one that is known", kept.text)
        (kept,) = self.rows({**wait, "tid": 0, "origin": "user"}, kind="write lock")
        self.assertIn("a thread waits for it at move+0x5", kept.text)

    def test_mutex_whose_holder_is_not_known_may_be_shared_by_processes_in_turn(self) -> None:
        self.assertEqual(self.rows(self.wait(1, 8, 0)), [])

    def test_ring_after_a_long_hold_is_a_ring(self) -> None:
        waits = self.wait(1, 8, 2), self.wait(2, 7, 1)
        self.assertEqual([f.kind for f in self.rows(*waits, hold_most_ns=2 * S)], ["deadlock"])

    def test_long_ring_is_cut(self) -> None:
        waits = [self.wait(n, 7 + n % 10, (n + 1) % 10 or 10) for n in range(1, 11)]
        (ring,) = self.rows(*waits)
        self.assertIn("; and 6 more threads in the ring.", ring.text)

    def test_lock_that_is_often_held_for_long_is_not_said_to_be_kept(self) -> None:
        for hold_ns, is_kept in ((S, True), (S + S // 10, False)):
            kinds = {f.kind for f in self.rows(self.wait(1, 8, 2), hold_most_ns=hold_ns)}
            self.assertEqual("never-released" in kinds, is_kept)

    def test_threads_behind_a_thread_that_waits_are_counted_to_the_lock_that_is_kept(self) -> None:
        (kept,) = self.rows(self.wait(1, 7, 2), self.wait(2, 8, 9))
        self.assertEqual((kept.object, kept.blame_ns), ("lock8", 6 * S))
        self.assertIn("thread 9 has it, which is no thread of the process", kept.text)

    def test_threads_that_wait_for_clients_in_turn_have_no_finding(self) -> None:
        leader = {**self.wait(2, 0, 0), "kind": "accept", "wait_site": "0x2020", "mutex": 0}
        cases = (
            ("accept", "0x2010", False),
            ("poll", "0x2010", False),
            ("io", "0x2010", True),
            ("poll", "0x2020", True),  # it has the lock for another purpose
        )
        for state, site_of, is_kept in cases:
            rows = (self.wait(1, 7, 2), {**leader, "state": state, state: 3 * S})
            kinds = {finding.kind for finding in self.rows(*rows, holder_site=site_of)}
            self.assertEqual("never-released" in kinds, is_kept, kinds)
            self.assertNotIn("hot-lock", kinds)


class SmallPool(unittest.TestCase):
    WAIT, WAKE, OTHER = "0x2010", "0x2020", "0x2030"
    SITES = (
        *site(0x2010, "take+0x5", "serve+0x9", "run+0x1", "main+0x9"),
        *site(0x2020, "give+0x7", "serve+0x11", "run+0x1", "main+0x9"),
        *site(0x2030, "put+0x7", "read_input+0x3", "main+0x9"),
    )
    THREADS = threads(8, cond=700, io=300)

    def wake(self, **changed: Any) -> Row:
        row = {"kind": "condition", "wait_site": self.WAIT, "wake_site": self.WAKE, "object": 7}
        return {**row, "useful": 1000, "wait_ns": 5600 * MS, **changed}

    def rows(self, *wakes: Row, **changed: Sequence[Row]) -> list[Finding]:
        return found(threads=self.THREADS, sites=self.SITES, wakes=wakes, **changed)

    def test_function_that_takes_and_returns_has_a_pool(self) -> None:
        (pool,) = self.rows(self.wake())
        self.assertEqual((pool.kind, pool.blame_ns), (SMALL_POOL, 5600 * MS))
        self.assertEqual((pool.waiter, pool.holder), ("take+0x5", "serve"))
        self.assertAlmostEqual(pool.gain or 0, 1000 / 300, places=2)

    def test_pool_that_processes_share_is_one(self) -> None:
        sites = [*self.SITES, *({**row, "process": "other"} for row in self.SITES)]
        half = self.wake(wait_ns=2800 * MS)
        wakes = [half, {**half, "process": "other"}]
        (pool,) = found(threads=self.THREADS, sites=sites, wakes=wakes)
        self.assertEqual((pool.kind, pool.blame_ns), (SMALL_POOL, 5600 * MS))
        self.assertAlmostEqual(pool.gain or 0, 1000 / 300, places=2)

    def test_pool_of_which_one_thread_has_something_at_a_time_is_a_lock(self) -> None:
        sites = (*self.SITES, *site(0x2040, "scan+0x1", "serve+0xd", "run+0x1"))
        sleep = {"kind": "sleep", "wait_site": "0x2040", "timeout": 1000, "wait_ns": 900 * MS}
        wakes = [self.wake(wait_ns=7000 * MS, kind="semaphore"), sleep]
        some = threads(8, sem=875, sleep=125)
        (pool,) = found(threads=some, sites=sites, wakes=wakes)
        self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "serve"))
        self.assertIn("lets one thread pass at a time, as a lock does", pool.text)
        self.assertIn("waits mostly at scan+0x1 until then", pool.text)
        self.assertNotIn("A larger pool", pool.text)

    def test_place_that_threads_wait_at_and_hardly_use_is_no_pool(self) -> None:
        """As a stage of a pipeline, whose callers one place does not tell apart."""
        wakes = [self.wake(wait_ns=980 * MS)]
        self.assertEqual(found(threads=threads(1, cond=980), sites=self.SITES, wakes=wakes), [])

    def test_semaphore_of_a_library_is_a_futex(self) -> None:
        (pool,) = self.rows(self.wake(kind="futex"))
        self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "serve"))

    def test_function_may_have_been_inlined(self) -> None:
        sites = [
            *site(0x2010, "take+0x5", within="serve\nrun"),
            *site(0x2020, "give+0x7", within="serve\nrun"),
        ]
        (pool,) = found(threads=self.THREADS, sites=sites, wakes=[self.wake()])
        self.assertEqual(pool.holder, "serve")

    def shared(self, *, in_turn: bool) -> list[Finding]:
        """Two functions call take(); each calls give(), or one of them alone does."""
        sites = (
            *site(0x2010, "take+0x5", "serve+0x9", "run+0x1", "main+0x9"),
            *site(0x2040, "take+0x5", "answer+0x9", "run+0x4", "main+0x9"),
            *site(0x2020, "give+0x7", "serve+0x11", "run+0x1", "main+0x9"),
            *site(0x2050, "give+0x7", "answer+0x11", "run+0x4", "main+0x9"),
            *site(0x2060, "give+0x7", "read_input+0x11", "main+0x9"),
        )
        wakes = [
            self.wake(wait_site=waits, wake_site=wakes, useful=250, wait_ns=1400 * MS)
            for waits in ("0x2010", "0x2040")
            for wakes in (("0x2020", "0x2050") if in_turn else ("0x2060", "0x2050"))
        ]
        return found(threads=self.THREADS, sites=sites, wakes=wakes)

    def test_two_functions_take_and_return(self) -> None:
        (pool,) = self.shared(in_turn=True)
        self.assertEqual((pool.kind, pool.blame_ns), (SMALL_POOL, 5600 * MS))
        self.assertIn("until serve, or 1 other function, returns something at give+0x7", pool.text)
        self.assertAlmostEqual(pool.gain or 0, 1000 / 300, places=2)

    def test_two_functions_take_what_another_one_brings(self) -> None:
        self.assertEqual(self.shared(in_turn=False), [])

    def test_function_whose_last_call_returns_has_left_no_frame(self) -> None:
        sites = (
            *site(0x2010, "take+0x5", "serve+0x9", "run+0x1", "main+0x9"),
            *site(0x2020, "run+0x1", "main+0x9"),
        )
        (pool,) = found(threads=self.THREADS, sites=sites, wakes=[self.wake()])
        self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "run"))

    def test_queue_that_another_function_fills_is_no_pool(self) -> None:
        self.assertEqual(self.rows(self.wake(wake_site=self.OTHER)), [])
        some = self.rows(self.wake(useful=500), self.wake(wake_site=self.OTHER, useful=500))
        self.assertEqual(some, [])

    def test_barrier_is_no_pool(self) -> None:
        (last,) = self.rows(self.wake(), herds=[{"size_from": 4, "count": 250}])
        self.assertEqual((last.kind, last.waiter), (stragglers.STRAGGLER, "take+0x5"))

    def test_pool_that_wakes_all_for_each_thing_that_is_returned(self) -> None:
        """As std::counting_semaphore does. The function that has a thing sleeps with it."""
        sites = (*self.SITES, *site(0x2040, "query+0x1", "serve+0xd", "run+0x1"))
        sleep = {"kind": "sleep", "wait_site": "0x2040", "timeout": 250, "wait_ns": 2400 * MS}
        for returned, kinds in ((250, [SMALL_POOL]), (900, [stragglers.STRAGGLER])):
            wakes = [self.wake(kind="futex"), {**sleep, "timeout": returned}]
            every = found(
                threads=self.THREADS,
                sites=sites,
                wakes=wakes,
                herds=[{"size_from": 4, "count": 250}],
            )
            self.assertEqual([each.kind for each in every], kinds)
        (pool,) = self.rows(self.wake(kind="futex"))
        self.assertIn("They wait 5.60 ms each", pool.text)

    def test_few_waiters_are_no_finding(self) -> None:
        self.assertEqual(self.rows(self.wake(wait_ns=400 * MS)), [])


class CallStacks(unittest.TestCase):
    def test_stack_that_is_cut_off_is_continued_as_all_others_are(self) -> None:
        libc = {"module": "/usr/lib/libc.so.6", "function": None}
        whole = site(0x7010, "inner+0x1", "outer+0x1", "begin+0x1")
        sites = [
            *(*whole[:2], {**whole[2], **libc}),
            *site(0x7020, "leaf+0x1", "inner+0x9"),
            *site(0x7030, "leaf+0x5", "stray+0x1"),
        ]
        database = engine.open_tables(orders(sites=sites))
        self.addCleanup(database.close)
        calls = frames.calls(database, ["0x7010", "0x7020", "0x7030"])
        named = {site: [each.name for each in found] for (_, site), found in calls.known.items()}
        self.assertEqual(
            named,
            {
                "0x7010": ["inner", "outer"],
                "0x7020": ["leaf", "inner", "outer"],
                "0x7030": ["leaf", "stray"],
            },
        )
        self.assertEqual({site for _, site in calls.cut}, {"0x7030"})


class UnderLock(unittest.TestCase):
    SITES = (*site(0x5010, "save+0x1"), *site(0x5020, "save+0x9"))

    def of(self, kind: str) -> Finding:
        """A lock whose holder is in waits of a kind for most of the time."""
        lock = {"kind": "mutex", "lock": 5, "lock_name": "log", "site": "0x5010", "last_ns": S}
        held = {**lock, "holder_site": "0x0", "acquired": 900, "holds": 900, "hold_ns": 900 * MS}
        held["inside_io_ns"] = 850 * MS
        waits = {**lock, "holder_site": "0x5010", "contested": 900, "wait_ns": 2700 * MS}
        inside = {"kind": kind, "wait_site": "0x5020", "useful": 900, "wait_ns": 850 * MS}
        (finding,) = found(
            threads=threads(4, mutex=675, io=213, usr=20),
            sites=self.SITES,
            locks=[held, waits],
            wakes=[inside],
        )
        self.assertEqual((finding.kind, finding.object), ("wait-under-lock", "log"))
        return finding

    def test_what_a_disk_does_at_once_is_not_known_so_that_there_is_no_estimate(self) -> None:
        finding = self.of("sync")
        self.assertIsNone(finding.gain)
        self.assertGreater(finding.gain_most or 0, 1.5)
        self.assertIn("less if the disk serves one thread after the other", finding.text)

    def test_other_waits_under_a_lock_have_an_estimate(self) -> None:
        finding = self.of("read")
        self.assertGreater(finding.gain or 0, 1.5)
        self.assertNotIn("disk", finding.text)


class ReadersAndWriters(unittest.TestCase):
    SITES = (*site(0x3010, "read+0x1"), *site(0x3020, "write+0x2"), *site(0x3030, "scan+0x3"))
    READ, WRITE, SCAN = "0x3010", "0x3020", "0x3030"
    THREADS = threads(4, rwlock=120, sleep=880)

    def lock(self, kind: str, at: str, **changed: Any) -> Row:
        return {"kind": kind, "lock": 9, "lock_name": "table", "site": at, "last_ns": S, **changed}

    def held(self, at: str, count: int, each_ns: int) -> Row:
        more = {"acquired": count, "holds": count, "hold_ns": count * each_ns}
        return self.lock("read lock", at, holder_site="0x0", **more)

    def waits(self, kind: str, at: str, by: str, count: int, ns: int) -> Row:
        return self.lock(kind, at, holder_site=by, contested=count, wait_ns=ns)

    def rows(self, *locks: Row) -> list[Finding]:
        return found(threads=self.THREADS, sites=self.SITES, locks=locks)

    def test_writer_that_waits_for_many_readers_starves(self) -> None:
        waits = self.waits("write lock", self.WRITE, self.READ, 100, 500 * MS)
        (starved,) = self.rows(self.held(self.READ, 3000, MS // 4), waits)
        self.assertEqual((starved.kind, starved.object), (rwlocks.STARVED, "table"))
        self.assertEqual((starved.waiter, starved.holder), ("write+0x2", "read+0x1"))
        self.assertAlmostEqual(starved.gain_most or 0, 1000 / (500 - 100 * 0.04), places=3)

    def test_writer_that_waits_for_one_reader_does_not_starve(self) -> None:
        waits = self.waits("write lock", self.WRITE, self.READ, 100, 100 * MS)
        kinds = [f.kind for f in self.rows(self.held(self.READ, 3000, MS // 2), waits)]
        self.assertNotIn(rwlocks.STARVED, kinds)

    def test_holder_is_called_a_reader_or_a_writer(self) -> None:
        held = {**self.held(self.WRITE, 300, 3 * MS), "kind": "write lock"}
        for kind, both, said in (
            ("write lock", [], "write+0x2, a writer."),
            ("write lock", [self.held(self.WRITE, 10, MS)], "write+0x2."),
            ("mutex", [], "write+0x2."),
        ):
            waits = self.waits(kind, self.READ, self.WRITE, 300, 900 * MS)
            (hot,) = self.rows({**held, "kind": kind}, waits, *both)
            self.assertIn(f" for {said}", hot.text)
            # Readers behind a writer work in the tenth of the time that it leaves.
            self.assertEqual((hot.gain or 0) > 9, said.endswith("a writer."))

    def test_readers_that_wait_for_readers_are_a_convoy(self) -> None:
        (convoy,) = self.rows(
            self.held(self.READ, 1000, 1000),
            self.held(self.SCAN, 100, 4 * MS),
            self.waits("read lock", self.READ, self.READ, 300, 900 * MS),
            self.waits("write lock", self.WRITE, self.SCAN, 90, 300 * MS),
        )
        self.assertEqual((convoy.kind, convoy.object), (rwlocks.CONVOY, "table"))
        self.assertEqual((convoy.waiter, convoy.holder), ("read+0x1", "scan+0x3"))

    def test_readers_that_are_alike_are_no_convoy(self) -> None:
        waits = self.waits("read lock", self.READ, self.READ, 300, 900 * MS)
        kinds = [f.kind for f in self.rows(self.held(self.READ, 1000, MS), waits)]
        self.assertNotIn(rwlocks.CONVOY, kinds)

    def test_readers_that_wait_for_a_writer_are_no_convoy(self) -> None:
        held = self.held(self.WRITE, 300, 2 * MS)
        waits = self.waits("read lock", self.READ, self.WRITE, 300, 900 * MS)
        kinds = [f.kind for f in self.rows({**held, "kind": "write lock"}, waits)]
        self.assertNotIn(rwlocks.CONVOY, kinds)


class Straggler(unittest.TestCase):
    SITES = (*site(0x4010, "step+0x1"), *site(0x4020, "main+0x2"))
    GROUP: ClassVar = {"name": "part", "threads": 4, "wall_ns": 1600 * MS, "io": 1600 * MS}
    JOIN: ClassVar = {"kind": "join", "wait_site": "0x4020", "wake_site": "0x0", "useful": 1}

    def barrier(self, queue_ms: int = 0, waits: int = 300, **ms: int) -> list[Finding]:
        """Of four threads that were in these states, and so long in the run queue.

        They waited 300 times at the barrier, and so often in all.
        """
        row = {"kind": "barrier", "wait_site": "0x4010", "wake_site": "0x4010", "object": 5}
        wait_ns = 4 * ms["join"] * MS
        wakes = [{**row, "object_name": "step_done", "useful": 300, "wait_ns": wait_ns}]
        states = {name: 4 * value * MS for name, value in ms.items()}
        group = {"name": "part", "threads": 4, "wall_ns": sum(states.values()), "waits": waits}
        group |= {"cpu_ns": 0, "run_queue_ns": 4 * queue_ms * MS, **states}
        return found(threads=[], groups=[group], sites=self.SITES, wakes=wakes)

    def joined(
        self, longest_ms: int, workers: int = 5, joins: int = 1, **group: Any
    ) -> list[Finding]:
        """Main joins a thread for so long, and as many at a time as there are other workers."""
        wait = {"wait_ns": longest_ms * MS, "wait_most_ns": longest_ms * MS // joins}
        wakes = [{**self.JOIN, **wait, "useful": joins}]
        main = threads(1, join=longest_ms)
        rows = [{"cpu_ns": 0, "run_queue_ns": 0, **self.GROUP, **group}]
        counts = {"threads": main, "workers": [{"index": n} for n in range(workers)]}
        return found(sites=self.SITES, wakes=wakes, groups=rows, **counts)

    def test_thread_that_others_wait_for_at_a_barrier(self) -> None:
        (late,) = self.barrier(io=600, join=400)
        self.assertEqual((late.kind, late.object), (stragglers.STRAGGLER, "step_done"))
        self.assertEqual((late.waiter, late.blame_ns), ("step+0x1", 1600 * MS))
        self.assertAlmostEqual(late.gain or 0, 1000 / 600, places=2)

    def test_one_that_hands_out_work_waits_for_nobody_in_particular(self) -> None:
        """Main waits for its workers, which hardly wait for each other."""
        row = {"kind": "barrier", "object": 5, "useful": 300}
        main = {**row, "wait_site": "0x4020", "wake_site": "0x4010", "wait_ns": 800 * MS}
        for peer_ms, count in ((20, 0), (1000, 2)):
            peers = {**row, "wait_site": "0x4010", "wake_site": "0x4010", "wait_ns": peer_ms * MS}
            some = [*threads(1, join=800, usr=200), *threads(2, join=peer_ms // 2, io=500)]
            late = found(threads=some, sites=self.SITES, wakes=[main, peers])
            kinds = [each.kind for each in late]
            self.assertEqual(kinds.count(stragglers.STRAGGLER), count, kinds)

    def test_two_places_of_one_function_are_of_the_same_threads(self) -> None:
        """The second one is to wait for those that read the results."""
        sites = (*site(0x4010, "step+0x1"), *site(0x4020, "step+0x9"))
        row = {"kind": "barrier", "object": 5, "useful": 300}
        waits = (("0x4010", 1600), ("0x4020", 60))
        wakes = [{**row, "wait_site": at, "wake_site": at, "wait_ns": ms * MS} for at, ms in waits]
        late = found(threads=threads(4, join=415, io=585), sites=sites, wakes=wakes)
        self.assertIn((stragglers.STRAGGLER, "step+0x1"), [(f.kind, f.waiter) for f in late])

    def test_threads_that_arrive_late_because_they_were_queued(self) -> None:
        self.assertEqual(self.barrier(io=500, lat=100, join=400, queue_ms=100), [])

    def test_one_thread_of_several_runs_longest(self) -> None:
        program = Program([], [], [], [], [], 0, 0, S, 4, 0.0, 0.0, 0.0)
        cases = (
            *(((60, 9, 8, 9), True), ((30, 22, 24, 20), False), ((60, 55, 52, 50), False)),
            *(((12, 1), False), ((40, 2, 2), False)),
        )
        for samples, is_one in cases:
            stacks = [
                Stack("p", "part", tid, count, count * 10.0 * MS, (), is_in_kernel=False)
                for tid, count in enumerate(samples)
            ]
            running = Running(1, stacks)
            self.assertIs(stragglers.runs_longest("p", program, running), is_one, samples)
        for unsampled in (Running(1), None):
            self.assertFalse(stragglers.runs_longest("p", program, unsampled))

    def test_threads_whose_wake_ups_take_long_are_not_late_for_the_barrier(self) -> None:
        (late,) = self.barrier(io=500, lat=100, join=400)
        self.assertEqual(late.kind, stragglers.STRAGGLER)
        self.assertEqual(self.barrier(io=500, lat=100, join=400, waits=1200), [])

    def test_threads_that_arrive_nearly_together(self) -> None:
        self.assertEqual(self.barrier(io=950, join=50), [])

    def test_thread_that_runs_when_the_others_have_ended(self) -> None:
        (late,) = self.joined(1000)
        self.assertEqual((late.kind, late.waiter), (stragglers.STRAGGLER, "main+0x2"))
        self.assertAlmostEqual(late.gain_most or 0, 1000 / 400)

    def test_threads_that_are_started_again_and_again(self) -> None:
        (late,) = self.joined(1000, joins=20, threads=40)
        self.assertIn(
            "joins 40 threads, 4 at a time: each time one part runs for 100 ms", late.text
        )
        self.assertIn("the others for 20.0 ms on average", late.text)
        self.assertAlmostEqual(late.gain or 0, 1000 / 400)

    def test_the_longest_thread_is_joined_after_others(self) -> None:
        (late,) = self.joined(1000, joins=2)
        self.assertIn("one part runs for 1.00 s", late.text)
        self.assertAlmostEqual(late.gain or 0, 1000 / 400)

    def test_threads_that_end_together(self) -> None:
        self.assertEqual(self.joined(420), [])

    def test_thread_that_lasts_but_does_not_work(self) -> None:
        self.assertEqual(self.joined(1000, io=600 * MS, accept=1000 * MS), [])

    def test_long_thread_beside_brief_ones(self) -> None:
        wall = {"threads": 50, "wall_ns": 1200 * MS, "io": 1200 * MS}
        self.assertEqual(self.joined(1000, workers=51, **wall), [])


class JoinedAtOnce(unittest.TestCase):
    SITES = (*site(0x4110, "plan+0x1"), *site(0x4120, "ask+0x2"))

    def rows(self, count: int = 400, beside: int = 1, joined: int = 400) -> list[Finding]:
        """Main joins so many of 400 threads. So many of them sleep beside each other."""
        lived = 900 * MS * beside
        waits = {"wait_ns": 900 * MS, "wait_most_ns": 3 * MS, "useful": joined}
        wakes = [{"kind": "join", "wait_site": "0x4110", "wake_site": "0x0", **waits}]
        sleep = {"kind": "sleep", "wait_site": "0x4120", "timeout": count, "wait_ns": lived}
        group = {"name": "ask", "threads": count, "wall_ns": lived, "sleep": lived}
        return found(
            threads=threads(1, join=900, usr=100),
            sites=self.SITES,
            wakes=[*wakes, sleep],
            groups=[{"cpu_ns": 0, "run_queue_ns": 0, **group}],
        )

    def test_threads_that_are_started_and_joined_one_by_one(self) -> None:
        (each,) = self.rows()
        self.assertEqual((each.kind, each.waiter), (joins.JOINED_AT_ONCE, "plan+0x1"))
        self.assertEqual((each.holder, each.blame_ns), ("ask+0x2", 900 * MS))
        self.assertIn("joins 400 threads one by one, and waits 2.25 ms for each", each.text)

    def test_threads_that_run_beside_each_other(self) -> None:
        self.assertEqual(self.rows(beside=2), [])

    def test_few_threads_and_others_that_are_not_joined(self) -> None:
        self.assertEqual(self.rows(count=12, joined=12), [])
        self.assertEqual(self.rows(joined=150), [])


class LateTimers(unittest.TestCase):
    SITES = site(0x5010, "sample+0x1")

    def rows(self, late_ms: int, **worker: int) -> list[Finding]:
        """Two threads that sleep 100 times in a second, for 800 ms together."""
        sleeps = {"kind": "sleep", "wait_site": "0x5010", "timeout": 200, "wait_ns": 1600 * MS}
        workers = [{"lateness_ns": late_ms * MS, "lateness_most_ns": late_ms * MS, **worker}]
        some = threads(2, sleep=800, io=200)
        return found(threads=some, sites=self.SITES, wakes=[sleeps], workers=workers)

    def test_sleeps_that_end_late(self) -> None:
        (late,) = self.rows(800)
        self.assertEqual(
            (late.kind, late.waiter, late.blame_ns), (timers.LATE, "sample+0x1", 800 * MS)
        )
        self.assertEqual((late.gain_most, late.gain), (gain.allowed(1600 / 800), 2000 / 1200))
        self.assertIn("SLACK", late.text)

    def test_sleeps_that_end_late_since_no_processor_is_free(self) -> None:
        (late,) = self.rows(800, run_queue_ns=700 * MS)
        self.assertIn("processor", late.text)

    def test_sleeps_that_are_as_late_as_usual(self) -> None:
        self.assertEqual(self.rows(150), [])


class IdlePool(unittest.TestCase):
    SITES = (
        *site(0x6010, "take+0x1", "print+0x2"),
        *site(0x6020, "print+0x3"),
        *site(0x6030, "ask+0x1", "client+0x2"),
        *site(0x6040, "send+0x1", "print+0x4"),
        *site(0x6050, "close+0x1", "main+0x2"),
    )

    def rows(self, idle_ms: int, asked_ms: int, served_ms: int, often: int = 7) -> list[Finding]:
        """Waits of the pool for work, of requests for the pool, and of the pool while it serves."""
        wait = {"kind": "condition", "useful": 100}
        idle = {**wait, "useful": often, "wait_site": "0x6010", "wake_site": "0x6050"}
        wakes = [
            {**idle, "wait_ns": idle_ms * MS},
            {**wait, "wait_site": "0x6030", "wake_site": "0x6020", "wait_ns": asked_ms * MS},
            {"kind": "write", "useful": 9, "wait_site": "0x6040", "wait_ns": served_ms * MS},
        ]
        some = threads(16, cond=(idle_ms + asked_ms) // 16, io=served_ms // 16)
        return found(threads=some, sites=self.SITES, wakes=wakes)

    def test_requests_wait_while_threads_wait_for_work(self) -> None:
        (pool,) = self.rows(7000, 8000, 960)
        self.assertEqual((pool.kind, pool.holder), (thread_pools.IDLE_POOL, "print"))
        self.assertEqual((pool.waiter, pool.blame_ns), ("ask+0x1", 7040 * MS))
        self.assertAlmostEqual(pool.gain or 0, 8)  # one of eight threads serves all the time

    def test_one_thread_serves_while_requests_wait_though_its_waits_are_not_known(self) -> None:
        (pool,) = self.rows(7000, 8000, 9)
        self.assertAlmostEqual(pool.gain or 0, 8)
        self.assertAlmostEqual(pool.gain_most or 0, (850 + 7000) / 850)

    def test_requests_that_are_being_served_do_not_wait(self) -> None:
        self.assertEqual(self.rows(7000, 1000, 960, often=107), [])

    def test_pool_whose_threads_are_woken_again_and_again(self) -> None:
        self.assertEqual(self.rows(7000, 8000, 960, often=500), [])

    def test_threads_that_get_no_work_while_one_that_never_waits_has_it_all(self) -> None:
        (pool,) = self.rows(7000, 950, 960)
        self.assertEqual((pool.kind, pool.holder), (thread_pools.IDLE_POOL, "print"))
        self.assertEqual((pool.waiter, pool.blame_ns), ("ask+0x1", 950 * MS))
        self.assertAlmostEqual(pool.gain_most or 0, 7960 / 960)
        self.assertEqual(self.rows(7000, 950, 960, often=500), [])  # each waits for work at times
        self.assertEqual(self.rows(7000, 400, 960), [])  # hardly anyone waits for it

    def test_pool_whose_threads_are_all_busy_is_too_small(self) -> None:
        (pool,) = self.rows(160, 8000, 960)
        self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "print"))


class SmallThreadPool(unittest.TestCase):
    """Two threads serve the requests of twelve."""

    SITES = (
        *site(0x6110, "work+0x1", "serve+0x2"),
        *site(0x6120, "set_value+0x1", "serve+0x3"),
        *site(0x6130, "get+0x1", "handle+0x9"),
        *site(0x6140, "recv+0x1", "query+0x4", "serve+0x3"),
        *site(0x6150, "submit+0x1", "handle+0x2"),
        *site(0x6160, "think+0x1", "handle+0x5"),
        *site(0x6170, "put+0x1", "read_input+0x5"),
    )
    ASKED: ClassVar = {"kind": "futex", "useful": 900, "wait_site": "0x6130", "wake_site": "0x6120"}
    SERVED: ClassVar = {"kind": "read", "useful": 900, "wait_site": "0x6140"}

    def rows(
        self,
        asked_ms: int,
        idle_ms: int,
        sender: str = "0x6150",
        often: int = 4,
        served: Row = SERVED,
        more: Sequence[Row] = (),
        **changed: Sequence[Row],
    ) -> list[Finding]:
        """sender: where the pool is woken."""
        work = {"kind": "condition", "useful": often, "wait_site": "0x6110", "wake_site": sender}
        wakes = [
            {**work, "wait_ns": idle_ms * MS},
            {**self.ASKED, "wait_ns": asked_ms * MS},
            {**served, "wait_ns": 1900 * MS},
            {"kind": "sleep", "useful": 900, "wait_site": "0x6160", "wait_ns": 500 * MS},
            *more,
        ]
        some = threads(14, cond=asked_ms // 14, io=1900 // 14)
        return found(**{"threads": some, "sites": self.SITES, "wakes": wakes, **changed})

    def test_requests_wait_for_threads_that_are_all_busy(self) -> None:
        (pool,) = self.rows(11000, 10)
        self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "serve"))
        self.assertEqual((pool.waiter, pool.blame_ns), ("get+0x1", 9100 * MS))
        self.assertAlmostEqual(pool.gain_most or 0, 11000 / 1900)
        self.assertAlmostEqual(pool.gain or 0, 11500 / 2400)

    def test_requests_that_are_being_served_do_not_wait(self) -> None:
        self.assertEqual(self.rows(2000, 10), [])

    def test_threads_of_the_pool_have_time(self) -> None:
        self.assertEqual(self.rows(11000, 900), [])

    def test_sleep_that_is_the_work_of_the_pool_is_no_polling(self) -> None:
        sleeps = {"repeated_sleeps": 900, "repeated_ns": 1900 * MS, "repeated_site": "0x6140"}
        look = {"kind": "mutex", "lock": 9, "site": "0x6140", "acquired": 900, "holds": 90}
        served = {**self.SERVED, "kind": "sleep"}
        for idle_ms, kinds in ((10, [SMALL_POOL]), (900, [polling.POLLING])):
            every = self.rows(11000, idle_ms, served=served, workers=[sleeps], locks=[look])
            self.assertEqual([each.kind for each in every], kinds)

    def test_requests_that_wait_for_inner_ones_to_the_same_pool(self) -> None:
        """The stack of their wait was too deep, and the call of the loop is known from others."""
        cut = site(0x6180, "wait_for+0x1", "assemble+0x3", "call_1+0x1", "query+0x1")
        sites = (*self.SITES, *cut)
        inner = {**self.ASKED, "wait_site": "0x6180", "wait_ns": 1900 * MS}
        for count, estimate in ((600, 12000 / 975), (900, None)):
            (pool,) = self.rows(
                11500,
                10,
                sites=sites,
                served={**self.SERVED, "kind": "sleep", "useful": 3600},
                more=[{**inner, "useful": count * 4}],
            )
            self.assertEqual((pool.kind, pool.holder), (SMALL_POOL, "serve"))
            self.assertIn("same pool at wait_for+0x1", pool.text)
            self.assertAlmostEqual(pool.gain_most or 0, 11500 / 475)
            self.assertEqual(pool.gain and round(pool.gain, 3), estimate and round(estimate, 3))

    def test_threads_that_wait_for_the_next_item_of_a_queue_are_no_requests(self) -> None:
        self.assertEqual(self.rows(11000, 10, "0x6170", often=100), [])

    def test_pool_without_time_waits_for_work_at_the_begin_and_the_end_at_most(self) -> None:
        for sender in ("0x6170", "0x0"):
            (pool,) = self.rows(11000, 10, sender)
            self.assertEqual(pool.holder, "serve")
        (pool,) = self.rows(11000, 10, often=100)
        self.assertEqual(pool.holder, "serve")


class SlowStage(unittest.TestCase):
    """A reader, an encoder and a writer, with queues between them."""

    SITES = (
        *site(0x6410, "send+0x1", "read_frames+0x1"),
        *site(0x6420, "receive+0x1", "write_frames+0x1"),
        *site(0x6430, "receive+0x2", "encode+0x1"),
        *site(0x6440, "send+0x2", "encode+0x2"),
        *site(0x6450, "ask_device+0x1", "encode+0x3"),
    )

    def rows(self, room_ms: int, frames_ms: int, idle_ms: int) -> list[Finding]:
        """For how long the reader, the writer and the encoder wait for each other."""
        wait = {"kind": "condition", "useful": 900}
        wakes = [
            {**wait, "wait_site": "0x6410", "wake_site": "0x6430", "wait_ns": room_ms * MS},
            {**wait, "wait_site": "0x6420", "wake_site": "0x6440", "wait_ns": frames_ms * MS},
            {**wait, "wait_site": "0x6430", "wake_site": "0x6410", "wait_ns": idle_ms * MS},
            {"kind": "read", "useful": 900, "wait_site": "0x6450", "wait_ns": 900 * MS},
        ]
        some = [*threads(2, cond=900, usr=100), *threads(1, io=900)]
        wakes = [wake for wake in wakes if wake["wait_ns"]]
        return found(threads=some, sites=self.SITES, wakes=wakes)

    def test_threads_on_both_sides_wait_for_it(self) -> None:
        (slow,) = self.rows(900, 900, 10)
        self.assertEqual((slow.kind, slow.holder), (stages.SLOW_STAGE, "encode"))
        self.assertEqual(slow.blame_ns, 1800 * MS)
        self.assertAlmostEqual(slow.gain_most or 0, 10)
        self.assertIn("waits mostly at ask_device+0x1", slow.text)

    def test_the_last_stage_of_a_line_is_the_slowest_one(self) -> None:
        """A reader waits for room behind a packer, which waits for room behind a sender."""
        wait = {"kind": "futex", "useful": 900, "wait_ns": 900 * MS}
        wakes = [
            {**wait, "wait_site": "0x6450", "wake_site": "0x6460"},
            {**wait, "wait_site": "0x6470", "wake_site": "0x6480"},
            {**wait, "kind": "sleep", "wait_site": "0x6490"},
            # In the beginning, each waits for something to do.
            {**wait, "wait_ns": 5 * MS, "wait_site": "0x6460", "wake_site": "0x6450"},
            {**wait, "wait_ns": 5 * MS, "wait_site": "0x6480", "wake_site": "0x6470"},
        ]
        sites = (
            *site(0x6450, "put+0x1", "read_lines+0x1"),
            *site(0x6460, "take+0x1", "pack+0x1"),
            *site(0x6470, "put+0x1", "pack+0x2"),
            *site(0x6480, "take+0x1", "ship+0x1"),
            *site(0x6490, "upload+0x1", "ship+0x2"),
        )
        some = [*threads(2, sem=900, usr=100), *threads(1, sleep=900)]
        (slow,) = found(threads=some, sites=sites, wakes=wakes)
        self.assertEqual((slow.kind, slow.holder), (stages.SLOW_STAGE, "ship"))
        self.assertEqual(slow.blame_ns, 1800 * MS)
        self.assertIn("waits mostly at upload+0x1", slow.text)
        never = found(threads=some, sites=sites, wakes=wakes[:3])  # an input that has nothing
        self.assertNotIn(stages.SLOW_STAGE, [each.kind for each in never])

    def test_input_that_is_slow_is_no_stage(self) -> None:
        self.assertEqual(self.rows(0, 900, 900), [])

    def test_stage_that_waits_for_the_others_too(self) -> None:
        self.assertEqual(self.rows(900, 900, 400), [])


class DatabaseLocks(unittest.TestCase):
    SITES = (
        *site(
            0x6310,
            "WaitEventSetWait+0x1",
            "WaitLatch+0x2",
            "ProcSleep+0x3",
            "LockAcquire+0x4",
            "heap_update+0x5",
        ),
        *site(0x6320, "WaitEventSetWait+0x1", "WaitLatch+0x2", "secure_read+0x3"),
    )

    def rows(self, row_ms: int) -> list[Finding]:
        """Ten sessions, which wait for rows, and for their clients."""
        wait = {"kind": "epoll", "useful": 100}
        wakes = [
            {**wait, "wait_site": "0x6310", "wait_ns": row_ms * MS},
            {**wait, "wait_site": "0x6320", "wait_ns": 6000 * MS},
        ]
        some = threads(10, poll=(row_ms + 6000) // 10, usr=20)
        return found(threads=some, sites=self.SITES, wakes=wakes)

    def test_sessions_that_wait_for_rows_of_each_other(self) -> None:
        (lock,) = self.rows(3000)
        self.assertEqual((lock.kind, lock.blame_ns), (known_locks.DATABASE_LOCK, 3000 * MS))
        self.assertEqual(lock.object, "PostgreSQL's lock manager")
        self.assertIn("3.0 of its threads or processes wait on average", lock.text)
        self.assertIn("most of it in heap_update", lock.text)

    def test_few_waits_are_none(self) -> None:
        self.assertEqual(self.rows(100), [])

    def test_mariadb_without_symbols_waits_below_the_interface_of_storage_engines(self) -> None:
        sites = site(0x6330, "", "", "handler::ha_index_read_map+0x8", "sub_select+0x5")
        for kind, objects in (("condition", 1), ("futex", 0)):
            wake = {"kind": kind, "useful": 100, "wait_site": "0x6330", "wait_ns": 3000 * MS}
            every = found(threads=threads(10, cond=300), sites=sites, wakes=[wake])
            locks = [each for each in every if each.kind == known_locks.DATABASE_LOCK]
            self.assertEqual(len(locks), objects)
            for lock in locks:
                self.assertIn("most likely a row of another transaction", lock.text)
                self.assertIn("most of it in sub_select", lock.text)


class BlockedLoop(unittest.TestCase):
    SITES = (*site(0x6210, "append+0x1", "serve+0x1"),)

    def rows(self, sync_ms: int, clients_ms: int, **changed: Any) -> list[Finding]:
        """One thread with connections."""
        (thread,) = threads(1, io=sync_ms, accept=clients_ms, usr=1000 - sync_ms - clients_ms)
        sync = {"kind": "sync", "useful": 100, "wait_site": "0x6210", "wait_ns": sync_ms * MS}
        some = [{**thread, "accepted": 50, **changed}]
        return found(threads=some, sites=self.SITES, wakes=[sync])

    def test_thread_that_syncs_serves_nobody_meanwhile(self) -> None:
        (loop,) = self.rows(600, 100)
        self.assertEqual((loop.kind, loop.holder), (loops.BLOCKED_LOOP, "append+0x1"))
        self.assertEqual((loop.object, loop.blame_ns), ("thread t", 600 * MS))
        self.assertAlmostEqual(loop.gain_most or 0, 1000 / 150)
        self.assertIsNone(loop.gain)

    def test_thread_whose_states_are_in_a_sum_with_others(self) -> None:
        """Eight clients in the same process have its name."""
        sites = (
            *site(0x6210, "append+0x1", "serve+0x1"),
            *site(0x6220, "serve+0x2"),
            *site(0x6230, "ask+0x1", "client+0x1"),
        )
        wait = {"useful": 100, "wait_site": "0x6210", "wait_ns": 900 * MS}
        wakes = [
            {**wait, "kind": "sleep"},
            {**wait, "kind": "epoll", "wait_site": "0x6220", "wait_ns": 50 * MS},
            {**wait, "kind": "read", "wait_site": "0x6230", "wait_ns": 8000 * MS},
        ]
        states = {"io": 8000 * MS, "sleep": 950 * MS, "poll": 50 * MS, "wall_ns": 9000 * MS}
        group = {"name": "t", "threads": 9, "accepted": 8, **states}
        (loop,) = found(threads=[], groups=[group], sites=sites, wakes=wakes)
        self.assertEqual((loop.kind, loop.holder), (loops.BLOCKED_LOOP, "append+0x1"))
        self.assertEqual(loop.blame_ns, 900 * MS)
        self.assertGreater(loop.gain_most or 0, 8)
        self.assertLess(loop.gain_most or 0, 50)  # what it ran is not known
        twice = [wakes[0], {**wakes[1], "wait_ns": 1050 * MS}, wakes[2]]  # two threads, or more
        self.assertEqual(found(threads=[], groups=[group], sites=sites, wakes=twice), [])

    def test_thread_that_is_free_at_times_loses_no_throughput(self) -> None:
        (loop,) = self.rows(300, 600)
        self.assertIsNone(loop.gain_most)
        self.assertIn("late", loop.text)

    def test_one_connection_or_none_is_no_loop(self) -> None:
        self.assertEqual(self.rows(600, 100, accepted=1), [])

    def test_short_waits_are_none(self) -> None:
        self.assertEqual(self.rows(90, 600), [])


class HiddenLocks(unittest.TestCase):
    SITES = (*site(0x7010, "store+0x1"), *site(0x7020, "log+0x1"))

    def rows(self, second_ms: int) -> list[Finding]:
        """Eight threads that sleep under one lock for 950 ms in a second, and under another."""
        locks = []
        for number, (at, ms) in enumerate((("0x7010", 950), ("0x7020", second_ms))):
            key = {"kind": "mutex", "lock": 16 + number, "lock_name": "st" if ms == 950 else "log"}
            known = {"acquired": 1000, "holds": 1000, "contested": 900, "last_ns": S}
            times = {"hold_ns": ms * MS, "inside_sleep_ns": ms * MS, "wait_ns": (ms - 100) * 3 * MS}
            locks.append({**key, **known, **times, "site": at, "holder_site": at})
        some = threads(8, mutex=750, sleep=250)
        return found(threads=some, sites=self.SITES, locks=locks)

    def test_two_busy_locks_hide_each_other(self) -> None:
        (both,) = self.rows(920)
        self.assertEqual((both.kind, both.object), (onions.ONION, "st"))
        self.assertIn("st, log hide each other: they are held 95, 92 % of the time", both.text)
        self.assertIn("st alone gains at most 1.09x, fixing all 2 at most 4.15x", both.text)
        self.assertGreater(both.gain_most or 0, 3)

    def test_first_lock_is_worth_fixing_alone(self) -> None:
        first, *_ = self.rows(300)
        self.assertNotIn(onions.ONION, [each.kind for each in self.rows(400)])
        self.assertNotIn("too at most", first.text)

    def test_lock_behind_the_first_one_is_named(self) -> None:
        first = max(self.rows(600), key=lambda each: each.blame_ns)
        self.assertNotEqual(first.kind, onions.ONION)
        self.assertIn("at most 1.70x", first.text)
        self.assertIn("; without those for log too at most 4.15x", first.text)

    def test_holder_in_a_library_is_named_if_there_is_no_other_one(self) -> None:
        sites = (*site(0x7010, "store+0x1"), *site(0x7030, "__gthread_mutex_lock gthr.h:749"))
        key = {"kind": "mutex", "lock": 16, "lock_name": "st", "last_ns": S, "site": "0x7010"}
        key |= {"acquired": 900, "holds": 900, "hold_ns": 900 * MS, "inside_sleep_ns": 900 * MS}
        wrapped = {**key, "holder_site": "0x7030", "contested": 9, "wait_ns": 2 * S}
        plain = {**wrapped, "holder_site": "0x7010", "wait_ns": S}
        for locks, holder in (([wrapped, plain], "store+0x1"), ([wrapped], "__gthread_mutex_lock")):
            some = threads(4, mutex=700, sleep=300)
            (one,) = found(threads=some, sites=sites, locks=locks)
            self.assertTrue(one.holder.startswith(holder), one.holder)

    def apart(self, count: int, **changed: int) -> list[Finding]:
        """Three threads for each of so many locks, who share no other lock."""
        key = {"kind": "mutex", "last_ns": S, "site": "0x7010", "holder_site": "0x7010"}
        key |= {"acquired": 1000, "holds": 1000, "contested": 900}
        key |= {"inside_sleep_ns": 900 * MS, "wait_ns": 1900 * MS, "apart_ns": 1900 * MS, **changed}
        locks = [
            {**key, "lock": 64 * n, "lock_name": f"l{n}", "hold_ns": (970 - 5 * n) * MS}
            for n in range(1, count + 1)
        ]
        locks[0] |= {"wait_ns": 1900 * MS + 1}
        some = threads(3 * count, mutex=633, sleep=320, usr=47)
        return found(threads=some, sites=self.SITES, locks=locks)

    def test_locks_of_different_threads_limit_these_alone(self) -> None:
        first, *others = self.apart(5)
        self.assertEqual(len(others), 4)
        for each in (first, *others):
            self.assertAlmostEqual(each.gain_most or 0, 1 + 0.2 * (3 / 1.1 - 1), delta=0.1)
        self.assertIn("for l2, l3, l4 and 1 more too at most 2.8", first.text)
        self.assertNotIn("too at most", others[0].text)

    def test_locks_are_no_onion_if_no_thread_passes_two_of_them(self) -> None:
        self.assertNotIn(onions.ONION, [each.kind for each in self.apart(2)])
        self.assertIn(onions.ONION, [each.kind for each in self.apart(2, apart_ns=0)])

    def test_lock_whose_holders_wait_for_another_one_is_not_apart(self) -> None:
        rows = [{"process": "p", "lock": n, "init_site": "0x0"} for n in (1, 2)]
        known = {"wait_ns": S, "apart_ns": S, "hold_ns": S, "acquired": 9}
        for inside_ns, is_apart in ((0, True), (S // 2, False)):
            locks = [{**row, **known, "inside_lck_ns": inside_ns} for row in rows]
            program = Program([], locks, [], [], [], 0, 0, S, 2, 0.0, 0.0, 0.0)
            self.assertEqual(apart.find(locks[0], program) is not None, is_apart)

    def behind_functions(self, *released: str, called_at: int = 0) -> Finding:
        """lock_table() is called by two functions, of which one sleeps with the lock.

        called_at: the address of the last call of the stack that releases it.
        """
        sites = (
            *site(0x7010, "lock_table+0x1", "look_up+0x5", "show+0x7"),
            *site(0x7110, "lock_table+0x1", "refresh+0x5", "show+0x9"),
            *site(0x7210, *released)[:-1],
            {**site(0x7210, *released)[-1], **({"address": called_at} if called_at else {})},
            *site(0x7310, "ask+0x1", "refresh+0x8", "show+0x9"),
        )
        lock = {"kind": "mutex", "lock": 16, "lock_name": "table", "last_ns": S, "site": "0x7010"}
        lock |= {"acquired": 900, "holds": 900, "hold_ns": 900 * MS, "inside_sleep_ns": 900 * MS}
        lock |= {"holder_site": "0x7010", "contested": 900, "wait_ns": 2 * S}
        wait = {"kind": "mutex", "object": 16, "useful": 450, "wake_site": "0x7210"}
        wakes = [
            {**wait, "wait_site": "0x7010", "wait_ns": 1200 * MS},
            {**wait, "wait_site": "0x7110", "wait_ns": 800 * MS},
            {"kind": "sleep", "wait_site": "0x7310", "timeout": 900, "wait_ns": 900 * MS},
        ]
        some = threads(4, mutex=700, sleep=300)
        (one, *_) = found(threads=some, sites=sites, locks=[lock], wakes=wakes)
        return one

    def test_function_that_only_acquires_hides_its_callers(self) -> None:
        for one in (
            self.behind_functions("unlock_table+0x1", "refresh+0x9", "show+0x9"),
            # The last call of refresh() was that of unlock_table().
            self.behind_functions("unlock_table+0x1", "show+0x9", called_at=0x7112),
        ):
            self.assertEqual(one.holder, "refresh+0x8")
            self.assertIn("while its holder sleeps at ask+0x1", one.text)

    def test_function_that_acquires_and_releases_is_named_itself(self) -> None:
        for one in (
            self.behind_functions("lock_table+0x9", "look_up+0x5", "show+0x7"),
            # The last call of lock_table() was the release.
            self.behind_functions("look_up+0x5", called_at=0x7011),
        ):
            self.assertEqual(one.waiter, "lock_table+0x1")

    def test_lock_that_is_known_by_its_address_is_one_of_its_class(self) -> None:
        sites = site(0x7010, "shop::Ledger::post ledger.cpp:9")
        for name, said in (("st", "st is held"), (None, "a mutex of shop::Ledger (0x10) is held")):
            lock = {"kind": "mutex", "lock": 16, "lock_name": name, "last_ns": S, "site": "0x7010"}
            lock |= {"holder_site": "0x7010", "acquired": 900, "holds": 900, "hold_ns": 900 * MS}
            lock |= {"inside_sleep_ns": 900 * MS, "contested": 900, "wait_ns": 2 * S}
            (one,) = found(threads=threads(4, mutex=700, sleep=300), sites=sites, locks=[lock])
            self.assertIn(said, one.text)
            self.assertEqual(one.object, name or "0x10")

    def test_locks_of_one_object_each_share_the_load(self) -> None:
        """Nobody waits for them, since threads wait before: two of eight were lucky so far."""
        key = {"kind": "mutex", "last_ns": S, "site": "0x7010", "holder_site": "0x7010"}
        room = {**key, "lock": 1, "lock_name": "room", "contested": 900, "wait_ns": 6 * S}
        held = {"acquired": 1000, "holds": 1000}
        ms = (900, *[450] * 2, *[0] * 6)
        locks = [
            {
                **(room if not number else {**key, "lock": 16 * number, "site": "0x7020"}),
                **held,
                **{"hold_ns": time * MS, "inside_sleep_ns": time * MS},
            }
            for number, time in enumerate(ms)
        ]
        some = threads(8, mutex=880, sleep=120)
        (first,) = found(threads=some, sites=self.SITES, locks=locks)
        self.assertAlmostEqual(first.gain_most or 0, gain.allowed(8 / 0.96), places=1)
        self.assertAlmostEqual(first.gain or 0, 8 / 0.96, places=1)

    def test_layers_end_where_something_else_is_the_limit(self) -> None:
        busy = {"a": 0.9, "b": 0.8, "c": 0.1}
        locks: dict[object, gain.Lock] = {
            (name,): gain.Lock(part * S, 0, part * S) for name, part in busy.items()
        }
        load = gain.Load(S, 4, 4, 0, 2 * S, 0, 2 * S, 0, 0, locks)
        self.assertEqual(onions.layers(load), [("a",), ("b",)])


class InterpreterLock(unittest.TestCase):
    SITES = (
        *site(0x8010, "python3+0x1", "_PyEval_EvalFrameDefault+0x2", "main+0x1"),
        *site(0x8020, "wait+0x1", "main+0x1"),
    )

    def rows(self, **changed: Any) -> list[Finding]:
        """Four threads, one of which runs at a time."""
        wait = {"kind": "condition", "wait_site": "0x8010", "object_name": "_PyRuntime+0x188"}
        wakes = [{**wait, "timeout": 600, "wait_ns": 3000 * MS, **changed}]
        return found(threads=threads(4, usr=250, cond=750), sites=self.SITES, wakes=wakes)

    def test_threads_that_wait_to_run_python_code(self) -> None:
        (lock,) = self.rows()
        self.assertEqual((lock.kind, lock.blame_ns), (interpreter.GIL, 3000 * MS))
        self.assertIn("600 lasted for a switch interval (5.00 ms)", lock.text)
        self.assertAlmostEqual(lock.gain_most or 0, gain.allowed(4), places=1)

    def test_other_waits_of_python_and_of_other_programs(self) -> None:
        self.assertEqual(self.rows(object_name="queue"), [])
        self.assertEqual(self.rows(wait_site="0x8020"), [])
        self.assertEqual(self.rows(wait_ns=50 * MS), [])


class JavaMonitor(unittest.TestCase):
    SITES = (
        *site(0x9010, "os::PlatformEvent::park+0x6b", "ObjectMonitor::enter+0x1", "main+0x1"),
        *site(0x9020, "os::PlatformEvent::park+0x6b", "Unsafe_Park+0x1"),
    )

    def kinds(self, **changed: Any) -> list[str]:
        wait = {"kind": "condition", "wait_site": "0x9010", "wake_site": "0x9030", "useful": 100}
        wakes = [{**wait, "wait_ns": 900 * MS, **changed}]
        return [f.kind for f in found(threads=threads(4, cond=900), sites=self.SITES, wakes=wakes)]

    def test_threads_that_wait_for_a_synchronized_method(self) -> None:
        self.assertEqual(self.kinds(), [java_locks.MONITOR])

    def test_parked_and_seldom_waiting_threads_of_java(self) -> None:
        self.assertEqual(self.kinds(wait_site="0x9020"), [])
        self.assertEqual(self.kinds(wait_ns=MS), [])


class Polling(unittest.TestCase):
    SITES = (*site(0xA010, "refresh+0x1"), *site(0xA020, "refresh+0x9"), *site(0xA030, "add+0x1"))
    # A lock that the loop acquires, which is free each time.
    LOOK: ClassVar = {"kind": "mutex", "lock": 9, "site": "0xa020", "acquired": 900, "holds": 90}

    def kinds(self, kind: str, acquired_at: str, **more: Any) -> list[str]:
        """A thread sleeps again and again, and threads wait for a lock that is acquired there."""
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
        wakes = [{"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": S}]
        lock = {"kind": kind, "lock": 3, "site": acquired_at, "contested": 10, "wait_ns": S}
        locks = [self.LOOK, lock]
        locks += [{**lock, "contested": 0, "wait_ns": 0, **more}] if more else []
        rows = found(sites=self.SITES, workers=sleeps, wakes=wakes, locks=locks)
        return [each.kind for each in rows]

    def test_sleeps_in_a_loop(self) -> None:
        self.assertIn(polling.POLLING, self.kinds("mutex", "0xa020"))
        self.assertIn(polling.POLLING, self.kinds("futex lock", "0xa030"))

    def test_sleeps_of_threads_that_wait_for_a_lock_for_longer_do_not_poll(self) -> None:
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
        for waited_ms, is_polling in ((2000, False), (300, True)):
            wakes = [
                {"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": S},
                {"kind": "mutex", "wait_site": "0xa020", "useful": 9, "wait_ns": waited_ms * MS},
            ]
            every = found(sites=self.SITES, workers=sleeps, wakes=wakes, locks=[self.LOOK])
            kinds = [each.kind for each in every]
            self.assertEqual(polling.POLLING in kinds, is_polling, waited_ms)

    def test_sleeps_without_a_look_do_not_poll(self) -> None:
        """Of a thread that neither acquires a lock nor wakes another one: a device, or a clock."""
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
        self.assertEqual(found(sites=self.SITES, workers=sleeps), [])
        (poll,) = found(sites=self.SITES, workers=sleeps, locks=[self.LOOK])
        self.assertEqual(poll.kind, polling.POLLING)

    def test_a_function_that_sleeps_for_others_is_named_with_its_caller(self) -> None:
        sites = (
            *site(0xA010, "util_msleep+0x1", "await_job+0x4", "work+0x1"),
            *site(0xA040, "tick+0x1", "await_answer+0x4", "main+0x1"),
            *site(0xA050, "tick+0x1", "refresh+0x4", "main+0x1"),
            *site(0xA020, "await_job+0x9", "work+0x1"),
            *site(0xA030, "await_answer+0x9", "main+0x1"),
        )
        looks = [self.LOOK, {**self.LOOK, "site": "0xa030"}]
        sleeps = [
            {"repeated_sleeps": 300, "repeated_ns": 300 * MS, "repeated_site": place}
            for place in ("0xa010", "0xa040", "0xa050")
        ]
        waiters = [each.waiter for each in found(sites=sites, workers=sleeps, locks=looks)]
        wanted = ["tick+0x1 from await_answer", "util_msleep+0x1 from await_job"]
        self.assertEqual(sorted(waiters), wanted)

    def test_two_calls_at_one_place_are_one_finding(self) -> None:
        sleeps = [
            {"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": place}
            for place in ("0xa010", "0xa020")
        ]
        sites = (*site(0xA010, "refresh+0x1"), *site(0xA020, "refresh+0x1"))
        (poll,) = found(sites=sites, workers=sleeps, locks=[self.LOOK])
        self.assertIn("refresh+0x1 sleeps in a loop, 1,800 times, 1.00 ms each", poll.text)

    def test_sleeps_with_something_that_was_waited_for_do_not_poll(self) -> None:
        """A semaphore is often free, and then its function does nothing but sleep."""
        sites = (
            *site(0xA010, "query+0x1", "serve+0x4"),
            *site(0xA020, "serve+0x1"),
            *site(0xA040, "query+0x9", "serve+0x4"),
            *site(0xA030, "take+0x1", "next+0x7", "serve+0x1"),
        )
        for place, waited_ms, is_polling in (
            ("0xa020", 2000, False),
            ("0xa020", 500, True),
            ("0xa030", 2000, True),
        ):
            wakes = [
                {"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": S},
                {"kind": "semaphore", "wait_site": place, "useful": 9, "wait_ns": waited_ms * MS},
            ]
            sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
            look = {**self.LOOK, "site": "0xa040"}
            every = found(sites=sites, workers=sleeps, wakes=wakes, locks=[look])
            kinds = [each.kind for each in every]
            self.assertEqual(polling.POLLING in kinds, is_polling, (place, waited_ms))

    def test_sleeps_of_a_thread_that_others_wait_for_together_do_not_poll(self) -> None:
        sites = (
            *site(0xA010, "pace+0x1", "produce+0x1"),
            *site(0xA050, "signal+0x1", "produce+0x2"),
            *site(0xA060, "take+0x1", "consume+0x1"),
            *site(0xA070, "pace+0x8", "produce+0x1"),
        )
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
        look = {"kind": "mutex", "lock": 3, "site": "0xa070", "acquired": 9, "holds": 9}
        for waited_ms, woken, objects, locks, is_polling in (
            (3000, 300, 1, (), False),
            (900, 900, 1, (), False),  # one thread waits for what it makes after each sleep
            (900, 300, 1, (look,), True),  # it often finds nothing
            (450, 450, 2, (), False),  # two do, one after the other
            (3000, 900, 1, (look,), True),  # it looks whether something has happened
        ):
            wait: dict[str, Any] = {"kind": "condition", "wait_site": "0xa060"}
            wait |= {"wake_site": "0xa050", "useful": woken, "wait_ns": waited_ms * MS}
            wakes = [
                {"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": S},
                *({**wait, "object": number} for number in range(1, objects + 1)),
            ]
            every = found(sites=sites, workers=sleeps, wakes=wakes, locks=locks)
            kinds = [each.kind for each in every]
            self.assertEqual(polling.POLLING in kinds, is_polling, (waited_ms, woken, locks))

    def test_sleeps_between_acquisitions_of_a_busy_lock_do_not_poll(self) -> None:
        sites = (*site(0xA010, "client+0x1"), *site(0xA040, "put+0x1", "client+0x5"))
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa010"}]
        for contested, is_polling in ((300, False), (20, True)):
            wakes = [
                {"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": S},
                {"kind": "futex lock", "wait_site": "0xa040", "useful": contested, "wait_ns": MS},
            ]
            look = {**self.LOOK, "site": "0xa040"}
            every = found(sites=sites, workers=sleeps, wakes=wakes, locks=[look])
            kinds = [each.kind for each in every]
            self.assertEqual(polling.POLLING in kinds, is_polling, contested)

    def test_sleeps_of_a_small_part_of_the_time_do_not_poll(self) -> None:
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 90 * MS, "repeated_site": "0xa010"}]
        self.assertEqual(found(sites=self.SITES, workers=sleeps), [])

    def test_sleeps_that_ended_with_the_event_count_for_the_bound(self) -> None:
        """Half of the sleeps were not followed by another one."""
        sleeps = [{"repeated_sleeps": 500, "repeated_ns": 500 * MS, "repeated_site": "0xa010"}]
        wakes = [{"kind": "sleep", "wait_site": "0xa010", "timeout": 1000, "wait_ns": 800 * MS}]
        some = threads(1, io=200, sleep=800)
        tables = {"workers": sleeps, "wakes": wakes, "threads": some, "locks": [self.LOOK]}
        (poll,) = found(sites=self.SITES, **tables)
        self.assertGreater(poll.gain_most or 0, 2)

    def test_sleeps_under_a_futex_lock_do_not_poll(self) -> None:
        self.assertNotIn(polling.POLLING, self.kinds("futex lock", "0xa020"))

    def test_sleeps_under_a_mutex_do_not_poll(self) -> None:
        held = {"acquired": 900, "holds": 90, "hold_ns": 900 * MS, "holder_site": "0x0"}
        self.assertIn(polling.POLLING, self.kinds("mutex", "0xa020", **held))
        asleep = {**held, "inside_sleep_ns": 800 * MS}
        self.assertNotIn(polling.POLLING, self.kinds("mutex", "0xa020", **asleep))
        self.assertIn(polling.POLLING, self.kinds("mutex", "0xa030", **asleep))


class TimeOuts(unittest.TestCase):
    SITES = (
        *site(0xA110, "next+0x1", "serve+0x1"),
        *site(0xA120, "reply+0x1", "serve+0x5"),
        *site(0xA130, "ask+0x1", "client+0x1"),
        *site(0xA140, "answer+0x1", "other+0x1"),
    )

    def kinds(self, timeouts: int, signals: int, waited_ms: int, **more: Any) -> list[str]:
        """A server waits for requests with a time-out, and its clients for replies."""
        wait = {"kind": "condition", "wait_site": "0xa110", "timeout": timeouts, "useful": signals}
        ask = {"kind": "condition", "wait_site": "0xa130", "wake_site": "0xa120", "useful": 900}
        wakes = [{**wait, "wait_ns": 900 * MS}, {**ask, "wait_ns": waited_ms * MS, **more}]
        return [each.kind for each in found(sites=self.SITES, wakes=wakes)]

    def test_waits_that_time_out_while_others_wait_for_the_thread(self) -> None:
        self.assertEqual(self.kinds(400, 10, 900), [polling.POLLING])

    def test_waits_that_are_mostly_signalled_do_not_poll(self) -> None:
        self.assertEqual(self.kinds(400, 500, 900), [])

    def test_rare_time_outs_do_not_poll(self) -> None:
        self.assertEqual(self.kinds(20, 0, 900), [])

    def test_nobody_waits_for_the_thread(self) -> None:
        self.assertEqual(self.kinds(400, 10, 50), [])
        self.assertEqual(self.kinds(400, 10, 900, wake_site="0xa140"), [])

    def test_who_answers_is_not_known(self) -> None:
        self.assertEqual(self.kinds(400, 10, 900, kind="read", wake_site="0x0"), [polling.POLLING])


class FileLocks(unittest.TestCase):
    SITES = (
        *site(0xA210, "append+0x1", "post+0x5", "main+0x1"),
        *site(0xA220, "send+0x1", "post+0x9", "main+0x1"),
    )

    def rows(self, wait_ms: int, slept_ms: int = 0) -> list[Finding]:
        wait = {"kind": "file lock", "wait_site": "0xa210", "useful": 90}
        wakes = [
            {**wait, "wait_ns": wait_ms * MS},
            {**wait, "kind": "sleep", "wait_site": "0xa220", "wait_ns": slept_ms * MS},
        ]
        some = threads(5, mutex=800, sleep=200)
        return found(sites=self.SITES, wakes=wakes, threads=some)

    def test_processes_wait_for_each_other(self) -> None:
        (lock,) = self.rows(4000)
        self.assertEqual((lock.kind, lock.waiter), (file_locks.FILE_LOCK, "append+0x1"))
        self.assertAlmostEqual(lock.gain or 0, 5, delta=0.1)

    def test_function_that_locks_and_waits_for_something_else(self) -> None:
        (lock,) = self.rows(4000, 980)
        self.assertEqual((lock.waiter, lock.holder), ("append+0x1", "post"))
        self.assertIn("post, from which it is called, also waits 980 ms at send+0x1", lock.text)
        (lock,) = self.rows(4000, 400)
        self.assertEqual(lock.holder, "")

    def test_innermost_function_that_locks_and_waits_is_named(self) -> None:
        """Its caller may wait for longer, without the lock."""
        sites = (
            *site(0xA110, "append+0x1", "post+0x9", "serve+0x1"),
            *site(0xA120, "reply+0x1", "post+0x1", "serve+0x1"),
            *site(0xA130, "next+0x1", "serve+0x1"),
        )
        waits = ((0xA110, "file lock", 4000), (0xA120, "read", 900), (0xA130, "read", 3000))
        wakes = [
            {"kind": kind, "wait_site": hex(at), "useful": 90, "wait_ns": ms * MS}
            for at, kind, ms in waits
        ]
        (lock, *_) = found(sites=sites, wakes=wakes, threads=threads(5, mutex=800, io=200))
        self.assertEqual((lock.kind, lock.holder), (file_locks.FILE_LOCK, "post"))
        self.assertIn("also waits 900 ms at reply+0x1", lock.text)

    def test_sleep_with_the_lock_does_not_poll(self) -> None:
        sites = (*site(0xA110, "append+0x1", "post+0x9"), *site(0xA120, "send+0x1", "post+0x1"))
        wakes = [
            {"kind": "file lock", "wait_site": "0xa110", "useful": 90, "wait_ns": 4000 * MS},
            {"kind": "sleep", "wait_site": "0xa120", "timeout": 900, "wait_ns": 900 * MS},
        ]
        sleeps = [{"repeated_sleeps": 900, "repeated_ns": 900 * MS, "repeated_site": "0xa120"}]
        some = threads(5, mutex=800, sleep=200)
        every = found(sites=sites, wakes=wakes, workers=sleeps, threads=some)
        self.assertEqual([each.kind for each in every], [file_locks.FILE_LOCK])

    def test_short_waits_are_none(self) -> None:
        self.assertEqual(self.rows(4), [])


class BehindLocks(unittest.TestCase):
    SITES = (
        *site(0xA410, "settle+0x1", "run+0x1"),
        *site(0xA420, "balance+0x1", "check+0x1"),
        *site(0xA430, "check+0x1", "serve+0x1"),
        *site(0xA440, "change+0x1", "serve+0x1"),
        *site(0xA450, "send+0x1", "export+0x1"),
        *site(0xA460, "export+0x5"),
    )

    def test_waits_for_a_lock_whose_holders_wait_for_another_one_are_that_ones(self) -> None:
        inner = {"kind": "mutex", "lock": 1, "lock_name": "ledger", "site": "0xa420"}
        inner |= {"holder_site": "0xa410", "acquired": 900, "holds": 900, "hold_ns": 900 * MS}
        inner |= {"inside_sleep_ns": 900 * MS, "contested": 300, "wait_ns": 700 * MS}
        outer = {"kind": "mutex", "lock": 2, "lock_name": "sessions", "site": "0xa430"}
        outer |= {"holder_site": "0xa430", "acquired": 900, "holds": 900, "hold_ns": 800 * MS}
        outer |= {"inside_lck_ns": 700 * MS, "contested": 800, "wait_ns": 4000 * MS}
        locks = [{**row, "last_ns": S} for row in (inner, outer)]
        some = threads(7, mutex=670, sleep=330)
        (lock,) = found(sites=self.SITES, locks=locks, threads=some)
        self.assertEqual((lock.object, lock.blame_ns), ("ledger", 4700 * MS))
        self.assertIn("check+0x1 waits 4.00 s behind it", lock.text)

    def convoy(self, readers_at: int, releaser: str = "0xa440") -> list[str]:
        """Readers and a writer that wait at words of so many bytes apart."""
        lock = {"kind": "futex lock", "contested": 90}
        locks = [
            {**lock, "lock": 96 + readers_at, "site": "0xa430", "wait_ns": 3000 * MS},
            {**lock, "lock": 96, "site": "0xa440", "wait_ns": 900 * MS},
        ]
        locks[0]["holder_site"], locks[1]["holder_site"] = releaser, "0xa460"
        sleep = {"kind": "sleep", "wait_site": "0xa450", "timeout": 9, "wait_ns": 900 * MS}
        some = threads(5, mutex=780, sleep=220)
        every = found(sites=self.SITES, locks=locks, wakes=[sleep], threads=some)
        if every and every[0].kind == rwlocks.CONVOY:
            self.assertEqual((every[0].waiter, every[0].holder), ("check+0x1", "export+0x5"))
            self.assertEqual(every[0].blame_ns, 3900 * MS)
            self.assertIn("while it waits at send+0x1", every[0].text)
        return [each.kind for each in every]

    def test_two_words_of_a_lock_for_readers_and_writers(self) -> None:
        self.assertEqual(self.convoy(4), [rwlocks.CONVOY])
        self.assertNotIn(rwlocks.CONVOY, self.convoy(64))
        self.assertNotIn(rwlocks.CONVOY, self.convoy(4, releaser="0xa410"))

    def test_release_is_known_by_the_function_that_called_it(self) -> None:
        """The call was the last thing that the writer did."""
        self.assertIn(rwlocks.CONVOY, self.convoy(4, releaser="0xa440"))


class BriefThreads(unittest.TestCase):
    def kinds(self, count: int, in_kernel: int) -> list[str]:
        """So many threads in a second, with so many of 100 samples of 10 ms in the kernel."""
        stacks = [
            Stack(
                *("p", "t", 7, samples, samples * 1e7),
                (Frame(1, "look_up", function="look_up"),),
                is_in_kernel=is_in_kernel,
            )
            for samples, is_in_kernel in ((in_kernel, True), (100 - in_kernel, False))
        ]
        sampled = Running(1, stacks, begun={"p": count})
        program = Program([], [], [], [], [], 0, 0, S, 2, 1.0 * S, 0.0, 0.0)
        each = joins.brief("p", "answer", program, sampled)
        return [each.kind] if each else []

    def test_threads_that_are_started_for_little_work(self) -> None:
        self.assertEqual(self.kinds(20_000, 80), [joins.BRIEF_THREADS])

    def test_few_threads_and_threads_that_work(self) -> None:
        self.assertEqual(self.kinds(500, 80), [])
        self.assertEqual(self.kinds(20_000, 20), [])


class PythonPools(unittest.TestCase):
    WAITING = ("get (/usr/lib/python3.11/queue.py:171)", "P.take (/q.py:3)", "work (/q.py:9)")
    USING = ("query (/q.py:1)", "work (/q.py:10)")
    OTHER = ("main (/q.py:20)",)

    def pool(self, *counts: int) -> Finding | None:
        """Samples of eleven threads."""
        stacks = [
            PythonStack("p", count, frames)
            for count, frames in zip(counts, (self.WAITING, self.USING, self.OTHER), strict=True)
        ]
        program = Program([], [], [], [], [], 0, 0, S, 2, 0.01 * S, 0.0, 0.0)
        return python_locks.pool(stacks, "P.take q.py:3", 11.0, program)

    def test_same_number_of_threads_has_something_of_a_pool(self) -> None:
        pool = self.pool(80, 20, 10)
        assert pool
        self.assertEqual((pool.kind, pool.waiter), (SMALL_POOL, "P.take q.py:3"))
        self.assertAlmostEqual(pool.gain or 0, 5, places=2)
        self.assertIn("while 2 threads use what they took from it, mostly in query", pool.text)

    def test_threads_that_put_something_back_have_it(self) -> None:
        putting = ("put (/usr/lib/python3.11/queue.py:9)", "P.take (/q.py:5)", "work (/q.py:11)")
        stacks = [
            PythonStack("p", 192, self.WAITING),
            PythonStack("p", 44, self.USING),
            PythonStack("p", 24, self.OTHER),
            PythonStack("p", 4, putting),
        ]
        program = Program([], [], [], [], [], 0, 0, S, 2, 0.01 * S, 0.0, 0.0)
        pool = python_locks.pool(stacks, "P.take q.py:3", 11.0, program)
        assert pool
        self.assertIn("while 2 threads use what they took", pool.text)
        self.assertEqual(pool.holder, "query q.py:1")

    def test_another_thread_may_bring_the_work(self) -> None:
        self.assertIsNone(self.pool(70, 20, 20))

    def test_threads_that_wait_for_work_vary(self) -> None:
        self.assertIsNone(self.pool(86, 14, 10))
        self.assertIsNone(self.pool(98, 2, 10))


class JavaExecutors(unittest.TestCase):
    def test_a_thread_may_wait_for_several_results(self) -> None:
        """Eight threads wait for an executor of two, in four dumps."""
        places = ("Shop.page Shop.java:30", "Shop.fetch Shop.java:50", "")
        counts = (32, 8, 24, 8, 4, 0, 4)  # waiting, busy, queued, threads, full, blocked, dumps
        pool = JavaPool(9, *places, False, *counts)
        program = Program([], [], [], [], [], 0, 0, S, 2, 0.01 * S, 0.0, 0.0)
        found = java_pools.too_small(pool, program)
        assert found
        self.assertGreater(found.gain_most or 0, 20)  # the processors'
        self.assertIn("at most 4.20x the throughput if each waits for one result", found.text)


class PythonExecutors(unittest.TestCase):
    FUTURES = "/usr/lib/python3.11/concurrent/futures"
    WAITING = (
        "Condition.wait (/usr/lib/python3.11/threading.py:320)",
        f"Future.result ({FUTURES}/_base.py:451)",
        "client (/q.py:7)",
    )
    WORKER = f"_worker ({FUTURES}/thread.py:83)"
    BUSY = ("query (/q.py:4)", f"_WorkItem.run ({FUTURES}/thread.py:58)", WORKER)
    IDLE = (f"_worker ({FUTURES}/thread.py:81)",)

    def kinds(self, waiting: int, busy: int, idle: int) -> list[Finding]:
        """Of so many threads."""
        some = ((waiting, self.WAITING), (busy, self.BUSY), (idle, self.IDLE))
        stacks = [PythonStack("p", 20 * count, frames) for count, frames in some if count]
        threads = [{"process": "p", "wall_ns": (waiting + busy + idle) * S}]
        program = Program(threads, [], [], [], [], 0, 0, S, 2, 0.01 * S, 0.0, 0.0)
        return python_locks.executors(program, Running(MS, python_all=stacks))

    def test_more_threads_wait_for_results_than_work(self) -> None:
        (pool,) = self.kinds(8, 2, 0)
        self.assertEqual((pool.kind, pool.waiter), (SMALL_POOL, "client q.py:7"))
        self.assertIn("8.0 threads wait for results", pool.text)
        self.assertIn("2.0 threads of it work, mostly at query q.py:4", pool.text)
        self.assertAlmostEqual(pool.gain_most or 0, 200)  # the processors'

    def test_a_thread_for_each_request_or_idle_threads_are_enough(self) -> None:
        self.assertEqual(self.kinds(2, 2, 0), [])
        self.assertEqual(self.kinds(8, 2, 1), [])
        self.assertEqual(self.kinds(0, 2, 0), [])


class PythonLocks(unittest.TestCase):
    SITES = site(0xA310, "PyThread_acquire_lock_timed+0x1")
    WAITING = ("Quotes.refresh (/q.py:3)", "work (/q.py:9)")
    HOLDING = ("fetch (/q.py:1)", "Quotes.refresh (/q.py:4)", "work (/q.py:9)")
    OTHER = ("main (/q.py:20)",)

    def rows(self, *waits_ms: int, others: int = 0) -> list[Finding]:
        """Eight threads wait for so many semaphores. Others wait for the interpreter lock only."""
        wait = {"kind": "semaphore", "wait_site": "0xa310", "wake_site": "0xa320", "useful": 90}
        wakes = [
            {**wait, "object": number, "wait_ns": ms * MS} for number, ms in enumerate(waits_ms, 1)
        ]
        some = threads(8, sem=sum(waits_ms) // 8, sleep=125)
        some += threads(others, cond=10, sleep=900)
        every = found(sites=self.SITES, wakes=wakes, threads=some)
        return [each for each in every if each.kind == python_locks.PYTHON_LOCK]

    def test_several_threads_wait_for_one_lock(self) -> None:
        (lock,) = self.rows(7000)
        self.assertAlmostEqual(lock.gain or 0, 8, delta=0.2)
        self.assertIn("it is not known where", lock.text)

    def test_threads_that_do_not_wait_for_the_lock_do_not_share_its_load(self) -> None:
        ((alone,), (beside,)) = (self.rows(7000, others=count) for count in (0, 4))
        self.assertAlmostEqual(alone.gain_most or 0, beside.gain_most or 0, places=2)

    def test_threads_whose_first_function_waits_for_the_lock_use_it(self) -> None:
        """A server, which sleeps, and the main thread are in the same program."""
        serving = (
            "answer (/q.py:30)",
            "serve (/q.py:33)",
            "run (/usr/lib/python3.11/threading.py:1)",
        )
        stacks = [
            PythonStack("p", count, frames)
            for count, frames in ((250, self.WAITING), (50, self.HOLDING), (50, serving))
        ]
        least, share = python_locks.sharing(stacks, "Quotes.refresh q.py:3")
        self.assertAlmostEqual(share, 300 / 350)
        self.assertAlmostEqual(least, share - (share * (1 - share) / 350) ** 0.5)
        self.assertEqual(python_locks.sharing(stacks, ""), (0, 0))

    def test_threads_that_wait_for_a_lock_of_their_own_each_wait_for_an_event(self) -> None:
        self.assertEqual(self.rows(*[870] * 8), [])

    def sides(self, *counts: int, waiting: float = 7.0) -> tuple[str, str]:
        stacks = (self.WAITING, self.HOLDING, self.OTHER)
        found = [
            PythonStack("p", count, frames)
            for count, frames in zip(counts, stacks, strict=True)
            if count
        ]
        return python_locks.sides(found, waiting)

    def test_threads_that_sleep_are_not_where_they_wait(self) -> None:
        """Half of six threads sleep after the lock, in the same function as the lock."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "q.py"
            path.write_text("with lock:\n    load()\ntime.sleep(0.001)\n")
            stacks = [
                PythonStack("p", count, (*inner, f"work ({path}:{line})"))
                for count, line, inner in ((30, 3, ()), (28, 1, ()), (20, 2, ("load (/l.py:9)",)))
            ]
            found = python_locks.sides(stacks, 1.4, 6.0)
        self.assertEqual(found, ("work q.py:1", "load l.py:9"))

    def test_most_threads_are_where_they_wait(self) -> None:
        self.assertEqual(self.sides(70, 10, 10), ("Quotes.refresh q.py:3", "fetch q.py:1"))
        self.assertEqual(self.sides(70, 0, 10), ("Quotes.refresh q.py:3", ""))

    def test_holder_that_is_on_its_way_to_a_processor_is_not_at_its_work(self) -> None:
        waiting = ("Register.__enter__ (/q.py:3)", "issue (/q.py:9)", "main (/q.py:20)")
        returning = ("Register.__enter__ (/q.py:4)", "issue (/q.py:9)", "main (/q.py:20)")
        printing = ("send (/q.py:1)", "issue (/q.py:10)", "main (/q.py:20)")
        for returns, holder in ((3, "send q.py:1"), (30, "Register.__enter__ q.py:4")):
            counts = ((80, waiting), (returns, returning), (20, printing))
            found = [PythonStack("p", count, frames) for count, frames in counts]
            places = ("Register.__enter__ q.py:3", holder)
            self.assertEqual(python_locks.sides(found, 4.0), places)

    def test_holder_that_has_returned_with_the_lock_is_in_a_call_from_the_same_caller(self) -> None:
        waiting = ("Register.__enter__ (/q.py:3)", "issue (/q.py:9)", "main (/q.py:20)")
        printing = ("send (/q.py:1)", "issue (/q.py:10)", "main (/q.py:20)")
        found = [PythonStack("p", 70, waiting), PythonStack("p", 10, printing)]
        found.append(PythonStack("p", 10, ("compose (/q.py:30)", "main (/q.py:19)")))
        places = ("Register.__enter__ q.py:3", "send q.py:1")
        self.assertEqual(python_locks.sides(found, 7.0), places)

    def test_too_few_samples_or_other_places_tell_nothing(self) -> None:
        self.assertEqual(self.sides(7, 1, 1), ("", ""))
        self.assertEqual(self.sides(10, 10, 60, waiting=1.0)[1], "")


class Herd(unittest.TestCase):
    SITES = site(0xB010, "pop+0x1")

    def herds(self, seconds: int, wake_site: str = "0xb020") -> list[Finding]:
        """150 of 200 wake-ups of a run find nothing to do."""
        process = {**PROCESSES[0], "cpus": 4, "cpu_ns": 0, "duration_ns": seconds * S}
        wake = {"kind": "condition", "wait_site": "0xb010", "wake_site": wake_site, "object": 7}
        wakes = [{**wake, "useful": 50, "false_": 150, "wait_ns": S}]
        rows = [{"size_from": 8, "count": 25}]
        every = found(sites=self.SITES, wakes=wakes, herds=rows, processes=[process])
        return [each for each in every if each.kind == herds.HERD]

    def futexes(self, ran_ms: int, calls: int, wake_site: str = "0xb020") -> list[str]:
        """So many calls wake the 8,000 waits of a futex, and threads run for so long."""
        sites = (*self.SITES, *site(0xB020, "push+0x1"), *site(0xB030, "pop+0x9"))
        wake = {"kind": "futex", "wait_site": "0xb010", "wake_site": wake_site, "object": 7}
        wakes = [{**wake, "useful": 8000, "wait_ns": S}]
        rows = [{"size_from": 8, "count": calls}] if calls else []
        some = threads(8, usr=ran_ms // 8, cond=125)
        return [each.kind for each in found(sites=sites, wakes=wakes, herds=rows, threads=some)]

    def test_wake_ups_of_a_futex_with_hardly_any_work(self) -> None:
        self.assertIn(herds.HERD, self.futexes(80, 1000))

    def test_wake_ups_of_a_futex_one_by_one_or_with_work(self) -> None:
        self.assertNotIn(herds.HERD, self.futexes(80, 0))
        self.assertNotIn(herds.HERD, self.futexes(800, 1000))

    def test_threads_that_wake_each_other_at_one_place_have_a_barrier(self) -> None:
        kinds = self.futexes(80, 1000, "0xb030")
        self.assertNotIn(herds.HERD, kinds)
        self.assertIn(stragglers.STRAGGLER, kinds)

    def test_one_thread_alone_is_no_herd(self) -> None:
        """It does too little after its wake-ups, but no call can wake several."""
        wake = {"kind": "condition", "wait_site": "0xb010", "wake_site": "0xb020", "object": 7}
        rows = [{"size_from": 8, "count": 2500}]
        for wait_ms, count in ((900, 0), (1100, 1)):
            wakes = [{**wake, "useful": 50, "false_": 5000, "wait_ns": wait_ms * MS}]
            every = found(sites=self.SITES, wakes=wakes, herds=rows)
            self.assertEqual(sum(each.kind == herds.HERD for each in every), count)

    def test_the_jvm_s_own_threads_are_nobody_s_herd(self) -> None:
        for place, count in (("os::PlatformMonitor::wait+0x60", 0), ("Queue::wait+0x60", 1)):
            with mock.patch.object(self, "SITES", site(0xB010, place, "Monitor::wait+0x9")):
                self.assertEqual(len(self.herds(1)), count, place)

    def test_few_useless_wake_ups_of_a_long_run_are_no_herd(self) -> None:
        self.assertEqual(len(self.herds(1)), 1)
        self.assertEqual(self.herds(10), [])

    def test_a_waker_that_is_not_known_is_said_in_words(self) -> None:
        (herd,) = self.herds(1, "0x0")
        self.assertIn("and its waker wakes more threads", herd.text)


class Spinning(unittest.TestCase):
    SITES = (*site(0x9010, "count+0x1"), *site(0x9020, "await+0x1"))

    def locked(self, spin_ms: int) -> list[Finding]:
        row = {"kind": "mutex", "lock": 3, "lock_name": "tally", "site": "0x9010", "contested": 10}
        times = {"wait_ns": 3000 * MS, "spin_ns": spin_ms * MS, "last_ns": S, "holds": 10}
        locks = [{**row, **times, "hold_ns": 900 * MS, "holder_site": "0x9010"}]
        return found(threads=threads(4, usr=1000), sites=self.SITES, locks=locks)

    def yields(self, count: int, waits: int = 0) -> list[Finding]:
        workers = [{"yields": count, "yield_site": "0x9020", "cpu_ns": S}]
        rows = [{**row, "waits": waits} for row in threads(4, usr=1000)]
        return found(threads=rows, sites=self.SITES, workers=workers)

    def test_lock_for_which_threads_spin(self) -> None:
        (lock,) = self.locked(2900)
        self.assertEqual((lock.kind, lock.object), (spins.SPINNING, "tally"))
        self.assertEqual((lock.waiter, lock.blame_ns), ("count+0x1", 2900 * MS))

    def test_lock_for_which_threads_sleep_after_they_spun(self) -> None:
        self.assertNotIn(spins.SPINNING, [each.kind for each in self.locked(300)])

    def test_loop_around_sched_yield(self) -> None:
        (loop,) = self.yields(500_000)
        self.assertEqual((loop.kind, loop.waiter), (spins.SPINNING, "await+0x1"))
        self.assertIn("500,000 times", loop.text)

    def test_calls_of_sched_yield_before_each_wait_are_no_loop(self) -> None:
        self.assertEqual(self.yields(500_000, waits=10_000), [])

    def test_few_calls_of_sched_yield(self) -> None:
        self.assertEqual(self.yields(1000), [])


class AcceptHerd(unittest.TestCase):
    def rows(self, **counts: int) -> list[Finding]:
        """Four processes that share a listener."""
        pids = [f"host:{number}:7" for number in range(4)]
        row = {"listener": "0x7", "name": ":80", **counts}
        some = [{**threads(1, io=100, poll=900)[0], "process": pid} for pid in pids]
        return found(threads=some, listeners=[{**row, "process": pid} for pid in pids], sites=[])

    def test_each_connection_wakes_several(self) -> None:
        (herd,) = self.rows(accepted=1000, woken=1200, in_vain=2800, lost=200)
        self.assertEqual((herd.kind, herd.object), (accept_herds.ACCEPT_HERD, ":80"))
        self.assertEqual(herd.blame_ns, 4 * 3000 * demand.SWITCH_NS)
        self.assertIn("each connection wakes 4.0 of 4 threads of 4 processes", herd.text)
        self.assertIn("that wait for it, and one gets it", herd.text)

    def test_the_place_where_they_wait_is_named(self) -> None:
        row = {"listener": "0x7", "name": ":80", "accepted": 1000, "woken": 1200, "in_vain": 2800}
        wake = {"kind": "epoll", "object_name": CLIENTS, "wait_site": "0x2010", "useful": 1200}
        (herd,) = found(
            threads=threads(8, io=100, poll=900),
            listeners=[row],
            sites=site(0x2010, "serve+0x5", "main+0x9"),
            wakes=[wake],
        )
        self.assertEqual(herd.waiter, "serve+0x5")
        self.assertIn("that wait for it at serve+0x5, and one gets it", herd.text)

    def test_each_connection_wakes_one(self) -> None:
        self.assertEqual(self.rows(accepted=10_000, woken=10_000, in_vain=400, lost=10), [])

    def test_few_connections_cost_little(self) -> None:
        self.assertEqual(self.rows(accepted=50, woken=50, in_vain=200), [])


class SignalPerItem(unittest.TestCase):
    SITES = (*site(0x2010, "take+0x5", "main+0x9"), *site(0x2020, "put+0x7", "main+0x9"))
    WAKE: ClassVar[Row] = {
        **{"kind": "condition", "wait_site": "0x2010", "wake_site": "0x2020", "object": 7},
        **{"useful": 20_000, "wait_ns": 300 * MS, "late_ns": 700 * MS},
    }

    def rows(
        self, recorder: str = PRELOAD, threads_count: int = 3, woken: int = 0, **changed: Any
    ) -> list[Finding]:
        """woken: how many threads are woken together with others, four by a call."""
        process = {**PROCESSES[0], "cpus": 4, "recorder": recorder}
        wakes = [{**self.WAKE, **changed}]
        return found(
            threads=threads(threads_count, cond=300, lat=500, usr=200),
            sites=self.SITES,
            wakes=wakes,
            herds=[{"size_from": 4, "count": woken // 4}] if woken else [],
            processes=[process],
        )

    def kinds(self, **changed: Any) -> list[str]:
        return [each.kind for each in self.rows(**changed)]

    def test_wake_up_takes_longer_than_the_wait(self) -> None:
        (one,) = self.rows()
        self.assertEqual(one.kind, handovers.SIGNAL_PER_ITEM)
        self.assertEqual((one.waiter, one.holder), ("take+0x5", "put+0x7"))
        self.assertEqual(one.blame_ns, 700 * MS + 20_000 * demand.SWITCH_NS)
        self.assertIn(
            "20,000 times by put+0x7, after 15.0 µs each, and the wake-up takes 40.0 µs", one.text
        )

    def test_wait_that_is_longer_than_its_wake_up(self) -> None:
        """The wake-ups take 1,500 ms, of the 4,100 ms of 3 threads or the 9,100 ms of 8."""
        for count, wait_ms, is_found in (
            (3, 3700, True),
            (3, 3800, False),
            (8, 1400, True),
            (8, 1600, False),
        ):
            kinds = self.kinds(threads_count=count, wait_ns=wait_ms * MS, late_ns=1400 * MS)
            self.assertEqual(handovers.SIGNAL_PER_ITEM in kinds, is_found, (count, wait_ms))

    def test_another_thread_takes_the_item_first(self) -> None:
        """The calls wake one thread each. Calls that wake several are a herd."""
        lost = {"useful": 8_000, "lost_race": 12_000}
        self.assertIn(handovers.SIGNAL_PER_ITEM, self.kinds(**lost))
        self.assertEqual(self.kinds(**lost, woken=20_000), ["herd"])

    def test_condition_of_rust_is_a_futex(self) -> None:
        self.assertIn(handovers.SIGNAL_PER_ITEM, self.kinds(kind="futex"))
        many = self.kinds(kind="futex", woken=200_000, useful=200_000)
        self.assertEqual(many, [herds.HERD])

    def test_seldom_wake_ups(self) -> None:
        self.assertEqual(self.rows(useful=900), [])

    def test_user_threads_are_woken_for_little(self) -> None:
        self.assertEqual(self.rows(recorder="librouse"), [])


class UnevenAccept(unittest.TestCase):
    def rows(self, accepted: Sequence[int], busy_ms: Sequence[int]) -> list[Finding]:
        """Processes that share a listener, by the connections and the work of each."""
        pids = [f"host:{number}:7" for number in range(len(accepted))]
        some = [
            {**threads(1, io=ms, poll=1000 - ms)[0], "process": pid}
            for pid, ms in zip(pids, busy_ms, strict=True)
        ]
        taken = [
            {"process": pid, "listener": "0x7", "name": ":80", "accepted": count}
            for pid, count in zip(pids, accepted, strict=True)
        ]
        return found(threads=some, listeners=taken, sites=[])

    def test_process_with_most_of_the_connections(self) -> None:
        (uneven,) = self.rows([7, 1, 0, 0], [950, 150, 0, 0])
        self.assertEqual((uneven.kind, uneven.object), (shares.UNEVEN, ":80"))
        self.assertEqual((uneven.holder, uneven.blame_ns), ("host:0:7", 900 * MS))
        self.assertIn("took 7 of 8 connections and is busy 95 %", uneven.text)

    def test_processes_that_never_come_to_accept(self) -> None:
        pids = [f"host:{number}:7" for number in range(4)]
        some = [
            {**threads(1, io=ms, poll=1000 - ms)[0], "process": pid}
            for pid, ms in zip(pids, (950, 0, 0, 0), strict=True)
        ]
        taken = [{"process": pids[0], "listener": "0x7", "name": ":80", "accepted": 9}]
        wait = {"kind": "epoll", "wait_site": "0x6210", "waiting": 1, "wait_ns": 1000 * MS}
        sites = [{**row, "process": pid} for pid in pids for row in site(0x6210, "serve+0x1")]
        waits = [{**wait, "process": pid} for pid in pids[1:3]]
        wakes = [{"kind": "epoll", "process": pids[0], "wait_site": "0x6210", "useful": 9}]
        known = {"threads": some, "listeners": taken, "sites": sites, "wakes": wakes}
        (uneven,) = found(**known, open_waits=waits)
        self.assertEqual((uneven.kind, uneven.object), (shares.UNEVEN, ":80"))
        self.assertIn("one of 3 processes took 9 of 9 connections", uneven.text)
        own = [*taken, {**taken[0], "process": pids[1], "listener": "0x8", "accepted": 1}]
        (uneven,) = found(**{**known, "listeners": own}, open_waits=waits)
        self.assertIn("one of 2 processes took 9 of 9 connections", uneven.text)
        self.assertEqual(found(**known), [])

    def test_processes_with_equal_shares(self) -> None:
        self.assertEqual(self.rows([2, 2, 2, 2], [950, 900, 100, 100]), [])

    def test_uneven_shares_of_little_work(self) -> None:
        self.assertEqual(self.rows([7, 1, 0, 0], [200, 50, 0, 0]), [])

    def test_uneven_shares_of_connections_and_equal_work(self) -> None:
        self.assertEqual(self.rows([7, 1, 0, 0], [900, 900, 800, 800]), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
