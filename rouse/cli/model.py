# SPDX-License-Identifier: MIT
"""`rouse model`: predictions, of clock ticks, of scaling, and of locks that are changed."""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from rouse import regular
from rouse.cli.arguments import LockChange, Microseconds, Name
from rouse.cli.commands import Command, Group
from rouse.cli.lab_shared import output_option, tell, usable
from rouse.cli.param_type import ParamType
from rouse.errors import RouseError, output
from rouse.model import scaling, ticks, whatif
from rouse.render.charts import Curves, Value
from rouse.render.report import Options, limited
from rouse.render.study import Grid, Items, Page, Picture, write
from rouse.tables.inputs import Asked, open_input
from rouse.text import share

FILE_BYTES_MOST = 16 << 20
DRAWN = 20  # ticks
READS = ("50%", "90%", "99%")  # of the holds, where --rwlock gives no share
RATES_MOST = 1e9


class Share(ParamType[float]):
    """A share, as 0.2 or 20%."""

    name = "share"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        text = str(value)
        try:
            found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        except ValueError:
            found = math.nan
        if not 0 <= found <= 1:
            self.fail(f"{text!r} is no share, such as 20% or 0.2", param, ctx)
        return found


class Positive(click.FloatRange):
    """A number above 0. nan is refused, although it is beyond neither end."""

    def __init__(self) -> None:
        super().__init__(0, 1e6, min_open=True)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value} is no number", param, ctx)
        return found


class Numbers(ParamType[list[float]]):
    name = "numbers"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        if isinstance(value, list):
            return value
        try:
            found = [float(word) for word in str(value).split(",")]
        except ValueError:
            found = [math.nan]
        if not all(1 <= number <= RATES_MOST for number in found):
            self.fail(f"{value!r} is no list of numbers from 1 on, such as 64,128", param, ctx)
        return found


@click.group(cls=Group, short_help="Predictions: of ticks, of scaling, of changed locks.")
def command() -> None:
    """Predict from a few figures, from measurements, or from a recording."""


as_json_option = click.option("--json", "as_json", is_flag=True, help="As JSON.")


def show(lines: Sequence[str], whole: dict[str, Any], as_json: bool) -> None:
    with output():
        print(json.dumps(whole, indent=1) if as_json else "\n".join(lines))


@command.command(cls=Command, short_help="Calls that time out at the ticks of a clock.")
@click.option(
    "--hz",
    type=Positive(),
    default=100.0,
    metavar="N",
    help="Ticks per second [100].",
)
@click.option(
    "--timeout",
    type=Positive(),
    default=10.0,
    metavar="MS",
    help="Of each call, in milliseconds [10].",
)
@click.option(
    "--threads",
    type=click.IntRange(1, 10**9),
    default=100,
    metavar="N",
    help="That call again and again [100].",
)
@click.option(
    "--long-gaps",
    "long",
    type=Share(),
    default=0.2,
    metavar="SHARE",
    help="Of the gaps between ticks, those longer than 1/HZ [20%].",
)
@as_json_option
def tick(hz: float, timeout: float, threads: int, long: float, as_json: bool) -> None:
    """Predict calls such as poll(0, 0, MS) where time-outs are counted in ticks, rounded up: how
    many return, how many wake-ups and voluntary switches they take, and one thread's timeline."""
    tick_ms = 1000 / hz
    found = ticks.expected(timeout, threads, long, tick_ms)
    lines = [
        f"calls       {found.calls:12,.0f} per s",
        f"wake-ups    {found.wake_ups:12,.0f} per s, {found.early:,.0f} of them early",
        f"switches    {found.switches:12,.0f} per s, voluntary",
        "",
        f"one thread, a tick of {tick_ms:g} ms, time-outs of {timeout:g} ms:",
        *ticks.drawing(timeout, long, tick_ms, DRAWN),
    ]
    whole = {
        **{"hz": hz, "timeout_ms": timeout, "threads": threads, "long_gaps": long},
        **{"calls_per_s": found.calls, "wake_ups_per_s": found.wake_ups},
        **{"early_per_s": found.early, "voluntary_switches_per_s": found.switches},
    }
    show(lines, whole, as_json)


