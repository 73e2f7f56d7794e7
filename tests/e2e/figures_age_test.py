#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Pages of figures are not older than the hot path that they measure."""

from __future__ import annotations

import re
import subprocess
import sys
import unittest
from dataclasses import dataclass

from installed import SOURCE

SHORT = 7  # digits of a commit
COMMIT = re.compile(r"^\| rouse +\| .*commit ([0-9a-f]{7,40})(-dirty)? \|$", re.MULTILINE)


@dataclass(frozen=True)
class Page:
    name: str
    paths: tuple[str, ...]  # what it measures
    program: str  # measures again


STUDIES = (("src", "bench/herd"), "bench/studies.py")
PAGES = (
    Page("porting.md", ("src", "examples/ports"), "bench/ports.py --write"),
    Page("benchmarks.md", ("src", "serve"), "bench/run.sh --write"),
    Page("studies/e1-select.md", *STUDIES),
    Page("studies/e3-ticks.md", *STUDIES),
)


# Commits below these paths after which the figures hold, or are worse than today's, and how
# that is known.
ELSEWHERE = {
    "8d0d031": "polls before a worker sleeps; in pairs of old and new only rouse_poll differs",
    "f60d99a": "the same: when it does so",
    "5ee6464": "takes the two back",
    "91be7d1": "removal of workers; no operation that the pages measure",
    "7ad8eb7": "the same; an idle worker loads one more word",
    "428e0d5": "one comparison per frame of a call stack that was not met before",
    "385c65d": "the order of two loads at the first call on a descriptor; no further system call",
    "b7f6045": "256 time stamps at the first looks and every second; nothing per operation",
    "c179614": "one operand of a division at a look; the instructions per operation are the same",
    "357dc64": "a mutex takes fewer time stamps; benchmarks.md has the slower waits",
    "319aa4d": "ends of kernel threads; what a user thread does at its end is the same",
    "b8dbc92": "rouse-serve at its start, before the first connection",
    "be95ac0": "spare workers; thousands of connections wait shorter than the pages say",
    "72056a2": "buffers beyond the first 4,096 of a ring; the same",
    "7274c25": "one condition of the monitor, which looks every 10 ms",
    "f6cd2a5": "variables that are initialised before a system call, and copies of short strings",
    "c11cd2b": "a comment",
    "02648fe": "a switch, a creation and an end of a recorded thread are as fast or faster",
    "0d55da2": "one byte more in a line that a wait writes, and one store at a thread's end",
    "45a21f0": "a cold thread wakes up faster; no page but benchmarks.md, which has it, has many",
    "89b2450": "changes of the mode",
    "f19ced5": "a comment",
    "b68f831": "sends with a deadline that has passed; the others, and select, are as before",
    "ff7a902": "an attempt to send that fails, and changes of the mode; benchmarks.md has neither",
    "89d096f": "the same, and a fork",
    "408fb90": "a comment",
    "2811cbd": "the place of fields in a thread's record; an operation stores as many words",
}


def git(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["git", "-C", str(SOURCE), *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def later(page: Page, commit: str) -> list[str]:
    """The commits that may have changed what the page measures, after the one that it measured."""
    done = git("log", f"--abbrev={SHORT}", "--format=%h %s", f"{commit}..HEAD", "--", *page.paths)
    if done.returncode:
        raise AssertionError(f"{page.name} is of commit {commit}: {done.stderr.strip()}")
    return [line for line in done.stdout.splitlines() if line[:SHORT] not in ELSEWHERE]


class Age(unittest.TestCase):
    def test_what_is_measured_has_not_changed_since(self) -> None:
        for page in PAGES:
            with self.subTest(page=page.name):
                text = (SOURCE / "docs" / page.name).read_text("utf-8")
                found = COMMIT.search(text)
                assert found, f"docs/{page.name} names no commit"
                newer = later(page, found[1])
                if newer:
                    said = f"docs/{page.name} is older than {len(newer)} commits: {newer[0]}"
                    self.fail(f"{said}; {page.program} measures again")

    def test_each_commit_that_is_left_out_is_newer_than_a_page(self) -> None:
        texts = [(SOURCE / "docs" / page.name).read_text("utf-8") for page in PAGES]
        measured = [found[1] for text in texts if (found := COMMIT.search(text))]
        for commit in ELSEWHERE:
            older = [git("merge-base", "--is-ancestor", commit, each) for each in measured]
            self.assertTrue(any(done.returncode == 1 for done in older), commit)

    def test_the_paths_exist_and_an_older_page_fails(self) -> None:
        root = git("rev-list", "--max-parents=0", "HEAD").stdout.split()[0]
        for page in PAGES:
            self.assertTrue(later(page, root), page.name)
            for path in page.paths:
                self.assertTrue(git("ls-files", f"{path}*").stdout, path)


if __name__ == "__main__":
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        print("not run: this tree has no history")
        sys.exit(77)
    unittest.main(verbosity=2)
