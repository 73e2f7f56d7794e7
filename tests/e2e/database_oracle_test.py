#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The recorded waits of MariaDB agree with strace(1) on the same run, call by call."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(SOURCE / "tests" / "command"))

from common import main_unless  # noqa: E402

from rouse.lab import database_servers as servers  # noqa: E402
from rouse.lab.processes import STOP_S  # noqa: E402

LIBRARY = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check")) / "preload"
CLIENTS, SECONDS = 8, 4
COND_BYTES = 48
MORE = 1.1  # futex calls per condition wait: none after an early signal, rarely more than one
LINE = re.compile(
    r"(?P<tid>\d+) +(?:futex\((?P<word>0x[0-9a-f]+), (?P<op>FUTEX_\w+)"
    r"|<\.\.\. futex resumed>).*?(?P<unfinished><unfinished \.\.\.>)?"
    r"(?:= (?P<result>-?\d+|\?)(?: (?P<error>E\w+))?.*)?$"
)
Ends = Counter[tuple[int, str]]


def reason() -> str:
    for name in ("sysbench", "mariadbd", "strace"):
        if not shutil.which(name) and not Path(f"/usr/sbin/{name}").exists():
            return f"{name} is not installed (make check-all installs it)"
    if not (LIBRARY / "librouse-preload.so").exists():
        return "a build with sanitizers has no librouse-preload.so"
    if subprocess.run(["strace", "-qq", "true"], capture_output=True).returncode:
        return "strace may trace nothing here"
    return ""


def seen(trace: Path) -> tuple[Ends, Ends]:
    """The results of FUTEX_WAIT and FUTEX_WAIT_BITSET, by word and "0" or the error."""
    ends: dict[str, Ends] = {"FUTEX_WAIT": Counter(), "FUTEX_WAIT_BITSET": Counter()}
    begun: dict[str, tuple[int, str]] = {}
    for line in trace.read_text(encoding="utf-8", errors="replace").splitlines():
        found = LINE.match(line)
        if not found:
            continue
        if found["word"]:
            operation = found["op"].removesuffix("_PRIVATE")
            begun[found["tid"]] = int(found["word"], 16), operation
        if found["unfinished"] or found["tid"] not in begun:
            continue
        word, operation = begun.pop(found["tid"])
        result = found["error"] or found["result"]
        is_end = result not in (None, "?") and not result.startswith("ERESTART")
        if operation in ends and is_end:
            ends[operation][word, result] += 1
    return ends["FUTEX_WAIT"], ends["FUTEX_WAIT_BITSET"]


def recorded(folder: Path) -> tuple[Ends, Counter[int]]:
    """The results of futex waits by word, and of condition waits by address."""
    from rouse.store import find, layout

    (file,) = folder.glob("*.rouse")
    source = find.open_source(file)
    try:
        rows = find.read(source).arrays[layout.WAKES]
    finally:
        source.close()
    names = {"useful": "0", "lost_race": "EAGAIN", "timeout": "ETIMEDOUT", "cancelled": "EINTR"}
    futexes: Ends = Counter()
    conditions: Counter[int] = Counter()
    for row in rows:
        kind = layout.KIND_NAMES[row["kind"]]
        counts = dict(zip(layout.VERDICTS, map(int, row["count"]), strict=True))
        if kind == "futex":
            for verdict, end in names.items():
                futexes[int(row["object"]), end] += counts[verdict]
        elif kind == "condition":
            conditions[int(row["object"])] += sum(counts.values())
    return +futexes, conditions


class Oracle(unittest.TestCase):
    def play(self, place: Path) -> None:
        """Run MariaDB under sysbench, recorded and traced."""
        folder = place / "server"
        folder.mkdir()
        recordings = place / "recordings"
        recordings.mkdir(mode=0o700)
        server = servers.MariaDB(folder)
        server.make()
        looked_at = [
            *("strace", "-f", "-qq", "-e", "trace=futex", "-o", str(place / "trace")),
            *("-E", f"LD_PRELOAD={LIBRARY / 'librouse-preload.so'}"),
            *("-E", f"ROUSE_OBS_DIR={recordings}", "-E", "ROUSE_OBS_KEEP=1"),
        ]
        with server.started(*looked_at) as running:
            server.asked("create database bench")
            work = "oltp_read_write"
            servers.run(*server.bench(work, 1, "prepare"))
            servers.run(*server.bench(work, CLIENTS, f"--time={SECONDS}", "run"))
            (pid,) = running.processes()
            os.kill(pid, signal.SIGTERM)
            running.program.wait(STOP_S)

    def test_each_wait_is_recorded_once_with_its_result(self) -> None:
        with tempfile.TemporaryDirectory(prefix="rouse-oracle-") as name:
            self.play(Path(name))
            plain, timed = seen(Path(name) / "trace")
            futexes, conditions = recorded(Path(name) / "recordings")
        # Compare only the server's own futex words. libc's mutexes and threads use others.
        words = {word for word, _ in futexes}
        self.assertGreater(len(words), 0, "no lock of InnoDB was waited for")
        mine = {end: count for end, count in (plain + timed).items() if end[0] in words}
        self.assertEqual(mine, dict(futexes))
        waits = sum(conditions.values())
        calls = sum(
            count
            for (word, _), count in (plain + timed).items()
            if any(start <= word < start + COND_BYTES for start in conditions)
        )
        self.assertGreater(calls, CLIENTS)
        self.assertLess(calls, waits * MORE, "waits for conditions are missing")


if __name__ == "__main__":
    main_unless(reason())
