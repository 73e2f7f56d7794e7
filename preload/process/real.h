/* SPDX-License-Identifier: MIT */
/* real.h - pointers to the calls that this library replaces: libc's, or those of the next library that defines them. */
#ifndef RPI_PROCESS_REAL_H
#define RPI_PROCESS_REAL_H

#include "base/base.h"
#include "process/linkage.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <mqueue.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <time.h>
#include <unistd.h>

/* Calls of programs that are compiled with _FORTIFY_SOURCE, which only then are declared. */
int __printf_chk(int flag, const char *format, ...);
int __vprintf_chk(int flag, const char *format, va_list list);
int __fprintf_chk(FILE *stream, int flag, const char *format, ...);
int __vfprintf_chk(FILE *stream, int flag, const char *format, va_list list);
char *__fgets_chk(char *text, size_t room, int bytes, FILE *stream);
size_t __fread_chk(void *data, size_t room, size_t bytes, size_t count, FILE *stream);

/*
 * All replaced calls. The first six may be called before any constructor has run, and are usable from the start. The
 * others are usable after rpi_real_find.
 */
/* clang-format off */
#define RPI_REALS(X) \
    X(syscall) X(pthread_mutex_lock) X(pthread_mutex_trylock) X(pthread_mutex_unlock) \
    X(pthread_mutex_init) X(pthread_mutex_destroy) X(pthread_mutex_timedlock) \
    X(pthread_mutex_clocklock) X(pthread_cond_wait) X(pthread_cond_timedwait) \
    X(pthread_cond_clockwait) X(pthread_cond_signal) X(pthread_cond_broadcast) \
    X(pthread_rwlock_rdlock) X(pthread_rwlock_tryrdlock) X(pthread_rwlock_timedrdlock) \
    X(pthread_rwlock_clockrdlock) X(pthread_rwlock_wrlock) X(pthread_rwlock_trywrlock) \
    X(pthread_rwlock_timedwrlock) X(pthread_rwlock_clockwrlock) X(pthread_rwlock_unlock) \
    X(pthread_spin_lock) X(pthread_spin_trylock) X(pthread_spin_unlock) X(pthread_barrier_wait) \
    X(pthread_once) X(pthread_join) X(pthread_tryjoin_np) X(pthread_timedjoin_np) \
    X(pthread_clockjoin_np) X(sem_wait) X(sem_trywait) X(sem_timedwait) X(sem_clockwait) \
    X(sem_post) X(clock_nanosleep) X(sched_yield) X(poll) X(ppoll) X(select) X(pselect) \
    X(epoll_wait) X(epoll_pwait) X(epoll_pwait2) X(epoll_ctl) X(listen) X(accept) X(accept4) \
    X(read) X(readv) X(recv) X(recvfrom) X(recvmsg) X(write) X(writev) X(send) X(sendto) \
    X(sendmsg) X(connect) X(fsync) X(fdatasync) X(close) X(dup2) X(dup3) X(close_range) \
    X(closefrom) X(socket) X(socketpair) X(setsockopt) X(pipe) X(pipe2) X(pthread_setname_np) \
    X(setuid) X(setgid) X(setreuid) X(setregid) X(setresuid) X(setresgid) X(setgroups) \
    X(initgroups) X(chroot) X(pthread_rwlock_init) X(pthread_rwlock_destroy) X(pthread_spin_init) \
    X(pthread_spin_destroy) X(prctl) X(pthread_cond_init) X(pthread_cond_destroy) \
    X(pthread_barrier_init) X(pthread_barrier_destroy) X(sem_init) X(sem_destroy) X(mtx_init) \
    X(mtx_destroy) X(cnd_init) X(cnd_destroy) X(fopen) X(fopen64) X(fdopen) X(popen) \
    X(fclose) X(pclose) X(closedir) X(freopen) \
    X(freopen64) X(mlockall) X(recvmmsg) X(sendmmsg) X(wait) X(waitpid) X(wait3) X(wait4) \
    X(waitid) X(system) X(flock) X(fcntl) X(lockf) X(sigwait) X(sigtimedwait) X(sigsuspend) \
    X(pause) X(kill) X(semop) X(semtimedop) X(msgsnd) X(msgrcv) X(mq_send) X(mq_receive) X(mq_timedsend) \
    X(mq_timedreceive) X(flockfile) X(ftrylockfile) X(funlockfile) X(fwrite) X(fputs) X(puts) \
    X(fflush) X(fread) X(fgets) X(getdelim) X(getline) X(vfprintf) X(__vfprintf_chk) \
    X(__fgets_chk) X(__fread_chk)
/* clang-format on */

#define RPI_REAL_MEMBER(name) __typeof__(name) *name;
struct rpi_real {
    RPI_REALS(RPI_REAL_MEMBER)
    bool is_found; /* release */
    /* These calls are libc's own, not those of a library that stands before it. Read after rpi_real_find. */
    bool mutexes_are_libc, semaphores_are_libc;
};
#undef RPI_REAL_MEMBER
extern RPI_HIDDEN struct rpi_real rpi_real;

/* libc's: ends a program whose buffer is smaller than the size that it passes. */
_Noreturn void __chk_fail(void);

/* Look up all calls. Later calls have no effect. Inline because it is on the path of an uncontended lock. */
void rpi_real_find_all(void);
RSI_INLINE void rpi_real_find(void)
{
    if (rsi_unlikely(!rsi_load_acquire(&rpi_real.is_found))) /* pairs with rpi_real_find_all */
        rpi_real_find_all();
}

#endif
