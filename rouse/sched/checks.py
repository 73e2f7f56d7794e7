# SPDX-License-Identifier: MIT
"""Checks of this machine: what the kernel allows, and what to change where it does not."""

from __future__ import annotations

import os
import resource
import stat
from collections.abc import Callable
from dataclasses import dataclass

from rouse.errors import RouseError
from rouse.sched.probe import BY_BPF, BY_RECORDS, System
from rouse.store import find, layout

GOOD, LIMITED, BAD = "good", "limited", "bad"
MIB = 1 << 20
FILES_WANTED = 10_000
RINGS_SINCE = (6, 7)
GUARDS_SINCE = (6, 13)
PARANOID_MOST = 2  # for what a user may know of his own programs


@dataclass(frozen=True)
class Check:
    name: str
    state: str  # good; limited: rouse does without it; bad: something of rouse does not work
    found: str
    effect: str = ""
    remedy: str = ""


def since(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


# The machine


def kernel(system: System) -> Check:
    version = system.kernel()
    found = system.text("/proc/sys/kernel/osrelease") or since(version)
    if version >= GUARDS_SINCE:
        return Check("kernel", GOOD, found)
    return Check(
        "kernel",
        LIMITED,
        found,
        f"io_uring is used from {since(RINGS_SINCE)} on, cheap guard pages from "
        f"{since(GUARDS_SINCE)} on",
        "a newer kernel",
    )


def clock(system: System) -> Check:
    sources = (
        system.text("/sys/devices/system/clocksource/clocksource0/available_clocksource") or ""
    ).split()
    current = system.text("/sys/devices/system/clocksource/clocksource0/current_clocksource") or "?"
    if system.machine == "aarch64":
        return Check("clock", GOOD, f"the architecture's counter; the kernel uses {current}")
    flags = set()
    for line in (system.text("/proc/cpuinfo") or "").splitlines():
        if line.startswith("flags"):
            flags = set(line.split())
            break
    missing = [flag for flag in ("constant_tsc", "nonstop_tsc") if flag not in flags]
    found = f"time stamp counter; the kernel uses {current}"
    if missing:
        effect = "times of waits are of a clock that changes its speed or stands still"
        remedy = "if this is a virtual machine, give it the host's time stamp counter (invtsc)"
        return Check("clock", BAD, f"{found}; no {' or '.join(missing)}", effect, remedy)
    if "tsc" not in sources:
        effect = "processors may disagree about the time: waits may seem to end before they began"
        return Check(
            "clock", LIMITED, f"{found}, and does not trust the counter", effect, "dmesg says why"
        )
    return Check("clock", GOOD, found)


def processors(system: System) -> Check:
    usable = system.processors()
    found = f"{usable} usable"
    quota, _, period = (system.text("/sys/fs/cgroup/cpu.max") or "").partition(" ")
    if quota.isdigit() and period.isdigit() and int(quota) < usable * int(period):
        share = int(quota) / int(period)
        return Check(
            "processors",
            LIMITED,
            f"{found}, for {share:.1f} of which this group has time",
            "workers are stopped by the kernel when the time is used up",
            f"set ROUSE_WORKERS={max(int(share), 1)}, or raise cpu.max",
        )
    return Check("processors", GOOD, found)


def fences(system: System) -> Check:
    if system.has_membarrier():
        return Check("membarrier", GOOD, "private expedited")
    effect = "each queue operation has a full fence"
    return Check("membarrier", LIMITED, "not there", effect, "allow membarrier(2) in the sandbox")


# Requirements of programs that use librouse


def rings(system: System) -> Check:
    error = system.io_uring_error()
    if error:
        disabled = system.number("/proc/sys/kernel/io_uring_disabled")
        remedy = "allow io_uring_setup(2) in the sandbox"
        if disabled:
            remedy = "sysctl kernel.io_uring_disabled=0"
        effect = "descriptors are waited for by epoll: ROUSE_IO=auto does so by itself"
        return Check("io_uring", LIMITED, f"refused: {os.strerror(error)}", effect, remedy)
    if system.kernel() < RINGS_SINCE:
        effect = f"rouse uses it from kernel {since(RINGS_SINCE)} on, and epoll before"
        return Check("io_uring", LIMITED, "allowed", effect, "a newer kernel")
    return Check("io_uring", GOOD, "allowed")


def guards(system: System) -> Check:
    if system.has_guards():
        return Check("guard pages", GOOD, "MADV_GUARD_INSTALL, without a mapping each")
    mappings = system.number("/proc/sys/vm/max_map_count") or 65530
    return Check(
        "guard pages",
        LIMITED,
        "a mapping each",
        f"about {mappings // 2:,} threads at once (vm.max_map_count is {mappings:,})",
        f"kernel {since(GUARDS_SINCE)}, or sysctl vm.max_map_count=1000000",
    )


def files(system: System) -> Check:
    soft, hard = system.limit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} descriptors a process" if soft >= 0 else "as many descriptors as wanted"
    if 0 <= soft < FILES_WANTED:
        can = f"ulimit -n {hard}" if hard < 0 or hard > soft else "raise LimitNOFILE or limits.conf"
        return Check("open files", LIMITED, found, "a server has at most as many connections", can)
    return Check("open files", GOOD, found)


