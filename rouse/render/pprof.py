# SPDX-License-Identifier: MIT
"""Waits as a profile for `go tool pprof`: contentions and delay by the stack that waited.

The messages are those of profile.proto, described here so that no generated code is needed:
https://github.com/google/pprof/blob/main/proto/profile.proto
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rouse.query.specs import init_text
from rouse.text import printable

PACKAGE = "perftools.profiles"
Field = descriptor_pb2.FieldDescriptorProto
# name: number and type; a message's name for its own type, [] for many.
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Profile": {
        "sample_type": (1, "[ValueType]"),
        "sample": (2, "[Sample]"),
        "mapping": (3, "[Mapping]"),
        "location": (4, "[Location]"),
        "function": (5, "[Function]"),
        "string_table": (6, "[string]"),
        "time_nanos": (9, "int64"),
        "duration_nanos": (10, "int64"),
        "period_type": (11, "ValueType"),
        "period": (12, "int64"),
        "comment": (13, "[int64]"),
        "default_sample_type": (14, "int64"),
    },
    "ValueType": {"type": (1, "int64"), "unit": (2, "int64")},
    "Sample": {
        "location_id": (1, "[uint64]"),
        "value": (2, "[int64]"),
        "label": (3, "[Label]"),
    },
    "Label": {"key": (1, "int64"), "str": (2, "int64")},
    "Mapping": {
        "id": (1, "uint64"),
        "memory_start": (2, "uint64"),
        "memory_limit": (3, "uint64"),
        "file_offset": (4, "uint64"),
        "filename": (5, "int64"),
        "build_id": (6, "int64"),
        "has_functions": (7, "bool"),
        "has_filenames": (8, "bool"),
        "has_line_numbers": (9, "bool"),
    },
    "Location": {
        "id": (1, "uint64"),
        "mapping_id": (2, "uint64"),
        "address": (3, "uint64"),
        "line": (4, "[Line]"),
    },
    "Line": {"function_id": (1, "uint64"), "line": (2, "int64")},
    "Function": {
        "id": (1, "uint64"),
        "name": (2, "int64"),
        "system_name": (3, "int64"),
        "filename": (4, "int64"),
    },
}
TYPES = {
    "int64": Field.TYPE_INT64,
    "uint64": Field.TYPE_UINT64,
    "bool": Field.TYPE_BOOL,
    "string": Field.TYPE_STRING,
}


def profile_class() -> Any:
    """Return the class of the message Profile."""
    file = descriptor_pb2.FileDescriptorProto(
        name="rouse/profile.proto", package=PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number)
            many = kind.startswith("[")
            field.label = Field.LABEL_REPEATED if many else Field.LABEL_OPTIONAL
            plain = kind.strip("[]")
            if plain in TYPES:
                field.type = TYPES[plain]
            else:
                field.type = Field.TYPE_MESSAGE
                field.type_name = f".{PACKAGE}.{plain}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    profile = pool.FindMessageTypeByName(f"{PACKAGE}.Profile")
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(profile)
    return message_factory.MessageFactory(pool).GetPrototype(profile)  # before protobuf 4.22


class Writer:
    """A profile under construction. It contains each text, function and location once."""

    def __init__(self) -> None:
        self.profile = profile_class()()
        self.texts: dict[str, int] = {}
        self.mappings: dict[tuple[str, str], int] = {}
        self.functions: dict[tuple[str, str], int] = {}
        self.locations: dict[tuple[Any, ...], int] = {}
        self.text("")

    def text(self, raw: str) -> int:
        text = printable(raw)  # go's tool prints it as it is
        if text not in self.texts:
            self.texts[text] = len(self.texts)
            self.profile.string_table.append(text)
        return self.texts[text]

    def mapping(self, module: str, build_id: str) -> int:
        key = (module, build_id)
        if key not in self.mappings:
            self.mappings[key] = len(self.mappings) + 1
            self.profile.mapping.add(
                id=self.mappings[key],
                filename=self.text(module),
                build_id=self.text(build_id),
                # Every name that can be found is here: go's tool must not look for the file.
                has_functions=True,
                has_filenames=True,
                has_line_numbers=True,
            )
        return self.mappings[key]

    def function(self, name: str, file: str) -> int:
        key = (name, file)
        if key not in self.functions:
            self.functions[key] = len(self.functions) + 1
            text = self.text(name)
            self.profile.function.add(
                id=self.functions[key], name=text, system_name=text, filename=self.text(file)
            )
        return self.functions[key]

    def location(self, frame: Mapping[str, Any]) -> int:
        """Return the location of a row of the table of sites."""
        module, build_id = frame["module"] or "", frame["build_id"] or ""
        name = frame["function"] or frame["label"] or "?"
        key = (module, build_id, frame["offset"], name, frame["line"])
        if key not in self.locations:
            self.locations[key] = len(self.locations) + 1
            location = self.profile.location.add(
                id=self.locations[key],
                mapping_id=self.mapping(module, build_id) if module else 0,
                address=max(frame["offset"] or 0, 0),
            )
            location.line.add(
                function_id=self.function(name, frame["file"] or ""), line=frame["line"] or 0
            )
        return self.locations[key]


def whole(number: float) -> int:
    """Return what fits the field. Sums of damaged figures are too large, and then floats."""
    return max(-(1 << 63), min(int(number), (1 << 63) - 1))


def encode(
    processes: Iterable[Mapping[str, Any]],
    waits: Iterable[Mapping[str, Any]],
    frames: Mapping[tuple[str, str], Sequence[Mapping[str, Any]]],
) -> bytes:
    """Encode a profile. waits: rows of queries.wait_sites.

    frames: rows of the sites, the innermost first, by process and site.
    """
    writer = Writer()
    profile = writer.profile
    for name, unit in (("contentions", "count"), ("delay", "nanoseconds")):
        profile.sample_type.add(type=writer.text(name), unit=writer.text(unit))
    profile.default_sample_type = writer.text("delay")
    profile.period_type.type, profile.period_type.unit = (
        writer.text("contentions"),
        writer.text("count"),
    )
    profile.period = 1
    for process in processes:
        profile.time_nanos = max(profile.time_nanos, process["started_unix_ns"])
        profile.duration_nanos = max(profile.duration_nanos, process["duration_ns"])
        profile.comment.append(writer.text(process["command"] or process["program"]))
    for wait in waits:
        stack = frames.get((wait["process"], wait["wait_site"]), [])
        known = [writer.location(frame) for frame in stack] or [writer.location(NOWHERE)]
        begun = wait["count"] + wait["waiting"]
        sample = profile.sample.add(location_id=known, value=[whole(begun), whole(wait["wait_ns"])])
        for key, text in (
            ("kind", wait["kind"]),
            ("object", wait["object_name"]),
            ("initialised_at", init_text(wait)),
            ("held from" if wait["role"] == "held" else "woken from", wait["other_label"]),
            ("process", wait["process"]),
        ):
            if text:
                sample.label.add(key=writer.text(key), str=writer.text(text))
    return gzip.compress(profile.SerializeToString(), mtime=0)


NOWHERE: Mapping[str, Any] = {
    "module": "",
    "build_id": "",
    "offset": 0,
    "function": "[not known]",
    "label": "",
    "file": "",
    "line": 0,
}
