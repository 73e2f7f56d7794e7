# SPDX-License-Identifier: MIT
"""The ports in examples/ports: how their two forms differ, and what each form costs.

A server is loaded over real sockets by this process, with a fixed number of requests in flight.
Only the server's own CPU time and context switches are counted, so this process may be slow.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tables import paired
from tables.render import Table, interval, number

FORMS = ("pthread", "rouse")
NAMES = {"pthread": "pthreads", "rouse": "rouse"}
SERVERS = ("kv", "forward")
LIMIT_S = 60
IN_FLIGHT = 64
VALUE_BYTES = 100
MEMINFO = Path("/proc/meminfo")
KERNEL_STACK = re.compile(r"^KernelStack:\s*(\d+) kB", re.M)
RESIDENT = re.compile(r"^(?:VmRSS|VmPTE):\s*(\d+) kB", re.M)
SWITCHES = re.compile(r"^(?:non)?voluntary_ctxt_switches:\s*(\d+)", re.M)


# How the forms differ.


def code(path: Path) -> list[str]:
    """The lines of a program after the comment at its head."""
    return path.read_text(encoding="utf-8").split("\n */\n", 1)[1].splitlines()


def difference(source: Path, name: str) -> str:
    """The changed lines of a program. A change that several places have is shown once."""
    old, new = (code(source / f"{name}_{form}.c") for form in FORMS)
    places: Counter[str] = Counter()
    changed = 0
    for kind, a, b, c, d in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "equal":
            continue
        changed += d - c
        pairs = [(old[a:b], new[c:d])]
        if b - a == d - c:
            pairs = [([one], [other]) for one, other in zip(old[a:b], new[c:d], strict=True)]
        for before, after in pairs:
            lines = [f"-{line.strip()}" for line in before if line]
            lines += [f"+{line.strip()}" for line in after if line]
            places["\n".join(lines)] += 1
    del places[""]
    shown = [f"{changed} of {len(new)} lines differ.", "", "```diff"]
    for count, group in itertools.groupby(places.items(), lambda place: place[1]):
        shown += [
            f"@@ {count} {'places' if count > 1 else 'place'} each @@",
            *(one for one, _ in group),
        ]
    return "\n".join([*shown, "```"])


# The cost of a server.


@dataclass(frozen=True)
class Cost:
    memory_kib: float = 0  # of one connection: resident, with page tables
    kernel_kib: float = 0  # of one connection: kernel stacks
    switches: float = 0  # of one operation
    cpu_us: float = 0  # of one operation


def read(path: Path) -> str:
    """A file of /proc. Empty if its thread has ended."""
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""


def added(pattern: re.Pattern[str], text: str) -> int:
    return sum(int(found) for found in pattern.findall(text))


def cpu_and_switches(pid: int) -> tuple[int, int]:
    """The CPU time (ns) and the context switches of all threads of a process so far."""
    tasks = list(Path(f"/proc/{pid}/task").iterdir())
    cpu_ns = sum(int((read(task / "schedstat") or "0").split()[0]) for task in tasks)
    return cpu_ns, sum(added(SWITCHES, read(task / "status")) for task in tasks)


@contextlib.contextmanager
def running(program: Path, *arguments: str) -> Iterator[tuple[int, int]]:
    """A server on a free port: its process and its port."""
    with subprocess.Popen([program, "0", *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            found = re.search(r":(\d+)$", process.stdout.readline())
            assert found, f"{program} does not listen"
            yield process.pid, int(found[1])
            process.send_signal(signal.SIGTERM)
            status = process.wait(LIMIT_S)
            assert status == 0, f"{program}: status {status}"
        finally:
            process.kill()


class Answers:
    """Wait until each of several sockets has sent as many bytes as expected."""

    def __init__(self) -> None:
        self.epoll = select.epoll()
        self.sockets: dict[int, socket.socket] = {}

    def add(self, one: socket.socket) -> None:
        one.setblocking(False)
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.epoll.register(one, select.EPOLLIN)
        self.sockets[one.fileno()] = one

    def receive(self, expected: dict[int, int]) -> None:
        while expected:
            events = self.epoll.poll(LIMIT_S)
            assert events, f"no answer for {LIMIT_S} s"
            for fd, _ in events:
                got = len(self.sockets[fd].recv(65536))
                assert got, "the server closed a connection"
                expected[fd] -= got
                if expected[fd] == 0:
                    del expected[fd]

    def close(self) -> None:
        self.epoll.close()
        for one in self.sockets.values():
            one.close()


class KvLoad:
    """Gets of values of VALUE_BYTES; each connection has a key of its own."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.clients: list[socket.socket] = []
        self.answers = Answers()

    def connect(self) -> None:
        client = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        self.answers.add(client)
        key = len(self.clients)
        client.sendall(f"set k{key} 0 0 {VALUE_BYTES}\r\n{'v' * VALUE_BYTES}\r\n".encode())
        self.answers.receive({client.fileno(): len("STORED\r\n")})
        self.clients.append(client)

    def exchange(self, chosen: list[int]) -> None:
        expected = {}
        for key in chosen:
            head = f"VALUE k{key} 0 {VALUE_BYTES}\r\n"
            expected[self.clients[key].fileno()] = len(head) + VALUE_BYTES + len("\r\nEND\r\n")
            self.clients[key].sendall(f"get k{key}\r\n".encode())
        self.answers.receive(expected)

    def close(self) -> None:
        self.answers.close()


