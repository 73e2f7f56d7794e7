#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compare the two forms of the programs in examples/ports, for docs/porting.md.

Without options, it measures and prints the tables. --write also writes them into the page, and
--diffs writes the changed lines of the programs without measuring. Build the programs first:
tools/configure.sh check && ninja -C build/check ports
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tables import machine, ports, render

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "porting.md"
SOURCE = ROOT / "examples" / "ports"
PROGRAMS = ("kv", "words", "forward")
BLOCK = re.compile(r"(<!-- (diff|figures): (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def filled(page: str, kind: str, blocks: Mapping[str, str]) -> str:
    """The page with the text of all blocks of a kind replaced."""

    def replaced(found: re.Match[str]) -> str:
        if found[2] != kind:
            return found[0]
        return f"{found[1]}\n{blocks[found[3]]}\n\n{found[4]}"

    return BLOCK.sub(replaced, page)


def with_differences(page: str) -> str:
    return filled(page, "diff", {name: ports.difference(SOURCE, name) for name in PROGRAMS})


def without_title(table: render.Table) -> str:
    return render.text(table).split("\n", 2)[2].strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "check")
    parser.add_argument("--quick", action="store_true", help="only a test, with unreliable figures")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    parser.add_argument("--diffs", action="store_true", help="write only the changed lines")
    machine.add_anyway(parser)
    options = parser.parse_args()
    load = machine.check_quiet(options.write, options.anyway)
    page = PAGE.read_text(encoding="utf-8")
    if options.diffs:
        PAGE.write_text(with_differences(page), encoding="utf-8")
        return 0
    version = re.search(r"version: '([^']+)'", (ROOT / "meson.build").read_text("utf-8"))
    scale = ports.QUICK if options.quick else ports.Scale()
    facts = machine.describe(ROOT, version[1] if version else "?", load)
    facts.append(("method", f"`bench/ports.py`, {scale.pairs} alternating pairs"))
    try:
        tables = ports.measure(options.build / "examples", scale)
    except FileNotFoundError as reason:
        print(f"ports.py: {reason}; build it: ninja -C {options.build} ports", file=sys.stderr)
        return 1
    tables["machine"] = render.pairs("Machine", facts)
    for table in tables.values():
        print(render.text(table))
    if options.write:
        blocks = {name: without_title(table) for name, table in tables.items()}
        PAGE.write_text(filled(page, "figures", blocks), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
