#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Check that every file includes only what its layer may see, and list the longest pieces.

Layers of src/, from the bottom: base < os < turns < ctx < core < sync < io, with obs beside them. A
folder includes itself and the folders to its left. Above core only the headers in CORE_PUBLIC are
visible. Core and above may use obs; obs reads base, os, ctx and core. Programs and examples see
only the public headers; bench/inside sees src/.

Folders of preload/, from the bottom: process < record < accept < hooks.

Packages of the command rouse/, from the bottom: the modules of rouse/ itself, then store < symbols
< sched < tables < query < model < render < top < run < cli. A module imports from its own package
and from those left of it, and no import leads back to where it began.

Sizes are advice: the ten longest files and functions are printed, and no length is an error.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

LONGEST = 10  # number of files and of functions that are listed
LAYERS = ("base", "os", "turns", "ctx", "core", "sync", "io")
# The headers of core/ that sync/ and io/ may include.
CORE_PUBLIC = (
    "blocking",
    "contest",
    "exec",
    "hold",
    "observe",
    "park",
    "poller",
    "turn",
    "waiter",
)
# The folders of src/ that each folder outside it may include, besides <rouse/...> and itself.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "include": (),
    "serve": (),
    "examples": (),
    "bench": (),
    "bench/inside": ("base", "os", "core", "io"),  # measures what the public headers do not show
    "preload": ("base", "os", "turns", "obs"),
    "kernel": ("base", "obs"),
}
# Folders of preload/, from the bottom. lifecycle.c, beside them, calls every module.
INTERPOSER = ("process", "record", "accept", "hooks")
PACKAGES = (
    "store",
    "symbols",
    "sched",
    "tables",
    "query",
    "model",
    "lab",
    "render",
    "top",
    "run",
    "cli",
)
FRONT_DOOR = "rouse.__main__"  # imports the command that it starts
MEASURED = (
    "include",
    "src",
    "serve",
    "bench",
    "preload",
    "kernel",
    "examples",
    "tests",
    "tools",
    "rouse",
    "demos",
)
C_SUFFIXES = (".c", ".h", ".cpp", ".hpp", ".S")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)
COMMENT_OR_TEXT = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.DOTALL
)


@dataclass(frozen=True)
class Finding:
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Function:
    line: int  # where its declaration begins
    lines: int  # of its body, including the braces


@dataclass(frozen=True, order=True)
class Size:
    lines: int
    place: str  # a path, with the line where a function begins


def blank(text: str) -> str:
    """As many lines as the text has, all of them blank."""
    return re.sub(r"[^\n]", " ", text)


def may_include(layer: str, header: str) -> bool:
    """Whether a file of src/<layer>/ may include "header", a path from src/."""
    folder = header.split("/", 1)[0]
    if folder == layer:
        return True
    if layer == "obs":
        return folder in ("base", "os", "ctx", "core")
    rank = LAYERS.index(layer)
    core = LAYERS.index("core")
    if folder == "obs":
        return rank >= core
    if folder not in LAYERS or LAYERS.index(folder) > rank:
        return False
    return folder != "core" or header in {f"core/{name}.h" for name in CORE_PUBLIC}


def include_error(root: Path, path: Path, quote: str, header: str) -> str | None:
    """The error in an #include of path (relative to root), or None."""
    if quote == "<" or header.startswith("rouse/"):
        return None
    if ".." in Path(header).parts:
        return f'"{header}" climbs out of its folder'
    top, *rest = path.parts
    if top == "src":
        layer = rest[0]
        if "/" not in header:
            return f'"{header}" names no layer: write it as a path from src/'
        if not may_include(layer, header):
            return f'{layer} must not see "{header}"'
        return None
    if top == "preload" and rest[0] in INTERPOSER:
        folder = header.split("/", 1)[0]
        if folder in INTERPOSER and INTERPOSER.index(folder) > INTERPOSER.index(rest[0]):
            return f'preload/{rest[0]} must not see "{header}"'
    own_folders = (root / path.parent, root / top)
    if any((folder / header).is_file() for folder in own_folders):
        return None
    if header.split("/", 1)[0] in OUTSIDE.get(path.parent.as_posix(), OUTSIDE[top]):
        return None
    return f'{top}/ sees <rouse/...>, the system and its own files only, not "{header}"'


