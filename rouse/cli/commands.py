# SPDX-License-Identifier: MIT
"""The classes of `rouse` and its subcommands: click's, whose help may have nowhere to go."""

from __future__ import annotations

from typing import Any

import click

from rouse.errors import output


class Command(click.Command):
    def make_context(self, *words: Any, **more: Any) -> click.Context:
        # --help and --version are printed while the arguments are read.
        with output():
            return super().make_context(*words, **more)


class Group(Command, click.Group):
    pass
