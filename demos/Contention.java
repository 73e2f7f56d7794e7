// SPDX-License-Identifier: MIT
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadInfo;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Threads that wait for a queue, a monitor and a lock, for demos/programs.py.
 *
 * <p>java Contention.java SECONDS: prints that it is ready, reads a line, and works for SECONDS. It then prints as JSON
 * how many numbers went through the queue, and how often threads of the virtual machine waited. It ends when its
 * standard input ends, and does not use rouse.
 */
public final class Contention {
    private static final int SIDES = 3; // threads that put; as many threads take
    private static final int ROOM = 16;
    private static final int LAST = -1;

    private final BlockingQueue<Integer> queue = new ArrayBlockingQueue<>(ROOM);
    private final Object monitor = new Object();
    private final ReentrantLock lock = new ReentrantLock();
    private final AtomicLong blocked = new AtomicLong();
    private final AtomicLong waited = new AtomicLong();
    private long inMonitor; // protected by the monitor
    private long inLock; // protected by the lock
    private volatile boolean isOver;

    private interface Part {
        void run() throws InterruptedException;
    }

    private void put() throws InterruptedException {
        do
            queue.put(1);
        while (!isOver);
        queue.put(LAST); // one of these is the very last item, so nothing stays in the queue
    }

    private void take() throws InterruptedException {
        int item;
        while ((item = queue.take()) != LAST) {
            synchronized (monitor) {
                inMonitor += item;
            }
            lock.lock();
            try {
                inLock += item;
            } finally {
                lock.unlock();
            }
        }
    }

    /** A thread that adds its counts to the totals when it ends. */
    private Thread started(Part part) {
        Thread thread = new Thread(() -> {
            try {
                part.run();
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            ThreadInfo info = ManagementFactory.getThreadMXBean().getThreadInfo(Thread.currentThread().getId());
            blocked.addAndGet(info.getBlockedCount());
            waited.addAndGet(info.getWaitedCount());
        });
        thread.start();
        return thread;
    }

    private void work(double seconds) throws InterruptedException {
        long begin = System.nanoTime();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < SIDES; i++) {
            threads.add(started(this::put));
            threads.add(started(this::take));
        }
        Thread.sleep((long) (seconds * 1e3));
        isOver = true;
        for (Thread thread : threads)
            thread.join();
        double passed = (System.nanoTime() - begin) / 1e9;
        System.out.println("{\"operations\": " + inMonitor + ", \"in_lock\": " + inLock + ", \"seconds\": " + passed
                + ", \"blocked\": " + blocked + ", \"waited\": " + waited + "}");
        System.out.flush();
    }

    public static void main(String[] words) throws IOException, InterruptedException {
        System.out.println("ready");
        System.out.flush();
        System.in.read();
        new Contention().work(Double.parseDouble(words[0]));
        while (System.in.read() >= 0) {
        }
    }
}
