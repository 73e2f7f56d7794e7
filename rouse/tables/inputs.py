# SPDX-License-Identifier: MIT
"""The input of a report: a running process, its file, a recording, or a folder of them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rouse import clock, regular
from rouse.errors import RouseError
from rouse.sched import cpu_samples, switches
from rouse.sched.cpu_samples import Ran
from rouse.sched.switches import Switches
from rouse.store import decode, find, layout, leftovers, recording
from rouse.symbols import futex_waits, sites
from rouse.tables import build, engine, merge
from rouse.tables.build import IN_STACKS, Forms
from rouse.tables.engine import DUCKDB, ENGINES, SPARK, SQLITE
from rouse.tables.schemas import CONFINED, FAREWELL, LAST_EVENT, LAST_SEEN, RUNS
from rouse.tables.table import Table
from rouse.text import counted

PROBLEMS_MOST = 12  # reported for one file
NO_SAMPLES = (
    "tables have no samples of where threads ran, and not what other programs ran: findings may be"
    " missing, and bounds too high"
)


@dataclass(frozen=True)
class Asked:
    """The tables that are asked for.

    Events are many: without with_events their table is empty, unless with_requests and requests are
    marked. in_sum: the processes of one program count as one. forms: what sites are.
    """

    with_events: bool = False
    with_requests: bool = False
    engine: str = ENGINES[0]
    in_sum: bool = False
    forms: Forms = IN_STACKS

    @property
    def kinds(self) -> frozenset[int]:
        if self.with_events:
            return decode.ALL_KINDS
        return decode.COUNTED | {decode.MARKED} if self.with_requests else decode.COUNTED


DEFAULT = Asked()


@dataclass
class Loaded:
    """The tables of one process, and the problems met while reading them."""

    source: str
    tables: dict[str, Table]
    in_places: dict[str, Table] | None  # with places instead of call stacks, if asked for
    problems: list[str] = field(default_factory=list)
    machine: str = ""
    is_cut: bool = False  # the end of its file is missing


@dataclass
class Input:
    """The tables that the queries run over, and where they came from."""

    source: str
    database: engine.Database
    problems: list[str]
    machine: str
    in_places: engine.Database | None = None  # with places instead of call stacks, if asked for
    processes: dict[int, str] = field(default_factory=dict)  # those in the database, by pid
    notes: list[str] = field(default_factory=list)
    switches: Switches | None = None  # what the kernel's scheduler did meanwhile
    ran: Ran | None = None  # samples of where its threads ran
    is_cut: bool = False  # the end of the file is missing
    busy_ns: int | None = None  # how long the processors of the program ran meanwhile, if known


def shortened(problems: list[str]) -> list[str]:
    if len(problems) <= PROBLEMS_MOST:
        return problems
    more = len(problems) - PROBLEMS_MOST
    return [*problems[:PROBLEMS_MOST], f"and {more:,} more of this sort"]


def machine_text() -> str:
    """Describe this machine in a line."""
    about = os.uname()
    cpus = len(os.sched_getaffinity(0))
    return f"{about.nodename}, Linux {about.release}, {about.machine}, {cpus} CPUs usable"


class Resolvers:
    """Resolvers for the processes of a folder. Many run the same files: each is read once."""

    def __init__(self) -> None:
        self.of_gone, self.of_live = sites.Resolver(), sites.Resolver()
        self.every = [self.of_gone, self.of_live]

    @property
    def problems(self) -> list[str]:
        """Problems with the files that they read, not with a process."""
        found = [problem for resolver in self.every for problem in resolver.problems]
        return list(dict.fromkeys(found))

    def of(self, found: decode.Store) -> sites.Resolver:
        """Return the resolver of a program, whose build identifies its file."""
        if not (found.is_live and found.is_here):
            return self.of_gone
        has_builds = all(module.build_id for module in sites.modules_of(found))
        if has_builds:
            return self.of_live
        self.every.append(sites.Resolver())
        return self.every[-1]


def load_store(path: Path, asked: Asked, resolvers: Resolvers) -> Loaded:
    """Load the present contents of a process's file."""
    source = find.open_source(path)
    try:
        found = find.read(source, asked.kinds)
        size = source.size()
    finally:
        source.close()
    made, in_places = build.all_forms(found, resolvers.of(found), asked.forms)
    is_here = found.head.boot_id == clock.boot_id()
    # A process that found its file full may have counted pages that it did not get.
    whole = 0 if found.is_live or found.head.lost_chunks else found.head.page_count * layout.PAGE
    problems = list(found.problems)
    if size < whole:
        problems.insert(
            0,
            f"the recording is cut short at byte {size:,} of {whole:,}: no figure includes what was"
            " recorded beyond it",
        )
    machine = machine_text() if is_here else ""
    return Loaded(str(path), made, in_places, problems, machine, is_cut=size < whole)


