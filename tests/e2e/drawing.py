# SPDX-License-Identifier: MIT
"""Whether bench/plots.py can draw here. It enters build/venv if this Python has no matplotlib."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))


def reason_not_to() -> str:
    packages = (SOURCE / "build" / "venv").glob("lib/*/site-packages/matplotlib")
    if any(packages) or importlib.util.find_spec("matplotlib"):
        return ""
    return "Python packages are not in build/venv: matplotlib"
