// SPDX-License-Identifier: MIT
//
// dispatch.cpp - requests that a pool of threads serves by calls to a remote service, with results as std::future.
// Fault: the pool has two threads, and twelve requests wait for it at any time.
//
// Repair: a thread for each request.
#include "findings.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned few = 2, callers = 12;
constexpr long call_us = 2000, think_us = 1000;

class Dispatcher
{
    std::mutex mutex;
    std::condition_variable task_came;
    std::deque<std::packaged_task<int(int)>> tasks;
    std::vector<std::thread> threads;
    bool is_closed = false;

    void serve()
    {
        int service = service_open();
        for (;;) {
            std::packaged_task<int(int)> task;
            {
                std::unique_lock<std::mutex> guard(mutex);
                while (tasks.empty() && !is_closed)
                    task_came.wait(guard);
                if (tasks.empty())
                    break;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            task(service);
        }
        close(service);
    }

  public:
    explicit Dispatcher(unsigned count)
    {
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back(&Dispatcher::serve, this);
    }

    ~Dispatcher()
    {
        {
            std::lock_guard<std::mutex> guard(mutex);
            is_closed = true;
        }
        task_came.notify_all();
        for (std::thread &thread : threads)
            thread.join();
    }

    std::future<int> submit(std::packaged_task<int(int)> task)
    {
        std::future<int> result = task.get_future();
        {
            std::lock_guard<std::mutex> guard(mutex);
            tasks.push_back(std::move(task));
        }
        task_came.notify_one();
        return result;
    }
};

int call_service(int service)
{
    service_ask(service, call_us);
    return 1;
}

unsigned long handle_requests(Dispatcher &dispatcher)
{
    unsigned long ops = 0;
    int user = service_open();
    while (!is_over()) {
        ops += static_cast<unsigned long>(
            dispatcher.submit(std::packaged_task<int(int)>(call_service)).get());
        service_ask(user, think_us);
    }
    close(user);
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    std::vector<unsigned long> ops(callers);
    {
        Dispatcher dispatcher(is_fixed ? callers : few);
        std::vector<std::thread> threads;
        for (unsigned i = 0; i < callers; i++)
            threads.emplace_back([&, i] { ops[i] = handle_requests(dispatcher); });
        for (std::thread &thread : threads)
            thread.join();
    }
    unsigned long sum = 0;
    for (unsigned long each : ops)
        sum += each;
    finish(sum);
    return 0;
}
