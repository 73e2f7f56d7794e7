#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every figure of a report, computed from tables whose waits are known by construction."""

from __future__ import annotations

import copy
import re
import unittest
from collections.abc import Callable, Sequence
from typing import Any

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from known_tables import (
    GROUPS,
    LOCKS,
    MS,
    PROCESSES,
    THREADS,
    WAKES,
    WORKERS,
    Row,
    orders,
    site,
    table_of,
    tables,
)
from synthetic import Builder

from rouse.query import facts, listeners, locks, measures
from rouse.query.sections import Section, Wanted, sections
from rouse.tables import build as decoder
from rouse.tables import engine, schemas

MANY = 400_000


def asked(query: Callable[[], str], **changed: Sequence[Row]) -> list[dict[str, Any]]:
    database = engine.open_tables(orders(**changed))
    rows = database.rows(query())
    database.close()
    return rows


def picked(rows: Sequence[Row], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def lock(**more: Any) -> dict[str, Any]:
    return {**{"kind": "mutex", "lock": 1, "site": "0x10", "holder_site": "0x20"}, **more}


def futex_wake() -> dict[str, Any]:
    return {"kind": "futex lock", "wait_site": "0x10", "wake_site": "0x20", "object": 1}


class Locks(unittest.TestCase):
    def test_waits_are_summed_over_holders_and_both_sides_have_a_row(self) -> None:
        rows = asked(locks.table)
        self.assertEqual(
            picked(rows, "site_label", "wait_total_ns", "wait_max_ns", "cnt_lock", "cnt_hold"),
            [
                ("orders.c:17", 30 * MS, 10 * MS, 3, 1),
                ("put_order+0x1c", 0, 0, 0, 2),  # it never waited, but made others wait
            ],
        )
        self.assertEqual({row["lock_name"] for row in rows}, {"orders"})

    def test_a_hundred_waiters_of_ten_ms_are_a_second(self) -> None:
        waiters = [lock(site=f"{i:#x}", contested=1, wait_ns=10 * MS) for i in range(1, 101)]
        rows = asked(locks.table, locks=waiters)
        self.assertEqual(sum(row["wait_total_ns"] for row in rows), 1000 * MS)
        held = [row for row in rows if row["site"] == "0x20"]
        # 0x20 is also the site of one waiter.
        self.assertEqual(picked(held, "cnt_hold", "cnt_lock"), [(100, 1)])

    def test_figures_unknown_without_full_recording_are_null(self) -> None:
        for row in asked(locks.table):
            for name in ("max_ns", "total_ns", "count", "avg_ns", "wait_avg_ns"):
                self.assertIsNone(row[name], name)

    def test_every_acquisition_and_hold_time_where_they_are_recorded(self) -> None:
        rows = asked(
            locks.table,
            locks=[
                lock(holder_site="0x0", acquired=8, holds=8, hold_ns=80, hold_most_ns=30),
                lock(holder_site="0x10", acquired=2, contested=2, wait_ns=40, wait_most_ns=25,
                     holds=2, hold_ns=20, hold_most_ns=15),
            ],
        )  # fmt: skip
        names = ("max_ns", "wait_max_ns", "total_ns", "wait_total_ns", "count", "avg_ns")
        self.assertEqual(picked(rows, *names), [(30, 25, 100, 40, 10, 10.0)])
        self.assertEqual(picked(rows, "wait_avg_ns", "cnt_hold", "cnt_lock"), [(4.0, 2, 2)])

    def test_of_a_futex_lock_neither_free_acquisitions_nor_its_holder_are_known(self) -> None:
        futex = {"kind": "futex lock", "contested": 2, "acquired": 2, "wait_ns": 6}
        both = [
            lock(lock=1, **futex, init_site="0x40"),
            lock(lock=2, contested=1, acquired=5, init_site="0x40"),
        ]
        rows = asked(locks.table, locks=both)
        known = sorted((row["lock"], row["kind"], row["site"], row["count"]) for row in rows)
        expected = [(1, "futex lock", "0x10", None), (1, "futex lock", "0x20", None)]
        self.assertEqual(known[:2], expected)
        self.assertEqual(known[2:], [(2, "mutex", "0x10", 5), (2, "mutex", "0x20", 0)])
        kinds = sorted((row["kind"], row["count"]) for row in asked(locks.origins, locks=both))
        self.assertEqual(kinds, [("futex lock", None), ("mutex", 5)])
        waits = {row["kind"]: row["role"] for row in asked(measures.wait_sites, locks=both)}
        self.assertEqual((waits["futex lock"], waits["mutex"]), ("released", "held"))
        (totals,) = asked(measures.totals, locks=both, wakes=[{**futex_wake(), "useful": 2}])
        self.assertEqual((totals["lock_waits"], totals["wakes"]), (3, 2))
        sites = [*asked(measures.wait_sites, locks=both, wakes=[{**futex_wake(), "useful": 2}])]
        self.assertEqual([row["count"] for row in sites if row["kind"] == "futex lock"], [2])

    def test_locks_of_two_processes_are_not_mixed(self) -> None:
        both = [
            lock(process=process, contested=count, holder_site="0x10")
            for process, count in (("a:1:1", 2), ("b:1:1", 5))
        ]
        rows = asked(locks.table, locks=both)
        self.assertEqual(
            sorted(picked(rows, "process", "cnt_lock", "cnt_hold")),
            [("a:1:1", 2, 2), ("b:1:1", 5, 5)],
        )

    def test_sides(self) -> None:
        rows = asked(locks.sides)
        self.assertEqual(
            picked(rows, "site_label", "holder_label", "contested", "given_up", "wait_each_ns"),
            [
                ("orders.c:17", "put_order+0x1c", 2, 0, 10.0 * MS),
                ("orders.c:17", "orders.c:17", 1, 1, 10.0 * MS),
            ],
        )

    def test_wake_ups_of_a_lock_are_summed_at_the_holder_that_was_waited_for_longest(self) -> None:
        """A wait has several, while others take the lock: the sums are those of the wakes."""
        lost = [{**wake, "lost_race": 7} for wake in WAKES if wake["kind"] == "mutex"]
        rows = [row for row in asked(measures.wait_sites, wakes=lost) if row["kind"] == "mutex"]
        found = picked(rows, "wait_ns", "count", "woken", "useless")
        self.assertEqual(found, [(20 * MS, 2, 16, 14), (10 * MS, 1, 0, 0)])

    def test_a_holder_that_is_not_known_is_not_the_runtime(self) -> None:
        rows = asked(measures.wait_sites, locks=[lock(holder_site="0x0", contested=1)])
        held = [row for row in rows if row["role"] == "held"]
        self.assertEqual(picked(held, "other_label", "count"), [("not known", 1)])
        (side,) = asked(locks.sides, locks=[lock(holder_site="0x0", contested=1)])
        self.assertEqual(side["holder_label"], "not known")

    def test_a_site_is_its_innermost_frame_not_the_whole_stack(self) -> None:
        stacks = [f"{1 << 63 | number:#x}" for number in (1, 2)]
        frames = [
            {**row, "site": stack} for stack in stacks for row in site(0x10, "a.c:1", "b.c:2")
        ]
        rows = [
            lock(site=stacks[0], holder_site="0x10", contested=2, wait_ns=7, spin_ns=3, spun=1),
            lock(site=stacks[1], holder_site="0x10", contested=1, wait_ns=5, spin_ns=4, spun=0),
            lock(site=stacks[1], holder_site="0x30", contested=1, wait_ns=1),
        ]
        sites = [*frames, *site(0x10, "a.c:1"), *site(0x30, "a.c:9")]
        self.assertEqual(
            picked(
                asked(locks.table, locks=rows, sites=sites),
                *("site", "site_label", "wait_total_ns", "cnt_lock", "cnt_hold"),
            ),
            [("0x10", "a.c:1", 13, 4, 3), ("0x30", "a.c:9", 0, 0, 1)],
        )
        spun = asked(locks.spins, locks=rows, sites=sites)
        self.assertEqual(picked(spun, "site", "spin_ns", "spun"), [("0x10", 7, 1)])
        self.assertEqual(len(asked(locks.sides, locks=rows, sites=sites)), 3)

    def test_spinning(self) -> None:
        rows = asked(locks.spins)
        self.assertEqual(picked(rows, "site_label", "spin_ns", "spun"), [("orders.c:17", 3000, 1)])


class Wakes(unittest.TestCase):
    def test_the_ledger(self) -> None:
        rows = asked(measures.wake_ledger)
        self.assertEqual(
            picked(rows, "kind", "wake_label", "count", "useful", "false_", "timeout", "waste_ns"),
            [
                ("condition", "queue_push+0x44", 100, 90, 10, 0, 70_000),
                ("accept", "runtime", 8, 8, 0, 0, 0),
                ("mutex", "put_order+0x1c", 2, 2, 0, 0, 0),
                ("mutex", "timer", 1, 0, 0, 1, 0),
            ],
        )
        self.assertEqual(picked(rows, "late_each_ns", "late_most_ns")[0], (1000.0, 9000))

    def test_objects_are_counted_by_name_and_unnamed_ones_are_not(self) -> None:
        wake = {**WAKES[0], "useful": 1}
        names = ("a", "b", "a", "", None)
        wakes = [{**wake, "object": i, "object_name": name} for i, name in enumerate(names)]
        rows = asked(measures.wake_ledger, wakes=wakes)
        self.assertEqual(picked(rows, "objects", "names", "object_name"), [(5, 2, None)])
        rows = asked(measures.wake_ledger, wakes=wakes[3:])
        self.assertEqual(picked(rows, "objects", "names", "object_name"), [(2, 0, None)])

    def test_waits_of_idle_pools_and_listeners_are_idle_but_not_those_for_locks(self) -> None:
        idle = {row["kind"]: row["is_idle"] for row in asked(measures.wake_ledger)}
        self.assertEqual(idle, {"condition": True, "accept": True, "mutex": False})
        busy = [{**thread, "is_idle": False} for thread in THREADS]
        idle = {r["kind"]: r["is_idle"] for r in asked(measures.wake_ledger, threads=busy)}
        self.assertEqual(idle, {"condition": False, "accept": True, "mutex": False})

    def test_wait_sites_have_both_sides(self) -> None:
        rows = asked(measures.wait_sites)
        self.assertEqual(
            picked(rows, "kind", "wait_label", "role", "other_label", "count", "useless"),
            [
                ("accept", "queue_push+0x44", "woke", "runtime", 8, 0),
                ("condition", "worker.c:5", "woke", "queue_push+0x44", 100, 10),
                ("mutex", "orders.c:17", "held", "put_order+0x1c", 2, 0),
                ("mutex", "orders.c:17", "held", "orders.c:17", 1, 0),
            ],
        )

    def test_totals(self) -> None:
        (row,) = asked(measures.totals)
        expected = {
            **{"calls": 78, "switches": 120, "steals": 4, "wakes": 111, "useful": 100},
            **{"false_": 10, "timeout": 1, "lost_race": 0, "signals_unheard": 5},
            **{"broadcasts_unheard": 2, "waste_ns": 70_000, "lock_waits": 3},
            **{"lock_wait_ns": 30 * MS, "lock_spin_ns": 3000},
        }
        self.assertEqual({key: row[key] for key in expected}, expected)

    def test_herds_and_lateness_are_summed_over_workers(self) -> None:
        herds = [{"size_from": 4, "count": 3}, {"size_from": 4, "count": 2, "writer": 1}]
        self.assertEqual(picked(asked(measures.herds, herds=herds), "size_from", "count"), [(4, 5)])
        self.assertEqual(
            picked(asked(measures.lateness), "late_from_ns", "count"), [(2048, 3), (4096, 1)]
        )
        (late,) = asked(measures.lateness_totals)
        self.assertEqual((late["late_ns"], late["late_most_ns"]), (12_000, 5000))

    def test_one_record_more_changes_its_figures_and_no_other(self) -> None:
        before = {row["wake_site"]: row for row in asked(measures.wake_ledger)}
        changed = copy.deepcopy(WAKES)
        changed[2]["lost_race"] = 1
        after = {row["wake_site"]: row for row in asked(measures.wake_ledger, wakes=changed)}
        differing = {
            (site, key)
            for site, row in after.items()
            for key in row
            if row[key] != before[site][key]
        }
        self.assertEqual(
            {key for _, key in differing}, {"lost_race", "count", "wait_each_ns", "late_each_ns"}
        )
        self.assertEqual({site for site, _ in differing}, {"0x1040"})


class Threads(unittest.TestCase):
    def test_microstates_and_their_missing_rest(self) -> None:
        short = [{**THREADS[0], "usr": 900 * MS}, *THREADS[1:]]
        rows = {row["thread_id"]: row for row in asked(measures.microstates, threads=short)}
        self.assertEqual((rows[1]["lck"], rows[1]["missing_ns"]), (30 * MS, 40 * MS))
        self.assertEqual((rows[2]["slp"], rows[2]["missing_ns"]), (900 * MS, 0))

    def test_jains_index(self) -> None:
        (row,) = asked(measures.accept_balance)
        self.assertEqual((row["threads"], row["accepted"], row["jain"]), (2, 8, 0.8))
        equal = [{**t, "accepted": 5} for t in THREADS]
        self.assertEqual(asked(measures.accept_balance, threads=equal)[0]["jain"], 1.0)
        alone = [{**t, "kind": "accept", "accepted": 9 * (i == 0)} for i, t in enumerate(THREADS)]
        self.assertAlmostEqual(asked(measures.accept_balance, threads=alone)[0]["jain"], 1 / 3)

    def test_queue_delay_is_the_mean_backlog_divided_by_the_accept_rate(self) -> None:
        each: Row = {"listener": "0x7", "name": "here:80"}
        rows: list[dict[str, Any]] = [
            {**each, "process": "a:1:1", "accepted": 6, "samples": 6, "backlog": 20},
            {**each, "process": "b:1:1", "accepted": 5, "samples": 5, "backlog": 2},
            {**each, "process": "c:1:1"},  # it accepted none
        ]
        for row, first_ms, last_ms in zip(rows, (5, 1, 0), (11, 9, 0), strict=True):
            row |= {"first_ns": first_ms * MS, "last_ns": last_ms * MS}
        (row,) = asked(listeners.listeners, listeners=rows)
        self.assertEqual((row["backlog_mean"], row["queue_delay_ns"]), (2.0, 2 * MS))
        for row in rows:  # files of an older rouse have no times
            row |= {"first_ns": 0, "last_ns": 0}
        (row,) = asked(listeners.listeners, listeners=rows)
        self.assertIsNone(row["queue_delay_ns"])
        alone = [{**rows[0], "accepted": 1, "first_ns": MS, "last_ns": MS}]
        (row,) = asked(listeners.listeners, listeners=alone)
        self.assertIsNone(row["queue_delay_ns"], "one alone has no rate")

    def test_threads_by_name(self) -> None:
        rows = {row["name"]: row for row in asked(measures.thread_groups)}
        self.assertEqual({*rows}, {"server", "pool", "request"})
        request = rows["request"]
        self.assertEqual(
            (request["threads"], request["ended_threads"], request["waits"]), (2, 2, 4)
        )
        self.assertEqual(
            (request["usr"], request["lck"], request["slp"]), (5 * MS, 10 * MS, 5 * MS)
        )
        self.assertEqual(request["missing_ns"], 0)
        pool = rows["pool"]  # one lives, as a user thread whose worker ran all the time
        self.assertEqual((pool["threads"], pool["ended_threads"], pool["useless"]), (2, 1, 11))
        self.assertEqual((pool["wall_ns"], pool["cond"]), (1100 * MS, 540 * MS))
        self.assertEqual((pool["usr"], pool["lat"], pool["in_call"]), (535 * MS, 15 * MS, 10 * MS))
        self.assertFalse(pool["is_idle"])
        self.assertEqual([rows[name]["is_idle"] for name in ("server", "request")], [False, False])

    def test_usr_of_a_name_is_not_known_if_that_of_a_thread_is_not(self) -> None:
        unread = [{**GROUPS[1], "cpu_ns": None, "run_queue_ns": None}]
        rows = {row["name"]: row for row in asked(measures.thread_groups, groups=unread)}
        self.assertEqual((rows["pool"]["usr"], rows["pool"]["had_usr"]), (None, 560 * MS))
        self.assertIn("1 thread: 60.0 ms could not be split", noted(orders(groups=unread)))
        queueless = [{**GROUPS[1], "run_queue_ns": 0, "queueless": 1}]
        self.assertIn(
            "1 thread: their time in the kernel's run queue", noted(orders(groups=queueless))
        )


def made(wanted: Wanted, **changed: Sequence[Row]) -> dict[str, Section]:
    database = engine.open_tables(orders(**changed))
    found = {section.key: section for section in sections(database, wanted)}
    database.close()
    return found


def many_locks() -> Any:
    """A database with so many threads that several workers process them in parts."""
    place = [i * 7919 % MANY for i in range(MANY)]
    columns: dict[str, Sequence[Any]] = {
        **{"process": ["a:1:1"] * MANY, "kind": ["mutex"] * MANY, "site": ["0x10"] * MANY},
        **{"holder_site": ["0x10"] * MANY, "lock": place, "wait_ns": place},
        **{"contested": [1] * MANY, "acquired": [1] * MANY},
    }
    return table_of("locks", columns)


def noted(changed: dict[str, Any]) -> str:
    database = engine.open_tables(changed)
    text = "\n".join(facts.notes(database, [], False))
    database.close()
    return text


class Sections(unittest.TestCase):
    def test_idle_waits_are_hidden_and_counted(self) -> None:
        found = made(Wanted())
        self.assertEqual(picked(found["wakes"].rows, "kind"), [("mutex",), ("mutex",)])
        self.assertEqual((found["wakes"].idle, found["threads"].idle), (2, 2))
        shown = made(Wanted(show_idle=True))
        self.assertEqual((len(shown["wakes"].rows), shown["wakes"].idle), (4, 0))

    def test_rows_beyond_the_limit_are_counted(self) -> None:
        found = made(Wanted(limit=1))
        self.assertEqual((len(found["locks"].rows), found["locks"].more), (1, 1))
        self.assertEqual((len(found["sides"].rows), found["sides"].more), (1, 1))

    def test_the_first_rows_of_many_are_the_greatest(self) -> None:
        count = MANY
        database = engine.open_tables({**orders(), "locks": many_locks()})
        names = {"locks": "wait_total_ns", "sides": "wait_ns"}
        found = sections(database, Wanted(sections=tuple(names), limit=3))
        for section in found:
            waits = [row[names[section.key]] for row in section.rows]
            self.assertEqual(waits, [count - 1, count - 2, count - 3], section.key)
            self.assertEqual(section.more, count - 3, section.key)
        database.close()

    def test_records_are_read_by_few_queries(self) -> None:
        database = engine.open_tables(orders())
        facts.facts(database, "x")
        facts.notes(database, [], False)
        sections(database, Wanted(limit=1))
        for table, most in (("locks", 8), ("wakes", 4)):
            asked = [sql for sql in database.asked if re.search(rf"FROM {table}(_now)?\b", sql)]
            self.assertLessEqual(len(asked), most, "\n\n".join(asked))
        database.close()

    def test_counted_rows_are_not_sorted(self) -> None:
        database = engine.open_tables(orders())
        (sides,) = sections(database, Wanted(sections=("sides",), limit=1))
        self.assertEqual(sides.more, 1)
        (count,) = (sql for sql in database.asked if "FROM locks" in sql and "LIMIT" not in sql)
        self.assertNotIn("ORDER BY", count)
        database.close()

    def test_processes_beyond_the_limit_are_counted(self) -> None:
        processes = [{**PROCESSES[0], "process": f"{name}:1:1"} for name in "abc"]
        for limit, shown, more in ((0, 3, 0), (1, 1, 2), (2, 2, 1), (3, 3, 0), (4, 3, 0)):
            totals = made(Wanted(limit=limit), processes=processes)["totals"]
            self.assertEqual((len(totals.rows), totals.more), (shown, more), limit)

    def test_only_the_requested_sections(self) -> None:
        self.assertEqual(list(made(Wanted(sections=("herds", "locks")))), ["locks", "herds"])

    def test_the_lock_name_has_the_form_of_freebsds_lock_profiling(self) -> None:
        unnamed = [{**row, "lock_name": None} for row in LOCKS]
        for rows, name in ((LOCKS, "orders"), (unnamed, "0xabc0")):
            found = made(Wanted(), locks=rows)["locks"].rows[0]["name"]
            self.assertEqual(found, f"orders.c:17 (mutex:{name})")

    def test_empty_sections_give_the_reason(self) -> None:
        database = engine.open_tables(tables())
        for section in sections(database, Wanted()):
            self.assertEqual(section.rows, [])
            self.assertTrue(section.empty)


class Notes(unittest.TestCase):
    def test_unseen_records_are_reported(self) -> None:
        whole = orders()
        self.assertIn("max, total, count, avg and wait_avg are not known", noted(whole))
        process = whole["processes"].to_rows()[0]
        lost = {"lost_wakes": 3, "lost_locks": 5}
        text = noted(orders(processes=[{**process, **lost, "mode": "off"}]))
        self.assertIn("3 wake-ups did not fit", text)
        self.assertIn("5 acquisitions of locks, or waits given up, did not fit", text)
        self.assertIn("recording is off", text)
        text = noted(orders(wakes=[{**WAKES[0], "unrecorded": 4}]))
        self.assertIn("4 waits were recorded only in part", text)

    def test_notes_explain_an_empty_report(self) -> None:
        self.assertIn("nothing was recorded: there is no process in it", noted(tables()))
        process = orders()["processes"].to_rows()
        self.assertIn("no thread has waited", noted(tables(processes=process)))
        text = noted(tables(processes=process, threads=[{**THREADS[0], "waits": 0}]))
        self.assertIn("none of its 1 threads has ended one", text)

    def test_a_correct_wait_loop_is_not_reported(self) -> None:
        self.assertNotIn("rouse_cond_wait()", noted(orders()))
        plain = {**WAKES[2], "false_": 0}
        self.assertIn("at 1 places that wait for a condition", noted(orders(wakes=[plain])))
        preloaded = [{**PROCESSES[0], "recorder": "preload"}]
        text = noted(orders(wakes=[plain], processes=preloaded))
        self.assertNotIn("rouse_cond_wait", text)
        self.assertIn("recorded by rouse run", text)

    def test_states_that_do_not_add_up(self) -> None:
        self.assertNotIn("the states differ", noted(orders()))
        off = [{**THREADS[0], "usr": 900 * MS}, *THREADS[1:]]
        text = noted(orders(threads=off))
        self.assertIn("1 of 3 threads: the states differ", text)
        self.assertIn("by up to 40.0 ms", text)


class Facts(unittest.TestCase):
    def test_the_cost_of_recording_is_reported(self) -> None:
        database = engine.open_tables(orders(wakes=[{**WAKES[0], "useful": 1_000_000}]))
        output = dict(facts.facts(database, "x"))["cost of recording"]
        database.close()
        # The two workers were busy for 600 and 100 ms, and 20 of 700 ms are 2.9 %.
        self.assertIn("at least 20.0 ms of CPU time, 2.9 % of what the workers were busy", output)
        self.assertIn("1,000,000 waits of 2 time stamps each, and one takes 10.0 ns", output)

    def test_the_cost_of_recording_is_reported_of_workers_that_hardly_ever_ran(self) -> None:
        idle = [{**row, "idle_ns": row.get("wall_ns", 0)} for row in WORKERS]
        database = engine.open_tables(orders(workers=idle))
        output = dict(facts.facts(database, "x"))["cost of recording"]
        database.close()
        self.assertRegex(output, r"^at least [^,]* of CPU time: .* and one takes 10.0 ns")

    def test_each_process_has_measured_its_own_cost(self) -> None:
        other = {**PROCESSES[0], "process": "b:1:1", "stamp_ns": 30.0}
        wakes = [{**WAKES[0], "useful": 100}, {**WAKES[0], "process": "b:1:1", "useful": 1000}]
        for known, said in (
            (other, "one takes 10.0 to 30.0 ns"),
            ({**other, "stamp_ns": None}, ""),
        ):
            database = engine.open_tables(orders(processes=[*PROCESSES, known], wakes=wakes))
            output = dict(facts.facts(database, "x"))["cost of recording"]
            database.close()
            self.assertIn(said or "not known", output)

    def test_nothing_recorded_cost_nothing(self) -> None:
        database = engine.open_tables(orders(wakes=[]))
        self.assertNotIn("cost of recording", dict(facts.facts(database, "x")))
        database.close()


class Schemas(unittest.TestCase):
    def test_the_schemas_match_the_decoders_tables(self) -> None:
        decoded = decoder.tables(Builder().store())
        self.assertEqual(set(decoded), set(schemas.COLUMNS))
        for name, table in decoded.items():
            self.assertEqual((table.name, list(table.columns)), (name, list(schemas.COLUMNS[name])))

    def test_the_sample_workers_have_only_known_columns(self) -> None:
        names = set(schemas.COLUMNS["workers"])
        self.assertLessEqual({key for row in WORKERS for key in row}, names)


if __name__ == "__main__":
    unittest.main(verbosity=2)
