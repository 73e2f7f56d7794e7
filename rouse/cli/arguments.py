# SPDX-License-Identifier: MIT
"""Types of arguments of the commands."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from rouse.cli.param_type import ParamType
from rouse.render import links

COALESCE_MOST_US = 1_000_000
DELAY_MOST_US = 1_000_000
SCATTER_MS, SCATTER_MOST_MS = 20, 10_000


def files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete the name of a file."""
    return [CompletionItem(incomplete, type="file")]


def format_of(file: str | None) -> str:
    """Return the format that a file's name asks for where no option does."""
    end = Path(file or "").suffix.removeprefix(".")
    return end if end in ("html", "json") else "text"


class Name(ParamType[str]):
    """The name of a file or folder. An empty one, from an unset variable, is refused."""

    name = "name"

    def convert(self, value: Any, _param: click.Parameter | None, _: click.Context | None) -> str:
        if not value:
            raise click.BadParameter("the name is empty")
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return files(ctx, param, incomplete)


class Editor(ParamType[str]):
    """A template of links to source files."""

    name = "template"

    def convert(self, value: Any, _param: click.Parameter | None, _: click.Context | None) -> str:
        if why := links.wrong_with(str(value)):
            raise click.BadParameter(f"{value!r}: {why}")
        return str(value)


class Seconds(click.FloatRange):
    """A number of seconds in a range. nan is refused, although it is beyond neither end."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if math.isnan(seconds):
            raise click.BadParameter(f"{value} is no number of seconds")
        return seconds


class LockChange(ParamType[tuple[str, str]]):
    """LOCK=VALUE. The name of a lock may have = signs itself. may_lack: the value, then empty."""

    name = "change"

    def __init__(self, may_lack: bool = False) -> None:
        self.may_lack = may_lack

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        lock, equals, amount = str(value).rpartition("=")
        if self.may_lack and not equals and amount:
            return amount, ""
        if not equals or not lock or (self.may_lack and not amount):
            self.fail(f"{value!r} is no change of a lock, such as cache_lock=2", param, ctx)
        return lock, amount


class Microseconds(ParamType[float]):
    """So many microseconds, of a change of a lock."""

    name = "microseconds"

    def __init__(self, option: str) -> None:
        self.option = option

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            found = float(str(value))
        except ValueError:
            found = math.nan
        if not 0 < found <= DELAY_MOST_US:
            raise click.UsageError(f"{self.option}: {value!r} is no number of µs, such as 50")
        return found


class Timers(ParamType[int]):
    """A timer slack, in ns."""

    name = "precise|coalesce:US"

    def convert(self, value: Any, _param: click.Parameter | None, _: click.Context | None) -> int:
        kind, _colon, number = str(value).partition(":")
        if value == "precise":
            return 1
        if kind == "coalesce" and number.isascii() and number.isdigit():
            if 1 <= int(number) <= COALESCE_MOST_US:
                return int(number) * 1000
            raise click.BadParameter(f"{number} is not in the range 1 to {COALESCE_MOST_US}")
        raise click.BadParameter(f"{value!r} is neither precise nor coalesce:US (microseconds)")


class Accept(ParamType[str]):
    """An order, in the words of the interposer."""

    name = "fifo|lifo|scatter[:MS]"

    def convert(self, value: Any, _param: click.Parameter | None, _: click.Context | None) -> str:
        kind, _colon, number = str(value).partition(":")
        if value in ("fifo", "lifo"):
            return str(value)
        if value == "scatter":
            number = str(SCATTER_MS)
        if kind == "scatter" and number.isascii() and number.isdigit():
            if 1 <= int(number) <= SCATTER_MOST_MS:
                return f"scatter:{int(number) * 1_000_000}"
            raise click.BadParameter(f"{number} is not in the range 1 to {SCATTER_MOST_MS}")
        raise click.BadParameter(f"{value!r} is not fifo, lifo, scatter or scatter:MS")
