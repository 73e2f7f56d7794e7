/* SPDX-License-Identifier: MIT */
/*
 * orders.java - four threads of a shop take orders. Fault: the price of an order is computed in a synchronized method, so that
 * one thread at a time computes.
 *
 * Usage: java orders.java [fixed] [SECONDS]. Repair: only the sum is guarded.
 */
import java.util.concurrent.atomic.AtomicLong;

class Orders {
    static final int THREADS = 4, ROUNDS = 20000;
    static long turnover;

    static long price(long order) {
        long sum = order;
        for (int i = 0; i < ROUNDS; i++)
            sum = sum * 31 ^ i + (sum >>> 7);
        return sum;
    }

    static synchronized void take(long order) {
        turnover += price(order);
    }

    static synchronized void add(long price) {
        turnover += price;
    }

    public static void main(String[] words) throws InterruptedException {
        boolean isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        AtomicLong ops = new AtomicLong();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                long order = 0;
                for (; System.nanoTime() < end; order++) {
                    if (isFixed)
                        add(price(order));
                    else
                        take(order);
                }
                ops.addAndGet(order);
            }, "clerk");
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
