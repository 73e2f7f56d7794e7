#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse lab http`: real servers under wrk, servers that fail, and sweeps that were interrupted."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from common import BUILD, COMMAND, SOURCE, here, laboratory, rouse

from rouse.lab import sweep, tracepoint, web_clients, web_instances, web_servers
from rouse.lab.sweep import Plan

SMALL = ("--workers", "1", "--connections", "10", "--rounds", "1", "--seconds", "1")
ANYWAY = ("--anyway",)  # pages are written though other tests run
# Prints the figures of a client that did nothing else.
CLIENT = """\
echo '{"requests": 50, "seconds": 0.5, "errors": 0, "latency_p50_us": 7, "latency_p99_us": 9}'
"""
# The same, and counts the processes of the server on that port.
COUNTER = """\
import json, sys
from pathlib import Path
port, seen = sys.argv[1:3]
count = 0
for path in Path("/proc").glob("[0-9]*/cmdline"):
    try:
        words = path.read_bytes().decode().split("\\0")
    except OSError:
        continue
    count += "--port" in words and words[words.index("--port") + 1] == port
with open(seen, "a") as file:
    print(count, file=file)
figures = ("requests", "seconds", "errors", "latency_p50_us", "latency_p99_us")
print(json.dumps(dict.fromkeys(figures, 1)))
"""
# A server that has one fault. Its first connections are those of the start and of the first answer.
SERVER = """\
import os, socket, sys
fault, port = sys.argv[1], int(sys.argv[2])
listener = socket.create_server(("127.0.0.1", port), backlog=100)
asked = 0

def serve(connection):
    global asked
    while request := connection.recv(4096):
        asked += 1
        if fault == "dies" and asked > 1:
            os._exit(7)
        if fault == "hangs" and asked > 1:
            continue
        status = "404 Not Found" if fault == "404" else "200 OK"
        body = "longer" if fault == "lies" and asked > 1 else "short"
        head = f"HTTP/1.1 {status}\\r\\nContent-Length: {len(body)}\\r\\n\\r\\n"
        connection.sendall(b"SSH-2.0\\r\\n\\r\\n" if fault == "ssh" else (head + body).encode())
        if b"Connection: close" in request and fault != "stays":
            break

while True:
    connection, _ = listener.accept()
    try:
        serve(connection)
    except ConnectionError:
        pass
    connection.close()
"""
has_wrk = unittest.skipUnless(shutil.which("wrk"), "wrk is not installed")


def connections_forgotten() -> int:
    """How many closed connections the kernel did not keep, since it has too many."""
    lines = Path("/proc/net/netstat").read_text("ascii").splitlines()
    pairs = zip(lines[::2], lines[1::2], strict=True)
    counts = {
        name: value
        for names, values in pairs
        for name, value in zip(names.split(), values.split(), strict=True)
    }
    return int(counts["TCPTimeWaitOverflow"])


