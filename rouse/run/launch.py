# SPDX-License-Identifier: MIT
"""Run a program with the interposer, and report on its recording."""

from __future__ import annotations

import contextlib
import errno
import html
import io
import json
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from rouse.errors import RouseError, discard, output
from rouse.query import scheduler
from rouse.query.paths import Paths
from rouse.query.sections import Report
from rouse.render import document, progress
from rouse.render.report import STDOUT, Options, Reporter, print_report, put
from rouse.run import alive, delay, distortion, remains, unseen
from rouse.sched import cpu_samples, procfs, switches
from rouse.sched.cpu_samples import Ran, Sampler
from rouse.sched.java_dumps import JavaSampler
from rouse.sched.probe import BY_BPF
from rouse.sched.python_samples import PythonSampler
from rouse.sched.switches import Switches
from rouse.store import find, layout, leftovers
from rouse.tables import inputs
from rouse.text import counted, printable

LIBRARY, DOOR = "librouse-preload.so", "librouse-run.so"
NOT_FOUND, NOT_RUN = 127, 126  # the exit statuses that shells use
SENT_BY_KERNEL = 128  # si_code: by the terminal, to the program as well
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


SPIN_NS = 5_000
PAIRS_MOST = 1000
ACCEPT = "ROUSE_RUN_ACCEPT"
WAITS = "ROUSE_RUN_WAITS"
TRACE = "ROUSE_RUN_TRACE"
MEMORY = "ROUSE_OBS_MIB"
UNMARKED = (
    "--trace: the program marks no requests (rouse/mark.h), and its events are not kept:"
    " --format perfetto or --keep DIR keeps them"
)
OURS = ("ROUSE_RUN_SLACK_NS", "ROUSE_RUN_SPIN_NS", ACCEPT, WAITS, TRACE, delay.VARIABLE)
QUEUES_BYTES = 20480  # of preload/accept/order.c


@dataclass(frozen=True)
class Wanted:
    output: str | None  # None: standard error
    format: str  # text, json, html or perfetto
    keep: Path | None
    in_sum: bool
    variables: Mapping[str, str]  # of the program's environment
    with_kernel: bool = False
    in_stacks: bool = False  # text: a row per call stack, not per place
    full: bool = False  # text: all tables, not the first screen
    delayed: str = ""  # LOCK=US of --delay

    @property
    def as_json(self) -> bool:
        return self.format == "json"

    @property
    def in_trace(self) -> bool:
        """Whether it is the events that are wanted, as trace JSON, in place of a report."""
        return self.format == "perfetto"

    @property
    def in_page(self) -> bool:
        return self.format == "html"


def library() -> Path:
    """Return the path of the interposer, which is installed in the folder of the package rouse."""
    here = Path(__file__).resolve().parents[1]
    asked = os.environ.get("ROUSE_PRELOAD")
    built = here.parent / "build" / "release" / "preload" / LIBRARY
    places = [Path(asked).absolute()] if asked else [here / LIBRARY, built]
    for place in places:
        if place.is_file() and place.with_name(DOOR).is_file():
            if set(str(place)) & set(": \t"):
                raise RouseError(f"{place}: LD_PRELOAD has no room for blanks and colons")
            return place
    last = places[-1]
    missing = last.with_name(DOOR) if last.is_file() else last
    raise RouseError(f"{missing}: does not exist", "make builds it, make install-tool installs it")


