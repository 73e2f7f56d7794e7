# SPDX-License-Identifier: MIT
"""The shared file of src/obs/store.h as numpy sees it; a test compares the two.

Names are those of the C structures. Everything is little-endian, as both machines that rouse runs
on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

MAGIC = 0x53424F4553554F52
VERSION = 4
PAGE = 4096
DIRECTORY = 4096
CHUNKS_MAX = 16384
CHUNKS = DIRECTORY + 4 * CHUNKS_MAX
BYTES_MAX = 256 << 20
RINGS_MAX = 128 << 20
CHUNK_HEAD = 256
STAMPS = 256
INITIAL_PIDS = 4026531836
SITE_STACK = 1 << 63
MACHINES = {62: "x86-64", 183: "AArch64"}

NONE, WRITERS, THREADS, WAKES, LOCKS, NAMES, STACKS, MODULES, EVENTS, LISTENERS, GROUPS = range(11)

# enum rsi_micro: where a thread's time goes. accept: for clients, also to send.
MICRO = (
    "usr",
    "lat",
    "mutex",
    "rwlock",
    "cond",
    "sem",
    "join",
    "io",
    "poll",
    "accept",
    "sleep",
)
USR, LAT = 0, 1
ACCEPT = MICRO.index("accept")
# enum rsi_inside: what a thread that holds a lock does instead of running.
INSIDE = ("lat", "lck", "io", "sleep")
# enum rsi_doing
DOES_NOTHING, DOES_RUN, DOES_WAIT, DOES_QUEUE = range(4)
# enum rouse_wait_kind, then those of the interposer, and the microstate that a wait of it is in.
KINDS = (
    ("none", "io"),
    ("mutex", "mutex"),
    ("read lock", "rwlock"),
    ("write lock", "rwlock"),
    ("condition", "cond"),
    ("semaphore", "sem"),
    ("barrier", "join"),
    ("once", "join"),
    ("join", "join"),
    ("sleep", "sleep"),
    ("read", "io"),
    ("write", "io"),
    ("accept", "accept"),
    ("connect", "io"),
    ("blocking call", "io"),
    ("set", "poll"),
    ("poll", "poll"),
    ("futex", "sem"),
    ("child process", "join"),
    ("file lock", "mutex"),
    ("signal", "poll"),
    ("System V semaphore", "sem"),
    ("message", "io"),
    ("sync", "io"),
)
# A kind that is newer than this file counts as I/O, like "none".
WAIT_KINDS = 24
NEWER = tuple((f"kind {number}", "io") for number in range(len(KINDS), WAIT_KINDS))
# No file has this kind: the decoder gives it to waits for a futex that is a lock.
FUTEX_LOCK = WAIT_KINDS
# Of locks only: nobody sleeps for one. RSI_STORE_LOCK_SPIN.
SPIN_LOCK = WAIT_KINDS + 1
EVERY_KIND = (*KINDS, *NEWER, ("futex lock", "mutex"), ("spin lock", "mutex"))
KIND_NAMES = tuple(name for name, _ in EVERY_KIND)
FUTEX = KIND_NAMES.index("futex")
MICRO_OF_KIND = np.array([MICRO.index(micro) for _, micro in EVERY_KIND], np.intp)
# enum rouse_verdict
VERDICTS = ("unrecorded", "useful", "lost_race", "false", "early", "timeout", "cancelled")
ORIGINS = ("user", "kernel", "foreign")
MODES = ("off", "counted", "locks", "trace", "exact")
# enum rsi_store_recorder: who writes the file.
RUNTIME, PRELOAD = range(2)


def kind_names(recorder: int) -> tuple[str, ...]:
    """Return the names of the kinds of waits. A set is rouse's own, or one of epoll."""
    if recorder != PRELOAD:
        return KIND_NAMES
    return tuple("epoll" if name == "set" else name for name in KIND_NAMES)


# enum rsi_event
EVENT_NAMES = (
    *("none", "run", "wait", "yield", "idle", "wake", "io", "verdict", "steal"),
    *("lock", "got", "new", "name", "end", "mark", "mark_end"),
)
HERDS = 16
LATENESS = 32

Field = tuple[str, str] | tuple[str, str, int]


def offset_of(form: np.dtype[np.void], name: str) -> int:
    """Return the byte at which a member of a structure begins."""
    assert form.fields is not None
    return form.fields[name][1]


def struct(*fields: Field) -> np.dtype[np.void]:
    """A C structure: fields laid out as the compiler does."""
    listed: Any = list(fields)
    dtype: np.dtype[np.void] = np.dtype(listed, align=True)
    return dtype


def words(names: str, kind: str = "<u8") -> tuple[Field, ...]:
    return tuple((name, kind) for name in names.split())