def running_as(word: str) -> list[str]:
    """The processes that have a word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        if any(word in each for each in words) and path.parent.name != str(os.getpid()):
            found.append(" ".join(words))
    return found


class Sweep(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(laboratory())
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.out = self.folder / "out"
        self.file = self.out / "http.jsonl"
        self.path = f"{BUILD / 'serve'}:{os.environ['PATH']}"
        client = self.folder / "client"
        client.write_text(f"#!/bin/sh\n{CLIENT}")
        client.chmod(0o755)
        self.client = ("--client", str(client))
        self.server = self.folder / "server.py"
        self.server.write_text(SERVER)

    def http(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """Run the sweep without nginx, which this machine may have, also if the machine is busy."""
        given = [str(words[at + 1]) for at, word in enumerate(words) if word == "--server"]
        names = ["rouse-serve", *(each.partition("=")[0] for each in given)]
        if "--instances" in words:
            names.append(f"rouse-serve x {words[words.index('--instances') + 1]}")
        only = (*ANYWAY, "--only", ",".join(dict.fromkeys(names)))
        return rouse("lab", "http", *words, *only, PATH=self.path, timeout=110)

    def faulty(self, *faults: str) -> list[str]:
        words = []
        for fault in faults:
            command = f"{sys.executable} {self.server} {fault} {{port}}"
            words += ["--server", f"{fault}={command}"]
        return words

    def lines(self) -> list[dict[str, Any]]:
        """Of the file, without the machine's state at each time that the sweep was continued."""
        lines = [json.loads(line) for line in self.file.read_text().splitlines()]
        return [line for line in lines if sweep.RESUMED not in line]

    def cells(self, lines: Sequence[str]) -> list[list[Any]]:
        keys = ("workers", "connections", "keep_alive", "round")
        rows = [json.loads(line) for line in lines[1:]]
        return [[row[key] for key in keys] for row in rows if sweep.RESUMED not in row]

    def rows(self, done: subprocess.CompletedProcess[str]) -> dict[str, str]:
        """The last row of each server, by its name."""
        return {line.split(" ")[0]: line for line in done.stdout.splitlines()}

    def test_rouse_serve_as_several_processes_has_rows(self) -> None:
        counter = self.folder / "counter"
        counter.write_text(f"#!{sys.executable}\n{COUNTER}")
        counter.chmod(0o755)
        seen = self.folder / "seen"
        done = self.http(
            *("--client", f"{counter} {{port}} {seen}", "--instances", "3"),
            *("--workers", "1", "--connections", "10", "--rounds", "1", "--seconds", "1"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("rouse-serve x 3", done.stdout)
        # A supervisor and three processes.
        self.assertEqual(set(seen.read_text().split()), {"1", "4"})
        done = self.http(*self.client, "--instances", "0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("no list of numbers from 1 to 256", done.stderr)

    def test_a_server_that_is_not_wanted_has_no_row(self) -> None:
        server = ("--server", f"mine={sys.executable} {self.server} well {{port}}")
        words = ("lab", "http", *SMALL, *self.client, *server)
        done = rouse(*words, "--only", "mine", PATH=self.path)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual({line.split()[0] for line in done.stdout.splitlines()[1:]}, {"mine"})
        done = rouse(*words, "--only", "yours", PATH=self.path)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("Node.js, mine", done.stderr)

    @has_wrk
    def test_every_cell_has_figures_and_the_page_shows_them(self) -> None:
        words = ("--workers", "1,2", "--connections", "1,10,50", "--seconds", "1", "--rounds", "1")
        done = self.http(*words, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        about, *results = self.lines()
        self.assertEqual((about["client"], about["seconds"]), ("wrk", 1))
        self.assertIn("address randomisation", {each["name"] for each in about["readings"]})
        asked = subprocess.run(["wrk", "-v"], capture_output=True, text=True).stdout
        (version,) = (each for each in about["versions"] if each.startswith("wrk "))
        self.assertIn(version.removeprefix("wrk "), asked.split("/")[1].split())
        page = (self.out / "http.md").read_text().replace("\\", "")
        self.assertIn(f"Versions: {', '.join(about['versions'])}.", page)
        cells = {(each["workers"], each["connections"], each["keep_alive"]) for each in results}
        self.assertEqual(len(results), 12)
        self.assertEqual(len(cells), 12)
        for each in results:
            with self.subTest(each=each):
                self.assertEqual((each["server"], each["error"]), ("rouse-serve", ""))
                self.assertGreater(each["requests"], 0)
                self.assertGreater(each["requests_per_s"], 0)
                self.assertGreater(each["user_us"] + each["system_us"], 0)
                self.assertLessEqual(each["p50_us"], each["p99_us"])
        self.assertRegex(done.stderr, r"rouse: plan: 12 cells, about \d\d s\n")
        page = (self.out / "http.html").read_text()
        self.assertEqual(page.count("<svg"), 12)  # three for each number of workers and each way
        for link in re.findall(r'(?:src|href)="([^"]*)', page):
            self.assertTrue(link.startswith("data:"), link)
        self.assertEqual(len(list(self.out.glob("http-*.svg"))), 12)
        self.raw(results)

    def raw(self, results: Sequence[dict[str, Any]]) -> None:
        from pyarrow import parquet

        def ours(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
            return [row for row in rows if row["server"] == "rouse-serve"]

        self.assertEqual(ours(parquet.read_table(self.out / "http.parquet").to_pylist()), results)

    def test_our_own_client_without_wrk(self) -> None:
        self.path = f"{BUILD / 'serve'}:{BUILD / 'bench'}"  # without wrk
        done = self.http(*SMALL, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        about, result = self.lines()
        self.assertEqual((about["client"], result["keep_alive"]), ("bench-http-client", True))
        self.assertGreater(result["requests"], 0)

    def test_the_warm_up_of_a_client_counts_as_work_of_the_server(self) -> None:
        (self.folder / "client").write_text(
            "#!/bin/sh\n" + CLIENT.replace("{", '{"warm_up_requests": 7, ', 1)
        )
        (self.folder / "client").chmod(0o755)
        running = mock.Mock(port=1)
        figures = web_clients.Given(self.client[1]).ask(running, web_clients.Load(1, True, 1))
        self.assertEqual((figures.requests, figures.served), (50, 57))

    def test_csv_without_pyarrow(self) -> None:
        find = importlib.util.find_spec

        def without(name: str, *more: Any) -> Any:
            return None if name == "pyarrow" else find(name, *more)

        with mock.patch("importlib.util.find_spec", without):
            here("lab", "http", *SMALL, *self.client, "-o", self.out, *ANYWAY, PATH=self.path)
        head, row, *_ = (self.out / "http.csv").read_text().splitlines()
        self.assertTrue(head.startswith("server,workers,connections,keep_alive,round,requests,"))
        self.assertTrue(row.startswith("rouse-serve,1,10,True,1,50,100.0,"))

    def test_an_interrupted_sweep_continues_behind_its_last_whole_line(self) -> None:
        words = ("--workers", "1,2", "--connections", "1,2", "--rounds", "2", *self.client)
        done = self.http(*words, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        before = self.file.read_text()
        lines = before.splitlines(keepends=True)
        self.assertEqual(len(lines), 9)
        for torn in ("", lines[7][:30]):
            self.file.write_text("".join(lines[:7]) + torn)
            refused = self.http(*words, "-o", self.out)
            self.assertEqual((refused.returncode, refused.stderr.count("\n")), (3, 1))
            done = self.http(*words, "-o", self.out, "--resume")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("plan: 2 cells", done.stderr)
            after = self.file.read_text().splitlines(keepends=True)
            self.assertEqual(after[:7], lines[:7])
            self.assertEqual(self.cells(after), self.cells(lines))
        page = (self.out / "http.md").read_text()
        self.assertEqual(page.count("The sweep was continued: the machine was "), 1)
        self.assertIn("- rouse-serve: rouse-serve --port PORT --respond ", page)
        other = self.http(*words, "-o", self.out, "--resume", "--seconds", "3")
        self.assertEqual(other.returncode, 3)
        self.assertIn("was measured with client and --seconds 2", other.stderr)

    def test_a_cell_that_failed_is_run_again(self) -> None:
        words = (*SMALL, *self.client, *ANYWAY, "-o", str(self.out))
        with mock.patch("rouse.lab.web_servers.runs.program", return_value=Path("/nowhere/serve")):
            done = here("lab", "http", *words, "--only", "rouse-serve")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(self.rows(done)["rouse-serve"], "it does not start: No such file")
        done = self.http(*words, "--resume")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([each["error"] != "" for each in self.lines()[1:]], [True, False])
        self.assertNotIn("No such file", done.stdout)

    def test_a_peer_that_fails_is_named_in_its_row_and_the_sweep_goes_on(self) -> None:
        faults = self.faulty("404", "ssh")
        missing = ("--server", "missing=/nowhere/server {port}")
        ends = ("--server", "ends=sh -c 'echo no room >&2; exit 3' {port}")
        done = self.http(*SMALL, *self.client, *faults, *missing, *ends)
        self.assertEqual(done.returncode, 1, done.stderr)
        rows = self.rows(done)
        self.assertIn("it answers with status 404", rows["404"])
        self.assertIn("its answer is not HTTP/1.1", rows["ssh"])
        self.assertIn("it does not start: No such file", rows["missing"])
        self.assertIn("it ended with status 3: no room", rows["ends"])
        self.assertRegex(rows["rouse-serve"], r" 1 +10 +yes +100 ")

    @has_wrk
    def test_a_peer_that_dies_or_lies_under_load_is_named(self) -> None:
        words = ("--workers", "1", "--connections", "1", "--rounds", "1", "--seconds", "1")
        done = self.http(*words, *self.faulty("dies", "lies", "stays", "well"))
        self.assertEqual(done.returncode, 1, done.stderr)
        said = done.stderr
        self.assertRegex(said, r"dies: (it died, with status 7|no request was answered)")
        wrong = r"lies: wrong answers: the answers have \d+\.\d bytes on average"
        self.assertEqual(len(re.findall(wrong, said)), 2)  # connections kept alive, and not
        self.assertIn("stays: it does not answer and close the connection within 5 s", said)
        self.assertNotIn("well: ", said)

    def test_a_peer_that_hangs_under_load_is_named(self) -> None:
        """The client sees no error: what was answered before, it counts."""
        done = self.http(*SMALL, *self.client, *self.faulty("hangs"))
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("after the load it does not answer within 5 s", self.rows(done)["hangs"])
        self.assertRegex(self.rows(done)["rouse-serve"], r" 1 +10 +yes +100 ")

    def test_a_client_that_counts_more_than_the_server_had_time_for_is_not_believed(self) -> None:
        (self.folder / "client").write_text(f"#!/bin/sh\n{CLIENT.replace('50,', '100000000,')}\n")
        done = self.http(*SMALL, *self.client)
        self.assertEqual(done.returncode, 1, done.stderr)
        said = "the client counts 100,000,000 requests, for which the server ran 0.0"
        self.assertIn(said, self.rows(done)["rouse-serve"])

    @has_wrk
    def test_system_calls_are_counted_where_they_may_be(self) -> None:
        """By epoll two at least for each request, to read and to write. io_uring needs fewer."""
        with tracepoint.counting(os.getpid()) as counter:
            if counter is None:
                self.skipTest("not run: tracepoints are not visible here")
        with mock.patch.dict(os.environ, {"ROUSE_IO": "epoll"}):
            done = self.http(*SMALL, "-o", self.out)
        self.assertEqual(done.returncode, 0, done.stderr)
        calls = {each["keep_alive"]: each["calls"] for each in self.lines()[1:]}
        self.assertGreaterEqual(calls[True], 2)
        self.assertGreater(calls[False], calls[True])

    def test_why_system_calls_are_not_counted_is_said_and_none_is_no_zero(self) -> None:
        with mock.patch.object(tracepoint, "ID_FILES", ()):
            done = here(
                "lab", "http", *SMALL, *self.client, *ANYWAY, "-o", self.out, PATH=self.path
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        why = "no tracepoint is visible here; rouse doctor says why"
        self.assertIn(f"system calls are not counted: {why}", done.stderr)
        self.assertIn(f"not counted: {why}", (self.out / "http.md").read_text().replace("\\", ""))
        self.assertEqual({row["calls"] for row in self.lines()[1:]}, {None})

    def test_an_older_file_has_0_for_system_calls_that_were_not_counted(self) -> None:
        about = {"client": "wrk", "seconds": 1, "machine": "m", "date": "d", "readings": []}
        row = {"server": "s", "workers": 1, "connections": 1, "keep_alive": True, "round": 1}
        for version, counted in ((sweep.OLDER, None), (sweep.FORMAT, 0.0)):
            lines = [{sweep.MARK: version, **about}, {**row, "calls": 0.0}, {**row, "calls": 2.0}]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            _, results, _ = sweep.read(io.StringIO(text))
            self.assertEqual([result.calls for result in results], [counted, 2.0])

    def test_a_client_that_fails_is_named(self) -> None:
        for script, said in (
            ("echo no ports >&2; exit 2", "the client failed: no ports"),
            ("echo hello", "is no JSON with requests"),
            (CLIENT.replace("50,", "-1,"), "negative or no number"),
            (CLIENT.replace("50,", "NaN,"), "negative or no number"),
            (CLIENT.replace("50,", "0,"), "no request was answered"),
        ):
            (self.folder / "client").write_text(f"#!/bin/sh\n{script}\n")
            done = self.http(*SMALL, *self.client)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn(said, self.rows(done)["rouse-serve"])

    def test_too_few_descriptors_are_the_limit_of_a_row(self) -> None:
        def lower() -> None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))

        done = subprocess.run(
            [*COMMAND, "lab", "http", *SMALL[:2], "--connections", "10,1000", *self.client],
            env={**os.environ, "PATH": self.path, "PYTHONPATH": str(SOURCE)},
            preexec_fn=lower,
            capture_output=True,
            text=True,
            timeout=60,
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        said = (
            r"(?m)^rouse-serve .* 1,000 .*1,064 descriptors are needed, 200 allowed.*descriptors$"
        )
        self.assertRegex(done.stdout, said)
        self.assertRegex(done.stdout, r"(?m)^rouse-serve .* 10 +yes +100 ")

    def test_a_saturated_client_and_used_ports_are_limits(self) -> None:
        def limits(share: float, ports: float) -> str:
            with mock.patch("rouse.lab.web_clients.ports_used", return_value=ports):
                return web_clients.limits(web_clients.Figures(1, 1, 0, 1, 1, 1, share), 80)

        self.assertEqual(limits(0.5, 0.1), "")
        self.assertEqual(limits(0.98, 0.1), "client")
        self.assertEqual(limits(0.98, 0.95), "client, ports")

    def test_a_port_of_a_closed_connection_is_used(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            before, forgotten = web_clients.ports_used(port), connections_forgotten()
            client = socket.create_connection(("127.0.0.1", port))
            served, _ = listener.accept()
            served.close()  # the end that closes first waits
            self.assertEqual(client.recv(1), b"")
            client.close()
            if connections_forgotten() > forgotten:
                self.skipTest("not run: the kernel has no room for more closed connections")
            # Another test may have left some of this port. A list of many connections may lack one,
            # while others end.
            self.assertTrue(any(web_clients.ports_used(port) > before for _ in range(100)))

    def test_no_cell_begins_when_the_time_is_over(self) -> None:
        said: list[str] = []
        plan = Plan([], [1], [10], 1, 1)
        cells = [sweep.Cell("gone", 1, 10, True, 1)]
        client = web_clients.Given("true")
        left = list(sweep.run(plan, cells, client, 1000, time.monotonic() - 1, said.append))
        self.assertEqual((left, len(said)), ([], 1))
        self.assertIn("1 of 1 cells were not run", said[0])

    def test_a_server_that_cannot_close_connections_has_only_rows_of_kept_ones(self) -> None:
        raw = [server for server in web_servers.known() if server.name in web_servers.RAW]
        cells = Plan(raw, [1, 2], [10], 1, 1).cells(web_clients.Given("true {keep_alive}"))
        self.assertEqual([(cell.workers, cell.keep_alive) for cell in cells], [(1, True)] * 2)

    def test_a_page_has_the_commands_and_settings_of_its_servers(self) -> None:
        for server in (*web_servers.known(), web_servers.given("mine", "serve -p {port}")):
            if server.name == web_servers.NGINX_NAME and not web_servers.nginx_program():
                continue
            # Also those that are not built.
            with mock.patch("rouse.lab.web_servers.runs.program", Path):
                command, *settings = web_servers.in_words(server)
            if server.name == web_servers.NGINX_NAME:
                self.assertIn("listen 127.0.0.1:PORT backlog=", settings[0])
                self.assertIn("worker_processes WORKERS;", settings[0])
            else:
                self.assertEqual((command.count("PORT"), settings), (1, []), command)
            self.assertEqual(server.has_workers, "WORKERS" in " ".join((command, *settings)))

    def test_damaged_results_are_refused(self) -> None:
        texts = {"client": "c", "machine": "", "date": ""}
        good = json.dumps({sweep.MARK: 1, **texts, "seconds": 2, "readings": []}) + "\n"
        row = {"server": "s", "workers": 1, "connections": 1, "keep_alive": True, "round": 1}
        self.out.mkdir()
        for text in (
            "",
            "\n",
            "{}\n",
            "[]\n",
            "\xff\n",
            good.replace(": 2,", ': "2",'),
            good.replace("[]", "[1]"),
            good.replace('"readings"', '"versions": [1], "readings"'),
            good.replace('"readings"', '"versions": "1", "readings"'),
            good + "null\n",
            good + json.dumps(row | {"workers": "1"}) + "\n",
            good + json.dumps(row | {"p50_us": math.nan}) + "\n",
            good + json.dumps(row | {"p50_us": -1.0}) + "\n",
            good + json.dumps(row | {"requests": 10**400}) + "\n",
            good + json.dumps(row | {"other": 1}) + "\n",
        ):
            self.file.write_text(text, "latin-1")
            done = here(
                *("lab", "http", *SMALL, *self.client),
                *("-o", self.out, *ANYWAY, "--resume"),
                PATH=self.path,
            )
            self.assertEqual(done.returncode, 3, text)
            said = done.stderr.splitlines()[-1]
            if text.startswith(good):
                self.assertIn("line 2 is not a row of rouse lab http; remove that line", said)
            else:
                self.assertIn("is not a file of rouse lab http; remove it", said)
            self.assertEqual(self.file.read_text("latin-1"), text)

    def test_bad_input_is_one_line_before_the_run(self) -> None:
        for words, status in (
            (("--resume",), 2),
            (("--resume", "-o", str(self.folder / "none")), 3),
            (("--workers", "0"), 2),
            (("--connections", "10,x"), 2),
            (("--server", "name=prog"), 2),
            (("--server", "nginx=prog {port}"), 2),
            (("--server", "name='prog {port}"), 2),
            (("--server", "name= {port"), 2),
            (("--server", "a,b=prog {port}"), 2),
            (("--client", "'client"), 2),
            (("--client", ""), 2),
            (("--client", "/nowhere/client"), 3),
            (("-o", "/proc/pages"), 3),
        ):
            done = here("lab", "http", *words)
            self.assertEqual((done.returncode, done.stdout), (status, ""), words)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_a_signal_leaves_no_process_and_whole_lines(self) -> None:
        (self.folder / "client").write_text('#!/bin/sh\necho "$1" >>"$0.said"\nexec sleep 60\n')
        client = ("--client", f"{self.client[1]} {{port}}")
        for number, status in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)):
            out = self.folder / f"out-{number}"
            started = subprocess.Popen(
                [*COMMAND, "lab", "http", *SMALL, *client, "-o", str(out), "--anyway"],
                env={**os.environ, "PATH": self.path, "PYTHONPATH": str(SOURCE)},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            self.addCleanup(started.kill)
            said = self.folder / "client.said"
            while not (said.exists() and said.read_text()):
                self.assertIsNone(started.poll())
                time.sleep(0.01)
            port = said.read_text().strip()
            said.unlink()
            started.send_signal(number)
            told = started.communicate(timeout=30)[1]
            self.assertEqual(started.returncode, status)
            kept = f"interrupted: {out}/http.jsonl has 0 cells; --resume goes on there"
            self.assertIn(kept, told)
            self.assertEqual([p.name for p in out.iterdir()], ["http.jsonl"])
            self.assertEqual(len((out / "http.jsonl").read_text().splitlines()), 1)
            left = [words for words in running_as("rouse-serve") if port in words.split()]
            self.assertEqual(left + running_as(str(self.folder / "client")), [])


class Instances(unittest.TestCase):
    """rouse-serve in the second half of E6."""

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "one worker never waits for its own lock")
    def test_a_request_waits_less_for_the_lock_of_a_process_of_its_own(self) -> None:
        path = f"{BUILD / 'serve'}:{os.environ['PATH']}"
        processors = len(os.sched_getaffinity(0))
        with laboratory(), mock.patch.dict(os.environ, {"PATH": path}):
            one, several = (
                web_instances.measured(count, 4 * processors, 1) for count in (1, processors)
            )
        self.assertEqual((one["processes"], several["processes"]), (1, processors))
        # Each request holds the lock for that time, and computes meanwhile.
        self.assertGreater(one["user_us"], web_instances.LOCK_US * 0.9)
        self.assertGreater(1e6 / one["per_s"], web_instances.LOCK_US)
        # Little, if other programs leave the workers one processor: a holder is then not met.
        self.assertGreater(one["lock_wait_us"], 0)
        self.assertLess(several["lock_wait_us"], one["lock_wait_us"])
        self.assertRegex(one["remark"], r"^rouse report: \S")


if __name__ == "__main__":
    unittest.main(verbosity=2)
