# SPDX-License-Identifier: MIT
"""The report as JSON, and the JSON Schema that describes it.

The schema is made from the queries and the columns of the sections, so that it cannot differ from
them. VERSION changes when a key is removed, or when it gets another meaning or unit. New keys do
not change it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from typing import Any

from rouse.query import measures, paths, requests, scheduler
from rouse.query.finding import Finding
from rouse.query.program import PARTS
from rouse.query.sections import Report
from rouse.query.specs import PLANS, Column, Plan
from rouse.tables.engine import Sqlite, flattened
from rouse.tables.schemas import COLUMNS, REAL, TEXT, TRUTH, TRUTHS, WHOLE, WORD

VERSION = 1
PIECES = 10_000  # numbers, names and brackets that are written at once
DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
INTEGER, NUMBER, STRING, BOOLEAN = "integer", "number", "string", "boolean"
TYPES = {TEXT: STRING, WORD: STRING, WHOLE: INTEGER, REAL: NUMBER, TRUTH: BOOLEAN}
OF_KIND = {"text": STRING, "count": INTEGER}  # others: a number
ZEROS: dict[str, Any] = {STRING: "", INTEGER: 0, NUMBER: 0, BOOLEAN: False}
UNITS = {"ns": "ns", "us": "ns", "share": "share of 1"}


def made(
    source: str, machine: str, processes: Sequence[Mapping[str, Any]], report: Report
) -> dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "version": VERSION,
        "source": source,
        "machine": machine,
        "verdict": report.verdict and report.verdict.as_json(),
        "facts": [list(fact) for fact in report.facts],
        "processes": list(processes),
        "notes": report.notes,
        "sections": {section.key: section.rows for section in report.sections},
        "stacks": dict(report.frames),
        "left_out": {
            section.key: {"rows": section.more, "idle": section.idle}
            for section in report.sections
            if section.more or section.idle
        },
    }


def parts(whole: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text part by part: as a whole it may take more memory than all that it is of."""
    pieces = json.JSONEncoder(ensure_ascii=True, indent=1).iterencode(whole)
    while some := "".join(islice(pieces, PIECES)):
        yield some
    yield "\n"


def text(whole: Mapping[str, Any]) -> str:
    return "".join(parts(whole))


def nothing(source: str, why: str) -> str:
    """Return the JSON of a run of which nothing was recorded."""
    return text(made(source, "", [], Report([], [why], [])))


# The schema


def either(*types: str) -> Schema:
    """A value that may be unknown."""
    return {"type": [*types, "null"]}


def record(properties: Mapping[str, Schema]) -> Schema:
    """An object that has just these keys."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def listed(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def column_schema(column: Column) -> Schema:
    found = either(OF_KIND.get(column.kind, NUMBER))
    about = "; ".join(filter(None, (column.about, UNITS.get(column.kind))))
    return {**found, "description": f"{column.title}: {about}" if about else column.title}


def known_types() -> dict[str, str]:
    """The types of the columns of the tables, by name. A name means one thing in all of them."""
    return {name: TYPES[sort] for table in COLUMNS.values() for name, sort in table.items()}


def key_schema(name: str, types: Mapping[str, str]) -> Schema:
    """The schema of a key that a query adds to the columns."""
    if name.startswith("is_") or name in TRUTHS:
        return either(BOOLEAN)
    if name in types:
        return either(types[name])
    if name.endswith(("_label", "_site", "_name", "name", "role")):
        return either(STRING)
    return either(NUMBER)


def plan_schema(plan: Plan, database: Sqlite, types: Mapping[str, str]) -> Schema:
    """The schema of a section's rows, by the keys that its query has on empty tables."""
    names, _ = database.run(flattened(plan.query(measures.whole)))
    found = {name: key_schema(name, types) for name in names}
    finished = plan.finish({name: ZEROS[of["type"][0]] for name, of in found.items()})
    found |= {name: key_schema(name, types) for name in finished if name not in found}
    found |= {column.key: column_schema(column) for column in plan.columns}
    return listed({**record(found), "description": f"{plan.title}. {plan.about}"})


def section_schema(key: str, columns: Iterable[Column]) -> Schema:
    """The schema of a section that no plan makes. Its rows may have further keys."""
    found = {column.key: column_schema(column) for column in columns}
    return listed({"type": "object", "properties": found, "required": list(found)})


def verdict_schema() -> Schema:
    types = {"str": STRING, "int": INTEGER, "float | None": NUMBER}
    finding = {
        part.name: either(types[str(part.type)])
        if "None" in str(part.type)
        else {"type": types[str(part.type)]}
        for part in fields(Finding)
    }
    division = {name: {"type": NUMBER, "minimum": 0} for name, _ in PARTS}
    whole = record(
        {
            "time": {**record(division), "description": "shares of 1 of the threads' time"},
            "thread_ns": {"type": INTEGER},
            "findings": listed(record(finding)),
            "summary": {"type": STRING},
            "unexplained": {"type": STRING},
            "queue_ns": either(INTEGER),
            "delivery_ns": either(INTEGER),
        }
    )
    return {**whole, "type": ["object", "null"]}


def schema() -> Schema:
    """Return the JSON Schema of a report."""
    database, types = Sqlite(), known_types()
    try:
        plans = {plan.key: plan_schema(plan, database, types) for plan in PLANS}
    finally:
        database.close()
    others = {
        **scheduler.COLUMNS_BY_KEY,
        **requests.COLUMNS_BY_KEY,
        paths.KEY: paths.COLUMNS,
    }
    further = {key: section_schema(key, columns) for key, columns in others.items()}
    strings = listed({"type": STRING})
    process = {name: either(TYPES[sort]) for name, sort in COLUMNS["processes"].items()}
    left_out = record({"rows": {"type": INTEGER}, "idle": {"type": INTEGER}})
    whole = record(
        {
            "version": {"const": VERSION},
            "source": {"type": STRING},
            "machine": either(STRING),
            "verdict": verdict_schema(),
            "facts": listed({**strings, "minItems": 2, "maxItems": 2}),
            "processes": listed(record(process)),
            "notes": strings,
            "sections": {
                "type": "object",
                "properties": {**plans, **further},
                "additionalProperties": False,
            },
            "stacks": {"type": "object", "additionalProperties": strings},
            "left_out": {"type": "object", "additionalProperties": left_out},
        }
    )
    about = "The report of rouse report --json and rouse run --json. Times are in ns."
    return {"$schema": DIALECT, "title": "rouse report", "description": about, **whole}
