// SPDX-License-Identifier: MIT
// owner_locks.cpp - two user threads of one worker, and a lock whose owner is a kernel thread. The argument says which
// lock, and the first word of the output what the second thread got.
#include <rouse/rouse.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <mutex>
#include <pthread.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace
{
std::recursive_mutex recursive;
std::recursive_timed_mutex timed;
pthread_mutex_t checked;
rouse_sem to_first = ROUSE_SEM_INIT(0), to_second = ROUSE_SEM_INIT(0);
std::string lock;
int got;

void must(int result)
{
    if (result != 0)
        std::exit(3);
}

// EBUSY and ETIMEDOUT, as one number: the lock was held.
int held(bool is_taken)
{
    return is_taken ? 0 : EBUSY;
}

timespec soon()
{
    timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return until;
}

int take()
{
    timespec until = soon();
    if (lock == "recursive")
        return held(recursive.try_lock());
    if (lock == "timed")
        return held(timed.try_lock_for(std::chrono::milliseconds(1)));
    if (lock == "checked")
        return pthread_mutex_timedlock(&checked, &until);
    return ftrylockfile(stderr);
}

int release()
{
    if (lock == "recursive")
        recursive.unlock();
    else if (lock == "timed")
        timed.unlock();
    else if (lock == "checked")
        return pthread_mutex_unlock(&checked);
    else
        funlockfile(stderr);
    return 0;
}

void *first(void *)
{
    for (int i = 0; i < 3; i++) {
        must(take());
        must(rouse_sem_post(&to_second));
        must(rouse_sem_wait(&to_first));
        must(release());
    }
    return nullptr;
}

void *second(void *)
{
    for (int i = 0; i < 3; i++) {
        must(rouse_sem_wait(&to_second));
        got = take();
        if (got == 0)
            must(release());
        must(rouse_sem_post(&to_first));
    }
    return nullptr;
}

// It takes the lock on one worker, and releases it on another.
void *moves(void *cluster)
{
    must(pthread_mutex_lock(&checked));
    must(rouse_thread_move(rouse_thread_self(), static_cast<rouse_cluster *>(cluster)));
    rouse_thread_yield();
    got = pthread_mutex_unlock(&checked);
    return nullptr;
}

// Right with any owner: locks that are taken twice by one thread, one thread after the other. EPERM for a lock that
// nobody holds is right, too.
void *nests(void *)
{
    for (int i = 0; i < 1000; i++) {
        recursive.lock();
        recursive.lock();
        recursive.unlock();
        recursive.unlock();
        flockfile(stdout);
        flockfile(stdout);
        funlockfile(stdout);
        funlockfile(stdout);
        must(pthread_mutex_lock(&checked));
        must(pthread_mutex_unlock(&checked));
        must(pthread_mutex_unlock(&checked) == EPERM ? 0 : 1);
        rouse_thread_yield();
    }
    return nullptr;
}

// A monitor: pthread_cond_wait releases and takes the mutex within libc.
pthread_mutex_t monitor;
pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
long turn;

void *takes_turns(void *arg)
{
    long mine = reinterpret_cast<long>(arg);
    must(pthread_mutex_lock(&monitor));
    for (int i = 0; i < 100; i++) {
        while (turn != mine)
            must(pthread_cond_wait(&changed, &monitor));
        if (pthread_mutex_lock(&monitor) == 0) // EDEADLK from an error-checking mutex
            must(pthread_mutex_unlock(&monitor));
        turn = !turn;
        must(pthread_cond_broadcast(&changed));
    }
    must(pthread_mutex_unlock(&monitor));
    return nullptr;
}

// The child of a fork is another kernel thread: libc refuses it the release, with any kind of threads.
void *forks(void *)
{
    must(pthread_mutex_lock(&checked));
    pid_t pid = fork();
    if (pid == 0)
        _exit(pthread_mutex_unlock(&checked) == EPERM ? 0 : 1);
    int status = 0;
    must(waitpid(pid, &status, 0) == pid ? status : 1);
    must(pthread_mutex_unlock(&checked));
    return nullptr;
}

// libc says where the caller's stack is: the thread's own.
void *looks_for_its_stack(void *)
{
    pthread_attr_t attr;
    void *low;
    size_t bytes;
    must(pthread_getattr_np(pthread_self(), &attr));
    must(pthread_attr_getstack(&attr, &low, &bytes));
    char *here = static_cast<char *>(__builtin_frame_address(0));
    got = here > low && here < static_cast<char *>(low) + bytes && bytes <= 65536;
    pthread_attr_destroy(&attr);
    return nullptr;
}

int prioritise()
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    must(pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_NONE));
    return pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
}

void *nothing(void *)
{
    return nullptr;
}

int start(rouse_thread **out, void *(*fn)(void *), void *arg, bool own)
{
    rouse_thread_attr attr = ROUSE_THREAD_ATTR_INIT;
    attr.own_tls = own;
    return rouse_thread_create(out, &attr, fn, arg);
}

void run(void *(*one)(void *), void *(*other)(void *), void *arg, bool own = false)
{
    rouse_thread *threads[2];
    must(start(&threads[0], one, arg, own));
    must(start(&threads[1], other, arg, own));
    must(rouse_thread_join(threads[0], nullptr));
    must(rouse_thread_join(threads[1], nullptr));
}
} // namespace

int main(int, char **argv)
{
    pthread_mutexattr_t attr;
    rouse_cluster *cluster = nullptr;
    rouse_thread *t;
    lock = argv[1];
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&checked, &attr);
    if (lock == "moved") {
        rouse_cluster_attr two = ROUSE_CLUSTER_ATTR_INIT;
        two.workers = 1;
        must(rouse_cluster_create(&cluster, &two));
        run(moves, nothing, cluster);
    } else if (lock == "monitor recursive" || lock == "monitor checked") {
        pthread_mutexattr_settype(&attr, lock == "monitor checked" ? PTHREAD_MUTEX_ERRORCHECK
                                                                   : PTHREAD_MUTEX_RECURSIVE);
        pthread_mutex_init(&monitor, &attr);
        rouse_thread *other;
        must(start(&t, takes_turns, nullptr, false));
        must(start(&other, takes_turns, reinterpret_cast<void *>(1), false));
        must(rouse_thread_join(t, nullptr));
        must(rouse_thread_join(other, nullptr));
    } else if (lock == "forked") {
        run(forks, nothing, nullptr);
    } else if (lock == "nested") {
        run(nests, nests, nullptr);
    } else if (lock == "stack") {
        run(looks_for_its_stack, nothing, nullptr, true);
    } else if (lock == "priority first") {
        must(prioritise());
        got = start(&t, nothing, nullptr, true);
    } else if (lock == "priority second") {
        run(nothing, nothing, nullptr, true);
        got = prioritise();
    } else {
        run(first, second, nullptr);
    }
    std::printf("%d\n", got);
    return 0;
}
