# SPDX-License-Identifier: MIT
"""`rouse lab http`: web servers by workers and connections."""

from __future__ import annotations

import contextlib
import datetime
import math
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from rouse.cli.commands import Command
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
from rouse.lab import packages, runs, sweep, tracepoint, web_clients, web_servers
from rouse.lab.sweep import About, Plan, Result
from rouse.render.study import write
from rouse.render.sweep import NAME, REMARK, page, table, write_raw
from rouse.text import counted

QUICK_S, FULL_S = 1, 2
QUICK_ROUNDS, FULL_ROUNDS = 2, 3
QUICK_MOST_S = 240.0  # then no further cell begins
WORKERS_MOST, CONNECTIONS_MOST = 256, 60_000


class Named(ParamType[tuple[str, str]]):
    """NAME=CMD."""

    name = "server"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, _, words = str(value).partition("=")
        if not name or "{port}" not in words:
            self.fail(f"{value!r} is not NAME=COMMAND with {{port}}", param, ctx)
        if "," in name:
            self.fail(f"{name!r}: a name has no comma, which ends a name in --only", param, ctx)
        return name, Words().convert(words, param, ctx)


class Words(ParamType[str]):
    """A command, whose quotes must end."""

    name = "command"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            why = "" if shlex.split(str(value)) else "is empty"
        except ValueError as error:
            why = str(error).lower()
        if why:
            self.fail(f"{value!r}: {why}", param, ctx)
        return str(value)


@contextlib.contextmanager
def results_file(
    folder: Path | None, about: About, is_resumed: bool
) -> Iterator[tuple[About, list[Result], Any]]:
    """Yield the facts and results that there are, and where further results go."""
    if folder is None:
        yield about, [], None
        return
    path = folder / f"{NAME}.jsonl"
    if not is_resumed:
        with sweep.begin(path, about) as file:
            yield about, [], file
        return
    file, before, results = sweep.resumed(path)
    with file:
        if (before.client, before.seconds) != (about.client, about.seconds):
            how = f"{before.client} and --seconds {before.seconds}"
            raise RouseError(f"{path}: was measured with {how}", "resume it with the same")
        yield before, results, file


