# SPDX-License-Identifier: MIT
"""The verdict's text where there is no finding: which waits are long, or where threads compute."""

from __future__ import annotations

from collections import Counter

from rouse.query import places, polling, thread_time
from rouse.query.finding import IO_KINDS
from rouse.query.program import STATES, UNEXPLAINED, Program
from rouse.query.ran import PYTHON_TELLING, Running, busiest
from rouse.tables.engine import Database
from rouse.tables.views import CLIENTS
from rouse.text import counted, duration, share

CPU = "cpu-bound"
WAKES_AT_ONCE = "a condition variable or a semaphore would wake the thread at once"
BUSY = 0.85  # of the processors, or of the threads' time
EVENT_LEAST = 0.01  # of the time, which the waits for a thread are mentioned from
WORK_LEAST = 0.1  # of the waits for a thread, which it waits at work
BESIDE_JOINS = 0.05  # a share of the time, from which on other waits are mentioned first
IDLE_REST = 0.005  # a share of the time, below which waits are not mentioned
QUEUED_LEAST = 0.05
PERIODS_LEAST, PERIOD_LEAST_NS = 20, 500_000
DRIFT = 1.2  # how much longer than such a sleep others wait for the next time
MOSTLY = 0.5
PLACES_MOST, PLACE_LEAST = 3, 0.05  # of the threads of a program in Python or Java, and a share


def text_of(
    database: Database,
    program: Program,
    time: dict[str, float],
    idle: dict[str, float],
    sampled: Running | None,
) -> str:
    """Say why there is no finding. idle: ns by part of the time in which threads had no work."""
    at_work = program.sum("usr", "lat", "mutex", "rwlock", "io", "sleep", "in_call", "missing")
    whole = program.processors * program.wall_ns
    could = min(whole, at_work)
    # On busy processors, a program that computes all the time has a share of them.
    is_crowded = program.ran_ns + program.others_ran_ns > BUSY * whole
    least = program.wall_ns / (4 if is_crowded else 1)
    if (
        could
        and program.ran_ns > BUSY * min(could, whole - program.others_ran_ns)
        and (program.ran_ns > BUSY * least)
    ):
        part = min(program.ran_ns / program.wall_ns, program.processors)
        others = program.others_ran_ns / program.wall_ns
        if others > part:
            return (
                f"Nothing to fix here: the processors are busy, {others:.1f} of"
                f" {program.processors} with other programs and {part:.1f} with these threads"
                f"{where_busy(program, sampled)} [{CPU}]"
            )
        return (
            f"Nothing to fix here: the threads compute, on {part:.1f} of"
            f" {counted(program.processors, 'processor')}{where_busy(program, sampled)} [{CPU}]"
        )
    if time[UNEXPLAINED] > MOSTLY * (1 - time["joins"]):
        return "Nothing that was recorded is contended, but most of the time is unexplained"
    all_ns = max(program.sum(*STATES), 1.0)
    waits = {
        name: max(part - idle.get(name, 0.0) / all_ns, 0.0)
        for name, part in time.items()
        if name not in ("running", UNEXPLAINED, CLIENTS)
    }
    # To join threads that are at work is no wait of interest if there is another one.
    if any(part >= BESIDE_JOINS for name, part in waits.items() if name != "joins"):
        del waits["joins"]
    longest = max(waits, key=lambda name: waits[name], default="")
    if not longest or waits[longest] < IDLE_REST:
        what = "no thread waited"
        if idle or time[CLIENTS]:
            others = sum(ns for name, ns in idle.items() if name != CLIENTS)
            is_served = time[CLIENTS] * all_ns > others
            what = f"threads wait for {CLIENTS if is_served else 'work'}"
        return f"Nothing is contended: {what}"
    delivered = thread_time.delivery(program)[1] or 0
    queued, ran = time["queued"] * all_ns - delivered, program.ran_ns
    if longest == "queued" and delivered > queued:
        return (
            f"Nothing is contended, but threads waited {duration(delivered)} for wake-ups to reach"
            f" a processor, and ran {duration(ran)}: they hand over to each other often, for"
            " little work"
        )
    if longest == "queued" or (queued > ran and waits["queued"] >= QUEUED_LEAST):
        return (
            f"Nothing is contended, but threads were queued {duration(queued)} for a processor, and"
            f" ran {duration(ran)}: there are too few processors, or other programs use them"
        )
    event = places.longest_event(database, program.wall_ns) if longest == "conditions" else None
    if event and event.wait_ns >= EVENT_LEAST * all_ns:
        of_time = share(event.wait_ns / all_ns)
        return (
            f"No lock is contended, but threads wait for each other: {event.wait_label} waits"
            f" {duration(event.wait_ns)} in all, {of_time} % of the time, until {event.wake_label}"
            f"{does(event, program)}{in_language(sampled, sleeps_between(database, program))}"
        )
    if waits[longest] < time[CLIENTS]:
        return f"Nothing is contended: threads wait mostly for {CLIENTS}"
    if longest == "locks":
        return "Threads wait mostly for locks, but no single one of them limits the throughput"
    text = f"Nothing is contended: threads wait mostly for {longest}"
    kinds = IO_KINDS if longest == "I/O" else ("sleep",) if longest == "timers" else ()
    if place := places.longest(database, longest, kinds, program.wall_ns):
        each = place.wait_ns / max(place.count, 1)
        text += (
            f", {duration(place.wait_ns)} of it in {place.kind} at {place.label},"
            f" {counted(place.count, 'time')}, {duration(each)} each"
        )
        if place.kind == "sleep" and place.count >= polling.RATE * program.wall_ns / 1e9:
            text += f". If that loop looks for an event, {WAKES_AT_ONCE}"
            if program.ran_ns > (DRIFT - 1) * place.wait_ns:
                text += drift(place, program)
    return text + meanwhile(program, sampled) + in_language(sampled)


