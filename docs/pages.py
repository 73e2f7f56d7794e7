#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Make the man pages and the HTML pages from the Markdown files, which are the only source.

lowdown converts the text. This script shifts headings, finds the names that share a page, turns
links between Markdown files into links between pages, and adds the frame. The site has the same
folders as the repository, so a link works in both: README.md becomes index.html, docs/man/x.3.md
becomes docs/man/x.3.html, and a source file that a page links to is copied.
"""

from __future__ import annotations

import argparse
import html
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

NAVIGATION = {
    "README.md": "rouse",
    "docs/man/index.md": "Manual",
    "docs/reading-waits.md": "Reading waits",
    "docs/findings/index.md": "Findings",
    "docs/investigations.md": "Investigations",
    "docs/porting.md": "Porting",
    "docs/libraries.md": "Libraries",
    "docs/benchmarks.md": "Benchmarks",
    "DESIGN.md": "Design",
    "HACKING.md": "Hacking",
    "docs/glossary.md": "Glossary",
}
MANUAL = "docs/man/index.md"  # generated from the pages' names; no such file exists
SECTIONS = {"1": "Commands", "3": "Library calls", "7": "Overviews"}
LOWDOWN = ("--parse-no-intraemph", "--parse-no-metadata", "--out-no-smarty")

FRAME = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="{style}">
</head>
<body>
<nav>{navigation}</nav>
<main>
{body}</main>
</body>
</html>
"""


