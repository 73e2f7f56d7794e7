#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The manual pages list every option and exit status, and the help fits a terminal."""

from __future__ import annotations

import importlib
import re
import unittest

from common import SOURCE, rouse

import click

from rouse import errors
from rouse.cli import main
from rouse.cli.commands import Command

OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][a-z-]*")
PAGES = SOURCE / "docs/man"


def page_of(name: str) -> str:
    return (PAGES / f"{name}.1.md").read_text(encoding="utf-8")


def part(text: str, heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


class Manual(unittest.TestCase):
    def test_every_command_is_in_the_overview_and_loads(self) -> None:
        overview = part(page_of("rouse"), "Description")
        output = rouse("--help").stdout
        for name in main.COMMANDS:
            self.assertIn(f"**rouse {name}**", overview)
            self.assertRegex(output, rf"(?m)^  {name} ")
            self.assertIsInstance(importlib.import_module(f"rouse.cli.{name}").command, Command)

    def test_the_options_of_a_command_are_on_its_page(self) -> None:
        for name in main.COMMANDS:
            with self.subTest(command=name):
                command = importlib.import_module(f"rouse.cli.{name}").command
                offered = {"-h", "--help"}
                group = command.commands.values() if isinstance(command, click.Group) else ()
                for parameter in (p for one in (command, *group) for p in one.params):
                    if isinstance(parameter, click.Option) and not parameter.hidden:
                        offered.update([*parameter.opts, *parameter.secondary_opts])
                page = part(page_of(f"rouse-{name}"), "Options")
                terms = " ".join(re.findall(r"^\*\*-.*$", page, re.MULTILINE))
                self.assertEqual(set(OPTION.findall(terms)), offered)

    def test_every_status_is_reported(self) -> None:
        page = part(page_of("rouse"), "Exit status")
        output = {int(number) for number in re.findall(r"^(\d)$", page, re.MULTILINE)}
        named = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
        self.assertEqual(output, named | {0, 2})

    def test_help_fits_eighty_columns(self) -> None:
        for words in ([], *([name] for name in main.COMMANDS)):
            done = rouse(*words, "--help", COLUMNS="80")
            self.assertEqual(done.returncode, 0)
            long = [line for line in done.stdout.splitlines() if len(line) > 80]
            self.assertEqual(long, [], words)

    def test_an_unknown_command_is_one_line(self) -> None:
        done = rouse("nosuch")
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (2, "", 1))


if __name__ == "__main__":
    unittest.main(verbosity=2)
