# SPDX-License-Identifier: MIT
"""rouse-serve and HTTP/1.1: valid and invalid requests, whole, split and joined."""

from __future__ import annotations

import email.utils
import os
import re
import socket
import time
import unittest
from pathlib import Path

from serve_common import HOST, Server, get, main, tree

PIPELINE = (
    get("/one.txt")
    + get("/nothing")
    + get("/small.txt", method="HEAD")
    + get("/sub")
    + b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
    + get("/mega.bin")
    + get("/%zz")
    + get("/empty.txt", b"Content-Length: 3\r\n")
    + b"abc"
    + get("/small.txt")
)
PIPELINE_STATUS = [200, 404, 200, 301, 405, 200, 400, 200, 200]
TIMES = ("--idle-timeout", "10", "--header-timeout", "10", "--body-timeout", "10")
EXPECT = b"Expect: 100-continue\r\n"


class UserThreads(unittest.TestCase):
    kind = "user"
    server: Server
    root: Path

    @classmethod
    def setUpClass(cls) -> None:
        cls.root = cls.enterClassContext(tree())
        cls.server = cls.enterClassContext(Server(cls.root, *TIMES, kind=cls.kind))

    def check(self, data: bytes, *expected: int) -> None:
        with self.subTest(data=data[:70]):
            self.assertEqual([r.status for r in self.server.raw(data)], list(expected))

    def test_head_of_an_answer(self) -> None:
        reply = self.server.ask("/small.txt")
        self.assertEqual(reply.status, 200)
        self.assertEqual(reply.headers["content-type"], "text/plain; charset=utf-8")
        self.assertEqual(reply.headers["content-length"], "700")
        self.assertNotIn("connection", reply.headers)
        date = email.utils.parsedate_to_datetime(reply.headers["date"])
        self.assertLess(abs(date.timestamp() - time.time()), 5)
        changed = email.utils.parsedate_to_datetime(reply.headers["last-modified"])
        self.assertEqual(changed.timestamp(), int((self.root / "small.txt").stat().st_mtime))

    def test_dates(self) -> None:
        path = self.root / "dated.txt"
        path.write_text("x")
        known = (0, 68169599, 951782400, 1709164800, 1735689599, 4102444800, 253402300799, -1)
        months = (int(30.44 * 86400 * month) + month for month in range(-900, 2000, 7))
        for wanted in (*known, *months):
            os.utime(path, (wanted, wanted))
            seconds = int(path.stat().st_mtime)  # a file system may have earliest and latest times
            text = self.server.ask("/dated.txt").headers["last-modified"]
            self.assertEqual(text, email.utils.formatdate(seconds, usegmt=True))

    def test_head_has_no_body(self) -> None:
        with self.server.connect() as client:
            client.send(get("/mega.bin", method="HEAD") + get("/nothing", method="HEAD"))
            client.send(get("/one.txt"))
            self.assertEqual(client.reply("HEAD").headers["content-length"], str(1 << 20))
            self.assertEqual(client.reply("HEAD").status, 404)
            self.assertEqual(client.reply().body, b"1")

    def test_conditional(self) -> None:
        modified = self.server.ask("/small.txt").headers["last-modified"]
        cases = {
            modified: 304,
            "Thu, 01 Jan 2037 00:00:00 GMT": 304,
            "Thu, 01 Jan 1970 00:00:00 GMT": 200,
            "nonsense": 200,
            "x" * 100: 200,
        }
        with self.server.connect() as client:
            for date, status in cases.items():
                client.send(get("/small.txt", f"If-Modified-Since: {date}\r\n".encode()))
                reply = client.reply()
                self.assertEqual((date, reply.status), (date, status))
                self.assertEqual(len(reply.body), 0 if status == 304 else 700)

    def test_a_date_beside_tags_is_ignored(self) -> None:
        date = b"If-Modified-Since: Thu, 01 Jan 2037 00:00:00 GMT\r\n"
        tags = b'if-none-match: "one", W/"two"\r\n'
        with self.server.connect() as client:
            for headers, status in ((tags + date, 200), (date + tags, 200), (date, 304)):
                client.send(get("/small.txt", headers))
                self.assertEqual((headers, client.reply().status), (headers, status))

    def test_a_client_that_expects_100_continue_is_answered_before_the_body(self) -> None:
        chunked = b"Transfer-Encoding: chunked\r\n"
        for method, target, headers, status in (
            ("GET", "/small.txt", b"Content-Length: 5\r\n", 200),
            ("GET", "/mega.bin", b"Content-Length: 65536\r\n", 200),
            ("HEAD", "/small.txt", b"Content-Length: 5\r\n", 200),
            ("GET", "/nothing", b"Content-Length: 5\r\n", 404),
            ("GET", "/small.txt", b"Content-Length: 65537\r\n", 413),
            ("GET", "/small.txt", chunked, 411),
            ("POST", "/small.txt", b"Content-Length: 5\r\n", 405),
            ("POST", "/small.txt", chunked, 405),
        ):
            with self.subTest(method=method, headers=headers), self.server.connect() as client:
                client.send(get(target, headers + EXPECT, method))
                reply = client.reply(method)
                self.assertEqual((reply.status, reply.headers["connection"]), (status, "close"))
                self.assertTrue(client.ended())

    def test_a_body_that_was_answered_early_is_not_taken_for_a_request(self) -> None:
        body = get("/one.txt")
        head = get("/small.txt", f"Content-Length: {len(body)}\r\n".encode() + EXPECT)
        self.check(head + body + get("/one.txt"), 200)
        for _ in range(20):
            with self.server.connect() as client:
                client.send(get("/small.txt", b"Content-Length: 60000\r\n" + EXPECT))
                client.send(body * (60000 // len(body)))
                self.assertEqual([r.status for r in client.replies()], [200])

    def test_an_expectation_without_a_body_ends_no_connection(self) -> None:
        for headers in (EXPECT, EXPECT + b"Content-Length: 0\r\n"):
            self.check(get("/one.txt", headers) + get("/one.txt"), 200, 200)
        # HTTP/1.0 has no expectations, so the server waits for the body and then the next request.
        old = b"GET /one.txt HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n"
        self.check(old + EXPECT + b"\r\nab" + get("/one.txt"), 200, 200)

    def test_keep_alive_and_close(self) -> None:
        one = self.server.raw(get("/one.txt", b"Connection: close\r\n") + get("/one.txt"))
        self.assertEqual([r.headers.get("connection") for r in one], ["close"])
        old = self.server.raw(b"GET /one.txt HTTP/1.0\r\n\r\n" + get("/one.txt"))
        self.assertEqual([r.headers.get("connection") for r in old], ["close"])
        kept = self.server.raw(b"GET /one.txt HTTP/1.0\r\nConnection: keep-alive\r\n\r\n" * 2)
        self.assertEqual([r.headers.get("connection") for r in kept], ["keep-alive"] * 2)

    def test_methods(self) -> None:
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "PATCH"):
            with self.server.connect() as client:
                client.send(get("/one.txt", method=method))
                reply = client.reply()
                self.assertEqual((method, reply.status), (method, 405))
                self.assertEqual(reply.headers["allow"], "GET, HEAD")
        self.check(get("x:1", method="CONNECT"), 405)
        self.check(get("/one.txt", method="BREW"), 501)
        self.check(get("/", b"Content-Length: 5\r\n", "POST") + b"hello" + get("/"), 405)

    def test_malformed(self) -> None:
        for data in (
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
            b"nonsense\r\n\r\n",
            b"get / HTTP/1.1\r\n" + HOST + b"\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + HOST + HOST + b"\r\n",
            b"GET / HTTP/1.1\r\n" + HOST + b"Bad Name: x\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + HOST + b": x\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + HOST + b"A: x\0y\r\n\r\n",
            b"GET / HTTP/1.1\r\n" + HOST + b"A: x\rB: y\r\n\r\n",
            b"GET / HTTP/x\r\n" + HOST + b"\r\n",
            b"GET / FTP/1.1\r\n" + HOST + b"\r\n",
            b"GET /a b HTTP/1.1\r\n" + HOST + b"\r\n",
            get("relative"),
            get("/", b"Content-Length: -1\r\n"),
            get("/", b"Content-Length: 1\r\nContent-Length: 1\r\n") + b"a",
            get("/", b"Content-Length: 99999999999999999999999\r\n"),
            get("/", b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n") + b"0\r\n\r\n",
            get("/", b"Transfer-Encoding: gzip\r\n"),
            get("/a\tb"),
            b" GET / HTTP/1.1\r\n" + HOST + b"\r\n",
        ):
            self.check(data, 400)
            self.check(get("/one.txt") + data, 200, 400)
        for target in ("/%", "/%2", "/%2g", "/%00", "/a%00b", "*"):
            self.check(get(target), 400)

    def test_versions(self) -> None:
        for version in ("HTTP/0.9", "HTTP/2.0", "HTTP/3.0"):
            self.check(f"GET / {version}\r\nHost: x\r\n\r\n".encode(), 505)
        self.check(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505)

    def test_a_later_minor_version_is_answered_as_1_1(self) -> None:
        later = get("/one.txt").replace(b"HTTP/1.1", b"HTTP/1.2")
        self.check(later + later, 200, 200)
        self.check(b"GET /one.txt HTTP/1.2\r\n\r\n", 400)

    def test_an_invalid_host_is_refused(self) -> None:
        for host in ("a b", "a/b", "u@a", "x:abc", "a, b", "[::1", "<script>", "a\\b", "a:1:2"):
            self.check(f"GET /one.txt HTTP/1.1\r\nHost: {host}\r\n\r\n".encode(), 400)
        for host in ("", "a", "a:80", "a: ", "[::1]", "[::1]:80", "a_b.c-d", "127.0.0.1:1", "%41"):
            line = f"GET /one.txt HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            self.check(line + line, 200, 200)

    def test_an_absolute_target_without_a_host_is_refused(self) -> None:
        for target in ("http:///one.txt", "http://?x", "http://:80/one.txt", "http://u@a/one.txt"):
            self.check(get(target), 400)
        self.check(get("http://a:80/one.txt") + get("HTTP://a/one.txt"), 200, 200)

    def test_another_protocol_is_not_answered_as_http(self) -> None:
        for line in (
            b"GET / RTSP/1.0",
            b"OPTIONS / RTSP/1.0",
            b"GET / ICE/1.0",
            b"SOURCE / ICE/1.0",
        ):
            self.check(line + b"\r\n" + HOST + b"\r\n", 400)

    def test_a_fold_of_white_space_only_is_refused(self) -> None:
        for fold in (b" \r\n", b"\t \r\n"):
            for headers in (b"A: b\r\n" + fold, b"A:\r\n" + fold, b"A: b\r\n" + fold + b"B: c\r\n"):
                self.check(get("/one.txt", headers) + get("/one.txt"), 400)
        for headers in (b"A:\r\n", b"A: \t\r\n", b"A: b \t \r\nB:\r\nC: d\r\n"):
            self.check(get("/one.txt", headers) + get("/one.txt"), 200, 200)

    def test_a_tab_behind_a_length_is_accepted(self) -> None:
        for length in (b"5\t", b"5 \t ", b"\t5\t"):
            data = get("/one.txt", b"Content-Length: " + length + b"\r\n") + b"hello"
            self.check(data + get("/one.txt"), 200, 200)
            with self.server.connect() as client:
                for byte in data + get("/one.txt"):
                    client.send(bytes([byte]))
                self.assertEqual([client.reply().status for _ in range(2)], [200, 200])
        self.check(get("/one.txt", b"Content-Length: 5\t6\r\n") + b"hello", 400)

    def test_a_list_with_close_closes(self) -> None:
        for value in (b"keep-alive, close", b"close, keep-alive", b"x, close", b"Keep-Alive,CLOSE"):
            self.check(get("/one.txt", b"Connection: " + value + b"\r\n") + get("/one.txt"), 200)

    def test_a_refused_head_has_no_body(self) -> None:
        for data, status in (
            (get("/", b"A: " + b"x" * 20000 + b"\r\n", "HEAD"), 431),
            (get("/" + "x" * 20000, method="HEAD"), 414),
            (get("/", b"Bad Name: x\r\n", "HEAD"), 400),
            (get("/", b"Content-Length: x\r\n", "HEAD"), 400),
            (b"\r\n" + get("/", b"Transfer-Encoding: chunked\r\n", "HEAD"), 411),
            (b"HEAD / HTTP/1.1\r\n\r\n", 400),
            (b"HEAD / HTTP/1.1\r\nHost", 400),
        ):
            with self.subTest(data=data[:50]), self.server.connect() as client:
                client.send(data)
                client.socket.shutdown(socket.SHUT_WR)
                self.assertEqual(client.reply("HEAD").status, status)
                self.assertEqual(client.buffer, b"")
                self.assertTrue(client.ended())

    def test_preconditions(self) -> None:
        modified = self.server.ask("/small.txt").headers["last-modified"]
        old, new = "Thu, 01 Jan 1970 00:00:00 GMT", "Thu, 01 Jan 2037 00:00:00 GMT"
        for headers, status in (
            ("If-None-Match: *", 304),
            ("If-None-Match: * ", 304),
            ('If-None-Match: "*"', 200),
            ("If-Match: *", 200),
            ('If-Match: "x"', 412),
            (f"If-Unmodified-Since: {modified}", 200),
            (f"If-Unmodified-Since: {new}", 200),
            (f"If-Unmodified-Since: {old}", 412),
            (f"If-Match: *\r\nIf-Unmodified-Since: {old}", 200),
            (f"If-Unmodified-Since: {new}\r\nIf-Modified-Since: {modified}", 304),
            (f"If-Unmodified-Since: {old}\r\nIf-None-Match: *", 412),
            ("If-Unmodified-Since: nonsense", 200),
        ):
            with self.subTest(headers=headers), self.server.connect() as client:
                for length in ("", "Content-Length: 1\r\n"):
                    client.send(get("/small.txt", f"{length}{headers}\r\n".encode()))
                    if length:
                        client.send(b"x")
                    self.assertEqual(client.reply().status, status)
                client.send(get("/nothing", f"{headers}\r\n".encode()))
                self.assertEqual(client.reply().status, 404)

    def test_all_forms_of_dates(self) -> None:
        path = self.root / "forms.txt"
        path.write_text("x")
        os.utime(path, (784111777, 784111777))
        for date, status in (
            ("Sun, 06 Nov 1994 08:49:37 GMT", 304),
            ("Sun, 06 Nov 1994 08:49:36 GMT", 200),
            ("Sunday, 06-Nov-94 08:49:37 GMT", 304),
            ("Sunday, 06-Nov-94 08:49:36 GMT", 200),
            ("Sun Nov  6 08:49:37 1994", 304),
            ("Sun Nov  6 08:49:36 1994", 200),
            ("Sun, 06 Nov 1994 08:49:37 GMT ", 304),
            ("Sun, 06 Nov 1994 08:49:37 GMT; length=1", 200),
            ("Sunday, 06-Nov-94 08:49:37 GMT x", 200),
            ("Sun Nov  6 08:49:37 1994 GMT", 200),
        ):
            with self.subTest(date=date):
                header = f"If-Modified-Since: {date}\r\n".encode()
                self.assertEqual(self.server.ask("/forms.txt", header).status, status)

    def test_truncated(self) -> None:
        whole = get("/one.txt", b"Accept: text/html\r\n")
        for end in range(1, len(whole)):
            self.check(whole[:end], 400)
        self.check(get("/one.txt", b"Content-Length: 9\r\n") + b"short", 400)
        self.check(b"")

    def test_long_heads(self) -> None:
        room = 16384 - len(get("/one.txt", b"A: \r\n"))
        self.check(get("/one.txt", b"A: " + b"x" * room + b"\r\n"), 200)
        self.check(get("/one.txt", b"A: " + b"x" * (room + 1) + b"\r\n"), 431)
        three = get("/one.txt") * 3
        self.check(three + get("/", b"A: " + b"x" * 100000 + b"\r\n"), *[200] * 3, 431)
        self.check(get("/" + "x" * 16300), 404)
        self.check(get("/" + "x" * 20000), 414)
        self.check(three + get("/" + "x" * 20000), *[200] * 3, 414)
        self.check(get("/", b"A: b\r\n" * 5000), 431)

    def test_the_answer_survives_unread_input(self) -> None:
        # Closing a socket with unread input sends a reset, which may overtake the answer.
        for _ in range(20):
            with self.server.connect() as client:
                client.send(get("/", b"A: " + b"x" * 500000 + b"\r\n"))
                self.assertEqual(client.reply().status, 431)

    def test_bodies(self) -> None:
        tail = get("/one.txt")
        for count in (1, 1000, 1024, 5000, 65536):
            body = get("/small.txt", f"Content-Length: {count}\r\n".encode()) + b"x" * count
            self.check(body + tail, 200, 200)
        self.check(get("/", b"Content-Length: 65537\r\n") + b"x" * 65537 + tail, 413)
        chunked = get("/small.txt", b"Transfer-Encoding: chunked\r\n")
        self.check(chunked + b"5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n" + tail, 411)
        self.check(chunked + b"1\r\nx\r\n" * 65537 + b"0\r\n\r\n" + tail, 411)
        posted = get("/small.txt", b"Transfer-Encoding: chunked\r\n", "POST")
        self.check(posted + b"5\r\nhello\r\n0\r\n\r\n" + tail, 405)
        long = get("/", f"Content-Length: {1 << 40}\r\n".encode(), "PUT")
        self.check(long + b"x" * 300000, 405)

    def test_no_request_is_smuggled(self) -> None:
        # Where two parsers could disagree about the end of a request, nothing after it is answered.
        tail = get("/one.txt")
        for headers, body, status in (
            (b"Transfer-Encoding: chunked\r\n", b"5\r\nhelloXX0\r\n\r\n", 411),
            (b"Transfer-Encoding: chunked\r\n", b"5\nhello\r\n0\r\n\r\n", 411),
            (b"Transfer-Encoding:\r\n chunked\r\n", b"0\r\n\r\n", 400),
            (b"Transfer-Encoding:\r\n", b"", 400),
            (b"Transfer-Encoding : chunked\r\n", b"0\r\n\r\n", 400),
            (b"Transfer-Encoding: xchunked\r\n", b"0\r\n\r\n", 400),
            (b"Transfer-Encoding: chunked, gzip\r\n", b"0\r\n\r\n", 400),
            (b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n", b"0\r\n\r\n", 400),
            (b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n", b"0\r\n\r\n", 400),
            (b"Content-Length : 5\r\n", b"hello", 400),
            (b"Content-Length: +5\r\n", b"hello", 400),
            (b"Content-Length: 5, 5\r\n", b"hello", 400),
            (b"Content-Length: 0x5\r\n", b"hello", 400),
            (b"Content-Length: 5\r\nContent-Length: 6\r\n", b"hello", 400),
            (b"Content-Length:\r\n", b"", 400),
            (b"A: b\nContent-Length: 5\r\n", b"hello", 400),
            (b"A: b\rContent-Length: 5\r\n", b"hello", 400),
            (b"A: b\r\n Content-Length: 5\r\n", b"", 400),
            (b"A: b\r\n\tfolded\r\n", b"", 400),
        ):
            self.check(get("/one.txt", headers) + body + tail, status)
        self.check(b"GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + tail, 411)
        self.check(b"GET / HTTP/1.1\nHost: x\n\n" + tail, 400)

    def test_upgrade_is_ignored(self) -> None:
        upgrade = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\n"
        self.check(get("/one.txt", upgrade) + get("/one.txt"), 200, 200)

    def test_pipelined_requests_are_answered_in_order(self) -> None:
        with self.server.connect() as client:
            client.send(PIPELINE)
            for index, status in enumerate(PIPELINE_STATUS):
                reply = client.reply("HEAD" if index == 2 else "GET")
                self.assertEqual((index, reply.status), (index, status))
                if index == 5:
                    self.assertEqual(reply.body, (self.root / "mega.bin").read_bytes())
            self.assertEqual(reply.body, (self.root / "small.txt").read_bytes())

    def test_ten_thousand_requests_at_once(self) -> None:
        with self.server.connect() as client:
            client.socket.settimeout(60)
            for _ in range(10):
                client.send(get("/one.txt") * 1000)
                for _ in range(1000):
                    self.assertEqual(client.reply().body, b"1")

    def test_every_split_of_requests(self) -> None:
        data = get("/small.txt", b"Content-Length: 2\r\n") + b"ab" + get("/%6fne.txt")
        with self.server.connect() as client:
            for at in range(1, len(data)):
                client.send(data[:at])
                time.sleep(0.0005)
                client.send(data[at:])
                self.assertEqual(len(client.reply().body), 700)
                self.assertEqual(client.reply().body, b"1")

    def test_one_byte_at_a_time(self) -> None:
        with self.server.connect() as client:
            for byte in PIPELINE:
                client.send(bytes([byte]))
            found = [
                client.reply("HEAD" if n == 2 else "GET").status
                for n in range(len(PIPELINE_STATUS))
            ]
            self.assertEqual(found, PIPELINE_STATUS)

    def test_half_closed_client_gets_all_answers(self) -> None:
        self.check(get("/one.txt") * 50, *[200] * 50)
        self.assertEqual(len(self.server.raw(get("/ten.bin"))[0].body), 10 << 20)


class KernelThreads(UserThreads):
    kind = "kernel"


class Constant(unittest.TestCase):
    def test_constant_answer(self) -> None:
        with Server("--respond", "Hello, world!") as server:
            self.assertIn("a constant text", server.line)
            with server.connect() as client:
                client.send(get("/any") + get("/../../x?y") + get("/", method="HEAD"))
                for method in ("GET", "GET", "HEAD"):
                    reply = client.reply(method)
                    self.assertEqual(reply.status, 200)
                    self.assertEqual(reply.headers["content-length"], "13")
                    self.assertEqual(reply.body, b"" if method == "HEAD" else b"Hello, world!")
            self.assertEqual(server.raw(b"nonsense\r\n\r\n")[0].status, 400)

    def test_long_and_empty_texts(self) -> None:
        for count in (0, 1, 300, 500, 5000, 16384, 100000):
            with Server("--respond", "x" * count) as server:
                replies = server.raw(get("/") * 5)
                self.assertEqual([len(r.body) for r in replies], [count] * 5)

    def test_ipv6(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            self.skipTest("IPv6 is not available")
        with Server("--respond", "six", "--address", "::1") as server:
            self.assertRegex(server.line, r"http://\[::1\]:\d+/")
            with socket.create_connection(("::1", server.port)) as client:
                client.sendall(get("/"))
                self.assertTrue(re.search(rb"\r\n\r\nsix$", client.recv(4096)))


if __name__ == "__main__":
    main()
