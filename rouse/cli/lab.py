# SPDX-License-Identifier: MIT
"""`rouse lab`: the investigations on this machine, and how quiet it is."""

from __future__ import annotations

import datetime
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from rouse.cli import lab_http
from rouse.cli.commands import Command, Group
from rouse.cli.lab_shared import (
    Counts,
    anyway_option,
    as_text,
    check_quiet,
    end_in_order,
    install_option,
    output_option,
    restored,
    tell,
    usable,
)
from rouse.cli.param_type import ParamType
from rouse.errors import EXIT_FINDINGS, RouseError, output
from rouse.lab import experiments, lock_ways, packages, repairs, runs
from rouse.lab.experiments import Experiment
from rouse.lab.quiet import LOUD, QUIET, Machine, Reading
from rouse.lab.runs import Study
from rouse.render.experiment import page, remarks, state_of, table
from rouse.render.study import as_markdown, write
from rouse.text import counted

QUICK_S, FULL_S, FULL_ROUNDS = 1.0, 5.0, 5
ALL, RUN = "all", "run"
INSTANCES_MOST = 20  # databases, of as many clients
PROCESSORS_LEAST = 0.1
NUMBER = re.compile(r"\d{1,4}(\.\d{1,3})?")
FORMATS = ("text", "markdown", "json")
COLOURS = {QUIET: "green", LOUD: "yellow"}


def known(
    hz: int = experiments.HZ, instances: Sequence[int] = (), processors: Sequence[float] = ()
) -> dict[str, Experiment]:
    every = (*experiments.every(hz), repairs.experiment(instances, processors))
    found = {each.name: each for each in every}
    found[lock_ways.NAME] = lock_ways.extended(found[lock_ways.NAME])
    return found


def listing() -> list[str]:
    lines = []
    for each in known().values():
        seconds = each.seconds(QUICK_S, 1)
        lines.append(f"{each.name}  {each.title}: {len(each.steps)} rows, about {seconds:.0f} s")
    lines += ["", "rouse lab E1, or all; rouse lab http compares web servers;"]
    lines.append("rouse lab quiet tells how quiet this machine is")
    return lines


class Shares(ParamType[list[float]]):
    """Numbers of processors, whole or not."""

    name = "processors"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[float]:
        if isinstance(value, list):
            return value
        words = str(value).split(",")
        if not all(NUMBER.fullmatch(word) and float(word) >= PROCESSORS_LEAST for word in words):
            text = f"is no list of numbers of processors, each {PROCESSORS_LEAST:g} or more"
            self.fail(f"{value!r} {text}", param, ctx)
        return sorted({float(word) for word in words})


