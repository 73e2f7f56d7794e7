#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Dumps of a JVM's threads: what they say of locks, and which JVMs are asked for them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import unittest
from pathlib import Path
from unittest import mock

from common import here, main_unless, rouse

from interposed import LIBRARY

from rouse.sched import java_dumps, procfs
from rouse.sched.java_dumps import JavaPool, JavaSampler, Process, holder_of, parsed

DUMP = """\
2026-11-27 14:00:00
Full thread dump OpenJDK 64-Bit Server VM (17.0.9+9 mixed mode):

"main" #1 prio=5 os_prio=0 cpu=90.1ms elapsed=3.1s tid=0x00007f nid=0x1 in Object.wait()  [0x00007f]
   java.lang.Thread.State: WAITING (on object monitor)
\tat java.lang.Object.wait(java.base@17.0.9/Native Method)
\t- waiting on <0x000000062a> (a java.lang.Thread)
\tat java.lang.Thread.join(java.base@17.0.9/Thread.java:1304)
\t- locked <0x000000062a> (a java.lang.Thread)
\tat Shop.main(Shop.java:40)

"clerk "1"" #12 prio=5 os_prio=0 tid=0x00007f nid=0x10 waiting for monitor entry  [0x00007f]
   java.lang.Thread.State: BLOCKED (on object monitor)
\tat Shop.take(Shop.java:7)
\t- waiting to lock <0x0000000617> (a java.lang.Class for Shop)
\tat Shop.run(Shop.java:20)

"clerk 2" #13 prio=5 os_prio=0 tid=0x00007f nid=0x11 runnable  [0x00007f]
   java.lang.Thread.State: RUNNABLE
\tat java.base@17.0.9/java.util.HashMap.get(HashMap.java:9)
\tat Shop.price(Shop.java:3)
\tat Shop.take(Shop.java:7)
\t- locked <0x0000000617> (a java.lang.Class for Shop)

"clerk 3" #14 prio=5 os_prio=0 tid=0x00007f nid=18 waiting on condition  [0x00007f]
   java.lang.Thread.State: WAITING (parking)
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
\t- parking to wait for  <0x00000006aa> (a java.util.concurrent.locks.ReentrantLock$NonfairSync)
\tat java.util.concurrent.locks.ReentrantLock.lock(java.base@17.0.9/ReentrantLock.java:322)
\tat Shop.book(Shop.java:11)

"clerk 4" #15 prio=5 os_prio=0 tid=0x00007f nid=0x13 waiting on condition  [0x00007f]
\tat java.lang.Thread.sleep(java.base@17.0.9/Native Method)
\tat Shop.store(Shop.java:9)
\tat Shop.book(Shop.java:13)

"pool" #16 daemon prio=5 os_prio=0 tid=0x00007f nid=0x14 waiting on condition  [0x00007f]
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
\t- parking to wait for  <0x00000006bb> (a java.util.concurrent.FutureTask)
\tat Shop.wait(Shop.java:30)

"spinner 1" #20 prio=5 os_prio=0 tid=0x00007f nid=0x20 runnable  [0x00007f]
   java.lang.Thread.State: RUNNABLE
\tat Shop.add(Shop.java:60)
\t- locked <0x0000000711> (a Shop)

"spinner 2" #21 prio=5 os_prio=0 tid=0x00007f nid=0x21 runnable  [0x00007f]
   java.lang.Thread.State: RUNNABLE
\tat Shop.add(Shop.java:60)
\t- locked <0x0000000711> (a Shop)

"worker" #17 prio=5 os_prio=0 tid=0x00007f nid=0x16 waiting on condition  [0x00007f]
\tat java.lang.Thread.sleep(java.base@17.0.9/Native Method)
\tat Shop.render(Shop.java:50)
\tat java.util.concurrent.ThreadPoolExecutor.runWorker(java.base@17.0.9/Pool.java:1136)

"worker" #18 prio=5 os_prio=0 tid=0x00007f nid=0x17 waiting on condition  [0x00007f]
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
\t- parking to wait for  <0x00000006cc> (a java.util.concurrent.SynchronousQueue$TransferStack)
\tat java.util.concurrent.ThreadPoolExecutor.runWorker(java.base@17.0.9/Pool.java:1136)

"GC Thread#0" os_prio=0 cpu=1.0ms elapsed=3.1s tid=0x00007f nid=0x15 runnable
"""
SEMAPHORE = """\
"web" #{number} prio=5 os_prio=0 tid=0x00007f nid={number} waiting on condition  [0x00007f]
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
\t- parking to wait for  <0x00000007aa> (a java.util.concurrent.Semaphore$NonfairSync)
\tat java.util.concurrent.Semaphore.acquire(java.base@17.0.9/Semaphore.java:318)
\tat Shop.select(Shop.java:70)

"""
PASSED = """\
"web" #{number} prio=5 os_prio=0 tid=0x00007f nid={number} waiting on condition  [0x00007f]
\tat java.lang.Thread.sleep(java.base@17.0.9/Native Method)
\tat Shop.query(Shop.java:65)
\tat Shop.select(Shop.java:72)

"""
TAKING = """\
"desk" #{number} prio=5 os_prio=0 tid=0x00007f nid={number} waiting on condition  [0x00007f]
\tat jdk.internal.misc.Unsafe.park(java.base@17.0.9/Native Method)
\t- parking to wait for  <0x00000008aa> (a java.util.concurrent.locks.Synchronizer$ConditionObject)
\tat java.util.concurrent.locks.LockSupport.park(java.base@17.0.9/LockSupport.java:341)
\tat java.util.concurrent.ArrayBlockingQueue.take(java.base@17.0.9/ArrayBlockingQueue.java:420)
\tat Shop$Pool.borrow(Shop.java:90)
\tat Shop.lend(Shop.java:95)
\tat java.lang.Thread.run(java.base@17.0.9/Thread.java:840)

"""
WAITING = """\
"desk" #{number} prio=5 os_prio=0 tid=0x00007f nid={number} in Object.wait()  [0x00007f]
\tat java.lang.Object.wait(java.base@17.0.9/Native Method)
\t- waiting on <0x00000008ab> (a Shop$Pool)
\tat Shop$Pool.borrow(Shop.java:80)
\t- locked <0x00000008ab> (a Shop$Pool)
\tat Shop.lend(Shop.java:95)
\tat java.lang.Thread.run(java.base@17.0.9/Thread.java:840)

"""
ASKING = """\
"desk" #{number} prio=5 os_prio=0 tid=0x00007f nid={number} runnable  [0x00007f]
\tat sun.nio.ch.SocketDispatcher.read0(java.base@17.0.9/Native Method)
\tat Shop$Connection.ask(Shop.java:85)
\tat Shop.lend(Shop.java:96)
\tat java.lang.Thread.run(java.base@17.0.9/Thread.java:840)

"""
TIMER = """\
"timer" #80 prio=5 os_prio=0 tid=0x00007f nid=0x80 waiting on condition  [0x00007f]
\tat java.lang.Thread.sleep(java.base@17.0.9/Native Method)
\tat Shop.compact(Shop.java:99)
\tat java.util.concurrent.ScheduledThreadPoolExecutor$ScheduledFutureTask.run(S.java:305)
\tat java.util.concurrent.ThreadPoolExecutor.runWorker(java.base@17.0.9/Pool.java:1136)

"""
SLEEPING = """\
class Sleeping {
    public static void main(String[] words) throws Exception {
        System.out.println("begun");
        Thread.sleep(60000);
    }
}
"""


