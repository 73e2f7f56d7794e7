# SPDX-License-Identifier: MIT
"""Convert a store to tables, from which every report is made.

Times are in ns, counters are int64; both are sums over the kernel threads that counted them.
`process` identifies the process where tables contain several: host:pid:start, and host:pid:start.N
after N programs that called exec and have recordings of their own. A site is a string,
the hexadecimal form of the store's word. "0x0" is the runtime itself, or not known.
"""

from __future__ import annotations

import dataclasses
import os
import posixpath
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rouse.clock import INT64_MAX, NS
from rouse.sched import procfs
from rouse.store import layout, stacks, states, waiting
from rouse.store.decode import Entries, Head, Store, text_of
from rouse.symbols import runtimes, sites
from rouse.tables import events, futexes, places
from rouse.tables.schemas import (
    CONFINED,
    FAREWELL,
    LAST_EVENT,
    LAST_SEEN,
    OTHERS,
    PRELOAD,
    RUNS,
    SEVERAL_CALLERS,
)
from rouse.tables.table import Table, empty

Tables = dict[str, Table]
Columns = dict[str, Any]

# A wait this long, for something that nobody holds, is a wait for work.
IDLE_NS = 1_000_000_000
APART = 0.9  # of a recorder's waits for locks, from which on it shares no other lock
LOST = ("threads", "wakes", "locks", "names", "stacks", "modules", "holds")
WAKE_KEYS = ("kind", "wait_site", "wake_site", "object", "name")
WAKE_TICKS = ("wait_ticks", "late_ticks", "waste_ticks")
WAKE_REALS = ("wait_variance", "late_variance")
LOCK_KEYS = ("kind", "lock", "name", "site", "holder_site")
LOCK_COUNTS = ("acquired", "contested", "given_up", "spun", "holds", "sampled")
LOCK_INSIDE = tuple(f"inside_{what}" for what in layout.INSIDE)
LOCK_TICKS = ("wait_ticks", "spin_ticks", "hold_ticks")
LOCK_MOSTS = ("wait_most", "hold_most", "last_tsc", "age_ticks")
LOCK_OPEN = ("waiting", "waiting_ticks")
OPEN_KEYS = ("kind", "wait_site", "object", "name")
LISTENER_COUNTS = (
    *("accepted", "woken", "in_vain", "lost", "samples", "backlog", "backlog_most"),
    *("ordered", "turns", "promoted", "overdue", "put_off", "delays"),
)
GROUP_COUNTS = ("waits", "useless", "yields", "accepted")
KERNEL_COLUMNS = (
    *("user_ns", "system_ns", "cpu_ns", "run_queue_ns"),
    *("voluntary", "involuntary", "major_faults", "minor_faults"),
    *("asleep", "kernel_wall_ns", "kernel_idle_ns"),
)
REALS = ("hold_variance", *WAKE_REALS)
# A kernel thread that is younger than its entry goes on with that of one that has ended.
YOUNGER_NS = 50_000_000


@dataclasses.dataclass(frozen=True)
class Forms:
    """How sites appear in tables.

    with_callers: where the waits of one place have several callers, its label names them.
    in_places: there are tables with places instead of call stacks, too.
    """

    with_callers: bool = False
    in_places: bool = False


IN_STACKS = Forms()


def tables(store: Store, resolver: sites.Resolver | None = None) -> Tables:
    """Return all tables of a store, by name."""
    return all_forms(store, resolver or sites.Resolver(), IN_STACKS)[0]


def all_forms(store: Store, resolver: sites.Resolver, forms: Forms) -> tuple[Tables, Tables | None]:
    """Return all tables of a store, by name: with call stacks, and with places if asked for."""
    samples = kernel_columns(store)  # first, soon after the store was read
    known = sites.Sites(store, resolver)
    store = places.with_callers(futexes.as_locks(store, known), known)
    wanted = forms.with_callers or forms.in_places
    named = places.find(store, known) if wanted else places.Places()
    made = made_of(store, known, samples, site_frames(store, resolver, {}, named.callers))
    if not forms.in_places:
        return made, None
    store = places.by_place(store, known, named)
    callers = named.callers | dict.fromkeys(named.several, SEVERAL_CALLERS)
    frames = site_frames(store, resolver, named.stacks, callers)
    return made, made_of(store, known, samples, frames)


