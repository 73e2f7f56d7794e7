#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Print the Python packages that pyproject.toml names, or copy them from this environment.

`make install-tool` copies the packages of the command from build/venv, and needs no network for it.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import tomllib
from importlib import metadata
from pathlib import Path

PROGRAMS = frozenset(("py-spy",))  # that the command starts
LEFT_OUT = frozenset(("..", "include", "tests"))
ROOT = Path(__file__).resolve().parent.parent


# Each includes the one before it, except the last.
SETS = ("command", "check", "check-all", "dist")


def named(wanted: str) -> list[str]:
    """Return the requirements of one of SETS."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    if wanted == "dist":
        return [str(requirement) for requirement in project["dependency-groups"]["dist"]]
    found = list(project["project"]["dependencies"])
    if wanted != "command":
        found += project["dependency-groups"]["check"]
        found += project["project"]["optional-dependencies"]["query"]
        found += project["project"]["optional-dependencies"]["lab"]
    if wanted == "check-all":
        found += project["project"]["optional-dependencies"]["spark"]
    return [str(requirement) for requirement in found]


def parsed(requirement: str) -> tuple[str, frozenset[str]]:
    """The name of a package in the spelling of the index, and its extras."""
    match = re.match(r"([\w.-]+)(?:\[([^]]*)\])?", requirement)
    assert match, requirement
    extras = re.split(r"[\s,]+", match[2]) if match[2] else []
    return re.sub(r"[-_.]+", "-", match[1]).lower(), frozenset(extras)


def is_wanted(requirement: str, extras: frozenset[str]) -> bool:
    of_extra = re.search(r"extra == ['\"]([^'\"]+)", requirement)
    return of_extra is None or of_extra[1] in extras


def closure(requirements: list[str]) -> dict[str, metadata.Distribution]:
    """The installed packages of these names, with all their dependencies."""
    found: dict[str, metadata.Distribution] = {}
    todo = [parsed(requirement) for requirement in requirements]
    done = set()
    while todo:
        name, extras = todo.pop()
        if (name, extras) in done:
            continue
        done.add((name, extras))
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another system
        todo += [parsed(r) for r in found[name].requires or [] if is_wanted(r, extras)]
    return found


def copy(folder: Path) -> None:
    for distribution in closure(named("command")).values():
        for file in distribution.files or []:
            # Scripts lie outside the folder. Python makes compiled files again.
            target = folder / "bin" / file.name if file.name in PROGRAMS else folder / file
            if file.suffix == ".pyc" or not LEFT_OUT.isdisjoint(target.parts):
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), target)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--names", choices=SETS, help="print those of the set")
    parser.add_argument("--copy", type=Path, metavar="FOLDER", help="put the command's there")
    options = parser.parse_args()
    if options.names:
        print(*named(options.names))
    if options.copy:
        shutil.rmtree(options.copy, ignore_errors=True)
        copy(options.copy)
    return 0


if __name__ == "__main__":
    sys.exit(main())
