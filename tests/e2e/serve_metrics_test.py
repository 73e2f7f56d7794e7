# SPDX-License-Identifier: MIT
"""rouse-serve --metrics: the figures follow the requests, and a strict parser accepts them."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
import unittest
import unittest.mock

from serve_common import KINDS, PROGRAM, Client, Reply, Server, eventually, get, main

CONNECTIONS_MOST = 8
FULL = ("--max-connections", "4", "--per-address", "0")
KEPT_S = 0.1  # seconds that an answer is cached
NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\[\\"n])*"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)\}})? (\d+(?:\.\d+)?)")
Samples = dict[tuple[str, str], float]


def parsed(body: bytes) -> Samples:
    """Check every line against the format: HELP, TYPE, then the samples of that name, each once."""
    text = body.decode()
    assert text.endswith("\n") and "\r" not in text
    values: Samples = {}
    kinds: dict[str, str] = {}
    name = helped = ""
    for line in text.splitlines():
        if about := re.fullmatch(rf"# HELP ({NAME}) \S.*", line):
            helped = about[1]
            assert helped not in kinds, line
            continue
        if sort := re.fullmatch(rf"# TYPE ({NAME}) (counter|gauge)", line):
            name = sort[1]
            assert name == helped, line
            assert (sort[2] == "counter") == name.endswith("_total"), line
            kinds[name] = sort[2]
            continue
        sample = SAMPLE.fullmatch(line)
        assert sample and sample[1] == name, line
        key = (name, sample[2] or "")
        assert key not in values, line
        values[key] = float(sample[3])
    assert {name for name, _ in values} == set(kinds), kinds
    return values


class Figures(Server):
    def start(self) -> None:
        super().start()
        assert self.process.stdout
        line = self.process.stdout.readline().decode()
        found = re.fullmatch(r"rouse-serve: .* at http://(\S+):(\d+)/metrics\n", line)
        assert found, line
        self.metrics_host, self.metrics_port = found[1], int(found[2])

    def figures(self, target: str = "/metrics", method: str = "GET") -> Reply:
        with Client(self.metrics_port) as client:
            client.send(get(target, method=method))
            return client.reply(method)

    def samples(self) -> Samples:
        return parsed(self.figures().body)


class Metrics(unittest.TestCase):
    def server(self, *arguments: str, kind: str = "user") -> Figures:
        return self.enterContext(Figures("--respond", "x", "--metrics", "0", *arguments, kind=kind))

    def follows(self, server: Figures) -> None:
        self.assertEqual(server.metrics_host, "127.0.0.1")
        before = server.samples()
        self.assertEqual(before["rouse_recorded", ""], 1)
        self.assertEqual(before["rouse_serve_answers_total", ""], 0)
        with server.connect() as client:
            for _ in range(20):
                client.send(get("/"))
                client.reply()
            client.send(get("/", method="PUT"))
            client.reply()
            # A cached answer may be this old.
            answers = ("rouse_serve_answers_total", "")
            self.assertTrue(eventually(lambda: server.samples()[answers] == 21))
            after = server.samples()
            self.assertEqual(after["rouse_serve_connections", ""], 1)
        for name, count in (("answers", 21), ("errors", 1), ("connections", 1)):
            self.assertEqual(after[f"rouse_serve_{name}_total", ""], count, name)
        reads = ("rouse_calls_total", 'kind="read"')
        self.assertGreaterEqual(after[reads] - before[reads], 21)
        switches = ("rouse_switches_total", "")
        self.assertGreater(after[switches], before[switches])
        self.assertTrue(eventually(lambda: server.samples()["rouse_serve_connections", ""] == 0))
        later = server.samples()
        self.assertEqual(later["rouse_serve_answers_total", ""], 21)
        for key, value in after.items():
            if key[0].endswith("_total"):
                self.assertGreaterEqual(later[key], value, key)

    def test_values_follow_the_requests(self) -> None:
        for kind in KINDS:
            with self.subTest(kind=kind):
                self.follows(self.server(kind=kind))

    def test_frequent_requests_receive_a_cached_answer(self) -> None:
        """Each new answer counts the reads before it, so equal answers are cached ones."""
        server = self.server()
        bodies = set()
        with Client(server.metrics_port) as client:
            begin_s = time.monotonic()
            for _ in range(500):
                client.send(get("/metrics"))
                bodies.add(client.reply().body)
            made_most = 1 + (time.monotonic() - begin_s) / KEPT_S
        self.assertLessEqual(len(bodies), made_most)
        self.assertTrue(eventually(lambda: server.figures().body not in bodies))

    def test_other_paths_and_methods(self) -> None:
        server = self.server()
        reply = server.figures()
        self.assertEqual(reply.headers["content-type"].split(";")[1], " version=0.0.4")
        for target, method, status in (
            ("/metrics?x=1", "GET", 200),
            ("/metrics", "HEAD", 200),
            ("/", "GET", 404),
            ("/metrics/", "GET", 404),
            ("/Metrics", "GET", 404),
            ("/%zz", "GET", 400),
            ("/metrics", "DELETE", 405),
            ("/metrics", "OPTIONS", 405),
        ):
            with self.subTest(target=target, method=method):
                self.assertEqual(server.figures(target, method).status, status)
        self.assertEqual(server.ask("/metrics").body, b"x")

    def test_silent_clients_do_not_delay_others(self) -> None:
        server = self.server("--idle-timeout", "2", "--header-timeout", "2", *FULL)
        with contextlib.ExitStack() as stack:
            silent = [
                stack.enter_context(Client(server.metrics_port))
                for _ in range(2 * CONNECTIONS_MOST)
            ]
            silent[0].send(b"GET /metr")
            for _ in range(20):
                self.assertEqual(server.ask("/").body, b"x")
            self.assertEqual(server.samples()["rouse_recorded", ""], 1)  # after their time-out
            self.assertEqual(silent[0].reply().status, 408)

    def test_without_a_record_the_server_s_own_figures_remain(self) -> None:
        with unittest.mock.patch.dict("os.environ", ROUSE_OBS="off"):
            server = self.server()
        samples = server.samples()
        self.assertEqual(samples["rouse_recorded", ""], 0)
        self.assertEqual({name for name, _ in samples if "serve" not in name}, {"rouse_recorded"})

    def test_it_drains_with_the_server(self) -> None:
        server = self.server()
        with Client(server.metrics_port) as client:
            client.send(get("/metrics"))
            client.reply()
            server.process.send_signal(signal.SIGTERM)
            self.assertTrue(client.ended())
            self.assertEqual(server.process.wait(20), 0)

    def test_an_address_can_be_given(self) -> None:
        server = self.enterContext(Figures("--respond", "x", "--metrics", "127.0.0.2:0"))
        self.assertEqual(server.metrics_host, "127.0.0.2")

    def test_invalid_addresses_and_ports_are_refused(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            for text, status in (
                ("", 2),
                ("x", 2),
                ("65536", 2),
                ("-1", 2),
                (":80", 2),
                ("127.0.0.1:", 2),
                ("::1:80", 2),
                ("[::1:80", 2),
                ("127.0.0.1:80x", 2),
                ("192.0.2.1:0", 1),
                (f"127.0.0.1:{taken.getsockname()[1]}", 1),
            ):
                with self.subTest(text=text):
                    done = subprocess.run(
                        [PROGRAM, "--port", "0", "--respond", "x", "--metrics", text],
                        capture_output=True,
                        text=True,
                        timeout=20,
                        check=False,
                    )
                    self.assertEqual(done.returncode, status, done.stderr)
                    self.assertRegex(done.stderr, r"\Arouse-serve: [^\n]+\n\Z")
                    self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    main()
