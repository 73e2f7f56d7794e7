# SPDX-License-Identifier: MIT
"""The sweep over web servers: cells, and the file that keeps their results.

The file has one line of JSON about the sweep, and one for each cell and round. A sweep that was
interrupted continues behind the last whole line.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from rouse.errors import RouseError
from rouse.lab import tracepoint, web_servers
from rouse.lab.processes import TICK_S, tree
from rouse.lab.quiet import Reading
from rouse.lab.web_clients import DESCRIPTORS, Client, ClientError, Load, limits
from rouse.lab.web_servers import Running, Server, ServerError
from rouse.text import counted, printable

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

WORKERS = (1, 2, 3)
CONNECTIONS = (10, 50, 100, 200, 500, 1_000, 2_000, 4_000, 8_000)
QUICK_WORKERS, QUICK_CONNECTIONS = (1, 2), (10, 100, 1_000)
CELL_S = 0.8  # to start and stop a server, beyond the measured time
COUNTED_S = 1  # for which system calls are counted, once for each row
LEAST_CPU_S = 0.2e-6  # of any server, for a request
TICKS_S = 4 * TICK_S  # by which the kernel's figures may be wrong
FORMAT, OLDER = 2, 1  # the older one: calls that were not counted are 0
FILE_BYTES_MOST = 64 << 20
VALUE_MOST = 1e15
MARK = "rouse lab http"
RESUMED = "resumed"  # the line with the machine's state when the sweep was continued
KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "float | None": (int, float, type(None)),
}
Record = TypeVar("Record", bound="DataclassInstance")


@dataclass(frozen=True)
class Cell:
    server: str
    workers: int
    connections: int
    keep_alive: bool
    round: int

    def __str__(self) -> str:
        kept = "keep-alive" if self.keep_alive else "one connection per request"
        workers = counted(self.workers, "worker")
        connections = counted(self.connections, "connection")
        return f"{self.server}, {workers}, {connections}, {kept}, round {self.round}"


@dataclass(frozen=True)
class Result:
    server: str
    workers: int
    connections: int
    keep_alive: bool
    round: int
    requests: int = 0
    requests_per_s: float = 0.0
    user_us: float = 0.0  # of the server, per request
    system_us: float = 0.0
    p50_us: float = 0.0
    p99_us: float = 0.0
    errors: int = 0
    calls: float | None = None  # of the system, per request; None: not counted
    limit: str = ""  # what limited the load, other than the server
    error: str = ""  # why there are no figures

    @property
    def cell(self) -> Cell:
        return Cell(self.server, self.workers, self.connections, self.keep_alive, self.round)


@dataclass(frozen=True)
class About:
    """The first line of the file."""

    client: str
    seconds: int
    machine: str
    date: str
    readings: Sequence[Reading]
    versions: Sequence[str] = ()  # of the servers and the client
    later: Sequence[Sequence[Reading]] = ()  # at each time that the sweep was continued


@dataclass(frozen=True)
class Plan:
    servers: Sequence[Server]
    workers: Sequence[int]
    connections: Sequence[int]
    seconds: int
    rounds: int

    def cells(self, client: Client) -> list[Cell]:
        """Return the cells, round after round, so that all see the same disturbances.

        A server whose number of workers cannot be given has the row of one worker. A server that
        cannot close a connection has no rows with one connection per request.
        """
        return [
            Cell(server.name, workers, connections, keep_alive, number)
            for number in range(1, self.rounds + 1)
            for keep_alive in (True, False)
            for connections in self.connections
            for workers in self.workers
            for server in self.servers
            if server.has_workers or workers == self.workers[0]
            if server.can_close or keep_alive
            if client.can(Load(connections, keep_alive, self.seconds))
        ]

    def duration_s(self, cells: int) -> float:
        return cells * (self.seconds + CELL_S)


def measured(server: Server, cell: Cell, client: Client, seconds: int) -> Result:
    load = Load(cell.connections, cell.keep_alive, seconds)
    with web_servers.started(server, cell.workers, cell.keep_alive) as running:
        before = running.cpu_s()
        figures = client.ask(running, load)
        after = running.cpu_s()
        limit = limits(figures, running.port)
        running.check()
        running.ask_again()
        calls = calls_of(running, client, load) if cell.round == 1 else None
    cpu_s = sum(after) - sum(before)
    if cpu_s < figures.served * LEAST_CPU_S - TICKS_S:
        raise ClientError(
            f"the client counts {figures.served:,} requests, for which the server ran {cpu_s:.2f} s"
        )
    if figures.wrong:
        raise ServerError(f"wrong answers: {figures.wrong}")
    if not figures.requests:
        raise ServerError(f"no request was answered, {figures.errors} errors")
    each = 1e6 / figures.served
    return Result(
        **asdict(cell),
        requests=figures.requests,
        requests_per_s=figures.requests / figures.seconds,
        user_us=(after[0] - before[0]) * each,
        system_us=(after[1] - before[1]) * each,
        p50_us=figures.p50_us,
        p99_us=figures.p99_us,
        errors=figures.errors,
        calls=calls,
        limit=limit,
    )


def calls_of(running: Running, client: Client, load: Load) -> float | None:
    """Return the system calls per request, of a load by itself: to count them takes time, too.

    None: they cannot be counted here.
    """
    with tracepoint.counting(*tree(running.process.pid)) as counter:
        if counter is None:
            return None
        figures = client.ask(running, replace(load, seconds=COUNTED_S))
        return counter.total() / figures.served if figures.served else None


def result_of(server: Server, cell: Cell, client: Client, seconds: int, descriptors: int) -> Result:
    """Run a cell. Its failure is part of the result, so that the sweep goes on."""
    needed = cell.connections + DESCRIPTORS
    if needed > descriptors:
        error = f"{needed:,} descriptors are needed, {descriptors:,} allowed: ulimit -n"
        return Result(**asdict(cell), limit="descriptors", error=error)
    try:
        return measured(server, cell, client, seconds)
    except (RouseError, OSError) as error:
        return Result(**asdict(cell), error=printable(str(error)))


def run(
    plan: Plan,
    cells: Sequence[Cell],
    client: Client,
    descriptors: int,
    until: float,
    tell: Callable[[str], None],
) -> Iterator[Result]:
    """Run cells, as long as time.monotonic() is less than until."""
    by_name = {server.name: server for server in plan.servers}
    for number, cell in enumerate(cells, 1):
        if time.monotonic() >= until:
            tell(f"the time is over: {len(cells) - number + 1} of {len(cells)} cells were not run")
            return
        tell(f"{number} of {len(cells)}: {cell}")
        yield result_of(by_name[cell.server], cell, client, plan.seconds, descriptors)


def latest(results: Sequence[Result]) -> dict[Cell, Result]:
    """Return the results by cell. Of a cell that was run again, the last one counts."""
    return {result.cell: result for result in results}


# The file


def line_of(value: Any) -> str:
    return json.dumps(value) + "\n"


def append(file: TextIO, result: Result) -> None:
    file.write(line_of(asdict(result)))
    file.flush()


def begin(path: Path, about: About) -> TextIO:
    """Make the file. One that exists is not replaced: it may be an hour of measurements."""
    try:
        file = path.open("x", encoding="utf-8")
    except FileExistsError as error:
        raise RouseError(f"{path}: exists", "continue it with --resume, or remove it") from error
    first = asdict(about)
    del first["later"]
    file.write(line_of({MARK: FORMAT} | first))
    file.flush()
    return file


def append_readings(file: TextIO, readings: Sequence[Reading]) -> None:
    file.write(line_of({RESUMED: [asdict(each) for each in readings]}))
    file.flush()


# A file that this program has not written raises one of these.
NOT_OURS = (LookupError, ValueError, TypeError, AttributeError)


def resumed(path: Path) -> tuple[TextIO, About, list[Result]]:
    """Open a file behind its last whole line. Returns what it has."""
    try:
        file = path.open("r+", encoding="ascii")
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}", "start without --resume") from error
    try:
        about, results, size = read(file)
        os.ftruncate(file.fileno(), size)
        file.seek(0, os.SEEK_END)
    except WrongLineError as error:
        file.close()
        wrong = f"{path}: line {error.number} is not a row of rouse lab http"
        raise RouseError(wrong, "remove that line: the row is measured again") from error
    except NOT_OURS as error:
        file.close()
        raise RouseError(f"{path}: is not a file of rouse lab http", "remove it") from error
    return file, about, results


class WrongLineError(Exception):
    """A line of the file behind the first is not as it was written."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def row_of(line: str, is_older: bool) -> Result | list[Reading]:
    """Return a row, or the readings with which a sweep was continued."""
    one = json.loads(line)
    if RESUMED in one:
        return [checked(Reading(**each)) for each in one[RESUMED]]
    return checked(Result(**(one | {"calls": one["calls"] or None} if is_older else one)))


