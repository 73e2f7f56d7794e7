#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The documents name every call, constant, option and variable, and all their links work."""

from __future__ import annotations

import html.parser
import re
import sys
import unittest
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

from drawing import reason_not_to
from installed import BUILD, SOURCE, run

sys.path.insert(0, str(SOURCE / "docs"))
import pages

SITE = BUILD / "docs" / "html"
HEADERS = sorted((SOURCE / "include/rouse").glob("*.h"))
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
FUNCTION = re.compile(r"(?:^|(?<=[;}\n]))\s*([\w *]+?\b\**(rouse_\w+)\([^;{]*\));", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][a-z-]*")


def prototypes(code: str) -> dict[str, str]:
    """The functions declared in C code, each with its declaration on one line."""
    plain = re.sub(r"^\s*#.*(\\\n.*)*$", "", COMMENT.sub("", code), flags=re.MULTILINE)
    plain = re.sub(r"\b(struct|enum) \w+ \{.*?\};", "", plain, flags=re.DOTALL)
    return {match[2]: " ".join(match[1].split()) for match in FUNCTION.finditer(plain)}


def structures(code: str) -> dict[str, str]:
    """The structures and enumerations defined in C code, each on one line."""
    found = re.finditer(r"\b(?:struct|enum) (\w+) (\{.*?\});", COMMENT.sub("", code), re.DOTALL)
    return {match[1]: " ".join(match[2].split()) for match in found}


def manual() -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted((SOURCE / "docs/man").glob("*.md"))}


