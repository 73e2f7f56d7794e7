#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse run` records call stacks by default; its text has one row per place in the program."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source, unless_emulated

STACKS = Source("call_stacks")
TAKE = STACKS.label("lock(&lock) == 0);")
WRAPPED = """\
#include <mutex>
#include <thread>
#include <unistd.h>
#include <vector>
static std::mutex table_lock;
static void look_up()
{
    std::lock_guard<std::mutex> hold(table_lock);
    usleep(2000);
}
static void update()
{
    std::lock_guard<std::mutex> hold(table_lock);
    usleep(2000);
}
int main()
{
    std::vector<std::thread> all;
    for (int i = 0; i < 3; i++)
        all.emplace_back([] { for (int n = 0; n < 40; n++) n % 2 ? look_up() : update(); });
    for (auto &one : all)
        one.join();
}
"""
ONE_FUNCTION = """\
#include <poll.h>
#include <pthread.h>
static volatile int kept; /* no call ends its function, so that each is in the stack */
__attribute__((noinline)) static void await_event(int ms)
{
    struct pollfd none = { -1, 0, 0 };
    kept = poll(&none, 1, ms);
}
__attribute__((noinline)) static void prepare(int ms) { await_event(ms); kept = ms; }
__attribute__((noinline)) static void lock_row(void) { prepare(9); kept = 1; }
__attribute__((noinline)) static void read_query(void) { prepare(3); kept = 2; }
__attribute__((noinline)) static void look(void) { prepare(1); kept = 3; }
int main(void)
{
    for (int i = 0; i < 20; i++) {
        lock_row();
        read_query();
    }
    look();
    return 0;
}
"""
# The same, but waits for a condition, which is signalled while its mutex is locked.
ONE_CONDITION = """
#include <pthread.h>
#include <stdbool.h>
#include <unistd.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t came = PTHREAD_COND_INITIALIZER;
static bool is_there;
__attribute__((noinline)) void await_event(void)
{
    pthread_mutex_lock(&lock);
    while (!is_there)
        pthread_cond_wait(&came, &lock);
    is_there = false;
    pthread_mutex_unlock(&lock);
}
__attribute__((noinline)) void lock_row(void) { await_event(); __asm__ volatile(""); }
__attribute__((noinline)) void read_query(void) { await_event(); __asm__ volatile(""); }
static void *wait_for_it(void *unused)
{
    for (int i = 0; i < 20; i++) {
        lock_row();
        read_query();
    }
    return unused;
}
int main(void)
{
    pthread_t thread;
    pthread_create(&thread, NULL, wait_for_it, NULL);
    for (int i = 0; i < 40; i++) {
        bool is_taken = false;
        usleep(5000);
        pthread_mutex_lock(&lock);
        is_there = true;
        pthread_cond_signal(&came);
        pthread_mutex_unlock(&lock);
        while (!is_taken) {
            usleep(100);
            pthread_mutex_lock(&lock);
            is_taken = !is_there;
            pthread_mutex_unlock(&lock);
        }
    }
    return pthread_join(thread, NULL);
}
"""
LOOK_UP, UPDATE = "look_up wrapped.cpp:8", "update wrapped.cpp:13"