def read(file: TextIO) -> tuple[About, list[Result], int]:
    whole = file.read(FILE_BYTES_MOST + 1)
    lines = whole.splitlines(keepends=True)
    if len(whole) > FILE_BYTES_MOST:
        raise ValueError
    if lines and not lines[-1].endswith("\n"):
        lines.pop()  # it was being written
    first = json.loads(lines[0])
    version = first.pop(MARK)
    if version not in (FORMAT, OLDER):
        raise ValueError
    readings = [checked(Reading(**each)) for each in first.pop("readings")]
    versions = first.pop("versions", [])
    if not isinstance(versions, list) or not all(isinstance(each, str) for each in versions):
        raise TypeError("versions")
    about = checked(About(**first, readings=(), versions=versions))
    later: list[list[Reading]] = []
    results: list[Result] = []
    for number, line in enumerate(lines[1:], 2):
        try:
            row = row_of(line, version == OLDER)
        except NOT_OURS as error:
            raise WrongLineError(number) from error
        if isinstance(row, Result):
            results.append(row)
        else:
            later.append(row)
    return replace(about, readings=readings, later=later), results, len("".join(lines))


def checked(found: Record) -> Record:
    """Return a record whose values have the types that they are declared with."""
    for field in fields(found):
        kinds = KINDS.get(str(field.type), (object,))
        if not isinstance(value := getattr(found, field.name), kinds):
            raise TypeError(field.name)
        if isinstance(value, float | int) and not 0 <= value <= VALUE_MOST:
            raise ValueError(field.name)
    return found