class ForwardLoad:
    """A message of VALUE_BYTES through the forwarder, and one back."""

    def __init__(self, port: int, target: socket.socket) -> None:
        self.port, self.target = port, target
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.answers = Answers()

    def connect(self) -> None:
        client = socket.create_connection(("127.0.0.1", self.port), LIMIT_S)
        peer, _ = self.target.accept()
        self.answers.add(client)
        self.answers.add(peer)
        self.pairs.append((client, peer))
        self.exchange([len(self.pairs) - 1])

    def exchange(self, chosen: list[int]) -> None:
        for sender, receiver in ((0, 1), (1, 0)):
            for one in chosen:
                self.pairs[one][sender].sendall(b"v" * VALUE_BYTES)
            self.answers.receive(
                {self.pairs[one][receiver].fileno(): VALUE_BYTES for one in chosen}
            )

    def close(self) -> None:
        self.answers.close()


def loaded(pid: int, load: KvLoad | ForwardLoad, connections: int, operations: int) -> Cost:
    status = Path(f"/proc/{pid}/status")
    load.connect()  # the first one starts what is not per connection
    memory = added(RESIDENT, read(status))
    stacks = added(KERNEL_STACK, read(MEMINFO))
    for _ in range(connections - 1):
        load.connect()
    memory = added(RESIDENT, read(status)) - memory
    stacks = added(KERNEL_STACK, read(MEMINFO)) - stacks
    chance = random.Random(1)
    batch = min(IN_FLIGHT, connections)
    load.exchange(chance.sample(range(connections), batch))
    cpu_ns, switches = cpu_and_switches(pid)
    rounds = max(1, operations // batch)
    for _ in range(rounds):
        load.exchange(chance.sample(range(connections), batch))
    cpu_after, switches_after = cpu_and_switches(pid)
    load.close()
    done = rounds * batch
    return Cost(
        memory / (connections - 1),
        stacks / (connections - 1),
        (switches_after - switches) / done,
        (cpu_after - cpu_ns) / 1e3 / done,
    )


def server_cost(programs: Path, name: str, form: str, connections: int, operations: int) -> Cost:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    program = programs / f"example_port_{name}_{form}"
    if name == "kv":
        with running(program) as (pid, port):
            return loaded(pid, KvLoad(port), connections, operations)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as target:
        target_port = str(target.getsockname()[1])
        with running(program, "127.0.0.1", target_port) as (pid, port):
            return loaded(pid, ForwardLoad(port, target), connections, operations)


def words_cost(programs: Path, form: str, threads: int, files: list[str]) -> Cost:
    """An operation is a file; a connection's figures are zero."""
    program = str(programs / f"example_port_words_{form}")
    words = [program, str(threads), *files]
    pid = os.posix_spawn(
        program,
        words,
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, used = os.wait4(pid, 0)
    assert status == 0, f"{program}: status {status}"
    cpu_us = (used.ru_utime + used.ru_stime) * 1e6
    return Cost(switches=(used.ru_nvcsw + used.ru_nivcsw) / len(files), cpu_us=cpu_us / len(files))


# Tables.

Pairs = dict[str, list[Cost]]  # the costs of each form, measured in turn


def row(label: str, costs: list[Cost], with_memory: bool) -> list[str]:
    def cell(figure: str) -> str:
        spread = paired.spread([getattr(cost, figure) for cost in costs])
        return f"{number(spread.median)} ({number(spread.least)}..{number(spread.most)})"

    memory = ("memory_kib", "kernel_kib") if with_memory else ()
    return [label, *(cell(figure) for figure in (*memory, "switches", "cpu_us"))]


def ratio(label: str, pairs: Pairs) -> str:
    ours, theirs = ([cost.cpu_us for cost in pairs[form]] for form in ("rouse", "pthread"))
    return f"CPU time of rouse / pthreads{label}: {interval(paired.ratio(ours, theirs))}"


def server_table(name: str, measured: dict[int, Pairs]) -> Table:
    head = ["connections, form", "memory, KiB", "kernel stacks, KiB", "switches", "CPU time, µs"]
    table = Table(name, head)
    for connections, pairs in measured.items():
        for form in FORMS:
            label = f"{connections:,}, {NAMES[form]}"
            table.rows.append(row(label, pairs[form], with_memory=True))
        table.after.append(ratio(f", {connections:,} connections", pairs))
    return table


def words_table(measured: dict[int, Pairs]) -> Table:
    table = Table("words", ["threads, form", "switches", "CPU time, µs"])
    for threads, pairs in measured.items():
        for form in FORMS:
            label = f"{threads}, {NAMES[form]}"
            table.rows.append(row(label, pairs[form], with_memory=False))
        table.after.append(ratio(f", {threads} threads", pairs))
    return table


@dataclass(frozen=True)
class Scale:
    pairs: int = 7
    connections: tuple[int, ...] = (1000, 4000)
    operations: int = 40_000
    threads: tuple[int, ...] = (2, 16)
    files: int = 500
    file_bytes: int = 100_000


QUICK = Scale(2, (20,), 200, (2,), 10, 5000)


def measure(programs: Path, scale: Scale) -> dict[str, Table]:
    tables = {}
    for name in SERVERS:
        measured = {}
        for connections in scale.connections:
            pairs: Pairs = {form: [] for form in FORMS}
            for _ in range(scale.pairs):
                for form in FORMS:
                    cost = server_cost(programs, name, form, connections, scale.operations)
                    pairs[form].append(cost)
            measured[connections] = pairs
        tables[name] = server_table(name, measured)
    with tempfile.TemporaryDirectory() as folder:
        line = "the quick brown fox jumps over the lazy dog\n"
        text = line * (scale.file_bytes // len(line))
        files = [str(Path(folder) / f"{i}.txt") for i in range(scale.files)]
        for path in files:
            Path(path).write_text(text, encoding="ascii")
        of_threads: dict[int, Pairs] = {}
        for threads in scale.threads:
            pairs = {form: [] for form in FORMS}
            for _ in range(scale.pairs):
                for form in FORMS:
                    pairs[form].append(words_cost(programs, form, threads, files))
            of_threads[threads] = pairs
    tables["words"] = words_table(of_threads)
    return tables