def environment(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return the program's environment: ours, and the interposer after preloaded libraries."""
    if ACCEPT in variables:
        # The run's processes share this file. All its memory is allocated now, so that a full disk
        # is reported now.
        (folder / "accept").write_bytes(bytes(QUEUES_BYTES))
    if (folder / leftovers.WAITS).exists():
        variables = {**variables, WAITS: "1"}
    before = os.environ.get("LD_PRELOAD", "")
    door = library().with_name(DOOR)  # loads the library, but not into every program
    preload = f"{before}:{door}" if before else str(door)
    # Without it a program with gcc's address sanitizer ends at once, because its run-time must be
    # loaded first.
    asan = ":".join(filter(None, (os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0")))
    return {
        **{name: value for name, value in os.environ.items() if name not in OURS},
        **variables,
        "ASAN_OPTIONS": asan,
        "LD_PRELOAD": preload,
        "ROUSE_OBS_DIR": str(folder),
        "ROUSE_OBS_KEEP": "1",
    }


@contextlib.contextmanager
def recordings(keep: Path | None) -> Iterator[Path]:
    """Make the folder for the recordings, readable only by this user."""
    try:
        if keep:
            keep.mkdir(mode=0o700)
            yield keep.resolve()
            return
        memory = Path("/dev/shm")
        place = memory if os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
        leftovers.remove_dead(place)
        with leftovers.temporary(place) as folder:
            yield folder
    except FileExistsError as error:
        raise RouseError(
            f"{keep}: already exists", "name a folder that does not exist yet"
        ) from error
    except OSError as error:
        why = f"cannot be made, {error.strerror}" if keep else error.strerror
        raise RouseError(f"{error.filename}: {why}") from error


def start(words: tuple[str, ...], variables: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start the program with the signal mask that we had at the start. follow() waits for it."""
    of_children = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*FORWARDED, signal.SIGCHLD})

    def restore() -> None:
        signal.signal(signal.SIGCHLD, of_children)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def began(*tried: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(tried, env=variables, close_fds=False, preexec_fn=restore)

    try:
        return began(*words)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without #! runs in /bin/sh, as from a shell or env.
    return began("/bin/sh", shutil.which(words[0]) or words[0], *words[1:])


def why_not_run(path: str, error: OSError) -> str:
    """Return why a program that exists cannot run: its interpreter may be missing."""
    runner = unseen.named_runner(Path(path)) if error.errno == errno.ENOENT else None
    return f"{runner}, which is to run it, is not there" if runner else str(error.strerror)


def pids_of(folder: Path) -> list[int]:
    """Return the processes that record there."""
    names = (find.NAME.fullmatch(path.name) for path in find.files_of(folder))
    return [int(name[1]) for name in names if name]


@contextlib.contextmanager
def cpu_sampler(folder: Path) -> Iterator[Sampler | None]:
    """Sample where the program runs. None: this machine does not tell its processors."""
    try:
        sampler = Sampler(lambda: pids_of(folder))
    except (OSError, ValueError):
        yield None
        return
    try:
        yield sampler
    finally:
        sampler.close()


def follow(
    program: subprocess.Popen[bytes],
    folder: Path,
    sampler: Sampler | None,
    python: PythonSampler,
    java: JavaSampler,
) -> int:
    """Wait for the end of the program, pass signals on to it, and return its return code.

    Note in the recordings until when their processes live: those that are killed cannot do so.
    """
    watch = alive.Watch(folder)
    if sampler:
        sampler.begin(program.pid)
    while (code := program.poll()) is None:
        for_s = min(watch.note_living(), python.look(), java.look())
        for_s = min(for_s, sampler.look()) if sampler else for_s
        got = signal.sigtimedwait({*FORWARDED, signal.SIGCHLD}, for_s)
        if got and got.si_signo != signal.SIGCHLD and got.si_code != SENT_BY_KERNEL:
            program.send_signal(got.si_signo)
    watch.note_end(program.pid)
    return code


def say(line: str) -> None:
    print(f"rouse: run: {line}", file=sys.stderr)


def write(reporter: Reporter, wanted: Wanted) -> None:
    if wanted.in_trace:
        put(wanted.output or STDOUT, reporter.perfetto())
        for line in reporter.event_notes():
            say(line)
    elif wanted.in_page:
        put(wanted.output or STDOUT, [reporter.html()])
    elif wanted.as_json:
        parts = reporter.json()
        if wanted.output:
            put(wanted.output, parts)
        else:
            sys.stderr.buffer.writelines(parts)
    elif wanted.output == STDOUT:
        with output():
            reporter.terminal(sys.stdout)
    elif wanted.output:
        file = io.StringIO()
        reporter.terminal(file)
        put(wanted.output, [file.getvalue().encode()])
    else:
        reporter.terminal(sys.stderr)


def plain_page(text: str) -> str:
    return (
        "<!DOCTYPE html><meta charset=utf-8><title>rouse run</title>"
        f"<pre>{html.escape(text)}</pre>\n"
    )


def put_line(why: str, source: str, wanted: Wanted) -> None:
    """Write one line in place of a report: to the file, and to standard error."""
    text = f"{printable(why)}\n"
    if wanted.as_json:
        text = document.nothing(source, why)
    if wanted.output or not wanted.as_json:
        say(why)
    if wanted.in_trace:
        return  # the file would be no JSON
    if wanted.in_page:
        text = plain_page(text)
    if wanted.output:
        put(wanted.output, [text.encode()])
    elif wanted.as_json:
        sys.stderr.write(text)


def put_seen(why: str, source: str, seen: Switches, wanted: Wanted) -> None:
    """Report the kernel's figures where nothing was recorded."""
    say(why)
    found = [("seen by", scheduler.fact(seen))]
    made = Report(
        [("source", source), *found], [why, *scheduler.notes(seen)], scheduler.sections(seen)
    )
    if seen.by == BY_BPF:
        paths = Paths(seen)
        sections = [paths.section(0), *made.sections]
        notes = [*made.notes, *paths.all_notes()]
        made = Report(made.facts, notes, sections, verdict=paths.verdict())
    file = io.StringIO()
    if wanted.as_json:
        file.write(document.text(document.made(source, "", [], made)))
    else:
        print_report(made, file)
    text = plain_page(file.getvalue()) if wanted.in_page else file.getvalue()
    if wanted.output:
        put(wanted.output, [text.encode()])
    else:
        sys.stderr.write(text)


def mib_asked(wanted: Wanted) -> int:
    """Return the limit from the environment. A value that the library refuses counts as none."""
    text = wanted.variables.get(MEMORY) or os.environ.get(MEMORY, "")
    return int(text) if text.isascii() and text.isdigit() else layout.BYTES_MAX >> 20


def hint_of(wanted: Wanted) -> str:
    """Return how to see what the first screen leaves out."""
    if wanted.keep:
        return f"All tables and notes: rouse report --full {shlex.quote(str(wanted.keep))}"
    return "All tables and notes: rouse run --full. --keep DIR keeps the recording"


def is_marked(opened: inputs.Input) -> bool:
    return bool(opened.database.rows("SELECT type FROM events WHERE type = 'mark' LIMIT 1"))


def report(
    program: str,
    folder: Path,
    source: str,
    seen: Switches | None,
    wanted: Wanted,
    busy_ns: int | None = None,
    ran: Ran | None = None,
) -> None:
    """Report on the recording, or print one line that says why there is none."""

    def put_nothing(why: str, source: str, wanted: Wanted) -> None:
        if seen:
            put_seen(why, source, seen, wanted)
        else:
            put_line(why, source, wanted)

    files = sorted(folder.glob("*.rouse"))
    place = wanted.keep or folder.parent
    if not files:
        why = unseen.why(program, unseen.Asked(place, mib_asked(wanted)))
        put_nothing(f"nothing of {program} was recorded: {why}", source, wanted)
        return
    looked = {file: remains.look(file) for file in files}
    heard = [file for file, left in looked.items() if not left.is_silent]
    # Processes that only compute are reported where there is no other one.
    if not heard and not unseen.own_waits(program):
        heard = [file for file, left in looked.items() if left.only_ran]
    later = remains.run_on(looked.values(), wanted.keep)
    if not heard:
        silence = remains.silence(program, looked.values(), place)
        put_nothing("; ".join([silence, *unseen.own_waits(program), *later]), source, wanted)
        return
    silent = set(files) - set(heard)
    for file in silent:
        if not looked[file].is_live:
            file.unlink()
    target = heard[0] if len(heard) == 1 else folder
    options = Options(
        format=wanted.format,
        in_stacks=wanted.in_stacks or seen is not None,  # the kernel's sleeps are by stack
        full=wanted.full or wanted.with_kernel,
        hint=hint_of(wanted),
    )
    with contextlib.ExitStack() as stack:
        with progress.line("reading what was recorded"):
            asked = inputs.Asked(
                with_events=wanted.in_trace,
                with_requests=True,
                in_sum=wanted.in_sum,
                forms=options.forms,
            )
            opened = stack.enter_context(inputs.open_input(str(target), asked))
        opened.source = source
        opened.switches = seen
        opened.busy_ns = busy_ns
        opened.ran = ran
        if silent:
            opened.notes.append(
                f"{counted(len(silent), 'other process', 'other processes')} recorded no wait"
            )
        opened.notes += later + remains.confined(looked.values())
        if wanted.delayed:
            lock, _, us = wanted.delayed.rpartition("=")
            opened.notes.append(f"--delay: each holder of {lock} computed for {us} µs more")
        if TRACE in wanted.variables and not (wanted.keep or wanted.in_trace or is_marked(opened)):
            opened.notes.append(UNMARKED)
        write(Reporter(opened, options), wanted)


def has_little() -> bool:
    return resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY


def report_apart(make: Callable[[], None], keep: Path | None) -> None:
    """Report in a process of its own: with limited address space, reading the tables may end it."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            make()
            sys.stderr.flush()
            os._exit(0)
        except OSError as error:  # else the reader of the output has gone
            os._exit(int(error.errno == errno.ENOMEM))
        except BaseException:  # any of its libraries may be the one that had no room
            os._exit(1)
    if os.waitpid(child, 0)[1] != 0:
        kept = "" if keep else "keep what is recorded (--keep DIR), and "
        say(
            "no report: the limit on address space (ulimit -v) leaves no room for it;"
            f" {kept}run `rouse report {keep or 'DIR'}` without the limit"
        )


def end_as(code: int) -> int:
    """Return our exit status. If a signal ended the program, end by that signal instead."""
    if code >= 0:
        return code
    number = -code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the program has left one, if any
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    return 128 + number


def find_program(name: str) -> str:
    if not name:
        raise RouseError("the name of the program is empty", status=NOT_FOUND)
    path = shutil.which(name)
    if path is None:
        if "/" not in name:
            raise RouseError(f"{name}: is not in a folder of PATH", status=NOT_FOUND)
        is_there = Path(name).exists()
        what = "is a folder" if Path(name).is_dir() else "you may not execute it"
        what = what if is_there else "is not there"
        raise RouseError(f"{name}: {what}", status=NOT_RUN if is_there else NOT_FOUND)
    return path


def check_output(name: str | None) -> None:
    """Raise RouseError if there is no place for the report, before the program runs for it."""
    if name in (None, STDOUT):
        return
    path = Path(name or "").resolve()
    if path.is_dir():
        raise RouseError(f"{name}: is a folder", "name a file for the report")
    if not path.parent.is_dir():
        raise RouseError(
            f"{name}: there is no folder {path.parent}", "make it, or name another one"
        )
    is_file = path.is_file() or not path.exists()
    if not os.access(path.parent if is_file else path, os.W_OK) or not may_make(path):
        raise RouseError(f"{name}: cannot be written", "name another file for the report")


def may_make(path: Path) -> bool:
    """Whether a file can be made there, or is there. Some folders refuse that to everyone."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return True
    except OSError:
        return False
    path.unlink(missing_ok=True)
    return True


def distort(words: tuple[str, ...], wanted: Wanted, count: int) -> int:
    find_program(words[0])
    library()

    def recorded() -> distortion.Cost:
        with recordings(None) as folder:
            return distortion.once(words, environment(folder, wanted.variables))

    pairs = distortion.pairs(count, lambda: distortion.once(words, os.environ), recorded)
    made = distortion.summary(pairs)
    text = "".join(f"rouse: run: {line}\n" for line in distortion.lines(count, made))
    if wanted.as_json:
        text = json.dumps({"pairs": count, **made}, indent=1) + "\n"
    if wanted.output:
        put(wanted.output, [text.encode()])
    else:
        sys.stderr.write(text)
    return 0


def run(words: tuple[str, ...], wanted: Wanted) -> int:
    name = words[0]
    path = find_program(name)
    library()
    check_output(wanted.output)
    with (
        recordings(wanted.keep) as folder,
        kernel_recorder(wanted, folder) as kernel,
        cpu_sampler(folder) as sampler,
    ):
        try:
            variables = environment(folder, wanted.variables)
        except OSError as error:
            raise RouseError(f"{folder}: {error.strerror}", "is there room?") from error
        before = procfs.busy_ns()
        try:
            program = start(words, variables)
        except OSError as error:
            raise RouseError(f"{name}: {why_not_run(path, error)}", status=NOT_RUN) from error
        python = PythonSampler(lambda: pids_of(folder))
        java = JavaSampler(lambda: pids_of(folder))
        code = follow(program, folder, sampler, python, java)
        after = procfs.busy_ns()
        busy_ns = None if before is None or after is None else after - before
        if busy_ns is not None and wanted.keep:
            leftovers.put_busy(folder, busy_ns)
        for file in ("accept", leftovers.WAITS):
            (folder / file).unlink(missing_ok=True)  # processes that still run have it mapped
        seen = kernel_seen(kernel, folder)
        ran = put_samples(sampler, python, java, wanted.keep)
        # The reader of its output may have gone; its end is reported all the same.
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

        def make() -> None:
            try:
                report(path, folder, f"rouse run {shlex.join(words)}", seen, wanted, busy_ns, ran)
            except RouseError as error:
                say(str(error))

        try:
            if has_little():
                report_apart(make, wanted.keep)
            else:
                make()
            sys.stderr.flush()
        except OSError:
            discard(sys.stderr)
    return end_as(code)


def put_samples(
    sampler: Sampler | None, python: PythonSampler, java: JavaSampler, keep: Path | None
) -> Ran | None:
    """Stop to sample, keep the samples beside the recordings, and return them."""
    with progress.line("finding where threads ran"):
        (functions, why), (waits, pools, places) = python.stop(), java.stop()
        if sampler is None and not functions and not places:
            return None
        ran = sampler.stop() if sampler else Ran()
        ran.python, ran.python_why = functions, why
        ran.java, ran.java_pools, ran.java_places = waits, pools, places
    if keep:
        try:
            cpu_samples.write(ran, keep / leftovers.SAMPLES)
        except OSError as error:
            say(f"{keep / leftovers.SAMPLES}: {error.strerror}")
    return ran


@contextlib.contextmanager
def kernel_recorder(
    wanted: Wanted, folder: Path
) -> Iterator[switches.Recorder | switches.Summer | None]:
    if not wanted.with_kernel:
        yield None
        return
    recorder = switches.watch_next(library(), folder)
    try:
        yield recorder
    finally:
        recorder.close()


def kernel_seen(
    recorder: switches.Recorder | switches.Summer | None, folder: Path
) -> Switches | None:
    """Stop the kernel recorder, keep its output beside the recordings, and return it."""
    if recorder is None:
        return None
    try:
        seen = recorder.stop()
        (folder / leftovers.SWITCHES).write_text(seen.text, encoding="utf-8")
    except (RouseError, OSError) as error:
        say(str(error))
        return None
    return seen
