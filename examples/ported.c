/* SPDX-License-Identifier: MIT */
/*
 * ported.c - counts the words of files, one thread per file. It is pthread_original.c, ported to rouse.
 *
 * usage: ported FILE...
 *
 * At most READERS files are read at a time. main() waits until all are done. After each second in which no file was
 * finished it prints that it still waits. Compare: diff pthread_original.c ported.c
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rouse/rouse.h>

#define READERS 4

static struct rouse_mutex lock = ROUSE_MUTEX_INIT;
static struct rouse_cond one_done = ROUSE_COND_INIT;
static struct rouse_sem readers = ROUSE_SEM_INIT(READERS);

/* Protected by lock: */
static unsigned long total;
static int undone, failed;

static long count_words(int fd)
{
    char buffer[4096];
    bool in_word = false;
    long words = 0;
    ssize_t got;

    while ((got = rouse_read(fd, buffer, sizeof(buffer))) > 0) {
        for (ssize_t i = 0; i < got; i++) {
            bool was_in_word = in_word;

            in_word = !isspace((unsigned char)buffer[i]);
            words += in_word && !was_in_word;
        }
    }
    return got < 0 ? got : words;
}

static void *count_file(void *arg)
{
    const char *path = arg;
    long words;
    int fd;

    rouse_sem_wait(&readers);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    words = fd < 0 ? -errno : count_words(fd);
    if (fd >= 0)
        rouse_close(fd);
    rouse_sem_post(&readers);

    if (words < 0)
        fprintf(stderr, "%s: %s\n", path, strerror((int)-words));
    rouse_mutex_lock(&lock);
    if (words < 0)
        failed++;
    else
        total += (unsigned long)words;
    undone--;
    rouse_cond_signal(&one_done);
    rouse_mutex_unlock(&lock);
    return NULL;
}

static void wait_for_all(void)
{
    rouse_mutex_lock(&lock);
    while (undone > 0) {
        uint64_t deadline_ns = rouse_now_ns() + UINT64_C(1000000000);

        if (rouse_cond_wait_until(&one_done, &lock, deadline_ns) == -ETIMEDOUT)
            fprintf(stderr, "still %d to do\n", undone);
    }
    rouse_mutex_unlock(&lock);
}

int main(int argc, char **argv)
{
    const struct rouse_thread_attr attr = { .detached = true };

    undone = argc - 1;
    for (int i = 1; i < argc; i++) {
        int error = rouse_thread_create(NULL, &attr, count_file, argv[i]);

        if (error) {
            fprintf(stderr, "cannot start a thread: %s\n", strerror(-error));
            return 1;
        }
    }
    wait_for_all();
    printf("%lu words\n", total);
    return failed > 0;
}
