# SPDX-License-Identifier: MIT
"""Continue a script in build/venv, where `make check` installs a checkout's Python packages."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn


def enter(error: ImportError, extra: str) -> NoReturn:
    """Run the script again in build/venv, or end with one line on how to install what is missing.

    extra: the package with the extra that has it, such as rouse[lab].
    """
    venv = Path(__file__).resolve().parent.parent / "build" / "venv"
    python = str(venv / "bin" / "python")
    if Path(python).exists() and Path(sys.prefix).resolve() != venv.resolve():
        os.execv(python, [python, *sys.argv])
    sys.exit(
        f"{Path(sys.argv[0]).name}: a Python package is missing ({error});"
        f" install it: pip install '{extra}', or tools/setup.sh check in a checkout"
    )
