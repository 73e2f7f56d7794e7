#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare `rouse run` with other tools on the planted faults of tests/findings.

Each tool runs with its usual command line on each faulty program. Its output names a fault if the
function that has to be changed is in it, which is a mild test: a function may be there for many
reasons. --write puts the tables into docs/findings/tools.md.

Requires the programs (tools/configure.sh check && ninja -C build/check findings_programs) and root.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "command")]

import checkout  # noqa: E402

try:
    import planted
    from planted import Planted
    from tables import machine, render

    import rouse.run.launch  # noqa: F401 `rouse run` needs its packages
except ImportError as missing:
    checkout.enter(missing, "rouse")

PAGE = ROOT / "docs" / "findings" / "tools.md"
BLOCK = re.compile(r"(<!-- figures -->\n).*?(<!-- end -->)", re.DOTALL)
FIRST = 25  # lines that a terminal shows at once
SAMPLES, EVERY_S = 3, 0.3  # of gdb and py-spy
LIMIT_S = 120
PY_SPY = str(Path(sys.executable).with_name("py-spy"))  # of the environment that we run in
FRAMES = ("-g", "caller,0.5,callee", "--max-stack", "12")


@dataclass(frozen=True)
class Place:
    """Where a tool puts its files, and how long the program runs."""

    scratch: Path
    preload: Path
    seconds: float


@dataclass(frozen=True)
class Answer:
    text: str
    rate: float  # of the program under the tool
    answer_s: float  # from the end of the program until the text was there


Words = Sequence[str | Path]
Tool = Callable[[Words, Place], Answer]


def run(words: Words, place: Place, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        env={**os.environ, "TMPDIR": str(place.scratch), **more},
        capture_output=True,
        text=True,
        errors="replace",
        timeout=LIMIT_S,
        check=True,
    )


def with_rouse(program: Words, place: Place) -> Answer:
    file = place.scratch / "rouse.txt"
    variables = {"ROUSE_PRELOAD": str(place.preload), "PYTHONPATH": str(ROOT)}
    words: Words = [sys.executable, "-m", "rouse", "run", "-o", file, "--", *program]
    began = time.monotonic()
    done = run(words, place, **variables)
    took = time.monotonic() - began
    return Answer(file.read_text(), planted.rate_of(done.stdout), max(took - place.seconds, 0))


def interrupted(program: Words, place: Place, words: Callable[[int], Words]) -> Answer:
    """Print the stacks of a running program several times. words: what prints those of a pid."""
    env = {**os.environ, "TMPDIR": str(place.scratch)}
    texts, took = [], 0.0
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=env) as running:
        for _ in range(SAMPLES):
            time.sleep(EVERY_S)
            began = time.monotonic()
            texts.append(run(words(running.pid), place).stdout)
            took += time.monotonic() - began
        printed, _ = running.communicate(timeout=LIMIT_S)
    return Answer("".join(texts), planted.rate_of(printed), took)


def with_gdb(program: Words, place: Place) -> Answer:
    def words(pid: int) -> Words:
        return ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]

    found = interrupted(program, place, words)
    shown = [line for line in found.text.splitlines() if line.startswith(("#", "Thread"))]
    return replace(found, text="\n".join(shown))


def with_py_spy(program: Words, place: Place) -> Answer:
    return interrupted(program, place, lambda pid: [PY_SPY, "dump", "--pid", str(pid)])


def with_perf(program: Words, place: Place) -> Answer:
    """Record the stack of each switch."""
    data = place.scratch / "perf.data"
    words: Words = ["perf", "record", "-q", "-o", data, "-e", "sched:sched_switch"]
    done = run([*words, "--call-graph", "dwarf,4096", "--", *program], place)
    began = time.monotonic()
    words = ["perf", "report", "--stdio", "--no-children", "-s", "comm", *FRAMES, "-i", data]
    text = run(words, place).stdout
    took = time.monotonic() - began
    data.unlink()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return Answer("\n".join(lines), planted.rate_of(done.stdout), took)


TOOLS: dict[str, tuple[str, str, Tool]] = {
    "rouse run": ("", "rouse run", with_rouse),
    "gdb": ("gdb", f"{SAMPLES} times all stacks", with_gdb),
    "perf": ("perf", "record -e sched:sched_switch --call-graph dwarf", with_perf),
    "py-spy": (PY_SPY, f"{SAMPLES} times dump, of programs in Python", with_py_spy),
}


def functions(program: Planted) -> list[str]:
    """The functions that have to be changed, without their classes."""
    named = (program.holder or program.waiter, program.waiter)
    return [name.rpartition("::")[2] for name in named if name][:1]


