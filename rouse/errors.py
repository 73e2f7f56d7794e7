# SPDX-License-Identifier: MIT
"""What goes wrong in a way that a user can do something about."""

from __future__ import annotations

# What the command ends with. Click itself ends with 2 for wrong arguments.
EXIT_FINDINGS = 1  # what was looked at is not as it should be
EXIT_NOTHING = 3  # there is nothing to read, or it cannot be read
EXIT_ENDED = 4  # what was watched ended meanwhile


class RouseError(Exception):
    """Printed as one line, `rouse: what: where: what to do`; the process ends with `status`."""

    def __init__(self, what: str, remedy: str = "", status: int = EXIT_NOTHING) -> None:
        super().__init__(f"{what}; {remedy}" if remedy else what)
        self.what = what
        self.remedy = remedy
        self.status = status
