#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Symbols of files that have none: the package that has them, and a debuginfod server."""

from __future__ import annotations

import http.server
import os
import shutil
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from typing import ClassVar
from unittest import mock

from common import here

from known_tables import orders, site

from rouse.symbols import elf, packages
from rouse.tables import parquet

SOURCE = "int wait_here(int n) { return n + 1; }\nint main(void) { return wait_here(-1); }\n"


class Case(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.folder = Path(place.name)
        for made in (packages.fetched, packages.with_symbols):
            made.cache_clear()
            self.addCleanup(made.cache_clear)


@unittest.skipUnless(shutil.which("dpkg-query"), "not run: no dpkg-query here")
class Packages(Case):
    def test_the_package_of_a_file(self) -> None:
        self.assertEqual(packages.with_symbols("/usr/bin/env"), "coreutils-dbgsym")
        libc = next(path for path in Path("/usr/lib").glob("*/libc.so.6"))
        self.assertEqual(packages.with_symbols(str(libc)), "libc6-dbg")

    def test_files_of_no_package(self) -> None:
        for path in (str(self.folder), "", "-L", "relative", "/usr/bin/*", "/usr/bin/e[n]v"):
            self.assertEqual(packages.with_symbols(path), "", path)

    def test_the_report_says_which_package_has_the_names(self) -> None:
        sites = site(0x1010, "env+0x10", module="/usr/bin/env", function="")
        parquet.write(orders(sites=sites), self.folder / "tables")
        for words in ((), ("--full",)):
            said = here("report", *words, self.folder / "tables").stdout
            self.assertRegex(
                said, r"note: 1 of 1 sites have no symbol, .*: env by coreutils-dbgsym"
            )


class Server(http.server.BaseHTTPRequestHandler):
    files: ClassVar[dict[str, bytes]] = {}
    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.asked.append(self.path)
        body = self.files.get(self.path)
        self.send_response(404 if body is None else 200)
        self.end_headers()
        self.wfile.write(body or b"")

    def log_message(self, *_: object) -> None:
        pass


class Debuginfod(Case):
    def setUp(self) -> None:
        super().setUp()
        compiler = next((name for name in ("gcc", "clang") if shutil.which(name)), None)
        if not compiler or not shutil.which("objcopy"):
            self.skipTest("not run: no compiler, or no objcopy here")
        (self.folder / "app.c").write_text(SOURCE)
        self.program, self.apart = self.folder / "app", self.folder / "app.debug"
        built = (compiler, "-g", "-O0", "-Wl,--build-id", "-o", self.program, "app.c")
        for words in (
            built,
            ("objcopy", "--only-keep-debug", self.program, self.apart),
            ("strip", self.program),
        ):
            subprocess.run(words, cwd=self.folder, check=True)
        self.address = next(
            int(line.split()[0], 16)
            for line in subprocess.run(
                ("nm", self.apart), capture_output=True, text=True, check=True
            ).stdout.splitlines()
            if line.endswith(" wait_here")
        )
        Server.files, Server.asked = {}, []
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        self.cache = self.folder / "cache"
        ours = {packages.URLS: f"{url}/none {url}/", packages.CACHE: str(self.cache)}
        environment = mock.patch.dict(os.environ, ours)
        environment.start()
        self.addCleanup(environment.stop)

    def functions(self) -> list[str]:
        return [place.function for place in elf.Elf(self.program).places(self.address)]

    def test_names_come_from_the_server(self) -> None:
        build_id = elf.Elf(self.program).build_id
        path = f"/buildid/{build_id}/debuginfo"
        Server.files[path] = self.apart.read_bytes()
        packages.fetched.cache_clear()
        self.assertEqual(self.functions(), ["wait_here"])
        self.assertEqual(Server.asked[-2:], [f"/none{path}", path])
        self.assertTrue((self.cache / build_id / "debuginfo").is_file())
        packages.fetched.cache_clear()
        Server.asked.clear()
        self.assertEqual(self.functions(), ["wait_here"])
        self.assertEqual(Server.asked, [], "the file is kept")

    def test_nothing_is_asked_without_the_variable(self) -> None:
        with mock.patch.dict(os.environ, {packages.URLS: ""}):
            self.assertEqual(self.functions(), [])
        self.assertEqual(Server.asked, [])

    def test_a_server_without_the_file_or_with_damage_gives_no_names(self) -> None:
        self.assertEqual(self.functions(), [])
        build_id = elf.Elf(self.program).build_id
        for body in (b"", b"no ELF file", b"\x7fELF" + bytes(100)):
            shutil.rmtree(self.cache, ignore_errors=True)
            packages.fetched.cache_clear()
            Server.files[f"/buildid/{build_id}/debuginfo"] = body
            self.assertEqual(self.functions(), [])

    def test_a_file_that_is_too_large_is_not_kept(self) -> None:
        build_id = elf.Elf(self.program).build_id
        packages.fetched.cache_clear()
        Server.files[f"/buildid/{build_id}/debuginfo"] = bytes(4096)
        with mock.patch.object(packages, "BYTES_MOST", 4095):
            self.assertIsNone(packages.fetched(build_id))
        self.assertEqual(list((self.cache / build_id).iterdir()), [])

    def test_only_build_ids_become_paths(self) -> None:
        for build_id in ("", "../../etc", "00", "g" * 40, "/" * 40):
            self.assertIsNone(packages.fetched(build_id))
        self.assertEqual(Server.asked, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
