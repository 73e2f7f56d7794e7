# SPDX-License-Identifier: MIT
"""Convert the events of a store to a table, ordered by time; see enum rsi_event in src/obs/store.h.

Columns that a type does not use are 0 or empty. `worker` is the writer of the event, `number` its
number there. The `value` of a run is when its thread was woken, in ns since 1970 as `at_ns`, or 0
if it was not; that of an acquisition is the ns spun; that of a steal the threads taken. The
`object` of a mark is the number of its request, whose `name` it has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rouse.store import layout
from rouse.store.decode import text_of
from rouse.store.events import TYPES, of, site_words, types_of, with_open_waits
from rouse.tables.table import Coded, Column, Table, empty

if TYPE_CHECKING:
    from rouse.store.decode import Entries, Store

NAME, END = TYPES["name"], TYPES["end"]
MARKS = ("mark", "mark_end")
TICKS_MOST = 1 << 60  # a stamp this far from the head's is no time
NS_MOST = 1 << 61
Numbers = npt.NDArray[np.int64]


def named(values: npt.NDArray[Any], known: tuple[str, ...], used: npt.NDArray[np.bool_]) -> Coded:
    """Return names of numbers. A number that is newer than this file is its own name."""
    most = int(values.max(initial=0))
    words = [*known, *(f"kind {n}" for n in range(len(known), most + 1)), ""]
    return Coded(np.where(used, values, len(words) - 1).astype(np.intp), words)


def unix_ns(store: Store, tsc: npt.NDArray[np.uint64]) -> Numbers:
    when = store.clock
    ticks = (tsc - np.uint64(when.tsc % (1 << 64))).view(np.int64)
    ticks = np.clip(ticks, -TICKS_MOST, TICKS_MOST)
    ns = np.clip(ticks * (1e9 / when.hz), -NS_MOST, NS_MOST).astype(np.int64)
    return np.asarray(max(min(when.realtime_ns, NS_MOST), 0) + ns)


def names_of_ended(entries: Entries, types: npt.NDArray[Any], ids: Numbers) -> Coded:
    """Return the names of ended threads, in the rows of their ends."""
    parts = np.flatnonzero(types == NAME)
    kind = (entries["what"][parts] >> np.uint64(8)) & np.uint64(0xFF)
    words = np.stack([entries["site"][parts], entries["value"][parts]], axis=1)
    texts: dict[int, list[bytes]] = {}
    for thread, part, text in zip(ids[parts].tolist(), kind.tolist(), words.tolist(), strict=True):
        raw = b"".join(word.to_bytes(8, "little") for word in text)
        texts.setdefault(thread, [b"", b""])[min(part, 1)] = raw
    known = sorted(texts)
    spelled = [
        b"".join(texts[thread]).split(b"\0", 1)[0].decode("utf-8", "replace") for thread in known
    ]
    place = np.searchsorted(known, ids) if known else np.zeros(len(ids), np.intp)
    place = np.minimum(place, max(len(known) - 1, 0))
    has = (types == END) & (np.asarray(known, np.int64)[place] == ids) if known else types < 0
    words_of = list(dict.fromkeys(spelled))
    order = {word: i for i, word in enumerate(words_of)}
    codes = np.array([order[word] for word in spelled] or [0], np.int32)
    return Coded(np.where(has, codes[place], len(words_of)), [*words_of, ""])


def names_of_events(store: Store, entries: Entries, types: npt.NDArray[Any], ids: Numbers) -> Coded:
    """Return the names of ended threads and of marked requests."""
    ended = names_of_ended(entries, types, ids)
    is_mark = of(types, *MARKS)
    if not np.any(is_mark):
        return ended
    labels = [text_of(text) for text in store.arrays[layout.NAMES]["text"].tolist()]
    numbers = ((entries["what"] >> np.uint64(8)) & np.uint64(0xFFFF)).astype(np.intp)
    known = is_mark & (numbers > 0) & (numbers <= len(labels))
    words = [*ended.words, *labels]
    return Coded(np.where(known, len(ended.words) + numbers - 1, ended.codes), words)


def table(store: Store) -> Table:
    """Return every event that was read."""
    entries, owners, numbers = with_open_waits(store)
    if not len(entries):
        return empty("events")
    order = np.argsort(entries["tsc"], kind="stable")
    known = types_of(entries)[order]
    order = order[(known > 0) & (known < len(TYPES))]
    entries, owners, numbers = entries[order], owners[order], numbers[order]
    types, what = types_of(entries), entries["what"]
    ids = (what >> np.uint64(24)).astype(np.int64)
    names = names_of_events(store, entries, types, ids)
    sites, places = np.unique(site_words(entries, types), return_inverse=True)
    value = entries["value"]
    zero = np.uint64(0)
    spun = np.where(of(types, "got"), store.clock.ns(np.where(of(types, "got"), value, zero)), 0)
    is_woken = of(types, "run") & (value != 0)
    woken = np.where(is_woken, unix_ns(store, value), spun)
    columns: dict[str, Column] = {
        "process": Coded(np.zeros(len(entries), np.intp), [store.head.process]),
        "type": Coded(types, list(layout.EVENT_NAMES)),
        "kind": named(
            (what >> np.uint64(8)) & np.uint64(0xFF),
            layout.kind_names(store.head.recorder),
            of(types, "run", "wait", "wake", "io", "verdict", "lock", "got"),
        ),
        "verdict": named(
            (what >> np.uint64(16)) & np.uint64(0xFF),
            layout.VERDICTS,
            of(types, "run", "wake", "io", "verdict", "got"),
        ),
        "site": Coded(places, [hex(site) for site in sites.tolist()]),
        "name": names,
        "at_ns": unix_ns(store, entries["tsc"]),
        "worker": owners.astype(np.int64),
        "number": numbers,
        "thread_id": ids,
        "other_id": np.where(of(types, "wake", "new"), value, zero).view(np.int64),
        "object": np.where(of(types, "wait", "io", "lock", *MARKS), value, zero).view(np.int64),
        "value": np.where(of(types, "steal"), value.view(np.int64), woken),
    }
    whole = Table("events", len(entries), columns)
    return whole.chosen(types != NAME) if np.any(types == NAME) else whole
