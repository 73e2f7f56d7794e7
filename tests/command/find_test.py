#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Finding the files of processes that record now. Other files are left alone."""

from __future__ import annotations

import os
import tempfile
import unittest
from pathlib import Path
from typing import Any
from unittest import mock

from common import SOURCE  # noqa: F401 enters the environment that the rest needs

from synthetic import Builder, of_process

from rouse.errors import RouseError
from rouse.store import find, layout
from rouse.tables import inputs


class Found(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        patched = mock.patch.dict(os.environ, {"ROUSE_OBS_DIR": holder.name})
        patched.start()
        self.addCleanup(patched.stop)

    def alive(self, **head: Any) -> list[tuple[int, bool]]:
        Builder(**head).write(self.folder)
        return [(found.pid, found.is_alive) for found in find.processes()]

    def test_a_process_is_distinguished_from_an_earlier_one_with_its_pid(self) -> None:
        own, ticks = os.getpid(), find.start_ticks(os.getpid())
        assert ticks
        self.assertEqual(self.alive(), [(own, True)])
        self.assertEqual(self.alive(start_ticks=ticks - 1), [(own, False)])
        self.assertEqual(self.alive(boot_id=[7] * 16), [(own, False)])
        self.assertEqual(self.alive(ended=1), [(own, False)])

    def test_a_zombie_has_ended(self) -> None:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self.assertIsNone(find.start_ticks(pid))
        finally:
            os.waitpid(pid, 0)

    def test_a_live_process_is_read_up_to_now_and_another_up_to_its_end(self) -> None:
        run = [{"id": 1, "doing": layout.DOES_RUN}]
        own = of_process(os.getpid())
        exec_of = Builder().live()  # this process executes another program
        cases = ((own, True), (Builder(ended=1).live(), False), (exec_of, False))
        for builder, is_live in cases:
            path = builder.chunk(layout.THREADS, run).write(self.folder)
            source = find.open_source(path)
            read = find.read(source)
            source.close()
            self.assertEqual(read.is_live, is_live)
            tick = int(builder.head[0]["tick_tsc"])
            self.assertEqual(read.now_tsc > tick, is_live)

    def test_other_files_are_left_alone(self) -> None:
        good = Builder().write(self.folder)
        (self.folder / "notes").write_text("text")
        (self.folder / "1.rouse").write_text("noise")
        (self.folder / "0.rouse").write_bytes(good.read_bytes())
        (self.folder / "2.rouse").write_bytes(good.read_bytes())  # of another process id
        (self.folder / "3.rouse").mkdir()
        (self.folder / "4.rouse").symlink_to(good)
        os.mkfifo(self.folder / "5.rouse", 0o600)
        self.assertEqual([found.pid for found in find.processes()], [os.getpid()])

    def test_ended_processes_are_not_listed_as_recording(self) -> None:
        for pid in (1 << 29, 1 << 30):
            Builder(pid=pid).write(self.folder)
        with self.assertRaisesRegex(RouseError, f"no process records now; 2 .*: {1 << 30}, "):
            inputs.running()
        own = Builder().write(self.folder)
        self.assertEqual(inputs.running(), own)

    def test_a_pipe_is_refused(self) -> None:
        pipe = self.folder / "pipe"
        os.mkfifo(pipe, 0o600)
        with self.assertRaisesRegex(RouseError, "is no file"), inputs.open_input(str(pipe)):
            pass

    def test_a_process_without_a_file_is_reported_with_the_reason(self) -> None:
        with self.assertRaisesRegex(RouseError, "it does not record"):
            find.of_pid(os.getpid())
        with self.assertRaisesRegex(RouseError, "there is none"):
            find.of_pid(1 << 30)

    def test_a_path_that_is_not_a_folder_is_refused(self) -> None:
        file = self.folder / "file"
        file.write_text("")
        with (
            mock.patch.dict(os.environ, {"ROUSE_OBS_DIR": str(file)}),
            self.assertRaisesRegex(RouseError, "is no folder"),
        ):
            find.processes()

    def test_without_a_folder_nothing_records(self) -> None:
        with mock.patch.dict(os.environ, {"ROUSE_OBS_DIR": str(self.folder / "none")}):
            self.assertEqual(find.processes(), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
