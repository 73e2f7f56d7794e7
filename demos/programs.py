#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Run a program that does not use rouse: show its waits, and its speed with and without recording.

    demos/programs.py redis
    demos/programs.py nginx --seconds 5 --json nginx.json

memcached, redis (with an I/O thread; redis-single has none) and nginx are Debian's. Each has its
own folder and address, and one of Debian's clients loads it. java, go and python run our own small
programs with known waits. Each program runs alternately alone and under `rouse run`. The script
shows the waits of the last recorded run. A Go program makes its system calls itself, so its waits
are taken from the kernel, which requires root.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import source_tree  # noqa: F401

from database import LOCKS, machine, number, say, table
from subjects import ENDING, SUBJECTS, Done, NotInstalledError, Subject, finished, result

from rouse.lab.database_servers import LabError, rouse
from rouse.lab.databases import locks

SECONDS = 4.0
PAIRS = 3
NOT_HERE, INTERRUPTED = 77, 130
KINDS = 8  # number of rows that are printed
MEMORY = Path("/dev/shm")
VERDICTS = ("useful", "lost_race", "false_", "early", "timeout", "cancelled", "unrecorded")
Row = dict[str, Any]


def measured(subject: Subject, seconds: float, *before: str) -> Done:
    with subject.started(seconds, *before) as running:
        return subject.loaded(running, seconds)


# Figures from a recording


def profile(report: Row) -> Row:
    sections = report["sections"]
    totals = sections["totals"]
    names = (*VERDICTS, "wakes", "calls", "lock_waits", "lock_wait_ns")
    return {
        "processes": len(report["processes"]),
        "totals": {name: sum(row[name] for row in totals) for name in names},
        "kinds": kinds(sections["wakes"]),
        "locks": locks(sections["locks"]),
        "listeners": sections["listeners"],
    }


def kinds(rows: Iterable[Row]) -> dict[str, Row]:
    """Wake-ups by kind of wait, with their verdicts. The longest waits come first."""
    found: dict[str, Row] = {}
    for row in rows:
        names = ("count", "wait_ns", *VERDICTS)
        into = found.setdefault(row["kind"], dict.fromkeys(names, 0))
        for name in names:
            into[name] += row[name]
    return dict(sorted(found.items(), key=lambda item: -item[1]["wait_ns"]))


def recorded(subject: Subject, seconds: float, kept: Path) -> tuple[Done, Row]:
    done = measured(subject, seconds, *rouse("run", "-o", "/dev/null", "--keep", str(kept), "--"))
    told = result(rouse("report", "--json", "--all", str(kept)), subject.folder)
    return done, profile(json.loads(told))


# Figures from the kernel


def why_no_kernel(folder: Path) -> str:
    words = rouse("run", "--kernel", "-o", "/dev/null", "--keep", str(folder / "try"), "--", "true")
    status, _, complaint = finished(words, folder)
    return complaint.strip() if status else ""


def seen(subject: Subject, seconds: float, kept: Path) -> tuple[Done, Row]:
    told = subject.folder / "report"
    words = ("run", "--kernel", "--json", "-o", str(told), "--keep", str(kept), "--")
    done = measured(subject, seconds, *rouse(*words))
    report = json.loads(told.read_text(encoding="utf-8"))
    sections = report["sections"]
    if "kernel_threads" not in sections:  # the kernel was not observed, and a note says why
        return done, {"why_not_recorded": " ".join(report["notes"])}
    return done, {
        "why_not_recorded": report["notes"][0],
        "threads": sections["kernel_threads"],
        "sleeps": sections["kernel_sleeps"],
        "kernel_locks": sections["kernel_locks"],
    }


def passed_through(subject: Subject, seconds: float, kept: Path) -> tuple[Done, Row]:
    """Run it under `rouse run`, which prints one line about it."""
    told = subject.folder / "report"
    done = measured(subject, seconds, *rouse("run", "-o", str(told), "--keep", str(kept), "--"))
    return done, {"why_not_recorded": told.read_text(encoding="utf-8").strip()}


def way(subject: Subject) -> tuple[Callable[[Subject, float, Path], tuple[Done, Row]], str]:
    """How this program is observed, and the reason if there is a better way."""
    if not subject.speaks_kernel:
        return recorded, ""
    why = why_no_kernel(subject.folder)
    return (passed_through, why) if why else (seen, "")


# The runs


def rate(done: Done) -> Row:
    each = max(done.requests, 1)
    return {
        "requests": done.requests,
        "per_s": done.requests / done.seconds,
        "cpu_us": done.cpu_s * 1e6 / each,
        "cpus": done.cpu_s / done.seconds,
    }