class Places(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_it(self, *words: str | Path) -> str:
        done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY), COLUMNS="1000")
        self.assertEqual(done.returncode, 0, done.stderr)
        return str(done.stderr)

    def sides(self, text: str) -> list[str]:
        """The rows of Waiters and holders."""
        found = re.search(r"\nWaiters and holders\n.*\n.*\n((?:.+\n)+)", text)
        return found[1].splitlines() if found else []

    def test_text_has_one_row_for_a_place_that_several_callers_reach(self) -> None:
        rows = self.sides(self.run_it("--full", "--", STACKS.program, "wrapped"))
        self.assertEqual(len([row for row in rows if TAKE in row]), len(rows))
        waits_at = [re.split(r"  +", row.strip())[6] for row in rows]
        self.assertEqual(len(waits_at), len(set(rows)))
        self.assertEqual(set(waits_at), {TAKE})

    def test_on_request_text_has_one_row_per_stack(self) -> None:
        text = self.run_it("--stacks", "--", STACKS.program, "wrapped")
        for way in ("/* the first way */", "/* the second way */"):
            self.assertIn(f" from {STACKS.label(way)}", text)

    @unless_emulated("the compiler makes programs of this machine")
    def test_callers_divide_a_function_in_which_all_threads_wait(self) -> None:
        source, program = self.folder / "one.c", self.folder / "one"
        source.write_text(ONE_FUNCTION)
        subprocess.run(["cc", "-g", "-O1", "-pthread", "-o", program, source], check=True)
        kept, tables = self.folder / "kept", self.folder / "tables"
        text = self.run_it("--keep", kept, "--", program)
        self.check_callers(text)
        for words in (("--sum",), ("--format", "parquet", "-o", tables)):
            done = rouse("report", *words, kept, COLUMNS="1000")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            if words[0] == "--sum":
                self.check_callers(done.stdout)
        of_tables = rouse("report", tables, COLUMNS="1000").stdout
        self.check_callers(of_tables)
        self.assertIn("note: tables have no samples of where threads ran", of_tables)
        whole = json.loads(rouse("report", "--format", "json", kept).stdout)
        labels = {row["wait_label"] for row in whole["sections"]["waits"]}
        for caller in ("lock_row", "read_query"):
            self.assertTrue(any(f" from {caller} one.c:" in label for label in labels), labels)
        full = rouse("report", "--full", kept, COLUMNS="1000").stdout
        self.assertRegex(full, r"await_event one\.c:\d+ from lock_row one\.c:\d+")

    @unless_emulated("the compiler makes programs of this machine")
    def test_callers_divide_waits_for_a_condition_that_is_signalled_under_its_mutex(self) -> None:
        source, program = self.folder / "one.c", self.folder / "one"
        source.write_text(ONE_CONDITION)
        subprocess.run(["cc", "-g", "-O1", "-pthread", "-o", program, source], check=True)
        text = self.run_it("--", program)
        for caller in ("lock_row", "read_query"):
            self.assertRegex(text, rf"condition came +await_event one\.c:\d+ from {caller} one")

    @unless_emulated("the compiler makes programs of this machine")
    def test_a_process_with_one_caller_names_it_as_the_others_do(self) -> None:
        source, program = self.folder / "one.c", self.folder / "one"
        text = ONE_FUNCTION.replace("    for (int", "    int child = fork();\n    for (int")
        text = text.replace("        read_query();", "        child ? read_query() : lock_row();")
        text = text.replace("    look();", "    child ? (void)wait(NULL) : (void)look;")
        source.write_text(f"#include <sys/wait.h>\n#include <unistd.h>\n{text}")
        subprocess.run(["cc", "-g", "-O1", "-pthread", "-o", program, source], check=True)
        kept = self.folder / "kept"
        self.run_it("--keep", kept, "--", program)
        for words in ([], ["--sum"], ["--full"]):
            shown = rouse("report", *words, kept, COLUMNS="1000").stdout
            counts = re.findall(r"await_event one\.c:\d+(?: from (\w+))?", shown)
            self.assertLessEqual({"lock_row", "read_query"}, set(counts), shown)
            if "--full" not in words:
                self.assertNotIn("", counts, shown)

    def check_callers(self, text: str) -> None:
        lines = re.findall(r"(?m)^ *([\d.]+ .* await_event one\.c:.*)$", text)
        rows = [re.split(r"  +", row) for row in lines]
        named = {row[4].partition(" from ")[2].partition(" ")[0]: row[1] for row in rows}
        named.pop("", None)  # look() waits too briefly for a row of its own
        self.assertEqual(named, {"lock_row": "20", "read_query": "20"}, text)

    def test_other_formats_have_whole_stacks(self) -> None:
        found: dict[str, Any] = json.loads(self.run_it("--json", "--", STACKS.program, "wrapped"))
        stacks = [frames for frames in found["stacks"].values() if frames[0] == TAKE]
        for way in ("/* the first way */", "/* the second way */"):
            self.assertTrue(any(STACKS.label(way) in frames for frames in stacks))

    @unittest.skipUnless(shutil.which("g++"), "not run: no g++ here")
    @unless_emulated("the compiler makes programs of this machine")
    def test_a_lock_in_library_code_that_is_not_inlined_is_that_of_its_caller(self) -> None:
        (self.folder / "wrapped.cpp").write_text(WRAPPED)
        words = ["g++", "-O0", "-g", "-pthread", "-o", "wrapped", "wrapped.cpp"]
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True)
        text = self.run_it("--full", "--", self.folder / "wrapped")
        place = f"(?:{re.escape(LOOK_UP)}|{re.escape(UPDATE)})"
        rows = self.sides(text)
        self.assertTrue(rows)
        # Most acquisitions are contended, and have walked the stack. That of a free lock has not,
        # and may be what few threads waited long for.
        often = max(rows, key=lambda row: int(row.split()[2].replace(",", "")))
        self.assertRegex(often, f"{place} +{place} +table_lock")
        for row in rows:
            self.assertRegex(row, place)
        self.assertRegex(
            text.partition("\n\n")[0],
            f"{place} waits .* in all for (?:another thread there|{place})",
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
