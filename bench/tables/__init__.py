# SPDX-License-Identifier: MIT
"""The tables of bench/run.py: one module per kind of table, and one that renders them."""

import sys
from pathlib import Path

# Some of them share modules with rouse lab.
sys.path.append(str(Path(__file__).resolve().parents[2]))
