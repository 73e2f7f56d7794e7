# SPDX-License-Identifier: MIT
"""The compared programs: ours, and the peers that can be built here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
# Peers have the cases that cases.c names before its #ifndef BENCH_PEER.
FOR_PEERS = (BENCH / "cases.c").read_text(encoding="utf-8").split("#ifndef BENCH_PEER")[0]
CASES = sorted({f"{name}.c" for name in re.findall(r"\((case_\w+)\)", FOR_PEERS)})
SOURCES = [
    *("cases.c", "compare.c", "help.c", "main.c", "measure.c", "options.c", "report.c"),
    *("suite.c", "team.c", *CASES),
]
C_FLAGS = ["-O2", "-std=c17", "-D_GNU_SOURCE", f"-I{BENCH}", '-DBENCH_VERSION="peer"']
GO_LEAST = (1, 21)
GO_PLACES = ("/usr/local/go/bin/go", "/usr/lib/go/bin/go")


class MissingError(Exception):
    """A peer cannot be built here. The text gives the reason."""


@dataclass(frozen=True)
class Program:
    """A program of one column. It has the command line of rouse-bench."""

    key: str
    title: str
    command: tuple[str, ...]
    version: str
    peer: bool = True  # not rouse
    pins: bool = False  # supports --pin
    workers_most: int | None = None

    def fits(self, workers: int) -> bool:
        return self.workers_most is None or workers <= self.workers_most


def build_folder(build: Path) -> Path:
    folder = build / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def run_tool(*command: str | Path, **environment: str) -> str:
    """Run a build tool. Its first error becomes the reason why the peer is missing."""
    try:
        done = subprocess.run(
            [str(word) for word in command],
            capture_output=True,
            text=True,
            env={**os.environ, **environment},
            check=False,
        )
    except OSError as error:
        raise MissingError(f"{command[0]}: {error.strerror}") from error
    if done.returncode != 0:
        complaints = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in complaints if "error" in line] or complaints or ["it failed"]
        raise MissingError(f"{Path(str(command[0])).name}: {errors[0].strip()}")
    return done.stdout


def header(name: str, pattern: str, package: str) -> str:
    """The version that a header in /usr/include states."""
    path = Path("/usr/include") / name
    if not path.exists():
        raise MissingError(f"{package} is not installed")
    found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else "?"


def sources_of(peer: str) -> tuple[list[Path], str]:
    """The C sources of a peer, and the definition that selects it."""
    sources = [BENCH / name for name in [*SOURCES, f"peers/{peer}.c"]]
    return sources, f'-DBENCH_PEER="peers/{peer}.h"'


def build_c(build: Path, peer: str, *libraries: str) -> tuple[str]:
    target = build_folder(build) / f"bench-{peer}"
    sources, define = sources_of(peer)
    run_tool("gcc", *C_FLAGS, define, *sources, "-o", target, *libraries, "-lm")
    return (str(target),)


def build_pthread(build: Path) -> Program:
    version = os.confstr("CS_GNU_LIBC_VERSION") or "?"
    return Program("pthread", "pthread", build_c(build, "pthread", "-pthread"), version, pins=True)


def build_st(build: Path) -> Program:
    version = header("st.h", r'ST_VERSION\s+"([^"]+)"', "libst-dev")
    return Program("st", "State Threads", build_c(build, "st", "-lst"), version, workers_most=1)


def build_fiber(build: Path) -> Program:
    header("boost/fiber/all.hpp", "()", "libboost-fiber-dev")
    version = header("boost/version.hpp", r'BOOST_LIB_VERSION "([^"]+)"', "libboost-dev")
    target = build_folder(build) / "bench-fiber"
    sources, define = sources_of("fiber")
    cpp = BENCH / "peers" / "fiber.cpp"
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = []
        for source in sources:
            objects.append(Path(folder) / f"{source.stem}-c.o")
            run_tool("gcc", *C_FLAGS, "-flto", define, "-c", source, "-o", objects[-1])
        objects.append(Path(folder) / "fiber-cpp.o")
        flags = ["-O2", "-DNDEBUG", "-flto", "-std=c++17", f"-I{BENCH}"]
        run_tool("g++", *flags, "-c", cpp, "-o", objects[-1])
        libraries = ["-lboost_fiber", "-lboost_context", "-lm", "-pthread"]
        run_tool("g++", "-O2", "-flto", *objects, "-o", target, *libraries)
    return Program("fiber", "Boost.Fiber", (str(target),), version.replace("_", "."), pins=True)


def build_go(build: Path) -> Program:
    places = [place for place in (shutil.which("go"), *GO_PLACES) if place and Path(place).exists()]
    if not places:
        raise MissingError("no Go toolchain is here")
    local = {"GOTOOLCHAIN": "local", "GOPROXY": "off", "GOFLAGS": ""}
    version = run_tool(places[0], "env", "GOVERSION", **local).strip().removeprefix("go")
    least = ".".join(map(str, GO_LEAST))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if not numbers or (int(numbers[1]), int(numbers[2])) < GO_LEAST:
        raise MissingError(f"Go {version} is here; {least} or later is required")
    target = build_folder(build) / "bench-go"
    run_tool(places[0], "build", "-C", BENCH / "peers" / "go", "-o", target.resolve(), ".", **local)
    return Program("go", "Go", (str(target),), version)


PEERS: Mapping[str, Callable[[Path], Program]] = {
    "pthread": build_pthread,
    "Go": build_go,
    "Boost.Fiber": build_fiber,
    "State Threads": build_st,
}


def peers(build: Path) -> tuple[list[Program], list[str]]:
    """The peers that could be built, and the reason for each missing one."""
    found, missing = [], []
    for title, make in PEERS.items():
        try:
            found.append(make(build))
        except MissingError as reason:
            missing.append(f"{title} is missing: {reason}")
    return found, missing


def ours(build: Path, version: str) -> list[Program]:
    bench = str(build / "bench" / "rouse-bench")

    def of(key: str, title: str, *options: str) -> Program:
        return Program(key, title, (bench, *options), version, peer=False, pins=True)

    return [
        of("user", "rouse", "--threads", "user"),
        of("unrecorded", "recording off", "--threads", "user", "--obs", "off"),
        of("kernel", "kernel threads", "--threads", "kernel"),
        of("clone", "bare clone()", "--threads", "clone"),
    ]


def command_line(program: Program, arguments: Sequence[str]) -> list[str]:
    """Put the name of the case first, because Go's flag package requires it."""
    case, *options = arguments
    return [program.command[0], case, *program.command[1:], *options, "--json"]