def names(text: str, wanted: Sequence[str]) -> bool:
    return bool(wanted) and all(re.search(rf"\b{re.escape(name)}\b", text) for name in wanted)


@dataclass(frozen=True)
class Row:
    program: Planted
    tool: str
    on_screen: bool  # within the first lines
    anywhere: bool
    has_lock: bool | None  # None: the fault has no lock with a name
    lines: int
    cost: float
    answer_s: float


def measure(options: argparse.Namespace, place: Place) -> Iterator[Row]:
    folder = options.build / "tests" / "findings"
    for program in planted.programs():
        path = planted.command(program.name, folder)
        if program.healthy or not functions(program) or planted.why_not(path):
            continue
        # Findings of some programs need samples, of which a short run has too few.
        place = replace(place, seconds=max(options.seconds, program.recorded_s))
        seconds = f"{place.seconds:g}"
        for tool, (needs, _, ask) in TOOLS.items():
            if tool == "py-spy" and Path(path[-1]).suffix != ".py":
                continue
            if needs and not shutil.which(needs):
                print(f"{tool}: not run: {needs} is not installed", file=sys.stderr)
                continue
            ratios, times = [], []
            for _ in range(options.rounds):
                plain = planted.rate(path, seconds, scratch=place.scratch)
                answer = ask([*path, seconds], place)
                ratios.append(plain / answer.rate)
                times.append(answer.answer_s)
            wanted = functions(program)
            first = "\n".join(answer.text.splitlines()[:FIRST])
            yield Row(
                program,
                tool,
                names(first, wanted),
                names(answer.text, wanted),
                names(answer.text, [program.object]) if program.object else None,
                len(answer.text.splitlines()),
                statistics.median(ratios),
                statistics.median(times),
            )
            print(f"{program.name}: {tool}", file=sys.stderr, flush=True)


def said(value: bool | None) -> str:
    return render.NOTHING if value is None else "yes" if value else "no"


def answer(row: Row | None) -> str:
    return f"{said(row.on_screen)}, {said(row.anywhere)}" if row else render.NOTHING


def tables(rows: Sequence[Row]) -> list[render.Table]:
    tools = [name for name in TOOLS if any(row.tool == name for row in rows)]
    programs = list(dict.fromkeys(row.program.name for row in rows))
    known = {(row.program.name, row.tool): row for row in rows}
    head = ["program", "fault", *(f"{tool}: first {FIRST} lines, anywhere" for tool in tools)]
    each = [
        [
            name,
            known[name, tools[0]].program.fault,
            *(answer(known.get((name, tool))) for tool in tools),
        ]
        for name in programs
    ]
    sums = []
    for tool in tools:
        own = [row for row in rows if row.tool == tool]
        locks = [row for row in own if row.has_lock is not None]
        sums.append(
            [
                tool,
                TOOLS[tool][1],
                f"{sum(row.on_screen for row in own)} of {len(own)}",
                f"{sum(row.anywhere for row in own)} of {len(own)}",
                f"{sum(bool(row.has_lock) for row in locks)} of {len(locks)}",
                f"{statistics.median(row.lines for row in own):,.0f}",
                f"{statistics.median(row.cost for row in own):.2f}",
                f"{statistics.median(row.answer_s for row in own):.1f}",
            ]
        )
    whole = ["tool", "how", f"function in {FIRST} lines", "anywhere", "lock by name", "lines"]
    return [
        render.Table("Tools", [*whole, "time per operation", "seconds to the answer"], sums),
        render.Table("Programs", head, each),
    ]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "check")
    parser.add_argument("--rounds", type=int, default=3, help="runs with each tool and without it")
    parser.add_argument("--seconds", type=float, default=2, help="duration of each run")
    parser.add_argument("--write", action="store_true", help=f"into docs/findings/{PAGE.name}")
    machine.add_anyway(parser)
    return parser.parse_args()


def main() -> int:
    options = parse()
    load = machine.check_quiet(options.write, options.anyway)
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text(encoding="utf-8"))
    facts = machine.describe(ROOT, version[1] if version else "?", load)
    facts.append(("runs", f"median of {options.rounds} per program, {options.seconds:g} s each"))
    with tempfile.TemporaryDirectory(dir=options.build) as scratch:  # journal needs a disk
        library = options.build / "preload" / "librouse-preload.so"
        place = Place(Path(scratch), library, options.seconds)
        try:
            rows = list(measure(options, place))
        except (OSError, AssertionError, subprocess.SubprocessError) as reason:
            print(f"finders.py: {reason}", file=sys.stderr)
            return 1
    made = [*tables(rows), render.pairs("Machine", facts)]
    text = "\n".join(render.text(table) for table in made).strip()
    print(text)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        page = BLOCK.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)
        PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
