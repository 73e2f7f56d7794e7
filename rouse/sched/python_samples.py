# SPDX-License-Identifier: MIT
"""Sample which Python functions run, and where the threads of a process are that do not run.

The stacks of CPython's own functions say nothing about the program that it interprets. py-spy reads
the interpreter's frames from outside, by process_vm_readv, and stops no thread for it. Those that
hold the interpreter lock run. All threads are sampled too, more rarely.

A sample costs 0.2 to 0.3 ms of CPU time per thread whose frames are read, and some microseconds per
thread that does not hold the lock. So processes with many threads are sampled at a lower rate, and
each sample counts for several.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import click

from rouse.sched import procfs

PER_S = 25  # samples of those that hold the lock
ALL_PER_S = 10  # samples of all threads
# Up to so many threads, samples per second: of those that hold the lock, and of all.
RATES = ((100, PER_S), (10_000, 5))
ALL_RATES = ((10, ALL_PER_S), (16, 5), (64, 1))
EVERY_S = 0.25  # between looks for processes
FIRST_EVERY_S, FIRST_S = 0.05, 0.5  # the same, in the first part of a run: it may be short
LEAST_NS = 200_000_000  # of CPU time, before a process is sampled
PROCESSES_MOST = 16  # of py-spy
END_S = 1.0  # for py-spy to end, after its process or a signal
BYTES_MOST = 16 << 20
# A program or library of CPython, mapped by the process.
INTERPRETER = re.compile(r"/(?:python|libpython)3\.\d+[a-z]*(?:\.so[\d.]*)?$")
RUN = re.compile(r"(.+) (\d+)")
TOLD = re.compile(r"Error: (.+)")
MISSING = "py-spy is not installed"


@dataclass(frozen=True)
class PythonRun:
    """Samples of a process with one stack of Python functions."""

    pid: int
    count: int
    frames: tuple[str, ...]  # "function (file:line)", the outermost first
    is_of_all: bool = False  # of all threads, not of those that run


def tool() -> str | None:
    """Return the path of py-spy: of our own packages, or else that of the user."""
    beside = Path(sys.executable).parent / "py-spy"
    copied = Path(click.__file__).parents[1] / "bin" / "py-spy"  # by `make install-tool`
    for path in (beside, copied):
        if os.access(path, os.X_OK):
            return str(path)
    return shutil.which("py-spy")


def used(pid: int) -> tuple[int, int]:
    """Return the CPU time of a process, in ns, and its number of threads. 0: it has ended."""
    try:
        fields = procfs.read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return 0, 0
    return (int(fields[11]) + int(fields[12])) * procfs.CLOCK_TICK_NS, int(fields[17])


def rate_of(threads: int, is_of_all: bool) -> int:
    """Return how many samples per second are taken. 0: none, since they would cost too much."""
    rates = ALL_RATES if is_of_all else RATES
    return next((rate for most, rate in rates if threads <= most), 0)


def unblock() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


class Sampling:
    """py-spy, which samples one process until that ends."""

    def __init__(self, program: str, pid: int, is_of_all: bool = False, rate: int = PER_S) -> None:
        self.pid, self.is_of_all, self.rate = pid, is_of_all, rate
        self.is_over = False
        self.stacks = os.memfd_create("python-stacks")
        self.said = os.memfd_create("py-spy-errors")
        words = (
            *(program, "record", "--pid", str(pid), "--idle" if is_of_all else "--gil"),
            *("--rate", str(rate), "--nonblocking"),
            *("--duration", "unlimited", "--full-filenames"),
            *("--format", "raw", "--output", f"/proc/self/fd/{self.stacks}"),
        )
        # A group of its own: the terminal's signals are for the program.
        self.process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self.said,
            pass_fds=(self.stacks,),
            process_group=0,
            preexec_fn=unblock,  # it shall end by a signal
        )

    def end(self) -> None:
        """Let it write what it has, and end."""
        self.is_over = True
        self.process.send_signal(signal.SIGINT)

    def stop(self) -> tuple[list[PythonRun], str]:
        """Return the samples, and why there are none."""
        # It ends by itself when its process has ended.
        for number in (None, signal.SIGINT, signal.SIGKILL):
            with contextlib.suppress(subprocess.TimeoutExpired):
                if number:
                    self.process.send_signal(number)
                self.process.wait(END_S)
                break
        text = os.pread(self.stacks, BYTES_MOST, 0).decode("utf-8", "replace")
        told = TOLD.search(os.pread(self.said, BYTES_MOST, 0).decode("utf-8", "replace"))
        os.close(self.stacks)
        os.close(self.said)
        weight = (ALL_PER_S if self.is_of_all else PER_S) // self.rate
        runs = [
            replace(run, count=run.count * weight, is_of_all=self.is_of_all)
            for run in parsed(self.pid, text)
        ]
        return runs, f"py-spy: {told[1]}" if told and not runs else ""


def parsed(pid: int, text: str) -> list[PythonRun]:
    """Read what py-spy wrote: a line for each stack, its functions separated by semicolons."""
    found = []
    for line in text.splitlines():
        if match := RUN.fullmatch(line):
            found.append(PythonRun(pid, int(match[2]), tuple(match[1].split(";"))))
    return found


class PythonSampler:
    """Samples the processes of a program that CPython runs."""

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        """pids: the processes of the program that are known to live."""
        self.pids = pids
        self.mapped = procfs.Mapped(INTERPRETER)
        # Samplings that were begun, by process, with their rate; 0: there shall be none.
        self.rates: dict[tuple[int, bool], int] = {}
        self.crowded: set[int] = set()  # those with too many threads to sample all
        self.running: list[Sampling] = []
        self.begun_s = time.monotonic()
        self.next_s = self.begun_s + FIRST_EVERY_S
        self.why = ""  # why there are no samples of some process

    def look(self) -> float:
        """Begin with the processes that are new, if that is due. Return for how long it is not."""
        if time.monotonic() >= self.next_s:
            for pid in self.pids():
                is_known = pid in self.mapped.has
                if not self.mapped.look(pid):
                    continue
                cpu_ns, threads = used(pid)
                if cpu_ns >= LEAST_NS:
                    self.begin(pid, False, threads)
                # One that lives for so short a time that it is seen once needs no samples.
                if is_known:
                    self.begin(pid, True, threads)
            now_s = time.monotonic()
            is_first = now_s < self.begun_s + FIRST_S
            self.next_s = now_s + (FIRST_EVERY_S if is_first else EVERY_S)
        return max(self.next_s - time.monotonic(), 0.0)

    def begin(self, pid: int, is_of_all: bool, threads: int) -> None:
        """Begin to sample a process, or continue at a lower rate since it has many threads now."""
        key, rate = (pid, is_of_all), rate_of(threads, is_of_all)
        if rate >= self.rates.get(key, PER_S + 1):
            return
        if not rate and key not in self.rates:
            self.crowded.add(pid)  # it may have fewer threads later
            return
        self.rates[key] = rate
        for sampling in self.running:
            if (sampling.pid, sampling.is_of_all, sampling.is_over) == (*key, False):
                sampling.end()
        program = tool()
        if program is None:
            self.why = MISSING
        elif rate and sum(not each.is_over for each in self.running) < PROCESSES_MOST:
            try:
                self.running.append(Sampling(program, pid, is_of_all, rate))
            except OSError as error:
                self.why = f"{program}: {error.strerror}"

    def stop(self) -> tuple[list[PythonRun], str]:
        """Return all samples, and why there are none of some process."""
        found = []
        for sampling in self.running:
            runs, why = sampling.stop()
            found += runs
            self.why = self.why or why
        self.running.clear()
        if any((pid, True) not in self.rates for pid in self.crowded):
            self.why = self.why or f"a process had more than {ALL_RATES[-1][0]} threads"
        return found, self.why
