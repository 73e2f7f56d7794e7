#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Waits for the lock of a stream, whose holder is blocked in a write (stdio_waits.c).

The program measures by its own clock how long the call that waits took.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import rouse

from interposed import LIBRARY, Source, unless_emulated

WAITS = Source("stdio_waits")
CALLS = ("fprintf", "vfprintf", "fputs", "fwrite", "fflush", "flockfile")
NEAR_NS = 3_000_000  # between the clock of the program and the recording
NOISE_NS = 100_000  # of the two clocks
ATTEMPTS = 10
STDOUT = """
#include <pthread.h>
#include <stdio.h>
#include <time.h>
static pthread_barrier_t both;
static void *wait_for_it(void *unused)
{
    pthread_barrier_wait(&both);
    puts("waits");
    return unused;
}
int main(void)
{
    struct timespec hold = { 0, 20000000 };
    pthread_t thread;
    pthread_barrier_init(&both, NULL, 2);
    pthread_create(&thread, NULL, wait_for_it, NULL);
    flockfile(stdout);
    pthread_barrier_wait(&both);
    nanosleep(&hold, NULL);
    funlockfile(stdout);
    return pthread_join(thread, NULL);
}
"""


STREAM = STDOUT.replace("flockfile(stdout)", "flockfile(log)").replace(
    "funlockfile(stdout)", "funlockfile(log)"
)
STREAM = STREAM.replace('puts("waits")', 'fputs("waits", log)').replace(
    "static pthread_barrier_t both;",
    """
static pthread_barrier_t both;
static FILE *log;
__attribute__((unused)) static FILE *open_memory(void)
{
    static char *text;
    static size_t bytes;
    FILE *before = fopen("file", "w");
    fclose(before);
    return open_memstream(&text, &bytes);
}
__attribute__((noinline)) static void open_log(void)
{
    log = OPENED;
}
""",
)
STREAM = STREAM.replace("    flockfile(log);\n", "    open_log();\n    flockfile(log);\n")


class Streams(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)

    def run_it(self, *program: str | Path) -> tuple[str, list[dict[str, Any]]]:
        """Return what the program prints, and the rows of waiters and holders."""
        report = self.folder / "report"
        words = ("run", "--json", "-o", str(report), "--", *program)
        done = rouse(*words, ROUSE_PRELOAD=str(LIBRARY))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        sides: list[dict[str, Any]] = json.loads(report.read_text())["sections"]["sides"]
        return done.stdout, sides

    def test_a_call_that_waits_for_the_lock_is_a_wait_with_its_holder(self) -> None:
        for call in CALLS:
            with self.subTest(call=call):
                apart: list[int] = []
                while not apart or (apart[-1] > NEAR_NS and len(apart) < ATTEMPTS):
                    apart.append(self.measured_apart(call))
                self.assertLessEqual(apart[-1], NEAR_NS, apart)

    def measured_apart(self, call: str) -> int:
        """Return by how many ns the program's clock saw a longer wait than was recorded.

        The thread may lose its processor after the wait, before it reads the clock.
        """
        printed, sides = self.run_it(WAITS.program, call)
        site = WAITS.label(f"/* by {call} */")
        (row,) = [row for row in sides if row["site_label"] == site]
        self.assertEqual((row["kind"], row["contested"]), ("mutex", 1))
        self.assertEqual(row["holder_label"], WAITS.label("/* the holder */"))
        self.assertEqual(row["init_label"], WAITS.label("/* the stream */"))
        self.assertLessEqual(row["wait_ns"], int(printed) + NOISE_NS)
        return int(printed) - int(row["wait_ns"])

    @unless_emulated("its program starts one of this machine")
    def test_standard_output_has_its_name(self) -> None:
        (self.folder / "app.c").write_text(STDOUT)
        words = ["cc", "-g", "-O2", "-pthread", "-D_FORTIFY_SOURCE=2", "-o", "app", "app.c"]
        subprocess.run(words, cwd=self.folder, check=True)
        printed, sides = self.run_it(self.folder / "app")
        self.assertEqual(printed, "waits\n")
        (row,) = sides
        self.assertEqual(row["lock_name"], "stdout")
        self.assertRegex(row["site_label"], r"^wait_for_it app\.c:\d+$")
        self.assertRegex(row["holder_label"], r"^main app\.c:\d+$")

    @unless_emulated("its program starts one of this machine")
    def test_a_stream_has_the_place_that_opened_it(self) -> None:
        opened = {
            "fopen": 'fopen("file", "w")',
            "freopen": 'freopen("other", "w", fopen("file", "w"))',
            "popen": 'popen("cat >/dev/null", "w")',
            # Of one that lies where a closed one lay, not the place of that.
            "memory": "open_memory()",
        }
        for name, call in opened.items():
            source = STREAM.replace("OPENED", call)
            for file in ("file", "other"):
                source = source.replace(f'"{file}"', f'"{self.folder / file}"')
            (self.folder / "app.c").write_text(source)
            words = ["cc", "-g", "-O1", "-pthread", "-o", "app", "app.c"]
            subprocess.run(words, cwd=self.folder, check=True)
            _, sides = self.run_it(self.folder / "app")
            (row,) = sides
            with self.subTest(stream=name):
                if name == "memory":
                    self.assertIsNone(row["init_label"])
                else:
                    self.assertRegex(row["init_label"], r"^open_log app\.c:\d+$")

    def test_a_cancelled_thread_leaves_the_lock_free(self) -> None:
        self.run_it(WAITS.program, "cancelled")


if __name__ == "__main__":
    unittest.main(verbosity=2)
