#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Count the writes to shared lines of each basic operation, for docs/shared-writes.md.

Requires ROUSE_TEST: tools/configure.sh debug && ninja -C build/debug bench/rouse-bench.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tables import render, writes

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "shared-writes.md"
BLOCK = re.compile(r"(<!-- counts -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "debug")
    parser.add_argument("--write", action="store_true", help=f"into docs/{PAGE.name}")
    options = parser.parse_args()
    try:
        table = render.text(writes.table_of(writes.measure(options.build)))
    except (OSError, writes.NotCountedError) as reason:
        print(f"writes.py: {reason}", file=sys.stderr)
        return 1
    table = table.split("\n", 2)[2].strip()  # the page has a heading
    print(table)
    if options.write:
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BLOCK.sub(lambda m: f"{m[1]}\n{table}\n\n{m[2]}", page), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
