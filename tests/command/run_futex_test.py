#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Known waits of a program that makes its own futex system calls (raw_futex.c)."""

from __future__ import annotations

import subprocess
import tempfile
import unittest
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source, played, recorded

FUTEX = Source("raw_futex")
KNOWN, label = FUTEX.known, FUTEX.label
SCENES = ("wake", "herd", "end", "requeue", "pi", "others")
VERDICTS = ("useful", "lost_race", "false_", "timeout", "cancelled")

# A lock like those of Rust's standard library: a futex word, and a function for the slow path.
OWN_LOCK = """\
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>
static unsigned word;
static __attribute__((noinline)) void lock_contended(void)
{
    while (__atomic_exchange_n(&word, 2, __ATOMIC_ACQUIRE) != 0)
        syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
}
static void unlock(void)
{
    if (__atomic_exchange_n(&word, 0, __ATOMIC_RELEASE) == 2)
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
static void *take(void *unused)
{
    lock_contended();
    unlock();
    return unused;
}
int main(void)
{
    pthread_t thread;
    lock_contended();
    pthread_create(&thread, NULL, take, NULL);
    usleep(100000);
    unlock();
    pthread_join(thread, NULL);
}
"""


class OwnLocks(unittest.TestCase):
    def test_locks_made_of_futex_words_are_not_denied(self) -> None:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "own.c").write_text(OWN_LOCK)
            words = ["gcc", "-g", "-O1", "-pthread", "-o", "own", "own.c"]
            subprocess.run(words, cwd=folder, check=True)
            done = rouse("run", "--", folder / "own", ROUSE_PRELOAD=str(LIBRARY), COLUMNS="1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stderr, "note: 1 wait of kind futex, .* are for locks that the program")
        self.assertRegex(done.stderr, "futex +lock_contended own.c:9 +woke +unlock own.c:14 +word")
        self.assertIn("no thread met a lock of POSIX or librouse that was held", done.stderr)


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
