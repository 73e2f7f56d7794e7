/* SPDX-License-Identifier: MIT */
/*
 * plain_confined.c - as plain.c: programs that confine themselves to the system calls that they make. One more is their
 * end, by a signal. Each sleeps NAPS times before that, and does afterwards what it may.
 */
#include "plain.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

enum {
    NAPS = 3, /* sleeps that are recorded */
    NO_SECCOMP = 77,
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int sockets[2], pipes[2], silence[2], file;

#define MAY(name) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##name, 0, 1), \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static struct sock_filter steps[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    MAY(read),
    MAY(write),
    MAY(close),
    MAY(futex),
    MAY(clock_nanosleep),
    MAY(clone),
    MAY(set_robust_list),
    MAY(rt_sigprocmask),
    MAY(wait4),
    MAY(exit_group),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
};
static struct sock_fprog filter = { sizeof steps / sizeof *steps, steps };

static void sleeps(void)
{
    for (unsigned i = 0; i < NAPS; i++)
        check(usleep(1000) == 0); /* recorded */
}

static void begin(void)
{
    check(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0 && pipe(pipes) == 0);
    check(pipe(silence) == 0);
    check((file = open("/dev/null", O_RDWR)) >= 0);
    sleeps();
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
}

static void confined(long result)
{
    if (result != 0 && (errno == EINVAL || errno == ENOSYS))
        _exit(NO_SECCOMP);
    check(result == 0);
}

/* Bytes through both, and what is there already is read by a call that does not wait. */
static void talk(void)
{
    char byte = 'x';
    for (int i = 0; i < 2; i++) {
        check(write(sockets[0], &byte, 1) == 1 && read(sockets[1], &byte, 1) == 1);
        check(write(pipes[1], &byte, 1) == 1 && read(pipes[0], &byte, 1) == 1);
        check(write(file, &byte, 1) == 1 && read(file, &byte, 1) == 0);
        check(usleep(1000) == 0);
        check(pthread_mutex_lock(&lock) == 0 && pthread_mutex_unlock(&lock) == 0);
    }
    check(close(file) == 0);
}

/* Strict: read, write and the end of the thread are all there is. */
static void strict(void)
{
    char byte = 'x';
    begin();
    check(write(pipes[1], &byte, 1) == 1);
    confined(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
    for (int i = 0; i < 2; i++) {
        check(read(pipes[0], &byte, 1) == 1 && write(pipes[1], &byte, 1) == 1);
        check(write(sockets[0], &byte, 1) == 1 && read(sockets[1], &byte, 1) == 1);
        check(pthread_mutex_lock(&lock) == 0 && pthread_mutex_unlock(&lock) == 0);
    }
    syscall(SYS_exit, 0);
}

static void filters(void)
{
    begin();
    confined(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    talk();
}

static void at_once(void)
{
    check(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    confined(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
}

static void calls(void)
{
    begin();
    confined(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &filter));
    talk();
}

static void calls_prctl(void)
{
    begin();
    confined(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0));
    talk();
}

static void forks(void)
{
    int status;
    begin();
    confined(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
    pid_t pid = fork();
    if (pid == 0) {
        talk();
        exit(6);
    }
    check(pid > 0 && waitpid(pid, &status, 0) == pid && status == 6 << 8);
    talk();
}

/* It is in a wait when the filter comes, which holds for it too. */
static void *answer(void *unused)
{
    char byte;
    (void)unused;
    here(0);
    check(read(sockets[1], &byte, 1) == 1);
    check(pthread_mutex_lock(&lock) == 0); /* which is held */
    check(pthread_mutex_unlock(&lock) == 0);
    check(write(pipes[1], &byte, 1) == 1);
    check(read(silence[0], &byte, 1) == 0); /* to the end of the process */
    return NULL;
}

static void others(void)
{
    pthread_t thread;
    char byte = 'x';
    begin();
    start(&thread, 1, answer);
    until_sleeps(&tids[0]);
    check(pthread_mutex_lock(&lock) == 0);
    confined(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter));
    check(write(sockets[0], &byte, 1) == 1);
    check(usleep(1000) == 0 && pthread_mutex_unlock(&lock) == 0);
    check(read(pipes[0], &byte, 1) == 1);
    talk();
}

/* Whether there is seccomp: nothing comes of it. */
static void asks(void)
{
    errno = 0;
    check(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL) == -1 && errno != 0);
    errno = 0;
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) == -1 && errno != 0);
    errno = 0;
    check(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL) == -1 && errno != 0);
    check(prctl(PR_SET_NAME, "asks") == 0);
    check(syscall(SYS_prctl, PR_GET_DUMPABLE, 0, 0, 0, 0) == prctl(PR_GET_DUMPABLE));
    sleeps();
}

int main(int count, char **words)
{
    static const struct scene scenes[] = {
        { "strict", strict }, { "filter", filters },         { "call", calls },
        { "forks", forks },   { "call prctl", calls_prctl }, { "others", others },
        { "asks", asks },     { "at once", at_once },
    };
    return count == 2 && PLAY(scenes, words[1]) ? 0 : 2;
}
