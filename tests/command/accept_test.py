#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Distribution of a listener's connections over processes: demos/herd.c, which also counts them."""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import FIXTURES

from interposed import Source, environment, play

from rouse.query import listeners
from rouse.tables import inputs

CONNECTIONS = 300
ATTEMPTS = 20  # on a busy machine a thread may lose its turn because it has not run in time
Row = dict[str, Any]


def herd(*words: object, **repairs: str) -> tuple[Row, Row]:
    """Run the demo. Return the counts that it prints, and the report's row for its listener."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        done = subprocess.run(
            [FIXTURES / "herd", *map(str, words)],
            env=environment(folder, **repairs),
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode or done.stderr:
            raise AssertionError(f"herd {words}: {done.returncode} {done.stderr}")
        with inputs.open_input(str(folder)) as opened:
            database = opened.database
            (listener,) = database.rows(listeners.listeners())
    return json.loads(done.stdout), listener


def jain(counts: list[int]) -> float:
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


class WithoutOrder(unittest.TestCase):
    def test_every_connection_and_lost_race_is_counted(self) -> None:
        for way in ("poll", "select", "epoll", "accept"):
            with self.subTest(way):
                own, listener = herd(way, 2, 2, CONNECTIONS, 1)
                # Each thread accepts one more connection, which tells it to end.
                per_thread = [count + 1 for count in own["served"]]
                per_process = [sum(per_thread[:2]), sum(per_thread[2:])]
                self.assertEqual(listener["accepted"], sum(per_thread))
                self.assertEqual((listener["processes"], listener["threads"]), (2, 4))
                self.assertEqual(
                    (listener["least"], listener["most"]), (min(per_process), max(per_process))
                )
                self.assertAlmostEqual(listener["jain_threads"], jain(per_thread))
                self.assertAlmostEqual(listener["jain_processes"], jain(per_process))
                self.assertEqual(listener["lost"], own["in_vain"])
                self.assertTrue(listener["name"].startswith("127.0.0.1:"))
                self.assertEqual((listener["ordered"], listener["turns"]), (0, 0))

    def test_a_herd_is_seen_also_where_poll_does_not_return(self) -> None:
        found = 0.0
        for _ in range(ATTEMPTS):  # on a busy machine the woken thread may run only after the end
            own, listener = herd("poll", 4, 1, CONNECTIONS, 1)
            # Each wake-up is a voluntary switch. The serving threads have other switches as well.
            self.assertLessEqual(listener["woken"] + listener["in_vain"], own["voluntary"])
            found = max(found, listener["woken_each"])
            if found > 1.2:
                break
        self.assertGreater(found, 1.2)

    def test_the_queue_length_is_sampled(self) -> None:
        _, listener = herd("accept", 1, 1, CONNECTIONS, 50)
        self.assertLess(listener["backlog_mean"], 50)
        self.assertGreaterEqual(listener["backlog_most"], 1)
        self.assertLess(listener["backlog_most"], 50)
        self.assertGreater(listener["queue_delay_ns"], 0)


class InTurn(unittest.TestCase):
    """Threads accept in turn, whatever call they wait in. A late thread may miss some turns."""

    def in_turn(self, way: str, order: str) -> Row:
        own, listener = herd(way, 4, 1, CONNECTIONS, 1, ROUSE_RUN_ACCEPT=order)
        self.assertEqual(own["connections"], sum(own["served"]))
        self.assertEqual(listener["accepted"], CONNECTIONS + 4)
        # A thread whose turn was taken over may still run, or find nothing left.
        overdue = listener["overdue"]
        self.assertLessEqual(max(own["in_vain"], listener["lost"]), overdue)
        self.assertLessEqual(listener["ordered"], CONNECTIONS + 4)
        self.assertGreaterEqual(listener["ordered"], CONNECTIONS + 4 - overdue)
        return listener

    def often_in_turn(self, way: str, order: str, jain_least: float) -> None:
        """In at least one attempt most turns are handed on. A thread that is late gets no turn."""
        found = []
        for _ in range(ATTEMPTS):
            listener = self.in_turn(way, order)
            found.append((listener["turns"], listener["jain_processes"]))
            if listener["turns"] > CONNECTIONS / 2 and listener["jain_processes"] >= jain_least:
                return
        self.fail(f"{way}, {order}: {found}")

    def test_fifo_gives_each_the_same(self) -> None:
        for way in ("poll", "pipe", "select", "epoll", "accept"):
            with self.subTest(way):
                self.often_in_turn(way, "fifo", 0.99)

    def test_lifo_gives_turns_to_some(self) -> None:
        self.often_in_turn("poll", "lifo", 0)

    def test_scatter_delays_every_accept(self) -> None:
        own, listener = herd("poll", 2, 1, 50, 1, ROUSE_RUN_ACCEPT="scatter:1000000")
        tried = listener["accepted"] + own["in_vain"]
        self.assertEqual((listener["delays"], listener["lost"]), (tried, own["in_vain"]))
        self.assertGreater(listener["delay_ns"], 0)
        self.assertEqual(listener["ordered"], 0)


class Faults(unittest.TestCase):
    """shared_listener.c checks itself. Every scene runs with each order and without one."""

    def play(self, scene: str, **repairs: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            play(Path(place), Source("shared_listener"), scene, **repairs)

    def test_calls_return_the_same(self) -> None:
        for scene in ("behind", "interrupt", "interrupt_accept", "cancel", "end"):
            for order in ("", "fifo", "lifo"):
                with self.subTest(scene, order=order):
                    self.play(scene, **({"ROUSE_RUN_ACCEPT": order} if order else {}))

    def test_a_stopped_or_dead_process_does_not_block_the_others(self) -> None:
        for scene in ("stop_poll", "stop_accept", "die"):
            for order in ("fifo", "lifo"):
                with self.subTest(scene, order=order):
                    self.play(scene, ROUSE_RUN_ACCEPT=order)


OF_SETS = (
    *("reuse_poll", "reuse_accept", "reuse_set", "change", "shared", "exclusive", "edge"),
    *("rearmed", "edge_again", "once", "gone", "jump"),
)
WHILE_OUT = (
    "cancel_at_once",
    "cancel_later",
    "vfork_set",
    "vfork_all",
    "vfork_edit",
    "cloexec_set",
    "renew_set",
    "renew_all",
    "late_stream",
    "wrong_time",
)


class Corners(unittest.TestCase):
    """Scenes of listener_turns.c, listener_epoll.c and listener_out.c. Each scene checks itself."""

    def play(self, scene: str, order: str) -> list[Row]:
        """Run the scene. Return the report's rows for its listeners."""
        of_out = "listener_out" if scene in WHILE_OUT else "listener_turns"
        program = "listener_epoll" if scene in OF_SETS else of_out
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            play(folder, Source(program), scene, **({"ROUSE_RUN_ACCEPT": order} if order else {}))
            if not order:
                return []
            with inputs.open_input(place) as opened:
                return opened.database.rows(listeners.listeners())

    def in_every_order(self, *scenes: str) -> None:
        for scene in scenes:
            for order in ("", "fifo", "lifo"):
                with self.subTest(scene, order=order):
                    self.play(scene, order)

    def without_an_overdue_turn(self, scene: str, order: str) -> None:
        """The scene's turns are handed on. None has to be taken from a process that is late."""
        for _ in range(ATTEMPTS):
            if not sum(row["overdue"] for row in self.play(scene, order)):
                return
        self.fail(f"{scene}: overdue each time")

    def test_a_process_that_is_passed_over_for_long_goes_first(self) -> None:
        self.in_every_order("promote")
        (listener,) = self.play("promote", "lifo")
        self.assertGreater(listener["promoted"], 0)

    def test_a_listener_that_was_passed_by_exec_has_the_same_queue(self) -> None:
        self.in_every_order("pass")
        (listener,) = self.play("pass", "fifo")
        self.assertEqual(listener["processes"], 2)
        self.assertGreater(listener["ordered"], 2)

    def test_an_exec_passes_on_the_state_of_the_replaced_program(self) -> None:
        self.in_every_order("exec")
        (listener,) = self.play("exec", "fifo")
        self.assertEqual(listener["ordered"], 1)

    def test_a_killed_process_does_not_block_the_turns_of_others(self) -> None:
        self.in_every_order("die_waiting", "die_unreaped", "die_all", "die_any")

    def test_a_process_that_closes_a_listener_hands_its_turn_on(self) -> None:
        self.in_every_order("close")
        self.without_an_overdue_turn("close", "fifo")

    def test_a_process_that_sees_the_end_of_a_listener_hands_its_turn_on(self) -> None:
        self.in_every_order("shutdown")
        self.without_an_overdue_turn("shutdown", "fifo")

    def test_a_reused_number_belongs_to_its_new_descriptor(self) -> None:
        self.in_every_order("close_all", "reuse_poll", "reuse_accept", "reuse_set")

    def test_a_listener_that_is_gone_has_no_connection(self) -> None:
        self.in_every_order("gone")
        self.assertEqual([row["overdue"] for row in self.play("gone", "fifo")], [0])

    def test_a_listener_that_only_some_wait_for_is_not_forgotten(self) -> None:
        self.in_every_order("two")

    def test_numbers_in_two_queues_differ(self) -> None:
        self.in_every_order("numbers")

    def test_a_set_can_be_changed_while_it_is_waited_for(self) -> None:
        self.in_every_order("change")

    def test_a_wait_that_is_left_by_longjmp_leaves_the_set_as_it_was(self) -> None:
        self.in_every_order("jump")

    def test_a_thread_cancelled_before_its_wait_leaves_the_set_unchanged(self) -> None:
        self.in_every_order("cancel_at_once", "cancel_later")

    def test_descriptors_closed_by_a_vfork_child_stay_open_in_its_parent(self) -> None:
        self.in_every_order("vfork_set", "vfork_all")

    def test_a_vfork_childs_own_set_does_not_affect_its_parents(
        self,
    ) -> None:
        self.in_every_order("vfork_edit")

    def test_a_set_that_is_only_marked_for_exec_is_not_forgotten(self) -> None:
        self.in_every_order("cloexec_set")

    def test_a_call_that_failed_to_close_a_listener_has_changed_nothing(self) -> None:
        self.in_every_order("renew_set", "renew_all")

    def test_fclose_of_a_stream_with_a_closed_number_closes_nothing(self) -> None:
        self.in_every_order("late_stream")

    def test_a_time_that_the_kernel_refuses_is_refused_with_and_without_events(self) -> None:
        self.in_every_order("wrong_time")

    def test_threads_that_wait_for_one_set_do_not_take_its_listener_away(self) -> None:
        self.in_every_order("shared")
        self.without_an_overdue_turn("shared", "fifo")

    def test_every_connection_is_taken_for_all_requested_events(self) -> None:
        self.in_every_order("exclusive", "edge", "rearmed", "once")

    def test_connections_left_behind_an_edge_are_notified_again(self) -> None:
        self.in_every_order("edge_again")


if __name__ == "__main__":
    unittest.main(verbosity=2)
