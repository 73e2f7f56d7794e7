/* SPDX-License-Identifier: MIT */
/*
 * pthread_original.c - counts the words of files, one thread per file. ported.c is the same with rouse.
 *
 * usage: pthread_original FILE...
 *
 * At most READERS files are read at a time. main() waits until all are done. After each second in which no file was
 * finished it prints that it still waits. Compare: diff pthread_original.c ported.c
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define READERS 4

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t one_done = PTHREAD_COND_INITIALIZER;
static sem_t readers;

/* Protected by lock: */
static unsigned long total;
static int undone, failed;

static long count_words(int fd)
{
    char buffer[4096];
    bool in_word = false;
    long words = 0;
    ssize_t got;

    while ((got = read(fd, buffer, sizeof(buffer))) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            bool was_in_word = in_word;

            in_word = !isspace((unsigned char)buffer[i]);
            words += in_word && !was_in_word;
        }
    }
    return got < 0 ? -errno : words;
}

static void *count_file(void *arg)
{
    const char *path = arg;
    long words;
    int fd;

    sem_wait(&readers);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    words = fd < 0 ? -errno : count_words(fd);
    if (fd >= 0)
        close(fd);
    sem_post(&readers);

    if (words < 0)
        fprintf(stderr, "%s: %s\n", path, strerror((int)-words));
    pthread_mutex_lock(&lock);
    if (words < 0)
        failed++;
    else
        total += (unsigned long)words;
    undone--;
    pthread_cond_signal(&one_done);
    pthread_mutex_unlock(&lock);
    return NULL;
}

static void wait_for_all(void)
{
    pthread_mutex_lock(&lock);
    while (undone > 0) {
        struct timespec deadline;

        clock_gettime(CLOCK_REALTIME, &deadline);
        deadline.tv_sec++;
        if (pthread_cond_timedwait(&one_done, &lock, &deadline) == ETIMEDOUT)
            fprintf(stderr, "still %d to do\n", undone);
    }
    pthread_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    pthread_attr_t attr;

    sem_init(&readers, 0, READERS);
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    undone = argc - 1;
    for (int i = 1; i < argc; i++) {
        pthread_t thread;
        int error = pthread_create(&thread, &attr, count_file, argv[i]);

        if (error) {
            fprintf(stderr, "cannot start a thread: %s\n", strerror(error));
            return 1;
        }
    }
    wait_for_all();
    printf("%lu words\n", total);
    return failed > 0;
}
