/* SPDX-License-Identifier: MIT */
/*
 * lies.c - preloaded into rouse-bench: the call that $LIE names does not do what it reports, or reports what it
 * did not do. Each case of libMicro has to notice that.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *lie;

__attribute__((constructor)) static void read_lie(void)
{
    lie = getenv("LIE");
}

static bool lies(const char *call)
{
    return lie && strcmp(lie, call) == 0;
}

/* The C library's function of this name, as *call. */
#define REAL(name) (*(__typeof__(&(name)) *)(void *[]){ dlsym(RTLD_NEXT, #name) })

pid_t getpid(void)
{
    return REAL(getpid)() + lies("getpid");
}

int gettimeofday(struct timeval *restrict now, void *restrict zone)
{
    const int status = REAL(gettimeofday)(now, zone);
    if (lies("gettimeofday"))
        now->tv_usec = 1000000;
    return status;
}

/* Goes back now and then. */
int clock_gettime(clockid_t clock, struct timespec *now)
{
    static unsigned calls;
    const int status = REAL(clock_gettime)(clock, now);
    if (lies("clock_gettime") && ++calls % 10 == 0)
        now->tv_sec -= 1;
    return status;
}

/* One bit is wrong. */
ssize_t read(int fd, void *buffer, size_t bytes)
{
    const ssize_t n = REAL(read)(fd, buffer, bytes);
    if (lies("read") && n > 0)
        *(unsigned char *)buffer ^= 1;
    return n;
}

ssize_t write(int fd, const void *buffer, size_t bytes)
{
    const ssize_t n = REAL(write)(fd, buffer, bytes);
    return lies("write") && fd != STDERR_FILENO && n > 1 ? n - 1 : n;
}

int poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    return REAL(poll)(fds, count, timeout_ms) + lies("poll");
}

int select(int count, fd_set *restrict in, fd_set *restrict out, fd_set *restrict except,
           struct timeval *restrict timeout)
{
    const int n = REAL(select)(count, in, out, except, timeout);
    if (lies("select"))
        FD_ZERO(in);
    return n;
}

int accept4(int fd, struct sockaddr *restrict peer, socklen_t *restrict length, int flags)
{
    const int accepted = REAL(accept4)(fd, peer, length, flags);
    if (lies("accept4"))
        ((struct sockaddr_in *)peer)->sin_port ^= 1;
    return accepted;
}

/* Shuts nothing, and reports that. */
int close(int fd)
{
    if (!lies("close"))
        return REAL(close)(fd);
    errno = EIO;
    return -1;
}

int pthread_join(pthread_t thread, void **result)
{
    const int error = REAL(pthread_join)(thread, result);
    if (lies("pthread_join") && result)
        *result = NULL;
    return error;
}

pid_t waitpid(pid_t pid, int *status, int options)
{
    const pid_t reaped = REAL(waitpid)(pid, status, options);
    if (lies("waitpid") && status)
        *status += 1 << 8;
    return reaped;
}

int system(const char *command)
{
    return REAL(system)(command) + lies("system");
}

/* Gives one unit too many. */
int semop(int id, struct sembuf *operations, size_t count)
{
    if (lies("semop") && operations->sem_op > 0)
        operations->sem_op++;
    return REAL(semop)(id, operations, count);
}

int sched_yield(void)
{
    return REAL(sched_yield)() - lies("sched_yield");
}

int nanosleep(const struct timespec *time, struct timespec *left)
{
    return lies("nanosleep") ? 0 : REAL(nanosleep)(time, left);
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left)
{
    return lies("clock_nanosleep") ? 0 : REAL(clock_nanosleep)(clock, flags, time, left);
}

/* A lock that does not exclude. */
int flock(int fd, int operation)
{
    return lies("flock") ? 0 : REAL(flock)(fd, operation);
}

int lockf(int fd, int command, off_t bytes)
{
    return lies("lockf") ? 0 : REAL(lockf)(fd, command, bytes);
}

int fcntl(int fd, int command, ...)
{
    va_list list;
    va_start(list, command);
    void *argument = va_arg(list, void *);
    va_end(list);
    return lies("fcntl") && command == F_SETLKW ? 0 : REAL(fcntl)(fd, command, argument);
}

int pthread_cond_wait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex)
{
    return lies("pthread_cond_wait") ? EINVAL : REAL(pthread_cond_wait)(cond, mutex);
}
