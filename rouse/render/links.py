# SPDX-License-Identifier: MIT
"""Links from places in a report, such as `serve.c:42`, to their source files.

Names of files come from recordings, which may be hostile. They are encoded, so that none can end a
link or begin another one, and a name that stands for two files has no link.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from urllib.parse import quote

from rouse.query.specs import Row

FILE = "file://{file}"
PLACE = re.compile(r"(?<![\w./+-])([\w+-][\w.+-]*):(\d+)(?!\w)")
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:[!#-;=?-~]+", re.IGNORECASE)  # no blank, quote, < and >
RUNS_CODE = ("javascript:", "data:", "vbscript:")
LONGEST = 4096  # of a path


def wrong_with(template: str) -> str:
    """Return what is wrong with a template of links. Empty: nothing."""
    if not SCHEME.fullmatch(template) or template.lower().startswith(RUNS_CODE):
        return "it begins with no scheme, such as vscode:, or has a character that must be encoded"
    if "{file}" not in template:
        return "{file} is missing, which stands for the path; {line} stands for the line"
    return ""


class Links:
    """The links of the places in a text."""

    def __init__(self, sites: Iterable[Row] = (), template: str = FILE) -> None:
        """sites: rows with the path of a file and a line. template: passes wrong_with()."""
        found: dict[str, set[tuple[str, int]]] = {}
        for row in sites:
            path, line = row["file"] or "", row["line"] or 0
            if path.startswith("/") and len(path) <= LONGEST and line > 0:
                found.setdefault(f"{path.rpartition('/')[2]}:{line}", set()).add((path, line))
        self.uris = {
            place: template.replace("{file}", quote(path)).replace("{line}", str(line))
            for place, named in found.items()
            if len(named) == 1
            for path, line in named
        }

    def of(self, text: str) -> Iterator[tuple[int, int, str]]:
        """Yield where the places in a text begin and end, each with its link."""
        for match in PLACE.finditer(text):
            if uri := self.uris.get(match[0]):
                yield match.start(), match.end(), uri


NONE = Links()
