#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure rouse and its peers on this machine, and print the tables of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

from tables import (
    accept,
    cases,
    counts,
    http,
    idle,
    loads,
    machine,
    memory,
    programs,
    render,
    rings,
    select,
    servers,
    threads,
    ticks,
    two_workers,
)
from tables.programs import Program
from tables.render import Table
from tables.rounds import say
from tables.servers import Server

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
IDLE_SECONDS, IDLE_SECONDS_QUICK = 10.0, 1.0

METHOD = """\
`make bench` makes this page: it runs `bench/run.sh`, and `bench/run.sh --write` replaces this file.
Nothing here is written by hand.

- All libraries run one source: a case of `rouse-bench` is one file, compiled for rouse, for a bare
  clone() library and, as separate programs, for plain pthreads, State Threads and Boost.Fiber. A
  program in Go has the same cases.
- A run first finds out how many operations fill 10 ms. It then takes up to 11 samples of at least
  that length and reports their median. There were {rounds} rounds, every second one in reverse
  order. Kernel threads of rouse and clone(), which serve for orientation, had at most {few}
  rounds, and so had pthreads where there are thousands of them.
- A ratio compares runs of the same round, which were close in time. Its interval is Student's t on
  the logarithms, 95 %. A claim holds when the whole interval lies on its side.
- The row of the empty operation is the cost of the harness. It is not subtracted from the others.
- User threads are not pre-empted: on a contended mutex all of them yield after 64 operations.
- Boost.Fiber runs round robin on one worker and steals work on more, which is its default: idle
  workers spin. If its workers sleep instead, the first never wakes the second, which does nothing.
"""


@dataclass(frozen=True)
class Measured:
    """One run of the benchmarks, by the options of its command line."""

    options: argparse.Namespace
    programs: list[Program]
    missing: list[str]  # the reasons for missing peers
    version: str

    @property
    def build(self) -> Path:
        return Path(self.options.build)

    @property
    def idle_seconds(self) -> float:
        return IDLE_SECONDS_QUICK if self.options.quick else IDLE_SECONDS

    def scale(self, module: ModuleType) -> Any:
        """The amount of work for the tables of a module."""
        scale = module.QUICK if self.options.quick else module.FULL
        rounds = self.options.rounds
        return replace(scale, rounds=rounds) if rounds and hasattr(scale, "rounds") else scale

    def servers(self) -> tuple[list[Server], list[str]]:
        found, missing = servers.all_servers(self.build, self.version)
        if self.options.no_peers:
            return [server for server in found if server.key != "nginx"], []
        return found, missing


SECTIONS: dict[str, Callable[[Measured], Iterator[Table]]] = {
    "threads": lambda run: threads.tables(run.programs, run.missing, run.scale(loads)),
    "rings": lambda run: rings.tables(run.programs, run.scale(loads)),
    "sleep": lambda run: cases.sleep(run.programs, run.scale(loads)),
    "counts": lambda run: counts.tables(run.programs, run.options.quick),
    "select": lambda run: chain(
        select.tables(run.build, run.scale(select)), ticks.tables(run.build, run.scale(select))
    ),
    "accept": lambda run: accept.tables(run.build, run.scale(accept)),
    "fdtable": lambda run: cases.fdtable(run.build, run.scale(select)),
    "steal": lambda run: cases.steal(run.build, run.scale(select)),
    "http": lambda run: chain(
        http.tables(run.build, *run.servers(), run.scale(http)),
        two_workers.tables(run.build, run.version, run.scale(http)),
    ),
    "sweep": lambda run: http.sweep(run.build, run.servers()[0], run.scale(http)),
    "idle": lambda run: idle.tables(run.build, run.servers()[0], run.idle_seconds),
    "memory": lambda run: memory.tables(run.build, run.servers()[0], run.scale(memory)),
}


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, help="pairs of alternating runs (9)")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="few and short runs: only a test, with unreliable figures",
    )
    parser.add_argument("--no-peers", action="store_true", help="measure only rouse, without peers")
    parser.add_argument(
        "--only",
        metavar="SECTION,...",
        default=",".join(SECTIONS),
        help=f"some of {', '.join(SECTIONS)}",
    )
    parser.add_argument(
        "--write",
        metavar="FILE",
        nargs="?",
        type=Path,
        const=DOCUMENT,
        help=f"write the tables to a file as well; without a name to docs/{DOCUMENT.name}",
    )
    machine.add_anyway(parser)
    options = parser.parse_args(arguments)
    options.only = options.only.split(",")
    if unknown := sorted(set(options.only) - set(SECTIONS)):
        parser.error(f"no such section: {unknown[0]}")
    if options.rounds is not None and options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if not (options.build / "bench" / "rouse-bench").exists():
        parser.error(f"no rouse-bench in {options.build}: build it first, with make")
    return options


def project_version() -> str:
    text = (ROOT / "meson.build").read_text(encoding="utf-8")
    found = re.search(r"version: '([^']+)'", text)
    return found[1] if found else "?"


def head(run: Measured, command: str, load: float) -> str:
    options = run.options
    facts = machine.describe(ROOT, run.version, load)
    facts += [(p.title, p.version) for p in run.programs if p.peer]
    if (version := servers.nginx_version()) and not options.no_peers:
        facts.append(("nginx", version))
    facts.append(("command", f"`{command}`"))
    table = render.pairs("Machine and versions", facts)
    count = run.scale(loads).rounds
    method = METHOD.format(rounds=count, few=threads.ORIENTATION_ROUNDS)
    quick = "**A quick run: no figure of it is to be relied on.**\n\n" if options.quick else ""
    return f"# Benchmarks\n\n{quick}{method}\n{render.text(table)}"


def main() -> int:
    options = parse()
    load = machine.check_quiet(options.write is not None, options.anyway)
    version = project_version()
    peers: tuple[list[Program], list[str]] = [], []
    if not options.no_peers:
        say("building the peers")
        peers = programs.peers(options.build)
    run = Measured(options, programs.ours(options.build, version) + peers[0], peers[1], version)
    command = " ".join(["bench/run.sh", *sys.argv[1:]])
    pages = [head(run, command, load)]
    print(pages[0], flush=True)
    for table in chain(*(tables(run) for name, tables in SECTIONS.items() if name in options.only)):
        pages.append(render.text(table))
        print(pages[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(pages), encoding="utf-8")
        say(f"wrote {options.write}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
