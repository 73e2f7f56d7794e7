# SPDX-License-Identifier: MIT
"""The results of a sweep over web servers: tables, a page, and raw files."""

from __future__ import annotations

import csv
import importlib.util
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

from rouse import whole_file
from rouse.lab import web_clients, web_servers
from rouse.lab.sweep import About, Result, latest
from rouse.render.charts import Curves, Value, number
from rouse.render.experiment import machine_grid, state_of, versions_line
from rouse.render.study import Block, Grid, Heading, Items, Page, Picture, Words

NAME = "http"
WRK = (
    "wrk -t 1 -c CONNECTIONS -d SECONDS; for one connection per request with the header "
    "Connection: close."
)
FIGURES = {
    "requests_per_s": "requests/s",
    "user_us": "user µs",
    "system_us": "system µs",
    "calls": "system calls",
    "p50_us": "p50 µs",
    "p99_us": "p99 µs",
}
REMARK = "remark"
HEAD = ("server", "workers", "connections", "kept alive", *FIGURES.values(), "errors", REMARK)
DRAWN = {
    "requests_per_s": "requests/s",
    "cpu_us": "CPU µs per request",
    "p99_us": "p99 µs",
}
Key = tuple[str, int, int, bool]


def grouped(results: Sequence[Result]) -> dict[Key, list[Result]]:
    """Return the rounds of each row."""
    found: dict[Key, list[Result]] = {}
    for cell, result in latest(results).items():
        key = (cell.server, cell.workers, cell.connections, cell.keep_alive)
        found.setdefault(key, []).append(result)
    return dict(sorted(found.items(), key=lambda item: (not item[0][3], item[0][1], item[0][2])))


def value_of(rounds: Sequence[Result], name: str) -> Value | None:
    good = [result for result in rounds if not result.error]
    if name == "calls":
        good = [result for result in good if result.calls is not None]
    if name == "cpu_us":
        values = [result.user_us + result.system_us for result in good]
    else:
        values = [float(getattr(result, name)) for result in good]
    return Value(statistics.median(values), min(values), max(values)) if values else None


def row(key: Key, rounds: Sequence[Result]) -> list[str]:
    server, workers, connections, keep_alive = key
    cells = [server, str(workers), f"{connections:,}", "yes" if keep_alive else "no"]
    cells += [str(value_of(rounds, name) or "-") for name in FIGURES]
    limits = sorted({word for result in rounds for word in result.limit.split(", ") if word})
    remarks = [result.error for result in rounds if result.error][-1:]
    if limits:
        remarks.append(f"limited by {', '.join(limits)}")
    count = sum(result.errors for result in rounds)
    return [*cells, number(count), "; ".join(remarks) or "-"]


def table(results: Sequence[Result]) -> list[list[str]]:
    return [list(HEAD), *(row(key, rounds) for key, rounds in grouped(results).items())]


def curves(groups: Mapping[Key, list[Result]], name: str, workers: int, kept: bool) -> Curves:
    lines: dict[str, dict[float, Value]] = {}
    for (server, of, connections, keep_alive), rounds in groups.items():
        value = value_of(rounds, name)
        if of == workers and keep_alive == kept and value:
            lines.setdefault(server, {})[connections] = value
    how = "keep-alive" if kept else "one connection per request"
    title = f"{DRAWN[name]}, workers: {workers}, {how}"
    return Curves(title, "connections", lines)


def page(
    about: About,
    results: Sequence[Result],
    processors: int,
    uncounted: str,
    servers: Sequence[web_servers.Server],
) -> Page:
    """uncounted: why there are no system calls. servers: whose commands are shown."""
    groups = grouped(results)
    blocks: list[Block] = [
        Words(f"This machine was {state_of(about.readings)}."),
        *(
            Words(f"The sweep was continued: the machine was {state_of(each)} then.")
            for each in about.later
        ),
        Heading("Figures"),
        Grid(table(results)),
        Items(
            [
                "CPU time is that of the server, of one request. System calls, too: they are "
                f"counted in a load by itself. -: not counted{': ' * bool(uncounted)}{uncounted}.",
                "The source (E4): uThreads' web server, rebuilt, 128,626 requests/s by one thread "
                "of wrk with 200 connections, on another machine.",
                "A figure is the median of the rounds, with the least and the most.",
                "Limited by: a client that filled its processor, ports that closed connections "
                "still held, or the limit of descriptors. Then requests/s are not the server's.",
            ]
        ),
    ]
    ways = sorted({(not kept, workers) for _, workers, _, kept in groups})
    for is_closed, workers in ways:
        kept = not is_closed
        how = "connections are kept alive" if kept else "one connection per request"
        blocks.append(Heading(f"Workers: {workers}, {how}"))
        drawn = [curves(groups, name, workers, kept) for name in DRAWN]
        blocks += [Picture(chart.title, chart) for chart in drawn if chart.lines]
    blocks += [
        Heading("How quiet the machine was"),
        machine_grid(about.readings),
        Heading("How it was measured"),
        Items(
            [
                f"{about.client} for {about.seconds} s per cell and round, with a new server each.",
                f"Server and client share the {processors} processors.",
                f"{about.machine}; {about.date}.",
                *versions_line(about.versions),
                *([WRK] if about.client == web_clients.Wrk.name else []),
                *(
                    f"{server.name}: {'; its settings: '.join(web_servers.in_words(server))}"
                    for server in servers
                ),
            ]
        ),
    ]
    return Page(NAME, "Web servers: rouse-serve and others", blocks)


def write_raw(folder: Path, results: Sequence[Result]) -> Path:
    """Write the results of each cell and round: as Parquet if pyarrow is installed, else as CSV."""
    rows = [
        {
            name: None if result.error and name in (*FIGURES, "requests", "errors") else value
            for name, value in asdict(result).items()
        }
        for result in latest(results).values()
    ]
    if importlib.util.find_spec("pyarrow") is not None:
        return write_parquet(folder / f"{NAME}.parquet", rows)
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, [field.name for field in fields(Result)])
    writer.writeheader()
    writer.writerows(rows)
    path = folder / f"{NAME}.csv"
    whole_file.replace(path, [file.getvalue().encode()])
    return path


def write_parquet(path: Path, rows: Sequence[Mapping[str, object]]) -> Path:
    import pyarrow
    from pyarrow import parquet

    kinds = {"str": pyarrow.string(), "int": pyarrow.int64(), "bool": pyarrow.bool_()}
    schema = pyarrow.schema(
        [(field.name, kinds.get(str(field.type), pyarrow.float64())) for field in fields(Result)]
    )
    file = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema), file)
    whole_file.replace(path, [file.getvalue()])
    return path