class RecordedResolver(sites.Resolver):
    """Names sites as the recording does, and reads files for the others."""

    def __init__(self, known: recording.Frames) -> None:
        super().__init__()
        for (module, build_id, offset), names in known.items():
            names = {**names, "role": names["role"] or futex_waits.role_of([names["function"]])}
            frame = sites.Frame(0, module=module, build_id=build_id, offset=offset, **names)
            self.frames[module, build_id, offset] = frame


def load_recording(path: Path, asked: Asked = DEFAULT) -> Loaded:
    found = recording.read(path)
    had_ended = (found.why_done or "").startswith(recording.PROGRAM)
    # The recorder saw the end of a process later than the process recorded its last event.
    moment_ns = None if had_ended else found.monotonic_ns
    decoded = decode.decode_bytes(found.store, str(path), moment_ns, asked.kinds)
    is_asked = asked.with_events or (asked.with_requests and decoded.head.is_marked)
    put_events(decoded, found.events, is_asked)
    had_ended = had_ended or decoded.head.ended
    ended = CONFINED if decoded.head.is_confined else FAREWELL
    decoded.end = ended if decoded.head.ended else LAST_EVENT if had_ended else RUNS
    if decoded.end == LAST_EVENT and found.alive_ns is not None:
        decoded.end = LAST_SEEN
        seen_tsc = max(decoded.clock.tsc_at(found.alive_ns), 0)
        decoded.now_tsc = max(decoded.now_tsc, seen_tsc)
    # A process of this machine must not be mistaken for the recorded one.
    decoded.is_live = False
    resolver = RecordedResolver(found.frames)
    made, in_places = build.all_forms(decoded, resolver, asked.forms)
    for tables in (made, in_places or {}):
        if tables:
            tables["processes"] = tables["processes"].replaced(ended=[had_ended])
            tables["workers"] = with_kernel(tables["workers"], found.kernel)
    machine = str(found.head.get("machine", ""))
    problems = found.problems + decoded.problems + resolver.problems
    return Loaded(str(path), made, in_places, problems, machine, is_cut=found.is_cut)


def put_events(decoded: decode.Store, parts: list[tuple[int, int, Any]], with_events: bool) -> None:
    """Add the events that a recorder copied instead of those in the rings. Gaps are lost events."""
    due: dict[int, int] = {}
    for writer, first, entries in parts:
        if len(entries):
            decoded.overwritten += max(first - due.get(writer, 0), 0)
        due[writer] = first + len(entries)
    if not with_events or not parts:
        return
    decoded.arrays[layout.EVENTS] = np.concatenate([entries for _, _, entries in parts])
    owners = [np.full(len(entries), writer, np.uint32) for writer, _, entries in parts]
    numbers = [np.arange(first, first + len(entries)) for _, first, entries in parts]
    decoded.writer_of[layout.EVENTS] = np.concatenate(owners)
    decoded.numbers = np.concatenate(numbers).astype(np.int64)


def with_kernel(workers: Table, samples: dict[str, Any]) -> Table:
    """Add the kernel's figures at the time of the recording, where the process left none."""
    known = [samples.get(str(tid), {}) for tid in workers.column("tid")]
    changed: dict[str, Any] = {}
    for name in build.KERNEL_COLUMNS:
        numbers = [sample.get(name) if isinstance(sample, dict) else None for sample in known]
        checked = (n if isinstance(n, int) and abs(n) < 1 << 63 else None for n in numbers)
        left = workers.column(name)
        changed[name] = [n if own is None else own for own, n in zip(left, checked, strict=True)]
    return workers.replaced(**changed)


