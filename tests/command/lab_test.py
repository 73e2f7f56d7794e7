#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""`rouse lab`: experiments by rouse-bench, and a machine that is made quiet and restored."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

from common import BUILD, COMMAND, SOURCE, here, laboratory, rouse, start_ready

from rouse import whole_file
from rouse.cli import lab, lab_shared
from rouse.errors import RouseError
from rouse.lab import experiments, packages, runs
from rouse.lab.processors import limited, quota_files
from rouse.lab.quiet import LOUD, QUIET, UNSEEN, Machine, Reading
from rouse.lab.runs import Result, Study
from rouse.render import charts, experiment, study
from rouse.render.study import Picture

BENCH = BUILD / "bench"
FILES = {
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor": "schedutil",
    "sys/devices/system/cpu/cpufreq/policy1/scaling_governor": "performance",
    "sys/devices/system/cpu/cpufreq/boost": "1",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/latency": "1",
    "sys/devices/system/cpu/cpu0/cpuidle/state0/disable": "0",
    "sys/devices/system/cpu/cpu0/cpuidle/state2/latency": "133",
    "sys/devices/system/cpu/cpu0/cpuidle/state2/disable": "0",
    "sys/devices/system/cpu/isolated": "1",
    "proc/sys/kernel/randomize_va_space": "2",
    "proc/loadavg": "0.05 0.1 0.1 1/200 4711",
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0",
    "proc/cpuinfo": "flags : fpu sse",
}
CHANGED = (
    "sys/devices/system/cpu/cpufreq/policy0/scaling_governor",
    "sys/devices/system/cpu/cpufreq/boost",
    "sys/devices/system/cpu/cpu0/cpuidle/state2/disable",
    "proc/sys/kernel/randomize_va_space",
)

FAILS = """\
case "$*" in *clone*) echo "no clone here" >&2; exit 1;; esac
echo '{"ns_per_op": 5, "ns_min": 4, "ns_max": 6}'
"""
# User threads have the shorter loop, and the longer hop.
CASCADE = """\
case "$*" in
*kernel*) echo '{"best_loop_us": 400, "ns_per_op": 1000, "voluntary_switches": 9}' ;;
*) echo '{"best_loop_us": 1, "ns_per_op": 2000, "voluntary_switches": 1}' ;;
esac
"""


# Computes for 0.3 s. Prints how many processors it may use, and how busy it kept one of them.
BUSY = """
import os, time
begin, cpu = time.monotonic(), time.process_time()
while (took := time.monotonic() - begin) < 0.3:
    pass
print(len(os.sched_getaffinity(0)), (time.process_time() - cpu) / took)
"""


