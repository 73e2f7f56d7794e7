#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits of programs that make futex system calls of their own (raw_futex.c, own_lock.c)."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import unittest
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import here, rouse

from interposed import LIBRARY, Source, is_cross_built, played, recorded

FUTEX = Source("raw_futex")
KNOWN, label = FUTEX.known, FUTEX.label
SCENES = ("wake", "herd", "end", "requeue", "pi", "others")
VERDICTS = ("useful", "lost_race", "false_", "timeout", "cancelled")

OWN = Source("own_lock")
# Locks of Rust's standard library that are contended, and waits of it that are for no lock.
RUST = """\
use std::sync::{Condvar, Mutex, RwLock};
use std::thread;

static LOCK: Mutex<u32> = Mutex::new(0);
static TABLE: RwLock<u32> = RwLock::new(0);
static READY: Mutex<bool> = Mutex::new(false);
static CHANGED: Condvar = Condvar::new();

fn sleeps(tid: i32) {
    loop {
        let text = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap();
        if text.rsplit(')').next().unwrap().starts_with(" S") {
            return;
        }
        thread::yield_now();
    }
}

extern "C" { fn gettid() -> i32; }

/* Run wait in a thread, and end its wait by the returned call as soon as it sleeps. */
fn scene<G>(hold: impl FnOnce() -> G, wait: fn(), end: impl FnOnce(&thread::Thread, G)) {
    let held = hold();
    let (say, heard) = std::sync::mpsc::channel();
    let waiter = thread::spawn(move || {
        say.send(unsafe { gettid() }).unwrap();
        wait();
    });
    let tid = heard.recv().unwrap();
    sleeps(tid);
    end(waiter.thread(), held);
    waiter.join().unwrap();
}

#[inline(never)]
fn take_mutex() { *LOCK.lock().unwrap() += 1; }
#[inline(never)]
fn take_to_read() { assert!(*TABLE.read().unwrap() < 9); }
#[inline(never)]
fn take_to_write() { *TABLE.write().unwrap() += 1; }
#[inline(never)]
fn wait_for_change() {
    let mut ready = READY.lock().unwrap();
    while !*ready { ready = CHANGED.wait(ready).unwrap(); }
}
#[inline(never)]
fn park() { thread::park(); std::hint::black_box(()); }

fn main() {
    scene(|| LOCK.lock().unwrap(), take_mutex, |_, held| drop(held));
    scene(|| TABLE.write().unwrap(), take_to_read, |_, held| drop(held));
    scene(|| TABLE.write().unwrap(), take_to_write, |_, held| drop(held));
    scene(|| (), wait_for_change, |_, _| { *READY.lock().unwrap() = true; CHANGED.notify_one(); });
    scene(|| (), park, |waiter, _| waiter.unpark());
}
"""
DEPTH = "8"
CLOCKS = 0.01  # by which the program's clock and the recorder's may differ


def compiled_rust(folder: Path) -> Path:
    """Compile the program of Rust. Skips the test without a compiler for that."""
    if is_cross_built():
        print("not run: rustc compiles for this machine only", flush=True)
        raise unittest.SkipTest("rustc compiles for this machine only")
    (folder / "locks.rs").write_text(RUST)
    words = ["rustc", "-O", "-g", "-C", "force-frame-pointers=yes", "locks.rs"]
    try:
        subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        print("not run: there is no rustc", flush=True)
        raise unittest.SkipTest("there is no rustc") from None
    return folder / "locks"


