# SPDX-License-Identifier: MIT
"""System calls and signals of each thread, counted by BPF in the kernel. Only root may do that."""

from __future__ import annotations

from rouse.errors import RouseError
from rouse.sched import switches
from rouse.sched.probe import BY_BPF

Counts = tuple[int | None, int | None]  # system calls and signals; None: not known


class Calls:
    """A running `rouse-kernel count`, whose lines kernel/counting.c describes."""

    def __init__(self) -> None:
        """Raise RouseError if the kernel does not permit it."""
        if why := switches.why_not():
            raise RouseError(f"SCL and SIG need BPF: {why}")
        self.recorder = switches.Recorder(BY_BPF, "count")
        self.others: Counts = (0, 0)  # of threads without counts; None if there was no room for all

    def look(self, pid: int) -> dict[int, Counts]:
        """Return the system calls and signals of the threads of a process, by thread, since this
        was called for it first. Other threads have none, or are not known: see `others`."""
        process = self.recorder.process
        assert process.stdin
        assert process.stdout
        found: dict[int, Counts] = {}
        try:
            process.stdin.write(f"{pid}\n")
            process.stdin.flush()
            while (words := process.stdout.readline().split("\t"))[0] == "count":
                tid, calls, signals = map(int, words[1:])
                found[tid] = calls, signals
        except (BrokenPipeError, ValueError):
            words = []
        if len(words) != 2 or words[0] != "end":
            raise RouseError(f"{BY_BPF}: ended, or does not answer", "start rouse top again")
        self.others = (0, 0) if int(words[1]) == 0 else (None, None)
        return found

    def close(self) -> None:
        self.recorder.close()
