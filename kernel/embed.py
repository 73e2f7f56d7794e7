#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""embed.py NAME FILE HEADER - the bytes of FILE as an array NAME of C, in HEADER."""

from __future__ import annotations

import sys
from pathlib import Path

name, source, target = sys.argv[1:]
numbers = [str(byte) for byte in Path(source).read_bytes()]
lines = (",".join(numbers[i : i + 32]) for i in range(0, len(numbers), 32))
text = f"/* Made from {Path(source).name}. */\nstatic const unsigned char {name}[] = {{\n"
Path(target).write_text(text + ",\n".join(lines) + "\n};\n", encoding="ascii")
