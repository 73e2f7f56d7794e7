// SPDX-License-Identifier: MIT
//
// portal.cpp - each page is made of four parts, which a pool of threads fetches while the page waits for all of them.
// Fault: the pool has two threads.
//
// Repair: sixteen. An operation is a page.
#include "findings.h"

#include <array>
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned parts = 4, pages = 4, few = 2, many = 16;
constexpr long fetch_us = 1000;

class Fetchers
{
    std::mutex mutex;
    std::condition_variable came;
    std::deque<std::packaged_task<uint64_t(int)>> tasks;
    std::vector<std::thread> threads;
    bool is_closed = false;

    void run()
    {
        int server = service_open();
        for (;;) {
            std::unique_lock<std::mutex> guard(mutex);
            came.wait(guard, [this] { return !tasks.empty() || is_closed; });
            if (tasks.empty())
                break;
            auto task = std::move(tasks.front());
            tasks.pop_front();
            guard.unlock();
            task(server);
        }
        close(server);
    }

  public:
    explicit Fetchers(unsigned count)
    {
        for (unsigned i = 0; i < count; i++)
            threads.emplace_back([this] { run(); });
    }

    ~Fetchers()
    {
        {
            std::lock_guard<std::mutex> guard(mutex);
            is_closed = true;
        }
        came.notify_all();
        for (auto &thread : threads)
            thread.join();
    }

    Fetchers(const Fetchers &) = delete;
    Fetchers &operator=(const Fetchers &) = delete;

    std::future<uint64_t> submit(uint64_t (*fetch)(int))
    {
        std::packaged_task<uint64_t(int)> task(fetch);
        auto result = task.get_future();
        {
            std::lock_guard<std::mutex> guard(mutex);
            tasks.push_back(std::move(task));
        }
        came.notify_one();
        return result;
    }
};

Fetchers *fetchers;

uint64_t fetch_part(int server)
{
    service_ask(server, fetch_us);
    return 1;
}

uint64_t make_page()
{
    std::array<std::future<uint64_t>, parts> results;
    uint64_t sum = 0;
    for (auto &result : results)
        result = fetchers->submit(fetch_part);
    for (auto &result : results)
        sum += result.get();
    return digest(sum, 1000);
}

void *browse(void *arg)
{
    auto *self = static_cast<struct worker *>(arg);
    unsigned long ops = 0;
    for (; !is_over(); ops++)
        self->seed ^= make_page();
    self->ops = ops;
    return nullptr;
}

} // namespace

int main(int argc, char **argv)
{
    unsigned long ops;
    begin(argc, argv);
    {
        Fetchers all(is_fixed ? many : few);
        fetchers = &all;
        ops = run_threads(pages, browse);
    }
    finish(ops);
    return 0;
}