class Dumps(unittest.TestCase):
    def test_threads_with_code_of_the_program(self) -> None:
        threads = parsed(DUMP)
        labels = [thread.label for thread in threads]
        self.assertEqual(
            labels[:3],
            ["Shop.main Shop.java:40", "Shop.take Shop.java:7", "Shop.price Shop.java:3"],
        )
        self.assertEqual(
            [t.tid for t in threads],
            ["0x1", "0x10", "0x11", "18", "0x13", "0x14", "0x20", "0x21", "0x16", "0x17"],
        )

    def test_holders_of_monitors_and_of_other_locks(self) -> None:
        process = Process(9, 9)
        process.add(DUMP)
        process.add(DUMP)
        monitor, lock, spun = process.waits()
        self.assertEqual((spun.lock, spun.waiter, spun.count), ("Shop", "Shop.add Shop.java:60", 2))
        self.assertEqual(
            (monitor.lock, monitor.is_monitor, monitor.waiter, monitor.holder),
            ("java.lang.Class for Shop", True, "Shop.take Shop.java:7", "Shop.price Shop.java:3"),
        )
        self.assertEqual(
            (monitor.count, monitor.threads, monitor.most, monitor.dumps), (2, 1, 1, 2)
        )
        self.assertEqual(
            (lock.lock, lock.is_monitor, lock.waiter, lock.holder),
            (
                *("java.util.concurrent.locks.ReentrantLock$NonfairSync", False),
                *("Shop.book Shop.java:11", "Shop.store Shop.java:9"),
            ),
        )

    def with_semaphore(self, *passed: int) -> list[java_dumps.JavaWaits]:
        """The waits for a semaphore of six threads, of which so many had passed it in each dump."""
        process = Process(9, 9)
        for count in passed:
            made = [(PASSED if n < count else SEMAPHORE).format(number=n + 40) for n in range(6)]
            process.add("".join(made))
        return process.waits()

    def test_a_semaphore_that_the_same_number_of_threads_pass_is_a_pool(self) -> None:
        (waits,) = self.with_semaphore(2, 2, 1, 2, 2)
        self.assertEqual((waits.permits, waits.count, waits.threads, waits.most), (2, 21, 5, 5))
        self.assertEqual(
            (waits.waiter, waits.holder), ("Shop.select Shop.java:70", "Shop.query Shop.java:65")
        )

    def test_a_semaphore_of_threads_that_wait_for_work_is_no_pool(self) -> None:
        self.assertEqual(self.with_semaphore(0, 0, 0, 0), [])
        self.assertEqual(self.with_semaphore(1, 3, 0, 2, 4), [])

    def with_queue(self, waiting: str, *used: int) -> list[java_dumps.JavaWaits]:
        """The waits of six threads, of which so many had something of a pool in each dump."""
        process = Process(9, 9)
        for count in used:
            made = [(ASKING if n < count else waiting).format(number=n + 50) for n in range(6)]
            process.add("".join(made))
        return process.waits()

    def test_a_queue_of_which_the_same_number_of_threads_have_something_is_a_pool(self) -> None:
        for waiting, kind in (
            (TAKING, "java.util.concurrent.ArrayBlockingQueue"),
            (WAITING, "java.lang.Object"),
        ):
            (waits,) = self.with_queue(waiting, 2, 2, 1, 2, 2)
            self.assertEqual((waits.lock, waits.taker), (kind, "Shop$Pool.borrow"))
            self.assertEqual((waits.permits, waits.count, waits.threads), (2, 21, 5))
            self.assertEqual(waits.holder, "Shop$Connection.ask Shop.java:85")

    def test_a_queue_of_threads_that_wait_for_work_is_no_pool(self) -> None:
        self.assertEqual(self.with_queue(TAKING, 0, 0, 0, 0), [])
        self.assertEqual(self.with_queue(TAKING, 1, 3, 0, 2, 4), [])

    def test_places_are_those_of_the_program(self) -> None:
        process = Process(9, 9)
        process.add(DUMP)
        self.assertEqual(process.places["Shop.add Shop.java:60"], 2)
        self.assertEqual(sum(process.places.values()), 9)  # an idle thread of an executor has none

    def test_threads_of_executors_and_those_that_wait_for_them(self) -> None:
        process = Process(9, 9)
        process.add(DUMP)
        (pool,) = process.pools()
        self.assertEqual(
            pool,
            JavaPool(
                *(9, "Shop.wait Shop.java:30", "Shop.render Shop.java:50", "", False),
                *(1, 1, 0, 2, 0, 0, 1),
            ),
        )

    def test_executor_whose_threads_are_all_busy_while_others_wait_for_room(self) -> None:
        worker = DUMP[DUMP.index('"worker" #17') : DUMP.index('"worker" #18')]
        waiting = SEMAPHORE.format(number=70)
        process = Process(9, 9)
        for text in (worker * 2 + waiting, worker + waiting):
            process.add(text)
        (pool,) = process.pools()
        self.assertEqual((pool.threads, pool.busy, pool.full, pool.blocked), (3, 3, 2, 2))
        self.assertEqual(pool.blocked_at, "Shop.select Shop.java:70")

    def test_executor_of_timers_is_one_of_its_own(self) -> None:
        process = Process(9, 9)
        process.add(DUMP + TIMER)
        (timers,) = (pool for pool in process.pools() if pool.is_scheduled)
        self.assertEqual((timers.worker, timers.full), ("Shop.compact Shop.java:99", 1))
        self.assertEqual((timers.threads, timers.waiting), (1, 0))

    def test_requests_are_queued_only_while_they_are_more_than_threads_of_executors(self) -> None:
        """A thread between two requests looks idle: waiting and busy ones alone do not tell."""
        client = DUMP[DUMP.index('"pool" #16') : DUMP.index('"spinner 1"')]
        for more, queued in ((0, 0), (1, 0), (3, 2)):
            process = Process(9, 9)
            process.add(DUMP + client * more)
            (pool,) = process.pools()
            self.assertEqual((pool.waiting, pool.busy, pool.queued), (1 + more, 1, queued))

    def test_dumps_before_the_program_s_own_code_do_not_count(self) -> None:
        process = Process(9, 9)
        process.add('"main" #1 nid=0x1 runnable\n\tat com.sun.tools.javac.Main.main(Main.java:3)\n')
        self.assertEqual(process.dumps, 0)

    def test_a_holder_that_is_not_there_is_not_known(self) -> None:
        threads = [thread for thread in parsed(DUMP) if thread.tid in ("0x10", "18")]
        self.assertEqual([holder_of(thread, threads) for thread in threads], ["", ""])

    def test_damaged_dumps_have_no_waits(self) -> None:
        for text in ("", "\tat Shop.take(Shop.java:7)\n", '"x" nid=', DUMP[::-1], "\0" * 100):
            process = Process(9, 9)
            process.add(text)
            self.assertEqual(process.waits(), [])
            self.assertEqual(process.pools(), [])