def locked(system: System) -> Check:
    soft, _ = system.limit(resource.RLIMIT_MEMLOCK)
    found = f"{soft // 1024:,} KiB" if soft >= 0 else "as much as wanted"
    if 0 <= soft < 64 * 1024 and system.kernel() < (5, 12):
        effect = "rings of io_uring count as locked memory before kernel 5.12, and may be refused"
        return Check("locked memory", LIMITED, found, effect, "ulimit -l 65536")
    return Check("locked memory", GOOD, found)


def memory(system: System) -> Check:
    soft, _ = system.limit(resource.RLIMIT_AS)
    overcommit = system.number("/proc/sys/vm/overcommit_memory")
    if soft >= 0:
        effect = "each thread's stack takes 64 KiB of it, and a recording 256 MiB"
        found = f"at most {soft // MIB:,} MiB of addresses"
        return Check("address space", LIMITED, found, effect, "ulimit -v unlimited")
    if overcommit == 2:
        effect = "stacks count as used memory before they are touched"
        remedy = "sysctl vm.overcommit_memory=0"
        return Check("address space", LIMITED, "not overcommitted", effect, remedy)
    return Check("address space", GOOD, "as much as wanted")


def pressure(system: System) -> Check:
    if system.may_read("/proc/pressure/memory"):
        return Check("memory pressure", GOOD, "reported by the kernel")
    effect = "ROUSE_TRIM=pressure does not learn when memory is short"
    return Check("memory pressure", LIMITED, "not reported", effect, "boot with psi=1")


# Requirements of recording


def recordings(system: System) -> Check:
    """Check where processes record. BAD: they cannot."""
    place = find.folder()
    parent = place.parent
    try:
        if find.checked_folder() is not None:
            parent = place
            if stat.S_IMODE(place.stat().st_mode) & 0o077:
                raise RouseError(f"{place}: others may read it", f"chmod 700 {place}")
    except RouseError as error:
        if os.environ.get("ROUSE_OBS_DIR"):
            return Check("recordings", BAD, error.what, "nothing records", error.remedy)
        effect = f"processes record in a private folder {place}-RANDOM instead"
        return Check("recordings", LIMITED, error.what, effect, error.remedy)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        remedy = "mount -t tmpfs tmpfs /dev/shm, or set ROUSE_OBS_DIR to a folder of your own"
        return Check("recordings", BAD, f"{parent} cannot be written to", "nothing records", remedy)
    free = system.free_bytes(str(parent)) or 0
    if free < layout.BYTES_MAX:
        effect = "a recording may want 256 MiB; what does not fit is counted, and missing"
        remedy = "mount -o remount,size=1G /dev/shm, or set ROUSE_OBS_DIR"
        return Check("recordings", LIMITED, f"{free // MIB:,} MiB free in {parent}", effect, remedy)
    try:
        alive = sum(found.is_alive for found in find.processes())
    except RouseError:
        alive = 0
    return Check("recordings", GOOD, f"in {place}; processes that record now: {alive}")


def file_size(system: System) -> Check:
    soft, _ = system.limit(resource.RLIMIT_FSIZE)
    if 0 <= soft < layout.BYTES_MAX:
        found = f"at most {soft // MIB:,} MiB"
        remedy = "ulimit -f unlimited, or as many MiB in ROUSE_OBS_MIB"
        return Check("file size", BAD, found, "nothing records: that takes 256 MiB", remedy)
    return Check("file size", GOOD, "as long as a recording may get")


def accounting(system: System) -> Check:
    if system.text("/proc/self/schedstat") is None:
        effect = "rouse top does not know for how long kernel threads wait for a processor"
        return Check(
            "accounting", LIMITED, "no schedstat", effect, "a kernel with CONFIG_SCHED_INFO"
        )
    if system.number("/proc/sys/kernel/task_delayacct") != 1:
        effect = "the DFL column of rouse top is - where there were major page faults"
        remedy = "sysctl kernel.task_delayacct=1"
        return Check("accounting", LIMITED, "schedstat, without delays", effect, remedy)
    return Check("accounting", GOOD, "schedstat and delays")


