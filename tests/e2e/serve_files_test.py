# SPDX-License-Identifier: MIT
"""rouse-serve sends files of every name and size, and none from outside the root."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import stat
import subprocess
import tempfile
import unittest
import urllib.parse
from pathlib import Path

from serve_common import (
    PROGRAM,
    Server,
    get,
    main,
    seed,
    tree,
    without_openat2,
    without_override,
)


def curl(*arguments: str) -> bytes:
    return subprocess.run(
        ["curl", "-sS", "--max-time", "30", "--path-as-is", "--noproxy", "*", *arguments],
        check=True,
        stdout=subprocess.PIPE,
    ).stdout


class Files(unittest.TestCase):
    """Tests with openat2. The class below repeats them as on a kernel without it."""

    kind = "user"
    preexec = staticmethod(lambda: None)
    server: Server
    root: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.root = cls.enterClassContext(tree())
        links = {
            "in": "sub/index.html",
            "up-and-in": "sub/../one.txt",
            "sub/up": "../one.txt",
            "sub/deep/chain": "../up",
            "dir": "sub/deep",
            "dirslash": "sub/deep/",
            "out": "../secret",
            "sub/out": "../../secret",
            "absolute": str(cls.root / "one.txt"),
            "etc": "/etc",
            "outdir": "..",
            "loop": "loop",
            "loop2": "loop3/x",
            "loop3": "loop2/x",
            "dangling": "nothing",
            "proc": "/proc/self/root",
        }
        for name, target in links.items():
            (cls.root / name).symlink_to(target)
        os.mkfifo(cls.root / "pipe")
        (cls.root / "locked.txt").write_text("x")
        (cls.root / "locked.txt").chmod(0)
        assert (cls.root.parent / "secret").exists()
        cls.server = cls.enterClassContext(Server(cls.root, kind=cls.kind, preexec=cls.preexec))

    def status(self, target: str) -> int:
        return self.server.ask(target).status

    def test_every_file_by_curl(self) -> None:
        for path in sorted(self.root.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.name == "locked.txt":
                continue
            if "/." in str(path):
                continue
            name = urllib.parse.quote(str(path.relative_to(self.root)))
            url = f"http://127.0.0.1:{self.server.port}/{name}"
            with self.subTest(name=name):
                self.assertEqual(curl(url), path.read_bytes())
                self.assertEqual(curl("-0", url + "?query=1"), path.read_bytes())
                head = curl("-I", url).decode()
                self.assertIn(f"Content-Length: {path.stat().st_size}\r\n", head)

    def test_raw_utf_8_and_needless_escapes(self) -> None:
        raw = "/grüße.txt".encode().decode("latin-1")
        self.assertEqual(self.server.ask(raw).body, b"unicode")
        self.assertEqual(self.server.ask("/%6F%6ee.%74xt").body, b"1")
        self.assertEqual(self.server.ask("/%73ub%2fdeep/x.json").body, b"{}")

    def test_types(self) -> None:
        for name, kind in {
            "/": "text/html; charset=utf-8",
            "/page.css": "text/css; charset=utf-8",
            "/over.js": "text/javascript; charset=utf-8",
            "/sub/deep/x.json": "application/json",
            "/mega.bin": "application/octet-stream",
        }.items():
            self.assertEqual(self.server.ask(name).headers["content-type"], kind)

    def test_directories(self) -> None:
        self.assertEqual(self.server.ask("/").body, b"<p>top\n")
        self.assertEqual(self.server.ask("//").body, b"<p>top\n")
        self.assertEqual(self.server.ask("/?x").body, b"<p>top\n")
        self.assertEqual(self.server.ask("http://name:80/sub/").body, b"<p>sub\n")
        self.assertEqual(self.server.ask("/sub/").body, b"<p>sub\n")
        self.assertEqual(self.server.ask("/sub/./deep/../").body, b"<p>sub\n")
        for target in ("/bare/", "/one.txt/", "/sub/deep/"):
            self.assertEqual(self.status(target), 404)
        for target, location in {
            "/sub": "/sub/",
            "/sub?x=y": "/sub/?x=y",
            "/sub?": "/sub/?",
            "/sub?x=%41&y=?/#z": "/sub/?x=%41&y=?/",
            '/sub?"<é>': "/sub/?%22%3C%E9%3E",
            "http://a/sub?x": "/sub/?x",
            "//sub": "/sub/",
            "/dir": "/dir/",
            "/sub/%64eep": "/sub/deep/",
        }.items():
            reply = self.server.ask(target)
            self.assertEqual((reply.status, reply.headers["location"]), (301, location))

    def test_ranges(self) -> None:
        for name in ("small.txt", "mega.bin"):
            body = (self.root / name).read_bytes()
            size = len(body)
            for value, first, end in (
                ("0-0", 0, 1),
                ("0-", 0, size),
                ("5-99", 5, 100),
                ("-3", size - 3, size),
                (f"-{size + 5}", 0, size),
                (f"{size - 1}-", size - 1, size),
                (f"7-{10**30}", 7, size),
            ):
                with self.subTest(name=name, value=value):
                    reply = self.server.ask("/" + name, f"Range: bytes={value}\r\n".encode())
                    expected = f"bytes {first}-{end - 1}/{size}"
                    self.assertEqual(reply.status, 206)
                    self.assertEqual(reply.headers["content-range"], expected)
                    self.assertEqual(reply.body, body[first:end])
            for value in (f"{size}-", "-0", f"{10**30}-", f"{size}-{size + 4}"):
                with self.subTest(name=name, value=value):
                    reply = self.server.ask("/" + name, f"Range: bytes={value}\r\n".encode())
                    self.assertEqual(reply.status, 416)
                    self.assertEqual(reply.headers["content-range"], f"bytes */{size}")

    def test_a_range_that_is_not_understood_is_ignored(self) -> None:
        for value in ("bytes=", "bytes=-", "bytes=5-4", "bytes=0-1,3-4", "bytes=x", "lines=0-1"):
            with self.subTest(value=value):
                reply = self.server.ask("/small.txt", f"Range: {value}\r\n".encode())
                self.assertEqual((reply.status, len(reply.body)), (200, 700))
                self.assertEqual(reply.headers["accept-ranges"], "bytes")
        header = b"Range: bytes=0-1\r\n"
        self.assertEqual(self.server.ask("/small.txt", header, "HEAD").status, 200)
        self.assertEqual(self.server.ask("/empty.txt", b"Range: bytes=-5\r\n").status, 200)
        self.assertEqual(self.server.ask("/empty.txt", b"Range: bytes=0-\r\n").status, 416)
        self.assertEqual(self.server.ask("/small.txt", b"If-Match: x\r\n" + header).status, 412)

    def test_if_range_permits_a_part_only_of_the_same_file(self) -> None:
        path = self.root / "dated.bin"
        path.write_text("0123456789")
        for seconds, date, status in (
            (784111777, "Sun, 06 Nov 1994 08:49:37 GMT", 206),
            (784111777, "Sun, 06 Nov 1994 08:49:38 GMT", 200),
            (784111777, "Sun, 06 Nov 1994 08:49:36 GMT", 200),
            (784111777, '"tag"', 200),
            (4102444800, "Fri, 01 Jan 2100 00:00:00 GMT", 200),  # not yet older than now
        ):
            os.utime(path, (seconds, seconds))
            with self.subTest(date=date):
                headers = f"Range: bytes=2-3\r\nIf-Range: {date}\r\n".encode()
                self.assertEqual(self.server.ask("/dated.bin", headers).status, status)

    def test_curl_resumes_a_download(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            part, whole = Path(folder) / "part", (self.root / "mega.bin").read_bytes()
            part.write_bytes(whole[:12345])
            url = f"http://127.0.0.1:{self.server.port}/mega.bin"
            curl("--continue-at", "-", "--output", str(part), url)
            self.assertEqual(part.read_bytes(), whole)

    def test_a_folder_named_as_the_index_is_not_found(self) -> None:
        (self.root / "folder" / "index.html").mkdir(parents=True, exist_ok=True)
        self.assertEqual(self.status("/folder/?query-of-some-length"), 404)

    def test_dot_files_are_served_only_on_request(self) -> None:
        (self.root / ".git").mkdir(exist_ok=True)
        (self.root / ".git" / "config").write_text("x")
        (self.root / "sub" / ".hidden").write_text("x")
        (self.root / "..x").write_text("x")
        targets = ("/.git/config", "/sub/.hidden", "/%2egit/config", "/sub/../.git/config", "/..x")
        with Server(self.root, "--dot-files", kind=self.kind, preexec=self.preexec) as server:
            for target in targets:
                with self.subTest(target=target):
                    self.assertEqual(server.ask(target).status, 200)
                    self.assertEqual(self.status(target), 404)
            self.assertEqual(server.ask("/../secret").status, 404)
        self.assertEqual(self.status("/.git"), 404)
        self.assertEqual(self.status("/sub/./deep/../index.html"), 200)

    def test_redirect_encodes(self) -> None:
        name = 'a"b\r\nX: ü'
        (self.root / name).mkdir()
        reply = self.server.ask("/" + urllib.parse.quote(name))
        self.assertEqual(reply.status, 301)
        self.assertEqual(reply.headers["location"], "/" + urllib.parse.quote(name) + "/")
        self.assertNotIn("x", reply.headers)

    def test_links_within_the_root(self) -> None:
        for target, body in {
            "/in": b"<p>sub\n",
            "/up-and-in": b"1",
            "/sub/up": b"1",
            "/sub/deep/chain": b"1",
            "/dir/x.json": b"{}",
            "/dirslash/x.json": b"{}",
            "/dir/../../one.txt": b"1",
            "/sub/../one.txt": b"1",
            "/./one.txt": b"1",
            "/sub//deep///x.json": b"{}",
        }.items():
            with self.subTest(target=target):
                self.assertEqual(self.server.ask(target).body, body)

    def test_nothing_from_outside_the_root(self) -> None:
        secret = "/".join([".."] * 12) + "/etc/passwd"
        for target in (
            "/../secret",
            "/..",
            "/../root/one.txt",
            "/sub/../../secret",
            "/%2e%2e/secret",
            "/%2e%2e%2fsecret",
            "/..%2fsecret",
            "/sub/%2e%2e/%2e%2e/secret",
            "/.%2e/secret",
            "/..%5csecret",
            "/" + secret,
            "//etc/passwd",
            "/%2fetc/passwd",
            "/out",
            "/sub/out",
            "/absolute",
            "/etc/passwd",
            "/outdir/secret",
            "/outdir/root/one.txt",
            "/proc/etc/passwd",
        ):
            with self.subTest(target=target):
                reply = self.server.ask(target)
                self.assertEqual(reply.status, 404)
                self.assertNotIn(b"secret", reply.body)

    def test_non_regular_files(self) -> None:
        for target in ("/pipe", "/loop", "/loop2", "/dangling", "/nothing", "/" + "x" * 300):
            with self.subTest(target=target):
                self.assertEqual(self.status(target), 404)
        for target in ("/" + "x/" * 2500, "/" + "sub/../" * 700 + "one.txt"):
            self.assertIn(self.status(target), (200, 404))

    def test_forbidden(self) -> None:
        def restrict() -> None:
            self.preexec()
            without_override()

        with Server(self.root, kind=self.kind, preexec=restrict) as server:
            self.assertEqual(server.ask("/locked.txt").status, 403)
            self.assertEqual(server.ask("/one.txt").status, 200)

    def test_pipes_sockets_and_devices_do_not_hang(self) -> None:
        names = ["/pipe", "/socket"]
        listener = self.enterContext(socket.socket(socket.AF_UNIX))
        listener.bind(str(self.root / "socket"))
        with contextlib.suppress(PermissionError):
            for name, number in (("null", 3), ("zero", 5), ("full", 7)):
                os.mknod(self.root / name, 0o600 | stat.S_IFCHR, os.makedev(1, number))
                names.append("/" + name)
        for name in names:
            with self.subTest(name=name):
                # 403: the kernel may forbid opening a device.
                self.assertIn(self.status(name), (403, 404))

    def test_file_that_shrinks_ends_the_connection(self) -> None:
        path = self.root / "shrinks.bin"
        path.write_bytes(b"x" * (32 << 20))
        with self.server.connect(4096) as client:
            client.send(get("/shrinks.bin"))
            client.fill()
            os.truncate(path, 1 << 20)
            with self.assertRaises(EOFError):
                client.reply()


class WithoutOpenat2(Files):
    preexec = staticmethod(without_openat2)


class KernelThreads(Files):
    kind = "kernel"


class BothWays(unittest.TestCase):
    def test_openat2_and_the_walk_agree(self) -> None:
        dice = random.Random(seed())
        names = ["a", "b", "c", "..", ".", "d"]

        def path(most: int) -> str:
            return "/".join(dice.choice(names) for _ in range(dice.randint(1, most)))

        with tempfile.TemporaryDirectory() as name:
            root = Path(name) / "root"
            folders = ("", "a", "a/b", "b", "b/a", "b/a/c")
            for below in folders:
                (root / below).mkdir(parents=True)
            (root / "plain").write_text("plain")
            for below in folders:
                for leaf in dice.sample("abcd", 3):
                    with contextlib.suppress(FileExistsError, IsADirectoryError):
                        if dice.random() < 0.6:
                            (root / below / leaf).symlink_to(path(5))
                        else:
                            (root / below / leaf).write_text(f"{below}/{leaf}")
            with (
                Server(root) as one,
                Server(root, preexec=without_openat2) as other,
                one.connect() as first,
                other.connect() as second,
            ):
                found = set()
                # By chance there may be no file that a path leads to.
                targets = ["/plain", "/missing"]
                targets += ["/" + path(8) + dice.choice(["", "", "/"]) for _ in range(3000)]
                for target in targets:
                    first.send(get(target))
                    second.send(get(target))
                    replies = [client.reply()._replace(headers={}) for client in (first, second)]
                    self.assertEqual(replies[0], replies[1], target)
                    found.add(replies[0].status)
                self.assertLessEqual({200, 404}, found)


class CommandLine(unittest.TestCase):
    def run_program(self, *arguments: str) -> tuple[int, str, str]:
        done = subprocess.run([PROGRAM, *arguments], capture_output=True, text=True, timeout=20)
        return done.returncode, done.stdout, done.stderr

    def test_bad_options_give_one_line_and_status_2(self) -> None:
        for arguments in (
            [],
            ["--bogus", "/"],
            ["--port", "x", "/"],
            ["--port", "65536", "/"],
            ["--port", "-1", "/"],
            ["--port"],
            ["--threads", "green", "/"],
            ["--workers", "0", "/"],
            ["--max-connections", "0", "/"],
            ["--idle-timeout", "", "/"],
            ["--header-timeout", "0", "/"],
            ["--body-timeout", "x", "/"],
            ["--write-timeout", "86401", "/"],
            ["--min-rate", "-1", "/"],
            ["--rate-grace", "0", "/"],
            ["--per-address", "1.5", "/"],
            ["--respond", "x", "/"],
            ["/", "/tmp"],
        ):
            with self.subTest(arguments=arguments):
                status, out, err = self.run_program(*arguments)
                self.assertEqual((status, out, err.count("\n")), (2, "", 1))

    def test_an_unservable_root_gives_one_line_and_status_1(self) -> None:
        with Server("--respond", "x") as server:
            for arguments in (
                ["/nonexistent"],
                ["/etc/passwd"],
                ["--port", str(server.port), "/"],
                ["--address", "192.0.2.1", "--port", "0", "/"],
                ["--address", "no such name", "--port", "0", "/"],
            ):
                with self.subTest(arguments=arguments):
                    status, out, err = self.run_program(*arguments)
                    self.assertEqual((status, out, err.count("\n")), (1, "", 1))

    def test_help_and_version(self) -> None:
        status, out, err = self.run_program("--help")
        self.assertEqual((status, err), (0, ""))
        for option in (
            "--port",
            "--address",
            "--threads",
            "--respond",
            "--max-conn",
            "--shared-lock",
            "--dot-files",
        ):
            self.assertIn(option, out)
        self.assertRegex(self.run_program("--version")[1], r"^rouse-serve \d+\.\d+")


if __name__ == "__main__":
    main("curl")