class OwnLocks(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_it(self, *program: str | Path, depth: str = "1") -> tuple[dict[str, Any], str]:
        """The report, and what the program printed."""
        file = self.folder / "report.json"
        options = ("--json", "-o", file, "--depth", depth)
        done = rouse("run", *options, "--", *program, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return found, done.stdout

    def check_lock(self, report: dict[str, Any], said: str, waits_at: str) -> None:
        """All tables have the waits for the word once, and the program's own clock has them too."""
        found = report["sections"]
        names = ("kind", "site_label", "holder_label", "lock_label")
        release = f"{OWN.label('/* by the unlock */')} (release)"
        sides = {tuple(side[name] for name in names) for side in found["sides"]}
        self.assertEqual(sides, {("futex lock", waits_at, release, "word")})
        takers, locked_ns = (
            sum(side[n] for side in found["sides"]) for n in ("contested", "wait_ns")
        )
        self.assertEqual(takers, OWN.known["TAKERS"])
        least_ns, most_ns = map(int, said.split())
        self.assertGreater(least_ns, 0)
        self.assertGreater(locked_ns, least_ns * (1 - CLOCKS))
        self.assertLess(locked_ns, most_ns * (1 + CLOCKS))
        waits = [row for row in found["waits"] if row["object_name"] == "word"]
        self.assertEqual({row["role"] for row in waits}, {"released"})
        self.assertEqual(sum(row["count"] for row in waits), takers)
        locks = {row["site_label"]: row for row in found["locks"]}
        self.assertEqual(locks[waits_at]["cnt_lock"], takers)
        self.assertEqual(locks[OWN.label("/* by the unlock */")]["cnt_hold"], takers)
        self.assertIsNone(locks[waits_at]["count"])
        total, (group,) = found["totals"][0], found["groups"]
        self.assertEqual((total["lock_waits"], group["sem"]), (takers, 0))
        waited = sum(row["wait_ns"] for row in waits)
        for ns in (waited, total["lock_wait_ns"], group["mutex"]):
            self.assertAlmostEqual(ns, locked_ns, delta=2 * takers)  # each row is rounded

    def test_a_word_that_is_waited_for_in_the_slow_path_of_a_lock_is_a_lock(self) -> None:
        report, said = self.run_it(OWN.program, "lock")
        self.check_lock(report, said, OWN.label("/* for the lock */"))

    def test_a_function_further_out_may_say_that_it_is_a_lock(self) -> None:
        report, said = self.run_it(OWN.program, "deep", depth=DEPTH)
        self.check_lock(report, said, OWN.label("/* for any word */"))

    def test_a_condition_is_no_lock(self) -> None:
        report, _ = self.run_it(OWN.program, "condition", depth=DEPTH)
        found = report["sections"]
        self.assertEqual((found["locks"], found["sides"]), ([], []))
        self.assertEqual([row["kind"] for row in found["wakes"]], ["futex"])
        self.assertEqual(sum(group["mutex"] for group in found["groups"]), 0)

    def test_the_report_shows_the_release_and_says_what_is_not_known(self) -> None:
        words = ("run", "--full", "--", OWN.program, "lock")
        done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY), COLUMNS="1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, r"lock_contended own_lock.c:\d+ +unlock own_lock.c:\d+ \(rel")
        self.assertIn("note: futex locks are built by the program or its language", done.stderr)
        self.assertNotIn("no thread met a lock", done.stderr)

    def test_a_recording_and_the_other_engine_have_the_same_locks(self) -> None:
        kept = self.folder / "kept"
        done = rouse("run", "--keep", kept, "--", OWN.program, "lock", ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual(done.returncode, 0, done.stderr)
        sides = []
        for engine in ("sqlite", "duckdb"):
            said = here("report", "--json", "--engine", engine, kept)
            self.assertEqual(said.returncode, 0, said.stderr)
            sides.append(json.loads(said.stdout)["sections"]["sides"])
        self.assertEqual(sides[0], sides[1])
        self.assertEqual({row["kind"] for row in sides[0]}, {"futex lock"})
        compared = here("compare", "--json", kept, kept)
        self.assertEqual(compared.returncode, 0, compared.stderr)
        locks = json.loads(compared.stdout)["sections"]["locks"]
        self.assertIn(("futex lock", "word"), {(row["kind"], row["lock_name"]) for row in locks})

    def test_locks_of_rust_are_locks_and_its_other_waits_are_not(self) -> None:
        report, _ = self.run_it(compiled_rust(self.folder), depth=DEPTH)
        found: dict[str, set[str]] = {}
        for row in report["sections"]["wakes"]:
            place = re.match(r"(?:\w+::)?(\w+) locks.rs", row["wait_label"])
            if place and row["useful"]:
                found.setdefault(row["kind"], set()).add(place[1])
        self.assertEqual(found["futex lock"], {"take_mutex", "take_to_read", "take_to_write"})
        self.assertLessEqual({"wait_for_change", "park"}, found["futex"])
        self.assertFalse(found["futex"] & found["futex lock"])


class Futexes(unittest.TestCase):
    scenes: Mapping[str, Mapping[str, list[dict[str, Any]]]]

    @classmethod
    def setUpClass(cls) -> None:
        cls.scenes = played(FUTEX, *SCENES)

    def check_scene(self, scene: str, wakers: dict[str, int], **expected: int) -> None:
        """Check all verdicts, and the number of useful wake-ups by wake site."""
        found = self.scenes[scene]
        self.assertEqual({row["kind"] for row in found["wakes"]} - {"futex"}, set())
        got = {name: sum(row[name] for row in found["wakes"]) for name in VERDICTS}
        self.assertEqual({name: count for name, count in got.items() if count}, expected)
        counts: Counter[str] = Counter()
        for row in found["wakes"]:
            counts[row["wake_label"]] += row["useful"]
        self.assertEqual(+counts, wakers)

    def unheard(self, scene: str) -> tuple[int, int]:
        row = self.scenes[scene]["totals"][0]
        return row["signals_unheard"], row["broadcasts_unheard"]

    def test_each_wait_has_its_waker_and_its_word(self) -> None:
        self.check_scene("wake", {label("/* to one */"): KNOWN["WAKES"]}, useful=KNOWN["WAKES"])
        (row,) = self.scenes["wake"]["wakes"]
        self.assertEqual((row["wait_label"], row["object_name"]), (label("/* by one */"), "word"))
        self.assertEqual(self.unheard("wake"), (KNOWN["UNHEARD"], KNOWN["UNHEARD"]))

    def test_a_herd_is_as_large_as_the_kernel_says(self) -> None:
        self.check_scene("herd", {label("/* to a herd */"): KNOWN["HERD"]}, useful=KNOWN["HERD"])
        herds = self.scenes["herd"]["herds"]
        self.assertEqual([(row["size_from"], row["count"]) for row in herds], [(4, 1)])

    def test_each_end_has_its_verdict_and_errors_are_no_waits(self) -> None:
        known = {"lost_race": KNOWN["CHANGED"], "timeout": KNOWN["LATE"], "cancelled": 1}
        self.check_scene("end", {}, **known)

    def test_a_requeued_thread_is_woken_at_its_new_word(self) -> None:
        moved = KNOWN["MOVED"]
        wakers = {label("/* wakes one */"): 1, label("/* wakes the moved */"): moved}
        self.check_scene("requeue", wakers, useful=moved + 1)
        self.assertEqual(self.unheard("requeue"), (0, 1))

    def test_a_lock_that_inherits_priority_is_handed_on(self) -> None:
        holder, waiter = label("/* of PI */", 1), label("/* of PI */")
        self.check_scene("pi", {holder: 1, waiter: KNOWN["PI"] - 1}, useful=KNOWN["PI"])

    def test_thread_that_comes_too_late_takes_no_wake_up_from_a_waiter(self) -> None:
        rows = recorded(self, FUTEX, "too_late")["wakes"]
        wakers = {row["wait_label"]: row["wake_label"] for row in rows if row["kind"] == "futex"}
        self.assertEqual(wakers[label("/* second */")], label("/* wakes unseen */"))
        self.assertNotIn("raw_futex.c", wakers[label("/* too late */")])

    def test_other_calls_are_no_waits(self) -> None:
        self.check_scene("others", {})

    def test_without_the_library_all_calls_return_the_same(self) -> None:
        for scene in SCENES:
            done = subprocess.run([FUTEX.program, scene], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""), scene)


if __name__ == "__main__":
    unittest.main(verbosity=2)
