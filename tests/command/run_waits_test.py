#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits for other objects than mutexes and conditions (sync_waits.c, fd_waits.c)."""

from __future__ import annotations

import unittest
from collections import Counter
from collections.abc import Mapping
from typing import Any

from interposed import Source, recorded

Row = dict[str, Any]
Report = Mapping[str, list[Row]]
WAITS, IO = Source("sync_waits"), Source("fd_waits")
VERDICTS = ("useful", "lost_race", "false_", "timeout", "cancelled")


class Case(unittest.TestCase):
    def verdicts(self, found: Report, kind: str, **expected: int) -> None:
        """Check the number of wake-ups of this kind by verdict."""
        rows = [row for row in found["wakes"] if row["kind"] == kind]
        got = {name: sum(row[name] for row in rows) for name in VERDICTS}
        self.assertEqual({name: count for name, count in got.items() if count}, expected, kind)

    def wakers(self, found: Report, kind: str) -> Counter[str]:
        """The number of useful wake-ups of this kind, by wake site."""
        counts: Counter[str] = Counter()
        for row in found["wakes"]:
            if row["kind"] == kind:
                counts[row["wake_label"]] += row["useful"]
        return +counts


class Locks(Case):
    def test_readers_and_writers_wait_for_the_holder(self) -> None:
        found = recorded(self, WAITS, "rwlock")
        readers, writers = WAITS.known["READERS"], WAITS.known["WRITERS"]
        self.verdicts(found, "read lock", useful=readers)
        self.verdicts(found, "write lock", useful=writers, timeout=2)
        holder = WAITS.label("(&book) == 0); /* by the holder */", 1)
        self.assertEqual(self.wakers(found, "read lock"), {holder: readers})
        at_the_holder = {
            row["site_label"]: row["contested"]
            for row in found["sides"]
            if row["holder_label"] == WAITS.label("pthread_rwlock_wrlock(&book) == 0); /* by")
        }
        self.assertEqual(
            at_the_holder,
            {
                WAITS.label("rdlock(&book) == 0"): readers,
                WAITS.label("wrlock(&book) == 0"): writers,
            },
        )
        given_up = {
            (row["site_label"], row["holder_label"]) for row in found["sides"] if row["given_up"]
        }
        reader = WAITS.label("pthread_rwlock_rdlock(&book) == 0", 1)
        self.assertEqual(
            given_up,
            {
                (WAITS.label("pthread_rwlock_timedwrlock(&book"), reader),
                (WAITS.label("pthread_rwlock_clockwrlock(&book"), reader),
            },
        )
        self.assertEqual({row["lock_label"] for row in found["locks"]}, {"book"})
        count = sum(row["given_up"] for row in found["locks"])
        self.assertEqual(count, 2)

    def test_the_recorder_s_own_locks_hide_no_lock_that_its_thread_holds(self) -> None:
        found = recorded(self, WAITS, "shelves")
        holders = Counter[str]()
        for row in found["sides"]:
            holders[row["holder_label"]] += row["contested"]
        holder = WAITS.label("pthread_rwlock_wrlock(lock)")
        self.assertEqual(holders, {holder: WAITS.known["SHELF"]})

    def test_spinning_is_time_for_a_lock_and_no_wait(self) -> None:
        found = recorded(self, WAITS, "spin")
        (row,) = [row for row in found["locks"] if row["cnt_lock"]]
        self.assertEqual((row["cnt_lock"], row["spun"]), (1, 1))
        self.assertEqual(row["spin_ns"], row["wait_total_ns"])
        self.assertGreater(row["spin_ns"], 1_000_000)
        self.assertEqual(found["wakes"], [])

    def test_c11_has_its_own_sites(self) -> None:
        found = recorded(self, WAITS, "c11")
        self.verdicts(found, "mutex", useful=1)
        self.verdicts(found, "condition", useful=1, timeout=1)
        self.assertEqual(self.wakers(found, "condition"), {WAITS.label("/* of C11 */"): 1})
        (row,) = [row for row in found["locks"] if row["cnt_lock"]]
        held = WAITS.label("(&c11_lock) == thrd_success); /* which is held */")
        self.assertEqual(row["site_label"], held)


class Repairs(Case):
    def test_a_thread_that_finds_a_mutex_held_spins_while_its_holder_may_run(self) -> None:
        found = recorded(self, WAITS, "held", ROUSE_RUN_SPIN_NS="1000000000")
        spun = {row["site_label"]: row["spun"] for row in found["sides"]}
        expected = {"held_by_runner": 1, "inherits": 0, "held_by_sleeper": 0}
        sites = {WAITS.label(f"_lock(&{name})"): count for name, count in expected.items()}
        self.assertEqual(spun, sites)
        inherits = WAITS.label("_lock(&inherits)")
        tried = [row["spin_ns"] for row in found["locks"] if row["site_label"] == inherits]
        self.assertEqual(sum(tried), 0, "it did not spin")
        self.verdicts(found, "mutex", useful=2)

    def test_a_robust_mutex_is_waited_for(self) -> None:
        found = recorded(self, WAITS, "robust", ROUSE_RUN_SPIN_NS="1000000000")
        self.assertEqual([row["spun"] for row in found["sides"]], [0])
        self.assertEqual(sum(row["spin_ns"] for row in found["locks"]), 0, "it did not spin")
        self.verdicts(found, "mutex", useful=1)

    def test_without_the_repair_no_thread_spins(self) -> None:
        found = recorded(self, WAITS, "held")
        self.assertEqual({row["spun"] for row in found["sides"]}, {0})
        self.verdicts(found, "mutex", useful=3)