def demonstrate(name: str, seconds: float, pairs: int) -> Row:
    memory = str(MEMORY) if MEMORY.is_dir() else None
    prefix = f"rouse-demo-{os.getpid()}-"
    with (
        tempfile.TemporaryDirectory(prefix=prefix) as place,
        tempfile.TemporaryDirectory(prefix=prefix, dir=memory) as recordings,
    ):
        Path(place).chmod(0o755)  # worker processes of another user need access, too
        subject = SUBJECTS[name](Path(place))
        subject.make()
        look, why_not = way(subject)
        runs: dict[str, list[Row]] = {"without": [], "with": []}
        for i in range(1, pairs + 1):
            say(f"{name}: pair {i} of {pairs}, as it is")
            runs["without"].append(rate(measured(subject, seconds)))
            say(f"{name}: pair {i} of {pairs}, under rouse run")
            done, found = look(subject, seconds, Path(recordings) / str(i))
            runs["with"].append(rate(done))
        shown = {
            "program": name,
            "version": subject.version(),
            "load": subject.load,
            "request": subject.request,
            "machine": machine(),
            "date": datetime.date.today().isoformat(),
            "seconds": seconds,
            "runs": runs,
            "requests": done.whole,
            "told": done.told,
            "note": why_not,
            "profile": found,
        }
    return {**shown, "sentences": sentences(shown)}


# Conclusions from the figures


def share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "none"


def pair_ratios(runs: dict[str, list[Row]], name: str) -> list[float]:
    pairs = zip(runs["without"], runs["with"], strict=True)
    return [after[name] / before[name] for before, after in pairs if before[name]]


def of_recording(shown: Row) -> list[str]:
    rates, cpus = (pair_ratios(shown["runs"], name) for name in ("per_s", "cpu_us"))
    said = []
    for ratios, what in ((rates, f"{shown['request']}s/s"), (cpus, "CPU time of each")):
        if ratios:
            said.append(
                f"{what} {statistics.median(ratios):.2f} times those without"
                f" ({min(ratios):.2f} to {max(ratios):.2f}, pairs: {len(ratios)})"
            )
    return [f"Under rouse run: {'; '.join(said)}."] if said else []


def of_wakes(shown: Row) -> list[str]:
    found, requests = shown["profile"], shown["requests"]
    totals = found["totals"]
    longest = next(iter(found["kinds"]), "-")
    waited = sum(row["wait_ns"] for row in found["kinds"].values())
    of_longest = found["kinds"].get(longest, {"wait_ns": 0})["wait_ns"]
    return [
        f"{requests:,} {shown['request']}s took {totals['wakes']:,} wake-ups,"
        f" {number(totals['wakes'] / max(requests, 1), 3)} each, of which"
        f" {share(totals['useful'], totals['wakes'])} were useful;"
        f" {share(of_longest, waited)} of the time waited was for: {longest}."
    ]


def of_locks(shown: Row) -> list[str]:
    found = shown["profile"]
    if not found["locks"]:
        return ["No lock was waited for."]
    first, whole = found["locks"][0], found["totals"]["lock_wait_ns"]
    times = found["totals"]["lock_waits"]
    return [
        f"Locks were waited for {times:,} times, {number(whole / 1e6)} ms in all;"
        f" {share(first['waited_ns'], whole)} of it at {first['site']}. The way to a processor"
        " after each wait is in that, and not in the table by what was waited for."
    ]


def of_listeners(shown: Row) -> list[str]:
    return [
        f"{row['name']}: {row['accepted']:,} connections, {row['least']:,} to {row['most']:,} a"
        f" process of {row['processes']}, Jain's index {number(row['jain_processes'], 3)},"
        f" {number(row['woken_each'], 2)} wake-ups per connection."
        for row in shown["profile"]["listeners"]
        if row["accepted"]
    ]


def of_kernel(shown: Row) -> list[str]:
    found, requests = shown["profile"], shown["requests"]
    said = [found["why_not_recorded"]]
    if "sleeps" in found:
        asleep = sum(row["count"] for row in found["sleeps"])
        said.append(
            f"{requests:,} {shown['request']}s took {asleep:,} sleeps of {len(found['threads'])}"
            f" threads: {number(requests / max(asleep, 1))} {shown['request']}s a sleep."
        )
    return said


def of_python(shown: Row) -> list[str]:
    told, found = shown["told"], shown["profile"]["kinds"]
    nothing = {"count": 0, "wait_ns": 0}
    naps, conditions = (found.get(kind, nothing) for kind in ("sleep", "condition"))
    return [
        f"It made {told['naps']:,} sleeps, and {naps['count']:,} were recorded; a wait for the"
        " interpreter's lock is one for a condition:"
        f" {number(conditions['count'] / max(shown['requests'], 1), 2)} a number, of which"
        f" {share(conditions.get('timeout', 0), conditions['count'])} ended by the time."
    ]


