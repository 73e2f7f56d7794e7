# SPDX-License-Identifier: MIT
"""How quiet a machine is: what disturbs a measurement, and how to switch some of it off.

A reading has what was found and whether it disturbs. A setting is a file below /sys or /proc, and
its quiet value. Only root changes settings. Their old values are on disk before the first change,
so that the next start can restore them after a crash.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rouse.errors import RouseError
from rouse.text import counted, printable

QUIET, LOUD, UNSEEN = "quiet", "loud", "unseen"
LOAD_MOST = 0.3  # processes that want to run, on average over the last minute
IDLE_S = 3.0  # for which processors must idle before a machine is quiet that had a higher load
STEAL_MOST = 0.01  # of the processors' time
LATENCY_MOST_US = 10  # a processor may take as long to leave an idle state
SAMPLE_S = 0.5
BUSY_NAMED = 3
SAVED = Path("/run/rouse-lab.settings")
SAVED_BYTES_MOST = 1 << 20


@dataclass(frozen=True)
class Reading:
    name: str
    found: str
    state: str
    why: str = ""  # it disturbs, or cannot be seen


# Readings of what others do to the machine. Everything else is a setting of it.
LOAD, STOLEN = "load", "time stolen"


def disturbances(readings: Sequence[Reading]) -> str:
    """Return what other programs and the host do to this machine, or an empty text."""
    loud = [each for each in readings if each.state == LOUD and each.name in (LOAD, STOLEN)]
    return "; ".join(f"{each.name}: {each.found}" for each in loud)


@dataclass(frozen=True)
class Sample:
    is_busy: bool  # programs kept LOAD_MOST processors busy, or it is not known
    busiest: str  # processes
    stolen: float  # share of the time


@dataclass(frozen=True)
class Setting:
    name: str
    pattern: str  # of files below the root
    quiet: str
    why: str


SETTINGS = (
    Setting(
        "governor",
        "sys/devices/system/cpu/cpufreq/policy*/scaling_governor",
        "performance",
        "the clock's frequency follows the load, with a delay",
    ),
    Setting(
        "turbo (Intel)",
        "sys/devices/system/cpu/intel_pstate/no_turbo",
        "1",
        "the frequency depends on temperature and on the other cores",
    ),
    Setting(
        "boost",
        "sys/devices/system/cpu/cpufreq/boost",
        "0",
        "the frequency depends on temperature and on the other cores",
    ),
    Setting(
        "energy bias",
        "sys/devices/system/cpu/cpu[0-9]*/power/energy_perf_bias",
        "0",
        "the processor prefers to save energy",
    ),
    Setting(
        "idle states",
        "sys/devices/system/cpu/cpu[0-9]*/cpuidle/state*/disable",
        "1",
        f"a processor takes more than {LATENCY_MOST_US} µs to wake up",
    ),
    Setting(
        "address randomisation",
        "proc/sys/kernel/randomize_va_space",
        "0",
        "each run has other cache conflicts",
    ),
)


def text_of(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


class Machine:
    def __init__(self, root: Path = Path("/"), saved: Path = SAVED) -> None:
        """root: where sys and proc lie. saved: the file of old values."""
        self.root = root
        self.saved = saved

    def text(self, name: str) -> str:
        return text_of(self.root / name)

    # Readings

    def files(self, setting: Setting) -> list[Path]:
        """Return the files of a setting that this machine has."""
        found = sorted(self.root.glob(setting.pattern))
        if setting.name == "idle states":
            return [path for path in found if self.is_slow(path.parent)]
        return found

    @staticmethod
    def is_slow(state: Path) -> bool:
        latency = text_of(state / "latency")
        return latency.isdecimal() and int(latency) > LATENCY_MOST_US

    def of_setting(self, setting: Setting) -> Reading:
        files = self.files(setting)
        values = [text_of(path) for path in files]
        others = sorted({value for value in values if value != setting.quiet})
        if not files:
            return Reading(setting.name, "not visible here", UNSEEN)
        if not others:
            return Reading(setting.name, setting.quiet, QUIET)
        count = sum(value != setting.quiet for value in values)
        found = ", ".join(map(printable, others))
        if len(files) > 1:
            found += f" in {count} of {len(files)} files"
        return Reading(setting.name, found, LOUD, setting.why)

    def is_virtual(self) -> bool:
        return " hypervisor" in self.text("proc/cpuinfo")

    def description(self) -> str:
        """Return the processors, their model, and the kernel."""
        model = re.search(r"model name\s*:\s*(.*)", self.text("proc/cpuinfo"))
        name = printable(model[1] if model else os.uname().machine)
        count = counted(len(os.sched_getaffinity(0)), "processor")
        return f"{count} ({name}), Linux {os.uname().release}"

    def processor_ticks(self) -> tuple[int, int, int]:
        """Return the time of all processors so far, what was idle of it, and what the hypervisor
        took."""
        words = self.text("proc/stat").split("\n", 1)[0].split()[1:]
        ticks = [int(word) for word in words if word.isdecimal()]
        return sum(ticks[:8]), sum(ticks[3:5]), ticks[7] if len(ticks) > 7 else 0

    def process_ticks(self) -> dict[str, int]:
        """Return the processor time of each process, by number and name."""
        found = {}
        for path in self.root.glob("proc/[0-9]*/stat"):
            head, _, rest = text_of(path).rpartition(")")
            words = rest.split()
            if len(words) > 12 and path.parent.name != str(os.getpid()):
                name = f"{printable(head.partition('(')[2])} ({path.parent.name})"
                found[name] = int(words[11]) + int(words[12])
        return found

    @staticmethod
    def busiest(before: dict[str, int], after: dict[str, int], sample_s: float) -> str:
        spent = {name: ticks - before.get(name, ticks) for name, ticks in after.items()}
        most = sorted(spent.items(), key=lambda item: -item[1])[:BUSY_NAMED]
        per_s = max(sample_s, 0.01) * os.sysconf("SC_CLK_TCK") / 100
        return ", ".join(f"{name} {ticks / per_s:.0f} %" for name, ticks in most if ticks > 0)

    def sample(self, seconds: float) -> Sample:
        """Look at what runs for so long."""
        before = self.process_ticks()
        whole, idle, stolen = self.processor_ticks()
        time.sleep(seconds)
        whole_after, idle_after, stolen_after = self.processor_ticks()
        busiest = self.busiest(before, self.process_ticks(), seconds)
        whole, idle, stolen = whole_after - whole, idle_after - idle, stolen_after - stolen
        processors = len(os.sched_getaffinity(0))
        is_busy = (whole - idle) * processors >= LOAD_MOST * whole
        return Sample(is_busy, busiest, stolen / max(whole, 1))

    def readings(self, sample_s: float = SAMPLE_S, is_sure: bool = False) -> list[Reading]:
        """is_sure: look longer before an idle machine is called quiet whose load was high."""
        load = self.text("proc/loadavg").split(" ", 1)[0] or "not known"
        is_high = load[:1].isdigit() and float(load) >= LOAD_MOST
        looked_s = sample_s
        sample = self.sample(sample_s)
        # The load also counts what this laboratory ran before.
        if is_high and is_sure and not sample.is_busy:
            looked_s = IDLE_S
            sample = self.sample(looked_s)
        loud, busy, share = is_high and sample.is_busy, sample.busiest, sample.stolen
        who = f"; now {busy}" if busy else ""
        why = "others run" if loud else ""
        if is_high and not loud:
            who = " in the last minute; now the processors are idle"
            why = f"in {looked_s:g} s less than {LOAD_MOST:g} processors were busy"
        isolated = self.text("sys/devices/system/cpu/isolated") or "none"
        found = [
            Reading(LOAD, f"{load}{who}", LOUD if loud else QUIET, why),
            Reading(
                STOLEN,
                f"{100 * share:.1f} %",
                LOUD if share > STEAL_MOST else QUIET,
                "the host runs others on these processors" if share > STEAL_MOST else "",
            ),
            Reading("isolated processors", printable(isolated), QUIET),
            *(self.of_setting(setting) for setting in SETTINGS),
        ]
        if self.is_virtual():
            why = "the host decides about frequencies, idle states and neighbours"
            found.insert(0, Reading("virtual machine", "yes", UNSEEN, why))
        return found

    # Settings

    @contextlib.contextmanager
    def set_quiet(self) -> Iterator[list[str]]:
        """Set what can be set, and restore it at the end. Yields what could not be set."""
        self.restore()
        wanted = [
            (path, setting.quiet)
            for setting in SETTINGS
            for path in self.files(setting)
            if text_of(path) != setting.quiet
        ]
        holder = self.save([(path, text_of(path)) for path, _ in wanted])
        try:
            yield [said for path, value in wanted if (said := write(path, value))]
        finally:
            self.put_back()
            os.close(holder)

    def save(self, settings: list[tuple[Path, str]]) -> int:
        """Store old values, and hold the file for as long as they are changed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            holder = os.open(self.saved, flags, 0o600)
        except OSError as error:
            raise RouseError(f"{self.saved}: {error.strerror}; nothing was changed") from error
        fcntl.flock(holder, fcntl.LOCK_EX)
        whole = json.dumps([[str(path), value] for path, value in settings]).encode()
        os.write(holder, whole)
        os.fsync(holder)
        return holder

    def restore(self) -> None:
        """Restore what an earlier run that crashed has left."""
        try:
            held = os.open(self.saved, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        except OSError as error:
            raise RouseError(f"{self.saved}: {error.strerror}") from error
        try:
            status = os.fstat(held)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode):
                raise RouseError(f"{self.saved}: is not a file of this user; remove it")
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.put_back()
        except BlockingIOError as error:
            raise RouseError(
                "another rouse lab has changed the settings; wait for its end"
            ) from error
        finally:
            os.close(held)

    def put_back(self) -> None:
        try:
            kept = json.loads(self.saved.read_bytes()[:SAVED_BYTES_MOST])
            for path, value in kept:
                # The file is root's own. Even so, nothing but the settings is ever written.
                if any(Path(path).match(f"*/{setting.pattern}") for setting in SETTINGS):
                    write(Path(path), value)
        except (OSError, ValueError, TypeError):
            pass  # it was not written as a whole, and then nothing was changed
        self.saved.unlink(missing_ok=True)


def write(path: Path, value: str) -> str:
    """Return an empty text, or why the value could not be written."""
    try:
        path.write_text(value)
    except OSError as error:
        return f"{path}: {error.strerror}"
    return ""
