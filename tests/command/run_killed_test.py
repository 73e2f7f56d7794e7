#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""A killed `rouse run` leaves a folder behind. The next run removes this folder and no other."""

from __future__ import annotations

import os
import tempfile
import time
import unittest
from pathlib import Path

from common import COMMAND, next_line, rouse, start

from interposed import LIBRARY

from rouse.store import find, leftovers

LIMIT_S = 60
ASK = 'echo "$ROUSE_OBS_DIR"; read line'


class Killed(unittest.TestCase):
    def test_its_folder_goes_when_the_program_has_ended_too(self) -> None:
        words = (*COMMAND, "run", "--", "sh", "-c", ASK)
        killed = start(self, *words, ROUSE_PRELOAD=str(LIBRARY))
        folder = Path(next_line(killed).strip())
        end = time.monotonic() + LIMIT_S
        while not any(file.stat().st_size for file in folder.glob("*.rouse")):
            self.assertLess(time.monotonic(), end)  # the file is locked before it has a length
        killed.kill()
        killed.wait()
        rouse("run", "true", ROUSE_PRELOAD=str(LIBRARY))
        self.assertTrue(folder.exists(), "its program still records there")
        killed.communicate("the end\n")
        while folder.exists():  # the program ends by itself
            self.assertLess(time.monotonic(), end)
            rouse("run", "true", ROUSE_PRELOAD=str(LIBRARY))


class Kept(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)

    def folder(self, *names: str, prefix: str = find.RUN_PREFIX) -> Path:
        made = Path(tempfile.mkdtemp(prefix=prefix, dir=self.place))
        for name in names:
            (made / name).write_text("of a run", encoding="utf-8")
        return made

    def test_folders_of_others_are_kept(self) -> None:
        dead = self.folder(leftovers.MARK, "12.rouse", "accept")
        begun = self.folder(leftovers.MARK)
        (begun / "12.rouse").touch()
        unmarked, foreign = self.folder("12.rouse"), self.folder(leftovers.MARK, "thesis")
        opened, other = self.folder(leftovers.MARK), self.folder(leftovers.MARK, prefix="other-")
        opened.chmod(0o755)
        link = self.place / f"{find.RUN_PREFIX}link"
        link.symlink_to(other)
        kept = [begun, unmarked, foreign, opened, other, link]
        if os.getuid() == 0:
            kept.append(self.folder(leftovers.MARK))
            os.chown(kept[-1], 65534, 65534)
        with leftovers.temporary(self.place) as live:
            leftovers.remove_dead(self.place)
            self.assertEqual({*self.place.iterdir()}, {*kept, live})
            self.assertTrue((live / leftovers.MARK).exists())
        self.assertFalse(dead.exists())
        self.assertEqual({path.name for path in foreign.iterdir()}, {leftovers.MARK, "thesis"})
        self.assertTrue((other / leftovers.MARK).exists())


if __name__ == "__main__":
    unittest.main(verbosity=2)
