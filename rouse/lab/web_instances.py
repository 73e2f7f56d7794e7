# SPDX-License-Identifier: MIT
"""rouse-serve as one process and as several, each with a lock that its connections share.

The processes share this machine's processors and the clients, like the databases in E6.
"""

from __future__ import annotations

import json
import os
from typing import Any

from rouse.lab import web_clients, web_servers
from rouse.lab.database_servers import rouse, run
from rouse.lab.databases import verdict
from rouse.lab.processes import tree
from rouse.lab.web_clients import Load
from rouse.lab.web_servers import Running, Server, ServerError

LOCK_US = 20  # for which a connection holds the lock before each answer
REPORT_S = 120


def workers_of(instances: int) -> int:
    """Return the workers of each instance: in sum one per processor, if there are enough."""
    return max(len(os.sched_getaffinity(0)) // instances, 1)


def with_lock(instances: int) -> Server:
    server = web_servers.instances(instances)
    return Server(
        server.name,
        lambda folder, port, workers: [
            *server.command(folder, port, workers),
            *("--shared-lock", str(LOCK_US)),
        ],
    )


def reports(running: Running) -> list[dict[str, Any]]:
    """Return what the instances have recorded. A supervisor, if there is one, records nothing."""
    supervisor, *others = tree(running.process.pid)
    pids = others or [supervisor]
    return [json.loads(run(*rouse("report", "--json", str(pid)), timeout=REPORT_S)) for pid in pids]


def measured(instances: int, clients: int, seconds: float) -> dict[str, Any]:
    """Return the figures of a request, under the names of those of a database's transaction.

    clients: those of all instances.
    """
    load = Load(clients, True, max(round(seconds), 1))
    with web_servers.started(with_lock(instances), workers_of(instances), True) as running:
        before = running.cpu_s()
        figures = web_clients.default().ask(running, load)
        after = running.cpu_s()
        found = reports(running)
        running.check()
    if figures.wrong or not figures.served:
        raise ServerError(f"wrong answers: {figures.wrong}" if figures.wrong else "no answers")
    waited_ns = sum(row["lock_wait_ns"] for each in found for row in each["sections"]["totals"])
    return {
        "clients": clients,
        "per_s": figures.requests / figures.seconds,
        "user_us": (after[0] - before[0]) * 1e6 / figures.served,
        "system_us": (after[1] - before[1]) * 1e6 / figures.served,
        "lock_wait_us": waited_ns / 1000 / figures.served,
        "processes": len(found),
        "remark": f"rouse report: {verdict(found[0])}",
    }