def number(value: float) -> str:
    if math.isinf(value):
        return "none"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def finite(value: float) -> float | None:
    """A number for JSON, which has no infinity."""
    return None if math.isinf(value) else value


@command.command(cls=Command, short_help="The Universal Scalability Law of measured throughputs.")
@click.argument("file", type=Name(), metavar="FILE")
@click.option(
    "--at",
    "asked",
    type=Numbers(),
    metavar="N,...",
    help="Predict the throughput there too.",
)
@output_option("Also write a page there, with the curve and its band.")
@as_json_option
def usl(file: str, asked: list[float] | None, place: str | None, as_json: bool) -> None:
    """Fit the Universal Scalability Law to the rows of FILE, a number of threads, processors or
    clients and a throughput in each, repetitions included; name its limit and its peak.

    - is standard input.
    """
    folder = usable(place) if place else None
    numbers, rates = scaling.read(lines_of(file), file)
    found = scaling.fit(numbers, rates)
    law = found.law
    rows = [
        ("one", law.one, found.band(each.one for each in found.sample)),
        ("serial", law.serial, found.band(each.serial for each in found.sample)),
        ("pairs", law.pairs, found.band(each.pairs for each in found.sample)),
        ("peak at", law.peak, found.band(each.peak for each in found.sample)),
        ("limit", law.limit, found.band(each.limit for each in found.sample)),
    ]
    lines = ["           fit       95 % of the fits to resampled rows"]
    lines += [
        f"{name:<8} {number(value):>12}   {number(low)} to {number(high)}"
        for name, value, (low, high) in rows
    ]
    lines.append(f"error    {100 * found.error:11.1f} %   of a throughput, root mean square")
    at = sorted({*numbers, *(asked or [])})
    lines += ["", "       N     measured       fitted   95 %"]
    curve = []
    for each in at:
        measured = [rate for n, rate in zip(numbers, rates, strict=True) if n == each]
        mean = sum(measured) / len(measured) if measured else None
        low, high = found.band_at(each)
        shown = f"{mean:,.4g}" if mean is not None else "-"
        lines.append(f"{each:8g} {shown:>12} {law.at(each):12,.4g}   {low:,.4g} to {high:,.4g}")
        curve.append(
            {"n": each, "measured": mean, "fitted": law.at(each), "low": low, "high": high}
        )
    if max(at) > 2 * max(numbers):
        lines += ["", f"beyond {2 * max(numbers):g} the law is far from what was measured"]
    whole = {
        "parameters": {
            name: {"fit": finite(value), "low": finite(low), "high": finite(high)}
            for name, value, (low, high) in rows
        },
        "error": found.error,
        "curve": curve,
    }
    if folder:
        parts = [["", "fit", "95 %"]]
        parts += [
            [name, number(value), f"{number(low)} to {number(high)}"]
            for name, value, (low, high) in rows
        ]
        tell(f"wrote {write(folder, usl_page(file, numbers, rates, found, at, parts))}")
    show(lines, whole, as_json)


def usl_page(
    file: str,
    numbers: Sequence[float],
    rates: Sequence[float],
    found: scaling.Fit,
    at: Sequence[float],
    parts: Sequence[Sequence[str]],
) -> Page:
    measured: dict[float, list[float]] = {}
    for each, rate in zip(numbers, rates, strict=True):
        measured.setdefault(each, []).append(rate)
    lines = {
        "measured": {
            each: Value(statistics.median(some), min(some), max(some))
            for each, some in measured.items()
        },
        "fitted, and 95 % of the fits": {
            # Where all fits are the same, rounding may put their band beside them.
            each: Value(middle, min(low, middle), max(high, middle))
            for each in at
            for middle, (low, high) in [(found.law.at(each), found.band_at(each))]
        },
    }
    blocks = (
        Picture("throughput", Curves("throughput", "threads, processors or clients", lines)),
        Grid(parts),
        Items([f"The rows are those of {file}.", "one: the throughput of one. limit: of many."]),
    )
    return Page("usl", "Universal Scalability Law", blocks)


def lines_of(file: str) -> list[str]:
    try:
        if file == "-":
            return sys.stdin.read(FILE_BYTES_MOST).splitlines()
        with regular.opened(Path(file), FILE_BYTES_MOST) as opened:
            return str(opened.read(), "utf-8").splitlines()
    except OSError as error:
        raise RouseError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RouseError(f"{file}: is no text") from error


