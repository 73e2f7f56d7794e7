# SPDX-License-Identifier: MIT
"""A report as one self-contained HTML page: style, script, plots and figures."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

from rouse.query.sections import Report, Section, sites_of
from rouse.query.specs import Column, address
from rouse.render.links import Links
from rouse.text import cell, printable


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


def render(report: Report, title: str, links: Links) -> str:
    made = [page_section(section) for section in report.sections]
    data: dict[str, Any] = {
        "verdict": [printable(line) for line in report.verdict.lines()] if report.verdict else [],
        "facts": [(name, printable(text)) for name, text in report.facts],
        "notes": [printable(note) for note in report.notes],
        "sections": made,
        "frames": used_frames(report, made),
    }
    labels = [label for frames in data["frames"].values() for label in frames]
    data["links"] = {
        label[start:end]: uri for label in labels for start, end, uri in links.of(label)
    }
    parts = {
        "TITLE": html.escape(printable(title)),
        "STYLE": asset("page.css"),
        "DATA": embedded(data),
        "SCRIPT": asset("page.js"),
    }
    # Piece by piece, not one replacement after the other: what is put in may contain a mark.
    pieces = asset("page.html").split("@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")
