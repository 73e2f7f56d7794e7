# SPDX-License-Identifier: MIT
"""Shared by the tests of the interposer: its programs, their sources, and records of a run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import unittest
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from common import BUILD, FIXTURES, SOURCE, here, site_label

LIBRARY = BUILD / "preload" / "librouse-preload.so"
Test = TypeVar("Test", bound=Callable[..., None])
LIMIT = 60  # seconds that a scene may take

if not LIBRARY.exists():
    print("not run: there is no librouse-preload.so in a build with sanitizers")
    sys.exit(77)


def lines_of(name: str) -> list[str]:
    return (
        (SOURCE / "tests" / "command" / "fixtures" / name).read_text(encoding="utf-8").splitlines()
    )


class Source:
    """A test program and the lines of its source."""

    def __init__(self, name: str, program: str = "") -> None:
        self.program = FIXTURES / (program or name)
        self.file = f"{name}.c"
        self.lines = lines_of(self.file)
        found = (
            re.match(r"\s+([A-Z_]+) = (\d+),", line) for line in self.lines + lines_of("pthreads.h")
        )
        self.known = {match[1]: int(match[2]) for match in found if match}

    def label(self, code: str, nth: int = 0) -> str:
        """The label of the site at the nth line that contains this code."""
        numbers = [number for number, line in enumerate(self.lines, 1) if code in line]
        return site_label(self.file, self.lines, numbers[nth])


def is_cross_built() -> bool:
    """Whether the library is for another machine than this one, and runs in an emulator."""
    machines = [path.read_bytes()[18:20] for path in (LIBRARY, Path(sys.executable))]
    return machines[0] != machines[1]


def unless_emulated(reason: str) -> Callable[[Test], Test]:
    """Skip a test that an emulator cannot run."""
    return unittest.skipIf(is_cross_built(), f"not run: {reason}")


def environment(folder: Path, **repairs: str) -> dict[str, str]:
    """The environment of a program that writes its file to that folder."""
    from rouse.run import launch

    with mock.patch.dict(os.environ, {"ROUSE_PRELOAD": str(LIBRARY)}):
        return launch.environment(folder, repairs)


def why_no_disk() -> str:
    """The reason why a test cannot mount a disk and fill it. Empty if it can."""
    if os.getuid() != 0:
        return "not run: only root can make a disk that is full"
    done = subprocess.run(["unshare", "-m", "true"], capture_output=True, text=True, check=False)
    return f"not run: cannot mount a disk: {done.stderr.strip()}" if done.returncode else ""


def play(folder: Path, source: Source, scene: str, **repairs: str) -> int:
    """Run a scene of the program, which must print nothing. Returns its process id."""
    there = environment(folder, **repairs)
    both = subprocess.PIPE
    with subprocess.Popen(
        [source.program, scene], env=there, stdout=both, stderr=both, text=True
    ) as program:
        try:
            said = program.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            words = ("gdb", "-batch", "-p", str(program.pid), "-ex", "thread apply all bt")
            subprocess.run(words, stdout=sys.stderr, check=False)  # prints where each thread is
            raise
        finally:
            program.kill()
    if program.returncode == 77 and said[0].startswith("not run: "):
        print(said[0], end="", flush=True)
        raise unittest.SkipTest(said[0].strip())
    if (program.returncode, *said) != (0, "", ""):
        raise AssertionError(f"{source.program} {scene}: {program.returncode} {said}")
    return program.pid


class Recorded:
    """The tables of each process of a scene, which are faster to make than its report."""

    def __init__(self, source: Source, scene: str, **variables: str) -> None:
        from rouse.store import find
        from rouse.symbols import sites
        from rouse.tables import build

        self.source = source
        self.processes: list[Mapping[str, Any]] = []
        if not RESOLVERS:
            RESOLVERS.append(sites.Resolver())
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "scene"
            record(folder, source, scene, **variables)
            for file in sorted(folder.glob("*.rouse")):
                opened = find.open_source(file)
                try:
                    self.processes.append(build.tables(find.read(opened), RESOLVERS[0]))
                finally:
                    opened.close()

    def rows(self, name: str) -> Iterator[tuple[dict[str, Any], Mapping[str, tuple[str, ...]]]]:
        """Rows of a table, each with the call sites of its process that lie in the program."""
        for process in self.processes:
            stacks: dict[str, tuple[str, ...]] = {}
            for frame in process["sites"].to_rows():
                if f" {self.source.file}:" in frame["label"]:
                    stacks[frame["site"]] = (*stacks.get(frame["site"], ()), frame["label"])
            for row in process[name].to_rows():
                yield row, stacks


RESOLVERS: list[Any] = []  # one resolver for all tests, since most sites are in the same files


def record(folder: Path, source: Source, scene: str, **repairs: str) -> None:
    """Run a scene of the program, which writes its file to a new folder."""
    folder.mkdir(mode=0o700)
    play(folder, source, scene, **repairs)


def played(source: Source, *scenes: str) -> dict[str, Mapping[str, list[dict[str, Any]]]]:
    """The sections of each scene's report. One run of `rouse report` makes them all."""
    with tempfile.TemporaryDirectory() as place:
        pids = {play(Path(place), source, scene): scene for scene in scenes}
        if len(pids) < len(scenes):
            raise AssertionError("two of the programs had the same number")
        said = here("report", "--all", "--json", place)
    if (said.returncode, said.stderr) != (0, ""):
        raise AssertionError(said)
    whole = json.loads(said.stdout)
    found: dict[str, Mapping[str, list[dict[str, Any]]]] = {}
    for process in whole["processes"]:
        found[pids[process["pid"]]] = {
            key: [row for row in rows if row.get("process") == process["process"]]
            for key, rows in whole["sections"].items()
        }
    return found


def recorded(
    test: unittest.TestCase, source: Source, scene: str, **repairs: str
) -> Mapping[str, list[dict[str, Any]]]:
    """The sections of the report on one scene of the program, including idle waits."""
    with tempfile.TemporaryDirectory() as place:
        record(Path(place) / "scene", source, scene, **repairs)
        said = here("report", "--all", "--json", Path(place) / "scene")
    test.assertEqual((said.returncode, said.stderr), (0, ""))
    found: Mapping[str, list[dict[str, Any]]] = json.loads(said.stdout)["sections"]
    return found
