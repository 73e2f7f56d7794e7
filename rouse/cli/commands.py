# SPDX-License-Identifier: MIT
"""The classes of `rouse` and its subcommands: click's, with help that survives a closed output."""

from __future__ import annotations

from typing import Any

import click

from rouse.errors import output


class Command(click.Command):
    def make_context(self, *words: Any, **more: Any) -> click.Context:
        # --help and --version are printed while the arguments are read.
        with output():
            return super().make_context(*words, **more)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # Click's parser does not say which command lacks an option's value.
            error.ctx = error.ctx or ctx
            raise


class Group(Command, click.Group):
    pass
