#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Remove one fence, check or mechanism at a time, and name the test that notices.

Each FOLDER.toml here lists the mutants of a source folder: a text of a source file, its
replacement, and how it should be noticed:
    tests        programs, run in this order until one fails or hangs. FILE.py:CLASS.CASE is a case
                 of tests/command, or one of tests/e2e that runs rouse-serve
    model        MODEL:MUTANT of tests/model, for faults that x86-64 does not show or tests rarely
                 meet
    equivalent   the reason why nothing can notice the mutant. No test is run
    environment  variables for the tests, if they need other ones than usual
Each mutant with tests is applied to a copy of the sources under build/mutants, built and tested. A
mutant survives if nothing notices it, or if its text is not found. First the tests run once on the
unchanged sources. A test that fails there cannot notice a mutant.

The exit status is 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import os
import queue
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LISTS = Path(__file__).parent
MODELS = ROOT / "tests" / "model" / "run.py"
# Delays are injected into races that are only a few instructions wide.
ENVIRONMENT = {"ROUSE_TEST_DELAY": "64", "ROUSE_TEST_SEED": "1", "ROUSE_IO": "epoll"}
SKIPPED = 77
LONGEST = 180.0  # seconds after which a test counts as hanging, unless its own watchdog ends it
ATTEMPTS = 3  # runs of a failing test on the unchanged sources


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...] = ()
    model: str = ""
    equivalent: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.tests, self.model, self.equivalent))) != 1:
            raise ValueError(f"{self.name}: give tests, a model, or why it is equivalent")


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    is_settled: bool  # noticed, or equivalent
    text: str


def load(folder: Path) -> list[Mutant]:
    files = sorted(folder.glob("*.toml"))
    entries = [entry for file in files for entry in tomllib.loads(file.read_text())["mutant"]]
    mutants = [Mutant(**{**entry, "tests": tuple(entry.get("tests", ()))}) for entry in entries]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise ValueError(f"{folder}: two mutants have one name")
    return mutants


def apply(mutant: Mutant, text: str) -> str:
    """The mutated text. Raises ValueError unless the mutant's text occurs exactly once."""
    count = text.count(mutant.find)
    if count != 1:
        raise ValueError(f"{mutant.file} has the text {count} times")
    return text.replace(mutant.find, mutant.replace)


