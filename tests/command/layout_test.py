#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The command's description of the shared file agrees with the compiler's layout."""

from __future__ import annotations

import json
import subprocess
import unittest
from typing import Any

from common import FIXTURES

from rouse.store import layout

STRUCTURES = {
    "rsi_store_head": layout.HEAD,
    "rsi_store_chunk": layout.CHUNK,
    "rsi_store_thread": layout.THREAD,
    "rsi_store_wake": layout.WAKE,
    "rsi_store_lock": layout.LOCK,
    "rsi_store_writer": layout.WRITER,
    "rsi_store_name": layout.NAME,
    "rsi_store_stack": layout.STACK,
    "rsi_store_module": layout.MODULE,
    "rsi_store_event": layout.EVENT,
    "rsi_store_listener": layout.LISTENER,
    "rsi_store_group": layout.GROUP,
}
VALUES = {
    "RSI_STORE_MAGIC": layout.MAGIC,
    "RSI_STORE_VERSION": layout.VERSION,
    "RSI_STORE_DIRECTORY": layout.DIRECTORY,
    "RSI_STORE_CHUNKS_MAX": layout.CHUNKS_MAX,
    "RSI_STORE_STAMPS": layout.STAMPS,
    "RSI_STORE_INITIAL_PIDS": layout.INITIAL_PIDS,
    "RSI_STORE_CHUNKS": layout.CHUNKS,
    "RSI_STORE_BYTES_MAX": layout.BYTES_MAX,
    "RSI_STORE_RINGS_MAX": layout.RINGS_MAX,
    "RSI_STORE_CHUNK_HEAD": layout.CHUNK_HEAD,
    "RSI_STORE_WAIT_KINDS": layout.WAIT_KINDS,
    "RSI_STORE_LOCK_SPIN": layout.SPIN_LOCK,
    "RSI_STORE_WAIT_FUTEX": layout.KIND_NAMES.index("futex"),
    "RSI_STORE_HERDS": layout.HERDS,
    "RSI_STORE_LATENESS": layout.LATENESS,
    "RSI_STORE_MODULES": layout.MODULES,
    "RSI_STORE_EVENTS": layout.EVENTS,
    "RSI_STORE_LISTENERS": layout.LISTENERS,
    "RSI_STORE_GROUPS": layout.GROUPS,
    "RSI_STORE_GROUPS_MAX": layout.GROUPS_MAX,
    "RSI_EVENT_COUNT": len(layout.EVENT_NAMES),
    "RSI_EVENT_RUN": layout.EVENT_NAMES.index("run"),
    "RSI_EVENT_STEAL": layout.EVENT_NAMES.index("steal"),
    "RSI_EVENT_END": layout.EVENT_NAMES.index("end"),
    "RSI_SITE_STACK": layout.SITE_STACK,
    "RSI_DOES_NOTHING": layout.DOES_NOTHING,
    "RSI_DOES_RUN": layout.DOES_RUN,
    "RSI_DOES_WAIT": layout.DOES_WAIT,
    "RSI_DOES_QUEUE": layout.DOES_QUEUE,
    "RSI_IN_MUTEX": layout.MICRO.index("mutex"),
    "RSI_IN_SLEEP": layout.MICRO.index("sleep"),
    "RSI_IN_COUNT": len(layout.MICRO),
}


class LayOut(unittest.TestCase):
    compiled: Any

    @classmethod
    def setUpClass(cls) -> None:
        output = subprocess.run([FIXTURES / "print_layout"], capture_output=True, check=True).stdout
        cls.compiled = json.loads(output)

    def test_every_structure_has_the_same_fields_at_the_same_places(self) -> None:
        for name, dtype in STRUCTURES.items():
            with self.subTest(structure=name):
                known = {"size": dtype.itemsize}
                fields = {
                    field: [offset, sub.itemsize]
                    for field, (sub, offset, *_) in (dtype.fields or {}).items()
                }
                self.assertEqual({**known, **fields}, self.compiled[name])

    def test_numbers_and_names_are_the_same(self) -> None:
        self.assertEqual(VALUES, {name: self.compiled[name] for name in VALUES})
        self.assertEqual([*layout.KIND_NAMES][: layout.FUTEX], self.compiled["kinds"])
        self.assertEqual(layout.FUTEX_LOCK, layout.WAIT_KINDS)  # no file has such a kind
        verdicts = ["none", *(name.replace("_", "-") for name in layout.VERDICTS[1:])]
        self.assertEqual(verdicts, self.compiled["verdicts"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
