#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""run.py [--list] [MODEL[:MUTANT]...] - check the models in this folder with spin.

A model's first comment lists its runs, one per line:
    run NAME=VALUE FLAG: why       with these definitions the model must pass. A model without a run
                                   line must pass without definitions
    mutant FLAG NAME=VALUE: what   with these definitions it must fail. FLAG alone names the mutant
A run passes when the whole state space was searched, no assertion failed, and no process was left
waiting where it must not. A mutant must fail in one of these ways. If a mutant passes, the model
does not detect this fault. The exit status is 77 if spin is not installed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SHARED = {"memory.pml", "weak.pml"}  # models that others include
MEMORY_MB = 900
DEPTH = 3_000_000
SECONDS = 300
LINE = re.compile(r"^ \* (run|mutant)((?: [A-Z0-9_]+(?:=\d+)?)*): (.*)$", re.M)
FAILURE = re.compile(r"^pan:\d+: (assertion violated|invalid end state|acceptance cycle)", re.M)


@dataclass(frozen=True)
class Job:
    """One search: a model with some names defined, and whether it should find an error."""

    model: Path
    defines: tuple[str, ...]
    is_mutant: bool

    @property
    def name(self) -> str:
        if self.is_mutant:
            return f"{self.model.stem}:{self.defines[0]}"
        return " ".join((self.model.stem, *self.defines))


@dataclass(frozen=True)
class Outcome:
    job: Job
    passed: bool
    text: str
    seconds: float


class ModelError(Exception):
    """The model itself is wrong."""


def jobs_of(model: Path) -> list[Job]:
    text = model.read_text()
    body = text[text.index("*/") :]
    jobs = []
    for kind, words, _ in LINE.findall(text):
        job = Job(model, tuple(words.split()), kind == "mutant")
        if job.is_mutant and not job.defines:
            raise ModelError(f"{model.name}: a mutant without a name")
        if job.is_mutant and not re.search(rf"\b{job.defines[0]}\b", body):
            raise ModelError(f"{model.name}: nothing depends on {job.defines[0]}")
        jobs.append(job)
    if not any(not job.is_mutant for job in jobs):
        jobs.insert(0, Job(model, (), False))
    return jobs


def command(arguments: list[str], folder: Path) -> str:
    done = subprocess.run(
        arguments,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    return done.stdout


def compiler(job: Job) -> list[str]:
    """A mutant usually fails early, so most of its time is the compiler: tcc 0.02 s, gcc 0.9 s."""
    if not job.is_mutant:
        return ["gcc", "-O1"]
    return ["tcc"] if shutil.which("tcc") else ["gcc", "-O0"]


def search(job: Job, folder: Path) -> str:
    defines = [f"-D{name}" for name in job.defines]
    said = command(["spin", *defines, "-a", str(job.model)], folder)
    if not (folder / "pan.c").exists() or "Error" in said:
        raise ModelError(said)
    options = ["-DSAFETY", "-DCOLLAPSE", f"-DMEMLIM={MEMORY_MB}", "-w"]
    said = command([*compiler(job), *options, "-o", "pan", "pan.c"], folder)
    if not (folder / "pan").exists():
        raise ModelError(said)
    return command(["./pan", f"-m{DEPTH}", "-w22"], folder)


def judge(job: Job, said: str) -> tuple[bool, str]:
    failure = FAILURE.search(said)
    states = re.search(r"(\d+) states, stored", said)
    text = f"{int(states.group(1)):,} states" if states else "no states"
    if failure:
        line = said[failure.start() :].splitlines()[0]
        return job.is_mutant, line.split(": ", 1)[1][:60]
    is_whole = states is not None and "errors: 0" in said
    for complaint in ("Search not completed", "max search depth", "out of memory", "aborted"):
        if complaint in said:
            is_whole = False
    if not is_whole:
        return False, "the search did not end: " + said.strip().splitlines()[0]
    return not job.is_mutant, text


def run(job: Job) -> Outcome:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rouse-model-") as folder:
        try:
            passed, text = judge(job, search(job, Path(folder)))
        except ModelError as error:
            passed, text = False, str(error)
        except subprocess.TimeoutExpired:
            passed, text = False, f"not done in {SECONDS} s"
    return Outcome(job, passed, text, time.monotonic() - began)


def chosen(names: list[str]) -> list[Job]:
    jobs = [
        job
        for model in sorted(HERE.glob("*.pml"))
        if model.name not in SHARED
        for job in jobs_of(model)
    ]
    if not names:
        return jobs
    picked = [job for job in jobs if job.name in names or job.model.stem in names]
    if not picked:
        raise ModelError(f"no model or mutant is named {' '.join(names)}")
    return picked


def main() -> int:
    parser = argparse.ArgumentParser(description="check the models in this folder")
    parser.add_argument("--list", action="store_true", help="only say what there is")
    parser.add_argument("names", nargs="*", metavar="MODEL[:MUTANT]")
    arguments = parser.parse_args()
    try:
        jobs = chosen(arguments.names)
    except ModelError as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.list:
        print("\n".join(job.name for job in jobs))
        return 0
    if not shutil.which("spin"):
        print("not run: spin is not installed")
        return 77
    # Start the long searches first, so that none runs alone at the end.
    jobs.sort(key=lambda job: job.is_mutant)
    workers = min(2, len(os.sched_getaffinity(0)))  # each may use MEMORY_MB
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        for outcome in pool.map(run, jobs):
            kind = "mutant fails" if outcome.job.is_mutant else "passes"
            result = "ok    " if outcome.passed else "FAILED"
            print(f"{result} {outcome.job.name}: {kind}: {outcome.text} ({outcome.seconds:.1f} s)")
            sys.stdout.flush()
            failed += not outcome.passed
    print(f"{len(jobs) - failed} as they should be, {failed} not")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