# Requirements of watching the kernel's scheduler


def bpf(system: System) -> Check:
    has = system.capabilities()
    allowed = "CAP_SYS_ADMIN" in has or {"CAP_BPF", "CAP_PERFMON"} <= has
    effect = "rouse watch and rouse run --kernel cannot show who woke a thread"
    if not allowed:
        remedy = "be root, or have CAP_BPF and CAP_PERFMON"
        return Check("BPF", LIMITED, "not allowed", effect, remedy)
    if not system.may_read("/sys/kernel/btf/vmlinux"):
        return Check("BPF", LIMITED, "no BTF", effect, "a kernel with CONFIG_DEBUG_INFO_BTF")
    return Check("BPF", GOOD, "allowed, with BTF")


def by_bpf(system: System) -> Check:
    if system.helper(BY_BPF):
        return Check(BY_BPF, GOOD, "built")
    effect = "rouse watch and rouse run --kernel cannot show who woke a thread"
    remedy = "install clang and libbpf-dev, and build rouse anew"
    return Check(BY_BPF, LIMITED, "not built", effect, remedy)


def records(system: System) -> Check:
    name = "PERF_RECORD_SWITCH"
    error = system.perf_event_error()
    if not error:
        return Check(name, GOOD, "allowed, of this user's own programs")
    level = system.number("/proc/sys/kernel/perf_event_paranoid")
    effect = "without BPF rouse run --kernel has sums alone"
    if level is not None and level > PARANOID_MOST:
        found = f"not allowed: kernel.perf_event_paranoid is {level}"
        remedy = f"sysctl kernel.perf_event_paranoid={PARANOID_MOST}"
        return Check(name, LIMITED, found, effect, remedy)
    found = f"not allowed: perf_event_open: {os.strerror(error)}"
    remedy = "a kernel with CONFIG_PERF_EVENTS; in a container, one that allows the call"
    return Check(name, LIMITED, found, effect, remedy)


def by_records(system: System) -> Check:
    if system.helper(BY_RECORDS):
        return Check(BY_RECORDS, GOOD, "built")
    effect = "without BPF rouse run --kernel has sums alone"
    return Check(BY_RECORDS, LIMITED, "not built", effect, "build rouse anew")


# Requirements of other tools


def tracing(system: System) -> Check:
    event = "events/sched/sched_switch/id"
    places = ("/sys/kernel/tracing", "/sys/kernel/debug/tracing")
    if any(system.may_read(f"{place}/{event}") for place in places):
        return Check("tracefs", GOOD, "readable")
    effect = "the kernel's switches cannot be traced beside rouse's"
    if any(system.exists(place) for place in places) and os.geteuid() != 0:
        return Check("tracefs", LIMITED, "for root only", effect, "run the tracer as root")
    remedy = "mount -t tracefs nodev /sys/kernel/tracing"
    return Check("tracefs", LIMITED, "not mounted", effect, remedy)


def perf(system: System) -> Check:
    level = system.number("/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return Check("perf", LIMITED, "not in this kernel", "perf(1) does not work")
    found = f"perf_event_paranoid is {level}"
    privileged = system.capabilities() & {"CAP_SYS_ADMIN", "CAP_PERFMON"}
    if level > 2 and not privileged:
        remedy = "sysctl kernel.perf_event_paranoid=1"
        return Check("perf", LIMITED, found, "perf(1) sees nothing", remedy)
    if level > 1 and not privileged:
        effect = "perf(1) sees programs, and not the kernel beneath them"
        return Check("perf", LIMITED, found, effect, "sysctl kernel.perf_event_paranoid=1")
    return Check("perf", GOOD, found)


def ptrace(system: System) -> Check:
    scope = system.number("/proc/sys/kernel/yama/ptrace_scope")
    if not scope or "CAP_SYS_PTRACE" in system.capabilities():
        return Check("ptrace", GOOD, "allowed to this user's processes")
    effect = "gdb and strace cannot attach; rouse needs no such right"
    return Check(
        "ptrace", LIMITED, f"ptrace_scope is {scope}", effect, "sysctl kernel.yama.ptrace_scope=0"
    )


CHECKS: tuple[Callable[[System], Check], ...] = (
    kernel,
    clock,
    processors,
    fences,
    rings,
    guards,
    files,
    locked,
    memory,
    pressure,
    recordings,
    file_size,
    accounting,
    bpf,
    by_bpf,
    records,
    by_records,
    tracing,
    perf,
    ptrace,
)


def examine(system: System) -> list[Check]:
    return [check(system) for check in CHECKS]