def change_of(what: str, amount: str) -> whatif.Change:
    if what == "lengthen":
        return whatif.Change(more_us=Microseconds("--lengthen").convert(amount, None, None))
    if what == "rwlock":
        return whatif.Change(reads=Share().convert(amount, None, None))
    if what == "split":
        if not amount.isdecimal() or not 1 <= int(amount) <= whatif.PARTS_MOST:
            raise click.UsageError(f"--split: {amount!r} is no number of parts, such as 4")
        return whatif.Change(parts=int(amount))
    return whatif.Change(factor=1 - Share().convert(amount, None, None))


def predicted(
    known: whatif.Recorded, asked: Sequence[tuple[str, str, str]]
) -> tuple[str, whatif.Prediction]:
    made: dict[object, whatif.Change] = {}
    for what, lock, amount in asked:
        key = known.key(lock)
        made[key] = made.get(key, whatif.Change()).then(change_of(what, amount))
    words = ", ".join(f"{what} {lock}={amount}" for what, lock, amount in asked)
    return words, whatif.predict(known.load, made, known.errors, known.counts)


@command.command("whatif", cls=Command, short_help="A recording's throughput with other locks.")
@click.argument("target", type=Name(), metavar="RECORDING")
@click.option(
    "--split",
    "splits",
    type=LockChange(),
    multiple=True,
    metavar="LOCK=N",
    help="Divide the lock into N, each for an equal share of its use.",
)
@click.option(
    "--shorten",
    "shortened",
    type=LockChange(),
    multiple=True,
    metavar="LOCK=SHARE",
    help="Hold the lock for less: 50% leaves half.",
)
@click.option(
    "--lengthen",
    "lengthened",
    type=LockChange(),
    multiple=True,
    metavar="LOCK=US",
    help="Compute for so many microseconds more under the lock, as rouse run --delay makes it do.",
)
@click.option(
    "--rwlock",
    "shared",
    type=LockChange(may_lack=True),
    multiple=True,
    metavar="LOCK[=SHARE]",
    help="Make it a read-write lock, where this share of its holds only read [50, 90 and 99 %].",
)
@click.option(
    "--onion",
    "as_onion",
    is_flag=True,
    help="Which locks to remove, in which order, until little time is waited for locks.",
)
@as_json_option
def what_if(
    target: str,
    splits: Sequence[tuple[str, str]],
    shortened: Sequence[tuple[str, str]],
    lengthened: Sequence[tuple[str, str]],
    shared: Sequence[tuple[str, str]],
    as_onion: bool,
    as_json: bool,
) -> None:
    """Predict the throughput of a recorded program if locks are changed. RECORDING: what rouse run
    --keep or rouse record made, or the number of a process.

    A lock is named as the report names it. The load is that of threads that work all the time.
    """
    given = {"split": splits, "shorten": shortened, "lengthen": lengthened, "rwlock": shared}
    if not (any(given.values()) or as_onion):
        raise click.UsageError("which change? --split, --shorten, --lengthen, --rwlock or --onion")
    asked = [(what, *one) for what, some in given.items() for one in some]
    is_open = any(not amount for _, _, amount in asked)  # shares of readers that are not known
    for what, _, amount in asked:
        change_of(what, amount or READS[0])  # refuse what is none, before the recording is read
    with limited(target, Options()), open_input(target, Asked()) as opened:
        known = whatif.recorded(opened.database, opened.busy_ns)
        steps = [
            predicted(known, [(what, lock, amount or reads) for what, lock, amount in asked])
            for reads in (READS if is_open else READS[:1])
            if asked
        ]
        if as_onion:
            steps += [(f"without {name}", found) for name, found in known.onion()]
    lines = [
        f"{found.gain:.2f}x the throughput ({found.least:.2f} to {found.greatest:.2f}, at most"
        f" {found.bound:.2f}), waiting for locks then {share(found.waiting)} %: {words}"
        for words, found in steps
    ]
    whole = {"predictions": [{"change": words, **vars(found)} for words, found in steps]}
    show(lines, whole, as_json)
