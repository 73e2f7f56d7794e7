#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The gain that a verdict states, for loads whose answer is known, and the verdict's formats."""

from __future__ import annotations

import json
import os
import random
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import here

from known_tables import HOST, PROCESSES, orders, site
from synthetic import Builder

from rouse.query import demand, gain, hot_locks, verdict
from rouse.query.herds import HERD
from rouse.query.program import STATES, Program
from rouse.query.ran import PythonStack, Running
from rouse.store import layout
from rouse.tables import engine

S, MS = 1_000_000_000, 1_000_000
SEED = int(os.environ.get("ROUSE_SEED") or random.randrange(1 << 32))


def load(locks: dict[str, gain.Lock], **more: float) -> gain.Load:
    """8 threads on 4 processors for a second, that do nothing but hold these locks."""
    ran = sum(lock.ran_ns for lock in locks.values())
    slept = sum(lock.slept_ns for lock in locks.values())
    known = {"wall_ns": S, "threads": 8, "processors": 4, "ran_ns": ran, "slept_ns": slept}
    known |= {"least_ran_ns": ran, "least_slept_ns": slept, "all_ran_ns": ran, "others_ran_ns": 0}
    return gain.Load(**{**known, **more}, locks=locks)  # type: ignore[arg-type]


def computing(ns: float) -> gain.Lock:
    return gain.Lock(ns, ns, 0)


class Gain(unittest.TestCase):
    def test_behind_the_busiest_lock_is_the_next_one(self) -> None:
        both = load({"st": computing(0.94 * S), "log": computing(0.92 * S)})
        self.assertAlmostEqual(gain.bound(both, ["st"]), gain.allowed(1 / 0.92))
        self.assertGreater(gain.bound(both, ["st", "log"]), 2)
        self.assertLessEqual(gain.estimate(both, ["st"]), 1 / 0.92)

    def test_processors_limit_work_that_computes(self) -> None:
        one = load({"a": computing(0.9 * S)}, all_ran_ns=2 * S, ran_ns=2 * S, least_ran_ns=2 * S)
        self.assertAlmostEqual(
            gain.bound(one, ["a"]), gain.allowed(2)
        )  # 2 of 4 processors are busy

    def test_threads_that_only_sleep_under_a_lock_sleep_all_at_once_without_it(self) -> None:
        one = load({"a": gain.Lock(S, 0, S)}, ran_ns=0, least_ran_ns=0, all_ran_ns=0)
        self.assertAlmostEqual(gain.bound(one, ["a"]), gain.allowed(8))
        self.assertAlmostEqual(gain.estimate(one, ["a"]), 8, places=3)

    def test_one_station_and_a_delay_have_the_known_throughput(self) -> None:
        # The machine repairman's model with 2 threads, delay 1 and demand 1: 1 / (1 + 1/4), or 0.8.
        self.assertAlmostEqual(gain.mean_value_analysis(2, 1, [1]), 0.8)
        self.assertAlmostEqual(gain.mean_value_analysis(1, 3, [1]), 0.25)
        self.assertAlmostEqual(gain.mean_value_analysis(4, 0, [1, 1]), 0.8)

    def test_no_estimate_exceeds_its_bound(self) -> None:
        print(f"ROUSE_SEED={SEED}")
        dice = random.Random(SEED)
        for _ in range(500):
            locks = {
                str(i): gain.Lock(ran + slept, ran, slept)
                for i in range(dice.randrange(1, 5))
                for ran, slept in [(dice.random() * S / 2, dice.random() * S / 2)]
            }
            some = load(locks, threads=1 + dice.random() * 20, others_ran_ns=dice.random() * 4 * S)
            fixed = dice.sample(sorted(locks), dice.randrange(1, len(locks) + 1))
            most, expected = gain.bound(some, fixed), gain.estimate(some, fixed)
            self.assertLessEqual(1, expected)
            self.assertLessEqual(expected, most)


def made(sampled: Running | None = None, **changed: Any) -> verdict.Verdict:
    database = engine.open_tables(orders(**changed))
    try:
        return verdict.make(database, sampled=sampled)
    finally:
        database.close()


LOCK = {
    **{"kind": "mutex", "lock": 1, "lock_name": "hot", "site": "0x10", "holder_site": "0x20"},
    **{"contested": 100, "acquired": 100, "wait_ns": 3 * S, "holds": 100, "hold_ns": S},
    **{"first_ns": 0, "last_ns": S},
}


