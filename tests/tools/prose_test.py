#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The list of phrases finds them in comments, and leaves plain sentences alone."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import prose


def found(text: str) -> list[str]:
    return [phrase for _, phrase, _ in prose.findings(text)]


class Prose(unittest.TestCase):
    def test_phrases_are_found_with_their_lines(self) -> None:
        text = "/* fine */\n/* The waiter is told of it, in vain. */\n"
        self.assertEqual([line for line, _, _ in prose.findings(text)], [2, 2])
        self.assertEqual(found(text), ["is told", "in vain"])

    def test_a_sentence_that_begins_with_what_or_who_is_found(self) -> None:
        for line in ("/* What a thread does. */", "# Who waits", "It ends. What follows is new."):
            self.assertEqual(len(found(line)), 1, line)
        self.assertEqual(found("## What does it cost?"), [])

    def test_plain_sentences_and_parts_of_words_are_left_alone(self) -> None:
        for line in ("/* The waiter is notified. */", "untold, recommended, amended", "forgotten"):
            self.assertEqual(found(line), [], line)

    def test_a_quotation_is_left_alone_where_it_says_so(self) -> None:
        self.assertEqual(found('"in vain"  # prose-ok'), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