class Page(html.parser.HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name in ("href", "src"):
                self.links.append(value or "")
            elif name == "id":
                self.anchors.add(value or "")


class Example(unittest.TestCase):
    def test_lines_of_source_that_the_example_quotes_are_those_of_its_calls(self) -> None:
        text = (SOURCE / "docs/reading-waits.md").read_text(encoding="utf-8")
        quoted = {int(number) for number in re.findall(r"connection\.c:(\d+)", text)}
        source = (SOURCE / "serve/connection.c").read_text(encoding="utf-8")
        call = re.compile(r"rouse_mutex_(un)?lock\(&shared\)|return rouse_recv_until\(.*IN_SMALL")
        calls = {n for n, line in enumerate(source.splitlines(), 1) if call.search(line)}
        self.assertEqual(quoted, calls)


class Manual(unittest.TestCase):
    def test_every_public_call_has_a_page_with_its_prototype(self) -> None:
        declared: dict[str, str] = {}
        for header in HEADERS:
            declared |= prototypes(header.read_text(encoding="utf-8"))
        self.assertIn("rouse_thread_exit", declared)
        described: dict[str, str] = {}
        for text in manual().values():
            described |= prototypes(pages.part(text, "Synopsis"))
        self.assertEqual(described, declared)

    def test_every_public_call_is_shown_in_use(self) -> None:
        """Examples are programs of examples/, demos/ and serve/, and those on man pages."""
        shown = ""
        for folder in ("examples", "demos", "serve"):
            for path in sorted((SOURCE / folder).glob("*.c")):
                shown += COMMENT.sub("", path.read_text(encoding="utf-8"))
        for text in manual().values():
            rest = text.replace(pages.part(text, "Synopsis"), "")
            shown += "".join(re.findall(r"^```c$(.*?)^```$", rest, re.MULTILINE | re.DOTALL))
        used = set(re.findall(r"\b(rouse_\w+)\(", shown))
        declared: set[str] = set()
        for header in HEADERS:
            declared |= set(prototypes(header.read_text(encoding="utf-8")))
        self.assertEqual(sorted(declared - used), [])

    def test_a_structure_on_a_page_is_the_header_s(self) -> None:
        defined: dict[str, str] = {}
        for header in HEADERS:
            defined |= structures(header.read_text(encoding="utf-8"))
        described: dict[str, str] = {}
        for text in manual().values():
            described |= structures(pages.part(text, "Synopsis"))
        self.assertIn("rouse_wait_record", described)
        for name, definition in described.items():
            self.assertEqual(definition, defined.get(name), name)

    def test_a_page_is_found_under_each_of_its_calls(self) -> None:
        for name, text in manual().items():
            with self.subTest(page=name):
                title, *aliases = pages.names_of(text)
                self.assertEqual(f"{title}({name[-4]})", pages.title_of(text))
                self.assertEqual(name, f"{title}.{name[-4]}.md")
                calls = prototypes(pages.part(text, "Synopsis")) if name[-4] == "3" else {}
                self.assertEqual({title, *aliases}, {title, *calls})

    def test_man_finds_each_public_call(self) -> None:
        folder = BUILD / "docs"
        for header in HEADERS:
            for name, prototype in prototypes(header.read_text(encoding="utf-8")).items():
                with self.subTest(header=header.name, name=name):
                    page = (folder / "man3" / f"{name}.3").read_text(encoding="utf-8")
                    if page.startswith(".so "):
                        page = (folder / page.split()[1]).read_text(encoding="utf-8")
                    plain = re.sub(r"\\f.|\\&", "", page).replace("\\-", "-")
                    self.assertIn(prototype, " ".join(plain.split()))

    def test_every_public_constant_is_on_a_page(self) -> None:
        text = "\n".join(manual().values())
        for header in HEADERS:
            code = COMMENT.sub("", header.read_text(encoding="utf-8"))
            constants = set(re.findall(r"^#define (ROUSE_\w+)", code, re.MULTILINE))
            for body in re.findall(r"\benum \w+ \{(.*?)\}", code, re.DOTALL):
                constants.update(re.findall(r"ROUSE_\w+", body))
            for name in sorted(constants - {"ROUSE_NORETURN"}):
                if not name.endswith("_H"):
                    self.assertRegex(text, rf"\b{name}\b", header.name)

    def test_every_variable_that_the_code_reads_is_documented(self) -> None:
        literal = re.compile(r'"(ROUSE_[A-Z_]+)"')
        call = re.compile(r'(?:getenv\(|environ(?:\.get\(|\[))"(ROUSE_[A-Z_]+)"')
        shell = re.compile(r"\$\{?(ROUSE_[A-Z_]+)")
        read: set[str] = set()
        for folder in ("src", "serve", "preload", "kernel", "rouse", "bench", "demos", "examples"):
            for path in [*(SOURCE / folder).rglob("*.c"), *(SOURCE / folder).rglob("*.py")]:
                read.update(literal.findall(path.read_text(encoding="utf-8")))
        for path in [*(SOURCE / "tests").rglob("*.[ch]"), *(SOURCE / "tests").rglob("*.py")]:
            read.update(call.findall(path.read_text(encoding="utf-8")))
        for path in [*(SOURCE / "tools").glob("*.sh"), *(SOURCE / "bench").glob("*.sh")]:
            read.update(shell.findall(path.read_text(encoding="utf-8")))
        page = manual()["rouse-environment.7.md"]
        lines = re.findall(r"^`ROUSE_\w+`(?:, `ROUSE_\w+`)*$", page, re.MULTILINE)
        documented = set(re.findall(r"ROUSE_\w+", "\n".join(lines)))
        self.assertEqual(documented, read)

    def test_no_other_page_lists_the_variables(self) -> None:
        for name, text in manual().items():
            if name != "rouse-environment.7.md":
                self.assertNotRegex(pages.part(text, "Environment"), r"(?m)^`ROUSE_\w+`(,|$)", name)

    def test_the_options_of_the_programs_are_on_their_pages(self) -> None:
        for program in ("rouse-serve", "rouse-bench"):
            output = run(BUILD / program.removeprefix("rouse-") / program, "--help")
            usage = set(re.findall(r"^ {2,6}(?:(-\w),? ?)?(--[a-z-]+)?", output, re.MULTILINE))
            offered = {"--help", *(option for pair in usage for option in pair if option)}
            page = pages.part(manual()[f"{program}.1.md"], "Options")
            described = set(OPTION.findall(" ".join(re.findall(r"^\*\*-.*$", page, re.MULTILINE))))
            self.assertEqual(described, offered, program)

    def test_the_cases_of_the_benchmark_are_on_its_page(self) -> None:
        cases = {line.split()[0] for line in run(BUILD / "bench/rouse-bench", "list").splitlines()}
        page = manual()["rouse-bench.1.md"]
        self.assertEqual(set(re.findall(r"^\| \*\*(\w+)\*\*", page, re.MULTILINE)), cases)


class Sources(unittest.TestCase):
    """The Markdown files as they appear in a viewer of the repository."""

    LINK = re.compile(r"!?\[[^]]*\]\(([^)\s]+)\)")

    def slugs(self, path: Path) -> set[str]:
        """The anchors of a page's headings, as repository hosts generate them."""
        text = path.read_text(encoding="utf-8")
        heads = [line for line, outside in pages.lines_outside_code(text) if outside]
        heads = [line.lstrip("# ") for line in heads if re.match("#+ ", line)]
        return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}

    def test_links_to_pages_that_only_the_site_has_were_dead(self) -> None:
        dead: list[str] = []
        count = 0
        for path in sorted([*SOURCE.glob("*.md"), *SOURCE.glob("docs/**/*.md")]):
            text = path.read_text(encoding="utf-8")
            plain = "\n".join(line for line, outside in pages.lines_outside_code(text) if outside)
            for link in self.LINK.findall(re.sub(r"`[^`\n]*`", "", plain)):
                if re.match(r"[a-z]+:", link):
                    continue
                count += 1
                name, _, fragment = link.partition("#")
                target = path.parent / urllib.parse.unquote(name) if name else path
                is_page = target.suffix == ".md" and target.exists()
                if not target.exists() or (
                    fragment and is_page and fragment not in self.slugs(target)
                ):
                    dead.append(f"{path.relative_to(SOURCE)}: {link}")
        self.assertEqual(dead, [])
        self.assertGreater(count, 200)