def without_comments(text: str) -> str:
    """text with comments blanked. Strings are kept, because #include lines contain them."""
    return COMMENT_OR_TEXT.sub(lambda m: blank(m[0]) if m["comment"] else m[0], text)


def included(text: str) -> Iterator[tuple[int, str, str]]:
    code = without_comments(text)
    for match in INCLUDE.finditer(code):
        yield code.count("\n", 0, match.start()) + 1, match[1], match[2]


def without_directives(code: str) -> str:
    """code with directives blanked; of #if ... #else ... #endif only the first branch is kept."""
    kept: list[str] = []
    skipped: list[bool] = []  # for each open #if, whether its current branch is skipped
    continued = False
    for line in code.split("\n"):
        directive = re.match(r"\s*#\s*(\w+)", line)
        if directive and not continued:
            word = directive[1]
            if word.startswith("if"):
                skipped.append(False)
            elif word.startswith("el") and skipped:
                skipped[-1] = True
            elif word == "endif" and skipped:
                skipped.pop()
        in_directive = continued or directive is not None
        kept.append("" if in_directive or any(skipped) else line)
        continued = in_directive and line.endswith("\\")
    return "\n".join(kept)


def c_functions(text: str) -> Iterator[Function]:
    """The functions of a C file, found by their braces: an outermost body follows a `)`."""
    code = COMMENT_OR_TEXT.sub(lambda m: blank(m[0]), text)
    code = without_directives(code)
    # extern "C" and namespaces enclose functions: their braces do not count.
    open_braces: list[str] = []
    declared_at = 0  # where the current outermost declaration begins
    body_at = 0
    for at, char in enumerate(code):
        outermost = all(kind == "scope" for kind in open_braces)
        if char == "{":
            head = code[declared_at:at].strip()
            if outermost and re.search(r"^(extern|(inline )?namespace\b.*)$", head):
                open_braces.append("scope")
                declared_at = at + 1
                continue
            if outermost:
                plain = re.sub(r"__attribute__\s*\(\(.*?\)\)+", "", head, flags=re.DOTALL)
                is_function = "=" not in plain and re.search(r"\)[\s\w]*$", plain) is not None
                open_braces.append("function" if is_function else "other")
                body_at = at
            else:
                open_braces.append("inner")
        elif char == "}" and open_braces:
            kind = open_braces.pop()
            if kind == "function":
                declared = declared_at + len(code[declared_at:]) - len(code[declared_at:].lstrip())
                yield Function(code.count("\n", 0, declared) + 1, code.count("\n", body_at, at) + 1)
            if kind in ("function", "scope"):
                declared_at = at + 1
        elif char == ";" and outermost:
            declared_at = at + 1


def py_functions(text: str) -> Iterator[Function]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            yield Function(first, (node.end_lineno or node.lineno) - node.lineno + 1)


def file_sizes(path: Path, text: str) -> Iterator[Size]:
    """The length of each function in a file."""
    find: Callable[[str], Iterator[Function]] | None = None
    if path.suffix in (".c", ".h", ".cpp", ".hpp"):
        find = c_functions
    elif path.suffix == ".py":
        find = py_functions
    for function in find(text) if find else ():
        yield Size(function.lines, f"{path}:{function.line}")


def read(root: Path, path: Path) -> str:
    return (root / path).read_text(encoding="utf-8", errors="replace")


