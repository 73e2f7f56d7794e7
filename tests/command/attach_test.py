#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse watch` names where the threads of a program wait that was started without rouse."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import BUILD, FIXTURES, SOURCE, here, main_unless, next_line, send, start, start_ready

from rouse.query import scheduler
from rouse.query.paths import GO, Paths, site_of
from rouse.sched import switches
from rouse.sched.probe import BY_BPF
from rouse.symbols.sites import Frame

TEXT = (SOURCE / "tests" / "command" / "fixtures" / "attached.c").read_text(encoding="utf-8")
HEADER = (SOURCE / "tests" / "command" / "fixtures" / "pthreads.h").read_text(encoding="utf-8")
PLACE = {"ROUSE_KERNEL": str(BUILD / "kernel" / BY_BPF)}
APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
Row = dict[str, Any]
RUST = """\
use std::{sync::*, thread, time::Duration};
type Door = (Mutex<bool>, Condvar);
#[inline(never)]
fn update(lock: &Mutex<u64>) {
    let mut sum = lock.lock().unwrap();
    thread::sleep(Duration::from_millis(2));
    *sum += 1;
}
#[inline(never)]
fn hear(door: &Door) {
    let mut open = door.0.lock().unwrap();
    while !*open {
        open = door.1.wait(open).unwrap();
    }
    *open = false;
}
#[inline(never)]
fn tell(door: &Door) {
    *door.0.lock().unwrap() = true;
    door.1.notify_one();
    thread::sleep(Duration::from_millis(3));
    drop(door.0.lock());
}
fn main() {
    static LOCK: Mutex<u64> = Mutex::new(0);
    static DOOR: Door = (Mutex::new(false), Condvar::new());
    for _ in 0..2 {
        thread::spawn(|| loop { update(&LOCK) });
    }
    thread::spawn(|| loop { hear(&DOOR) });
    println!("ready");
    loop { tell(&DOOR) }
}
"""


def known(name: str) -> int:
    found = re.search(rf"^    {name} = (\d+),", TEXT, re.M)
    assert found
    return int(found[1])


def line_of(call: str, function: str) -> str:
    """The label of the line with a call, in a function."""
    begin = TEXT.index(f"{function}(")
    at = TEXT.index(call, begin)
    return f"{function.split()[-1]} attached.c:{TEXT.count(chr(10), 0, at) + 1}"


def not_run() -> str:
    with mock.patch.dict(os.environ, PLACE):
        return switches.why_not()


class Sites(unittest.TestCase):
    """The place of a call path, by the names of its functions."""

    def site(self, *functions: str) -> tuple[str, str]:
        found = site_of([Frame(1, function, function=function) for function in functions])
        return found.label, found.kind

    def test_functions_of_static_libraries_and_runtimes_are_passed_over(self) -> None:
        for functions, label, kind in (
            (("__lll_lock_wait", "___pthread_mutex_lock", "serve", "main"), "serve", "mutex"),
            (("__lll_lock_wait_private", "_int_free", "cfree", "serve"), "serve", "malloc"),
            (("__libc_read", "_IO_new_file_underflow", "_IO_fgets", "main"), "main", ""),
            (("futex_wait", "parking_lot::raw_mutex::RawMutex::lock_slow", "run"), "run", ""),
            (
                ("runtime.futex", "runtime.mPark", "runtime.findRunnable"),
                "runtime.findRunnable",
                GO,
            ),
            (("internal/runtime/syscall/linux.Syscall6", "syscall.Read", "main.f"), "main.f", ""),
            (("futex_wait",), "futex_wait", ""),
            ((), "-", ""),
        ):
            self.assertEqual(self.site(*functions), (label, kind))


