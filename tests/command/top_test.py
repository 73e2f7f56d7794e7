#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The rows that `rouse top` derives from two samples of a process, and its final messages."""

from __future__ import annotations

import cProfile
import json
import os
import pstats
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

from common import SOURCE, rouse

import numpy as np
from rich.cells import cell_len
from synthetic import KINDS, Builder, micro, of_process, tsc

from rouse.store import find, layout, states
from rouse.top import intervals, rowtext

NOW = 1000.0  # ms


class Program(subprocess.Popen[str]):
    """A child in the role of a recording program. Each line of input names its next step."""

    STEPS = """
import os, sys
for line in sys.stdin:
    if line == "exec\\n":
        os.execvp("sleep", ["sleep", "60"])
    if line == "fork\\n":
        pid = os.fork()
        if pid == 0:
            sys.stdin.read()
            os._exit(0)
        print(pid, flush=True)
    print("done", flush=True)
"""

    def __init__(self) -> None:
        super().__init__(
            [sys.executable, "-c", self.STEPS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.do("go")

    def do(self, step: str) -> str:
        assert self.stdin and self.stdout
        self.stdin.write(step + "\n")
        self.stdin.flush()
        return self.stdout.readline()

    def end(self) -> None:
        self.kill()
        self.wait()
        for stream in (self.stdin, self.stdout):
            assert stream
            stream.close()


class Rows(unittest.TestCase):
    """Rows of this process, whose file is rewritten between two samples."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / find.file_name(os.getpid())

    def write(self, end_ms: float, *threads: dict[str, Any], **head: Any) -> None:
        """Rewrite the file in place, since the watch keeps it open."""
        data = of_process(os.getpid(), end_ms, **head).chunk(layout.THREADS, threads).bytes()
        with self.path.open("r+b" if self.path.exists() else "xb") as file:
            file.write(data)
        self.path.chmod(0o600)

    def sample(self, end_ms: float, *threads: dict[str, Any]) -> intervals.Sample:
        """The sample that a look at exactly this moment would give."""
        read = Builder(end_ms).chunk(layout.THREADS, threads).store()
        return intervals.Sample(
            read, read.threads, states.fold(read.threads, read.now_tsc), {}, False
        )

    def rows(self, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> intervals.Rows:
        return intervals.thread_rows(self.sample(1000, *before), self.sample(2000, *after))

    def value(self, rows: intervals.Rows, row: int, column: str) -> float:
        return float(rows.values[row, intervals.COLUMN[column]])

    def test_percents_are_of_the_interval(self) -> None:
        run = {"id": 1, "doing": layout.DOES_RUN, "run_tsc": tsc(900), "begin_tsc": tsc(0)}
        wait = {"id": 1, "doing": layout.DOES_WAIT, "kind": KINDS["mutex"], "begin_tsc": tsc(0)}
        before = {**run, "ticks": micro(usr=100), "waits": 5, "yields": 1}
        # 300 ms more on the processor, then 500 ms in the queue, then a lock.
        after = {**wait, "ticks": micro(usr=500, lat=500), "since_tsc": tsc(1800)}
        after |= {"waits": 7, "yields": 2}
        rows = self.rows([before], [after])
        got = [self.value(rows, 0, c) for c in ("usr", "lat", "mutex", "lck", "slp", "vcx")]
        self.assertEqual(got, [30, 50, 20, 20, 0, 3])
        self.assertTrue(all(v != v for v in (self.value(rows, 0, c) for c in ("sys", "scl"))))

    def test_a_new_thread_has_percents_of_its_own_time(self) -> None:
        new = {"id": 2, "doing": layout.DOES_RUN, "run_tsc": tsc(1900), "begin_tsc": tsc(1800)}
        rows = self.rows([{"id": 1, "doing": 1}], [{**new, "ticks": micro(lat=100)}])
        self.assertEqual([self.value(rows, 0, c) for c in ("usr", "lat")], [50, 50])

    def test_threads_are_identified_by_number_not_position(self) -> None:
        run = {"doing": layout.DOES_QUEUE, "since_tsc": (1 << 63)}
        before = [{**run, "id": n, "waits": n * 100} for n in range(1, 50)]
        after = [{**run, "id": n, "waits": n * 100 + n} for n in range(49, 0, -1) if n % 3]
        rows = self.rows(before, after)
        got = [self.value(rows, i, "vcx") for i in range(len(rows))]
        self.assertEqual(got, [float(n) for n in range(49, 0, -1) if n % 3])

    def test_threads_hidden_as_idle(self) -> None:
        def waits(kind: str, since: float) -> dict[str, Any]:
            return {"doing": layout.DOES_WAIT, "kind": KINDS[kind], "since_tsc": tsc(since)}

        cases = [
            (waits("condition", 500), True),
            (waits("accept", 500), True),
            (waits("read", 500), True),
            (waits("read", 1500), False),
            (waits("mutex", 500), False),
            (waits("write lock", 500), False),
            ({"doing": layout.DOES_RUN, "run_tsc": tsc(500)}, False),
        ]
        threads = [{**thread, "id": i + 1} for i, (thread, _) in enumerate(cases)]
        rows = self.rows([], threads)
        self.assertEqual(rows.idle.tolist(), [idle for _, idle in cases])

    def test_a_live_file_is_read_at_each_step(self) -> None:
        run = {"id": 1, "doing": layout.DOES_RUN, "name": b"first"}
        self.write(NOW, run)
        watched = intervals.Watch(self.path)
        self.addCleanup(watched.close)
        self.write(NOW, run, {"id": 2, "doing": layout.DOES_RUN, "name": b"second"})
        interval = watched.step()
        self.assertEqual(interval.threads, 2)
        names = set(interval.rows.names)
        self.assertLessEqual({b"first", b"second", b"main"}, names)

    def test_surprising_states_are_reported(self) -> None:
        run = {"id": 1, "doing": layout.DOES_RUN}
        self.write(NOW, run, mode=0)
        watched = intervals.Watch(self.path)
        self.addCleanup(watched.close)
        self.assertIn("does not record now", watched.step().problems[0])
        builder = of_process(os.getpid()).chunk(layout.THREADS, [run])
        with self.path.open("r+b") as file:
            file.write(builder.chunk(layout.WRITERS, [{"lost_threads": 5}]).bytes())
        self.assertIn("the recording is full: 5", watched.step().problems[0])

    def test_workers_without_kernel_figures(self) -> None:
        writer = {"is_worker": 1, "is_live": 1, "tid": (1 << 31) - 1}
        run = {"id": 1, "doing": layout.DOES_RUN}
        builder = of_process(os.getpid()).chunk(layout.THREADS, [run])
        self.path = builder.chunk(layout.WRITERS, [writer]).write(self.path.parent)
        watched = intervals.Watch(self.path)
        self.addCleanup(watched.close)
        interval = watched.step()
        self.assertIn("1 of 1 workers: the kernel does not report", interval.problems[0])
        self.assertGreater(self.value(interval.rows, 0, "usr"), 99)

    def test_a_file_that_shrinks_raises_no_error(self) -> None:
        self.write(NOW, *({"id": n, "doing": 1} for n in range(1, 99)))
        watched = intervals.Watch(self.path)
        self.addCleanup(watched.close)
        os.truncate(self.path, layout.CHUNKS + 3000)
        interval = watched.step()
        self.assertTrue(interval.problems)
        self.assertLess(interval.threads, 98)


class Text(unittest.TestCase):
    def test_percents_and_counts_have_the_form_of_prstat(self) -> None:
        nan = float("nan")
        shown = [rowtext.percent(v) for v in (0, 0.04, 0.05, 9.94, 9.95, 99.6, nan)]
        self.assertEqual(shown, ["0.0", "0.0", "0.1", "9.9", "10", "100", "-"])
        numbers = (0, 999, 1000, 99_400, 123_000, 999_000, 5e6, 123e6, nan)
        shown = [rowtext.count(v) for v in numbers]
        self.assertEqual(shown, ["0", "999", "1K", "99K", ".1M", ".9M", "5M", ".1G", "-"])
        for value in range(0, 10_000_000, 997):
            self.assertLessEqual(len(rowtext.count(value)), 3, value)

    def test_a_narrow_terminal_keeps_the_main_columns(self) -> None:
        whole = rowtext.header(rowtext.columns_for(False, None))
        self.assertEqual(
            whole,
            "   PID USERNAME USR SYS TRP TFL DFL LCK SLP LAT VCX ICX SCL SIG PROCESS/LWP",
        )
        for split in (False, True):
            for width in (40, 60, 80, 100):
                columns = rowtext.columns_for(split, width)
                self.assertLessEqual(rowtext.width_of(columns) + rowtext.NAME_LEAST, width)
        self.assertLessEqual({"usr", "lck", "slp", "lat"}, set(rowtext.columns_for(False, 40)))

    def interval(self, name: bytes, process: str = "p") -> intervals.Interval:
        rows = intervals.Rows(
            np.full((1, len(intervals.COLUMNS)), 50.0),
            np.array([7], np.uint64),
            np.array([0]),
            np.array([False]),
            [name],
        )
        return intervals.Interval(process, 1, Path(process), "user", 1.0, rows, 1, 1, 0)

    def test_names_cannot_control_the_terminal(self) -> None:
        picture = rowtext.Picture([self.interval(b"\x1b[31mred\r\x07\x00rest \xff[b]", "a\nb")])
        self.assertEqual(picture.name(0), "a?b/7:?[31mred??")
        picture = rowtext.Picture([self.interval("[bold]é‮x".encode())])
        self.assertEqual(picture.name(0), "p/7:[bold]é?x")

    def test_lines_fit(self) -> None:
        picture = rowtext.Picture([self.interval("漢字の名前".encode(), "プログラムの名前" * 9)])
        for width in (40, 41, 80):
            line = picture.line(0, rowtext.columns_for(False, width), width)
            self.assertEqual(cell_len(line), width)


class Batch(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.program = Program()
        self.addCleanup(self.program.end)
        thread = {"id": 1, "doing": layout.DOES_RUN, "name": b"one"}
        idle = {"id": 2, "doing": layout.DOES_WAIT, "kind": KINDS["accept"], "name": b"two"}
        self.builder = of_process(self.program.pid).chunk(layout.THREADS, [thread, idle])
        self.path = self.builder.write(self.folder)

    def top(self, *words: str) -> subprocess.CompletedProcess[str]:
        return rouse("top", *words, ROUSE_OBS_DIR=str(self.folder))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "rouse", "top", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(SOURCE), "ROUSE_OBS_DIR": str(self.folder)},
        )

    def test_it_prints_the_columns_of_prstat(self) -> None:
        done = self.top("--batch", "0.1", "2")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        lines = done.stdout.splitlines()
        headers = [i for i, line in enumerate(lines) if line.startswith("   PID USERNAME USR SYS")]
        self.assertEqual(len(headers), 2)
        row = next(line for line in lines if "/1:one" in line).split()
        self.assertEqual(len(row), 15)
        self.assertEqual((row[0], row[2]), (str(self.program.pid), "100"))
        self.assertNotIn("two", done.stdout)
        self.assertRegex(lines[-1], r"^Total: 1 process, 2 threads, 0 workers, \d+ idle")

    def test_all_shows_idle_threads_and_the_rest_of_the_options(self) -> None:
        done = self.top("--batch", "0.1", "1", "--all", "--split", "--sort", "accept")
        self.assertIn("MTX RWL CND SEM JOI  IO POL ACC SLE LAT", done.stdout)
        self.assertLess(done.stdout.index("2:two"), done.stdout.index("1:one"))
        done = self.top("--batch", "0.1", "1", "--all", "--filter", "TWO")
        self.assertNotIn("1:one", done.stdout)
        done = self.top("--batch", "0.1", "1", "--all", "-n", "1", "--reverse", "--sort", "id")
        self.assertEqual(done.stdout.count("/"), 2)  # the header's and one row's

    def test_json(self) -> None:
        done = self.top("--batch", "0.1", "2", "--json", "--all")
        found = [json.loads(line) for line in done.stdout.splitlines()]
        self.assertEqual(len(found), 2)
        threads = {thread["id"]: thread for thread in found[1]["threads"] if thread["id"]}
        self.assertEqual((threads[1]["usr"], threads[2]["accept"]), (100, 100))
        self.assertIsNone(threads[1]["scl"])

    def test_a_program_is_found_by_name_and_number(self) -> None:
        name = Path(f"/proc/{self.program.pid}/exe").readlink().name
        for word in (name, str(self.program.pid)):
            self.assertEqual(self.top("--batch", "0.1", "1", word).returncode, 0, word)
        for word, says in (("nosuch", "no process records that runs nosuch"), ("1", "process 1: ")):
            done = self.top("--batch", "0.1", "1", word)
            self.assertEqual(done.returncode, 3)
            self.assertIn(says, done.stderr)

    def until(self, top: subprocess.Popen[str], act: Any) -> tuple[int, str, str]:
        """Call act after the first output. Returns the status and the rest of the output."""
        assert top.stdout
        first = top.stdout.readline()
        act()
        out, err = top.communicate(timeout=60)
        return top.returncode, first + out, err

    def test_the_reader_may_close_the_pipe_early(self) -> None:
        top = self.start("--batch", "0.1", "0")
        assert top.stdout and top.stderr
        top.stdout.readline()
        top.stdout.close()
        self.assertEqual((top.wait(timeout=60), top.stderr.read()), (-signal.SIGPIPE, ""))
        top.stderr.close()

    def test_an_interrupt_ends_it_quietly(self) -> None:
        top = self.start("--batch", "0.1", "0")
        status, _, err = self.until(top, lambda: top.send_signal(signal.SIGINT))
        self.assertEqual((status, err.strip()), (-signal.SIGINT, ""))

    def test_a_killed_program_is_reported(self) -> None:
        top = self.start("--batch", "0.1", "0")
        status, _, err = self.until(top, self.program.kill)
        self.assertEqual(status, 4)
        self.assertRegex(
            err, rf"^rouse: process {self.program.pid} \(\S+\) was killed, or left by _exit\(\)\n$"
        )

    def test_a_program_that_ends_is_reported(self) -> None:
        def end() -> None:
            self.builder.head[0]["ended"] = 1
            with self.path.open("r+b") as file:
                file.write(self.builder.bytes())
            self.path.unlink()

        status, _, err = self.until(self.start("--batch", "0.1", "0"), end)
        self.assertEqual((status, err.count("\n")), (4, 1))
        self.assertIn("has ended", err)

    def test_an_exec_is_reported(self) -> None:
        assert self.program.stdin
        stdin = self.program.stdin

        def become() -> None:
            stdin.write("exec\n")
            stdin.flush()

        status, _, err = self.until(self.start("--batch", "0.1", "0"), become)
        self.assertEqual((status, err.count("\n")), (4, 1))
        self.assertIn("runs another program now (exec)", err)

    def test_a_fork_is_reported(self) -> None:
        children: list[int] = []

        def fork() -> None:
            child = int(self.program.do("fork"))
            children.append(child)
            of_process(child).chunk(layout.THREADS, [{"id": 1, "doing": 1}]).write(self.folder)

        top = self.start("--batch", "0.1", "0", str(self.program.pid))
        assert top.stdout and top.stderr
        top.stdout.readline()
        fork()
        self.assertIn(f"has forked {children[0]} ", top.stderr.readline())
        os.kill(children[0], 9)
        self.assertRegex(top.stderr.readline(), rf"process {children[0]} .* was killed")
        self.program.kill()
        _, err = top.communicate(timeout=60)
        self.assertEqual((top.returncode, err.count("\n")), (4, 1))


class Refusals(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def refused(self, says: str, *words: str, status: int = 3) -> None:
        done = rouse("top", *words, ROUSE_OBS_DIR=str(self.folder))
        self.assertEqual(done.returncode, status, done.stderr)
        self.assertRegex(done.stderr, rf"^rouse: .*{says}")
        self.assertEqual(done.stderr.count("\n"), 1)

    def test_nothing_records(self) -> None:
        self.refused("no process of this user records", "--batch", "1", "1")
        self.folder = self.folder / "none"
        self.refused("no process of this user records", "--batch", "1", "1")

    def test_wrong_arguments(self) -> None:
        for words in (("--batch", "0", "1"), ("--batch", "1", "-1"), ("--sort", "no"), ("--json",)):
            self.refused("see rouse top --help", *words, status=2)
        self.refused("no terminal", status=2)
        done = rouse()
        self.assertEqual((done.returncode, done.stderr.count("\n")), (2, 1), done.stderr)

    def test_a_folder_that_others_may_write_to(self) -> None:
        self.folder.chmod(0o777)
        self.refused("others may write to this folder", "--batch", "1", "1")

    @unittest.skipIf(os.geteuid() != 0, "not run: only root can make another user's file")
    def test_files_of_other_users(self) -> None:
        path = Builder().write(self.folder)
        os.chown(path, 12345, 12345)
        self.refused("no process of this user records", "--batch", "1", "1")
        self.refused("is of user 12345", "--batch", "1", "1", str(os.getpid()))
        os.chown(self.folder, 12345, 12345)
        self.refused("this folder is of user 12345", "--batch", "1", "1")

    def test_a_link_is_not_followed(self) -> None:
        real = Builder().write(self.folder, pid=99)
        (self.folder / find.file_name(os.getpid())).symlink_to(real)
        self.refused("Too many levels", "--batch", "1", "1", str(os.getpid()))

    def test_a_newer_version(self) -> None:
        of_process(os.getpid(), version=9).write(self.folder)
        self.refused("of version 9", "--batch", "1", "1", str(os.getpid()))


class Cost(unittest.TestCase):
    def test_many_threads_are_processed_together(self) -> None:
        """Not the speed is checked, but the number of Python calls per step."""
        calls = []
        for count in (100, 10_000):
            with tempfile.TemporaryDirectory() as folder:
                threads = Builder.rows(layout.THREADS, [{"doing": 1}] * count)
                threads["id"] = range(1, count + 1)
                path = of_process(os.getpid()).chunk(layout.THREADS, threads).write(Path(folder))
                watched = intervals.Watch(path)
                profile = cProfile.Profile()
                profile.enable()
                picture = rowtext.Picture([watched.step()])
                shown = picture.rows(rowtext.Wanted())
                [picture.line(row, rowtext.columns_for(False, 80), 80) for row in shown[:50]]
                profile.disable()
                watched.close()
                calls.append(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]
        self.assertLess(calls[1], calls[0] + 200)


if __name__ == "__main__":
    unittest.main(verbosity=2)
