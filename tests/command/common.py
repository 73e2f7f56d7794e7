# SPDX-License-Identifier: MIT
"""What the tests of the command share: its Python, where it and the programs are, and runs of it.

The tests are started with whatever Python meson found. The command's packages are in build/venv;
import this module first, and the test goes on in there, or says that it is not run.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

SOURCE = Path(os.environ.get("ROUSE_SOURCE", Path(__file__).resolve().parents[2]))
BUILD = Path(os.environ.get("ROUSE_BUILD", SOURCE / "build" / "check"))
VENV = SOURCE / "build" / "venv"
PYTHON = VENV / "bin" / "python"
NEEDED = (
    *("click", "duckdb", "elftools", "google", "ibis", "numpy"),
    *("plotly", "pyarrow", "rich", "textual"),
)


def missing() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def enter_venv() -> None:
    """Have this process run with the command's packages."""
    if missing() and PYTHON.exists() and Path(sys.prefix).resolve() != VENV.resolve():
        os.execv(PYTHON, [str(PYTHON), *sys.argv])
    if missing():
        print(f"not run: Python packages are not in build/venv: {', '.join(missing())}")
        sys.exit(77)


enter_venv()
sys.path.insert(0, str(SOURCE))


def rouse(*words: str | Path, timeout: float = 60, **more: str) -> subprocess.CompletedProcess[str]:
    """A run of the command. more: environment variables."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **more}
    return subprocess.run(
        [sys.executable, "-m", "rouse", *(str(word) for word in words)],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environment,
    )
