/* SPDX-License-Identifier: MIT */
/*
 * rings.c - a program that does every kind of I/O on request, while uring_test.py observes it from outside.
 *
 * It prints its I/O backend and the reason for this choice, and waits for a byte on standard input. Then it serves
 * LINES connections at the same time, each of which answers ROUNDS words. It also writes, reads and synchronises a
 * file. It prints "done" and ends.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rouse/rouse.h>

#define LINES 16
#define ROUNDS 100
#define WORD_BYTES 64

static void check(long result, const char *what)
{
    if (result >= 0)
        return;
    fprintf(stderr, "rings: %s: %s\n", what, strerror((int)-result));
    exit(1);
}

static void *answer(void *arg)
{
    int fd = (int)(intptr_t)arg;
    /* Longer than a word, so that a short read shows that no input is left. */
    char word[2 * WORD_BYTES];
    ssize_t got;
    while ((got = rouse_recv(fd, word, sizeof word, 0)) > 0)
        check(rouse_send(fd, word, (size_t)got, 0), "send");
    check(got, "recv");
    rouse_close(fd);
    return NULL;
}

static void *serve(void *arg)
{
    const struct rouse_thread_attr detached = { .detached = true };
    int listener = (int)(intptr_t)arg;
    for (unsigned i = 0; i < LINES; i++) {
        int fd = rouse_accept(listener, NULL, NULL);
        check(fd, "accept");
        check(rouse_thread_create(NULL, &detached, answer, (void *)(intptr_t)fd), "create");
    }
    return NULL;
}

static void *ask(void *arg)
{
    const struct sockaddr_in *address = arg;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char word[2 * WORD_BYTES] = "word";
    check(rouse_connect(fd, (const struct sockaddr *)address, sizeof *address), "connect");
    for (unsigned i = 0; i < ROUNDS; i++) {
        check(rouse_send(fd, word, WORD_BYTES, 0), "send");
        check(rouse_recv(fd, word, sizeof word, 0), "recv");
    }
    rouse_close(fd);
    return NULL;
}

static void *use_file(void *arg)
{
    char word[WORD_BYTES] = "word";
    int fd = memfd_create("file", MFD_CLOEXEC);
    (void)arg;
    for (unsigned i = 0; i < ROUNDS; i++) {
        check(rouse_pwrite(fd, word, sizeof word, 0), "pwrite");
        check(rouse_fsync(fd), "fsync");
        check(rouse_pread(fd, word, sizeof word, 0), "pread");
    }
    rouse_close(fd);
    return NULL;
}

int main(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
    socklen_t length = sizeof address;
    struct rouse_thread *threads[LINES + 2];
    const char *backend, *reason;
    unsigned count = 0;
    char byte;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, length) != 0 || listen(listener, LINES) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &length) != 0)
        return 1;
    backend = rouse_io_backend(&reason);
    printf("%s: %s\n", backend, reason);
    fflush(stdout);
    if (read(STDIN_FILENO, &byte, 1) != 1)
        return 1;
    check(rouse_thread_create(&threads[count++], NULL, serve, (void *)(intptr_t)listener),
          "create");
    check(rouse_thread_create(&threads[count++], NULL, use_file, NULL), "create");
    while (count < LINES + 2)
        check(rouse_thread_create(&threads[count++], NULL, ask, &address), "create");
    while (count > 0)
        check(rouse_thread_join(threads[--count], NULL), "join");
    printf("done\n");
    return 0;
}
