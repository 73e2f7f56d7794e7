#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure the time and memory that `rouse report` needs for large synthetic tables.

Half of the records are wake-ups and half are lock waits, of ten processes. Run it with
build/venv/bin/python on an otherwise idle machine. It makes the tables first. --keep keeps them.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from rouse.tables import parquet  # noqa: E402 the path comes first
from rouse.tables.schemas import COLUMNS, WHOLE  # noqa: E402
from rouse.tables.table import Coded, Column, Table, empty, from_rows  # noqa: E402

PROCESSES = 10
SITES = 2000
SITES_OF_LOCK = 4  # a lock is used at few sites, and many locks are used at the same sites
KINDS = ("mutex", "condition", "read", "write lock")
SITE_IDS = [hex(0x1000 + 16 * i) for i in range(SITES)]


def table(name: str, process: str, rows: int, chance: np.random.Generator) -> Table:
    """Rows with distinct keys, as the decoder makes them."""
    every: npt.NDArray[np.int64] = np.arange(rows)
    # Combine each lock or other object with all pairs of its sites.
    pairs = SITES_OF_LOCK * SITES_OF_LOCK
    lock, first, second = every // pairs, every % SITES_OF_LOCK, every // SITES_OF_LOCK
    base = lock % (SITES // SITES_OF_LOCK) * SITES_OF_LOCK
    columns: dict[str, Column] = {
        key: chance.integers(0, 1_000_000, rows)
        for key, sort in COLUMNS[name].items()
        if sort == WHOLE
    }
    keys = (
        ("site", "holder_site", "lock") if name == "locks" else ("wait_site", "wake_site", "object")
    )
    one, other = Coded(base + first, SITE_IDS), Coded(base + second % SITES_OF_LOCK, SITE_IDS)
    columns |= dict(zip(keys, (one, other, 64 * (lock + 1)), strict=True))
    columns["kind"] = Coded(lock % len(KINDS), KINDS)
    columns["process"] = Coded(np.zeros(rows, np.int64), [process])
    return Table(name, rows, columns)


def sites(process: str) -> Table:
    rows = [
        {"process": process, "site": site, "frame": 0, "label": f"file.c:{i}"}
        for i, site in enumerate(SITE_IDS)
    ]
    return from_rows("sites", rows)


def make(folder: Path, records: int) -> None:
    chance = np.random.default_rng(1)
    for number in range(PROCESSES):
        process = f"host:{number}:1"
        zeros = {key: 0 for key, sort in COLUMNS["processes"].items() if sort == WHOLE}
        row = {**zeros, "process": process, "pid": number, "host": "host", "command": "made up"}
        known = {
            "processes": from_rows("processes", [{**row, "ended": True}]),
            "sites": sites(process),
            "wakes": table("wakes", process, records // PROCESSES // 2, chance),
            "locks": table("locks", process, records // PROCESSES // 2, chance),
        }
        parquet.write({name: known.get(name, empty(name)) for name in COLUMNS}, folder)


def measure(folder: Path, *words: str) -> tuple[float, float]:
    """The seconds of this run, and the most MiB that any run so far has used."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "rouse", "report", str(folder), *words],
        check=True,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    seconds = time.perf_counter() - begin
    return seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="make the tables here, or use those that are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rouse-bench-report-") as place:
        folder = options.keep or Path(place)
        if not (folder / "processes").is_dir():
            make(folder, options.records)
        for words in ((), ("--format", "html", "-o", "/dev/null"), ("--section", "locks")):
            for _ in range(options.runs):
                seconds, mib = measure(folder, *words)
                what = " ".join(words) or "terminal"
                print(
                    f"{options.records:,} records, {what}: {seconds:.1f} s, {mib:.0f} MiB at most"
                )


if __name__ == "__main__":
    main()