def load_file(path: Path, asked: Asked, resolvers: Resolvers) -> Loaded:
    """Load a file. Problems with files of code go to resolvers.problems, not into the result."""
    if recording.is_recording(path):
        return load_recording(path, asked)
    if find.is_recording(path):
        return load_store(path, asked, resolvers)
    try:
        with regular.opened(path) as file:
            is_empty = not file.read(1)
    except OSError as error:
        raise RouseError(f"{path}: {error.strerror}") from error
    if is_empty:
        raise RouseError(f"{path}: is empty", "its recorder has not begun, or could not write")
    raise RouseError(
        f"{path}: is no recording of rouse", "rouse record -o FILE makes one of a running process"
    )


def running() -> Path:
    """Return the file of the only process that records."""
    found = find.processes()
    alive = [process for process in found if process.is_alive]
    chosen = alive or found
    if len(chosen) == 1:
        return chosen[0].path
    if not chosen:
        raise RouseError(
            f"no process of user {os.geteuid()} records ({find.folder()} has none)",
            "start a program that uses librouse, or name a recording",
        )
    listed = ", ".join(str(process.pid) for process in chosen)
    what = f"{len(chosen)} processes record"
    if not alive:
        what = f"no process records now; {len(chosen)} that have ended left recordings"
    raise RouseError(f"{what}: {listed}", "name one of them")


def is_tables(folder: Path) -> bool:
    """Whether it is a folder that `rouse report --format parquet` made."""
    return (folder / "processes").is_dir()


class Sink(Protocol):
    """Receives the tables of one process after the other."""

    def add(self, tables: Mapping[str, Table]) -> None: ...


@dataclass
class Read:
    """The files of a folder, and their processes."""

    count: int  # files
    processes: dict[int, str]  # their names in the tables, by pid
    problems: list[str]


def put_files(files: list[Path], in_stacks: Sink, in_places: Sink | None, asked: Asked) -> Read:
    """Put the tables of all files into the sinks: with call stacks, and with places if asked for.

    The files are read from the newest on: if several belong to one process, the newest counts.
    """
    resolvers = Resolvers()
    sums: list[merge.Sums] = []
    if asked.in_sum:
        in_stacks = merge.Sums(in_stacks, False)
        in_places = merge.Sums(in_places, True) if in_places else None
        sums = [each for each in (in_stacks, in_places) if isinstance(each, merge.Sums)]
    found: list[list[str]] = []
    taken: set[str] = set()
    processes: dict[int, str] = {}
    count = 0
    for path in reversed(files):
        try:
            loaded = load_file(path, asked, resolvers)
        except RouseError as error:
            found.append([str(error)])
            continue
        (row,) = loaded.tables["processes"].to_rows()
        if asked.in_sum or row["process"] not in taken:
            in_stacks.add(loaded.tables)
            if in_places and loaded.in_places:
                in_places.add(loaded.in_places)
        taken.add(row["process"])
        processes.setdefault(row["pid"], row["program"] if asked.in_sum else row["process"])
        found.append([f"{path.name}: {problem}" for problem in loaded.problems])
        count += 1
    if count:
        for each in sums:
            each.finish()
    found.insert(0, resolvers.problems)
    return Read(count, processes, [problem for some in reversed(found) for problem in some])


IN_STACKS_HERE, IN_PLACES_HERE = "stacks", "places"  # names of databases in a temporary folder