class Rules(unittest.TestCase):
    def test_a_lock_whose_holds_are_not_known_has_the_gain_of_all_other_work(self) -> None:
        unknown = {**LOCK, "holds": 0, "hold_ns": 0}
        for times in ({}, {"first_ns": 0, "last_ns": 0}):
            (found,) = made(locks=[{**unknown, **times}]).findings
            self.assertEqual(found.object, "hot")
            self.assertGreater(found.gain or 0, 1.1)
            self.assertLessEqual(found.gain or 0, found.gain_most or 0)

    def test_a_holder_that_sleeps_is_told_from_one_that_computes(self) -> None:
        (hot,) = made(locks=[LOCK]).findings
        (slept,) = made(locks=[{**LOCK, "inside_sleep_ns": int(0.9 * S)}]).findings
        self.assertEqual((hot.kind, slept.kind), (hot_locks.HOT_LOCK, hot_locks.UNDER_LOCK))
        self.assertEqual((hot.object, hot.blame_ns), ("hot", 3 * S))

    def test_a_holder_that_neither_runs_nor_waits_as_recorded_waits_unseen(self) -> None:
        lock = {"hold_ns": S, "inside_lck_ns": 0, "inside_io_ns": 0, "inside_sleep_ns": S // 10}
        program = Program([], [], [], [], [], 0, 0, S, 2, 0.0, 0.0, 0.0)
        for ran_ms, asleep_ms, unseen_ms in ((100, 900, 800), (100, 300, 300), (950, 900, 0)):
            threads = [{"usr": ran_ms * MS, "in_call": asleep_ms * MS}]
            found = hot_locks.unseen_inside(lock, threads, program)
            self.assertEqual(found, unseen_ms * MS)

    def test_a_lock_whose_woken_waiters_find_it_taken_is_said_to_wake_them_often(self) -> None:
        wake = {"kind": "mutex", "object": 1, "wait_site": "0x10", "wait_ns": S}
        for lost, said in ((150, None), (3600, "woken 37 times until it has the lock")):
            (hot,) = made(locks=[LOCK], wakes=[{**wake, "useful": 100, "lost_race": lost}]).findings
            self.assertEqual(said in hot.text if said else "woken" not in hot.text, True, hot.text)

    def test_a_lock_whose_holders_wait_for_another_lock_is_not_to_blame(self) -> None:
        outer = {**LOCK, "lock": 2, "lock_name": "outer", "inside_lck_ns": int(0.95 * S)}
        self.assertEqual([f.object for f in made(locks=[LOCK, outer]).findings], ["hot"])

    def test_the_place_where_the_holder_sleeps_is_found_whatever_the_program_is_called(
        self,
    ) -> None:
        program = "it's; DROP TABLE wakes --"
        # A site of processes in sum consists of the names of files.
        place = "/tmp/it's+0x20@"
        sites = [
            {**row, "process": program, "site": place}
            for row in site(0x20, "hold+0x1", within="hold")
        ]
        lock = {**LOCK, "process": program, "inside_sleep_ns": int(0.9 * S), "holder_site": place}
        sleep = {"process": program, "kind": "sleep", "wait_site": place, "timeout": 9}
        lost = {"process": program, "kind": "mutex", "object": LOCK["lock"], "useful": 9}
        (slept,) = made(
            processes=[{**PROCESSES[0], "process": program}],
            locks=[lock],
            sites=sites,
            wakes=[
                {**sleep, "wait_ns": S},
                {**lost, "wait_site": place, "wake_site": place, "wait_ns": S},
            ],
        ).findings[:1]
        self.assertIn("while its holder sleeps at hold+0x1", slept.text)

    def test_a_lock_whose_threads_are_free_for_more_work_does_not_limit_the_throughput(
        self,
    ) -> None:
        served = {"mutex": 3 * S, "origin": "kernel", "state": "USR", "wall_ns": 5 * S}
        threads = [{**served, "name": "t", "thread_id": 1, "cond": 2 * S}]
        busy = {**LOCK, "hold_ns": int(0.6 * S), "acquired": 1000}
        (found,) = made(locks=[busy], threads=threads).findings
        self.assertEqual((found.gain_most, found.gain, found.sooner_ns), (None, None, 3 * MS))
        self.assertIn("each acquisition takes 3.00 ms less", found.text)
        (full,) = made(locks=[{**busy, "hold_ns": int(0.95 * S)}], threads=threads).findings
        (closed,) = made(locks=[busy], threads=[{**threads[0], "cond": S // 2}]).findings
        for other in (full, closed):
            self.assertIsNone(other.sooner_ns)
            self.assertIn("the throughput [", other.text)

    def test_findings_that_differ_only_in_their_process_are_one(self) -> None:
        other = {**LOCK, "process": "other", "wait_ns": S}
        (joined,) = made(locks=[LOCK, other]).findings
        self.assertEqual((joined.object, joined.blame_ns), ("hot", 4 * S))
        self.assertTrue(joined.text.endswith("and 1 more like it"))

    def test_a_share_that_is_not_known_well_is_not_stated(self) -> None:
        lock = {**LOCK, "hold_ns": S // 2}
        said = {
            variance: made(locks=[{**lock, "hold_variance": variance * S * S}]).findings[0]
            for variance in (0.0001, 0.25)
        }
        self.assertIn("50 ± 2 % of the time", said[0.0001].text)
        self.assertIn("too few timed holds", said[0.25].text)
        self.assertEqual((said[0.25].gain, said[0.25].gain_most), (None, said[0.0001].gain_most))

    def test_no_waits_are_no_finding(self) -> None:
        found = made(locks=[], wakes=[], threads=[])
        self.assertEqual(found.findings, [])
        self.assertTrue(found.summary)

    def summary(
        self,
        wakes: list[Any],
        sites: list[Any] | None = None,
        sampled: Running | None = None,
        workers: list[Any] | None = None,
        **states: int,
    ) -> str:
        """The summary of a thread that was in these states, in ms, for 1 s."""
        thread = {"thread_id": 1, "name": "one", "wall_ns": S, "waits": 1, "usr": 10 * MS}
        thread |= {name: ms * MS for name, ms in states.items()}
        process = {**PROCESSES[0], "cpu_ns": thread["usr"]}
        more: dict[str, Any] = {"groups": [], "workers": workers or [], "sites": sites or []}
        more["processes"] = [process]
        return made(sampled, locks=[], wakes=wakes, threads=[thread], **more).summary

    def test_a_thread_without_work_is_not_the_longest_wait(self) -> None:
        idle = {"kind": "condition", "wait_site": "0x10", "wake_site": "0x20", "useful": 3}
        idle |= {"wait_ns": 800 * MS}
        disk = {"kind": "write", "wait_site": "0x30", "useful": 90, "wait_ns": 100 * MS}
        said = self.summary([idle, disk], cond=800, io=100)
        self.assertEqual(
            said,
            "Nothing is contended: threads wait mostly for I/O, 100 ms of it in write at 0x30,"
            " 90 times, 1.11 ms each",
        )
        said = self.summary([idle | {"wait_ns": 990 * MS}], cond=990)
        self.assertEqual(said, "Nothing is contended: threads wait for work")
        said = self.summary([idle | {"useful": 3000}], cond=800, io=100)
        self.assertEqual(
            said,
            "No lock is contended, but threads wait for each other: 0x10 waits 800 ms in all,"
            " 80 % of the time, until 0x20",
        )
        said = self.summary([disk], accept=800, io=100)
        self.assertEqual(said, "Nothing is contended: threads wait mostly for clients")
        said = self.summary([], accept=990)
        self.assertEqual(said, "Nothing is contended: threads wait for clients")
        said = self.summary([idle | {"useful": 3000, "wake_site": "0x0"}], cond=800, io=100)
        self.assertEqual(said, "Nothing is contended: threads wait mostly for conditions")

    def test_a_join_of_threads_that_wait_themselves_is_not_the_longest_wait(self) -> None:
        row = {"kind": "sleep", "wait_site": "0x30", "timeout": 400, "wait_ns": 300 * MS}
        said = self.summary([row], join=600, sleep=300)
        self.assertEqual(
            said,
            "Nothing is contended: threads wait mostly for timers, 300 ms of it in sleep at 0x30,"
            " 400 times, 750 µs each. If that loop looks for an event, a condition variable or a"
            " semaphore would wake the thread at once",
        )
        seldom = self.summary([row | {"timeout": 3}], join=600, sleep=300)
        self.assertIn("3 times, 100 ms each", seldom)
        self.assertNotIn("event", seldom)
        self.assertIn("mostly for joins", self.summary([row], join=990, sleep=10))

    def test_the_work_of_the_thread_that_others_wait_for_is_named(self) -> None:
        wait = {"kind": "condition", "wait_site": "0x10", "wake_site": "0x20", "useful": 3000}
        wait |= {"wait_ns": 800 * MS}
        sleep = {"kind": "sleep", "wait_site": "0x30", "timeout": 90, "wait_ns": 100 * MS}
        sites = [
            *site(0x10, "player+0x1"),
            *site(0x20, "advance_world+0x9"),
            *site(0x30, "advance_world+0x17"),
        ]
        said = self.summary([wait, sleep], sites, cond=800, sleep=100)
        self.assertIn("until advance_world+0x9, which sleeps 100 ms at advance_world+0x17", said)
        self.assertNotIn("TIMER_ABSTIME", said)  # others wait for less than such a sleep
        again = {"repeated_sleeps": 40, "repeated_ns": 40 * MS, "repeated_site": "0x30"}
        late = [wait | {"useful": 300}, sleep]
        said = self.summary(late, sites, cond=800, sleep=100)
        self.assertNotIn("TIMER_ABSTIME", said)  # the sleeps may be until a time
        said = self.summary(late, sites, workers=[again], cond=800, sleep=100)
        self.assertIn("1.11 ms each. If that is to be a period", said)
        self.assertIn("TIMER_ABSTIME", said)
        back = {"kind": "futex", "wait_site": "0x20", "wake_site": "0x10", "useful": 900}
        said = self.summary([wait, back | {"wait_ns": 90 * MS}], sites, cond=890)
        self.assertIn("until advance_world+0x9, which waits 90.0 ms for it in turn", said)

    def test_a_module_without_symbols_is_no_function_that_others_wait_for(self) -> None:
        wait = {"kind": "condition", "wait_site": "0x10", "wake_site": "0x20", "useful": 3000}
        wait |= {"wait_ns": 800 * MS}
        sleep = {"kind": "sleep", "wait_site": "0x30", "timeout": 90, "wait_ns": 100 * MS}
        sites = [
            *site(0x10, "player+0x1"),
            *site(0x20, "orders+0x9", function=None),
            *site(0x30, "orders+0x17", function=None),
        ]
        said = self.summary([wait, sleep], sites, cond=800, sleep=100)
        self.assertTrue(said.endswith("until orders+0x9"), said)

    def test_short_sleeps_between_waits_for_each_other_are_mentioned_in_python(self) -> None:
        wait = {"kind": "semaphore", "wait_site": "0x10", "wake_site": "0x20", "useful": 3000}
        wait |= {"wait_ns": 700 * MS}
        sleep = {"kind": "sleep", "wait_site": "0x30", "timeout": 90, "wait_ns": 200 * MS}
        sampled = Running(MS, python_all=[PythonStack(HOST, 90, ("serve (/p.py:10)",))])
        said = self.summary([wait, sleep], None, sampled, sem=700, sleep=200)
        self.assertIn("In Python, threads are at serve p.py:10 (100 %)", said)
        self.assertIn("They also sleep 90 times, 2.22 ms each: if one of them looks for", said)
        seldom = self.summary([wait, sleep | {"timeout": 9}], None, sampled, sem=700, sleep=200)
        self.assertNotIn("They also sleep", seldom)
        self.assertNotIn("They also sleep", self.summary([wait, sleep], sem=700, sleep=200))

    def test_threads_that_compute_meanwhile_are_named(self) -> None:
        read = {"kind": "read", "wait_site": "0x30", "useful": 900, "wait_ns": 1000 * MS}
        said = self.summary([read], io=1000, usr=1000)
        self.assertIn("Meanwhile threads compute, on 1.0 of", said)

    def test_threads_that_are_queued_longer_than_they_run_lack_processors(self) -> None:
        said = self.summary([], usr=100, lat=300, io=600)
        self.assertIn("threads were queued 300 ms for a processor, and ran 100 ms", said)

    def delivered(self, **changed: int) -> verdict.Verdict:
        """The verdict on two threads that were queued for 300 ms, 100 of them in the run queue."""
        group = {"name": "pool", "is_user": False, "threads": 2, "wall_ns": S, "waits": 1000}
        group |= {"usr": 350 * MS, "cpu_ns": 250 * MS, "lat": 200 * MS, "run_queue_ns": 100 * MS}
        group |= {"mutex": 450 * MS, "useless": 0, "queueless": 0} | changed
        process = {**PROCESSES[0], "cpu_ns": 250 * MS}
        more: dict[str, Any] = {"groups": [group], "workers": [], "processes": [process]}
        return made(locks=[], wakes=[], threads=[], **more)

    def test_the_way_to_a_processor_is_run_queue_and_delivery(self) -> None:
        said = self.delivered()
        self.assertEqual((said.queue_ns, said.delivery_ns), (100 * MS, 200 * MS))
        self.assertIn("30 % queued (20 % delivery of wake-ups)", said.head)

    def test_delivery_is_not_known_after_useless_wake_ups_and_unseen_sleeps(self) -> None:
        for changed in ({"useless": 60}, {"usr": 450 * MS}, {"queueless": 1}):
            said = self.delivered(**changed)
            self.assertEqual((said.queue_ns, said.delivery_ns), (None, None), changed)
            self.assertNotIn("delivery", said.head)

    def test_wake_ups_on_their_way_are_no_lack_of_processors(self) -> None:
        said = self.delivered(mutex=0, wall_ns=550 * MS)
        self.assertIn("waited 200 ms for wake-ups to reach a processor", said.summary)

    def test_other_processes_share_the_processors_only(self) -> None:
        idle: dict[str, Any] = dict.fromkeys(STATES, 0) | {
            "waits": 0,
            "threads": 1,
            "wall_ns": S,
            "to_run_ns": None,
        }
        threads = [
            idle | {"process": process, "mutex": S // 2, "usr": S // 2}
            for process in ("1", "1", "2", "2", "2", "2")
        ]
        columns = ("inside_lck_ns", "inside_io_ns", "inside_sleep_ns")
        locks = [
            {**LOCK, **dict.fromkeys((*columns, "acquired", "init_site"), 0)}
            | {"wait_ns": S, "process": process}
            for process in ("1", "2")
        ]
        program = Program(threads, locks, [], [], [], 0, 0, S, 4, 3.0 * S, 0.0, 0.0)
        found = hot_locks.load_of(locks[0], program)
        self.assertAlmostEqual(found.threads, 2)
        self.assertAlmostEqual(found.ran_ns, S)
        self.assertEqual(len(found.locks), 1)
        self.assertAlmostEqual(found.all_ran_ns, 3 * S)

    def test_threads_that_end_early_would_work_without_the_lock(
        self,
    ) -> None:
        """Those of one_lock.c, where a thread that has the lock takes it again until it ends.

        Each of 4 sleeps for 131 ms under the lock. They end after 131, 262, 393 and 524 ms, and
        without the lock all would end after 131.
        """
        for count, gained in ((4, 4), (2, 2), (8, 8), (1000, 2.5)):
            own = 131 * MS
            waited = own * 6 if count == 1000 else own * count * (count - 1) // 2
            slept = own * 4 if count == 1000 else own * count
            parts = dict.fromkeys(STATES, 0) | {"mutex": waited, "sleep": slept, "waits": 0}
            row = {"process": "1", "threads": count, "wall_ns": waited + slept, "to_run_ns": None}
            columns = ("inside_lck_ns", "inside_io_ns", "acquired", "init_site")
            times = {"hold_ns": slept, "inside_sleep_ns": slept, "last_ns": slept - own}
            lock = {**LOCK, **dict.fromkeys(columns, 0), **times}
            lock |= {"wait_ns": waited, "process": "1", "first_ns": 0}
            program = Program([parts | row], [lock], [], [], [], 0, 0, slept, 2, 0.0, 0.0, 0.0)
            load = hot_locks.load_of(lock, program)
            fixed = [demand.key_of(lock)]
            bound = gain.bound(load, fixed)
            self.assertAlmostEqual(bound, gain.allowed(gained), places=2, msg=str(count))
            if count == 4:  # the first one never waits
                rest = parts | {"sleep": slept - own} | row | {"threads": 3}
                first = dict.fromkeys(STATES, 0) | {"sleep": own, "waits": 0} | row
                program.threads[:] = [rest, first | {"threads": 1}]
                load = hot_locks.load_of(lock, program)
                self.assertAlmostEqual(gain.bound(load, fixed), gain.allowed(gained), places=2)

    def test_a_holder_that_never_waits_is_one_of_the_threads_of_the_lock(self) -> None:
        """It keeps the lock from 5 others for 600 ms, in which it sleeps. 6 could sleep at once."""
        parts = dict.fromkeys(STATES, 0) | {"process": "1", "waits": 0, "to_run_ns": None}
        others = parts | {"threads": 5, "wall_ns": 3 * S, "mutex": 2980 * MS, "sleep": 20 * MS}
        holder = parts | {"threads": 1, "wall_ns": 600 * MS, "sleep": 600 * MS}
        columns = ("inside_lck_ns", "inside_io_ns", "acquired", "init_site")
        for hold_ns, sleep_ns in ((0, 0), (600 * MS, 600 * MS)):
            times = {"hold_ns": hold_ns, "inside_sleep_ns": sleep_ns, "last_ns": 600 * MS}
            lock = {**LOCK, **dict.fromkeys(columns, 0), **times}
            lock |= {"wait_ns": 2980 * MS, "process": "1", "first_ns": 0}
            program = Program(
                [others, holder], [lock], [], [], [], 0, 0, 600 * MS, 2, 0.0, 0.0, 0.0
            )
            most = gain.bound(hot_locks.load_of(lock, program), [demand.key_of(lock)])
            self.assertAlmostEqual(most, gain.allowed(6), delta=0.05)

    def test_a_holder_of_a_python_lock_that_never_waits_is_one_of_its_threads(self) -> None:
        parts = dict.fromkeys(STATES, 0) | {"process": "1", "waits": 0, "to_run_ns": None}
        others = parts | {"threads": 7, "wall_ns": 14 * S, "sem": 13.9 * S, "sleep": 0.1 * S}
        holder = parts | {"threads": 1, "wall_ns": 2 * S, "sleep": 2 * S}
        program = Program([others, holder], [], [], [], [], 0, 0, 2 * S, 2, 0.0, 0.0, 0.0)
        load = demand.load_without(13.9 * S, ("sem",), program, is_lock=True)
        self.assertAlmostEqual(gain.bound(load, []), gain.allowed(8), delta=0.1)

    def test_useful_wake_ups_of_a_place_count_in_the_share_of_useless_ones(self) -> None:
        wake = {"kind": "condition", "wait_site": "0x10", "object": 7, "object_name": "bell"}
        useless = wake | {"wake_site": "0x20", "lost_race": 200}
        useful = wake | {"wake_site": "0x30", "useful": 1800}
        herds = [{"size_from": 8, "count": 100}]
        self.assertEqual(self.kinds(wakes=[useless, useful], herds=herds), [])
        self.assertEqual(self.kinds(wakes=[useless], herds=herds), [HERD])

    def kinds(self, **changed: Any) -> list[str]:
        return [finding.kind for finding in made(locks=[], threads=[], **changed).findings]

    def test_parts_of_the_time_that_round_to_nothing_are_left_out(self) -> None:
        time = {"running": 0.9996, "queued": 0.0004, "locks": 0.0}
        self.assertEqual(
            verdict.Verdict(time, S).lines(), ["1.00 s of threads' time: 100 % running"]
        )

    def test_the_error_of_sampled_holds_is_stated(self) -> None:
        (exact,) = made(locks=[LOCK]).findings
        self.assertEqual((exact.held, exact.held_error), (1.0, 0.0))
        (sampled,) = made(
            locks=[{**LOCK, "sampled": 50, "hold_variance": (0.02 * S) ** 2}]
        ).findings
        self.assertAlmostEqual(sampled.held_error or 0, 0.04)
        self.assertIn("held 100 ± 4 % of the time", sampled.text)


class Formats(unittest.TestCase):
    def test_the_verdict_is_first_in_text_and_in_json_and_on_the_page(self) -> None:
        entry = {"kind": 1, "site": 0x1010, "holder_site": 0x1020, "lock": 0x5000, "contested": 9}
        entry |= {"acquired": 9, "wait_ticks": 900 * MS, "holds": 9, "hold_ticks": 900 * MS}
        entry |= {"first_tsc": 1, "last_tsc": 1000 * MS}
        with tempfile.TemporaryDirectory() as place:
            builder = Builder(1000).chunk(layout.WRITERS, [{"index": 0}])
            file = builder.chunk(layout.LOCKS, [entry]).write(Path(place))
            formats = {"text": ("--full",), "json": ("--json",), "html": ("--format", "html")}
            said = {f: here("report", *words, str(file)) for f, words in formats.items()}
        for name, done in said.items():
            self.assertEqual(done.returncode, 0, (name, done.stderr))
        self.assertTrue(said["text"].stdout.startswith("Verdict\n"))
        found = json.loads(said["json"].stdout)["verdict"]
        self.assertEqual(list(found), list(verdict.Verdict({}, 0).as_json()))
        lines = [finding["text"] for finding in found["findings"]] or [found["summary"]]
        for line in lines:
            self.assertIn(line, " ".join(said["text"].stdout.split()))
            self.assertIn(json.dumps(line)[1:-1], said["html"].stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