def copy_sources(tree: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout
    for name in filter(None, listed.decode().split("\0")):
        source, target = ROOT / name, tree / name
        if not source.is_file():
            continue
        if target.is_file() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        os.utime(target)  # newer than the objects built from the old one


def script_of(test: str) -> Path:
    """The script of FILE.py:CLASS.CASE, beneath the root of the sources."""
    name = test.partition(":")[0]
    at_command = Path("tests") / "command" / name
    return at_command if (ROOT / at_command).is_file() else Path("tests") / "e2e" / name


def target_of(test: str) -> str:
    if ":" not in test:
        return f"tests/{test}"
    return "command_programs" if script_of(test).parent.name == "command" else "serve/rouse-serve"


class Workshop:
    """A copy of the sources with a build of its tests."""

    def __init__(self, place: Path) -> None:
        self.tree = place / "tree"
        self.build = place / "build"
        self.logs = place / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        copy_sources(self.tree)
        venv = self.tree / "build" / "venv"
        if not venv.exists():
            venv.parent.mkdir(exist_ok=True)
            venv.symlink_to((ROOT / "build" / "venv").resolve())
        if not (self.build / "build.ninja").is_file():
            # A mutant may leave a function or a variable unused.
            options = ["-Dtests=true", "-Drouse_test=true", "-Ddefault_library=static"]
            subprocess.run(
                ["meson", "setup", str(self.build), str(self.tree), "-Dwerror=false", *options],
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def make(self, tests: Iterable[str]) -> str:
        """Build the tests. Returns the end of the output if that fails, and otherwise nothing."""
        done = subprocess.run(
            ["ninja", "-C", str(self.build), *sorted({target_of(test) for test in tests})],
            capture_output=True,
            text=True,
        )
        return "\n".join(done.stdout.splitlines()[-15:]) if done.returncode else ""

    def run(self, test: str, seconds: float, more: Mapping[str, str]) -> str:
        """Run the test. Returns how it failed, and an empty text if it passed."""
        environment = {
            **os.environ,
            **ENVIRONMENT,
            **more,
            "ROUSE_SOURCE": str(self.tree),
            "ROUSE_BUILD": str(self.build),
        }
        case = test.partition(":")[2]
        command = [str(self.build / "tests" / test)]
        if case:
            command = [sys.executable, str(self.tree / script_of(test)), case]
        with (self.logs / f"{test}.log").open("wb") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                status = None
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if status is None:
            return f"hung for {seconds:.0f} s"
        if status in (0, SKIPPED):
            return ""
        return f"status {status}" if status > 0 else signal.Signals(-status).name


class Shops:
    """Several workshops. Each job uses a free one."""

    def __init__(self, place: Path, count: int) -> None:
        self.free: queue.Queue[Workshop] = queue.Queue()
        for number in range(count):
            self.free.put(Workshop(place / str(number)))
        self.pool = concurrent.futures.ThreadPoolExecutor(count)

    @contextlib.contextmanager
    def one(self) -> Iterator[Workshop]:
        shop = self.free.get()
        try:
            yield shop
        finally:
            self.free.put(shop)


@dataclass(frozen=True)
class Witness:
    """A test, and its result on the unchanged sources."""

    limit: float  # seconds
    failure: str = ""


def examine(shops: Shops, test: str) -> Witness:
    with shops.one() as shop:
        failure = shop.make([test])
        for _ in range(0 if failure else ATTEMPTS):
            began = time.monotonic()
            failure = shop.run(test, LONGEST, {})
            if not failure:
                break
    if failure:
        return Witness(0, failure)
    return Witness(min(15 + 5 * (time.monotonic() - began), LONGEST))


def judge(shops: Shops, mutant: Mutant, witnesses: Mapping[str, Witness]) -> Verdict:
    usable = [test for test in mutant.tests if not witnesses[test].failure]
    if not usable:
        return Verdict(mutant, False, f"{mutant.tests[0]} fails on the unchanged sources")
    with shops.one() as shop:
        path = shop.tree / mutant.file
        original = path.read_text()
        try:
            path.write_text(apply(mutant, original))
            broken = shop.make(usable)
            if broken:
                return Verdict(mutant, False, f"does not compile\n{broken}")
            for test in usable:
                failure = shop.run(test, witnesses[test].limit, mutant.environment)
                if failure:
                    return Verdict(mutant, True, f"killed by {test} ({failure})")
        except ValueError as error:
            return Verdict(mutant, False, str(error))
        finally:
            path.write_text(original)
    return Verdict(mutant, False, "no test of its list noticed")


def judge_by_tests(mutants: list[Mutant], place: Path, jobs: int) -> Iterator[Verdict]:
    shops = Shops(place, jobs)
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    print(f"{len(mutants)} mutants; first their {len(tests)} tests unchanged", flush=True)
    found = shops.pool.map(lambda test: examine(shops, test), tests)
    witnesses = dict(zip(tests, found, strict=True))
    for test, witness in witnesses.items():
        if witness.failure:
            print(f"no witness: {test}: {witness.failure}", flush=True)
    yield from shops.pool.map(lambda mutant: judge(shops, mutant, witnesses), mutants)


def judge_by_models(mutants: list[Mutant]) -> Iterator[Verdict]:
    names = sorted({mutant.model for mutant in mutants})
    done = subprocess.run(
        [sys.executable, str(MODELS), *names], capture_output=True, text=True, check=False
    )
    failing = {
        line.split()[1].rstrip(":") for line in done.stdout.splitlines() if line.startswith("ok ")
    }
    for mutant in mutants:
        is_killed = mutant.model in failing
        said = "killed by the model" if is_killed else "not noticed by the model"
        yield Verdict(mutant, is_killed, f"{said} {mutant.model}")


def verdicts(mutants: list[Mutant], place: Path, jobs: int) -> Iterator[Verdict]:
    for mutant in mutants:
        if mutant.equivalent:
            yield Verdict(mutant, True, f"equivalent: {mutant.equivalent}")
    by_model = [mutant for mutant in mutants if mutant.model]
    if by_model:
        yield from judge_by_models(by_model)
    by_tests = [mutant for mutant in mutants if mutant.tests]
    if by_tests:
        yield from judge_by_tests(by_tests, place, jobs)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", help="mutants whose name contains TEXT")
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "mutants")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    options = parser.parse_args()
    mutants = [m for m in load(LISTS) if not options.only or options.only in m.name]
    if not mutants:
        sys.exit("mutants: none has such a name")
    survived = []
    for verdict in verdicts(mutants, options.place, options.jobs):
        shown = verdict.text if verdict.is_settled else f"SURVIVED: {verdict.text}"
        print(f"{verdict.mutant.name:60} {shown}", flush=True)
        if not verdict.is_settled:
            survived.append(verdict.mutant.name)
    print(f"{len(mutants)} mutants, {len(survived)} survived")
    print("".join(f"  {name}\n" for name in survived), end="")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