def of_java(shown: Row) -> list[str]:
    told, found = shown["told"], shown["profile"]["kinds"]
    conditions = found.get("condition", {"count": 0})["count"]
    return [
        f"Java counts {told['blocked']:,} waits for monitors and {told['waited']:,} others of our"
        f" threads; {conditions:,} waits for conditions were recorded, those of the virtual machine"
        " itself included."
    ]


OF_ONE: dict[str, Callable[[Row], list[str]]] = {"python": of_python, "java": of_java}


def sentences(shown: Row) -> list[str]:
    said = of_recording(shown)
    if "kinds" not in shown["profile"]:
        return said + of_kernel(shown)
    own = OF_ONE.get(shown["program"])
    said += of_wakes(shown) + of_locks(shown) + of_listeners(shown)
    return said + own(shown) if own else said


# Output


def runs_table(shown: Row) -> str:
    heads = ("run", f"{shown['request']}s/s", "least", "most", f"CPU µs a {shown['request']}")
    rows = []
    for name, runs in shown["runs"].items():
        rates = [one["per_s"] for one in runs]
        figures = [number(f(rates), 0) for f in (statistics.median, min, max)]
        figures += [
            number(statistics.median(one[k] for one in runs), 2) for k in ("cpu_us", "cpus")
        ]
        rows.append((f"{name} rouse run", *figures))
    return table((*heads, "processors"), rows)


def kinds_table(found: Row) -> str:
    names = ("useful", "lost_race", "false_", "timeout")
    heads = ("waited for", "s", "times", "useful", "lost race", "false", "timeout", "other")
    rows = []
    for kind, row in list(found["kinds"].items())[:KINDS]:
        other = row["count"] - sum(row[name] for name in names)
        counts = (row["count"], *(row[name] for name in names), other)
        rows.append((kind, number(row["wait_ns"] / 1e9, 3), *(f"{count:,}" for count in counts)))
    return table(heads, rows)


def locks_table(rows: Sequence[Row]) -> str:
    return table(
        ("waited ms", "times", "locks", "kind", "at", "lock"),
        [
            (
                *(number(row["waited_ns"] / 1e6), f"{row['waits']:,}", f"{row['locks']:,}"),
                *(row["kind"], f"`{row['site']}`", f"`{row['lock']}`" if row["lock"] else ""),
            )
            for row in rows[:LOCKS]
        ],
    )


def sleeps_table(rows: Sequence[Row]) -> str:
    return table(
        ("asleep s", "times", "to run ms", "threads", "in", "woken by"),
        [
            (
                *(number(row["asleep_ns"] / 1e9, 3), f"{row['count']:,}"),
                *(number(row["queued_ns"] / 1e6), f"{row['threads']:,}"),
                *(row["call"], row["waker"]),
            )
            for row in rows[:KINDS]
        ],
    )


def text_of(shown: Row) -> str:
    found = shown["profile"]
    parts = [
        f"{shown['program']} ({shown['version']}), loaded by {shown['load']} for"
        f" {shown['seconds']:g} s; {shown['machine']}; {shown['date']}.\n",
        runs_table(shown),
    ]
    if "kinds" in found:
        parts.append(f"Waits, in {found['processes']} of its processes:\n")
        parts.append(kinds_table(found))
        if found["locks"]:
            parts.append("The locks that were waited for longest:\n")
            parts.append(locks_table(found["locks"]))
    if "sleeps" in found:
        parts.append("Sleeps, by the kernel:\n")
        parts.append(sleeps_table(found["sleeps"]))
    if shown["note"]:
        parts.append(f"Not seen by the kernel: {shown['note']}\n")
    parts.append("".join(f"{line}\n" for line in shown["sentences"]))
    return "\n".join(parts)


def interrupted(*_: object) -> None:
    """Handle one interruption only, so that the code that ends the programs is not interrupted."""
    for number_ in ENDING:
        signal.signal(number_, signal.SIG_IGN)
    raise KeyboardInterrupt


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError("more than 0, and 600 at most")
    return value


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("program", choices=sorted(SUBJECTS))
    parser.add_argument("--seconds", type=positive, default=SECONDS, help=f"a run [{SECONDS:g}]")
    parser.add_argument(
        "--pairs", type=int, choices=range(1, 100), default=PAIRS, metavar="N", help=f"[{PAIRS}]"
    )
    parser.add_argument("--json", metavar="FILE", help="all figures, for other programs")
    asked = parser.parse_args()
    for number_ in ENDING:
        signal.signal(number_, interrupted)
    try:
        shown = demonstrate(asked.program, asked.seconds, asked.pairs)
    except NotInstalledError as error:
        say(str(error))
        return NOT_HERE
    except (LabError, subprocess.TimeoutExpired) as error:
        say(str(error))
        return 1
    except KeyboardInterrupt:
        say("interrupted; all that was started has ended")
        return INTERRUPTED
    if asked.json:
        Path(asked.json).write_text(json.dumps(shown, indent=1) + "\n", encoding="utf-8")
    print(text_of(shown), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
