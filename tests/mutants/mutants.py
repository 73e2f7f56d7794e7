#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Remove one fence, check or mechanism at a time, and name the test that notices.

mutants.toml lists the mutants: a text of a source file, what it becomes, and the tests that should
fail with it. Each is applied to a copy of the sources under build/mutants, built, and its tests are
run in their order until one fails or hangs. A mutant that no test notices has survived, and so has
one whose text is not found. The tests are run once on the unchanged sources first.

Ends with status 1 if a mutant survived.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("mutants.toml")
# Delays are injected where a race is as wide as a few instructions.
ENVIRONMENT = {"ROUSE_TEST_DELAY": "64", "ROUSE_TEST_SEED": "1"}
SKIPPED = 77
LONGEST = 120.0  # seconds after which a test hangs; its own watchdog often ends it before


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    mutant: Mutant
    killer: str  # the test, and how it ended; empty: none
    note: str


def load(path: Path) -> list[Mutant]:
    entries = tomllib.loads(path.read_text())["mutant"]
    mutants = [Mutant(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]
    names = [mutant.name for mutant in mutants]
    if len(set(names)) != len(names):
        raise ValueError(f"{path}: two mutants have one name")
    return mutants


def apply(mutant: Mutant, text: str) -> str:
    """The mutated text. Raises ValueError if the mutant's text is not there exactly once."""
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


class Workshop:
    """A copy of the sources with a build of its tests."""

    def __init__(self, place: Path) -> None:
        self.tree = place / "tree"
        self.build = place / "build"
        self.logs = place / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        copy_sources(self.tree)
        if not (self.build / "build.ninja").is_file():
            options = ["-Dtests=true", "-Drouse_test=true", "-Ddefault_library=static"]
            subprocess.run(
                ["meson", "setup", str(self.build), str(self.tree), *options],
                check=True,
                stdout=subprocess.DEVNULL,
            )

    def make(self, tests: Iterable[str]) -> str:
        """Build the tests; the end of the output if that fails, else nothing."""
        done = subprocess.run(
            ["ninja", "-C", str(self.build), *(f"tests/{test}" for test in tests)],
            capture_output=True,
            text=True,
        )
        return "\n".join(done.stdout.splitlines()[-15:]) if done.returncode else ""

    def run(self, test: str, seconds: float) -> str:
        """How the test failed; empty if it passed."""
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "ROUSE_SOURCE": str(self.tree),
            "ROUSE_BUILD": str(self.build),
        }
        with (self.logs / f"{test}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(self.build / "tests" / test)],
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


def judge(shop: Workshop, mutant: Mutant, limits: dict[str, float]) -> Verdict:
    path = shop.tree / mutant.file
    original = path.read_text()
    try:
        path.write_text(apply(mutant, original))
    except ValueError as error:
        return Verdict(mutant, "", str(error))
    try:
        broken = shop.make(mutant.tests)
        if broken:
            return Verdict(mutant, "", f"does not compile:\n{broken}")
        for test in mutant.tests:
            failure = shop.run(test, limits[test])
            if failure:
                return Verdict(mutant, f"{test} ({failure})", "")
    finally:
        path.write_text(original)
    return Verdict(mutant, "", "every test of its list passed")


def baseline(shop: Workshop, mutants: list[Mutant]) -> dict[str, float]:
    """Each test's time limit: several times what it takes on the unchanged sources."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    broken = shop.make(tests)
    if broken:
        sys.exit(f"mutants: the unchanged tests do not build\n{broken}")
    limits = {}
    for test in tests:
        began = time.monotonic()
        failure = shop.run(test, 600)
        if failure:
            sys.exit(f"mutants: {test} fails without any mutant: {failure}; see {shop.logs}")
        limits[test] = min(10 + 4 * (time.monotonic() - began), LONGEST)
    return limits


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", metavar="TEXT", help="mutants whose name contains TEXT")
    parser.add_argument("--place", type=Path, default=ROOT / "build" / "mutants")
    options = parser.parse_args()
    mutants = [m for m in load(LIST) if not options.only or options.only in m.name]
    if not mutants:
        sys.exit("mutants: none has such a name")
    shop = Workshop(options.place)
    limits = baseline(shop, mutants)
    survived = 0
    for mutant in mutants:
        verdict = judge(shop, mutant, limits)
        survived += not verdict.killer
        told = f"killed by {verdict.killer}" if verdict.killer else f"SURVIVED: {verdict.note}"
        print(f"{mutant.name:45} {told}", flush=True)
    print(f"{len(mutants) - survived} of {len(mutants)} mutants were killed")
    print("What x86-64 cannot show is removed from the models: tests/model/run.py")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
