#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Programs that lock all their memory, with and without the interposer (locked_memory.c)."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from interposed import LIMIT, Recorded, Source, environment

LOCKED = Source("locked_memory")
NAPS, MANY, CHILDREN = (LOCKED.known[name] for name in ("NAPS", "MANY", "CHILDREN"))
OURS_KB = 3 << 10  # at most, for the library and its tables; a process's record is 256 MiB long
ENOUGH = LOCKED.known["ENOUGH_KB"] << 10
NAP = LOCKED.label("/* recorded */")

if 0 <= resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < ENOUGH:
    print("not run: less memory may be locked here than these programs have (ulimit -H -l)")
    sys.exit(77)


def printed(scene: str, variables: dict[str, str]) -> list[tuple[str, str, int]]:
    """The result and the error of each call, and the kB that are locked afterwards."""
    words = (LOCKED.program, scene, "tell")
    done = subprocess.run(words, env=variables, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stderr) == (0, ""), done
    rows = (line.split() for line in done.stdout.splitlines())
    return [(result, error, int(kb)) for result, error, kb in rows]


class Locked(unittest.TestCase):
    def assert_as_without(self, scene: str) -> None:
        without = printed(scene, dict(os.environ))
        with tempfile.TemporaryDirectory() as place:
            here = printed(scene, environment(Path(place)))
        self.assertEqual([row[:2] for row in here], [row[:2] for row in without])
        for (*_, kb), (*_, plain_kb) in zip(here, without, strict=True):
            self.assertEqual(kb > 0, plain_kb > 0)
            self.assertLessEqual(kb, plain_kb + OURS_KB)

    def naps(self, recorded: Recorded) -> list[int]:
        """The number of recorded sleeps of each process that slept."""
        counts: dict[str, int] = {}
        for row, stacks in recorded.rows("wakes"):
            if NAP in stacks.get(row["wait_site"], ()):
                counts[row["process"]] = counts.get(row["process"], 0) + row["timeout"]
        return sorted(counts.values())

    def test_calls_return_and_lock_as_without(self) -> None:
        self.assert_as_without("ways")

    def test_a_refused_call_fails_as_without(self) -> None:
        self.assert_as_without("refused")

    def test_a_child_that_has_no_record_yet_locks_as_without(self) -> None:
        self.assert_as_without("child")

    def test_waits_after_mlockall_are_recorded(self) -> None:
        for scene, count in (("ways", 2 * NAPS), ("refused", NAPS), ("child", NAPS)):
            self.assertEqual(self.naps(Recorded(LOCKED, scene)), [count], scene)

    def test_threads_that_come_meanwhile_are_recorded(self) -> None:
        """Each thread needs 20 KiB of the record, which grows in small steps."""
        recorded = Recorded(LOCKED, "threads")
        self.assertEqual(self.naps(recorded), [MANY * NAPS])
        ((row, _),) = recorded.rows("processes")
        self.assertEqual(
            {name: row[name] for name in row if name.startswith("lost") and row[name]}, {}
        )

    def test_a_child_forked_meanwhile_has_a_complete_record_of_its_own(
        self,
    ) -> None:
        recorded = Recorded(LOCKED, "forks")
        self.assertEqual(self.naps(recorded), [NAPS] * (1 + CHILDREN))


if __name__ == "__main__":
    unittest.main(verbosity=2)
