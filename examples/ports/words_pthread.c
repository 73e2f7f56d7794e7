/* SPDX-License-Identifier: MIT */
/*
 * words_pthread.c - counts the lines, words and bytes of files, like wc, on several threads.
 *
 * usage: words_pthread THREADS FILE...
 *
 * main() puts the names into a bounded queue, and the threads take them. The status is 1 if a file could not be read.
 * Compare: diff words_pthread.c words_rouse.c
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEPTH 64
#define THREADS 64

struct counts {
    unsigned long lines, words, bytes, failed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t not_empty = PTHREAD_COND_INITIALIZER, not_full = PTHREAD_COND_INITIALIZER;
/* Protected by lock: */
static const char *names[DEPTH];
static size_t first, count;
static bool is_closed; /* no more names will come */

static void put(const char *name)
{
    pthread_mutex_lock(&lock);
    while (count == DEPTH)
        pthread_cond_wait(&not_full, &lock);
    names[(first + count++) % DEPTH] = name;
    pthread_cond_signal(&not_empty);
    pthread_mutex_unlock(&lock);
}

/* NULL if the queue is closed and empty. */
static const char *take(void)
{
    const char *name = NULL;

    pthread_mutex_lock(&lock);
    while (count == 0 && !is_closed)
        pthread_cond_wait(&not_empty, &lock);
    if (count > 0) {
        name = names[first];
        first = (first + 1) % DEPTH;
        count--;
        pthread_cond_signal(&not_full);
    }
    pthread_mutex_unlock(&lock);
    return name;
}

static void close_queue(void)
{
    pthread_mutex_lock(&lock);
    is_closed = true;
    pthread_cond_broadcast(&not_empty);
    pthread_mutex_unlock(&lock);
}

/* Returns an error number. */
static int count_file(const char *name, struct counts *sum)
{
    int fd = open(name, O_RDONLY | O_CLOEXEC), error;
    unsigned long lines = 0, words = 0;
    char buffer[32768];
    bool in_word = false;
    ssize_t got;

    if (fd < 0)
        return errno;
    while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            bool was_in_word = in_word;

            in_word = !isspace((unsigned char)buffer[i]);
            words += in_word && !was_in_word;
            lines += buffer[i] == '\n';
        }
        sum->bytes += (unsigned long)got;
    }
    /* Once per file: the sums of other threads may be in the same cache line. */
    sum->lines += lines;
    sum->words += words;
    error = got < 0 ? errno : 0;
    close(fd);
    return error;
}

static void *work(void *arg)
{
    struct counts *sum = arg;
    const char *name;

    while ((name = take())) {
        int error = count_file(name, sum);

        if (error) {
            fprintf(stderr, "words: %s: %s\n", name, strerror(error));
            sum->failed++;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    static struct counts sums[THREADS];
    struct counts total = { 0 };
    pthread_t thread[THREADS];

    if (threads < 1 || threads > THREADS) {
        fprintf(stderr, "usage: words THREADS FILE... (at most %d threads)\n", THREADS);
        return 2;
    }
    for (int i = 0; i < threads; i++) {
        int error = pthread_create(&thread[i], NULL, work, &sums[i]);

        if (error) {
            fprintf(stderr, "words: cannot start a thread: %s\n", strerror(error));
            return 2;
        }
    }
    for (int i = 2; i < argc; i++)
        put(argv[i]);
    close_queue();
    for (int i = 0; i < threads; i++) {
        pthread_join(thread[i], NULL);
        total.lines += sums[i].lines;
        total.words += sums[i].words;
        total.bytes += sums[i].bytes;
        total.failed += sums[i].failed;
    }
    printf("%lu lines, %lu words, %lu bytes\n", total.lines, total.words, total.bytes);
    return total.failed > 0;
}