def lines_outside_code(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether it is outside fenced code."""
    outside = True
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        yield line, outside and not fence
        outside ^= fence


def part(text: str, heading: str) -> str:
    """Return the text under a heading of the second level."""
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    return found[1].strip() if found else ""


def title_of(text: str) -> str:
    return text.split("\n", 1)[0].removeprefix("# ").strip()


def names_of(page: str) -> list[str]:
    """Return the names of a man page, its own first."""
    return [name.strip() for name in part(page, "Name").split(" - ", 1)[0].split(",")]


def summary_of(page: str) -> str:
    return part(page, "Name").split(" - ", 1)[1]


class Site:
    def __init__(self, root: Path, lowdown: str, version: str) -> None:
        self.root = root
        self.lowdown = lowdown
        self.version = version
        self.sources = sorted([*root.glob("*.md"), *root.glob("docs/**/*.md")])
        self.texts = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for path in self.sources
        }
        self.manual = {name: text for name, text in self.texts.items() if "docs/man/" in name}
        self.page_of = {
            alias: name for name, text in self.manual.items() for alias in names_of(text)
        }
        self.texts[MANUAL] = self.manual_index()
        self.copied: set[str] = set()

    def convert(self, text: str, *options: str) -> str:
        command = [self.lowdown, *LOWDOWN, *options]
        run = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout

    def manual_index(self) -> str:
        lines = ["# Manual"]
        for section, heading in sorted(SECTIONS.items(), reverse=True):
            lines += ["", f"## {heading}", "", "| Page | |", "| --- | --- |"]
            for name, text in self.manual.items():
                if name.endswith(f".{section}.md"):
                    link = f"[{title_of(text)}]({posixpath.basename(name)})"
                    lines.append(f"| {link} | {summary_of(text)} |")
        return "\n".join(lines) + "\n"

    # Man pages

    def man_page(self, name: str) -> str:
        text = self.manual[name]
        title, section = title_of(text).removesuffix(")").split("(")
        shifted: list[str] = []
        for line, outside in lines_outside_code(text.split("\n", 1)[1]):
            heading = outside and re.match(r"#(#+) (.*)", line)
            if heading:
                upper = len(heading[1]) == 1
                line = f"{heading[1]} {heading[2].upper() if upper else heading[2]}"
            shifted.append(line)
        meta = {
            "title": title.upper(),
            "section": section,
            "date": "",
            "source": f"rouse {self.version}",
            "volume": "rouse manual",
        }
        options = [option for pair in meta.items() for option in ("-M", "=".join(pair))]
        roff = self.convert("\n".join(shifted), "-s", "-tman", "--nroff-nolinks", *options)
        # Terminals have no typewriter font; use bold instead.
        return roff.replace("\\fC", "\\fB")

    def write_man(self, out: Path) -> None:
        for name, text in self.manual.items():
            file = posixpath.basename(name).removesuffix(".md")
            section = file[-1]
            folder = out / f"man{section}"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(self.man_page(name), encoding="utf-8")
            for alias in names_of(text)[1:]:
                (folder / f"{alias}.{section}").write_text(f".so man{section}/{file}\n")

    # HTML

    def html_name(self, name: str) -> str:
        return "index.html" if name == "README.md" else name.removesuffix(".md") + ".html"

    def link(self, page: str, target: str) -> str:
        """Return the target of a page's link in the site."""
        path, mark, fragment = target.partition("#")
        if not path or re.match(r"[a-z]+:", target):
            return target
        folder = posixpath.dirname(page)
        name = posixpath.normpath(posixpath.join(folder, path))
        if name in self.texts:
            name = self.html_name(name)
        elif (self.root / name).is_file():
            self.copied.add(name)
        return posixpath.relpath(name, folder or ".") + mark + fragment

    def link_call(self, page: str, call: re.Match[str]) -> str:
        """Turn a call that is named in the text into a link to its page."""
        name = self.page_of.get(call[1])
        if name is None or name == page:
            return call[0]
        folder = posixpath.dirname(page) or "."
        return f'<a href="{posixpath.relpath(self.html_name(name), folder)}">{call[0]}</a>'

    def html_page(self, page: str) -> str:
        body = self.convert(self.texts[page], "-thtml", "--html-no-owasp", "--html-no-num-ent")
        body = re.sub(
            r'(href|src)="([^"]*)"',
            lambda m: f'{m[1]}="{self.link(page, html.unescape(m[2]))}"',
            body,
        )
        body = re.sub(r"<code>(rouse_\w+)\(\)</code>", lambda m: self.link_call(page, m), body)
        folder = posixpath.dirname(page) or "."
        navigation = " ".join(
            f'<a href="{posixpath.relpath(self.html_name(name), folder)}">{label}</a>'
            for name, label in NAVIGATION.items()
            if name in self.texts
        )
        return FRAME.format(
            title=html.escape(title_of(self.texts[page])),
            style=posixpath.relpath("docs/style.css", folder),
            navigation=navigation,
            body=body,
        )

    def write_html(self, out: Path) -> None:
        for page in self.texts:
            file = out / self.html_name(page)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(self.html_page(page), encoding="utf-8")
        for name in sorted(self.copied | {"docs/style.css"}):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(self.root / name, out / name)


def write_depfile(path: Path, target: str, site: Site) -> None:
    """Write the files whose changes make the pages out of date; folders stand for new files."""
    folders = {source.parent for source in site.sources}
    inputs = [*site.sources, *folders, *(site.root / name for name in sorted(site.copied))]
    path.write_text(f"{target}: " + " ".join(os.fspath(name) for name in inputs) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--lowdown", default="lowdown")
    parser.add_argument("--version", required=True, help="version of rouse")
    parser.add_argument("--depfile", type=Path)
    parser.add_argument("--target", default="html", help="the depfile's target")
    parser.add_argument("root", type=Path, help="the repository")
    parser.add_argument("out", type=Path, help="folder for html, man1, man3, man7")
    options = parser.parse_args()

    site = Site(options.root.resolve(), options.lowdown, options.version)
    for folder in ("html", *(f"man{section}" for section in SECTIONS)):
        shutil.rmtree(options.out / folder, ignore_errors=True)
    site.write_man(options.out)
    site.write_html(options.out / "html")
    if options.depfile:
        write_depfile(options.depfile, options.target, site)
    return 0


if __name__ == "__main__":
    sys.exit(main())
