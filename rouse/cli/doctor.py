# SPDX-License-Identifier: MIT
"""`rouse doctor`: what this machine permits, and how to permit the rest."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from dataclasses import asdict
from pathlib import Path

import click

from rouse.cli.arguments import Name
from rouse.cli.commands import Command
from rouse.errors import EXIT_FINDINGS, output
from rouse.sched.checks import BAD, GOOD, LIMITED, Check, examine
from rouse.sched.probe import System
from rouse.symbols import tls_lint
from rouse.text import counted, printable

COLOURS = {GOOD: "green", LIMITED: "yellow", BAD: "red"}


def render(checks: list[Check], width: int, has_colours: bool) -> list[str]:
    lines = []
    for check in checks:
        state = check.state.ljust(8)
        head = textwrap.wrap(f"{check.name}: {check.found}", width - 9, break_on_hyphens=False)
        shown = click.style(state, fg=COLOURS[check.state]) if has_colours else state
        lines += [f"{shown} {head[0]}", *(" " * 9 + line for line in head[1:])]
        for text in (check.effect, f"do: {check.remedy}" if check.remedy else ""):
            lines += [" " * 11 + line for line in textwrap.wrap(text, width - 11)]
    count = {state: sum(check.state == state for check in checks) for state in COLOURS}
    lines.append(", ".join(f"{number} {state}" for state, number in count.items()))
    return lines


def lint(path: Path, is_json: bool) -> int:
    found = tls_lint.examine(path)
    lines = [printable(f"warning: {kept}") for kept in found.kept]
    lines.append(
        f"{counted(found.functions, 'function')} may wait,"
        f" {counted(len(found.kept), 'warning')}"
        + (
            f"; cannot tell for all of {counted(found.unclear, 'function')}: calls by pointer and"
            " jumps by table are not followed"
            if found.unclear
            else ""
        )
    )
    text = json.dumps(asdict(found), indent=1) if is_json else "\n".join(lines)
    with output():
        print(text)
    return EXIT_FINDINGS if found.kept else 0


@click.command(cls=Command)
@click.option("--json", "is_json", is_flag=True, help="A list of objects.")
@click.option(
    "--lint",
    "binary",
    type=Name(),
    metavar="BINARY",
    help="Instead, find functions of a program or library that keep an address of thread-local"
    " storage over a call of rouse that may wait. Only x86-64; requires objdump.",
)
def command(is_json: bool, binary: str | None) -> int:
    """Show what this machine allows, and how to allow the rest.

    good; limited: rouse does without it, or a tool beside it does not work; bad: something of rouse
    does not work. Exit status: 0, or 1 if something is bad.
    """
    if binary:
        return lint(Path(binary), is_json)
    checks = examine(System())
    if is_json:
        text = json.dumps([asdict(check) for check in checks], indent=1)
    else:
        width = min(shutil.get_terminal_size().columns, 100) if sys.stdout.isatty() else 100
        is_plain = os.environ.get("NO_COLOR") or os.environ.get("TERM", "dumb") == "dumb"
        has_colours = sys.stdout.isatty() and not is_plain
        text = "\n".join(render(checks, max(width, 30), has_colours))
    with output():
        print(text)
    return EXIT_FINDINGS if any(check.state == BAD for check in checks) else 0
