/* SPDX-License-Identifier: MIT */
/*
 * lending.java - ten threads that borrow a connection to ask a remote service. Fault: the queue of free connections has
 * two, and the service could answer all.
 *
 * Usage: java lending.java [fixed] [SECONDS]. Repair: a connection for each thread.
 */
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.atomic.AtomicLong;

class Lending {
    static final int THREADS = 10, FEW = 2;

    static class Connection {
        long ask(long reader) throws InterruptedException {
            Thread.sleep(2);
            return reader * 31;
        }
    }

    static class Connections {
        final BlockingQueue<Connection> free;

        Connections(int count) {
            free = new ArrayBlockingQueue<>(count);
            for (int i = 0; i < count; i++)
                free.add(new Connection());
        }

        Connection borrow() throws InterruptedException {
            return free.take();
        }

        void giveBack(Connection connection) {
            free.add(connection);
        }
    }

    static long lend(Connections connections, long reader) {
        try {
            Connection connection = connections.borrow();
            try {
                return connection.ask(reader);
            } finally {
                connections.giveBack(connection);
            }
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        boolean isFixed = words.length > 0 && words[0].equals("fixed");
        double seconds = words.length > (isFixed ? 1 : 0) ? Double.parseDouble(words[words.length - 1]) : 1;
        Connections connections = new Connections(isFixed ? THREADS : FEW);
        AtomicLong ops = new AtomicLong();
        long began = System.nanoTime(), end = began + (long) (seconds * 1e9);
        Thread[] threads = new Thread[THREADS];
        for (int i = 0; i < THREADS; i++) {
            threads[i] = new Thread(() -> {
                long done = 0;
                for (; System.nanoTime() < end; done++)
                    lend(connections, done);
                ops.addAndGet(done);
            }, "desk");
            threads[i].start();
        }
        for (Thread thread : threads)
            thread.join();
        System.out.printf("ops %d seconds %.6f%n", ops.get(), (System.nanoTime() - began) / 1e9);
    }
}
