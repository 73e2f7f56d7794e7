# SPDX-License-Identifier: MIT
"""A report as one self-contained HTML page: style, script, pictures, plots and figures.

A page is bounded: the pictures sum up their smallest parts, and tables lose their last rows.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

from rouse.query import icicle
from rouse.query.icicle import Box, Texts
from rouse.query.lanes import SPANS_MOST, Lanes
from rouse.query.sections import Report, Section, sites_of
from rouse.query.specs import Column, address
from rouse.query.wait_graph import Graph
from rouse.render.links import Links
from rouse.text import cell, printable

BYTES_MOST = 1_500_000  # of a page
PICTURES_BYTES = 400_000
LANES_BYTES = 300_000
BOXES_MOST = 6000
SCRIPTS = ("draw.js", "icicle.js", "wait_graph.js", "lanes.js", "page.js")


@dataclass(frozen=True)
class Pictures:
    time: Box  # of all threads
    waits: Graph = field(default_factory=Graph)
    lanes: Callable[[int], Lanes | None] = lambda _: None  # with at most so many spans


def embedded(value: Any) -> str:
    """Return JSON that cannot end the element that contains it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def sortable(column: Column, value: Any) -> Any:
    if column.kind == "text":
        return printable(str(value or "")).lower()
    return value


def page_row(columns: tuple[Column, ...], row: Mapping[str, Any]) -> dict[str, Any]:
    process = row.get("process", "")  # a section may sum up all processes
    sites = sites_of(row)
    keys = [f"site {site}" for _, site in sites]
    if "lock" in row:
        keys.append(f"lock {process} {address(row['lock'])}")
    if row.get("thread_id"):
        keys.append(f"thread {process} {row['thread_id']}")
    return {
        "text": [cell(column.kind, row[column.key]) for column in columns],
        "sort": [sortable(column, row[column.key]) for column in columns],
        "idle": bool(row.get("is_idle", False)),
        "sites": sites,
        "keys": keys,
    }


def page_section(section: Section) -> dict[str, Any]:
    return {
        "key": section.key,
        "title": section.title,
        "about": section.about,
        "empty": section.empty,
        "more": section.more,
        "summary": section.is_summary,
        "columns": [
            {"key": c.key, "title": c.title, "kind": c.kind, "about": c.about}
            for c in section.columns
        ],
        "rows": [page_row(section.columns, row) for row in section.rows],
    }


def used_frames(report: Report, sections: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Return the frames of the sites that some row names."""
    wanted = {site for s in sections for row in s["rows"] for _, site in row["sites"]}
    return {
        site: [printable(label) for label in report.frames[site]]
        for site in sorted(wanted)
        if site in report.frames
    }


def links_in(labels: Iterable[str], links: Links) -> dict[str, str]:
    return {label[start:end]: uri for label in labels for start, end, uri in links.of(label)}


def lane_data(lanes: Lanes, labels: Texts) -> dict[str, Any]:
    """Return the lanes. A span has its gap to the one before, its time, and what it is."""
    made = []
    for lane in lanes.lanes:
        flat, at = [], 0
        for span in lane.spans:
            words = [span.begin - at, span.end - span.begin]
            words += [labels.number(span.part), labels.number(span.text)]
            flat.append([*words, span.waker] if span.waker >= 0 else words)
            at = span.end
        made.append([printable(lane.name), flat])
    requests = [[s.begin, s.end - s.begin, labels.number(s.text)] for s in lanes.requests]
    return {"ns": lanes.ns, "more": lanes.more, "lanes": made, "requests": requests}


def bounded_lanes(pictures: Pictures, labels: Texts) -> dict[str, Any] | None:
    """Return the lanes with as many spans as there is room for. None: there are no events."""
    most = SPANS_MOST
    while lanes := pictures.lanes(most):
        own = Texts()
        made = lane_data(lanes, own)
        size = len(embedded([made, *own.numbers]))
        if size <= LANES_BYTES or most == 1:
            return lane_data(lanes, labels)
        most //= 2
    return None


def picture_data(
    pictures: Pictures, links: Links, most: int, labels: Texts | None = None
) -> dict[str, Any]:
    """Return the pictures with at most so many boxes. Texts are numbers in a list of all."""
    labels = labels or Texts()
    every = len(icicle.boxes_of(pictures.time))
    made = {
        "icicle": icicle.as_json(icicle.bounded(pictures.time, most), labels),
        "left_out": max(every - most, 0),
        "edges": [[*(labels.number(text) for text in way), ns] for way, ns in pictures.waits.edges],
        "more_edges": [pictures.waits.more, pictures.waits.more_ns],
    }
    texts = [printable(text) for text in labels.numbers]
    return {**made, "texts": texts, "links": links_in(texts, links)}


def bounded_pictures(pictures: Pictures, links: Links) -> dict[str, Any]:
    most = BOXES_MOST
    while len(embedded(picture_data(pictures, links, most))) > PICTURES_BYTES and most > 1:
        most //= 2
    labels = Texts()
    made = picture_data(pictures, links, most, labels)
    lanes = bounded_lanes(pictures, labels)
    return {**made, "lanes": lanes, "texts": [printable(text) for text in labels.numbers]}


def cut(section: Section, rows: int) -> Section:
    more = max(len(section.rows) - rows, 0)
    return replace(section, rows=section.rows[:rows], more=section.more + more)


def page_data(report: Report, pictures: dict[str, Any], links: Links) -> dict[str, Any]:
    made = [page_section(section) for section in report.sections]
    data: dict[str, Any] = {
        "verdict": [printable(line) for line in report.verdict.lines()] if report.verdict else [],
        "facts": [(name, printable(text)) for name, text in report.facts],
        "notes": [printable(note) for note in report.notes],
        "pictures": {key: value for key, value in pictures.items() if key != "links"},
        "sections": made,
        "frames": used_frames(report, made),
    }
    labels = [label for frames in data["frames"].values() for label in frames]
    data["links"] = links_in(labels, links) | pictures["links"]
    return data


def render(report: Report, pictures: Pictures, title: str, links: Links, bounded: bool) -> str:
    """Return the page. bounded: with as many rows as it has room for, not with all."""
    drawn = bounded_pictures(pictures, links)
    whole = page_of(page_data(report, drawn, links), title)
    rows = max((len(section.rows) for section in report.sections), default=0)
    while bounded and len(whole.encode()) > BYTES_MOST and rows:
        rows //= 2
        report = replace(report, sections=[cut(section, rows) for section in report.sections])
        whole = page_of(page_data(report, drawn, links), title)
    return whole


def page_of(data: dict[str, Any], title: str) -> str:
    parts = {
        "TITLE": html.escape(printable(title)),
        "STYLE": asset("page.css"),
        "DATA": embedded(data),
        "SCRIPT": "".join(asset(name) for name in SCRIPTS),
    }
    return filled("page.html", parts)


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return an asset with its marks replaced."""
    # Piece by piece, not one replacement after the other: what is put in may contain a mark.
    pieces = asset(name).split("@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