class Site(unittest.TestCase):
    def each_link(self) -> Iterator[tuple[Path, str]]:
        for path in sorted(SITE.rglob("*.html")):
            for link in Page(path).links:
                if not re.match(r"[a-z]+:", link):
                    yield path, link

    def test_no_link_is_dead(self) -> None:
        dead: set[str] = set()
        count = 0
        for path, link in self.each_link():
            count += 1
            target, _, fragment = urllib.parse.unquote(link).partition("#")
            file = (path.parent / target).resolve() if target else path
            is_there = file.is_file() and SITE.resolve() in (file, *file.resolve().parents)
            if not is_there or (fragment and fragment not in Page(file).anchors):
                dead.add(f"{path.relative_to(SITE)}: {link}")
        self.assertGreater(count, 100)
        self.assertEqual(sorted(dead), [])

    def test_every_page_is_reached_from_the_first(self) -> None:
        reached: set[Path] = set()
        found = [(SITE / "index.html").resolve()]
        while found:
            path = found.pop()
            if path in reached or path.suffix != ".html" or not path.exists():
                continue
            reached.add(path)
            links = (link.partition("#")[0] for link in Page(path).links)
            found += [(path.parent / link).resolve() for link in links if link]
        self.assertEqual({path.resolve() for path in SITE.rglob("*.html")} - reached, set())

    def test_contributors_find_every_target_of_make(self) -> None:
        makefile = (SOURCE / "Makefile").read_text(encoding="utf-8")
        goals = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
        assert goals
        page = (SOURCE / "CONTRIBUTING.md").read_text(encoding="utf-8")
        for goal in set(goals[1].split()) - {"all", "setup"}:
            self.assertIn(f"`make {goal}`", page)

    @unittest.skipIf(reason_not_to(), reason_not_to())
    def test_the_chart_shows_the_figures_of_the_benchmarks(self) -> None:
        drawn = (SOURCE / "docs/pictures/threads.svg").read_text(encoding="utf-8")
        self.assertEqual(
            drawn, run(sys.executable, SOURCE / "bench/chart.py", "--to", "/dev/stdout")
        )


if __name__ == "__main__":
    unittest.main(verbosity=2)
