#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Sites of a C++ program are its own functions and lines, not those of the library's headers.

The first put holds the lock long enough for checkpoint and the other put to wait for it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from common import here

from interposed import environment

SOURCE_TEXT = """\
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>
static std::atomic<bool> started;
class Table {
    std::mutex m;

public:
    void checkpoint()
    {
        std::lock_guard<std::mutex> hold(m);
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    __attribute__((noinline)) void put()
    {
        std::unique_lock<std::mutex> hold(m);
        std::this_thread::sleep_for(std::chrono::milliseconds(started.exchange(true) ? 5 : 200));
    }
};
static Table table;
int main()
{
    std::vector<std::thread> all;
    for (int i = 0; i < 2; i++)
        all.emplace_back([] { for (int n = 0; n < 5; n++) table.put(); });
    while (!started)
        std::this_thread::yield();
    for (int n = 0; n < 5; n++)
        table.checkpoint();
    for (auto &one : all)
        one.join();
}
"""
CHECKPOINT, PUT = "Table::checkpoint convoyio.cpp:13", "Table::put convoyio.cpp:18"
HEADERS = ("gthr-default.h", "std_mutex.h", "this_thread_sleep.h", "unique_lock.h")


class Sites(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "convoyio.cpp").write_text(SOURCE_TEXT)

    def recorded(self, *flags: str, depth: str = "") -> str:
        words = ["g++", *flags, "-pthread", "-o", "convoyio", "convoyio.cpp"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        stores = self.folder / "stores"
        stores.mkdir(mode=0o700)
        more = {"ROUSE_OBS_DEPTH": depth} if depth else {}
        own = {**os.environ, **environment(stores), **more}
        subprocess.run([self.folder / "convoyio"], env=own, check=True, timeout=60)
        (store,) = stores.iterdir()
        return str(store)

    def report(self, store: str, form: str) -> str:
        out = self.folder / "out"
        done = here("report", "--all", "--format", form, "-o", out, store)
        self.assertEqual(done.returncode, 0, done.stderr)
        return out.read_bytes().decode("utf-8", "replace")

    def test_every_format_names_the_function_and_the_line(self) -> None:
        store = self.recorded("-O2", "-g")
        for form in ("text", "html", "json", "folded", "prometheus"):
            with self.subTest(form=form):
                text = self.report(store, form)
                for place in (CHECKPOINT, PUT):
                    self.assertIn(place, text)
                for header in HEADERS:
                    self.assertNotIn(header, text)
        profile = self.report(store, "pprof")
        shown = subprocess.run(
            ["gzip", "-dc", self.folder / "out"], check=False, capture_output=True
        )
        names = shown.stdout.decode("utf-8", "replace") or profile
        self.assertIn("Table::checkpoint", names)
        self.assertNotIn("gthr-default.h", names)

    def test_without_optimisation_the_callers_are_recorded(self) -> None:
        """Nothing is inlined then, so the stacks must be deep enough to reach the program."""
        found = json.loads(self.report(self.recorded("-O0", "-g", depth="6"), "json"))
        locks = {row["wait_label"] for row in found["sections"]["wakes"] if row["kind"] == "mutex"}
        self.assertLessEqual(locks, {CHECKPOINT, PUT})
        self.assertTrue(locks)


if __name__ == "__main__":
    if not shutil.which("g++"):
        print("not run: no g++ here")
        sys.exit(77)
    unittest.main(verbosity=2)
