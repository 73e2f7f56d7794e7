/* SPDX-License-Identifier: MIT */
/*
 * backend.java - twelve threads that query a remote service. Fault: a semaphore lets two of them query at a time, and the
 * service could answer all.
 *
 * Usage: java backend.java [fixed] [SECONDS]. Repair: a permit for each thread.
 */
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;

class Backend {
    static final int THREADS = 12, FEW = 2;
    static Semaphore connections;

    static long query(long customer) throws InterruptedException {
        Thread.sleep(2);
        return customer * 31;
    }

    static long select(long customer) {
        try {
            connections.acquire();
            try {
                return query(customer);
            } finally {
                connections.release();
            }
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        boolean isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        connections = new Semaphore(isFixed ? THREADS : FEW);
        AtomicLong ops = new AtomicLong();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                long done = 0;
                for (; System.nanoTime() < end; done++)
                    select(done);
                ops.addAndGet(done);
            }, "web");
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
