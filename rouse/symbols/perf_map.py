# SPDX-License-Identifier: MIT
"""Names of code that a just-in-time compiler made, from the file that it wrote for perf.

/tmp/perf-PID.map has a line per function: start and size in hexadecimal, and the name. Java writes
it with -XX:+DumpPerfMapAtExit, node with --perf-basic-prof, Python 3.12 and later with -X perf. The
file is as little to be trusted as the process: it only gives names, and its size is bounded. Later
lines are of newer functions, which may lie where older ones did.
"""

from __future__ import annotations

from bisect import bisect_right
from pathlib import Path

from rouse import regular

FOLDER = Path("/tmp")
BYTES_MOST = 64 << 20
NAME_MOST = 500  # characters


class PerfMap:
    def __init__(self, lines: list[str]) -> None:
        found: dict[int, tuple[int, str]] = {}
        for line in lines:
            words = line.split(maxsplit=2)
            try:
                start, size = int(words[0], 16), int(words[1], 16)
                found[start] = (start + size, words[2].strip()[:NAME_MOST])
            except (IndexError, ValueError):
                continue
        self.starts = sorted(found)
        self.ends = [found[start][0] for start in self.starts]
        self.names = [found[start][1] for start in self.starts]

    def name(self, address: int) -> str:
        """Return the function at an address. Empty: none is known."""
        at = bisect_right(self.starts, address) - 1
        return self.names[at] if at >= 0 and address < self.ends[at] else ""


def of(pid: int, folder: Path = FOLDER) -> PerfMap:
    """Return the map of a process, which is empty if there is none."""
    try:
        with regular.opened(folder / f"perf-{pid}.map", BYTES_MOST) as file:
            return PerfMap(file.read().decode("utf-8", "replace").splitlines())
    except OSError:
        return PerfMap([])
