# SPDX-License-Identifier: MIT
"""Shared by the tests that must not run as root."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from common import PYTHON, SOURCE

NOBODY = 65534


def become_nobody(*files: Path) -> str:
    """Restart this test as the user nobody, who needs these files.

    Returns the reason if that is impossible.
    """
    test = Path(sys.argv[0]).resolve()
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    os.chdir("/")
    for path in (SOURCE, PYTHON, test, *files):
        if not os.access(path, os.R_OK):
            return f"{path} is not readable for everybody"
    # Execute it again, because the new user may not inspect a process that was root's.
    return os.execv(sys.executable, [sys.executable, str(test), *sys.argv[1:]])