HEAD = struct(
    ("magic", "<u8"),
    *words("version machine", "<u4"),
    ("pid", "<i4"),
    ("uid", "<u4"),
    *words("start_ticks tsc monotonic_ns realtime_ns tick_seq tick_tsc tick_monotonic_ns"),
    *words("tick_guard mode ended chunk_count", "<u4"),
    *words("page_count lost_chunks"),
    *words("site_depth cpus", "<u4"),
    ("boot_id", "u1", 16),
    ("program", "S256"),
    ("command", "S512"),
    ("host", "S64"),
    *words("trace_until_ns lost_events stamps_ticks pid_namespace"),
    *words("is_locked recorder", "<u4"),
    *words("slack_ns spin_ns accept_order scatter_ns lost_origins is_confined cpu_ns system_ns"),
    *words("alive_ns is_marked is_sampled"),
    *words("earlier_programs earlier_cpu_ns earlier_system_ns"),
)
CHUNK = struct(*words("kind bytes entry_bytes capacity used writer", "<u4"), *words("written"))
THREAD = struct(
    ("seq", "<u4"),
    *words("doing kind", "<u2"),
    *words("since_tsc run_tsc object wait_site waits"),
    ("worker", "<u4"),
    ("holder_tid", "<i4"),
    *words("begin_tsc wake_tsc wake_site waker_id id useless yields accepted"),
    ("tid", "<i4"),
    ("verdict", "<u2"),
    *words("origin is_for_clients", "u1"),
    ("ticks", "<u8", len(MICRO)),
    ("name", "S24"),
    *words("contest_tsc contest_holder"),
)
WAKE = struct(
    *words("kind name", "<u4"),
    *words("wait_site wake_site object"),
    ("count", "<u8", len(VERDICTS)),
    *words("wait_ticks wait_most late_ticks late_most waste_ticks sampled"),
    *words("wait_variance late_variance", "<f8"),
    ("spare", "<u8", 5),
)
LOCK = struct(
    *words("kind name", "<u4"),
    *words("site holder_site lock acquired holds hold_ticks hold_most"),
    *words("contested given_up wait_ticks wait_most spin_ticks spun first_tsc last_tsc"),
    ("inside_ticks", "<u8", len(INSIDE)),
    ("sampled", "<u8"),
    ("hold_variance", "<f8"),
    ("spare", "<u8", 2),
)
WRITER = struct(
    *words("index is_worker is_live", "<u4"),
    ("tid", "<i4"),
    *words("worker cluster", "<u4"),
    *words("begin_tsc end_tsc idle_since_tsc idle_ticks idle_count switches steals stolen"),
    ("calls", "<u8", WAIT_KINDS),
    *words("signals_unheard broadcasts_unheard"),
    ("herds", "<u8", HERDS),
    ("lateness", "<u8", LATENESS),
    *words("lateness_ns lateness_most_ns ended ended_waits ended_useless ended_yields"),
    ("ended_accepted", "<u8"),
    ("ended_ticks", "<u8", len(MICRO)),
    *words("lost_threads lost_wakes lost_locks lost_names lost_stacks lost_modules lost_holds"),
    *words("taken_tsc begin_cpu_ns begin_queue_ns end_cpu_ns end_queue_ns read_tsc"),
    ("read_tid", "<i4"),
    ("has_queue", "<u4"),
    ("groupless", "<u8"),
    *words("repeated_sleeps repeated_ticks repeated_site yields yield_site"),
    ("spare", "<u8", 2),
)
GROUPS_MAX = 1024
GROUP = struct(
    ("name", "S24"),
    *words("is_user is_rest", "<u4"),
    *words("threads waits useless yields accepted"),
    ("ticks", "<u8", len(MICRO)),
    *words("wall_ticks cpu_ns queue_ns queueless"),
)
NAME = struct(("key", "<u8"), ("text", "S56"))
SITE_FRAMES = 8
STACK = struct(("hash", "<u8"), *words("depth spare", "<u4"), ("frames", "<u8", SITE_FRAMES))
MODULE = struct(
    *words("start end bias"),
    *words("build_id_bytes spare", "<u4"),
    ("build_id", "u1", 32),
    ("path", "S256"),
)
EVENT = struct(*words("tsc what site value"))
LISTENER = struct(
    *words("cookie accepted woken in_vain lost samples backlog backlog_most"),
    *words("ordered turns promoted overdue put_off delays delay_ticks"),
    *words("is_tcp spare32", "<u4"),
    ("name", "S48"),
    *words("first_tsc last_tsc"),
)

ENTRIES = {
    WRITERS: WRITER,
    THREADS: THREAD,
    WAKES: WAKE,
    LOCKS: LOCK,
    NAMES: NAME,
    STACKS: STACK,
    MODULES: MODULE,
    EVENTS: EVENT,
    LISTENERS: LISTENER,
    GROUPS: GROUP,
}
