# SPDX-License-Identifier: MIT
"""Tell from the functions around a futex wait whether the thread waits for a lock.

The kernel and the interposer see a word and an address. Only the names of the functions that made
the call say what the word is: the slow path of a lock, a condition variable, or something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

LOCK, CONDITION, AWAIT = "lock", "condition", "await"
# Slow paths of locks, mangled or not: Rust's std, parking_lot, abseil, InnoDB, libgomp, C programs.
LOCK_FUNCTION = re.compile(
    r"(?<![uU]n)lock\w*_(contended|slow|common)|(read|write)_contended|wait_for_readers"
    r"|LockSlow|lll_lock|mutex_lock|futex_lock|srw_mutex_impl|ssux_lock_impl"
)
CONDITION_FUNCTION = re.compile(r"[cC]ond[vV]ar|[cC]ond(ition)?_?[wW]ait")
# Waits of abseil for a condition of its own take the slow path of the lock.
AWAIT_FUNCTION = re.compile(r"Mutex.*(Await|LockWhen)")
ROLES = ((AWAIT, AWAIT_FUNCTION), (CONDITION, CONDITION_FUNCTION), (LOCK, LOCK_FUNCTION))


def role_of(functions: Iterable[str | None]) -> str | None:
    """Return the role of the innermost of these functions that has one."""
    for function in functions:
        for role, pattern in ROLES:
            if pattern.search(function or ""):
                return role
    return None


def is_for_lock(roles: Iterable[str | None]) -> bool:
    """Whether a wait is for a lock. roles: of the frames, the innermost first."""
    known = [role for role in roles if role]
    return known[:1] == [LOCK] and AWAIT not in known
