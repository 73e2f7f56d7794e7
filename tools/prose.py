#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""List phrases that make our prose hard to read: in comments, docstrings, messages and pages.

    tools/prose.py [PATH...]     files or folders; default: everything that git tracks

Each line is PATH:LINE: the phrase, and the plain words to use instead. The list holds phrases that
have confused readers of this project and that no correct sentence here needs. A line that must
quote one carries the word prose-ok. Status 1 if anything was found.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = {
    ".c",
    ".h",
    ".cpp",
    ".hpp",
    ".py",
    ".md",
    ".sh",
    ".toml",
    ".build",
    ".pml",
    ".in",
    ".js",
    ".java",
    ".go",
}
OWN_FILES = {"tools/prose.py", "tests/tools/prose_test.py"}  # they quote the phrases

# A phrase as a regular expression, and what to write instead.
PHRASES = (
    (r"(?:is|are|was|were|be|been|being) told", "is reported, is notified, is shown"),
    (r"tells? of", "reports, shows"),
    (r"in vain", "spurious, or: lost race"),
    (r"for nothing", "spurious, or: without effect"),
    (r"to no purpose", "spurious"),
    (r"mend(?:s|ed|ing)?", "fix"),
    (r"data ?bases? of|data bases?", "database"),
    (r"but for", "except"),
    (r"as a rule", "usually"),
    (r"(?:own|no|nobody's) affair", "say who decides"),
    (r"(?:is|are|was|were|be|been) got", "is acquired, is received"),
    (r"has got|have got|had got", "has, has acquired"),
    (r"[Ww]hoever", "name the noun: the thread that, the caller that"),
    (r"[Tt]hat one's", "name the noun"),
    (
        r"\b(?:connection|thread|process|second|call|request|operation|worker|wait|lock|file|page|row|line), a (?:second|connection|thread|process)\b",  # noqa: E501
        "per connection, per second",
    ),
    (r"\b(?:requests|calls|switches|wake-ups|connections|times|samples) a second", "per second"),
    (r"a (?:thread|process) a connection", "one thread per connection"),
    (
        r"one (?:after|thread|file|entry|row|line) (?:the other's|a (?:thread|process|table|mutant|case|benchmark))",  # noqa: E501
        "one per",
    ),
    (r"(?<![\w-])wants? (?:the machine|a test|root|Java|the|to be)", "requires, needs"),
    (r"have (?:it|its) from", "receives it from"),
    (r"what it is to be", "say it plainly"),
)
SENTENCE_HEADS = re.compile(
    r"(?:^\s*(?:/?\*+|//|#|\"\"\")?\s*|[.;:] )(What|Who|Whom|Whose) (?!.*\?)[a-z]"
)
PATTERN = re.compile(
    "|".join(f"(?P<p{i}>(?<![\\w]){p}(?![\\w]))" for i, (p, _) in enumerate(PHRASES))
)


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name]


def files_of(arguments: list[str]) -> list[Path]:
    if not arguments:
        found = tracked()
    else:
        found = []
        for argument in arguments:
            path = Path(argument)
            found += sorted(path.rglob("*")) if path.is_dir() else [path]
    return [path for path in found if path.is_file() and path.suffix in SUFFIXES]


def findings(text: str) -> Iterator[tuple[int, str, str]]:
    for number, line in enumerate(text.split("\n"), 1):
        if "prose-ok" in line:
            continue
        for match in PATTERN.finditer(line):
            index = int((match.lastgroup or "p0")[1:])
            yield number, match[0], PHRASES[index][1]
        head = SENTENCE_HEADS.search(line)
        if head:
            yield number, f"a sentence that begins with {head[1]}", "name the noun first"


def main() -> int:
    count = 0
    for path in files_of(sys.argv[1:]):
        name = (
            path.resolve().relative_to(ROOT).as_posix()
            if path.resolve().is_relative_to(ROOT)
            else str(path)
        )
        if name in OWN_FILES:
            continue
        for line, phrase, better in findings(path.read_text(encoding="utf-8", errors="replace")):
            print(f"{name}:{line}: {phrase!r}: {better}")
            count += 1
    print(f"prose: {count} findings", file=sys.stderr)
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
