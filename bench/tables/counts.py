# SPDX-License-Identifier: MIT
"""Instructions and system calls per operation, which noise does not affect.

Each figure is counted in two runs of different length. The difference of the counts is divided by
the difference of the operations, so that start and end do not count.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tables import rounds
from tables.programs import Program, command_line
from tables.render import Table, number

OPERATIONS = {"valgrind": (4_000, 36_000), "strace": (400, 3_600)}  # in the two runs
INSTRUCTIONS_OF = ("user", "unrecorded", "st", "fiber")  # the others do their work in the kernel
CALLS_OF = ("user", "kernel", "clone", "pthread", "st", "fiber", "go")
LOADS = {
    "yield": ("yield",),
    "spawn+join": ("spawn",),
    "ring of 16, per hop": ("ring",),
    "cascade_mutex of 16, per hop": ("cascade_mutex",),
    "mutex, 1 thread": ("mutex", "-T", "1"),
    "mutex, 8 threads": ("mutex",),
    "ping-pong, per round trip": ("pingpong",),
}
QUICK = ("yield", "mutex, 1 thread")
TOOLS = {  # title, explanation, workers
    "valgrind": (
        "Instructions per operation, w=1",
        "Counted by Valgrind's callgrind, in user space only.",
        1,
    ),
    "strace": (
        "System calls per operation, w=2",
        "Counted by strace, which slows the program, so threads may wait more often.",
        2,
    ),
}
COLLECTED = re.compile(r"Collected\s*:\s*(\d+)")
HARNESS = "!getcpu"  # not counted: cases on kernel threads find their processor with it


def finish(command: Sequence[str]) -> str | None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    return done.stderr if done.returncode == 0 else None


def instructions(command: Sequence[str]) -> int | None:
    # Valgrind lowers the descriptor limit and does not allow raising it again.
    limited = ["prlimit", "--nofile=1024:1024", "valgrind"]
    said = finish([*limited, "--tool=callgrind", "--callgrind-out-file=/dev/null", *command])
    found = COLLECTED.search(said or "")
    return int(found[1]) if found else None


def total_calls(summary: str) -> int | None:
    """The total in the last line of `strace -c`."""
    last = [line.split() for line in summary.splitlines() if line.endswith(" total")]
    return int(last[-1][3]) if last else 0


def system_calls(command: Sequence[str]) -> int | None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "calls"
        if finish(["strace", "-f", "-c", "-e", HARNESS, "-o", str(out), *command]) is None:
            return None
        return total_calls(out.read_text(encoding="utf-8"))


def per_operation(program: Program, load: Sequence[str], workers: int, tool: str) -> float | None:
    counted = []
    few, many = OPERATIONS[tool]
    for operations in (few, many):
        arguments = [*load, "--workers", str(workers), "-n", str(operations), "--samples", "1"]
        command = command_line(program, arguments)
        counted.append(instructions(command) if tool == "valgrind" else system_calls(command))
    short, long = counted
    return None if short is None or long is None else (long - short) / (many - few)


def table_of(programs: Sequence[Program], tool: str, labels: Sequence[str]) -> Table:
    title, about, workers = TOOLS[tool]
    table = Table(title, ["", *(program.title for program in programs)], before=[about])
    for label in labels:
        load = LOADS[label]
        rounds.say(f"{tool}: {label}")
        cells = []
        for program in programs:
            fits = program.fits(workers) and (program.key != "go" or load[0] != "cascade_mutex")
            value = per_operation(program, load, workers, tool) if fits else None
            cells.append(number(value))
        table.rows.append([label, *cells])
    return table


def tables(programs: Sequence[Program], quick: bool) -> Iterator[Table]:
    by_key = {program.key: program for program in programs}
    labels = QUICK if quick else tuple(LOADS)
    for tool, keys in (("valgrind", INSTRUCTIONS_OF), ("strace", CALLS_OF)):
        if shutil.which(tool):
            yield table_of([by_key[key] for key in keys if key in by_key], tool, labels)
        else:
            rounds.say(f"counts: not run: no {tool} here")
