#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Measure the figures of the pages in docs/studies, and rewrite their tables and pictures.

The figures are stored in select.json beside the pages. With --from, tables and pictures are made
from that file without measuring. This program writes all text between `<!-- figures: NAME -->` and
`<!-- end -->` of a page.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from plots import Panel, Ticks, chart
from tables import machine, paired, render, select, ticks
from tables.render import number, of
from tables.select import Data, Reports, Scale

ROOT = Path(__file__).resolve().parent.parent
STUDIES = ROOT / "docs" / "studies"
PAGES = ("e1-select.md", "e3-ticks.md")
VERDICTS = ("useful", "lost_race", "false", "early", "timeout")
KEPT = (
    *("calls_per_s", "events_per_s", "switches_per_call", "total_ops", *VERDICTS),
    *("sched_lock_wait_ns_per_call", "sched_lock_contended"),
    *("select_lock_wait_ns_per_call", "select_lock_contended"),
    *("late_p50_us", "late_p99_us", "late_max_us", "clumping"),
    *("user_us_per_call", "system_us_per_call"),
)
KEPT_OF = {
    " x ": ("calls_per_s", "false", "total_ops"),
    "lock ": (
        *("calls_per_s", "total_ops"),
        *("select_lock_wait_ns_per_call", "select_lock_contended"),
    ),
}
SOURCE_GAPS = (9.95, 9.95, 9.95, 9.95, 10.2, 9.95, 9.95)  # so that calls end at the source's ticks
BLOCK = re.compile(r"(<!-- figures: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def kept(part: str, reports: Reports) -> dict[str, list[float]]:
    """The figures that the tables and pictures of a part need."""
    names = next((names for begin, names in KEPT_OF.items() if begin in part), KEPT)
    return {name: [float(f"{r[name]:.5g}") for r in reports] for name in names}


def reports_of(columns: Mapping[str, list[float]]) -> Reports:
    count = len(columns["calls_per_s"])
    return [{name: values[i] for name, values in columns.items()} for i in range(count)]


def save(path: Path, facts: list[tuple[str, str]], scale: Scale, data: Data) -> None:
    parts = {part: {k: kept(part, v) for k, v in found.items()} for part, found in data.items()}
    record = {"facts": facts, "full": scale.threads == select.FULL.threads, "data": parts}
    lines = json.dumps(record, ensure_ascii=False, indent=1)
    # A list of numbers on one line.
    lines = re.sub(r"\[\s+([-\d.,\se+]+?)\s+\]", lambda m: f"[{' '.join(m[1].split())}]", lines)
    path.write_text(lines + "\n", encoding="utf-8")


def load(path: Path) -> tuple[list[tuple[str, str]], Scale, Data]:
    record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    data = {
        part: {name: reports_of(columns) for name, columns in found.items()}
        for part, found in record["data"].items()
    }
    facts = [(str(a), str(b)) for a, b in record["facts"]]
    return facts, select.FULL if record["full"] else select.QUICK, data


# Words and tables


def shares(data: Data) -> Iterator[str]:
    """The cost of each old mechanism, alone and with the others."""
    part = data["threads"]
    new = part[select.NEW_ROW]
    for name, (old, _, _) in select.SWITCHES.items():
        alone = part[f"{select.NEW} but {name} {old}"]
        ratio = paired.ratio([r["calls_per_s"] for r in alone], [r["calls_per_s"] for r in new])
        early = of(alone, "early", "timeout")
        cost = (
            f"calls/s times {render.interval(ratio)}",
            f"{number(of(alone, 'switches_per_call'))} switches per call, all new "
            f"{number(of(new, 'switches_per_call'))}",
            f"{number(of(alone, 'false', 'total_ops'))} false wake-ups per call",
            f"{number(early)} early ones per time-out",
            f"scheduling lock {number(of(alone, 'sched_lock_wait_ns_per_call'))} ns per call",
            f"select lock {number(of(alone, 'select_lock_wait_ns_per_call'))} ns per call",
            f"time-outs late by {number(of(alone, 'late_p50_us'))} µs in the median",
        )
        yield f"- **{name} {old}**, alone: " + "; ".join(cost) + "."
    old_row = part[select.OLD]
    calls = [number(of(row, "calls_per_s")) for row in (old_row, new)]
    switches = [number(of(row, "switches_per_call")) for row in (old_row, new)]
    useless = [number(1000 * wasted(row)) for row in (old_row, new)]
    yield (
        f"- **all four**, against none: {calls[0]} calls/s against {calls[1]}; {switches[0]} "
        f"switches per call against {switches[1]}; of 1,000 wake-ups {useless[0]} spurious, "
        f"against {useless[1]}."
    )


def wasted(reports: Reports) -> float:
    """The share of wake-ups that were of no use."""
    counts = {verdict: of(reports, verdict) for verdict in VERDICTS}
    useless = counts["lost_race"] + counts["false"] + counts["early"]
    return useless / (sum(counts.values()) or 1)


def machine_block(facts: list[tuple[str, str]]) -> str:
    return render.text(render.pairs("Machine", facts)).strip()


def blocks(facts: list[tuple[str, str]], scale: Scale, data: Data) -> dict[str, str]:
    found = {"machine": machine_block(facts), "shares": "\n".join(shares(data))}
    names = ("steps", "wake-ups", "locks", "time-outs", "processes", "sizes", "select-lock")
    for name, table in zip(names, select.tables_of(data, scale), strict=True):
        found[name] = render.text(table).strip()
    found["ticks"] = "\n".join(render.text(t) for t in ticks.tables_of(data, scale)).strip()
    # The page has its own headings, so drop the table's.
    return {name: re.sub(r"^## .*\n+", "", body) for name, body in found.items()}


# Pictures


def draw_e1(data: Data) -> str:
    part = data["threads"]
    calls = Panel("calls per second", ("calls",))
    wakes = Panel("wake-ups of 1,000 calls", ("useful", "false", "early", "time-out"))
    spent = Panel("CPU µs per call", ("user", "system"))
    for reports in part.values():
        calls.rows.append([of(reports, "calls_per_s")])
        named = ("useful", "false", "early", "timeout")
        wakes.rows.append([of(reports, name, "total_ops", 1000) for name in named])
        spent.rows.append([of(reports, f"{k}_us_per_call") for k in ("user", "system")])
    return chart("select(): one switch at a time", list(part), [calls, wakes, spent])


def draw_e3(scale: Scale, data: Data) -> str:
    line = Ticks(
        "poll(0, 0, 10) of one thread at ticks of 10 ms; only the gap before tick 5 is longer",
        SOURCE_GAPS,
        ticks.timeline(10, SOURCE_GAPS),
    )
    calls = Panel("calls per second", ("calls",))
    wakes = Panel("wake-ups per second", ("in time", "early"))
    labels = []
    for timeout in ticks.TIMEOUTS_MS:
        part = data[f"poll {timeout}"]
        here = ticks.expected(timeout, scale.sleepers, ticks.long_share(part["tick"]))
        labels.append(f"{timeout} ms, expected at ticks")
        calls.rows.append([here.calls])
        wakes.rows.append([here.calls, here.wake_ups - here.calls])
        for name in ("tick", "exact", select.ROUSE):
            made = of(part[name], "calls_per_s")
            early = made * of(part[name], "early", "total_ops")
            labels.append(f"{timeout} ms, {name}")
            calls.rows.append([made])
            wakes.rows.append([made, early])
    return chart("Time-outs at ticks", labels, [calls, wakes], line)


def write(out: Path, facts: list[tuple[str, str]], scale: Scale, data: Data) -> None:
    made = blocks(facts, scale, data)

    def replaced(found: re.Match[str]) -> str:
        return f"{found[1]}\n{made[found[2]]}\n\n{found[3]}"

    for page in PAGES:
        text = (STUDIES / page).read_text(encoding="utf-8")
        (out / page).write_text(BLOCK.sub(replaced, text), encoding="utf-8")
    (out / "e1-select.svg").write_text(draw_e1(data), encoding="utf-8")
    (out / "e3-ticks.svg").write_text(draw_e3(scale, data), encoding="utf-8")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "release")
    parser.add_argument("--rounds", type=int, help="number of alternating runs (5)")
    parser.add_argument("--quick", action="store_true", help="only a test, with unreliable figures")
    parser.add_argument(
        "--from", dest="source", type=Path, help="use these figures and measure nothing"
    )
    parser.add_argument("--out", type=Path, default=STUDIES, help="folder for the pages")
    machine.add_anyway(parser)
    return parser.parse_args()


def main() -> int:
    options = parse()
    if options.source:
        facts, scale, data = load(options.source)
    else:
        quiet_load = machine.check_quiet(True, options.anyway)
        scale = select.QUICK if options.quick else select.FULL
        if options.rounds:
            scale = replace(scale, rounds=options.rounds)
        version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text("utf-8"))
        facts = machine.describe(ROOT, version[1] if version else "?", quiet_load)
        facts.append(("command", f"`bench/studies.py`, {scale.rounds} rounds"))
        data = select.measure(options.build, scale) | ticks.measure(options.build, scale)
        options.out.mkdir(parents=True, exist_ok=True)
        save(options.out / "select.json", facts, scale, data)
        # Read back, so that the pages use the rounded figures.
        facts, scale, data = load(options.out / "select.json")
    write(options.out, facts, scale, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
