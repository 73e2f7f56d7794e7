# SPDX-License-Identifier: MIT
"""A table in memory: columns of equal length, made by the decoders and read by the engines.

A column is a list, an array of numpy, or Coded where a few texts repeat. A column that a decoder
leaves out is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.tables.schemas import COLUMNS

CHUNK = 20_000  # rows that are made into Python's objects at once
Row = dict[str, Any]


@dataclass(frozen=True)
class Coded:
    """Texts as numbers of words in a list."""

    codes: npt.NDArray[Any]
    words: Sequence[str]

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, some: Any) -> Coded:
        return Coded(self.codes[some], self.words)

    def tolist(self) -> list[str]:
        return [self.words[code] for code in self.codes.tolist()]


Column = list[Any] | npt.NDArray[Any] | Coded


def listed(column: Column) -> list[Any]:
    return column if isinstance(column, list) else list(column.tolist())


class Table:
    """rows: their number. Raises ValueError for an unknown column, or one of another length."""

    def __init__(self, name: str, rows: int, columns: Mapping[str, Column]) -> None:
        self.name, self.rows = name, rows
        self.columns: dict[str, Column | None] = {key: columns.get(key) for key in COLUMNS[name]}
        unknown = set(columns) - set(self.columns)
        if unknown:
            raise ValueError(f"{name} has no column {sorted(unknown)}")
        for key, column in columns.items():
            if len(column) != rows:
                raise ValueError(f"{name}.{key} has {len(column)} rows, not {rows}")

    def column(self, key: str) -> list[Any]:
        column = self.columns[key]
        return [None] * self.rows if column is None else listed(column)

    def tuples(self) -> Iterator[tuple[Any, ...]]:
        """Return the rows, in the order of COLUMNS."""
        for begin in range(0, self.rows, CHUNK):
            end = min(begin + CHUNK, self.rows)
            parts = (
                repeat(None, end - begin) if column is None else listed(column[begin:end])
                for column in self.columns.values()
            )
            yield from zip(*parts, strict=True)

    def to_rows(self) -> list[Row]:
        return [dict(zip(self.columns, row, strict=True)) for row in self.tuples()]

    def replaced(self, **changed: Column) -> Table:
        """Return the table with other values in some columns."""
        kept = {key: column for key, column in self.columns.items() if column is not None}
        return Table(self.name, self.rows, kept | changed)

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Table:
        """Return the rows where mask is true."""
        kept: dict[str, Column] = {}
        for key, column in self.columns.items():
            if isinstance(column, list):
                kept[key] = [value for value, keep in zip(column, mask, strict=True) if keep]
            elif column is not None:
                kept[key] = column[mask]
        return Table(self.name, int(mask.sum()), kept)


def from_rows(name: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Make a table of rows. A missing value is null."""
    columns: dict[str, Column] = {key: [row.get(key) for row in rows] for key in COLUMNS[name]}
    return Table(name, len(rows), columns)


def empty(name: str) -> Table:
    return Table(name, 0, {})