class Gatherings(Case):
    def test_a_post_wakes_a_waiter(self) -> None:
        found = recorded(self, WAITS, "sem")
        posts = WAITS.known["POSTS"]
        self.verdicts(found, "semaphore", useful=posts, timeout=2)
        post = WAITS.label("/* to who waits */")
        self.assertEqual(self.wakers(found, "semaphore"), {post: posts})

    def test_the_last_at_a_barrier_wakes_the_rest(self) -> None:
        found = recorded(self, WAITS, "barrier")
        others, turns = WAITS.known["PARTIES"] - 1, WAITS.known["TURNS"]
        self.verdicts(found, "barrier", useful=others * turns)
        self.assertEqual(
            self.wakers(found, "barrier"), {WAITS.label("/* all of them */"): others * turns}
        )
        (herds,) = found["herds"]
        self.assertEqual(herds["count"], turns)

    def test_the_thread_that_runs_pthread_once_wakes_the_rest(self) -> None:
        found = recorded(self, WAITS, "once")
        others = WAITS.known["CALLERS"] - 1
        self.verdicts(found, "once", useful=others)
        self.assertEqual(
            self.wakers(found, "once"),
            {WAITS.label("/* the thread that runs the routine */"): others},
        )

    def test_a_thread_that_ends_wakes_its_joiner(self) -> None:
        found = recorded(self, WAITS, "join")
        self.verdicts(found, "join", useful=2)
        woken = sum(row["late_ns"] > 0 for row in found["wakes"])
        self.assertGreater(woken, 0, "when the thread ended is known")

    def test_a_thread_can_be_named_while_it_waits(self) -> None:
        found = recorded(self, WAITS, "names")
        names = {row["name"]: row["state"] for row in found["threads"]}
        self.assertEqual(names, {"named later": "sem"})


class Sleeps(Case):
    def test_each_sleep_is_a_wait_and_those_of_a_clock_have_a_lateness(self) -> None:
        found = recorded(self, WAITS, "sleep")
        each = WAITS.known["SLEEPS"]
        self.verdicts(found, "sleep", timeout=6 * each + 1)
        late = sum(row["count"] for row in found["lateness"])
        self.assertEqual(late, 4 * each + 1)
        (thread,) = found["threads"]
        self.assertEqual(thread["yields"], each)
        self.assertGreaterEqual(thread["sleep"], 6 * each * WAITS.known["NAP_MS"] * 1_000_000)


class Descriptors(Case):
    def test_each_way_to_read_is_a_wait_if_there_is_no_input(self) -> None:
        found = recorded(self, IO, "read")
        self.verdicts(found, "read", useful=IO.known["CALLS"])

    def test_a_nonblocking_call_is_no_wait(self) -> None:
        found = recorded(self, IO, "try")
        self.assertEqual(found["wakes"], [])

    def test_a_read_that_waits_for_the_rest_of_its_input_is_one_wait(self) -> None:
        found = recorded(self, IO, "more")
        self.verdicts(found, "read", useful=1)

    def test_a_number_that_was_closed_in_a_range_is_classified_again(self) -> None:
        found = recorded(self, IO, "reuse")
        self.verdicts(found, "read", useful=2)

    def test_a_number_that_libc_itself_closed_is_classified_again(self) -> None:
        found = recorded(self, IO, "streams")
        self.verdicts(found, "read", useful=IO.known["STREAMS"])

    def test_a_number_that_libc_reuses_in_a_child_is_classified_again(self) -> None:
        found = recorded(self, IO, "terminal")
        self.verdicts(found, "read", useful=1)

    def test_a_write_of_more_than_fits_is_one_wait(self) -> None:
        found = recorded(self, IO, "write")
        self.verdicts(found, "write", useful=5)

    def test_a_sync_of_a_file_is_called_so(self) -> None:
        found = recorded(self, IO, "write")
        calls = {row["kind"]: row["completed"] for row in found["calls"]}
        self.assertEqual(calls["sync"], 2)
        self.assertNotIn("blocking call", calls)

    def test_a_reader_that_comes_too_late_has_lost_a_race(self) -> None:
        found = recorded(self, IO, "race")
        lost = IO.known["RACERS"] - 1
        self.verdicts(found, "poll", useful=4, lost_race=4 * lost, timeout=4)
        self.verdicts(found, "epoll", useful=3, lost_race=3 * lost, timeout=3)

    def test_connections_are_counted_by_thread(self) -> None:
        found = recorded(self, IO, "accept")
        clients = IO.known["CLIENTS"]
        self.verdicts(found, "accept", useful=clients)
        calls = {row["kind"]: row["completed"] for row in found["calls"]}
        self.assertEqual((calls["accept"], calls["connect"]), (clients, clients))

    def test_a_time_out_of_a_socket_and_a_cancelled_read(self) -> None:
        found = recorded(self, IO, "otherwise")
        self.verdicts(found, "read", timeout=1, cancelled=1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
