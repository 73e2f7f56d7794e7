#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The cost of `rouse run`: free locks, sysbench's mutex test, and MariaDB's point selects.

Each program alternates between plain runs and recorded runs of several variants. MariaDB runs all
variants at the same time, unless --turns is given. The script prints medians, and the median, least
and greatest ratio of a recorded run to the plain run next to it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(SOURCE))

import checkout  # noqa: E402

try:
    from rouse.errors import RouseError
    from rouse.lab.database_servers import POINT, MariaDB, Running, found, run
    from rouse.run.launch import environment, recordings
except ImportError as missing:
    checkout.enter(missing, "rouse")

PLAIN = "as it is"
# The variants besides the plain run: variables, as options of rouse run set them.
WAYS = {
    "default": {},
    "one-call": {"ROUSE_OBS_DEPTH": "1"},
    "holds": {"ROUSE_OBS": "locks"},
    "trace": {"ROUSE_RUN_TRACE": "1024"},
}
# The figures that a program of this folder prints.
LOCKS = ("mutex", "read lock", "write lock", "spin lock")
COLD = ("15 mutexes",)
Figures = Mapping[str, float]


def turns(
    ways: Sequence[str], rounds: int, measure: Callable[[str], Figures]
) -> Iterator[dict[str, Figures]]:
    """The figures of each round, by variant. The order changes from round to round."""
    for number in range(rounds):
        order = [PLAIN, *ways]
        order = order[number % len(order) :] + order[: number % len(order)]
        yield {way: measure(way) for way in order}


def print_medians(rounds: Iterator[Mapping[str, Figures]]) -> None:
    """Print the medians by variant and figure, and the ratios to the plain run next to each."""
    results = list(rounds)
    print(f"{'':16}{'':14}{'as it is':>10}{'recorded':>10}{'ratio':>8}")
    for figure in results[0][PLAIN]:
        for way in [way for way in WAYS if way in results[0]]:
            plain, so = ([row[name][figure] for row in results] for name in (PLAIN, way))
            ratios = sorted(s / p for p, s in zip(plain, so, strict=True))
            middle = statistics.median(ratios)
            print(
                f"{way:16}{figure:14}{statistics.median(plain):10.2f}{statistics.median(so):10.2f}"
                f"{middle:8.3f} [{ratios[0]:.3f}, {ratios[-1]:.3f}] of {len(ratios)}",
                flush=True,
            )


@contextlib.contextmanager
def recorded(way: str) -> Iterator[list[str]]:
    """The prefix of a command: as `rouse run` starts it, but without a report."""
    if way == PLAIN:
        yield []
        return
    with recordings(None) as folder:
        variables = environment(folder, WAYS[way])
        changed = [name for name in variables if variables[name] != os.environ.get(name)]
        yield ["env", *(f"{name}={variables[name]}" for name in changed)]


def compiled(source: str, figures: Sequence[str], ways: Sequence[str], rounds: int) -> None:
    """Compile a program of this folder, and print the ns that it reports."""
    with tempfile.TemporaryDirectory() as place:
        program = Path(place) / "program"
        compiler = os.environ.get("CC", "cc")
        flags = ("-O2", "-D_GNU_SOURCE", "-pthread")
        run(compiler, *flags, "-o", program, SOURCE / "bench" / source)

        def measure(way: str) -> Figures:
            with recorded(way) as before:
                printed = run(*before, program)
            return dict(zip(figures, map(float, printed.split()), strict=True))

        print_medians(turns(ways, rounds, measure))


def locks(ways: Sequence[str], rounds: int, _wanted: argparse.Namespace) -> None:
    """Locking and unlocking a free lock of each kind, with a warm cache."""
    compiled("locks.c", LOCKS, ways, rounds)


def cold(ways: Sequence[str], rounds: int, _wanted: argparse.Namespace) -> None:
    """Locking and unlocking 15 mutexes in a thread with a cold cache."""
    compiled("cold_locks.c", COLD, ways, rounds)


def mutex(ways: Sequence[str], rounds: int, wanted: argparse.Namespace) -> None:
    """The seconds that sysbench reports, and its CPU time."""
    words = ("mutex", "--mutex-num=4096", f"--threads={wanted.clients}")
    each = f"--mutex-locks={wanted.locks}"

    def measure(way: str) -> Figures:
        with recorded(way) as prefix:
            before = os.times()
            printed = run(*prefix, found("sysbench"), *words, each, "--mutex-loops=10000", "run")
            after = os.times()
        cpu = after.children_user + after.children_system
        cpu -= before.children_user + before.children_system
        took = next(line for line in printed.splitlines() if "total time:" in line)
        return {"seconds": float(took.split()[-1].rstrip("s")), "CPU seconds": cpu}

    print_medians(turns(ways, rounds, measure))


@contextlib.contextmanager
def servers(ways: Sequence[str]) -> Iterator[dict[str, Running]]:
    """One server per variant, with the same data, at the same time."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        first = MariaDB(Path(place) / "first")
        first.folder.mkdir()
        first.make()
        with first.started():
            first.asked("create database bench")
            run(*first.bench(POINT, 1, "prepare"))
        running = {}
        for number, way in enumerate((PLAIN, *ways)):
            server = MariaDB(Path(place) / str(number))
            shutil.copytree(first.folder / "data", server.folder / "data")
            prefix = stack.enter_context(recorded(way))
            running[way] = stack.enter_context(server.started(*prefix))
        yield running


def mariadb(ways: Sequence[str], rounds: int, wanted: argparse.Namespace) -> None:
    """CPU µs of the server per transaction, and transactions per second.

    All servers work at the same time, each for its own clients, so that other load on the machine
    affects them alike. They share the machine and its caches, which affects transactions per
    second. With --turns, each server runs alone.
    """
    with servers(ways) as running, ThreadPoolExecutor(len(running)) as pool:

        def measure(way: str) -> Figures:
            server = running[way].server
            before, begin = running[way].sample(POINT), time.monotonic()
            run(*server.bench(POINT, wanted.clients, f"--time={wanted.seconds}", "run"))
            did, took = running[way].sample(POINT).since(before), time.monotonic() - begin
            cpu = (did.user_s + did.system_s) * 1e6 / did.transactions
            return {"CPU µs": cpu, "1/s": did.transactions / took}

        def beside() -> dict[str, Figures]:
            return dict(zip(running, pool.map(measure, running), strict=True))

        beside()  # warm the servers' caches
        print_medians(
            turns(ways, rounds, measure) if wanted.turns else (beside() for _ in range(rounds))
        )


BENCHES = {"locks": locks, "cold": cold, "mutex": mutex, "mariadb": mariadb}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bench", choices=BENCHES)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--ways", default="default,holds", help=", ".join(WAYS))
    parser.add_argument("--clients", type=int, default=8, help="threads of sysbench")
    parser.add_argument("--seconds", type=int, default=10, help="duration of a run of MariaDB")
    parser.add_argument("--turns", action="store_true", help="run MariaDB's servers one at a time")
    parser.add_argument(
        "--locks", type=int, default=50_000, help="locks per thread of sysbench mutex"
    )
    wanted = parser.parse_args()
    ways = wanted.ways.split(",")
    if not set(ways) <= set(WAYS):
        parser.error(f"--ways: of {', '.join(WAYS)}")
    try:
        BENCHES[wanted.bench](ways, wanted.rounds, wanted)
    except (RouseError, subprocess.TimeoutExpired) as error:
        print(f"not run: {error}", file=sys.stderr)
        return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
