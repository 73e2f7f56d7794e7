#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check the Spin models of the protocols: each holds, and each of its mutants fails.

A model names its mutants in its first comment, a line `mutant NAME: what is removed` each; NAME is
defined for that run. Every run is bounded in memory; one that does not cover the whole model fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
MUTANT = re.compile(r"^ \* mutant ([A-Z0-9_]+): (.+)$", re.MULTILINE)
MEMORY_MIB = 900
STEPS = 2_000_000


@dataclass(frozen=True)
class Run:
    model: Path
    define: str  # empty: the model as it is


@dataclass(frozen=True)
class Outcome:
    run: Run
    errors: int  # -1: not decided
    told: str
    seconds: float


def runs_of(model: Path) -> list[Run]:
    return [Run(model, "")] + [Run(model, name) for name, _ in MUTANT.findall(model.read_text())]


def check(run: Run) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rouse-model-") as name:
        place = Path(name)
        define = [f"-D{run.define}"] if run.define else []
        steps = (
            ["spin", "-a", *define, str(run.model.resolve())],
            ["gcc", "-O2", "-w", "-DSAFETY", f"-DMEMLIM={MEMORY_MIB}", "-o", "pan", "pan.c"],
            ["./pan", f"-m{STEPS}", "-w24"],
        )
        output = ""
        for step in steps:
            done = subprocess.run(step, cwd=place, capture_output=True, text=True)
            output = done.stdout + done.stderr
            if done.returncode and step is not steps[-1]:
                break
    found = re.search(r"errors: (\d+)", output)
    is_whole = not re.search(
        r"Search not completed|max search depth too small|reached -DMEMLIM", output
    )
    errors = int(found.group(1)) if found else -1
    if errors == 0 and not is_whole:
        errors = -1
    why = next((line for line in output.splitlines() if line.startswith("pan:")), output[-300:])
    return Outcome(run, errors, why, time.monotonic() - began)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "models", nargs="*", type=Path, help="all beside this file, if none is given"
    )
    options = parser.parse_args()
    if not shutil.which("spin"):
        print("not run: spin is not installed")
        return 77
    models = options.models or sorted(p for p in HERE.glob("*.pml") if MUTANT.search(p.read_text()))
    failed = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for outcome in pool.map(check, [run for model in models for run in runs_of(model)]):
            run = outcome.run
            is_right = outcome.errors > 0 if run.define else outcome.errors == 0
            failed += not is_right
            name = f"{run.model.stem} {run.define or 'as it is'}"
            verdict = {-1: "UNDECIDED", 0: "holds"}.get(outcome.errors, "fails")
            note = "" if is_right and not run.define else outcome.told[:90]
            mark = "ok " if is_right else "NOT"
            print(f"{mark} {name:32} {verdict:9} {outcome.seconds:5.1f} s {note}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
