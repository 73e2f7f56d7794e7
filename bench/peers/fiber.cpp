/* SPDX-License-Identifier: MIT */
/* fiber.cpp - Boost.Fiber behind C calls; see fiber.h. */
#include "fiber.h"

#include <cerrno>
#include <chrono>
#include <memory>
#include <new>
#include <sched.h>
#include <system_error>
#include <thread>
#include <vector>

#include <boost/fiber/all.hpp>

namespace fibers = boost::fibers;

namespace
{

struct semaphore {
    fibers::mutex mutex;
    fibers::condition_variable posted;
    unsigned count = 0;
};

static_assert(sizeof(semaphore) <= sizeof(bench_sem) && alignof(semaphore) <= alignof(bench_sem));
static_assert(sizeof(fibers::mutex) <= sizeof(bench_mutex));
static_assert(sizeof(fibers::fiber) <= sizeof(bench_thread));

std::vector<std::thread> workers;
fibers::mutex stop_mutex;
fibers::condition_variable stopped;
bool stop;
thread_local unsigned worker_index;

semaphore *sem_of(bench_sem *s)
{
    return reinterpret_cast<semaphore *>(s);
}

fibers::mutex *mutex_of(bench_mutex *m)
{
    return reinterpret_cast<fibers::mutex *>(m);
}

fibers::fiber *fiber_of(bench_thread *t)
{
    return reinterpret_cast<fibers::fiber *>(t);
}

void enter(unsigned index, unsigned count, bool pin, unsigned cpu)
{
    worker_index = index;
    if (pin) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        sched_setaffinity(0, sizeof set, &set);
    }
    /* Idle workers spin, which is the default. Suspended workers would not be woken to steal work. */
    if (count > 1)
        fibers::use_scheduling_algorithm<fibers::algo::work_stealing>(count);
}

void work(unsigned index, unsigned count, bool pin, unsigned cpu)
{
    enter(index, count, pin, cpu);
    std::unique_lock<fibers::mutex> lock(stop_mutex);
    stopped.wait(lock, [] { return stop; });
}

} // namespace

int bench_fiber_start(unsigned count, bool pin, const unsigned *cpus, unsigned cpu_count)
{
    try {
        for (unsigned i = 1; i < count; i++)
            workers.emplace_back(work, i, count, pin, cpus[i % cpu_count]);
    } catch (const std::system_error &error) {
        return -error.code().value();
    }
    enter(0, count, pin, cpus[0]);
    return 0;
}

void bench_fiber_stop(void)
{
    {
        std::unique_lock<fibers::mutex> lock(stop_mutex);
        stop = true;
    }
    stopped.notify_all();
    for (auto &worker : workers)
        worker.join();
}

int bench_fiber_create(struct bench_thread *t, void *(*fn)(void *), void *arg, size_t stack_bytes)
{
    try {
        new (t) fibers::fiber(std::allocator_arg, fibers::fixedsize_stack(stack_bytes),
                              [fn, arg] { fn(arg); });
    } catch (const std::bad_alloc &) {
        return -ENOMEM;
    }
    return 0;
}

void bench_fiber_join(struct bench_thread *t)
{
    fiber_of(t)->join();
    fiber_of(t)->~fiber();
}

void bench_fiber_yield(void)
{
    boost::this_fiber::yield();
}

void bench_fiber_sleep_ns(uint64_t ns)
{
    boost::this_fiber::sleep_for(std::chrono::nanoseconds(ns));
}

/* Not inlined, with a barrier: the address of a thread-local must not be kept over a switch. */
__attribute__((noinline)) unsigned bench_fiber_worker(void)
{
    __asm__ volatile("" ::: "memory");
    return worker_index;
}

void bench_fiber_sem_init(struct bench_sem *s)
{
    new (s) semaphore;
}

void bench_fiber_sem_wait(struct bench_sem *s)
{
    semaphore *sem = sem_of(s);
    std::unique_lock<fibers::mutex> lock(sem->mutex);
    while (sem->count == 0)
        sem->posted.wait(lock);
    sem->count--;
}

void bench_fiber_sem_post(struct bench_sem *s)
{
    semaphore *sem = sem_of(s);
    {
        std::unique_lock<fibers::mutex> lock(sem->mutex);
        sem->count++;
    }
    sem->posted.notify_one();
}

void bench_fiber_mutex_init(struct bench_mutex *m)
{
    new (m) fibers::mutex;
}

void bench_fiber_mutex_lock(struct bench_mutex *m)
{
    mutex_of(m)->lock();
}

void bench_fiber_mutex_unlock(struct bench_mutex *m)
{
    mutex_of(m)->unlock();
}
