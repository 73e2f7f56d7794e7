# SPDX-License-Identifier: MIT
"""Find the module of a subcommand, and run it.

A subcommand is a module with a click command named `command`. Modules are imported only when they
are needed: the tables and the terminal are slow to import, and `rouse doctor` needs neither.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

import click

from rouse.cli.commands import Group
from rouse.errors import RouseError, fill_closed, output

# Each with the line that `rouse --help` shows.
COMMANDS = {
    "compare": "Two recordings of the same work, side by side.",
    "doctor": "What this machine allows, and what to do about what it does not.",
    "lab": "The six investigations on this machine, and how quiet it is.",
    "model": "Predictions: of ticks, of scaling, of changed locks.",
    "query": "A question in SQL to a recording.",
    "record": "Keep what a process records in a file.",
    "report": "Locks, wake-ups and waits of a process or a recording.",
    "run": "Run a program and report what its threads waited for.",
    "top": "Where each thread's time goes, live or as text.",
    "watch": "What the kernel does with the threads of a process.",
}

EPILOG = """\b
Exit status:
  0  done
  1  done, and something is not as it should be (doctor)
  2  wrong arguments
  3  nothing to read, or it cannot be read
  4  what was watched has ended
"""


class Commands(Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(f"rouse.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        # From here on (see rouse/__init__.py) Ctrl-C raises an exception, so commands clean up.
        if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))


def version() -> str:
    """Return the version as pip or else meson installed it."""
    from importlib import metadata  # slow to import, and only --version needs it

    try:
        return metadata.version("rouse")
    except metadata.PackageNotFoundError:
        file = Path(__file__).parents[1] / "version"
        return file.read_text("ascii").strip() if file.exists() else "of a source tree"


def print_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if not asked or ctx.resilient_parsing:
        return
    click.echo(f"rouse {version()}")
    ctx.exit()


@click.group(
    cls=Commands,
    epilog=EPILOG,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=print_version,
    help="Show the version and exit.",
)
def cli() -> None:
    """Show what the threads of programs wait for, and why."""


def main() -> None:
    # The reader of our output may close it early: we end then, as other programs do.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    fill_closed()
    try:
        status = cli(prog_name="rouse", standalone_mode=False)
        with output():
            pass
        sys.exit(status)
    except click.ClickException as error:
        message = error.format_message().rstrip(".")
        ctx = getattr(error, "ctx", None)
        print(
            f"rouse: {message}; see {ctx.command_path if ctx else 'rouse'} --help", file=sys.stderr
        )
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        end_interrupted()
    except RouseError as error:
        print(f"rouse: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.status)


def end_interrupted() -> NoReturn:
    """End by the signal itself, so that a shell ends its script too."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)
    sys.exit(128 + signal.SIGINT)  # it is blocked


def printable(text: str) -> str:
    """Return text from a file without characters that would control a terminal."""
    return "".join(c if c.isprintable() else "?" for c in text)


if __name__ == "__main__":
    main()
