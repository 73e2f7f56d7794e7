# SPDX-License-Identifier: MIT
"""rouse-serve and entity tags, as curl sees them."""

from __future__ import annotations

import os
import subprocess
import time
import unittest
from pathlib import Path

from serve_common import Server, get, main, tree

OLD_NS = 784111777 * 10**9 + 123456789


class Tags(unittest.TestCase):
    def setUp(self) -> None:
        self.root = self.enterContext(tree())
        self.path = self.root / "small.txt"
        os.utime(self.path, ns=(OLD_NS, OLD_NS))
        self.server = self.enterContext(Server(self.root))

    def curl(self, *arguments: str) -> str:
        url = f"http://127.0.0.1:{self.server.port}/small.txt"
        done = subprocess.run(
            ["curl", "-sS", "-o", "/dev/null", *arguments, url],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        return done.stdout

    def status(self, *headers: str) -> int:
        parts = [part for header in headers for part in ("-H", header)]
        return int(self.curl("-w", "%{http_code}", *parts))

    def tag(self) -> str:
        return self.server.ask("/small.txt").headers["etag"]

    def age(self, path: Path, by_s: float) -> None:
        at_ns = time.time_ns() - int(by_s * 1e9)
        os.utime(path, ns=(at_ns, at_ns))

    def test_the_tag_is_made_of_time_size_and_inode(self) -> None:
        inode = self.path.stat().st_ino
        self.assertEqual(self.tag(), f'"{OLD_NS:x}-{700:x}-{inode:x}"')

    def test_a_change_within_the_second_changes_the_tag(self) -> None:
        before = self.tag()
        os.utime(self.path, ns=(OLD_NS, OLD_NS + 1))
        self.assertNotEqual(self.tag(), before)

    def test_a_file_that_was_just_changed_has_a_weak_tag(self) -> None:
        for age_s, is_weak in ((0, True), (-3600, True), (3, False)):
            with self.subTest(age_s=age_s):
                self.age(self.path, age_s)
                tag = self.tag()
                self.assertEqual(tag.startswith('W/"'), is_weak)
                self.assertEqual(self.status(f"If-None-Match: {tag}"), 304)
                self.assertEqual(self.status(f"If-Match: {tag}"), 412 if is_weak else 200)
                part = self.status("Range: bytes=0-1", f"If-Range: {tag}")
                self.assertEqual(part, 200 if is_weak else 206)

    def test_curl_does_not_fetch_again_what_it_has(self) -> None:
        kept = self.root / "kept"
        both = ("--etag-save", str(kept), "--etag-compare", str(kept), "-w", "%{http_code}")
        kept.touch()
        self.assertEqual(self.curl(*both), "200")
        self.assertEqual(self.curl(*both), "304")
        os.utime(self.path, ns=(OLD_NS, OLD_NS + 5))
        self.assertEqual(self.curl(*both), "200")

    def test_lists_of_tags(self) -> None:
        tag = self.tag()
        for value, is_named, is_named_strongly in (
            (tag, True, True),
            (f"W/{tag}", True, False),
            (f'"x", {tag}', True, True),
            (f'"x",,{tag} ,"y"', True, True),
            (f'W/"a,b",\t{tag}', True, True),
            (f'"{tag[1:-1]}x"', False, False),
            (tag[1:-1], False, False),
            (tag[:-1], False, False),
            (tag.upper(), False, False),
            ('"', False, False),
            ('""', False, False),
            ("W/", False, False),
            (f"nonsense, {tag}", False, False),
        ):
            with self.subTest(value=value):
                none = self.status(f"If-None-Match: {value}")
                self.assertEqual(none, 304 if is_named else 200)
                match = self.status(f"If-Match: {value}")
                self.assertEqual(match, 200 if is_named_strongly else 412)

    def test_several_lines_of_a_header_are_one_list(self) -> None:
        tag = self.tag()
        for header, status, other in (("If-None-Match", 304, 200), ("If-Match", 200, 412)):
            for first, second in ((tag, '"x"'), ('"x"', tag), ('"x', tag), ("", tag)):
                lines = (f"{header}: {first}", "X-Other: 1", f"{header.lower()}: {second}")
                with self.subTest(lines=lines):
                    self.assertEqual(self.asked(lines), status)
            with self.subTest(header=header, named="by another header"):
                lines = (f'{header}: "x"', f"X-Other: {tag}", f'{header}: "y"')
                self.assertEqual(self.asked(lines), other)

    def asked(self, lines: tuple[str, ...]) -> int:
        """As raw bytes: curl sends no header without a value."""
        text = "".join(f"{line}\r\n" for line in lines).encode()
        with self.server.connect() as client:
            client.send(get("/small.txt", text + b"Content-Length: 1\r\n") + b"x")
            whole = client.reply().status
            for byte in get("/small.txt", text):
                client.send(bytes([byte]))
            self.assertEqual(client.reply().status, whole)
        return whole

    def test_if_range_requires_the_same_strong_tag(self) -> None:
        tag = self.tag()
        for value, status in ((tag, 206), (f"W/{tag}", 200), ('"x"', 200), ("*", 200)):
            with self.subTest(value=value):
                self.assertEqual(self.status("Range: bytes=0-1", f"If-Range: {value}"), status)

    def test_304_and_206_have_the_tag(self) -> None:
        tag = self.tag()
        for header in (f"If-None-Match: {tag}\r\n", "Range: bytes=0-1\r\n"):
            self.assertEqual(self.server.ask("/small.txt", header.encode()).headers["etag"], tag)


if __name__ == "__main__":
    main("curl")
