# SPDX-License-Identifier: MIT
"""Write files whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def replace(path: Path, parts: Iterable[bytes]) -> None:
    """Write a file beside it under a new name, and rename it at the end."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.part")
    with partial.open("xb") as file:
        try:
            file.writelines(parts)
            file.flush()
            partial.replace(path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
