#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Write the map of the tree in DESIGN.md: one line per file, from the first sentence of its head.

    tools/map.py            rewrite the map between its two markers
    tools/map.py --check    change nothing; status 1 if the map is old, or a file has no head

The head of a C file is its first comment ("name.c - what it does"), that of a Python file its
docstring, that of a shell script its first comment. A header is listed only if it has no source
file of the same name. To change a line of the map, change the head of the file.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "DESIGN.md"
FOLDERS = ("src", "preload", "kernel", "serve", "rouse")
BEGIN, END = "<!-- map: begin (tools/map.py) -->", "<!-- map: end -->"
# Characters of a description. A longer one is cut at a colon, or else at a comma.
WIDTH = 72
SHORTEST = {": ": 12, ", ": 24}  # a shorter clause is not clear by itself


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", *FOLDERS],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return [path for name in listed.split("\0") if name and (path := Path(name))]


def listed(paths: list[Path]) -> list[Path]:
    """The files of the map: sources, and headers without a source of their name."""
    sources = {path for path in paths if path.suffix in {".c", ".py", ".sh"}}
    stems = {path.with_suffix("") for path in sources}
    headers = {path for path in paths if path.suffix == ".h" and path.with_suffix("") not in stems}
    return sorted(
        path
        for path in sources | headers
        if path.name not in {"__init__.py", "__main__.py"} and (ROOT / path).is_file()
    )


def head(path: Path) -> str:
    """The first sentence of the comment or docstring at the head of a file."""
    text = (ROOT / path).read_text(encoding="utf-8")
    text = re.sub(r"\A(#!.*\n)?\s*(/\*|//|#)\s*SPDX.*\n", "", text)
    if path.suffix == ".py":
        found = re.match(r'\s*(?:#.*\n)*\s*"""(.*?)"""', text, re.DOTALL)
    elif path.suffix == ".sh":
        found = re.match(r"((?:#.*\n)+)", text)
    else:
        found = re.match(r"\s*(?:#.*\n|\s)*/\*(.*?)\*/|\s*((?://.*\n)+)", text, re.DOTALL)
    if not found:
        return ""
    comment = next(group for group in found.groups() if group)
    lines = [re.sub(r"^\s*(\*|//|#) ?", "", line).strip() for line in comment.split("\n")]
    paragraph = " ".join("\n".join(lines).strip().split("\n\n", 1)[0].split())
    named = re.match(r"[`\w./ -]*?\s+-\s+(.*)", paragraph)
    sentence = (named[1] if named else paragraph).strip()
    other = re.search(r"\b[Ss]ee (\w+\.h)\b", sentence)
    if other and path.suffix == ".c" and (ROOT / path.parent / other[1]).is_file():
        return head(path.parent / other[1])
    return sentence


def short(text: str) -> str:
    """The first sentence of a head, or its first clause if the sentence is long."""
    text = re.split(r"(?<=[^.])\.(?:\s|$)", text, maxsplit=1)[0]
    text = re.split(r"; ", text, maxsplit=1)[0]
    if len(text) <= WIDTH:
        return text
    for mark, least in SHORTEST.items():
        clause, found, _ = text.partition(mark)
        if found and len(clause) >= least:
            return clause
    return text


def tree_map() -> tuple[str, list[str]]:
    """The map as Markdown, and the files that have no head."""
    folders: dict[str, list[tuple[str, str]]] = {}
    missing: list[str] = []
    for path in listed(tracked()):
        description = short(head(path))
        if not description:
            missing.append(path.as_posix())
        folders.setdefault(path.parent.as_posix(), []).append((path.name, description))
    order = sorted(folders, key=lambda name: (FOLDERS.index(name.split("/")[0]), name))
    lines: list[str] = []
    for folder in order:
        rows = folders[folder]
        width = max(len(name) for name, _ in rows)
        lines += [f"**{folder}/**", "", "```"]
        lines += [f"{name:<{width}}  {text}".rstrip() for name, text in rows]
        lines += ["```", ""]
    return "\n".join(lines), missing


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="only say whether the map is current")
    options = parser.parse_args()

    page = PAGE.read_text(encoding="utf-8")
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        print(f"map: DESIGN.md has no lines {BEGIN} and {END}", file=sys.stderr)
        return 1
    text, missing = tree_map()
    for name in missing:
        print(f"map: {name} has no comment at its head that says what it is", file=sys.stderr)
    wanted = f"{before}{BEGIN}\n\n{text}\n{END}{after}"
    if options.check:
        if wanted != page:
            print("map: DESIGN.md is not current; run tools/map.py", file=sys.stderr)
        return int(wanted != page or bool(missing))
    PAGE.write_text(wanted, encoding="utf-8")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
