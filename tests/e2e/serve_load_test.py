# SPDX-License-Identifier: MIT
"""rouse-serve under load: 100,000 requests whose answers are compared with the file, and wrk."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path
from typing import NamedTuple

from serve_common import SANITIZED, Client, Server, get, main, seed

REQUESTS = 20000 if SANITIZED else 100000
CONNECTIONS = 48
OTHERS = REQUESTS // 10

# The weight of each file size. Small files are sent from a buffer, large ones by sendfile.
SIZES = {0: 2, 1: 4, 137: 9, 700: 9, 4000: 5, 8192: 3, 8193: 3, 20000: 3, 65536: 1, 300000: 0.2}

# Each thread of wrk requests one file and compares the answers. Two threads send four at a time.
WRK = """
local threads = {}
function setup(thread)
   thread:set("number", #threads)
   table.insert(threads, thread)
end
function init(arguments)
   local file = assert(io.open(arguments[1] .. "/" .. number, "rb"))
   expected = file:read("*a")
   file:close()
   text = string.rep(wrk.format("GET", "/" .. number), number < 2 and 4 or 1)
   good, bad = 0, 0
end
function request() return text end
function response(status, headers, body)
   if status == 200 and body == expected and tonumber(headers["Content-Length"]) == #body then
      good = good + 1
   else
      bad = bad + 1
   end
end
function done(summary)
   local good, bad, least = 0, 0, 1e9
   for _, thread in ipairs(threads) do
      good, bad = good + thread:get("good"), bad + thread:get("bad")
      least = math.min(least, thread:get("good"))
   end
   local e = summary.errors
   local errors = e.connect + e.read + e.write + e.status
   print("good", good, "bad", bad, "least", least, "errors", errors)
end
"""


class Question(NamedTuple):
    method: str
    data: bytes
    status: int
    body: bytes
    length: int
    ends: bool


class Load(unittest.TestCase):
    def setUp(self) -> None:
        self.dice = random.Random(seed())
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.files: list[tuple[str, bytes]] = []
        for size in SIZES:
            self.files.append((f"{len(self.files)}", os.urandom(size)))
        for name, body in self.files:
            (self.root / name).write_bytes(body)

    def question(self) -> Question:
        name, body = self.dice.choices(self.files, [*SIZES.values()])[0]
        kind = self.dice.randrange(40)
        if kind == 0:
            return Question("GET", get("/none" + name), 404, b"404 Not Found\n", 14, False)
        if kind == 1:
            return Question("HEAD", get("/" + name, method="HEAD"), 200, b"", len(body), False)
        if kind == 2:
            data = get("/" + name, b"Content-Length: 3\r\n") + b"xyz"
            return Question("GET", data, 200, body, len(body), False)
        if kind == 3:
            data = get("/" + name, b"Connection: close\r\n")
            return Question("GET", data, 200, body, len(body), True)
        return Question("GET", get("/" + name), 200, body, len(body), False)

    def batch(self) -> list[Question]:
        found = []
        for _ in range(self.dice.randint(1, 24)):
            found.append(self.question())
            if found[-1].ends:
                break
        return found

    def ask_everything(self, server: Server) -> None:
        clients = [server.connect() for _ in range(CONNECTIONS)]
        count = 0
        while count < REQUESTS:
            asked = [self.batch() for _ in clients]
            for client, batch in zip(clients, asked, strict=True):
                client.send(b"".join(question.data for question in batch))
            for index, batch in enumerate(asked):
                for question in batch:
                    self.check(clients[index], question)
                count += len(batch)
                if batch[-1].ends:
                    self.assertTrue(clients[index].ended())
                    clients[index].socket.close()
                    clients[index] = server.connect()
        for client in clients:
            client.socket.close()
        self.assertGreaterEqual(count, REQUESTS)

    def check(self, client: Client, question: Question) -> None:
        reply = client.reply(question.method)
        length = int(reply.headers["content-length"])
        self.assertEqual((reply.status, length), (question.status, question.length))
        if reply.body != question.body:
            self.fail(f"another body came for {question.data!r}")
        self.assertEqual("connection" in reply.headers, question.ends)

    def test_100000_requests_user_threads(self) -> None:
        with Server(self.root) as server:
            self.ask_everything(server)

    def test_100000_requests_kernel_threads(self) -> None:
        with Server(self.root, kind="kernel") as server:
            self.ask_everything(server)

    def wrk(self, *options: str, kind: str = "user") -> None:
        script = self.root / "check.lua"
        script.write_text(WRK)
        with Server(self.root, *options, kind=kind) as server:
            done = subprocess.run(
                f"wrk -t 10 -c 100 -d 2s --timeout 20s -s {script} "
                f"http://127.0.0.1:{server.port}/ -- {self.root}".split(),
                capture_output=True,
                text=True,
                timeout=50,
            )
        found = re.search(r"good\s+(\d+)\s+bad\s+0\s+least\s+(\d+)\s+errors\s+0\n", done.stdout)
        self.assertTrue(found, done.stdout + done.stderr)
        assert found
        self.assertGreater(int(found[2]), 0)

    def test_wrk_user_threads(self) -> None:
        self.wrk()

    def test_wrk_one_worker(self) -> None:
        self.wrk("--workers", "1")

    def test_wrk_kernel_threads(self) -> None:
        self.wrk(kind="kernel")

    def other(self, *words: str) -> str:
        """Return the text of another load generator about requests for one file."""
        if not shutil.which(words[0]):
            self.skipTest(f"not run: {words[0]} is not installed")
        with Server(self.root, "--per-address", "0") as server:
            url = f"http://127.0.0.1:{server.port}/3"
            done = subprocess.run([*words, url], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_ab(self) -> None:
        for more in ([], ["-k"]):
            said = self.other("ab", "-q", "-n", str(OTHERS), "-c", "50", *more)
            self.assertRegex(said, rf"Complete requests: +{OTHERS}\n")
            self.assertRegex(said, r"Failed requests: +0\n")
            self.assertNotIn("Non-2xx", said)

    def test_h2load_with_http_1(self) -> None:
        said = self.other("h2load", "--h1", "-n", str(OTHERS), "-c", "50")
        self.assertIn(f"{OTHERS} succeeded, 0 failed, 0 errored, 0 timeout", said)
        self.assertIn(f"status codes: {OTHERS} 2xx, 0 3xx, 0 4xx, 0 5xx", said)


if __name__ == "__main__":
    main("wrk")