def made_of(store: Store, known: sites.Sites, samples: Columns, frames: Table) -> Tables:
    return {
        "processes": processes(store),
        "threads": threads(store),
        "groups": groups(store),
        "wakes": wakes(store, known),
        "locks": locks(store, known),
        "open_waits": open_waits(store, known),
        "workers": workers(store, samples),
        "calls": calls(store),
        "herds": herds(store),
        "lateness": lateness(store),
        "listeners": listeners(store),
        "sites": frames,
        "events": events.table(store),
    }


# Columns


def signed(counters: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Convert sums modulo 2^64. One read half-way may be slightly below 0, and becomes 0."""
    return np.maximum(counters.astype(np.uint64).view(np.int64), 0)


def site_ids(words: npt.NDArray[np.uint64]) -> list[str]:
    return [hex(word) for word in words.tolist()]


def names_of(kinds: npt.NDArray[Any], known: Sequence[str]) -> list[str]:
    return [known[k] if k < len(known) else f"kind {k}" for k in kinds.tolist()]


def object_names(
    store: Store,
    numbers: npt.NDArray[np.uint64],
    objects: npt.NDArray[np.uint64],
    known: sites.Sites | None,
) -> list[str | None]:
    """Return the names behind numbers, which begin at 1. Otherwise those of static variables."""
    texts = [text_of(text) for text in store.arrays[layout.NAMES]["text"].tolist()]
    given = [(texts[n - 1] or None) if 0 < n <= len(texts) else None for n in numbers.tolist()]
    if known is None:
        return given
    statics = known.variables(objects)
    return [name or statics.get(word) for name, word in zip(given, objects.tolist(), strict=True)]


def init_sites(store: Store, numbers: npt.NDArray[np.uint64]) -> Any:
    """Return where objects with names of these numbers were initialised. 0x0: not known."""
    places = np.concatenate([np.zeros(1, np.uint64), sites.of_names(store)])
    return site_ids(places[np.where(numbers < len(places), numbers, 0).astype(np.intp)])


def first_numbers(store: Store, numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return the least number of each equal name: each writer numbers the names that it meets."""
    named = store.arrays[layout.NAMES]
    said = zip(named["text"].tolist(), named["key"].tolist(), strict=True)
    least: dict[bytes | int, int] = {}
    first = [least.setdefault(text or key, n) for n, (text, key) in enumerate(said, 1)]
    known = (numbers > 0) & (numbers <= len(first))
    out = numbers.astype(np.uint64)
    if first:
        out[known] = np.array(first, np.uint64)[out[known].astype(np.intp) - 1]
    return out


def table(name: str, store: Store, rows: int, columns: Columns) -> Table:
    return Table(name, rows, {"process": [store.head.process] * rows, **columns})


def grouped(
    entries: Entries, keys: Sequence[str], sums: Sequence[str], mosts: Sequence[str]
) -> dict[str, npt.NDArray[np.uint64]]:
    """Return one row per key; the other columns are summed modulo 2^64, or their maximum."""
    columns = {
        name: entries[name].astype(entries[name].dtype if name in REALS else np.uint64)
        for name in (*keys, *sums, *mosts)
    }
    if not len(entries):
        return columns
    order = np.lexsort([columns[name] for name in reversed(keys)])
    columns = {name: column[order] for name, column in columns.items()}
    is_first = np.zeros(len(entries), np.bool_)
    is_first[0] = True
    for name in keys:
        is_first[1:] |= columns[name][1:] != columns[name][:-1]
    first = np.flatnonzero(is_first)
    out = {name: columns[name][first] for name in keys}
    out |= {name: np.add.reduceat(columns[name], first) for name in sums}
    out |= {name: np.maximum.reduceat(columns[name], first) for name in mosts}
    return out


# Tables


def called(head: Head) -> str:
    """Return the path of the program, or of the symbolic link to it that its command names.

    redis-server is a link to redis-check-rdb.
    """
    name = posixpath.basename(head.command.partition(" ")[0])
    if not name or posixpath.basename(head.program).startswith(name):
        return head.program
    link = posixpath.join(posixpath.dirname(head.program), name)
    is_link = Path(link).is_symlink() and os.path.realpath(link) == head.program
    return link if is_link else head.program


def processes(store: Store) -> Table:
    head, when = store.head, store.clock
    lost = {f"lost_{what}": int(signed(store.writers[f"lost_{what}"]).sum()) for what in LOST}
    row = {
        "pid": head.pid,
        "host": head.host,
        "program": called(head),
        "command": head.command,
        "uid": head.uid,
        "started_unix_ns": head.realtime_ns,
        "taken_unix_ns": when.unix_ns(store.now_tsc),
        "duration_ns": max(when.ns_of(store.now_tsc - head.tsc), 0),
        "mode": head.mode_name,
        "ended": not store.is_live if store.is_sure else None,
        "end": end_of(store),
        "recorder": PRELOAD if head.recorder == layout.PRELOAD else "",
        "runtimes": ", ".join(runtimes_of(store)),
        "tsc_hz": when.hz,
        "stamp_ns": head.stamps_ticks * NS / when.hz / layout.STAMPS or None,
        "site_depth": head.site_depth,
        "cpus": head.cpus,
        "slack_ns": head.slack_ns,
        "spin_ns": head.spin_ns,
        "accept_order": head.accept_order,
        "scatter_ns": head.scatter_ns,
        "cpu_ns": process_cpu(store),
        "system_ns": head.system_ns or None,
        "is_sampled": head.is_sampled,
        "lost_chunks": head.lost_chunks,
        **lost,
        "lost_events": head.lost_events + store.overwritten,
        "lost_origins": head.lost_origins,
    }
    columns: Columns = {name: [bounded(value)] for name, value in row.items()}
    return table("processes", store, 1, columns)


def process_cpu(store: Store) -> int | None:
    """Return the CPU time of a process that has ended, or lives here. None: not known."""
    if not (store.is_live and store.is_here):
        return store.head.cpu_ns or None
    try:
        # The kernel's number for the CPU clock of a process: CPUCLOCK_SCHED, and the pid above.
        used = time.clock_gettime_ns(~store.head.pid << 3 | 2)
        return max(used - store.head.earlier_cpu_ns, 0)
    except (OSError, OverflowError):
        return None


def runtimes_of(store: Store) -> list[str]:
    modules = [(module.path, module.build_id) for module in sites.modules_of(store)]
    return runtimes.names_of(store.head.program, modules)


def end_of(store: Store) -> str:
    """Return how the process ended: schemas.RUNS or another of these words."""
    if store.end or store.is_live or not store.is_sure:
        return store.end or RUNS
    if store.head.is_confined:
        return CONFINED
    if store.head.ended:
        return FAREWELL
    return LAST_SEEN if store.head.alive_ns else LAST_EVENT


def bounded(value: Any) -> Any:
    """Return numbers that fit into a column; those of a damaged head may not."""
    if isinstance(value, int) and not isinstance(value, bool):
        return max(min(value, INT64_MAX), -INT64_MAX)
    return value


def threads(store: Store) -> Table:
    entries, when = store.threads, store.clock
    now = states.fold(entries, store.now_tsc)
    ends = np.full(len(entries), max(store.now_tsc, 0), np.uint64)
    since_ns = when.ns(states.span(now.since_tsc, ends))
    lives = states.span(entries["begin_tsc"], ends)
    ticks = states.scaled(now.ticks, lives, (entries["origin"] == 0) & bool(store.head.is_sampled))
    spent = {name: when.ns(ticks[:, i]) for i, name in enumerate(layout.MICRO)}
    shown = ["USR", "LAT", *layout.MICRO[2:]]
    columns: Columns = {
        "thread_id": entries["id"].astype(np.int64),
        "name": [text_of(name) for name in entries["name"].tolist()],
        "origin": names_of(entries["origin"], layout.ORIGINS),
        "writer": entries["worker"].astype(np.int64),
        "tid": entries["tid"].astype(np.int64),
        "state": [shown[i] for i in now.state.tolist()],
        "kind": names_of(entries["kind"], layout.kind_names(store.head.recorder)),
        "object": entries["object"].view(np.int64),
        "holder_tid": np.where(
            waiting.contends(entries), entries["holder_tid"].astype(np.int64), 0
        ),
        "wait_site": site_ids(stacks.canonical(store, entries["wait_site"])),
        "since_ns": since_ns,
        "waits": signed(entries["waits"]),
        "useless": signed(entries["useless"]),
        "yields": signed(entries["yields"]),
        "accepted": signed(entries["accepted"]),
        "wall_ns": when.ns(lives),
        **spent,
        "is_idle": is_idle(now, since_ns),
        # The end of its wait is not known, so no share of its life is known.
        "is_cut": states.WAITING[now.state] & (end_of(store) == LAST_EVENT),
    }
    return table("threads", store, len(entries), columns)


def groups(store: Store) -> Table:
    """Return one row per name and recorder of threads that have ended."""
    entries, when = store.arrays[layout.GROUPS], store.clock
    named = zip(entries["name"].tolist(), entries["is_rest"].tolist(), strict=True)
    is_user = entries["is_user"] != 0
    lives = entries["wall_ticks"]
    ticks = states.scaled(entries["ticks"], lives, is_user & bool(store.head.is_sampled))
    own: Columns = {
        "name": [OTHERS if is_rest else text_of(name) for name, is_rest in named],
        "is_user": is_user.tolist(),
        "writer": store.writer_of[layout.GROUPS].tolist(),
        "threads": signed(entries["threads"]).tolist(),
        **{name: signed(entries[name]).tolist() for name in GROUP_COUNTS},
        "wall_ns": when.ns(entries["wall_ticks"]).tolist(),
        "cpu_ns": known_if(~is_user, signed(entries["cpu_ns"])),
        "run_queue_ns": known_if(~is_user, signed(entries["queue_ns"])),
        "queueless": signed(entries["queueless"]).tolist(),
        **{n: when.ns(ticks[:, i]).tolist() for i, n in enumerate(layout.MICRO)},
    }
    more = groupless(store)
    rows = len(entries) + len(more["name"])
    return table("groups", store, rows, {name: [*own[name], *more[name]] for name in own})


def known_if(known: npt.NDArray[np.bool_], numbers: npt.NDArray[np.int64]) -> list[int | None]:
    return [n if is_known else None for n, is_known in zip(numbers.tolist(), known, strict=True)]


def groupless(store: Store) -> Columns:
    """Return the threads that found no group, or that an older rouse recorded, by writer."""
    when, writers = store.clock, store.writers
    count = writers["groupless" if len(store.arrays[layout.GROUPS]) else "ended"]
    entries = writers[count > 0]
    ticks = entries["ended_ticks"]
    none = [None] * len(entries)
    return {
        "name": [OTHERS] * len(entries),
        "is_user": (entries["is_worker"] != 0).tolist(),
        "writer": entries["index"].tolist(),
        "threads": signed(count[count > 0]).tolist(),
        **{name: signed(entries[f"ended_{name}"]).tolist() for name in GROUP_COUNTS},
        "wall_ns": when.ns(ticks.sum(axis=1, dtype=np.uint64)).tolist(),
        "cpu_ns": none,
        "run_queue_ns": none,
        "queueless": [0] * len(entries),
        **{name: when.ns(ticks[:, i]).tolist() for i, name in enumerate(layout.MICRO)},
    }


def is_idle(now: states.States, since_ns: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether threads wait for work: at listeners, or long for something that nobody holds."""
    accepts = now.state == layout.MICRO.index("accept")
    waits = states.WAITING[now.state] & ~states.HELD[now.state]
    return np.asarray(accepts | (waits & (since_ns >= IDLE_NS)))


def verdict_columns(entries: Entries) -> dict[str, npt.NDArray[np.uint64]]:
    return {name: entries["count"][:, i] for i, name in enumerate(layout.VERDICTS)}


def numbers_of(variances: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return variances of a file. The bits of a damaged one may be no number."""
    return np.where(np.isfinite(variances) & (variances > 0), variances, 0)


def wakes(store: Store, known: sites.Sites | None = None) -> Table:
    entries, when = store.arrays[layout.WAKES], store.clock
    # Verdicts are columns of one field: they are grouped under names of their own.
    own = (*WAKE_KEYS, *WAKE_TICKS, "wait_most", "late_most", "sampled")
    flat = np.zeros(
        len(entries),
        [(name, "<u8") for name in (*own, *layout.VERDICTS)] + [(n, "<f8") for n in WAKE_REALS],
    )
    for name in own:
        flat[name] = entries[name]
    for name in WAKE_REALS:
        flat[name] = numbers_of(entries[name])
    for name, counts in verdict_columns(entries).items():
        flat[name] = counts
    flat["name"] = first_numbers(store, entries["name"])
    for name in ("wait_site", "wake_site"):
        flat[name] = stacks.canonical(store, entries[name])
    sums = (*layout.VERDICTS, *WAKE_TICKS, "sampled", *WAKE_REALS)
    rows = grouped(flat, WAKE_KEYS, sums, ("wait_most", "late_most"))
    ns_per_tick = NS / when.hz
    columns: Columns = {
        "kind": names_of(rows["kind"], layout.kind_names(store.head.recorder)),
        "wait_site": site_ids(rows["wait_site"]),
        "wake_site": site_ids(rows["wake_site"]),
        "object": rows["object"].view(np.int64),
        "object_name": object_names(store, rows["name"], rows["object"], known),
        "init_site": init_sites(store, rows["name"]),
        **{
            "false_" if name == "false" else name: signed(rows[name])
            for name in (*layout.VERDICTS[1:], layout.VERDICTS[0])
        },
        "wait_ns": when.ns(rows["wait_ticks"]),
        "wait_most_ns": when.ns(rows["wait_most"]),
        "late_ns": when.ns(rows["late_ticks"]),
        "late_most_ns": when.ns(rows["late_most"]),
        "waste_ns": when.ns(rows["waste_ticks"]),
        "sampled": signed(rows["sampled"]),
        **{name: rows[name] * (ns_per_tick * ns_per_tick) for name in WAKE_REALS},
    }
    return table("wakes", store, len(rows["kind"]), columns)


def locks(store: Store, known: sites.Sites | None = None) -> Table:
    """Waits for locks. Those under way are counted apart; their time so far is in the sums."""
    ended, when = store.arrays[layout.LOCKS], store.clock
    waits = waiting.under_way(store)
    waits = waits[waiting.are_for_locks(waits)]
    if not len(ended) + len(waits):
        return empty("locks")
    names = (*LOCK_KEYS, *LOCK_COUNTS, *LOCK_TICKS, *LOCK_INSIDE, *LOCK_MOSTS, *LOCK_OPEN)
    names = (*names, "apart_ticks")
    types = [*((name, "<u8") for name in names), ("hold_variance", "<f8")]
    entries = np.zeros(len(ended) + len(waits), types)
    own, still = entries[: len(ended)], entries[len(ended) :]
    for name in (*LOCK_KEYS, *LOCK_COUNTS, *LOCK_TICKS, "wait_most", "hold_most", "last_tsc"):
        own[name] = ended[name]
    for i, name in enumerate(LOCK_INSIDE):
        own[name] = ended["inside_ticks"][:, i]
    own["hold_variance"] = numbers_of(ended["hold_variance"])
    now = np.uint64(max(store.now_tsc, 0))
    began = np.where(ended["first_tsc"] > 0, np.minimum(ended["first_tsc"], now), now)
    own["age_ticks"] = now - began
    for name in ("site", "holder_site"):
        own[name] = stacks.canonical(store, own[name])
    for name in ("kind", "name", "holder_site"):
        still[name] = waits[name]
    still["lock"], still["site"] = waits["object"], waits["wait_site"]
    still["waiting"] = 1
    for name in ("waiting_ticks", "wait_ticks", "wait_most"):
        still[name] = waits["ticks"]
    entries["name"] = first_numbers(store, entries["name"])
    own["apart_ticks"] = apart_ticks(ended, store.writer_of[layout.LOCKS])
    sums = (*LOCK_COUNTS, *LOCK_TICKS, *LOCK_INSIDE, *LOCK_OPEN, "apart_ticks", "hold_variance")
    rows = grouped(entries, LOCK_KEYS, sums, LOCK_MOSTS)
    begun = np.uint64(max(store.head.tsc, 0))
    last = np.maximum(np.minimum(rows["last_tsc"], now), begun) - begun
    ns_per_tick = NS / when.hz
    columns: Columns = {
        "kind": names_of(rows["kind"], layout.kind_names(store.head.recorder)),
        "lock": rows["lock"].view(np.int64),
        "lock_name": object_names(store, rows["name"], rows["lock"], known),
        "init_site": init_sites(store, rows["name"]),
        "site": site_ids(rows["site"]),
        "holder_site": site_ids(rows["holder_site"]),
        "acquired": signed(rows["acquired"]),
        "contested": signed(rows["contested"]),
        "given_up": signed(rows["given_up"]),
        "wait_ns": when.ns(rows["wait_ticks"]),
        "wait_most_ns": when.ns(rows["wait_most"]),
        "spin_ns": when.ns(rows["spin_ticks"]),
        "spun": signed(rows["spun"]),
        "holds": signed(rows["holds"]),
        "hold_ns": when.ns(rows["hold_ticks"]),
        "hold_most_ns": when.ns(rows["hold_most"]),
        "waiting": signed(rows["waiting"]),
        "waiting_ns": when.ns(rows["waiting_ticks"]),
        "sampled": signed(rows["sampled"]),
        **{f"{name}_ns": when.ns(rows[name]) for name in LOCK_INSIDE},
        # The first and the last moment of contention, from the begin of the recording.
        "first_ns": when.ns(np.maximum(now - rows["age_ticks"], begun) - begun),
        "last_ns": when.ns(last),
        "apart_ns": when.ns(rows["apart_ticks"]),
        "hold_variance": rows["hold_variance"] * (ns_per_tick * ns_per_tick),
    }
    return table("locks", store, len(rows["kind"]), columns)


def apart_ticks(entries: Entries, owners: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Return the waits of recorders that wait for hardly another lock. owners: the recorders.

    A recorder is a kernel thread, or several of which one ended before the next one began.
    """
    waits = entries["wait_ticks"].astype(np.float64)
    _, of_all = np.unique(owners, return_inverse=True)
    keys = np.stack([owners.astype(np.uint64), entries["lock"]], axis=1)
    _, of_lock = np.unique(keys, axis=0, return_inverse=True)
    by_all, by_lock = (
        np.bincount(of.reshape(-1), waits)[of.reshape(-1)] if len(entries) else waits
        for of in (of_all, of_lock)
    )
    return np.where(by_lock >= APART * by_all, entries["wait_ticks"], 0).astype(np.uint64)


def open_waits(store: Store, known: sites.Sites | None = None) -> Table:
    """Waits under way, including those for locks."""
    waits, when = waiting.under_way(store), store.clock
    if not len(waits):
        return empty("open_waits")
    flat = np.zeros(len(waits), [(n, "<u8") for n in (*OPEN_KEYS, "waiting", "ticks", "most")])
    for name in (*OPEN_KEYS, "ticks"):
        flat[name] = waits[name]
    flat["name"] = first_numbers(store, waits["name"])
    flat["waiting"], flat["most"] = 1, waits["ticks"]
    rows = grouped(flat, OPEN_KEYS, ("waiting", "ticks"), ("most",))
    columns: Columns = {
        "kind": names_of(rows["kind"], layout.kind_names(store.head.recorder)),
        "wait_site": site_ids(rows["wait_site"]),
        "object": rows["object"].view(np.int64),
        "object_name": object_names(store, rows["name"], rows["object"], known),
        "init_site": init_sites(store, rows["name"]),
        "waiting": signed(rows["waiting"]),
        "wait_ns": when.ns(rows["ticks"]),
        "wait_most_ns": when.ns(rows["most"]),
    }
    return table("open_waits", store, len(rows["kind"]), columns)


def spells(store: Store) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return each writer's lifetime, and its time without a thread to run, in ns."""
    entries, when = store.writers, store.clock
    now = np.full(len(entries), max(store.now_tsc, 0), np.uint64)
    is_live = entries["is_live"] != 0
    ends = np.where(is_live, now, entries["end_tsc"])
    idles = is_live & (entries["idle_since_tsc"] != 0)
    idle = entries["idle_ticks"] + np.where(
        idles, states.span(entries["idle_since_tsc"], now), np.uint64(0)
    )
    # A worker goes on with its entry; another kernel thread begins anew.
    anew = (entries["is_worker"] == 0) & (entries["taken_tsc"] != 0)
    begins = np.where(anew, entries["taken_tsc"], entries["begin_tsc"])
    return when.ns(states.span(begins, ends)), when.ns(idle)


def workers(store: Store, samples: Columns | None = None) -> Table:
    """samples: the kernel's figures; None: read them now."""
    entries = store.writers
    wall_ns, idle_ns = spells(store)
    plain = ("idle_count", "switches", "steals", "stolen", "signals_unheard", "broadcasts_unheard")
    columns: Columns = {
        "index": entries["index"].astype(np.int64),
        "is_worker": entries["is_worker"] != 0,
        "is_live": entries["is_live"] != 0,
        "tid": entries["tid"].astype(np.int64),
        "worker": entries["worker"].astype(np.int64),
        "cluster": entries["cluster"].astype(np.int64),
        "wall_ns": wall_ns,
        "idle_ns": idle_ns,
        **{name: signed(entries[name]) for name in plain},
        "lateness_ns": signed(entries["lateness_ns"]),
        "lateness_most_ns": signed(entries["lateness_most_ns"]),
        **(kernel_columns(store) if samples is None else samples),
        "repeated_sleeps": signed(entries["repeated_sleeps"]),
        "repeated_ns": store.clock.ns(entries["repeated_ticks"]),
        "repeated_site": site_ids(stacks.canonical(store, entries["repeated_site"])),
        "yields": signed(entries["yields"]),
        "yield_site": site_ids(stacks.canonical(store, entries["yield_site"])),
    }
    return table("workers", store, len(entries), columns)


def kernel_samples(store: Store) -> dict[int, dict[str, Any]]:
    """Return the kernel's figures of the threads of a live process, by number.

    They come with how long each thread had lived and been idle, since it may record after the last
    sample.
    """
    if not store.is_live:
        return last_samples(store)
    found: dict[int, dict[str, Any]] = {}
    if not store.is_here:
        return found
    spent = zip(*(part.tolist() for part in spells(store)), strict=True)
    for writer, (wall_ns, idle_ns) in zip(store.writers, spent, strict=True):
        tid = int(writer["tid"])
        known = procfs.read_thread(store.head.pid, tid) if writer["is_live"] and tid > 0 else None
        if known is None:
            continue
        found[tid] = {**dataclasses.asdict(known), "asleep": int(not known.is_runnable)}
        for name, begin in (("cpu_ns", "begin_cpu_ns"), ("run_queue_ns", "begin_queue_ns")):
            if found[tid][name] is not None:
                found[tid][name] = max(found[tid][name] - int(writer[begin]), 0)
        if known.age_ns > wall_ns - YOUNGER_NS:
            found[tid] |= {"kernel_wall_ns": wall_ns, "kernel_idle_ns": idle_ns}
    return found


def last_samples(store: Store) -> dict[int, dict[str, Any]]:
    """Return the figures that a process left at its end of the threads that it had then."""
    found: dict[int, dict[str, Any]] = {}
    spent = zip(*(part.tolist() for part in spells(store)), strict=True)
    young = YOUNGER_NS / NS * store.clock.hz
    for writer, (wall_ns, idle_ns) in zip(store.writers, spent, strict=True):
        tid = int(writer["tid"])
        if tid <= 0 or int(writer["read_tid"]) != tid:
            continue
        cpu_ns = int(writer["end_cpu_ns"]) - int(writer["begin_cpu_ns"])
        queue_ns = int(writer["end_queue_ns"]) - int(writer["begin_queue_ns"])
        found[tid] = {
            "cpu_ns": bounded(max(cpu_ns, 0)),
            "run_queue_ns": bounded(max(queue_ns, 0)) if writer["has_queue"] else None,
        }
        if not writer["is_worker"]:
            later = max(store.clock.ns_of(store.now_tsc - int(writer["read_tsc"])), 0)
            found[tid]["kernel_wall_ns"] = max(wall_ns - later, 0)
        elif int(writer["taken_tsc"]) - int(writer["begin_tsc"]) < young:
            found[tid] |= {"kernel_wall_ns": wall_ns, "kernel_idle_ns": idle_ns}
    return found


def kernel_columns(store: Store) -> Columns:
    """Return the kernel's figures as columns. They are null for processes that were killed."""
    known = kernel_samples(store)
    tids = store.writers["tid"].tolist()
    columns: Columns = {}
    if known:
        for name in KERNEL_COLUMNS:
            columns[name] = [known.get(tid, {}).get(name) for tid in tids]
    return columns


def histogram(
    name: str, store: Store, first: str, first_of: Callable[[int], int | str], count: str = "count"
) -> Table:
    """Return one row for each counter of the writers' array that is not 0."""
    counts = signed(store.writers[name])
    rows, columns = np.nonzero(counts)
    return table(
        name,
        store,
        len(rows),
        {
            "writer": store.writers["index"][rows].astype(np.int64),
            first: [first_of(i) for i in columns.tolist()],
            count: counts[rows, columns],
        },
    )


def calls(store: Store) -> Table:
    kinds = layout.kind_names(store.head.recorder)

    def name_of(i: int) -> str:
        return kinds[i] if i < len(kinds) else f"kind {i}"

    return histogram("calls", store, "kind", name_of, "completed")


def herds(store: Store) -> Table:
    return histogram("herds", store, "size_from", lambda i: 1 << i)


def lateness(store: Store) -> Table:
    return histogram("lateness", store, "late_from_ns", lambda i: 1 << i if i else 0)


def moments(store: Store, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return times on a clock that all processes of the machine share. 0: never."""
    when = store.clock
    since = (stamps - np.uint64(when.tsc)).view(np.int64) * (NS / when.hz)
    return np.where(stamps > 0, when.monotonic_ns + since.astype(np.int64), 0)


def listeners(store: Store) -> Table:
    """Return one row per listener and kernel thread that waited for it or accepted from it."""
    entries = store.arrays[layout.LISTENERS]
    if not len(entries):
        return empty("listeners")
    columns: Columns = {
        "listener": site_ids(entries["cookie"]),
        "name": [text_of(name) for name in entries["name"].tolist()],
        "writer": store.writer_of[layout.LISTENERS].astype(np.int64),
        **{name: signed(entries[name]) for name in LISTENER_COUNTS},
        "delay_ns": store.clock.ns(entries["delay_ticks"]),
        **{f"{end}_ns": moments(store, entries[f"{end}_tsc"]) for end in ("first", "last")},
    }
    return table("listeners", store, len(entries), columns)


def site_frames(
    store: Store, resolver: sites.Resolver, paths: Mapping[int, int], callers: Mapping[int, int]
) -> Table:
    """Return one row per frame of each site. paths, callers: as in places.Places, by site."""
    rows = sites.frames_used(store, resolver, paths)
    frames = [frame for _, _, frame in rows]
    return table(
        "sites",
        store,
        len(rows),
        {
            "site": [hex(site) for site, _, _ in rows],
            "frame": [number for _, number, _ in rows],
            "address": [word(f.address) for f in frames],
            "module": [f.module for f in frames],
            "build_id": [f.build_id for f in frames],
            "offset": [None if f.offset is None else word(f.offset) for f in frames],
            "function": [f.function for f in frames],
            "file": [f.file for f in frames],
            "line": [f.line for f in frames],
            "label": [f.label for f in frames],
            "within": [f.within for f in frames],
            "caller": [0 if number else callers.get(site, 0) for site, number, _ in rows],
        },
    )


def word(address: int) -> int:
    """Return an address as int64, as tables have it. That of a damaged file may be out of range."""
    address %= 1 << 64
    return address - (1 << 64) if address >= 1 << 63 else address
