/* SPDX-License-Identifier: MIT */
/*
 * plain_futex.c - as plain.c, for what goes through libc's syscall(): futexes of the program's own, as often as the
 * enumeration says, and calls that have nothing to do with waits.
 */
#include "plain.h"

#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>

enum {
    WAKES = 6,   /* of a thread that waits, one by one */
    HERD = 5,    /* woken by one call */
    CHANGED = 7, /* waits for a word that has changed */
    LATE = 3,    /* time-outs */
    MOVED = 4,   /* of a herd, moved to another word and woken there */
    PI = 3,      /* threads that wait for a lock whose holder inherits their priority */
    VAIN = 2,    /* wake-ups of nobody */
};

static uint32_t word, second, lock_pi, rounds;

#define futex(...) syscall(SYS_futex, __VA_ARGS__)

static void *be_woken(void *unused)
{
    for (unsigned i = 0; i < WAKES; i++) {
        here(0);
        check(futex(&word, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) == 0); /* by one */
        __atomic_store_n(&rounds, i + 1, __ATOMIC_RELEASE);
    }
    return unused;
}

static void wakes(void)
{
    pthread_t thread;
    start(&thread, 1, be_woken);
    for (unsigned i = 0; i < WAKES; i++) {
        until_sleeps(&tids[0]);
        tids[0] = 0;
        check(futex(&word, FUTEX_WAKE | FUTEX_PRIVATE_FLAG, 1, NULL, NULL, 0) == 1); /* to one */
        while (__atomic_load_n(&rounds, __ATOMIC_ACQUIRE) != i + 1)
            nap();
    }
    join(&thread, 1);
    for (unsigned i = 0; i < VAIN; i++) {
        errno = 77;
        check(futex(&word, FUTEX_WAKE, 1, NULL, NULL, 0) == 0 && errno == 77);
        check(futex(&word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) == 0);
    }
}

static void *be_herded(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(futex(&word, FUTEX_WAIT_BITSET, 0, NULL, NULL, 1u << (uintptr_t)i) == 0); /* in a herd */
    return NULL;
}

static void herd(void)
{
    pthread_t threads[HERD];
    start(threads, HERD, be_herded);
    until_all_sleep(HERD);
    check(futex(&word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, UINT32_MAX) == HERD); /* to a herd */
    join(threads, HERD);
}

static void on_signal(int number)
{
    (void)number;
}

static void *be_interrupted(void *unused)
{
    here(0);
    check(futex(&word, FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno == EINTR);
    return unused;
}

static void ends(void)
{
    const struct timespec little = { 0, 3000000 };
    struct sigaction action = { .sa_handler = on_signal };
    pthread_t thread;
    for (unsigned i = 0; i < CHANGED; i++)
        check(futex(&word, FUTEX_WAIT, 1, NULL, NULL, 0) == -1 && errno == EAGAIN);
    for (unsigned i = 0; i < LATE; i++)
        check(futex(&word, FUTEX_WAIT, 0, &little, NULL, 0) == -1 && errno == ETIMEDOUT);
    check(sigaction(SIGUSR1, &action, NULL) == 0);
    start(&thread, 1, be_interrupted);
    until_sleeps(&tids[0]);
    check(pthread_kill(thread, SIGUSR1) == 0);
    join(&thread, 1);
    check(futex(NULL, FUTEX_WAIT, 0, NULL, NULL, 0) == -1 && errno == EFAULT);
    check(futex(&word, 127, 0, NULL, NULL, 0) == -1 && errno == ENOSYS);
}

static void *be_moved(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(futex(&word, FUTEX_WAIT, 0, NULL, NULL, 0) == 0); /* and moved */
    return NULL;
}

/* One is woken where it waits, the others where they have been moved to: once by each call, and once again back. */
static void requeue(void)
{
    pthread_t threads[MOVED + 1];
    void *most = (void *)(uintptr_t)INT_MAX;
    start(threads, MOVED + 1, be_moved);
    until_all_sleep(MOVED + 1);
    check(futex(&word, FUTEX_CMP_REQUEUE, 1, most, &second, 1) == -1 && errno == EAGAIN);
    check(futex(&word, FUTEX_CMP_REQUEUE, 0, most, &second, 0) == MOVED + 1);
    check(futex(&word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) == 0);
    check(futex(&second, FUTEX_REQUEUE, 0, most, &lock_pi, 0) == MOVED + 1);
    check(futex(&lock_pi, FUTEX_CMP_REQUEUE, 1, most, &second, 0) == MOVED + 1); /* wakes one */
    check(futex(&second, FUTEX_WAKE, INT_MAX, NULL, NULL, 0) == MOVED); /* wakes the moved */
    join(threads, MOVED + 1);
}

static void *want_pi(void *i)
{
    here((unsigned)(uintptr_t)i);
    check(futex(&lock_pi, FUTEX_LOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) ==
          0); /* which is held */
    check(futex(&lock_pi, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) == 0); /* of PI */
    return NULL;
}

static void pi(void)
{
    pthread_t threads[PI];
    __atomic_store_n(&lock_pi, (uint32_t)syscall(SYS_gettid), __ATOMIC_RELEASE);
    start(threads, PI, want_pi);
    until_all_sleep(PI);
    check(futex(&lock_pi, FUTEX_UNLOCK_PI | FUTEX_PRIVATE_FLAG, 0, NULL, NULL, 0) == 0); /* of PI */
    join(threads, PI);
}

/* Every argument and errno arrive, and so does the result. */
static void others(void)
{
    int fds[2];
    char text[4] = "";
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char name[] = "/tmp/plain_futex.XXXXXX";
    int fd = mkstemp(name);
    check(fd >= 0 && unlink(name) == 0 && ftruncate(fd, (off_t)(2 * page)) == 0);
    check(pwrite(fd, "six", 3, (off_t)page) == 3);
    errno = 77;
    char *mapped = (char *)syscall(SYS_mmap, NULL, page, PROT_READ, MAP_PRIVATE, fd, page);
    check(mapped != MAP_FAILED && memcmp(mapped, "six", 3) == 0);
    check(syscall(SYS_getpid) == getpid() && errno == 77);
    check(syscall(SYS_close, -1) == -1 && errno == EBADF);
    check(syscall(SYS_pipe2, fds, 0) == 0 && syscall(SYS_write, fds[1], "abc", 3) == 3);
    check(syscall(SYS_read, fds[0], text, 3) == 3 && strcmp(text, "abc") == 0);
    check(syscall(-1) == -1 && errno == ENOSYS);
}

int main(int argc, char **argv)
{
    static const struct scene scenes[] = { { "wake", wakes }, { "herd", herd },
                                           { "end", ends },   { "requeue", requeue },
                                           { "pi", pi },      { "others", others } };
    return argc > 1 && PLAY(scenes, argv[1]) ? 0 : 2;
}
