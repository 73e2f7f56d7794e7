// SPDX-License-Identifier: MIT
//
// gazette.cpp - an executor on which pages are laid out and articles are fetched. Fault: a page waits for its articles on
// a thread of the executor, which has four for three clients: few are left to fetch.
//
// Repair: it has a thread for each page and each article.
#include "findings.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace
{

constexpr unsigned clients = 3, articles = 4, small = 4, large = clients * (1 + articles);
constexpr unsigned article_bytes = 20000;
constexpr std::chrono::microseconds fetch_time(1500);

class Executor
{
    std::mutex queue_mutex;
    std::condition_variable task_came;
    std::deque<std::function<void()>> tasks;
    bool is_closed = false;
    std::vector<std::thread> threads;

    void run_tasks()
    {
        for (;;) {
            std::function<void()> task;
            {
                std::unique_lock<std::mutex> guard(queue_mutex);
                while (tasks.empty() && !is_closed)
                    task_came.wait(guard);
                if (tasks.empty())
                    return;
                task = std::move(tasks.front());
                tasks.pop_front();
            }
            task();
        }
    }

  public:
    explicit Executor(unsigned size)
    {
        for (unsigned i = 0; i < size; i++)
            threads.emplace_back([this] { run_tasks(); });
    }

    std::future<uint64_t> submit(std::function<uint64_t()> function)
    {
        auto task = std::make_shared<std::packaged_task<uint64_t()>>(std::move(function));
        auto future = task->get_future();
        {
            std::lock_guard<std::mutex> guard(queue_mutex);
            tasks.emplace_back([task] { (*task)(); });
        }
        task_came.notify_one();
        return future;
    }

    ~Executor()
    {
        {
            std::lock_guard<std::mutex> guard(queue_mutex);
            is_closed = true;
        }
        task_came.notify_all();
        for (std::thread &thread : threads)
            thread.join();
    }
};

uint64_t fetch_article(uint64_t number)
{
    std::this_thread::sleep_for(fetch_time); // the archive answers
    return digest(number, article_bytes);
}

uint64_t lay_out(Executor &executor, uint64_t page)
{
    std::vector<std::future<uint64_t>> fetched;
    for (uint64_t i = 0; i < articles; i++)
        fetched.push_back(executor.submit([=] { return fetch_article(page + i); }));
    uint64_t text = 0;
    for (std::future<uint64_t> &article : fetched)
        text += article.get();
    return text;
}

unsigned long request_pages(Executor &executor)
{
    unsigned long ops = 0;
    for (uint64_t page = 0; !is_over(); ops++)
        page = executor.submit([&, page] { return lay_out(executor, page); }).get();
    return ops;
}

} // namespace

int main(int argc, char **argv)
{
    begin(argc, argv);
    Executor executor(is_fixed ? large : small);
    std::vector<unsigned long> ops(clients);
    std::vector<std::thread> all;
    for (unsigned i = 0; i < clients; i++)
        all.emplace_back([&, i] { ops[i] = request_pages(executor); });
    unsigned long sum = 0;
    for (unsigned i = 0; i < clients; i++) {
        all[i].join();
        sum += ops[i];
    }
    finish(sum);
    return 0;
}