@unittest.skipUnless(shutil.which("java"), "not run: there is no java")
class Asked(unittest.TestCase):
    def setUp(self) -> None:
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.source = self.folder / "Sleeping.java"
        self.source.write_text(SLEEPING)

    def started(self, *options: str) -> subprocess.Popen[str]:
        words = ("java", *options, str(self.source))
        process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        assert process.stdout
        self.addCleanup(process.stdout.close)
        self.assertEqual(process.stdout.readline(), "begun\n")
        return process

    def test_a_jvm_is_asked_once_and_gives_dumps(self) -> None:
        process = self.started()
        sampler = JavaSampler(lambda: [process.pid])
        known = None
        while known is None or not known.dumps:
            self.assertIsNone(process.poll())
            sampler.next_s = 0
            sampler.look()
            known = sampler.known.get(process.pid)
            os.sched_yield() if known is None else signal.sigtimedwait([], 0.05)
        waits, pools, places = sampler.stop()
        self.assertEqual((waits, pools), ([], []))
        self.assertEqual({place.place for place in places}, {"Sleeping.main Sleeping.java:4"})
        self.assertFalse(known.asking.exists())
        process.kill()
        assert process.stdout
        self.assertEqual(process.stdout.read(), "")

    def test_a_jvm_that_refuses_or_answers_endlessly_is_given_up(self) -> None:
        for answers in (b"1\nno\n", b"x" * 100):
            process = Process(os.getpid(), 7)
            with (
                socket.socket(socket.AF_UNIX) as listener,
                mock.patch.object(Process, "socket", self.folder / f"java{len(answers)}"),
                mock.patch.object(java_dumps, "ANSWER_S", 0.01),
            ):
                listener.bind(str(process.socket))
                listener.listen()
                stop = threading.Event()

                def serve(
                    listener: socket.socket = listener,
                    answers: bytes = answers,
                    stop: threading.Event = stop,
                ) -> None:
                    while not stop.is_set():
                        connection, _ = listener.accept()
                        with connection, contextlib.suppress(OSError):
                            connection.sendall(answers)
                            while answers.startswith(b"x") and connection.send(b"x"):
                                pass

                server = threading.Thread(target=serve)
                server.start()
                sampler = JavaSampler(lambda: [])
                while not process.is_over:
                    process.next_s = 0
                    sampler.step(process)
                stop.set()
                with socket.socket(socket.AF_UNIX) as last:
                    last.connect(str(process.socket))
                server.join()
            self.assertEqual((process.refused, process.given), (java_dumps.REFUSALS, 0))

    def test_a_jvm_that_forbids_it_is_left_alone(self) -> None:
        for option in ("-Xrs", "-XX:+DisableAttachMechanism"):
            process = self.started(option)
            self.assertTrue(procfs.has_mapped(process.pid, java_dumps.JVM))
            self.assertEqual(java_dumps.inner_pid(process.pid), 0, option)

    def test_other_programs_are_not_asked(self) -> None:
        self.assertFalse(procfs.has_mapped(os.getpid(), java_dumps.JVM))

    def test_a_kept_recording_has_the_methods(self) -> None:
        program = Path(__file__).parents[1] / "findings" / "bookings.java"
        words = ("--keep", self.folder / "kept", "--", "java", program, "3")
        done = rouse("run", *words, ROUSE_PRELOAD=str(LIBRARY))
        self.assertIn("Bookings.book bookings.java:", done.stderr)
        again = here("report", self.folder / "kept").stdout
        self.assertIn("while its holder is mostly in Bookings.store bookings.java:", again)


if __name__ == "__main__":
    main_unless("")
