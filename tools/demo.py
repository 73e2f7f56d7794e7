#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run the experiment of `make run`, a ring of kernel and then of user threads, and then the server.

The ring is libMicro's cascade_mutex: two mutexes per thread, one thread runnable at a time. In
published figures it became much slower as soon as threads outnumbered processors. The table shows
both kinds of threads on this machine.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
BIN = ROOT / "build" / "bin"
SECONDS_A_RUN = 0.3
PR_SET_PDEATHSIG = 1  # linux/prctl.h; it outlives exec


def ns_a_hop(kind: str, threads: int) -> float:
    """The median time of a hop round the ring, measured by rouse-bench."""
    run = subprocess.run(
        [
            BIN / "rouse-bench",
            "cascade_mutex",
            "--json",
            *("--threads", kind),
            *("-T", str(threads)),
            *("--seconds", str(SECONDS_A_RUN)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return float(json.loads(run.stdout.splitlines()[-1])["ns_per_op"])


def refusal(port: str, folder: str) -> str | None:
    """The reason why the server would not start. It is checked before the long experiment."""
    if not re.fullmatch("[0-9]{1,5}", port) or int(port) > 65535:
        return f"PORT is a number from 0 to 65535, not '{port}'"
    try:
        os.close(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    except OSError as error:
        return f"DIR: cannot serve '{folder}': {error.strerror}"
    try:
        socket.create_server(("127.0.0.1", int(port))).close()
    except OSError as error:
        return f"PORT: cannot listen at port {port}: {os.strerror(error.errno or 0)}"
    return None


def show_experiment() -> None:
    processors = len(os.sched_getaffinity(0))
    counts = sorted({processors, processors + 1, 16, 33})
    print(f"A ring of threads, two mutexes each, one runnable at a time; {processors} processors.")
    print(f"{'threads':>8} {'kernel ns a hop':>16} {'user ns a hop':>14}")
    for threads in counts:
        kernel = ns_a_hop("kernel", threads)
        user = ns_a_hop("user", threads)
        print(f"{threads:>8} {kernel:>16,.0f} {user:>14,.0f}", flush=True)


def leave_group() -> None:
    """Receive signals only from our parent, and end when it exits."""
    os.setpgid(0, 0)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--port", default="8080")
    parser.add_argument(
        "--own-group", action="store_true", help="the parent hands signals on; see make_signals.c"
    )
    parser.add_argument("dir")
    options = parser.parse_args()
    if why := refusal(options.port, options.dir):
        sys.exit(f"make run: {why}")
    server = [str(BIN / "rouse-serve"), "--threads", "user", "--port", options.port, options.dir]

    if options.own_group:
        leave_group()
    handlers = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        show_experiment()
    except (OSError, subprocess.SubprocessError, ValueError, KeyError) as error:
        print(f"the experiment did not run: {error}", file=sys.stderr)
    print(f"Try next, in another terminal:  curl -i http://127.0.0.1:{options.port}/")
    sys.stdout.flush()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    # With exec, the signals that end `make run` reach the server itself.
    os.execv(server[0], server)


if __name__ == "__main__":
    sys.exit(main())
