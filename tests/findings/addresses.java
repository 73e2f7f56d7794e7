/* SPDX-License-Identifier: MIT */
/*
 * addresses.java - addresses that an executor checks at a remote directory, at most 24 at a time. Fault: its queue has no
 * bound, so that it never has more than its two core threads.
 *
 * Usage: java addresses.java [fixed] [SECONDS]. Repair: sixteen core threads.
 */
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

class Addresses {
    static final int AT_ONCE = 24, MANY = 16, FEW = 2;
    static final AtomicLong ops = new AtomicLong();

    static long lookUp(long address) {
        try {
            Thread.sleep(4);
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
        return address * 31;
    }

    static void checkAll(ThreadPoolExecutor executor, long end) throws InterruptedException {
        Semaphore underWay = new Semaphore(AT_ONCE);
        for (long line = 0; System.nanoTime() < end; line++) {
            long address = line;
            underWay.acquire();
            CompletableFuture.supplyAsync(() -> lookUp(address), executor).thenAccept(answer -> {
                ops.incrementAndGet();
                underWay.release();
            });
        }
        underWay.acquire(AT_ONCE);
    }

    public static void main(String[] words) throws InterruptedException {
        boolean isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        ThreadPoolExecutor executor = new ThreadPoolExecutor(
            isFixed ? MANY : FEW, MANY, 30, TimeUnit.SECONDS, new LinkedBlockingQueue<>());
        long began = System.nanoTime();
        checkAll(executor, began + (long) (seconds * 1e9));
        executor.shutdown();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
