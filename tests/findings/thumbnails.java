/* SPDX-License-Identifier: MIT */
/*
 * thumbnails.java - eight clients that wait for the results of an executor. Fault: the executor has two threads, which wait
 * for a remote service most of the time.
 *
 * Usage: java thumbnails.java [fixed] [SECONDS]. Repair: it has eight.
 */
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;

class Thumbnails {
    static final int CLIENTS = 8, FEW = 2;

    static int render(int picture) {
        try {
            Thread.sleep(2);
        } catch (InterruptedException stop) {
            Thread.currentThread().interrupt();
        }
        return picture + 1;
    }

    static int request(ExecutorService pool, int picture) {
        try {
            return pool.submit(() -> render(picture)).get();
        } catch (InterruptedException | ExecutionException problem) {
            throw new IllegalStateException(problem);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        boolean isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        ExecutorService pool = Executors.newFixedThreadPool(isFixed ? CLIENTS : FEW);
        AtomicLong ops = new AtomicLong();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] clients = new Thread[CLIENTS];
        for (int i = 0; i < CLIENTS; i++) {
            clients[i] = new Thread(() -> {
                int picture = 0;
                while (System.nanoTime() < end)
                    picture = request(pool, picture);
                ops.addAndGet(picture);
            }, "client");
            clients[i].start();
        }
        for (Thread client : clients)
            client.join();
        pool.shutdown();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
