#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Every figure of a report, of tables whose waits are known by construction."""

from __future__ import annotations

import copy
import unittest
from collections.abc import Callable, Sequence
from typing import Any

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from orders import LOCKS, MS, THREADS, WAKES, WORKERS, Row, orders, table_of, tables
from synthetic import Builder

from rouse import engine, facts, queries, schemas
from rouse import tables as decoder
from rouse.sections import Section, Wanted, sections


def asked(query: Callable[[queries.Tables], Any], **changed: Sequence[Row]) -> list[dict[str, Any]]:
    database = engine.open_tables(orders(**changed))
    rows = database.rows(query(database.tables))
    database.close()
    return rows


def picked(rows: Sequence[Row], *keys: str) -> list[tuple[Any, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def lock(**more: Any) -> dict[str, Any]:
    return {**{"kind": "mutex", "lock": 1, "site": "0x10", "holder_site": "0x20"}, **more}


class Locks(unittest.TestCase):
    def test_waits_are_summed_over_holders_and_both_sides_have_a_row(self) -> None:
        rows = asked(queries.lock_table)
        self.assertEqual(
            picked(rows, "site_label", "wait_total_ns", "wait_max_ns", "cnt_lock", "cnt_hold"),
            [
                ("orders.c:17", 30 * MS, 10 * MS, 3, 1),
                ("put_order+0x1c", 0, 0, 0, 2),  # never waited: others did, while it held
            ],
        )
        self.assertEqual({row["lock_name"] for row in rows}, {"orders"})

    def test_a_hundred_waiters_of_ten_ms_are_a_second(self) -> None:
        waiters = [lock(site=f"{i:#x}", contested=1, wait_ns=10 * MS) for i in range(1, 101)]
        rows = asked(queries.lock_table, locks=waiters)
        self.assertEqual(sum(row["wait_total_ns"] for row in rows), 1000 * MS)
        held = [row for row in rows if row["site"] == "0x20"]
        self.assertEqual(picked(held, "cnt_hold", "cnt_lock"), [(100, 1)])  # 0x20 waited, too

    def test_what_contested_only_recording_cannot_know_is_null(self) -> None:
        for row in asked(queries.lock_table):
            for name in ("max_ns", "total_ns", "count", "avg_ns", "wait_avg_ns"):
                self.assertIsNone(row[name], name)

    def test_every_acquisition_and_hold_time_where_they_are_recorded(self) -> None:
        rows = asked(
            queries.lock_table,
            locks=[
                lock(holder_site="0x0", acquired=8, holds=8, hold_ns=80, hold_most_ns=30),
                lock(holder_site="0x10", acquired=2, contested=2, wait_ns=40, wait_most_ns=25,
                     holds=2, hold_ns=20, hold_most_ns=15),
            ],
        )  # fmt: skip
        names = ("max_ns", "wait_max_ns", "total_ns", "wait_total_ns", "count", "avg_ns")
        self.assertEqual(picked(rows, *names), [(30, 25, 100, 40, 10, 10.0)])
        self.assertEqual(picked(rows, "wait_avg_ns", "cnt_hold", "cnt_lock"), [(4.0, 2, 2)])

    def test_locks_of_two_processes_are_not_mixed(self) -> None:
        both = [
            lock(process=process, contested=count, holder_site="0x10")
            for process, count in (("a:1:1", 2), ("b:1:1", 5))
        ]
        rows = asked(queries.lock_table, locks=both)
        self.assertEqual(
            sorted(picked(rows, "process", "cnt_lock", "cnt_hold")),
            [("a:1:1", 2, 2), ("b:1:1", 5, 5)],
        )

    def test_sides(self) -> None:
        rows = asked(queries.lock_sides)
        self.assertEqual(
            picked(rows, "site_label", "holder_label", "contested", "given_up", "wait_each_ns"),
            [
                ("orders.c:17", "put_order+0x1c", 2, 0, 10.0 * MS),
                ("orders.c:17", "orders.c:17", 1, 1, 10.0 * MS),
            ],
        )

    def test_a_holder_that_is_not_known_is_not_the_runtime(self) -> None:
        rows = asked(queries.wait_sites, locks=[lock(holder_site="0x0", contested=1)])
        held = [row for row in rows if row["role"] == "held"]
        self.assertEqual(picked(held, "other_label", "count"), [("-", 1)])

    def test_spinning(self) -> None:
        rows = asked(queries.spins)
        self.assertEqual(picked(rows, "site_label", "spin_ns", "spun"), [("orders.c:17", 3000, 1)])


class Wakes(unittest.TestCase):
    def test_the_ledger(self) -> None:
        rows = asked(queries.wake_ledger)
        self.assertEqual(
            picked(rows, "kind", "wake_label", "count", "useful", "false_", "timeout", "waste_ns"),
            [
                ("condition", "queue_push+0x44", 100, 90, 10, 0, 70_000),
                ("accept", "runtime", 8, 8, 0, 0, 0),
                ("mutex", "put_order+0x1c", 2, 2, 0, 0, 0),
                ("mutex", "runtime", 1, 0, 0, 1, 0),
            ],
        )
        self.assertEqual(picked(rows, "late_each_ns", "late_most_ns")[0], (1000.0, 9000))

    def test_waits_of_idle_pools_and_listeners_are_idle_but_not_those_for_locks(self) -> None:
        idle = {row["kind"]: row["is_idle"] for row in asked(queries.wake_ledger)}
        self.assertEqual(idle, {"condition": True, "accept": True, "mutex": False})
        busy = [{**thread, "is_idle": False} for thread in THREADS]
        idle = {r["kind"]: r["is_idle"] for r in asked(queries.wake_ledger, threads=busy)}
        self.assertEqual(idle, {"condition": False, "accept": True, "mutex": False})

    def test_wait_sites_have_both_sides(self) -> None:
        rows = asked(queries.wait_sites)
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
        (row,) = asked(queries.totals)
        expected = {
            **{"calls": 78, "switches": 120, "steals": 4, "wakes": 111, "useful": 100},
            **{"false_": 10, "timeout": 1, "lost_race": 0, "signals_unheard": 5},
            **{"broadcasts_unheard": 2, "waste_ns": 70_000, "lock_waits": 3},
            **{"lock_wait_ns": 30 * MS, "lock_spin_ns": 3000},
        }
        self.assertEqual({key: row[key] for key in expected}, expected)

    def test_herds_and_lateness_are_summed_over_workers(self) -> None:
        herds = [{"size_from": 4, "count": 3}, {"size_from": 4, "count": 2, "writer": 1}]
        self.assertEqual(picked(asked(queries.herds, herds=herds), "size_from", "count"), [(4, 5)])
        self.assertEqual(
            picked(asked(queries.lateness), "late_from_ns", "count"), [(2048, 3), (4096, 1)]
        )
        (late,) = asked(queries.lateness_totals)
        self.assertEqual((late["late_ns"], late["late_most_ns"]), (12_000, 5000))

    def test_one_record_more_changes_its_figures_and_no_other(self) -> None:
        before = {row["wake_site"]: row for row in asked(queries.wake_ledger)}
        changed = copy.deepcopy(WAKES)
        changed[2]["lost_race"] = 1
        after = {row["wake_site"]: row for row in asked(queries.wake_ledger, wakes=changed)}
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
    def test_microstates_and_what_their_sum_lacks(self) -> None:
        short = [{**THREADS[0], "usr": 900 * MS}, *THREADS[1:]]
        rows = {row["thread_id"]: row for row in asked(queries.microstates, threads=short)}
        self.assertEqual((rows[1]["lck"], rows[1]["missing_ns"]), (30 * MS, 40 * MS))
        self.assertEqual((rows[2]["slp"], rows[2]["missing_ns"]), (900 * MS, 0))

    def test_jains_index(self) -> None:
        (row,) = asked(queries.accept_balance)
        self.assertEqual((row["threads"], row["accepted"], row["jain"]), (2, 8, 0.8))
        equal = [{**t, "accepted": 5} for t in THREADS]
        self.assertEqual(asked(queries.accept_balance, threads=equal)[0]["jain"], 1.0)
        alone = [{**t, "state": "accept", "accepted": 9 * (i == 0)} for i, t in enumerate(THREADS)]
        self.assertAlmostEqual(asked(queries.accept_balance, threads=alone)[0]["jain"], 1 / 3)

    def test_threads_that_have_ended(self) -> None:
        (row,) = asked(queries.ended_threads)
        self.assertEqual(
            (row["ended_threads"], row["ended_waits"], row["ended_usr"]), (2, 4, 5 * MS)
        )
        waited = {**WORKERS[1], "ended_mutex": 7, "ended_join": 3, "ended_poll": 1}
        (row,) = asked(queries.ended_threads, workers=[waited])
        self.assertEqual((row["ended_lck"], row["ended_slp"]), (10, 1))


def made(wanted: Wanted, **changed: Sequence[Row]) -> dict[str, Section]:
    database = engine.open_tables(orders(**changed))
    found = {section.key: section for section in sections(database, wanted)}
    database.close()
    return found


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
        # So many that they are looked at in pieces, by several threads.
        count = 400_000
        place = [i * 7919 % count for i in range(count)]
        columns: dict[str, Sequence[Any]] = {
            **{"process": ["a:1:1"] * count, "kind": ["mutex"] * count, "site": ["0x10"] * count},
            **{
                "holder_site": ["0x10"] * count,
                "lock": place,
                "contested": [1] * count,
                "wait_ns": place,
                "acquired": [1] * count,
            },
        }
        made_up = table_of("locks", columns)
        database = engine.open_tables({**orders(), "locks": made_up})
        names = {"locks": "wait_total_ns", "sides": "wait_ns"}
        found = sections(database, Wanted(sections=tuple(names), limit=3))
        for section in found:
            waits = [row[names[section.key]] for row in section.rows]
            self.assertEqual(waits, [count - 1, count - 2, count - 3], section.key)
            self.assertEqual(section.more, count - 3, section.key)
        database.close()

    def test_only_what_was_asked_for(self) -> None:
        self.assertEqual(list(made(Wanted(sections=("herds", "locks")))), ["locks", "herds"])

    def test_freebsds_name(self) -> None:
        unnamed = [{**row, "lock_name": None} for row in LOCKS]
        for rows, name in ((LOCKS, "orders"), (unnamed, "0xabc0")):
            found = made(Wanted(), locks=rows)["locks"].rows[0]["name"]
            self.assertEqual(found, f"orders.c:17 (mutex:{name})")

    def test_sections_of_nothing_say_why(self) -> None:
        database = engine.open_tables(tables())
        for section in sections(database, Wanted()):
            self.assertEqual(section.rows, [])
            self.assertTrue(section.empty)


class Notes(unittest.TestCase):
    def test_what_was_not_seen_is_told(self) -> None:
        whole = orders()
        self.assertIn("max, total, count, avg and wait_avg are not known", noted(whole))
        process = whole["processes"].to_pylist()[0]
        text = noted(orders(processes=[{**process, "lost_wakes": 3, "mode": "off"}]))
        self.assertIn("3 sorts of wake-ups did not fit", text)
        self.assertIn("recording is off", text)
        text = noted(orders(wakes=[{**WAKES[0], "unrecorded": 4}]))
        self.assertIn("4 waits could not be recorded whole", text)

    def test_why_there_is_nothing(self) -> None:
        self.assertIn("nothing was recorded: there is no process in it", noted(tables()))
        process = orders()["processes"].to_pylist()
        self.assertIn("no thread of rouse's", noted(tables(processes=process)))
        text = noted(tables(processes=process, threads=[{**THREADS[0], "waits": 0}]))
        self.assertIn("none of its 1 threads has ended one", text)

    def test_states_that_do_not_add_up(self) -> None:
        self.assertNotIn("do not add up", noted(orders()))
        off = [{**THREADS[0], "usr": 900 * MS}, *THREADS[1:]]
        text = noted(orders(threads=off))
        self.assertIn("of 1 of 3 threads the states do not add up", text)
        self.assertIn("by up to 40.0 ms", text)


class Facts(unittest.TestCase):
    def test_what_recording_cost_is_told(self) -> None:
        database = engine.open_tables(orders(wakes=[{**WAKES[0], "useful": 1_000_000}]))
        told = dict(facts.facts(database, "x"))["cost of recording"]
        database.close()
        self.assertIn("26.0 ms of CPU time for 1,000,000 waits", told)
        self.assertIn("3.7 % of the time that the workers were busy", told)  # 600 and 100 ms

    def test_nothing_recorded_cost_nothing(self) -> None:
        database = engine.open_tables(orders(wakes=[]))
        self.assertNotIn("cost of recording", dict(facts.facts(database, "x")))
        database.close()


class Schemas(unittest.TestCase):
    def test_they_are_those_of_the_decoder(self) -> None:
        decoded = decoder.tables(Builder().store())
        self.assertEqual(set(decoded), set(schemas.SCHEMAS))
        for name, schema in schemas.SCHEMAS.items():
            own = {field.name: field.type for field in schema}
            theirs = {field.name: field.type for field in decoded[name].schema}
            self.assertEqual(own, theirs, name)

    def test_workers_of_orders_have_no_unknown_column(self) -> None:
        names = set(schemas.SCHEMAS["workers"].names)
        self.assertLessEqual({key for row in WORKERS for key in row}, names)


if __name__ == "__main__":
    unittest.main()