@contextlib.contextmanager
def saying_what_is_kept(folder: Path | None, results: Sequence[Result]) -> Iterator[None]:
    """Tell a user who interrupts the sweep what is kept."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if folder:
            cells = counted(len(results), "cell")
            tell(f"interrupted: {folder}/{NAME}.jsonl has {cells}; --resume goes on there")
        else:
            tell("interrupted: without --output nothing is kept")
        raise


def absent(plan: Plan) -> tuple[Plan, list[Result]]:
    """Return the plan without the servers that are not installed, and a row for each of these."""
    missing = web_servers.absent()
    rows = [
        Result(server.name, plan.workers[0], plan.connections[0], True, 1, error=why)
        for server in plan.servers
        if (why := missing.get(server.name))
    ]
    return replace(plan, servers=[each for each in plan.servers if each.name not in missing]), rows


@click.command(cls=Command, short_help="Compare web servers by workers and connections.")
@click.option("--quick", is_flag=True, help="Few cells, in at most 5 minutes.")
@click.option(
    "--server",
    "more",
    type=Named(),
    multiple=True,
    metavar="NAME=COMMAND",
    help="Another server; {port} and {workers} in COMMAND stand for numbers.",
)
@click.option("--only", metavar="NAME,...", help="Measure only these servers.")
@click.option(
    "--client",
    "client_words",
    type=Words(),
    metavar="COMMAND",
    help="Instead of wrk: {port}, {connections}, {seconds} and {keep_alive} (1, 0) are replaced.",
)
@click.option("--workers", type=Counts(WORKERS_MOST), metavar="N,...", help="[1,2,3]")
@click.option(
    "--connections", type=Counts(CONNECTIONS_MOST), metavar="N,...", help="[10 to 8000, nine]"
)
@click.option(
    "--instances",
    type=Counts(web_servers.INSTANCES_MOST),
    default=[],
    metavar="N,...",
    help="Also rouse-serve as so many processes, each with the workers of the row.",
)
@click.option(
    "--seconds",
    "cell_s",
    type=click.IntRange(1, 600),
    metavar="S",
    help="Of each cell and round [2, with --quick 1].",
)
@click.option("--rounds", type=click.IntRange(1, 100), metavar="N", help="[3, with --quick 2]")
@output_option("Write the results there, cell by cell, and at the end a page with plots.")
@install_option
@anyway_option
@click.option("--resume", is_flag=True, help="Continue the sweep whose results are in FOLDER.")
def http(
    quick: bool,
    more: Sequence[tuple[str, str]],
    only: str | None,
    client_words: str | None,
    workers: list[int] | None,
    connections: list[int] | None,
    instances: list[int],
    cell_s: int | None,
    rounds: int | None,
    place: str | None,
    install: bool,
    anyway: bool,
    resume: bool,
) -> None:
    """Measure rouse-serve, nginx and others, with each number of workers and connections, with
    connections that are kept alive and with one per request.

    A server that is missing, does not start, dies or answers wrongly is reported in its row.
    """
    if resume and place is None:
        raise click.UsageError("--resume needs --output")
    if install:
        packages.install([NAME], tell)
    servers = [
        *web_servers.known(),
        *(web_servers.instances(count) for count in instances),
        *(web_servers.given(*each) for each in more),
    ]
    names = [server.name for server in servers]
    if twice := [name for name in names if names.count(name) > 1]:
        raise click.UsageError(f"two servers are called {twice[0]}")
    if only is not None:
        wanted = only.split(",")
        if unknown := [name for name in wanted if name not in names]:
            raise click.UsageError(f"{unknown[0]!r} is none of {', '.join(names)}")
        servers = [server for server in servers if server.name in wanted]
    elif quick:
        servers = [server for server in servers if server.is_in_quick]
    client = web_clients.Given(client_words) if client_words else web_clients.default()
    plan, missing = absent(
        Plan(
            servers,
            workers or (sweep.QUICK_WORKERS if quick else sweep.WORKERS),
            connections or (sweep.QUICK_CONNECTIONS if quick else sweep.CONNECTIONS),
            cell_s or (QUICK_S if quick else FULL_S),
            rounds or (QUICK_ROUNDS if quick else FULL_ROUNDS),
        )
    )
    if resume and place and not (Path(place) / f"{NAME}.jsonl").exists():
        raise RouseError(f"{place}/{NAME}.jsonl: does not exist", "start without --resume")
    folder = usable(place) if place else None
    end_in_order()
    with runs.only_one():
        machine = restored()
        date = datetime.date.today().isoformat()
        readings = machine.readings(is_sure=bool(folder) and not anyway)
        if folder:
            check_quiet(readings, anyway)
        versions = packages.versions(NAME)
        about = About(client.name, plan.seconds, machine.description(), date, readings, versions)
        with results_file(folder, about, resume) as (about, results, file):
            done = {result.cell for result in results if not result.error}
            cells = [cell for cell in plan.cells(client) if cell not in done]
            if resume and cells:
                sweep.append_readings(file, readings)
                about = replace(about, later=[*about.later, readings])
            seconds = plan.duration_s(len(cells))
            about_time = f"{seconds / 60:.1f} minutes" if seconds >= 60 else f"{seconds:.0f} s"
            tell(f"plan: {counted(len(cells), 'cell')}, about {about_time}")
            until = time.monotonic() + (QUICK_MOST_S if quick else math.inf)
            descriptors = web_clients.raise_descriptors()
            if why := tracepoint.why_not():
                tell(f"system calls are not counted: {why}")
            with saying_what_is_kept(folder, results):
                for result in sweep.run(plan, cells, client, descriptors, until, tell):
                    if result.error:
                        tell(f"{result.server}: {result.error}")
                    results.append(result)
                    if file:
                        sweep.append(file, result)
        shown = [*results, *missing]
        if folder:
            tell(f"wrote {write_raw(folder, shown)}")
            processors = len(os.sched_getaffinity(0))
            tell(f"wrote {write(folder, page(about, shown, processors, why, plan.servers))}")
    with output():
        print("\n".join(as_text(table(shown), (REMARK,))))
    if any(result.error for result in sweep.latest(results).values()):
        raise click.exceptions.Exit(EXIT_FINDINGS)