def put_folder(
    folder: Path, files: list[Path], place: Path, asked: Asked
) -> tuple[Read, engine.Database, engine.Database | None]:
    """Put all files of a folder into a database, and into one with places if asked for."""
    has_places = asked.forms.in_places
    if asked.engine == SQLITE:
        in_stacks = engine.Sqlite(place / IN_STACKS_HERE)
        in_places = engine.Sqlite(place / IN_PLACES_HERE) if has_places else None
        found = put_files(files, in_stacks, in_places, asked)
        if found.count:
            return found, in_stacks, in_places
        for database in (in_stacks, in_places):
            if database:
                database.close()
    else:
        from rouse.tables import parquet

        parts = parquet.Parts(place / IN_STACKS_HERE)
        more = parquet.Parts(place / IN_PLACES_HERE) if has_places else None
        found = put_files(files, parts, more, asked)
        parts.flush()
        if more:
            more.flush()
        if found.count:
            whole = open_parquet(place / IN_STACKS_HERE, asked.engine)
            placed = open_parquet(place / IN_PLACES_HERE, asked.engine) if has_places else None
            return found, whole, placed
    why = "; ".join(found.problems[:1]) or "there is no file in it"
    if len(found.problems) > 1:
        why = f"the first of {len(found.problems):,} problems: {why}"
    raise RouseError(f"{folder}: has no recording: {why}")


def open_parquet(folder: Path, engine_name: str) -> engine.Database:
    """Open folder/NAME/*.parquet. A table without a file is empty, a missing column null."""
    if engine_name == SPARK:
        from rouse.tables import spark

        return spark.open_parquet(folder)
    from rouse.tables import ducks

    return ducks.open_parquet(folder)


@contextmanager
def open_folder(folder: Path, asked: Asked = DEFAULT) -> Iterator[Input]:
    """Open all recordings in a folder, on disk: they need not fit into memory together."""
    if is_tables(folder):
        if asked.in_sum:
            raise RouseError(f"{folder}: has tables", "--sum requires a folder of recordings")
        reader = DUCKDB if asked.engine == SQLITE else asked.engine
        database: engine.Database = open_parquet(folder, reader)
        with closing(database):
            yield Input(str(folder), database, [], "", notes=[NO_SAMPLES])
        return
    files = sorted(path for path in folder.iterdir() if path.is_file())
    seen = [path for path in files if path.name == leftovers.SWITCHES]
    sampled = [path for path in files if path.name == leftovers.SAMPLES]
    files = [path for path in files if path.name not in leftovers.FILES]
    with tempfile.TemporaryDirectory(prefix="rouse-report-") as place:
        found, in_stacks, in_places = put_folder(folder, files, Path(place), asked)
        source = f"{folder} ({counted(found.count, 'recording')})"
        with ExitStack() as stack:
            for made in (in_stacks, in_places):
                if made:
                    stack.enter_context(closing(made))
            opened = Input(source, in_stacks, shortened(found.problems), "")
            opened.in_places = in_places
            opened.processes = found.processes
            opened.busy_ns = leftovers.busy_of(folder)
            opened.switches = switches.read(seen[0]) if seen else None
            opened.ran = cpu_samples.read(sampled[0]) if sampled else None
            yield opened


@contextmanager
def open_input(target: str | None, asked: Asked = DEFAULT) -> Iterator[Input]:
    """Open a process number, a file or a folder. None: the only process that records."""
    path = Path(target) if target else running()
    if target and not path.exists() and target.isdecimal():
        path = find.of_pid(int(target))
    if path.is_dir():
        with open_folder(path, asked) as opened:
            yield opened
        return
    if not path.exists():
        raise RouseError(f"{path}: is not there", "name a process number, a file or a folder")
    if not path.is_file():  # a pipe has no beginning to go back to, and may never end
        raise RouseError(f"{path}: is no file")
    if asked.engine != ENGINES[0]:
        raise RouseError(f"{path}: is no folder, which --engine {asked.engine} requires")
    resolvers = Resolvers()
    loaded = load_file(path, asked, resolvers)
    problems = shortened(loaded.problems + resolvers.problems)
    with ExitStack() as stack:
        database = stack.enter_context(closing(engine.open_tables(loaded.tables)))
        opened = Input(loaded.source, database, problems, loaded.machine)
        if loaded.in_places:
            made = engine.open_tables(loaded.in_places)
            opened.in_places = stack.enter_context(closing(made))
        opened.is_cut = loaded.is_cut
        yield opened