class Lab(Group):
    """`rouse lab E1` runs an experiment: words that begin with no command are those of `run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = [RUN, *args]
        return super().parse_args(ctx, args)


@click.group(
    cls=Lab,
    invoke_without_command=True,
    no_args_is_help=False,
    short_help="The six investigations on this machine, and how quiet it is.",
)
@click.pass_context
def command(ctx: click.Context) -> None:
    """Run the investigations that rouse answers on this machine: rouse lab NAME..., where NAME is
    E1 to E6 or all. Without a name: list them.

    The options of an investigation, such as --full and --output: rouse lab run --help.
    """
    if ctx.invoked_subcommand is None:
        with output():
            print("\n".join(listing()))


# The figures


def summary(study: Study, form: str) -> list[str]:
    experiment = study.experiment
    is_page = form == "markdown"
    rows = table(study.results, experiment)
    return [
        f"{'# ' if is_page else ''}{experiment.name}: {experiment.title}",
        "",
        *(as_markdown(rows) if is_page else as_text(rows)),
        "",
        *(f"{'- ' if is_page else ''}{line}" for line in remarks(study)),
        *(f"{'- ' if is_page else ''}{line}" for line in experiment.notes),
        *(f"{'- ' if is_page else ''}The source: {line}." for line in experiment.source),
        f"{'- ' if is_page else ''}This machine is {state_of(study.readings)}.",
    ]


def whole(study: Study) -> dict[str, Any]:
    rows = [
        {"label": each.step.label, "command": each.step.command}
        | ({"error": each.error} if each.error else {"reports": each.reports})
        for each in study.results
    ]
    return {
        "experiment": study.experiment.name,
        "title": study.experiment.title,
        "source": list(study.experiment.source),
        "rows": rows,
        "machine": [asdict(each) for each in study.readings],
    }


@command.command(RUN, cls=Command, short_help="Run investigations: rouse lab E1 means it, too.")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@click.option("--quick", is_flag=True, help="One round of 1 s a row, the default.")
@click.option("--full", is_flag=True, help="Five rounds of 5 s a row, for figures to publish.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.01, 3600),
    metavar="S",
    help="Of each row and round [1, with --full 5].",
)
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N", help="[1, with --full 5]")
@click.option(
    "--hz",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help=f"E1, E3: clock ticks per second of the old mechanism [{experiments.HZ}].",
)
@click.option(
    "--instances",
    type=Counts(INSTANCES_MOST),
    default=[],
    metavar="N,...",
    help="E6: so many databases at once, on copies of the data, against one.",
)
@click.option(
    "--processors",
    type=Shares(),
    default=[],
    metavar="N,...",
    help="E6: on so many processors; a fraction, such as 0.5, is a quota and needs root.",
)
@click.option(
    "-f",
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="text",
    metavar="FORMAT",
    help="What to write [text]: markdown or json.",
)
@output_option("Also write a page for each there, with its pictures.")
@install_option
@anyway_option
def run(
    names: Sequence[str],
    quick: bool,
    full: bool,
    seconds: float | None,
    rounds: int | None,
    hz: int | None,
    instances: list[int],
    processors: list[float],
    form: str,
    place: str | None,
    install: bool,
    anyway: bool,
) -> None:
    """Run investigations NAME..., E1 to E6 or all, one after the other, and show their figures
    beside those of the source.

    Each row is a run of rouse-bench, or one of a database under sysbench (E2, E6). With --full a
    figure is the median of five rounds, with the least and the most.
    """
    if instances and processors:
        raise click.UsageError("--instances and --processors are two series: give one of them")
    if quick and full:
        raise click.UsageError("--quick and --full exclude each other")
    if processors and max(processors) > (here := len(os.sched_getaffinity(0))):
        there = counted(here, "processor")
        raise click.UsageError(f"--processors {max(processors):g}: this machine has {there}")
    every = known(hz or experiments.HZ, instances, processors)
    names = [name.upper() if name.upper() in every else name for name in names]
    if unknown := [name for name in names if name not in every and name != ALL]:
        raise click.UsageError(f"{unknown[0]!r} is none of {', '.join(every)} and all")
    chosen = (
        list(every.values()) if ALL in names else [every[name] for name in dict.fromkeys(names)]
    )
    if (instances or processors) and repairs.NAME not in [each.name for each in chosen]:
        raise click.UsageError(f"--instances and --processors are of {repairs.NAME}")
    if hz and not {each.name for each in chosen}.intersection(experiments.OF_TICKS):
        raise click.UsageError(f"--hz is of {' and '.join(experiments.OF_TICKS)}")
    rounds = rounds or (FULL_ROUNDS if full else 1)
    each_s = seconds or (FULL_S if full else QUICK_S)
    folder = usable(place) if place else None
    end_in_order()
    with runs.only_one():
        if install:
            packages.install([each.name for each in chosen], tell)
        machine = restored()
        # Before the first experiment, which is a load itself.
        readings = machine.readings(is_sure=bool(folder) and not anyway)
        if folder:
            check_quiet(readings, anyway)
        for experiment in chosen:
            rows = counted(len(experiment.steps) * rounds, "row")
            seconds_all = experiment.seconds(each_s, rounds)
            tell(f"plan: {experiment.name}, {rows}, about {seconds_all:.0f} s")
        studies = []
        for experiment in chosen:
            results = runs.run(experiment, each_s, rounds, tell)
            date = datetime.date.today().isoformat()
            versions = packages.versions(experiment.name)
            study = Study(
                experiment, results, readings, each_s, rounds, machine.description(), date, versions
            )
            studies.append(study)
            if folder:
                tell(f"wrote {write(folder, page(study))}")
    with output():
        if form == "json":
            print(json.dumps([whole(study) for study in studies], indent=1))
        else:
            print("\n\n".join("\n".join(summary(study, form)) for study in studies))
    if any(result.error for study in studies for result in study.results):
        raise click.exceptions.Exit(EXIT_FINDINGS)


command.add_command(lab_http.http)


# How quiet the machine is


def lines_of(readings: Sequence[Reading], has_colours: bool) -> list[str]:
    lines = []
    for each in readings:
        state = each.state.ljust(7)
        shown = click.style(state, fg=COLOURS.get(each.state)) if has_colours else state
        why = f": {each.why}" if each.why else ""
        lines.append(f"{shown} {each.name}: {each.found}{why}")
    return lines


@command.command(
    "quiet",
    cls=Command,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    short_help="What disturbs measurements on this machine.",
)
@click.option(
    "--set",
    "is_set",
    is_flag=True,
    help="As root: make it quiet while COMMAND runs, or until an interrupt, then restore all.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@click.argument("words", nargs=-1, metavar="[COMMAND...]")
def quiet_command(is_set: bool, as_json: bool, words: Sequence[str]) -> None:
    """Show governor, turbo, energy bias, idle states, address randomisation, isolation, load and
    stolen time, and which of these disturb a measurement.

    The exit status is 1 if any does. With --set COMMAND it is that of COMMAND.
    """
    machine = Machine()
    if words and not is_set:
        raise click.UsageError("COMMAND needs --set")
    if is_set and os.geteuid() != 0:
        raise RouseError("only root can change these settings", "sudo rouse lab quiet --set")
    if os.geteuid() == 0:
        machine.restore()
    if is_set:
        raise click.exceptions.Exit(set_for(machine, words))
    readings = machine.readings()
    with output():
        if as_json:
            print(json.dumps([asdict(each) for each in readings], indent=1))
        else:
            print("\n".join(lines_of(readings, sys.stdout.isatty())))
    if any(each.state == LOUD for each in readings):
        raise click.exceptions.Exit(EXIT_FINDINGS)


def set_for(machine: Machine, words: Sequence[str]) -> int:
    """Make the machine quiet for a command. Returns its status."""
    end_in_order()
    with runs.only_one(), machine.set_quiet() as refused:
        for why in refused:
            tell(f"not set: {why}")
        for line in lines_of(machine.readings(), has_colours=False):
            tell(line)
        if not words:
            tell("quiet until an interrupt (Ctrl-C)")
            try:
                signal.pause()
            except KeyboardInterrupt:
                return 0
        try:
            return subprocess.run(list(words)).returncode & 255
        except OSError as error:
            raise RouseError(f"{words[0]}: {error.strerror}") from error