def file_findings(root: Path, path: Path) -> Iterator[Finding]:
    """The includes of one file that its layer does not allow."""
    text = read(root, path)
    top = path.parts[0]
    if path.suffix in C_SUFFIXES and (top == "src" or top in OUTSIDE):
        if top == "src" and (len(path.parts) < 3 or path.parts[1] not in (*LAYERS, "obs")):
            yield Finding(path, 1, f"lies outside the layers {' '.join(LAYERS)} and obs")
        else:
            for line, quote, header in included(text):
                error = include_error(root, path, quote, header)
                if error:
                    yield Finding(path, line, error)


def module_name(path: Path) -> str:
    """The dotted name of a Python file whose path is relative to the root."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_rank(module: str) -> int | None:
    """0 for the modules of rouse/ itself, then the place in PACKAGES; None: an unknown package."""
    parts = module.split(".")
    if parts[1:2] and parts[1] in PACKAGES:
        return PACKAGES.index(parts[1]) + 1
    return 0 if len(parts) <= 2 else None


def imported(text: str, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Lines and names of the modules that text imports, wherever the import stands."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names if name.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for name in node.names:
                inner = f"{node.module}.{name.name}"
                if inner in modules or node.module in modules:
                    yield node.lineno, inner if inner in modules else node.module


def import_findings(root: Path) -> Iterator[Finding]:
    """Imports inside rouse/ that run up the order of packages or lead back to where they began."""
    paths = {
        module_name(found.relative_to(root)): found.relative_to(root)
        for found in sorted((root / "rouse").rglob("*.py"))
    }
    imports = {
        module: list(imported((root / path).read_text(encoding="utf-8"), set(paths)))
        for module, path in paths.items()
    }
    for module, path in paths.items():
        rank = package_rank(module)
        if rank is None:
            yield Finding(path, 1, f"lies outside the packages {' '.join(PACKAGES)}")
            continue
        for line, other in imports[module] if module != FRONT_DOOR else ():
            if (package_rank(other) or 0) > rank:
                yield Finding(path, line, f"{module} must not import {other}: its package is above")
    for cycle in import_cycles(
        {module: [other for _, other in found] for module, found in imports.items()}
    ):
        yield Finding(paths[cycle[0]], 1, f"imports lead back: {' -> '.join([*cycle, cycle[0]])}")


def import_cycles(imports: dict[str, list[str]]) -> Iterator[list[str]]:
    """A depth-first search: an import of a module that is still being visited closes a cycle."""
    done: set[str] = set()
    trail: list[str] = []

    def visit(module: str) -> Iterator[list[str]]:
        trail.append(module)
        for other in dict.fromkeys(imports[module]):
            if other in trail:
                yield trail[trail.index(other) :]
            elif other not in done:
                yield from visit(other)
        done.add(trail.pop())

    for module in imports:
        if module not in done:
            yield from visit(module)


def tree_files(root: Path) -> Iterator[Path]:
    for folder in MEASURED:
        for found in sorted((root / folder).rglob("*")):
            if found.suffix in (*C_SUFFIXES, ".py") and found.is_file():
                yield found.relative_to(root)


def print_longest(root: Path, paths: list[Path]) -> None:
    texts = {path: read(root, path) for path in paths}
    files = [Size(text.count("\n"), str(path)) for path, text in texts.items()]
    functions = [size for path, text in texts.items() for size in file_sizes(path, text)]
    for title, sizes in (("files", files), ("functions", functions)):
        print(f"The longest {title}, in lines:")
        for size in sorted(sizes, reverse=True)[:LONGEST]:
            print(f"  {size.lines:5}  {size.place}")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent
    )
    root: Path = parser.parse_args().root
    paths = list(tree_files(root))
    findings = [finding for path in paths for finding in file_findings(root, path)]
    print_longest(root, paths)
    findings += import_findings(root)
    for finding in findings:
        print(finding)
    print(f"layers: {len(paths)} files, {len(findings)} findings")
    return 1 if findings or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
