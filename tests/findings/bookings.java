/* SPDX-License-Identifier: MIT */
/*
 * bookings.java - eight threads that book entries in a ledger. Fault: they store each entry, which takes 1 ms, under a
 * lock of java.util.concurrent.
 *
 * Usage: java bookings.java [fixed] [SECONDS]. Repair: only the sum is guarded.
 */
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.ReentrantLock;

class Bookings {
    static final int THREADS = 8;
    static final ReentrantLock ledger = new ReentrantLock();
    static boolean isFixed;
    static long sum;

    static void store() {
        try {
            Thread.sleep(1);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
    }

    static void book(long amount) {
        if (isFixed)
            store();
        ledger.lock();
        try {
            sum += amount;
            if (!isFixed)
                store();
        } finally {
            ledger.unlock();
        }
    }

    public static void main(String[] words) throws InterruptedException {
        isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        AtomicLong ops = new AtomicLong();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                long entry = 0;
                for (; System.nanoTime() < end; entry++)
                    book(entry);
                ops.addAndGet(entry);
            }, "clerk");
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
