#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Completions of the three programs, in bash, zsh and fish."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from common import BUILD, COMMAND, SOURCE, here, rouse

FOLDER = SOURCE / "completions"
# The programs as a shell finds them; the command needs its Python.
PROGRAMS = {
    name: BUILD / name.removeprefix("rouse-") / name for name in ("rouse-serve", "rouse-bench")
}
SCRIPTS = {
    "bash": {"rouse": "rouse", "rouse-serve": "rouse-serve", "rouse-bench": "rouse-bench"},
    "zsh": {"rouse": "_rouse", "rouse-serve": "_rouse-serve", "rouse-bench": "_rouse-bench"},
    "fish": {
        "rouse": "rouse.fish",
        "rouse-serve": "rouse-serve.fish",
        "rouse-bench": "rouse-bench.fish",
    },
}
USAGE = re.compile(r"^ {2,6}(?:(-\w),? ?)?(--[a-z-]+)?", re.MULTILINE)

# An option in zsh's _arguments: its name, then [its description].
OPTION = re.compile(r"(--?[A-Za-z][a-z-]*)[+=]?\[")

# Bash does this when the key is pressed. compopt works only beneath a real key.
BASH = """
compopt() { :; }
source "$1"
function=$(complete -p "$2" | sed 's/.*-F \\([^ ]*\\).*/\\1/')
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
"$function" "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def offered(program: str) -> set[str]:
    """The options in the help of a program."""
    done = subprocess.run([PROGRAMS[program], "--help"], capture_output=True, text=True, check=True)
    return {"--help", *(option for pair in USAGE.findall(done.stdout) for option in pair if option)}


def cases() -> set[str]:
    done = subprocess.run(
        [PROGRAMS["rouse-bench"], "list"], capture_output=True, text=True, check=True
    )
    return {line.split()[0] for line in done.stdout.splitlines()}


class Case(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        for name, program in PROGRAMS.items():
            (self.folder / name).symlink_to(program)
        command = self.folder / "rouse"
        command.write_text(f'#!/bin/sh\nPYTHONPATH={SOURCE} exec {" ".join(COMMAND)} "$@"\n')
        command.chmod(0o755)
        (self.folder / "site").mkdir()
        (self.folder / "site/page.html").write_text("")
        path = f"{self.folder}:{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "HOME": str(self.folder)}

    def shell(self, name: str, *words: str | Path) -> str:
        if shutil.which(name) is None:
            print(f"not run: no {name} here")
            self.skipTest(f"no {name} here")
        done = subprocess.run(
            [name, *words],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            timeout=60,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), words)
        return done.stdout

    def bash(self, *words: str) -> set[str]:
        """Return the words that bash offers for the last of these words."""
        script = FOLDER / "bash" / SCRIPTS["bash"][words[0]]
        return set(self.shell("bash", "-c", BASH, "bash", script, *words).split())

    def fish(self, line: str) -> set[str]:
        """Return the words that fish offers at the end of a line."""
        for script in (FOLDER / "fish").glob("*.fish"):
            to = self.folder / ".config/fish/completions" / script.name
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(script, to)
        shown = self.shell("fish", "-c", f"complete -C '{line}'")
        return {text.split("\t")[0] for text in shown.splitlines()}

    def zsh_options(self, program: str) -> set[str]:
        """The options in what the function gives to zsh's own _arguments."""
        given = "_arguments() { print -rl -- $@ }; _describe() { : }; words=($2); source $1"
        script = FOLDER / "zsh" / SCRIPTS["zsh"][program]
        shown = self.shell("zsh", "-f", "-c", given, "zsh", script, program)
        specs = [re.sub(r"^\(.*?\)", "", line) for line in shown.splitlines()]
        return {found[1] for spec in specs if (found := OPTION.match(spec))}


class Options(Case):
    def test_bash_offers_the_options_of_the_help(self) -> None:
        for program in PROGRAMS:
            self.assertEqual(self.bash(program, "-"), offered(program), program)

    def test_zsh_offers_the_options_of_the_help(self) -> None:
        for program in PROGRAMS:
            self.assertEqual(self.zsh_options(program), offered(program), program)

    def test_fish_offers_the_options_of_the_help(self) -> None:
        for program in PROGRAMS:
            short = {option for option in self.fish(f"{program} -") if len(option) == 2}
            long = self.fish(f"{program} --")
            self.assertEqual(short | long, offered(program), program)


class Values(Case):
    def test_kinds_folders_and_cases(self) -> None:
        self.assertEqual(self.bash("rouse-serve", "--threads", ""), {"user", "kernel"})
        self.assertEqual(self.bash("rouse-serve", "--threads", "=", "k"), {"kernel"})
        self.assertEqual(self.bash("rouse-serve", "--threads", "="), {"user", "kernel"})
        self.assertEqual(self.bash("rouse-serve", "s"), {"site"})
        self.assertEqual(self.bash("rouse-serve", "--access-log", "site/"), {"site/page.html"})
        self.assertEqual(self.bash("rouse-serve", "--port", ""), set())
        self.assertEqual(self.bash("rouse-bench", ""), {"list", "libmicro", "compare", *cases()})
        self.assertEqual(self.bash("rouse-bench", "echo", "--socket", ""), {"unix", "tcp"})

    def test_kinds_folders_and_cases_in_fish(self) -> None:
        self.assertEqual(self.fish("rouse-serve --threads "), {"user", "kernel"})
        self.assertEqual(self.fish("rouse-serve s"), {"site/"})
        self.assertEqual(self.fish("rouse-bench "), {"list", "libmicro", "compare", *cases()})
        self.assertEqual(self.fish("rouse-bench echo --socket "), {"unix", "tcp"})


class Command(Case):
    def test_the_scripts_are_those_that_click_prints(self) -> None:
        for name, scripts in SCRIPTS.items():
            said = here(_ROUSE_COMPLETE=f"{name}_source").stdout
            self.assertEqual((FOLDER / name / scripts["rouse"]).read_text(encoding="utf-8"), said)

    def test_commands_options_and_files(self) -> None:
        self.assertEqual(self.bash("rouse", "re"), {"record", "report"})
        self.assertIn("--holds", self.bash("rouse", "run", "--"))
        self.assertEqual(self.fish("rouse re"), {"record", "report"})
        for words in ("rouse run -- ./", "rouse report si", "rouse run -o x"):
            said = rouse(
                _ROUSE_COMPLETE="bash_complete",
                COMP_WORDS=words,
                COMP_CWORD=str(len(words.split()) - 1),
            )
            self.assertEqual(said.stdout, f"file,{words.split()[-1]}\n", words)


if __name__ == "__main__":
    unittest.main(verbosity=2)
