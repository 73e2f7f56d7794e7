#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure rouse and its peers on this machine, and print the tables of docs/benchmarks.md."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

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
)
from tables.programs import Program
from tables.render import Table
from tables.rounds import say

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = ROOT / "docs" / "benchmarks.md"
SECTIONS = (
    "threads",
    "rings",
    "sleep",
    "counts",
    "select",
    "accept",
    "fdtable",
    "steal",
    "http",
    "sweep",
    "idle",
    "memory",
)
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


def scales(options: argparse.Namespace) -> tuple[loads.Scale, http.Scale, float]:
    thread_scale = loads.QUICK if options.quick else loads.FULL
    http_scale = http.QUICK if options.quick else http.FULL
    if options.rounds:
        thread_scale = replace(thread_scale, rounds=options.rounds)
        http_scale = replace(http_scale, rounds=options.rounds)
    return thread_scale, http_scale, IDLE_SECONDS_QUICK if options.quick else IDLE_SECONDS


def measured(
    options: argparse.Namespace, shown: list[Program], missing: list[str], version: str
) -> Iterator[Table]:
    thread_scale, http_scale, idle_seconds = scales(options)
    build: Path = options.build
    if "threads" in options.only:
        yield from threads.tables(shown, missing, thread_scale)
    if "rings" in options.only:
        yield from rings.tables(shown, thread_scale)
    if "sleep" in options.only:
        yield from cases.sleep(shown, thread_scale)
    if "counts" in options.only:
        yield from counts.tables(shown, options.quick)
    herd_scale = select.QUICK if options.quick else select.FULL
    if options.rounds:
        herd_scale = replace(herd_scale, rounds=options.rounds)
    if "select" in options.only:
        yield from select.tables(build, herd_scale)
        yield from ticks.tables(build, herd_scale)
    if "accept" in options.only:
        accept_scale = accept.QUICK if options.quick else accept.FULL
        if options.rounds:
            accept_scale = replace(accept_scale, rounds=options.rounds)
        yield from accept.tables(build, accept_scale)
    if "fdtable" in options.only:
        yield from cases.fdtable(build, herd_scale)
    if "steal" in options.only:
        yield from cases.steal(build, herd_scale)
    found, absent = servers.all_servers(build, version)
    if options.no_peers:
        found, absent = [s for s in found if s.key != "nginx"], []
    if "http" in options.only:
        yield from http.tables(build, found, absent, http_scale)
    if "sweep" in options.only:
        yield from http.sweep(build, found, http_scale)
    if "idle" in options.only:
        yield from idle.tables(build, found, idle_seconds)
    if "memory" in options.only:
        yield from memory.tables(build, found, memory.QUICK if options.quick else memory.FULL)


def head(options: argparse.Namespace, shown: list[Program], command: str, version: str) -> str:
    facts = machine.describe(ROOT, version)
    facts += [(p.title, p.version) for p in shown if p.peer]
    if (program := servers.nginx_program()) and not options.no_peers:
        facts.append(("nginx", servers.version_of(program, "-v")))
    facts.append(("command", f"`{command}`"))
    table = render.pairs("Machine and versions", facts)
    count = scales(options)[0].rounds
    method = METHOD.format(rounds=count, few=threads.ORIENTATION_ROUNDS)
    quick = "**A quick run: no figure of it is to be relied on.**\n\n" if options.quick else ""
    return f"# Benchmarks\n\n{quick}{method}\n{render.text(table)}"


def main() -> int:
    options = parse()
    version = project_version()
    shown = programs.ours(options.build, version)
    missing: list[str] = []
    if not options.no_peers:
        say("building the peers")
        found, missing = programs.peers(options.build)
        shown += found
    command = " ".join(["bench/run.sh", *sys.argv[1:]])
    pages = [head(options, shown, command, version)]
    print(pages[0], flush=True)
    for table in measured(options, shown, missing, version):
        pages.append(render.text(table))
        print(pages[-1], flush=True)
    if options.write:
        options.write.write_text("\n".join(pages), encoding="utf-8")
        say(f"wrote {options.write}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