@unittest.skipIf(not_run(), f"not run: {not_run()}")
class Seen(unittest.TestCase):
    def watched(self, program: str, scene: str) -> tuple[list[Row], int, int]:
        """The rows of a scene, how long it waited by its clock, and was preempted."""
        if not (FIXTURES / program).exists():
            self.skipTest("not run: the static programs were not built")
        running = start_ready(self, FIXTURES / program, scene)
        with mock.patch.dict(os.environ, PLACE):
            recorder = switches.watch([running.pid])
        self.addCleanup(recorder.close)
        send(running, "go\n")
        done, waited_ns = next_line(running).split()
        self.assertEqual(done, "done")
        found = recorder.stop()
        paths = Paths(found)
        self.assertEqual(scheduler.notes(found) + paths.all_notes(), [])
        preempted_ns = sum(row["preempted_ns"] for row in scheduler.thread_rows(found))
        return paths.rows, int(waited_ns), preempted_ns

    def waits(self, program: str) -> None:
        for scene, kind, at, by in (
            (
                "mutex",
                "mutex",
                ("pthread_mutex_lock", "void take"),
                ("pthread_mutex_unlock", "give_back"),
            ),
            (
                "condition",
                "condition",
                ("pthread_cond_wait", "hear"),
                ("pthread_cond_signal", "tell"),
            ),
        ):
            with self.subTest(scene):
                rows, waited_ns, preempted_ns = self.watched(program, scene)
                (row,) = [row for row in rows if row["kind"] == kind]
                self.assertEqual(row["label"], line_of(*at))
                self.assertEqual(row["woken_from"], line_of(*by))
                name = "global_lock" if kind == "mutex" else "global_condition"
                self.assertEqual(row["object"], name)
                self.assertEqual((row["count"], row["threads"]), (known("ROUNDS"), 1))
                # The program's clock includes the run queue, and two calls of the clock each time.
                slept_ns = row["asleep_ns"] + row["queued_ns"]
                self.assertLessEqual(slept_ns, waited_ns)
                self.assertGreater(slept_ns + preempted_ns, 0.9 * waited_ns)

    def test_waiter_and_waker_are_named_by_function_and_line(self) -> None:
        self.waits("attached")

    def test_a_watch_in_a_pid_namespace_found_no_thread(self) -> None:
        """The kernel's programs see the numbers of the initial namespace only."""
        if subprocess.run([*APART, "true"], capture_output=True).returncode:
            self.skipTest("not run: cannot create a PID namespace")
        test = f"{type(self).__name__}.test_waiter_and_waker_are_named_by_function_and_line"
        done = subprocess.run(
            [*APART, sys.executable, __file__, test], capture_output=True, text=True, timeout=60
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("Ran 1 test", done.stderr)
        self.assertNotIn("skipped", done.stderr)

    def test_those_of_a_static_program_are_named(self) -> None:
        self.waits("attached_static")

    def test_names_are_those_of_the_program_that_was_executed_meanwhile(self) -> None:
        shell = start(self, "sh", "-c", 'read line; exec "$0" mutex', FIXTURES / "attached")
        with mock.patch.dict(os.environ, PLACE):
            recorder = switches.watch([shell.pid])
        self.addCleanup(recorder.close)
        send(shell, "go\n")
        self.assertEqual(next_line(shell), "ready\n")
        send(shell, "go\n")
        next_line(shell)
        rows = {row["label"]: row for row in Paths(recorder.stop()).rows}
        self.assertEqual(rows[line_of("pthread_mutex_lock", "void take")]["count"], known("ROUNDS"))

    def test_without_symbols_a_place_is_an_address_in_its_file(self) -> None:
        rows, *_ = self.watched("attached_stripped", "mutex")
        (row,) = [row for row in rows if row["kind"] == "mutex"]
        self.assertRegex(row["label"], r"^attached_stripped\+0x[0-9a-f]+$")
        self.assertRegex(row["woken_from"], r"^attached_stripped\+0x[0-9a-f]+$")
        self.assertRegex(row["object"], r"^0x[0-9a-f]+$")
        self.assertEqual(row["count"], known("ROUNDS"))

    def test_functions_at_the_same_depth_are_told_apart(self) -> None:
        rows, *_ = self.watched("attached", "two")
        counts = {row["label"]: row["count"] for row in rows if row["kind"] == "mutex"}
        places = [line_of("pthread_mutex_lock", name) for name in ("void take", "take_too")]
        self.assertEqual(counts, dict.fromkeys(places, known("ROUNDS") // 2))

    def test_unnamed_conditions_at_one_place_are_one_row(self) -> None:
        rows, *_ = self.watched("attached", "crowd")
        (row,) = [row for row in rows if row["label"].startswith("own_waiter")]
        found = re.search(r"^    WAITERS = (\d+),", HEADER, re.M)
        assert found
        self.assertEqual((row["threads"], len(row["objects"])), (int(found[1]),) * 2)
        self.assertEqual((row["kind"], row["object"]), ("condition", f"{found[1]} objects"))

    def test_locks_inside_malloc_are_named(self) -> None:
        rows, *_ = self.watched("attached", "heap")
        found = [row for row in rows if row["kind"] == "malloc"]
        self.assertTrue(found, rows)
        longest = found[0]  # threads that begin allocate too
        places = (longest["label"].split()[0], longest["woken_from"].split()[0])
        self.assertEqual(places, ("churn", "churn"))

    def test_locks_and_conditions_of_rust_are_named(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            (place / "locks.rs").write_text(RUST, encoding="utf-8")
            words = ["rustc", "-O", "-g", "locks.rs"]
            try:
                subprocess.run(words, cwd=place, check=True, capture_output=True)
            except FileNotFoundError:
                print("not run: there is no rustc", flush=True)
                raise unittest.SkipTest("there is no rustc") from None
            program = start_ready(self, place / "locks")
            said = here("watch", str(program.pid), "--seconds", "1", "--json", **PLACE)
            program.kill()
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        rows = {
            (row["kind"], row["label"].split()[0]): row
            for row in json.loads(said.stdout)["sections"]["sleep_sites"]
        }
        self.assertGreater(rows["lock", "locks::update"]["count"], 1)
        heard = rows["condition", "locks::hear"]
        self.assertEqual(heard["woken_from"].split()[0], "locks::tell")

    def test_the_command_prints_the_division_of_time_and_the_places(self) -> None:
        program = start_ready(self, FIXTURES / "attached", "endless")
        send(program, "go\n")
        said = here("watch", str(program.pid), "--seconds", "1", "--json", **PLACE)
        self.assertEqual((said.returncode, said.stderr), (0, ""))
        whole = json.loads(said.stdout)
        self.assertAlmostEqual(sum(whole["verdict"]["time"].values()), 1, delta=1e-6)
        self.assertGreater(whole["verdict"]["time"]["locks"], 0)
        rows = {row["label"]: row for row in whole["sections"]["sleep_sites"]}
        row = rows[line_of("pthread_mutex_lock", "void take")]
        self.assertEqual((row["object"], row["held_from"]), ("global_lock", None))
        # A thread that slept before the watch began, and has not been woken: its stack is known.
        self.assertEqual(rows[line_of("read(", "over")]["count"], 1)
        text = here("watch", str(program.pid), "--seconds", "1", **PLACE)
        self.assertRegex(text.stdout, r"^Verdict\n.*threads' time: ")
        self.assertIn("the kernel does not see who acquires a lock", text.stdout)

    def test_a_program_that_ends_meanwhile_is_named(self) -> None:
        program = start_ready(self, FIXTURES / "attached", "mutex")
        watch = subprocess.Popen(
            [BUILD / "kernel" / BY_BPF, "watch", str(program.pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.assertEqual(next_line(watch), "ready\n")
        send(program, "go\n")
        next_line(program)
        program.communicate(timeout=60)  # its input ends, and so does it
        found = switches.decode(watch.communicate(timeout=60)[0])
        rows = Paths(found).rows
        self.assertIn(line_of("pthread_mutex_lock", "void take"), [row["label"] for row in rows])


if __name__ == "__main__":
    main_unless("" if (FIXTURES / "attached").exists() else "its program was not built")
