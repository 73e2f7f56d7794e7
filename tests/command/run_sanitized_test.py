#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Under `rouse run`, programs built with a sanitizer print nothing and wait as often as others."""

from __future__ import annotations

import unittest
from collections import Counter

from common import FIXTURES, main_unless

from interposed import Source, played

SANITIZERS = [name for name in ("address", "thread") if (FIXTURES / f"mutex_cond_{name}").exists()]
SCENES = {
    "mutex_cond": ("mutex", "broadcasts", "signals", "timeouts", "cancelled"),
    "sync_waits": ("rwlock", "sem", "barrier", "join"),  # pthread_once is the sanitizer's own
}
Waits = dict[str, Counter[tuple[str, str, str]]]


def waits(name: str, suffix: str = "") -> Waits:
    """The wake-ups of each scene by kind, line and verdict, without those of unrelated mutexes."""
    source = Source(name)
    source.program = source.program.with_name(name + suffix)
    found: Waits = {}
    for scene, sections in played(source, *SCENES[name]).items():
        found[scene] = Counter()
        for row in sections["wakes"]:
            is_chance = row["kind"] == "mutex" and scene != "mutex"
            if f"{source.file}:" in row["wait_label"] and not is_chance:
                # A slow thread seems to have worked after a false wake-up.
                verdicts = {name: row[name] for name in ("timeout", "cancelled")}
                verdicts["woken"] = row["useful"] + row["false_"]
                for verdict, count in verdicts.items():
                    found[scene][row["kind"], row["wait_label"], verdict] += count
    return found


class Sanitized(unittest.TestCase):
    def test_waits_are_those_of_a_program_without(self) -> None:
        for name, scenes in SCENES.items():
            alone = waits(name)
            self.assertEqual(set(alone), set(scenes))
            self.assertTrue(all(scene.total() for scene in alone.values()))
            for sanitizer in SANITIZERS:
                self.assertEqual(waits(name, f"_{sanitizer}"), alone, sanitizer)


if __name__ == "__main__":
    main_unless("" if SANITIZERS else "the compiler has no sanitizers")
