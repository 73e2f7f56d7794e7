#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure the CPU time of `rouse top` on a program with many threads, in percent of a core.

The program is rouse-bench's sleepherd, whose threads repeatedly sleep for a second. `rouse top`
runs on a terminal of 120 columns and 40 lines. Its first seconds do not count.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from fcntl import ioctl
from pathlib import Path

BIN = Path(__file__).resolve().parent.parent / "build" / "bin"
WARM_UP_S = 5


def cpu_ns(pid: int) -> int:
    """The exact CPU time of all kernel threads of a process."""
    stats = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(stat.read_text(encoding="ascii").split()[0]) for stat in stats)


def start_program(threads: int, folder: str, seconds: int) -> subprocess.Popen[bytes]:
    """Start the program, and wait until all its threads have slept once."""
    program = subprocess.Popen(
        [
            *(BIN / "rouse-bench", "sleepherd", "--obs", "counted", "-T", str(threads)),
            *("--sleep-us", "1000000", "--samples", "1000", "--seconds", str(seconds)),
        ],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "ROUSE_OBS_DIR": folder},
    )
    time.sleep(2)
    return program


def start_top(folder: str, words: list[str]) -> tuple[int, int]:
    """Start `rouse top`. Returns the process and its terminal, which a thread reads."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update(ROUSE_OBS_DIR=folder, TERM="xterm-256color")
        os.execv(BIN / "rouse", ["rouse", "top", *words])
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def read() -> None:
        try:
            while os.read(terminal, 1 << 16):
                pass
        except OSError:
            pass  # it has ended

    threading.Thread(target=read, daemon=True).start()
    return pid, terminal


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--threads", type=int, default=10_000)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--all", action="store_true", help="show idle threads too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as holder:
        folder = f"{holder}/recordings"
        lasts = options.seconds + WARM_UP_S + 10
        program = start_program(options.threads, folder, lasts)
        pid, terminal = start_top(folder, ["--all"] if options.all else [])
        time.sleep(WARM_UP_S)
        began, before = time.monotonic(), cpu_ns(pid)
        time.sleep(options.seconds)
        percent = (cpu_ns(pid) - before) / (time.monotonic() - began) / 1e7
        is_alive = program.poll() is None
        os.write(terminal, b"q")
        _, status = os.waitpid(pid, 0)
        program.kill()
        program.wait()
    print(json.dumps({"threads": options.threads, "percent_of_a_core": round(percent, 2)}))
    if not is_alive or status:
        print(
            f"top_cost: the measurement failed: rouse top ended with status {status}",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