def running_in(group: int) -> list[str]:
    """The programs of a process group, without those that have ended and wait to be reaped."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = path.read_text().rpartition(")")
            state, _, of = rest.split()[:3]
            if int(of) == group and state not in "ZX":
                found.append(name)
    return found


class Install(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.said: list[str] = []

    def program(self, name: str, script: str = "") -> None:
        path = self.folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def install(self, *names: str, uid: int = 0) -> None:
        with (
            mock.patch.dict(os.environ, {"PATH": str(self.folder)}),
            mock.patch.object(packages, "PLACES", ()),
            mock.patch.object(packages, "VERSIONED", "/nowhere"),
            mock.patch.object(os, "geteuid", return_value=uid),
        ):
            packages.install(names, self.said.append)

    def test_what_is_missing_is_installed_by_apt_get(self) -> None:
        self.program("apt-get", f'echo "$*" >{self.folder}/asked')
        self.program("mariadbd")
        self.install("E1", "E2", "E6")
        words = (self.folder / "asked").read_text().split()
        self.assertEqual(words[:2], ["install", "-y"])
        self.assertNotIn("mariadb-server-core", words)
        self.assertEqual(
            words[3:], ["mariadb-client-core", "postgresql", "postgresql-client", "sysbench"]
        )

    def test_nothing_is_asked_for_if_nothing_is_missing(self) -> None:
        for name in ("wrk", "nginx", "node"):
            self.program(name)
        self.install("http")
        self.install("E1")
        self.assertEqual(self.said, ["no package is missing"] * 2)

    def test_who_may_not_install_is_told_the_command(self) -> None:
        with self.assertRaisesRegex(RouseError, "no apt-get here.*sysbench"):
            self.install("E2")
        self.program("apt-get", "exit 1")
        with self.assertRaisesRegex(RouseError, "as root: apt-get install .*sysbench"):
            self.install("E2", uid=1)
        with self.assertRaisesRegex(RouseError, "ended with status 1: nothing was measured"):
            self.install("E2")


class Pages(unittest.TestCase):
    def test_an_interrupt_while_a_page_is_written_leaves_no_half_page(self) -> None:
        """Ctrl-C comes as soon as the first of its files is there."""
        bars = [charts.Bar("first", "new", charts.Value(1.0, 1.0, 1.0))]
        page = study.Page("E0", "A page", [Picture("figure", charts.Bars("Figure", bars))])
        replace = whole_file.replace
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

        def interrupted(path: Path, parts: list[bytes]) -> None:
            replace(path, parts)
            os.kill(os.getpid(), signal.SIGINT)

        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            with (
                mock.patch.object(whole_file, "replace", interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                study.write(folder, page)
            names = {path.suffix for path in folder.iterdir()}
        self.assertLessEqual({".html", ".md", ".svg"}, names)
        self.assertEqual(".png" in names, charts.has_png())


class Processors(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)

    def busy(self, processors: float) -> tuple[int, float]:
        with limited(processors) as before:
            done = subprocess.run(
                [*before, sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=60
            )
        self.assertEqual(done.returncode, 0, done.stderr)
        count, share = done.stdout.split()
        return int(count), float(share)

    def test_a_whole_number_is_an_affinity(self) -> None:
        self.assertEqual(self.busy(1.0)[0], 1)

    def test_a_fraction_is_a_quota(self) -> None:
        try:
            count, share = self.busy(0.25)
        except RouseError as error:
            self.skipTest(f"not run: {error}")
        self.assertEqual(count, len(os.sched_getaffinity(0)))
        self.assertLess(share, 0.4)  # the kernel's quota, and at most two periods more
        name = f"rouse-lab-{os.getpid()}"
        groups = Path("/sys/fs/cgroup")
        self.assertEqual([*groups.glob(name), *groups.glob(f"*/{name}")], [])

    def test_both_versions_of_control_groups(self) -> None:
        group = self.root / "group"
        group.mkdir()
        text = dict(quota_files(group, 0.5))
        self.assertEqual(text[group / "cpu.cfs_quota_us"], "5000")
        self.assertEqual(text[group / "cpu.cfs_period_us"], "10000")
        (group / "cpu.max").touch()
        self.assertEqual(quota_files(group, 1.5), [(group / "cpu.max", "15000 10000")])

    def test_what_cannot_be_limited_is_said_and_leaves_nothing(self) -> None:
        for processors, root, said in (
            (4096.0, self.root, "4096 processors: this machine has"),
            (0.5, self.root / "nowhere", "needs a control group: .*No such file"),
            (0.5, self.root, "no quota is set"),
        ):
            # A file that cannot be written to stands for a kernel that refuses.
            refuses = mock.patch.object(Path, "write_text", side_effect=OSError(13, "no", "f"))
            with self.assertRaisesRegex(RouseError, said), refuses, limited(processors, root):
                self.fail("it began")
            self.assertEqual(list(self.root.iterdir()), [])


class Quiet(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.root = Path(holder.name)
        for name, text in FILES.items():
            (self.root / name).parent.mkdir(parents=True, exist_ok=True)
            (self.root / name).write_text(f"{text}\n")
        self.machine = Machine(self.root, self.root / "saved")

    def now(self) -> dict[str, str]:
        return {name: (self.root / name).read_text().strip() for name in FILES}

    def states(self) -> dict[str, str]:
        return {each.name: each.state for each in self.machine.readings(0)}

    def test_readings_say_what_disturbs(self) -> None:
        states = self.states()
        loud = {"governor", "boost", "idle states", "address randomisation"}
        self.assertEqual({name for name, state in states.items() if state == LOUD}, loud)
        self.assertEqual((states["load"], states["time stolen"]), (QUIET, QUIET))
        self.assertEqual((states["turbo (Intel)"], states["energy bias"]), (UNSEEN, UNSEEN))
        (self.root / "proc/loadavg").write_text("0.31 0.1 0.1 1/200 4711\n")
        (self.root / "proc/cpuinfo").write_text("flags : fpu hypervisor sse\n")
        states = self.states()
        self.assertEqual((states["load"], states["virtual machine"]), (LOUD, UNSEEN))

    def test_a_load_that_is_over_disturbs_nobody(self) -> None:
        """As that of the experiment before. The readings are taken once the processors idle."""
        (self.root / "proc/loadavg").write_text("36.66 0.1 0.1 1/200 4711\n")
        times = self.root / "proc/stat"
        for busy, idle, state in ((1, 80, QUIET), (90, 10, LOUD)):
            so_far = [200, 800]
            times.write_text("cpu  200 0 0 800 0 0 0 0 0 0\n")

            def passes(
                _: float, so_far: list[int] = so_far, busy: int = busy, idle: int = idle
            ) -> None:
                so_far[:] = so_far[0] + busy, so_far[1] + idle
                times.write_text(f"cpu  {so_far[0]} 0 0 {so_far[1]} 0 0 0 0 0 0\n")

            two = mock.patch.object(os, "sched_getaffinity", return_value={0, 1})
            with mock.patch("rouse.lab.quiet.time.sleep", passes), two:
                found = {each.name: each for each in self.machine.readings(is_sure=True)}
            self.assertEqual(found["load"].state, state, found["load"])

    def test_settings_are_quiet_meanwhile_and_then_as_before(self) -> None:
        for error in (None, KeyboardInterrupt, SystemExit):
            with (
                self.subTest(error=error),
                contextlib.suppress(KeyboardInterrupt, SystemExit),
                self.machine.set_quiet() as refused,
            ):
                self.assertEqual(refused, [])
                states = self.states()
                for name in ("governor", "boost", "idle states", "address randomisation"):
                    self.assertEqual(states[name], QUIET, name)
                self.assertEqual(self.now()[CHANGED[2].replace("state2", "state0")], "0")
                if error:
                    raise error
            self.assertEqual(self.now(), FILES)
            self.assertFalse(self.machine.saved.exists())

    def test_the_next_start_restores_what_a_crash_has_left(self) -> None:
        pid = os.fork()
        if pid == 0:
            with self.machine.set_quiet():
                os.kill(os.getpid(), signal.SIGKILL)
        os.waitpid(pid, 0)
        self.assertNotEqual(self.now(), FILES)
        self.machine.restore()
        self.assertEqual(self.now(), FILES)
        self.assertFalse(self.machine.saved.exists())

    def test_settings_that_another_laboratory_holds_stay(self) -> None:
        with self.machine.set_quiet():
            before = self.now()
            with self.assertRaisesRegex(RouseError, "another rouse lab"):
                Machine(self.root, self.machine.saved).restore()
            self.assertEqual(self.now(), before)

    def test_a_setting_that_refuses_is_named(self) -> None:
        path = self.root / CHANGED[1]
        path.unlink()
        path.mkdir()  # root may write to every file
        with self.machine.set_quiet() as refused:
            self.assertEqual(len(refused), 1)
            self.assertIn(str(path), refused[0])
        path.rmdir()

    def test_saved_values_reach_no_other_file(self) -> None:
        other = self.root / "other"
        other.write_text("kept")
        link = self.root / "link"
        self.machine.saved.write_text(json.dumps([[str(other), "lost"], [str(link), "x"]]))
        self.machine.restore()
        self.assertEqual(other.read_text(), "kept")
        self.assertFalse(link.exists() or self.machine.saved.exists())
        self.machine.saved.symlink_to(other)
        with self.assertRaises(RouseError):
            self.machine.restore()
        for damaged in ("", "{", "[1]", '[["a"]]', "null"):
            self.machine.saved.unlink(missing_ok=True)
            self.machine.saved.write_text(damaged)
            self.machine.restore()
            self.assertEqual(self.now(), FILES)

    def test_the_command_shows_this_machine(self) -> None:
        done = rouse("lab", "quiet", "--json")
        self.assertIn(done.returncode, (0, 1), done.stderr)
        found = {each["name"]: each for each in json.loads(done.stdout)}
        load = Path("/proc/loadavg").read_text().split()[0]
        self.assertAlmostEqual(
            float(re.split("[; ]", found["load"]["found"])[0]), float(load), delta=2
        )
        space = Path("/proc/sys/kernel/randomize_va_space").read_text().strip()
        is_quiet = found["address randomisation"]["state"] == QUIET
        self.assertEqual(is_quiet, space == "0")
        refused = rouse("lab", "quiet", "true")
        self.assertEqual((refused.returncode, refused.stderr.count("\n")), (2, 1))


class Laboratory(unittest.TestCase):
    def setUp(self) -> None:
        self.enterContext(laboratory())
        self.path = f"{BENCH}:{os.environ['PATH']}"

    def lab(self, *words: str) -> subprocess.CompletedProcess[str]:
        return rouse("lab", *words, PATH=self.path)

    def test_the_list_has_all_six(self) -> None:
        said = self.lab().stdout
        for number in range(1, 7):
            self.assertRegex(said, rf"(?m)^E{number}  ")

    def test_a_checkout_directly_in_the_root_folder(self) -> None:
        with mock.patch("rouse.lab.runs.__file__", "/src/rouse/lab/runs.py"):
            self.assertEqual(runs.find("sh"), Path(shutil.which("sh", path="/bin") or ""))

    def test_every_row_runs(self) -> None:
        """Those of rouse-bench; E2 has databases, too."""
        names = ["E1", "E3", "E4", "E5"]
        done = self.lab("--seconds", "0.01", "-f", "json", *names)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual([each["experiment"] for each in found], names)
        known = {each.name: each for each in experiments.every()}
        second = [runs.run_row(BENCH / "rouse-bench", step, 0.01) for step in known["E2"].steps]
        self.assertEqual([error for _, error in second if error], [])
        reports = {"E2": [report for report, _ in second]}
        for whole in found:
            reports[whole["experiment"]] = [row["reports"][0] for row in whole["rows"]]
        for name, every in reports.items():
            keys = {figure.key for figure in known[name].figures}
            for report in every:
                self.assertTrue(keys & report.keys(), report)
            for key in keys:
                self.assertTrue([report for report in every if key in report], (name, key))

    def test_settings_of_a_row_reach_its_program(self) -> None:
        """The affinity of the last row of them is the highest."""
        rows = [step for step in experiments.by_affinity() if step.settings]
        self.assertEqual(len(rows), 6)
        self.assertTrue(rows[-1].command.startswith(f"{rows[-1].settings} rouse-bench "))
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "bench"
            program.write_text('#!/bin/sh\necho "{\\"level\\": $ROUSE_STEAL_AFFINITY}"\n')
            program.chmod(0o755)
            found = [runs.run_row(program, row, 0.01)[0] for row in rows]
        self.assertEqual([each["level"] for each in found], [1, 2, 3, 4, 5, 6])

    def test_one_thread_waits_for_two_ticks(self) -> None:
        """A time-out of one tick is two at most times: at least 1.67 on average in the source."""
        (report, error) = runs.run_row(
            BENCH / "rouse-bench",
            next(s for s in experiments.time_outs(100) if s.source[:5] == "about"),
            0.5,
        )
        self.assertEqual(error, "")
        self.assertLess(report["calls_per_s"], 101)
        self.assertGreaterEqual(report["voluntary_per_op"], 0.9)

    def test_quick_is_the_default(self) -> None:
        for words, rows in (((), 3), (("--rounds", "2"), 6)):
            done = self.lab("e4", "--quick", "--seconds", "0.01", *words)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"plan: E4, {rows} rows", done.stderr)

    def test_a_laboratory_of_root_restores_settings_first(self) -> None:
        with (
            mock.patch.object(os, "geteuid", return_value=0),
            mock.patch.object(Machine, "restore") as restore,
        ):
            lab_shared.restored()
            restore.assert_called_once_with()
        with (
            mock.patch.object(os, "geteuid", return_value=1),
            mock.patch.object(Machine, "restore") as restore,
        ):
            lab_shared.restored()
            restore.assert_not_called()

    def test_ticks_bound_the_calls_as_the_source_predicts(self) -> None:
        """Timers never end early, which bounds the calls of 100 threads; ticks are 10 ms apart.

        A thread that sleeps for 9 ms calls once per tick at most, one that sleeps for 11 ms once
        per two ticks. Nothing bounds the calls from below: the machine may stand still.
        """
        done = self.lab("E3", "--seconds", "0.3", "--format", "json")
        (whole,) = json.loads(done.stdout)
        rates = {row["label"]: row["reports"][0]["calls_per_s"] for row in whole["rows"]}
        self.assertLess(rates["9 ms, ticks"], 11_000)
        self.assertLess(rates["11 ms, ticks"], 5_500)
        self.assertLess(rates["9 ms, exact"], 12_100)
        self.assertLess(rates["11 ms, exact"], 9_900)

    def test_another_tick_length_scales_the_time_outs(self) -> None:
        """250 ticks per second: a time-out of 1.1 ticks is 4.4 ms, and ends at the second tick."""
        done = self.lab("E3", "--seconds", "0.3", "--hz", "250", "--format", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        (whole,) = json.loads(done.stdout)
        reports = {row["label"]: row["reports"][0] for row in whole["rows"]}
        self.assertLess(reports["4.4 ms, ticks"]["calls_per_s"], 13_750)
        self.assertEqual(reports["4.4 ms, ticks"]["hz"], 250)
        self.assertEqual(reports["4.4 ms, exact"]["timeout_us"], 4400)
        self.assertEqual(self.lab("E3", "--hz", "0").returncode, 2)

    def test_tables_have_the_rows_the_source_and_the_machine(self) -> None:
        for form, mark in (("text", "clone(2)"), ("markdown", "| clone(2) |")):
            done = self.lab("E4", "--seconds", "0.01", "--format", form)
            self.assertIn(mark, done.stdout)
            self.assertIn("The source: ", done.stdout)
            self.assertRegex(done.stdout, r"This machine is (not )?quiet")

    def made_up(self, *words: str, script: str) -> subprocess.CompletedProcess[str]:
        """Run the laboratory with a rouse-bench that is a shell script."""
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "rouse-bench"
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            with mock.patch("rouse.lab.runs.program", return_value=program):
                return here("lab", *words)

    def folder(self) -> Path:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        return Path(holder.name)

    def test_a_row_that_fails_is_named_and_the_others_go_on(self) -> None:
        folder = self.folder()
        done = self.made_up("E4", "-o", str(folder), "--anyway", script=FAILS)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"(?m)^clone\(2\) +no clone here")
        self.assertRegex(done.stdout, r"(?m)^rouse_thread_create +0\.005")
        page = (folder / "E4.html").read_text()
        self.assertIn('<td>clone(2)</td><td class="figure">no clone here</td>', page)
        self.assertIn("1 row failed", page)

    def test_a_page_stands_alone_and_has_what_the_figures_are_compared_with(self) -> None:
        folder = self.folder() / "new" / "pages"
        done = self.made_up("E5", "--output", str(folder), "--anyway", script=CASCADE)
        self.assertEqual(done.returncode, 0, done.stderr)
        page = (folder / "E5.html").read_text()
        for link in re.findall(r"(?:src|href)=\"([^\"]*)", page):
            self.assertTrue(link.startswith("data:"), link)
        self.assertEqual(page.count("<svg"), 3)
        for text in (page, (folder / "E5.md").read_text()):
            self.assertIn("T2000: 1,140 µs", text)
            self.assertIn("address randomisation", text)
            self.assertIn("rouse-bench cascade_mutex -T 33", text.replace("\\", ""))
            won, lost = text.split("newer mechanism loses")
            self.assertRegex(won, r"33 user threads, against 33 kernel threads: best loop .*wins")
            self.assertRegex(lost, r"33 user threads, against 33 kernel threads: a hop .*loses")

    def test_pictures_are_files_that_the_markdown_shows(self) -> None:
        for has_png in (True, False):
            folder = self.folder()
            with mock.patch("rouse.render.charts.has_png", return_value=has_png):
                if has_png and not importlib.util.find_spec("matplotlib"):
                    continue
                done = self.made_up("E5", "-o", str(folder), "--anyway", script=CASCADE)
            self.assertEqual(done.stderr.count("matplotlib"), 0 if has_png else 1)
            shown = re.findall(r"\]\(([^)]+\.svg)\)", (folder / "E5.md").read_text())
            self.assertEqual(sorted(shown), sorted(path.name for path in folder.glob("*.svg")))
            for name in shown:
                root = ElementTree.parse(folder / name).getroot()
                texts = {text.text for text in root.iter(f"{{{charts.NAMESPACE}}}text")}
                wanted = {"33 user threads", "the old mechanism", "rouse"}
                if name == "E5-best-loop-us-by-threads-of-the-loop.svg":
                    wanted = {"33", "threads of the loop", "kernel threads", "user threads"}
                self.assertLess(wanted, texts)
            pngs = {path.stem for path in folder.glob("*.png")}
            self.assertEqual(pngs, {Path(name).stem for name in shown} if has_png else set())
            left = [p.name for p in folder.iterdir() if p.suffix not in (".svg", ".png")]
            self.assertEqual(sorted(left), ["E5.html", "E5.md"])

    def test_rows_by_a_number_are_curves_and_each_series_has_its_page(self) -> None:
        """Of E2 the clients of a database, of E6 its instances or processors."""
        every = (
            lab.known()["E2"],
            lab.known(instances=[2, 4])["E6"],
            lab.known(processors=[0.5, 1])["E6"],
        )
        names = []
        for whole in every:
            steps = [step for step in whole.steps if step.label.startswith(("Maria", "Post"))]
            results = [
                Result(step, [{"per_s": 10.0 + place, "calls_per_s": 10.0 + place}])
                for place, step in enumerate(whole.steps)
            ]
            made = experiment.page(Study(whole, results, [], 1.0, 1, "a machine", "2026-11-27"))
            (curves,) = (
                block.chart
                for block in made.blocks
                if isinstance(block, Picture) and isinstance(block.chart, charts.Curves)
            )
            names.append((made.name, curves.x_title))
            points = sum(map(len, curves.lines.values()))
            self.assertGreaterEqual(points, len(steps))
            self.assertTrue(all(not step.command.startswith("rouse-bench") for step in steps))
        self.assertEqual(
            names,
            [
                *(("E2", "clients of MariaDB"), ("E6-instances", "instances")),
                ("E6-processors", "processors"),
            ],
        )

    def test_ranges_of_few_rounds_that_do_not_overlap_can_be_chance(self) -> None:
        """Of two and two equal rows a third do not overlap, of four and four 3 %."""
        whole = next(each for each in experiments.every() if each.name == "E4")
        for rounds, shown in ((2, "no difference is shown"), (3, "no difference"), (4, "it wins")):
            results = [
                Result(step, [{"ns_per_op": base + nth} for nth in range(rounds)])
                for step, base in zip(whole.steps, (150.0, 200.0, 100.0), strict=True)
            ]
            study = Study(whole, results, [], 1.0, rounds, "a machine", "2026-11-27")
            said = [line for line, _ in experiment.comparisons(study)]
            self.assertIn(shown, said[0], rounds)

    def test_the_versions_of_the_programs_are_known(self) -> None:
        folder = self.folder()
        for name, script, version in (
            ("wrk", "echo 'wrk debian/4.1.0-3+b2 [epoll] Copyright (C) 2012 Wi'", "4.1.0-3+b2"),
            ("nginx", "echo 'nginx version: nginx/1.22.1' >&2", "1.22.1"),
            ("node", "echo v20.20.2", "20.20.2"),
            ("mariadbd", "echo 'mariadbd  Ver 10.11.14-MariaDB-0+b1 for'", "10.11.14-MariaDB-0+b1"),
            (
                "mariadb",
                "echo 'mariadb  Ver 15.1 Distrib 10.11.14-MariaDB, for Li'",
                "10.11.14-MariaDB",
            ),
            ("psql", "echo 'psql (PostgreSQL) 15.14 (Debian 15.14-0)'", "15.14"),
            ("sysbench", "echo usage; exit 1", None),
        ):
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
            with mock.patch.dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}"):
                self.assertEqual(packages.version_of(name), version)
        with mock.patch.dict(os.environ, PATH=str(folder)):
            self.assertIn("wrk 4.1.0-3+b2", packages.versions("http"))
        self.assertEqual(packages.versions("E1"), [])
        whole = next(each for each in experiments.every() if each.name == "E4")
        study = Study(whole, [], [], 1.0, 5, "a machine", "2026-11-28", ["wrk 4.1.0"])
        self.assertIn("Versions: wrk 4.1.0.", list(experiment.how(study)))

    def test_figures_that_are_shown_equal_win_nothing(self) -> None:
        whole = next(each for each in experiments.every() if each.name == "E4")
        results = [
            Result(step, [{"ns_per_op": base + nth / 1e6} for nth in range(5)])
            for step, base in zip(whole.steps, (150.0, 200.0, 150.0001), strict=True)
        ]
        study = Study(whole, results, [], 1.0, 5, "a machine", "2026-11-28")
        said = [line for line, _ in experiment.comparisons(study)]
        self.assertIn("0.15 against 0.15, 1 times: no difference is shown", said[0])

    def test_hostile_words_of_a_program_stay_words(self) -> None:
        folder = self.folder()
        self.made_up(
            "E4",
            "-o",
            str(folder),
            "--anyway",
            script="echo '<script>alert(1)</script>|' >&2; exit 1",
        )
        self.assertNotIn("<script", (folder / "E4.html").read_text())
        rows = [line for line in (folder / "E4.md").read_text().splitlines() if "alert" in line]
        self.assertEqual({line.count("|") for line in rows}, {6})

    def test_no_page_is_written_from_a_machine_that_others_use(self) -> None:
        folder = self.folder()
        shown = Reading("address randomisation", "2", LOUD, "each run has other cache conflicts")
        busy = Reading("load", "2.50; now gcc (17) 90 %", LOUD, "others run")
        with mock.patch.object(Machine, "readings", return_value=[shown, busy]):
            done = self.made_up("E5", "-o", str(folder), script=CASCADE)
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn("not quiet: load: 2.50; now gcc (17) 90 %", done.stderr)
            self.assertIn("--anyway", done.stderr)
            self.assertNotIn("1 of", done.stderr)
            self.assertEqual(list(folder.iterdir()), [])
            done = self.made_up("E5", "-o", str(folder), "--anyway", script=CASCADE)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("was not quiet: ", (folder / "E5.html").read_text())
            done = self.made_up("E5", script=CASCADE)  # no page
            self.assertEqual(done.returncode, 0, done.stderr)
        with mock.patch.object(Machine, "readings", return_value=[shown]):
            done = self.made_up("E5", "-o", str(folder), script=CASCADE)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(
                "was quiet, except for its settings: address", (folder / "E5.html").read_text()
            )

    def test_a_database_that_is_not_installed_is_named_with_its_package(self) -> None:
        """The rows of the others go on: here each names what it lacks."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "sysbench").symlink_to("/bin/true")
            nowhere = mock.patch.object(Path, "exists", return_value=False)
            with mock.patch.object(Path, "glob", return_value=iter(())), nowhere:
                done = here("lab", "E6", PATH=folder)
            without = here("lab", "E6", PATH="/nowhere")
        self.assertEqual((done.returncode, without.returncode), (1, 1))
        said = re.findall(r"(?m)^(\w+), .*apt-get install ([\w-]+)", done.stdout)
        names = ("MariaDB", "mariadb-server-core"), ("PostgreSQL", "postgresql")
        self.assertEqual(said, [name for name in names for _ in range(2)])
        self.assertEqual(without.stdout.count("apt-get install sysbench"), 4)

    def test_bad_input_is_one_line_before_the_run(self) -> None:
        self.path = "/nowhere"
        for words, status in (
            (("E7",), 2),
            (("E4", "--seconds", "0"), 2),
            (("E4", "--rounds", "0"), 2),
            (("E4", "-o", "/proc/pages"), 3),
            (("E4", "-o", "/etc/passwd"), 3),
            (("E4", "--instances", "2"), 2),
            (("E6", "--processors", "0"), 2),
            (("E6", "--processors", "4096"), 2),
            (("E4", "--quick", "--full"), 2),
            (("E2", "--hz", "50"), 2),
            (("E6", "--processors", "1,inf"), 2),
            (("E6", "--instances", "0"), 2),
            (("E6", "--instances", "2", "--processors", "1"), 2),
        ):
            done = self.lab(*words)
            self.assertEqual((done.returncode, done.stdout), (status, ""), words)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def other(self) -> subprocess.Popen[str]:
        """Start a process that is a laboratory until the test ends."""
        words = "print('ready', flush=True); input()"
        program = f"from rouse.lab import runs; held = runs.only_one(); {words}"
        return start_ready(self, COMMAND[0], "-c", program)

    def assert_refused(self, done: subprocess.CompletedProcess[str], pid: int) -> None:
        self.assertEqual((done.returncode, done.stdout), (3, ""))
        said = rf"^rouse: another rouse lab \(process {pid}\) runs on this machine; .*\n$"
        self.assertRegex(done.stderr, said)

    def test_a_second_laboratory_is_refused(self) -> None:
        other = self.other()
        self.assert_refused(self.lab("E4"), other.pid)
        other.kill()
        other.wait()
        with socket.socket(socket.AF_UNIX) as free:
            free.bind(runs.LOCK)

    def test_quiet_set_runs_a_laboratory_but_only_one(self) -> None:
        """`rouse lab quiet --set rouse lab E4`: this test is the outer one."""
        with runs.only_one():
            done = self.lab("E4", "--seconds", "0.01")
            self.assertEqual(done.returncode, 0, done.stderr)
            other = self.other()
            self.assert_refused(self.lab("E4"), other.pid)

    def test_a_signal_leaves_no_program(self) -> None:
        for number, status in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)):
            with self.subTest(number=number):
                self.end_by(number, status)

    def end_by(self, number: signal.Signals, status: int) -> None:
        folder = self.folder()
        started = subprocess.Popen(
            [*COMMAND, "lab", "E4", "--seconds", "60", "-o", str(folder), "--anyway"],
            env={**os.environ, "PATH": self.path, "PYTHONPATH": str(SOURCE)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.addCleanup(started.kill)
        assert started.stderr
        self.addCleanup(started.stderr.close)
        while "1 of 3" not in started.stderr.readline():
            self.assertIsNone(started.poll())
        started.send_signal(number)  # a terminal would send it to rouse-bench as well
        self.assertEqual(started.wait(30), status)
        until = time.monotonic() + 30
        while running_in(started.pid):
            self.assertLess(time.monotonic(), until, running_in(started.pid))
        self.assertEqual(list(folder.iterdir()), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