def does(event: places.Event, program: Program) -> str:
    """Say what the thread that others wait for waits for itself."""
    if event.back_ns:
        return (
            f", which waits {duration(event.back_ns)} for it in turn: there is little room between"
            " the two, or little work at a time"
        )
    work = event.work
    if work is None or work.wait_ns < WORK_LEAST * event.wait_ns:
        return ""
    text = f", which {places.AT_WORK[work.kind]} {duration(work.wait_ns)} at {work.label} meanwhile"
    each = work.wait_ns / max(work.count, 1)
    if event.wait_ns / max(event.count, 1) < DRIFT * each:
        return text
    period = drift(work, program)
    return f"{text}, {duration(each)} each{period}" if period else text


def drift(work: places.Place, program: Program) -> str:
    """Say how a period is kept, if a thread may sleep for one after its work.

    Not of sleeps until a time, which repeat nothing.
    """
    each = work.wait_ns / max(work.count, 1)
    is_for_a_time = any(row["site_label"] == work.label for row in program.polls)
    if work.kind != "sleep" or not is_for_a_time:
        return ""
    if work.count < PERIODS_LEAST or each < PERIOD_LEAST_NS:
        return ""
    return (
        ". If that is to be a period, the time for the work comes on top: clock_nanosleep until a"
        " time (TIMER_ABSTIME) does not add it"
    )


def sleeps_between(database: Database, program: Program) -> str:
    """Say that threads sleep often and briefly, if they do for much of the time."""
    place = places.longest(database, "timers", ("sleep",), program.wall_ns)
    if place is None or place.wait_ns < polling.LEAST_PART * program.wall_ns:
        return ""
    if place.count < polling.RATE * program.wall_ns / 1e9:
        return ""
    each = place.wait_ns / place.count
    return (
        f". They also sleep {counted(place.count, 'time')}, {duration(each)} each: if one of them"
        f" looks for an event in a loop, {WAKES_AT_ONCE}"
    )


def in_language(sampled: Running | None, further: str = "") -> str:
    """Say in which functions the threads of a Python or Java program are. Empty: it is neither.

    further: what to add if it is one, as the functions of waits and wake-ups are not known there.
    """
    if sampled is None:
        return ""
    python, java = Counter[str](), Counter[str]()
    for stack in sampled.python_all:
        python[stack.place[1]] += stack.samples
    for each in sampled.java_places:
        java[each.place] += each.count
    text = most_in("Python", python) + most_in("Java", java)
    return text + further if text else ""


def most_in(language: str, found: Counter[str]) -> str:
    if found.total() < PYTHON_TELLING:
        return ""
    some = [
        f"{place} ({share(count / found.total())} %)"
        for place, count in found.most_common(PLACES_MOST)
        if count >= PLACE_LEAST * found.total()
    ]
    return f". In {language}, threads are at {', '.join(some)}" if some else ""


def meanwhile(program: Program, sampled: Running | None) -> str:
    """Say where threads compute, if they do for about as long as the program runs."""
    part = program.ran_ns / max(program.wall_ns, 1)
    if part < BUSY:
        return ""
    return (
        f". Meanwhile threads compute, on {part:.1f} of {counted(program.processors, 'processor')}"
        f"{where_busy(program, sampled)}"
    )


def where_busy(program: Program, sampled: Running | None) -> str:
    """Say in which function threads that compute run, and what shows more."""
    if sampled is None:
        return ". Run perf to see where"
    function, part = busiest(sampled.python, PYTHON_TELLING)
    if function and sampled.python_ns > MOSTLY * program.ran_ns:
        return f", {share(part)} % of it in {function}. py-spy shows the lines"
    function, part = busiest(sampled.stacks)
    if not function:
        return ". Run perf to see where"
    return f", {share(part)} % of it in {function}. perf shows the instructions"
